/* SPDX-License-Identifier: MIT */
/* The CUDA allocator and the staging buffers, on a runtime that does its work as late as it may. */
#include "common/base/macros.h"
#include "runtime/engine/cuda/alloc/alloc_private.h"
#include "runtime/engine/cuda/alloc/staging.h"
#include "tests/fakes/fake_cudart.h"

#include <cuda_runtime_api.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#define MIB ((size_t)1 << 20)
#define SLOTS 60

static struct pl_cuda_alloc *make(size_t limit)
{
    struct pl_cuda_alloc *a = NULL;

    assert_int_equal(pl_cuda_alloc_create("cuda:0 (Fake)", limit, &a, NULL), 0);
    return a;
}

static void *get(struct pl_cuda_alloc *a, size_t bytes, cudaStream_t stream)
{
    struct pl_error err = {0};
    void *p = NULL;

    if (pl_cuda_alloc_get(a, bytes, stream, "a test", &p, &err) < 0)
        fail_msg("%s", pl_error_text(&err));
    return p;
}

static cudaStream_t stream(void)
{
    cudaStream_t s = NULL;

    assert_int_equal(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking), 0);
    return s;
}

static struct pl_cuda_alloc_stats stats(struct pl_cuda_alloc *a)
{
    struct pl_cuda_alloc_stats s;

    pl_cuda_alloc_stats(a, &s);
    assert_int_equal(s.in_use_bytes + s.cached_bytes, s.reserved_bytes);
    assert_int_equal(s.reserved_bytes, fake_cuda.used_bytes);
    return s;
}

static void test_size_class_never_falls(void **state)
{
    unsigned before = 0;

    for (size_t bytes = PL_CUDA_ALIGN; bytes < (size_t)1 << 41;
         bytes += bytes / 7 / 512 * 512 + 512) {
        unsigned class = pl_cuda_size_class(bytes);

        assert_in_range(class, before, PL_CUDA_CLASSES - 1);
        before = class;
    }
    assert_int_equal(pl_cuda_size_class(PL_CUDA_ALIGN), 0);
    assert_int_equal(before, PL_CUDA_CLASSES - 1);
    assert_int_equal(pl_cuda_block_size(0), 512);
    assert_int_equal(pl_cuda_block_size(513), 1024);
    assert_int_equal(pl_cuda_segment_size(MIB), 2 * MIB);
    assert_int_equal(pl_cuda_segment_size(MIB + 512), 20 * MIB);
    assert_int_equal(pl_cuda_segment_size(10 * MIB + 512), 12 * MIB);
}

static void test_get_splits_and_put_merges(void **state)
{
    struct pl_cuda_alloc *a;
    char *p[4];

    fake_cuda_reset(100 * MIB);
    a = make(0);
    for (size_t i = 0; i < 4; i++)
        p[i] = get(a, 1000, NULL);
    for (size_t i = 1; i < 4; i++)
        assert_ptr_equal(p[i], p[0] + 1024 * i);
    assert_int_equal(stats(a).device_allocs, 1);
    assert_int_equal(stats(a).in_use_bytes, 4096);
    pl_cuda_alloc_put(a, p[1]);
    pl_cuda_alloc_put(a, p[2]);
    assert_ptr_equal(get(a, 2048, NULL), p[1]); /* the two are one, and fit best */
    pl_cuda_alloc_put(a, p[1]);
    pl_cuda_alloc_put(a, p[0]);
    pl_cuda_alloc_put(a, p[3]);
    assert_ptr_equal(get(a, MIB, NULL), p[0]);
    assert_int_equal(stats(a).device_allocs, 1);
    pl_cuda_alloc_put(a, p[0]);
    pl_cuda_alloc_put(a, p[0]); /* no block any more */
    assert_int_equal(stats(a).in_use_bytes, 0);
    assert_int_equal(stats(a).in_use_peak_bytes, MIB);
    pl_cuda_alloc_trim(a);
    assert_int_equal(stats(a).reserved_bytes, 0);
    assert_int_equal(stats(a).reserved_peak_bytes, 2 * MIB);
    pl_cuda_alloc_destroy(a);
    fake_cuda_reset(0);
}

