/* SPDX-License-Identifier: MIT */
/* A device: memory for tensors, and the kernels that work on it. The CPU is one (plain functions on
 * plain memory, pl_device_cpu()); others come from shared objects that are loaded when asked for.
 *
 * The engine touches tensors' memory (parameters, gradients, optimizers' state, a tape's block,
 * batches, buffers) through a device only: the host may follow a pointer into it where `host` is
 * set, and nowhere else. What the host wants to read or write it maps (pl_device_map()), which is
 * the pointer itself on the CPU and a copy elsewhere.
 *
 * Order: everything asked of a device - kernels, zero, upload, copy - is done in the order in which
 * it was asked, and may be done after the call has returned; download and sync wait for what was
 * asked before. What cannot be told at once (a kernel that failed) is told by the next of these two
 * and by all later ones: the device is lost then. A copy between two devices is in the order of
 * both.
 *
 * Threads: one thread at a time asks things of a device. Kernels run on the device that the calling
 * thread has entered last. */
#ifndef PL_RUNTIME_ENGINE_DEVICE_DEVICE_H
#define PL_RUNTIME_ENGINE_DEVICE_DEVICE_H

#include "common/base/error.h"
#include "kernels/kernels.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What a shared object is made for; another one is refused. A change of this file or of an op's
 * arguments raises its number; a new op changes it by itself. */
#define PL_DEVICE_VERSION (3u << 16 | (unsigned)sizeof(struct pl_kernels))

/* The one symbol of plume-cuda.so: const struct pl_device_ops *plume_cuda_device(void). */
#define PL_DEVICE_CUDA_SYMBOL "plume_cuda_device"

/* Alignment of memory that alloc and host_alloc give. */
#define PL_DEVICE_ALIGN 256

#define PL_DEVICE_PEEK 8 /* bytes */

/* Bytes. */
struct pl_device_memory {
    uint64_t total, free; /* of the device, whoever uses it; 0 where it cannot be told */
    uint64_t used, peak;  /* by this process, through alloc */
};

/* A backend makes a larger struct that begins with this one. */
struct pl_device {
    const struct pl_device_ops *ops;
    unsigned index; /* among those that this process sees */
    char name[128]; /* for people: "cpu", "cuda:0 (NVIDIA H100 80GB HBM3)" */
    char unit[64];  /* names the card among all in the world; "" on the CPU */
};

/* How a device calculates; all false is what a device does unless it is asked. */
struct pl_device_options {
    bool tf32;          /* the factors of products of f32 may be rounded to tf32 */
    bool deterministic; /* the same bits each time, also where that is slower */
};

struct pl_device_graph; /* of one backend */

struct pl_device_ops {
    unsigned version; /* PL_DEVICE_VERSION */
    const char *name; /* "cpu", "cuda" */
    bool host;        /* memory is the host's: pointers may be followed by anybody */

    /* How many devices this process sees; at least 1. -ENODEV says what is missing (a driver, a
     * device), in one line. */
    int (*count)(unsigned *ret, struct pl_error *err);
    /* options may be NULL. -ENODEV where there is none of that index (the text names those there
     * are), -EIO. */
    int (*open)(unsigned index,
                const struct pl_device_options *options,
                struct pl_device **ret,
                struct pl_error *err);
    /* Frees what is still allocated, too. NULL is fine. */
    void (*close)(struct pl_device *dev);

    /* From now on the kernels that the calling thread calls run on this device, behind what the
     * device was asked before. Cheap when nothing changes. */
    void (*enter)(struct pl_device *dev);

    /* The kernels for a type, NULL where there are none; the same pointer each time. All pointers
     * in a kernel's arguments are to this device's memory, those of results too (grad_stats'
     * ret_squares, batchnorm's sums). */
    const struct pl_kernels *(*kernels)(struct pl_device *dev, enum pl_real real);

    /* Memory of undefined contents, bytes > 0. `what` names what it is for ("gradients"; a
     * literal), for the text of -ENOMEM, which has the size asked for, what is free and the largest
     * holders by these names. */
    int (*alloc)(
        struct pl_device *dev, size_t bytes, const char *what, void **ret, struct pl_error *err);
    /* NULL is fine. What was asked before may still use it. */
    void (*free)(struct pl_device *dev, void *memory);

    /* Memory of the host from and to which copies are cheapest (pinned); for staging and batches.
     * -ENOMEM. */
    int (*host_alloc)(struct pl_device *dev, size_t bytes, void **ret, struct pl_error *err);
    void (*host_free)(struct pl_device *dev, void *memory); /* NULL is fine */

