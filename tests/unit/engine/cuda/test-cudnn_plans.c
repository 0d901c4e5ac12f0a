/* SPDX-License-Identifier: MIT */
/* The plans that the real cuDNN makes for our graphs, on GPUs that are only described: it
 * recognises the graphs, and has engines for all shapes of our tests and benchmarks. No kernel runs
 * here, so that it says nothing of numbers. The runtime-compiled engines want a driver:
 * LD_LIBRARY_PATH has a stub (fake_libcuda.c). Exits with 77 where there is no cuDNN. */
#include "common/base/macros.h"
#include "kernels/cuda/stream.h"
#include "runtime/engine/cuda/cudnn/cudnn_private.h"
#include "runtime/engine/cuda/lazy/lazy.h"
#include "tests/unit/engine/cuda/conv_cases.h"

#include <cudnn.h>
#include <dlfcn.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

struct pl_cuda_stream *pl_cuda_stream_current(void)
{
    return NULL;
}

/* Of NVIDIA's data sheets and CUDA's programming guide, "Compute Capabilities". */
static const struct card {
    const char *name;
    int version, multiprocessors, shared_kib, clock_khz, memory_khz;
    long long l2, memory;
} cards[] = {
    {"NVIDIA H200", 900, 132, 228, 1980000, 3201000, 62914560, 150754820096},
    {"NVIDIA A100-SXM4-80GB", 800, 108, 164, 1410000, 1593000, 41943040, 85094825984},
    {"NVIDIA B200", 1000, 148, 228, 1965000, 3996000, 132644864, 191514411008},
};

static struct pl_cudnn *describe(const struct card *c)
{
    struct pl_cudnn *dnn = NULL;
    struct pl_error err = {0};
    char json[2048];

    snprintf(json, sizeof(json),
             "{\"cudaDeviceId\":0,\"deviceVer\":%d,\"driverVer\":13000,\"runtimeVer\":13000,"
             "\"maxGridSize\":[2147483647,65535,65535],\"maxBlockSize\":[1024,1024,64],"
             "\"regsPerBlock\":65536,\"multiProcessorCount\":%d,\"warpSize\":32,"
             "\"maxSharedMemoryPerBlock\":49152,\"maxSharedMemoryPerBlockOptin\":%d,"
             "\"reservedSharedMemoryPerBlock\":1024,\"maxSharedMemoryPerSM\":%d,"
             "\"sharedMemoryPerSM\":%d,\"maxRegistersPerSM\":65536,\"maxCtasPerSM\":32,"
             "\"maxThreadsPerBlock\":1024,\"maxThreadsPerSM\":2048,\"pciDeviceId\":0,"
             "\"isTccDriver\":0,\"supportCoopLaunch\":1,\"smClockRateKHz\":%d,"
             "\"memClockRateKHz\":%d,\"l2CacheSize\":%lld,\"totalGlobalMem\":%lld,"
             "\"deviceName\":\"%s\"}",
             c->version, c->multiprocessors, (c->shared_kib - 1) * 1024, c->shared_kib * 1024,
             c->shared_kib * 1024, c->clock_khz, c->memory_khz, c->l2, c->memory, c->name);
    if (pl_cudnn_create_described(json, &dnn, &err) < 0)
        print_message("# %s: %s\n", c->name, pl_error_text(&err));
    return dnn;
}

static void show(const struct card *card,
                 const struct pl_cudnn_recipe *recipe,
                 const void *key,
                 const struct pl_cudnn_plan *plan)
{
    char text[PL_DNN_TEXT];

    recipe->describe(key, text);
    if (plan)
        print_message("# %s: %s: engine %lld, place %zu%s, notes %#llx, %zu KiB\n", card->name,
                      text, (long long)plan->engine, plan->place,
                      plan->fallback ? " of fallbacks" : "", (unsigned long long)plan->notes,
                      plan->workspace_bytes >> 10);
    else
        print_message("# %s: %s: none\n", card->name, text);
}

/* All plans are shown before the test fails. */
static unsigned missing;

static void need(const struct card *card,
                 const struct pl_cudnn_recipe *recipe,
                 const void *key,
                 const struct pl_cudnn_plan *plan)
{
    show(card, recipe, key, plan);
    missing += plan == NULL || plan->workspace_bytes > recipe->workspace;
}

