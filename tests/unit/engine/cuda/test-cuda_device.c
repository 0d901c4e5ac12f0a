/* SPDX-License-Identifier: MIT */
/* Opening GPUs, their memory, streams, limits and libraries. */
#include "tests/unit/engine/cuda/device_fixture.h"
#include "tests/unit/engine/cuda/said.h"

#include <cublasLt.h>
#include <math.h>
#include <pthread.h>

static void test_no_driver_and_no_device_are_told_apart(void **state)
{
    struct pl_error err = {0};
    struct pl_device *dev = NULL;
    unsigned n = 77;

    end();
    fake_cuda.devices = -1;
    assert_int_equal(ops->count(&n, &err), -ENODEV);
    assert_string_equal(err.text,
                        "no NVIDIA driver is loaded on this machine; use a node with GPUs");
    assert_int_equal(ops->open(0, NULL, &dev, &err), -ENODEV);
    assert_null(dev);
    fake_cuda.devices = 0;
    unsetenv("CUDA_VISIBLE_DEVICES");
    assert_int_equal(ops->count(&n, &err), -ENODEV);
    assert_string_equal(err.text, "there is no GPU on this machine, or none that it lets us use");
    setenv("CUDA_VISIBLE_DEVICES", "", 1);
    assert_int_equal(ops->count(&n, &err), -ENODEV);
    assert_string_equal(err.text, "no GPU is visible, CUDA_VISIBLE_DEVICES is ''; ask Slurm for "
                                  "GPUs (--gpus-per-node)");
    unsetenv("CUDA_VISIBLE_DEVICES");
    assert_int_equal(pl_cuda_explain(cudaErrorInsufficientDriver, 0, 13000, true, &err), -ENODEV);
    assert_string_equal(err.text,
                        "this machine has an NVIDIA driver, but its libcuda.so.1 is not found; a "
                        "container must take it from the host (apptainer --nv, docker --gpus all, "
                        "NVIDIA_DRIVER_CAPABILITIES=compute,utility)");
    assert_int_equal(pl_cuda_explain(cudaErrorInsufficientDriver, 12040, 13000, true, &err),
                     -ENODEV);
    assert_string_equal(err.text, "the NVIDIA driver is for CUDA 12.4, and plume-cuda.so for 13.0; "
                                  "update the driver to 580 or later, or build with an older CUDA");
    assert_int_equal(n, 77);
    assert_int_equal(cudaGetLastError(), cudaSuccess);
    fake_cuda.devices = 1;
    end();
}

static void test_a_wrong_index_names_those_there_are(void **state)
{
    struct pl_error err = {0};
    struct pl_device *dev = NULL;

    fake_cuda_reset(100 * MIB);
    fake_cuda.devices = 4;
    assert_int_equal(ops->open(4, NULL, &dev, &err), -ENODEV);
    assert_string_equal(err.text, "there is no GPU 4: this process sees 4 (0 to 3), by "
                                  "CUDA_VISIBLE_DEVICES or what the job was given");
    assert_null(dev);
    end();
}

static void near(double x, double want)
{
    if (!(fabs(x - want) <= 1e-3 * want))
        fail_msg("%g, not %g", x, want);
}

/* Those of an H100: the data sheet's 3.35 TB/s, 67 TFLOP/s in f32 and f64, and, at the highest
 * clock, 8 % more than its 989 and 495. What CUDA does not tell is not known. */
static void test_limits_are_the_cards(void **state)
{
    for (int tf32 = 0; tf32 < 2; tf32++) {
        const struct pl_device_options options = {.tf32 = tf32};
        struct pl_device *dev = NULL;

        fake_cuda_reset(100 * MIB);
        assert_int_equal(ops->open(0, &options, &dev, NULL), 0);
        near(dev->limits.bytes, 3.352e12);
        near(dev->limits.flops[PL_REAL_BF16], 1070.5e12);
        near(dev->limits.flops[PL_REAL_F16], 1070.5e12);
        near(dev->limits.flops[PL_REAL_F32], tf32 ? 535.3e12 : 66.9e12);
        near(dev->limits.flops[PL_REAL_F64], 66.9e12);
        ops->close(dev);
    }
}

