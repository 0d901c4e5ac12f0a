/* SPDX-License-Identifier: MIT */
/* Shared by the files of snapshot.h. */
#ifndef PL_LAUNCHER_PLSUBMIT_SNAPSHOT_PRIVATE_H
#define PL_LAUNCHER_PLSUBMIT_SNAPSHOT_PRIVATE_H

#include "launcher/plsubmit/snapshot.h"

/* True for a path that stays below the root and is not git's own. */
bool pl_snapshot_path_ok(const char *path);

/* Sets root and commit by git in the current folder. -ENOENT, -ENOMEM. */
int pl_snapshot_find_root(struct pl_snapshot *s, struct pl_error *err);

/* Lists the files, those of submodules, too: with their paths, in any order. They may be absent,
 * twice in the list and of any type. Warnings go to the spec. -ENOENT, -EINVAL, -ENOMEM. */
int pl_snapshot_list(struct pl_snapshot *s,
                     bool untracked,
                     struct pl_spec *spec,
                     struct pl_error *err);

/* The folder of the last file: files come sorted, so most have the same. */
struct pl_snapshot_place {
    int root; /* borrowed */
    int fd;
    char *folder; /* relative to root; NULL: none yet */
};

void pl_snapshot_place_finish(struct pl_snapshot_place *p);

/* Opens the folder of a file without following a link in any part of the path. make: makes the
 * folders, 0700. Returns the descriptor, which `p` owns, or -errno; *ret_name is the last part. */
int pl_snapshot_place_open(struct pl_snapshot_place *p,
                           const char *path,
                           bool make,
                           const char **ret_name);

/* True if the path is of something in the folder, by its words alone; folder NULL: it is not. */
bool pl_snapshot_is_below(const char *path, const char *folder);

/* Makes "a/c" of "a/./b/../c", by its words alone. NULL: the path leaves its root, or no memory. */
char *pl_snapshot_clean_path(const char *path);

#endif
