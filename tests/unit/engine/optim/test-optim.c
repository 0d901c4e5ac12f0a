/* SPDX-License-Identifier: MIT */
/* Optimizers, schedules, clipping and the loss scale, against what PyTorch did (tests/golden). */
#include "runtime/engine/optim/optimizer.h"
#include "tests/golden/optim.h"
#include "tests/golden/schedules.h"
#include "tests/golden/schedules_random.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#define N 13

struct fixture {
    struct pl_comm *comm;
    struct pl_params params;
    const struct pl_kernels *kernels;
};

/* Parameters of these names, N elements each, all used by the first tape. */
static void setup(struct fixture *f, enum pl_real real, const char *const *names, size_t n)
{
    struct pl_world world = {.size = 1, .local_size = 1};
    struct pl_tape tape;
    plume_tensor *t;

    *f = (struct fixture){.kernels = pl_kernels_best(real)};
    assert_int_equal(pl_comm_create(&world, NULL, &f->comm, NULL), 0);
    pl_params_init(&f->params, pl_device_cpu(), real);
    for (size_t i = 0; i < n; i++)
        assert_int_equal(
            pl_params_declare(&f->params, names[i], PLUME_INIT_ZERO, 1, (size_t[]){N}, &t, NULL),
            0);
    pl_tape_init(&tape, pl_device_cpu(), f->kernels->real, true);
    assert_int_equal(pl_params_layout(&f->params, &tape, f->comm, NULL), 0);
    pl_tape_finish(&tape);
}

static void teardown(struct fixture *f)
{
    pl_params_finish(&f->params);
    pl_comm_destroy(f->comm);
}

static void put(plume_tensor *t, bool grad, size_t i, double value)
{
    void *p = grad ? t->grad : t->data;

    if (t->dtype == PLUME_F64)
        ((double *)p)[i] = value;
    else
        ((float *)p)[i] = (float)value;
}

static double get(const plume_tensor *t, size_t i)
{
    return t->dtype == PLUME_F64 ? ((const double *)t->data)[i] : ((const float *)t->data)[i];
}

static const struct pl_clip_rule no_clip = {0};

/* PyTorch may contract a * b + c and we never do, so a few roundings of the values' size differ. */
static void follow(enum pl_real real, const struct plume_optimizer *options, const void *golden)
{
    double tolerance = real == PL_REAL_F64 ? 1e-14 : 2e-6;
    struct pl_optimizers o;
    struct fixture f;
    plume_tensor *t;

    setup(&f, real, (const char *const[]){"w"}, 1);
    t = f.params.list[0]->tensor;
    for (size_t i = 0; i < N; i++)
        put(t, false, i, (double)golden_optim_start[i]);
    assert_int_equal(pl_optimizers_init(&o, &f.params, options, 1, NULL), 0);
    for (size_t step = 0; step < PL_COUNT(golden_optim_grads) / N; step++) {
        for (size_t i = 0; i < N; i++)
            put(t, true, i, (double)golden_optim_grads[step * N + i]);
        pl_optimizers_step(&o, f.kernels, &no_clip, NULL, NULL, NULL);
    }
    for (size_t i = 0; i < N; i++) {
        double want =
            real == PL_REAL_F64 ? ((const double *)golden)[i] : (double)((const float *)golden)[i];

        if (fabs(get(t, i) - want) > tolerance * fmax(1, fabs(want)))
            fail_msg("kind %d real %d: [%zu] is %.17g, not %.17g", (int)options->kind, (int)real, i,
                     get(t, i), want);
    }
    assert_int_equal(o.list[0].steps, PL_COUNT(golden_optim_grads) / N);
    pl_optimizers_finish(&o);
    teardown(&f);
}