/* GeForce cards add products of 16 bits in f32 at half the rate of others with the same chip. What
 * a multiprocessor of an unknown one does is not known. */
static void test_limits_by_card(void **state)
{
    static const struct {
        const char *card;
        int capability;
        double bf16, tf32;
    } of[] = {{"NVIDIA L40S", 89, 1024, 512},
              {"NVIDIA GeForce RTX 4090", 89, 512, 256},
              {"NVIDIA RTX A6000", 86, 1024, 512},
              {"NVIDIA GeForce RTX 3090", 86, 512, 256},
              {"NVIDIA GeForce RTX 5090", 120, 0, 0}};

    for (size_t i = 0; i < PL_COUNT(of); i++) {
        const struct pl_device_options options = {.tf32 = true};
        const double clock = 132 * 1.98e9;
        struct pl_device *dev = NULL;

        fake_cuda_reset(100 * MIB);
        fake_cuda.card = of[i].card;
        fake_cuda.capability = of[i].capability;
        assert_int_equal(ops->open(0, &options, &dev, NULL), 0);
        near(dev->limits.bytes, 3.352e12);
        near(dev->limits.flops[PL_REAL_BF16], clock * of[i].bf16);
        near(dev->limits.flops[PL_REAL_F16], clock * of[i].bf16);
        near(dev->limits.flops[PL_REAL_F32], clock * of[i].tf32);
        ops->close(dev);
    }
}

/* Each part that a test of the device depends on is in the text, and a missing one. */
static void test_about_names_the_card_and_all_versions(void **state)
{
    struct pl_device_about about = {.name = "before"};
    struct pl_error err = {0};
    char want[64];

    fake_cuda_reset(100 * MIB);
    fake_cuda.devices = 2;
    fake_cuda.driver = 13010;
    fake_cuda.runtime = 12090;
    assert_int_equal(ops->about(2, &about, &err), -ENODEV);
    assert_string_equal(err.text, "there is no GPU 2: this process sees 2");
    fake_cuda.fails = "cudaGetDeviceProperties";
    fake_cuda.code = cudaErrorIllegalAddress;
    assert_int_equal(ops->about(1, &about, &err), -EIO);
    assert_string_equal(about.name, "before");
    fake_cuda.fails = NULL;
    assert_int_equal(ops->about(1, &about, &err), 0);
    assert_string_equal(about.name, "Fake 1");
    assert_non_null(strstr(about.versions, "for CUDA 13.1, runtime 12.9, capability 9.0, cuBLAS "));
    snprintf(want, sizeof(want), "cuBLAS %d.%d.%d, no cuDNN", CUBLAS_VERSION / 10000,
             CUBLAS_VERSION / 100 % 100, CUBLAS_VERSION % 100);
    assert_non_null(strstr(about.versions, want));
    fake_lt.missing = true;
    assert_int_equal(ops->about(1, &about, &err), 0);
    assert_non_null(strstr(about.versions, "no cuBLAS, no cuDNN"));
    fake_lt.missing = false;
    assert_int_equal(fake_cuda.mallocs, 0);
    end();
}

