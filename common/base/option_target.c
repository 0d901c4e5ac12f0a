/* SPDX-License-Identifier: MIT */
/* The typed targets of an option table. */
#include "common/base/buf.h"
#include "common/base/options.h"
#include "common/base/parse.h"

#include <string.h>

/* The member, whose type the PL_OPTION_* macro has checked. */
static void *member(void *ctx, const struct pl_option *option)
{
    return (char *)ctx + option->target.at;
}

int pl_option_set_true(void *ctx,
                       const struct pl_option *option,
                       const char *value,
                       struct pl_error *err)
{
    *(bool *)member(ctx, option) = true;
    return 0;
}

int pl_option_set_false(void *ctx,
                        const struct pl_option *option,
                        const char *value,
                        struct pl_error *err)
{
    *(bool *)member(ctx, option) = false;
    return 0;
}

int pl_option_set_string(void *ctx,
                         const struct pl_option *option,
                         const char *value,
                         struct pl_error *err)
{
    *(const char **)member(ctx, option) = value;
    return 0;
}

int pl_option_set_int64(void *ctx,
                        const struct pl_option *option,
                        const char *value,
                        struct pl_error *err)
{
    /* A uint64_t may be read and written as an int64_t; a negative number is below its min. */
    return pl_parse_int(value, option->target.min, option->target.max, member(ctx, option), err);
}

int pl_option_set_int(void *ctx,
                      const struct pl_option *option,
                      const char *value,
                      struct pl_error *err)
{
    int64_t max = PL_MIN(option->target.max, (int64_t)INT32_MAX), number;
    int r = pl_parse_int(value, option->target.min, max, &number, err);

    if (r == 0)
        *(int *)member(ctx, option) = (int)number;
    return r;
}

int pl_option_set_real(void *ctx,
                       const struct pl_option *option,
                       const char *value,
                       struct pl_error *err)
{
    double number;
    int r = pl_parse_double(value, &number, err);

    if (r == 0 && number < (double)option->target.min)
        r = pl_error_set(err, -ERANGE, "'%s' must be at least %lld", value,
                         (long long)option->target.min);
    if (r == 0)
        *(double *)member(ctx, option) = number;
    return r;
}

int pl_parse_choice(const char *value, const char *const *words, int *ret, struct pl_error *err)
{
    _cleanup_(pl_buf_finish) struct pl_buf list = {0};

    for (int i = 0; words[i]; i++) {
        if (strcmp(value, words[i]) == 0) {
            *ret = i;
            return 0;
        }
        if (pl_buf_addf(&list, "%s%s", i ? ", " : "", words[i]) < 0)
            return pl_error_set(err, -ENOMEM, "out of memory");
    }
    return pl_error_set(err, -EINVAL, "'%s' is none of %s", value, pl_buf_str(&list));
}

int pl_option_set_choice(void *ctx,
                         const struct pl_option *option,
                         const char *value,
                         struct pl_error *err)
{
    int which;
    int r = pl_parse_choice(value, option->target.words, &which, err);

    if (r == 0)
        memcpy(member(ctx, option), &which, sizeof(which)); /* an enum or an int */
    return r;
}
