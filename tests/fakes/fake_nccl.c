/* SPDX-License-Identifier: MIT */
#include "tests/fakes/fake_nccl.h"
#include "runtime/engine/cuda/lazy/lazy.h"

#include <cuda_runtime_api.h>
#include <nccl.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define COMMS 16
#define MEMBERS 8
#define SLOT_BYTES ((size_t)1 << 16)

struct fake_nccl fake_nccl;

/* The shared memory of one communicator; slots hold a member's part of the collective in progress.
 */
struct meeting {
    atomic_int taken, joined, left, members;
    atomic_int arrived[MEMBERS], through[MEMBERS]; /* collectives so far */
    int color[MEMBERS], key[MEMBERS], child[MEMBERS], child_rank[MEMBERS], child_size[MEMBERS];
    char slot[MEMBERS][SLOT_BYTES];
};

enum kind { SUM, SCATTER, COPY };

/* One collective at a time: the tests wait for the stream between large ones. */
struct ncclComm {
    struct meeting *m;
    int rank, size, seq;
    bool up, pending, split_pending;
    enum kind kind;
    char *buf;
    size_t count, offset[MEMBERS + 1];
    ncclDataType_t type;
    double scale;
    ncclComm_t *child;
    int group, finishing;
};

static struct meeting *meetings;
static struct ncclComm *current; /* its collective is what the one stream has */
static double op_scale[8];
static int n_ops, grouped;

void fake_nccl_share(void)
{
    meetings = mmap(NULL, COMMS * sizeof(*meetings), PROT_READ | PROT_WRITE,
                    MAP_SHARED | MAP_ANONYMOUS, -1, 0);
}

static size_t size_of(ncclDataType_t type)
{
    return type == ncclFloat64 ? 8 : type == ncclFloat32 ? 4 : type == ncclBfloat16 ? 2 : 1;
}

static double get(const char *p, ncclDataType_t type)
{
    unsigned short half;
    unsigned bits;
    float f;
    double d;

    if (type == ncclFloat64) {
        memcpy(&d, p, 8);
        return d;
    }
    if (type == ncclBfloat16) {
        memcpy(&half, p, 2);
        bits = (unsigned)half << 16;
        memcpy(&f, &bits, 4);
        return f;
    }
    memcpy(&f, p, 4);
    return f;
}

static void put(char *p, ncclDataType_t type, double d)
{
    float f = (float)d;
    unsigned bits;
    unsigned short half;

    memcpy(&bits, &f, 4);
    half = (unsigned short)(bits >> 16);
    if (type == ncclFloat64)
        memcpy(p, &d, 8);
    else if (type == ncclBfloat16)
        memcpy(p, &half, 2);
    else
        memcpy(p, &f, 4);
}

/* ---- progress ---- */

static bool all_at(const atomic_int *counters, int size, int value)
{
    for (int i = 0; i < size; i++)
        if (atomic_load(&counters[i]) < value)
            return false;
    return true;
}

/* Progresses the collective; true when it is complete. */
static bool progress(struct ncclComm *c)
{
    size_t width;

    if (!c || !c->pending)
        return true;
    if (fake_nccl.hang_start)
        return false;
    if (atomic_load(&c->m->arrived[c->rank]) < c->seq) {
        if (!all_at(c->m->through, c->size, c->seq - 1))
            return false; /* another member still reads the slots of the last one */
        if (c->kind != COPY)
            memcpy(c->m->slot[c->rank], c->buf, c->count * size_of(c->type));
        else
            memcpy(c->m->slot[c->rank], c->buf + c->offset[c->rank],
                   c->offset[c->rank + 1] - c->offset[c->rank]);
        atomic_store(&c->m->arrived[c->rank], c->seq);
    }
    if (!all_at(c->m->arrived, c->size, c->seq))
        return false;
    width = size_of(c->type);
    for (size_t i = 0; c->kind == SUM && i < c->count; i++) {
        double sum = 0;

        for (int r = 0; r < c->size; r++)
            sum += c->scale * get(c->m->slot[r] + i * width, c->type);
        put(c->buf + i * width, c->type, sum);
    }
    for (size_t i = 0; c->kind == SCATTER && i < c->count; i++) {
        double sum = 0;

        for (int r = 0; r < c->size; r++)
            sum += c->scale * get(c->m->slot[r] + i * width, c->type);
        if (i * width < c->offset[c->rank] || i * width >= c->offset[c->rank + 1])
            sum = -1; /* not this member's part */
        put(c->buf + i * width, c->type, sum);
    }
    for (int r = 0; c->kind == COPY && r < c->size; r++)
        memcpy(c->buf + c->offset[r], c->m->slot[r], c->offset[r + 1] - c->offset[r]);
    atomic_store(&c->m->through[c->rank], c->seq);
    c->pending = false;
    return true;
}

