/* SPDX-License-Identifier: MIT */
#include "runtime/pltrain/xla_hosts.h"
#include "common/base/log.h"
#include "runtime/engine/comm/kv_store.h"
#include "runtime/engine/xla/xla.h"

static int put_value(
    void *ctx, const char *key, size_t key_len, const char *value, size_t len, struct pl_error *err)
{
    return pl_kv_store_put(ctx, key, key_len, value, len, err);
}

static int get_value(void *ctx,
                     const char *key,
                     size_t key_len,
                     unsigned timeout_ms,
                     char **ret,
                     size_t *ret_len,
                     struct pl_error *err)
{
    return pl_kv_store_get(ctx, key, key_len, timeout_ms, ret, ret_len, err);
}

static int join_hosts(struct pl_xla_hosts *hosts, struct pl_comm *comm, struct pl_error *err)
{
    int r;

    if (comm->world.n_nodes < comm->size)
        return pl_error_set(err, -EINVAL,
                            "there are %u ranks on %u node%s: one rank has all XLA devices of a "
                            "node (--tpu-cores N), so start one on each",
                            comm->size, comm->world.n_nodes, comm->world.n_nodes == 1 ? "" : "s");
    r = pl_kv_store_open(comm, &hosts->store, err);
    hosts->table = (struct pl_pjrt_hosts){.index = comm->rank,
                                          .n = comm->size,
                                          .put = put_value,
                                          .get = get_value,
                                          .ctx = hosts->store};
    return r;
}

int pl_xla_hosts_open(struct pl_xla_hosts *hosts,
                      const struct pl_pltrain *p,
                      struct pl_comm *comm,
                      struct pl_train_options *options,
                      struct pl_error *err)
{
    const struct pl_xla_options xla = {.plugin = p->plugin ? p->plugin : "libtpu.so",
                                       .dump = comm->rank == 0 ? p->dump : NULL,
                                       .cache = !p->no_program_cache,
                                       .devices = p->n_device ? p->device : NULL,
                                       .n = PL_MAX(options->replicas, 1u),
                                       .hosts = comm->size > 1 ? &hosts->table : NULL};
    int r = comm->size > 1 ? join_hosts(hosts, comm, err) : 0;

    if (r == 0)
        r = pl_xla_open(&xla, &options->xla, err);
    if (r == 0) {
        pl_log_debug("train", "steps are programs for an XLA device, platform %s",
                     pl_xla_platform(options->xla));
        return 0;
    }
    if (r == -ECONNRESET) /* rank 0 ends because of another one: by comm it says why */
        (void)pl_comm_barrier(comm, err);
    else if (hosts->store)
        pl_kv_store_fail(hosts->store, pl_error_text(err));
    pl_comm_abort(comm, pl_error_text(err));
    return r;
}

void pl_xla_hosts_close(struct pl_xla_hosts *hosts, struct pl_train_options *options)
{
    pl_xla_close(options->xla);
    options->xla = NULL;
    pl_kv_store_close(hosts->store);
    hosts->store = NULL;
}
