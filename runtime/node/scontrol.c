/* SPDX-License-Identifier: MIT */
#include "runtime/node/scontrol.h"
#include "common/base/buf.h"
#include "common/base/env.h"
#include "common/base/log.h"
#include "common/base/trace.h"

#include <signal.h>
#include <stdbool.h>
#include <string.h>

#define ARGS_MAX 8
#define OUTPUT_MAX ((size_t)1024 * 1024)

struct pl_scontrol {
    uv_process_t process;
    uv_pipe_t out;
    uv_timer_t timer;
    struct pl_buf text;
    char chunk[4096];
    void (*answer)(void *ctx, const char *output);
    void *ctx;
    int64_t status;
    bool exited, eof;
    unsigned handles;
};

static void on_closed(uv_handle_t *handle)
{
    struct pl_scontrol *a = handle->data;

    if (--a->handles)
        return;
    pl_buf_finish(&a->text);
    free(a);
}

static void close_all(struct pl_scontrol *a)
{
    uv_close((uv_handle_t *)&a->timer, on_closed);
    uv_close((uv_handle_t *)&a->out, on_closed);
    uv_close((uv_handle_t *)&a->process, on_closed);
}

static void maybe_done(struct pl_scontrol *a)
{
    if (!a->exited || !a->eof || uv_is_closing((uv_handle_t *)&a->timer))
        return;
    close_all(a); /* first: the answer may lead to pl_scontrol_cancel() */
    a->answer(a->ctx, a->status == 0 ? pl_buf_str(&a->text) : NULL);
}

static void on_process_exit(uv_process_t *process, int64_t status, int term_signal)
{
    struct pl_scontrol *a = process->data;

    a->exited = true;
    a->status = term_signal ? -1 : status;
    maybe_done(a);
}

static void on_alloc(uv_handle_t *handle, size_t size, uv_buf_t *buf)
{
    struct pl_scontrol *a = handle->data;

    *buf = uv_buf_init(a->chunk, sizeof(a->chunk));
}

static void on_read(uv_stream_t *stream, ssize_t n, const uv_buf_t *buf)
{
    struct pl_scontrol *a = stream->data;

    if (n > 0 && a->text.len < OUTPUT_MAX)
        pl_buf_add(&a->text, buf->base, (size_t)n);
    if (n < 0) {
        a->eof = true;
        maybe_done(a);
    }
}

static void on_timeout(uv_timer_t *timer)
{
    struct pl_scontrol *a = timer->data;

    pl_log_debug("slurm", "scontrol takes too long");
    uv_process_kill(&a->process, SIGKILL);
    a->eof = true; /* a child of its own may hold the pipe */
    maybe_done(a);
}

struct pl_scontrol *pl_scontrol_run(uv_loop_t *loop,
                                    const char *const *args,
                                    unsigned timeout_ms,
                                    void (*answer)(void *ctx, const char *output),
                                    void *ctx)
{
    struct pl_scontrol *a = calloc(1, sizeof(*a));
    /* Empty: the plugin knows none, and no PATH may choose one. "/" cannot be run. */
    const char *program = pl_env(PL_ENV_PLUME_SCONTROL);
    char *argv[ARGS_MAX + 2] = {(char *)(uintptr_t) "scontrol"};
    uv_stdio_container_t io[3] = {
        {.flags = UV_IGNORE}, {.flags = UV_CREATE_PIPE | UV_WRITABLE_PIPE}, {.flags = UV_IGNORE}};
    uv_process_options_t options = {.exit_cb = on_process_exit,
                                    .file = !program   ? "scontrol"
                                            : *program ? program
                                                       : "/",
                                    .args = argv,
                                    .stdio = io,
                                    .stdio_count = 3};
    int r;

    if (!a) {
        answer(ctx, NULL);
        return NULL;
    }
    for (size_t i = 0; i < ARGS_MAX && args[i]; i++)
        argv[i + 1] = (char *)(uintptr_t)args[i];
    a->answer = answer;
    a->ctx = ctx;
    a->handles = 3;
    a->process.data = a->out.data = a->timer.data = a;
    uv_pipe_init(loop, &a->out, 0);
    uv_timer_init(loop, &a->timer);
    io[1].data.stream = (uv_stream_t *)&a->out;
    r = uv_spawn(loop, &a->process, &options);
    a->process.data = a;
    if (r < 0) {
        pl_log_debug("slurm", "cannot run scontrol: %s", uv_strerror(r));
        a->status = -1;
        a->exited = a->eof = true;
        maybe_done(a);
        return NULL;
    }
    pl_trace("slurm", "scontrol", args[0], a->process.pid);
    uv_read_start((uv_stream_t *)&a->out, on_alloc, on_read);
    uv_timer_start(&a->timer, on_timeout, timeout_ms, 0);
    return a;
}

void pl_scontrol_cancel(struct pl_scontrol *ask)
{
    if (!ask || uv_is_closing((uv_handle_t *)&ask->timer))
        return;
    uv_process_kill(&ask->process, SIGKILL);
    close_all(ask);
}
