/* SPDX-License-Identifier: MIT */
/* Removes a folder and all that is in it. */
#ifndef PL_COMMON_BASE_REMOVE_TREE_H
#define PL_COMMON_BASE_REMOVE_TREE_H

/* Removes dir_fd/name with its contents, and follows no link. Best effort: what cannot be removed
 * stays. 0, -ENOENT, or the first other -errno. */
int pl_remove_tree(int dir_fd, const char *name);

#endif
