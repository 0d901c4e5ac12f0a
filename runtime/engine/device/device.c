/* SPDX-License-Identifier: MIT */
/* The CPU as a device, and the functions that all devices share. */
#include "runtime/engine/device/device.h"
#include "common/base/memory.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#define PAGE 4096

static _Atomic uint64_t used, peak;

static int cpu_count(unsigned *ret, struct pl_error *err)
{
    *ret = 1;
    return 0;
}

static int cpu_open(unsigned index,
                    const struct pl_device_options *options,
                    struct pl_device **ret,
                    struct pl_error *err)
{
    if (index != 0)
        return pl_error_set(err, -ENODEV, "no CPU device %u", index);
    *ret = pl_device_cpu();
    return 0;
}

static void cpu_close(struct pl_device *dev) {}

static void cpu_enter(struct pl_device *dev) {}

static const struct pl_kernels *cpu_kernels(struct pl_device *dev, enum pl_real real)
{
    return pl_kernels_best(real);
}

static int host_alloc(struct pl_device *dev, size_t bytes, void **ret, struct pl_error *err)
{
    /* Large blocks take whole pages: the kernel can back them with huge pages. */
    size_t align = bytes >= PAGE ? PAGE : PL_DEVICE_ALIGN;

    if (pl_memory_alloc(align, bytes, ret) < 0)
        return pl_error_set(err, -ENOMEM, "out of memory: %zu bytes", bytes);
    return 0;
}

void pl_device_cpu_count(int64_t bytes)
{
    uint64_t now = atomic_fetch_add(&used, (uint64_t)bytes) + (uint64_t)bytes;
    uint64_t before = atomic_load(&peak);

    while (before < now && !atomic_compare_exchange_weak(&peak, &before, now))
        ;
}

/* The CPU's blocks and the bytes that were asked for: malloc_usable_size() of one with huge pages
 * is up to 2 MiB more, which nobody touches. */
static struct {
    pthread_mutex_t lock;
    struct block {
        void *memory;
        size_t bytes;
    } * list;
    size_t n, cap;
} blocks = {.lock = PTHREAD_MUTEX_INITIALIZER};

static int blocks_add(void *memory, size_t bytes)
{
    int r = 0;

    pthread_mutex_lock(&blocks.lock);
    if (blocks.n == blocks.cap) {
        size_t cap = blocks.cap ? 2 * blocks.cap : 64;
        struct block *list = reallocarray(blocks.list, cap, sizeof(*list));

        r = list ? 0 : -ENOMEM;
        blocks.list = list ? list : blocks.list;
        blocks.cap = list ? cap : blocks.cap;
    }
    if (r == 0)
        blocks.list[blocks.n++] = (struct block){memory, bytes};
    pthread_mutex_unlock(&blocks.lock);
    return r;
}

/* Returns its bytes. */
static size_t blocks_remove(const void *memory)
{
    size_t i, bytes = 0;

    pthread_mutex_lock(&blocks.lock);
    for (i = blocks.n; i > 0 && blocks.list[i - 1].memory != memory; i--)
        ;
    if (i > 0) {
        bytes = blocks.list[i - 1].bytes;
        blocks.list[i - 1] = blocks.list[--blocks.n];
    }
    if (blocks.n == 0) {
        free(blocks.list);
        blocks.list = NULL;
        blocks.cap = 0;
    }
    pthread_mutex_unlock(&blocks.lock);
    return bytes;
}

static int
cpu_alloc(struct pl_device *dev, size_t bytes, const char *what, void **ret, struct pl_error *err)
{
    void *p = NULL;

    if (host_alloc(dev, bytes, &p, NULL) < 0 || blocks_add(p, bytes) < 0) {
        free(p);
        return pl_error_set(err, -ENOMEM, "out of memory for %s (%zu MiB)", what, bytes >> 20);
    }
    pl_device_cpu_count((int64_t)bytes);
    *ret = p;
    return 0;
}

static void cpu_free(struct pl_device *dev, void *memory)
{
    if (memory)
        pl_device_cpu_count(-(int64_t)blocks_remove(memory));
    free(memory);
}

static void host_free(struct pl_device *dev, void *memory)
{
    free(memory);
}

static void cpu_zero(struct pl_device *dev, void *to, size_t bytes)
{
    if (bytes)
        memset(to, 0, bytes);
}

static void cpu_copy(struct pl_device *dev, void *to, const void *from, size_t bytes)
{
    if (bytes)
        memcpy(to, from, bytes);
}

static void cpu_copy_from(
    struct pl_device *dev, void *to, struct pl_device *source, const void *from, size_t bytes)
{
    cpu_copy(dev, to, from, bytes);
}

static int cpu_sync(struct pl_device *dev, struct pl_error *err)
{
    if (pl_kernels_lost())
        return pl_error_set(err, -ENOMEM, "out of memory in an operation: try a smaller batch");
    return 0;
}

