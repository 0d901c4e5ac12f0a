/* SPDX-License-Identifier: MIT */
/* The search for plume-cuda.so, and its rejection. The cases depend on each other: a loaded library
 * stays. */
#include "common/base/fs.h"
#include "runtime/engine/device/gpu.h"
#include "tests/lib/tmpdir.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static char dir[64];
static char path[sizeof(dir) + sizeof("/plume-cuda.so")];

static int make_dir(void **state)
{
    if (tmpdir_make(dir, sizeof(dir)) < 0)
        return -1;
    snprintf(path, sizeof(path), "%s/plume-cuda.so", dir);
    return setenv("PLUME_PLUGIN_DIR", dir, 1);
}

static int drop_dir(void **state)
{
    return tmpdir_remove(dir);
}

static void refused(const char *why)
{
    const struct pl_device_ops *ops = NULL;
    const struct pl_nccl_table *nccl = NULL;
    struct pl_error err = {0};

    assert_int_equal(pl_gpu_devices(&ops, &err), -ENOTSUP);
    assert_null(ops);
    if (!strstr(err.text, "cannot use GPUs: ") || !strstr(err.text, why))
        fail_msg("not '%s': %s", why, err.text);
    assert_int_equal(pl_gpu_nccl(&nccl, NULL), -ENOTSUP);
    assert_null(nccl);
}

static void test_devices_without_a_plugin(void **state)
{
    refused("plume-cuda.so is not installed; install CUDA's libraries");
}

static void test_devices_of_a_file_that_cannot_be_loaded(void **state)
{
    FILE *f = fopen(path, "w");

    assert_non_null(f);
    assert_true(fputs("no shared object", f) >= 0);
    assert_int_equal(fclose(f), 0);
    refused(path); /* the loader's words */
}

static void test_devices_of_another_release(void **state)
{
    (void)unlink(path);
    assert_int_equal(symlink(PL_FAKE_NEXT, path), 0);
    refused("plume-cuda.so is of another release");
    assert_int_equal(unlink(path), 0);
    assert_int_equal(symlink(PL_NO_PLUGIN, path), 0); /* it loads, and has no table */
    refused("plume-cuda.so is of another release");
}

static void test_devices_of_this_release(void **state)
{
    const struct pl_device_ops *ops = NULL, *again = NULL;
    const struct pl_nccl_table *nccl = NULL;
    struct pl_error err = {0};

    (void)unlink(path);
    assert_int_equal(symlink(PL_FAKE_PLUGIN, path), 0);
    if (pl_gpu_devices(&ops, &err) < 0)
        fail_msg("%s", err.text);
    assert_string_equal(ops->name, "fake");
    assert_int_equal(pl_gpu_nccl(&nccl, &err), -ENOTSUP);
    assert_string_equal(err.text,
                        "plume-cuda.so was built without NCCL; install it and build again");
    assert_null(nccl);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(pl_gpu_devices(&again, NULL), 0);
    assert_ptr_equal(again, ops);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_devices_without_a_plugin),
        cmocka_unit_test(test_devices_of_a_file_that_cannot_be_loaded),
        cmocka_unit_test(test_devices_of_another_release),
        cmocka_unit_test(test_devices_of_this_release),
    };

    return cmocka_run_group_tests(tests, make_dir, drop_dir);
}
