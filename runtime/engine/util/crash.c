/* SPDX-License-Identifier: MIT */
#include "runtime/engine/util/crash.h"
#include "common/base/macros.h"
#include "runtime/engine/util/file_map.h"
#include "runtime/engine/util/hang.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const int signals[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};
static const char *const volatile names[] = {"SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL", "SIGABRT"};
static const char *volatile module;
static _Thread_local const char *volatile hook; /* that this thread runs */
static volatile pid_t watched;                  /* must not end by itself; 0: none */
static char stack[64 * 1024];

static void add(char *text, size_t size, const char *more)
{
    size_t len = strlen(text), n = strlen(more);

    n = n < size - len - 1 ? n : size - len - 1;
    memcpy(text + len, more, n);
    text[len + n] = '\0';
}

static void add_hook(char *text, size_t size)
{
    if (hook) {
        add(text, size, " in its hook ");
        add(text, size, hook);
    }
}

/* A page of a file that could not be read is no fault of the module that reads it. */
static void add_cause(char *text, size_t size, const char *file)
{
    if (file) {
        add(text, size, "cannot read '");
        add(text, size, file);
        add(text, size, "': its file system failed, or the file was made shorter");
        return;
    }
    add(text, size, "crashed");
    if (module) {
        add(text, size, " with module '");
        add(text, size, module);
        add(text, size, "'");
    }
    add_hook(text, size);
}

/* Only what signal-safety(7) allows. */
static void on_crash(int sig, siginfo_t *info, void *context)
{
    char text[512] = "pltrain: ";
    const char *file = NULL;

    (void)context;
    if (sig == SIGBUS && info->si_code > 0) /* not sent by a process: then it has no address */
        file = pl_file_map_find(info->si_addr);
    add_cause(text, sizeof(text), file);
    for (size_t i = 0; i < PL_COUNT(signals); i++)
        if (signals[i] == sig) {
            add(text, sizeof(text), " (");
            add(text, sizeof(text), names[i]);
            add(text, sizeof(text), ")");
        }
    add(text, sizeof(text), "\n");
    if (write(STDERR_FILENO, text, strlen(text)) < 0)
        (void)0; /* stderr is closed: ignore it */
    raise(sig);  /* SA_RESETHAND: this one ends the process */
}

/* Status 0 would read as a finished run. */
static void on_exit_call(void)
{
    char text[512] = "pltrain: module '";

    if (watched != getpid()) /* a child of the module may exit */
        return;
    add(text, sizeof(text), module ? module : "?");
    add(text, sizeof(text), "' called exit");
    add_hook(text, sizeof(text));
    add(text, sizeof(text), ": a hook ends the run by returning a negative errno\n");
    fflush(NULL);
    if (write(STDERR_FILENO, text, strlen(text)) < 0)
        (void)0; /* stderr is closed: ignore it */
    _exit(1);
}

void pl_crash_done(void)
{
    watched = 0;
}

void pl_crash_watch(void)
{
    const stack_t own = {.ss_sp = stack, .ss_size = sizeof(stack)};
    struct sigaction action = {.sa_sigaction = on_crash,
                               .sa_flags =
                                   (int)(SA_SIGINFO | SA_RESETHAND | SA_ONSTACK | SA_NODEFER)};

    sigaltstack(&own, NULL);
    for (size_t i = 0; i < PL_COUNT(signals); i++)
        sigaction(signals[i], &action, NULL);
    if (atexit(on_exit_call) == 0)
        watched = getpid();
}

void pl_crash_module(const char *name)
{
    module = name;
}

void pl_crash_hook(const char *name)
{
    hook = name;
    pl_hang_hook(PL_HANG_HOOK, name);
}

void pl_crash_fill(bool runs)
{
    static _Thread_local const char *before;

    if (runs)
        before = hook;
    hook = runs ? "fill" : before;
    pl_hang_hook(PL_HANG_FILL, runs ? hook : NULL);
}
