/* SPDX-License-Identifier: MIT */
#include "runtime/engine/cuda/device/cuda_device.h"
#include "common/base/env.h"
#include "common/base/fs.h"
#include "common/base/log.h"
#include "common/base/parse.h"
#include "runtime/engine/cuda/cublaslt/cublaslt.h"
#include "runtime/engine/cuda/cudnn/cudnn.h"
#include "runtime/engine/cuda/device/cuda_graph.h"

#include <cuda_runtime_api.h>
#include <stdio.h>
#include <string.h>

#define LEAST_CAPABILITY 80 /* the kernels are compiled for this one and later ones */

/* The device that the calling thread has entered: its number, 0 for none, and its index. Numbers
 * are never reused, unlike addresses. */
static _Thread_local uint64_t entered;
static _Thread_local int entered_index;

static struct pl_cuda_device *of(struct pl_device *dev)
{
    return (struct pl_cuda_device *)dev;
}

/* Sets CUDA's current device for calls about a device that the thread has not entered. A thread
 * that has entered none stays on it afterwards: naming device 0 would create a context of some
 * hundred megabytes there. */
static void set_device(const struct pl_cuda_device *d)
{
    int now = -1;

    if (cudaGetDevice(&now) != cudaSuccess || now != (int)d->base.index)
        (void)cudaSetDevice((int)d->base.index);
}

static void restore_device(const struct pl_cuda_device *d)
{
    if (entered && entered_index != (int)d->base.index)
        (void)cudaSetDevice(entered_index);
}

static void cuda_close(struct pl_device *dev)
{
    struct pl_cuda_device *d = of(dev);

    if (!d)
        return;
    set_device(d);
    if (d->stream.stream)
        (void)cudaStreamSynchronize(d->stream.stream);
    if (entered == d->number) {
        pl_cuda_stream_set(NULL);
        pl_cuda_libs_set(NULL);
        entered = 0;
    }
    pl_cublaslt_destroy(d->libs.lt);
    pl_cudnn_destroy(d->libs.dnn);
    if (d->staging.status)
        pl_cuda_staging_finish(&d->staging);
    pl_cuda_stream_finish(&d->stream);
    pl_cuda_alloc_destroy(d->alloc);
    if (d->event)
        cudaEventDestroy(d->event);
    if (d->peek_event)
        cudaEventDestroy(d->peek_event);
    if (d->peek)
        cudaFreeHost(d->peek);
    if (d->stream.stream)
        cudaStreamDestroy(d->stream.stream);
    restore_device(d);
    free(d);
}

static int read_limit(size_t *ret, struct pl_error *err)
{
    const char *text = pl_env(PL_ENV_PLUME_GPU_MEMORY_LIMIT);
    uint64_t bytes = 0;
    int r = text && *text ? pl_parse_mem(text, &bytes, err) : 0;

    if (r < 0)
        return pl_error_wrap(err, r, "PLUME_GPU_MEMORY_LIMIT");
    *ret = bytes;
    return 0;
}

/* The host and the card's PCI address, by which NCCL distinguishes devices. Parts of a card (MIG)
 * have one name, since NCCL does not join them. */
static void name_unit(struct pl_cuda_device *d, const struct cudaDeviceProp *prop)
{
    char boot[37] = "";
    FILE *f = fopen("/proc/sys/kernel/random/boot_id", "re");

    if (f) {
        if (!fgets(boot, sizeof(boot), f))
            boot[0] = '\0';
        fclose(f);
    }
    snprintf(d->base.unit, sizeof(d->base.unit), "%.36s %x:%x.%x", boot,
             (unsigned)prop->pciDomainID & 0xffffff, (unsigned)prop->pciBusID & 0xff,
             (unsigned)prop->pciDeviceID & 0xff);
}

static int check_card(struct pl_cuda_device *d, struct pl_error *err)
{
    struct cudaDeviceProp prop;
    cudaError_t code = cudaGetDeviceProperties(&prop, (int)d->base.index);

    if (code != cudaSuccess)
        return pl_cuda_error(err, d->base.name, "cudaGetDeviceProperties", code);
    snprintf(d->base.name, sizeof(d->base.name), "cuda:%u (%.100s)", d->base.index, prop.name);
    name_unit(d, &prop);
    d->multiprocessors = prop.multiProcessorCount;
    d->capability = 10 * prop.major + prop.minor;
    if (d->capability < LEAST_CAPABILITY)
        return pl_error_set(err, -ENODEV,
                            "%s has compute capability %d.%d, and Plume's kernels need 8.0",
                            d->base.name, prop.major, prop.minor);
    return 0;
}

