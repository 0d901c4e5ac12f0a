/* SPDX-License-Identifier: MIT */
/* Cleans up after earlier attempts of the trial: thins metrics above the limit that all attempts
 * share (thin.h), and removes temporary files of writers that were killed. A thread does this once,
 * while the attempt begins. */
#include "common/base/env.h"
#include "common/base/fs.h"
#include "common/base/log.h"
#include "common/base/own.h"
#include "common/base/parse.h"
#include "common/run/run_folder.h"
#include "runtime/node/thread.h"
#include "runtime/plrund/hub/hub_private.h"
#include "runtime/plrund/hub/thin.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#define TRIAL_FACTOR 4 /* attempts whose metrics fit by default, each at its limit */
#define YOUNG_S 60     /* a file that was written since may have a writer: the hub of before */
#define JOIN_MS 1000   /* for the thread, at the end */
#define SUFFIX 16      /* hexadecimal digits of pl_temp_name() */

struct pl_hub_tidy {
    struct pl_hub *hub;
    pthread_t thread;
    uv_async_t done;
    atomic_bool stop;
    size_t share; /* bytes of each earlier attempt */
};

int pl_hub_tidy_limit(struct pl_hub *hub, struct pl_error *err)
{
    const char *text = pl_env_text(PL_ENV_PLUME_METRICS_TRIAL_MAX);
    uint64_t bytes = PL_MIN((uint64_t)hub->metrics_max, UINT64_MAX / TRIAL_FACTOR) * TRIAL_FACTOR;
    unsigned before = hub->step->attempt;
    int r = text ? pl_parse_mem(text, &bytes, err) : 0;

    if (r < 0)
        return pl_error_wrap(err, r, "PLUME_METRICS_TRIAL_MAX");
    bytes = PL_MIN(bytes, (uint64_t)SSIZE_MAX);
    /* This attempt has half of it at least; the earlier ones share the rest. */
    hub->metrics_max = PL_MIN(hub->metrics_max, (size_t)bytes / (before ? 2 : 1));
    hub->metrics_share = before ? ((size_t)bytes - hub->metrics_max) / before : 0;
    return 0;
}

/* ---- the thread ---- */

static bool is_old(const struct stat *st)
{
    return S_ISREG(st->st_mode) && st->st_uid == geteuid() && st->st_mtime + YOUNG_S < time(NULL);
}

/* NAME.HEX, as pl_temp_name() makes it of a file that Plume writes there. The program has the
 * folder as well, and may name a file of its own by a hash or a time. */
static bool is_temporary(const char *name)
{
    static const char *const ours[] = {"status.json", "result.json", "requeues.json",
                                       "metrics.jsonl"};
    const char *dot = strrchr(name, '.');

    if (!dot || strlen(dot + 1) != SUFFIX || strspn(dot + 1, "0123456789abcdef") != SUFFIX)
        return false;
    for (size_t i = 0; i < PL_COUNT(ours); i++)
        if (strlen(ours[i]) == (size_t)(dot - name) && strncmp(name, ours[i], dot - name) == 0)
            return true;
    return strncmp(name, "hang-rank-", strlen("hang-rank-")) == 0 && dot - name > 4 &&
           strncmp(dot - 4, ".txt", 4) == 0;
}

