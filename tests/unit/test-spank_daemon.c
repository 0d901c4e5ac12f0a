/* SPDX-License-Identifier: MIT */
/* The daemon that slurmstepd starts: its environment, its start, feed and end. Small shell scripts
 * stand for plrund. */
#include "common/base/fs.h"
#include "spank_plugin/daemon_env.h"
#include "spank_plugin/node_daemon.h"
#include "tests/lib/tmpdir.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <cmocka.h>

static char folder[64], program[96], output[96];
static char *clean_env[] = {"PATH=/usr/bin:/bin", NULL};

static void write_program(const char *body)
{
    _cleanup_free_ char *text = pl_strf("#!/bin/sh\nexec 2>/dev/null\nOUT=%s\n%s\n", output, body);

    unlink(output);
    assert_int_equal(pl_file_write_atomic(program, text, strlen(text), 0755, NULL), 0);
}

static struct pl_daemon_user self(void)
{
    static gid_t groups[1];

    groups[0] = getgid();
    return (struct pl_daemon_user){
        .uid = getuid(), .gid = getgid(), .groups = groups, .n_groups = 1, .umask = 027};
}

static int start(struct pl_node_daemon *daemon, unsigned timeout_ms, struct pl_error *err)
{
    struct pl_daemon_user user = self();

    *daemon = (struct pl_node_daemon)PL_NODE_DAEMON_INIT;
    return pl_node_daemon_start(daemon, program, clean_env, &user, timeout_ms, err);
}

