/* SPDX-License-Identifier: MIT */
/* Weights from safetensors files: those that PyTorch wrote (tests/golden/weights.py), and bad ones.
 */
#include "common/base/fs.h"
#include "runtime/engine/train/weights.h"
#include "runtime/engine/train/weights_map.h"
#include "tests/golden/weights.h"
#include "tests/lib/tmpdir.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#define FILES PL_FIXTURES "/weights/"

static const char *const maps[] = {"^model[.]=", "^b$=second:T", "^bn[.](running_.*)$=norm.\\1"};

struct net {
    struct pl_comm *comm;
    struct pl_params params;
    plume_tensor *a, *b, *mean;
};

/* Values begin with 1 and 0. */
static void build(struct net *net, enum pl_real real)
{
    struct pl_world world = {.size = 1, .local_size = 1};
    struct pl_params *p = &net->params;
    struct pl_tape tape;

    assert_int_equal(pl_comm_create(&world, NULL, &net->comm, NULL), 0);
    pl_params_init(p, pl_device_cpu(), real);
    assert_int_equal(pl_params_declare(p, "a", PLUME_INIT_ONE, 2, (size_t[]){5, 7}, &net->a, NULL),
                     0);
    assert_int_equal(
        pl_params_declare(p, "second", PLUME_INIT_ONE, 2, (size_t[]){3, 7}, &net->b, NULL), 0);
    assert_int_equal(pl_params_declare_buffer(p, "norm.running_mean", PLUME_INIT_ZERO, 1,
                                              (size_t[]){4}, &net->mean, NULL),
                     0);
    pl_tape_init(&tape, pl_device_cpu(), real, true);
    assert_int_equal(pl_params_layout(p, &tape, net->comm, NULL), 0);
    pl_tape_finish(&tape);
    assert_int_equal(pl_params_init_values(p, NULL, 0, NULL), 0);
}

static void tear(struct net *net)
{
    pl_params_finish(&net->params);
    pl_comm_destroy(net->comm);
}

static void assert_values(const plume_tensor *t, const double *expected)
{
    for (size_t i = 0; i < t->count; i++)
        if (t->dtype == PLUME_F64)
            assert_true(((const double *)t->data)[i] == expected[i]);
        else
            assert_true(((const float *)t->data)[i] == (float)expected[i]);
}

static int load(
    struct net *net, const char *path, size_t n_maps, bool strict, char **ret, struct pl_error *err)
{
    const struct pl_train_options options = {
        .weights = path, .weights_maps = maps, .n_weights_maps = n_maps, .weights_strict = strict};
    bool averaged;

    free(*ret);
    *ret = NULL;
    return pl_weights_load(&net->params, &options, &averaged, ret, err);
}

static void test_types_of_pytorch(void **state)
{
    static const struct {
        const char *path;
        const double *a, *b, *mean;
    } files[] = {
        {FILES "f16.safetensors", f16_a, f16_b, f16_running_mean},
        {FILES "bf16.safetensors", bf16_a, bf16_b, bf16_running_mean},
        {FILES "f32.safetensors", f32_a, f32_b, f32_running_mean},
        {FILES "f64.safetensors", f64_a, f64_b, f64_running_mean},
        {FILES "model.safetensors.index.json", f32_a, f32_b, f32_running_mean},
    };
    _cleanup_free_ char *report = NULL;

    for (int real = PL_REAL_F32; real <= PL_REAL_F64; real++)
        for (size_t i = 0; i < PL_COUNT(files); i++) {
            struct net net;

            build(&net, (enum pl_real)real);
            assert_int_equal(load(&net, files[i].path, 3, false, &report, NULL), 0);
            assert_values(net.a, files[i].a);
            assert_values(net.b, files[i].b);
            assert_values(net.mean, files[i].mean);
            if (i == 4)
                assert_null(report);
            else
                assert_string_equal(report, "3 of 3 parameters and buffers are set; not used: odd");
            tear(&net);
        }
}

