/* SPDX-License-Identifier: MIT */
/* Reports a hook that does not return, and tells the node daemon which one runs. */
#ifndef PL_RUNTIME_ENGINE_UTIL_HANG_H
#define PL_RUNTIME_ENGINE_UTIL_HANG_H

/* A hook of the main thread, and a data source's fill, which may run beside it. */
enum pl_hang_place {
    PL_HANG_HOOK,
    PL_HANG_FILL,
    PL_HANG_PLACES,
};

/* Starts a thread that logs a warning once per call of a hook that takes longer than `seconds`; 0:
 * does nothing. Failures to start it are ignored. */
void pl_hang_watch(double seconds, unsigned rank);
void pl_hang_stop(void);

/* A hook begins; NULL: it has returned. The string must stay valid. */
void pl_hang_hook(enum pl_hang_place place, const char *name);

#endif
