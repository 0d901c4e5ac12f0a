/* SPDX-License-Identifier: MIT */
#include "launcher/plsubmit/local_run.h"
#include "common/base/env.h"
#include "common/base/fs.h"
#include "common/base/log.h"
#include "common/base/parse.h"
#include "common/base/process.h"
#include "common/base/strv.h"
#include "common/run/run_end.h"
#include "common/run/run_local.h"

#include <ctype.h>
#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define KILL_S 60    /* from SIGTERM to SIGKILL: above the runtime's own limits */
#define TURN_S 5     /* looks at the limits at least so often */
#define GPUS_MAX 64u /* of a machine */
#define NAME_MAX_ 64 /* bytes of a GPU's name */

/* ---- GPUs ---- */

struct gpus {
    char names[GPUS_MAX][NAME_MAX_]; /* "0", or "GPU-..." */
    bool busy[GPUS_MAX];
    unsigned n, free;
};

static void add_gpu(struct gpus *g, const char *name, size_t len)
{
    if (g->n == GPUS_MAX || len == 0 || len >= NAME_MAX_)
        return;
    memcpy(g->names[g->n], name, len);
    g->names[g->n][len] = '\0';
    g->n++;
}

/* The devices /dev/nvidia0, ... */
static void find_gpus(struct gpus *g)
{
    DIR *list = opendir("/dev");
    const struct dirent *entry;
    unsigned n = 0;

    while (list && (entry = readdir(list)))
        n += strncmp(entry->d_name, "nvidia", 6) == 0 && isdigit((unsigned char)entry->d_name[6]);
    if (list)
        closedir(list);
    for (unsigned i = 0; i < n; i++) {
        char name[16];

        snprintf(name, sizeof(name), "%u", i);
        add_gpu(g, name, strlen(name));
    }
}

static void load_gpus(struct gpus *g)
{
    const char *list = pl_env_named("CUDA_VISIBLE_DEVICES");

    *g = (struct gpus){0};
    if (!list)
        find_gpus(g);
    while (list && *list) {
        size_t len = strcspn(list, ",");

        if (strncmp(list, "-1", 2) == 0) /* CUDA stops here, too */
            break;
        add_gpu(g, list, len);
        list += len + (list[len] == ',');
    }
    g->free = g->n;
}

unsigned pl_local_count_gpus(void)
{
    struct gpus g;

    load_gpus(&g);
    return g.n;
}

unsigned pl_local_ranks_of(const struct pl_shape *shape)
{
    return shape->ranks ? shape->ranks
                        : PL_MAX(shape->ranks_per_node, 1u) * PL_MAX(shape->nodes, 1u);
}

unsigned pl_local_gpus_of(const struct pl_shape *shape)
{
    if (shape->gpus)
        return shape->gpus;
    return shape->gpus_per_node ? shape->gpus_per_node * PL_MAX(shape->nodes, 1u)
                                : shape->gpus_per_rank * pl_local_ranks_of(shape);
}

/* ---- trials ---- */

struct task {
    int64_t array;
    unsigned first, index, retry; /* trial first + index */
    pid_t pid;                    /* of its guard, and of the process group; 0: does not run */
    time_t ended_s;               /* when it got SIGTERM; 0: not */
    bool over;
    unsigned gpus[GPUS_MAX], n_gpus;
};

struct executor {
    struct pl_run *run;
    char *dir;
    char *const *env;
    struct task *tasks;
    size_t n_tasks, next, n_running, most;
    unsigned gpus_each, cpus_each;
    struct gpus gpus;
    sigset_t before; /* signal mask of the trials */
    bool stop;
};

static time_t now_s(void)
{
    return (time_t)(pl_now_ns() / 1000000000u);
}

static int add_tasks(struct executor *x, int64_t base)
{
    for (size_t i = 0; i < pl_run_n_submissions(x->run); i++) {
        struct pl_run_submission sub = pl_run_submission(x->run, i);
        struct task *more;
        int64_t array;

        if (pl_parse_int(sub.job, base, base + PL_LOCAL_ARRAYS - 1, &array, NULL) < 0)
            continue;
        more = realloc(x->tasks, (x->n_tasks + sub.n_trials) * sizeof(*more));
        if (!more)
            return -ENOMEM;
        x->tasks = more;
        for (unsigned k = 0; k < sub.n_trials; k++)
            if (pl_run_submission_has(&sub, sub.first_trial + k))
                x->tasks[x->n_tasks++] = (struct task){
                    .array = array, .first = sub.first_trial, .index = k, .retry = sub.retry};
    }
    return 0;
}

