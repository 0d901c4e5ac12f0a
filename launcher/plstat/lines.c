/* SPDX-License-Identifier: MIT */
#include "launcher/plstat/lines.h"
#include "common/base/fs.h"
#include "common/base/term.h"

#include <string.h>

#define FLUSH_BYTES 65536

int pl_lines_flush(struct pl_lines *out, struct pl_error *err)
{
    int r = out->text.len ? out->write(out->ctx, out->text.data, out->text.len, err) : 0;

    out->text.len = 0;
    return r;
}

/* A tab stays: it moves the cursor forward only. */
static int add_escaped(struct pl_buf *out, const char *s, size_t len)
{
    int r = 0;

    while (len > 0 && r == 0) {
        const char *tab = memchr(s, '\t', len);
        size_t n = tab ? (size_t)(tab - s) : len;

        r = pl_term_escape(out, s, n);
        if (r == 0 && tab)
            r = pl_buf_addc(out, '\t');
        n += tab != NULL;
        s += n;
        len -= n;
    }
    return r;
}

/* Writes a line, or a part of one: the text of another stream breaks it. */
static int
emit(struct pl_lines *out, struct pl_line *line, size_t len, bool ends, struct pl_error *err)
{
    bool goes_on = out->open == line;
    int r = 0;

    if (!goes_on && ends && !len && line->shown) { /* its end alone, after it was broken */
        line->shown = false;
        return 0;
    }
    if (out->open && !goes_on)
        r = pl_buf_addc(&out->text, '\n');
    if (r == 0 && out->label && !goes_on)
        r = pl_buf_addf(&out->text, "%u: ", line->rank);
    if (r == 0)
        r = add_escaped(&out->text, pl_buf_str(&line->text), len);
    if (r == 0 && ends)
        r = pl_buf_addc(&out->text, '\n');
    if (r < 0)
        return pl_error_nomem(err);
    pl_buf_consume(&line->text, len);
    out->open = ends ? NULL : line;
    line->shown = !ends;
    return out->text.len >= FLUSH_BYTES ? pl_lines_flush(out, err) : 0;
}

/* The length without a character of which only a part is there. */
static size_t whole_characters(const struct pl_buf *text)
{
    size_t len = text->len, back = 1, needed;
    unsigned char c;

    while (back < 4 && back < len && ((unsigned char)text->data[len - back] & 0xc0) == 0x80)
        back++;
    if (len == 0)
        return 0;
    c = (unsigned char)text->data[len - back];
    needed = c >= 0xf0 ? 4 : c >= 0xe0 ? 3 : c >= 0xc0 ? 2 : 1;
    return needed > back ? len - back : len;
}

int pl_lines_show_part(struct pl_lines *out, struct pl_line *line, struct pl_error *err)
{
    size_t len = whole_characters(&line->text);

    return len ? emit(out, line, len, false, err) : 0;
}

int pl_lines_end(struct pl_lines *out, struct pl_line *line, struct pl_error *err)
{
    line->returned = false;
    return line->text.len || line->shown ? emit(out, line, line->text.len, true, err) : 0;
}

/* A carriage return has ended the line before this newline, or this one begins a line. */
static bool ends_nothing(const struct pl_line *line, char end)
{
    return !line->text.len && !line->shown && (end == '\r' || line->returned);
}

int pl_lines_add(
    struct pl_lines *out, struct pl_line *line, const char *data, size_t len, struct pl_error *err)
{
    line->time_ns = pl_now_ns();
    for (size_t i = 0; i < len;) {
        size_t from = i, room = PL_LINES_MAX - line->text.len;
        int r = 0;

        while (i < len && i - from < room && data[i] != '\n' && data[i] != '\r')
            i++;
        if (i > from)
            line->returned = false;
        if (pl_buf_add(&line->text, data + from, i - from) < 0)
            return pl_error_nomem(err);
        if (i < len && (data[i] == '\n' || data[i] == '\r')) {
            bool nothing = ends_nothing(line, data[i]);

            if (!nothing)
                r = emit(out, line, line->text.len, true, err);
            line->returned = data[i++] == '\r' && !nothing;
        } else if (line->text.len >= PL_LINES_MAX) {
            r = pl_lines_show_part(out, line, err);
        }
        if (r < 0)
            return r;
    }
    return 0;
}
