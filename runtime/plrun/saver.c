/* SPDX-License-Identifier: MIT */
#include "runtime/plrun/saver.h"
#include "common/base/env.h"
#include "common/base/fs.h"
#include "common/base/process.h"
#include "runtime/plrun/senders.h"

#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>

#define KILL_MS 2000      /* the command gets SIGTERM after its grace, and after this SIGKILL */
#define RECENT_MS 600000u /* SIGTERM does not save again so soon after a command that succeeded */

struct saver {
    const char *command;
    struct pl_senders senders;
    char name[16];       /* of this process, while no command runs */
    pid_t program, save; /* save: process group of the command; 0: none runs */
    sigset_t mask, old_mask;
    uint64_t limit_ns; /* of the command; its next signal is due then */
    int next_signal;
    uint64_t saved_ns; /* end of the last command that succeeded; 0: none */
    int pending;       /* the program gets it once the command has ended; 0: none */
    uint64_t kill_ns;  /* then a program that has got SIGTERM is killed; 0: it has not got it */
    bool ended;
    int status;
};

static const int taken[] = {SIGCHLD, SIGTERM, SIGINT,  SIGHUP,    SIGQUIT, SIGUSR1, SIGUSR2,
                            SIGALRM, SIGABRT, SIGXCPU, SIGVTALRM, SIGPROF, SIGIO,   SIGPWR};

/* PDEATHSIG follows the parent's end, which may have come before it was set. */
static void prepare_child(const struct saver *s, pid_t parent)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(126);
    sigprocmask(SIG_SETMASK, &s->old_mask, NULL);
}

/* ---- the command ---- */

static void run_command(const struct saver *s, const char *signal_name, pid_t parent)
{
    int null = open("/dev/null", O_RDONLY);
    char pid[16];

    prepare_child(s, parent);
    setpgid(0, 0);
    if (null >= 0)
        dup2(null, 0);
    snprintf(pid, sizeof(pid), "%d", (int)s->program);
    if (pl_env_set(PL_ENV_PLUME_SAVE_PID, pid) == 0)
        execlp("bash", "bash", "-c", s->command, "save", signal_name, (char *)NULL);
    dprintf(2, "plrun: cannot run the save command: %s\n", strerror(errno));
    _exit(127);
}

static void start_command(struct saver *s, int signal)
{
    const char *name = signal == SIGTERM ? "TERM" : signal == SIGUSR1 ? "USR1" : "USR2";
    pid_t parent = getpid(), pid = fork();

    if (pid == 0)
        run_command(s, name, parent);
    if (pid < 0) {
        dprintf(2, "plrun: cannot start the save command: %s\n", strerror(errno));
        return;
    }
    setpgid(pid, pid); /* whoever is first */
    s->save = pid;
    prctl(PR_SET_NAME, PL_PROCESS_SAVES);
    s->limit_ns = pl_now_ns() + pl_env_ms(PL_ENV_PLUME_SAVE_GRACE) * 1000000ull;
    s->next_signal = SIGTERM;
}

static void command_ended(struct saver *s, int status)
{
    kill(-s->save,
         SIGKILL); /* what it has left in its group; a checkpoint is whole, or it is not */
    s->save = 0;
    prctl(PR_SET_NAME, s->name);
    if (status == 0)
        s->saved_ns = pl_now_ns();
    else if (WIFSIGNALED(status))
        dprintf(2, "plrun: signal %d ended the save command: %s\n", WTERMSIG(status), s->command);
    else
        dprintf(2, "plrun: exit code %d of the save command: %s\n", WEXITSTATUS(status),
                s->command);
}

static void end_command(struct saver *s)
{
    if (s->next_signal == SIGTERM)
        dprintf(2, "plrun: the save command has not ended after %g s and is ended: %s\n",
                pl_env_ms(PL_ENV_PLUME_SAVE_GRACE) / 1000.0, s->command);
    kill(-s->save, s->next_signal);
    s->next_signal = SIGKILL;
    s->limit_ns = pl_now_ns() + KILL_MS * 1000000ull;
}

/* ---- the program ---- */

static void pass_on(struct saver *s, int signal)
{
    if (!s->ended)
        kill(s->program, signal); /* not reaped yet, so it is still ours */
}

/* A program that outlives Slurm's limit takes the job script along, and nobody starts the trial
 * again: its state is saved, so it need not. */
