/* SPDX-License-Identifier: MIT */
#include "runtime/engine/comm/comm_gpu.h"
#include "common/base/env.h"
#include "common/base/log.h"
#include "runtime/engine/comm/comm_nccl.h"
#include "runtime/engine/device/gpu.h"

#include <string.h>

/* A rank's description of its GPU. */
struct gpu_identity {
    char unit[sizeof(((struct pl_device *)0)->unit)];
    char why_not[320]; /* why it cannot use NCCL; "" if it can */
};

/* True if all ranks can use NCCL; else ret_why has the reason, and *ret_lacks is set if something
 * is missing that could be there: in a job, a GPU for each rank. */
static bool decide(const struct pl_comm *comm,
                   const struct gpu_identity *cards,
                   char ret_why[PL_ERROR_TEXT_MAX],
                   bool *ret_lacks)
{
    for (unsigned i = 0; i < comm->size; i++)
        if (cards[i].why_not[0]) {
            *ret_lacks = true;
            snprintf(ret_why, PL_ERROR_TEXT_MAX, "rank %u: %.*s", comm->world_ranks[i],
                     (int)sizeof(cards[i].why_not) - 1, cards[i].why_not);
            return false;
        }
    for (unsigned i = 1; i < comm->size; i++)
        for (unsigned k = 0; k < i; k++)
            if (strcmp(cards[i].unit, cards[k].unit) == 0) {
                *ret_lacks = pl_env(PL_ENV_SLURM_JOB_ID) != NULL;
                snprintf(ret_why, PL_ERROR_TEXT_MAX, "ranks %u and %u share a GPU%s",
                         comm->world_ranks[k], comm->world_ranks[i],
                         *ret_lacks ? " (NCCL needs one for each, and no MIG parts of one)" : "");
                return false;
            }
    return true;
}

int pl_comm_gpu_create(struct pl_comm *comm, struct pl_device *dev, bool must, struct pl_error *err)
{
    _cleanup_free_ struct gpu_identity *cards = calloc(comm->size, sizeof(*cards));
    _cleanup_free_ size_t *offset = calloc(comm->size + 1, sizeof(*offset));
    const struct pl_nccl_table *table = NULL;
    struct pl_error none = {0};
    struct gpu_identity *mine;
    char why[PL_ERROR_TEXT_MAX];
    bool lacks = false;
    int r;

    if (comm->size == 1)
        return 0;
    if (!cards || !offset)
        return pl_error_nomem(err);
    for (unsigned i = 0; i <= comm->size; i++)
        offset[i] = i * sizeof(*cards);
    mine = &cards[comm->rank];
    memcpy(mine->unit, dev->unit, sizeof(mine->unit));
    if (pl_gpu_nccl(&table, &none) < 0)
        snprintf(mine->why_not, sizeof(mine->why_not), "%s", pl_error_text(&none));
    r = pl_comm_allgather(comm, cards, offset, err);
    if (r < 0)
        return r;
    if (decide(comm, cards, why, &lacks)) {
        pl_device_enter(dev);
        return pl_comm_nccl_create(comm, table, dev->ops->stream(dev), PL_NCCL_LIMIT_MS, &comm->gpu,
                                   err);
    }
    if (must)
        return pl_error_set(err, -ENOTSUP, "cannot use NCCL: %s", why);
    if (comm->rank == 0)
        pl_log_write(lacks ? PL_LOG_WARN : PL_LOG_INFO, "train",
                     "gradients go through the host's memory%s: %s",
                     lacks ? ", which is slower" : "", why);
    return 0;
}

void pl_comm_gpu_destroy(struct pl_comm *comm, const char *failed)
{
    if (comm->gpu && failed)
        comm->gpu->ops->abort(comm->gpu, failed);
    pl_comm_destroy(comm->gpu);
    comm->gpu = NULL;
}
