/* SPDX-License-Identifier: MIT */
/* NVIDIA's libraries, looked for and opened at the first call. plume-cuda.so needs none of them to
 * be loaded: a missing one costs only what needs it.
 *
 * Looked for, in this order: the folders of $PLUME_CUDA_LIBS; what the loader knows
 * ($LD_LIBRARY_PATH, the system's packages, what the process has loaded already); CUDA's own
 * folders ($CUDA_HOME, /usr/local/cuda*, /opt/cuda); Python's wheels (nvidia/NAME/lib in the
 * site-packages of $VIRTUAL_ENV, $CONDA_PREFIX, ~/.local, /usr/local and /usr). One that cannot be
 * loaded is told, and the next place is looked at. */
#ifndef PL_RUNTIME_ENGINE_CUDA_LAZY_LAZY_H
#define PL_RUNTIME_ENGINE_CUDA_LAZY_LAZY_H

#include "common/base/error.h"

#include <pthread.h>
#include <stdbool.h>
#include <string.h>

struct pl_lazy {
    const char *name;          /* for people: "cuDNN" */
    const char *file;          /* "libcudnn.so.9"; its number is that of the headers */
    const char *const *before; /* libraries that it opens by name itself: opened first from the same
                                  places, if they are there. NULL ends it; NULL: none */
    const char *advice;        /* how to get it */
    pthread_mutex_t lock;
    bool tried;
    void *handle;
    struct pl_error why; /* it is not there */
};

/* Opens the library at the first call. -ENOENT: it is not there; the text says where it was looked
 * for, and is the same each time. Any thread. */
int pl_lazy_open(struct pl_lazy *lib, struct pl_error *err);

/* The address of a function; NULL if the library or the function is missing. */
void *pl_lazy_find(struct pl_lazy *lib, const char *symbol);

/* The body of a function of the library: it calls the library's, or returns `missing`. */
#define PL_LAZY_CALL(lib, function, missing, ...)                                                  \
    do {                                                                                           \
        static __typeof__(&(function)) lazy_found;                                                 \
        __typeof__(&(function)) lazy_call = __atomic_load_n(&lazy_found, __ATOMIC_ACQUIRE);        \
                                                                                                   \
        if (!lazy_call) {                                                                          \
            void *lazy_symbol = pl_lazy_find((lib), #function);                                    \
                                                                                                   \
            if (!lazy_symbol)                                                                      \
                return missing;                                                                    \
            memcpy(&lazy_call, &lazy_symbol, sizeof(lazy_call));                                   \
            __atomic_store_n(&lazy_found, lazy_call, __ATOMIC_RELEASE);                            \
        }                                                                                          \
        return lazy_call(__VA_ARGS__);                                                             \
    } while (0)

/* Each of the three: 0, or -ENOENT with the text of pl_lazy_open(). */
int pl_lazy_cublaslt(struct pl_error *err);
int pl_lazy_cudnn(struct pl_error *err);
int pl_lazy_nccl(struct pl_error *err);

#endif
