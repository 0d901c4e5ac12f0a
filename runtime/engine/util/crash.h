/* SPDX-License-Identifier: MIT */
/* Reports a crash of the module or the engine: the signal and the running hook. The process then
 * dies by that signal, so that its parent sees the usual status. */
#ifndef PL_RUNTIME_ENGINE_UTIL_CRASH_H
#define PL_RUNTIME_ENGINE_UTIL_CRASH_H

#include <stdbool.h>

/* Installs handlers of SIGSEGV, SIGBUS, SIGFPE, SIGILL and SIGABRT, in the calling thread on a
 * stack of their own. Until pl_crash_done() it also reports calls of exit(), and makes their
 * status 1. Called by main(). */
void pl_crash_watch(void);
void pl_crash_done(void);

/* Sets the module, and the hook that runs in the main thread, for the report. Both strings must
 * stay valid. NULL means none. */
void pl_crash_module(const char *name);
void pl_crash_hook(const char *name);

/* A data source's fill begins or ends in the calling thread; one at a time. */
void pl_crash_fill(bool runs);

#endif
