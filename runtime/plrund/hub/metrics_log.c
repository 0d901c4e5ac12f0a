/* SPDX-License-Identifier: MIT */
/* metrics.jsonl, which has a limit: before the file is full it is thinned (thin.h), by the disk's
 * thread, while records wait in memory. The rest replaces the file. */
#include "common/base/env.h"
#include "common/base/fs.h"
#include "common/base/log.h"
#include "common/base/own.h"
#include "common/base/parse.h"
#include "common/run/run_folder.h"
#include "runtime/plrund/hub/hub_private.h"
#include "runtime/plrund/hub/thin.h"

#include <fcntl.h>
#include <string.h>

#define METRICS_MAX ((size_t)16 * 1024 * 1024)
#define METRICS_RANK_MAX ((size_t)4096) /* in addition, for each rank */

/* One thinning. */
struct thinning {
    struct pl_disk_job job; /* first */
    struct pl_hub *hub;
    size_t target, size; /* size: of the file afterwards */
    double grid_s;
    struct pl_thinned thinned;
    struct pl_error err;
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

/* Puts the thinned lines in the file's place. */
static int replace(struct thinning *t, int folder)
{
    struct pl_hub *hub = t->hub;
    const struct pl_slurm_step *s = hub->step;
    char name[64];
    int r;

    snprintf(name, sizeof(name), "trial-%04u/attempt-%u/metrics.jsonl", s->trial, s->attempt);
    r = pl_run_write_file(hub->run, name, t->thinned.text.data, t->thinned.text.len, 0666, false,
                          &t->err);
    return r < 0 ? r : pl_log_file_reopen(&hub->metrics.file, folder, &t->err);
}

static void work(struct pl_disk_job *job)
{
    struct thinning *t = (struct thinning *)job;
    struct pl_log_file *file = &t->hub->metrics.file;
    _cleanup_close_ int folder = -EBADF, fd = -EBADF;
    _cleanup_free_ char *text = malloc((size_t)file->size + 1);
    int r = pl_own_folder_open(AT_FDCWD, t->hub->attempt_dir, &folder, &t->err);

    if (r == 0)
        r = pl_own_file_open(folder, "metrics.jsonl", O_RDONLY, 0, &fd, &t->err);
    if (r == 0) {
        r = text ? read_part(fd, text, (size_t)file->size, 0) : -ENOMEM;
        if (r == 0)
            r = pl_thin(text, (size_t)file->size, t->target, t->grid_s, &t->thinned);
        if (r < 0)
            pl_error_set(&t->err, r, "cannot thin 'metrics.jsonl': %s", strerror(-r));
    }
    if (r == 0)
        r = replace(t, folder);
    if (r == 0)
        t->hub->metrics_thinned += t->thinned.n_left_out;
    t->result = r;
    t->size = (size_t)file->size + file->waiting.len;
}

static void done(struct pl_disk_job *job)
{
    struct thinning *t = (struct thinning *)job;
    struct pl_hub *hub = t->hub;

    if (t->result < 0)
        pl_log_debug("run", "%s; it is tried again", pl_error_text(&t->err));
    else
        hub->metrics_grid_s = t->thinned.grid_s;
    pl_log_queue_replaced(&hub->metrics, t->size);
    hub->metrics_next = next_size(hub, hub->metrics.size);
    hub->thinning = false;
    pl_buf_finish(&t->thinned.text);
    free(t);
}

static void start_thinning(struct pl_hub *hub)
{
    struct thinning *t = calloc(1, sizeof(*t));

    hub->metrics_next = next_size(hub, hub->metrics.size); /* if this fails */
    if (!t)
        return;
    t->hub = hub;
    t->target = hub->metrics_max / 4;
    t->grid_s = hub->metrics_grid_s;
    t->job.work = work;
    t->job.done = done;
    hub->thinning = true;
    pl_disk_add(hub->disk, &t->job);
}

/* The newest values stay in status.json and result.json when the file is full all the same. */
void pl_hub_append_metrics(struct pl_hub *hub, const struct pl_buf *line)
{
    if (!hub->metrics_next)
        hub->metrics_next = next_size(hub, 0);
    if (hub->metrics.size + line->len > hub->metrics_max)
        hub->metrics_left_out++;
    else
        pl_log_queue_put(&hub->metrics, line->data, line->len);
    if (hub->metrics.size > hub->metrics_next && !hub->thinning && hub->state != PL_HUB_FINISHED)
        start_thinning(hub);
}
