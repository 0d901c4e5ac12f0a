/* SPDX-License-Identifier: MIT */
#include "runtime/plrun/tasks.h"
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

static int set_step(unsigned n)
{
    const char *node = pl_env_text(PL_ENV_SLURMD_NODENAME);
    char host[HOST_NAME_MAX + 1] = "localhost";
    int r = 0;

    if (!node && gethostname(host, sizeof(host) - 1) == 0)
        host[strcspn(host, ".")] = '\0';
    r = pl_env_set(PL_ENV_SLURMD_NODENAME, node ? node : host);
    if (r == 0)
        r = pl_env_set(PL_ENV_SLURM_STEP_NODELIST, pl_env(PL_ENV_SLURMD_NODENAME));
    if (r == 0)
        r = pl_env_set(PL_ENV_SLURM_LAUNCH_NODE_IPADDR, "127.0.0.1");
    if (r == 0)
        r = set_number(PL_ENV_SLURM_STEP_ID, 0);
    if (r == 0)
        r = set_number(PL_ENV_SLURM_NODEID, 0);
    if (r == 0)
        r = set_number(PL_ENV_SLURM_STEP_NUM_NODES, 1);
    if (r == 0)
        r = set_number(PL_ENV_SLURM_STEP_NUM_TASKS, n);
    return r == 0 ? set_number(PL_ENV_SLURM_STEP_TASKS_PER_NODE, n) : r;
}

static int start(char *const *argv, unsigned task)
{
    pid_t pid = fork();

    if (pid != 0)
        return pid < 0 ? -errno : 0;
    if (set_number(PL_ENV_SLURM_PROCID, task) < 0 || set_number(PL_ENV_SLURM_LOCALID, task) < 0)
        _exit(126);
    execv(argv[0], argv);
    _exit(127);
}

int pl_tasks_run(char *const *argv, unsigned n, struct pl_error *err)
{
    unsigned started = 0;
    int code = 0, r = set_step(n);

    outlive_signals();
    while (r == 0 && started < n) {
        r = start(argv, started);
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
