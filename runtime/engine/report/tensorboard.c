/* SPDX-License-Identifier: MIT */
#include "runtime/engine/report/tensorboard.h"
#include "common/base/buf.h"
#include "common/base/fs.h"

#include <fcntl.h>
#include <string.h>

#define FLUSH_BYTES ((size_t)64 * 1024)

/* Field numbers of the messages, from the .proto files. */
enum {
    EVENT_WALL_TIME = 1,
    EVENT_STEP = 2,
    EVENT_FILE_VERSION = 3,
    EVENT_SUMMARY = 5,
    SUMMARY_VALUE = 1,
    VALUE_TAG = 1,
    VALUE_SIMPLE = 2,
    VALUE_TENSOR = 8,
    VALUE_METADATA = 9,
    TENSOR_DTYPE = 1,
    TENSOR_SHAPE = 2,
    SHAPE_DIM = 2,
    METADATA_PLUGIN = 1,
    PLUGIN_NAME = 1,
    PLUGIN_CONTENT = 2,
    HPARAMS_START = 3,
    HPARAMS_END = 4,
    START_HPARAMS = 1,
    START_GROUP = 4,
    START_TIME = 5,
    END_STATUS = 1,
    END_TIME = 2,
    MAP_KEY = 1,
    MAP_VALUE = 2,
    STRUCT_NUMBER = 2,
    STRUCT_TEXT = 3,
};

#define DTYPE_FLOAT 1
#define STATUS_SUCCESS 1
#define STATUS_FAILURE 2

struct pl_tensorboard {
    int fd;
    int failed; /* negative errno of the write that failed */
    char *path;
    struct pl_buf pending;
};

/* CRC-32C (Castagnoli, RFC 3720 appendix B.4), reflected, bit by bit: records are short. */
static uint32_t crc32c(const void *data, size_t len)
{
    const uint8_t *p = data;
    uint32_t crc = UINT32_MAX;

    for (size_t i = 0; i < len; i++) {
        crc ^= p[i];
        for (int bit = 0; bit < 8; bit++)
            crc = (crc >> 1) ^ (crc & 1 ? 0x82f63b78u : 0);
    }
    return ~crc;
}

/* TFRecord's mask (rotate, add): a CRC over bytes that contain CRCs is weak. */
static uint32_t masked_crc(const void *data, size_t len)
{
    uint32_t crc = crc32c(data, len);

    return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
}

/* The encoders set *bad when out of memory, so that a message is checked once. */
struct proto {
    struct pl_buf buf;
    bool bad;
};

static void raw(struct proto *p, const void *data, size_t len)
{
    p->bad |= pl_buf_add(&p->buf, data, len) < 0;
}

static void little_endian(struct proto *p, uint64_t value, size_t bytes)
{
    uint8_t out[8];

    for (size_t i = 0; i < bytes; i++)
        out[i] = (uint8_t)(value >> (8 * i));
    raw(p, out, bytes);
}

static void varint(struct proto *p, uint64_t value)
{
    uint8_t out[10];
    size_t n = 0;

    do {
        out[n] = (uint8_t)(value & 0x7f) | (value > 0x7f ? 0x80 : 0);
        n++;
        value >>= 7;
    } while (value);
    raw(p, out, n);
}

static void key(struct proto *p, unsigned field, unsigned wire_type)
{
    varint(p, field << 3 | wire_type);
}

static void put_int(struct proto *p, unsigned field, int64_t value)
{
    key(p, field, 0);
    varint(p, (uint64_t)value);
}

static void put_double(struct proto *p, unsigned field, double value)
{
    uint64_t bits;

    memcpy(&bits, &value, sizeof(bits));
    key(p, field, 1);
    little_endian(p, bits, 8);
}

static void put_float(struct proto *p, unsigned field, float value)
{
    uint32_t bits;

    memcpy(&bits, &value, sizeof(bits));
    key(p, field, 5);
    little_endian(p, bits, 4);
}

static void put_bytes(struct proto *p, unsigned field, const void *data, size_t len)
{
    key(p, field, 2);
    varint(p, len);
    raw(p, data, len);
}

static void put_text(struct proto *p, unsigned field, const char *text)
{
    put_bytes(p, field, text, strlen(text));
}

/* Takes ownership of `inner`. */
static void put_message(struct proto *p, unsigned field, struct proto *inner)
{
    p->bad |= inner->bad;
    put_bytes(p, field, pl_buf_str(&inner->buf), inner->buf.len);
    pl_buf_finish(&inner->buf);
}

/* Frames an event and keeps it for the next flush. */
static int add_record(struct pl_tensorboard *events, struct proto *event, struct pl_error *err)
{
    struct proto record = {0};
    int r = events->failed;

    if (r == 0) {
        little_endian(&record, event->buf.len, 8);
        little_endian(&record, masked_crc(pl_buf_str(&record.buf), record.bad ? 0 : 8), 4);
        raw(&record, pl_buf_str(&event->buf), event->buf.len);
        little_endian(&record, masked_crc(pl_buf_str(&event->buf), event->buf.len), 4);
        if (record.bad || event->bad ||
            pl_buf_add(&events->pending, pl_buf_str(&record.buf), record.buf.len) < 0)
            r = pl_error_set(err, -ENOMEM, "out of memory for '%s'", events->path);
    } else {
        pl_error_errno(err, r, "'%s' could not be written before", events->path);
    }
    pl_buf_finish(&record.buf);
    pl_buf_finish(&event->buf);
    if (r == 0 && events->pending.len >= FLUSH_BYTES)
        r = pl_tensorboard_flush(events, err);
    return r;
}

