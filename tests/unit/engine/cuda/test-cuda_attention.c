/* SPDX-License-Identifier: MIT */
/* Attention asked of cuDNN: the graphs, run op by op by a fake, against ref in f32 over the same
 * 16-bit numbers; and what is left to our own kernels. */
#include "common/base/macros.h"
#include "kernels/half.h"
#include "runtime/engine/cuda/cudnn/attention_key.h"
#include "tests/unit/engine/cuda/cudnn_fixture.h"
#include "tests/unit/engine/cuda/said.h"

#include <cudnn.h>
#include <math.h>

#define MOST 16384 /* elements of an array */

enum { Q, K, V, Y, DY, DQ, DK, DV, ARRAYS };

static struct pl_kernels table;
static unsigned own_forward, own_backward;
static _Alignas(256) uint16_t ours[ARRAYS][MOST];
static _Alignas(256) float refs[ARRAYS][MOST], lse[2][MOST];

static void count_forward(const struct pl_attention_args *a)
{
    own_forward++;
}

static void count_backward(const struct pl_attention_args *a)
{
    own_backward++;
}

static void start(bool deterministic)
{
    own_forward = own_backward = 0;
    start_dnn(&(struct pl_device_options){.deterministic = deterministic}, NULL);
    table = *pl_kernels_ref(PL_REAL_F32);
    table.real = PL_REAL_BF16;
    table.attention_forward = count_forward;
    table.attention_backward = count_backward;
    pl_cudnn_install(&table);
}

static void end(void)
{
    assert_int_equal(pl_cuda_report(&status, "cuda:0", NULL), 0);
    end_dnn();
}

/* Between -1 and 1, with the 8 bits that bf16 has. */
static void fill(void)
{
    for (size_t i = 0; i < ARRAYS; i++)
        for (size_t j = 0; j < MOST; j++) {
            float x = (float)((int)draw(255) - 127) / 128;

            ours[i][j] = pl_bf16_of_f32(x);
            refs[i][j] = x;
        }
}

/* Adjacent heads; `packed`: q, k and v of a token are adjacent, in array Q. */
static struct pl_attention_args
make_args(size_t batch, size_t heads, size_t time, size_t keys, size_t dim, bool packed)
{
    size_t row = heads * dim * (packed ? 3 : 1);
    const struct pl_attention_strides own = {time * heads * dim, heads * dim, dim};
    const struct pl_attention_strides of_q = {time * row, row, dim}, of_k = {keys * row, row, dim};

    assert_in_range(batch * PL_MAX(time, keys) * row, 1, MOST);
    return (struct pl_attention_args){.batch = batch,
                                      .heads = heads,
                                      .time = time,
                                      .keys = keys,
                                      .dim = dim,
                                      .scale = 0.3,
                                      .q_at = of_q,
                                      .k_at = of_k,
                                      .v_at = of_k,
                                      .y_at = own,
                                      .dy_at = own,
                                      .dq_at = of_q,
                                      .dk_at = of_k,
                                      .dv_at = of_k};
}

static void *at(bool ref, int which, size_t shift)
{
    return ref ? (void *)(refs[which] + shift) : (void *)(ours[which] + shift);
}

static void set_arrays(struct pl_attention_args *a, bool ref, bool packed)
{
    size_t n = packed ? a->heads * a->dim : 0;

    a->q = at(ref, Q, 0);
    a->k = at(ref, packed ? Q : K, n);
    a->v = at(ref, packed ? Q : V, 2 * n);
    a->y = at(ref, Y, 0);
    a->dy = at(ref, DY, 0);
    a->dq = at(ref, DQ, 0);
    a->dk = at(ref, packed ? DQ : DK, n);
    a->dv = at(ref, packed ? DQ : DV, 2 * n);
    a->lse = lse[ref];
}

static void near(const char *what, size_t i, float x, float want, float within)
{
    if (!(fabsf(x - want) <= within))
        fail_msg("seed %llu: %s[%zu] is %g, not %g", (unsigned long long)seed, what, i, (double)x,
                 (double)want);
}

