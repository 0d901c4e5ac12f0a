/* SPDX-License-Identifier: MIT */
/* The daemon that slurmstepd starts: its start, feed and end. Small shell scripts stand for plrund.
 */
#include "common/base/fs.h"
#include "spank_plugin/daemon_said.h"
#include "spank_plugin/node_daemon.h"
#include "tests/unit/spank_script.h"

#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <cmocka.h>

static int start(struct pl_node_daemon *daemon, unsigned timeout_ms, struct pl_error *err)
{
    struct pl_daemon_user user = self();

    *daemon = (struct pl_node_daemon)PL_NODE_DAEMON_INIT;
    return pl_node_daemon_start(daemon, program, clean_env, &user, timeout_ms, err);
}

static void test_start_feed_stop(void **state)
{
    _cleanup_free_ char *text = NULL;
    struct pl_node_daemon daemon;
    struct pl_error err = {0};

    write_program(
        "echo \"$* $(umask) $(env | sort | tr '\\n' ' ')\" >$OUT\n"
        "for fd in /proc/$$/fd/*; do [ ! -e $fd ] || case ${fd##*/} in [0-3]|10) ;; *) "
        "echo $fd >>$OUT ;; esac; done\n"
        "printf '{\"type\":\"ready\",\"pid\":%d,\"socket\":\"/usr\\\\u002fbin\"}\\n' $$ >&3\n"
        "cat <&3 >>$OUT; echo end >>$OUT");
    assert_int_equal(start(&daemon, 20000, &err), 0);
    assert_string_equal(daemon.socket, "/usr/bin");
    assert_true(daemon.socket_fd >= 0);
    pl_node_daemon_spawned(&daemon, 3, 4711);
    pl_node_daemon_exited(&daemon, 3, 139);
    assert_int_equal(pl_node_daemon_stop(&daemon, 20000), 0);
    text = text_of(output);
    /* The shell adds PWD, SHLVL and _ of its own. */
    assert_true(strncmp(text, "--control-fd 3 0027 ", 20) == 0);
    assert_non_null(strstr(text, "PATH=/usr/bin:/bin"));
    assert_null(strstr(text, "HOME="));
    assert_null(strstr(text, "/fd/"));
    assert_non_null(strstr(text, "\n{\"type\":\"spawned\",\"rank\":3,\"pid\":4711}\n"
                                 "{\"type\":\"exited\",\"rank\":3,\"status\":139}\nend\n"));
    assert_true(daemon.control < 0 && daemon.process.pid == 0 && !daemon.socket);
    assert_int_equal(pl_node_daemon_stop(&daemon, 0), 0);
}

/* ---- what it says ---- */

static char shown[64 * 1024];

static void show(const char *line)
{
    size_t len = strlen(shown);

    snprintf(shown + len, sizeof(shown) - len, "%s\n", line);
}

static void test_said_is_read(void **state)
{
    static const char script[] =
        "#!/bin/sh\necho 'plrund: warning: no room' >&2\n"
        "printf '{\"type\":\"ready\",\"pid\":%d,\"socket\":\"/usr\"}\\n' $$ >&3\n"
        "cat <&3; printf 'plrund: the end' >&2\n";
    unsigned left = PL_DAEMON_SAID_MAX;
    struct pl_node_daemon daemon;
    struct pl_error err = {0};

    assert_int_equal(pl_file_write_atomic(program, script, strlen(script), 0755, NULL), 0);
    assert_int_equal(start(&daemon, 20000, &err), 0);
    shown[0] = '\0';
    pl_daemon_said_read(daemon.said, STDOUT_FILENO, &left, show);
    assert_string_equal(shown, "warning: no room\n");
    assert_int_equal(pl_node_daemon_settle(&daemon, 20000), 0);
    assert_int_equal(pl_process_wait(&daemon.process, pl_now_ns() + 20000000000u), 0);
    pl_daemon_said_read(daemon.said, STDOUT_FILENO, &left, show);
    assert_string_equal(shown, "warning: no room\nthe end\n");
    assert_int_equal(pl_node_daemon_stop(&daemon, 20000), 0);
    assert_true(daemon.said < 0);
}