static void test_partial_loading_is_reported(void **state)
{
    _cleanup_free_ char *report = NULL;
    struct pl_error err = {0};
    struct net net;

    build(&net, PL_REAL_F32);
    /* Without the last map the buffer is not found; "model.b" keeps its shape without the second.
     */
    assert_int_equal(load(&net, FILES "model.safetensors.index.json", 2, false, &report, NULL), 0);
    assert_string_equal(report, "2 of 3 parameters and buffers are set; not found: "
                                "norm.running_mean; not used: bn.running_mean");
    assert_values(net.b, f32_b);
    assert_true(*(float *)net.mean->data == 0);
    assert_int_equal(load(&net, FILES "f32.safetensors", 3, true, &report, &err), -EINVAL);
    assert_non_null(strstr(err.text, "--weights-strict"));
    assert_int_equal(load(&net, FILES "f32.safetensors", 0, false, &report, &err), -EINVAL);
    assert_non_null(strstr(err.text, "0 of 3 parameters and buffers are set"));
    assert_non_null(strstr(err.text, "not used: bn.running_mean, model.a"));
    assert_int_equal(load(&net, FILES "model.safetensors.index.json", 3, true, &report, NULL), 0);
    tear(&net);
    /* Nothing changes after a failure. */
    build(&net, PL_REAL_F32);
    net.b->shape[0] = 7;
    net.b->shape[1] = 3;
    assert_int_equal(load(&net, FILES "model.safetensors.index.json", 3, true, &report, &err),
                     -EINVAL);
    assert_non_null(strstr(err.text, "of another shape or type: second (the file has f32[3, 7], "
                                     "the module f32[7, 3])"));
    assert_true(*(float *)net.a->data == 1);
    tear(&net);
}

static void test_maps(void **state)
{
    static const struct {
        const char *map, *from, *to;
        bool transpose;
    } cases[] = {
        {"^h\\.([0-9]+)\\.attn\\.c_(attn)\\.weight$=h\\1.\\2:T", "h.11.attn.c_attn.weight",
         "h11.attn", true},
        {"x=", "axbx", "abx", false},
        {"^x=y", "ax", "ax", false},
        {"(a)|b=<\\1>", "b", "<>", false},
        {"a=\\\\\\0", "a", "\\a", false},
        {"a=b=c", "a", "b=c", false},
    };
    static const char *const bad[] = {"a", "=a", "", "(=a", "a=\\1", "(a)=\\2", "a=\\x", "a=\\"};
    struct pl_error err;

    for (size_t i = 0; i < PL_COUNT(cases); i++) {
        char *name = strdup(cases[i].from);
        struct pl_weights_map map;
        bool transpose = false;

        assert_int_equal(pl_weights_map_init(&map, cases[i].map, NULL), 0);
        assert_int_equal(pl_weights_map_apply(&map, &name, &transpose), 0);
        assert_string_equal(name, cases[i].to);
        assert_int_equal(transpose, cases[i].transpose);
        /* A second map that transposes turns the matrix back. */
        transpose = true;
        free(name);
        name = strdup(cases[i].from);
        assert_int_equal(pl_weights_map_apply(&map, &name, &transpose), 0);
        assert_int_equal(transpose, !cases[i].transpose);
        pl_weights_map_finish(&map);
        free(name);
    }
    for (size_t i = 0; i < PL_COUNT(bad); i++) {
        assert_int_equal(pl_weights_map_check(bad[i], &err), -EINVAL);
        assert_non_null(strstr(err.text, "'"));
    }
}

