/* SPDX-License-Identifier: MIT */
/* Batches, with and without the prefetching thread. */
#include "runtime/engine/data/loader.h"
#include "runtime/engine/data/open.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static const uint8_t pixels[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9};
static const uint8_t label[] = {9, 8, 7, 6, 5};
static const struct plume_array image = {
    .dtype = PLUME_U8, .rank = 2, .shape = {5, 2}, .count = 10, .stride = 2, .data = pixels};
static const struct plume_array labels = {
    .dtype = PLUME_U8, .rank = 1, .shape = {5}, .count = 5, .stride = 1, .data = label};

static void test_batches_are_converted(void **state)
{
    struct plume_data data = {.n_fields = 2,
                              .field = {{&image, PLUME_F32, 0.5, 1}, {&labels, PLUME_I32, 0, 0}}};
    const struct plume_batch *batch;
    struct pl_loader l;

    for (int prefetch = 0; prefetch < 2; prefetch++) {
        struct pl_loader_options options = {.batch_size = 2, .world_size = 1, .prefetch = prefetch};

        assert_int_equal(pl_loader_open(&l, &data, &options, NULL), 0);
        assert_int_equal(pl_loader_batches(&l), 3);
        for (size_t first = 0; first < 2; first++) {
            size_t at = 2 * first;

            assert_int_equal(pl_loader_dry(&l)->rows, 2);
            pl_loader_begin(&l, 0, first);
            for (int64_t n = (int64_t)first; (batch = pl_loader_next(&l)); n++) {
                assert_int_equal(batch->index, n);
                assert_int_equal(batch->rows, n < 2 ? 2 : 1);
                assert_int_equal(batch->field[0]->count, batch->rows * 2);
                assert_int_equal(batch->field[1]->shape[0], batch->rows);
                for (size_t row = 0; row < batch->rows; row++, at++) {
                    assert_true(((float *)batch->field[0]->data)[row * 2 + 1] ==
                                (float)(2 * at + 1) * 0.5f + 1);
                    assert_int_equal(((int32_t *)batch->field[1]->data)[row], 9 - at);
                }
            }
            assert_int_equal(at, 5);
            assert_int_equal(pl_loader_result(&l, NULL), 0);
        }
        pl_loader_finish(&l);
    }
    data.drop_last = 1;
    assert_int_equal(pl_loader_open(&l, &data,
                                    &(struct pl_loader_options){.batch_size = 2, .world_size = 1},
                                    NULL),
                     0);
    assert_int_equal(pl_loader_batches(&l), 2);
    pl_loader_finish(&l);
}

static void test_types(void **state)
{
    static const uint16_t u16[] = {1, 65535};
    static const double f64[] = {0.5, -3};
    const struct plume_array arrays[] = {
        {.dtype = PLUME_U16, .rank = 1, .shape = {2}, .count = 2, .stride = 2, .data = u16},
        {.dtype = PLUME_F64, .rank = 1, .shape = {2}, .count = 2, .stride = 8, .data = f64},
    };
    struct plume_data data = {.n_fields = 3,
                              .field = {{&arrays[0], PLUME_I32, 0, 0},
                                        {&arrays[0], PLUME_F32, 2, 0},
                                        {&arrays[1], PLUME_F32, 0, 1}}};
    struct pl_loader_options options = {.real = PL_REAL_F64, .batch_size = 2, .world_size = 1};
    const struct plume_batch *batch;
    struct pl_error err = {0};
    struct pl_loader l;

    assert_int_equal(pl_loader_open(&l, &data, &options, NULL), 0);
    batch = pl_loader_next(&l);
    assert_int_equal(((int32_t *)batch->field[0]->data)[1], 65535);
    assert_true(((double *)batch->field[1]->data)[1] == 131070);
    assert_true(((double *)batch->field[2]->data)[1] == -2);
    pl_loader_finish(&l);
    data.field[2].dtype = PLUME_I32; /* from f64 */
    assert_int_equal(pl_loader_open(&l, &data, &options, &err), -EINVAL);
    assert_non_null(strstr(err.text, "field 2"));
    data.n_fields = 0;
    assert_int_equal(pl_loader_open(&l, &data, &options, NULL), -EINVAL);
    data.n_fields = 1;
    data.field[0].array = NULL;
    assert_int_equal(pl_loader_open(&l, &data, &options, &err), -EINVAL);
    assert_string_equal(err.text, "data field 0 has no array");
    data = (struct plume_data){.n_fields = 2,
                               .field = {{&image, PLUME_F32, 0, 0}, {&arrays[1], PLUME_F32, 0, 0}}};
    assert_int_equal(pl_loader_open(&l, &data, &options, &err), -EINVAL);
    assert_non_null(strstr(err.text, "all need the same"));
}