static void *const array = (void *)4096; /* nothing reads it */

/* Causal, with q, k and v of a token side by side, as in the gpt module. */
static void attention(struct pl_cudnn *dnn,
                      const struct card *card,
                      const size_t shape[4],
                      enum pl_real real,
                      bool backward,
                      bool repeatable)
{
    size_t heads = shape[1], time = shape[2], dim = shape[3], token = heads * dim;
    const struct pl_attention_strides three = {time * 3 * token, 3 * token, dim};
    const struct pl_attention_strides one = {time * token, token, dim};
    struct pl_attention_args a = {.batch = shape[0],
                                  .heads = heads,
                                  .time = time,
                                  .keys = time,
                                  .dim = dim,
                                  .causal = true,
                                  .scale = 0.125,
                                  .q = array,
                                  .k = array,
                                  .v = array,
                                  .y = array,
                                  .lse = array,
                                  .dy = array,
                                  .dq = array,
                                  .dk = array,
                                  .dv = array,
                                  .q_at = three,
                                  .k_at = three,
                                  .v_at = three,
                                  .dq_at = three,
                                  .dk_at = three,
                                  .dv_at = three,
                                  .y_at = one,
                                  .dy_at = one};
    const struct pl_cudnn_plan *plan;
    struct pl_att_key key;
    const char *why;

    assert_true(pl_att_key_of(&a, real, backward, repeatable, &key, &why));
    plan = pl_cudnn_find_plan(dnn, PL_DNN_ATTENTION, &pl_cudnn_recipe_attention, &key, NULL, 0);
    need(card, &pl_cudnn_recipe_attention, &key, plan);
    if (plan && plan->notes != UINT64_C(1) << CUDNN_NUMERICAL_NOTE_TENSOR_CORE &&
        !(plan->notes & UINT64_C(1) << CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC && !repeatable))
        fail_msg("notes %#llx", (unsigned long long)plan->notes);
}

/* batch, heads, time, dim: of the GPT-2s in bench/, of bench/kernels.c, of the plugin's test, of
 * the gpt module, and odd ones. */
static const size_t shapes[][4] = {
    {32, 12, 1024, 64}, {2, 3, 100, 64}, {4, 16, 2048, 128}, {8, 4, 24, 16}, {64, 12, 1024, 64},
    {16, 4, 128, 32},   {8, 6, 256, 64}, {2, 3, 256, 64},    {2, 4, 64, 64}, {2, 4, 96, 32}};
#define FEW 2 /* the compiler that cuDNN calls takes 0.3 s of a processor for each */

static bool all; /* --all, by hand: all shapes on all cards */

static void test_attention_has_plans(void **state)
{
    for (size_t c = 0; c < PL_COUNT(cards); c++) {
        struct pl_cudnn *dnn = describe(&cards[c]);

        for (size_t i = 0; dnn && i < (all ? PL_COUNT(shapes) : c == 0 ? FEW : 1); i++) {
            attention(dnn, &cards[c], shapes[i], PL_REAL_BF16, false, false);
            attention(dnn, &cards[c], shapes[i], PL_REAL_BF16, true, false);
            if (all || (c == 0 && i == 0))
                attention(dnn, &cards[c], shapes[i], PL_REAL_F16, true, true);
        }
        pl_cudnn_destroy(dnn);
    }
    assert_int_equal(missing, 0);
}

/* batch, in, size, out, kernel, stride: of bench/kernels.c, bench/gpu_kernels.c, the cnn module,
 * and ResNet's. Padding is half of the kernel. */
static const size_t windows[][6] = {{128, 1, 28, 32, 3, 1},  {128, 32, 28, 64, 3, 1},
                                    {32, 64, 28, 128, 3, 2}, {128, 128, 28, 128, 3, 1},
                                    {8, 1, 8, 8, 3, 1},      {64, 3, 224, 64, 7, 2},
                                    {64, 64, 56, 64, 1, 1},  {64, 256, 14, 512, 1, 2}};

/* Of ResNet-18 and -50 at 224 pixels, as bench/gpu_engine.py trains them, but for what is above;
 * the first one, which is made of squares (cudnn_ops.c), has no padding, and images no gradient. */