/* Everything that was written, and its surroundings. */
static void compare(const struct pl_attention_args *a)
{
    static const char *const names[] = {"q", "k", "v", "y", "dy", "dq", "dk", "dv"};

    for (size_t i = 0; i < a->batch * a->heads * a->time; i++)
        near("lse", i, lse[0][i], lse[1][i], 0.001f);
    for (size_t which = 0; which < ARRAYS; which++)
        for (size_t i = 0; i < MOST; i++)
            near(names[which], i, pl_f32_of_bf16(ours[which][i]), refs[which][i],
                 0.01f + 0.01f * fabsf(refs[which][i]));
}

static void one(struct pl_attention_args a, bool packed)
{
    fill();
    for (int ref = 0; ref < 2; ref++) {
        const struct pl_kernels *k = ref ? pl_kernels_ref(PL_REAL_F32) : &table;

        set_arrays(&a, ref, packed);
        k->attention_forward(&a);
        k->attention_backward(&a);
    }
    compare(&a);
}

static void test_graphs_are_attention(void **state)
{
    for (int deterministic = 0; deterministic < 2; deterministic++) {
        start(deterministic);
        seed = 7;
        for (unsigned i = 0; i < 60; i++) {
            bool packed = draw(2);
            size_t time = 2 + draw(9), keys = packed || draw(2) ? time : 1 + draw(12);
            struct pl_attention_args a =
                make_args(1 + draw(3), 1 + draw(3), time, keys, 8 * (1 + draw(3)), packed);

            a.causal = keys >= time && draw(2);
            one(a, packed);
        }
        assert_int_equal(fake_dnn.runs, 120);
        assert_int_equal(own_forward + own_backward, 0);
        end();
    }
}

/* A shape of the arguments that cuDNN has no say in. */
static void left_alone(struct pl_attention_args a, unsigned forward, unsigned backward)
{
    unsigned runs = fake_dnn.runs;

    own_forward = own_backward = 0;
    table.attention_forward(&a);
    assert_int_equal(own_forward, forward);
    table.attention_backward(&a);
    assert_int_equal(own_backward, backward);
    assert_int_equal(fake_dnn.runs - runs, 2 - forward - backward);
}

static void test_what_cudnn_cannot_do_is_our_own(void **state)
{
    struct pl_attention_args a = make_args(1, 2, 4, 4, 16, false), b;

    start(false);
    fill();
    set_arrays(&a, false, false);
    left_alone(a, 0, 0);
    b = a, b.dim = 12, left_alone(b, 1, 1);
    b = a, b.dim = 264, left_alone(b, 1, 1);
    b = a, b.keys = 0, left_alone(b, 1, 1);
    b = a, b.k = (const uint16_t *)a.k + 4, left_alone(b, 1, 1); /* 8 bytes off */
    b = a, b.v_at.time = 36, left_alone(b, 1, 1);
    b = a, b.dq_add = true, left_alone(b, 0, 1);
    b = a, b.dk = NULL, left_alone(b, 0, 1);
    b = a, b.time = 1, left_alone(b, 0, 1);
    b = a, b.keys = 64, left_alone(b, 0, 1);
    b = a, b.time = b.keys = 64, b.causal = true, left_alone(b, 0, 0);
    end();

    start(false);
    fake_dnn.engines = 0;
    left_alone(a, 1, 1);
    end();
}

static void test_releases_with_faults_are_not_used(void **state)
{
    struct pl_attention_args a = make_args(1, 2, 4, 4, 16, false), b;

    fill();
    set_arrays(&a, false, false);
    start(false);
    fake_dnn.version = 92600;
    b = a, b.keys = 64, left_alone(b, 0, 0);
    end();
    start(false);
    fake_dnn.version = 91500; /* wants whole 128s of keys backward */
    left_alone(a, 0, 1);
    end();
    start(false);
    fake_dnn.version = 91001;
    left_alone(a, 1, 1);
    end();
}

