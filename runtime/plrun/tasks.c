/* SPDX-License-Identifier: MIT */
#include "runtime/plrun/tasks.h"
#include "common/base/buf.h"
#include "common/base/env.h"
#include "common/base/fs.h"
#include "common/base/log.h"
#include "common/base/program.h"

#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

static volatile sig_atomic_t got; /* a signal that ends a process; 0 = none yet */

static void on_signal(int sig)
{
    if (sig != SIGCONT)
        got = sig;
}

static const int outlived[] = {SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGCONT};

/* The tasks get the signals, too; let_signals_act() gives them the default actions back. */
static void outlive_signals(void)
{
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART}, before;

    sigemptyset(&action.sa_mask);
    for (size_t i = 0; i < PL_COUNT(outlived); i++)
        if (outlived[i] != SIGHUP || sigaction(SIGHUP, NULL, &before) < 0 ||
            before.sa_handler != SIG_IGN) /* nohup(1) */
            sigaction(outlived[i], &action, NULL);
}

static void let_signals_act(void)
{
    struct sigaction action = {.sa_handler = SIG_DFL}, before;

    for (size_t i = 0; i < PL_COUNT(outlived); i++)
        if (sigaction(outlived[i], NULL, &before) == 0 && before.sa_handler == on_signal)
            sigaction(outlived[i], &action, NULL);
}

static int set_number(enum pl_env_id id, unsigned n)
{
    char text[16];

    snprintf(text, sizeof(text), "%u", n);
    return pl_env_set(id, text);
}

/* ---- the step ---- */

struct step {
    char host[HOST_NAME_MAX + 1];
    unsigned n, nodes;
};

/* The number of tasks of a node: as with Slurm the first ones have one more. */
static unsigned tasks_of(const struct step *s, unsigned node)
{
    return s->n / s->nodes + (node < s->n % s->nodes);
}

static void node_name(const struct step *s, unsigned node, struct pl_buf *out)
{
    if (s->nodes == 1)
        pl_buf_adds(out, s->host);
    else
        pl_buf_addf(out, "%s-%u", s->host, node);
}

/* SLURM_STEP_NODELIST and SLURM_STEP_TASKS_PER_NODE. */
static int set_nodes(const struct step *s)
{
    _cleanup_(pl_buf_finish) struct pl_buf names = {0}, tasks = {0};
    int r;

    for (unsigned node = 0; node < s->nodes; node++) {
        if (node && (pl_buf_addc(&names, ',') < 0 || pl_buf_addc(&tasks, ',') < 0))
            return -ENOMEM;
        node_name(s, node, &names);
        if (pl_buf_addf(&tasks, "%u", tasks_of(s, node)) < 0)
            return -ENOMEM;
    }
    r = pl_env_set(PL_ENV_SLURM_STEP_NODELIST, pl_buf_str(&names));
    return r == 0 ? pl_env_set(PL_ENV_SLURM_STEP_TASKS_PER_NODE, pl_buf_str(&tasks)) : r;
}

static int set_step(struct step *s)
{
    const char *node = pl_env_text(PL_ENV_SLURMD_NODENAME);
    int r;

    if (node)
        snprintf(s->host, sizeof(s->host), "%s", node);
    else if (gethostname(s->host, sizeof(s->host) - 1) == 0)
        s->host[strcspn(s->host, ".")] = '\0';
    r = set_nodes(s);
    if (r == 0)
        r = pl_env_set(PL_ENV_SLURM_LAUNCH_NODE_IPADDR, "127.0.0.1");
    if (r == 0)
        r = set_number(PL_ENV_SLURM_STEP_ID, 0);
    if (r == 0)
        r = set_number(PL_ENV_SLURM_STEP_NUM_NODES, s->nodes);
    return r == 0 ? set_number(PL_ENV_SLURM_STEP_NUM_TASKS, s->n) : r;
}

/* ---- a task ---- */

/* Part `node` of a list of GPUs, which are the same number for each node. */
static int set_gpus(const struct step *s, const char *name, unsigned node)
{
    const char *list = pl_env_named(name);
    _cleanup_free_ char *own = NULL;
    unsigned n = 1, each;

    if (s->nodes == 1 || !list || !*list)
        return 0;
    for (const char *p = list; *p; p++)
        n += *p == ',';
    each = n / s->nodes;
    for (unsigned i = 0; i < node * each; i++)
        list += strcspn(list, ",") + 1;
    own = strdup(list);
    if (!own)
        return -ENOMEM;
    for (char *p = own; *p; p++)
        if (*p == ',' && --each == 0)
            *p = '\0'; /* ends the loop, too */
    return setenv(name, own, 1) < 0 ? -ENOMEM : 0;
}

