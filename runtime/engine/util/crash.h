/* SPDX-License-Identifier: MIT */
/* Reports a crash of the module or the engine: the signal and the running hook. The process then
 * dies by that signal, so that its parent sees the usual status. */
#ifndef PL_RUNTIME_ENGINE_UTIL_CRASH_H
#define PL_RUNTIME_ENGINE_UTIL_CRASH_H

/* Installs handlers of SIGSEGV, SIGBUS, SIGFPE, SIGILL and SIGABRT, in the calling thread on a
 * stack of their own. Until pl_crash_done() a call of exit() is reported, too, and its status is 1.
 * Called by main(). */
void pl_crash_watch(void);
void pl_crash_done(void);

/* Sets the module, and the hook that runs in the calling thread, for the report. Both strings must
 * stay valid. NULL means none. Returns the thread's hook before. */
void pl_crash_module(const char *name);
const char *pl_crash_hook(const char *name);

#endif
