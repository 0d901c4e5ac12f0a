/* SPDX-License-Identifier: MIT */
/* A plume-pjrt.so without a device: it computes nothing, but holds its caller to what the text of
 * each program says. Results that have an argument's memory are the argument's contents; all others
 * are 0. It aborts where an argument has another type or shape than the text has, or is gone, and
 * at the end if an array or a program has not been freed. $FAKE_PJRT_LOG gets a line per program.
 * It has 4 devices, whose replicas run alike; with several hosts it has 4 on each. Plugins:
 * "no-device", "no-compiler" and "no-runs" fail where their names say. */
#include "runtime/engine/xla/pjrt_table.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST 512

struct pl_pjrt {
    const char *plugin;
    size_t n, world; /* devices; of all hosts */
    size_t arrays, programs;
};

struct pl_pjrt_program {
    size_t n_in, n_out, aliases;
    char in[MOST][64], out[MOST][64];
    int alias[MOST];
    char *text;
};

struct pl_pjrt_array {
    char type[64];
    size_t bytes; /* of a device */
    char *data;   /* of all devices */
    bool gone;
};

static void stop(const char *what)
{
    fprintf(stderr, "fake_pjrt: %s\n", what);
    abort();
}

/* The hosts tell each other of their devices. */
static int meet(const struct pl_pjrt_hosts *h, size_t n, size_t *ret_world, struct pl_error *err)
{
    char key[32], text[32];
    int r;

    snprintf(key, sizeof(key), "fake/%u", h->index);
    snprintf(text, sizeof(text), "%zu", n);
    r = h->put(h->ctx, key, strlen(key), text, strlen(text), err);
    *ret_world = 0;
    for (unsigned i = 0; i < h->n && r == 0; i++) {
        char *value;
        size_t len;

        snprintf(key, sizeof(key), "fake/%u", i);
        r = h->get(h->ctx, key, strlen(key), 20000, &value, &len, err);
        if (r < 0)
            break;
        *ret_world += strtoul(value, NULL, 10);
        free(value);
    }
    return r;
}

static int fake_open(const char *path,
                     const unsigned *list,
                     size_t n,
                     const struct pl_pjrt_hosts *hosts,
                     struct pl_pjrt **ret,
                     struct pl_error *err)
{
    size_t world = n;
    int r;

    for (size_t i = 0; i < n; i++)
        if ((list ? list[i] : i) >= 4)
            return pl_error_set(err, -ENODEV, "the fake has 4 devices");
    if (strcmp(path, "no-device") == 0)
        return pl_error_set(err, -ENODEV, "the PJRT plugin has no device on this machine");
    if (hosts && strcmp(path, "no-second-host") == 0 && hosts->index == 1)
        return pl_error_set(err, -EIO, "the XLA device of the second host: is in use");
    r = hosts ? meet(hosts, n, &world, err) : 0;
    if (r < 0)
        return r;
    *ret = calloc(1, sizeof(**ret));
    if (!*ret)
        return pl_error_nomem(err);
    (*ret)->plugin = path;
    (*ret)->n = n;
    (*ret)->world = world;
    return 0;
}

static void fake_close(struct pl_pjrt *p)
{
    if (p && (p->arrays || p->programs))
        stop("arrays or programs are left at the end");
    free(p);
}

static const char *fake_platform(const struct pl_pjrt *p)
{
    return p ? "fake" : "";
}

/* Copies "tensor<...>" at *text and goes on behind it. */
static void take_type(const char **text, char to[64])
{
    const char *end = strchr(*text, '>');

    if (strncmp(*text, "tensor<", 7) != 0 || !end || end - *text > 62)
        stop("a type was expected");
    memcpy(to, *text, (size_t)(end + 1 - *text));
    to[end + 1 - *text] = '\0';
    *text = end + 1;
}

static const char *after(const char *text, const char *what)
{
    const char *at = strstr(text, what);

    if (!at)
        stop("the text has no signature");
    return at + strlen(what);
}

