/* SPDX-License-Identifier: MIT */
/* squeue's answer about one job: when has it ended? Where nothing is known, nothing is said. */
#include "launcher/slurm/slurm_job.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#define UNKNOWN "slurm_load_jobs error: Invalid job id specified\n"
#define FAILED 256 /* wait status of exit 1 */

static void test_answers(void **state)
{
    static const struct {
        int status;
        const char *out, *said;
        int r, life;
        const char *text;
        unsigned nodes, others;
    } cases[] = {
        {0, "12 RUNNING 3\n", "", 0, PL_SLURM_JOB_ALIVE, "RUNNING", 3, 0},
        {0, "12 COMPLETED 1\n", "", 0, PL_SLURM_JOB_ENDED, "COMPLETED", 1, 0},
        {0, "12 COMPLETING 1\n", "", 0, PL_SLURM_JOB_ALIVE, "COMPLETING", 1, 0},
        {0, "12 REQUEUED 1\n", "", 0, PL_SLURM_JOB_ALIVE, "REQUEUED", 1, 0},
        {0, "12 A_NEW_STATE 1\n", "", 0, PL_SLURM_JOB_ALIVE, "A_NEW_STATE", 1, 0},
        {0, "12 OUT_OF_MEMORY 2\n", "", 0, PL_SLURM_JOB_ENDED, "OUT_OF_MEMORY", 2, 0},
        /* an array's number: other tasks come with it */
        {0, "13 COMPLETED 1\n12 RUNNING 1\n14 FAILED 1\n", "", 0, PL_SLURM_JOB_ALIVE, "RUNNING", 1,
         2},
        {0, "13 RUNNING 1\n12 FAILED 1\n", "", 0, PL_SLURM_JOB_ENDED, "FAILED", 1, 1},
        {0, "112 RUNNING 1\n", "", 0, PL_SLURM_JOB_ENDED, "", 0, 0},
        /* Slurm does not know the number */
        {FAILED, "", UNKNOWN, 0, PL_SLURM_JOB_ENDED, "", 0, 0},
        {0, "", "", 0, PL_SLURM_JOB_ENDED, "", 0, 0},
        /* Slurm does not answer */
        {FAILED, "", "slurm_load_jobs error: Unable to contact slurm controller\n", -EHOSTUNREACH,
         0, "", 0, 0},
        {FAILED, "", "", -EHOSTUNREACH, 0, "", 0, 0},
        {9, "", "", -EHOSTUNREACH, 0, "", 0, 0},
        {9, "12 COMPLETED 1\n", "", -EHOSTUNREACH, 0, "", 0, 0},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        struct pl_slurm_job_now now = {0};
        struct pl_error err = {0};

        assert_int_equal(
            pl_slurm_job_parse(12, cases[i].status, cases[i].out, cases[i].said, &now, &err),
            cases[i].r);
        assert_true((cases[i].r < 0) == (strstr(pl_error_text(&err), "job 12") != NULL));
        assert_int_equal(now.life, cases[i].life);
        assert_string_equal(now.state, cases[i].text);
        assert_int_equal(now.n_nodes, cases[i].nodes);
        assert_int_equal(now.n_others, cases[i].others);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_answers),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
