/* SPDX-License-Identifier: MIT */
/* NCCL's implementation of nccl_table.h. */
#include "runtime/engine/cuda/lazy/lazy.h"
#include "runtime/engine/device/nccl_table.h"

#include <cuda_runtime_api.h>
#include <nccl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#if NCCL_VERSION_CODE < NCCL_VERSION(2, 19, 1)
#error "NCCL 2.19.1 or later is needed (ncclMemAlloc, ncclCommRegister)"
#endif

#define END_MS 5000 /* limit for a communicator to finish */

_Static_assert(NCCL_UNIQUE_ID_BYTES == PL_NCCL_ID_BYTES, "the id's size");

/* A block of memory and its NCCL handle. */
struct block {
    struct block *next;
    void *memory, *handle;
};

struct nccl {
    ncclComm_t comm;
    unsigned size, rank;
    cudaStream_t compute, stream;
    cudaEvent_t before, after;
    struct block *blocks;
    bool aborted;
};

static int bad_nccl(const struct nccl *n, const char *call, ncclResult_t result, char *text)
{
    const char *more = n && n->comm ? ncclGetLastError(n->comm) : "";

    if (result == ncclSuccess || result == ncclInProgress)
        return 0;
    snprintf(text, PL_NCCL_TEXT, "%s: %s%s%.80s", call, ncclGetErrorString(result),
             more && *more ? ": " : "", more ? more : "");
    return result == ncclRemoteError ? PL_NCCL_REMOTE : -1;
}

static int bad_cuda(const char *call, cudaError_t error, char *text)
{
    if (error == cudaSuccess)
        return 0;
    (void)cudaGetLastError(); /* the error is returned here and must not be taken for a kernel's */
    snprintf(text, PL_NCCL_TEXT, "%s: %s", call, cudaGetErrorString(error));
    return -1;
}

static int there(char *text, size_t size)
{
    struct pl_error err = {0};
    int r = pl_lazy_nccl(&err);

    if (r < 0)
        snprintf(text, size, "%s", pl_error_text(&err));
    return r < 0 ? -1 : 0;
}

static int get_versions(int *ret_header, int *ret_library, char *text)
{
    *ret_header = NCCL_VERSION_CODE;
    return bad_nccl(NULL, "ncclGetVersion", ncclGetVersion(ret_library), text);
}

static int get_unique_id(void *ret_id, char *text)
{
    return bad_nccl(NULL, "ncclGetUniqueId", ncclGetUniqueId(ret_id), text);
}

static void free_all(struct nccl *n)
{
    if (n->before)
        cudaEventDestroy(n->before);
    if (n->after)
        cudaEventDestroy(n->after);
    if (n->stream)
        cudaStreamDestroy(n->stream);
    free(n);
}

/* A stream with a higher priority than the compute stream: a bucket's few blocks must not wait for
 * all of backward's. */
static int make(void *compute, struct nccl **ret, char *text)
{
    struct nccl *n = calloc(1, sizeof(*n));
    int lowest = 0, highest = 0, r;

    if (!n) {
        snprintf(text, PL_NCCL_TEXT, "out of memory");
        return -1;
    }
    n->compute = compute;
    r = bad_cuda("cudaDeviceGetStreamPriorityRange",
                 cudaDeviceGetStreamPriorityRange(&lowest, &highest), text);
    if (r == 0)
        r = bad_cuda("cudaStreamCreateWithPriority",
                     cudaStreamCreateWithPriority(&n->stream, cudaStreamNonBlocking, highest),
                     text);
    if (r == 0)
        r = bad_cuda("cudaEventCreateWithFlags",
                     cudaEventCreateWithFlags(&n->before, cudaEventDisableTiming), text);
    if (r == 0)
        r = bad_cuda("cudaEventCreateWithFlags",
                     cudaEventCreateWithFlags(&n->after, cudaEventDisableTiming), text);
    if (r < 0)
        free_all(n);
    else
        *ret = n;
    return r;
}

static int
start_init(const void *id, unsigned size, unsigned rank, void *compute, void **ret, char *text)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    struct nccl *n = NULL;
    int r = make(compute, &n, text);

    if (r < 0)
        return r;
    config.blocking = 0;
    n->size = size;
    n->rank = rank;
    r = bad_nccl(
        NULL, "ncclCommInitRankConfig",
        ncclCommInitRankConfig(&n->comm, (int)size, *(const ncclUniqueId *)id, (int)rank, &config),
        text);
    if (r < 0)
        free_all(n);
    else
        *ret = n;
    return r;
}

static int start_split(void *comm, int color, int key, void **ret, char *text)
{
    struct nccl *from = comm, *n = NULL;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    int r = color < 0 ? 0 : make(from->compute, &n, text);
    ncclComm_t none = NULL;

    if (r < 0)
        return r;
    config.blocking = 0;
    r = bad_nccl(from, "ncclCommSplit",
                 ncclCommSplit(from->comm, color < 0 ? NCCL_SPLIT_NOCOLOR : color, key,
                               n ? &n->comm : &none, &config),
                 text);
    if (r < 0 && n)
        free_all(n);
    else if (r == 0)
        *ret = n;
    return r;
}

