/* SPDX-License-Identifier: MIT */
#include "common/base/fs.h"
#include "common/proto/json.h"
#include "launcher/plsubmit/spec_private.h"
#include "tests/lib/tmpdir.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

static char top[64];

/* Parses and resolves a NULL-terminated command line; returns what failed, or 0. */
static int resolve(struct pl_spec *spec, struct pl_error *err, ...)
{
    char *argv[32] = {(char *)(uintptr_t) "plsubmit"};
    int argc = 1, rest = 0, r;
    bool done = false;
    va_list ap;

    va_start(ap, err);
    while ((argv[argc] = va_arg(ap, char *)))
        argc++;
    va_end(ap);
    r = pl_options_parse(&pl_spec_command, argc, argv, spec, &rest, &done, err);
    if (r < 0)
        return r;
    assert_false(done);
    return pl_spec_resolve(spec, argv + rest, "/bin-dir", err);
}

static void list_is(char *const *list, ...)
{
    const char *expected;
    va_list ap;

    va_start(ap, list);
    for (; (expected = va_arg(ap, const char *)); list++)
        assert_string_equal(*list, expected);
    va_end(ap);
    assert_null(*list);
}

/* Each key and each list has a row in the option table. */
static void test_table_complete(void **state)
{
    struct pl_error err = {0};

    assert_int_equal(pl_options_check(&pl_spec_command, &err), 0);
    for (int key = 0; key < PL_SPEC_N_KEYS; key++)
        assert_int_equal(strcmp(pl_spec_option((enum pl_spec_key)key)->name, "open-mode") == 0,
                         key == PL_SPEC_OPEN_MODE);
    for (int list = 0; list < PL_SPEC_N_LISTS; list++)
        assert_true(*pl_spec_list_name((enum pl_spec_list)list));
}

static void test_resolve_bundled(void **state)
{
    _cleanup_(pl_spec_finish) struct pl_spec spec = {0};
    _cleanup_(pl_strv_freep) char **args = NULL;
    struct pl_error err = {0};

    assert_int_equal(resolve(&spec, &err, "--grid", "lr=1,2", "--grid", "a.b=x", "-N", "12", NULL),
                     0);
    assert_true(spec.bundled);
    list_is(spec.argv, "/bin-dir/pltrain", "mlp", "--hparam", "lr={lr}", "--hparam", "a.b={a.b}",
            NULL);
    assert_string_equal(spec.id_name, "mlp");
    assert_int_equal(pl_spec_sbatch_args(&spec, "/r/100%/x", &args), 0);
    list_is(args, "--job-name=mlp", "--nodes=12", "--ntasks-per-node=1",
            "--output=/r/100%%/x/slurm-%A_%a.out", "--open-mode=append", NULL);
}

static void test_resolve_tasks_per_gpu(void **state)
{
    _cleanup_(pl_spec_finish) struct pl_spec spec = {0}, own = {0}, list = {0};
    struct pl_error err = {0};

    assert_int_equal(resolve(&spec, &err, "--gpus-per-node=a100:4", "true", NULL), 0);
    assert_string_equal(spec.values[PL_SPEC_NTASKS_PER_NODE].text, "4");
    assert_int_equal(
        resolve(&own, &err, "--gpus-per-node", "4", "--ntasks-per-node=2", "true", NULL), 0);
    assert_string_equal(own.values[PL_SPEC_NTASKS_PER_NODE].text, "2");
    assert_int_equal(resolve(&list, &err, "-w", "n[1-2]", "true", NULL), 0);
    assert_null(list.values[PL_SPEC_NODES].text);
}

static void test_resolve_removed_defaults(void **state)
{
    _cleanup_(pl_spec_finish) struct pl_spec spec = {0}, back = {0};
    _cleanup_(pl_strv_freep) char **args = NULL;
    struct pl_error err = {0};

    assert_int_equal(resolve(&spec, &err, "--no-nodes", "--no-ntasks-per-node", "--no-output",
                             "--no-name", "--no-open-mode", "--sbatch", "exclusive", "true", NULL),
                     0);
    assert_int_equal(pl_spec_sbatch_args(&spec, "/r", &args), 0);
    list_is(args, "--exclusive", NULL);
    assert_string_equal(spec.id_name, "run");
    /* The last word counts. */
    assert_int_equal(resolve(&back, &err, "--no-nodes", "-N3", "true", NULL), 0);
    assert_string_equal(back.values[PL_SPEC_NODES].text, "3");
}