/* A library that is not there costs what only it does fast: our own kernels do that. It is told
 * once for all devices of the process. Returns other errors. */
static int bear_missing(int r, const char *slow, atomic_bool *told, struct pl_error *why)
{
    if (r != -ENOENT && r != -ENOTSUP)
        return r;
    if (!atomic_exchange(told, true))
        pl_log_warn("cuda", "%s are done by our own kernels, which are many times slower: %s", slow,
                    pl_error_text(why));
    return 0;
}

static int open_libraries(struct pl_cuda_device *d,
                          void *workspace,
                          const struct pl_device_options *options,
                          struct pl_error *err)
{
    static atomic_bool lt_told, dnn_told;
    struct pl_error why = {0};
    struct pl_device_about about;
    char what[sizeof(about.name) + sizeof(about.versions) + 2];
    struct pl_timing timing = {.what = what, .now_ns = pl_now_ns};
    bool timed = !options->deterministic && !options->untimed &&
                 pl_cuda_about(d->base.index, &about, NULL) == 0;
    int r;

    if (timed)
        snprintf(what, sizeof(what), "%s, %s", about.name, about.versions);
    r = pl_cublaslt_create(workspace, PL_CUBLASLT_WORKSPACE, options->tf32, timed ? &timing : NULL,
                           &d->status, &d->libs.lt, &why);
    r = bear_missing(r, "matrix products", &lt_told, &why);
    if (r == 0) {
        r = pl_cudnn_create(d->stream.stream, d->alloc, options, timed ? &timing : NULL, &d->status,
                            &d->libs.dnn, &why);
        r = bear_missing(r, "convolutions and attention", &dnn_told, &why);
    }
    return r < 0 ? pl_error_set(err, r, "%s", pl_error_text(&why)) : 0;
}

/* Kernels' scratch counts towards the limit of memory, as all else. */
static void *get_scratch(struct pl_cuda_stream *stream, size_t bytes)
{
    struct pl_cuda_device *d =
        (struct pl_cuda_device *)((char *)stream - offsetof(struct pl_cuda_device, stream));
    void *p = NULL;

    return pl_cuda_alloc_get(d->alloc, bytes, stream->stream, "scratch of kernels", &p, NULL) < 0
               ? NULL
               : p;
}

static void put_scratch(struct pl_cuda_stream *stream, void *memory)
{
    struct pl_cuda_device *d =
        (struct pl_cuda_device *)((char *)stream - offsetof(struct pl_cuda_device, stream));

    pl_cuda_alloc_put(d->alloc, memory);
}

/* The error of a call that needs a context, which takes some hundred megabytes. */
static int bad_context(const struct pl_cuda_device *d,
                       const char *call,
                       cudaError_t code,
                       struct pl_error *err)
{
    if (code != cudaErrorMemoryAllocation)
        return pl_cuda_error(err, d->base.name, call, code);
    (void)cudaGetLastError();
    return pl_error_set(err, -ENOMEM,
                        "out of memory on %s before anything is allocated: other processes use it "
                        "(nvidia-smi)",
                        d->base.name);
}

static int
make_parts(struct pl_cuda_device *d, const struct pl_device_options *options, struct pl_error *err)
{
    void *workspace = NULL;
    size_t limit = 0;
    cudaError_t code;
    int r = read_limit(&limit, err);

    if (r < 0)
        return r;
    code = cudaSetDevice((int)d->base.index);
    if (code != cudaSuccess)
        return bad_context(d, "cudaSetDevice", code, err);
    r = check_card(d, err);
    if (r < 0)
        return r;
    pl_cuda_limits(d, options->tf32);
    code = cudaStreamCreateWithFlags(&d->stream.stream, cudaStreamNonBlocking);
    if (code != cudaSuccess)
        return bad_context(d, "cudaStreamCreateWithFlags", code, err);
    pl_cuda_staging_init(&d->staging, d->stream.stream, PL_CUDA_STAGING_BYTES, &d->status);
    r = pl_cuda_alloc_create(d->base.name, limit, &d->alloc, err);
    if (r == 0)
        r = pl_cuda_alloc_get(d->alloc, PL_CUBLASLT_WORKSPACE, d->stream.stream,
                              "cublasLt's workspace", &workspace, err);
    if (r < 0)
        return r;
    d->stream.get = get_scratch;
    d->stream.put = put_scratch;
    d->libs.stream = &d->stream;
    d->libs.calls = &d->calls;
    return open_libraries(d, workspace, options, err);
}

