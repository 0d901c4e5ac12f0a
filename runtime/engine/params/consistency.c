/* SPDX-License-Identifier: MIT */
#include "runtime/engine/params/consistency.h"
#include "common/base/buf.h"
#include "runtime/engine/util/xxh64.h"

#include <string.h>

#define VERDICT 512 /* maximum bytes of a rank's text */
#define LINE 160    /* maximum bytes of a declaration in it */

/* Gathers all ranks' `bytes` in *all, in which this rank has filled in its own. */
static int gather(struct pl_comm *comm, void *all, size_t bytes, struct pl_error *err)
{
    _cleanup_free_ size_t *offset = calloc((size_t)comm->size + 1, sizeof(*offset));

    if (!offset)
        return pl_error_nomem(err);
    for (size_t i = 0; i <= comm->size; i++)
        offset[i] = i * bytes;
    return pl_comm_allgather(comm, all, offset, err);
}

/* Each rank passes in `mine` its difference from rank 0 ("" = none). If any rank has one, all
 * return `code` with the first text. */
static int hear(struct pl_comm *comm, const char mine[VERDICT], int code, struct pl_error *err)
{
    _cleanup_free_ char *all = calloc(comm->size, VERDICT);
    unsigned rank = 0;
    int r;

    if (!all)
        return pl_error_nomem(err);
    memcpy(all + (size_t)comm->rank * VERDICT, mine, VERDICT);
    r = gather(comm, all, VERDICT, err);
    while (r == 0 && rank < comm->size && !all[(size_t)rank * VERDICT])
        rank++;
    if (r < 0 || rank == comm->size)
        return r;
    /* Barrier: otherwise the first rank to give up would send an abort with another text. A failure
     * of the barrier itself changes nothing. */
    (void)pl_comm_barrier(comm, NULL);
    return pl_error_set(err, code, "rank %u %.*s", rank, VERDICT - 1, all + (size_t)rank * VERDICT);
}

static int add_line(struct pl_buf *buf, const char *kind, const char *name, const plume_tensor *t)
{
    char text[160];

    return pl_buf_addf(buf, "%s '%s' %s\n", kind, name, pl_tensor_text(t, text, sizeof(text)));
}

/* One line per parameter and per buffer. */
static int describe(const struct pl_params *params, struct pl_buf *ret)
{
    int r = 0;

    for (size_t i = 0; i < params->n && r == 0; i++)
        r = add_line(ret, "parameter", params->list[i]->name, params->list[i]->whole);
    for (size_t i = 0; i < params->n_buffers && r == 0; i++)
        r = add_line(ret, "buffer", params->buffers[i].name, params->buffers[i].tensor);
    return r;
}

/* The lines of both up to the first that differ, which may be the empty end. */
static void
compare(const char *mine, const char *first, const char *verb, const char *hook, char ret[VERDICT])
{
    static const char nothing[] = "nothing more";
    size_t here, there;

    memset(ret, 0, VERDICT);
    if (strcmp(mine, first) == 0)
        return;
    for (;; mine += here + 1, first += there + 1) {
        here = strcspn(mine, "\n");
        there = strcspn(first, "\n");
        if (here != there || memcmp(mine, first, here) != 0)
            break;
    }
    mine = here ? mine : nothing;
    first = there ? first : nothing;
    snprintf(ret, VERDICT, "%s %.*s where rank 0 %s %.*s: %s the same on all ranks", verb,
             (int)PL_MIN(strcspn(mine, "\n"), (size_t)LINE), mine, verb,
             (int)PL_MIN(strcspn(first, "\n"), (size_t)LINE), first, hook);
}

/* Broadcasts rank 0's text. */
static int spread(struct pl_comm *comm, const char *mine, char **ret, struct pl_error *err)
{
    uint64_t len = strlen(mine);
    char *text;
    int r = pl_comm_broadcast(comm, &len, sizeof(len), err);

    if (r < 0)
        return r;
    text = calloc(len + 1, 1);
    if (!text)
        return pl_error_nomem(err);
    if (comm->rank == 0)
        memcpy(text, mine, len);
    r = len ? pl_comm_broadcast(comm, text, len, err) : 0;
    if (r < 0)
        free(text);
    else
        *ret = text;
    return r;
}

