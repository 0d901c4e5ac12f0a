/* SPDX-License-Identifier: MIT */
/* Synthetic samples: element e of sample s is lane e % 4 of Philox4x32-10 at counter (e / 4, s). */
#include "kernels/philox.h"
#include "runtime/engine/data/array.h"

#include <string.h>

int pl_synthetic_parse(const void *bytes,
                       size_t len,
                       const struct plume_source *source,
                       struct plume_array *ret,
                       struct pl_error *err)
{
    size_t shape[PLUME_RANK_MAX], begin, end;
    int r = pl_array_share(source, source->samples, &begin, &end, err);

    (void)bytes;
    (void)len;
    if (r < 0)
        return r;
    if (source->samples == 0)
        return pl_error_set(err, -EINVAL, "synthetic data needs a number of samples");
    if (source->rank >= PLUME_RANK_MAX)
        return pl_error_set(err, -EINVAL, "a sample has at most %d dimensions, not %zu",
                            PLUME_RANK_MAX - 1, source->rank);
    if (source->classes > INT32_MAX)
        return pl_error_set(err, -EINVAL, "%u classes are too many for an int32", source->classes);
    shape[0] = end - begin;
    memcpy(shape + 1, source->shape, source->rank * sizeof(*shape));
    ret->dtype = source->classes ? PLUME_I32 : PLUME_F32;
    ret->synthetic = true;
    ret->classes = source->classes;
    ret->key = source->seed ^ (uint64_t)source->classes
                                  << 32; /* different fields of one seed differ */
    ret->first = begin;
    return pl_array_set_shape(ret, source->rank + 1, shape, err);
}

void pl_synthetic_make(
    const struct plume_array *array, size_t sample, size_t begin, size_t n, uint32_t *ret)
{
    for (size_t i = 0; i < n; i += 4) {
        uint32_t bits[4];

        pl_philox(array->key, (begin + i) / 4, array->first + sample, bits);
        for (size_t k = 0; k < 4 && i + k < n; k++) {
            float real = (float)(bits[k] >> 8) * 0x1p-24f;

            if (array->classes)
                ret[i + k] = (uint32_t)((uint64_t)bits[k] * array->classes >> 32);
            else
                memcpy(&ret[i + k], &real, sizeof(real));
        }
    }
}
