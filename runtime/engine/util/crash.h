/* SPDX-License-Identifier: MIT */
/* A last word when a module (or the engine) crashes: which signal, and in which hook. The process
 * then dies by that signal, as it would have, so that whoever started it sees the same. */
#ifndef PL_RUNTIME_ENGINE_UTIL_CRASH_H
#define PL_RUNTIME_ENGINE_UTIL_CRASH_H

/* Handles SIGSEGV, SIGBUS, SIGFPE, SIGILL and SIGABRT, on a stack of its own. For main(). */
void pl_crash_watch(void);

/* The module and, while it runs, its hook; both must live on. NULL = none. */
void pl_crash_module(const char *name);
void pl_crash_hook(const char *name);

#endif