static void test_pools_are_streams_own(void **state)
{
    struct pl_cuda_alloc *a;
    cudaStream_t s, t;
    char *p;

    fake_cuda_reset(100 * MIB);
    a = make(0);
    s = stream();
    t = stream();
    p = get(a, 4000, s);
    cudaMemsetAsync(p, 1, 4000, s);
    pl_cuda_alloc_put(a, p);
    assert_ptr_not_equal(get(a, 4000, t), p);
    assert_ptr_equal(get(a, 4000, s), p); /* at once: its work is queued before */

    /* A block that another stream uses waits for that stream only. */
    assert_int_equal(pl_cuda_alloc_used_by(a, p, t, NULL), 0);
    assert_int_equal(pl_cuda_alloc_used_by(a, p, s, NULL), 0);
    cudaMemsetAsync(p, 2, 4000, t);
    pl_cuda_alloc_put(a, p);
    assert_ptr_not_equal(get(a, 4000, s), p);
    assert_int_equal(stats(a).blocks, 2);
    cudaStreamSynchronize(t);
    assert_ptr_equal(get(a, 4000, s), p);
    pl_cuda_alloc_destroy(a);
    cudaStreamDestroy(s);
    cudaStreamDestroy(t);
    fake_cuda_reset(0);
}

static bool saw_full;

static void look(void *ctx)
{
    saw_full = ((char *)ctx)[0] == 7 && ((char *)ctx)[30 * MIB - 1] == 7;
}

static void test_take_over_waits_for_the_other_stream(void **state)
{
    struct pl_cuda_alloc *a;
    cudaStream_t s, t;
    char *p;

    fake_cuda_reset(40 * MIB);
    a = make(0);
    s = stream();
    t = stream();
    p = get(a, 30 * MIB, s);
    cudaMemsetAsync(p, 7, 30 * MIB, s);
    fake_cuda_queue(s, look, p);
    pl_cuda_alloc_put(a, p);
    assert_ptr_equal(get(a, 25 * MIB, t), p);
    assert_int_equal(stats(a).takeovers, 1);
    assert_int_equal(stats(a).device_frees, 0);
    cudaMemsetAsync(p, 9, 25 * MIB, t);
    cudaStreamSynchronize(t); /* the fake would do t's first, were it not for the event */
    assert_true(saw_full);
    pl_cuda_alloc_put(a, p);
    /* Now t's: too small for s, so the segment returns to the device. */
    assert_non_null(get(a, 36 * MIB, s));
    assert_int_equal(stats(a).device_frees, 1);
    pl_cuda_alloc_destroy(a);
    cudaStreamDestroy(s);
    cudaStreamDestroy(t);
    fake_cuda_reset(0);
}

static void test_out_of_memory_names_sizes_and_holders(void **state)
{
    struct pl_cuda_alloc *a;
    struct pl_error err = {0};
    void *p = NULL, *small = NULL;

    fake_cuda_reset(100 * MIB);
    a = make(0);
    assert_int_equal(pl_cuda_alloc_get(a, 50 * MIB, NULL, "gradients", &p, NULL), 0);
    for (size_t i = 0; i < 2; i++)
        assert_int_equal(pl_cuda_alloc_get(a, MIB, NULL, "parameters", &small, NULL), 0);
    p = NULL;
    assert_int_equal(pl_cuda_alloc_get(a, 60 * MIB, NULL, "the step", &p, &err), -ENOMEM);
    assert_null(p);
    assert_string_equal(err.text,
                        "out of memory on cuda:0 (Fake): 60.0 MiB asked for the step; in use 52.0 "
                        "MiB, free in pieces 0 bytes, the device has 48.0 MiB of 100.0 MiB left; "
                        "most is held by gradients (50.0 MiB in 1 block), parameters (2.0 MiB in 2 "
                        "blocks); take a smaller batch or accumulate gradients");
    assert_int_equal(pl_cuda_alloc_get(a, SIZE_MAX, NULL, "all", &p, &err), -ENOMEM);
    assert_int_equal(cudaGetLastError(), cudaSuccess); /* not left for the next to find */
    /* 20 MiB are the usual piece for the second, but 10 suffice. */
    assert_int_equal(pl_cuda_alloc_get(a, 30 * MIB, NULL, "more", &p, NULL), 0);
    assert_int_equal(pl_cuda_alloc_get(a, 9 * MIB, NULL, "more", &p, NULL), 0);
    pl_cuda_alloc_destroy(a);
    fake_cuda_reset(0);
}

