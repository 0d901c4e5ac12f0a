/* SPDX-License-Identifier: MIT */
/* Who signals a rank and the processes over it at once. The test stands in for the look at an
 * ancestor. */
#include "common/base/process.h"
#include "runtime/plrun/senders.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static pid_t hidden;   /* /proc hides it */
static pid_t executor; /* it has the executor's name */

int __real_pl_process_stat(pid_t pid, struct pl_process_stat *ret);
int __wrap_pl_process_stat(pid_t pid, struct pl_process_stat *ret);

int __wrap_pl_process_stat(pid_t pid, struct pl_process_stat *ret)
{
    int r = pid == hidden ? -ESRCH : __real_pl_process_stat(pid, ret);

    if (r == 0 && pid == executor)
        snprintf(ret->name, sizeof(ret->name), "%s", PL_PROCESS_EXECUTOR);
    return r;
}

/* Runs f in a grandchild, whose parent has the given name or none. Returns its status. */
static int below(bool named, void (*f)(pid_t parent, pid_t grandparent))
{
    pid_t own = getpid(), pid = fork();
    int status;

    assert_true(pid >= 0);
    if (pid == 0) {
        pid_t middle = getpid();

        executor = named ? middle : 0;
        pid = fork();
        if (pid == 0) {
            f(middle, own);
            _exit(0);
        }
        _exit(pid > 0 && waitpid(pid, &status, 0) == pid ? WEXITSTATUS(status) : 99);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WEXITSTATUS(status);
}

static void find_hidden(pid_t parent, pid_t grandparent)
{
    struct pl_senders s;

    hidden = grandparent;
    pl_senders_find(&s);
    if (s.stepd != (executor ? 0 : grandparent) || s.local[0] != executor || s.stepd_fd >= 0)
        _exit(1);
    hidden = parent;
    executor = 0;
    pl_senders_find(&s);
    if (s.stepd != parent || s.local[0])
        _exit(2);
}

static void test_find_where_proc_hides(void **state)
{
    assert_int_equal(below(false, find_hidden), 0);
}

static void test_find_where_proc_hides_above_an_executor(void **state)
{
    assert_int_equal(below(true, find_hidden), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_find_where_proc_hides),
        cmocka_unit_test(test_find_where_proc_hides_above_an_executor),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