/* Sends the text through a pipe of what is said. */
static void said(const char *text, size_t len, unsigned left)
{
    int ends[2];

    shown[0] = '\0';
    assert_int_equal(pl_daemon_said_open(ends), 0);
    assert_int_equal(write(ends[1], text, len), len);
    pl_daemon_said_read(ends[0], STDOUT_FILENO, &left, show); /* no end, and no wait */
    close(ends[1]);
    pl_daemon_said_read(ends[0], STDOUT_FILENO, &left, show);
    close(ends[0]);
}

static void test_said_is_the_users_text(void **state)
{
    static char text[60000];

    said("", 0, 3);
    assert_string_equal(shown, "");
    said("\n\n\n", 3, 3);
    assert_string_equal(shown, "");
    said("a\33[31m\0b\xff\n%s%n", 14, 3);
    assert_string_equal(shown, "a?[31m?b?\n%s%n\n");
    said("1\n2\n3\n4\n5\n", 10, 3);
    assert_string_equal(shown, "1\n2\nmore messages of plrund are not shown\n");
    said("1\n", 2, 0);
    assert_string_equal(shown, "");
    memset(text, 'x', sizeof(text));
    said(text, sizeof(text), 3);
    assert_int_equal(strlen(shown), 1024);
    memset(text, '\n', sizeof(text));
    said(text, sizeof(text), 3);
    assert_string_equal(shown, "");
    pl_daemon_said_read(-EBADF, STDOUT_FILENO, &(unsigned){3}, show);
}

static void test_said_to_one_who_does_not_read(void **state)
{
    unsigned left = PL_DAEMON_SAID_MAX;
    int ends[2], to[2];
    char data[4096] = "";
    uint64_t start_ns = pl_now_ns();

    shown[0] = '\0';
    assert_int_equal(pl_daemon_said_open(ends), 0);
    assert_int_equal(pl_daemon_said_open(to), 0);
    while (write(to[1], data, sizeof(data)) > 0)
        ;
    assert_int_equal(write(ends[1], "1\n2\n3\n", 6), 6);
    pl_daemon_said_read(ends[0], to[1], &left, show);
    assert_string_equal(shown, "");
    assert_int_equal(left, 0); /* one wait is enough */
    assert_true(pl_now_ns() - start_ns < 3000000000u);
    for (int i = 0; i < 2; i++) {
        close(ends[i]);
        close(to[i]);
    }
}

static void test_start_says_why_not(void **state)
{
    struct pl_node_daemon daemon;
    struct pl_error err = {0};

    write_program("echo '{\"type\":\"failed\",\"text\":\"no key\"}' >&3");
    assert_int_equal(start(&daemon, 20000, &err), -ECONNABORTED);
    assert_string_equal(err.text, "no key");
    assert_true(daemon.control < 0 && daemon.process.pid == 0);

    write_program("exit 0");
    assert_int_equal(start(&daemon, 20000, &err), -EPIPE);
    assert_non_null(strstr(err.text, "ended before it was ready"));

    write_program("echo '{\"type\":\"ready\"}' >&3; cat <&3");
    assert_int_equal(start(&daemon, 20000, &err), -EPROTO);

    write_program("echo '{\"type\":\"ready\",\"socket\":\"/none\"}' >&3; cat <&3");
    assert_int_equal(start(&daemon, 20000, &err), -ENOENT);
    assert_non_null(strstr(err.text, "listens at '/none', which cannot be reached"));

    write_program("printf '{\"type\":\"failed\",\"errno\":99999999}\\n' >&3");
    assert_int_equal(start(&daemon, 20000, &err), -EPROTO);

    write_program("head -c 100000 /dev/zero | tr '\\0' a >&3; exec cat <&3");
    assert_int_equal(start(&daemon, 20000, &err), -EMSGSIZE);
}

static void test_start_cannot_run(void **state)
{
    struct pl_node_daemon daemon;
    struct pl_error err = {0};

    unlink(program);
    assert_int_equal(start(&daemon, 20000, &err), -ENOENT);
    assert_non_null(strstr(err.text, program));
    assert_int_equal(pl_file_write_atomic(program, "x", 1, 0644, NULL), 0);
    assert_int_equal(start(&daemon, 20000, &err), -EACCES);
    unlink(program);
}

