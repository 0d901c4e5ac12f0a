/* SPDX-License-Identifier: MIT */
#include "common/proto/json.h"
#include "common/base/fs.h"
#include "common/base/parse.h"

#include <ctype.h>
#include <setjmp.h>
#include <stdbool.h>
#include <string.h>

/* Deepest nesting of the text; brackets inside strings do not count. A check before parsing also
 * bounds the parser's recursion. */
static unsigned text_depth(const char *text, size_t len)
{
    unsigned depth = 0, max = 0;
    bool quoted = false;

    for (size_t i = 0; i < len; i++) {
        char c = text[i];

        if (quoted && c == '\\')
            i++;
        else if (c == '"')
            quoted = !quoted;
        else if (!quoted && (c == '{' || c == '['))
            depth++;
        else if (!quoted && (c == '}' || c == ']') && depth)
            depth--;
        max = PL_MAX(max, depth);
    }
    return max;
}

/* jansson 2.14 writes past the buffer of its lexer if it has no memory to make it larger. Where an
 * allocation fails the parser is left at once; what it had built until then is lost. */
static _Thread_local jmp_buf *leave_parser;
static _Thread_local bool had_no_memory;

static void *allocate(size_t size)
{
    void *p = malloc(size);

    if (!p)
        had_no_memory = true;
    if (!p && leave_parser)
        longjmp(*leave_parser, 1);
    return p;
}

bool pl_json_had_no_memory(void)
{
    bool had = had_no_memory;

    had_no_memory = false;
    return had;
}

__attribute__((constructor)) static void set_allocator(void)
{
    json_set_alloc_funcs(allocate, free);
}

/* -ENOMEM; else 0, and NULL in *ret for bad JSON. */
static int load(const char *text, size_t len, json_t **ret, json_error_t *why)
{
    jmp_buf here;

    if (setjmp(here) != 0) {
        leave_parser = NULL;
        return -ENOMEM;
    }
    leave_parser = &here;
    *ret = json_loadb(text, len, JSON_REJECT_DUPLICATES, why);
    leave_parser = NULL;
    return 0;
}

int pl_json_parse(
    const char *text, size_t len, size_t max_bytes, json_t **ret, struct pl_error *err)
{
    _cleanup_(json_decrefp) json_t *value = NULL;
    json_error_t why;

    if (len > max_bytes)
        return pl_error_set(err, -EFBIG, "JSON text longer than %zu bytes", max_bytes);
    if (text_depth(text, len) > PL_JSON_DEPTH_MAX)
        return pl_error_set(err, -EINVAL, "JSON text nested deeper than %d", PL_JSON_DEPTH_MAX);
    if (load(text, len, &value, &why) < 0)
        return pl_error_set(err, -ENOMEM, "out of memory");
    if (!value)
        return pl_error_set(err, -EINVAL, "bad JSON in line %d, column %d: %s", why.line,
                            why.column, why.text);
    if (!json_is_object(value))
        return pl_error_set(err, -EINVAL, "bad JSON: not an object");
    *ret = PL_TAKE(value);
    return 0;
}

int pl_json_load_file(const char *path, size_t max_bytes, json_t **ret, struct pl_error *err)
{
    _cleanup_free_ char *text = NULL;
    size_t len;
    int r;

    r = pl_file_read(path, max_bytes, &text, &len, err);
    if (r < 0)
        return r;
    r = pl_json_parse(text, len, max_bytes, ret, err);
    return r < 0 ? pl_error_wrap(err, r, "'%s'", path) : 0;
}

const char *pl_json_string(const json_t *o, const char *key)
{
    return json_string_value(json_object_get(o, key));
}

int pl_json_int(const json_t *o, const char *key, int64_t *ret)
{
    const json_t *value = json_object_get(o, key);

    if (!value)
        return -ENOENT;
    if (!json_is_integer(value))
        return -EINVAL;
    *ret = json_integer_value(value);
    return 0;
}

struct dump {
    struct pl_buf *out;
    bool quoted;
    bool failed; /* no memory for a part */
    bool plain;  /* numbers as jansson writes them */
};

/* The shortest digits that read back as the same number: 0.919 and not 0.91900000000000004. */
static size_t shorten(const char *data, size_t size, char ret[32])
{
    char whole[32];
    double value, again;

    if (size >= sizeof(whole))
        return 0;
    memcpy(whole, data, size);
    whole[size] = '\0';
    if (!strpbrk(whole, ".eE") || pl_parse_double(whole, &value, NULL) < 0)
        return 0; /* integers stay as they are */
    for (int digits = 15; digits <= 16; digits++) {
        snprintf(ret, 32, "%.*g", digits, value);
        if (pl_parse_double(ret, &again, NULL) < 0 || again != value)
            continue; /* not enough, or the locale has another decimal point */
        size = strlen(ret);
        if (!strpbrk(ret, ".e")) {
            memcpy(ret + size, ".0", 3); /* it stays a real */
            size += 2;
        }
        return size;
    }
    return 0;
}

/* jansson hands over a number in one piece, and a quote that begins or ends a string alone. */
static int add_to_buf(const char *data, size_t size, void *ctx)
{
    struct dump *d = ctx;
    char number[32];
    size_t len = 0;

    if (d->plain)
        len = 0;
    else if (size == 1 && *data == '"')
        d->quoted = !d->quoted;
    else if (!d->quoted && size > 15 && (isdigit((unsigned char)*data) || *data == '-'))
        len = shorten(data, size, number);
    if (pl_buf_add(d->out, len ? number : data, len ? len : size) < 0)
        d->failed = true; /* jansson forgets some failures of this function, and goes on */
    return d->failed ? -1 : 0;
}

int pl_json_dump_line(const json_t *o, struct pl_buf *out)
{
    struct dump d = {.out = out};
    size_t before = out->len;

    if (!o)
        return -EINVAL;
    if (json_dump_callback(o, add_to_buf, &d, JSON_COMPACT | JSON_ENCODE_ANY) < 0 || d.failed ||
        pl_buf_addc(out, '\n') < 0) {
        out->len = before;
        if (out->data)
            out->data[before] = '\0';
        return -ENOMEM;
    }
    return 0;
}

char *pl_json_dumps(const json_t *o, size_t flags)
{
    struct pl_buf text = {0};
    struct dump d = {.out = &text, .plain = true};

    if (!o || json_dump_callback(o, add_to_buf, &d, flags) < 0 || d.failed ||
        pl_buf_reserve(&text, 0) < 0) {
        pl_buf_finish(&text);
        return NULL;
    }
    return text.data;
}