static void test_optimizers_follow_pytorch(void **state)
{
    const struct plume_optimizer adam = {
        .lr = 0.01, .kind = PLUME_ADAM, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8};
    struct {
        struct plume_optimizer options;
        const float *f32;
        const double *f64;
    } cases[] = {
        {{.lr = 0.1}, golden_sgd_float, golden_sgd_double},
        {{.lr = 0.1, .momentum = 0.9, .weight_decay = 0.01},
         golden_sgd_momentum_float,
         golden_sgd_momentum_double},
        {{.lr = 0.05, .momentum = 0.8, .weight_decay = 0.02, .nesterov = 1},
         golden_sgd_nesterov_float,
         golden_sgd_nesterov_double},
        {adam, golden_adam_float, golden_adam_double},
        {adam, golden_adam_betas_float, golden_adam_betas_double},
        {adam, golden_adamw_float, golden_adamw_double},
        {{.lr = 0.01, .kind = PLUME_RMSPROP, .alpha = 0.99, .eps = 1e-8},
         golden_rmsprop_float,
         golden_rmsprop_double},
        {{.lr = 0.02,
          .kind = PLUME_RMSPROP,
          .alpha = 0.4,
          .eps = 1e-3,
          .momentum = 0.8,
          .weight_decay = 0.1},
         golden_rmsprop_momentum_float,
         golden_rmsprop_momentum_double},
        {{.lr = 0.01, .kind = PLUME_RMSPROP, .alpha = 0.9, .eps = 1e-2, .centered = 1},
         golden_rmsprop_centered_float,
         golden_rmsprop_centered_double},
        {{.lr = 0.01,
          .kind = PLUME_RMSPROP,
          .alpha = 0.9,
          .eps = 1e-2,
          .momentum = 0.5,
          .weight_decay = 0.1,
          .centered = 1},
         golden_rmsprop_all_float,
         golden_rmsprop_all_double},
        {{.lr = 0.1, .kind = PLUME_ADAGRAD, .eps = 1e-10},
         golden_adagrad_float,
         golden_adagrad_double},
        {{.lr = 0.2, .kind = PLUME_ADAGRAD, .eps = 1e-3, .weight_decay = 0.05, .lr_decay = 0.1},
         golden_adagrad_decay_float,
         golden_adagrad_decay_double},
    };

    cases[3].options.weight_decay = cases[5].options.weight_decay = 0.1;
    cases[4].options.lr = 0.02;
    cases[4].options.beta1 = 0.4;
    cases[4].options.beta2 = 0.7;
    cases[4].options.eps = 1e-3;
    cases[5].options.kind = PLUME_ADAMW;
    for (size_t i = 0; i < PL_COUNT(cases); i++) {
        follow(PL_REAL_F32, &cases[i].options, cases[i].f32);
        follow(PL_REAL_F64, &cases[i].options, cases[i].f64);
    }
}

static void test_clip_by_norm_follows_pytorch(void **state)
{
    const struct pl_clip_rule clip = {PL_CLIP_NORM, 3};
    const struct plume_optimizer options = {.lr = 1};
    struct pl_optimizers_result result;
    struct pl_optimizers o;
    struct fixture f;
    plume_tensor *t;

    setup(&f, PL_REAL_F64, (const char *const[]){"w"}, 1);
    t = f.params.list[0]->tensor;
    assert_int_equal(pl_optimizers_init(&o, &f.params, &options, 1, NULL), 0);
    for (size_t step = 0; step < PL_COUNT(golden_clip_norms); step++) {
        put(t, false, 0, 0);
        for (size_t i = 0; i < N; i++)
            put(t, true, i, (double)golden_optim_grads[step * N + i]);
        pl_optimizers_step(&o, f.kernels, &clip, NULL, &result, NULL);
        assert_true(result.measured && !result.skipped);
        /* The recorded numbers were computed in f32. */
        assert_true(fabs(result.norm - golden_clip_norms[step]) < 1e-6 * golden_clip_norms[step]);
        assert_true(fabs(-get(t, 0) - golden_clip_first[step]) < 1e-6);
    }
    pl_optimizers_finish(&o);
    teardown(&f);
}