int pl_tensorboard_open(const char *dir, struct pl_tensorboard **ret, struct pl_error *err)
{
    _cleanup_(pl_tensorboard_closep) struct pl_tensorboard *events = calloc(1, sizeof(*events));
    struct proto event = {0};
    char host[256] = "localhost";
    int r;

    if (!events)
        return pl_error_nomem(err);
    events->fd = -EBADF;
    if (gethostname(host, sizeof(host) - 1) < 0)
        host[0] = '\0';
    for (unsigned n = 0; events->fd < 0; n++) { /* one process may make several per second */
        free(events->path);
        events->path = pl_strf("%s/events.out.tfevents.%010lld.%s.%d.%u", dir,
                               (long long)pl_wall_s(), host[0] ? host : "localhost", getpid(), n);
        if (!events->path)
            return pl_error_nomem(err);
        events->fd = open(events->path, O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0666);
        if (events->fd < 0 && errno != EEXIST)
            return pl_error_errno(err, -errno, "cannot make the event file '%s'", events->path);
    }
    put_double(&event, EVENT_WALL_TIME, pl_wall_s());
    put_text(&event, EVENT_FILE_VERSION, "brain.Event:2");
    r = add_record(events, &event, err);
    if (r == 0)
        r = pl_tensorboard_flush(events, err);
    if (r < 0)
        return r;
    *ret = PL_TAKE(events);
    return 0;
}

void pl_tensorboard_close(struct pl_tensorboard *events)
{
    if (!events)
        return;
    if (events->fd >= 0) {
        pl_tensorboard_flush(events, NULL);
        close(events->fd);
    }
    pl_buf_finish(&events->pending);
    free(events->path);
    free(events);
}

int pl_tensorboard_flush(struct pl_tensorboard *events, struct pl_error *err)
{
    int r = events->failed;

    if (r == 0 && events->pending.len) {
        r = pl_write_all(events->fd, events->pending.data, events->pending.len);
        pl_buf_consume(&events->pending, events->pending.len);
        events->failed = r;
    }
    return r < 0 ? pl_error_errno(err, r, "cannot write '%s'", events->path) : 0;
}

/* Takes ownership of `value` (a Summary.Value). */
static int
add_summary(struct pl_tensorboard *events, int64_t step, struct proto *value, struct pl_error *err)
{
    struct proto summary = {0}, event = {0};

    put_message(&summary, SUMMARY_VALUE, value);
    put_double(&event, EVENT_WALL_TIME, pl_wall_s());
    put_int(&event, EVENT_STEP, step);
    put_message(&event, EVENT_SUMMARY, &summary);
    return add_record(events, &event, err);
}

int pl_tensorboard_scalar(struct pl_tensorboard *events,
                          const char *tag,
                          double value,
                          int64_t step,
                          struct pl_error *err)
{
    struct proto v = {0};

    put_text(&v, VALUE_TAG, tag);
    put_float(&v, VALUE_SIMPLE, (float)value);
    return add_summary(events, step, &v, err);
}

/* A value that carries only `content` (takes ownership) for the hparams plugin, with its empty
 * tensor. */
static int add_session(struct pl_tensorboard *events,
                       const char *tag,
                       unsigned field,
                       struct proto *content,
                       struct pl_error *err)
{
    struct proto data = {0}, plugin = {0}, metadata = {0}, shape = {0}, tensor = {0}, value = {0};

    put_message(&data, field, content);
    put_text(&plugin, PLUGIN_NAME, "hparams");
    put_message(&plugin, PLUGIN_CONTENT, &data);
    put_message(&metadata, METADATA_PLUGIN, &plugin);
    put_bytes(&shape, SHAPE_DIM, "", 0); /* one dimension of size 0 */
    put_int(&tensor, TENSOR_DTYPE, DTYPE_FLOAT);
    put_message(&tensor, TENSOR_SHAPE, &shape);
    put_text(&value, VALUE_TAG, tag);
    put_message(&value, VALUE_TENSOR, &tensor);
    put_message(&value, VALUE_METADATA, &metadata);
    return add_summary(events, 0, &value, err);
}

int pl_tensorboard_session_start(struct pl_tensorboard *events,
                                 const char *group,
                                 const struct pl_event_hparam *list,
                                 size_t n,
                                 struct pl_error *err)
{
    struct proto start = {0};

    for (size_t i = 0; i < n; i++) {
        struct proto entry = {0}, value = {0};

        if (list[i].text)
            put_text(&value, STRUCT_TEXT, list[i].text);
        else
            put_double(&value, STRUCT_NUMBER, list[i].number);
        put_text(&entry, MAP_KEY, list[i].name);
        put_message(&entry, MAP_VALUE, &value);
        put_message(&start, START_HPARAMS, &entry);
    }
    if (group)
        put_text(&start, START_GROUP, group);
    put_double(&start, START_TIME, pl_wall_s());
    return add_session(events, "_hparams_/session_start_info", HPARAMS_START, &start, err);
}

int pl_tensorboard_session_end(struct pl_tensorboard *events, bool success, struct pl_error *err)
{
    struct proto end = {0};
    int r;

    put_int(&end, END_STATUS, success ? STATUS_SUCCESS : STATUS_FAILURE);
    put_double(&end, END_TIME, pl_wall_s());
    r = add_session(events, "_hparams_/session_end_info", HPARAMS_END, &end, err);
    return r < 0 ? r : pl_tensorboard_flush(events, err);
}
