/* SPDX-License-Identifier: MIT */
/* Checkpoints: what the reader accepts lies inside the file and can be read and written again. The
 * checksums are set right first, or nothing would get past them. */
#include "runtime/engine/checkpoint/checkpoint.h"
#include "runtime/engine/util/xxh64.h"
#include "tests/fuzz/fuzz.h"

static void fix(uint8_t *b, size_t size)
{
    uint64_t header, data, sums[2];

    if (size < 64)
        return;
    memcpy(&header, b + 16, 8);
    memcpy(&data, b + 24, 8);
    if (header > size - 64 || data > size - 64 - header)
        return;
    sums[0] = pl_xxh64(b + 64, header);
    sums[1] = pl_xxh64(b + 64 + header, data);
    memcpy(b + 32, sums, sizeof(sums));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint8_t *copy = malloc(size + 1);
    struct pl_checkpoint c = {0};
    struct pl_error err = {0};
    size_t sum = 0, bytes = 0;
    int64_t epoch;
    char *text;

    FUZZ_CHECK(copy);
    if (size)
        memcpy(copy, data, size);
    fix(copy, size);
    if (pl_checkpoint_parse(copy, size, &c, &err) < 0) {
        FUZZ_CHECK(err.code < 0 && err.text[0]);
        free(copy);
        return 0;
    }
    for (size_t i = 0; i < c.n; i++) {
        const uint8_t *p = c.tensors[i].data;

        FUZZ_CHECK(pl_checkpoint_find(&c, c.tensors[i].name) == &c.tensors[i]);
        FUZZ_CHECK(p >= copy && p + c.tensors[i].bytes <= copy + size);
        bytes += c.tensors[i].bytes;
        for (size_t k = 0; k < c.tensors[i].bytes; k++)
            sum += p[k];
    }
    FUZZ_CHECK(sum <= bytes * 255);
    pl_checkpoint_get_int(&c, "epoch", &epoch);
    text = pl_checkpoint_get(&c, "callbacks");
    free(text);
    pl_checkpoint_finish(&c);
    free(copy);
    return 0;
}
