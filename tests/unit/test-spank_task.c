/* SPDX-License-Identifier: MIT */
/* A task that becomes a rank: the test is the daemon, a child is the task. */
#include "common/base/fs.h"
#include "spank_plugin/task.h"
#include "tests/lib/tmpdir.h"

#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>

#include <cmocka.h>

static char folder[64], path[96];
static char
    by_fd[32]; /* the same socket, as the plugin names it: found where /tmp is another one */
static int server = -1, socket_fd = -1;

static int set_variable(void *ctx, const char *name, const char *value, bool overwrite)
{
    return setenv(name, value, overwrite) < 0 ? -errno : 0;
}

/* As Slurm 24.11 starts a task: with a handler of slurmstepd's that does nothing here. */
static void swallow(int sig) {}

/* The task's work; its result is its exit code. */
static int task(void)
{
    struct pl_error err = {0};
    char name[16] = "";
    int r;

    signal(SIGTERM, swallow);
    signal(SIGHUP, SIG_IGN);
    setenv("B", "mine", 1);
    r = pl_task_join(by_fd, 5, 2, 20000, set_variable, NULL, &err);
    prctl(PR_GET_NAME, name);
    if (strcmp(name, "slurmstepd") != 0)
        return 40; /* the name must be as before */
    if (signal(SIGTERM, SIG_DFL) != swallow || signal(SIGHUP, SIG_DFL) != SIG_IGN)
        return 43;
    if (r < 0) {
        dprintf(2, "failed: %s", err.text);
        return 41;
    }
    for (int fd = 3; fd < 64; fd++)
        if (fcntl(fd, F_GETFD) >= 0 && !(fcntl(fd, F_GETFD) & FD_CLOEXEC))
            return 42;
    dprintf(1, "out %s %s", getenv("A"), getenv("B"));
    dprintf(2, "err");
    return 7;
}

/* The task's fds 1 and 2 are the write ends of out and err. */
static pid_t fork_task(int out, int err)
{
    pid_t pid = fork();

    if (pid == 0) {
        prctl(PR_SET_NAME, "slurmstepd");
        dup2(out, 1);
        dup2(err, 2);
        pl_close_from(3, &socket_fd, 1);
        _exit(task());
    }
    return pid;
}

static char *read_all(int fd)
{
    char *text = calloc(1, 4096);
    size_t len = 0;
    ssize_t n;

    while ((n = read(fd, text + len, 4095 - len)) > 0)
        len += (size_t)n;
    close(fd);
    return text;
}

static int status_of(pid_t pid)
{
    int status;

    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void test_join(void **state)
{
    static const char world[] = "{\"type\":\"world\",\"env\":[\"A=1\"],\"defaults\":[\"B=2\"]}\n";
    _cleanup_free_ char *out = NULL, *err = NULL, *real_out = NULL, *real_err = NULL;
    int fds[4], real_o[2], real_e[2], conn;
    char hello[1024] = "", name[32] = "", comm[64];
    size_t n_fds;
    FILE *f;
    pid_t pid;

    assert_int_equal(pipe2(real_o, O_CLOEXEC), 0);
    assert_int_equal(pipe2(real_e, O_CLOEXEC), 0);
    pid = fork_task(real_o[1], real_e[1]);
    conn = accept4(server, NULL, NULL, SOCK_CLOEXEC);
    assert_true(pl_recv_fds(conn, hello, sizeof(hello) - 1, fds, 4, &n_fds) > 0);
    assert_int_equal(n_fds, 4);
    assert_non_null(strstr(hello, "\"role\":\"starter\",\"rank\":5,\"local_rank\":2,"));
    assert_non_null(strstr(hello, "\"guarded\":false}\n"));
    /* While it waits it is not named as slurmstepd: see pl_task_join(). */
    snprintf(comm, sizeof(comm), "/proc/%d/comm", (int)pid);
    f = fopen(comm, "re");
    assert_non_null(fgets(name, sizeof(name), f));
    fclose(f);
    assert_string_equal(name, "plume-task\n");

    assert_int_equal(send(conn, world, sizeof(world) - 1, 0), sizeof(world) - 1);
    assert_int_equal(status_of(pid), 7);
    out = read_all(fds[0]);
    err = read_all(fds[2]);
    assert_string_equal(out, "out 1 mine");
    assert_string_equal(err, "err");
    /* The real ones came too, and got nothing from the task. */
    assert_int_equal(write(fds[1], "x", 1), 1);
    assert_int_equal(write(fds[3], "y", 1), 1);
    close(fds[1]), close(fds[3]), close(real_o[1]), close(real_e[1]), close(conn);
    real_out = read_all(real_o[0]);
    real_err = read_all(real_e[0]);
    assert_string_equal(real_out, "x");
    assert_string_equal(real_err, "y");
}

static void test_a_waiting_task_can_be_ended(void **state)
{
    int null = open("/dev/null", O_WRONLY | O_CLOEXEC), status, conn, fds[4];
    pid_t pid = fork_task(null, null);
    char hello[1024];
    size_t n_fds;

    conn = accept4(server, NULL, NULL, SOCK_CLOEXEC);
    assert_true(pl_recv_fds(conn, hello, sizeof(hello), fds, 4, &n_fds) > 0);
    assert_int_equal(kill(pid, SIGHUP), 0); /* nohup's */
    assert_int_equal(kill(pid, SIGTERM), 0);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM);
    for (size_t i = 0; i < n_fds; i++)
        close(fds[i]);
    close(conn);
    close(null);
}

