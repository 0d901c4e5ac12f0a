/* SPDX-License-Identifier: MIT */
#include "tests/fakes/fake_cudart.h"
#include "common/base/macros.h"

#include <cuda_runtime_api.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#define STREAMS 16
#define ALLOCS 4096
#define FAKE_DEVICES 8

enum kind { COPY, SET, RECORD, WAIT, CALL };

struct job {
    struct job *next;
    enum kind kind;
    void *to;
    const void *from;
    size_t bytes;
    int value;
    struct CUevent_st *event;
    uint64_t ticket;
    void (*run)(void *ctx);
    void *ctx;
};

struct CUstream_st {
    bool alive;
    int device;
    struct job *first, **end;
    struct CUgraph_st *graph; /* what is captured; NULL: it runs */
    bool invalid;             /* the capture */
};

struct CUevent_st {
    struct CUevent_st *next; /* of all, until the next reset: queues may still name it */
    bool alive;
    int device;
    uint64_t recorded, passed;
};

struct CUgraph_st {
    struct job *first, **end;
};

struct CUgraphExec_st {
    struct job *first;
    struct CUstream_st *in; /* where it was launched last */
};

struct range {
    char *at;
    size_t bytes;
    bool pinned;
    int device;
};

struct fake_cuda fake_cuda;
static struct CUstream_st streams[STREAMS]; /* [0] is the default stream */
static struct CUevent_st *events;
static struct range ranges[ALLOCS];
static uint64_t tickets;
static cudaError_t last;
static int current;
static unsigned long peers[FAKE_DEVICES]; /* bit j of [i]: i may read j's memory */

static cudaError_t give(cudaError_t code)
{
    if (code != cudaSuccess)
        last = code;
    return code;
}

/* The answer that the test wants from this call. */
static cudaError_t wanted(const char *call)
{
    if (!fake_cuda.fails || strcmp(fake_cuda.fails, call) != 0)
        return cudaSuccess;
    if (fake_cuda.after) {
        fake_cuda.after--;
        return cudaSuccess;
    }
    return give((cudaError_t)fake_cuda.code);
}

#define WANTED()                                                                                   \
    do {                                                                                           \
        cudaError_t code_ = wanted(__func__);                                                      \
        if (code_ != cudaSuccess)                                                                  \
            return code_;                                                                          \
    } while (0)

/* Call in functions that are not allowed while a stream is captured: the capture fails. */
static cudaError_t unsafe(void)
{
    for (size_t i = 0; i < STREAMS; i++) {
        if (!streams[i].graph)
            continue;
        streams[i].invalid = true;
        return give(cudaErrorStreamCaptureUnsupported);
    }
    return cudaSuccess;
}

#define UNSAFE()                                                                                   \
    do {                                                                                           \
        cudaError_t code_ = unsafe();                                                              \
        if (code_ != cudaSuccess)                                                                  \
            return code_;                                                                          \
    } while (0)

static struct CUstream_st *stream_of(cudaStream_t stream)
{
    struct CUstream_st *s = stream ? stream : &streams[0];

    if (!s->end)
        s->end = &s->first;
    assert_true(s == &streams[0] || s->alive);
    return s;
}

static void do_job(const struct job *j)
{
    switch (j->kind) {
    case COPY:
        memcpy(j->to, j->from, j->bytes);
        break;
    case SET:
        memset(j->to, j->value, j->bytes);
        break;
    case RECORD:
        j->event->passed = PL_MAX(j->event->passed, j->ticket);
        break;
    case WAIT:
        break;
    case CALL:
        j->run(j->ctx);
        break;
    }
}

static bool step(struct CUstream_st *s)
{
    struct job *j = s->first;

    if (!j || (j->kind == WAIT && j->event->passed < j->ticket))
        return false;
    s->first = j->next;
    if (!s->first)
        s->end = &s->first;
    do_job(j);
    free(j);
    return true;
}

void fake_cuda_advance(unsigned n)
{
    bool any = true;

    while (n && any) {
        any = false;
        for (size_t i = 0; n && i < STREAMS; i++) {
            if (step(&streams[i])) {
                any = true;
                n--;
            }
        }
    }
}

/* Runs this stream to its end, the others only as far as it waits for them. */
static void finish(struct CUstream_st *s)
{
    while (s->first) {
        bool any = step(s);

        for (size_t i = 0; !any && i < STREAMS; i++)
            any = step(&streams[i]);
        assert_true(any); /* it waits for itself */
    }
}

