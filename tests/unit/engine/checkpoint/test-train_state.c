/* SPDX-License-Identifier: MIT */
/* The contents of a run's checkpoint, and those that do not fit. */
#include "common/base/fs.h"
#include "runtime/engine/train/train_state.h"
#include "runtime/engine/train/weights.h"
#include "tests/unit/engine/checkpoint/checkpoint_dir.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

struct model {
    struct pl_comm *comm;
    struct pl_params params;
    struct pl_optimizers optimizers;
    struct pl_hparams hparams;
    struct pl_scaler scaler;
    struct pl_train_state state;
    plume_tensor running;
    float statistics[4];
    struct pl_buffer buffer;
};

/* Two parameters, in the order of use given by `turned`; adam with a plateau. */
static void build(struct model *m, enum pl_real real, bool turned)
{
    struct plume_optimizer options = {
        .lr = 0.1,
        .kind = PLUME_ADAM,
        .beta1 = 0.9,
        .beta2 = 0.99,
        .eps = 1e-8,
        .schedule = {.kind = PLUME_PLATEAU, .patience = -1, .factor = 0.3}};
    struct pl_world world = {.size = 1, .local_size = 1};
    struct pl_tape tape;
    plume_tensor *t;

    *m = (struct model){0};
    assert_int_equal(pl_comm_create(&world, NULL, &m->comm, NULL), 0);
    assert_int_equal(pl_hparams_init(&m->hparams, NULL, NULL), 0);
    pl_params_init(&m->params, pl_device_cpu(), real);
    for (int i = 0; i < 2; i++) {
        bool b = (i == 1) != turned;

        assert_int_equal(pl_params_declare(&m->params, b ? "b" : "a", PLUME_INIT_FAN_IN, 2,
                                           (size_t[]){b ? 3 : 5, 7}, &t, NULL),
                         0);
    }
    pl_tape_init(&tape, pl_device_cpu(), real, true);
    assert_int_equal(pl_params_layout(&m->params, &tape, m->comm, NULL), 0);
    pl_tape_finish(&tape);
    assert_int_equal(pl_params_init_values(&m->params, NULL, turned, NULL), 0);
    assert_int_equal(pl_optimizers_init(&m->optimizers, &m->params, &options, 1, NULL), 0);
    pl_scaler_init(&m->scaler, true);
    assert_int_equal(pl_tensor_init(&m->running, PLUME_F32, 1, (size_t[]){4}), 0);
    m->running.data = m->statistics;
    m->buffer = (struct pl_buffer){.name = "norm.running_mean", .tensor = &m->running};
    m->params.buffers = &m->buffer;
    m->params.n_buffers = 1;
    m->state = (struct pl_train_state){
        .module = "mlp",
        .params = &m->params,
        .optimizers = &m->optimizers,
        .scaler = &m->scaler,
        .hparams = &m->hparams,
        .seed = 5,
    };
}

static void tear(struct model *m)
{
    m->params.buffers = NULL;
    m->params.n_buffers = 0;
    pl_optimizers_finish(&m->optimizers);
    pl_params_finish(&m->params);
    pl_hparams_finish(&m->hparams);
    pl_comm_destroy(m->comm);
}

static double *gradients(struct model *m)
{
    return m->params.grads;
}

/* A step whose gradients depend on the step and the parameter's name only. */
static void step(struct model *m, unsigned number)
{
    for (size_t i = 0; i < m->params.n; i++) {
        const struct pl_param *p = m->params.list[i];

        for (size_t k = 0; k < p->tensor->count; k++)
            gradients(m)[p->offset + k] =
                (double)m->scaler.scale * sin(number * 100 + p->name[0] * 10 + (double)k);
    }
    pl_optimizers_step(&m->optimizers, pl_kernels_best(PL_REAL_F64),
                       &(struct pl_clip_rule){PL_CLIP_NORM, 1}, &m->scaler, NULL, NULL);
}

static bool one(void *ctx, const char *name, double *ret)
{
    *ret = strcmp(name, "val_loss") == 0 ? *(double *)ctx : NAN;
    return true;
}

