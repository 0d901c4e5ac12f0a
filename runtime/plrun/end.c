/* SPDX-License-Identifier: MIT */
#include "runtime/plrun/end.h"
#include "common/base/env.h"
#include "common/base/log.h"
#include "common/base/parse.h"
#include "common/base/shared_fs.h"
#include "common/proto/json.h"
#include "common/run/run_end.h"

#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define COMMAND_S 600 /* then SIGTERM: the job of the command has a little more */
#define KILL_S 10     /* from SIGTERM to SIGKILL */

static int set_number(enum pl_env_id id, unsigned n)
{
    char text[16];

    snprintf(text, sizeof(text), "%u", n);
    return pl_env_set(id, text);
}

/* True if the trial started again after this result, by a retry or a requeue. */
static bool is_earlier(const struct pl_run *run, unsigned trial, const json_t *result)
{
    const char *job = pl_json_string(result, "job");
    _cleanup_free_ char *array = job ? strndup(job, strcspn(job, "_")) : NULL;
    int64_t number;

    return json_is_true(json_object_get(result, "requeued")) ||
           (array && pl_parse_int(array, 1, UINT32_MAX, &number, NULL) == 0 &&
            pl_run_job_is_older(run, trial, number));
}

/* Counts the trials by their results: a cancelled trial that never began has none, and one whose
 * retry was cancelled before it began has one of an attempt before. */
static int set_counts(const struct pl_run *run)
{
    unsigned trials = pl_run_n_trials(run), done = 0, failed = 0;
    int r;

    for (unsigned trial = 0; trial < trials; trial++) {
        _cleanup_free_ char *folder = pl_run_trial_path(run, trial, NULL);
        _cleanup_(json_decrefp) json_t *result = NULL;
        enum pl_trial_state state;

        if (folder)
            pl_dir_renew(folder); /* another host may have replaced the result */
        if (pl_run_result_read(run, trial, &result, &state, NULL) < 0)
            continue;
        if (state == PL_TRIAL_DONE || state == PL_TRIAL_PRUNED)
            done++;
        else if (state != PL_TRIAL_CANCELLED && !is_earlier(run, trial, result))
            failed++;
    }
    r = pl_env_set(PL_ENV_PLUME_SWEEP, pl_run_sweep(run));
    if (r == 0)
        r = set_number(PL_ENV_PLUME_SWEEP_TRIALS, trials);
    if (r == 0)
        r = set_number(PL_ENV_PLUME_SWEEP_DONE, done);
    return r == 0 ? set_number(PL_ENV_PLUME_SWEEP_FAILED, failed) : r;
}

static _Noreturn void exec_command(const char *command, const sigset_t *before)
{
    int null = open("/dev/null", O_RDONLY);

    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    sigprocmask(SIG_SETMASK, before, NULL);
    if (null >= 0 && dup2(null, STDIN_FILENO) >= 0)
        execlp("bash", "bash", "-c", command, (char *)NULL);
    _exit(127);
}

/* Waits for one of the signals, at most so many seconds. Returns it; -1: time is over. */
static int wait_for(const sigset_t *set, int seconds)
{
    int sig;

    do
        sig = sigtimedwait(set, NULL, &(struct timespec){.tv_sec = seconds});
    while (sig < 0 && errno == EINTR);
    return sig;
}

/* The command is a process group of its own. SIGTERM to us ends it, too. */
static int run_command(const char *command, int *ret_status, struct pl_error *err)
{
    sigset_t set, before;
    int sig, left = COMMAND_S;
    pid_t pid;

    sigemptyset(&set);
    sigaddset(&set, SIGCHLD);
    sigaddset(&set, SIGTERM);
    sigprocmask(SIG_BLOCK, &set, &before);
    pid = fork();
    if (pid == 0)
        exec_command(command, &before);
    if (pid < 0)
        return pl_error_errno(err, errno, "cannot start bash");
    setpgid(pid, pid);
    while (waitpid(pid, ret_status, WNOHANG) == 0) {
        sig = wait_for(&set, left);
        if (sig == SIGCHLD)
            continue;
        kill(-pid, left == KILL_S ? SIGKILL : SIGTERM);
        left = KILL_S;
    }
    kill(-pid, SIGKILL); /* what it has left in its group: there is no job that ends it */
    return 0;
}

int pl_end_run(unsigned arrays, struct pl_error *err)
{
    _cleanup_(pl_run_closep) struct pl_run *run = NULL;
    const char *dir = pl_env_text(PL_ENV_PLUME_RUN_DIR), *command;
    int status = 0, code, r;

    if (!dir)
        return pl_error_set(err, -ENOENT, "PLUME_RUN_DIR is not set: this is for --on-end");
    r = pl_run_open_own(dir, &run, err);
    if (r < 0)
        return r;
    command = pl_run_on_end(run);
    if (!command || pl_run_n_submissions(run) + pl_run_n_planned(run) > arrays) {
        pl_log_info("run", "nothing to do: more trials of the sweep were submitted");
        return 0;
    }
    r = pl_run_end_claim(run, arrays, err);
    if (r == -EEXIST) {
        pl_log_info("run", "nothing to do: the command of --on-end has begun before");
        return 0;
    }
    if (r < 0)
        return pl_error_wrap(err, r, "the command of --on-end does not begin");
    if (set_counts(run) < 0)
        return pl_error_nomem(err);
    r = run_command(command, &status, err);
    if (r < 0)
        return r;
    code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    r = pl_run_end_write(run, arrays, status, err);
    return r < 0 ? pl_error_wrap(err, r,
                                 "the command of --on-end has ended with %d, which is not recorded",
                                 code)
                 : code;
}
