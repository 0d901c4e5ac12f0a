/* SPDX-License-Identifier: MIT */
/* A device: memory for tensors, and the kernels that work on it. The CPU is one (plain functions on
 * plain memory, pl_device_cpu()). Other devices come from shared objects, loaded on first use.
 *
 * The engine accesses tensors' memory (parameters, gradients, optimizer state, a tape's block,
 * batches, buffers) through a device only. The host may follow a pointer into that memory only if
 * `host` is set. To read or write it, the host maps it (pl_device_map()): this is the pointer
 * itself on the CPU, and a copy elsewhere.
 *
 * Order: a device does its work (kernels, zero, upload, copy) in the order of the calls, and may do
 * it after the call has returned. download and sync wait for all earlier work. Kernel errors are
 * asynchronous: the next download or sync returns them, and so does every later one; the device is
 * lost then. A copy between two devices keeps the order of both.
 *
 * Threads: one thread at a time uses a device. Kernels run on the device that the calling thread
 * has entered last. */
#ifndef PL_RUNTIME_ENGINE_DEVICE_DEVICE_H
#define PL_RUNTIME_ENGINE_DEVICE_DEVICE_H

#include "common/base/error.h"
#include "kernels/kernels.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The interface's version: a shared object with another one is refused. A change of this file or of
 * an op's arguments raises it; a new op changes it by itself. */
#define PL_DEVICE_VERSION (13u << 16 | (unsigned)sizeof(struct pl_kernels))

/* The only symbol of plume-cuda.so: const struct pl_device_ops *plume_cuda_device(void). */
#define PL_DEVICE_CUDA_SYMBOL "plume_cuda_device"

/* Alignment of memory from alloc and host_alloc. */
#define PL_DEVICE_ALIGN 256

#define PL_DEVICE_PEEK 8 /* bytes */

/* Bytes. */
struct pl_device_memory {
    uint64_t total, free; /* of the device, shared with other processes; 0 = unknown */
    uint64_t used, peak;  /* by this process, through alloc */
};

/* Products, convolutions and attentions so far, by who did them: the vendor's library, or kernels
 * of our own where the library has nothing for a shape. */
struct pl_device_calls {
    uint64_t library, own;
};

/* A device that need not be open: its kind, and all that computes on it, with versions. Where both
 * are the same text, a test of one device holds for the other. */
struct pl_device_about {
    char name[128];     /* "NVIDIA H100 80GB HBM3" */
    char versions[256]; /* "driver for CUDA 13.0, CUDA 13.0, cuBLAS 13.1.0, cuDNN 9.19.0" */
};

/* The most that a device does per second, at its highest clock; 0 where that is not known. */
struct pl_device_limits {
    double bytes;                  /* of its memory */
    double flops[PL_REAL_F16 + 1]; /* of products, by the table's type */
};

/* The base of each backend's own struct. */
struct pl_device {
    const struct pl_device_ops *ops;
    unsigned index; /* among the devices that this process sees */
    char name[128]; /* shown to the user: "cpu", "cuda:0 (NVIDIA H100 80GB HBM3)" */
    char unit[64];  /* unique identity of the card; "" on the CPU */
    struct pl_device_limits limits;
};

/* Options of a device; all false is the default. */
struct pl_device_options {
    bool tf32;          /* products of f32 may round their factors to tf32 */
    bool deterministic; /* the same bits each time, even if that is slower */
    bool untimed;       /* for a few small products: the library's first choice is taken */
};

struct pl_device_graph; /* defined by the backend */

struct pl_device_ops {
    unsigned version;   /* PL_DEVICE_VERSION */
    const char *name;   /* "cpu", "cuda" */
    bool host;          /* memory is the host's: any code may follow the pointers */
    bool channels_last; /* 16-bit convolutions are faster with the channels last */

    /* Number of devices that this process sees, at least 1. -ENODEV says in one line what is
     * missing (a driver, a device). */
    int (*count)(unsigned *ret, struct pl_error *err);
    /* NULL if a device needs no test. Takes no memory of the device. -ENODEV as open; -EIO. */
    int (*about)(unsigned index, struct pl_device_about *ret, struct pl_error *err);
    /* options may be NULL. -ENODEV: no device has this index (the text lists those that exist).
     * -EIO. */
    int (*open)(unsigned index,
                const struct pl_device_options *options,
                struct pl_device **ret,
                struct pl_error *err);
    /* Also frees all memory that is still allocated. NULL is ignored. */
    void (*close)(struct pl_device *dev);

    /* Makes this device current: kernels that the calling thread launches from now on run on it,
     * after the device's earlier work. Cheap if it is current already. */
    void (*enter)(struct pl_device *dev);

    /* The kernels for a type, NULL if the device has none; always the same pointer. All pointers in
     * a kernel's arguments point to this device's memory, also those to results (grad_stats'
     * ret_squares, batchnorm's sums). */
    const struct pl_kernels *(*kernels)(struct pl_device *dev, enum pl_real real);

    /* Allocates bytes > 0 of uninitialised memory. `what` (a literal, such as "gradients") names
     * its use in the text of -ENOMEM, which gives the size requested, the free memory and the
     * largest users. */
    int (*alloc)(
        struct pl_device *dev, size_t bytes, const char *what, void **ret, struct pl_error *err);
    /* NULL is ignored. Earlier work may still use the memory. */
    void (*free)(struct pl_device *dev, void *memory);

    /* Host memory with the fastest copies (pinned), for staging and batches. -ENOMEM. */
    int (*host_alloc)(struct pl_device *dev, size_t bytes, void **ret, struct pl_error *err);
    void (*host_free)(struct pl_device *dev, void *memory); /* NULL is ignored */