static int
cpu_download(struct pl_device *dev, void *to, const void *from, size_t bytes, struct pl_error *err)
{
    cpu_copy(dev, to, from, bytes);
    return cpu_sync(dev, err);
}

static void cpu_memory(struct pl_device *dev, struct pl_device_memory *ret)
{
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);

    *ret = (struct pl_device_memory){
        .total = (uint64_t)sysconf(_SC_PHYS_PAGES) * page,
        .free = (uint64_t)sysconf(_SC_AVPHYS_PAGES) * page,
        .used = atomic_load(&used),
        .peak = atomic_load(&peak),
    };
}

static const struct pl_device_ops cpu_ops = {
    .version = PL_DEVICE_VERSION,
    .name = "cpu",
    .host = true,
    .count = cpu_count,
    .open = cpu_open,
    .close = cpu_close,
    .enter = cpu_enter,
    .kernels = cpu_kernels,
    .alloc = cpu_alloc,
    .free = cpu_free,
    .host_alloc = host_alloc,
    .host_free = host_free,
    .zero = cpu_zero,
    .upload = cpu_copy,
    .copy = cpu_copy,
    .copy_from = cpu_copy_from,
    .download = cpu_download,
    .sync = cpu_sync,
    .memory = cpu_memory,
};

struct pl_device *pl_device_cpu(void)
{
    static struct pl_device cpu = {.ops = &cpu_ops, .name = "cpu"};

    return &cpu;
}

int pl_device_alloc(
    struct pl_device *dev, size_t bytes, const char *what, void **ret, struct pl_error *err)
{
    return dev->ops->alloc(dev, bytes, what, ret, err);
}

int pl_device_alloc_zero(
    struct pl_device *dev, size_t bytes, const char *what, void **ret, struct pl_error *err)
{
    int r = dev->ops->alloc(dev, bytes, what, ret, err);

    if (r == 0)
        dev->ops->zero(dev, *ret, bytes);
    return r;
}

void pl_device_free(struct pl_device *dev, void *memory)
{
    if (memory)
        dev->ops->free(dev, memory);
}

void pl_device_zero(struct pl_device *dev, void *to, size_t bytes)
{
    dev->ops->zero(dev, to, bytes);
}

void pl_device_upload(struct pl_device *dev, void *to, const void *from, size_t bytes)
{
    dev->ops->upload(dev, to, from, bytes);
}

void pl_device_copy_from(
    struct pl_device *dev, void *to, struct pl_device *source, const void *from, size_t bytes)
{
    if (source == dev)
        dev->ops->copy(dev, to, from, bytes);
    else
        dev->ops->copy_from(dev, to, source, from, bytes);
}

int pl_device_download(
    struct pl_device *dev, void *to, const void *from, size_t bytes, struct pl_error *err)
{
    return dev->ops->download(dev, to, from, bytes, err);
}

int pl_device_sync(struct pl_device *dev, struct pl_error *err)
{
    return dev->ops->sync(dev, err);
}

void pl_device_peek_begin(struct pl_device *dev,
                          const void *from,
                          size_t bytes,
                          struct pl_device_peek *ret)
{
    *ret = (struct pl_device_peek){.dev = dev, .bytes = PL_MIN(bytes, sizeof(ret->now))};
    if (dev->ops->peek)
        dev->ops->peek(dev, from, ret->bytes);
    else
        ret->code = pl_device_download(dev, ret->now, from, ret->bytes, &ret->err);
}

int pl_device_peek_end(struct pl_device_peek *peek, void *to, struct pl_error *err)
{
    struct pl_device *dev = peek->dev;

    if (dev->ops->peek)
        return dev->ops->peeked(dev, to, peek->bytes, err);
    if (peek->code < 0 && err)
        *err = peek->err;
    memcpy(to, peek->now, peek->bytes);
    return peek->code;
}

void pl_device_enter(struct pl_device *dev)
{
    dev->ops->enter(dev);
}

int pl_device_map(struct pl_device *dev,
                  void *memory,
                  size_t bytes,
                  enum pl_device_access access,
                  struct pl_device_map *ret,
                  struct pl_error *err)
{
    struct pl_device_map map = {dev, memory, memory, bytes, access};
    int r = 0;

    if (!dev->ops->host) {
        map.data = malloc(PL_MAX(bytes, (size_t)1));
        if (!map.data)
            return pl_error_set(err, -ENOMEM, "out of memory for a copy of %zu bytes", bytes);
        if (access & PL_DEVICE_READ)
            r = pl_device_download(dev, map.data, memory, bytes, err);
    }
    if (r < 0)
        free(map.data);
    else
        *ret = map;
    return r;
}

void pl_device_unmap(struct pl_device_map *map)
{
    if (map->data != map->memory) {
        if (map->access & PL_DEVICE_WRITE)
            pl_device_upload(map->dev, map->memory, map->data, map->bytes);
        free(map->data);
    }
    *map = (struct pl_device_map){0};
}