/* folder: consumed. */
static void sweep(int folder)
{
    DIR *dir = fdopendir(folder);
    const struct dirent *e;
    struct stat st;

    if (!dir) {
        close(folder);
        return;
    }
    while ((e = readdir(dir)))
        if (is_temporary(e->d_name) &&
            fstatat(dirfd(dir), e->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0 && is_old(&st))
            unlinkat(dirfd(dir), e->d_name, 0);
    closedir(dir);
}

static int read_all(int fd, char *to, size_t len)
{
    while (len) {
        ssize_t n = read(fd, to, len);

        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return n < 0 ? -errno : -EIO;
        to += n;
        len -= (size_t)n;
    }
    return 0;
}

static int thin_attempt(const struct pl_hub_tidy *t, int folder, unsigned attempt)
{
    const struct pl_hub *hub = t->hub;
    _cleanup_close_ int fd = -EBADF;
    _cleanup_free_ char *text = NULL;
    struct pl_thinned thinned = {0};
    struct stat st;
    char name[64];
    int r = pl_own_file_open(folder, "metrics.jsonl", O_RDONLY, 0, &fd, NULL);

    if (r < 0 || fstat(fd, &st) < 0 || (size_t)st.st_size <= t->share || !is_old(&st))
        return 0; /* none, or it fits, or the hub of before may be writing */
    text = malloc((size_t)st.st_size);
    r = text ? read_all(fd, text, (size_t)st.st_size) : -ENOMEM;
    if (r == 0)
        r = pl_thin(text, (size_t)st.st_size, t->share, 0, &thinned);
    snprintf(name, sizeof(name), "trial-%04u/attempt-%u/metrics.jsonl", hub->step->trial, attempt);
    if (r == 0 && thinned.n_left_out)
        r = pl_run_write_file(hub->run, name, thinned.text.data, thinned.text.len, 0666, false,
                              NULL);
    pl_buf_finish(&thinned.text);
    return r;
}

static void tidy_attempt(const struct pl_hub_tidy *t, unsigned attempt)
{
    const struct pl_hub *hub = t->hub;
    _cleanup_free_ char *path = pl_run_attempt_path(hub->run, hub->step->trial, attempt, NULL);
    int folder = -EBADF, r;

    if (!path || pl_own_folder_open(AT_FDCWD, path, &folder, NULL) < 0)
        return; /* an attempt without a folder */
    r = thin_attempt(t, folder, attempt);
    if (r < 0)
        pl_log_debug("run", "metrics of attempt %u are not thinned: %s", attempt, strerror(-r));
    sweep(folder);
}

static void *work(void *ctx)
{
    struct pl_hub_tidy *t = ctx;
    _cleanup_free_ char *trial = strdup(t->hub->attempt_dir);
    char *slash = trial ? strrchr(trial, '/') : NULL;
    int folder = -EBADF;

    for (unsigned i = 0; i < t->hub->step->attempt && !atomic_load(&t->stop); i++)
        tidy_attempt(t, i);
    if (slash) {
        *slash = '\0';
        if (pl_own_folder_open(AT_FDCWD, trial, &folder, NULL) == 0)
            sweep(folder);
    }
    uv_async_send(&t->done);
    return NULL;
}

/* ---- life ---- */

static void on_closed(uv_handle_t *done)
{
    free(done->data);
}

void pl_hub_tidy_stop(struct pl_hub *hub)
{
    struct pl_hub_tidy *t = PL_TAKE(hub->tidy);

    if (!t)
        return;
    atomic_store(&t->stop, true);
    if (!pl_thread_join(t->thread, JOIN_MS))
        return; /* it uses what is there until the process ends */
    uv_close((uv_handle_t *)&t->done, on_closed);
}

static void on_done(uv_async_t *done)
{
    pl_hub_tidy_stop(((struct pl_hub_tidy *)done->data)->hub);
}

void pl_hub_tidy_start(struct pl_hub *hub)
{
    struct pl_hub_tidy *t = hub->step->attempt ? calloc(1, sizeof(*t)) : NULL;

    if (!t)
        return;
    if (uv_async_init(hub->loop, &t->done, on_done) < 0) {
        free(t);
        return;
    }
    t->hub = hub;
    t->share = hub->metrics_share;
    t->done.data = t;
    uv_unref((uv_handle_t *)&t->done);
    if (pl_thread_start(&t->thread, work, t) < 0)
        uv_close((uv_handle_t *)&t->done, on_closed);
    else
        hub->tidy = t;
}