static void test_every_failure_while_opening_leaves_nothing(void **state)
{
    static const char *const calls[] = {"cudaSetDevice", "cudaGetDeviceProperties",
                                        "cudaStreamCreateWithFlags", "cudaMalloc"};
    struct pl_device *dev = NULL;

    for (size_t i = 0; i < PL_COUNT(calls); i++) {
        struct pl_error err = {0};
        char want[100];

        fake_cuda_reset(100 * MIB);
        fake_cuda.fails = calls[i];
        fake_cuda.code = cudaErrorIllegalAddress;
        assert_int_equal(ops->open(0, NULL, &dev, &err), -EIO);
        snprintf(want, sizeof(want), "%s failed on cuda:0", calls[i]);
        assert_non_null(strstr(err.text, want));
        assert_null(dev);
        end();
    }
    for (size_t i = 0; i < 3; i += 2) {
        struct pl_error err = {0};

        fake_cuda_reset(100 * MIB);
        fake_cuda.fails = calls[i];
        fake_cuda.code = cudaErrorMemoryAllocation;
        assert_int_equal(ops->open(0, NULL, &dev, &err), -ENOMEM);
        assert_non_null(strstr(err.text, "out of memory on cuda:0"));
        assert_non_null(strstr(err.text, "other processes use it (nvidia-smi)"));
        end();
    }
    fake_cuda_reset(10 * MIB); /* less than the libraries want */
    assert_int_equal(ops->open(0, NULL, &dev, NULL), -ENOMEM);
    setenv("PLUME_GPU_MEMORY_LIMIT", "much", 1);
    assert_int_equal(ops->open(0, NULL, &dev, NULL), -EINVAL);
    unsetenv("PLUME_GPU_MEMORY_LIMIT");
    end();
}

/* A card that another process has, or that is broken: what to do is said when it is opened, and
 * when it fails later. */
static void test_what_an_administrator_can_mend_is_told(void **state)
{
    static const struct {
        int code;
        const char *words;
    } of[] = {{cudaErrorDevicesUnavailable, "another process has it in exclusive mode"},
              {cudaErrorECCUncorrectable, "drain the node"},
              {cudaErrorSystemNotReady, "fabric manager does not run, or has not finished"},
              {cudaErrorNoKernelImageForDevice, "was not built for this kind of GPU"},
              {cudaErrorUnsupportedPtxVersion, "the driver is older than its CUDA"}};

    for (size_t i = 0; i < PL_COUNT(of); i++) {
        struct pl_error err = {0};
        struct pl_device *dev = NULL;
        unsigned n;

        fake_cuda_reset(100 * MIB);
        fake_cuda.fails = "cudaSetDevice";
        fake_cuda.code = of[i].code;
        assert_int_equal(ops->open(0, NULL, &dev, &err), -EIO);
        assert_non_null(strstr(err.text, "cudaSetDevice failed on cuda:0: "));
        assert_non_null(strstr(err.text, of[i].words));
        fake_cuda.fails = NULL;
        dev = open_one(0);
        fake_cuda.fails = "cudaStreamSynchronize";
        assert_int_equal(ops->sync(dev, &err), -EIO);
        assert_non_null(strstr(err.text, of[i].words));
        fake_cuda.fails = "cudaGetDeviceCount"; /* where most of them come first */
        assert_int_equal(ops->count(&n, &err), -ENODEV);
        assert_non_null(strstr(err.text, "cannot use the GPUs of this machine: "));
        assert_non_null(strstr(err.text, of[i].words));
        fake_cuda.fails = NULL;
        ops->close(dev);
        end();
    }
}

static void test_memory_goes_there_and_back_in_order(void **state)
{
    static unsigned char from[3 * MIB], back[3 * MIB];
    struct pl_device_memory memory;
    struct pl_device *dev;
    unsigned char *a, *b;

    fake_cuda_reset(200 * MIB);
    dev = open_one(0);
    assert_string_equal(dev->name, "cuda:0 (Fake 0)");
    ops->enter(dev);
    a = get(dev, sizeof(from));
    b = get(dev, sizeof(from));
    for (size_t i = 0; i < sizeof(from); i++)
        from[i] = (unsigned char)(i * 11 + i / 257);
    ops->upload(dev, a, from, sizeof(from));
    memset(from, 0, sizeof(from)); /* ours again */
    ops->copy(dev, b, a, sizeof(from));
    ops->zero(dev, a, sizeof(from));
    ops->zero(dev, b + 5, 10);
    ops->zero(dev, b, 0);
    ops->free(dev, a); /* what was asked before is still done */
    assert_int_equal(ops->download(dev, back, b, sizeof(from), NULL), 0);
    for (size_t i = 0; i < sizeof(from); i++)
        assert_int_equal(back[i], i >= 5 && i < 15 ? 0 : (unsigned char)(i * 11 + i / 257));
    assert_int_equal(ops->sync(dev, NULL), 0);
    ops->memory(dev, &memory);
    assert_int_equal(memory.total, 200 * MIB);
    assert_int_equal(memory.free, 200 * MIB - fake_cuda.used_bytes);
    assert_int_equal(memory.peak - memory.used, 3 * MIB);
    ops->close(dev); /* and what is still allocated */
    end();
}

