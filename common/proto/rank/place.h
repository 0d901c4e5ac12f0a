/* SPDX-License-Identifier: MIT */
/* A page in which a rank writes where it is; the node daemon reads it through /proc/PID/fd once a
 * hang is suspected. It costs a rank a few stores per collective and per hook. libc only. */
#ifndef PL_COMMON_PROTO_RANK_PLACE_H
#define PL_COMMON_PROTO_RANK_PLACE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define PL_PLACE_NAME "plume-place" /* of the memfd; the reader looks for it */
#define PL_PLACE_WHAT_MAX 32
#define PL_PLACE_HOOKS 2 /* that may run side by side: the main thread's, and a data source's */

struct pl_place {
    int64_t collectives;          /* that the rank began */
    bool inside;                  /* it has not left the last one */
    char what[PL_PLACE_WHAT_MAX]; /* name of the last one */
    char hook[PL_PLACE_WHAT_MAX]; /* of the module, that runs; empty: none */
};

/* Makes this process's page, once. Without it (an old kernel, no memory) the calls below do
 * nothing. */
void pl_place_open(void);

/* A collective begins, and ends. The name is a literal. From any thread. */
void pl_place_enter(const char *what);
void pl_place_leave(void);

/* A hook of the module begins; NULL: it has returned. index: below PL_PLACE_HOOKS. */
void pl_place_hook(unsigned index, const char *name);

/* Reads the page of another process of ours. -ENOENT: it has none. */
int pl_place_read(pid_t pid, struct pl_place *ret);

#endif