static int take_gpus(struct executor *x, struct task *t)
{
    if (x->gpus_each > x->gpus.free)
        return -EAGAIN;
    for (unsigned i = 0; i < x->gpus.n && t->n_gpus < x->gpus_each; i++)
        if (!x->gpus.busy[i]) {
            x->gpus.busy[i] = true;
            t->gpus[t->n_gpus++] = i;
        }
    x->gpus.free -= t->n_gpus;
    return 0;
}

static void give_gpus(struct executor *x, struct task *t)
{
    for (unsigned i = 0; i < t->n_gpus; i++)
        x->gpus.busy[t->gpus[i]] = false;
    x->gpus.free += t->n_gpus;
    t->n_gpus = 0;
}

static int add_variable(char ***env, const char *name, const char *value)
{
    _cleanup_free_ char *entry = pl_strf("%s=%s", name, value);

    return entry ? pl_strv_append(env, entry) : -ENOMEM;
}

static int add_number(char ***env, const char *name, int64_t n)
{
    char text[32];

    snprintf(text, sizeof(text), "%lld", (long long)n);
    return add_variable(env, name, text);
}

/* GPUs in the order of the bus, as nvidia-smi names them. Without --gpus-per-node a trial sees what
 * the user sees. */
static int add_gpus(const struct executor *x, const struct task *t, char ***env)
{
    _cleanup_(pl_buf_finish) struct pl_buf list = {0};
    int r = 0;

    if (t->n_gpus == 0)
        return 0;
    for (unsigned i = 0; i < t->n_gpus && r == 0; i++)
        r = pl_buf_addf(&list, "%s%s", i ? "," : "", x->gpus.names[t->gpus[i]]);
    if (r == 0)
        r = add_variable(env, "CUDA_DEVICE_ORDER", "PCI_BUS_ID");
    if (r == 0)
        r = add_variable(env, "CUDA_VISIBLE_DEVICES", pl_buf_str(&list));
    return r == 0 ? add_variable(env, "SLURM_STEP_GPUS", pl_buf_str(&list)) : r;
}

/* True if the list sets the variable of this entry. */
static bool is_set(char *const *env, const char *entry)
{
    size_t len = strcspn(entry, "=") + 1;

    for (; *env; env++)
        if (strncmp(*env, entry, len) == 0)
            return true;
    return false;
}

/* The environment of a job script: our variables replace the user's. */
static int make_env(const struct executor *x, const struct task *t, char ***ret)
{
    _cleanup_(pl_strv_freep) char **env = NULL;
    char host[HOST_NAME_MAX + 1] = "localhost";
    int r;

    if (gethostname(host, sizeof(host) - 1) == 0)
        host[strcspn(host, ".")] = '\0';
    r = add_variable(&env, "SLURMD_NODENAME", host);
    if (r == 0)
        r = add_gpus(x, t, &env);
    if (r == 0)
        r = add_number(&env, "SLURM_ARRAY_JOB_ID", t->array);
    if (r == 0)
        r = add_number(&env, "SLURM_ARRAY_TASK_ID", t->index);
    if (r == 0) /* the name of sockets and sessions: no other trial has it */
        r = add_number(&env, "SLURM_JOB_ID", t->array + PL_LOCAL_ARRAYS + t->first + t->index);
    if (r == 0)
        r = add_variable(&env, "SLURM_JOB_NAME", pl_run_name(x->run));
    if (r == 0 && x->cpus_each)
        r = add_number(&env, "SLURM_CPUS_PER_TASK", x->cpus_each);
    if (r == 0)
        r = add_variable(&env, "SLURM_LAUNCH_NODE_IPADDR", "127.0.0.1");
    if (r == 0)
        r = add_variable(&env, "PLUME_SCONTROL", ""); /* there is no job to ask about */
    for (char *const *e = x->env; *e && r == 0; e++)
        r = is_set(env, *e) ? 0 : pl_strv_append(&env, *e);
    if (r < 0)
        return r;
    *ret = PL_TAKE(env);
    return 0;
}

/* For a program that is not ours. A shell ignores SIGINT and SIGQUIT in what it starts by '&', and
 * a job script could not trap them then. */
static void reset_signals(const struct executor *x)
{
    static const int ours[] = {SIGINT, SIGQUIT, SIGXFSZ};

    for (size_t i = 0; i < PL_COUNT(ours); i++)
        signal(ours[i], SIG_DFL);
    sigprocmask(SIG_SETMASK, &x->before, NULL);
}

