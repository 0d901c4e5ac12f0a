/* SPDX-License-Identifier: MIT */
#include "runtime/plrund/hub/log_queue.h"
#include "common/base/macros.h"

static void work(struct pl_disk_job *job)
{
    struct pl_log_queue *q = (struct pl_log_queue *)job;

    pl_log_file_put(&q->file, q->text.data, q->text.len);
    q->size_written = (size_t)q->file.size + q->file.waiting.len;
    if (q->send)
        pl_log_file_send(&q->file);
    q->send = false;
}

static void done(struct pl_disk_job *job)
{
    struct pl_log_queue *q = (struct pl_log_queue *)job;

    q->under_way = false;
    q->text.len = 0;
    q->size = q->size_written + q->lines.len; /* without what was lost */
    pl_log_queue_send(q);
}

static void hand_over(struct pl_log_queue *q)
{
    struct pl_buf text = q->text;

    q->text = q->lines;
    q->lines = text; /* empty; its memory is used again */
    q->under_way = true;
    q->job.work = work;
    q->job.done = done;
    pl_disk_add(q->disk, &q->job);
}

int pl_log_queue_open(struct pl_log_queue *q,
                      struct pl_disk *disk,
                      size_t max,
                      int folder_fd,
                      const char *name,
                      struct pl_error *err)
{
    int r = pl_log_file_open(&q->file, folder_fd, name, err);

    if (r < 0)
        return r;
    q->disk = disk;
    q->max = max;
    q->size = (size_t)q->file.size;
    q->open = true;
    return 0;
}

void pl_log_queue_finish(struct pl_log_queue *q)
{
    pl_log_file_finish(&q->file);
    pl_buf_finish(&q->text);
    pl_buf_finish(&q->lines);
    q->open = false;
}

void pl_log_queue_put(struct pl_log_queue *q, const char *line, size_t len)
{
    size_t waiting = q->lines.len + (q->under_way ? q->text.len : 0);

    if (!q->open)
        return;
    if (waiting + len > q->max || pl_buf_add(&q->lines, line, len) < 0)
        q->n_lost++;
    else
        q->size += len;
}

bool pl_log_queue_send(struct pl_log_queue *q)
{
    if (!q->open || q->under_way || !q->lines.len)
        return false;
    hand_over(q);
    return true;
}

void pl_log_queue_flush(struct pl_log_queue *q)
{
    if (!q->open || q->under_way)
        return;
    q->send = pl_disk_has_thread(q->disk);
    hand_over(q);
}

struct pl_buf pl_log_queue_take(struct pl_log_queue *q)
{
    struct pl_buf lines = q->lines;

    q->lines = (struct pl_buf){0};
    return lines;
}

void pl_log_queue_replaced(struct pl_log_queue *q, size_t size)
{
    q->size = size + q->lines.len + (q->under_way ? q->text.len : 0);
}

size_t pl_log_queue_count(const struct pl_buf *text)
{
    size_t n = 0;

    for (size_t i = 0; i < text->len; i++)
        n += text->data[i] == '\n';
    return n;
}

size_t pl_log_queue_waiting(const struct pl_log_queue *q)
{
    return pl_log_queue_count(&q->lines) + (q->under_way ? pl_log_queue_count(&q->text) : 0);
}