static void test_a_refusal_says_which_attention_and_why(void **state)
{
    struct pl_attention_args a = make_args(1, 2, 4, 4, 16, false);

    fill();
    set_arrays(&a, false, false);
    a.causal = true;
    start(true);
    fake_dnn.version = 91500;
    listen_to_stderr();
    left_alone(a, 0, 1);
    left_alone(a, 0, 1);
    assert_string_equal(
        what_was_said(),
        "plume: warning: cuDNN does not do this, our own kernels do: bf16 attention, causal, "
        "gradient, batch 1, 2 heads, 4 queries, 4 keys, dim 16, the same bits each time: releases "
        "before 9.16 do not mask keys past the last full 128\n");
    assert_int_equal(atomic_load(&calls.library), 2);
    assert_int_equal(atomic_load(&calls.own), 2);
    end();
}

/* 16-bit attention that is not even asked for, and why. */
static void test_what_is_not_asked_for_is_told_once(void **state)
{
    struct pl_attention_args a = make_args(1, 2, 4, 4, 16, false), b;

    fill();
    set_arrays(&a, false, false);
    start(false);
    listen_to_stderr();
    for (int again = 0; again < 2; again++) {
        b = a, b.dim = 12, left_alone(b, 1, 1);
        b = a, b.k = (const uint16_t *)a.k + 4, left_alone(b, 1, 1);
        b = a, b.v_at.time = 36, left_alone(b, 1, 1);
        b = a, b.dq_add = true, left_alone(b, 0, 1);
        b = a, b.dk = NULL, left_alone(b, 0, 1);
        b = a, b.keys = 0, left_alone(b, 1, 1);
        b = a, b.batch = (size_t)1 << 32, b.keys = 0, left_alone(b, 1, 1); /* it is empty */
    }
#define SAID(what, why)                                                                            \
    "plume: warning: cuDNN does not do this, our own kernels do: bf16 attention" what              \
    ", batch 1, 2 heads, 4 queries, 4 keys, dim " why "\n"
    assert_string_equal(
        what_was_said(),
        SAID("", "12: it takes heads of 8, 16 and so on to 256 numbers")
            SAID(", gradient", "12: it takes heads of 8, 16 and so on to 256 numbers")
                SAID("", "16: an array does not begin at a multiple of 16 bytes")
                    SAID(", gradient", "16: an array does not begin at a multiple of 16 bytes")
                        SAID("", "16: rows do not begin at multiples of 16 bytes") SAID(
                            ", gradient", "16: rows do not begin at multiples of 16 bytes")
                            SAID(", gradient", "16: it writes gradients, and does not add to them")
                                SAID(", gradient", "16: it makes the gradients of queries, "
                                                   "keys and values, or none"));
#undef SAID
    end();
}

static void test_a_huge_one_is_told_once(void **state)
{
    struct pl_attention_args a = make_args(1, 2, 4, 4, 16, false);

    fill();
    set_arrays(&a, false, false);
    a.batch = (size_t)1 << 31;
    start(false);
    listen_to_stderr();
    left_alone(a, 1, 1);
    left_alone(a, 1, 1);
    assert_string_equal(
        what_was_said(),
        "plume: warning: cuDNN does not do this, our own kernels do: bf16 attention, batch "
        "2147483648, 2 heads, 4 queries, 4 keys, dim 16: a size is above 2147483647\n"
        "plume: warning: cuDNN does not do this, our own kernels do: bf16 attention, gradient, "
        "batch 2147483648, 2 heads, 4 queries, 4 keys, dim 16: a size is above 2147483647\n");
    end();
}