static void test_bad_files(void **state)
{
    static const char *const texts[] = {"",
                                        "{}",
                                        "[]",
                                        "{\"weight_map\":[]}",
                                        "{\"weight_map\":{\"a\":1}}",
                                        "{\"weight_map\":{\"a\":\"../f32.safetensors\"}}",
                                        "{\"weight_map\":{\"a\":\"\"}}",
                                        "{\"weight_map\":{\"a\":\"b\",\"c\":\"none.safetensors\"}}",
                                        "{\"weight_map\":{}}"};
    _cleanup_free_ char *path = NULL, *report = NULL;
    struct pl_error err;
    struct net net;
    char dir[64];

    assert_int_equal(tmpdir_make(dir, sizeof(dir)), 0);
    path = pl_path_join(dir, "x.json");
    build(&net, PL_REAL_F32);
    for (size_t i = 0; i < PL_COUNT(texts); i++) {
        assert_int_equal(pl_file_replace(path, texts[i], strlen(texts[i]), 0600, NULL), 0);
        assert_true(load(&net, path, 3, false, &report, &err) < 0);
        assert_non_null(strstr(err.text, "cannot take weights from"));
    }
    assert_int_equal(load(&net, FILES "none.safetensors", 0, false, &report, &err), -ENOENT);
    assert_int_equal(load(&net, "/dev/null", 0, false, &report, &err), -EINVAL);
    tear(&net);
    tmpdir_remove(dir);
}

static void write_tensor(const char *dir, const char *file, const char *name, unsigned n)
{
    _cleanup_free_ char *path = pl_path_join(dir, file);
    char text[512] = {0};
    int len = snprintf(text + 8, sizeof(text) - 8,
                       "{\"%s\":{\"dtype\":\"F32\",\"shape\":[%u,7],\"data_offsets\":[0,%u]}}",
                       name, n, 28 * n);

    text[0] = (char)len;
    assert_int_equal(pl_file_replace(path, text, 8 + (size_t)len + 28 * n, 0600, NULL), 0);
}

/* An index says which file a tensor is of: a file's others do not count, and what is not there is
 * named. */
static void test_an_index_is_read_as_it_is(void **state)
{
    static const struct {
        const char *text, *words; /* NULL: it is taken */
    } cases[] = {
        {"{\"weight_map\":{\"a\":\"1\",\"second\":\"2\"}}", NULL},
        {"{\"weight_map\":{\"a\":\"3\",\"second\":\"2\"}}", NULL}, /* 1 has an a, too */
        {"{\"weight_map\":{\"a\":\"2\",\"second\":\"2\"}}",
         "the index has 'a' in '2', but that file does not have it"},
        {"{\"weight_map\":{\"a\":\"1\",\"b\":\"1\"}}", "the index has 'b' in '1'"},
        {"{\"weight_map\":{\"a\":\"1\",\"a\":\"3\"}}", "the index has 'a' twice"},
        {"{\"weight_map\":{\"a\":\"1\"}} more", "not JSON"},
    };
    _cleanup_free_ char *path = NULL, *report = NULL;
    struct pl_error err;
    struct net net;
    char dir[64];

    assert_int_equal(tmpdir_make(dir, sizeof(dir)), 0);
    path = pl_path_join(dir, "x.json");
    write_tensor(dir, "1", "a", 5);
    write_tensor(dir, "2", "second", 3);
    write_tensor(dir, "3", "a", 5);
    build(&net, PL_REAL_F32);
    for (size_t i = 0; i < PL_COUNT(cases); i++) {
        const char *text = cases[i].text, *words = cases[i].words;

        assert_int_equal(pl_file_replace(path, text, strlen(text), 0600, NULL), 0);
        assert_int_equal(load(&net, path, 0, false, &report, &err), words ? -EINVAL : 0);
        if (words)
            assert_non_null(strstr(err.text, words));
        else
            assert_string_equal(report, "2 of 3 parameters and buffers are set; not found: "
                                        "norm.running_mean");
    }
    tear(&net);
    tmpdir_remove(dir);
}

