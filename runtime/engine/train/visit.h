/* SPDX-License-Identifier: MIT */
/* Visitor of a checkpoint: the same walk over a training state saves, checks and loads it, so that
 * each key and tensor has one place in the code (train_state.c).
 *
 * Members of an object remember the first failure in its r: -EINVAL if the text lacks a member or
 * its value does not fit, -ENOMEM. */
#ifndef PL_RUNTIME_ENGINE_TRAIN_VISIT_H
#define PL_RUNTIME_ENGINE_TRAIN_VISIT_H

#include "runtime/engine/checkpoint/checkpoint.h"

enum pl_visit_pass {
    PL_VISIT_SAVE,
    PL_VISIT_CHECK, /* reads everything, changes no tensor */
    PL_VISIT_LOAD,
};

struct pl_visit {
    enum pl_visit_pass pass;
    struct pl_checkpoint *c;      /* changed by PL_VISIT_SAVE only */
    struct pl_error *err;         /* may be NULL */
    struct pl_state_parts *parts; /* PL_VISIT_SAVE: NULL, or gets the shards instead of c */
};

/* A JSON object in the checkpoint's header. */
struct pl_visit_object {
    bool saving;
    struct pl_buf buf; /* saving: the members so far, without braces */
    char *text;        /* else the object; NULL: it is missing */
    int r;             /* of the first member that failed */
};

/* Takes over text, which is NULL while saving. */
struct pl_visit_object pl_visit_open(const struct pl_visit *v, char *text);
void pl_visit_close(struct pl_visit_object *o);

/* Members. A number above max or below 0 does not fit. */
void pl_visit_u64(struct pl_visit_object *o, const char *key, uint64_t *value, uint64_t max);
void pl_visit_double(struct pl_visit_object *o, const char *key, double *value);

/* Saving: appends a key to members. -ENOMEM. */
int pl_visit_key(struct pl_buf *members, const char *key);

/* A key of the header: its text for pl_visit_open(), NULL while saving; a number. */
char *pl_visit_top(const struct pl_visit *v, const char *key);
int pl_visit_top_u64(const struct pl_visit *v, const char *key, uint64_t *value);

/* Saving: a key of the header with the object, or a string, as its value. Returns o->r. */
int pl_visit_set(const struct pl_visit *v, const char *key, struct pl_visit_object *o);
int pl_visit_save_string(const struct pl_visit *v, const char *key, const char *value);

/* Lists of objects. Loading: entry `index` of a key, for pl_visit_open(); NULL if it is missing.
 * Saving: appends an object to the entries; sets a key to the list. */
char *pl_visit_list_entry(const struct pl_visit *v, const char *key, size_t index);
void pl_visit_list_add(struct pl_buf *entries, struct pl_visit_object *o);
int pl_visit_list_set(const struct pl_visit *v, const char *key, const struct pl_buf *entries);

/* True for a tensor's name that is no parameter's or buffer's. */
bool pl_visit_is_state(const char *name);

/* Tensor PREFIXNAME: elements of `dtype` at `data` in the device's memory, in the shape of t.
 * -EINVAL, -ENOMEM, with a text. */
int pl_visit_tensor(const struct pl_visit *v,
                    const char *prefix,
                    const char *name,
                    const plume_tensor *t,
                    enum plume_dtype dtype,
                    struct pl_device *dev,
                    void *data);

/* Saving: the same tensor, whose data come later (checkpoint_parts.h). */
int pl_visit_apart(const struct pl_visit *v,
                   const char *prefix,
                   const char *name,
                   const plume_tensor *t,
                   enum plume_dtype dtype);

#endif
