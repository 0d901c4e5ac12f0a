/* SPDX-License-Identifier: MIT */
/* Small shell scripts that stand for plrund. */
#ifndef PL_TESTS_UNIT_SPANK_SCRIPT_H
#define PL_TESTS_UNIT_SPANK_SCRIPT_H

#include "common/base/fs.h"
#include "spank_plugin/node_daemon.h"
#include "tests/lib/tmpdir.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static char folder[64], program[96], output[96];
static PL_UNUSED char *clean_env[] = {"PATH=/usr/bin:/bin", NULL};

static inline void write_program(const char *body)
{
    _cleanup_free_ char *text = pl_strf("#!/bin/sh\nexec 2>/dev/null\nOUT=%s\n%s\n", output, body);

    unlink(output);
    assert_int_equal(pl_file_write_atomic(program, text, strlen(text), 0755, NULL), 0);
}

static inline struct pl_daemon_user self(void)
{
    static gid_t groups[1];

    groups[0] = getgid();
    return (struct pl_daemon_user){
        .uid = getuid(), .gid = getgid(), .groups = groups, .n_groups = 1, .umask = 027};
}

static inline char *text_of(const char *path)
{
    char *text = NULL;

    assert_int_equal(pl_file_read(path, 65536, &text, NULL, NULL), 0);
    return text;
}

static inline int make_folder(void **state)
{
    if (tmpdir_make(folder, sizeof(folder)) < 0)
        return -1;
    snprintf(program, sizeof(program), "%s/plrund", folder);
    snprintf(output, sizeof(output), "%s/out", folder);
    return 0;
}

static inline int remove_folder(void **state)
{
    return tmpdir_remove(folder);
}

#endif