static int get_state(void *comm, int *ret_done, char *text)
{
    struct nccl *n = comm;
    ncclResult_t state = ncclSuccess;
    int r;

    /* A split's communicator is created asynchronously. */
    if (!n->comm) {
        *ret_done = 0;
        return 0;
    }
    r = bad_nccl(n, "ncclCommGetAsyncError", ncclCommGetAsyncError(n->comm, &state), text);
    if (r == 0)
        r = bad_nccl(n, "NCCL", state, text);
    if (r == 0)
        *ret_done = state == ncclSuccess;
    return r;
}

static int get_finished(void *comm, int *ret_done, char *text)
{
    struct nccl *n = comm;
    cudaError_t error;
    int r = get_state(comm, ret_done, text);

    if (r < 0 || !*ret_done)
        return r;
    error = cudaStreamQuery(n->stream);
    *ret_done = error == cudaSuccess;
    if (error != cudaErrorNotReady)
        return bad_cuda("cudaStreamQuery", error, text);
    (void)cudaGetLastError();
    return 0;
}

/* Makes later work on our stream wait for the compute stream's earlier work. */
static int follow(struct nccl *n, char *text)
{
    if (bad_cuda("cudaEventRecord", cudaEventRecord(n->before, n->compute), text) < 0)
        return -1;
    return bad_cuda("cudaStreamWaitEvent", cudaStreamWaitEvent(n->stream, n->before, 0), text);
}

static int mark(void *comm, char *text)
{
    struct nccl *n = comm;

    return bad_cuda("cudaEventRecord", cudaEventRecord(n->after, n->stream), text);
}

static int join(void *comm, char *text)
{
    struct nccl *n = comm;

    return bad_cuda("cudaStreamWaitEvent", cudaStreamWaitEvent(n->compute, n->after, 0), text);
}

/* A double as bf16 or f16, rounded to nearest even; scales are normal numbers. */
static unsigned short half_of(double value, enum pl_nccl_type type)
{
    union {
        float f;
        unsigned bits;
    } u = {.f = (float)value};
    unsigned sign = u.bits >> 16 & 0x8000, rest = u.bits & 0x7fffffff;

    if (type == PL_NCCL_BF16)
        return (unsigned short)((u.bits + 0x7fff + (u.bits >> 16 & 1)) >> 16);
    if (rest >= 0x47800000) /* 65536 and above */
        return (unsigned short)(sign | 0x7c00);
    if (rest < 0x38800000) { /* below 2^-14: a multiple of 2^-24 */
        union {
            float f;
            unsigned bits;
        } small = {.bits = rest};

        small.f += 0.5f; /* the last bit of a float in [0.5, 1) is 2^-24 */
        return (unsigned short)(sign | (small.bits - 0x3f000000));
    }
    rest += 0xfff + (rest >> 13 & 1);
    return (unsigned short)(sign | ((rest - 0x38000000) >> 13));
}

static const ncclDataType_t types[] = {ncclFloat32, ncclFloat64, ncclBfloat16, ncclFloat16};

/* *ret is a sum of terms that are multiplied by scale first, until free_op(). */
static int
make_op(struct nccl *n, enum pl_nccl_type type, double scale, ncclRedOp_t *ret, char *text)
{
    float f32 = (float)scale;
    unsigned short half = half_of(scale, type);
    void *scalar = type == PL_NCCL_F64   ? (void *)&scale
                   : type == PL_NCCL_F32 ? (void *)&f32
                                         : (void *)&half;

    *ret = ncclSum;
    if (scale == 1)
        return 0;
    return bad_nccl(
        n, "ncclRedOpCreatePreMulSum",
        ncclRedOpCreatePreMulSum(ret, scalar, types[type], ncclScalarHostImmediate, n->comm), text);
}

/* A collective that was started with it keeps what it needs. */
static void free_op(struct nccl *n, ncclRedOp_t op)
{
    if (op != ncclSum)
        ncclRedOpDestroy(op, n->comm);
}

static int start_allreduce(
    void *comm, void *buf, size_t count, enum pl_nccl_type type, double scale, char *text)
{
    struct nccl *n = comm;
    ncclRedOp_t op = ncclSum;
    int r = follow(n, text);

    if (r == 0)
        r = make_op(n, type, scale, &op, text);
    if (r == 0)
        r = bad_nccl(n, "ncclAllReduce",
                     ncclAllReduce(buf, buf, count, types[type], op, n->comm, n->stream), text);
    free_op(n, op);
    return r;
}