static cudaError_t add(cudaStream_t stream, struct job job)
{
    struct CUstream_st *s = stream_of(stream);
    struct job *j = malloc(sizeof(*j));

    assert_non_null(j);
    *j = job;
    if (s->graph) {
        *s->graph->end = j;
        s->graph->end = &j->next;
        return s->invalid ? give(cudaErrorStreamCaptureInvalidated) : cudaSuccess;
    }
    *s->end = j;
    s->end = &j->next;
    fake_cuda.queued++;
    return cudaSuccess;
}

void fake_cuda_queue(struct CUstream_st *stream, void (*run)(void *ctx), void *ctx)
{
    add(stream, (struct job){.kind = CALL, .run = run, .ctx = ctx});
}

static struct range *range_of(const void *at, size_t bytes)
{
    for (size_t i = 0; i < ALLOCS; i++) {
        struct range *r = &ranges[i];

        if (r->at && (const char *)at >= r->at && (const char *)at + bytes <= r->at + r->bytes)
            return r;
    }
    return NULL;
}

bool fake_cuda_owns(const void *at, size_t bytes)
{
    struct range *r = range_of(at, bytes);

    return r && !r->pinned;
}

static void *new_range(size_t bytes, bool pinned)
{
    for (size_t i = 0; i < ALLOCS; i++) {
        if (ranges[i].at)
            continue;
        ranges[i] =
            (struct range){aligned_alloc(512, (bytes + 511) / 512 * 512), bytes, pinned, current};
        assert_non_null(ranges[i].at);
        return ranges[i].at;
    }
    fail_msg("too many allocations");
    return NULL;
}

static void drop_range(void *at, bool pinned)
{
    struct range *r = range_of(at, 1);

    assert_non_null(r);
    assert_ptr_equal(r->at, at);
    assert_int_equal(r->pinned, pinned);
    free(r->at);
    r->at = NULL;
}

void fake_cuda_reset(size_t total_bytes)
{
    for (size_t i = 0; i < STREAMS; i++)
        assert_null(streams[i].first);
    assert_int_equal(fake_cuda.allocs, 0);
    assert_int_equal(fake_cuda.used_bytes, 0);
    assert_int_equal(fake_cuda.pinned, 0);
    assert_int_equal(fake_cuda.events, 0);
    assert_int_equal(fake_cuda.streams, 0);
    assert_int_equal(fake_cuda.graphs, 0);
    while (events) {
        struct CUevent_st *next = events->next;

        free(events);
        events = next;
    }
    last = cudaSuccess;
    current = 0;
    memset(peers, 0, sizeof(peers));
    fake_cuda = (struct fake_cuda){.total_bytes = total_bytes, .devices = 1};
}

cudaError_t cudaGetLastError(void)
{
    cudaError_t was = last;

    last = cudaSuccess;
    return was;
}

cudaError_t cudaPeekAtLastError(void)
{
    return last;
}

const char *cudaGetErrorString(cudaError_t code)
{
    switch ((int)code) {
    case cudaErrorIllegalAddress:
        return "an illegal memory access was encountered";
    case cudaErrorNoDevice:
        return "no CUDA-capable device is detected";
    case cudaErrorInsufficientDriver:
        return "CUDA driver version is insufficient for CUDA runtime version";
    default:
        return "some error";
    }
}

cudaError_t cudaGetDeviceCount(int *count)
{
    WANTED();
    if (fake_cuda.devices <= 0)
        return give(fake_cuda.devices < 0 ? cudaErrorInsufficientDriver : cudaErrorNoDevice);
    *count = fake_cuda.devices;
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int device)
{
    WANTED();
    assert_in_range(device, 0, fake_cuda.devices - 1);
    current = device;
    return cudaSuccess;
}

cudaError_t cudaGetDevice(int *device)
{
    *device = current;
    return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int *version)
{
    *version = fake_cuda.devices < 0 ? 0 : fake_cuda.driver ? fake_cuda.driver : CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *version)
{
    *version = fake_cuda.runtime ? fake_cuda.runtime : CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *prop, int device)
{
    WANTED();
    memset(prop, 0, sizeof(*prop));
    if (fake_cuda.card)
        snprintf(prop->name, sizeof(prop->name), "%s", fake_cuda.card);
    else
        snprintf(prop->name, sizeof(prop->name), "Fake %d", device);
    prop->multiProcessorCount = 132;
    prop->major = fake_cuda.capability ? fake_cuda.capability / 10 : 9;
    prop->minor = fake_cuda.capability % 10;
    prop->totalGlobalMem = fake_cuda.total_bytes;
    return cudaSuccess;
}

