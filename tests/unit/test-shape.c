/* SPDX-License-Identifier: MIT */
#include "common/base/strv.h"
#include "launcher/plsubmit/count.h"
#include "launcher/plsubmit/shape.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static void test_count_gpus(void **state)
{
    assert_int_equal(pl_count_gpus("4"), 4);
    assert_int_equal(pl_count_gpus("a100:2"), 2);
    assert_int_equal(pl_count_gpus("a100:2,v100:1"), 3);
    assert_int_equal(pl_count_gpus("a100"), 0);
    assert_int_equal(pl_count_gpus("a100:0"), 0);
    assert_int_equal(pl_count_gpus(":2"), 0);
    assert_int_equal(pl_count_gpus("0,1"), 0);
    assert_int_equal(pl_count_gpus(""), 0);
    assert_int_equal(pl_count_gpus("99999999999999999999"), 0);
}

static void test_count_gres(void **state)
{
    assert_int_equal(pl_shape_count_gres("gpu"), 1);
    assert_int_equal(pl_shape_count_gres("gpu:8"), 8);
    assert_int_equal(pl_shape_count_gres("gpu:a100:4"), 4);
    assert_int_equal(pl_shape_count_gres("gpu:a100"), 1);
    assert_int_equal(pl_shape_count_gres("license:3,gpu:a100:4,gpu:v100:2"), 6);
    assert_int_equal(pl_shape_count_gres("gres/gpu:2"), 2);
    assert_int_equal(pl_shape_count_gres("gres/gpu=2"), 2);
    assert_int_equal(pl_shape_count_gres("gres:gpu:2"), 2);
    assert_int_equal(pl_shape_count_gres("gpu:0"), 0);
    assert_int_equal(pl_shape_count_gres("gpus:2"), 0);
    assert_int_equal(pl_shape_count_gres("none"), 0);
    assert_int_equal(pl_shape_count_gres(""), 0);
}

/* Resolves "plsubmit WORDS true"; returns sbatch's options of the shape, a blank between two, and
 * the shape's text after " | ". */
static const char *shape(const char *words)
{
    static char text[1024];
    static const char *const ours[] = {"--nodes", "--ntasks", "--gpus",
                                       "--gres",  "--cpus",   "--tres"};
    _cleanup_(pl_spec_finish) struct pl_spec spec = {0};
    _cleanup_(pl_strv_freep) char **args = NULL, **argv = NULL;
    _cleanup_(pl_buf_finish) struct pl_buf out = {0};
    _cleanup_free_ char *copy = strdup(words);
    struct pl_error err = {0};
    struct pl_shape s;
    char *rest = copy, *word;
    int argc, first;
    bool done;

    assert_int_equal(pl_strv_append(&argv, "plsubmit"), 0);
    for (argc = 1; (word = strsep(&rest, " "));)
        if (*word && ++argc)
            assert_int_equal(pl_strv_append(&argv, word), 0);
    assert_int_equal(pl_strv_append(&argv, "true"), 0);
    assert_int_equal(pl_options_parse(&pl_spec_command, argc + 1, argv, &spec, &first, &done, &err),
                     0);
    assert_int_equal(pl_spec_resolve(&spec, argv + first, "/bin-dir", &err), 0);
    assert_int_equal(pl_spec_sbatch_args(&spec, "/r", &args), 0);
    for (char **arg = args; *arg; arg++)
        for (size_t i = 0; i < PL_COUNT(ours); i++)
            if (strncmp(*arg, ours[i], strlen(ours[i])) == 0)
                assert_int_equal(pl_buf_addf(&out, "%s ", *arg), 0);
    assert_int_equal(pl_buf_adds(&out, "| "), 0);
    s = pl_shape_of(&spec);
    assert_int_equal(pl_shape_format(&s, &out), 0);
    snprintf(text, sizeof(text), "%s", pl_buf_str(&out));
    return text;
}

