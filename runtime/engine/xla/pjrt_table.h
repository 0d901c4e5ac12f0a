/* SPDX-License-Identifier: MIT */
/* The table that plume-pjrt.so exports: devices that run whole programs, by PJRT's C interface
 * (pjrt_c_api.h in openxla/xla). This header includes no other of PJRT's, so that the engine needs
 * none. One thread at a time uses a client.
 *
 * A client has some devices of this machine. All of them run each program, as its replicas, and
 * each has a copy of each array. Clients of several hosts may run one program together: then the
 * devices of all of them are its replicas, those of host 0 first. */
#ifndef PL_RUNTIME_ENGINE_XLA_PJRT_TABLE_H
#define PL_RUNTIME_ENGINE_XLA_PJRT_TABLE_H

#include "common/base/buf.h"
#include "common/base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PL_PJRT_TABLE_VERSION 4
#define PL_PJRT_TABLE_SYMBOL "pl_pjrt_table"
#define PL_PJRT_RANK_MAX 8
#define PL_PJRT_DEVICES_MAX 64 /* of a client */

enum pl_pjrt_type { PL_PJRT_F32, PL_PJRT_I32, PL_PJRT_U32 };

struct pl_pjrt;
struct pl_pjrt_program;
struct pl_pjrt_array; /* one array on each device */

/* The hosts whose clients run programs together, and what the plugin tells the other ones by. Any
 * thread may call put and get, which are as in kv_store.h. Lives as long as the client. */
struct pl_pjrt_hosts {
    unsigned index, n;
    int (*put)(void *ctx,
               const char *key,
               size_t key_len,
               const char *value,
               size_t len,
               struct pl_error *err);
    int (*get)(void *ctx,
               const char *key,
               size_t key_len,
               unsigned timeout_ms,
               char **ret,
               size_t *ret_len,
               struct pl_error *err);
    void *ctx;
};

struct pl_pjrt_table {
    unsigned version; /* PL_PJRT_TABLE_VERSION */

    /* Loads the plugin at `path` and opens n of its devices: those of the list, or the first ones.
     * hosts: all open as many; NULL: there is this one. -ENOENT: no such file; -ENOTSUP: no plugin,
     * or one of another version of the interface; -ENODEV: fewer devices, or hosts; -EIO: what the
     * plugin says. */
    int (*open)(const char *path,
                const unsigned *list,
                size_t n,
                const struct pl_pjrt_hosts *hosts,
                struct pl_pjrt **ret,
                struct pl_error *err);
    /* Frees all but programs and arrays, which the caller has freed. NULL is ignored. */
    void (*close)(struct pl_pjrt *client);

    /* "cpu", "tpu"; lives as long as the client. */
    const char *(*platform)(const struct pl_pjrt *client);

    /* Compiles StableHLO text. everywhere: for the devices of all hosts, not of this one.
     * `outputs`: the number of arrays that it returns. -EIO. */
    int (*compile)(struct pl_pjrt *client,
                   const char *text,
                   size_t len,
                   bool everywhere,
                   size_t outputs,
                   struct pl_pjrt_program **ret,
                   struct pl_error *err);
    /* All that a compiled program depends on but its text: plugin, devices, and the processor if it
     * is XLA's device. Lives as long as the client; "": not known. */
    const char *(*identity)(const struct pl_pjrt *client);
    /* Appends a compiled program as bytes; makes one of them, in a client of the same identity.
     * -ENOTSUP: the plugin does not; -EIO. */
    int (*save)(struct pl_pjrt *client,
                const struct pl_pjrt_program *program,
                struct pl_buf *to,
                struct pl_error *err);
    int (*load)(struct pl_pjrt *client,
                const char *data,
                size_t len,
                size_t outputs,
                struct pl_pjrt_program **ret,
                struct pl_error *err);
    void (*program_free)(struct pl_pjrt *client, struct pl_pjrt_program *program);

    /* Copies a dense array to each device, data[i] to device i; it may change after the call.
     * -EIO. */
    int (*upload)(struct pl_pjrt *client,
                  enum pl_pjrt_type type,
                  size_t rank,
                  const size_t *shape,
                  const void *const *data,
                  struct pl_pjrt_array **ret,
                  struct pl_error *err);
    /* Waits for the array of a device and copies its `bytes` bytes. -EIO. */
    int (*download)(struct pl_pjrt *client,
                    const struct pl_pjrt_array *array,
                    size_t device,
                    void *to,
                    size_t bytes,
                    struct pl_error *err);
    void (*array_free)(struct pl_pjrt *client, struct pl_pjrt_array *array); /* NULL is ignored */

    /* Starts a program on all devices of this host. Arrays that it takes over (tf.aliasing_output)
     * must be freed and not be used again. ret: as many as compile's outputs. On failure no array
     * is valid that the program takes over. -EIO. */
    int (*run)(struct pl_pjrt *client,
               const struct pl_pjrt_program *program,
               struct pl_pjrt_array *const *in,
               size_t n_in,
               struct pl_pjrt_array **ret,
               struct pl_error *err);
};

#endif
