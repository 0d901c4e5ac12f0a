/* SPDX-License-Identifier: MIT */
#include "common/base/env.h"
#include "common/base/fs.h"
#include "common/base/log.h"
#include "common/base/macros.h"
#include "runtime/engine/xla/program_cache.h"
#include "runtime/engine/xla/xla_private.h"

#include <errno.h>
#include <string.h>

static int write_dump(const struct pl_xla *x, const struct pl_buf *text, struct pl_error *err)
{
    FILE *f = x->dump ? fopen(x->dump, x->n_compiled ? "ae" : "we") : NULL;
    bool bad;

    if (!x->dump)
        return 0;
    if (!f)
        return pl_error_errno(err, -errno, "cannot write '%s'", x->dump);
    bad = fwrite(text->data, 1, text->len, f) != text->len;
    if (fclose(f) != 0 || bad)
        return pl_error_errno(err, -errno, "cannot write '%s'", x->dump);
    return 0;
}

/* The key of a program in the cache. It is a hash of the plugin, its device, the options of XLA's
 * compiler, and the program's text. */
static void key_of(const struct pl_xla *x, const uint8_t *text_hash, uint8_t *ret)
{
    const char *identity = x->table->identity(x->client);
    const char *flags[] = {pl_env(PL_ENV_XLA_FLAGS), pl_env(PL_ENV_LIBTPU_INIT_ARGS)};
    struct pl_sha256 sha;

    pl_sha256_init(&sha);
    pl_sha256_add(&sha, identity, strlen(identity) + 1);
    for (size_t i = 0; i < PL_COUNT(flags); i++)
        pl_sha256_add(&sha, flags[i] ? flags[i] : "", flags[i] ? strlen(flags[i]) + 1 : 1);
    pl_sha256_add(&sha, text_hash, PL_SHA256_BYTES);
    pl_sha256_final(&sha, ret);
}

/* Says it once. */
static void give_up(struct pl_xla *x, const struct pl_error *why)
{
    x->cache = false;
    pl_log_info("train", "compiled programs are not kept for the next run: %s", pl_error_text(why));
}

/* True if the program is kept from an earlier run. What is of no use is replaced later. */
static bool find_kept(struct pl_xla *x, const uint8_t *key, struct pl_compiled *one)
{
    _cleanup_free_ char *file = NULL;
    struct pl_error why = {0};
    const char *data;
    size_t len;
    int r = pl_program_cache_get(key, &file, &data, &len, &why);

    if (r == -ENOENT)
        return false;
    if (r < 0 && r != -EBADMSG) {
        give_up(x, &why);
        return false;
    }
    if (r == 0)
        r = x->table->load(x->client, data, len, one->outputs, &one->program, &why);
    if (r < 0)
        pl_log_warn("train", "a stored program cannot be used, and is compiled again: %s",
                    pl_error_text(&why));
    return r == 0;
}

static void keep(struct pl_xla *x, const uint8_t *key, const struct pl_compiled *one)
{
    _cleanup_(pl_buf_finish) struct pl_buf data = {0};
    struct pl_error why = {0};
    int r = x->table->save(x->client, one->program, &data, &why);

    if (r == 0)
        r = pl_program_cache_put(key, data.data, data.len, &why);
    if (r < 0)
        give_up(x, &why);
}

static int make(struct pl_xla *x,
                const struct pl_buf *text,
                bool everywhere,
                struct pl_compiled *one,
                struct pl_error *err)
{
    uint64_t begin = pl_now_ns();
    uint8_t key[PL_SHA256_BYTES];
    bool kept;
    int r = 0;

    key_of(x, one->hash, key);
    kept = x->cache && find_kept(x, key, one);
    if (!kept)
        r = x->table->compile(x->client, text->data, text->len, everywhere, one->outputs,
                              &one->program, err);
    if (r < 0)
        return r;
    pl_log_debug("train", "%s a program of %zu bytes for the XLA device in %.2f s",
                 kept ? "loaded" : "compiled", text->len, (double)(pl_now_ns() - begin) * 1e-9);
    if (!kept && x->cache)
        keep(x, key, one);
    return 0;
}

/* The program of a text, compiled now if it is new. */
static int compile(struct pl_xla *x,
                   const struct pl_buf *text,
                   bool everywhere,
                   size_t outputs,
                   size_t *ret,
                   struct pl_error *err)
{
    struct pl_compiled one = {.outputs = outputs}, *more;
    struct pl_sha256 sha;
    int r;

