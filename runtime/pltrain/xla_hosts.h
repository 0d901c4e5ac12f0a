/* SPDX-License-Identifier: MIT */
/* Opens the XLA devices of a rank. With several ranks, one on each host, their plugins talk by a
 * store that rank 0 serves (kv_store.h), and their devices run training programs together. */
#ifndef PL_RUNTIME_PLTRAIN_XLA_HOSTS_H
#define PL_RUNTIME_PLTRAIN_XLA_HOSTS_H

#include "runtime/engine/xla/pjrt_table.h"
#include "runtime/pltrain/pltrain_options.h"

struct pl_comm;
struct pl_kv_store;

/* Zeroed memory may be closed. */
struct pl_xla_hosts {
    struct pl_pjrt_hosts table;
    struct pl_kv_store *store; /* NULL: this is the only host */
};

/* Sets options->xla. Tells the other ranks of a failure. Collective over comm. `hosts` must stay
 * where it is. */
int pl_xla_hosts_open(struct pl_xla_hosts *hosts,
                      const struct pl_pltrain *p,
                      struct pl_comm *comm,
                      struct pl_train_options *options,
                      struct pl_error *err);
void pl_xla_hosts_close(struct pl_xla_hosts *hosts, struct pl_train_options *options);

#endif
