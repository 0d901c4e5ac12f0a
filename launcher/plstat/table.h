/* SPDX-License-Identifier: MIT */
/* A table of text that fits the screen. Widths are columns of the terminal, not bytes. Columns that
 * are empty in all rows are left out. If the table is too wide, spare columns are left out; then
 * the texts of its widest flexible columns are cut and marked with '+'. Foreign text is escaped
 * when it is printed. */
#ifndef PL_LAUNCHER_PLSTAT_TABLE_H
#define PL_LAUNCHER_PLSTAT_TABLE_H

#include "common/base/buf.h"
#include "common/base/term.h"

#define PL_TABLE_COLUMNS_MAX 32

struct pl_table_column {
    char *title;
    bool right;
    bool flexible; /* may be cut */
    bool spare;    /* left out first */
};

struct pl_table {
    struct pl_table_column columns[PL_TABLE_COLUMNS_MAX];
    size_t n_columns;
    char **cells; /* row by row; NULL: empty */
    enum pl_term_style *styles;
    size_t n_cells, cap;
    bool failed; /* out of memory */
};

void pl_table_finish(struct pl_table *table);

/* Add all columns first, then the cells row by row. pl_table_print() reports out of memory. A full
 * table ignores further columns: check pl_table_full() and omit their cells. */
void pl_table_column(struct pl_table *table, const char *title, bool right, bool flexible);
/* A column of numbers that is left out before any other text is cut. */
void pl_table_spare_column(struct pl_table *table, const char *title);
bool pl_table_full(const struct pl_table *table);
void pl_table_cell(struct pl_table *table, enum pl_term_style style, const char *text);
void pl_table_cellf(struct pl_table *table, enum pl_term_style style, const char *fmt, ...)
    PL_PRINTF(3, 4);

/* Appends header and rows, each line at most `width` columns wide. -ENOMEM. */
int pl_table_print(const struct pl_table *table, size_t width, bool color, struct pl_buf *out);

#endif
