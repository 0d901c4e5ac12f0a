/* SPDX-License-Identifier: MIT */
#include "runtime/engine/module/context.h"
#include "runtime/engine/util/crash.h"

#include <stdarg.h>

void pl_context_keep(struct pl_context *ctx, int code, const struct pl_error *err)
{
    if (ctx->error.code == 0) {
        ctx->error = *err;
        ctx->error.code = code;
    }
}

int pl_context_refuse(struct pl_context *ctx, int code, const char *fmt, ...)
{
    struct pl_error err = {0};
    char text[512];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    code = pl_error_set(&err, code, "%s", text);
    pl_context_keep(ctx, code, &err);
    return code;
}

int pl_context_result(struct pl_context *ctx, int r, const char *hook, struct pl_error *err)
{
    pl_crash_hook(NULL);
    if (ctx->error.code == 0 && r == 0)
        return 0;
    if (ctx->error.code == 0 && r > 0)
        return pl_error_set(err, -EINVAL, "hook %s returned %d: hooks return 0 or a negative errno",
                            hook, r);
    if (ctx->error.code == 0)
        return pl_error_errno(err, r, "hook %s failed", hook);
    r = pl_error_set(err, ctx->error.code, "hook %s: %s", hook, ctx->error.text);
    ctx->error = (struct pl_error){0};
    return r;
}