static int cuda_open(unsigned index,
                     const struct pl_device_options *options,
                     struct pl_device **ret,
                     struct pl_error *err)
{
    static const struct pl_device_options usual;
    static atomic_ullong numbers;
    struct pl_cuda_device *d;
    unsigned n = 0;
    int r = pl_cuda_count(&n, err);

    if (r < 0)
        return r;
    if (index >= n)
        return pl_error_set(err, -ENODEV,
                            "there is no GPU %u: this process sees %u (%s%u), by "
                            "CUDA_VISIBLE_DEVICES or what the job was given",
                            index, n, n == 1 ? "" : "0 to ", n - 1);
    d = calloc(1, sizeof(*d));
    if (!d)
        return pl_error_nomem(err);
    d->base.ops = plume_cuda_device();
    d->base.index = index;
    d->number = ++numbers;
    snprintf(d->base.name, sizeof(d->base.name), "cuda:%u", index);
    r = make_parts(d, options ? options : &usual, err);
    if (r < 0) {
        cuda_close(&d->base);
        return r;
    }
    *ret = &d->base;
    return 0;
}

static void cuda_enter(struct pl_device *dev)
{
    struct pl_cuda_device *d = of(dev);

    if (entered == d->number)
        return;
    pl_cuda_check(&d->status, "cudaSetDevice", cudaSetDevice((int)dev->index));
    pl_cuda_stream_set(&d->stream);
    pl_cuda_libs_set(&d->libs);
    entered = d->number;
    entered_index = (int)dev->index;
}

static const struct pl_kernels *cuda_kernels(struct pl_device *dev, enum pl_real real)
{
    return pl_cuda_kernels(real);
}

/* True if the stream is capturing: this call is not allowed then, and the capture has failed. */
static bool refuse(struct pl_cuda_device *d, const char *call)
{
    if (!pl_cuda_status_is_held(&d->status))
        return false;
    (void)pl_cuda_fail(&d->status, call, "it cannot be part of a graph");
    return true;
}

static int
cuda_alloc(struct pl_device *dev, size_t bytes, const char *what, void **ret, struct pl_error *err)
{
    struct pl_cuda_device *d = of(dev);
    int r;

    if (refuse(d, "an allocation"))
        return pl_error_set(err, -EBUSY, "memory for %s is asked for while a graph is captured",
                            what);
    set_device(d);
    r = pl_cuda_alloc_get(d->alloc, bytes, d->stream.stream, what, ret, err);
    restore_device(d);
    return r;
}

static void cuda_free(struct pl_device *dev, void *memory)
{
    if (memory)
        (void)refuse(of(dev), "freeing memory"); /* the graph may refer to it */
    pl_cuda_alloc_put(of(dev)->alloc, memory);
}

static int cuda_host_alloc(struct pl_device *dev, size_t bytes, void **ret, struct pl_error *err)
{
    struct pl_cuda_device *d = of(dev);
    cudaError_t code;

    set_device(d);
    code = cudaHostAlloc(ret, bytes, cudaHostAllocPortable);
    restore_device(d);
    if (code == cudaErrorMemoryAllocation) {
        (void)cudaGetLastError();
        return pl_error_set(err, -ENOMEM, "out of pinned memory: %zu bytes asked for", bytes);
    }
    return code == cudaSuccess ? 0 : pl_cuda_error(err, dev->name, "cudaHostAlloc", code);
}

static void cuda_host_free(struct pl_device *dev, void *memory)
{
    if (memory)
        pl_cuda_check(&of(dev)->status, "cudaFreeHost", cudaFreeHost(memory));
}

