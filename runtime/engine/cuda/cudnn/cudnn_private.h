/* SPDX-License-Identifier: MIT */
/* cuDNN's graphs: descriptors, and the plans that run them. For the files that include cudnn.h. */
#ifndef PL_RUNTIME_ENGINE_CUDA_CUDNN_CUDNN_PRIVATE_H
#define PL_RUNTIME_ENGINE_CUDA_CUDNN_CUDNN_PRIVATE_H

#include "runtime/engine/cuda/cudnn/cudnn.h"
#include "runtime/engine/cuda/util/plan_cache.h"
#include "runtime/engine/cuda/util/refused.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PL_DNN_TEXT 256

/* Descriptors that belong together. After the first failure all calls do nothing. Zeroed memory has
 * none. */
struct pl_cudnn_parts {
    void **list; /* cudnnBackendDescriptor_t */
    size_t n, cap;
    bool failed;
    char why[PL_DNN_TEXT]; /* cuDNN's words about the first failure */
};

/* Makes a descriptor of a type (cudnnBackendDescriptorType_t), which is destroyed with the parts;
 * NULL if failed. */
void *pl_cudnn_make(struct pl_cudnn_parts *parts, int type);
/* Attribute and type are cuDNN's numbers; n elements. */
void pl_cudnn_set(struct pl_cudnn_parts *parts,
                  void *desc,
                  int attribute,
                  int type,
                  int64_t n,
                  const void *values);
/* Sets one descriptor. */
void pl_cudnn_set_desc(struct pl_cudnn_parts *parts, void *desc, int attribute, void *value);
void pl_cudnn_finalize(struct pl_cudnn_parts *parts, void *desc);
/* Destroys the descriptors; the parts are empty then, and have not failed. */
void pl_cudnn_drop(struct pl_cudnn_parts *parts);
/* Takes a descriptor away from the parts: the caller destroys it. */
void *pl_cudnn_take(struct pl_cudnn_parts *parts, void *desc);

/* Finalizes the graph of these ops (cudnnBackendDescriptor_t) for `handle` (cudnnHandle_t; NULL:
 * for a described device). NULL: parts->failed. */
void *pl_cudnn_graph(struct pl_cudnn_parts *parts, void *handle, int64_t n, void **ops);

/* The cudnnDataType_t of the key's arrays. */
int pl_cudnn_type(const struct pl_conv_key *key);

/* A family of plans whose keys have one type. */
enum pl_cudnn_kind { PL_DNN_CONV, PL_DNN_ATTENTION, PL_DNN_KINDS };

/* Makes a plan of the family. */
struct pl_cudnn_recipe {
    void *(*graph)(struct pl_cudnn_parts *parts, void *handle, const void *key);
    /* True if an engine with this cudnnBackendNumericalNote_t may be used. */
    bool (*may_take)(const void *key, int note);
    /* Why this cuDNN must not be asked for the key, NULL: it may. May be NULL. */
    const char *(*refuse)(const void *key);
    /* Names the key for a person. */
    void (*describe)(const void *key, char text[PL_DNN_TEXT]);
    /* The way in which the key does its op, such as "in one pass", if cuDNN is asked for it in
     * another way where it refuses this one; NULL: it is not. May be NULL. */
    const char *(*way)(const void *key);
    /* The array that a plan adds to: its id, and its size; 0 bytes if it only writes. NULL: plans
     * of the family must not run more often than asked for. */
    int64_t (*output)(const void *key, size_t *ret_bytes);
    size_t workspace; /* limit of an engine's workspace, in bytes */
};

extern const struct pl_cudnn_recipe pl_cudnn_recipe_conv, pl_cudnn_recipe_attention;

/* A plan's descriptors live as long as the plan. */
struct pl_cudnn_plan {
    void *desc;   /* cudnnBackendDescriptor_t; NULL: no engine */
    void *config; /* its configuration */
    struct pl_cudnn_parts graph;
    size_t workspace_bytes;
    int64_t engine; /* its number among all of cuDNN's */
    uint64_t notes; /* bit i: its cudnnBackendNumericalNote_t i */
    size_t place;   /* in the heuristics' list, from 0 */
    bool fallback;  /* of the list of fallbacks */
};

/* A pl_cudnn for a device that need not be there, described in the JSON of
 * CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION. Its plans can be made and looked at, not run.
 * -ENOENT, -EIO, -ENOMEM. */
int pl_cudnn_create_described(const char *json, struct pl_cudnn **ret, struct pl_error *err);

#define PL_DNN_ARRAYS 16

/* An array of a graph, by its tensor's id; on the host if the tensor is passed by value. */
struct pl_cudnn_array {
    int64_t id;
    void *at;
};

struct pl_cudnn {
    void *handle;                    /* cudnnHandle_t; NULL: of a described device */
    struct pl_cudnn_parts described; /* its description */
    struct CUstream_st *stream;
    struct pl_cuda_alloc *alloc;
    struct pl_cuda_status *status;
    struct pl_device_options options;
    void *workspace, *scratch;
    size_t workspace_bytes, scratch_bytes;
    uint64_t moves; /* of the workspace and the scratch memory */
    struct pl_plan_cache plans[PL_DNN_KINDS];
    struct pl_tuned *tuned;   /* of convolutions; NULL: nothing is timed */
    struct pl_cuda_said said; /* what it was not asked for */
    bool told_short;          /* that memory was short */
    uint64_t (*now_ns)(void);
};

#define PL_DNN_CHOICE_BYTES (2 * sizeof(int64_t)) /* of a choice that is kept */

/* The plan for a key, made at the first request; a refusal, or one of cuDNN's fallbacks, is logged
 * then, once per key. Several
 * are timed on the n arrays, which it will run on, if the family's plans may be. NULL: cuDNN has no
 * engine for it. */
struct pl_cudnn_plan *pl_cudnn_find_plan(struct pl_cudnn *dnn,
                                         enum pl_cudnn_kind kind,
                                         const struct pl_cudnn_recipe *recipe,
                                         const void *key,
                                         const struct pl_cudnn_array *arrays,
                                         size_t n);
void pl_cudnn_drop_plan(void *plan);

/* Tells, once, that cuDNN is not asked for this, and why: our own kernels do it. */
void pl_cudnn_unasked(struct pl_cudnn *dnn,
                      const struct pl_cudnn_recipe *recipe,
                      const void *key,
                      const char *why);

/* True if the stream is capturing: nothing can be made then, and the capture has failed. */
bool pl_cudnn_is_captured(struct pl_cudnn *dnn);

/* As pl_cudnn_run(), but returns false if the plan does not work. */
bool pl_cudnn_try(struct pl_cudnn *dnn,
                  const struct pl_cudnn_plan *plan,
                  const struct pl_cudnn_array *arrays,
                  size_t n);

/* Queues the plan; errors are kept in the status. Returns false, and queues nothing, if there is no
 * memory for its workspace. n: at most PL_DNN_ARRAYS. */
bool pl_cudnn_run(struct pl_cudnn *dnn,
                  const struct pl_cudnn_plan *plan,
                  const struct pl_cudnn_array *arrays,
                  size_t n);

void *pl_cudnn_handle(struct pl_cudnn *dnn); /* cudnnHandle_t */
struct pl_cuda_status *pl_cudnn_status(struct pl_cudnn *dnn);

#endif