/* Two times that are a minute apart: in f32 both would be one number before the shift. */
static void test_numbers_far_from_0_are_shifted_before_they_are_rounded(void **state)
{
    static const double f64[] = {1700000000, 1700000060};
    static const float f32[] = {101325, 101330.25f};
    static const int32_t i32[] = {1700000000, 1700000060};
    const struct plume_array arrays[] = {
        {.dtype = PLUME_F64, .rank = 1, .shape = {2}, .count = 2, .stride = 8, .data = f64},
        {.dtype = PLUME_I32, .rank = 1, .shape = {2}, .count = 2, .stride = 4, .data = i32},
        {.dtype = PLUME_F32, .rank = 1, .shape = {2}, .count = 2, .stride = 4, .data = f32},
    };
    struct plume_data data = {.n_fields = 3,
                              .field = {{&arrays[0], PLUME_F32, 1.0 / 60, -1700000000.0 / 60},
                                        {&arrays[1], PLUME_F32, 1.0 / 60, -1700000000.0 / 60},
                                        {&arrays[2], PLUME_F32, 0.1, -10132.5}}};
    struct pl_loader_options options = {.batch_size = 2, .world_size = 1};
    const struct plume_batch *batch;
    struct pl_loader l;

    assert_int_equal(pl_loader_open(&l, &data, &options, NULL), 0);
    batch = pl_loader_next(&l);
    for (size_t i = 0; i < 3; i++) {
        const float *got = batch->field[i]->data;
        float want = i < 2 ? 1 : 0.525f;

        assert_float_equal(got[0], 0, 1e-7);
        assert_float_equal(got[1], want, 1e-6);
    }
    pl_loader_finish(&l);
}

/* Numbers of all types become f64 without a rounding to f32. */
static void test_numbers_of_f64_are_not_rounded_to_f32(void **state)
{
    static const double f64[] = {0, 100.1};
    static const float f32[] = {0, 101};
    static const int32_t i32[] = {0, 16777217};
    static const uint16_t u16[] = {0, 65535};
    static const uint8_t u8[] = {0, 255};
    static const double values[] = {100.1, 101, 16777217, 65535, 255};
    const struct plume_array arrays[] = {
        {.dtype = PLUME_F64, .rank = 1, .shape = {2}, .count = 2, .stride = 8, .data = f64},
        {.dtype = PLUME_F32, .rank = 1, .shape = {2}, .count = 2, .stride = 4, .data = f32},
        {.dtype = PLUME_I32, .rank = 1, .shape = {2}, .count = 2, .stride = 4, .data = i32},
        {.dtype = PLUME_U16, .rank = 1, .shape = {2}, .count = 2, .stride = 2, .data = u16},
        {.dtype = PLUME_U8, .rank = 1, .shape = {2}, .count = 2, .stride = 1, .data = u8},
    };
    struct plume_data data = {.n_fields = PL_COUNT(arrays)};
    struct pl_loader_options options = {.real = PL_REAL_F64, .batch_size = 2, .world_size = 1};
    const struct plume_batch *batch;
    struct pl_loader l;

    for (size_t i = 0; i < PL_COUNT(arrays); i++) {
        data.field[i].array = &arrays[i];
        data.field[i].dtype = PLUME_F32;
        data.field[i].scale = 0.1;
        data.field[i].shift = 1e-9;
    }
    assert_int_equal(pl_loader_open(&l, &data, &options, NULL), 0);
    batch = pl_loader_next(&l);
    for (size_t i = 0; i < PL_COUNT(arrays); i++) {
        const double *got = batch->field[i]->data;

        assert_true(got[0] == 1e-9);
        assert_true(fabs(got[1] - (values[i] * 0.1 + 1e-9)) < 1e-15 * values[i]);
    }
    pl_loader_finish(&l);
}

struct source {
    size_t calls, bad; /* the sample that fails */
};

static int fill(void *ctx, uint64_t epoch, size_t index, void *const *out, size_t real_size)
{
    struct source *s = ctx;

    s->calls++;
    assert_int_equal(real_size, sizeof(float));
    assert_null(out[1]);
    for (size_t i = 0; i < 6; i++)
        ((float *)out[0])[i] = (float)(1000 * epoch + 10 * index + i);
    *(int32_t *)out[2] = (int32_t)index;
    return index == s->bad ? -EIO : 0;
}

static struct plume_data own_source(struct source *s)
{
    return (struct plume_data){
        .n_fields = 3,
        .field = {{NULL, PLUME_F32, 0, 0}, {&labels, PLUME_I32, 0, 0}, {NULL, PLUME_I32, 0, 0}},
        .length = 5,
        .rank = {2, 0, 0},
        .shape = {{2, 3}},
        .fill = fill,
        .ctx = s};
}

