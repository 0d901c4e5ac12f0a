/* SPDX-License-Identifier: MIT */
/* The work of an optimizer's step on a GPU: statistics of gradients are a graph that is replayed,
 * and the update is one kernel per range. On a device of the emulated CUDA kernels that has graphs;
 * with them and without them the bits are the same. */
#include "runtime/engine/optim/optimizer.h"
#include "runtime/engine/util/rng.h"
#include "tests/cuda/emulator.h"
#include "tests/cuda/fake_device.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#define N 77 /* elements of a parameter */
#define PARAMS 3
#define STEPS 9

static struct {
    unsigned launches, replays, captures, live, downloads;
} seen;
static bool replaying;
static const char *spoils; /* what makes a capture fail */

static void launched(void)
{
    seen.launches += !replaying;
}

static void ended(void) {}

static void given(const void *value, size_t bytes) {}

static int capture_begin(struct pl_device *dev, struct pl_error *err)
{
    pl_emu_record_begin();
    if (spoils)
        pl_emu_spoil(spoils);
    return 0;
}

static int capture_end(struct pl_device *dev, struct pl_device_graph **ret, struct pl_error *err)
{
    const char *why = NULL;

    *ret = (struct pl_device_graph *)pl_emu_record_end(&why);
    seen.captures++;
    seen.live += *ret != NULL;
    return *ret ? 0 : pl_error_set(err, -EIO, "%s", why);
}

static int replay(struct pl_device *dev, struct pl_device_graph *graph)
{
    bool done;

    replaying = true;
    done = pl_emu_replay((const struct pl_emu_graph *)graph);
    replaying = false;
    seen.replays += done;
    return done ? 0 : -ESTALE;
}

static void graph_free(struct pl_device *dev, struct pl_device_graph *graph)
{
    seen.live -= graph != NULL;
    if (graph)
        pl_emu_graph_free((struct pl_emu_graph *)graph);
}

struct fill {
    void *to;
    size_t bytes;
};

static void do_fill(void *ctx)
{
    const struct fill *f = ctx;

    memset(f->to, 0, f->bytes);
}

static void zero(struct pl_device *dev, void *to, size_t bytes)
{
    struct fill f = {to, bytes};

    if (pl_emu_recording())
        pl_emu_record(do_fill, &f, sizeof(f));
    else
        do_fill(&f);
}

static int
download(struct pl_device *dev, void *to, const void *from, size_t bytes, struct pl_error *err)
{
    assert_false(pl_emu_recording());
    seen.downloads++;
    return pl_device_cpu()->ops->download(dev, to, from, bytes, err);
}

static struct pl_device *device(void)
{
    static const struct pl_emu_watch watch = {given, launched, ended};
    static struct pl_device_ops ops;
    struct pl_device *dev = fake_device();

    ops = *dev->ops;
    ops.zero = zero;
    ops.download = download;
    ops.capture_begin = capture_begin;
    ops.capture_end = capture_end;
    ops.replay = replay;
    ops.graph_free = graph_free;
    dev->ops = &ops;
    pl_emu_set_watch(&watch);
    memset(&seen, 0, sizeof(seen));
    return dev;
}

/* The options of a run. */
struct how {
    enum plume_optimizer_kind kind;
    struct pl_clip_rule clip;
    bool scaled, grouped, two, by_blocks, grows;
    size_t infinite; /* the step whose gradients are; 0: none */
};

struct result {
    float values[PARAMS][N];
    float scale;
    uint64_t steps;
    unsigned launches, replays, downloads; /* of the last step */
    unsigned captures, live;
};

