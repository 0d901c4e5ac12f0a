/* SPDX-License-Identifier: MIT */
/* The output of an attempt's ranks, read from their files as these grow (plstat log).
 *
 * A file that is replaced is read from its begin, after the rest of the old one. One that became
 * shorter, or whose bytes before the place of reading have changed, is read from its begin too.
 * Each pass opens each file again: a client of NFS asks its server for news only then. Between
 * passes as many files stay open as RLIMIT_NOFILE allows; the others need none. */
#ifndef PL_LAUNCHER_PLSTAT_FOLLOW_H
#define PL_LAUNCHER_PLSTAT_FOLLOW_H

#include "common/base/error.h"
#include "common/base/macros.h"

#include <stdbool.h>
#include <stdint.h>

#define PL_FOLLOW_PART_MS 1000 /* with one rank, a part of a line waits no longer for the rest */
#define PL_FOLLOW_HOLE_MS 5000 /* on NFS, zeros may be bytes that are still under way */

struct pl_follow_ops {
    /* Takes a part of the output. -errno ends the pass. */
    int (*write)(void *ctx, const char *data, size_t len, struct pl_error *err);
    /* Takes a note about a file: it was truncated, or cannot be read. */
    void (*note)(void *ctx, const char *text);
    void *ctx;
};

struct pl_follow_options {
    const char *ranks; /* as in pl_output_ranks_check(); borrowed */
    bool out, err;     /* streams that are read */
    int64_t lines;     /* show only so many last lines of what the files have at first; -1: all */
    bool whole;        /* read all of a file before the next one, else they take turns */
};

struct pl_follow;

/* dir  the attempt's folder; copied
 * Returns 0, -ENOMEM. */
int pl_follow_create(const char *dir,
                     const struct pl_follow_options *options,
                     const struct pl_follow_ops *ops,
                     struct pl_follow **ret,
                     struct pl_error *err);
void pl_follow_destroy(struct pl_follow *f);
PL_DEFINE_CLEANUP(struct pl_follow *, pl_follow_destroy)

/* Puts "RANK: " in front of lines. Call it before the first pass. */
void pl_follow_label(struct pl_follow *f);

/* Looks for files, and reads none. True if there are any. */
bool pl_follow_look(struct pl_follow *f);

/* Writes the lines (lines.h) that have come since the last pass.
 * ret_any   something was read
 * ret_more  a file has more than one pass reads: call again at once
 * Returns 0, -ENOMEM, or the error of ops->write. A folder or file that is not there is empty. */
int pl_follow_pass(struct pl_follow *f, bool *ret_any, bool *ret_more, struct pl_error *err);

/* Writes lines that have no end yet: nothing more will come. */
int pl_follow_end(struct pl_follow *f, struct pl_error *err);

/* The number of files that have been seen. */
size_t pl_follow_n_files(const struct pl_follow *f);

/* True if a file could not be read. */
bool pl_follow_unreadable(const struct pl_follow *f);

/* True if files of two ranks have been seen. */
bool pl_follow_several(const struct pl_follow *f);

#endif