/* By the format, the tensors fill the file's data without holes, and do not overlap. */
static void test_tensors_that_overlap(void **state)
{
    static const struct {
        unsigned a, b; /* where they begin: 140 and 84 bytes */
        bool good;
    } cases[] = {{0, 140, true},  {84, 0, true},  {4, 144, false}, {0, 144, false},
                 {0, 136, false}, {0, 56, false}, {80, 0, false},  {144, 0, false}};
    _cleanup_free_ char *path = NULL, *report = NULL;
    char file[1024], dir[64];
    struct pl_error err;
    struct net net;

    assert_int_equal(tmpdir_make(dir, sizeof(dir)), 0);
    path = pl_path_join(dir, "x.safetensors");
    build(&net, PL_REAL_F32);
    for (size_t i = 0; i < PL_COUNT(cases); i++) {
        unsigned a = cases[i].a, b = cases[i].b;
        int len;

        memset(file, 0, sizeof(file));
        len = snprintf(file + 8, sizeof(file) - 8,
                       "{\"a\":{\"dtype\":\"F32\",\"shape\":[5,7],\"data_offsets\":[%u,%u]},"
                       "\"second\":{\"dtype\":\"F32\",\"shape\":[3,7],\"data_offsets\":[%u,%u]}}",
                       a, a + 140, b, b + 84);
        file[0] = (char)len;
        assert_int_equal(
            pl_file_replace(path, file, 8 + (size_t)len + PL_MAX(a + 140, b + 84), 0600, NULL), 0);
        assert_int_equal(load(&net, path, 0, false, &report, &err), cases[i].good ? 0 : -EINVAL);
        if (!cases[i].good)
            assert_non_null(strstr(err.text, "the file's header is malformed"));
    }
    tear(&net);
    tmpdir_remove(dir);
}

/* One key twice: readers would differ on the one that counts. */
static void test_keys_of_a_tensor_that_are_there_twice(void **state)
{
    static const struct {
        const char *keys;
        bool good;
    } cases[] = {
        {"\"other\":1,\"other\":2", true}, /* which nobody reads */
        {"\"dtype\":\"F32\"", false},
        {"\"dtype\":\"I32\"", false},
        {"\"shape\":[7,5]", false},
        {"\"data_offsets\":[0,140]", false},
        {"\"data_\\u006fffsets\":[0,140]", false},
    };
    _cleanup_free_ char *path = NULL, *report = NULL;
    char file[1024], dir[64];
    struct pl_error err;
    struct net net;

    assert_int_equal(tmpdir_make(dir, sizeof(dir)), 0);
    path = pl_path_join(dir, "x.safetensors");
    build(&net, PL_REAL_F32);
    for (size_t i = 0; i < 2 * PL_COUNT(cases); i++) {
        const char *keys = cases[i / 2].keys;
        int len;

        memset(file, 0, sizeof(file));
        len = snprintf(file + 8, sizeof(file) - 8,
                       "{\"a\":{%s%s\"dtype\":\"F32\",\"shape\":[5,7],"
                       "\"data_offsets\":[0,140]%s%s}}",
                       i % 2 ? "" : keys, i % 2 ? "" : ",", i % 2 ? "," : "", i % 2 ? keys : "");
        file[0] = (char)len;
        assert_int_equal(pl_file_replace(path, file, 8 + (size_t)len + 140, 0600, NULL), 0);
        assert_int_equal(load(&net, path, 0, false, &report, &err),
                         cases[i / 2].good ? 0 : -EINVAL);
        if (!cases[i / 2].good)
            assert_non_null(strstr(err.text, "the file's header is malformed"));
    }
    tear(&net);
    tmpdir_remove(dir);
}

/* Two names that become one. */
static void test_maps_that_collide(void **state)
{
    static const char *const same[] = {"^.*$=a"};
    const struct pl_train_options options = {
        .weights = FILES "f32.safetensors", .weights_maps = same, .n_weights_maps = 1};
    struct pl_error err;
    bool averaged;
    char *report;
    struct net net;

    build(&net, PL_REAL_F32);
    assert_int_equal(pl_weights_load(&net.params, &options, &averaged, &report, &err), -EINVAL);
    assert_non_null(strstr(err.text, "both become 'a'"));
    tear(&net);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_types_of_pytorch),
        cmocka_unit_test(test_partial_loading_is_reported),
        cmocka_unit_test(test_maps),
        cmocka_unit_test(test_bad_files),
        cmocka_unit_test(test_an_index_is_read_as_it_is),
        cmocka_unit_test(test_tensors_that_overlap),
        cmocka_unit_test(test_keys_of_a_tensor_that_are_there_twice),
        cmocka_unit_test(test_maps_that_collide),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
