/* SPDX-License-Identifier: MIT */
/* --snapshot: a copy of the repository's files, with their uncommitted changes, in the run folder.
 * The trials run in the copy, so that later edits do not reach trials that wait or that are
 * retried.
 *
 * Nothing of the repository is executed: git only lists files, with monitors, hooks and transports
 * off, and no filter is run, since the files of the working tree are copied as they are. */
#ifndef PL_LAUNCHER_PLSUBMIT_SNAPSHOT_H
#define PL_LAUNCHER_PLSUBMIT_SNAPSHOT_H

#include "launcher/plsubmit/spec.h"

#include <jansson.h>

#define PL_SNAPSHOT_MAX_BYTES (100u << 20) /* without --snapshot-max */

struct pl_snapshot_file {
    char *path;   /* relative to the root; no part is "", ".", ".." or ".git" */
    bool tracked; /* by git */
    uint64_t size;
};

struct pl_snapshot {
    bool wanted;
    char *root;   /* top folder of the repository's working tree; absolute, without links */
    char *cwd;    /* the current folder, absolute */
    char *prefix; /* the current folder in root; "" for root itself */
    char *commit; /* hash of HEAD; NULL: there is no commit yet */
    struct pl_snapshot_file *files; /* sorted by path; those that exist */
    size_t n_files;
    uint64_t bytes;
};

void pl_snapshot_finish(struct pl_snapshot *s);

/* Finds the files, if the spec has --snapshot, and checks the program and its arguments against
 * them, with warnings for the user in the spec.
 * -ENOENT (no git, no repository, a program that the snapshot would not have), -EFBIG, -EINVAL,
 * -ENOMEM. */
int pl_snapshot_plan(struct pl_spec *spec, struct pl_snapshot *ret, struct pl_error *err);

/* Copies the files to dir_fd/snapshot, mode 0700. run_dir: the final path of that folder, for links
 * that lead there. What it has made before an error stays. */
int pl_snapshot_copy(const struct pl_snapshot *s,
                     int dir_fd,
                     const char *run_dir,
                     struct pl_error *err);

/* The folder in which the trials run; the caller frees it. NULL when out of memory. */
char *pl_snapshot_folder(const struct pl_snapshot *s, const char *run_dir);

/* "12 files, 34 kB, commit 0123456789ab"; the caller frees it. NULL when out of memory. */
char *pl_snapshot_text(const struct pl_snapshot *s);

/* The record in sweep.json: a new reference, NULL when out of memory. */
json_t *pl_snapshot_json(const struct pl_snapshot *s);

#endif