static void name_is(const char *program, const char *argument, const char *name, const char *id)
{
    _cleanup_(pl_spec_finish) struct pl_spec spec = {0};
    struct pl_error err = {0};

    /* --setup: the programs need not be there. */
    assert_int_equal(resolve(&spec, &err, "--setup", ":", "--", program, argument, NULL), 0);
    assert_string_equal(spec.values[PL_SPEC_NAME].text, name);
    assert_string_equal(spec.id_name, id);
}

static void test_resolve_names(void **state)
{
    name_is("/a/b/train.sh", NULL, "train", "train");
    name_is("python3.11", "src/train.py", "train", "train");
    name_is("python3", "-m", "python3", "python3");
    name_is("python", NULL, "python", "python");
    name_is("bash", "a/train.sh", "train", "train");
    name_is("/bin/bash", "-c", "run",
            "run"); /* Lightning takes a job "bash" for a shell of the user's */
    name_is("./interactive", NULL, "run", "run");
    name_is("./.hidden", NULL, ".hidden", "_hidden");
    name_is("./-x", NULL, "-x", "_x");
    name_is("./a b\xc3\xa9\n", NULL, "a b\xc3\xa9_", "a_b__");
}

static void test_resolve_origins(void **state)
{
    _cleanup_(pl_spec_finish) struct pl_spec spec = {0};
    _cleanup_(json_decrefp) json_t *o = NULL;
    struct pl_error err = {0};

    setenv("PLUME_RUNS", "/env", 1);
    assert_int_equal(resolve(&spec, &err, "-N2", "--env", "A=b", "true", NULL), 0);
    unsetenv("PLUME_RUNS");
    o = pl_spec_json(&spec);
    assert_string_equal(pl_json_string(json_object_get(o, "nodes"), "origin"), "command line");
    assert_string_equal(pl_json_string(json_object_get(o, "runs"), "origin"), "environment");
    assert_string_equal(pl_json_string(json_object_get(o, "runs"), "value"), "/env");
    assert_string_equal(pl_json_string(json_object_get(o, "open-mode"), "origin"), "built-in");
    assert_string_equal(
        json_string_value(json_array_get(json_object_get(json_object_get(o, "env"), "value"), 0)),
        "A=b");
}

static void test_set_bad(void **state)
{
    static const char *const bad[][2] = {
        {"--nodes", "0"},
        {"--nodes", "3-2"},
        {"--nodes", " 1"},
        {"--cpus-per-task", "-1"},
        {"--ntasks-per-node", ""},
        {"--gpus-per-node", "gpu"},
        {"--partition", ""},
        {"--account", "a\nb"},
        {"--qos", "\xff"},
        {"--max-parallel", "0"},
        {"--nccl-debug", "bogus"},
        {"--objective", "max:"},
        {"--objective", "loss"},
        {"--metric", "a"},
        {"--metric", "1=x"},
        {"--env", "A"},
        {"--env", "A.B=1"},
        {"--env", "PLUME_HUB=x"},
        {"--load", "-x"},
        {"--sbatch", "=x"},
        {"--sbatch", "arra=1"},
        {"--sbatch", "wrap=id"},
        {"--sbatch", "Nodes=1"},
        {"--master-port", "0-5"},
        {"--sbatch", "gpus-per-n=4"},
        {"--sbatch", "job=x"},
        {"--sbatch", "sign=B:USR1"},
        {"--sbatch", "signal=B:USR1"},
        {"--sbatch", "tim=5"},
        {"--sbatch", "gres=help"},
        {"--gres", "help"},
    };

    for (size_t i = 0; i < PL_COUNT(bad); i++) {
        _cleanup_(pl_spec_finish) struct pl_spec spec = {0};
        struct pl_error err = {0};

        assert_true(resolve(&spec, &err, bad[i][0], bad[i][1], "true", NULL) < 0);
        assert_int_equal(strncmp(err.text, bad[i][0], strlen(bad[i][0])), 0);
    }
}

static void test_env(void **state)
{
    _cleanup_(pl_spec_finish) struct pl_spec spec = {0};
    _cleanup_(pl_strv_freep) char **env = NULL;
    struct pl_error err = {0};

    assert_int_equal(resolve(&spec, &err, "--env", "A=1=2", "--nccl-debug", "WARN", "--env",
                             "A=", "--master-port", "7", "--output-ranks", "all", "true", NULL),
                     0);
    assert_int_equal(pl_spec_env(&spec, &env), 0);
    list_is(env, "NCCL_DEBUG=WARN", "PLUME_MASTER_PORT_RANGE=7", "PLUME_OUTPUT_RANKS=all", "A=1=2",
            "A=", NULL);
}