/* A step with gradients that follow from its number. Scratch that grows moves. */
static void
step(struct pl_optimizers *o, const struct how *how, size_t at, struct pl_scaler *scaler)
{
    const struct pl_params *params = o->params;
    struct pl_rng rng;

    pl_rng_init(&rng, 7, at);
    for (size_t i = 0; i < PARAMS; i++)
        for (size_t k = 0; k < N; k++)
            ((float *)params->list[i]->tensor->grad)[k] =
                (float)pl_rng_normal(&rng) * scaler->scale;
    if (at == how->infinite)
        ((float *)params->list[1]->tensor->grad)[N - 1] = INFINITY;
    if (how->grows && at == 6)
        assert_non_null(pl_emu_scratch((size_t)1 << 20));
    seen.launches = seen.replays = seen.downloads = 0;
    for (size_t i = 0; i < (how->two ? 2 : 1); i++)
        assert_int_equal(pl_optimizers_step_some(o, i, 1, pl_kernels_cuda(PL_REAL_F32), &how->clip,
                                                 scaler, NULL, NULL),
                         0);
    assert_int_equal(pl_optimizers_schedule(o, true, NULL, NULL, NULL), 0);
}

static void run(const struct how *how, bool graphs, struct result *ret)
{
    static const char *const names[] = {"a.weight", "a.bias", "b.weight"};
    struct plume_optimizer options[2] = {
        {.struct_size = sizeof(options[0]),
         .kind = how->kind,
         .lr = 0.01,
         .momentum = how->kind == PLUME_SGD ? 0.9 : 0,
         .weight_decay = 0.1,
         .beta1 = 0.9,
         .beta2 = 0.999,
         .alpha = 0.9,
         .eps = 1e-8,
         .schedule = {.kind = PLUME_COSINE, .t_max = STEPS, .eta_min = 0.0005, .per_step = 1}}};
    const struct pl_group_options group = {.pattern = "*.bias", .numbers = {.lr = 0.02}};
    struct pl_device *dev = device();
    struct pl_world world = {.size = 1, .local_size = 1};
    struct pl_optimizers o;
    struct pl_scaler scaler;
    struct pl_params params;
    struct pl_tape tape;
    struct pl_comm *comm;
    plume_tensor *t;

    options[1] = options[0];
    options[1].prefixes = "b";
    pl_scaler_init(&scaler, how->scaled);
    assert_int_equal(pl_comm_create(&world, NULL, &comm, NULL), 0);
    pl_params_init(&params, dev, PL_REAL_F32);
    for (size_t i = 0; i < PARAMS; i++)
        assert_int_equal(
            pl_params_declare(&params, names[i], PLUME_INIT_ONE, 1, (size_t[]){N}, &t, NULL), 0);
    pl_tape_init(&tape, dev, PL_REAL_F32, true);
    assert_int_equal(pl_params_layout(&params, &tape, comm, NULL), 0);
    assert_int_equal(pl_optimizers_init_groups(&o, &params, options, how->two ? 2 : 1, &group,
                                               how->grouped, NULL),
                     0);
    assert_int_equal(pl_optimizers_share(&o, NULL, how->by_blocks, NULL), 0);
    assert_int_equal(pl_params_init_values(&params, comm, 1, NULL), 0);
    o.graphs = graphs;
    for (size_t at = 1; at <= STEPS; at++)
        step(&o, how, at, &scaler);
    *ret = (struct result){.scale = scaler.scale,
                           .steps = o.list[0].steps,
                           .launches = seen.launches,
                           .replays = seen.replays,
                           .downloads = seen.downloads,
                           .captures = seen.captures};
    for (size_t i = 0; i < PARAMS; i++)
        memcpy(ret->values[i], params.list[i]->tensor->data, sizeof(ret->values[i]));
    pl_optimizers_finish(&o);
    ret->live = seen.live;
    pl_tape_finish(&tape);
    pl_params_finish(&params);
    pl_comm_destroy(comm);
    pl_emu_set_watch(NULL);
}

static void same(const char *what, const struct how *how, struct result *on)
{
    struct result off;

    run(how, true, on);
    run(how, false, &off);
    if (memcmp(on->values, off.values, sizeof(off.values)) != 0 || on->scale != off.scale ||
        on->steps != off.steps)
        fail_msg("%s: not the same with graphs", what);
    assert_true(off.values[0][0] != 1 && isfinite(off.values[1][N - 1]));
    assert_int_equal(off.captures, 0);
    assert_int_equal(off.replays, 0);
    assert_int_equal(on->downloads, off.downloads);
    assert_int_equal(on->live, 0);
}