/* The device may do what it is asked long after; what was peeked at is of then. */
static void test_a_peek_is_of_its_time(void **state)
{
    struct pl_device *dev;
    double from = 0.5, back = 0, *a;

    fake_cuda_reset(100 * MIB);
    dev = open_one(0);
    ops->enter(dev);
    a = get(dev, sizeof(from));
    for (int again = 0; again < 3; again++) {
        from += 1;
        ops->upload(dev, a, &from, sizeof(from));
        ops->peek(dev, a, sizeof(from));
        ops->zero(dev, a, sizeof(from));
        assert_int_equal(ops->peeked(dev, &back, sizeof(back), NULL), 0);
        assert_true(back == 1.5 + again);
    }
    ops->peek(dev, a, sizeof(from));
    pl_cuda_stream_current()->error = cudaErrorIllegalAddress;
    assert_int_equal(ops->peeked(dev, &back, sizeof(back), NULL), -EIO);
    ops->close(dev);
    end();
}

static void test_the_limit_of_the_environment_holds(void **state)
{
    struct pl_error err = {0};
    struct pl_device *dev;
    void *p = NULL;

    fake_cuda_reset(1000 * MIB);
    setenv("PLUME_GPU_MEMORY_LIMIT", "100M", 1);
    dev = open_one(0);
    unsetenv("PLUME_GPU_MEMORY_LIMIT");
    assert_int_equal(ops->alloc(dev, 80 * MIB, "the step", &p, &err), -ENOMEM);
    assert_non_null(strstr(err.text, "80.0 MiB asked for the step"));
    assert_non_null(strstr(err.text, "of the limit of 100.0 MiB"));
    assert_int_equal(ops->alloc(dev, 60 * MIB, "the step", &p, &err), 0);
    ops->close(dev);
    end();
}

static void test_a_failure_is_told_until_the_end(void **state)
{
    struct pl_error err = {0};
    struct pl_device *dev;
    char byte = 0, *a;

    fake_cuda_reset(100 * MIB);
    dev = open_one(0);
    ops->enter(dev);
    a = get(dev, 100);
    pl_cuda_stream_current()->error = cudaErrorIllegalAddress; /* as a launch leaves it */
    ops->zero(dev, a, 100);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(ops->sync(dev, &err), -EIO);
        assert_string_equal(err.text, "a kernel's launch failed on cuda:0 (Fake 0): an illegal "
                                      "memory access was encountered");
        assert_int_equal(ops->download(dev, &byte, a, 1, &err), -EIO);
    }
    ops->close(dev);
    end();
}

static int device_now(void)
{
    int now = -1;

    cudaGetDevice(&now);
    return now;
}

