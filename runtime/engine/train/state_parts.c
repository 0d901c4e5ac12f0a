/* SPDX-License-Identifier: MIT */
#include "runtime/engine/train/state_parts.h"
#include "common/base/fs.h"
#include "common/base/log.h"
#include "runtime/engine/checkpoint/checkpoint_parts.h"
#include "runtime/engine/params/param_parts.h"

#include <fcntl.h>
#include <limits.h>
#include <string.h>
#include <unistd.h>

#define PIECE_BYTES ((size_t)1 << 20) /* of a device's memory at a time */

/* The message of rank 0 to the others. */
struct announcement {
    char path[PATH_MAX], temp[PATH_MAX];
    uint64_t n;
};

static int
share_places(struct pl_state_parts *parts, const char *path, const char *temp, struct pl_error *err)
{
    _cleanup_free_ struct announcement *news = calloc(1, sizeof(*news));
    int r = news ? 0 : pl_error_nomem(err);

    if (r == 0 && temp) {
        if (strlen(temp) >= sizeof(news->temp)) /* it is longer than path */
            return pl_error_set(err, -ENAMETOOLONG, "the path '%s' is too long", temp);
        memcpy(news->path, path, strlen(path));
        memcpy(news->temp, temp, strlen(temp));
        news->n = parts->n;
    }
    if (r == 0)
        r = pl_comm_broadcast(parts->comm, news, sizeof(*news), err);
    if (r == 0 && !(parts->path = strdup(news->path)))
        r = pl_error_nomem(err);
    if (r == 0 && !temp) {
        parts->n = news->n;
        parts->places = calloc(parts->n + 1, sizeof(*parts->places));
        r = parts->places ? 0 : pl_error_nomem(err);
    }
    if (r == 0)
        r = pl_comm_broadcast(parts->comm, parts->places, parts->n * sizeof(*parts->places), err);
    if (r == 0)
        parts->fd = open(news->temp, O_WRONLY | O_CLOEXEC | O_NOFOLLOW | O_NOCTTY);
    return r;
}

int pl_state_parts_open(struct pl_state_parts *parts,
                        struct pl_comm *comm,
                        const char *path,
                        const char *temp,
                        uint64_t *places,
                        size_t n,
                        struct pl_error *err)
{
    bool all;
    int r;

    *parts = (struct pl_state_parts){.comm = comm, .fd = -EBADF, .places = places, .n = n};
    r = share_places(parts, path, temp, err);
    if (r == 0)
        r = pl_comm_agree(comm, parts->fd >= 0, &all, err);
    if (r < 0)
        return r;
    parts->collects = !all;
    if (parts->collects && comm->rank == 0 && parts->fd < 0)
        return pl_error_set(err, -EIO, "cannot write checkpoint '%s'", parts->path);
    if (parts->collects && comm->rank == 0)
        pl_log_warn("train",
                    "the nodes do not share the file system of '%s': rank 0 writes it alone, and a "
                    "run that resumes needs it on each node",
                    parts->path);
    return 0;
}

static int
put(struct pl_state_parts *parts, uint64_t place, const void *data, size_t n, struct pl_error *err)
{
    int r = pl_checkpoint_put_part(parts->fd, place, data, n);

    return r < 0 ? pl_error_errno(err, r, "cannot write checkpoint '%s'", parts->path) : 0;
}

static int put_own(struct pl_state_parts *parts,
                   struct pl_device *dev,
                   uint64_t place,
                   const char *own,
                   size_t bytes,
                   struct pl_error *err)
{
    int r = 0;

    for (size_t at = 0, step; at < bytes && r == 0; at += step) {
        struct pl_device_map map;

        step = PL_MIN(bytes - at, PIECE_BYTES);
        r = pl_device_map(dev, (void *)(uintptr_t)(own + at), step, PL_DEVICE_READ, &map, err);
        if (r < 0)
            return r;
        r = put(parts, place + at, map.data, step, err);
        pl_device_unmap(&map);
    }
    return r;
}

/* To rank 0, which writes it. */
static int collect(struct pl_state_parts *parts,
                   const struct pl_params *params,
                   const struct pl_param *param,
                   uint64_t place,
                   const void *own,
                   const struct pl_shard_span *span,
                   struct pl_error *err)
{
    size_t bytes = param->whole->count * pl_real_size(params->real);
    bool writes = parts->comm->rank == 0;
    _cleanup_free_ char *whole = writes ? malloc(bytes) : NULL;
    int r = whole || !writes
                ? pl_param_part_gather(params, span ? params->shards : NULL, param, own, whole, err)
                : pl_error_set(err, -ENOMEM, "out of memory for a checkpoint");

    return r == 0 && writes ? put(parts, place, whole, bytes, err) : r;
}

int pl_state_parts_put(struct pl_state_parts *parts,
                       const struct pl_params *params,
                       const struct pl_param *param,
                       const void *own,
                       const struct pl_shard_span *span,
                       struct pl_error *err)
{
    size_t size = pl_real_size(params->real);
    uint64_t place;

    if (parts->next == parts->n)
        return pl_error_set(err, -EINVAL, "the ranks' states have different tensors");
    place = parts->places[parts->next++];
    if (parts->collects || pl_param_is_split(param))
        return collect(parts, params, param, place, own, span, err);
    if (params->peers && params->peers->rank) /* another rank has the same shard */
        return 0;
    return put_own(parts, params->dev, place + span->from * size, own, span->count * size, err);
}

int pl_state_parts_end(struct pl_state_parts *parts, struct pl_error *err)
{
    int r = 0;

    if (parts->next != parts->n)
        return pl_error_set(err, -EINVAL, "the ranks' states have different tensors");
    /* Rank 0 reads and syncs the file; another node's part must be on its way to the disk then. */
    if (!parts->collects && parts->comm->world.node != 0)
        r = pl_fd_sync(parts->fd);
    /* A network file system writes it now, and reports to no later caller that it could not. */
    if (r == 0 && parts->fd >= 0)
        r = pl_fd_close(PL_TAKE_FD(parts->fd));
    if (r < 0)
        return pl_error_errno(err, r, "cannot write checkpoint '%s'", parts->path);
    pl_state_parts_close(parts);
    return pl_comm_barrier(parts->comm, err);
}

void pl_state_parts_close(struct pl_state_parts *parts)
{
    if (parts->fd >= 0)
        close(parts->fd);
    free(parts->places);
    free(parts->path);
    parts->fd = -EBADF;
    parts->places = NULL;
    parts->path = NULL;
}
