/* SPDX-License-Identifier: MIT */
/* CUDA graphs of a device: captured, replayed, and what fails at that. */
#include "tests/unit/engine/cuda/device_fixture.h"

/* A device with 64 bytes in two arrays, 'a' and 'b', and room for what it is. */
struct pair {
    struct pl_device *dev;
    char *a, *b, back[64];
};

static struct pair make_pair(void)
{
    struct pair p = {.dev = open_one(0)};
    char from[64];

    p.a = get(p.dev, 64);
    p.b = get(p.dev, 64);
    memset(from, 'a', sizeof(from));
    ops->upload(p.dev, p.a, from, 64);
    memset(from, 'b', sizeof(from));
    ops->upload(p.dev, p.b, from, 64);
    ops->enter(p.dev);
    return p;
}

static const char *read_b(struct pair *p)
{
    assert_int_equal(ops->download(p->dev, p->back, p->b, 64, NULL), 0);
    return p->back;
}

static void count_kernel(void *ctx)
{
    ++*(int *)ctx;
}

static void test_a_graph_does_again_what_was_captured(void **state)
{
    struct pl_device_graph *graph = NULL;
    struct pair p;
    int runs = 0;

    fake_cuda_reset(100 * MIB);
    p = make_pair();
    assert_int_equal(ops->capture_begin(p.dev, NULL), 0);
    ops->copy(p.dev, p.b, p.a, 32);
    ops->zero(p.dev, p.b + 32, 16);
    fake_cuda_queue(pl_cuda_stream_current()->stream, count_kernel, &runs);
    assert_int_equal(ops->capture_end(p.dev, &graph, NULL), 0);
    assert_true(read_b(&p)[0] == 'b' && p.back[32] == 'b' && runs == 0); /* nothing was run */
    for (int i = 1; i < 4; i++) {
        char c = (char)('b' + i);

        ops->upload(p.dev, p.a, &c, 1); /* the graph reads the contents at replay */
        assert_int_equal(ops->replay(p.dev, graph), 0);
        assert_true(read_b(&p)[0] == c && p.back[31] == 'a' && p.back[32] == 0);
        assert_true(p.back[48] == 'b' && runs == i);
    }
    assert_int_equal(ops->replay(p.dev, graph), 0); /* under way while it is freed */
    ops->graph_free(p.dev, graph);
    ops->graph_free(p.dev, NULL);
    assert_int_equal(runs, 4);
    assert_int_equal(fake_cuda.graphs, 0);
    ops->close(p.dev);
    end();
}

/* Asks for what cannot be in a graph. */
static void ask(struct pair *p, unsigned which)
{
    struct pl_error err = {0};
    void *more = NULL;

    switch (which) {
    case 0:
        assert_int_equal(ops->alloc(p->dev, 4 * MIB, "a test", &more, &err), -EBUSY);
        break;
    case 1:
        ops->free(p->dev, p->a);
        p->a = NULL;
        break;
    case 2:
        ops->upload(p->dev, p->b, "x", 1);
        break;
    case 3:
        assert_int_equal(ops->download(p->dev, p->back, p->b, 64, &err), -EBUSY);
        break;
    case 4:
        assert_int_equal(ops->sync(p->dev, &err), -EBUSY);
        break;
    case 5: /* by a library that only CUDA knows of */
        assert_int_equal(cudaDeviceSynchronize(), cudaErrorStreamCaptureUnsupported);
        ops->copy(p->dev, p->b, p->a, 64);
        break;
    case 6: /* a kernel's launch */
        pl_cuda_stream_note(pl_cuda_stream_current(), cudaErrorStreamCaptureUnsupported);
        break;
    case 7:
        pl_cuda_stream_refuse(pl_cuda_stream_current(), "it has too many rows");
        break;
    default:
        fake_cuda.fails = "cudaMemsetAsync";
        fake_cuda.code = cudaErrorIllegalAddress;
        ops->zero(p->dev, p->b, 64);
        fake_cuda.fails = NULL;
    }
}

