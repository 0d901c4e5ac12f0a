/* SPDX-License-Identifier: MIT */
/* Shared by comm_nccl.c, which has the collectives and notices failures, and comm_nccl_create.c. */
#ifndef PL_RUNTIME_ENGINE_COMM_COMM_NCCL_PRIVATE_H
#define PL_RUNTIME_ENGINE_COMM_COMM_NCCL_PRIVATE_H

#include "runtime/engine/comm/comm_nccl.h"
#include "runtime/engine/comm/comm_tcp_private.h"

#include <pthread.h>

struct nccl {
    struct pl_comm base;
    const struct pl_nccl_table *table;
    unsigned limit_ms;
    void *compute;
    unsigned own_rank;    /* world rank, if it is the only member */
    struct pl_tcp *watch; /* NULL with one member */
    pthread_t thread;
    bool has_thread;

    /* The lock protects the fields below, all calls of the table and of watch. */
    pthread_mutex_t lock;
    pthread_cond_t wake;
    bool stop, aborted, closing;
    void *comm;                /* NULL until created */
    void *token;               /* a float on the device, for barriers */
    char broken[PL_NCCL_TEXT]; /* NCCL's first error; "" if none */
    uint64_t name_until_ns;    /* limit for getting a better text */
    uint64_t
        hangup_until_ns; /* while closing: a peer has hung up, which is normal until this time */
    char failed[PL_COMM_TEXT_MAX]; /* the final text, which calls report */
};

extern const struct pl_comm_ops pl_comm_nccl_ops;

/* A call of the table has failed, with -1 or PL_NCCL_REMOTE. Call with the lock held. */
void pl_comm_nccl_note(struct nccl *n, int code, const char *text);

/* The thread that looks for lost ranks; arg: the struct nccl. */
void *pl_comm_nccl_watchdog(void *arg);

/* Takes the lock if the communicator is healthy. If not, waits until the text to report is known.
 * -ECONNRESET. */
int pl_comm_nccl_lock(struct nccl *n, struct pl_error *err);

typedef int pl_comm_nccl_ask_fn(void *comm, int *ret_done, char *text);

/* Polls until done; called without the lock. limit_ms 0: no limit. */
int pl_comm_nccl_ask(struct nccl *n,
                     pl_comm_nccl_ask_fn *ask,
                     unsigned limit_ms,
                     const char *what,
                     struct pl_error *err);

#endif