    /* Any of these with 0 bytes does nothing. from and to do not overlap. */
    void (*zero)(struct pl_device *dev, void *to, size_t bytes);
    /* From the host; `from` may be changed as soon as this has returned. */
    void (*upload)(struct pl_device *dev, void *to, const void *from, size_t bytes);
    /* Inside the device. */
    void (*copy)(struct pl_device *dev, void *to, const void *from, size_t bytes);
    /* From another device of this table: behind what both were asked before, and what either is
     * asked from now on comes behind it. Both are lost where it fails. */
    void (*copy_from)(
        struct pl_device *dev, void *to, struct pl_device *source, const void *from, size_t bytes);
    /* To the host; waits. -EIO tells what failed since the device was opened, and `to` is
     * undefined. */
    int (*download)(
        struct pl_device *dev, void *to, const void *from, size_t bytes, struct pl_error *err);
    /* At most PL_DEVICE_PEEK bytes, which peeked() hands over: behind what was asked before peek(),
     * and without waiting for what was asked since. One at a time. Both are NULL where nothing can
     * be waited for alone. -EIO as download. */
    void (*peek)(struct pl_device *dev, const void *from, size_t bytes);
    int (*peeked)(struct pl_device *dev, void *to, size_t bytes, struct pl_error *err);
    /* Waits for everything. -EIO as download. */
    int (*sync)(struct pl_device *dev, struct pl_error *err);

    void (*memory)(struct pl_device *dev, struct pl_device_memory *ret);

    /* Graphs: kernels, zero and copy that are asked between capture_begin and capture_end are not
     * done but kept, with the arguments that they had, and each replay does them, in their order.
     * All four are NULL where there are none, and are for the device that the thread has entered.
     *
     * alloc, free, upload, download, peek, sync, and memory that a kernel would have to get for
     * itself cannot be kept: capture_end fails then, with the reason (-EIO). The device is as if it
     * had been asked nothing since capture_begin; that one fails with -EIO where nothing was begun.
     */
    int (*capture_begin)(struct pl_device *dev, struct pl_error *err);
    int (*capture_end)(struct pl_device *dev, struct pl_device_graph **ret, struct pl_error *err);
    /* -ESTALE: memory that kernels have of their own lies elsewhere now; nothing was done, and the
     * graph is of no more use. Other failures are told as those of kernels. */
    int (*replay)(struct pl_device *dev, struct pl_device_graph *graph);
    /* Waits for its replays. NULL is fine. */
    void (*graph_free)(struct pl_device *dev, struct pl_device_graph *graph);

    /* What the device is asked goes through this, a cudaStream_t; collectives follow it
     * (comm_nccl_table.h). NULL where there is no such thing. */
    void *(*stream)(struct pl_device *dev);
};

/* The CPU: one for all, never closed; any thread may use it at any time. */
struct pl_device *pl_device_cpu(void);

/* Short for the ops. */
int pl_device_alloc(
    struct pl_device *dev, size_t bytes, const char *what, void **ret, struct pl_error *err);
/* The same, zeroed. */
int pl_device_alloc_zero(
    struct pl_device *dev, size_t bytes, const char *what, void **ret, struct pl_error *err);
void pl_device_free(struct pl_device *dev, void *memory);
void pl_device_zero(struct pl_device *dev, void *to, size_t bytes);
void pl_device_upload(struct pl_device *dev, void *to, const void *from, size_t bytes);
/* copy_from, or copy where both are the same device. */
void pl_device_copy_from(
    struct pl_device *dev, void *to, struct pl_device *source, const void *from, size_t bytes);
int pl_device_download(
    struct pl_device *dev, void *to, const void *from, size_t bytes, struct pl_error *err);
int pl_device_sync(struct pl_device *dev, struct pl_error *err);
void pl_device_enter(struct pl_device *dev);

/* What the host wants to know without the device running dry meanwhile: begun, then more is asked
 * of the device, then ended. */
struct pl_device_peek {
    struct pl_device *dev;
    size_t bytes;
    unsigned char now[PL_DEVICE_PEEK]; /* where the device has no peek: downloaded at once */
    int code;
    struct pl_error err;
};

/* bytes: at most PL_DEVICE_PEEK. Failures are told at the end. */
void pl_device_peek_begin(struct pl_device *dev,
                          const void *from,
                          size_t bytes,
                          struct pl_device_peek *ret);
int pl_device_peek_end(struct pl_device_peek *peek, void *to, struct pl_error *err);

/* Device memory as the host sees it while it is mapped. */
enum pl_device_access {
    PL_DEVICE_READ = 1,
    PL_DEVICE_WRITE = 2, /* all of it is written, unless READ is asked for, too */
};

struct pl_device_map {
    struct pl_device *dev;
    void *data; /* for the host; the same as memory on the CPU */
    void *memory;
    size_t bytes;
    enum pl_device_access access;
};

/* Until it is unmapped, the device's memory may not be used otherwise. Zeroed memory is no map, and
 * may be unmapped. -ENOMEM, -EIO. */
int pl_device_map(struct pl_device *dev,
                  void *memory,
                  size_t bytes,
                  enum pl_device_access access,
                  struct pl_device_map *ret,
                  struct pl_error *err);
/* What was mapped for writing becomes the memory's contents. */
void pl_device_unmap(struct pl_device_map *map);

#endif
