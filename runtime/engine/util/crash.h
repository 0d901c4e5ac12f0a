/* SPDX-License-Identifier: MIT */
/* Reports a crash of the module or the engine: the signal and the running hook. The process then
 * dies by that signal, so that its parent sees the usual status. */
#ifndef PL_RUNTIME_ENGINE_UTIL_CRASH_H
#define PL_RUNTIME_ENGINE_UTIL_CRASH_H

/* Installs handlers of SIGSEGV, SIGBUS, SIGFPE, SIGILL and SIGABRT on a stack of their own. Called
 * by main(). */
void pl_crash_watch(void);

/* Sets the module and its running hook for the report. Both strings must stay valid. NULL means
 * none. */
void pl_crash_module(const char *name);
void pl_crash_hook(const char *name);

#endif