/* Parts differ in size: one reduction per part, as one operation. */
static int start_reduce_scatter(
    void *comm, void *buf, const size_t *offset, enum pl_nccl_type type, double scale, char *text)
{
    static const size_t sizes[] = {4, 8, 2, 2};
    struct nccl *n = comm;
    ncclRedOp_t op = ncclSum;
    int r = follow(n, text);

    if (r == 0)
        r = make_op(n, type, scale, &op, text);
    if (r == 0)
        r = bad_nccl(n, "ncclGroupStart", ncclGroupStart(), text);
    if (r < 0) {
        free_op(n, op);
        return r;
    }
    for (unsigned i = 0; r == 0 && i < n->size; i++) {
        char *part = (char *)buf + offset[i] * sizes[type];

        if (offset[i + 1] > offset[i])
            r = bad_nccl(n, "ncclReduce",
                         ncclReduce(part, part, offset[i + 1] - offset[i], types[type], op, (int)i,
                                    n->comm, n->stream),
                         text);
    }
    if (r < 0)
        ncclGroupEnd();
    else
        r = bad_nccl(n, "ncclGroupEnd", ncclGroupEnd(), text);
    free_op(n, op);
    return r;
}

static int start_broadcast(void *comm, void *buf, size_t bytes, char *text)
{
    struct nccl *n = comm;

    if (follow(n, text) < 0)
        return -1;
    return bad_nccl(n, "ncclBroadcast",
                    ncclBroadcast(buf, buf, bytes, ncclInt8, 0, n->comm, n->stream), text);
}

/* Parts differ in size: one broadcast per part, as one operation. */
static int start_allgather(void *comm, void *buf, const size_t *offset, char *text)
{
    struct nccl *n = comm;
    int r = follow(n, text);

    if (r == 0)
        r = bad_nccl(n, "ncclGroupStart", ncclGroupStart(), text);
    if (r < 0)
        return r;
    for (unsigned i = 0; r == 0 && i < n->size; i++) {
        char *part = (char *)buf + offset[i];

        if (offset[i + 1] > offset[i])
            r = bad_nccl(n, "ncclBroadcast",
                         ncclBroadcast(part, part, offset[i + 1] - offset[i], ncclInt8, (int)i,
                                       n->comm, n->stream),
                         text);
    }
    if (r < 0)
        ncclGroupEnd();
    else
        r = bad_nccl(n, "ncclGroupEnd", ncclGroupEnd(), text);
    return r;
}

static int alloc(void *comm, size_t bytes, void **ret, char *text)
{
    struct nccl *n = comm;
    struct block *b = calloc(1, sizeof(*b));
    int r = 0;

    if (!b) {
        snprintf(text, PL_NCCL_TEXT, "out of memory");
        return -1;
    }
    r = bad_nccl(n, "ncclMemAlloc", ncclMemAlloc(&b->memory, bytes), text);
    if (r == 0)
        r = bad_cuda("cudaMemsetAsync", cudaMemsetAsync(b->memory, 0, bytes, n->compute), text);
    if (r == 0)
        r = bad_nccl(n, "ncclCommRegister", ncclCommRegister(n->comm, b->memory, bytes, &b->handle),
                     text);
    if (r < 0) {
        if (b->memory)
            ncclMemFree(b->memory);
        free(b);
        return r;
    }
    b->next = n->blocks;
    n->blocks = b;
    *ret = b->memory;
    return 0;
}

static void abort_comm(void *comm)
{
    struct nccl *n = comm;

    if (n->comm && !n->aborted)
        ncclCommAbort(n->comm);
    n->aborted = true;
}

/* A non-blocking communicator is destroyed in two steps: it is asked to finish, and is destroyed
 * when it has. One that does not is aborted, so that the process can end. */
static void end_comm(struct nccl *n)
{
    const struct timespec pause = {.tv_nsec = 1000000};
    ncclResult_t state = ncclSuccess;

    if (ncclCommGetAsyncError(n->comm, &state) == ncclSuccess && state == ncclSuccess)
        state = ncclCommFinalize(n->comm);
    else
        state = ncclInternalError; /* it never connected, or has failed */
    for (unsigned ms = 0; state == ncclSuccess || state == ncclInProgress; ms++) {
        if (ncclCommGetAsyncError(n->comm, &state) != ncclSuccess || state == ncclSuccess ||
            ms == END_MS)
            break;
        nanosleep(&pause, NULL);
    }
    if (state == ncclSuccess)
        ncclCommDestroy(n->comm);
    else
        ncclCommAbort(n->comm);
}

static void destroy(void *comm)
{
    struct nccl *n = comm;
    struct block *next;

    if (!n)
        return;
    for (struct block *b = n->blocks; b; b = next) {
        next = b->next;
        if (!n->aborted && b->handle)
            ncclCommDeregister(n->comm, b->handle);
        ncclMemFree(b->memory);
        free(b);
    }
    if (n->comm && !n->aborted)
        end_comm(n);
    free_all(n);
}

__attribute__((visibility("default"))) extern const struct pl_nccl_table pl_nccl_table;

const struct pl_nccl_table pl_nccl_table = {
    .version = PL_NCCL_TABLE_VERSION,
    .there = there,
    .versions = get_versions,
    .unique_id = get_unique_id,
    .init = start_init,
    .split = start_split,
    .state = get_state,
    .finished = get_finished,
    .mark = mark,
    .join = join,
    .allreduce = start_allreduce,
    .reduce_scatter = start_reduce_scatter,
    .broadcast = start_broadcast,
    .allgather = start_allgather,
    .alloc = alloc,
    .abort = abort_comm,
    .destroy = destroy,
};
