/* SPDX-License-Identifier: MIT */
/* Files for reading that another user may have put there. */
#ifndef PL_COMMON_BASE_SHARED_OPEN_H
#define PL_COMMON_BASE_SHARED_OPEN_H

/* Opens a file for reading that another user may have put there, as in a run folder of theirs. In a
 * folder that is neither ours nor root's it opens nothing but a regular file, since to open a
 * device may have effects. There it follows a link only if that is ours or root's, or leads to a
 * file of the link's owner: others' links may lead to what their owners cannot read. Returns the
 * descriptor, -EPERM (such a link), -EINVAL (such a device) or -errno of open(2). */
int pl_shared_open(const char *path);

/* The same of a file in an open folder. */
int pl_shared_open_at(int folder_fd, const char *name);

#endif