static const size_t resnet[][6] = {
    {128, 16, 115, 64, 4, 1},    {128, 64, 56, 64, 3, 1},    {128, 64, 56, 128, 3, 2},
    {128, 128, 28, 128, 3, 1},   {128, 64, 56, 128, 1, 2},   {128, 128, 28, 256, 3, 2},
    {128, 256, 14, 256, 3, 1},   {128, 128, 28, 256, 1, 2},  {128, 256, 14, 512, 3, 2},
    {128, 512, 7, 512, 3, 1},    {128, 256, 14, 512, 1, 2},  {128, 64, 56, 64, 1, 1},
    {128, 64, 56, 256, 1, 1},    {128, 256, 56, 64, 1, 1},   {128, 256, 56, 128, 1, 1},
    {128, 128, 56, 128, 3, 2},   {128, 128, 28, 512, 1, 1},  {128, 256, 56, 512, 1, 2},
    {128, 512, 28, 128, 1, 1},   {128, 512, 28, 256, 1, 1},  {128, 256, 28, 256, 3, 2},
    {128, 256, 14, 1024, 1, 1},  {128, 512, 28, 1024, 1, 2}, {128, 1024, 14, 256, 1, 1},
    {128, 1024, 14, 512, 1, 1},  {128, 512, 14, 512, 3, 2},  {128, 512, 7, 2048, 1, 1},
    {128, 1024, 14, 2048, 1, 2}, {128, 2048, 7, 512, 1, 1}};

/* Bytes of x and y, or of their gradients, in 16 bits. */
static size_t image_bytes(const struct pl_conv_key *key)
{
    int64_t x = key->x[0] * key->x[1] * key->x[2] * key->x[3];
    int64_t y = key->y[0] * key->y[1] * key->y[2] * key->y[3];

    return (size_t)(2 * (x + y));
}

/* Plans of ResNet's that use no tensor cores, or transpose images in their workspace. */
static unsigned slow;

static void convolution(struct pl_cudnn *dnn,
                        const struct card *card,
                        const size_t w[6],
                        enum pl_real real,
                        bool tf32,
                        bool last,
                        bool relu,
                        enum pl_conv_pass pass)
{
    const uint64_t cores = UINT64_C(1) << CUDNN_NUMERICAL_NOTE_TENSOR_CORE;
    struct pl_conv2d_args a = {.batch = w[0],
                               .in = w[1],
                               .height = w[2],
                               .width = w[2],
                               .out = w[3],
                               .kernel_h = w[4],
                               .kernel_w = w[4],
                               .stride_h = w[5],
                               .stride_w = w[5],
                               .pad_h = w[4] % 2 ? w[4] / 2 : 0,
                               .pad_w = w[4] % 2 ? w[4] / 2 : 0,
                               .last = last,
                               .x = array,
                               .w = array,
                               .y = array,
                               .dx = array,
                               .dw = array};
    const struct pl_cudnn_plan *plan = NULL;
    struct pl_conv_key key;

    if (pass == PL_CONV_FORWARD && relu) { /* with a bias, fused if possible, as cudnn_ops.c */
        a.relu = true;
        a.b = array;
        assert_true(pl_conv_key_of(&a, pass, real, tf32, array, &key));
        plan = pl_cudnn_find_plan(dnn, PL_DNN_CONV, &pl_cudnn_recipe_conv, &key, NULL, 0);
        show(card, &pl_cudnn_recipe_conv, &key, plan);
        a.relu = false;
        a.b = NULL;
    }
    if (!plan) {
        assert_true(pl_conv_key_of(&a, pass, real, tf32, array, &key));
        plan = pl_cudnn_find_plan(dnn, PL_DNN_CONV, &pl_cudnn_recipe_conv, &key, NULL, 0);
        need(card, &pl_cudnn_recipe_conv, &key, plan);
    }
    if (plan && real == PL_REAL_F32 && !tf32)
        assert_false(plan->notes & cores);
    /* cuDNN's engines for tensor cores have channels last: it transposes all other images, in its
     * workspace. */
    if (plan && real == PL_REAL_BF16 && w[1] % 8 == 0 && !last)
        assert_true(plan->workspace_bytes >= image_bytes(&key));
    if (plan && last && relu && w[1] % 8 == 0 &&
        pass != PL_CONV_FILTER) /* which adds parts in it */
        assert_true(plan->workspace_bytes < 1024);
    if (plan && !relu && pass != PL_CONV_FILTER)
        slow += !(plan->notes & cores) || plan->workspace_bytes > (size_t)64 << 10;
}