/* "(%1: TYPE {tf.aliasing_output = 0 : i32}, ...) -> (TYPE, ...) {" */
static void parse(struct pl_pjrt_program *program, const char *text)
{
    static const char aliasing[] = " {tf.aliasing_output = ";

    text = after(text, "@main(");
    while (*text != ')') {
        size_t i = program->n_in++;

        if (i == MOST)
            stop("too many arguments");
        text = after(text, ": ");
        take_type(&text, program->in[i]);
        program->alias[i] = -1;
        if (strncmp(text, aliasing, strlen(aliasing)) == 0) {
            program->alias[i] = (int)strtol(text + strlen(aliasing), NULL, 10);
            program->aliases++;
            text = after(text, "}");
        }
        text += strspn(text, ", ");
    }
    text = after(text, ") -> (");
    while (*text != ')') {
        if (program->n_out == MOST)
            stop("too many results");
        take_type(&text, program->out[program->n_out++]);
        text += strspn(text, ", ");
    }
}

/* Replicas are told only where there are several. */
static void check_replicas(const char *text, size_t n)
{
    const char *at = strstr(text, "mhlo.num_replicas = ");

    if ((at ? strtoul(at + strlen("mhlo.num_replicas = "), NULL, 10) : 1) != n)
        stop("a program is for another number of devices");
}

static int fake_compile(struct pl_pjrt *p,
                        const char *text,
                        size_t len,
                        bool everywhere,
                        size_t outputs,
                        struct pl_pjrt_program **ret,
                        struct pl_error *err)
{
    const char *log = getenv("FAKE_PJRT_LOG");
    struct pl_pjrt_program *program;
    FILE *f = log ? fopen(log, "ae") : NULL;

    if (strcmp(p->plugin, "no-compiler") == 0)
        return pl_error_set(err, -EIO, "the XLA device: compiling: %s", "UNIMPLEMENTED: all of it");
    program = calloc(1, sizeof(*program));
    if (!program)
        return pl_error_nomem(err);
    if (strlen(text) != len)
        stop("the text has another length");
    check_replicas(text, everywhere ? p->world : p->n);
    parse(program, text);
    program->text = strdup(text);
    if (program->n_out != outputs)
        stop("the program has another number of results");
    if (f) {
        fprintf(f, "program: %zu arguments, %zu in place, %zu results\n", program->n_in,
                program->aliases, program->n_out);
        fclose(f);
    }
    p->programs++;
    *ret = program;
    return 0;
}

/* Plugin "bytes" gives its programs out, and plugin "other-bytes" of the same identity takes none.
 */
static const char *fake_identity(const struct pl_pjrt *p)
{
    return strcmp(p->plugin, "no-identity") == 0 ? "" : "fake";
}

static int fake_save(struct pl_pjrt *p,
                     const struct pl_pjrt_program *program,
                     struct pl_buf *to,
                     struct pl_error *err)
{
    if (!strstr(p->plugin, "bytes"))
        return pl_error_set(err, -ENOTSUP, "the fake gives none out");
    return pl_buf_adds(to, program->text);
}

static int fake_load(struct pl_pjrt *p,
                     const char *data,
                     size_t len,
                     size_t outputs,
                     struct pl_pjrt_program **ret,
                     struct pl_error *err)
{
    struct pl_pjrt_program *program;

    if (strcmp(p->plugin, "bytes") != 0)
        return pl_error_set(err, -EIO, "the fake takes none");
    program = calloc(1, sizeof(*program));
    if (!program)
        return pl_error_nomem(err);
    program->text = strndup(data, len);
    parse(program, program->text);
    if (program->n_out != outputs)
        stop("a loaded program has another number of results");
    p->programs++;
    *ret = program;
    return 0;
}

static void fake_program_free(struct pl_pjrt *p, struct pl_pjrt_program *program)
{
    p->programs -= program != NULL;
    if (program)
        free(program->text);
    free(program);
}