static void test_limit_holds(void **state)
{
    struct pl_cuda_alloc *a;
    struct pl_error err = {0};
    void *p = NULL;

    fake_cuda_reset(100 * MIB);
    a = make(40 * MIB);
    assert_int_equal(pl_cuda_alloc_get(a, 30 * MIB, NULL, "x", &p, NULL), 0);
    assert_int_equal(pl_cuda_alloc_get(a, 12 * MIB, NULL, "y", &p, &err), -ENOMEM);
    assert_non_null(strstr(err.text, "in use 30.0 MiB of the limit of 40.0 MiB"));
    assert_int_equal(pl_cuda_alloc_get(a, 9 * MIB, NULL, "y", &p, NULL), 0);
    assert_int_equal(stats(a).reserved_bytes, 40 * MIB);
    pl_cuda_alloc_destroy(a);
    fake_cuda_reset(0);
}

static void test_a_lost_device_is_no_lack_of_memory(void **state)
{
    struct pl_cuda_alloc *a;
    struct pl_error err = {0};
    void *p = NULL;

    fake_cuda_reset(100 * MIB);
    a = make(0);
    fake_cuda.fails = "cudaMalloc";
    fake_cuda.code = cudaErrorIllegalAddress;
    assert_int_equal(pl_cuda_alloc_get(a, MIB, NULL, "x", &p, &err), -EIO);
    assert_string_equal(err.text, "cudaMalloc failed on cuda:0 (Fake): an illegal memory access "
                                  "was encountered");
    pl_cuda_alloc_destroy(a);
    fake_cuda_reset(0);
}

/* A block's life in the random test: its streams must read its pattern. */
struct slot {
    unsigned char *at;
    size_t bytes;
    unsigned char pattern;
    cudaStream_t stream;
    unsigned *bad;
};

static void expect(void *ctx)
{
    struct slot *s = ctx;

    for (size_t i = 0; i < s->bytes; i += PL_MAX(s->bytes / 16, (size_t)1))
        *s->bad += s->at[i] != s->pattern;
    *s->bad += s->at[s->bytes - 1] != s->pattern;
    free(s);
}

static void queue_expect(const struct slot *s, cudaStream_t on)
{
    struct slot *copy = malloc(sizeof(*copy));

    assert_non_null(copy);
    *copy = *s;
    fake_cuda_queue(on, expect, copy);
}

static uint32_t draw(uint64_t *seed)
{
    *seed = *seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(*seed >> 33);
}

static size_t draw_size(uint64_t *seed)
{
    switch (draw(seed) % 8) {
    case 0:
        return 1 + draw(seed) % (12 * MIB);
    case 1:
        return 1 + draw(seed) % (3 * MIB);
    default:
        return 1 + draw(seed) % 5000;
    }
}

