/* SPDX-License-Identifier: MIT */
/* Data files but .npy: the first byte is the format, the second says how it is read. What a parser
 * accepts lies inside the file or its own memory, and every sample can be read. */
#include "runtime/engine/data/open.h"
#include "runtime/engine/device/tensor.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct plume_source source = {0};
    struct pl_error err = {0};
    struct plume_array a;
    size_t sum = 0, bytes;
    unsigned how;

    if (size < 2)
        return 0;
    how = data[1];
    source.format = (enum plume_format)(2 + data[0] % 6);
    source.field = (int)(how & 3);
    source.window = how & 7;
    source.stride = how >> 3 & 3;
    source.ahead = how >> 5 & 1;
    source.header = (int)(how >> 6) - 1;
    source.columns = how & 1 ? "a,1" : NULL;
    source.begin = how & 4 ? 0.5 : 0;
    if (pl_array_parse(data + 2, size - 2, &source, &a, &err) < 0) {
        FUZZ_CHECK(err.code < 0 && err.text[0]);
        return 0;
    }
    FUZZ_CHECK(a.rank >= 1 && a.rank <= PLUME_RANK_MAX);
    bytes = a.shape[0] ? a.count / a.shape[0] * pl_dtype_size(a.dtype) : 0;
    for (size_t i = 0; i < a.shape[0]; i++) {
        const uint8_t *p = (const uint8_t *)a.data + i * a.stride;

        FUZZ_CHECK(a.own || (p >= data && p + bytes <= data + size));
        for (size_t k = 0; k < bytes; k++)
            sum += p[k];
    }
    FUZZ_CHECK(sum <= a.count * 8 * 255);
    for (size_t i = 1; i < a.n_vocabulary; i++)
        FUZZ_CHECK(a.vocabulary[i - 1] < a.vocabulary[i]);
    pl_array_close(&a);
    return 0;
}