/* The members of a color by key, then rank. */
static bool split_done(struct ncclComm *c)
{
    struct meeting *m = c->m;
    int rank = 0, size = 0, first = -1;

    if (!all_at(m->arrived, c->size, c->seq))
        return false;
    for (int i = 0; i < c->size; i++) {
        if (m->color[i] != m->color[c->rank])
            continue;
        if (first < 0)
            first = i;
        size++;
        rank += m->key[i] < m->key[c->rank] || (m->key[i] == m->key[c->rank] && i < c->rank);
    }
    if (m->color[c->rank] != NCCL_SPLIT_NOCOLOR) {
        struct ncclComm *child = calloc(1, sizeof(*child));

        child->m = &meetings[1 + m->color[c->rank]];
        child->rank = rank;
        child->size = size;
        atomic_fetch_add(&child->m->joined, 1);
        *c->child = child;
    }
    atomic_store(&m->through[c->rank], c->seq);
    c->split_pending = false;
    return true;
}

/* ---- NCCL ---- */

ncclResult_t ncclGetVersion(int *version)
{
    *version = fake_nccl.library_version ? fake_nccl.library_version : NCCL_VERSION_CODE;
    return ncclSuccess;
}

const char *ncclGetErrorString(ncclResult_t result)
{
    return result == ncclRemoteError          ? "remote process exited or there was a network error"
           : result == ncclUnhandledCudaError ? "unhandled cuda error"
                                              : "internal error";
}

const char *ncclGetLastError(ncclComm_t comm)
{
    return "";
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
    memset(id, 7, sizeof(*id));
    return ncclSuccess;
}

ncclResult_t
ncclCommInitRankConfig(ncclComm_t *comm, int n, ncclUniqueId id, int rank, ncclConfig_t *config)
{
    struct ncclComm *c = calloc(1, sizeof(*c));

    if (fake_nccl.init_error || config->blocking != 0 || id.internal[5] != 7) {
        free(c);
        return ncclUnhandledCudaError;
    }
    c->m = &meetings[0];
    c->rank = rank;
    c->size = n;
    atomic_fetch_add(&c->m->joined, 1);
    *comm = c;
    return ncclInProgress;
}

ncclResult_t
ncclCommSplit(ncclComm_t c, int color, int key, ncclComm_t *child, ncclConfig_t *config)
{
    c->seq++;
    c->m->color[c->rank] = color;
    c->m->key[c->rank] = key;
    c->child = child;
    c->split_pending = true;
    atomic_store(&c->m->arrived[c->rank], c->seq);
    return ncclInProgress;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t c, ncclResult_t *state)
{
    *state = ncclSuccess;
    if (fake_nccl.async_error)
        *state = (ncclResult_t)fake_nccl.async_error;
    else if (!c->up && (fake_nccl.hang_init || atomic_load(&c->m->joined) < c->size))
        *state = ncclInProgress;
    else if ((c->pending && fake_nccl.hang_start) || (c->split_pending && !split_done(c)))
        *state = ncclInProgress;
    else
        c->up = true;
    if (c->finishing && *state == ncclSuccess && (fake_nccl.hang_end || --c->finishing))
        *state = ncclInProgress;
    return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t c)
{
    fake_nccl.aborted++;
    if (current == c)
        current = NULL;
    free(c);
    return ncclSuccess;
}

int pl_lazy_nccl(struct pl_error *err)
{
    return fake_nccl.missing ? pl_error_set(err, -ENOENT, "no NCCL") : 0;
}

/* It takes some questions until it has finished. */
ncclResult_t ncclCommFinalize(ncclComm_t c)
{
    c->finishing = 3;
    fake_nccl.finalized++;
    return ncclInProgress;
}

ncclResult_t ncclCommDestroy(ncclComm_t c)
{
    if (!fake_nccl.finalized || c->finishing)
        abort(); /* undefined for a communicator that does not block */

    fake_nccl.destroyed++;
    if (current == c)
        current = NULL;
    free(c);
    return ncclSuccess;
}

ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t *op,
                                      void *scalar,
                                      ncclDataType_t type,
                                      ncclScalarResidence_t residence,
                                      ncclComm_t comm)
{
    n_ops = (n_ops + 1) % 8;
    op_scale[n_ops] = get(scalar, type);
    *op = (ncclRedOp_t)(ncclNumOps + n_ops);
    return ncclSuccess;
}