static struct pl_pjrt_array *make(struct pl_pjrt *p, const char *type)
{
    struct pl_pjrt_array *array = calloc(1, sizeof(*array));
    const char *at = type + strlen("tensor<");
    size_t count = 1;
    char *end;

    if (!array)
        stop("out of memory");
    snprintf(array->type, sizeof(array->type), "%s", type);
    for (size_t n = strtoul(at, &end, 10); *end == 'x'; n = strtoul(at, &end, 10)) {
        count *= n;
        at = end + 1;
    }
    array->bytes = 4 * count;
    array->data = calloc(p->n, array->bytes + 1);
    p->arrays++;
    return array;
}

static int fake_upload(struct pl_pjrt *p,
                       enum pl_pjrt_type type,
                       size_t rank,
                       const size_t *shape,
                       const void *const *data,
                       struct pl_pjrt_array **ret,
                       struct pl_error *err)
{
    static const char *const types[] = {
        [PL_PJRT_F32] = "f32", [PL_PJRT_I32] = "i32", [PL_PJRT_U32] = "ui32"};
    char text[64] = "tensor<";

    for (size_t i = 0; i < rank; i++)
        snprintf(text + strlen(text), sizeof(text) - strlen(text), "%zux", shape[i]);
    snprintf(text + strlen(text), sizeof(text) - strlen(text), "%s>", types[type]);
    *ret = make(p, text);
    for (size_t i = 0; i < p->n; i++)
        memcpy((*ret)->data + i * (*ret)->bytes, data[i], (*ret)->bytes);
    return err && err->code ? err->code : 0;
}

static int fake_download(struct pl_pjrt *p,
                         const struct pl_pjrt_array *array,
                         size_t device,
                         void *to,
                         size_t bytes,
                         struct pl_error *err)
{
    if (array->gone)
        stop("an array is read whose memory has been taken over");
    if (array->bytes != bytes)
        stop("an array is read with another size");
    if (device >= p->n)
        stop("an array is read of a device that is not there");
    memcpy(to, array->data + device * bytes, bytes);
    return strcmp(p->plugin, "no-copies") == 0 ? pl_error_set(err, -EIO, "no copies") : 0;
}

static void fake_array_free(struct pl_pjrt *p, struct pl_pjrt_array *array)
{
    if (!array)
        return;
    p->arrays--;
    free(array->data);
    free(array);
}

static int fake_run(struct pl_pjrt *p,
                    const struct pl_pjrt_program *program,
                    struct pl_pjrt_array *const *in,
                    size_t n_in,
                    struct pl_pjrt_array **ret,
                    struct pl_error *err)
{
    if (strcmp(p->plugin, "no-runs") == 0)
        return pl_error_set(err, -EIO, "the XLA device: running a step: %s", "INTERNAL: no");
    if (n_in != program->n_in)
        stop("a program gets another number of arguments");
    for (size_t i = 0; i < program->n_out; i++)
        ret[i] = make(p, program->out[i]);
    for (size_t i = 0; i < n_in; i++) {
        int to = program->alias[i];

        if (!in[i] || in[i]->gone || strcmp(in[i]->type, program->in[i]) != 0)
            stop("an argument is gone, or of another type");
        if (to < 0)
            continue;
        if ((size_t)to >= program->n_out || strcmp(program->in[i], program->out[to]) != 0)
            stop("a result of another type has an argument's memory");
        memcpy(ret[to]->data, in[i]->data, p->n * in[i]->bytes);
        in[i]->gone = true;
    }
    return 0;
}

extern const struct pl_pjrt_table pl_pjrt_table;

const struct pl_pjrt_table pl_pjrt_table = {
    .version = PL_PJRT_TABLE_VERSION,
    .open = fake_open,
    .close = fake_close,
    .platform = fake_platform,
    .compile = fake_compile,
    .identity = fake_identity,
    .save = fake_save,
    .load = fake_load,
    .program_free = fake_program_free,
    .upload = fake_upload,
    .download = fake_download,
    .array_free = fake_array_free,
    .run = fake_run,
};
