/* SPDX-License-Identifier: MIT */
/* Shared by checkpoint.c (in memory), checkpoint_file.c (on disk) and the two formats. */
#ifndef PL_RUNTIME_ENGINE_CHECKPOINT_CHECKPOINT_PRIVATE_H
#define PL_RUNTIME_ENGINE_CHECKPOINT_CHECKPOINT_PRIVATE_H

#include "runtime/engine/checkpoint/checkpoint.h"

/* Makes room for one more tensor. */
int pl_checkpoint_room(struct pl_checkpoint *checkpoint, struct pl_error *err);

/* Checks a tensor that is to be added, makes room for it and sets its shape and bytes. -EINVAL,
 * -EEXIST, -ENOMEM. */
int pl_checkpoint_check_new(struct pl_checkpoint *checkpoint,
                            const char *name,
                            struct pl_checkpoint_tensor *t,
                            const size_t *shape,
                            struct pl_error *err);

/* -EINVAL if two tensors have one name; -ENOMEM. */
int pl_checkpoint_check_names(const struct pl_checkpoint *checkpoint);

/* Reads the shape in an object's key "shape" and sets the bytes by t->dtype. -EINVAL. */
int pl_checkpoint_read_shape(const char *text, struct pl_checkpoint_tensor *t);

/* The format of release 0.1. */
#define PL_CHECKPOINT_OLD_MAGIC "PLUMECKP"
int pl_checkpoint_parse_old(const void *bytes,
                            size_t len,
                            struct pl_checkpoint *ret,
                            struct pl_error *err);

/* The length and the header, without its checksum. The data follow it, wide types first. -EFBIG. */
int pl_checkpoint_front(const struct pl_checkpoint *checkpoint,
                        struct pl_buf *ret,
                        struct pl_error *err);

/* Makes a new temporary file beside the path; caller frees *ret_temp. -errno. */
int pl_checkpoint_open_temp(const char *path, char **ret_temp, int *ret_fd, struct pl_error *err);

/* safetensors. The header is padded so that the data begins at a multiple of 64 bytes. */
int pl_safetensors_header(const struct pl_checkpoint *checkpoint, struct pl_buf *ret);
int pl_safetensors_parse(const void *bytes,
                         size_t len,
                         struct pl_checkpoint *ret,
                         struct pl_error *err);

/* Little-endian numbers. */
void pl_checkpoint_put(unsigned char *p, uint64_t value, size_t bytes);
uint64_t pl_checkpoint_get_number(const unsigned char *p, size_t bytes);

/* Place of the checksum's digits in a header that Plume wrote. */
#define PL_SAFETENSORS_FRONT "{\"__metadata__\":{\"plume.xxh64\":\""
#define PL_SAFETENSORS_DIGITS 16
#define PL_SAFETENSORS_ZEROS "0000000000000000"

#endif