/* The pid that a script wrote to output, once its line is whole. */
static pid_t pid_in_output(void)
{
    for (;;) {
        _cleanup_free_ char *text = NULL;

        if (pl_file_read(output, 100, &text, NULL, NULL) == 0 && strchr(text, '\n'))
            return (pid_t)strtol(text, NULL, 10);
        poll(NULL, 0, 5);
    }
}

/* Waits until the process is gone; pid 1 may take a while to reap it. */
static void wait_gone(pid_t pid)
{
    for (;;) {
        _cleanup_free_ char *path = pl_strf("/proc/%d/stat", (int)pid), *text = NULL;
        const char *state;

        if (pl_file_read(path, 4096, &text, NULL, NULL) < 0)
            return;
        state = strrchr(text, ')');
        if (!state || state[2] == 'Z' || state[2] == 'X')
            return;
        poll(NULL, 0, 5);
    }
}

static void test_start_silent_is_killed(void **state)
{
    struct pl_node_daemon daemon;
    struct pl_error err = {0};

    write_program("trap '' TERM; echo $$ >$OUT; exec tail -f /dev/null");
    assert_int_equal(start(&daemon, 1000, &err), -ETIMEDOUT);
    assert_non_null(strstr(err.text, "was not ready after 1000 ms"));
    wait_gone(pid_in_output());
}

static void test_stop_stubborn_is_killed(void **state)
{
    struct pl_node_daemon daemon;
    struct pl_error err = {0};

    write_program("trap '' TERM; echo $$ >$OUT\n"
                  "echo '{\"type\":\"ready\",\"pid\":1,\"socket\":\"/usr\"}' >&3\n"
                  "exec tail -f /dev/null");
    assert_int_equal(start(&daemon, 20000, &err), 0);
    assert_int_equal(pl_node_daemon_stop(&daemon, 200), -ETIMEDOUT);
    wait_gone(pid_in_output());
}

static void test_stop_ignores_chatter(void **state)
{
    struct pl_node_daemon daemon;
    struct pl_error err = {0};

    write_program("echo '{\"type\":\"ready\",\"pid\":1,\"socket\":\"/usr\"}' >&3\n"
                  "echo $$ >$OUT; exec yes >&3");
    assert_int_equal(start(&daemon, 20000, &err), 0);
    assert_int_equal(pl_node_daemon_stop(&daemon, 200), -ETIMEDOUT);
    wait_gone(pid_in_output());
}

/* A TCP socket that lingers, whose peer does not read: its last close waits for 20 s. */
static void test_settle_takes_no_descriptor(void **state)
{
    int rights, pair[2];
    socklen_t len = sizeof(rights);
    struct pl_node_daemon daemon;
    struct pl_error err = {0};
    uint64_t start_ns;
    bool can;

    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
    can = getsockopt(pair[0], SOL_SOCKET, 83, &rights, &len) == 0; /* SO_PASSRIGHTS */
    close(pair[0]);
    close(pair[1]);
    if (!can) {
        print_message("# skipped: this kernel has no SO_PASSRIGHTS\n");
        return;
    }
    write_program(
        "exec python3 -c '\n"
        "import array, socket, struct, time\n"
        "control = socket.socket(fileno=3)\n"
        "control.sendall(b\"{\\\"type\\\":\\\"ready\\\",\\\"pid\\\":1,"
        "\\\"socket\\\":\\\"/usr\\\"}\\n\")\n"
        "listener = socket.create_server((\"127.0.0.1\", 0))\n"
        "s = socket.create_connection(listener.getsockname())\n"
        "s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack(\"ii\", 1, 20))\n"
        "s.setblocking(False)\n"
        "try:\n"
        "    while True: s.send(bytes(65536))\n"
        "except BlockingIOError: pass\n"
        "control.recv(4096)\n"
        "rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array(\"i\", [s.fileno()]))\n"
        "try: control.sendmsg([b\"{}\\n\"], [rights])\n"
        "except PermissionError: s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, bytes(8))\n"
        "s.close()\n"
        "print(1, flush=True)\n"
        "time.sleep(60)\n"
        "' >$OUT");
    assert_int_equal(start(&daemon, 20000, &err), 0);
    pl_node_daemon_spawned(&daemon, 0, 1);
    pid_in_output(); /* it has sent the descriptor, and has none of it left */
    start_ns = pl_now_ns();
    assert_int_equal(pl_node_daemon_settle(&daemon, 500), -ETIMEDOUT);
    assert_int_equal(pl_node_daemon_stop(&daemon, 100), -ETIMEDOUT);
    assert_true(pl_now_ns() - start_ns < 15000000000u);
}