ncclResult_t ncclRedOpDestroy(ncclRedOp_t op, ncclComm_t comm)
{
    return ncclSuccess;
}

static void begin(ncclComm_t c, enum kind kind, void *buf)
{
    while (!progress(current)) /* the stream's order */
        ;
    c->seq++;
    c->kind = kind;
    c->buf = buf;
    c->pending = true;
    current = c;
}

ncclResult_t ncclAllReduce(const void *from,
                           void *buf,
                           size_t count,
                           ncclDataType_t type,
                           ncclRedOp_t op,
                           ncclComm_t c,
                           cudaStream_t stream)
{
    begin(c, SUM, buf);
    c->count = count;
    c->type = type;
    c->scale = op == ncclSum ? 1 : op_scale[(int)op - (int)ncclNumOps];
    progress(c);
    return ncclSuccess;
}

/* Always of a group (a reduce-scatter of parts); the parts come one by one. */
ncclResult_t ncclReduce(const void *from,
                        void *buf,
                        size_t count,
                        ncclDataType_t type,
                        ncclRedOp_t op,
                        int root,
                        ncclComm_t c,
                        cudaStream_t stream)
{
    size_t at;

    if (!grouped)
        return ncclInvalidUsage;
    if (c->group++ == 0) {
        begin(c, SCATTER, buf);
        memset(c->offset, 0, sizeof(c->offset));
        c->type = type;
        c->scale = op == ncclSum ? 1 : op_scale[(int)op - (int)ncclNumOps];
    }
    at = (size_t)((char *)buf - c->buf);
    c->count = at / size_of(type) + count;
    for (int i = root; i < c->size; i++)
        c->offset[i + 1] = c->count * size_of(type);
    c->offset[root] = at;
    return ncclSuccess;
}

/* Of a group (an allgather of parts) the parts come one by one; alone it is rank 0's. */
ncclResult_t ncclBroadcast(const void *from,
                           void *buf,
                           size_t bytes,
                           ncclDataType_t type,
                           int root,
                           ncclComm_t c,
                           cudaStream_t stream)
{
    if (!grouped || c->group == 0) {
        begin(c, COPY, buf);
        for (int i = 0; i <= c->size; i++)
            c->offset[i] = i > root ? bytes : 0;
    } else {
        for (int i = root; i <= c->size; i++)
            c->offset[i] = (size_t)((char *)buf - c->buf) + (i > root ? bytes : 0);
    }
    c->group += grouped;
    if (!grouped)
        progress(c);
    return ncclSuccess;
}

ncclResult_t ncclGroupStart(void)
{
    grouped = 1;
    return ncclSuccess;
}

ncclResult_t ncclGroupEnd(void)
{
    grouped = 0;
    if (current)
        current->group = 0;
    progress(current);
    return ncclSuccess;
}

ncclResult_t ncclMemAlloc(void **ret, size_t size)
{
    *ret = malloc(size);
    return ncclSuccess;
}

ncclResult_t ncclMemFree(void *p)
{
    fake_nccl.freed++;
    free(p);
    return ncclSuccess;
}

ncclResult_t ncclCommRegister(const ncclComm_t comm, void *buf, size_t size, void **handle)
{
    fake_nccl.registered++;
    *handle = buf;
    return ncclSuccess;
}

ncclResult_t ncclCommDeregister(const ncclComm_t comm, void *handle)
{
    fake_nccl.registered--;
    return ncclSuccess;
}

/* ---- CUDA ---- */

cudaError_t cudaGetLastError(void)
{
    return cudaSuccess;
}

const char *cudaGetErrorString(cudaError_t error)
{
    return "fake";
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
    *least = 0;
    *greatest = -5;
    return cudaSuccess;
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *ret, unsigned flags, int priority)
{
    *ret = (cudaStream_t)malloc(1);
    return priority < 0 ? cudaSuccess : cudaErrorInvalidValue;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    free(stream);
    return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *ret, unsigned flags)
{
    *ret = (cudaEvent_t)malloc(1);
    return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    free(event);
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags)
{
    return cudaSuccess;
}

cudaError_t cudaStreamQuery(cudaStream_t stream)
{
    return progress(current) ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaMemsetAsync(void *p, int value, size_t n, cudaStream_t stream)
{
    memset(p, value, n);
    return cudaSuccess;
}
