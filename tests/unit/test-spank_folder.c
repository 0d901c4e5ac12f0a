/* SPDX-License-Identifier: MIT */
/* The daemon that slurmstepd starts: the user's runtime folder, which root makes, and the job's
 * mount namespace. */
#include "common/base/fs.h"
#include "spank_plugin/node_daemon.h"
#include "tests/unit/spank_script.h"

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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_runtime_dir_by_root),
        cmocka_unit_test(test_runtime_dir_race),
        cmocka_unit_test(test_start_in_mount_namespace),
        cmocka_unit_test(test_runtime_dir_of_a_hostile_namespace),
    };

    alarm(120); /* a hang is a failure */
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
