/* SPDX-License-Identifier: MIT */
/* Data files: what the parser accepts lies inside the file, and all of it can be read. */
#include "runtime/engine/data/npy.h"
#include "runtime/engine/device/tensor.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct pl_error err = {0};
    struct plume_array a;
    size_t bytes, sum = 0, count = 1;

    if (pl_npy_parse(data, size, &a, &err) < 0) {
        FUZZ_CHECK(err.code < 0 && err.text[0]);
        return 0;
    }
    bytes = a.count * pl_dtype_size(a.dtype);
    FUZZ_CHECK(a.rank <= PLUME_RANK_MAX);
    for (size_t i = 0; i < a.rank; i++)
        count *= a.shape[i];
    FUZZ_CHECK(count == a.count);
    FUZZ_CHECK(a.own || (const uint8_t *)a.data + bytes <= data + size);
    for (size_t i = 0; i < bytes; i++)
        sum += ((const uint8_t *)a.data)[i];
    FUZZ_CHECK(sum <= bytes * 255);
    pl_array_close(&a);
    return 0;
}