static const plume_tensor *param(const struct model *m, const char *name)
{
    for (size_t i = 0; i < m->params.n; i++)
        if (strcmp(m->params.list[i]->name, name) == 0)
            return m->params.list[i]->tensor;
    fail();
    return NULL;
}

static void save(struct model *m, bool weights_only, struct pl_checkpoint *ret)
{
    _cleanup_free_ char *path = in_dir("state.ckpt");
    struct pl_checkpoint c = {0};

    assert_int_equal(pl_train_state_save(&m->state, weights_only, &c, NULL), 0);
    assert_int_equal(pl_checkpoint_write(&c, path, NULL), 0);
    pl_checkpoint_finish(&c);
    assert_int_equal(pl_checkpoint_read(path, ret, NULL), 0);
}

/* A run whose gradients overflow in every step ends up with a scale of 0: it can still be saved,
 * and a later resume is refused. */
static void test_scale_of_0_is_saved(void **state)
{
    struct pl_error err = {0};
    struct pl_checkpoint c;
    struct model a, b;

    build(&a, PL_REAL_F64, false);
    build(&b, PL_REAL_F64, false);
    a.scaler.scale = 0;
    save(&a, false, &c);
    assert_int_equal(pl_train_state_load(&b.state, &c, &err), -EINVAL);
    assert_non_null(strstr(err.text, "amp_scaling_state"));
    pl_checkpoint_finish(&c);
    tear(&a);
    tear(&b);
}

/* Into a model that has its parameters in another order, then both go on: bit for bit alike. */
static void test_resume_is_exact(void **state)
{
    double loss = 1;
    struct pl_checkpoint c;
    struct model a, b;

    build(&a, PL_REAL_F64, false);
    build(&b, PL_REAL_F64, true);
    a.scaler.scale = 1024;
    a.scaler.good_steps = 77;
    a.statistics[2] = 0.25f;
    a.state.epoch = 2;
    a.state.step = 9;
    a.state.batch = 10;
    a.state.samples_per_step = 8 * 4; /* 4 ranks with batches of 8 */
    a.state.stop = (struct pl_early_stop){.any = true, .best = 0.5, .waited = 3, .ended = true};
    for (unsigned i = 0; i < 3; i++) {
        step(&a, i);
        assert_int_equal(pl_optimizers_schedule(&a.optimizers, false, one, &loss, NULL), 0);
    }
    save(&a, false, &c);
    b.state.samples_per_step = 8 * 2; /* 2 ranks now */
    assert_int_equal(pl_train_state_load(&b.state, &c, NULL), 0);
    pl_checkpoint_finish(&c);
    assert_int_equal(b.state.epoch, 2);
    assert_int_equal(b.state.step, 9);
    assert_int_equal(b.state.batch, 20);
    assert_true(b.state.stop.any && b.state.stop.best == 0.5 && b.state.stop.waited == 3);
    assert_true(b.state.stop.ended);
    assert_true(b.scaler.scale == 1024 && b.scaler.good_steps == 80);
    assert_true(b.statistics[2] == 0.25f);
    assert_true(b.optimizers.list[0].schedule.lr == a.optimizers.list[0].schedule.lr);
    assert_true(fabs(b.optimizers.list[0].schedule.lr - 0.1 * 0.3 * 0.3) < 1e-15);
    for (unsigned i = 3; i < 6; i++) {
        step(&a, i);
        step(&b, i);
        pl_optimizers_schedule(&a.optimizers, false, one, &loss, NULL);
        pl_optimizers_schedule(&b.optimizers, false, one, &loss, NULL);
    }
    for (const char *name = "ab"; *name; name++) {
        char text[2] = {*name, 0};

        assert_memory_equal(param(&a, text)->data, param(&b, text)->data,
                            param(&a, text)->count * sizeof(double));
    }
    assert_int_equal(b.optimizers.list[0].steps, 6);
    tear(&a);
    tear(&b);
}

