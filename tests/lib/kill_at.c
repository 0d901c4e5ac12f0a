/* SPDX-License-Identifier: MIT */
/* kill-at N PROGRAM [ARG...]: runs the program and kills it as it enters its Nth system call after
 * exec; its children are not touched. Waits for all of them. Exits with 9 after a kill; else prints
 * the number of calls to descriptor 3, if that is open, and exits with the program's code. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

static void wait_for_children(void)
{
    while (wait(NULL) > 0 || errno == EINTR)
        ;
}

int main(int argc, char **argv)
{
    long at = argc > 2 ? strtol(argv[1], NULL, 10) : -1, calls = 0;
    int status, inside = 0;
    pid_t pid;

    if (at < 0)
        return 2;
    prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
    pid = fork();
    if (pid < 0)
        return 2;
    if (pid == 0) {
        ptrace(PTRACE_TRACEME, 0, NULL, NULL);
        raise(SIGSTOP);
        close(3);
        execvp(argv[2], argv + 2);
        _exit(127);
    }
    if (waitpid(pid, &status, 0) != pid || !WIFSTOPPED(status))
        return 2;
    ptrace(PTRACE_SETOPTIONS, pid, NULL,
           PTRACE_O_TRACESYSGOOD | PTRACE_O_EXITKILL | PTRACE_O_TRACEEXEC);
    for (int started = 0, sig = 0;;) {
        ptrace(started ? PTRACE_SYSCALL : PTRACE_CONT, pid, NULL, sig);
        if (waitpid(pid, &status, 0) != pid)
            return 2;
        if (!WIFSTOPPED(status))
            break;
        sig = 0;
        if (status >> 8 == (SIGTRAP | PTRACE_EVENT_EXEC << 8)) {
            started = inside = 1; /* the next stop is the end of exec */
        } else if (WSTOPSIG(status) == (SIGTRAP | 0x80)) {
            inside = !inside;
            if (inside && ++calls == at) {
                kill(pid, SIGKILL);
                wait_for_children();
                return 9;
            }
        } else {
            sig = WSTOPSIG(status);
        }
    }
    wait_for_children();
    dprintf(3, "%ld\n", calls);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
