/* SPDX-License-Identifier: MIT */
/* The checks, and the start of the local executor; local_run.c is the executor itself. */
#include "launcher/plsubmit/local.h"
#include "common/base/fs.h"
#include "common/base/parse.h"
#include "common/base/strv.h"
#include "common/run/run_index.h"
#include "common/run/run_local.h"
#include "launcher/plsubmit/local_run.h"
#include "launcher/plsubmit/shape.h"
#include "launcher/plsubmit/spec_private.h"
#include "launcher/plsubmit/submit.h"
#include "launcher/plsubmit/trial_env.h"

#include <fcntl.h>
#include <signal.h>
#include <sodium.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- checks ---- */

/* True for options that have an effect with --local; sbatch's other options need Slurm. */
static bool has_effect(int key)
{
    static const int with[] = {
        PL_SPEC_NAME,     PL_SPEC_NODES,         PL_SPEC_NTASKS,        PL_SPEC_NTASKS_PER_NODE,
        PL_SPEC_GPUS,     PL_SPEC_GPUS_PER_NODE, PL_SPEC_GPUS_PER_TASK, PL_SPEC_CPUS_PER_TASK,
        PL_SPEC_OPEN_MODE};

    for (size_t i = 0; i < PL_COUNT(with); i++)
        if (with[i] == key)
            return true;
    return key > PL_SPEC_SBATCH_LAST && key != PL_SPEC_MAX_PARALLEL && key != PL_SPEC_MAIL &&
           key != PL_SPEC_REQUEUE_ON && key != PL_SPEC_MAX_REQUEUES &&
           key != PL_SPEC_SAVE_COMMAND && key != PL_SPEC_SAVE_GRACE;
}

/* True if the user gave it for this sweep, and not for all. */
static bool is_given(enum pl_origin origin)
{
    return origin == PL_ORIGIN_COMMAND_LINE || origin == PL_ORIGIN_JOB_FILE;
}

static int check_options(const struct pl_spec *spec, struct pl_error *err)
{
    static const enum pl_spec_list lists[] = {PL_SPEC_AFTER, PL_SPEC_SBATCH, PL_SPEC_SRUN};

    for (int key = 0; key < PL_SPEC_N_KEYS; key++)
        if (spec->values[key].text && is_given(spec->values[key].origin) && !has_effect(key))
            return pl_error_set(err, -EINVAL, "--%s has no effect with --local: %s",
                                pl_spec_option((enum pl_spec_key)key)->name,
                                key == PL_SPEC_MAX_PARALLEL ? "write --local=K"
                                                            : "omit one of them");
    if (spec->values[PL_SPEC_ON_HANG].text && is_given(spec->values[PL_SPEC_ON_HANG].origin) &&
        strcmp(spec->values[PL_SPEC_ON_HANG].text, "requeue") == 0)
        return pl_error_set(err, -EINVAL,
                            "--on-hang requeue has no effect with --local: write --on-hang kill");
    for (size_t i = 0; i < PL_COUNT(lists); i++)
        if (spec->lists[lists[i]])
            return pl_error_set(err, -EINVAL, "--%s has no effect with --local: omit one of them",
                                pl_spec_list_name(lists[i]));
    return 0;
}

/* With --local a node is a daemon on this machine, with its part of the ranks and of the GPUs. */
static int check_nodes(const struct pl_shape *shape, unsigned gpus, struct pl_error *err)
{
    unsigned ranks = pl_local_ranks_of(shape);

    if (shape->nodes != shape->nodes_max)
        return pl_error_set(err, -EINVAL,
                            "--local needs one number of nodes, not a range: write --nodes %u",
                            shape->nodes);
    if (shape->nodes > ranks)
        return pl_error_set(err, -EINVAL,
                            "%u rank%s cannot be on %u nodes: write --nodes %u or fewer", ranks,
                            ranks == 1 ? "" : "s", shape->nodes, ranks);
    if (shape->nodes > 1 && gpus % shape->nodes != 0)
        return pl_error_set(err, -EINVAL,
                            "%u GPUs cannot be shared equally by %u nodes: write --gpus-per-node N",
                            gpus, shape->nodes);
    return 0;
}

