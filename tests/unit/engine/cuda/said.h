/* SPDX-License-Identifier: MIT */
/* Catches the text that is written to stderr. */
#ifndef PL_TESTS_UNIT_ENGINE_CUDA_SAID_H
#define PL_TESTS_UNIT_ENGINE_CUDA_SAID_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

static int said_to = -1, said_before = -1;

static inline void listen_to_stderr(void)
{
    said_to = memfd_create("stderr", MFD_CLOEXEC);
    said_before = dup(STDERR_FILENO);
    assert_true(said_to >= 0 && said_before >= 0);
    assert_return_code(dup2(said_to, STDERR_FILENO), 0);
}

/* Also ends it. Valid until the next call. */
static inline const char *what_was_said(void)
{
    static char text[8192];
    ssize_t n = pread(said_to, text, sizeof(text) - 1, 0);

    assert_return_code(dup2(said_before, STDERR_FILENO), 0);
    close(said_before);
    close(said_to);
    assert_true(n >= 0);
    text[n] = '\0';
    return text;
}

#endif
