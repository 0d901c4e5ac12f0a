/* SPDX-License-Identifier: MIT */
/* The batch script of a run, from templates/job.sh.in: constant but for quoted values, so that no
 * value is ever read as shell text. */
#ifndef PL_LAUNCHER_PLSUBMIT_SCRIPT_H
#define PL_LAUNCHER_PLSUBMIT_SCRIPT_H

#include "common/base/buf.h"
#include "common/base/error.h"

#include <stdbool.h>

struct pl_script {
    const char *sweep;
    const char *run_dir, *bin_dir;  /* absolute */
    const char *array;              /* "0-8%2": of the first array */
    const char *const *sbatch_args; /* "--nodes=2", ...; NULL behind the last */
    const char *const *modules;     /* --load; each list ends in NULL or is NULL */
    const char *const *env;         /* "NAME=VALUE" */
    const char *const *setup;       /* --setup: shell text of the user's, a line each */
    const char *program;            /* the name to look up after these; NULL: none */
};

/* Appends s in single quotes as bash reads it back byte for byte. -EINVAL where it holds a newline
 * (nothing that is written into a script may), -ENOMEM. */
int pl_script_quote(struct pl_buf *out, const char *s);

/* True for an sbatch option that may stand in a #SBATCH line: no byte that sbatch would take for
 * a quote, comment or escape. */
bool pl_script_directive_ok(const char *arg);

/* Appends the whole script. -EINVAL (a newline in a value), -ENOMEM. */
int pl_script_render(const struct pl_script *script, struct pl_buf *out, struct pl_error *err);

#endif