/* Warns about GPUs that no trial gets because the trials' shares do not fill them. */
static int warn_idle(struct pl_spec *spec, unsigned gpus, unsigned have)
{
    unsigned idle = gpus ? have % gpus : 0;

    if (!idle || pl_grid_n_trials(&spec->grid) < have / gpus)
        return 0;
    return pl_spec_warn(spec,
                        "%u of the %u GPUs here %s idle: each trial takes %u (CUDA_VISIBLE_DEVICES "
                        "names those to use)",
                        idle, have, idle == 1 ? "stays" : "stay", gpus);
}

int pl_local_check(struct pl_spec *spec, struct pl_error *err)
{
    struct pl_shape shape = pl_shape_of(spec);
    unsigned gpus = pl_local_gpus_of(&shape), have;
    int r;

    if (!spec->values[PL_SPEC_LOCAL].text)
        return 0;
    r = check_options(spec, err);
    if (r < 0)
        return r;
    r = check_nodes(&shape, gpus, err);
    if (r < 0)
        return r;
    have = pl_local_count_gpus();
    if (gpus > have)
        return pl_error_set(err, -EINVAL, "each trial needs %u GPU%s, and --local has %u here",
                            gpus, gpus == 1 ? "" : "s", have);
    return warn_idle(spec, gpus, have) < 0 ? pl_error_nomem(err) : 0;
}

/* ---- the start ---- */

/* In the executor's process, before it does anything: detaches it from the terminal and from the
 * client. */
static int detach(const struct pl_run *run, int lock, int go)
{
    _cleanup_free_ char *log = pl_path_join(pl_run_dir(run), "local.log");
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    int out = log ? open(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600) : -1;
    int keep[] = {PL_MIN(lock, go), PL_MAX(lock, go)};

    setsid();
    if (null < 0 || out < 0 || dup2(null, STDIN_FILENO) < 0 || dup2(out, STDOUT_FILENO) < 0 ||
        dup2(out, STDERR_FILENO) < 0)
        return -errno;
    pl_close_from(3, keep, PL_COUNT(keep));
    return 0;
}

/* The array number is in the folder: the client recorded it, and may be gone since. */
static bool is_recorded(const char *dir, const char *job)
{
    struct pl_run *run = NULL;
    bool found = false;

    if (pl_run_open_own(dir, &run, NULL) < 0)
        return false;
    for (size_t i = 0; i < pl_run_n_submissions(run); i++)
        found |= strcmp(pl_run_submission(run, i).job, job) == 0;
    pl_run_close(run);
    return found;
}

static _Noreturn void
executor(const struct pl_run *run, const char *job, char *const *env, int lock, int go)
{
    char byte;
    int r = detach(run, lock, go);

    while (r == 0 && read(go, &byte, 1) < 0 && errno == EINTR)
        ;
    if (r < 0 || !is_recorded(pl_run_dir(run), job))
        _exit(1);
    close(go);
    _exit(pl_executor_run(pl_run_dir(run), job, env, lock));
}

/* Forks twice, so that nobody has to wait for the executor. *ret_go: one byte there starts it. */
static int start(const struct pl_run *run,
                 const char *job,
                 char *const *env,
                 int lock,
                 int *ret_go,
                 struct pl_error *err)
{
    int go[2];
    pid_t pid;

    if (pipe2(go, O_CLOEXEC) < 0)
        return pl_error_errno(err, errno, "cannot start the local executor");
    pid = fork();
    if (pid == 0) {
        close(go[1]);
        pid = fork();
        if (pid == 0)
            executor(run, job, env, lock, go[0]);
        _exit(pid < 0 ? 1 : 0);
    }
    close(go[0]);
    if (pid > 0)
        while (waitpid(pid, NULL, 0) < 0 && errno == EINTR)
            ;
    if (pid < 0) {
        close(go[1]);
        return pl_error_errno(err, errno, "cannot start the local executor");
    }
    *ret_go = go[1];
    return 0;
}

