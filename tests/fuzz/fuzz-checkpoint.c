/* SPDX-License-Identifier: MIT */
/* Checkpoints: what the reader accepts lies inside the file and can be read and written again. The
 * checksums are set right first, or nothing would get past them. */
#include "runtime/engine/checkpoint/checkpoint_private.h"
#include "runtime/engine/util/xxh64.h"
#include "tests/fuzz/fuzz.h"

/* Of release 0.1. */
static void fix_old(uint8_t *b, size_t size)
{
    uint64_t header, data, sums[2];

    memcpy(&header, b + 16, 8);
    memcpy(&data, b + 24, 8);
    if (header > size - 64 || data > size - 64 - header)
        return;
    sums[0] = pl_xxh64(b + 64, header);
    sums[1] = pl_xxh64(b + 64 + header, data);
    memcpy(b + 32, sums, sizeof(sums));
}

static void fix(uint8_t *b, size_t size)
{
    size_t at = 8 + strlen(PL_SAFETENSORS_FRONT);
    char digits[PL_SAFETENSORS_DIGITS + 1];

    if (size >= 64 && memcmp(b, PL_CHECKPOINT_OLD_MAGIC, 8) == 0)
        fix_old(b, size);
    if (size < at + PL_SAFETENSORS_DIGITS || memcmp(b + 8, PL_SAFETENSORS_FRONT, at - 8) != 0)
        return;
    memcpy(b + at, PL_SAFETENSORS_ZEROS, PL_SAFETENSORS_DIGITS);
    snprintf(digits, sizeof(digits), "%016llx", (unsigned long long)pl_xxh64(b, size));
    memcpy(b + at, digits, PL_SAFETENSORS_DIGITS);
}

/* As weights are taken: element by element, from any address. */
static void convert(const struct pl_checkpoint_tensor *t)
{
    bool matrix = t->rank == 2;
    double *to;

    if (!pl_checkpoint_convertible(PLUME_F64, t->dtype))
        return;
    to = malloc(t->bytes / pl_dtype_size(t->dtype) * sizeof(*to) + 1);
    FUZZ_CHECK(to);
    pl_checkpoint_convert(t, matrix, PLUME_F64, to);
    free(to);
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
        convert(&c.tensors[i]);
    }
    FUZZ_CHECK(sum <= bytes * 255);
    pl_checkpoint_get_int(&c, "epoch", &epoch);
    text = pl_checkpoint_get(&c, "callbacks");
    free(text);
    pl_checkpoint_finish(&c);
    free(copy);
    return 0;
}
