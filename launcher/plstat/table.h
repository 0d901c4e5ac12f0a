/* SPDX-License-Identifier: MIT */
/* A table of text that fits the screen: widths are columns of the terminal, never bytes; columns
 * that are empty in all rows are left out; where it is too wide, the widest flexible columns give
 * way, their texts cut and marked with '+'. Foreign text is escaped on its way out. */
#ifndef PL_LAUNCHER_PLSTAT_TABLE_H
#define PL_LAUNCHER_PLSTAT_TABLE_H

#include "common/base/buf.h"
#include "common/base/term.h"

#define PL_TABLE_COLUMNS_MAX 32

struct pl_table_column {
    char *title;
    bool right;
    bool flexible; /* may be cut to PL_TABLE_FLEX_MIN columns */
};

struct pl_table {
    struct pl_table_column columns[PL_TABLE_COLUMNS_MAX];
    size_t n_columns;
    char **cells; /* row after row; NULL is empty */
    enum pl_term_style *styles;
    size_t n_cells, cap;
    bool failed; /* out of memory */
};

void pl_table_finish(struct pl_table *table);

/* Columns first, then cells, row by row. Out of memory is kept until pl_table_print(). Columns
 * past the limit are left out, and so are their cells: ask pl_table_full() before. */
void pl_table_column(struct pl_table *table, const char *title, bool right, bool flexible);
bool pl_table_full(const struct pl_table *table);
void pl_table_cell(struct pl_table *table, enum pl_term_style style, const char *text);
void pl_table_cellf(struct pl_table *table, enum pl_term_style style, const char *fmt, ...)
    PL_PRINTF(3, 4);

/* Appends header and rows, each line at most `width` columns. -ENOMEM. */
int pl_table_print(const struct pl_table *table, size_t width, bool color, struct pl_buf *out);

#endif
