/* SPDX-License-Identifier: MIT */
#include "spank_plugin/values.h"
#include "common/base/buf.h"
#include "common/base/metric_rule.h"
#include "common/base/parse.h"
#include "common/base/utf8.h"

#include <string.h>

void pl_values_make_printable(char *text)
{
    size_t len = strlen(text), to = 0;

    for (size_t from = 0; from < len;) {
        uint32_t c;
        int n = pl_utf8_decode(text + from, len - from, &c);

        if (n < 0 || pl_utf8_hidden(c))
            text[to++] = '?';
        else
            memmove(text + to, text + from, (size_t)n), to += (size_t)n;
        from += n < 0 ? 1 : (size_t)n;
    }
    text[to] = '\0';
}

int pl_values_master_port(const char *s, struct pl_error *err)
{
    uint16_t lo, hi;

    return pl_parse_port_range(s, &lo, &hi, err);
}

int pl_values_on_hang(const char *s, struct pl_error *err)
{
    if (strcmp(s, "warn") == 0 || strcmp(s, "kill") == 0)
        return 0;
    if (strcmp(s, "requeue") == 0)
        return pl_error_set(err, -EINVAL,
                            "'requeue' is for trials of plsubmit, whose job starts again: write "
                            "kill");
    return pl_error_set(err, -EINVAL, "'%.40s' is not warn or kill", s);
}

/* Copies the next line of *pos into *ret. 1, 0 at the end, -ENOMEM. Empty lines are skipped. */
static int next_line(const char **pos, char **ret)
{
    size_t len;

    *pos += strspn(*pos, "\n");
    len = strcspn(*pos, "\n");
    if (!len)
        return 0;
    *ret = strndup(*pos, len);
    if (!*ret)
        return -ENOMEM;
    *pos += len;
    return 1;
}

static int check_length(const char *s, struct pl_error *err)
{
    if (strnlen(s, PL_VALUES_MAX + 1) <= PL_VALUES_MAX)
        return 0;
    return pl_error_set(err, -E2BIG, "'%.40s...' is longer than %d bytes", s, PL_VALUES_MAX);
}

int pl_values_copy(const char *s, char **slot, struct pl_error *err)
{
    int r = check_length(s, err);
    char *copy;

    if (r < 0)
        return r;
    copy = strdup(s);
    if (!copy)
        return pl_error_set(err, -ENOMEM, "out of memory");
    free(*slot);
    *slot = copy;
    return 0;
}

int pl_values_metric(const char *s, struct pl_error *err)
{
    int r = check_length(s, err), n = 0;

    if (r < 0)
        return r;
    for (const char *pos = s;; n++) {
        _cleanup_free_ char *line = NULL;

        r = next_line(&pos, &line);
        if (r < 0)
            return pl_error_set(err, r, "out of memory");
        if (r == 0)
            break;
        r = pl_metric_rule_check(line, err);
        if (r < 0)
            return r;
    }
    if (n == 0)
        return pl_error_set(err, -EINVAL, "'%s' is not of the form NAME=REGEX", s);
    return 0;
}

static int add_line(struct pl_buf *out, const char *line)
{
    int r = out->len ? pl_buf_addc(out, '\n') : 0;

    return r < 0 ? r : pl_buf_adds(out, line);
}

/* True where `lines` has a line of this one's name. */
static bool names_line(const char *lines, const char *line)
{
    size_t len = strcspn(line, "=") + 1;

    for (const char *p = lines; *p; p += strcspn(p, "\n"), p += strspn(p, "\n"))
        if (strncmp(p, line, len) == 0)
            return true;
    return false;
}

int pl_values_metric_add(char **list, const char *entries)
{
    _cleanup_(pl_buf_finish) struct pl_buf out = {0};
    const char *source[2] = {*list ? *list : "", entries};
    char *text;

    for (int i = 0; i < 2; i++) {
        for (const char *pos = source[i];;) {
            _cleanup_free_ char *line = NULL;
            int r = next_line(&pos, &line);

            if (r == 0)
                break;
            /* An old line with a new namesake goes; so does one that a later line names. */
            if (r == 1 && !names_line(i == 0 ? entries : pos, line))
                r = add_line(&out, line);
            if (r < 0)
                return r;
        }
    }
    text = pl_buf_take(&out);
    if (!text)
        return -ENOMEM;
    free(*list);
    *list = text;
    return 0;
}