static void cuda_zero(struct pl_device *dev, void *to, size_t bytes)
{
    struct pl_cuda_device *d = of(dev);

    if (bytes == 0)
        return;
    set_device(d);
    pl_cuda_check(&d->status, "cudaMemsetAsync", cudaMemsetAsync(to, 0, bytes, d->stream.stream));
    restore_device(d);
}

static void cuda_upload(struct pl_device *dev, void *to, const void *from, size_t bytes)
{
    struct pl_cuda_device *d = of(dev);

    if (refuse(d, "an upload"))
        return;
    set_device(d);
    pl_cuda_staging_upload(&d->staging, to, from, bytes);
    restore_device(d);
}

static void cuda_copy(struct pl_device *dev, void *to, const void *from, size_t bytes)
{
    struct pl_cuda_device *d = of(dev);

    if (bytes == 0)
        return;
    set_device(d);
    pl_cuda_check(&d->status, "cudaMemcpyAsync",
                  cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, d->stream.stream));
    restore_device(d);
}

/* Enables direct copies between two GPUs if possible; otherwise CUDA copies through the host. */
static void enable_peer_access(struct pl_cuda_device *d, const struct pl_cuda_device *other)
{
    uint64_t bit = other->base.index < 64 ? (uint64_t)1 << other->base.index : 0;
    int can = 0;

    if (!bit || (d->peer_mask & bit))
        return;
    d->peer_mask |= bit;
    if (cudaDeviceCanAccessPeer(&can, (int)d->base.index, (int)other->base.index) == cudaSuccess &&
        can) {
        set_device(d);
        (void)cudaDeviceEnablePeerAccess((int)other->base.index, 0);
        restore_device(d);
    }
    (void)cudaGetLastError(); /* peer access may be enabled already: it belongs to the process */
}

/* Makes later work of `then` wait for the earlier work of `first`. */
static int wait_for(struct pl_cuda_device *then, struct pl_cuda_device *first)
{
    int r = 0;

    set_device(first);
    if (!first->event)
        r = pl_cuda_check(&first->status, "cudaEventCreateWithFlags",
                          cudaEventCreateWithFlags(&first->event, cudaEventDisableTiming));
    if (r == 0)
        r = pl_cuda_check(&first->status, "cudaEventRecord",
                          cudaEventRecord(first->event, first->stream.stream));
    restore_device(first);
    if (r < 0)
        return r;
    set_device(then);
    r = pl_cuda_check(&then->status, "cudaStreamWaitEvent",
                      cudaStreamWaitEvent(then->stream.stream, first->event, 0));
    restore_device(then);
    return r;
}

static void cuda_copy_from(
    struct pl_device *dev, void *to, struct pl_device *source, const void *from, size_t bytes)
{
    struct pl_cuda_device *d = of(dev), *s = of(source);
    int r;

    if (bytes == 0)
        return;
    enable_peer_access(d, s);
    enable_peer_access(s, d);
    r = wait_for(d, s);
    if (r == 0) {
        set_device(d);
        r = pl_cuda_check(&d->status, "cudaMemcpyPeerAsync",
                          cudaMemcpyPeerAsync(to, (int)dev->index, from, (int)source->index, bytes,
                                              d->stream.stream));
        restore_device(d);
    }
    if (r == 0)
        r = wait_for(s, d);
    if (r < 0) { /* the error is in the status of the one that failed */
        pl_cuda_fail(&d->status, "a copy from another GPU", "the other one has failed");
        pl_cuda_fail(&s->status, "a copy to another GPU", "the other one has failed");
    }
}

/* Collects all errors so far, including those of kernel launches. */
static int report(struct pl_cuda_device *d, struct pl_error *err)
{
    pl_cuda_check_ops(d);
    return pl_cuda_report(&d->status, d->base.name, err);
}

static int
cuda_download(struct pl_device *dev, void *to, const void *from, size_t bytes, struct pl_error *err)
{
    struct pl_cuda_device *d = of(dev);

    if (refuse(d, "a download"))
        return pl_error_set(err, -EBUSY, "a download is asked for while a graph is captured");
    set_device(d);
    (void)pl_cuda_staging_download(&d->staging, to, from,
                                   bytes); /* errors are kept in the status */
    restore_device(d);
    return report(d, err);
}