/* Clocks and bus of an H100 SXM. */
cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr which, int device)
{
    WANTED();
    *value = which == cudaDevAttrClockRate              ? 1980000
             : which == cudaDevAttrMemoryClockRate      ? 2619000
             : which == cudaDevAttrGlobalMemoryBusWidth ? 5120
                                                        : 0;
    return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t *left, size_t *total)
{
    WANTED();
    *left = fake_cuda.total_bytes - fake_cuda.used_bytes;
    *total = fake_cuda.total_bytes;
    return cudaSuccess;
}

cudaError_t cudaMalloc(void **at, size_t bytes)
{
    WANTED();
    UNSAFE();
    fake_cuda.mallocs++;
    if (bytes > fake_cuda.total_bytes - fake_cuda.used_bytes)
        return give(cudaErrorMemoryAllocation);
    *at = new_range(bytes, false);
    memset(*at, 0xa5, PL_MIN(bytes, (size_t)4096));
    fake_cuda.used_bytes += bytes;
    fake_cuda.allocs++;
    return cudaSuccess;
}

cudaError_t cudaFree(void *at)
{
    UNSAFE();
    fake_cuda.frees++;
    cudaDeviceSynchronize();
    fake_cuda.used_bytes -= range_of(at, 1)->bytes;
    drop_range(at, false);
    fake_cuda.allocs--;
    return cudaSuccess;
}

cudaError_t cudaHostAlloc(void **at, size_t bytes, unsigned flags)
{
    WANTED();
    UNSAFE();
    if (fake_cuda.no_pinned)
        return give(cudaErrorMemoryAllocation);
    *at = new_range(bytes, true);
    fake_cuda.pinned++;
    return cudaSuccess;
}

cudaError_t cudaFreeHost(void *at)
{
    UNSAFE();
    drop_range(at, true);
    fake_cuda.pinned--;
    return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(
    void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t stream)
{
    WANTED();
    if (kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice)
        assert_true(fake_cuda_owns(to, bytes));
    if (kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice)
        assert_true(fake_cuda_owns(from, bytes));
    return add(stream, (struct job){.kind = COPY, .to = to, .from = from, .bytes = bytes});
}

/* True if [at, at + bytes) is inside one block of cudaMalloc on this device. */
static bool owned_by(int device, const void *at, size_t bytes)
{
    return fake_cuda_owns(at, bytes) && range_of(at, bytes)->device == device;
}

cudaError_t cudaMemcpyPeerAsync(
    void *to, int to_device, const void *from, int from_device, size_t bytes, cudaStream_t stream)
{
    WANTED();
    assert_int_not_equal(to_device, from_device);
    assert_true(owned_by(to_device, to, bytes));
    assert_true(owned_by(from_device, from, bytes));
    assert_true(stream->device == to_device || stream->device == from_device);
    fake_cuda.peer_copies++;
    return add(stream, (struct job){.kind = COPY, .to = to, .from = from, .bytes = bytes});
}

cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer)
{
    WANTED();
    assert_in_range(device, 0, fake_cuda.devices - 1);
    assert_in_range(peer, 0, fake_cuda.devices - 1);
    *can = device != peer && !fake_cuda.no_peers;
    return cudaSuccess;
}

cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags)
{
    WANTED();
    assert_in_range(current, 0, FAKE_DEVICES - 1);
    assert_false(fake_cuda.no_peers);
    if (peers[current] & 1ul << peer)
        return give(cudaErrorPeerAccessAlreadyEnabled);
    peers[current] |= 1ul << peer;
    return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t stream)
{
    WANTED();
    assert_true(fake_cuda_owns(to, bytes));
    return add(stream, (struct job){.kind = SET, .to = to, .value = value, .bytes = bytes});
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags)
{
    WANTED();
    for (size_t i = 1; i < STREAMS; i++) {
        if (streams[i].alive)
            continue;
        streams[i] = (struct CUstream_st){.alive = true, .device = current};
        *stream = stream_of(&streams[i]);
        fake_cuda.streams++;
        return cudaSuccess;
    }
    fail_msg("too many streams");
    return cudaErrorUnknown;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    finish(stream_of(stream));
    stream->alive = false;
    fake_cuda.streams--;
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    WANTED();
    UNSAFE();
    finish(stream_of(stream));
    return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize(void)
{
    WANTED();
    UNSAFE();
    for (size_t i = 0; i < STREAMS; i++)
        finish(&streams[i]);
    return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags)
{
    WANTED();
    assert_true(event->alive);
    return add(stream, (struct job){.kind = WAIT, .event = event, .ticket = event->recorded});
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags)
{
    WANTED();
    *event = calloc(1, sizeof(**event));
    assert_non_null(*event);
    **event = (struct CUevent_st){.next = events, .alive = true, .device = current};
    events = *event;
    fake_cuda.events++;
    return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    assert_true(event->alive);
    event->alive = false;
    fake_cuda.events--;
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    WANTED();
    assert_true(event->alive);
    assert_true(!stream || event->device == stream->device);
    event->recorded = ++tickets;
    return add(stream, (struct job){.kind = RECORD, .event = event, .ticket = event->recorded});
}

cudaError_t cudaEventQuery(cudaEvent_t event)
{
    WANTED();
    UNSAFE();
    assert_true(event->alive);
    return event->passed >= event->recorded ? cudaSuccess : give(cudaErrorNotReady);
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    WANTED();
    UNSAFE();
    assert_true(event->alive);
    while (event->passed < event->recorded) {
        bool any = false;

        for (size_t i = 0; i < STREAMS && event->passed < event->recorded; i++)
            any = step(&streams[i]) || any;
        assert_true(any || event->passed >= event->recorded);
    }
    return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode)
{
    struct CUstream_st *s = stream_of(stream);

    WANTED();
    assert_int_equal(mode, cudaStreamCaptureModeThreadLocal);
    assert_true(s != &streams[0]); /* the default one cannot be captured */
    assert_null(s->graph);
    s->graph = calloc(1, sizeof(*s->graph));
    assert_non_null(s->graph);
    s->graph->end = &s->graph->first;
    s->invalid = false;
    return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *status)
{
    struct CUstream_st *s = stream_of(stream);

    WANTED();
    *status = !s->graph    ? cudaStreamCaptureStatusNone
              : s->invalid ? cudaStreamCaptureStatusInvalidated
                           : cudaStreamCaptureStatusActive;
    return cudaSuccess;
}

static void free_jobs(struct job *first)
{
    for (struct job *j = first, *next; j; j = next) {
        next = j->next;
        free(j);
    }
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph)
{
    struct CUstream_st *s = stream_of(stream);
    cudaError_t code = wanted(__func__);

    assert_non_null(s->graph);
    if (code == cudaSuccess && s->invalid)
        code = give(cudaErrorStreamCaptureInvalidated);
    *graph = code == cudaSuccess ? s->graph : NULL;
    if (code == cudaSuccess) {
        fake_cuda.graphs++;
    } else {
        free_jobs(s->graph->first);
        free(s->graph);
    }
    s->graph = NULL;
    return code;
}

static struct job *copy_jobs(const struct job *first)
{
    struct job *copy = NULL, **end = &copy;

    for (const struct job *j = first; j; j = j->next) {
        *end = malloc(sizeof(**end));
        assert_non_null(*end);
        **end = *j;
        end = &(*end)->next;
    }
    *end = NULL;
    return copy;
}

cudaError_t
cudaGraphInstantiateWithFlags(cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long flags)
{
    WANTED();
    assert_int_equal(flags, 0);
    *exec = calloc(1, sizeof(**exec));
    assert_non_null(*exec);
    (*exec)->first = copy_jobs(graph->first);
    fake_cuda.graphs++;
    return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    free_jobs(graph->first);
    free(graph);
    fake_cuda.graphs--;
    return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream)
{
    WANTED();
    for (const struct job *j = exec->first; j; j = j->next) {
        struct job job = *j;

        job.next = NULL;
        add(stream, job);
    }
    exec->in = stream;
    fake_cuda.launches++;
    return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec)
{
    assert_true(!exec->in || !exec->in->first); /* nothing of it is under way */
    free_jobs(exec->first);
    free(exec);
    fake_cuda.graphs--;
    return cudaSuccess;
}