static void test_clip_by_value(void **state)
{
    const struct pl_clip_rule clip = {PL_CLIP_VALUE, 0.5};
    const struct plume_optimizer options = {.lr = 1};
    static const double grads[N] = {3, -3, 0.25, -0.5, 0.5};
    static const double want[N] = {-0.5, 0.5, -0.25, 0.5, -0.5};
    struct pl_optimizers_result result;
    struct pl_optimizers o;
    struct fixture f;

    setup(&f, PL_REAL_F32, (const char *const[]){"w"}, 1);
    assert_int_equal(pl_optimizers_init(&o, &f.params, &options, 1, NULL), 0);
    for (size_t i = 0; i < N; i++)
        put(f.params.list[0]->tensor, true, i, grads[i]);
    pl_optimizers_step(&o, f.kernels, &clip, NULL, &result, NULL);
    assert_false(result.measured);
    for (size_t i = 0; i < N; i++)
        assert_true(get(f.params.list[0]->tensor, i) == want[i]);
    pl_optimizers_finish(&o);
    teardown(&f);
}

/* One norm over all that make a step together, as torch.nn.utils.clip_grad_norm_ of all parameters;
 * of those that step alone, their own. */
static void test_optimizers_share_the_parameters(void **state)
{
    static const char *const names[] = {"a.w", "b.w", "a.b", "c.w", "b.b"};
    const struct pl_clip_rule clip = {PL_CLIP_NORM, 1};
    struct plume_optimizer options[] = {
        {.lr = 1, .prefixes = " a., nothing"}, {.lr = 2}, {.lr = 3, .n_params = 1}};
    plume_tensor *listed[1];
    struct pl_error err = {0};
    struct pl_optimizers o;
    struct fixture f;

    setup(&f, PL_REAL_F64, names, 5);
    listed[0] = f.params.list[3]->tensor;
    options[2].params = listed;
    assert_int_equal(pl_optimizers_init(&o, &f.params, options, 3, &err), -ENOENT);
    assert_string_equal(err.text, "optimizer 0: no parameter's name begins with 'nothing'");
    options[0].prefixes = "a.w,a.b";
    assert_int_equal(pl_optimizers_init(&o, &f.params, options, 3, &err), 0);
    assert_int_equal(o.list[0].n_ranges, 2);
    assert_int_equal(o.list[0].count, 2 * 16);
    assert_int_equal(o.list[2].n_ranges, 1);
    for (size_t i = 0; i < 5; i++)
        put(f.params.list[i]->tensor, true, 0, i == 3 ? 0.5 : 10);
    pl_optimizers_step(&o, f.kernels, &clip, NULL, NULL, NULL);
    for (size_t i = 0; i < 5; i++) { /* the norm is sqrt(4 * 100 + 0.25) */
        static const double rates[] = {1, 2, 1, 3, 2};
        double want = -rates[i] * (i == 3 ? 0.5 : 10) / 20.00624902;

        assert_true(fabs(get(f.params.list[i]->tensor, 0) - want) < 1e-6);
        put(f.params.list[i]->tensor, false, 0, 0);
    }
    pl_optimizers_step_some(&o, 0, 1, f.kernels, &clip, NULL, NULL, NULL);
    assert_true(fabs(get(f.params.list[0]->tensor, 0) + 0.7071067) < 1e-6);
    assert_true(get(f.params.list[1]->tensor, 0) == 0);
    pl_optimizers_finish(&o);
    options[1].prefixes = "a.";
    assert_int_equal(pl_optimizers_init(&o, &f.params, options, 3, &err), -EEXIST);
    assert_string_equal(err.text, "parameter 'a.w' has two optimizers");
    options[0].prefixes = options[1].prefixes = NULL;
    assert_int_equal(pl_optimizers_init(&o, &f.params, options, 3, &err), -EINVAL);
    /* A parameter without an optimizer stays. */
    assert_int_equal(pl_optimizers_init(&o, &f.params, &options[2], 1, &err), 0);
    assert_int_equal(o.list[0].count, 16);
    pl_optimizers_finish(&o);
    teardown(&f);
}