    pl_sha256_init(&sha);
    pl_sha256_add(&sha, text->data, text->len);
    pl_sha256_final(&sha, one.hash);
    for (size_t i = 0; i < x->n_compiled; i++)
        if (memcmp(x->compiled[i].hash, one.hash, sizeof(one.hash)) == 0) {
            *ret = i;
            return 0;
        }
    more = reallocarray(x->compiled, x->n_compiled + 1, sizeof(*more));
    if (!more)
        return pl_error_nomem(err);
    x->compiled = more;
    r = write_dump(x, text, err);
    if (r == 0)
        r = make(x, text, everywhere, &one, err);
    if (r < 0)
        return r;
    *ret = x->n_compiled;
    x->compiled[x->n_compiled++] = one;
    return 0;
}

static bool matches(const struct pl_recent *e, const struct pl_program_spec *spec)
{
    const struct pl_xla_step *s = spec->step;

    return e->tape == spec->part->tape && e->training == spec->training && e->first == s->first &&
           e->due == s->due;
}

/* True if the entry's program is that of the step. */
static bool is_current(const struct pl_xla *x,
                       const struct pl_recent *e,
                       const struct pl_program_spec *spec,
                       unsigned *classes)
{
    const struct pl_xla_step *s = spec->step;
    struct pl_program_plan plan = {.grad = e->plan.grad, .class_of = classes};
    size_t n = x->params->n;

    if (e->recordings != spec->part->tape->recordings || e->scale != s->scale ||
        e->n_values != s->n_values ||
        memcmp(e->values, spec->part->values, s->n_values * sizeof(*spec->part->values)) != 0)
        return false;
    if (!spec->training)
        return true;
    if (memcmp(e->summed, x->summed, n * sizeof(*x->summed)) != 0)
        return false;
    if (!s->due)
        return true;
    pl_program_classes(spec, &plan);
    for (size_t i = 0; i < n; i++)
        if (plan.grad[i] && classes[i] != e->plan.class_of[i])
            return false;
    return true;
}

static int new_entry(struct pl_xla *x, struct pl_recent **ret, struct pl_error *err)
{
    struct pl_recent *more = reallocarray(x->recent, x->n_recent + 1, sizeof(*more)), *e;

    if (!more)
        return pl_error_nomem(err);
    x->recent = more;
    e = &more[x->n_recent++];
    *e = (struct pl_recent){.plan = {.grad = calloc(x->params->n + 1, sizeof(bool)),
                                     .class_of = calloc(x->params->n + 1, sizeof(unsigned))},
                            .summed = calloc(x->params->n + 1, sizeof(bool))};
    *ret = e;
    return e->plan.grad && e->plan.class_of && e->summed ? 0 : pl_error_nomem(err);
}

static int lower(struct pl_xla *x,
                 struct pl_recent *e,
                 const struct pl_program_spec *spec,
                 struct pl_error *err)
{
    const struct pl_xla_step *s = spec->step;
    _cleanup_(pl_buf_finish) struct pl_buf text = {0};
    size_t outputs = 0;
    int r = pl_program_text(spec, &e->plan, &text, &outputs, err);

    e->tape = NULL; /* unless it is complete */
    if (r == 0)
        r = compile(x, &text, spec->training, outputs, &e->compiled, err);
    if (r < 0)
        return r;
    e->tape = spec->part->tape;
    e->recordings = spec->part->tape->recordings;
    e->training = spec->training;
    e->first = s->first;
    e->due = s->due;
    e->scale = s->scale;
    e->n_values = s->n_values;
    memcpy(e->values, spec->part->values, s->n_values * sizeof(*spec->part->values));
    memcpy(e->summed, x->summed, x->params->n * sizeof(*x->summed));
    return 0;
}

int pl_xla_find_program(struct pl_xla *x,
                        const struct pl_program_spec *spec,
                        struct pl_recent **ret,
                        struct pl_error *err)
{
    _cleanup_free_ unsigned *classes = calloc(x->params->n + 1, sizeof(*classes));
    struct pl_recent *e = NULL;
    int r = classes ? 0 : pl_error_nomem(err);

    for (size_t i = 0; i < x->n_recent && !e; i++)
        if (matches(&x->recent[i], spec))
            e = &x->recent[i];
    if (r == 0 && !e)
        r = new_entry(x, &e, err);
    if (r == 0 && !(e->tape && is_current(x, e, spec, classes)))
        r = lower(x, e, spec, err);
    *ret = e;
    return r;
}
