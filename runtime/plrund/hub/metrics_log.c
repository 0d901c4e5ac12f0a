/* SPDX-License-Identifier: MIT */
/* metrics.jsonl, which has a limit: before the file is full it is thinned (thin.h), by a thread,
 * while records go on. The rest then replaces the file. The thread is our own: libuv aborts where
 * it cannot make one, for instance at the user's limit of processes. */
#include "common/base/env.h"
#include "common/base/fs.h"
#include "common/base/log.h"
#include "common/base/own.h"
#include "common/base/parse.h"
#include "common/run/run_folder.h"
#include "runtime/node/thread.h"
#include "runtime/plrund/hub/hub_private.h"
#include "runtime/plrund/hub/thin.h"

#include <fcntl.h>
#include <string.h>

#define METRICS_MAX ((size_t)16 * 1024 * 1024)
#define METRICS_RANK_MAX ((size_t)4096) /* in addition, for each rank */

/* One thinning. The loop owns it before and after the work, the thread meanwhile. */
struct pl_hub_thinning {
    struct pl_hub *hub;
    pthread_t thread;
    uv_async_t done;
    int fd;      /* the file, for reading */
    size_t size; /* bytes to thin: what follows has come since */
    size_t target;
    double grid_s;
    struct pl_thinned thinned;
    int result;
};

int pl_hub_metrics_limit(const struct pl_slurm_step *step, size_t *ret, struct pl_error *err)
{
    const char *text = pl_env_text(PL_ENV_PLUME_METRICS_MAX);
    uint64_t bytes = METRICS_MAX + METRICS_RANK_MAX * step->ntasks;
    int r = text ? pl_parse_mem(text, &bytes, err) : 0;

    if (r < 0)
        return pl_error_wrap(err, r, "PLUME_METRICS_MAX");
    *ret = (size_t)PL_MIN(bytes, (uint64_t)SSIZE_MAX);
    return 0;
}

/* At this size the file is thinned: records go on until the limit meanwhile. */
static size_t next_size(const struct pl_hub *hub, size_t now)
{
    return PL_MAX(hub->metrics_max / 4 * 3, now + hub->metrics_max / 8);
}

/* Reads len bytes from `at` on; -EIO if the file is shorter. */
static int read_part(int fd, char *to, size_t len, off_t at)
{
    while (len) {
        ssize_t n = pread(fd, to, len, at);

        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return n < 0 ? -errno : -EIO;
        to += n;
        at += n;
        len -= (size_t)n;
    }
    return 0;
}

static void *work(void *ctx)
{
    struct pl_hub_thinning *t = ctx;
    _cleanup_free_ char *text = malloc(t->size);

    t->result = text ? read_part(t->fd, text, t->size, 0) : -ENOMEM;
    if (t->result == 0)
        t->result = pl_thin(text, t->size, t->target, t->grid_s, &t->thinned);
    uv_async_send(&t->done);
    return NULL;
}

/* Puts the thinned lines, and those that came meanwhile, in the file's place. */
static int replace(struct pl_hub *hub, struct pl_hub_thinning *t, struct pl_error *err)
{
    const struct pl_slurm_step *s = hub->step;
    size_t later = (size_t)hub->metrics.size - t->size, len = t->thinned.text.len;
    _cleanup_close_ int folder = -EBADF;
    char name[64];
    int r = pl_buf_reserve(&t->thinned.text, later);

    if (r == 0)
        r = read_part(t->fd, t->thinned.text.data + len, later, (off_t)t->size);
    if (r < 0)
        return pl_error_set(err, r, "cannot thin 'metrics.jsonl': %s", strerror(-r));
    snprintf(name, sizeof(name), "trial-%04u/attempt-%u/metrics.jsonl", s->trial, s->attempt);
    r = pl_run_write_file(hub->run, name, t->thinned.text.data, len + later, 0666, false, err);
    if (r == 0)
        r = pl_own_folder_open(AT_FDCWD, hub->attempt_dir, &folder, err);
    return r < 0 ? r : pl_log_file_reopen(&hub->metrics, folder, err);
}

static void free_thinning(uv_handle_t *done)
{
    struct pl_hub_thinning *t = done->data;

    pl_buf_finish(&t->thinned.text);
    close(t->fd);
    free(t);
}

void pl_hub_stop_thinning(struct pl_hub *hub)
{
    struct pl_hub_thinning *t = PL_TAKE(hub->thinning);

    if (!t)
        return;
    pthread_join(t->thread, NULL);
    uv_close((uv_handle_t *)&t->done, free_thinning);
}

/* A run that is over keeps its file as it is: its result has been written. */
static void on_done(uv_async_t *done)
{
    struct pl_hub_thinning *t = done->data;
    struct pl_hub *hub = t->hub;
    struct pl_error err = {0};

    if (t->result == 0 && hub->state != PL_HUB_FINISHED) {
        if (replace(hub, t, &err) < 0) {
            pl_log_debug("run", "%s; it is tried again", pl_error_text(&err));
        } else {
            hub->metrics_thinned += t->thinned.n_left_out;
            hub->metrics_grid_s = t->thinned.grid_s;
        }
    }
    hub->metrics_next = next_size(hub, (size_t)hub->metrics.size);
    pl_hub_stop_thinning(hub);
}

static void start_thinning(struct pl_hub *hub)
{
    struct pl_hub_thinning *t = calloc(1, sizeof(*t));
    _cleanup_close_ int folder = -EBADF;
    int r = t ? 0 : -ENOMEM;

    hub->metrics_next = next_size(hub, (size_t)hub->metrics.size); /* if this fails */
    if (r == 0)
        r = pl_own_folder_open(AT_FDCWD, hub->attempt_dir, &folder, NULL);
    if (r == 0)
        r = pl_own_file_open(folder, "metrics.jsonl", O_RDONLY, 0, &t->fd, NULL);
    if (r == 0 && (r = uv_async_init(hub->loop, &t->done, on_done)) < 0)
        close(t->fd);
    if (r < 0) {
        free(t);
        return;
    }
    t->hub = hub;
    t->size = (size_t)hub->metrics.size;
    t->target = hub->metrics_max / 4;
    t->grid_s = hub->metrics_grid_s;
    t->done.data = t;
    if (pl_thread_start(&t->thread, work, t) < 0)
        uv_close((uv_handle_t *)&t->done, free_thinning);
    else
        hub->thinning = t;
}

/* The newest values stay in status.json and result.json when the file is full all the same. */
void pl_hub_append_metrics(struct pl_hub *hub, const struct pl_buf *line)
{
    if (!hub->metrics_next)
        hub->metrics_next = next_size(hub, 0);
    if ((size_t)hub->metrics.size + hub->metrics.waiting.len + line->len > hub->metrics_max)
        hub->metrics_left_out++;
    else
        pl_log_file_put(&hub->metrics, line->data, line->len);
    if ((size_t)hub->metrics.size > hub->metrics_next && !hub->thinning &&
        hub->state != PL_HUB_FINISHED)
        start_thinning(hub);
}