static void take_pending(struct saver *s)
{
    pass_on(s, s->pending);
    s->pending = 0;
    if (!s->kill_ns)
        s->kill_ns = pl_now_ns() + pl_env_ms(PL_ENV_PLUME_KILL_GRACE) * 1000000ull;
}

static void kill_program(struct saver *s)
{
    dprintf(2,
            "plrun: the program has not ended %g s after SIGTERM, which came after the save "
            "command, and is killed\n",
            pl_env_ms(PL_ENV_PLUME_KILL_GRACE) / 1000.0);
    pass_on(s, SIGKILL);
    s->kill_ns = UINT64_MAX;
}

/* The command runs once for all signals that come meanwhile. */
static void save(struct saver *s, int signal)
{
    bool recent = s->saved_ns && pl_now_ns() - s->saved_ns < RECENT_MS * 1000000ull;

    if (signal == SIGTERM)
        s->pending = signal;
    if (!s->save && !s->ended && !(signal == SIGTERM && recent))
        start_command(s, signal);
}

static void on_signal(struct saver *s, const siginfo_t *info)
{
    int signal = info->si_signo;
    bool saves = signal == SIGTERM || signal == SIGUSR1 || signal == SIGUSR2;

    if (saves && !pl_process_is_order(info->si_code))
        save(s, signal);
    else if (pl_senders_reach(&s->senders, info->si_code, info->si_pid, signal, s->program))
        return;                                             /* the program has it, too */
    else if (!(s->save && s->pending && signal == SIGTERM)) /* it is about to get this one */
        pass_on(s, signal);
}

static void reap(struct saver *s)
{
    int status;
    pid_t pid;

    while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
        if (pid == s->save) {
            command_ended(s, status);
        } else if (pid == s->program) {
            s->ended = true;
            s->status = status;
        } /* else: of the process that became plrun */
    }
}

static void watch(struct saver *s)
{
    while (!s->ended || s->save) {
        uint64_t now = pl_now_ns(), due = s->save ? s->limit_ns : s->kill_ns;
        uint64_t left = due > now ? due - now : 0;
        struct timespec wait = {(time_t)(left / 1000000000u), (long)(left % 1000000000u)};
        siginfo_t info;
        int n = due ? sigtimedwait(&s->mask, &info, &wait) : sigwaitinfo(&s->mask, &info);

        if (n > 0 && n != SIGCHLD)
            on_signal(s, &info);
        reap(s);
        if (s->save && pl_now_ns() >= s->limit_ns)
            end_command(s);
        if (s->pending && !s->save)
            take_pending(s);
        if (!s->ended && !s->save && s->kill_ns && pl_now_ns() >= s->kill_ns)
            kill_program(s);
    }
}

/* Ends as the program has ended, without a second core file. */
static int end_as_program(const struct saver *s)
{
    int signal_number = WTERMSIG(s->status);
    sigset_t mask;

    if (!WIFSIGNALED(s->status))
        return WEXITSTATUS(s->status);
    setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
    signal(signal_number, SIG_DFL);
    sigemptyset(&mask);
    sigaddset(&mask, signal_number);
    kill(getpid(), signal_number);
    sigprocmask(SIG_UNBLOCK, &mask, NULL);
    return 128 + signal_number;
}

int pl_saver_run(const char *command, char *const *argv, pl_saver_exec_f exec)
{
    struct saver s = {.command = command};
    pid_t parent = getpid();

    pl_senders_find(&s.senders);
    pl_closep(&s.senders.stepd_fd);
    prctl(PR_GET_NAME, s.name);
    unsetenv("PLUME_SAVE_COMMAND"); /* a step of the program's own has other ranks */
    sigemptyset(&s.mask);
    for (size_t i = 0; i < PL_COUNT(taken); i++)
        sigaddset(&s.mask, taken[i]);
    sigprocmask(SIG_BLOCK, &s.mask, &s.old_mask);
    pl_senders_before_fork(&s.senders);
    s.program = fork();
    if (s.program == 0) {
        prepare_child(&s, parent);
        _exit(exec(argv));
    }
    if (s.program < 0) {
        dprintf(2, "plrun: cannot start '%s': %s\n", argv[0], strerror(errno));
        return 126;
    }
    watch(&s);
    return end_as_program(&s);
}