/* Of an engine's workspace, and of the backward pass' scratch memory. */
static void test_short_memory_is_told_once(void **state)
{
    struct pl_attention_args a = make_args(1, 2, 4, 4, 16, false);
    const char *said;

    fill();
    set_arrays(&a, false, false);
    for (int workspace = 0; workspace < 2; workspace++) {
        start(false);
        fake_dnn.workspace[0] = workspace ? (int64_t)(64 * MIB) : 0;
        fake_cuda.fails = "cudaMalloc";
        fake_cuda.code = 2; /* cudaErrorMemoryAllocation */
        listen_to_stderr();
        left_alone(a, workspace, 1);
        left_alone(a, workspace, 1);
        said = what_was_said();
        fake_cuda.fails = NULL;
        if (strstr(said, "plume: warning: an op is done in a slower way: out of memory on "
                         "cuda:0: ") != said ||
            strchr(said, '\n')[1])
            fail_msg("%s", said);
        left_alone(a, 0, 0);
        end();
    }
}

static void test_engines_of_deterministic_runs_repeat(void **state)
{
    struct pl_attention_args a = make_args(1, 2, 4, 4, 16, false);

    fill();
    set_arrays(&a, false, false);
    for (int deterministic = 0; deterministic < 2; deterministic++) {
        start(deterministic);
        fake_dnn.engines = 2;
        fake_dnn.note[0] = CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC;
        table.attention_forward(&a);
        assert_int_equal(fake_dnn.taken, 0); /* no sums there */
        table.attention_backward(&a);
        assert_int_equal(fake_dnn.taken, deterministic);
        end();
    }
}

/* A plan is looked up once; capturing waits for nothing. */
static void test_plans_and_scratch_are_kept(void **state)
{
    struct pl_attention_args a = make_args(2, 2, 8, 8, 16, false);
    const char *call = NULL, *why = NULL;
    uint64_t moves;

    start(false);
    fill();
    set_arrays(&a, false, false);
    table.attention_forward(&a);
    table.attention_backward(&a);
    moves = pl_cudnn_moves(libs.dnn);
    pl_cuda_status_hold(&status);
    table.attention_forward(&a);
    table.attention_backward(&a);
    assert_false(pl_cuda_status_release(&status, &call, &why));
    assert_int_equal(fake_dnn.runs, 4);
    assert_int_equal(fake_dnn.asked, 2);
    assert_int_equal(pl_cudnn_moves(libs.dnn), moves);
    end();
}

/* Of f32, as the graph describes them: sums of gradients only where their order may differ. */
static void test_scratch_has_room_for_its_arrays(void **state)
{
    struct pl_attention_args a = make_args(5, 3, 13, 11, 8, false);

    fill();
    set_arrays(&a, false, false);
    for (int repeatable = 0; repeatable < 2; repeatable++) {
        const char *why = NULL;
        int64_t dims[4], strides[4];
        struct pl_att_key key;

        assert_true(pl_att_key_of(&a, PL_REAL_BF16, true, repeatable, &key, &why));
        pl_att_shape(&key, PL_ATT_MEAN, dims, strides);
        assert_int_equal(dims[0] * dims[1] * dims[2] * dims[3], 5 * 3 * 13);
        assert_int_equal(pl_att_mean_bytes(&key), 1024); /* 780, on a multiple of 256 */
        if (!repeatable) {
            pl_att_shape(&key, PL_ATT_SUM, dims, strides);
            assert_int_equal(dims[0] * dims[1] * dims[2] * dims[3], 5 * 3 * 13 * 8);
        }
        assert_int_equal(pl_att_sum_bytes(&key), repeatable ? 0 : 6400); /* 6240 */
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_graphs_are_attention),
        cmocka_unit_test(test_what_cudnn_cannot_do_is_our_own),
        cmocka_unit_test(test_releases_with_faults_are_not_used),
        cmocka_unit_test(test_a_refusal_says_which_attention_and_why),
        cmocka_unit_test(test_what_is_not_asked_for_is_told_once),
        cmocka_unit_test(test_a_huge_one_is_told_once),
        cmocka_unit_test(test_short_memory_is_told_once),
        cmocka_unit_test(test_engines_of_deterministic_runs_repeat),
        cmocka_unit_test(test_plans_and_scratch_are_kept),
        cmocka_unit_test(test_scratch_has_room_for_its_arrays),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