/* It hears the end of the tasks, and slurmstepd's end later costs no wait: not after its end, and
 * not where it stays for other nodes. */
static void test_settle_then_stop(void **state)
{
    struct pl_node_daemon daemon;
    struct pl_error err = {0};
    pid_t pid;

    write_program("echo '{\"type\":\"ready\",\"pid\":1,\"socket\":\"/usr\"}' >&3\n"
                  "cat <&3 >/dev/null; echo written >$OUT");
    assert_int_equal(start(&daemon, 20000, &err), 0);
    assert_int_equal(pl_node_daemon_settle(&daemon, 20000), 0);
    assert_int_equal(access(output, F_OK), 0);
    assert_int_equal(pl_node_daemon_stop(&daemon, 20000), 0);

    write_program("echo '{\"type\":\"ready\",\"pid\":1,\"socket\":\"/usr\"}' >&3\n"
                  "cat <&3 >/dev/null; echo $$ >$OUT\n"
                  "echo '{\"type\":\"busy\"}' >&3; exec tail -f /dev/null");
    assert_int_equal(start(&daemon, 20000, &err), 0);
    assert_int_equal(pl_node_daemon_settle(&daemon, 20000), 0);
    pid = pid_in_output();
    assert_int_equal(pl_node_daemon_stop(&daemon, 0), 0);
    assert_int_equal(kill(pid, 0), 0); /* left alone */
    kill(pid, SIGKILL);
    wait_gone(pid);

    write_program("trap '' TERM; echo $$ >$OUT\n"
                  "echo '{\"type\":\"ready\",\"pid\":1,\"socket\":\"/usr\"}' >&3\n"
                  "exec tail -f /dev/null");
    assert_int_equal(start(&daemon, 20000, &err), 0);
    assert_int_equal(pl_node_daemon_settle(&daemon, 100), -ETIMEDOUT);
    assert_int_equal(pl_node_daemon_stop(&daemon, 100), -ETIMEDOUT);
    wait_gone(pid_in_output());
}

static char state_of(pid_t pid)
{
    struct pl_process_stat stat = {0};

    return pl_process_stat(pid, &stat) < 0 ? 'X' : stat.state;
}

/* A rank has stopped it: it still hears how the tasks ended, and tells. */
static void test_settle_goes_on(void **state)
{
    struct pl_node_daemon daemon;
    struct pl_error err = {0};
    _cleanup_free_ char *text = NULL;
    pid_t pid;

    write_program("echo '{\"type\":\"ready\",\"pid\":1,\"socket\":\"/usr\"}' >&3\n"
                  "echo $$ >$OUT; kill -STOP $$; cat <&3 >$OUT");
    assert_int_equal(start(&daemon, 20000, &err), 0);
    pid = pid_in_output();
    while (state_of(pid) != 'T')
        poll(NULL, 0, 5);
    pl_node_daemon_exited(&daemon, 1, 0);
    assert_int_equal(pl_node_daemon_settle(&daemon, 20000), 0);
    text = text_of(output);
    assert_string_equal(text, "{\"type\":\"exited\",\"rank\":1,\"status\":0}\n");
    assert_int_equal(pl_node_daemon_stop(&daemon, 20000), 0);
}

/* A daemon that only closes its socket has not ended. */
static void test_stop_closed_socket_is_no_end(void **state)
{
    struct pl_node_daemon daemon;
    struct pl_error err = {0};

    write_program("trap '' TERM; echo $$ >$OUT\n"
                  "echo '{\"type\":\"ready\",\"pid\":1,\"socket\":\"/usr\"}' >&3\n"
                  "exec 3>&-; exec tail -f /dev/null");
    assert_int_equal(start(&daemon, 20000, &err), 0);
    assert_int_equal(pl_node_daemon_stop(&daemon, 200), -ETIMEDOUT);
    wait_gone(pid_in_output());
}

