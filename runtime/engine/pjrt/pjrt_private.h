/* SPDX-License-Identifier: MIT */
/* Shared by the files of plume-pjrt.so, the only part that sees PJRT's header: plugin_pjrt.c has
 * the plugin, its devices and the table, pjrt_hosts.c what several hosts need, pjrt_program.c
 * compiles, and pjrt_array.c copies and runs. */
#ifndef PL_RUNTIME_ENGINE_PJRT_PJRT_PRIVATE_H
#define PL_RUNTIME_ENGINE_PJRT_PJRT_PRIVATE_H

#include "common/base/macros.h"
#include "runtime/engine/xla/pjrt_table.h"

#include <pjrt_c_api.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

struct pl_pjrt {
    const PJRT_Api *api;
    PJRT_Client *client;
    PJRT_Device **devices;
    size_t n;
    PJRT_Device **everywhere; /* of all hosts, in their order: hosts->n times n; NULL: one host */
    const struct pl_pjrt_hosts *hosts;
    unsigned starts; /* of the client */
    char platform[64];
    struct pl_buf identity; /* see the table */
};

struct pl_pjrt_program {
    PJRT_LoadedExecutable *executable;
    size_t outputs;
};

/* Turns an error of PJRT into ours, and frees it; NULL is none. `what`: the call that failed. */
int pl_pjrt_fail(const PJRT_Api *api, PJRT_Error *error, const char *what, struct pl_error *err);

/* Waits for an event, and frees it. NULL is ignored. */
int pl_pjrt_await(const PJRT_Api *api, PJRT_Event *event, const char *what, struct pl_error *err);

/* For several hosts: what the plugin tells the others by. */
void pl_pjrt_set_callbacks(struct pl_pjrt *p, PJRT_Client_Create_Args *create);

/* The processes that the client sees. */
int pl_pjrt_processes(const struct pl_pjrt *p, size_t *ret, struct pl_error *err);

/* Opens n devices of each host: those of the list, by the place among a host's, or the first.
 * -ENODEV. Collective over the hosts. */
int pl_pjrt_find_everywhere(struct pl_pjrt *p,
                            const unsigned *list,
                            size_t n,
                            struct pl_error *err);

/* The functions of the table: */
int pl_pjrt_compile(struct pl_pjrt *p,
                    const char *text,
                    size_t len,
                    bool everywhere,
                    size_t outputs,
                    struct pl_pjrt_program **ret,
                    struct pl_error *err);
int pl_pjrt_save(struct pl_pjrt *p,
                 const struct pl_pjrt_program *program,
                 struct pl_buf *to,
                 struct pl_error *err);
int pl_pjrt_load(struct pl_pjrt *p,
                 const char *data,
                 size_t len,
                 size_t outputs,
                 struct pl_pjrt_program **ret,
                 struct pl_error *err);
void pl_pjrt_program_free(struct pl_pjrt *p, struct pl_pjrt_program *program);

/* Sets p->identity once the devices are open. -EIO, -ENOMEM. */
int pl_pjrt_identify(struct pl_pjrt *p, struct pl_error *err);
int pl_pjrt_upload(struct pl_pjrt *p,
                   enum pl_pjrt_type type,
                   size_t rank,
                   const size_t *shape,
                   const void *const *data,
                   struct pl_pjrt_array **ret,
                   struct pl_error *err);
int pl_pjrt_download(struct pl_pjrt *p,
                     const struct pl_pjrt_array *array,
                     size_t device,
                     void *to,
                     size_t bytes,
                     struct pl_error *err);
void pl_pjrt_array_free(struct pl_pjrt *p, struct pl_pjrt_array *array);
int pl_pjrt_run(struct pl_pjrt *p,
                const struct pl_pjrt_program *program,
                struct pl_pjrt_array *const *in,
                size_t n_in,
                struct pl_pjrt_array **ret,
                struct pl_error *err);

#endif