/* The number of the next array. As with Slurm, a later one of a sweep has a higher number. */
static unsigned next_number(const struct pl_run *run)
{
    int64_t highest = 0, n;

    for (size_t i = 0; i < pl_run_n_submissions(run); i++)
        if (pl_parse_int(pl_run_submission(run, i).job, 0, INT32_MAX, &n, NULL) == 0)
            highest = PL_MAX(highest, n);
    if (highest < (int64_t)PL_RUN_LOCAL_JOB)
        return PL_RUN_LOCAL_JOB + randombytes_uniform(500000000);
    return (unsigned)highest + PL_LOCAL_ARRAYS;
}

/* Each array has the next number. */
static int record(struct pl_run *run, unsigned number, struct pl_error *err)
{
    _cleanup_free_ struct pl_chunk *chunks = NULL;
    size_t n;
    int r = pl_submit_plan(run, UINT32_MAX, &chunks, &n);

    if (r < 0)
        return pl_error_nomem(err);
    for (size_t i = 0; r == 0 && (i < n || pl_run_n_planned(run) > 0); i++) {
        _cleanup_free_ char *job = pl_strf("%u", number + (unsigned)i);

        if (!job)
            return pl_error_nomem(err);
        if (i + 1 >= PL_LOCAL_ARRAYS)
            return pl_error_set(err, -E2BIG, "the trials are in more than %u parts",
                                PL_LOCAL_ARRAYS);
        r = i < n ? pl_run_add_submission(run, job, chunks[i].first, chunks[i].n, err)
                  : pl_run_plan_done(run, job, err);
    }
    return r;
}

int pl_local_submit(struct pl_run *run, struct pl_error *err)
{
    _cleanup_(pl_strv_freep) char **env = NULL;
    _cleanup_close_ int lock = -EBADF, go = -EBADF;
    _cleanup_free_ struct pl_chunk *rest = NULL;
    _cleanup_free_ char *job = NULL;
    unsigned number;
    size_t n;
    int r;

    if (pl_submit_plan(run, UINT32_MAX, &rest, &n) < 0 || sodium_init() < 0)
        return pl_error_nomem(err);
    if (n == 0 && pl_run_n_planned(run) == 0)
        return 0;
    number = next_number(run);
    job = pl_strf("%u", number);
    if (!job || pl_submit_env(environ, &env) < 0)
        return pl_error_nomem(err);
    r = pl_trial_env_add(run, &env, err);
    if (r == 0)
        r = pl_run_local_lock(run, &lock, err);
    if (r == 0)
        r = start(run, job, env, lock, &go, err);
    if (r == 0)
        r = record(run, number, err);
    if (r < 0)
        return r;
    pl_run_index_try(run, NULL); /* the caller looks whether it is there */
    return write(go, "g", 1) == 1 ? 0
                                  : pl_error_set(err, -EIO,
                                                 "the local executor has ended: see "
                                                 "'%s/local.log'",
                                                 pl_run_dir(run));
}

int pl_local_cancel(const struct pl_run *run, struct pl_error *err)
{
    _cleanup_free_ char *host = NULL;
    pid_t pid = 0;
    enum pl_local_state state = pl_run_local_state(run, &pid, &host);

    /* The trials of an executor that was killed are about to end. One that was stopped goes on. */
    if (state == PL_LOCAL_RUNS && pid > 0 && (kill(pid, SIGUSR1) == 0 || errno == ESRCH)) {
        kill(pid, SIGCONT);
        return 0;
    }
    if (state == PL_LOCAL_ENDED)
        return 0;
    return pl_error_set(err, -EHOSTUNREACH, "the trials run on host %s: cancel them there",
                        host ? host : "?");
}
