/* SPDX-License-Identifier: MIT */
/* The CPU as a device, and mapping. */
#include "runtime/engine/device/device.h"
#include "runtime/engine/device/tensor.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

/* More than a sanitizer's malloc() can give is NULL there, too. */
const char *__asan_default_options(void);
const char *__asan_default_options(void)
{
    return "allocator_may_return_null=1";
}

static void test_cpu_memory(void **state)
{
    struct pl_device *cpu = pl_device_cpu();
    struct pl_device_memory before, held, after;
    char back[1000], *p = NULL, *q = NULL;

    cpu->ops->memory(cpu, &before);
    assert_int_equal(pl_device_alloc_zero(cpu, 1000, "a test", (void **)&p, NULL), 0);
    assert_int_equal(pl_device_alloc(cpu, 100000, "a test", (void **)&q, NULL), 0);
    assert_int_equal((uintptr_t)p % PL_DEVICE_ALIGN, 0);
    assert_int_equal((uintptr_t)q % PL_DEVICE_ALIGN, 0);
    cpu->ops->memory(cpu, &held);
    assert_true(held.used >= before.used + 101000 && held.peak >= held.used);
    for (size_t i = 0; i < 1000; i++)
        assert_int_equal(p[i], 0);
    memset(back, 7, sizeof(back));
    pl_device_upload(cpu, q, back, sizeof(back));
    cpu->ops->copy(cpu, p, q, 500);
    assert_int_equal(pl_device_download(cpu, back, p, sizeof(back), NULL), 0);
    assert_true(back[499] == 7 && back[500] == 0);
    assert_int_equal(pl_device_sync(cpu, NULL), 0);
    cpu->ops->copy_from(cpu, p, cpu, q, 600);
    pl_device_copy_from(cpu, p + 600, cpu, q, 100);
    assert_true(p[599] == 7 && p[699] == 7 && p[700] == 0);
    pl_device_free(cpu, p);
    pl_device_free(cpu, q);
    pl_device_free(cpu, NULL);
    cpu->ops->memory(cpu, &after);
    assert_int_equal(after.used, before.used);
}

static void test_cpu_out_of_memory(void **state)
{
    struct pl_error err = {0};
    void *p = NULL;

    assert_int_equal(pl_device_alloc(pl_device_cpu(), SIZE_MAX / 4, "gradients", &p, &err),
                     -ENOMEM);
    assert_non_null(strstr(err.text, "gradients"));
    assert_null(p);
}

static void test_cpu_open(void **state)
{
    const struct pl_device_ops *ops = pl_device_cpu()->ops;
    struct pl_device *dev = NULL;
    unsigned n = 0;

    assert_int_equal(ops->version, PL_DEVICE_VERSION);
    assert_int_equal(ops->count(&n, NULL), 0);
    assert_int_equal(n, 1);
    assert_int_equal(ops->open(1, NULL, &dev, NULL), -ENODEV);
    assert_int_equal(ops->open(0, NULL, &dev, NULL), 0);
    assert_ptr_equal(dev, pl_device_cpu());
    assert_ptr_equal(ops->kernels(dev, PL_REAL_F64), pl_kernels_best(PL_REAL_F64));
    ops->close(dev);
}

/* On the CPU a map is the memory itself. */
static void test_map_cpu(void **state)
{
    struct pl_device_map map = {0};
    double x = 1;

    pl_device_unmap(&map);
    assert_int_equal(
        pl_device_map(pl_device_cpu(), &x, sizeof(x), PL_DEVICE_READ | PL_DEVICE_WRITE, &map, NULL),
        0);
    assert_ptr_equal(map.data, &x);
    *(double *)map.data = 2;
    pl_device_unmap(&map);
    assert_true(x == 2);
}

/* A device that stores complements, so that direct access by the host is detected. */
static void flip(char *to, const char *from, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        to[i] = (char)~from[i];
}

static void odd_upload(struct pl_device *dev, void *to, const void *from, size_t bytes)
{
    flip(to, from, bytes);
}

static int
odd_download(struct pl_device *dev, void *to, const void *from, size_t bytes, struct pl_error *err)
{
    flip(to, from, bytes);
    return dev->index ? pl_error_set(err, -EIO, "lost") : 0;
}

static void test_map_elsewhere(void **state)
{
    const struct pl_device_ops ops = {.upload = odd_upload, .download = odd_download};
    struct pl_device dev = {.ops = &ops};
    char memory[3] = {~1, ~2, ~3};
    struct pl_device_map map = {0};

    assert_int_equal(pl_device_map(&dev, memory, 3, PL_DEVICE_READ, &map, NULL), 0);
    assert_memory_equal(map.data, "\1\2\3", 3);
    ((char *)map.data)[0] = 9;
    pl_device_unmap(&map);
    assert_int_equal(memory[0], ~1); /* read only: nothing is copied back */
    assert_int_equal(pl_device_map(&dev, memory, 3, PL_DEVICE_READ | PL_DEVICE_WRITE, &map, NULL),
                     0);
    ((char *)map.data)[0] = 9;
    pl_device_unmap(&map);
    assert_memory_equal(memory, ((char[]){~9, ~2, ~3}), 3);
    dev.index = 1;
    assert_int_equal(pl_device_map(&dev, memory, 3, PL_DEVICE_READ, &map, NULL), -EIO);
    assert_null(map.data);
}

/* Among them products that are small again after an overflow. */
static void test_shape_count_overflow(void **state)
{
    const size_t half = SIZE_MAX / 2 + 1, root = (size_t)1 << 32;
    size_t count = 7;

    assert_int_equal(pl_shape_count(3, (size_t[]){2, 3, 4}, &count), 0);
    assert_int_equal(count, 24);
    assert_int_equal(pl_shape_count(2, (size_t[]){half, 2}, &count), -ERANGE);
    assert_int_equal(pl_shape_count(2, (size_t[]){root, root}, &count), -ERANGE);
    assert_int_equal(pl_shape_count(3, (size_t[]){3, half / 3 * 2 + 1, 6}, &count), -ERANGE);
    assert_int_equal(pl_shape_count(2, (size_t[]){SIZE_MAX / 16, 2}, &count), -ERANGE);
    assert_int_equal(pl_shape_count(PLUME_RANK_MAX + 1, (size_t[PLUME_RANK_MAX + 1]){1}, &count),
                     -ERANGE);
    assert_int_equal(count, 24);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shape_count_overflow),
        cmocka_unit_test(test_cpu_memory),
        cmocka_unit_test(test_cpu_out_of_memory),
        cmocka_unit_test(test_cpu_open),
        cmocka_unit_test(test_map_cpu),
        cmocka_unit_test(test_map_elsewhere),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
