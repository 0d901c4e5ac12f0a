/* SPDX-License-Identifier: MIT */
/* Copies of parameters and buffers on other devices: which are made, and how often. */
#include "runtime/engine/params/replicas.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

/* Devices with host memory that the engine must not access directly. */
static unsigned alive, copies, packs, syncs;
static size_t copied_bytes;
static unsigned lost; /* index of a device that has failed; 0: none */

static int
fake_alloc(struct pl_device *dev, size_t bytes, const char *what, void **ret, struct pl_error *err)
{
    *ret = malloc(bytes);
    assert_non_null(*ret);
    memset(*ret, 0x77, bytes);
    alive++;
    return 0;
}

static void fake_free(struct pl_device *dev, void *memory)
{
    free(memory);
    alive--;
}

static void fake_zero(struct pl_device *dev, void *to, size_t bytes)
{
    memset(to, 0, bytes);
}

static void fake_upload(struct pl_device *dev, void *to, const void *from, size_t bytes)
{
    memcpy(to, from, bytes);
}

static void fake_copy(struct pl_device *dev, void *to, const void *from, size_t bytes)
{
    memcpy(to, from, bytes);
    packs++;
}

static void fake_copy_from(
    struct pl_device *dev, void *to, struct pl_device *source, const void *from, size_t bytes)
{
    assert_ptr_not_equal(dev, source);
    memcpy(to, from, bytes);
    copies++;
    copied_bytes += bytes;
}

static int fake_sync(struct pl_device *dev, struct pl_error *err)
{
    syncs++;
    return lost && dev->index == lost ? pl_error_set(err, -EIO, "%s is lost", dev->name) : 0;
}

static const struct pl_device_ops ops = {
    .name = "fake",
    .alloc = fake_alloc,
    .free = fake_free,
    .zero = fake_zero,
    .upload = fake_upload,
    .copy = fake_copy,
    .copy_from = fake_copy_from,
    .sync = fake_sync,
};

static struct pl_device devices[3] = {{.ops = &ops, .index = 0, .name = "fake:0"},
                                      {.ops = &ops, .index = 1, .name = "fake:1"},
                                      {.ops = &ops, .index = 2, .name = "fake:2"}};

/* Two parameters; two buffers declared between and after them. */
struct model {
    struct pl_params params;
    plume_tensor *w, *mean, *b, *var;
    struct pl_replicas replicas;
};

static void make(struct model *m, struct pl_device *const *list, unsigned n)
{
    struct pl_params *p = &m->params;
    struct pl_comm comm = {.size = 1};
    struct pl_tape tape = {.n = 0};
    const size_t five = 5, three = 3;

    copies = packs = syncs = lost = 0;
    copied_bytes = 0;
    pl_params_init(p, &devices[0], PL_REAL_F32);
    assert_int_equal(
        pl_params_declare_buffer(p, "mean", PLUME_INIT_ZERO, 1, &three, &m->mean, NULL), 0);
    assert_int_equal(pl_params_declare(p, "w", PLUME_INIT_FAN_IN, 1, &five, &m->w, NULL), 0);
    assert_int_equal(pl_params_declare_buffer(p, "var", PLUME_INIT_ONE, 1, &three, &m->var, NULL),
                     0);
    assert_int_equal(pl_params_declare(p, "b", PLUME_INIT_ONE, 1, &three, &m->b, NULL), 0);
    assert_int_equal(pl_replicas_init(&m->replicas, p, list, n, NULL), 0);
    assert_int_equal(pl_params_layout(p, &tape, &comm, NULL), 0);
    assert_int_equal(pl_params_init_values(p, NULL, 7, NULL), 0);
}

static void drop(struct model *m)
{
    pl_replicas_finish(&m->replicas);
    pl_params_finish(&m->params);
    assert_int_equal(alive, 0);
}

/* True if the part's copy of a tensor is at another address and has the same numbers. */
static bool is_copy(const struct model *m, unsigned part, const plume_tensor *t)
{
    const void *copy = m->replicas.list[part].copies[t->number - 1];

    return copy != t->data && memcmp(copy, t->data, t->count * sizeof(float)) == 0;
}

static void test_refresh_copies_what_has_changed(void **state)
{
    struct pl_device *list[] = {&devices[0], &devices[1], &devices[2]};
    struct model m;

    make(&m, list, 3);
    assert_false(pl_replicas_elsewhere(&m.replicas, 0));
    assert_true(pl_replicas_elsewhere(&m.replicas, 2));
    assert_int_equal(pl_replicas_refresh(&m.replicas, 2, NULL), 0); /* a batch of two parts */
    assert_null(m.replicas.list[0].copies);
    assert_null(m.replicas.list[2].copies);
    assert_int_equal(copies, 2); /* parameters; all buffers at once */
    assert_int_equal(packs, 2);
    assert_true(is_copy(&m, 1, m.w) && is_copy(&m, 1, m.b));
    assert_true(is_copy(&m, 1, m.mean) && is_copy(&m, 1, m.var));

    assert_int_equal(pl_replicas_refresh(&m.replicas, 3, NULL), 0); /* the third is new */
    assert_int_equal(copies, 4);
    assert_int_equal(packs, 2);
    assert_true(is_copy(&m, 2, m.var));
    assert_int_equal(pl_replicas_refresh(&m.replicas, 3, NULL), 0);
    assert_int_equal(copies, 4);

    copied_bytes = 0;
    ((float *)m.b->data)[1] = 9;
    m.params.values_version++;
    assert_int_equal(pl_replicas_refresh(&m.replicas, 3, NULL), 0);
    assert_int_equal(copies, 6);
    assert_int_equal(copied_bytes, 2 * m.params.count * sizeof(float));
    assert_int_equal(packs, 2);
    assert_true(is_copy(&m, 1, m.b) && is_copy(&m, 2, m.b));

    ((float *)m.var->data)[2] = 9;
    m.params.buffers_version++;
    assert_int_equal(pl_replicas_refresh(&m.replicas, 3, NULL), 0);
    assert_int_equal(copies, 8);
    assert_int_equal(packs, 4);
    assert_true(is_copy(&m, 1, m.var) && is_copy(&m, 2, m.var));
    drop(&m);
}

static void test_refresh_where_all_share_a_device(void **state)
{
    struct model m;

    for (unsigned named = 0; named < 2; named++) {
        struct pl_device *list[] = {&devices[0], &devices[0]};
        unsigned before;

        make(&m, named ? list : NULL, 2);
        before = alive;
        assert_false(pl_replicas_elsewhere(&m.replicas, 1));
        assert_int_equal(pl_replicas_refresh(&m.replicas, 2, NULL), 0);
        assert_null(m.replicas.list[1].copies);
        assert_int_equal(pl_replicas_sync(&m.replicas, NULL), 0);
        assert_int_equal(copies + packs + syncs, 0);
        assert_int_equal(alive, before);
        drop(&m);
    }
}

static void test_sync_tells_of_the_device_that_is_lost(void **state)
{
    struct pl_device *list[] = {&devices[0], &devices[1], &devices[2]};
    struct pl_error err = {0};
    struct model m;

    make(&m, list, 3);
    assert_int_equal(pl_replicas_sync(&m.replicas, &err), 0);
    assert_int_equal(syncs, 2);
    lost = 2;
    assert_int_equal(pl_replicas_sync(&m.replicas, &err), -EIO);
    assert_string_equal(err.text, "fake:2 is lost");
    drop(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refresh_copies_what_has_changed),
        cmocka_unit_test(test_refresh_where_all_share_a_device),
        cmocka_unit_test(test_sync_tells_of_the_device_that_is_lost),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
