/* SPDX-License-Identifier: MIT */
/* A plume-cuda.so without CUDA: GPUs whose kernels run on the emulator, so that the whole engine
 * can be tested without a GPU.
 *
 * It checks that only kernels and copies access a device's memory (its pages are protected
 * otherwise, and a guard page follows each array); that kernels only get addresses of the device
 * that the thread has entered, and none of the host's; that freed memory is never used again, also
 * not by a graph; that closed devices have freed everything. Fresh memory is NaNs. A mistake ends
 * the process, with a message or by SIGSEGV.
 *
 * Environment: PLUME_EMULATED_GPUS, their number (1); PLUME_EMULATED_MEMORY, bytes of each (1 GiB;
 * a comma-separated list has one entry per GPU, the last for all others); PLUME_EMULATED_GRAPHS,
 * the number of captures that succeed before all others fail (all); PLUME_EMULATED_FAULT, an op and
 * a type ("matmul bf16") whose first result is wrong, or "crash" or "hang" for the first op;
 * PLUME_EMULATED_LIBRARY: products, convolutions and 16-bit attention count as the library's, but
 * for the op and type of PLUME_EMULATED_OWN; PLUME_EMULATED_VERSION, a part of what about() tells
 * (1); PLUME_EMULATED_ODD, the name of GPUs 1, 3, and so on. */
#include "runtime/engine/device/device.h"
#include "common/base/macros.h"
#include "kernels/cuda/cuda.h"
#include "tests/cuda/emulator.h"
#include "tests/cuda/nccl.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define BLOCKS_MAX 4096
#define GPUS_MAX 8
#define POISON 0xff

struct block {
    char *memory; /* what alloc gave; NULL: free */
    size_t bytes;
    char *pages;
    size_t pages_bytes; /* without the guard page after them */
};

struct gpu {
    struct pl_device base;
    struct block blocks[BLOCKS_MAX];
    size_t n; /* later blocks are free */
    uint64_t used, peak, total;
    bool peeks;
    char peeked[PL_DEVICE_PEEK];
};

static _Thread_local struct gpu *current;

static void give_up(const char *what, const void *address)
{
    fprintf(stderr, "emulated GPU: %s (%p)\n", what, address);
    abort();
}

static size_t page(void)
{
    return (size_t)sysconf(_SC_PAGESIZE);
}

static uint64_t number(const char *name, uint64_t otherwise)
{
    const char *value = getenv(name);

    return value ? strtoull(value, NULL, 10) : otherwise;
}

static uint64_t memory_of(unsigned index)
{
    const char *value = getenv("PLUME_EMULATED_MEMORY"), *next;

    if (!value)
        return (uint64_t)1 << 30;
    while (index-- && (next = strchr(value, ',')))
        value = next + 1;
    return strtoull(value, NULL, 10);
}

/* ---- access checks ---- */

static void allow(struct gpu *gpu, int access)
{
    if (access != PROT_NONE)
        pl_emu_nccl_settle(&gpu->base);
    for (size_t i = 0; i < gpu->n; i++) {
        const struct block *b = &gpu->blocks[i];

        if (b->memory && mprotect(b->pages, b->pages_bytes, access) < 0)
            give_up("mprotect fails", b->pages);
    }
}

static void launch_begins(void)
{
    allow(current, PROT_READ | PROT_WRITE);
}

static void launch_ends(void)
{
    allow(current, PROT_NONE);
}

static bool is_on(const struct gpu *gpu, const char *p)
{
    for (size_t i = 0; i < gpu->n; i++) {
        const struct block *b = &gpu->blocks[i];

        if (b->memory && p >= b->memory && p <= b->memory + b->bytes)
            return true;
    }
    return false;
}

/* A word counts as an address by its size, and if its page is mapped. */
static void check_address(uintptr_t word)
{
    const uintptr_t low = (uintptr_t)0x5500 << 32, high = (uintptr_t)1 << 47;
    const char *p = (const char *)word;
    unsigned char there;

    if (word < low || word >= high || is_on(current, p) || pl_emu_is_scratch(p))
        return;
    if (mincore((void *)(word / page() * page()), 1, &there) == 0)
        give_up("a kernel is given an address that is not of its device", p);
}

