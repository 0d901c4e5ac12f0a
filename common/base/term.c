/* SPDX-License-Identifier: MIT */
#include "common/base/term.h"
#include "common/base/env.h"
#include "common/base/parse.h"
#include "common/base/utf8.h"

#include <locale.h>
#include <pthread.h>
#include <string.h>
#include <sys/ioctl.h>
#include <wchar.h>

/* The output for one character of the input. */
struct piece {
    char text[16];
    size_t len, width;
};

static locale_t utf8_locale;

static void make_locale(void)
{
    utf8_locale = newlocale(LC_CTYPE_MASK, "C.UTF-8", (locale_t)0);
    if (utf8_locale == (locale_t)0)
        utf8_locale = newlocale(LC_CTYPE_MASK, "en_US.UTF-8", (locale_t)0);
}

/* Columns of a character; -1 where it cannot be printed. */
static int char_width(uint32_t c)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    locale_t before;
    int width;

    if (c >= 0x20 && c < 0x7f)
        return 1;
    pthread_once(&once, make_locale);
    if (utf8_locale == (locale_t)0)
        return c < 0xa0 ? -1 : 1;
    before = uselocale(utf8_locale);
    width = wcwidth((wchar_t)c);
    uselocale(before);
    return width;
}

static void escape_into(struct piece *piece, uint32_t c)
{
    static const struct {
        char c;
        const char *text;
    } named[] = {{'\n', "\\n"}, {'\t', "\\t"}, {'\r', "\\r"}, {'\033', "\\e"}};
    int n = 0;

    for (size_t i = 0; i < PL_COUNT(named) && !n; i++)
        if (c == (uint32_t)named[i].c)
            n = snprintf(piece->text, sizeof(piece->text), "%s", named[i].text);
    if (!n)
        n = snprintf(piece->text, sizeof(piece->text), c <= 0xff ? "\\x%02x" : "\\u{%04x}", c);
    piece->len = piece->width = (size_t)n;
}

/* Takes one character off the front. Returns the bytes it took. */
static size_t next_piece(const char *s, size_t len, bool first, struct piece *ret)
{
    uint32_t c;
    int n = pl_utf8_decode(s, len, &c), width;

    if (n < 0) {
        escape_into(ret, (unsigned char)*s);
        return 1;
    }
    width = pl_utf8_hidden(c) ? -1 : char_width(c);
    /* A combining mark needs something of ours to combine with. */
    if (width < 0 || (width == 0 && first)) {
        escape_into(ret, c);
        return (size_t)n;
    }
    memcpy(ret->text, s, (size_t)n);
    ret->len = (size_t)n;
    ret->width = (size_t)width;
    return (size_t)n;
}

int pl_term_escape(struct pl_buf *out, const char *s, size_t len)
{
    for (size_t i = 0; i < len;) {
        struct piece piece;
        size_t plain = 0;
        int r;

        while (i + plain < len && s[i + plain] >= 0x20 && s[i + plain] < 0x7f)
            plain++;
        if (plain) { /* nearly all of a log, in one go */
            r = pl_buf_add(out, s + i, plain);
            i += plain;
        } else {
            i += next_piece(s + i, len - i, i == 0, &piece);
            r = pl_buf_add(out, piece.text, piece.len);
        }
        if (r < 0)
            return r;
    }
    return 0;
}

int pl_term_escape_json(struct pl_buf *out, const char *json, size_t len)
{
    int r = 0;

    for (size_t i = 0, plain = 0; i < len && r == 0; plain = i) {
        uint32_t c = 0;
        int n = 1;

        /* Outside strings JSON has no hidden characters but white space; in strings C0 is escaped.
         */
        while (i < len && ((unsigned char)json[i] < 0x7f ||
                           (n = pl_utf8_decode(json + i, len - i, &c)) < 0 || !pl_utf8_hidden(c)))
            i += (unsigned char)json[i] < 0x7f || n < 0 ? 1 : (size_t)n;
        r = pl_buf_add(out, json + plain, i - plain);
        if (r < 0 || i == len)
            break;
        if (c > 0xffff)
            r = pl_buf_addf(out, "\\u%04x\\u%04x", 0xd7c0 + (c >> 10), 0xdc00 + (c & 0x3ff));
        else
            r = pl_buf_addf(out, "\\u%04x", c);
        i += (size_t)n;
    }
    return r;
}