static void test_defaults(void **state)
{
    static const char *const cases[][2] = {
        {"", "--nodes=1 --ntasks-per-node=1 | 1 node x 1 rank x 1 CPU"},
        {"-N 2 -c 3",
         "--nodes=2 --ntasks-per-node=1 --cpus-per-task=3 | 2 nodes x 1 rank x 3 CPUs"},
        {"-N 2 --gpus-per-node a100:4 -c 3",
         "--nodes=2 --ntasks-per-node=4 --gpus-per-node=a100:4 --cpus-per-task=3 | "
         "2 nodes x 4 ranks x 1 GPU x 3 CPUs"},
        {"--gpus-per-node 4 --ntasks-per-node 1",
         "--nodes=1 --ntasks-per-node=1 --gpus-per-node=4 | 1 node x 1 rank x 4 GPUs"},
        {"--gpus-per-node 4 --ntasks-per-node 3",
         "--nodes=1 --ntasks-per-node=3 --gpus-per-node=4 | 1 node x 3 ranks (4 GPUs per node)"},
        /* sbatch's other ways to ask for GPUs */
        {"--sbatch gres=gpu:8",
         "--nodes=1 --ntasks-per-node=8 --gres=gpu:8 | 1 node x 8 ranks x 1 GPU"},
        {"--gres gpu:a100:2,license:1 -N 3",
         "--nodes=3 --ntasks-per-node=2 --gres=gpu:a100:2,license:1 | 3 nodes x 2 ranks x 1 GPU"},
        {"--sbatch gpus=8", "--ntasks=8 --gpus=8 | 8 ranks x 1 GPU"},
        {"-G 8 -N 2", "--nodes=2 --ntasks=8 --gpus=8 | 2 nodes x 4 ranks x 1 GPU"},
        /* Slurm leaves out nodes that would have no task. */
        {"-N 2 -n 1", "--nodes=2 --ntasks=1 | 1 node x 1 rank x 1 CPU"},
        {"-N 3 -n 2", "--nodes=3 --ntasks=2 | 2 nodes x 1 rank x 1 CPU"},
        {"-N 2-4 -n 3", "--nodes=2-4 --ntasks=3 | 2 to 3 nodes, 3 ranks in all x 1 CPU"},
        {"-N 2-4 -n 2", "--nodes=2-4 --ntasks=2 | 2 nodes x 1 rank x 1 CPU"},
        {"-G 8 --gpus-per-task 2", "--ntasks=4 --gpus=8 --gpus-per-task=2 | 4 ranks x 2 GPUs"},
        {"--sbatch gpus-per-task=1 -n 8", "--ntasks=8 --gpus-per-task=1 | 8 ranks x 1 GPU"},
        {"--gpus-per-task 2",
         "--nodes=1 --ntasks-per-node=1 --gpus-per-task=2 | 1 node x 1 rank x 2 GPUs"},
        {"--gpus-per-task 2 --gpus-per-node 8 -N 2",
         "--nodes=2 --ntasks-per-node=4 --gpus-per-node=8 --gpus-per-task=2 | "
         "2 nodes x 4 ranks x 2 GPUs"},
        {"--sbatch tres-per-task=gres/gpu:1",
         "--nodes=1 --ntasks-per-node=1 --tres-per-task=gres/gpu:1 | 1 node x 1 rank x 1 GPU"},
        {"--sbatch ntasks-per-gpu=2 --gpus-per-node 4",
         "--nodes=1 --gpus-per-node=4 --ntasks-per-gpu=2 | 1 node x 8 ranks (4 GPUs per node)"},
        /* and for ranks */
        {"-n 8", "--ntasks=8 | 8 ranks x 1 CPU"},
        {"--sbatch ntasks=8 --ntasks-per-node 4",
         "--ntasks=8 --ntasks-per-node=4 | 2 nodes x 4 ranks x 1 CPU"},
        {"-n 8 --gpus-per-node 4",
         "--nodes=2 --ntasks=8 --ntasks-per-node=4 --gpus-per-node=4 | 2 nodes x 4 ranks x 1 GPU"},
        {"-n 6 --gpus-per-node 4", "--ntasks=6 --gpus-per-node=4 | 6 ranks (4 GPUs per node)"},
        {"-n 8 -N 2", "--nodes=2 --ntasks=8 | 2 nodes x 4 ranks x 1 CPU"},
        {"--sbatch nodes=2", "--nodes=2 --ntasks-per-node=1 | 2 nodes x 1 rank x 1 CPU"},
        /* Only sbatch reads these values. */
        {"--sbatch tres-per-job=gres/gpu:4",
         "--ntasks=4 --tres-per-job=gres/gpu:4 | 4 ranks x 1 GPU"},
        {"--sbatch ntasks=+2", "--ntasks=+2 | 1 CPU, ranks as Slurm decides"},
        {"--sbatch gpus-per-node=0 --gpus-per-node 2",
         "--nodes=1 --ntasks-per-node=2 --gpus-per-node=2 | 1 node x 2 ranks x 1 GPU"},
        {"-N 2-4 --gpus-per-node 1 --cpus-per-gpu 6",
         "--nodes=2-4 --ntasks-per-node=1 --gpus-per-node=1 --cpus-per-gpu=6 | "
         "2 to 4 nodes x 1 rank x 1 GPU x 6 CPUs"},
        {"-w n[1-2]", "--ntasks-per-node=1 | 1 rank per node x 1 CPU"},
        {"--no-nodes --no-ntasks-per-node --sbatch exclusive", "| ranks as Slurm decides"},
    };

    for (size_t i = 0; i < PL_COUNT(cases); i++)
        assert_string_equal(shape(cases[i][0]), cases[i][1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_count_gpus),
        cmocka_unit_test(test_count_gres),
        cmocka_unit_test(test_defaults),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