/* The pinned bytes and the event are made at first use. */
static int make_peek(struct pl_cuda_device *d)
{
    int r = 0;

    if (!d->peek)
        r = pl_cuda_check(&d->status, "cudaHostAlloc",
                          cudaHostAlloc(&d->peek, PL_DEVICE_PEEK, cudaHostAllocPortable));
    if (r == 0 && !d->peek_event)
        r = pl_cuda_check(&d->status, "cudaEventCreateWithFlags",
                          cudaEventCreateWithFlags(&d->peek_event, cudaEventDisableTiming));
    return r;
}

static void cuda_peek(struct pl_device *dev, const void *from, size_t bytes)
{
    struct pl_cuda_device *d = of(dev);

    if (refuse(d, "a peek"))
        return;
    set_device(d);
    if (make_peek(d) == 0 &&
        pl_cuda_check(
            &d->status, "cudaMemcpyAsync",
            cudaMemcpyAsync(d->peek, from, bytes, cudaMemcpyDeviceToHost, d->stream.stream)) == 0)
        pl_cuda_check(&d->status, "cudaEventRecord",
                      cudaEventRecord(d->peek_event, d->stream.stream));
    restore_device(d);
}

static int cuda_peeked(struct pl_device *dev, void *to, size_t bytes, struct pl_error *err)
{
    struct pl_cuda_device *d = of(dev);
    int r;

    set_device(d);
    if (d->peek_event)
        pl_cuda_check(&d->status, "cudaEventSynchronize", cudaEventSynchronize(d->peek_event));
    restore_device(d);
    r = report(d, err);
    if (r == 0)
        memcpy(to, d->peek, bytes);
    return r;
}

static int cuda_sync(struct pl_device *dev, struct pl_error *err)
{
    struct pl_cuda_device *d = of(dev);

    if (refuse(d, "waiting"))
        return pl_error_set(err, -EBUSY, "the device is waited for while a graph is captured");
    set_device(d);
    pl_cuda_check(&d->status, "cudaStreamSynchronize", cudaStreamSynchronize(d->stream.stream));
    restore_device(d);
    return report(d, err);
}

static void cuda_memory(struct pl_device *dev, struct pl_device_memory *ret)
{
    struct pl_cuda_device *d = of(dev);
    struct pl_cuda_alloc_stats stats;
    size_t left = 0, total = 0;

    set_device(d);
    if (cudaMemGetInfo(&left, &total) != cudaSuccess) {
        (void)cudaGetLastError();
        left = total = 0;
    }
    restore_device(d);
    pl_cuda_alloc_stats(d->alloc, &stats);
    *ret = (struct pl_device_memory){
        .total = total, .free = left, .used = stats.in_use_bytes, .peak = stats.in_use_peak_bytes};
}

static void cuda_calls(struct pl_device *dev, struct pl_device_calls *ret)
{
    struct pl_cuda_device *d = of(dev);

    *ret = (struct pl_device_calls){.library = atomic_load(&d->calls.library),
                                    .own = atomic_load(&d->calls.own)};
}

static void *cuda_stream(struct pl_device *dev)
{
    return of(dev)->stream.stream;
}

static const struct pl_device_ops ops = {
    .version = PL_DEVICE_VERSION,
    .name = "cuda",
    .count = pl_cuda_count,
    .about = pl_cuda_about,
    .open = cuda_open,
    .close = cuda_close,
    .enter = cuda_enter,
    .kernels = cuda_kernels,
    .alloc = cuda_alloc,
    .free = cuda_free,
    .channels_last = true,
    .host_alloc = cuda_host_alloc,
    .host_free = cuda_host_free,
    .zero = cuda_zero,
    .upload = cuda_upload,
    .copy = cuda_copy,
    .copy_from = cuda_copy_from,
    .download = cuda_download,
    .peek = cuda_peek,
    .peeked = cuda_peeked,
    .sync = cuda_sync,
    .memory = cuda_memory,
    .capture_begin = pl_cuda_capture_begin,
    .capture_end = pl_cuda_capture_end,
    .replay = pl_cuda_replay,
    .graph_free = pl_cuda_graph_free,
    .stream = cuda_stream,
    .calls = cuda_calls,
};

__attribute__((visibility("default"))) const struct pl_device_ops *plume_cuda_device(void)
{
    return &ops;
}
