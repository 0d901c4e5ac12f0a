/* SPDX-License-Identifier: MIT */
/* The context of one step, in f64 on the CPU, for tests that call ops as a module does. */
#ifndef PL_TESTS_UNIT_ENGINE_OPS_OP_STEP_H
#define PL_TESTS_UNIT_ENGINE_OPS_OP_STEP_H

#include "plume/ops_nn.h"
#include "runtime/engine/ops/ops.h"
#include "tests/lib/on_device.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#define MOST 48
#define LEAVES 6

/* A module's context of one step in f64. */
struct step {
    struct plume_api api;
    struct plume_context pl;
    struct pl_tape tape;
    plume_tensor leaf[LEAVES];
    double data[LEAVES][MOST], grad[LEAVES][MOST];
    size_t n;
    int failed;
    char text[256]; /* of the newest failure */
};

static inline plume_tensor *api_op(struct plume_context *pl,
                                   enum plume_op which,
                                   plume_tensor *const *in,
                                   size_t n_in,
                                   const struct plume_op_args *args)
{
    struct step *step = pl->state;
    struct pl_error err = {0};
    plume_tensor *ret = NULL;

    for (size_t i = 0; i < n_in; i++)
        if (!in[i])
            return NULL;
    if (pl_op_call(&step->tape, which, in, n_in, args, &ret, &err) < 0)
        fail_msg("%s", pl_error_text(&err));
    return ret;
}

static inline size_t api_shape(const plume_tensor *t, size_t *ret_shape)
{
    for (size_t d = 0; ret_shape && d < t->rank; d++)
        ret_shape[d] = t->shape[d];
    return t->rank;
}

static inline int api_fail(struct plume_context *pl, int code, const char *text)
{
    struct step *step = pl->state;

    if (step->text[0] && strstr(text, " is NULL")) /* by the failure before, which counts */
        return code;
    step->failed = code;
    snprintf(step->text, sizeof(step->text), "%s", text);
    return code;
}

static inline void begin(struct step *step)
{
    *step = (struct step){
        .api = {
            .struct_size = sizeof(step->api), .op = api_op, .shape = api_shape, .fail = api_fail}};
    step->pl =
        (struct plume_context){.struct_size = sizeof(step->pl), .api = &step->api, .state = step};
    pl_tape_init(&step->tape, pl_device_cpu(), PL_REAL_F64, true);
    pl_tape_begin(&step->tape);
}

/* The numbers of ops_nn.py, which makes golden/ops_nn.h. */
static inline plume_tensor *leaf(struct step *step,
                                 size_t rank,
                                 const size_t *shape,
                                 int by,
                                 int modulus,
                                 int shift,
                                 double over)
{
    size_t k = step->n++;
    plume_tensor *t = &step->leaf[k];

    assert_int_equal(pl_tensor_init(t, PLUME_F64, rank, shape), 0);
    assert_true(k < LEAVES && t->count <= MOST);
    t->data = step->data[k];
    t->grad = step->grad[k];
    t->wants_grad = t->is_param = true;
    for (size_t i = 0; i < t->count; i++)
        step->data[k][i] = (((int)i * by + 3) % modulus - shift) / over;
    return t;
}

#define SHAPE(...)                                                                                 \
    sizeof((size_t[]){__VA_ARGS__}) / sizeof(size_t), (size_t[])                                   \
    {                                                                                              \
        __VA_ARGS__                                                                                \
    }
#define REAL(...) leaf(&step, SHAPE(__VA_ARGS__), 7, 11, 5, 4)
#define OTHER(...) leaf(&step, SHAPE(__VA_ARGS__), 5, 13, 6, 4)
#define SHARE(...) leaf(&step, SHAPE(__VA_ARGS__), 1, 5, 0, 4)

/* Runs the step whose result is y; backward from sum(y w). */
static inline void run(struct step *step, plume_tensor *y)
{
    plume_tensor *w = leaf(step, y->rank, y->shape, 3, 7, 3, 2), *roots[2];

    w->wants_grad = false;
    roots[0] = plume_sum(&step->pl, plume_mul(&step->pl, y, w), 0, PLUME_RANK_MAX);
    roots[1] = y;
    pl_tape_end(&step->tape);
    assert_int_equal(pl_tape_prepare(&step->tape, roots, 2, 1, NULL), 0);
    assert_int_equal(pl_tape_forward(&step->tape, NULL), 0);
    if (roots[0]->wants_grad)
        assert_int_equal(
            pl_tape_backward(&step->tape, &(struct pl_backward){.loss = roots[0], .seed = 1}, NULL),
            0);
}

static inline void same(const char *what, const double *got, const double *want, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!(fabs(got[i] - want[i]) <= 1e-13 * (1 + fabs(want[i]))))
            fail_msg("%s[%zu] is %.17g, not %.17g", what, i, got[i], want[i]);
}

#endif