static void counts(const char *what, const struct result *r, unsigned launches, unsigned replays)
{
    if (r->launches != launches || r->replays != replays)
        fail_msg("%s: %u launches and %u replays, not %u and %u", what, r->launches, r->replays,
                 launches, replays);
}

static const enum plume_optimizer_kind kinds[] = {PLUME_SGD, PLUME_ADAM, PLUME_ADAMW, PLUME_RMSPROP,
                                                  PLUME_ADAGRAD};

/* Learning rate and step number change at each step. */
static void test_an_update_is_a_kernel_per_range(void **state)
{
    for (size_t i = 0; i < PL_COUNT(kinds); i++) {
        const char *name = pl_optimizer_kind_name(kinds[i]);
        struct how how = {.kind = kinds[i]};
        struct result r;

        same(name, &how, &r);
        counts(name, &r, 1, 0);
        how.clip = (struct pl_clip_rule){PL_CLIP_VALUE, 0.5};
        same(name, &how, &r);
        counts(name, &r, 1, 0);
        how.grouped = true;
        same(name, &how, &r);
        counts(name, &r, 3, 0);
    }
}

static void test_the_norm_is_a_graph(void **state)
{
    for (size_t i = 0; i < PL_COUNT(kinds); i++) {
        const char *name = pl_optimizer_kind_name(kinds[i]);
        struct how how = {.kind = kinds[i], .clip = {PL_CLIP_NORM, 0.5}};
        struct result r;

        same(name, &how, &r);
        counts(name, &r, 1, 1);
        assert_int_equal(r.captures, 1);
        assert_int_equal(r.downloads, 0);
        how.grouped = true;
        same(name, &how, &r);
        counts(name, &r, 3, 1);
        how.grouped = false;
        how.two = true;
        same(name, &how, &r);
        counts(name, &r, 2, 2);
        assert_int_equal(r.captures, 2);
        how.by_blocks = true;
        same(name, &how, &r);
        counts(name, &r, 2, 2);
        assert_int_equal(r.downloads, 2);
    }
}

/* The scale halves after a step that is skipped: its kernels have another argument then. */
static void test_a_loss_scale_is_followed(void **state)
{
    for (size_t i = 0; i < PL_COUNT(kinds); i++) {
        const char *name = pl_optimizer_kind_name(kinds[i]);
        struct how how = {.kind = kinds[i], .scaled = true, .infinite = 4};
        struct result r;

        for (int clips = 0; clips < 2; clips++) {
            if (clips)
                how.clip = (struct pl_clip_rule){PL_CLIP_NORM, 0.5};
            same(name, &how, &r);
            counts(name, &r, 1, 1);
            assert_int_equal(r.captures, 2);
            assert_int_equal(r.steps, STEPS - 1);
            assert_true(r.scale == 32768);
        }
    }
}

static void test_scratch_that_moves_drops_the_graph(void **state)
{
    const struct how how = {.kind = PLUME_ADAM, .clip = {PL_CLIP_NORM, 0.5}, .grows = true};
    struct result r;

    run(&how, true, &r); /* alone: scratch moves once in a process */
    counts("moved", &r, 1, 1);
    assert_int_equal(r.captures, 2);
    assert_int_equal(r.live, 0);
}

static void test_without_a_graph_it_goes_on(void **state)
{
    const struct how how = {.kind = PLUME_ADAM, .clip = {PL_CLIP_NORM, 0.5}};
    struct result r;

    spoils = "there are enough";
    same("refused", &how, &r);
    spoils = NULL;
    counts("refused", &r, 3, 0);
    assert_int_equal(r.captures, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_an_update_is_a_kernel_per_range),
        cmocka_unit_test(test_the_norm_is_a_graph),
        cmocka_unit_test(test_a_loss_scale_is_followed),
        cmocka_unit_test(test_scratch_that_moves_drops_the_graph),
        cmocka_unit_test(test_without_a_graph_it_goes_on),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