static void test_groups_follow_pytorch(void **state)
{
    static const char *const names[] = {"a.weight", "a.bias", "norm.weight"};
    const struct pl_clip_rule clip = {PL_CLIP_NORM, 3};
    const struct plume_optimizer options = {
        .lr = 0.01,
        .kind = PLUME_ADAMW,
        .weight_decay = 0.1,
        .beta1 = 0.9,
        .beta2 = 0.999,
        .eps = 1e-8,
        .schedule = {.kind = PLUME_COSINE, .t_max = 7, .eta_min = 0.0005},
    };
    const struct pl_group_options groups[] = {
        {.pattern = "*.bias", .numbers = {.lr = 0.01}},
        {.pattern = "nothing, n?rm.*", .numbers = {.lr = 0.002, .weight_decay = 0.3}}};
    struct pl_optimizers o;
    struct fixture f;

    setup(&f, PL_REAL_F64, names, 3);
    assert_int_equal(pl_optimizers_init_groups(&o, &f.params, &options, 1, groups, 2, NULL), 0);
    for (size_t i = 0; i < 3 * N; i++)
        put(f.params.list[i / N]->tensor, false, i % N, golden_groups_start[i]);
    for (size_t step = 0; step < PL_COUNT(golden_groups_grads) / (3 * N); step++) {
        for (size_t i = 0; i < 3 * N; i++)
            put(f.params.list[i / N]->tensor, true, i % N, golden_groups_grads[step * 3 * N + i]);
        assert_int_equal(pl_optimizers_step(&o, f.kernels, &clip, NULL, NULL, NULL), 0);
        assert_int_equal(pl_optimizers_schedule(&o, false, NULL, NULL, NULL), 0);
    }
    for (size_t i = 0; i < 3 * N; i++)
        if (fabs(get(f.params.list[i / N]->tensor, i % N) - golden_groups[i]) > 1e-13)
            fail_msg("[%zu] is %.17g, not %.17g", i, get(f.params.list[i / N]->tensor, i % N),
                     golden_groups[i]);
    pl_optimizers_finish(&o);
    teardown(&f);
}

static void test_groups_are_checked(void **state)
{
    static const struct {
        const char *pattern[2];
        double lr, decay;
        int code;
        const char *text;
    } cases[] = {
        {{"*.bias", "a.*"}, 1, 0, -EEXIST, "parameter 'a.bias' is in two groups"},
        {{"*.bias", "bias"}, 1, 0, -ENOENT, "group 'bias' matches no parameter"},
        {{"b.*", "a.*"}, 1, 0, -ENOENT, "group 'b.*' matches no parameter"},
        {{"*.bias", "a.w*"},
         -1,
         0,
         -EINVAL,
         "learning rate must be finite and not negative, not -1"},
        {{"*.bias", "a.w*"}, 1, -1, -EINVAL, "weight_decay"},
    };
    const struct plume_optimizer options[] = {{.lr = 1, .prefixes = "a."}, {.lr = 1}};
    struct pl_optimizers o;
    struct fixture f;

    setup(&f, PL_REAL_F32, (const char *const[]){"a.w", "a.bias", "b.bias"}, 3);
    for (size_t i = 0; i < PL_COUNT(cases); i++) {
        const struct pl_group_options groups[] = {
            {.pattern = cases[i].pattern[0], .numbers = {.lr = 1}},
            {.pattern = cases[i].pattern[1],
             .numbers = {.lr = cases[i].lr, .weight_decay = cases[i].decay}}};
        struct pl_error err = {0};

        assert_int_equal(pl_optimizers_init_groups(&o, &f.params, options, 2, groups, 2, &err),
                         cases[i].code);
        if (!strstr(err.text, cases[i].text))
            fail_msg("'%s' has no '%s'", err.text, cases[i].text);
    }
    teardown(&f);
}

/* PyTorch leaves a parameter without a gradient alone: no decay either. */
static void test_unused_parameters_stay(void **state)
{
    const struct plume_optimizer options = {.lr = 1, .weight_decay = 0.5};
    struct pl_optimizers o;
    struct fixture f;

    setup(&f, PL_REAL_F32, (const char *const[]){"a", "b"}, 2);
    f.params.list[1]->unused = true;
    assert_int_equal(pl_optimizers_init(&o, &f.params, &options, 1, NULL), 0);
    put(f.params.list[0]->tensor, false, 0, 1);
    put(f.params.list[1]->tensor, false, 0, 1);
    pl_optimizers_step(&o, f.kernels, &no_clip, NULL, NULL, NULL);
    assert_true(get(f.params.list[0]->tensor, 0) == 0.5);
    assert_true(get(f.params.list[1]->tensor, 0) == 1);
    f.params.list[1]->unused = false;
    pl_optimizers_step(&o, f.kernels, &no_clip, NULL, NULL, NULL);
    assert_true(get(f.params.list[1]->tensor, 0) == 0.5);
    pl_optimizers_finish(&o);
    teardown(&f);
}