static void test_a_capture_that_fails_leaves_the_device_as_it_was(void **state)
{
    static const char *const why[] = {
        "an allocation: it cannot be part of a graph",
        "freeing memory: it cannot be part of a graph",
        "an upload: it cannot be part of a graph",
        "a download: it cannot be part of a graph",
        "waiting: it cannot be part of a graph",
        "cudaMemcpyAsync: some error",
        "a kernel's launch failed on cuda:0 (Fake 0): some error",
        "an op: it has too many rows",
        "cudaMemsetAsync: an illegal memory access was encountered",
    };

    for (unsigned i = 0; i < PL_COUNT(why); i++) {
        struct pl_device_graph *graph = NULL;
        struct pl_error err = {0};
        struct pair p;

        fake_cuda_reset(100 * MIB);
        p = make_pair();
        assert_int_equal(ops->capture_begin(p.dev, NULL), 0);
        ops->zero(p.dev, p.b, 8);
        ask(&p, i);
        assert_int_equal(ops->capture_end(p.dev, &graph, &err), -EIO);
        assert_string_equal(err.text, why[i]);
        assert_null(graph);
        assert_int_equal(fake_cuda.graphs, 0);
        assert_int_equal(cudaGetLastError(), cudaSuccess);
        assert_int_equal(read_b(&p)[0], 'b');
        ops->zero(p.dev, p.b, 8);
        assert_int_equal(read_b(&p)[0], 0);
        ops->free(p.dev, get(p.dev, 1000));
        assert_int_equal(ops->sync(p.dev, NULL), 0);
        assert_int_equal(ops->capture_begin(p.dev, NULL), 0); /* and another one works */
        ops->copy(p.dev, p.b, p.b + 32, 8);
        assert_int_equal(ops->capture_end(p.dev, &graph, NULL), 0);
        assert_int_equal(ops->replay(p.dev, graph), 0);
        assert_int_equal(read_b(&p)[0], 'b');
        ops->graph_free(p.dev, graph);
        ops->close(p.dev);
        end();
    }
}

static void test_calls_for_graphs_that_fail(void **state)
{
    static const char *const calls[] = {"cudaStreamBeginCapture", "cudaStreamEndCapture",
                                        "cudaGraphInstantiateWithFlags"};

    for (size_t i = 0; i < PL_COUNT(calls); i++) {
        struct pl_device_graph *graph = NULL;
        struct pl_error err = {0};
        struct pair p;
        char want[100];
        int r;

        fake_cuda_reset(100 * MIB);
        p = make_pair();
        fake_cuda.fails = calls[i];
        fake_cuda.code = cudaErrorMemoryAllocation;
        r = ops->capture_begin(p.dev, &err);
        if (r == 0)
            r = ops->capture_end(p.dev, &graph, &err);
        assert_int_equal(r, -EIO);
        snprintf(want, sizeof(want), "%s failed on cuda:0 (Fake 0): some error", calls[i]);
        assert_string_equal(err.text, want);
        assert_int_equal(fake_cuda.graphs, 0);
        ops->zero(p.dev, p.b, 8);
        assert_int_equal(read_b(&p)[0], 0);
        assert_int_equal(ops->sync(p.dev, NULL), 0);
        ops->close(p.dev);
        end();
    }
}

static void test_a_replay_that_fails_is_told_by_the_next_wait(void **state)
{
    struct pl_device_graph *graph = NULL;
    struct pl_error err = {0};
    struct pair p;

    fake_cuda_reset(100 * MIB);
    p = make_pair();
    assert_int_equal(ops->capture_begin(p.dev, NULL), 0);
    ops->zero(p.dev, p.b, 8);
    assert_int_equal(ops->capture_end(p.dev, &graph, NULL), 0);
    fake_cuda.fails = "cudaGraphLaunch";
    fake_cuda.code = cudaErrorIllegalAddress;
    assert_int_equal(ops->replay(p.dev, graph), 0);
    fake_cuda.fails = NULL;
    assert_int_equal(ops->sync(p.dev, &err), -EIO);
    assert_string_equal(err.text, "cudaGraphLaunch failed on cuda:0 (Fake 0): an illegal memory "
                                  "access was encountered");
    assert_int_equal(ops->capture_begin(p.dev, &err), -EIO); /* a lost device */
    ops->graph_free(p.dev, graph);
    ops->close(p.dev);
    end();
}

static void test_a_graph_is_stale_once_scratch_has_moved(void **state)
{
    struct pl_device_graph *graph = NULL;
    struct pair p;

    fake_cuda_reset(100 * MIB);
    p = make_pair();
    assert_int_equal(ops->capture_begin(p.dev, NULL), 0);
    assert_true(pl_cuda_stream_current()->fixed);
    ops->zero(p.dev, p.b, 8);
    assert_int_equal(ops->capture_end(p.dev, &graph, NULL), 0);
    assert_false(pl_cuda_stream_current()->fixed);
    pl_cuda_stream_current()->moves++;
    assert_int_equal(ops->replay(p.dev, graph), -ESTALE);
    assert_int_equal(read_b(&p)[0], 'b');
    ops->graph_free(p.dev, graph);
    ops->close(p.dev);
    end();
}

static int begin(void **state)
{
    end();
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_graph_does_again_what_was_captured),
        cmocka_unit_test(test_a_capture_that_fails_leaves_the_device_as_it_was),
        cmocka_unit_test(test_calls_for_graphs_that_fail),
        cmocka_unit_test(test_a_replay_that_fails_is_told_by_the_next_wait),
        cmocka_unit_test(test_a_graph_is_stale_once_scratch_has_moved),
    };

    return cmocka_run_group_tests(tests, begin, NULL);
}