static void test_each_device_has_its_own_stream(void **state)
{
    struct pl_device *dev[3];
    void *p[3];

    fake_cuda_reset(500 * MIB);
    fake_cuda.devices = 3;
    for (unsigned i = 0; i < 3; i++)
        dev[i] = open_one(i);
    for (unsigned i = 0; i < 3; i++) {
        ops->enter(dev[i]);
        assert_int_equal(device_now(), i);
        assert_ptr_equal(pl_cuda_stream_current(), &((struct pl_cuda_device *)dev[i])->stream);
        assert_ptr_not_equal(pl_cuda_stream_current()->stream, NULL);
        for (unsigned j = 0; j < 3; j++) { /* asking another does not leave this one */
            p[j] = get(dev[j], MIB);
            ops->upload(dev[j], p[j], &i, sizeof(i));
            assert_int_equal(ops->sync(dev[j], NULL), 0);
            ops->free(dev[j], p[j]);
            assert_int_equal(device_now(), i);
        }
    }
    ops->close(dev[2]); /* the one that was entered */
    assert_null(stream);
    ops->close(dev[0]);
    dev[0] = open_one(0);
    ops->enter(dev[0]); /* though its address may be an old one's */
    assert_ptr_equal(stream, &((struct pl_cuda_device *)dev[0])->stream);
    ops->close(dev[0]);
    ops->close(dev[1]);
    end();
}

struct fill {
    char *at;
    char value;
};

static void do_fill(void *ctx)
{
    const struct fill *f = ctx;

    memset(f->at, f->value, MIB);
}

/* Streams run only when something waits for them: without the events the copy would be too early,
 * or the memory overwritten too early. */
static void test_a_copy_between_devices_is_in_the_order_of_both(void **state)
{
    static char back[MIB];
    struct fill before = {.value = 1}, after = {.value = 2};
    struct pl_device *dev[2];
    char *a, *b;

    for (int peers = 0; peers < 2; peers++) {
        fake_cuda_reset(500 * MIB);
        fake_cuda.devices = 2;
        fake_cuda.no_peers = !peers;
        dev[0] = open_one(0);
        dev[1] = open_one(1);
        ops->enter(dev[0]);
        a = before.at = after.at = get(dev[0], MIB);
        b = get(dev[1], MIB);
        fake_cuda_queue(stream->stream, do_fill, &before);
        ops->zero(dev[1], b, MIB);
        ops->copy_from(dev[1], b, dev[0], a, MIB);
        ops->copy_from(dev[1], b, dev[0], a, 0);
        fake_cuda_queue(stream->stream, do_fill, &after);
        assert_int_equal(device_now(), 0);
        assert_int_equal(fake_cuda.peer_copies, 1);
        /* One is asked first, which makes the other go on as far as it waits for that. */
        assert_int_equal(ops->sync(dev[peers], NULL), 0);
        assert_int_equal(ops->sync(dev[!peers], NULL), 0);
        assert_int_equal(ops->download(dev[1], back, b, MIB, NULL), 0);
        for (size_t i = 0; i < MIB; i++)
            assert_int_equal(back[i], 1);
        ops->copy_from(dev[0], a, dev[1], b, MIB / 2);
        assert_int_equal(ops->download(dev[0], back, a, MIB, NULL), 0);
        assert_true(back[0] == 1 && back[MIB / 2 - 1] == 1 && back[MIB / 2] == 2);
        assert_int_equal(fake_cuda.events, 4); /* one per device, and one of its downloads */
        ops->free(dev[0], a);                  /* after the copy */
        ops->close(dev[0]);
        dev[0] = open_one(0); /* CUDA knows already that the two may */
        a = get(dev[0], MIB);
        ops->copy_from(dev[0], a, dev[1], b, MIB);
        assert_int_equal(ops->sync(dev[0], NULL), 0);
        assert_int_equal(cudaGetLastError(), cudaSuccess);
        ops->close(dev[1]);
        ops->close(dev[0]);
        end();
    }
}

