/* SPDX-License-Identifier: MIT */
#include "launcher/slurm/slurm_limits.h"
#include "common/base/child.h"
#include "common/base/env.h"
#include "common/base/fs.h"
#include "launcher/slurm/slurm_compat.h"

#include <string.h>

/* The child's answer. */
struct answer {
    int code;
    struct pl_slurm_limits limits;
    char text[256];
};

/* Runs in the child. ctx: a bool; true: ask for the limits, false: only ping. */
static int query_child(void *ctx, int fd)
{
    const bool *limits = ctx;
    struct answer answer = {0};
    struct pl_error err = {0};

    answer.code = *limits ? pl_slurm_query_limits(&answer.limits, &err) : pl_slurm_query_ping(&err);
    snprintf(answer.text, sizeof(answer.text), "%.255s", err.text);
    return pl_write_all(fd, &answer, sizeof(answer)) < 0;
}

static int query_library(bool limits, struct pl_slurm_limits *ret, struct pl_error *err)
{
    _cleanup_(pl_child_finish) struct pl_child child = {0};
    struct answer answer;
    int r = pl_child_call(query_child, &limits, PL_SLURM_LIMITS_MS, &child, err);

    if (r == -ETIMEDOUT)
        return pl_error_set(err, r, "the Slurm controller did not answer within %d s",
                            PL_SLURM_LIMITS_MS / 1000);
    if (r < 0)
        return r;
    if (child.out.len != sizeof(answer))
        return pl_error_set(
            err, -EHOSTUNREACH,
            "Slurm's client library ended its process: does scontrol ping work here?");
    memcpy(&answer, child.out.data, sizeof(answer));
    if (answer.code < 0)
        return pl_error_set(err, answer.code, "%s", answer.text);
    *ret = answer.limits;
    return 0;
}

static int run_scontrol(const char *const *argv, struct pl_child *ret, struct pl_error *err)
{
    int r = pl_child_run(argv, NULL, PL_SLURM_LIMITS_MS, ret, err);

    if (r == -ETIMEDOUT)
        return pl_error_set(err, r, "the Slurm controller did not answer within %d s",
                            PL_SLURM_LIMITS_MS / 1000);
    return r;
}

static int query_scontrol(bool limits, struct pl_slurm_limits *ret, struct pl_error *err)
{
    static const char *const ping[] = {"scontrol", "ping", NULL};
    static const char *const show[] = {"scontrol", "show", "config", NULL};
    _cleanup_(pl_child_finish) struct pl_child pinged = {0}, shown = {0};
    const char *why;
    int r = run_scontrol(ping, &pinged, err);

    if (r < 0)
        return r;
    if (strstr(pl_buf_str(&pinged.out), " is DOWN") && !strstr(pl_buf_str(&pinged.out), " is UP"))
        return pl_error_set(err, -EHOSTUNREACH, "the Slurm controller does not answer");
    why = pl_buf_str(&pinged.err);
    if (!strstr(pl_buf_str(&pinged.out), " is UP"))
        return pl_error_set(err, -ENOENT, "cannot read a slurm.conf (set SLURM_CONF): %.*s",
                            (int)strcspn(why, "\n"), why);
    if (!limits)
        return 0;
    r = run_scontrol(show, &shown, err);
    if (r < 0)
        return r;
    if (shown.status == 0 && pl_slurm_limits_parse(pl_buf_str(&shown.out), ret) == 0)
        return 0;
    why = pl_buf_str(&shown.err);
    return pl_error_set(err, -EHOSTUNREACH, "%.*s", (int)strcspn(why, "\n"), why);
}

static int query(bool limits, struct pl_slurm_limits *ret, struct pl_error *err)
{
    const char *conf = pl_env(PL_ENV_SLURM_CONF);
    int r = -ENOTSUP;

    if (conf && *conf && !pl_slurm_conf_readable())
        return pl_error_set(err, -ENOENT, "cannot read SLURM_CONF '%s'", conf);
    if (pl_slurm_conf_readable())
        r = query_library(limits, ret, err);
    return r == -ENOTSUP ? query_scontrol(limits, ret, err) : r;
}

int pl_slurm_limits_get(struct pl_slurm_limits *ret, struct pl_error *err)
{
    return query(true, ret, err);
}

int pl_slurm_limits_ping(struct pl_error *err)
{
    return query(false, &(struct pl_slurm_limits){0}, err);
}
