/* SPDX-License-Identifier: MIT */
/* plume-cuda.so itself, with NVIDIA's libraries: it loads, is of this release, exports nothing
 * but its tables, and says what is missing. Where there is a GPU, memory goes there and back. */
#include "runtime/engine/gpu.h"

#include <dlfcn.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static const struct pl_device_ops *load(void)
{
    const struct pl_device_ops *ops = NULL;
    struct pl_error err = {0};

    assert_int_equal(setenv("PLUME_PLUGIN_DIR", PL_CUDA_PLUGIN_DIR, 1), 0);
    if (pl_gpu_devices(&ops, &err) < 0)
        fail_msg("%s", pl_error_text(&err));
    return ops;
}

static void test_it_exports_its_tables_only(void **state)
{
    void *handle = dlopen(PL_CUDA_PLUGIN, RTLD_NOW | RTLD_LOCAL);
    const struct pl_nccl_table *nccl;

    if (!handle)
        fail_msg("%s", dlerror());
    assert_non_null(dlsym(handle, PL_DEVICE_CUDA_SYMBOL));
    assert_null(dlsym(handle, "pl_error_set"));
    assert_null(dlsym(handle, "pl_kernels_cuda"));
    assert_int_equal(dlsym(handle, PL_NCCL_TABLE_SYMBOL) != NULL, PL_HAVE_NCCL);
    load();
    assert_int_equal(pl_gpu_nccl(&nccl, NULL), PL_HAVE_NCCL ? 0 : -ENOTSUP);
    assert_int_equal(dlclose(handle), 0);
}

static void test_it_counts_devices_or_says_why_not(void **state)
{
    const struct pl_device_ops *ops = load();
    struct pl_device *dev = NULL;
    struct pl_error err = {0};
    unsigned n = 0;
    int r;

    assert_string_equal(ops->name, "cuda");
    assert_false(ops->host);
    r = ops->count(&n, &err);
    if (r == 0) {
        assert_in_range(n, 1, 1024);
        return;
    }
    assert_int_equal(r, -ENODEV);
    assert_true(strstr(err.text, "driver") || strstr(err.text, "GPU"));
    assert_int_equal(ops->open(0, &dev, NULL), -ENODEV);
    assert_null(dev);
}

static void test_tables_are_complete(void **state)
{
    const struct pl_device_ops *ops = load();

    for (enum pl_real real = PL_REAL_F32; real <= PL_REAL_F16; real++) {
        const struct pl_kernels *k = ops->kernels(NULL, real);

        assert_non_null(k);
        assert_int_equal(k->real, real);
        assert_memory_equal(k->name, "cuda/", 5);
#define THERE(function, args) assert_non_null(k->function);
        PL_KERNEL_LIST(THERE)
#undef THERE
    }
}

static void test_memory_goes_there_and_back(void **state)
{
    const struct pl_device_ops *ops = load();
    static unsigned char from[9 << 20], back[9 << 20];
    struct pl_device *dev = NULL;
    struct pl_error err = {0};
    void *p = NULL;

    if (ops->open(0, &dev, &err) < 0)
        fail_msg("%s", pl_error_text(&err));
    ops->enter(dev);
    for (size_t i = 0; i < sizeof(from); i++)
        from[i] = (unsigned char)(i * 7 + i / 4096);
    assert_int_equal(ops->alloc(dev, sizeof(from), "a test", &p, &err), 0);
    ops->upload(dev, p, from, sizeof(from));
    ops->zero(dev, p, 3);
    if (ops->download(dev, back, p, sizeof(from), &err) < 0)
        fail_msg("%s", pl_error_text(&err));
    memset(from, 0, 3);
    assert_memory_equal(back, from, sizeof(from));
    ops->close(dev);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_it_exports_its_tables_only),
        cmocka_unit_test(test_it_counts_devices_or_says_why_not),
        cmocka_unit_test(test_tables_are_complete),
        cmocka_unit_test(test_memory_goes_there_and_back), /* last: needs a GPU */
    };
    const struct pl_device_ops *ops = NULL;
    struct pl_error err = {0};
    unsigned n = 0;

    if (setenv("PLUME_PLUGIN_DIR", PL_CUDA_PLUGIN_DIR, 1) < 0)
        return 1;
    if (pl_gpu_devices(&ops, &err) == 0 && ops->count(&n, &err) == 0)
        return cmocka_run_group_tests(tests, NULL, NULL);
    print_message("# memory of a GPU is not tested: %s\n", pl_error_text(&err));
    return _cmocka_run_group_tests("tests", tests, PL_COUNT(tests) - 1, NULL, NULL);
}
