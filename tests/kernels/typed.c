/* SPDX-License-Identifier: MIT */
#include "tests/kernels/typed.h"
#include "tests/kernels/arrays.h"

#include <string.h>

#define GUARD 64
#define GUARD_BYTE 0xa5
#define POISON 0xff /* a NaN in every type */

static struct side {
    const struct pl_kernels *table;
    enum pl_real storage;
    struct pl_kernels typed;
    void (*absent)(const char *name);
} sides[TYPED_SIDES];
static const struct typed_memory *elsewhere;

/* The replacement of one array while the op runs. */
struct stand_in {
    unsigned char *memory, *data; /* data: the first element */
    void *copy;                   /* of memory, where the table works; NULL = in memory itself */
    float *original;
    size_t bytes, shift;
    enum pl_real real, storage;
};

float typed_round(enum pl_real storage, float x)
{
    if (storage == PL_REAL_BF16)
        return pl_f32_of_bf16(pl_bf16_of_f32(x));
    return storage == PL_REAL_F16 ? pl_f32_of_f16(pl_f16_of_f32(x)) : x;
}

static void write_at(enum pl_real real, void *p, size_t i, float x)
{
    switch (real) {
    case PL_REAL_F64:
        ((double *)p)[i] = x;
        break;
    case PL_REAL_BF16:
        ((uint16_t *)p)[i] = pl_bf16_of_f32(x);
        break;
    case PL_REAL_F16:
        ((uint16_t *)p)[i] = pl_f16_of_f32(x);
        break;
    default:
        ((float *)p)[i] = x;
    }
}

static float read_at(enum pl_real real, const void *p, size_t i)
{
    switch (real) {
    case PL_REAL_F64:
        return (float)((const double *)p)[i];
    case PL_REAL_BF16:
        return pl_f32_of_bf16(((const uint16_t *)p)[i]);
    case PL_REAL_F16:
        return pl_f32_of_f16(((const uint16_t *)p)[i]);
    default:
        return ((const float *)p)[i];
    }
}

static size_t extent(const struct array *v)
{
    size_t last = 0;

    for (size_t d = 0; d < v->rank; d++)
        last += (v->n[d] - 1) * v->stride[d];
    return last + 1;
}

/* The address of element number i. */
static size_t place(const struct array *v, size_t i)
{
    size_t at = 0;

    for (size_t d = v->rank; d-- > 0; i /= v->n[d])
        at += i % v->n[d] * v->stride[d];
    return at;
}

static size_t count(const struct array *v)
{
    size_t n = 1;

    for (size_t d = 0; d < v->rank; d++)
        n *= v->n[d];
    return n;
}

/* As far from a boundary of 16 bytes as the original is, in elements. */
static void make(const struct side *side, const char *function, struct array *v, struct stand_in *s)
{
    bool stat = v->kind == ARRAY_STAT, raw = v->kind == ARRAY_RAW;
    bool fresh = v->made_by && strstr(function, v->made_by);
    size_t element;

    s->real = stat && side->table->real != PL_REAL_F64 ? PL_REAL_F32 : side->table->real;
    s->storage = stat ? PL_REAL_F32 : side->storage;
    element = raw ? v->element : pl_real_size(s->real);
    s->original = *v->slot;
    s->bytes = extent(v) * element;
    s->shift = GUARD + (uintptr_t)s->original / (raw ? element : sizeof(float)) * element % 64;
    s->memory = aligned_alloc(64, (s->shift + s->bytes + GUARD + 63) / 64 * 64);
    if (!s->memory)
        abort();
    memset(s->memory, GUARD_BYTE, s->shift + s->bytes + GUARD);
    memset(s->memory + s->shift, POISON, s->bytes);
    s->data = s->memory + s->shift;
    if (raw)
        memcpy(s->data, s->original, s->bytes);
    for (size_t i = 0, n = count(v); raw && fresh && i < n; i++)
        memset(s->data + place(v, i) * element, POISON, element);
    for (size_t i = 0, n = count(v); !raw && !fresh && i < n; i++)
        write_at(s->real, s->data, place(v, i), typed_round(s->storage, s->original[place(v, i)]));
    *v->slot = s->data;
    if (elsewhere && side == &sides[TYPED_GOT]) {
        s->copy = elsewhere->put(s->memory, s->shift + s->bytes + GUARD);
        *v->slot = (char *)s->copy + s->shift;
    }
}