static void exec_script(const struct executor *x, const struct task *t, char *const *env, int out)
{
    char first[16], retry[16];
    _cleanup_free_ char *script = pl_path_join(x->dir, "job.sh");
    char *argv[] = {(char[]){"bash"}, (char[]){"-l"}, script, first, t->retry ? retry : NULL, NULL};
    int null = open("/dev/null", O_RDONLY);

    snprintf(first, sizeof(first), "%u", t->first);
    snprintf(retry, sizeof(retry), "%u", t->retry);
    reset_signals(x);
    if (script && null >= 0 && dup2(null, 0) >= 0 && dup2(out, 1) >= 0 && dup2(out, 2) >= 0) {
        pl_close_from(3, NULL, 0);
        execvpe("bash", argv, env);
    }
}

/* True if SIGTERM has come, which is blocked here. */
static bool is_ended(void)
{
    sigset_t set;

    return sigpending(&set) == 0 && sigismember(&set, SIGTERM) == 1;
}

/* The parent of a job script, and the first process of its group. It holds the executor's lock,
 * too: nothing starts a second attempt beside this one. If the executor is killed, it ends the
 * group, as the executor does with a trial that is cancelled. The executor's signals are blocked
 * here. */
static _Noreturn void
guard(const struct executor *x, const struct task *t, char *const *env, int out, pid_t executor)
{
    time_t ended_s = 0;
    sigset_t set;
    pid_t pid;

    setsid();
    prctl(PR_SET_PDEATHSIG, SIGUSR1);
    if (is_ended()) /* before there is a script: cancelled at once */
        _exit(0);
    pid = fork();
    if (pid == 0) {
        exec_script(x, t, env, out);
        _exit(127);
    }
    if (pid > 0 && is_ended()) /* perhaps before the fork; a second one changes nothing yet */
        kill(pid, SIGTERM);
    sigemptyset(&set);
    sigaddset(&set, SIGCHLD);
    sigaddset(&set, SIGUSR1);
    sigaddset(&set, SIGTERM);
    while (pid > 0 && waitpid(pid, NULL, WNOHANG) == 0) {
        if (getppid() != executor && !ended_s) {
            ended_s = now_s();
            kill(0, SIGTERM);
            kill(0, SIGCONT);
        }
        if (ended_s && now_s() - ended_s >= KILL_S)
            break;
        sigtimedwait(&set, NULL, &(struct timespec){.tv_sec = TURN_S});
    }
    if (getppid() != executor)
        kill(0, SIGKILL);
    _exit(0);
}

static int start(struct executor *x, struct task *t)
{
    _cleanup_free_ char *path =
        pl_strf("%s/slurm-%lld_%u.out", x->dir, (long long)t->array, t->index);
    _cleanup_(pl_strv_freep) char **env = NULL;
    _cleanup_close_ int out = -EBADF;
    pid_t pid, own = getpid();
    int r = make_env(x, t, &env);

    if (r < 0 || !path)
        return -ENOMEM;
    out = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (out < 0)
        return -errno;
    pid = fork();
    if (pid < 0)
        return -errno;
    if (pid == 0)
        guard(x, t, env, out, own);
    t->pid = pid;
    x->n_running++;
    return 0;
}

/* Starts what may start. A trial that cannot even fork is left without a result: it is lost. */
static void start_some(struct executor *x)
{
    while (!x->stop && x->next < x->n_tasks && x->n_running < x->most) {
        struct task *t = &x->tasks[x->next];
        int r;

        if (t->over) {
            x->next++;
            continue;
        }
        if (take_gpus(x, t) < 0)
            return;
        r = start(x, t);
        if (r < 0) {
            pl_log_error("local", "cannot start trial %u: %s", t->first + t->index, strerror(-r));
            give_gpus(x, t);
            t->over = true;
        }
        x->next++;
    }
}

static void end_task(struct task *t)
{
    if (!t->pid || t->ended_s)
        return;
    if (kill(-t->pid, SIGTERM) < 0) /* the guard has no group yet */
        kill(t->pid, SIGTERM);
    kill(-t->pid, SIGCONT);
    t->ended_s = now_s();
}

/* SIGUSR1: applies the cancelled trials of sweep.json. */
static void apply_cancelled(struct executor *x)
{
    struct pl_run *run = NULL;
    struct pl_error err = {0};

    if (pl_run_open_own(x->dir, &run, &err) < 0) {
        pl_log_error("local", "cannot read what is cancelled: %s", pl_error_text(&err));
        return;
    }
    for (size_t i = 0; i < x->n_tasks; i++) {
        struct task *t = &x->tasks[i];

        if (t->over || !pl_run_is_cancelled(run, t->array, t->index))
            continue;
        if (t->pid)
            end_task(t);
        else
            t->over = true;
    }
    pl_run_close(run);
}

