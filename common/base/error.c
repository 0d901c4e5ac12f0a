/* SPDX-License-Identifier: MIT */
#include "common/base/error.h"

#include <stdarg.h>
#include <string.h>

static int negative(int code)
{
    return code > 0 ? -code : code;
}

int pl_error_set(struct pl_error *err, int code, const char *fmt, ...)
{
    int saved = errno;
    va_list ap;

    code = negative(code);
    if (err) {
        err->code = code;
        va_start(ap, fmt);
        vsnprintf(err->text, sizeof(err->text), fmt, ap);
        va_end(ap);
    }
    errno = saved;
    return code;
}

int pl_error_errno(struct pl_error *err, int code, const char *fmt, ...)
{
    int saved = errno;
    va_list ap;
    size_t used;

    code = negative(code);
    if (err) {
        err->code = code;
        va_start(ap, fmt);
        vsnprintf(err->text, sizeof(err->text), fmt, ap);
        va_end(ap);
        used = strlen(err->text);
        snprintf(err->text + used, sizeof(err->text) - used, ": %s", strerror(-code));
    }
    errno = saved;
    return code;
}

int pl_error_nomem(struct pl_error *err)
{
    return pl_error_set(err, -ENOMEM, "out of memory");
}

int pl_error_wrap(struct pl_error *err, int code, const char *fmt, ...)
{
    int saved = errno;
    char inner[PL_ERROR_TEXT_MAX];
    va_list ap;
    size_t used;

    code = negative(code);
    if (err) {
        snprintf(inner, sizeof(inner), "%s", err->text[0] ? err->text : strerror(-code));
        err->code = code;
        va_start(ap, fmt);
        vsnprintf(err->text, sizeof(err->text), fmt, ap);
        va_end(ap);
        used = strlen(err->text);
        snprintf(err->text + used, sizeof(err->text) - used, ": %s", inner);
    }
    errno = saved;
    return code;
}

const char *pl_error_text(const struct pl_error *err)
{
    if (!err)
        return "unknown error";
    if (err->text[0])
        return err->text;
    return err->code ? strerror(-err->code) : "no error";
}