    /* With 0 bytes these do nothing. from and to must not overlap. */
    void (*zero)(struct pl_device *dev, void *to, size_t bytes);
    /* From the host. The caller may change `from` after the call. */
    void (*upload)(struct pl_device *dev, void *to, const void *from, size_t bytes);
    /* Within the device. */
    void (*copy)(struct pl_device *dev, void *to, const void *from, size_t bytes);
    /* From another device of this table. It runs after all earlier work of both, and later work of
     * both waits for it. If it fails, both are lost. */
    void (*copy_from)(
        struct pl_device *dev, void *to, struct pl_device *source, const void *from, size_t bytes);
    /* To the host; waits. -EIO: something has failed since the device was opened; `to` is
     * undefined. */
    int (*download)(
        struct pl_device *dev, void *to, const void *from, size_t bytes, struct pl_error *err);
    /* Reads at most PL_DEVICE_PEEK bytes without draining the device: peek() queues the copy,
     * peeked() waits for it alone, not for work queued since, and returns it. One at a time. Both
     * are NULL if the device cannot wait for a single copy. -EIO as download. */
    void (*peek)(struct pl_device *dev, const void *from, size_t bytes);
    int (*peeked)(struct pl_device *dev, void *to, size_t bytes, struct pl_error *err);
    /* Waits for all work. -EIO as download. */
    int (*sync)(struct pl_device *dev, struct pl_error *err);

    void (*memory)(struct pl_device *dev, struct pl_device_memory *ret);

    /* Graphs: kernels, zero and copy called between capture_begin and capture_end are recorded with
     * their arguments instead of run; each replay runs them in that order. All four are NULL if the
     * device has no graphs. They apply to the device that the thread has entered.
     *
     * alloc, free, upload, download, peek, sync, and kernels that must allocate memory cannot be
     * recorded: capture_end then fails with the reason (-EIO), and the device is as before
     * capture_begin. capture_end without capture_begin also fails with -EIO. */
    int (*capture_begin)(struct pl_device *dev, struct pl_error *err);
    int (*capture_end)(struct pl_device *dev, struct pl_device_graph **ret, struct pl_error *err);
    /* -ESTALE: a kernel's workspace has moved; nothing was run, and the graph cannot be used again.
     * Other errors are reported like those of kernels. */
    int (*replay)(struct pl_device *dev, struct pl_device_graph *graph);
    /* Waits for its replays. NULL is ignored. */
    void (*graph_free)(struct pl_device *dev, struct pl_device_graph *graph);

    /* The cudaStream_t that carries the device's work; collectives are ordered after it
     * (nccl_table.h). NULL if the device has none. */
    void *(*stream)(struct pl_device *dev);

    /* NULL if the device has no libraries. */
    void (*calls)(struct pl_device *dev, struct pl_device_calls *ret);
};

/* The CPU: one for the whole process, never closed. Any thread may use it at any time. */
struct pl_device *pl_device_cpu(void);

/* Counts memory that the host's collectives have given to the engine (comm.h) as the CPU's own;
 * less than 0: it is given back. */
void pl_device_cpu_count(int64_t bytes);

/* Shorthands for the ops. */
int pl_device_alloc(
    struct pl_device *dev, size_t bytes, const char *what, void **ret, struct pl_error *err);
/* Also zeroes the memory. */
int pl_device_alloc_zero(
    struct pl_device *dev, size_t bytes, const char *what, void **ret, struct pl_error *err);
void pl_device_free(struct pl_device *dev, void *memory);
void pl_device_zero(struct pl_device *dev, void *to, size_t bytes);
void pl_device_upload(struct pl_device *dev, void *to, const void *from, size_t bytes);
/* Calls copy_from, or copy if both are the same device. */
void pl_device_copy_from(
    struct pl_device *dev, void *to, struct pl_device *source, const void *from, size_t bytes);
int pl_device_download(
    struct pl_device *dev, void *to, const void *from, size_t bytes, struct pl_error *err);
int pl_device_sync(struct pl_device *dev, struct pl_error *err);
void pl_device_enter(struct pl_device *dev);

/* A read of a few bytes that does not drain the device: begin it, queue more work, then end it. */
struct pl_device_peek {
    struct pl_device *dev;
    size_t bytes;
    unsigned char now[PL_DEVICE_PEEK]; /* devices without peek download at once */
    int code;
    struct pl_error err;
};

/* bytes: at most PL_DEVICE_PEEK. pl_device_peek_end() returns the errors. */
void pl_device_peek_begin(struct pl_device *dev,
                          const void *from,
                          size_t bytes,
                          struct pl_device_peek *ret);
int pl_device_peek_end(struct pl_device_peek *peek, void *to, struct pl_error *err);

/* Access to device memory from the host, while mapped. */
enum pl_device_access {
    PL_DEVICE_READ = 1,
    PL_DEVICE_WRITE = 2, /* all of it is written, unless READ is set too */
};

struct pl_device_map {
    struct pl_device *dev;
    void *data; /* the host's view; equals memory on the CPU */
    void *memory;
    size_t bytes;
    enum pl_device_access access;
};

/* Maps device memory. Nothing else may use it until it is unmapped. A zeroed map may be unmapped.
 * -ENOMEM, -EIO. */
int pl_device_map(struct pl_device *dev,
                  void *memory,
                  size_t bytes,
                  enum pl_device_access access,
                  struct pl_device_map *ret,
                  struct pl_error *err);
/* Unmaps. If mapped for writing, the contents go to the device. */
void pl_device_unmap(struct pl_device_map *map);

#endif