/* Fills a new block on its stream; often another stream then reads it, after an event. */
static void begin(struct pl_cuda_alloc *a, struct slot *s, cudaStream_t *streams, uint64_t *seed)
{
    cudaStream_t other = streams[draw(seed) % 3];
    struct pl_error err = {0};
    void *p = NULL;
    int r;

    s->bytes = draw_size(seed);
    s->stream = streams[draw(seed) % 3];
    s->pattern = (unsigned char)draw(seed);
    r = pl_cuda_alloc_get(a, s->bytes, s->stream, "slot", &p, &err);
    if (r == -ENOMEM) {
        s->at = NULL;
        return;
    }
    assert_int_equal(r, 0);
    s->at = p;
    assert_int_equal((uintptr_t)p % 512, 0);
    assert_true(fake_cuda_owns(p, s->bytes));
    cudaMemsetAsync(p, s->pattern, s->bytes, s->stream);
    queue_expect(s, s->stream);
    if (draw(seed) % 2) {
        cudaEvent_t event = NULL;

        cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
        cudaEventRecord(event, s->stream);
        cudaStreamWaitEvent(other, event, 0);
        cudaEventDestroy(event);
        assert_int_equal(pl_cuda_alloc_used_by(a, p, other, NULL), 0);
        queue_expect(s, other);
    }
}

static void check_apart(const struct slot *slots)
{
    for (size_t i = 0; i < SLOTS; i++)
        for (size_t j = 0; slots[i].at && j < i; j++)
            assert_true(!slots[j].at || slots[i].at + slots[i].bytes <= slots[j].at ||
                        slots[j].at + slots[j].bytes <= slots[i].at);
}

static void run_random(uint64_t seed, size_t total)
{
    struct pl_cuda_alloc *a;
    struct slot slots[SLOTS] = {{0}};
    cudaStream_t streams[3];
    unsigned bad = 0, full = 0;
    uint64_t first = seed;

    fake_cuda_reset(total);
    a = make(0);
    for (size_t i = 0; i < 3; i++)
        streams[i] = stream();
    for (unsigned n = 0; n < 1500; n++) {
        struct slot *s = &slots[draw(&seed) % SLOTS];

        if (s->at) {
            pl_cuda_alloc_put(a, s->at);
            s->at = NULL;
        } else {
            s->bad = &bad;
            begin(a, s, streams, &seed);
            full += !s->at;
        }
        if (draw(&seed) % 4 == 0)
            fake_cuda_advance(draw(&seed) % 12);
        if (n % 50 == 0) {
            check_apart(slots);
            stats(a);
        }
    }
    for (size_t i = 0; i < SLOTS; i++)
        pl_cuda_alloc_put(a, slots[i].at);
    cudaDeviceSynchronize();
    pl_cuda_alloc_trim(a);
    if (bad || stats(a).reserved_bytes || (total < 40 * MIB) != (full > 0))
        fail_msg("seed %llu: %u bad values, %zu bytes left, %u times full",
                 (unsigned long long)first, bad, stats(a).reserved_bytes, full);
    pl_cuda_alloc_destroy(a);
    for (size_t i = 0; i < 3; i++)
        cudaStreamDestroy(streams[i]);
    fake_cuda_reset(0);
}

static void test_random_sequences_keep_every_block_whole(void **state)
{
    for (uint64_t seed = 1; seed <= 6; seed++) {
        run_random(seed, 1024 * MIB);
        run_random(seed, 30 * MIB); /* full at times: takes over, waits, returns segments */
    }
}

static void test_staging_keeps_what_was_given(void **state)
{
    static const size_t sizes[] = {1, 63, 64, 4096, 5000, 40000, 7 * 4096, 3};
    struct pl_cuda_status status = {0};
    struct pl_cuda_staging staging;
    static unsigned char from[40000], back[40000];
    cudaStream_t s;
    void *p = NULL;

    fake_cuda_reset(10 * MIB);
    s = stream();
    assert_int_equal(cudaMalloc(&p, PL_COUNT(sizes) * sizeof(from)), 0);
    for (int pinned = 1; pinned >= 0; pinned--) {
        fake_cuda.no_pinned = !pinned;
        pl_cuda_staging_init(&staging, s, 4096, &status);
        for (size_t i = 0; i < PL_COUNT(sizes); i++) {
            for (size_t j = 0; j < sizes[i]; j++)
                from[j] = (unsigned char)(j * 7 + i + j / 251);
            pl_cuda_staging_upload(&staging, (char *)p + i * sizeof(from), from, sizes[i]);
            memset(from, 0xee, sizeof(from)); /* ours again */
        }
        for (size_t i = 0; i < PL_COUNT(sizes); i++) {
            assert_int_equal(
                pl_cuda_staging_download(&staging, back, (char *)p + i * sizeof(from), sizes[i]),
                0);
            for (size_t j = 0; j < sizes[i]; j++)
                assert_int_equal(back[j], (unsigned char)(j * 7 + i + j / 251));
        }
        assert_int_equal(fake_cuda.pinned, pinned ? PL_CUDA_STAGING_CHUNKS : 0);
        pl_cuda_staging_finish(&staging);
    }
    assert_int_equal(pl_cuda_report(&status, "cuda:0", NULL), 0);
    cudaFree(p);
    cudaStreamDestroy(s);
    fake_cuda_reset(0);
}