static int take_order(struct pl_params *params, struct pl_comm *comm, struct pl_error *err)
{
    _cleanup_free_ uint32_t *index = calloc(params->n + 1, sizeof(*index));
    int r;

    if (!index)
        return pl_error_nomem(err);
    for (size_t i = 0; i < params->n; i++)
        while (params->list[index[i]] != params->order[i])
            index[i]++;
    r = params->n ? pl_comm_broadcast(comm, index, params->n * sizeof(*index), err) : 0;
    for (size_t i = 0; i < params->n && r == 0; i++)
        params->order[i] = params->list[index[i]];
    return r;
}

int pl_agree_on_lines(const char *mine,
                      const char *verb,
                      const char *hook,
                      struct pl_comm *comm,
                      struct pl_error *err)
{
    _cleanup_free_ char *first = NULL;
    char verdict[VERDICT];
    int r = comm->size > 1 ? spread(comm, mine, &first, err) : 0;

    if (r < 0 || comm->size == 1)
        return r;
    compare(mine, first, verb, hook, verdict);
    return hear(comm, verdict, -EINVAL, err);
}

int pl_agree_on_layout(struct pl_params *params, struct pl_comm *comm, struct pl_error *err)
{
    _cleanup_(pl_buf_finish) struct pl_buf mine = {0};
    int r;

    if (comm->size == 1)
        return 0;
    if (describe(params, &mine) < 0)
        return pl_error_nomem(err);
    r = pl_agree_on_lines(pl_buf_str(&mine), "declares", "configure must declare", comm, err);
    return r < 0 ? r : take_order(params, comm, err);
}

/* One checksum per parameter. */
static int sums_of(const struct pl_params *params, uint64_t *ret, struct pl_error *err)
{
    for (size_t i = 0; i < params->n; i++) {
        const plume_tensor *t = params->list[i]->tensor;
        struct pl_device_map map;
        int r;

        if (!pl_param_is_own(params, params->list[i]))
            continue;
        r = pl_device_map(params->dev, t->data, t->count * pl_dtype_size(t->dtype), PL_DEVICE_READ,
                          &map, err);
        if (r < 0)
            return r;
        ret[i] = pl_xxh64(map.data, map.bytes);
        pl_device_unmap(&map);
    }
    return 0;
}

/* The values differ: finds the first difference. */
static int blame(const struct pl_params *params,
                 const char *hash,
                 const char *first_hash,
                 struct pl_comm *comm,
                 struct pl_error *err)
{
    _cleanup_free_ uint64_t *mine = calloc(params->n, sizeof(*mine));
    _cleanup_free_ uint64_t *first = calloc(params->n, sizeof(*first));
    char verdict[VERDICT] = "";
    size_t i = 0;
    int r;

    if (!mine || !first)
        return pl_error_nomem(err);
    r = sums_of(params, mine, err);
    if (r < 0)
        return r;
    memcpy(first, mine, params->n * sizeof(*first));
    r = pl_comm_broadcast(comm, first, params->n * sizeof(*first), err);
    while (r == 0 && i + 1 < params->n && mine[i] == first[i])
        i++;
    if (strcmp(hash, first_hash) != 0)
        snprintf(verdict, sizeof(verdict),
                 "ended with other parameters than rank 0, from '%.160s' on: hash %s, rank 0's is "
                 "%s; a reduction of the module's own must give all ranks the same gradients",
                 params->list[i]->name, hash, first_hash);
    return r < 0 ? r : hear(comm, verdict, -EBADMSG, err);
}

int pl_agree_on_values(const struct pl_params *params,
                       const char hash[PL_PARAMS_HASH],
                       struct pl_comm *comm,
                       struct pl_error *err)
{
    _cleanup_free_ char *all = calloc(comm->size, PL_PARAMS_HASH);
    int r;

    if (comm->size == 1)
        return 0;
    if (!all)
        return pl_error_nomem(err);
    memcpy(all + (size_t)comm->rank * PL_PARAMS_HASH, hash, PL_PARAMS_HASH);
    r = gather(comm, all, PL_PARAMS_HASH, err);
    if (r < 0)
        return r;
    for (size_t i = 1; i < comm->size; i++)
        if (strcmp(all + i * PL_PARAMS_HASH, all) != 0)
            return blame(params, hash, all, comm, err);
    return 0;
}