static char *text_of(const char *path)
{
    char *text = NULL;

    assert_int_equal(pl_file_read(path, 65536, &text, NULL, NULL), 0);
    return text;
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

static void start_below(const char *runtime_dir)
{
    struct pl_node_daemon daemon = PL_NODE_DAEMON_INIT;
    gid_t group = 65534;
    struct pl_daemon_user nobody = {.runtime_dir = runtime_dir,
                                    .uid = 65534,
                                    .gid = 65534,
                                    .groups = &group,
                                    .n_groups = 1,
                                    .umask = 0777};
    struct pl_error err = {0};

    assert_int_equal(pl_node_daemon_start(&daemon, program, clean_env, &nobody, 20000, &err), 0);
    assert_int_equal(pl_node_daemon_stop(&daemon, 20000), 0);
}

static bool is_owned(const char *path, uid_t uid, mode_t mode)
{
    struct stat st;

    return lstat(path, &st) == 0 && st.st_uid == uid && (st.st_mode & 07777) == mode;
}

/* Root makes the user's folder, so that no other user can take its name. */
static void test_runtime_dir_by_root(void **state)
{
    char parent[80], own[96], canary[80];

    if (getuid() != 0) {
        print_message("# skipped: needs root\n");
        return;
    }
    snprintf(parent, sizeof(parent), "%s/run", folder);
    snprintf(own, sizeof(own), "%s/65534", parent);
    snprintf(canary, sizeof(canary), "%s/canary", folder);
    chmod(folder, 0755);
    write_program("echo '{\"type\":\"ready\",\"pid\":1,\"socket\":\"/usr\"}' >&3; exec cat <&3");
    assert_int_equal(mkdir(parent, 0755), 0);
    start_below(parent);
    assert_true(is_owned(own, 65534, 0700));
    start_below(parent); /* there already */
    assert_true(is_owned(own, 65534, 0700));
    rmdir(own);
    /* A folder in which others can rename things is not touched, nor one that is not root's. */
    chmod(parent, 0777);
    start_below(parent);
    assert_true(access(own, F_OK) < 0);
    chmod(parent, 0755);
    assert_int_equal(chown(parent, 65534, 65534), 0);
    start_below(parent);
    assert_true(access(own, F_OK) < 0);
    assert_int_equal(chown(parent, 0, 0), 0);
    /* A planted link gives nothing away. */
    assert_int_equal(mkdir(canary, 0755), 0);
    assert_int_equal(symlink(canary, own), 0);
    start_below(parent);
    assert_true(is_owned(canary, 0, 0755));
}

/* Another user swaps links to a folder of root's for the name while steps start. */
static void test_runtime_dir_race(void **state)
{
    char parent[80], own[96], canary[80];
    bool given = false;
    pid_t racer;

    if (getuid() != 0) {
        print_message("# skipped: needs root\n");
        return;
    }
    snprintf(parent, sizeof(parent), "%s/sticky", folder);
    snprintf(own, sizeof(own), "%s/65534", parent);
    snprintf(canary, sizeof(canary), "%s/victim", folder);
    chmod(folder, 0755);
    write_program("echo '{\"type\":\"ready\",\"pid\":1,\"socket\":\"/usr\"}' >&3; exec cat <&3");
    assert_int_equal(mkdir(parent, 0755), 0);
    assert_int_equal(chmod(parent, 01777), 0);
    assert_int_equal(mkdir(canary, 0755), 0);
    racer = fork();
    if (racer == 0) {
        if (setgid(65533) < 0 || setuid(65533) < 0 || prctl(PR_SET_PDEATHSIG, SIGKILL) < 0)
            _exit(1);
        for (;;) {
            (void)!symlink(canary, own);
            unlink(own);
        }
    }
    for (int i = 0; i < 10; i++) {
        start_below(parent);
        given |= !is_owned(canary, 0, 0755);
        rmdir(own);
    }
    kill(racer, SIGKILL);
    assert_int_equal(waitpid(racer, NULL, 0), racer);
    unlink(own);
    assert_false(given);
}

/* A namespace as a container plugin makes it: a file that holds it, and a folder that is other
 * there. */
static void test_start_in_mount_namespace(void **state)
{
    _cleanup_free_ char *text = NULL, *hidden = pl_strf("%s/hidden", folder);
    struct pl_node_daemon daemon = PL_NODE_DAEMON_INIT;
    struct pl_daemon_user user = self();
    struct pl_error err = {0};
    char path[64], ready;
    int ends[2];
    pid_t holder;

#ifdef __SANITIZE_THREAD__
    print_message(
        "# skipped: a process with ThreadSanitizer's thread cannot change its namespace\n");
    return;
#endif
    if (getuid() != 0) {
        print_message("# skipped: needs root\n");
        return;
    }
    assert_int_equal(mkdir(hidden, 0755), 0);
    assert_int_equal(pipe(ends), 0);
    holder = fork();
    if (holder == 0) {
        if (prctl(PR_SET_PDEATHSIG, SIGKILL) < 0 || unshare(CLONE_NEWNS) < 0 ||
            mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 ||
            mount("tmpfs", hidden, "tmpfs", 0, "size=64k,mode=755") < 0 || mkdir(hidden, 0) == 0 ||
            chdir(hidden) < 0 || mkdir("inside", 0755) < 0 || write(ends[1], "x", 1) != 1)
            _exit(1);
        pause();
    }
    close(ends[1]);
    assert_int_equal(read(ends[0], &ready, 1), 1);
    snprintf(path, sizeof(path), "/proc/%d/ns/mnt", (int)holder);
    write_program("ls ${0%/*}/hidden >$OUT; pwd >>$OUT\n"
                  "echo '{\"type\":\"ready\",\"pid\":1,\"socket\":\"/usr\"}' >&3; exec cat <&3");
    user.namespace = path;
    assert_int_equal(pl_node_daemon_start(&daemon, program, clean_env, &user, 20000, &err), 0);
    pl_node_daemon_stop(&daemon, 20000);
    text = text_of(output);
    assert_string_equal(text, "inside\n/\n");
    kill(holder, SIGKILL);
    assert_int_equal(waitpid(holder, NULL, 0), holder);
    close(ends[0]);

    user.namespace = "/nonexistent/7/.ns";
    assert_int_equal(pl_node_daemon_start(&daemon, program, clean_env, &user, 20000, &err),
                     -ENOENT);
    assert_non_null(strstr(err.text, "in the mount namespace '/nonexistent/7/.ns'"));
    user.namespace = program; /* none at all */
    assert_int_equal(pl_node_daemon_start(&daemon, program, clean_env, &user, 20000, &err),
                     -EINVAL);
}

/* A namespace is the job's, and so may be what its paths lead to: root makes the user's folder
 * where the node's paths lead, or not at all. */
static void test_runtime_dir_of_a_hostile_namespace(void **state)
{
    _cleanup_free_ char *inside = pl_strf("%s/inside", folder);
    _cleanup_free_ char *runtime = pl_strf("%s/run", inside), *link = pl_strf("%s/link", inside);
    _cleanup_free_ char *by_link = pl_strf("%s/of-root", link);
    _cleanup_free_ char *victim = pl_strf("%s/of-root", folder), *made = pl_strf("%s/7", victim);
    _cleanup_free_ char *expected = pl_strf("%s/7", runtime);
    struct pl_node_daemon daemon = PL_NODE_DAEMON_INIT;
    struct pl_error err = {0};
    gid_t group = 7;
    struct pl_daemon_user user = {.uid = 7, .gid = 7, .groups = &group, .n_groups = 1};
    char path[64], ready;
    int ends[2];
    pid_t holder;

#ifdef __SANITIZE_THREAD__
    print_message(
        "# skipped: a process with ThreadSanitizer's thread cannot change its namespace\n");
    return;
#endif
    if (getuid() != 0) {
        print_message("# skipped: needs root\n");
        return;
    }
    chmod(folder, 0755);
    assert_int_equal(mkdir(victim, 0755), 0);
    assert_int_equal(mkdir(inside, 0755), 0);
    assert_int_equal(mkdir(runtime, 0755), 0);
    assert_int_equal(pipe(ends), 0);
    holder = fork();
    if (holder == 0) {
        /* There "inside" is another folder, in which "run" and "link" lead to one of root's. */
        if (prctl(PR_SET_PDEATHSIG, SIGKILL) < 0 || unshare(CLONE_NEWNS) < 0 ||
            mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 ||
            mount("tmpfs", inside, "tmpfs", 0, "size=64k,mode=755") < 0 ||
            symlink(folder, link) < 0 || symlink(victim, runtime) < 0 ||
            write(ends[1], "x", 1) != 1)
            _exit(1);
        pause();
    }
    close(ends[1]);
    assert_int_equal(read(ends[0], &ready, 1), 1);
    close(ends[0]);
    snprintf(path, sizeof(path), "/proc/%d/ns/mnt", (int)holder);
    write_program("echo '{\"type\":\"ready\",\"pid\":1,\"socket\":\"/usr\"}' >&3; exec cat <&3");
    user.namespace = path;
    for (int i = 0; i < 2; i++) {
        user.runtime_dir = i == 0 ? by_link : runtime;
        assert_int_equal(pl_node_daemon_start(&daemon, program, clean_env, &user, 20000, &err), 0);
        assert_int_equal(pl_node_daemon_stop(&daemon, 20000), 0);
        assert_true(access(made, F_OK) < 0);
    }
    assert_true(is_owned(expected, 7, 0700));
    kill(holder, SIGKILL);
    assert_int_equal(waitpid(holder, NULL, 0), holder);
}

static void test_env(void **state)
{
    char *job[] = {"SECRET=x",
                   "HOME=/home/u",
                   "PLUME_RUN_DIR=/r=1",
                   "PLUME_NODE_ID=99",
                   "PLUME_PARAM_LR=1",
                   "PLUME_METRIC=a=b\nc=d",
                   "SLURM_STEP_NODELIST=n[1-2]",
                   "SLURM_SRUN_COMM_HOST=10.0.0.1",
                   "HOMEX=1",
                   "SLURM_RESTART_COUNT=2",
                   "SLURM_CPUS_ON_NODE=3",
                   "LD_PRELOAD=x",
                   "SLURM_CONF=/home/u/slurm.conf", /* names plugins that scontrol would load */
                   "PLUME_SCONTROL=/home/u/scontrol",
                   "SLURM_RLIMIT_NOFILE=100",
                   "XDG_RUNTIME_DIR=/run/user/7",
                   NULL};
    struct pl_daemon_facts facts = {.job_id = 7,
                                    .step_id = 1,
                                    .node_id = 2,
                                    .nnodes = 3,
                                    .ntasks = 12,
                                    .local_ntasks = 4,
                                    .cpus = 8,
                                    .node = "n3",
                                    .conf = "/etc/slurm.conf",
                                    .scontrol = "/usr/bin/scontrol",
                                    .metric = "c=d",
                                    .nccl_debug = "INFO"};
    struct pl_error err = {0};
    char **env = NULL;
    size_t n = 0;

    assert_int_equal(pl_daemon_env(&facts, job, &env, &err), 0);
    while (env[n])
        n++;
    assert_int_equal(n, 23);
    assert_string_equal(pl_env_get(env, "PLUME_JOB_ID"), "7");
    assert_string_equal(pl_env_get(env, "PLUME_STEP_ID"), "1");
    assert_string_equal(pl_env_get(env, "PLUME_NODE_ID"), "2");
    assert_string_equal(pl_env_get(env, "PLUME_NNODES"), "3");
    assert_string_equal(pl_env_get(env, "PLUME_NTASKS"), "12");
    assert_string_equal(pl_env_get(env, "PLUME_LOCAL_NTASKS"), "4");
    assert_string_equal(pl_env_get(env, "SLURM_CPUS_ON_NODE"), "8");
    assert_string_equal(pl_env_get(env, "PLUME_RESTART"), "2");
    assert_string_equal(pl_env_get(env, "PLUME_PLUGIN"), "1");
    assert_string_equal(pl_env_get(env, "PLUME_NODELIST"), "n[1-2]");
    assert_string_equal(pl_env_get(env, "PLUME_METRIC"), "a=b\nc=d");
    assert_string_equal(pl_env_get(env, "PLUME_NCCL_DEBUG"), "INFO");
    assert_string_equal(pl_env_get(env, "PLUME_RUN_DIR"), "/r=1");
    assert_string_equal(pl_env_get(env, "HOME"), "/home/u");
    assert_string_equal(pl_env_get(env, "SLURM_STEP_NODELIST"), "n[1-2]");
    assert_string_equal(pl_env_get(env, "SLURM_LAUNCH_NODE_IPADDR"), "10.0.0.1");
    assert_string_equal(pl_env_get(env, "SLURM_CONF"), "/etc/slurm.conf");
    assert_string_equal(pl_env_get(env, "PLUME_SCONTROL"), "/usr/bin/scontrol");
    assert_string_equal(pl_env_get(env, "SLURM_RLIMIT_NOFILE"), "100");
    assert_string_equal(pl_env_get(env, "XDG_RUNTIME_DIR"), "/run/user/7");
    assert_string_equal(pl_env_get(env, "SLURMD_NODENAME"), "n3");
    assert_non_null(pl_env_get(env, "PATH"));
    pl_daemon_env_free(env);
    pl_daemon_env_free(NULL);
}

static void test_umask(void **state)
{
    static const struct {
        const char *entry;
        mode_t mask;
    } cases[] = {{"SLURM_UMASK=0077", 077}, {"SLURM_UMASK=0", 0},       {"SLURM_UMASK=", 022},
                 {"SLURM_UMASK=9", 022},    {"SLURM_UMASK=77777", 022}, {"X=1", 022}};

    for (size_t i = 0; i < PL_COUNT(cases); i++) {
        char entry[32], *env[] = {entry, NULL};

        snprintf(entry, sizeof(entry), "%s", cases[i].entry);
        assert_int_equal(pl_daemon_umask(env), cases[i].mask);
    }
}

static int make_folder(void **state)
{
    if (tmpdir_make(folder, sizeof(folder)) < 0)
        return -1;
    snprintf(program, sizeof(program), "%s/plrund", folder);
    snprintf(output, sizeof(output), "%s/out", folder);
    return 0;
}

static int remove_folder(void **state)
{
    return tmpdir_remove(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_start_feed_stop),
        cmocka_unit_test(test_start_says_why_not),
        cmocka_unit_test(test_start_cannot_run),
        cmocka_unit_test(test_start_silent_is_killed),
        cmocka_unit_test(test_stop_stubborn_is_killed),
        cmocka_unit_test(test_stop_ignores_chatter),
        cmocka_unit_test(test_settle_then_stop),
        cmocka_unit_test(test_settle_goes_on),
        cmocka_unit_test(test_stop_closed_socket_is_no_end),
        cmocka_unit_test(test_stop_without_pidfd),
        cmocka_unit_test(test_process_pid_reused),
        cmocka_unit_test(test_start_dead_file_system),
        cmocka_unit_test(test_feed_of_a_dead_daemon),
        cmocka_unit_test(test_start_no_new_privs),
        cmocka_unit_test(test_start_groups),
        cmocka_unit_test(test_runtime_dir_by_root),
        cmocka_unit_test(test_runtime_dir_race),
        cmocka_unit_test(test_start_in_mount_namespace),
        cmocka_unit_test(test_runtime_dir_of_a_hostile_namespace),
        cmocka_unit_test(test_env),
        cmocka_unit_test(test_umask),
    };

    alarm(120); /* a hang is a failure */
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