/* Kernels before Linux 5.3. */
static void test_stop_without_pidfd(void **state)
{
    struct pl_node_daemon daemon;
    struct pl_error err = {0};

    for (int stubborn = 0; stubborn < 2; stubborn++) {
        write_program(stubborn ? "echo $$ >$OUT\n"
                                 "echo '{\"type\":\"ready\",\"pid\":1,\"socket\":\"/usr\"}' >&3\n"
                                 "exec 3>&-; exec tail -f /dev/null"
                               : "echo $$ >$OUT\n"
                                 "echo '{\"type\":\"ready\",\"pid\":1,\"socket\":\"/usr\"}' >&3\n"
                                 "exec cat <&3");
        assert_int_equal(start(&daemon, 20000, &err), 0);
        close(daemon.process.pidfd);
        daemon.process.pidfd = -EBADF;
        assert_int_equal(pl_node_daemon_stop(&daemon, stubborn ? 200 : 20000),
                         stubborn ? -ETIMEDOUT : 0);
        wait_gone(pid_in_output());
    }
}

/* True if this signal, which the process blocks, waits for it. */
static bool waits_for(pid_t pid, int sig)
{
    _cleanup_free_ char *text = NULL;
    char path[32], *line;

    snprintf(path, sizeof(path), "/proc/%d/status", (int)pid);
    assert_int_equal(pl_file_read(path, 65536, &text, NULL, NULL), 0);
    line = strstr(text, "\nShdPnd:");
    assert_non_null(line);
    return strtoull(line + strlen("\nShdPnd:"), NULL, 16) >> (sig - 1) & 1;
}

/* A later process with the same pid is neither waited for nor signalled. */
static void test_process_pid_reused(void **state)
{
    struct pl_process process, unknown = {.pid = getpid(), .pidfd = -EBADF};
    sigset_t set, before;
    pid_t pid;

    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    assert_int_equal(sigprocmask(SIG_BLOCK, &set, &before), 0);
    pid = fork();
    if (pid == 0) {
        pause();
        _exit(0);
    }
    sigprocmask(SIG_SETMASK, &before, NULL);
    pl_process_open(&process, pid);
    assert_true(process.start > 0);
    assert_int_equal(pl_process_wait(&process, 0), -ETIMEDOUT);
    close(process.pidfd);
    process.pidfd = -EBADF;
    assert_int_equal(pl_process_wait(&process, 0), -ETIMEDOUT);
    process.start--;
    assert_int_equal(pl_process_wait(&process, 0), 0);
    assert_int_equal(pl_process_signal(&process, SIGUSR1), 0);
    assert_int_equal(pl_process_kill(&process), 0);
    assert_false(waits_for(pid, SIGUSR1));
    process.start++;
    assert_int_equal(pl_process_wait(&process, 0), -ETIMEDOUT); /* it lives: nobody killed it */
    assert_int_equal(pl_process_signal(&process, SIGUSR1), 0);
    assert_true(waits_for(pid, SIGUSR1));
    assert_int_equal(pl_process_kill(&process), 0);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    assert_int_equal(pl_process_wait(&process, 0), 0);
    pl_process_close(&process);
    assert_int_equal(pl_process_kill(&unknown), -ESRCH);
    assert_int_equal(pl_process_wait(&unknown, 0), -ESRCH);
}

/* A socket on a file system that never answers: the step fails within its limit. */
static void test_start_dead_file_system(void **state)
{
    struct pl_node_daemon daemon;
    struct pl_error err = {0};
    char options[96], dead[80];
    int fuse = open("/dev/fuse", O_RDWR | O_CLOEXEC);

    snprintf(options, sizeof(options), "fd=%d,rootmode=40000,user_id=%u,group_id=%u", fuse,
             (unsigned)getuid(), (unsigned)getgid());
    snprintf(dead, sizeof(dead), "%s/dead", folder);
    assert_int_equal(mkdir(dead, 0700), 0);
    if (fuse < 0 || mount("dead", dead, "fuse", 0, options) < 0) {
        print_message("# skipped: cannot mount: %s\n", strerror(errno));
        pl_closep(&fuse);
        rmdir(dead);
        return;
    }
    write_program("printf '{\"type\":\"ready\",\"socket\":\"%s/dead/socket\"}\n' "
                  "\"${0%/*}\" >&3; exec cat <&3");
    assert_int_equal(start(&daemon, 1000, &err), -ETIMEDOUT);
    assert_non_null(strstr(err.text, "dead/socket', which cannot be reached"));
    assert_int_equal(umount2(dead, MNT_DETACH), 0);
    close(fuse);
    rmdir(dead);
}