static void test_small_uploads_do_not_wait(void **state)
{
    struct pl_cuda_status status = {0};
    struct pl_cuda_staging staging;
    cudaStream_t s;
    void *p = NULL;

    fake_cuda_reset(10 * MIB);
    s = stream();
    assert_int_equal(cudaMalloc(&p, 4096), 0);
    pl_cuda_staging_init(&staging, s, 4096, &status);
    fake_cuda.fails = "cudaEventSynchronize"; /* were it called */
    fake_cuda.code = cudaErrorIllegalAddress;
    for (unsigned i = 0; i < 64 * PL_CUDA_STAGING_CHUNKS; i++)
        pl_cuda_staging_upload(&staging, (char *)p + 4 * i, &i, sizeof(i));
    assert_int_equal(pl_cuda_report(&status, "cuda:0", NULL), 0);
    fake_cuda.fails = NULL;
    cudaStreamSynchronize(s);
    for (unsigned i = 0; i < 64 * PL_CUDA_STAGING_CHUNKS; i++)
        assert_int_equal(((unsigned *)p)[i], i);
    pl_cuda_staging_finish(&staging);
    cudaFree(p);
    cudaStreamDestroy(s);
    fake_cuda_reset(0);
}

static void test_the_first_failure_sticks(void **state)
{
    struct pl_cuda_status status = {0};
    struct pl_cuda_staging staging;
    struct pl_error err = {0};
    cudaStream_t s;
    void *p = NULL;
    char byte = 0;

    fake_cuda_reset(10 * MIB);
    s = stream();
    assert_int_equal(cudaMalloc(&p, 4096), 0);
    pl_cuda_staging_init(&staging, s, 4096, &status);
    fake_cuda.fails = "cudaMemcpyAsync";
    fake_cuda.code = cudaErrorIllegalAddress;
    pl_cuda_staging_upload(&staging, p, &byte, 1);
    fake_cuda.fails = "cudaEventSynchronize";
    assert_int_equal(pl_cuda_staging_download(&staging, &byte, p, 1), -EIO);
    fake_cuda.fails = NULL;
    assert_int_equal(pl_cuda_staging_download(&staging, &byte, p, 1), 0);
    assert_int_equal(pl_cuda_report(&status, "cuda:1", &err), -EIO);
    assert_string_equal(err.text, "cudaMemcpyAsync failed on cuda:1: an illegal memory access was "
                                  "encountered");
    assert_int_equal(cudaGetLastError(), cudaSuccess);
    pl_cuda_staging_finish(&staging);
    cudaFree(p);
    cudaStreamDestroy(s);
    fake_cuda_reset(0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_size_class_never_falls),
        cmocka_unit_test(test_get_splits_and_put_merges),
        cmocka_unit_test(test_pools_are_streams_own),
        cmocka_unit_test(test_take_over_waits_for_the_other_stream),
        cmocka_unit_test(test_out_of_memory_names_sizes_and_holders),
        cmocka_unit_test(test_limit_holds),
        cmocka_unit_test(test_a_lost_device_is_no_lack_of_memory),
        cmocka_unit_test(test_random_sequences_keep_every_block_whole),
        cmocka_unit_test(test_staging_keeps_what_was_given),
        cmocka_unit_test(test_small_uploads_do_not_wait),
        cmocka_unit_test(test_the_first_failure_sticks),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