/* Adam's correction counts the steps of each parameter. */
static void test_unused_parameters_count_their_own_steps(void **state)
{
    const struct plume_optimizer options = {
        .lr = 0.1, .kind = PLUME_ADAM, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8};
    struct pl_optimizers late, fresh;
    struct fixture f, g;

    setup(&f, PL_REAL_F64, (const char *const[]){"a", "b", "c"}, 3);
    setup(&g, PL_REAL_F64, (const char *const[]){"a", "b", "c"}, 3);
    assert_int_equal(pl_optimizers_init(&late, &f.params, &options, 1, NULL), 0);
    assert_int_equal(pl_optimizers_init(&fresh, &g.params, &options, 1, NULL), 0);
    for (size_t i = 0; i < 3; i++) {
        put(f.params.list[i]->tensor, true, 1, 0.7);
        put(g.params.list[i]->tensor, true, 1, 0.7);
    }
    for (int step = 0; step < 9; step++) {
        f.params.list[1]->unused = step < 5;
        pl_optimizers_step(&late, f.kernels, &no_clip, NULL, NULL, NULL);
        if (step < 4)
            pl_optimizers_step(&fresh, g.kernels, &no_clip, NULL, NULL, NULL);
    }
    assert_true(get(f.params.list[1]->tensor, 1) == get(g.params.list[1]->tensor, 1));
    assert_true(get(f.params.list[2]->tensor, 1) == get(f.params.list[0]->tensor, 1));
    assert_true(get(f.params.list[2]->tensor, 1) < get(f.params.list[1]->tensor, 1) - 0.1);
    pl_optimizers_finish(&late);
    pl_optimizers_finish(&fresh);
    teardown(&f);
    teardown(&g);
}

static void test_options_are_checked(void **state)
{
    static const struct {
        struct plume_optimizer options;
        const char *word;
    } cases[] = {
        {{.lr = -1}, "learning rate"},
        {{.lr = 1, .momentum = -1}, "momentum"},
        {{.lr = 1, .weight_decay = -1}, "weight_decay"},
        {{.lr = 1, .nesterov = 1}, "nesterov"},
        {{.lr = 1, .kind = 9}, "optimizer's kind 9 is unknown"},
        {{.lr = 1, .kind = PLUME_ADAM, .beta1 = 1}, "beta1"},
        {{.lr = 1, .kind = PLUME_ADAM, .beta2 = -0.1}, "beta2"},
        {{.lr = 1, .schedule = {.kind = PLUME_STEP_LR}}, "step_size"},
        {{.lr = 1, .schedule = {.kind = PLUME_COSINE}}, "t_max"},
        {{.lr = 1, .schedule = {.kind = PLUME_PLATEAU, .factor = 1}}, "factor"},
        {{.lr = 1, .schedule = {.warmup_from = 2}}, "warmup_from"},
        {{.lr = 1, .schedule = {.kind = PLUME_MULTI_STEP, .milestone = {5, 2}}}, "milestones"},
        {{.lr = 1, .schedule = {.kind = 77}}, "schedule's kind 77 is unknown"},
        {{.lr = 1, .kind = PLUME_RMSPROP, .alpha = -1}, "alpha"},
        {{.lr = 1, .kind = PLUME_ADAGRAD, .lr_decay = -1}, "lr_decay"},
        {{.lr = 1,
          .kind = PLUME_ADAGRAD,
          .schedule = {.kind = PLUME_ONE_CYCLE, .t_max = 9},
          .schedule_more = {.cycle_momentum = 1}},
         "adagrad does not have"},
        {{.lr = 1, .schedule = {.kind = PLUME_POLYNOMIAL}}, "t_max"},
        {{.lr = 1, .schedule = {.kind = PLUME_RESTARTS}}, "t_max"},
        {{.lr = 1,
          .schedule = {.kind = PLUME_RESTARTS, .t_max = 2},
          .schedule_more = {.t_mult = -2}},
         "t_mult"},
        {{.lr = 1,
          .schedule = {.kind = PLUME_ONE_CYCLE, .t_max = 9},
          .schedule_more = {.pct_start = 1.5}},
         "pct_start"},
        {{.lr = 1,
          .schedule = {.kind = PLUME_ONE_CYCLE, .t_max = 10},
          .schedule_more = {.pct_start = 0.1}},
         "without steps"},
        {{.lr = 1,
          .schedule = {.kind = PLUME_ONE_CYCLE, .t_max = 10},
          .schedule_more = {.pct_start = 0.6, .three_phase = 1}},
         "without steps"},
    };
    enum plume_optimizer_kind kind;
    struct pl_optimizers o;
    struct fixture f;

    setup(&f, PL_REAL_F32, (const char *const[]){"a"}, 1);
    for (size_t i = 0; i < PL_COUNT(cases); i++) {
        struct pl_error err = {0};

        assert_int_equal(pl_optimizers_init(&o, &f.params, &cases[i].options, 1, &err), -EINVAL);
        if (!strstr(err.text, cases[i].word))
            fail_msg("'%s' has no '%s'", err.text, cases[i].word);
    }
    assert_int_equal(pl_optimizer_kind_parse("adamw", &kind, NULL), 0);
    assert_int_equal(kind, PLUME_ADAMW);
    assert_int_equal(pl_optimizer_kind_parse("lion", &kind, NULL), -EINVAL);
    teardown(&f);
}