static void test_feed_of_a_dead_daemon(void **state)
{
    struct pl_node_daemon daemon;
    struct pl_error err = {0};

    write_program("echo $$ >$OUT; echo '{\"type\":\"ready\",\"pid\":1,\"socket\":\"/usr\"}' >&3");
    assert_int_equal(start(&daemon, 20000, &err), 0);
    wait_gone(pid_in_output());
    pl_node_daemon_spawned(&daemon, 0, 1);
    pl_node_daemon_exited(&daemon, 0, 0);
    assert_int_equal(pl_node_daemon_stop(&daemon, 20000), 0);
}

/* No program that it starts can gain rights, by set-user-ID or file capabilities. */
static void test_start_no_new_privs(void **state)
{
    struct pl_node_daemon daemon;
    struct pl_error err = {0};
    _cleanup_free_ char *text = NULL;

    write_program("grep NoNewPrivs /proc/self/status >$OUT\n"
                  "echo '{\"type\":\"ready\",\"pid\":1,\"socket\":\"/usr\"}' >&3; exec cat <&3");
    assert_int_equal(start(&daemon, 20000, &err), 0);
    assert_int_equal(pl_node_daemon_stop(&daemon, 20000), 0);
    text = text_of(output);
    assert_string_equal(text, "NoNewPrivs:\t1\n");
}

/* slurmstepd's own supplementary groups stay with it. */
static void test_start_groups(void **state)
{
    static const gid_t groups[] = {4242, 65534};
    struct pl_node_daemon daemon = PL_NODE_DAEMON_INIT;
    struct pl_daemon_user user = self();
    struct pl_error err = {0};
    _cleanup_free_ char *text = NULL;

    if (getuid() != 0) {
        print_message("# skipped: needs root\n");
        return;
    }
    user.groups = groups;
    user.n_groups = PL_COUNT(groups);
    write_program("echo $(grep Groups /proc/self/status) >$OUT\n"
                  "echo '{\"type\":\"ready\",\"pid\":1,\"socket\":\"/usr\"}' >&3; exec cat <&3");
    assert_int_equal(pl_node_daemon_start(&daemon, program, clean_env, &user, 20000, &err), 0);
    assert_int_equal(pl_node_daemon_stop(&daemon, 20000), 0);
    text = text_of(output);
    assert_string_equal(text, "Groups: 4242 65534\n");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_start_feed_stop),
        cmocka_unit_test(test_said_is_read),
        cmocka_unit_test(test_said_is_the_users_text),
        cmocka_unit_test(test_said_to_one_who_does_not_read),
        cmocka_unit_test(test_start_says_why_not),
        cmocka_unit_test(test_start_cannot_run),
        cmocka_unit_test(test_start_silent_is_killed),
        cmocka_unit_test(test_stop_stubborn_is_killed),
        cmocka_unit_test(test_stop_ignores_chatter),
        cmocka_unit_test(test_settle_then_stop),
        cmocka_unit_test(test_settle_takes_no_descriptor),
        cmocka_unit_test(test_settle_goes_on),
        cmocka_unit_test(test_stop_closed_socket_is_no_end),
        cmocka_unit_test(test_stop_without_pidfd),
        cmocka_unit_test(test_process_pid_reused),
        cmocka_unit_test(test_start_dead_file_system),
        cmocka_unit_test(test_feed_of_a_dead_daemon),
        cmocka_unit_test(test_start_no_new_privs),
        cmocka_unit_test(test_start_groups),
    };

    alarm(120); /* a hang is a failure */
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