static void reap(struct executor *x)
{
    pid_t pid;

    while ((pid = waitpid(-1, NULL, WNOHANG)) > 0)
        for (size_t i = 0; i < x->n_tasks; i++) {
            struct task *t = &x->tasks[i];

            if (t->pid != pid)
                continue;
            kill(-pid, SIGKILL); /* what the job script has left in its group */
            give_gpus(x, t);
            t->pid = 0;
            t->over = true;
            x->n_running--;
        }
}

static void apply_limits(struct executor *x)
{
    for (size_t i = 0; i < x->n_tasks; i++)
        if (x->tasks[i].pid && x->tasks[i].ended_s && now_s() - x->tasks[i].ended_s >= KILL_S)
            kill(-x->tasks[i].pid, SIGKILL);
}

static void run_all(struct executor *x, const sigset_t *set)
{
    apply_cancelled(x); /* since the client recorded the trials */
    start_some(x);
    while (x->n_running > 0) {
        int sig = sigtimedwait(set, NULL, &(struct timespec){.tv_sec = TURN_S});

        reap(x);
        if (sig == SIGUSR1)
            apply_cancelled(x);
        if (sig == SIGTERM) {
            x->stop = true;
            for (size_t i = 0; i < x->n_tasks; i++)
                end_task(&x->tasks[i]);
        }
        apply_limits(x);
        start_some(x);
    }
}

/* Becomes the process that runs the command of --on-end. It holds no lock: the trials have ended.
 */
static void run_on_end(const struct executor *x)
{
    _cleanup_free_ char *out = pl_path_join(x->dir, PL_RUN_END_OUTPUT);
    _cleanup_(pl_strv_freep) char **env = NULL;
    char plrun[PATH_MAX], arrays[16];
    ssize_t n = readlink("/proc/self/exe", plrun, sizeof(plrun) - 16);
    char *argv[] = {plrun, (char[]){"--end-sweep"}, arrays, NULL};
    int fd, r = add_variable(&env, "PLUME_RUN_DIR", x->dir);

    if (!pl_run_on_end(x->run))
        return;
    for (char *const *e = x->env; *e && r == 0; e++)
        r = is_set(env, *e) ? 0 : pl_strv_append(&env, *e);
    fd = out ? open(out, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0666) : -1;
    if (r == 0 && n > 0 && fd >= 0 && dup2(fd, STDOUT_FILENO) >= 0 &&
        dup2(fd, STDERR_FILENO) >= 0) {
        plrun[n] = '\0';
        memcpy(strrchr(plrun, '/') + 1, "plrun", sizeof("plrun"));
        snprintf(arrays, sizeof(arrays), "%zu", pl_run_n_submissions(x->run));
        reset_signals(x);
        pl_close_from(3, NULL, 0);
        execve(plrun, argv, env);
    }
    pl_log_error("local", "cannot run the command of --on-end: %s", strerror(errno));
}

int pl_executor_run(const char *dir, const char *job, char *const *env, int lock)
{
    struct executor x = {.env = env};
    struct pl_error err = {0};
    int64_t base = 0;
    sigset_t set;
    int r;

    prctl(PR_SET_NAME, PL_PROCESS_EXECUTOR); /* the guards inherit it */
    sigemptyset(&set);
    sigaddset(&set, SIGCHLD);
    sigaddset(&set, SIGUSR1);
    sigaddset(&set, SIGTERM);
    sigprocmask(SIG_BLOCK, &set, &x.before);
    r = pl_run_local_note(lock, &err);
    if (r == 0)
        r = pl_run_open_own(dir, &x.run, &err);
    if (r == 0)
        r = pl_parse_int(job, 1, UINT32_MAX, &base, &err);
    if (r == 0)
        r = add_tasks(&x, base);
    x.dir = r == 0 ? strdup(pl_run_dir(x.run)) : NULL;
    if (!x.dir) {
        pl_log_error("local", "%s", err.code ? pl_error_text(&err) : "out of memory");
        return 1;
    }
    load_gpus(&x.gpus);
    x.gpus_each = PL_MIN(pl_run_local_number(x.run, "gpus"), GPUS_MAX);
    x.cpus_each = pl_run_local_number(x.run, "cpus");
    x.most = pl_run_local_number(x.run, "value");
    if (x.most == 0)
        x.most = x.gpus_each ? PL_MAX(x.gpus.n / x.gpus_each, 1u) : 1;
    run_all(&x, &set);
    run_on_end(&x);
    pl_run_close(x.run);
    free(x.tasks);
    free(x.dir);
    return 0;
}