static void follow_more(const char *name,
                        const struct plume_schedule *options,
                        const struct plume_schedule_more *more,
                        const double *want,
                        size_t n)
{
    struct pl_schedule s;

    assert_int_equal(pl_schedule_init(&s, options, more, 0.1, NULL), 0);
    for (size_t t = 0; t < n; t++) {
        /* PyTorch multiplies step by step: about ten roundings. */
        if (fabs(s.lr - want[t]) > 1e-13 * 0.1 + 1e-12 * want[t])
            fail_msg("%s: at %zu the rate is %.17g, not %.17g", name, t, s.lr, want[t]);
        pl_schedule_step(&s, t < PL_COUNT(golden_plateau_values) ? golden_plateau_values[t] : 0);
    }
}

static void
follow_rates(const char *name, const struct plume_schedule *options, const double *want, size_t n)
{
    follow_more(name, options, NULL, want, n);
}

#define FOLLOW(name, ...)                                                                          \
    follow_rates(#name, &(const struct plume_schedule){__VA_ARGS__}, golden_##name,                \
                 PL_COUNT(golden_##name))

static void test_schedules_follow_pytorch(void **state)
{
    struct pl_schedule s;

    FOLLOW(step, .kind = PLUME_STEP_LR, .step_size = 3, .gamma = 0.5);
    FOLLOW(multi_step, .kind = PLUME_MULTI_STEP, .milestone = {2, 5, 11});
    FOLLOW(cosine, .kind = PLUME_COSINE, .t_max = 10, .eta_min = 0.001);
    FOLLOW(warm_constant, .warmup = 5);
    FOLLOW(warm_cosine, .kind = PLUME_COSINE, .warmup = 5, .warmup_from = 0.01, .t_max = 8,
           .eta_min = 0.002);
    FOLLOW(warm_step, .kind = PLUME_STEP_LR, .warmup = 5, .step_size = 2, .gamma = 0.3);
    FOLLOW(plateau_min, .kind = PLUME_PLATEAU, .factor = 0.5, .patience = 2);
    FOLLOW(plateau_max_abs, .kind = PLUME_PLATEAU, .maximize = 1, .patience = 1, .threshold = 0.05,
           .threshold_absolute = 1, .cooldown = 3, .min_lr = 0.0005);
    FOLLOW(plateau_min_abs_0, .kind = PLUME_PLATEAU, .factor = 0.5, .patience = -1, .threshold = -1,
           .threshold_absolute = 1);
    assert_int_equal(pl_schedule_init(&s, &(struct plume_schedule){0}, NULL, 0.1, NULL), 0);
    pl_schedule_scale(&s, 8);
    pl_schedule_step(&s, 0);
    assert_true(s.lr == 0.8);
}

#define FOLLOW_MORE(name, numbers, ...)                                                            \
    follow_more(#name, &(const struct plume_schedule)numbers,                                      \
                &(const struct plume_schedule_more){__VA_ARGS__}, golden_##name,                   \
                PL_COUNT(golden_##name))
#define KIND(...)                                                                                  \
    {                                                                                              \
        .kind = __VA_ARGS__                                                                        \
    }

static void test_more_schedules_follow_pytorch(void **state)
{
    struct pl_schedule s;

    FOLLOW(exponential, .kind = PLUME_EXPONENTIAL, .gamma = 0.9);
    FOLLOW_MORE(polynomial, KIND(PLUME_POLYNOMIAL, .t_max = 12), .power = 2.5);
    FOLLOW_MORE(restarts, KIND(PLUME_RESTARTS, .t_max = 4, .eta_min = 0.002), .t_mult = 3);
    FOLLOW(one_cycle, .kind = PLUME_ONE_CYCLE, .t_max = 25);
    FOLLOW_MORE(one_cycle_linear, KIND(PLUME_ONE_CYCLE, .t_max = 17), .pct_start = 0.4, .linear = 1,
                .div_factor = 10, .final_div_factor = 100);
    FOLLOW_MORE(one_cycle_three, KIND(PLUME_ONE_CYCLE, .t_max = 40), .pct_start = 0.25,
                .three_phase = 1);
    FOLLOW_MORE(one_cycle_late, KIND(PLUME_ONE_CYCLE, .t_max = 9), .pct_start = -1);
    assert_int_equal(
        pl_schedule_init(
            &s, &(const struct plume_schedule){.kind = PLUME_ONE_CYCLE, .t_max = 20},
            &(const struct plume_schedule_more){.cycle_momentum = 1, .base_momentum = 0.6}, 0.1,
            NULL),
        0);
    for (size_t t = 0; t < PL_COUNT(golden_one_cycle_momentum); t++) {
        assert_true(fabs(pl_schedule_momentum(&s, 0.5) - golden_one_cycle_momentum[t]) < 1e-13);
        pl_schedule_step(&s, 0);
    }
    for (size_t t = 0; t < 9; t++) /* PyTorch ends here; the rate stays */
        pl_schedule_step(&s, 0);
    assert_true(fabs(s.lr - 0.1 / 25 / 1e4) < 1e-15);
}

/* Hundreds of random settings. */
static void test_random_schedules_follow_pytorch(void **state)
{
    enum { ROW = 20 };

    for (const double *row = golden_random_schedules;
         row < golden_random_schedules + PL_COUNT(golden_random_schedules); row += ROW) {
        const struct plume_schedule options = {.kind = (enum plume_schedule_kind)row[0],
                                               .warmup = (long long)row[2],
                                               .warmup_from = row[3],
                                               .t_max = (long long)row[4],
                                               .eta_min = row[5],
                                               .gamma = row[6]};
        const struct plume_schedule_more more = {.power = row[7],
                                                 .t_mult = (long long)row[8],
                                                 .pct_start = row[9],
                                                 .div_factor = row[10],
                                                 .final_div_factor = row[11],
                                                 .linear = (int)row[12],
                                                 .three_phase = (int)row[13]};
        struct pl_schedule s;

        assert_int_equal(pl_schedule_init(&s, &options, &more, row[1], NULL), 0);
        for (const double *point = row + 14; point < row + ROW; point += 2) {
            while (s.t < (uint64_t)point[0])
                pl_schedule_step(&s, 0);
            if (fabs(s.lr - point[1]) > 1e-12 * fmax(row[1], point[1]))
                fail_msg("row %td: at %g the rate is %.17g, not %.17g",
                         (row - golden_random_schedules) / ROW, point[0], s.lr, point[1]);
        }
    }
}

static bool logged(void *ctx, const char *name, double *ret)
{
    *ret = strcmp(name, "val_acc") == 0 ? *(double *)ctx : NAN;
    return true;
}

static void test_plateau_needs_its_number(void **state)
{
    struct plume_optimizer options[] = {
        {.lr = 1,
         .prefixes = "a",
         .schedule = {.kind = PLUME_STEP_LR, .per_step = 1, .step_size = 1}},
        {.lr = 1, .schedule = {.kind = PLUME_PLATEAU, .patience = -1, .monitor = "val_acc"}},
    };
    struct pl_error err = {0};
    struct pl_optimizers o;
    struct fixture f;
    double value = 3;

    setup(&f, PL_REAL_F32, (const char *const[]){"a", "b"}, 2);
    assert_int_equal(pl_optimizers_init(&o, &f.params, options, 2, NULL), 0);
    assert_int_equal(pl_optimizers_schedule(&o, true, NULL, NULL, NULL), 0);
    assert_true(fabs(o.list[0].schedule.lr - 0.1) < 1e-12 && o.list[1].schedule.lr == 1);
    assert_int_equal(pl_optimizers_schedule(&o, false, NULL, NULL, &err), -ENOENT);
    assert_non_null(strstr(err.text, "'val_acc'"));
    assert_int_equal(pl_optimizers_schedule(&o, false, logged, &value, NULL), 0);
    assert_int_equal(pl_optimizers_schedule(&o, false, logged, &value, NULL), 0);
    assert_true(fabs(o.list[1].schedule.lr - 0.1) < 1e-12);
    pl_optimizers_finish(&o);
    teardown(&f);
}

static void test_scaler_follows_pytorch(void **state)
{
    const struct plume_optimizer options = {.lr = 1};
    struct pl_optimizers o;
    struct pl_scaler s;
    struct fixture f;
    plume_tensor *t;

    pl_scaler_init(&s, true);
    assert_true((double)s.scale == golden_scaler_defaults[0]);
    assert_true((double)s.growth == golden_scaler_defaults[1]);
    assert_true((double)s.backoff == golden_scaler_defaults[2]);
    assert_true((double)s.interval == golden_scaler_defaults[3]);
    s.interval = 4;
    setup(&f, PL_REAL_F32, (const char *const[]){"w"}, 1);
    t = f.params.list[0]->tensor;
    assert_int_equal(pl_optimizers_init(&o, &f.params, &options, 1, NULL), 0);
    for (size_t i = 0; i < PL_COUNT(golden_scaler_made); i++) {
        struct pl_optimizers_result result;
        double before = get(t, 1);

        assert_true((double)s.scale == golden_scaler_scales[i]);
        put(t, true, 1, (double)s.scale * 0.25);
        put(t, true, 2, golden_scaler_overflows[i] ? INFINITY : 0);
        pl_optimizers_step(&o, f.kernels, &no_clip, &s, &result, NULL);
        assert_int_equal(result.skipped, !golden_scaler_made[i]);
        assert_true(before - get(t, 1) == (golden_scaler_made[i] ? 0.25 : 0));
    }
    assert_true((double)s.scale == golden_scaler_scales[PL_COUNT(golden_scaler_made)]);
    assert_int_equal(o.list[0].steps + s.skipped, PL_COUNT(golden_scaler_made));
    pl_scaler_init(&s, false);
    pl_scaler_update(&s, true);
    assert_true(s.scale == 1);
    pl_optimizers_finish(&o);
    teardown(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_optimizers_follow_pytorch),
        cmocka_unit_test(test_clip_by_norm_follows_pytorch),
        cmocka_unit_test(test_clip_by_value),
        cmocka_unit_test(test_optimizers_share_the_parameters),
        cmocka_unit_test(test_unused_parameters_stay),
        cmocka_unit_test(test_unused_parameters_count_their_own_steps),
        cmocka_unit_test(test_options_are_checked),
        cmocka_unit_test(test_schedules_follow_pytorch),
        cmocka_unit_test(test_groups_follow_pytorch),
        cmocka_unit_test(test_groups_are_checked),
        cmocka_unit_test(test_more_schedules_follow_pytorch),
        cmocka_unit_test(test_random_schedules_follow_pytorch),
        cmocka_unit_test(test_plateau_needs_its_number),
        cmocka_unit_test(test_scaler_follows_pytorch),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
