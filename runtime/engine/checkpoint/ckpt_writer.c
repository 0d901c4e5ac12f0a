/* SPDX-License-Identifier: MIT */
#include "runtime/engine/checkpoint/ckpt_writer.h"
#include "common/base/log.h"
#include "common/base/signals.h"
#include "runtime/engine/checkpoint/checkpoint_parts.h"
#include "runtime/engine/checkpoint/checkpoint_place.h"

#include <pthread.h>
#include <signal.h>
#include <string.h>

struct pl_ckpt_writer {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    pthread_t thread;
    bool started, quit;
    bool alone;            /* no thread can be started */
    bool waiting, running; /* a job is in `next`; a job is being written */
    struct pl_ckpt_job next;
    struct pl_error error; /* the first error that was not returned yet */
};

void pl_ckpt_job_finish(struct pl_ckpt_job *job)
{
    pl_checkpoint_finish(&job->checkpoint);
    if (job->temp)
        unlink(job->temp); /* ENOENT: it was sealed */
    free(job->temp);
    free(job->path);
    free(job->also);
    free(job->remove);
    *job = (struct pl_ckpt_job){0};
}

/* Gives the file a second name: a hard link, made next to it and renamed; else a copy. */
static int write_also(const struct pl_ckpt_job *job, struct pl_error *err)
{
    _cleanup_free_ char *temp = pl_checkpoint_temp(job->also);
    bool placed;

    if (!temp)
        return pl_error_nomem(err);
    placed = link(job->path, temp) == 0 && pl_checkpoint_place(temp, job->also, NULL) == 0;
    /* rename() of two links of one file leaves both; a link that failed may be there all the same
     */
    unlink(temp);
    if (placed)
        return 0;
    return pl_checkpoint_copy(job->path, job->also, err);
}

int pl_ckpt_job_run(const struct pl_ckpt_job *job, struct pl_error *err)
{
    int r = job->temp ? pl_checkpoint_seal(job->temp, job->path, err)
                      : pl_checkpoint_write(&job->checkpoint, job->path, err);

    if (r == 0 && job->also)
        r = write_also(job, err);
    if (r == 0 && job->remove && strcmp(job->remove, job->path) != 0)
        unlink(job->remove); /* ENOENT is fine */
    return r;
}

static void *writer_main(void *arg)
{
    struct pl_ckpt_writer *w = arg;

    pthread_mutex_lock(&w->lock);
    for (;;) {
        struct pl_error err = {0};
        struct pl_ckpt_job job;
        int r;

        while (!w->waiting && !w->quit)
            pthread_cond_wait(&w->changed, &w->lock);
        if (!w->waiting)
            break;
        job = w->next;
        w->next = (struct pl_ckpt_job){0};
        w->waiting = false;
        w->running = true;
        pthread_cond_broadcast(&w->changed);
        pthread_mutex_unlock(&w->lock);
        r = pl_ckpt_job_run(&job, &err);
        pl_ckpt_job_finish(&job);
        pthread_mutex_lock(&w->lock);
        w->running = false;
        if (r < 0 && w->error.code == 0) {
            w->error = err;
            w->error.code = r;
        }
        pthread_cond_broadcast(&w->changed);
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

int pl_ckpt_writer_create(struct pl_ckpt_writer **ret, struct pl_error *err)
{
    struct pl_ckpt_writer *w = calloc(1, sizeof(*w));

    if (!w)
        return pl_error_nomem(err);
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->changed, NULL);
    *ret = w;
    return 0;
}

/* Only the training thread handles signals. */
static int start(struct pl_ckpt_writer *w)
{
    sigset_t all, before;
    int r;

    pl_signals_of_threads(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    r = pthread_create(&w->thread, NULL, writer_main, w);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    w->started = r == 0;
    return -r;
}

/* Called with the lock held: returns an earlier error. */
static int take_error(struct pl_ckpt_writer *w, struct pl_error *err)
{
    int r = w->error.code;

    if (r < 0)
        pl_error_set(err, r, "%s", w->error.text);
    w->error = (struct pl_error){0};
    return r;
}

int pl_ckpt_writer_submit(struct pl_ckpt_writer *writer,
                          struct pl_ckpt_job *job,
                          struct pl_error *err)
{
    int r;

    pthread_mutex_lock(&writer->lock);
    while (writer->waiting)
        pthread_cond_wait(&writer->changed, &writer->lock);
    r = take_error(writer, err);
    if (r == 0 && !writer->started && !writer->alone && (r = start(writer)) < 0) {
        pl_log_warn("train",
                    "no thread can be started to write checkpoints (ulimit -v or -u is too small): "
                    "training waits for them: %s",
                    strerror(-r));
        writer->alone = true;
        r = 0;
    }
    if (r == 0 && writer->alone) {
        r = pl_ckpt_job_run(job, err);
    } else if (r == 0) {
        writer->next = *job;
        writer->waiting = true;
        *job = (struct pl_ckpt_job){0};
        pthread_cond_broadcast(&writer->changed);
    }
    pthread_mutex_unlock(&writer->lock);
    pl_ckpt_job_finish(job);
    return r;
}

int pl_ckpt_writer_flush(struct pl_ckpt_writer *writer, struct pl_error *err)
{
    int r;

    pthread_mutex_lock(&writer->lock);
    while (writer->waiting || writer->running)
        pthread_cond_wait(&writer->changed, &writer->lock);
    r = take_error(writer, err);
    pthread_mutex_unlock(&writer->lock);
    return r;
}

void pl_ckpt_writer_destroy(struct pl_ckpt_writer *writer)
{
    if (!writer)
        return;
    pthread_mutex_lock(&writer->lock);
    writer->quit = true;
    pthread_cond_broadcast(&writer->changed);
    pthread_mutex_unlock(&writer->lock);
    if (writer->started)
        pthread_join(writer->thread, NULL);
    pl_ckpt_job_finish(&writer->next);
    pthread_cond_destroy(&writer->changed);
    pthread_mutex_destroy(&writer->lock);
    free(writer);
}
