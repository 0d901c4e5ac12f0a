/* SPDX-License-Identifier: MIT */
/* A file of rows of numbers, by its name: .npy (numpy's format, version 1.0), .safetensors (one
 * tensor, "output") or .jsonl (a line {"index":I,"output":[...]} a row, with the shortest decimals
 * that read back equal; what is not finite is "nan", "inf" or "-inf"). It appears under its name
 * when it is whole. */
#ifndef PL_RUNTIME_ENGINE_REPORT_ARRAY_FILE_H
#define PL_RUNTIME_ENGINE_REPORT_ARRAY_FILE_H

#include "common/base/error.h"
#include "plume/types.h"

#include <stdbool.h>
#include <stdio.h>

enum pl_array_format {
    PL_ARRAY_NPY,
    PL_ARRAY_SAFETENSORS,
    PL_ARRAY_JSONL,
};

/* A zeroed one may be closed. */
struct pl_array_file {
    enum pl_array_format format;
    FILE *file;
    const char *path; /* borrowed */
    char *temporary;
    bool f64;
    size_t width, row, rows; /* numbers in a row, rows written, rows in all */
};

/* -EINVAL: the name has none of the endings. */
int pl_array_file_check(const char *path, struct pl_error *err);

/* Opens a temporary file beside `path` for an array [shape[0], ... shape[rank-1]] of f32 or f64,
 * and removes those of writers that were killed.
 * -EINVAL, -errno, with a text. */
int pl_array_file_open(struct pl_array_file *f,
                       const char *path,
                       bool f64,
                       size_t rank,
                       const size_t *shape,
                       struct pl_error *err);

/* Appends the next row: f->width numbers of the file's type. -EIO. */
int pl_array_file_row(struct pl_array_file *f, const void *numbers, struct pl_error *err);

/* Writes the file to the disk and gives it its name. -EIO, -errno. */
int pl_array_file_finish(struct pl_array_file *f, struct pl_error *err);

/* Removes the temporary file, if there is one left. */
void pl_array_file_close(struct pl_array_file *f);

/* The shortest decimal that reads back as the same f64, or f32: "0.1". */
void pl_number_text(char ret[32], double value, bool f64);

#endif