/* Of 95 samples: the tenth batch of 10 ends the epoch, also for ranks with three batches of 40. */
static void test_a_complete_epoch_stays_complete(void **state)
{
    for (uint64_t batch = 9; batch <= 10; batch++) {
        struct pl_checkpoint c;
        struct model a, b;

        build(&a, PL_REAL_F64, false);
        build(&b, PL_REAL_F64, false);
        a.state.samples_per_step = 10;
        a.state.batch = batch;
        b.state.samples_per_step = 40;
        a.state.samples = b.state.samples = 95;
        save(&a, false, &c);
        assert_int_equal(pl_train_state_load(&b.state, &c, NULL), 0);
        assert_int_equal(b.state.batch, batch == 9 ? 2 : 3);
        assert_int_equal(pl_train_state_load(&a.state, &c, NULL), 0);
        assert_int_equal(a.state.batch, batch);
        pl_checkpoint_finish(&c);
        tear(&a);
        tear(&b);
    }
}

/* `best` is of one value in one direction: another rule has none yet. */
static void test_early_stopping_starts_anew_for_another_value(void **state)
{
    static const struct {
        struct pl_early_stop_rule saved, now;
        bool goes_on;
    } cases[] = {
        {{.monitor = "val_acc", .maximize = true}, {.monitor = "val_acc", .maximize = true}, true},
        {{.monitor = "val_acc", .maximize = true}, {.monitor = "val_f1", .maximize = true}, false},
        {{.monitor = "val_acc", .maximize = true}, {.monitor = "val_acc"}, false},
        {{.monitor = "val_loss"}, {.monitor = NULL}, false},
        {{.monitor = NULL}, {.monitor = "val_loss"}, true}, /* as an earlier version */
    };

    for (size_t i = 0; i < PL_COUNT(cases); i++) {
        struct pl_checkpoint c;
        struct model a, b;

        build(&a, PL_REAL_F64, false);
        build(&b, PL_REAL_F64, false);
        a.state.stop_rule = &cases[i].saved;
        a.state.stop = (struct pl_early_stop){.any = true, .best = 0.5, .waited = 3, .ended = true};
        save(&a, false, &c);
        b.state.stop_rule = &cases[i].now;
        b.state.stop.waited = 7;
        assert_int_equal(pl_train_state_load(&b.state, &c, NULL), 0);
        assert_int_equal(b.state.stop.waited, cases[i].goes_on ? 3 : 0);
        assert_int_equal(b.state.stop.any, cases[i].goes_on);
        assert_int_equal(b.state.stop.ended, cases[i].goes_on);
        pl_checkpoint_finish(&c);
        tear(&a);
        tear(&b);
    }
}

/* test_resume_is_exact's state as release 0.1 wrote it: the same, but for sin() in the last place.
 */
static void test_release_0_1_is_read(void **state)
{
    static const char path[] = PL_FIXTURES "/checkpoints/release-0.1.ckpt";
    _cleanup_free_ char *bytes = NULL;
    struct pl_checkpoint c, back;
    struct pl_error err = {0};
    struct model a, b;
    double loss = 1;
    size_t len;

    build(&a, PL_REAL_F64, false);
    build(&b, PL_REAL_F64, true);
    a.scaler.scale = 1024;
    for (unsigned i = 0; i < 3; i++) {
        step(&a, i);
        assert_int_equal(pl_optimizers_schedule(&a.optimizers, false, one, &loss, NULL), 0);
    }
    assert_int_equal(pl_checkpoint_read(path, &c, NULL), 0);
    assert_int_equal(c.n, 7);
    assert_int_equal(pl_train_state_load(&b.state, &c, &err), 0);
    assert_int_equal(b.state.step, 9);
    assert_int_equal(b.optimizers.list[0].steps, 3);
    assert_true(b.scaler.good_steps == 80 && b.statistics[2] == 0.25f);
    for (const char *name = "ab"; *name; name++) {
        char text[2] = {*name, 0};
        const double *x = param(&a, text)->data, *y = param(&b, text)->data;

        for (size_t k = 0; k < param(&a, text)->count; k++)
            assert_true(fabs(x[k] - y[k]) < 1e-12);
    }
    pl_checkpoint_finish(&c);
    assert_int_equal(pl_file_read(path, 1 << 20, &bytes, &len, NULL), 0);
    for (size_t i = 0; i < len; i++) {
        bytes[i] ^= 16;
        assert_true(pl_checkpoint_parse(bytes, len, &back, &err) < 0);
        bytes[i] ^= 16;
    }
    bytes[8] = 2;
    assert_int_equal(pl_checkpoint_parse(bytes, len, &back, &err), -EPROTO);
    assert_string_equal(err.text, "the checkpoint has format version 2, this release reads 1");
    tear(&a);
    tear(&b);
}

