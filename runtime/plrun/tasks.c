/* SPDX-License-Identifier: MIT */
#include "runtime/plrun/tasks.h"
#include "common/base/buf.h"
#include "common/base/env.h"
#include "common/base/fs.h"

#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

static void on_signal(int sig)
{
    (void)sig;
}

/* The tasks get the signals, too; exec gives them the default actions back. */
static void outlive_signals(void)
{
    static const int signals[] = {SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2, SIGCONT};
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART}, before;

    sigemptyset(&action.sa_mask);
    for (size_t i = 0; i < PL_COUNT(signals); i++)
        if (signals[i] != SIGHUP || sigaction(SIGHUP, NULL, &before) < 0 ||
            before.sa_handler != SIG_IGN) /* nohup(1) */
            sigaction(signals[i], &action, NULL);
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

static int start(const struct step *s, char *const *argv, unsigned task)
{
    pid_t pid = fork();
    int error;

    if (pid != 0)
        return pid < 0 ? -errno : 0;
    if (set_task(s, task) < 0)
        _exit(126);
    execvp(argv[0], argv);
    error = errno;
    dprintf(2, "plrun: cannot run '%s': %s\n", argv[0], strerror(error));
    _exit(error == ENOENT ? 127 : 126);
}

int pl_tasks_run(char *const *argv, unsigned n, unsigned nodes, struct pl_error *err)
{
    struct step step = {.host = "localhost", .n = n, .nodes = nodes};
    unsigned started = 0;
    int code = 0, r = nodes <= n ? set_step(&step) : -EINVAL;

    outlive_signals();
    while (r == 0 && started < n) {
        r = start(&step, argv, started);
        started += r == 0;
    }
    if (r < 0 && started == 0)
        return pl_error_errno(err, r, "cannot start '%s'", argv[0]);
    while (started > 0) {
        int status;

        if (wait(&status) < 0) {
            if (errno == EINTR)
                continue;
            break;
        }
        started--;
        code = PL_MAX(code, WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
    }
    return r < 0 ? pl_error_errno(err, r, "cannot start all ranks") : code;
}