static int set_task(const struct step *s, unsigned task)
{
    _cleanup_(pl_buf_finish) struct pl_buf name = {0};
    unsigned node = 0, first = 0;
    int r;

    while (task - first >= tasks_of(s, node))
        first += tasks_of(s, node++);
    node_name(s, node, &name);
    r = pl_env_set(PL_ENV_SLURMD_NODENAME, pl_buf_str(&name));
    if (r == 0)
        r = set_number(PL_ENV_SLURM_NODEID, node);
    if (r == 0)
        r = set_number(PL_ENV_SLURM_PROCID, task);
    if (r == 0)
        r = set_number(PL_ENV_SLURM_LOCALID, task - first);
    if (r == 0)
        r = set_gpus(s, "CUDA_VISIBLE_DEVICES", node);
    return r == 0 ? set_gpus(s, "SLURM_STEP_GPUS", node) : r;
}

/* Waits until all tasks exist. False: one could not be made, or the parent is gone. */
static bool may_begin(int gate)
{
    char byte;
    ssize_t n;

    do
        n = read(gate, &byte, 1);
    while (n < 0 && errno == EINTR);
    return n == 1;
}

/* A task begins after it has read one byte from the pipe `gate`. Returns its pid or -errno. */
static pid_t start(const struct step *s, char *const *argv, unsigned task, const int gate[2])
{
    pid_t pid = fork();
    char why[512];
    int error;

    if (pid != 0)
        return pid < 0 ? -errno : pid;
    let_signals_act();
    close(gate[1]);
    if (!may_begin(gate[0]) || set_task(s, task) < 0)
        _exit(126);
    execvp(argv[0], argv);
    error = errno;
    pl_program_why(argv[0], error, why, sizeof(why));
    dprintf(2, "plrun: cannot run '%s': %s\n", argv[0], why);
    _exit(error == ENOENT ? 127 : 126);
}

/* False for a child of a caller that has become plrun by an exec. */
static bool is_task(const pid_t *pids, unsigned n, pid_t pid)
{
    for (unsigned i = 0; i < n; i++)
        if (pids[i] == pid)
            return true;
    return false;
}

/* Waits for n tasks. Returns the highest exit code. */
static int wait_for(const pid_t *pids, unsigned n)
{
    int code = 0, status;

    for (unsigned left = n; left > 0;) {
        pid_t pid = wait(&status);

        if (pid < 0 && errno != EINTR)
            break;
        if (pid < 0 || !is_task(pids, n, pid))
            continue;
        left--;
        code = PL_MAX(code, WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
    }
    return code;
}

/* The exit code of a task that has ended before it began, as the kernel ends one for want of
 * memory; 0: none has. */
static int ended_early(const pid_t *pids, unsigned n)
{
    for (unsigned i = 0; i < n; i++) {
        siginfo_t info = {0};

        if (waitid(P_PID, (id_t)pids[i], &info, WEXITED | WNOHANG | WNOWAIT) < 0 || !info.si_pid)
            continue;
        pl_log_error("run", "a task ended before all tasks existed: none begins");
        return info.si_code == CLD_EXITED ? PL_MAX(info.si_status, 1) : 128 + info.si_status;
    }
    return 0;
}

/* Starts all tasks or none: those that began would wait for the others. Returns 128 + N after a
 * signal of which some have died, as it came before all existed, and the code of a task that has
 * died alone. */
static int start_all(const struct step *s, char *const *argv, pid_t *pids)
{
    _cleanup_close_ int in = -EBADF, out = -EBADF;
    unsigned made = 0;
    int gate[2], r = 0;

    if (pipe2(gate, O_CLOEXEC) < 0)
        return -errno;
    in = gate[0];
    out = gate[1];
    while (r == 0 && !got && made < s->n) {
        pids[made] = start(s, argv, made, gate);
        r = pids[made] < 0 ? pids[made] : 0;
        made += r == 0;
    }
    if (r == 0)
        r = got ? 128 + got : ended_early(pids, made);
    for (unsigned i = 0; i < made && r == 0; i++)
        if (write(out, "", 1) < 0)
            r = -errno;
    if (r == 0)
        return 0;
    out = (close(out), -EBADF);
    wait_for(pids, made);
    return r;
}

int pl_tasks_run(char *const *argv, unsigned n, unsigned nodes, struct pl_error *err)
{
    struct step step = {.host = "localhost", .n = n, .nodes = nodes};
    _cleanup_free_ pid_t *pids = calloc(n, sizeof(*pids));
    int r = !pids ? -ENOMEM : nodes <= n ? set_step(&step) : -EINVAL;

    outlive_signals();
    if (r == 0)
        r = start_all(&step, argv, pids);
    if (r < 0)
        return pl_error_errno(err, r, "cannot start %u tasks of '%s'", n, argv[0]);
    return r > 0 ? r : wait_for(pids, n);
}