static void test_weights_only(void **state)
{
    _cleanup_free_ char *path = in_dir("state.ckpt"), *report = NULL;
    struct pl_train_options options = {.weights = path};
    struct pl_checkpoint c;
    struct pl_error err = {0};
    struct model a, b;
    bool averaged;

    build(&a, PL_REAL_F64, false);
    build(&b, PL_REAL_F32, true);
    step(&a, 1);
    save(&a, true, &c);
    assert_int_equal(c.n, 3);
    for (size_t i = 0; i < c.n; i++)
        assert_int_not_equal(strncmp(c.tensors[i].name, "plume.", 6), 0);
    assert_null(pl_checkpoint_get(&c, "optimizer_states"));
    /* Enough for evaluating, in another type too, but not to go on with. */
    assert_int_equal(pl_train_state_load(&b.state, &c, &err), -EINVAL);
    assert_string_equal(err.text, "the checkpoint has weights only: give it to --weights instead");
    assert_int_equal(pl_weights_load(&b.params, &options, &averaged, &report, NULL), 0);
    assert_null(report);
    for (size_t i = 0; i < param(&a, "a")->count; i++)
        assert_true(((float *)param(&b, "a")->data)[i] ==
                    (float)((double *)param(&a, "a")->data)[i]);
    pl_checkpoint_finish(&c);
    tear(&a);
    tear(&b);
}

static void test_what_does_not_fit_is_refused(void **state)
{
    struct pl_checkpoint c;
    struct pl_error err = {0};
    struct model a, b;
    double before;

    build(&a, PL_REAL_F64, false);
    build(&b, PL_REAL_F64, true);
    before = *(double *)param(&b, "a")->data;
    save(&a, false, &c);
    b.state.seed = 6;
    assert_int_equal(pl_train_state_load(&b.state, &c, &err), -EINVAL);
    assert_non_null(strstr(err.text, "--seed 5"));
    b.state.seed = 5;
    b.params.n_buffers = 0;
    assert_int_equal(pl_train_state_load(&b.state, &c, &err), -EINVAL);
    assert_non_null(strstr(err.text, "3 parameters and buffers, the model 2"));
    b.params.n_buffers = 1;
    b.params.list[0]->tensor->shape[0] = 7; /* [7, 3] instead of [3, 7] */
    b.params.list[0]->tensor->shape[1] = 3;
    assert_int_equal(pl_train_state_load(&b.state, &c, &err), -EINVAL);
    assert_non_null(strstr(err.text, "'b' has another shape"));
    b.params.list[0]->tensor->shape[0] = 3;
    b.params.list[0]->tensor->shape[1] = 7;
    b.optimizers.list[0].options.kind = PLUME_ADAMW;
    assert_int_equal(pl_train_state_load(&b.state, &c, &err), -EINVAL);
    assert_string_equal(err.text, "the checkpoint is of optimizer 'adam', this run's is 'adamw'");
    b.params.list[0]->name[0] = 'c';
    assert_int_equal(pl_train_state_load(&b.state, &c, &err), -EINVAL);
    assert_non_null(strstr(err.text, "no 'c'"));
    b.params.list[0]->name[0] = 'b';
    assert_true(*(double *)param(&b, "a")->data == before);
    pl_checkpoint_finish(&c);
    tear(&a);
    tear(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_scale_of_0_is_saved),
        cmocka_unit_test(test_resume_is_exact),
        cmocka_unit_test(test_a_complete_epoch_stays_complete),
        cmocka_unit_test(test_early_stopping_starts_anew_for_another_value),
        cmocka_unit_test(test_release_0_1_is_read),
        cmocka_unit_test(test_weights_only),
        cmocka_unit_test(test_what_does_not_fit_is_refused),
    };

    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
