/* SPDX-License-Identifier: MIT */
#include "launcher/plstat/table.h"

#include <stdarg.h>
#include <string.h>

#define FLEX_MIN 5

void pl_table_finish(struct pl_table *table)
{
    for (size_t i = 0; i < table->n_columns; i++)
        free(table->columns[i].title);
    for (size_t i = 0; i < table->n_cells; i++)
        free(table->cells[i]);
    free(table->cells);
    free(table->styles);
    *table = (struct pl_table){0};
}

bool pl_table_full(const struct pl_table *table)
{
    return table->n_columns == PL_TABLE_COLUMNS_MAX;
}

void pl_table_column(struct pl_table *table, const char *title, bool right, bool flexible)
{
    struct pl_table_column *c = &table->columns[table->n_columns];

    if (pl_table_full(table))
        return;
    *c = (struct pl_table_column){.title = strdup(title), .right = right, .flexible = flexible};
    if (c->title)
        table->n_columns++;
    else
        table->failed = true;
}

void pl_table_spare_column(struct pl_table *table, const char *title)
{
    size_t n = table->n_columns;

    pl_table_column(table, title, true, false);
    if (table->n_columns > n)
        table->columns[n].spare = true;
}

void pl_table_cell(struct pl_table *table, enum pl_term_style style, const char *text)
{
    if (table->n_cells == table->cap) {
        size_t cap = table->cap ? table->cap * 2 : 64;
        char **cells = reallocarray(table->cells, cap, sizeof(*cells));
        enum pl_term_style *styles;

        if (cells)
            table->cells = cells;
        styles = reallocarray(table->styles, cap, sizeof(*styles));
        if (styles)
            table->styles = styles;
        table->failed |= !cells || !styles;
        if (table->failed)
            return;
        table->cap = cap;
    }
    table->styles[table->n_cells] = style;
    table->cells[table->n_cells] = text && *text ? strdup(text) : NULL;
    table->failed |= text && *text && !table->cells[table->n_cells];
    table->n_cells++;
}

void pl_table_cellf(struct pl_table *table, enum pl_term_style style, const char *fmt, ...)
{
    char text[1024];
    va_list args;

    va_start(args, fmt);
    vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    pl_table_cell(table, style, text);
}

/* Sets each width to its longest text (0: empty, left out), then reduces them until the sum fits.
 */
static void fit(const struct pl_table *t, size_t width, size_t *widths)
{
    size_t sum = 0;

    for (size_t c = 0; c < t->n_columns; c++) {
        widths[c] = 0;
        for (size_t i = c; i < t->n_cells; i += t->n_columns)
            if (t->cells[i])
                widths[c] = PL_MAX(widths[c], pl_term_width(t->cells[i]));
        if (widths[c])
            widths[c] = PL_MAX(widths[c], pl_term_width(t->columns[c].title));
        sum += widths[c] ? widths[c] + 1 : 0;
    }
    for (size_t c = t->n_columns; sum > width + 1 && c-- > 0;) {
        if (!t->columns[c].spare)
            continue;
        sum -= widths[c] ? widths[c] + 1 : 0;
        widths[c] = 0;
    }
    while (sum > width + 1) {
        size_t widest = t->n_columns;

        for (size_t c = 0; c < t->n_columns; c++)
            if (t->columns[c].flexible && widths[c] > FLEX_MIN &&
                (widest == t->n_columns || widths[c] > widths[widest]))
                widest = c;
        if (widest == t->n_columns)
            break;
        widths[widest]--;
        sum--;
    }
    /* Columns that still do not fit are left out, the last one first. */
    for (size_t c = t->n_columns; sum > width + 1 && c-- > 1;) {
        sum -= widths[c] ? widths[c] + 1 : 0;
        widths[c] = 0;
    }
}

static int print_row(const struct pl_table *t,
                     const char *const *texts,
                     const enum pl_term_style *styles,
                     const size_t *widths,
                     bool color,
                     struct pl_buf *out)
{
    size_t last = 0;
    bool first = true;
    int r = 0;

    for (size_t c = 0; c < t->n_columns; c++)
        if (widths[c] && texts[c] && *texts[c])
            last = c;
    for (size_t c = 0; r == 0 && c <= last; c++) {
        enum pl_term_style style = styles ? styles[c] : PL_TERM_DIM;
        bool styled = color && style != PL_TERM_PLAIN;
        const char *text = texts[c] ? texts[c] : "";
        size_t cell = widths[c];

        if (cell == 0)
            continue;
        if (!first)
            r = pl_buf_addc(out, ' ');
        first = false;
        /* No blanks after the last cell of a row. */
        if (c == last && !t->columns[c].right)
            cell = PL_MIN(cell, pl_term_width(text));
        if (r == 0 && styled)
            r = pl_buf_adds(out, pl_term_style(style, true));
        if (r == 0)
            r = pl_term_cell(out, text, cell, t->columns[c].right, true);
        if (r == 0 && styled)
            r = pl_buf_adds(out, pl_term_style(PL_TERM_PLAIN, true));
    }
    return r < 0 ? r : pl_buf_addc(out, '\n');
}

int pl_table_print(const struct pl_table *t, size_t width, bool color, struct pl_buf *out)
{
    const char *titles[PL_TABLE_COLUMNS_MAX];
    size_t widths[PL_TABLE_COLUMNS_MAX];
    int r;

    if (t->failed)
        return -ENOMEM;
    if (t->n_columns == 0)
        return 0;
    fit(t, width, widths);
    for (size_t c = 0; c < t->n_columns; c++)
        titles[c] = t->columns[c].title;
    r = print_row(t, titles, NULL, widths, color, out);
    for (size_t i = 0; r == 0 && i + t->n_columns <= t->n_cells; i += t->n_columns)
        r = print_row(t, (const char *const *)&t->cells[i], &t->styles[i], widths, color, out);
    return r;
}
