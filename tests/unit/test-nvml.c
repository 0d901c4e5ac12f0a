/* SPDX-License-Identifier: MIT */
#include "common/base/macros.h"
#include "runtime/node/nvml.h"
#include "runtime/plrund/daemon/gpu_watch.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void assert_names(unsigned long long bits, const char *want)
{
    const char *names[8];
    unsigned n = pl_nvml_throttle_names(bits, names, PL_COUNT(names));
    char text[128] = "";

    for (unsigned i = 0; i < n; i++)
        snprintf(text + strlen(text), sizeof(text) - strlen(text), "%s%s", i ? " " : "", names[i]);
    assert_string_equal(text, want);
}

static void test_throttle_names_bits(void **state)
{
    const char *one[1];

    assert_names(0, "");
    assert_names(0x1 | 0x2 | 0x100, ""); /* idle, set by somebody, the display's */
    assert_names(0x4, "power-cap");
    assert_names(0x48, "hw-thermal"); /* the slowdown of 8 is that of 0x40 */
    assert_names(0x88, "power-brake");
    assert_names(0x8, "hw-slowdown");
    assert_names(0xff, "hw-thermal sw-thermal power-brake power-cap sync-boost");
    assert_int_equal(pl_nvml_throttle_names(0xff, one, 1), 1);
}

static void test_xid_text_known(void **state)
{
    assert_string_equal(pl_nvml_xid_text(79), "GPU has fallen off the bus");
    assert_null(pl_nvml_xid_text(0));
    assert_null(pl_nvml_xid_text(1ull << 40 | 79));
}

static void test_open_missing(void **state)
{
    struct pl_nvml nvml = {0};
    struct pl_error err = {0};

    assert_int_equal(pl_nvml_open(&nvml, "/nonexistent/libnvidia-ml.so.1", &err), -ENOENT);
    assert_non_null(strstr(err.text, "/nonexistent/libnvidia-ml.so.1"));
    assert_int_equal(pl_nvml_open(&nvml, "/dev/null", &err), -EIO); /* there, and no library */
    assert_int_equal(pl_nvml_open(&nvml, "libc.so.6", &err), -ENOSYS);
    assert_string_equal(err.text, "'libc.so.6' has no nvmlInit_v2");
    assert_null(nvml.library);
}

static void test_wanted_environment(void **state)
{
    static const char *const names[] = {"SLURM_STEP_GPUS", "SLURM_JOB_GPUS", "SLURM_GPUS_ON_NODE",
                                        "CUDA_VISIBLE_DEVICES"};
    static const struct {
        const char *name, *value;
        bool wanted;
    } cases[] = {
        {"SLURM_STEP_GPUS", "0", true},          {"SLURM_JOB_GPUS", "0-3", true},
        {"SLURM_GPUS_ON_NODE", "2", true},       {"SLURM_GPUS_ON_NODE", "0", false},
        {"CUDA_VISIBLE_DEVICES", "0", true},     {"CUDA_VISIBLE_DEVICES", "", false},
        {"CUDA_VISIBLE_DEVICES", "-1", false},   {"CUDA_VISIBLE_DEVICES", "NoDevFiles", false},
        {"CUDA_VISIBLE_DEVICES", "GPU-1", true}, {"SLURM_STEP_GPUS", "", false},
    };

    setenv("PLUME_NVML", "/nonexistent", 1); /* in place of the control device */
    for (size_t i = 0; i < PL_COUNT(cases); i++) {
        for (size_t k = 0; k < PL_COUNT(names); k++)
            unsetenv(names[k]);
        setenv(cases[i].name, cases[i].value, 1);
        if (pl_gpu_watch_wanted() != cases[i].wanted)
            fail_msg("%s=%s", cases[i].name, cases[i].value);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_throttle_names_bits),
        cmocka_unit_test(test_xid_text_known),
        cmocka_unit_test(test_open_missing),
        cmocka_unit_test(test_wanted_environment),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