static void test_a_copy_between_devices_that_fails_is_told_by_both(void **state)
{
    static const char *const calls[] = {"cudaEventCreateWithFlags", "cudaEventRecord",
                                        "cudaStreamWaitEvent", "cudaMemcpyPeerAsync"};

    for (size_t i = 0; i < PL_COUNT(calls); i++) {
        struct pl_error err[2] = {{0}};
        struct pl_device *dev[2];
        char *a, *b;

        fake_cuda_reset(500 * MIB);
        fake_cuda.devices = 2;
        dev[0] = open_one(0);
        dev[1] = open_one(1);
        a = get(dev[0], MIB);
        b = get(dev[1], MIB);
        fake_cuda.fails = calls[i];
        fake_cuda.code = cudaErrorIllegalAddress;
        ops->copy_from(dev[1], b, dev[0], a, MIB);
        fake_cuda.fails = NULL;
        assert_int_equal(ops->sync(dev[0], &err[0]), -EIO);
        assert_int_equal(ops->sync(dev[1], &err[1]), -EIO);
        assert_true(strstr(err[0].text, calls[i]) || strstr(err[1].text, calls[i]));
        assert_non_null(strstr(err[0].text, "failed on cuda:0 (Fake 0)"));
        assert_non_null(strstr(err[1].text, "failed on cuda:1 (Fake 1)"));
        ops->close(dev[0]);
        ops->close(dev[1]);
        end();
    }
}

/* c = a b, which is a. */
static const float product_a[4] = {1, 2, 3, 4}, product_b[4] = {1, 0, 0, 1};

static struct pl_matmul_args product_to(float c[4])
{
    return (struct pl_matmul_args){.batch = 1,
                                   .m = 2,
                                   .n = 2,
                                   .k = 2,
                                   .a_row = 2,
                                   .b_row = 2,
                                   .c_row = 2,
                                   .scale = 1,
                                   .a = product_a,
                                   .b = product_b,
                                   .c = c};
}

static void test_tables_have_the_libraries_ops(void **state)
{
    struct pl_device *dev;
    const struct pl_kernels *k;
    float c[4] = {0};
    struct pl_matmul_args s = product_to(c);

    fake_cuda_reset(500 * MIB);
    dev = open_one(0);
    k = ops->kernels(dev, PL_REAL_F32);
    assert_non_null(k);
    assert_ptr_equal(ops->kernels(dev, PL_REAL_F32), k);
    assert_null(ops->kernels(dev, PL_REAL_F16));
    assert_ptr_equal(k->softmax_forward, pl_kernels_ref(PL_REAL_F32)->softmax_forward);
    fake_lt.products = 0;
    k->matmul(&s); /* no device entered: our own */
    assert_int_equal(fake_lt.products, 0);
    ops->enter(dev);
    k->matmul(&s);
    assert_int_equal(fake_lt.products, 1);
    assert_memory_equal(c, product_a, sizeof(c));
    ops->close(dev);
    end();
}

/* The heuristics are asked for one answer, which is taken; none is timed or looked up. */
static void test_an_untimed_device_takes_the_first_answer(void **state)
{
    static const struct pl_device_options untimed = {.untimed = true};
    float c[4] = {0};
    struct pl_matmul_args s = product_to(c);
    struct pl_device *dev = NULL;

    fake_cuda_reset(500 * MIB);
    assert_int_equal(ops->open(0, &untimed, &dev, NULL), 0);
    ops->enter(dev);
    fake_lt.answers = 2;
    fake_lt.ns[0] = 9; /* slower than the other one */
    fake_lt.ns[1] = 1;
    fake_lt.products = fake_lt.heuristics = fake_lt.asked = 0;
    ops->kernels(dev, PL_REAL_F32)->matmul(&s);
    assert_int_equal(fake_lt.heuristics, 1);
    assert_int_equal(fake_lt.asked, 1);
    assert_int_equal(fake_lt.products, 1);
    assert_int_equal(fake_lt.last, 0);
    assert_memory_equal(c, product_a, sizeof(c));
    fake_lt.answers = 0;
    ops->close(dev);
    end();
}

