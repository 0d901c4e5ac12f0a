/* SPDX-License-Identifier: MIT */
/* Resources that this process holds, to test that a run frees all of them. */
#ifndef PL_TESTS_ENGINE_HELD_H
#define PL_TESTS_ENGINE_HELD_H

#include <stddef.h>

struct held {
    unsigned fds, threads;
    unsigned maps; /* shared slabs, data files, checkpoints */
    size_t heap; /* bytes given out by malloc; 0 where that cannot be told: a sanitizer has its own,
                    and glibc's needs $GLIBC_TUNABLES as tests/engine/meson.build sets it */
};

/* Counts the resources. Ends the pool's threads first (it begins anew at its next use, with one
 * thread), and waits for threads that have been joined to be gone from /proc as well. */
struct held held_now(void);

/* NULL if `now` is not more than `before`, else the resource that has grown: a static buffer. */
const char *held_grown(const struct held *before, const struct held *now);

#endif