size_t pl_term_width(const char *s)
{
    size_t len = strlen(s), width = 0;

    for (size_t i = 0; i < len;) {
        struct piece piece;

        i += next_piece(s + i, len - i, i == 0, &piece);
        width += piece.width;
    }
    return width;
}

static int add_blanks(struct pl_buf *out, size_t n)
{
    return n ? pl_buf_addf(out, "%*s", (int)n, "") : 0;
}

/* As much of s as leaves one column for the mark. */
static int add_cut(struct pl_buf *out, const char *s, size_t width)
{
    size_t len = strlen(s), used = 0;
    int r;

    if (width == 0)
        return 0;
    for (size_t i = 0; i < len;) {
        struct piece piece;

        i += next_piece(s + i, len - i, i == 0, &piece);
        if (used + piece.width > width - 1)
            break;
        r = pl_buf_add(out, piece.text, piece.len);
        if (r < 0)
            return r;
        used += piece.width;
    }
    r = pl_buf_addc(out, '+');
    return r < 0 ? r : add_blanks(out, width - used - 1);
}

int pl_term_cell(struct pl_buf *out, const char *s, size_t width, bool right, bool truncate)
{
    size_t have = pl_term_width(s), pad = have < width ? width - have : 0;
    int r;

    if (have > width && truncate)
        return add_cut(out, s, width);
    r = right ? add_blanks(out, pad) : 0;
    if (r == 0)
        r = pl_term_escape(out, s, strlen(s));
    if (r == 0 && !right)
        r = add_blanks(out, pad);
    return r;
}

void pl_term_complain(FILE *out, const char *program, const char *text)
{
    _cleanup_(pl_buf_finish) struct pl_buf line = {0};

    if (pl_buf_addf(&line, "%s: ", program) < 0 || pl_term_escape(&line, text, strlen(text)) < 0 ||
        pl_buf_addc(&line, '\n') < 0) {
        fprintf(out, "%s: out of memory\n", program);
        return;
    }
    fwrite(pl_buf_str(&line), 1, line.len, out);
    fflush(out);
}

int pl_term_color_parse(const char *s, enum pl_term_color *ret)
{
    static const char *const names[] = {"auto", "always", "never"};

    for (size_t i = 0; i < PL_COUNT(names); i++)
        if (strcmp(s, names[i]) == 0) {
            *ret = (enum pl_term_color)i;
            return 0;
        }
    return -EINVAL;
}

bool pl_term_use_color(enum pl_term_color choice, FILE *out)
{
    const char *no_color = pl_env(PL_ENV_NO_COLOR), *term = pl_env(PL_ENV_TERM);

    if (choice != PL_TERM_COLOR_AUTO)
        return choice == PL_TERM_COLOR_ALWAYS;
    if (no_color && *no_color)
        return false;
    return term && *term && strcmp(term, "dumb") != 0 && isatty(fileno(out));
}

size_t pl_term_columns(FILE *out)
{
    const char *columns = pl_env(PL_ENV_COLUMNS);
    struct winsize size;
    int64_t n;

    if (ioctl(fileno(out), TIOCGWINSZ, &size) == 0 && size.ws_col > 0)
        return size.ws_col;
    if (columns && pl_parse_int(columns, 1, 10000, &n, NULL) == 0)
        return (size_t)n;
    return 80;
}

const char *pl_term_style(enum pl_term_style style, bool on)
{
    static const char *const sequences[] = {
        [PL_TERM_PLAIN] = "\033[0m", [PL_TERM_BOLD] = "\033[1m",   [PL_TERM_DIM] = "\033[2m",
        [PL_TERM_RED] = "\033[31m",  [PL_TERM_GREEN] = "\033[32m", [PL_TERM_YELLOW] = "\033[33m",
        [PL_TERM_CYAN] = "\033[36m",
    };

    return on ? sequences[style] : "";
}
