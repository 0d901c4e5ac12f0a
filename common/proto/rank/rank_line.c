/* SPDX-License-Identifier: MIT */
#include "common/proto/rank/rank_line.h"
#include "common/proto/rank/minijson.h"

static struct pl_mini_writer begin(struct pl_buf *out, const char *type)
{
    struct pl_mini_writer w = {.buf = out};

    pl_mini_open(&w, NULL, '{');
    pl_mini_put_string(&w, "type", type);
    return w;
}

int pl_rank_line_hello(struct pl_buf *out,
                       enum pl_rank_role role,
                       unsigned rank,
                       unsigned local_rank,
                       pid_t pid,
                       bool guarded)
{
    struct pl_mini_writer w = begin(out, "hello");

    pl_mini_put_string(&w, "proto", "plume");
    pl_mini_put_int(&w, "major", PL_PROTO_MAJOR);
    pl_mini_put_int(&w, "minor", PL_PROTO_MINOR);
    pl_mini_put_string(&w, "role", role == PL_RANK_ROLE_STARTER ? "starter" : "program");
    pl_mini_put_int(&w, "rank", rank);
    pl_mini_put_int(&w, "local_rank", local_rank);
    pl_mini_put_int(&w, "pid", pid);
    pl_mini_put_bool(&w, "guarded", guarded);
    return pl_mini_close(&w, '}');
}

int pl_rank_line_metrics(struct pl_buf *out,
                         int64_t step,
                         int64_t own_us,
                         const char *const *names,
                         const double *values,
                         size_t n)
{
    struct pl_mini_writer w = begin(out, "metrics");

    pl_mini_put_int(&w, "step", step);
    if (own_us >= 0)
        pl_mini_put_int(&w, "own_us", own_us);
    pl_mini_open(&w, "metrics", '{');
    for (size_t i = 0; i < n; i++)
        pl_mini_put_double(&w, names[i], values[i]);
    pl_mini_close(&w, '}');
    return pl_mini_close(&w, '}');
}

int pl_rank_line_phase(struct pl_buf *out, const char *phase)
{
    struct pl_mini_writer w = begin(out, "metrics");

    pl_mini_put_string(&w, "phase", phase);
    return pl_mini_close(&w, '}');
}

int pl_rank_line_fact(struct pl_buf *out, const char *key, const char *value)
{
    struct pl_mini_writer w = begin(out, "fact");

    pl_mini_put_string(&w, "key", key);
    pl_mini_put_string(&w, "value", value);
    return pl_mini_close(&w, '}');
}

int pl_rank_line_exchange(struct pl_buf *out, const char *name, const char *value)
{
    struct pl_mini_writer w = begin(out, "exchange");

    pl_mini_put_string(&w, "name", name);
    pl_mini_put_string(&w, "value", value);
    return pl_mini_close(&w, '}');
}

int pl_rank_line_spawned(struct pl_buf *out, int64_t rank, pid_t pid)
{
    struct pl_mini_writer w = begin(out, "spawned");

    if (rank >= 0)
        pl_mini_put_int(&w, "rank", rank);
    pl_mini_put_int(&w, "pid", pid);
    return pl_mini_close(&w, '}');
}

int pl_rank_line_signalled(struct pl_buf *out, int signal, pid_t sender)
{
    struct pl_mini_writer w = begin(out, "signalled");

    pl_mini_put_int(&w, "signal", signal);
    if (sender > 0)
        pl_mini_put_int(&w, "sender", sender);
    return pl_mini_close(&w, '}');
}

int pl_rank_line_exited(
    struct pl_buf *out, int64_t rank, int status, uint64_t at_ns, int term_default)
{
    struct pl_mini_writer w = begin(out, "exited");

    if (rank >= 0)
        pl_mini_put_int(&w, "rank", rank);
    pl_mini_put_int(&w, "status", status);
    if (at_ns)
        pl_mini_put_int(&w, "at_ns", (int64_t)at_ns);
    if (term_default >= 0)
        pl_mini_put_int(&w, "term_default", term_default);
    return pl_mini_close(&w, '}');
}

int pl_rank_line_ready(struct pl_buf *out, pid_t pid, const char *socket)
{
    struct pl_mini_writer w = begin(out, "ready");

    pl_mini_put_int(&w, "pid", pid);
    pl_mini_put_string(&w, "socket", socket);
    return pl_mini_close(&w, '}');
}

int pl_rank_line_failed(struct pl_buf *out, const char *text)
{
    struct pl_mini_writer w = begin(out, "failed");

    pl_mini_put_string(&w, "text", text);
    return pl_mini_close(&w, '}');
}
