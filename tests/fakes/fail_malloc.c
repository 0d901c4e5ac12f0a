/* SPDX-License-Identifier: MIT */
/* To preload: one allocation of a program fails, once. ./dev soak allocations, test-memory.py.
 *
 *   FAIL_MALLOC=N             the N-th allocation of the process fails; 0 = none
 *   FAIL_MALLOC_PROGRAM=NAME  only in processes of this name
 *   FAIL_MALLOC_STACK=1       print who asked for it, for addr2line(1)
 *   FAIL_MALLOC_COUNT=FILE    their number of allocations is appended to this file at exit, or -N
 *                             if they die of a fault's signal N
 *
 * Allocations inside the C library fail, too (strdup, fopen, getaddrinfo). Those of the loader,
 * from before the constructor, do not count. A child without exec does not count on. */
#include <errno.h>
#include <execinfo.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define VISIBLE __attribute__((visibility("default")))

extern void *__libc_malloc(size_t size);
extern void *__libc_calloc(size_t n, size_t size);
extern void *__libc_realloc(void *p, size_t size);
extern void *__libc_memalign(size_t align, size_t size);

static atomic_ulong counted;
static unsigned long wanted;
static pid_t process; /* 0 = this program's allocations are left alone */
static const char *show_stack;
static int count_fd;

static int fails(void)
{
    if (!process || getpid() != process)
        return 0;
    if (atomic_fetch_add(&counted, 1) + 1 != wanted)
        return 0;
    if (show_stack) {
        void *stack[32];

        backtrace_symbols_fd(stack, backtrace(stack, 32), STDERR_FILENO);
    }
    return 1;
}

VISIBLE void *malloc(size_t size)
{
    if (fails()) {
        errno = ENOMEM;
        return NULL;
    }
    return __libc_malloc(size);
}

VISIBLE void *calloc(size_t n, size_t size)
{
    if (fails()) {
        errno = ENOMEM;
        return NULL;
    }
    return __libc_calloc(n, size);
}

VISIBLE void *realloc(void *p, size_t size)
{
    if (fails()) {
        errno = ENOMEM;
        return NULL;
    }
    return __libc_realloc(p, size);
}

VISIBLE int posix_memalign(void **ret, size_t align, size_t size)
{
    void *p = fails() ? NULL : __libc_memalign(align, size);

    if (!p)
        return ENOMEM;
    *ret = p;
    return 0;
}

VISIBLE void *aligned_alloc(size_t align, size_t size)
{
    void *p = NULL;

    errno = posix_memalign(&p, align, size);
    return p;
}

static void write_count(void)
{
    char text[32];
    int n = snprintf(text, sizeof(text), "%lu\n", atomic_load(&counted));

    if (process && getpid() == process && write(count_fd, text, (size_t)n) < n)
        _exit(99);
}

/* Nobody sees how a daemon dies. */
static void write_death(int number)
{
    char text[] = {'-', (char)('0' + number / 10), (char)('0' + number % 10), '\n'};

    if (write(count_fd, text, sizeof(text)) < (ssize_t)sizeof(text))
        _exit(99);
    raise(number); /* by default: SA_RESETHAND */
}

__attribute__((constructor)) static void begin(void)
{
    static const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};
    struct sigaction death = {.sa_handler = write_death, .sa_flags = SA_RESETHAND | SA_NODEFER};
    const char *program = getenv("FAIL_MALLOC_PROGRAM"), *n = getenv("FAIL_MALLOC");
    const char *count_file = getenv("FAIL_MALLOC_COUNT");

    show_stack = getenv("FAIL_MALLOC_STACK");
    if (program && strcmp(program, program_invocation_short_name) != 0)
        return;
    wanted = n ? strtoul(n, NULL, 10) : 0;
    if (count_file) { /* now: plrund may not open it once it has confined itself */
        count_fd = open(count_file, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
        atexit(write_count);
        for (size_t i = 0; i < sizeof(faults) / sizeof(*faults); i++)
            sigaction(faults[i], &death, NULL);
    }
    process = getpid();
}