static void enter(const struct side *side,
                  const char *function,
                  struct arrays *arrays,
                  struct stand_in *stand_ins)
{
    for (size_t i = 0; i < arrays->n; i++) {
        size_t same = i;

        for (size_t k = 0; k < i; k++)
            if (stand_ins[k].original == *arrays->v[i].slot)
                same = k;
        if (same == i)
            make(side, function, &arrays->v[i], &stand_ins[i]);
        else
            *arrays->v[i].slot = *arrays->v[same].slot;
        if (same != i)
            stand_ins[i] = (struct stand_in){.data = stand_ins[same].data,
                                             .bytes = stand_ins[same].bytes,
                                             .original = stand_ins[same].original,
                                             .real = stand_ins[same].real,
                                             .storage = stand_ins[same].storage};
    }
}

static void leave(struct arrays *arrays, struct stand_in *stand_ins)
{
    for (size_t i = 0; i < arrays->n; i++) {
        struct stand_in *s = &stand_ins[i];

        if (s->copy)
            elsewhere->take(s->memory, s->copy, s->shift + s->bytes + GUARD);
    }
    for (size_t i = 0; i < arrays->n; i++) {
        const struct array *v = &arrays->v[i];
        struct stand_in *s = &stand_ins[i];

        if (v->kind == ARRAY_RAW)
            memcpy(s->original, s->data, s->bytes);
        for (size_t k = 0, n = count(v); v->kind >= ARRAY_OUT && v->kind < ARRAY_RAW && k < n; k++)
            s->original[place(v, k)] =
                typed_round(s->storage, read_at(s->real, s->data, place(v, k)));
    }
    for (size_t i = 0; i < arrays->n; i++) {
        struct stand_in *s = &stand_ins[i];

        for (size_t k = 0; s->memory && k < s->shift + s->bytes + GUARD; k++)
            if ((k < s->shift || k >= s->shift + s->bytes) && s->memory[k] != GUARD_BYTE) {
                fprintf(stderr, "array %zu of the arguments, %zu bytes: byte %td is written\n", i,
                        s->bytes, (ptrdiff_t)k - (ptrdiff_t)s->shift);
                abort();
            }
        free(s->memory);
    }
}

#define WRAP(side, function, args)                                                                 \
    static void side##_##function(const struct pl_##args##_args *given)                            \
    {                                                                                              \
        struct pl_##args##_args a = *given;                                                        \
        struct stand_in stand_ins[ARRAYS_MAX] = {0};                                               \
        struct arrays arrays = {0};                                                                \
                                                                                                   \
        if (!sides[side].table->function)                                                          \
            sides[side].absent(#function);                                                         \
        arrays_of_##args(&a, pl_real_size(sides[side].table->real), &arrays);                      \
        enter(&sides[side], #function, &arrays, stand_ins);                                        \
        sides[side].table->function(&a);                                                           \
        leave(&arrays, stand_ins);                                                                 \
    }
#define WRAP_REF(function, args) WRAP(TYPED_REF, function, args)
#define WRAP_GOT(function, args) WRAP(TYPED_GOT, function, args)
PL_KERNEL_LIST(WRAP_REF)
PL_KERNEL_LIST(WRAP_GOT)

void typed_elsewhere(const struct typed_memory *memory)
{
    elsewhere = memory;
}

const struct pl_kernels *typed_table(enum typed_side side,
                                     const struct pl_kernels *table,
                                     enum pl_real storage,
                                     void (*absent)(const char *name))
{
    struct pl_kernels *t = &sides[side].typed;

    sides[side].table = table;
    sides[side].storage = storage;
    sides[side].absent = absent;
    t->name = table->name;
    t->real = PL_REAL_F32;
#define ENTRY(function, args)                                                                      \
    t->function = side == TYPED_REF ? TYPED_REF_##function : TYPED_GOT_##function;
    PL_KERNEL_LIST(ENTRY)
#undef ENTRY
    return t;
}