/* The task's message, which must come on its real stderr, where the daemon answers with this and
 * then ends the connection. */
static char *join_with(const char *answer)
{
    int real[2], conn, fds[4];
    char hello[1024];
    size_t n_fds;
    pid_t pid;

    assert_int_equal(pipe2(real, O_CLOEXEC), 0);
    pid = fork_task(real[1], real[1]);
    close(real[1]);
    conn = accept4(server, NULL, NULL, SOCK_CLOEXEC);
    assert_true(pl_recv_fds(conn, hello, sizeof(hello), fds, 4, &n_fds) > 0);
    for (size_t i = 0; i < n_fds; i++)
        close(fds[i]);
    assert_int_equal(send(conn, answer, strlen(answer), 0), strlen(answer));
    close(conn);
    assert_int_equal(status_of(pid), 41);
    return read_all(real[0]);
}

static void test_join_fails(void **state)
{
    _cleanup_free_ char *refused = join_with("{\"type\":\"refused\",\"text\":\"too late\"}\n");
    _cleanup_free_ char *bad = join_with("{\"type\":\"world\",\"env\":[\"=\",7]}\n");
    _cleanup_free_ char *closed = join_with("");

    assert_string_equal(refused, "failed: too late");
    assert_non_null(strstr(bad, "bad world"));
    assert_non_null(strstr(closed, "closed the connection"));
}

static void test_join_terminal(void **state)
{
    static const char world[] = "{\"type\":\"world\",\"env\":[\"A=1\"]}\n";
    _cleanup_free_ char *err = NULL, *dummy = NULL;
    int terminal = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC), slave, real[2], fds[4], conn;
    char hello[1024], text[64] = "";
    size_t n_fds;
    pid_t pid;

    assert_true(terminal >= 0);
    assert_int_equal(grantpt(terminal), 0);
    assert_int_equal(unlockpt(terminal), 0);
    slave = open(ptsname(terminal), O_RDWR | O_NOCTTY | O_CLOEXEC);
    assert_true(slave >= 0);

    /* Both: nothing to capture. */
    pid = fork_task(slave, slave);
    conn = accept4(server, NULL, NULL, SOCK_CLOEXEC);
    assert_true(pl_recv_fds(conn, hello, sizeof(hello), fds, 4, &n_fds) > 0);
    assert_int_equal(n_fds, 0);
    assert_int_equal(send(conn, world, sizeof(world) - 1, 0), sizeof(world) - 1);
    assert_int_equal(status_of(pid), 7);
    close(conn);
    assert_true(read(terminal, text, sizeof(text) - 1) > 0);
    assert_non_null(strstr(text, "out 1 mine"));

    /* stdout only: stderr is captured, the other pipe is at its end. */
    assert_int_equal(pipe2(real, O_CLOEXEC), 0);
    pid = fork_task(slave, real[1]);
    conn = accept4(server, NULL, NULL, SOCK_CLOEXEC);
    assert_true(pl_recv_fds(conn, hello, sizeof(hello), fds, 4, &n_fds) > 0);
    assert_int_equal(n_fds, 4);
    assert_int_equal(send(conn, world, sizeof(world) - 1, 0), sizeof(world) - 1);
    dummy = read_all(fds[0]);
    assert_string_equal(dummy, "");
    assert_int_equal(status_of(pid), 7);
    err = read_all(fds[2]);
    assert_string_equal(err, "err");
    close(fds[1]), close(fds[3]), close(conn), close(real[0]), close(real[1]);
    close(slave), close(terminal);
}

static int listen_there(void **state)
{
    struct sockaddr_un addr = {.sun_family = AF_UNIX};

    if (tmpdir_make(folder, sizeof(folder)) < 0)
        return -1;
    snprintf(path, sizeof(path), "%s/s", folder);
    snprintf(addr.sun_path, sizeof(addr.sun_path), "%s", path);
    server = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (bind(server, (struct sockaddr *)&addr, sizeof(addr)) || listen(server, 8))
        return -1;
    socket_fd = open(path, O_PATH | O_CLOEXEC);
    snprintf(by_fd, sizeof(by_fd), "/proc/self/fd/%d", socket_fd);
    return socket_fd < 0;
}

static int clean_up(void **state)
{
    close(server), close(socket_fd);
    return tmpdir_remove(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_join),
        cmocka_unit_test(test_a_waiting_task_can_be_ended),
        cmocka_unit_test(test_join_fails),
        cmocka_unit_test(test_join_terminal),
    };

    alarm(120); /* a hang is a failure */
    return cmocka_run_group_tests(tests, listen_there, clean_up);
}