/* A device without cublasLt is slow, and works. */
static void test_a_missing_library_is_told_once(void **state)
{
    struct pl_device *dev;
    const char *said;
    struct pl_device_calls calls;

    end();
    fake_cuda_reset(700 * MIB);
    fake_lt.missing = true;
    listen_to_stderr();
    dev = open_one(0);
    ops->close(dev);
    dev = open_one(0);
    said = what_was_said();
    assert_string_equal(said, "plume: warning: matrix products are done by our own kernels, which "
                              "are many times slower: no cuBLAS\n"
                              "plume: warning: convolutions and attention are done by our own "
                              "kernels, which are many times slower: built without cuDNN\n");
    ops->enter(dev);
    ops->kernels(dev, PL_REAL_F32)
        ->matmul(&(struct pl_matmul_args){.batch = 1,
                                          .m = 1,
                                          .n = 1,
                                          .k = 1,
                                          .a_row = 1,
                                          .b_row = 1,
                                          .c_row = 1,
                                          .a = (float[]){2},
                                          .b = (float[]){3},
                                          .c = (float[]){0}});
    ops->calls(dev, &calls);
    assert_int_equal(calls.own, 1);
    assert_int_equal(calls.library, 0);
    ops->close(dev);
    fake_lt.missing = false;
    end();
}

/* In our own words; an error of CUDA's that follows from it is not told. */
static void test_a_refused_op_is_reported(void **state)
{
    struct pl_device *dev;
    struct pl_error err = {0};

    fake_cuda_reset(100 * MIB);
    dev = open_one(0);
    ops->enter(dev);
    pl_cuda_stream_refuse(pl_cuda_stream_current(), "it has too many rows");
    pl_cuda_stream_note(pl_cuda_stream_current(), cudaErrorLaunchFailure);
    for (int again = 0; again < 2; again++) {
        assert_int_equal(ops->sync(dev, &err), -EIO);
        assert_string_equal(err.text, "an op failed on cuda:0 (Fake 0): it has too many rows");
    }
    ops->close(dev);
    end();
}

/* The kernels' scratch is within the limit of memory, and is given back. */
static void test_scratch_is_of_the_devices_memory(void **state)
{
    struct pl_cuda_device *d;
    struct pl_device *dev;
    struct pl_device_memory before, during;
    void *p;

    end();
    fake_cuda_reset(200 * MIB);
    dev = open_one(0);
    d = (struct pl_cuda_device *)dev;
    ops->memory(dev, &before);
    p = d->stream.get(&d->stream, 50 * MIB);
    assert_non_null(p);
    ops->memory(dev, &during);
    assert_int_equal(during.used - before.used, 50 * MIB);
    assert_null(d->stream.get(&d->stream, 200 * MIB));
    d->stream.put(&d->stream, p);
    ops->memory(dev, &during);
    assert_int_equal(during.used, before.used);
    ops->close(dev);
    end();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_missing_library_is_told_once),
        cmocka_unit_test(test_scratch_is_of_the_devices_memory),
        cmocka_unit_test(test_no_driver_and_no_device_are_told_apart),
        cmocka_unit_test(test_a_wrong_index_names_those_there_are),
        cmocka_unit_test(test_limits_are_the_cards),
        cmocka_unit_test(test_limits_by_card),
        cmocka_unit_test(test_about_names_the_card_and_all_versions),
        cmocka_unit_test(test_every_failure_while_opening_leaves_nothing),
        cmocka_unit_test(test_what_an_administrator_can_mend_is_told),
        cmocka_unit_test(test_memory_goes_there_and_back_in_order),
        cmocka_unit_test(test_a_peek_is_of_its_time),
        cmocka_unit_test(test_the_limit_of_the_environment_holds),
        cmocka_unit_test(test_a_failure_is_told_until_the_end),
        cmocka_unit_test(test_each_device_has_its_own_stream),
        cmocka_unit_test(test_a_copy_between_devices_is_in_the_order_of_both),
        cmocka_unit_test(test_a_copy_between_devices_that_fails_is_told_by_both),
        cmocka_unit_test(test_a_refused_op_is_reported),
        cmocka_unit_test(test_tables_have_the_libraries_ops),
        cmocka_unit_test(test_an_untimed_device_takes_the_first_answer),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