static void check_argument(const void *value, size_t bytes)
{
    if (!current)
        give_up("a kernel is called before any device is entered", value);
    for (size_t at = 0; at + sizeof(uintptr_t) <= bytes; at += sizeof(uintptr_t)) {
        uintptr_t word;

        memcpy(&word, (const char *)value + at, sizeof(word));
        check_address(word);
    }
}

/* ---- memory ---- */

static int
alloc(struct pl_device *dev, size_t bytes, const char *what, void **ret, struct pl_error *err)
{
    struct gpu *gpu = (struct gpu *)dev;
    size_t size = (bytes + PL_DEVICE_ALIGN - 1) / PL_DEVICE_ALIGN * PL_DEVICE_ALIGN;
    size_t pages = (size + page() - 1) / page() * page();
    size_t i = 0;
    struct block *b;

    if (bytes == 0)
        give_up("nothing is allocated", dev);
    pl_emu_spoil("memory is allocated");
    if (bytes > gpu->total - gpu->used)
        return pl_error_set(err, -ENOMEM,
                            "out of memory on %s: %zu bytes for %s are asked for, %llu are free",
                            dev->name, bytes, what, (unsigned long long)(gpu->total - gpu->used));
    while (i < gpu->n && gpu->blocks[i].memory)
        i++;
    if (i == BLOCKS_MAX)
        give_up("too many arrays", dev);
    b = &gpu->blocks[i];
    b->pages = mmap(NULL, pages + page(), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (b->pages == MAP_FAILED)
        give_up("mmap fails", dev);
    *b = (struct block){b->pages + pages - size, bytes, b->pages, pages};
    gpu->n = PL_MAX(gpu->n, i + 1);
    gpu->used += bytes;
    gpu->peak = PL_MAX(gpu->peak, gpu->used);
    mprotect(b->pages, pages, PROT_READ | PROT_WRITE);
    memset(b->pages, POISON, pages);
    mprotect(b->pages, pages, PROT_NONE);
    *ret = b->memory;
    return 0;
}

/* The addresses are never used again. */
static void release(struct gpu *gpu, struct block *b)
{
    gpu->used -= b->bytes;
    if (mmap(b->pages, b->pages_bytes + page(), PROT_NONE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0) == MAP_FAILED)
        give_up("mmap fails", b->pages);
    *b = (struct block){0};
}

static void free_(struct pl_device *dev, void *memory)
{
    struct gpu *gpu = (struct gpu *)dev;

    if (!memory)
        return;
    pl_emu_spoil("memory is freed");
    for (size_t i = 0; i < gpu->n; i++)
        if (gpu->blocks[i].memory == memory) {
            release(gpu, &gpu->blocks[i]);
            return;
        }
    give_up("freed, but not allocated", memory);
}

static int host_alloc(struct pl_device *dev, size_t bytes, void **ret, struct pl_error *err)
{
    *ret = aligned_alloc(PL_DEVICE_ALIGN,
                         (bytes + PL_DEVICE_ALIGN - 1) / PL_DEVICE_ALIGN * PL_DEVICE_ALIGN);
    return *ret ? 0 : pl_error_nomem(err);
}

static void host_free(struct pl_device *dev, void *memory)
{
    free(memory);
}

/* Checks that [p, p + bytes) is inside one array. */
static void check_range(const struct gpu *gpu, const char *p, size_t bytes)
{
    for (size_t i = 0; i < gpu->n; i++) {
        const struct block *b = &gpu->blocks[i];

        if (b->memory && p >= b->memory && p + bytes <= b->memory + b->bytes)
            return;
    }
    give_up("a copy beyond the device's arrays", p);
}

/* A zero or a copy inside the device, which graphs may have in them. */
struct fill {
    struct gpu *gpu;
    void *to;
    const void *from; /* NULL: zeroes */
    size_t bytes;
};

static void do_fill(void *ctx)
{
    const struct fill *f = ctx;

    check_range(f->gpu, f->to, f->bytes);
    if (f->from)
        check_range(f->gpu, f->from, f->bytes);
    allow(f->gpu, PROT_READ | PROT_WRITE);
    if (f->from)
        memcpy(f->to, f->from, f->bytes);
    else
        memset(f->to, 0, f->bytes);
    allow(f->gpu, PROT_NONE);
}

static void fill(struct pl_device *dev, void *to, const void *from, size_t bytes)
{
    struct fill f = {(struct gpu *)dev, to, from, bytes};

    if (bytes == 0)
        return;
    if (pl_emu_recording())
        pl_emu_record(do_fill, &f, sizeof(f));
    else
        do_fill(&f);
}

static void zero(struct pl_device *dev, void *to, size_t bytes)
{
    fill(dev, to, NULL, bytes);
}

static void copy(struct pl_device *dev, void *to, const void *from, size_t bytes)
{
    fill(dev, to, from, bytes);
}

/* from and to are checked where they are the device's. */
static void
move(struct gpu *gpu, void *to, bool to_device, const void *from, bool from_device, size_t bytes)
{
    if (bytes == 0)
        return;
    if (to_device)
        check_range(gpu, to, bytes);
    if (from_device)
        check_range(gpu, from, bytes);
    allow(gpu, PROT_READ | PROT_WRITE);
    memcpy(to, from, bytes);
    allow(gpu, PROT_NONE);
}

static void upload(struct pl_device *dev, void *to, const void *from, size_t bytes)
{
    pl_emu_spoil("something is uploaded");
    if (pl_emu_recording())
        return;
    move((struct gpu *)dev, to, true, from, false, bytes);
}

static void
copy_from(struct pl_device *dev, void *to, struct pl_device *source, const void *from, size_t bytes)
{
    struct gpu *gpu = (struct gpu *)dev, *other = (struct gpu *)source;

    if (bytes == 0)
        return;
    pl_emu_spoil("something is copied from another GPU");
    if (pl_emu_recording())
        return;
    if (source->ops != dev->ops || other == gpu)
        give_up("a copy from what is no other GPU", from);
    check_range(gpu, to, bytes);
    check_range(other, from, bytes);
    allow(gpu, PROT_READ | PROT_WRITE);
    allow(other, PROT_READ);
    memcpy(to, from, bytes);
    allow(other, PROT_NONE);
    allow(gpu, PROT_NONE);
}

static int
download(struct pl_device *dev, void *to, const void *from, size_t bytes, struct pl_error *err)
{
    pl_emu_spoil("something is downloaded");
    if (pl_emu_recording())
        return pl_error_set(err, -EBUSY, "downloaded while a graph is captured");
    move((struct gpu *)dev, to, false, from, true, bytes);
    return 0;
}

/* Beside the device's memory, as pinned memory of the host is. */
static void peek(struct pl_device *dev, const void *from, size_t bytes)
{
    struct gpu *gpu = (struct gpu *)dev;

    pl_emu_spoil("something is peeked at");
    gpu->peeks = !pl_emu_recording();
    if (gpu->peeks)
        move(gpu, gpu->peeked, false, from, true, bytes);
}

static int peeked(struct pl_device *dev, void *to, size_t bytes, struct pl_error *err)
{
    struct gpu *gpu = (struct gpu *)dev;

    if (!gpu->peeks)
        give_up("the end of a peek that was not begun", dev);
    gpu->peeks = false;
    memcpy(to, gpu->peeked, bytes);
    return 0;
}

static int sync_(struct pl_device *dev, struct pl_error *err)
{
    pl_emu_spoil("the device is waited for");
    return pl_emu_recording() ? pl_error_set(err, -EBUSY, "waited while a graph is captured") : 0;
}

static void memory(struct pl_device *dev, struct pl_device_memory *ret)
{
    const struct gpu *gpu = (const struct gpu *)dev;

    *ret = (struct pl_device_memory){gpu->total, gpu->total - gpu->used, gpu->used, gpu->peak};
}

/* The collectives' idea of it (nccl.c). */
static void *stream(struct pl_device *dev)
{
    return dev;
}

/* ---- graphs ---- */

static int capture_begin(struct pl_device *dev, struct pl_error *err)
{
    if (current != (struct gpu *)dev)
        give_up("a capture on a device that was not entered", dev);
    pl_emu_record_begin();
    return 0;
}

static int capture_end(struct pl_device *dev, struct pl_device_graph **ret, struct pl_error *err)
{
    static uint64_t captures;
    const char *why;
    struct pl_emu_graph *graph;

    if (captures++ >= number("PLUME_EMULATED_GRAPHS", UINT64_MAX))
        pl_emu_spoil("there are enough");
    graph = pl_emu_record_end(&why);
    if (!graph)
        return pl_error_set(err, -EIO, "%s", why);
    *ret = (struct pl_device_graph *)graph;
    return 0;
}

static int replay(struct pl_device *dev, struct pl_device_graph *graph)
{
    if (current != (struct gpu *)dev)
        give_up("a replay on a device that was not entered", dev);
    return pl_emu_replay((const struct pl_emu_graph *)graph) ? 0 : -ESTALE;
}

static void graph_free(struct pl_device *dev, struct pl_device_graph *graph)
{
    if (graph)
        pl_emu_graph_free((struct pl_emu_graph *)graph);
}

/* ---- kernels ---- */

/* Own kernels do the work of a library, and may be counted as the library's. */
static struct pl_device_calls counted;

/* True if the variable's value is this op and this type. */
static bool is_named(const char *variable, const char *op, enum pl_real real)
{
    static const char *const names[] = {"f32", "f64", "bf16", "f16"};
    const char *value = getenv(variable);
    size_t len = strlen(op);

    return value && strncmp(value, op, len) == 0 && value[len] == ' ' &&
           strcmp(value + len + 1, names[real]) == 0;
}

static void count_calls(const char *op, enum pl_real real, uint64_t n)
{
    /* cuDNN is asked for attention in 16 bits only. */
    bool possible = pl_real_size(real) == 2 || strncmp(op, "attention", strlen("attention")) != 0;

    if (possible && getenv("PLUME_EMULATED_LIBRARY") && !is_named("PLUME_EMULATED_OWN", op, real))
        counted.library += n;
    else
        counted.own += n;
}

/* Spoils an element of an op's result, or ends or stops the process in its place. */
static void fault(const char *op, enum pl_real real, void *result)
{
    const char *wanted = getenv("PLUME_EMULATED_FAULT");
    size_t bytes = pl_real_size(real);

    if (!wanted || pl_emu_recording())
        return;
    if (strcmp(wanted, "crash") == 0)
        abort();
    while (strcmp(wanted, "hang") == 0)
        pause();
    if (!is_named("PLUME_EMULATED_FAULT", op, real))
        return;
    allow(current, PROT_READ | PROT_WRITE);
    ((unsigned char *)result)[8 * bytes - 1] ^= 0x80; /* the sign of the last one of eight */
    allow(current, PROT_NONE);
}

/* n: how many calls of a library the op is. */
#define COUNTED(real, op, args, result, n)                                                         \
    static void op##_##real(const struct args *a)                                                  \
    {                                                                                              \
        count_calls(#op, real, n);                                                                 \
        pl_kernels_cuda(real)->op(a);                                                              \
        fault(#op, real, a->result);                                                               \
    }
#define GRADIENTS ((uint64_t)(a->dx != NULL) + (a->dw != NULL))
#define COUNTED_ALL(real)                                                                          \
    COUNTED(real, matmul, pl_matmul_args, c, 1)                                                    \
    COUNTED(real, linear_forward, pl_linear_args, y, 1)                                            \
    COUNTED(real, linear_backward, pl_linear_args, dw, GRADIENTS)                                  \
    COUNTED(real, conv2d_forward, pl_conv2d_args, y, 1)                                            \
    COUNTED(real, conv2d_backward, pl_conv2d_args, dw, GRADIENTS)                                  \
    COUNTED(real, attention_forward, pl_attention_args, y, 1)                                      \
    COUNTED(real, attention_backward, pl_attention_args, dk, 1)
#define SET(real, op) tables[real].op = op##_##real;
#define SET_ALL(real)                                                                              \
    SET(real, matmul)                                                                              \
    SET(real, linear_forward)                                                                      \
    SET(real, linear_backward)                                                                     \
    SET(real, conv2d_forward)                                                                      \
    SET(real, conv2d_backward)                                                                     \
    SET(real, attention_forward)                                                                   \
    SET(real, attention_backward)
COUNTED_ALL(PL_REAL_F32)
COUNTED_ALL(PL_REAL_F64)
COUNTED_ALL(PL_REAL_BF16)
COUNTED_ALL(PL_REAL_F16)

static struct pl_kernels tables[PL_REAL_F16 + 1];
static pthread_once_t tables_once = PTHREAD_ONCE_INIT;

static void make_tables(void)
{
    for (unsigned real = 0; real <= PL_REAL_F16; real++)
        tables[real] = *pl_kernels_cuda((enum pl_real)real);
    SET_ALL(PL_REAL_F32)
    SET_ALL(PL_REAL_F64)
    SET_ALL(PL_REAL_BF16)
    SET_ALL(PL_REAL_F16)
}

static const struct pl_kernels *kernels(struct pl_device *dev, enum pl_real real)
{
    pthread_once(&tables_once, make_tables);
    return &tables[real];
}

static void calls(struct pl_device *dev, struct pl_device_calls *ret)
{
    *ret = counted;
}

/* ---- devices ---- */

static int count(unsigned *ret, struct pl_error *err)
{
    uint64_t n = number("PLUME_EMULATED_GPUS", 1);

    if (n == 0 || n > GPUS_MAX)
        return pl_error_set(err, -ENODEV, "cannot use GPUs: none is emulated");
    *ret = (unsigned)n;
    return 0;
}

static int about(unsigned index, struct pl_device_about *ret, struct pl_error *err)
{
    const char *version = getenv("PLUME_EMULATED_VERSION");

    const char *odd = getenv("PLUME_EMULATED_ODD");

    snprintf(ret->name, sizeof(ret->name), "%s", odd && index % 2 ? odd : "Emulated GPU");
    snprintf(ret->versions, sizeof(ret->versions), "version %s", version ? version : "1");
    return 0;
}

static void enter(struct pl_device *dev)
{
    current = (struct gpu *)dev;
}

static int open_(unsigned index,
                 const struct pl_device_options *options,
                 struct pl_device **ret,
                 struct pl_error *err);

static void close_(struct pl_device *dev)
{
    struct gpu *gpu = (struct gpu *)dev;

    if (!gpu)
        return;
    /* A real device would free the rest; the engine must not leave any. */
    for (size_t i = 0; i < gpu->n; i++)
        if (gpu->blocks[i].memory)
            give_up("closed before an array is freed", gpu->blocks[i].memory);
    if (current == gpu)
        current = NULL;
    free(gpu);
}

static const struct pl_device_ops ops = {
    .version = PL_DEVICE_VERSION,
    .name = "emulated",
    .count = count,
    .about = about,
    .open = open_,
    .close = close_,
    .enter = enter,
    .kernels = kernels,
    .alloc = alloc,
    .free = free_,
    .host_alloc = host_alloc,
    .host_free = host_free,
    .zero = zero,
    .upload = upload,
    .copy = copy,
    .copy_from = copy_from,
    .download = download,
    .peek = peek,
    .peeked = peeked,
    .sync = sync_,
    .memory = memory,
    .capture_begin = capture_begin,
    .capture_end = capture_end,
    .replay = replay,
    .graph_free = graph_free,
    .stream = stream,
    .calls = calls,
};

static int open_(unsigned index,
                 const struct pl_device_options *options,
                 struct pl_device **ret,
                 struct pl_error *err)
{
    static const struct pl_emu_watch watch = {check_argument, launch_begins, launch_ends};
    const char *node = getenv("NODE_RANK");
    struct gpu *gpu;
    unsigned n = 0;
    int r = count(&n, err);

    if (r < 0)
        return r;
    if (index >= n)
        return pl_error_set(err, -ENODEV, "there is no GPU %u: this process sees GPUs 0 to %u",
                            index, n - 1);
    gpu = calloc(1, sizeof(*gpu));
    if (!gpu)
        return pl_error_nomem(err);
    gpu->base.ops = &ops;
    gpu->base.index = index;
    gpu->total = memory_of(index);
    gpu->base.limits.bytes = 1e7; /* for the profile */
    for (int real = 0; real <= PL_REAL_F16; real++)
        gpu->base.limits.flops[real] = 1e8;
    snprintf(gpu->base.name, sizeof(gpu->base.name), "emulated:%u%s%s", index,
             options && options->tf32 ? " (tf32)" : "",
             options && options->deterministic ? " (deterministic)" : "");
    /* Simulated nodes have GPUs of their own. */
    snprintf(gpu->base.unit, sizeof(gpu->base.unit), "emulated:%s:%u", node ? node : "0", index);
    pl_emu_set_watch(&watch);
    enter(&gpu->base);
    *ret = &gpu->base;
    return 0;
}

__attribute__((visibility("default"))) const struct pl_device_ops *plume_cuda_device(void);
const struct pl_device_ops *plume_cuda_device(void)
{
    return &ops;
}