static void test_metrics(void **state)
{
    _cleanup_(pl_spec_finish) struct pl_spec spec = {0}, twice = {0};
    struct pl_error err = {0};

    assert_int_equal(resolve(&spec, &err, "--metric", "a=x=([0-9]+)", "--metric", "b=y",
                             "--objective", "max:a", "true", NULL),
                     0);
    list_is(spec.metric_names, "a", "b", NULL);
    list_is(spec.metric_regexes, "x=([0-9]+)", "y", NULL);
    assert_int_equal(spec.objective, PL_OBJECTIVE_MAX);
    assert_string_equal(spec.objective_metric, "a");
    assert_int_equal(resolve(&twice, &err, "--metric", "a=x", "--metric", "a=y", "true", NULL),
                     -EINVAL);
}

static void find(const char *name, bool lenient, const char *expected, int code)
{
    _cleanup_free_ char *found = NULL, *warning = NULL;
    struct pl_error err = {0};

    assert_int_equal(pl_spec_find_program(name, lenient, &found, &warning, &err), code);
    if (expected)
        assert_string_equal(found, expected);
    assert_int_equal(warning != NULL, lenient && code == 0 && expected && expected[0] != '/');
}

/* A link in PATH stays the link: by it a virtual environment's Python finds its modules. */
static void test_find_program(void **state)
{
    _cleanup_free_ char *real = pl_path_join(top, "real"), *bin = pl_path_join(top, "bin");
    _cleanup_free_ char *link = pl_path_join(bin, "prog"), *plain = pl_path_join(bin, "plain");
    _cleanup_free_ char *path = pl_strf("/nonexistent::%s:/bin", bin);
    struct pl_error err = {0};

    assert_int_equal(mkdir(bin, 0700), 0);
    assert_int_equal(pl_file_write_atomic(real, "#!/bin/sh\n", 10, 0700, &err), 0);
    assert_int_equal(pl_file_write_atomic(plain, "#!/bin/sh\n", 10, 0600, &err), 0);
    assert_int_equal(symlink("../real", link), 0);
    setenv("PATH", path, 1);
    find("prog", false, link, 0);
    find("plain", false, NULL, -ENOENT);
    find("plain", true, "plain", 0);
    find("none", false, NULL, -ENOENT);
    find("none", true, "none", 0);
    find("./none", true, "./none", 0);
    find(link, false, link, 0);
    find(plain, false, NULL, -ENOENT);
    find(bin, false, NULL, -ENOENT);
    find("", true, NULL, -ENOENT);
}

/* The set-up can choose what a bare name is; nothing else can. */
static void program(const char *expected, const char *option, const char *value, const char *word)
{
    _cleanup_(pl_spec_finish) struct pl_spec spec = {0};
    struct pl_error err = {0};

    assert_int_equal(resolve(&spec, &err, option, value, word, NULL), 0);
    assert_string_equal(spec.argv[0], word[0] == '/' ? word : "/bin/sh");
    if (expected)
        assert_string_equal(spec.program, expected);
    else
        assert_null(spec.program);
}

static void test_program_of_setup(void **state)
{
    setenv("PATH", "/bin", 1);
    program("sh", "--setup", "source env.sh", "sh");
    program("sh", "--load", "python", "sh");
    program("sh", "--env", "PATH=/nowhere", "sh");
    program(NULL, "--env", "PATHS=/nowhere", "sh");
    program(NULL, "--nodes", "2", "sh");
    program(NULL, "--setup", "source env.sh", "/bin/sh");
}

static int make_top(void **state)
{
    return tmpdir_make(top, sizeof(top));
}

static int remove_top(void **state)
{
    return tmpdir_remove(top);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_table_complete),
        cmocka_unit_test(test_resolve_bundled),
        cmocka_unit_test(test_resolve_tasks_per_gpu),
        cmocka_unit_test(test_resolve_removed_defaults),
        cmocka_unit_test(test_resolve_names),
        cmocka_unit_test(test_resolve_origins),
        cmocka_unit_test(test_set_bad),
        cmocka_unit_test(test_env),
        cmocka_unit_test(test_metrics),
        cmocka_unit_test(test_find_program),
        cmocka_unit_test(test_program_of_setup),
    };

    return cmocka_run_group_tests(tests, make_top, remove_top);
}
