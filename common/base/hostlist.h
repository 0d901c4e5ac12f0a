/* SPDX-License-Identifier: MIT */
/* Slurm's lists of hosts, "n[1-3,07],m2": which name stands at a place. */
#ifndef PL_COMMON_BASE_HOSTLIST_H
#define PL_COMMON_BASE_HOSTLIST_H

/* The name at `index`, from 0, in the order of `scontrol show hostnames`; caller frees. Of several
 * brackets in one name the last one counts fastest. -ENOENT: the list is shorter; -EINVAL: it is no
 * such list; -ENOMEM. */
int pl_hostlist_nth(const char *list, unsigned index, char **ret);

#endif
