/* SPDX-License-Identifier: MIT */
#include "runtime/engine/util/timeline.h"
#include "common/base/fs.h"
#include "common/proto/rank/minijson.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

struct pl_timeline {
    FILE *file;
    char *path;
    pthread_mutex_t lock;
    uint64_t start, events, left_out;
};

int pl_timeline_open(const char *path,
                     const char *name,
                     struct pl_timeline **ret,
                     struct pl_error *err)
{
    _cleanup_(pl_buf_finish) struct pl_buf quoted = {0};
    struct pl_timeline *t = calloc(1, sizeof(*t));

    if (t)
        t->path = strdup(path);
    if (!t || !t->path || pl_mini_quote(&quoted, name) < 0) {
        pl_timeline_close(t, NULL);
        return pl_error_nomem(err);
    }
    pthread_mutex_init(&t->lock, NULL);
    t->start = pl_now_ns();
    t->file = fopen(path, "we");
    if (!t->file) {
        int r = pl_error_errno(err, errno, "cannot write the profile '%s'", path);

        pl_timeline_close(t, NULL);
        return r;
    }
    fprintf(t->file,
            "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n"
            "{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":0,\"tid\":0,\"args\":{\"name\":%s}}",
            pl_buf_str(&quoted));
    *ret = t;
    return 0;
}

int pl_timeline_close(struct pl_timeline *timeline, struct pl_error *err)
{
    int code = 0, r;

    if (!timeline)
        return 0;
    if (timeline->file) {
        fprintf(timeline->file, "\n],\"otherData\":{\"left_out\":%llu}}\n",
                (unsigned long long)timeline->left_out);
        code = ferror(timeline->file) ? EIO : 0;
        if (fclose(timeline->file) != 0)
            code = errno;
        pthread_mutex_destroy(&timeline->lock);
    }
    r = code ? pl_error_errno(err, code, "the profile '%s' is incomplete", timeline->path) : 0;
    free(timeline->path);
    free(timeline);
    return r;
}

uint64_t pl_timeline_begin(const struct pl_timeline *timeline)
{
    return timeline ? pl_now_ns() : 0;
}

void pl_timeline_end(struct pl_timeline *timeline,
                     unsigned thread,
                     const char *category,
                     const char *name,
                     const char *detail,
                     uint64_t begin)
{
    uint64_t now;

    if (!timeline)
        return;
    now = pl_now_ns();
    pthread_mutex_lock(&timeline->lock);
    if (detail && timeline->events >= PL_TIMELINE_EVENTS_MAX) {
        timeline->left_out++;
    } else {
        timeline->events++;
        fprintf(timeline->file,
                ",\n{\"ph\":\"X\",\"cat\":\"%s\",\"name\":\"%s\",\"pid\":0,\"tid\":%u,\"ts\":%.3f,"
                "\"dur\":%.3f",
                category, name, thread, (double)(begin - timeline->start) * 1e-3,
                (double)(now - begin) * 1e-3);
        fprintf(timeline->file, detail ? ",\"args\":{\"output\":\"%s\"}}" : "}", detail);
    }
    pthread_mutex_unlock(&timeline->lock);
}
