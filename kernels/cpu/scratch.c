/* SPDX-License-Identifier: MIT */
#include "kernels/cpu/scratch.h"
#include "common/base/memory.h"
#include "kernels/kernels.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

struct scratch {
    void *memory[PL_SCRATCH_COUNT];
    size_t bytes[PL_SCRATCH_COUNT];
};

static pthread_key_t key;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static int key_error;
static _Thread_local struct scratch *mine;
static atomic_bool lost;

static void destroy(void *p)
{
    struct scratch *s = p;

    for (size_t i = 0; i < PL_SCRATCH_COUNT; i++)
        free(s->memory[i]);
    free(s);
}

static void make_key(void)
{
    key_error = pthread_key_create(&key, destroy);
}

void *pl_scratch(enum pl_scratch use, size_t bytes)
{
    pthread_once(&once, make_key);
    if (key_error)
        return NULL;
    if (!mine) {
        struct scratch *s = calloc(1, sizeof(*s));

        if (!s || pthread_setspecific(key, s) != 0) {
            free(s);
            return NULL;
        }
        mine = s;
    }
    if (mine->bytes[use] < bytes) {
        size_t rounded = (bytes + 4095) / 4096 * 4096;
        void *p;

        if (pl_memory_alloc(64, rounded, &p) < 0)
            return NULL;
        free(mine->memory[use]);
        mine->memory[use] = p;
        mine->bytes[use] = rounded;
    }
    return mine->memory[use];
}

void pl_scratch_lost(void)
{
    atomic_store(&lost, true);
}

bool pl_kernels_lost(void)
{
    return atomic_load(&lost);
}