static void test_own_source(void **state)
{
    static const size_t order[] = {4, 0, 2};

    for (int prefetch = 0; prefetch < 2; prefetch++) {
        struct pl_loader_options options = {
            .batch_size = 2, .world_size = 1, .prefetch = prefetch, .train = true};
        struct source s = {.bad = SIZE_MAX};
        struct plume_data data = own_source(&s);
        const struct plume_batch *batch;
        struct pl_error err = {0};
        struct pl_loader l;

        data.order = order;
        data.n_order = 3;
        assert_int_equal(pl_loader_open(&l, &data, &options, NULL), 0);
        pl_loader_begin(&l, 7, 0);
        batch = pl_loader_next(&l);
        assert_int_equal(batch->field[0]->rank, 3);
        assert_int_equal(batch->field[0]->shape[2], 3);
        assert_int_equal(batch->field[2]->rank, 1);
        assert_true(((float *)batch->field[0]->data)[5] == 7045);
        assert_true(((float *)batch->field[0]->data)[6] == 7000);
        assert_int_equal(((int32_t *)batch->field[1]->data)[0], 5);
        assert_int_equal(((int32_t *)batch->field[2]->data)[0], 4);
        assert_int_equal(pl_loader_next(&l)->rows, 1);
        assert_null(pl_loader_next(&l));
        assert_int_equal(s.calls, 3);
        /* An error comes in place of its batch. */
        s.bad = 2;
        pl_loader_begin(&l, 0, 0);
        assert_non_null(pl_loader_next(&l));
        assert_null(pl_loader_next(&l));
        assert_int_equal(pl_loader_result(&l, &err), -EIO);
        assert_non_null(strstr(err.text, "data source failed at sample 2"));
        s.bad = SIZE_MAX;
        pl_loader_begin(&l, 0, 0);
        assert_int_equal(pl_loader_result(&l, &err), 0);
        pl_loader_finish(&l);
    }
}

/* Made-up fields, without and with conversion, and as many samples on every rank. */
static void test_synthetic_fields(void **state)
{
    struct plume_source source = {
        .format = PLUME_FORMAT_SYNTHETIC, .samples = 7, .rank = 1, .shape = {301}};
    struct plume_array pictures, classes;
    struct plume_data data = {
        .n_fields = 2, .field = {{&pictures, PLUME_F32, 2, -1}, {&classes, PLUME_I32, 0, 0}}};
    struct pl_loader_options options = {
        .batch_size = 3, .rank = 1, .world_size = 2, .train = true, .keep_order = true};
    const struct plume_batch *batch;
    struct pl_loader l;
    float want[301];

    assert_int_equal(pl_array_open(&source, &pictures, NULL), 0);
    source.rank = 0;
    source.classes = 5;
    assert_int_equal(pl_array_open(&source, &classes, NULL), 0);
    assert_int_equal(pl_loader_open(&l, &data, &options, NULL), 0);
    batch = pl_loader_next(&l);
    assert_int_equal(batch->rows, 3);
    for (size_t row = 0; row < 3; row++) { /* samples 1, 3, 5 */
        uint32_t number;

        pl_synthetic_make(&pictures, 2 * row + 1, 0, 301, (uint32_t *)(void *)want);
        for (size_t i = 0; i < 301; i++)
            assert_true(((float *)batch->field[0]->data)[row * 301 + i] == want[i] * 2 - 1);
        pl_synthetic_make(&classes, 2 * row + 1, 0, 1, &number);
        assert_int_equal(((int32_t *)batch->field[1]->data)[row], number);
    }
    assert_int_equal(pl_loader_next(&l)->rows, 1); /* the padding: sample 0 */
    pl_loader_finish(&l);
    data.drop_tail = 1;
    assert_int_equal(pl_loader_open(&l, &data, &options, NULL), 0);
    assert_int_equal(pl_loader_batches(&l), 1);
    pl_loader_finish(&l);
}

/* Left at any batch, begun anew, and with many epochs: the same numbers as without the thread. */
static void test_prefetching_changes_nothing(void **state)
{
    struct plume_data data = {.n_fields = 1, .field = {{&image, PLUME_F32, 0, 0}}};
    struct pl_loader_options options = {
        .batch_size = 1, .world_size = 2, .rank = 1, .train = true, .seed = 3};
    struct pl_loader plain, threaded;

    assert_int_equal(pl_loader_open(&plain, &data, &options, NULL), 0);
    options.prefetch = 1;
    assert_int_equal(pl_loader_open(&threaded, &data, &options, NULL), 0);
    for (uint64_t epoch = 0; epoch < 200; epoch++) {
        size_t most = epoch % 5;

        pl_loader_begin(&plain, epoch, 0);
        pl_loader_begin(&threaded, epoch, 0);
        for (size_t i = 0; i < most; i++) {
            const struct plume_batch *a = pl_loader_next(&plain), *b = pl_loader_next(&threaded);

            assert_int_equal(!a, !b);
            if (!a)
                break;
            assert_int_equal(a->index, b->index);
            assert_memory_equal(a->field[0]->data, b->field[0]->data, 2 * sizeof(float));
        }
        assert_int_equal(pl_loader_result(&threaded, NULL), 0);
    }
    pl_loader_finish(&plain);
    pl_loader_finish(&threaded);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_batches_are_converted),
        cmocka_unit_test(test_types),
        cmocka_unit_test(test_numbers_far_from_0_are_shifted_before_they_are_rounded),
        cmocka_unit_test(test_numbers_of_f64_are_not_rounded_to_f32),
        cmocka_unit_test(test_own_source),
        cmocka_unit_test(test_synthetic_fields),
        cmocka_unit_test(test_prefetching_changes_nothing),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