static void test_convolutions_have_plans(void **state)
{
    for (size_t c = 0; c < PL_COUNT(cards); c++) {
        struct pl_cudnn *dnn = describe(&cards[c]);

        for (size_t i = 0; dnn && i < PL_COUNT(windows); i++)
            for (enum pl_conv_pass pass = PL_CONV_FORWARD; pass <= PL_CONV_FILTER; pass++) {
                convolution(dnn, &cards[c], windows[i], PL_REAL_F32, false, false, true, pass);
                convolution(dnn, &cards[c], windows[i], PL_REAL_F32, true, false, true, pass);
                convolution(dnn, &cards[c], windows[i], PL_REAL_BF16, false, false, true, pass);
                convolution(dnn, &cards[c], windows[i], PL_REAL_BF16, false, true, true, pass);
            }
        slow = 0;
        for (size_t i = 0; dnn && (all || c == 0) && i < PL_COUNT(resnet); i++)
            for (enum pl_conv_pass pass = PL_CONV_FORWARD; pass <= PL_CONV_FILTER; pass++)
                if (i > 0 || pass != PL_CONV_DATA)
                    convolution(dnn, &cards[c], resnet[i], PL_REAL_BF16, false, true, false, pass);
        /* On an H200 the first engine is so for 64 to 128 channels by steps of 2: where the engines
         * can be timed, the first is not always taken. */
        assert_true(slow <= 1);
        pl_cudnn_destroy(dnn);
    }
    assert_int_equal(missing, 0);
}

/* Those of which gpu-libraries says on a card that cuDNN does them, so in each of its types. */
static void test_cases_have_plans(void **state)
{
    static const struct {
        enum pl_real real;
        bool tf32;
    } types[] = {{PL_REAL_F32, false},
                 {PL_REAL_F32, true},
                 {PL_REAL_BF16, false},
                 {PL_REAL_F16, false},
                 {PL_REAL_F64, false}};

    for (size_t i = 0; i < PL_COUNT(cards) * PL_COUNT(types) * PL_COUNT(conv_cases); i++) {
        const struct card *card = &cards[i % PL_COUNT(cards)];
        const struct conv_case *c = &conv_cases[i / PL_COUNT(cards) % PL_COUNT(conv_cases)];
        size_t type = i / PL_COUNT(cards) / PL_COUNT(conv_cases);
        struct pl_cudnn *dnn = describe(card);
        struct pl_conv2d_args a = conv_case_args(c);
        void *of[CONV_ARRAYS];

        for (size_t k = 0; k < CONV_ARRAYS; k++)
            of[k] = array;
        conv_case_set(&a, c, of);
        a.relu = false; /* a pass of its own does */
        a.b = NULL;
        for (enum pl_conv_pass pass = PL_CONV_FORWARD; dnn && pass <= PL_CONV_FILTER; pass++) {
            struct pl_conv_key key;

            assert_true(pl_conv_key_of(&a, pass, types[type].real, types[type].tf32, array, &key));
            need(card, &pl_cudnn_recipe_conv, &key,
                 pl_cudnn_find_plan(dnn, PL_DNN_CONV, &pl_cudnn_recipe_conv, &key, NULL, 0));
        }
        pl_cudnn_destroy(dnn);
    }
    assert_int_equal(missing, 0);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cases_have_plans), cmocka_unit_test(test_convolutions_have_plans),
        cmocka_unit_test(test_attention_has_plans), /* needs the stub of a driver */
    };
    struct pl_error err = {0};
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);

    all = argc > 1 && strcmp(argv[1], "--all") == 0;
    if (pl_lazy_cudnn(&err) < 0) {
        printf("%s\n", pl_error_text(&err));
        return 77;
    }
    if (driver)
        return cmocka_run_group_tests(tests, NULL, NULL);
    print_message("# attention is not tested: there is no libcuda.so.1, and no stub of CUDA's\n");
    return _cmocka_run_group_tests("tests", tests, PL_COUNT(tests) - 1, NULL, NULL);
}
