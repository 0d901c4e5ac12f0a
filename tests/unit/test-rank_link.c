/* SPDX-License-Identifier: MIT */
#include "common/base/fs.h"
#include "common/proto/rank/minijson.h"
#include "common/proto/rank/rank_link.h"
#include "tests/lib/tmpdir.h"

#include <limits.h>
#include <math.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>

#include <cmocka.h>

/* The daemon's end of the link under test. */
static int peer;
static struct pl_rank_link rank = PL_RANK_LINK_INIT;

static int connect_pair(void **state)
{
    int pair[2];

    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0)
        return -1;
    peer = pair[0];
    rank = (struct pl_rank_link){.fd = pair[1]};
    return 0;
}

static int close_pair(void **state)
{
    if (peer >= 0)
        close(PL_TAKE_FD(peer));
    pl_rank_link_close(&rank);
    pl_rank_link_close(&rank); /* twice is fine */
    return 0;
}

static void say(const char *text)
{
    assert_int_equal(pl_send_fds(peer, text, strlen(text), NULL, 0), 0);
}

/* One line of the rank; borrowed. */
static const char *hear(void)
{
    static char text[PL_RANK_LINE_MAX + 2];
    size_t n = 0;

    do {
        assert_true(n < sizeof(text) - 1);
        assert_int_equal(recv(peer, text + n, 1, 0), 1);
    } while (text[n++] != '\n');
    text[n - 1] = '\0';
    return text;
}

static void test_socket_path_folder(void **state)
{
    char dir[64], deep[PATH_MAX];
    _cleanup_free_ char *a = NULL, *b = NULL;
    struct pl_error err = {0};
    char *none = NULL;

    assert_int_equal(tmpdir_make(dir, sizeof(dir)), 0);
    setenv("PLUME_RUNTIME_DIR", dir, 1);
    assert_int_equal(pl_rank_socket_path("12", "3", 1, 4, &a, &err), 0);
    assert_int_equal(pl_rank_socket_path("12", "3", 2, 4, &b, &err), 0);
    assert_true(strncmp(a, dir, strlen(dir)) == 0);
    assert_string_not_equal(a, b);
    chmod(dir, 0755);
    assert_int_equal(pl_rank_socket_path("12", "3", 1, 4, &none, &err), -EPERM);
    chmod(dir, 0700);
    snprintf(deep, sizeof(deep), "%s/%0100d", dir, 7);
    setenv("PLUME_RUNTIME_DIR", deep, 1);
    assert_int_equal(pl_rank_socket_path("12", "3", 1, 4, &none, &err), -ENAMETOOLONG);
    assert_non_null(strstr(err.text, "PLUME_RUNTIME_DIR"));
    assert_int_equal(tmpdir_remove(dir), 0);
    unsetenv("PLUME_RUNTIME_DIR");
}

/* In a /tmp of its own, where another user has made the folder first. */
static int squatted(const char *home, const char *session, const char *expected)
{
    char own[64];
    struct pl_error err = {0};
    char *path = NULL;
    int r;

    snprintf(own, sizeof(own), "/tmp/plume-%u", (unsigned)geteuid());
    if (mkdir(own, 0700) < 0 || chown(own, 65534, 65534) < 0)
        return 10;
    setenv("HOME", home, 1);
    session ? setenv("XDG_RUNTIME_DIR", session, 1) : unsetenv("XDG_RUNTIME_DIR");
    r = pl_rank_socket_path("12", "3", 1, 4, &path, &err);
    if (!expected)
        return r == -EPERM && strstr(err.text, own) && strstr(err.text, "PLUME_RUNTIME_DIR") ? 0
                                                                                             : 11;
    if (r != 1 || strcmp(path, expected) != 0 || !strstr(err.text, own))
        return 12;
    free(path);
    return 0;
}

static void test_socket_path_squatted(void **state)
{
    static const char *const cases[][3] = {
        {"/tmp", "/tmp/session", "/tmp/session/plume/12.3.1.4"},
        {"/tmp", NULL, "/tmp/.plume/sockets/12.3.1.4"},
        {"/tmp", "/tmp/nonexistent", "/tmp/.plume/sockets/12.3.1.4"},
        {"/nonexistent", "relative", NULL},
    };

    unsetenv("PLUME_RUNTIME_DIR");
    unsetenv("PLUME_HOME");
    for (size_t i = 0; i < PL_COUNT(cases); i++) {
        pid_t pid = fork();
        int status;

        if (pid == 0) {
            if (unshare(CLONE_NEWNS) < 0 ||
                mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 ||
                mount("plume", "/tmp", "tmpfs", 0, "mode=1777") < 0 ||
                mkdir("/tmp/session", 0700) < 0)
                _exit(77);
            _exit(squatted(cases[i][0], cases[i][1], cases[i][2]));
        }
        assert_int_equal(waitpid(pid, &status, 0), pid);
        if (WEXITSTATUS(status) == 77) {
            print_message("# skipped: cannot make a mount namespace\n");
            return;
        }
        assert_int_equal(status, 0);
    }
}

/* In a child, with a /tmp of its own: the folder is there, and its file system takes no files. */
static int read_only(void)
{
    char own[64], *path = NULL;
    struct pl_error err = {0};

    snprintf(own, sizeof(own), "/tmp/plume-%u", (unsigned)geteuid());
    if (unshare(CLONE_NEWNS) < 0 || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 ||
        mount("plume", "/tmp", "tmpfs", 0, "mode=1777") < 0 || mkdir("/tmp/session", 0700) < 0 ||
        mkdir(own, 0700) < 0 || mount(own, own, NULL, MS_BIND, NULL) < 0 ||
        mount("none", own, NULL, MS_REMOUNT | MS_BIND | MS_RDONLY, NULL) < 0)
        return 77;
    setenv("XDG_RUNTIME_DIR", "/tmp/session", 1);
    if (pl_rank_socket_path("12", "3", 1, 4, &path, &err) != 1 || !strstr(err.text, own) ||
        strcmp(path, "/tmp/session/plume/12.3.1.4") != 0)
        return 12;
    free(path);
    return 0;
}

static void test_socket_path_read_only(void **state)
{
    pid_t pid;
    int status;

    unsetenv("PLUME_RUNTIME_DIR");
    pid = fork();
    if (pid == 0)
        _exit(read_only());
    assert_int_equal(waitpid(pid, &status, 0), pid);
    if (WEXITSTATUS(status) == 77) {
        print_message("# skipped: cannot make a mount namespace\n");
        return;
    }
    assert_int_equal(status, 0);
}

static void test_open_late_listener(void **state)
{
    char dir[64];
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    struct pl_rank_link link = PL_RANK_LINK_INIT;
    struct pl_error err = {0};
    int status, go[2];
    char c = 0;
    pid_t pid;

    assert_int_equal(tmpdir_make(dir, sizeof(dir)), 0);
    snprintf(addr.sun_path, sizeof(addr.sun_path), "%s/s", dir);
    assert_int_equal(pl_rank_link_open(&link, addr.sun_path, 0, &err), -ETIMEDOUT);
    assert_non_null(strstr(err.text, addr.sun_path));
    assert_null(strstr(err.text, "runtime_dir"));
    /* The step is over, or a container or a /tmp per job has no such folder. */
    assert_int_equal(pl_rank_link_open(&link, "/nonexistent/1.2.0.0", 0, &err), -ETIMEDOUT);
    assert_non_null(strstr(err.text, "/nonexistent/1.2.0.0"));
    assert_non_null(strstr(err.text, "Its step has ended, or"));
    assert_non_null(strstr(err.text, "mount it into the container"));
    assert_non_null(strstr(err.text, "'runtime_dir'"));
    assert_int_equal(pipe(go), 0);
    pid = fork();
    if (pid == 0) {
        int fd = socket(AF_UNIX, SOCK_STREAM, 0);

        close(go[1]);
        if (read(go[0], &c, 1) != 1 || bind(fd, (struct sockaddr *)&addr, sizeof(addr)) < 0 ||
            listen(fd, 1) < 0)
            _exit(1);
        _exit(accept(fd, NULL, NULL) < 0);
    }
    assert_int_equal(write(go[1], "g", 1), 1);
    assert_int_equal(pl_rank_link_open(&link, addr.sun_path, 20000, &err), 0);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    pl_rank_link_close(&link);
    /* Now the socket is stale. */
    assert_int_equal(pl_rank_link_open(&link, addr.sun_path, 1, &err), -ETIMEDOUT);
    assert_int_equal(tmpdir_remove(dir), 0);
    close(go[0]);
    close(go[1]);
}

static void test_open_foreign_listener(void **state)
{
    char dir[64];
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    struct pl_rank_link link = PL_RANK_LINK_INIT;
    struct pl_error err = {0};
    int ready[2];
    char c;
    pid_t pid;

    if (geteuid() != 0) { /* only root can be two users */
        assert_int_equal(pl_rank_link_open(&link, "/", 0, &err), -ECONNREFUSED);
        return;
    }
    assert_int_equal(tmpdir_make(dir, sizeof(dir)), 0);
    assert_int_equal(chmod(dir, 0777), 0);
    snprintf(addr.sun_path, sizeof(addr.sun_path), "%s/s", dir);
    assert_int_equal(pipe(ready), 0);
    pid = fork();
    if (pid == 0) {
        int fd;

        if (setresuid(65534, 65534, 65534) < 0)
            _exit(1);
        fd = socket(AF_UNIX, SOCK_STREAM, 0);
        if (bind(fd, (struct sockaddr *)&addr, sizeof(addr)) < 0 || listen(fd, 1) < 0 ||
            write(ready[1], "r", 1) != 1)
            _exit(1);
        fd = accept(fd, NULL, NULL);
        _exit(read(fd, &c, 1) != 0); /* it must not get a single byte */
    }
    assert_int_equal(read(ready[0], &c, 1), 1);
    assert_int_equal(pl_rank_link_open(&link, addr.sun_path, 1000, &err), -EPERM);
    assert_non_null(strstr(err.text, "65534"));
    assert_int_equal(waitpid(pid, &ready[0], 0), pid);
    assert_int_equal(ready[0], 0);
    assert_int_equal(tmpdir_remove(dir), 0);
}

static void test_hello_line(void **state)
{
    struct pl_error err = {0};
    int pipes[2], got[4], fds[4];
    char text[512] = {0}, hello[512];
    size_t n;

    snprintf(hello, sizeof(hello),
             "{\"type\":\"hello\",\"proto\":\"plume\",\"major\":1,\"minor\":%d,"
             "\"role\":\"starter\",\"rank\":4294967295,\"local_rank\":3,"
             "\"pid\":77,\"guarded\":true}\n",
             PL_PROTO_MINOR);
    assert_int_equal(pipe2(pipes, 0), 0);
    for (int i = 0; i < 4; i++)
        fds[i] = pipes[i % 2];
    assert_int_equal(
        pl_rank_link_hello(&rank, PL_RANK_ROLE_STARTER, UINT_MAX, 3, 77, true, fds, 4, &err), 0);
    assert_true(pl_recv_fds(peer, text, sizeof(text) - 1, got, 4, &n) > 0);
    assert_int_equal(n, 4);
    assert_string_equal(text, hello);
    for (int i = 0; i < 4; i++)
        close(got[i]);
    close(pipes[0]);
    close(pipes[1]);
}

static void test_send_too_long(void **state)
{
    struct pl_error err = {0};
    char *line = malloc(PL_RANK_LINE_MAX + 1);

    memset(line, ' ', PL_RANK_LINE_MAX);
    line[PL_RANK_LINE_MAX] = '\0';
    assert_int_equal(pl_rank_link_send(&rank, line, &err), -EMSGSIZE);
    assert_int_equal(pl_rank_link_offer(&rank, line), 0);
    assert_int_equal(rank.dropped, 1);
    line[PL_RANK_LINE_MAX - 1] = '\0'; /* with its newline just the limit */
    assert_int_equal(pl_rank_link_send(&rank, line, &err), 0);
    assert_int_equal(strlen(hear()), PL_RANK_LINE_MAX - 1);
    close(PL_TAKE_FD(peer));
    assert_int_equal(pl_rank_link_send(&rank, "{}", &err), -EPIPE);
    free(line);
}

/* A daemon that does not read: the program goes on, and what arrives later is whole lines. */
static void test_offer_slow_daemon(void **state)
{
    const char *names[] = {"loss"};
    unsigned sent = 0, heard = 0;

    for (int step = 0; rank.dropped < 50; step++) {
        double value = step;

        assert_int_equal(pl_rank_link_metrics(&rank, step, -1, names, &value, 1), 0);
        assert_true(step < 1000000);
        sent = (unsigned)step + 1;
    }
    sent -= (unsigned)rank.dropped;
    pl_rank_link_close(&rank);
    for (;;) {
        char c;
        struct pl_mini_value v;

        if (recv(peer, &c, 1, MSG_PEEK) != 1)
            break;
        assert_int_equal(pl_mini_find(hear(), "metrics", &v), 0);
        heard++;
    }
    assert_int_equal(heard, sent);
}

static void test_offer_closed_daemon(void **state)
{
    close(PL_TAKE_FD(peer));
    assert_int_equal(pl_rank_link_offer(&rank, "{}"), 0);
    assert_int_equal(rank.dropped, 1);
    pl_rank_link_close(&rank);
    assert_int_equal(pl_rank_link_offer(&rank, "{}"), 0);
}

static void test_recv_pieces(void **state)
{
    struct pl_error err = {0};
    char *line = NULL;

    assert_int_equal(pl_rank_link_recv(&rank, 0, &line, &err), -ETIMEDOUT);
    say("{\"a\"");
    assert_int_equal(pl_rank_link_recv(&rank, 0, &line, &err), -ETIMEDOUT);
    assert_int_equal(pl_rank_link_recv(&rank, 5, &line, &err), -ETIMEDOUT);
    say(":1}\n{\"b\":2}\n\n{");
    assert_int_equal(pl_rank_link_recv(&rank, UINT_MAX, &line, &err), 0);
    assert_string_equal(line, "{\"a\":1}");
    free(line);
    assert_int_equal(pl_rank_link_recv(&rank, 0, &line, &err), 0);
    assert_string_equal(line, "{\"b\":2}");
    free(line);
    assert_int_equal(pl_rank_link_recv(&rank, 0, &line, &err), 0);
    assert_string_equal(line, "");
    free(line);
    close(PL_TAKE_FD(peer));
    assert_int_equal(pl_rank_link_recv(&rank, 1000, &line, &err), -EPIPE);
}

static void test_recv_overlong(void **state)
{
    struct pl_error err = {0};
    char block[65536], *line;
    pid_t pid = fork();

    if (pid == 0) {
        close(rank.fd);
        memset(block, 'x', sizeof(block));
        for (int i = 0; i < 40; i++)
            if (pl_send_fds(peer, block, sizeof(block), NULL, 0) < 0)
                _exit(0);
        _exit(1);
    }
    close(PL_TAKE_FD(peer));
    assert_int_equal(pl_rank_link_recv(&rank, 20000, &line, &err), -EMSGSIZE);
    pl_rank_link_close(&rank);
    assert_int_equal(waitpid(pid, &peer, 0), pid);
    assert_int_equal(PL_TAKE_FD(peer), 0);
}

struct env {
    char text[1024];
    int n;
};

static int record(void *ctx, const char *name, const char *value, bool overwrite)
{
    struct env *env = ctx;
    size_t used = strlen(env->text);

    snprintf(env->text + used, sizeof(env->text) - used, "%s=%s%s;", name, value,
             overwrite ? "" : "?");
    return env->n++ == 4 ? -ENOSPC : 0;
}

static void test_world_applied(void **state)
{
    struct pl_error err = {0};
    struct env env = {0};

    say("{\"type\":\"later\"}\nnonsense\n{\"type\":\"world\",\"env\":[\"RANK=1\",\"A=x=y\"],"
        "\"defaults\":[\"OMP=4\"]}\n");
    assert_int_equal(pl_rank_link_world(&rank, 1000, record, &env, &err), 0);
    assert_string_equal(env.text, "RANK=1;A=x=y;OMP=4?;");
}

static void test_world_process_env(void **state)
{
    struct pl_error err = {0};

    setenv("PL_T_A", "old", 1);
    setenv("PL_T_B", "old", 1);
    unsetenv("PL_T_C");
    say("{\"type\":\"world\",\"env\":[\"PL_T_A=new\"],\"defaults\":[\"PL_T_B=new\",\"PL_T_C=new\"]}"
        "\n");
    assert_int_equal(pl_rank_link_world(&rank, 1000, NULL, NULL, &err), 0);
    assert_string_equal(getenv("PL_T_A"), "new");
    assert_string_equal(getenv("PL_T_B"), "old");
    assert_string_equal(getenv("PL_T_C"), "new");
}

static void test_world_bad(void **state)
{
    static const char *const bad[] = {
        "{\"type\":\"world\",\"env\":[\"NOEQUALS\"]}\n",
        "{\"type\":\"world\",\"env\":[7]}\n",
        "{\"type\":\"world\",\"env\":\"A=1\"}\n",
        "{\"type\":\"world\",\"env\":[\"A=\\u0000\"]}\n",
        "{\"type\":\"world\",\"env\":[\"=x\"]}\n",
    };
    struct pl_error err = {0};

    for (size_t i = 0; i < PL_COUNT(bad); i++) {
        say(bad[i]);
        assert_true(pl_rank_link_world(&rank, 1000, NULL, NULL, &err) < 0);
        assert_non_null(strstr(err.text, "bad world"));
    }
}

static void test_world_refused(void **state)
{
    struct pl_error err = {0};

    say("{\"type\":\"refused\",\"text\":\"node 3 is missing\"}\n");
    assert_int_equal(pl_rank_link_world(&rank, 1000, NULL, NULL, &err), -ECONNABORTED);
    assert_string_equal(err.text, "node 3 is missing");
    say("{\"type\":\"refused\"}\n");
    assert_int_equal(pl_rank_link_world(&rank, 1000, NULL, NULL, &err), -ECONNABORTED);
    assert_int_equal(pl_rank_link_world(&rank, 1, NULL, NULL, &err), -ETIMEDOUT);
    close(PL_TAKE_FD(peer));
    assert_int_equal(pl_rank_link_world(&rank, 1000, NULL, NULL, &err), -EPIPE);
}

static void test_exchange_answer(void **state)
{
    struct pl_error err = {0};
    char **values = NULL, long_text[PL_RANK_EXCHANGE_MAX + 2] = "";
    size_t n = 0;

    memset(long_text, 'x', PL_RANK_EXCHANGE_MAX + 1);
    assert_int_equal(pl_rank_link_exchange(&rank, "n", long_text, 1, &values, &n, &err), -EMSGSIZE);
    assert_int_equal(pl_rank_link_exchange(&rank, long_text, "v", 1, &values, &n, &err), -EMSGSIZE);
    say("{\"type\":\"exchanged\",\"name\":\"other\",\"values\":[\"1\"]}\n"
        "{\"type\":\"exchanged\",\"name\":\"a "
        "\\\"b\\\"\",\"values\":[\"\",\"x\\ny\",\"\\u00e9\"]}\n");
    assert_int_equal(pl_rank_link_exchange(&rank, "a \"b\"", "v\n\\", 1000, &values, &n, &err), 0);
    assert_int_equal(n, 3);
    assert_string_equal(values[0], "");
    assert_string_equal(values[1], "x\ny");
    assert_string_equal(values[2], "\xc3\xa9");
    free(values);
    assert_string_equal(
        hear(), "{\"type\":\"exchange\",\"name\":\"a \\\"b\\\"\",\"value\":\"v\\u000a\\\\\"}");
    assert_int_equal(pl_rank_link_exchange(&rank, "n", "v", 1, &values, &n, &err), -ETIMEDOUT);
    say("{\"type\":\"exchanged\",\"name\":\"n\",\"values\":[\"x\",7]}\n");
    assert_int_equal(pl_rank_link_exchange(&rank, "n", "v", 1000, &values, &n, &err), -EPROTO);
    say("{\"type\":\"exchanged\",\"name\":\"n\",\"values\":[]}\n");
    assert_int_equal(pl_rank_link_exchange(&rank, "n", "v", 1000, &values, &n, &err), 0);
    assert_int_equal(n, 0);
    free(values);
}

static void test_metrics_line(void **state)
{
    static const char *const names[] = {"loss", "a", "b", "c", "q\""};
    double values[] = {0.25, NAN, INFINITY, -INFINITY, 1e300};

    assert_int_equal(pl_rank_link_metrics(&rank, -1, -1, names, values, 5), 0);
    assert_string_equal(hear(), "{\"type\":\"metrics\",\"step\":-1,\"metrics\":{\"loss\":0.25,"
                                "\"a\":\"nan\",\"b\":\"inf\",\"c\":\"-inf\",\"q\\\"\":1e+300}}");
    assert_int_equal(pl_rank_link_metrics(&rank, 7, 0, NULL, NULL, 0), 0);
    assert_string_equal(hear(), "{\"type\":\"metrics\",\"step\":7,\"own_us\":0,\"metrics\":{}}");
}

static void test_fact_line(void **state)
{
    struct pl_error err = {0};

    assert_int_equal(pl_rank_link_fact(&rank, "param_hash", "a\xff", &err), 0);
    assert_string_equal(hear(),
                        "{\"type\":\"fact\",\"key\":\"param_hash\",\"value\":\"a\xef\xbf\xbd\"}");
}

#define PAIRED(f) cmocka_unit_test_setup_teardown(f, connect_pair, close_pair)

static void test_own_variables(void **state)
{
    size_t n = 0;

    while (pl_rank_own_variables[n])
        n++;
    assert_int_equal(n, 13);
    assert_true(pl_rank_variable_is_ours("RANK", "0", NULL));
    assert_true(pl_rank_variable_is_ours("NCCL_RAS_ADDR", "localhost:7", NULL));
    assert_false(pl_rank_variable_is_ours("NCCL_RAS_ADDR", "there:7", NULL));
    assert_true(pl_rank_variable_is_ours("JAX_COORDINATOR_ADDRESS", "10.0.0.1:7", "10.0.0.1"));
    assert_true(pl_rank_variable_is_ours("JAX_COORDINATOR_ADDRESS", "[fd::1]:7", "fd::1"));
    assert_false(pl_rank_variable_is_ours("JAX_COORDINATOR_ADDRESS", "here:7", "10.0.0.1"));
    assert_false(pl_rank_variable_is_ours("JAX_COORDINATOR_ADDRESS", "here:7", NULL));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_own_variables),
        cmocka_unit_test(test_socket_path_folder),
        cmocka_unit_test(test_socket_path_squatted),
        cmocka_unit_test(test_socket_path_read_only),
        cmocka_unit_test(test_open_late_listener),
        cmocka_unit_test(test_open_foreign_listener),
        PAIRED(test_hello_line),
        PAIRED(test_send_too_long),
        PAIRED(test_offer_slow_daemon),
        PAIRED(test_offer_closed_daemon),
        PAIRED(test_recv_pieces),
        PAIRED(test_recv_overlong),
        PAIRED(test_world_applied),
        PAIRED(test_world_process_env),
        PAIRED(test_world_bad),
        PAIRED(test_world_refused),
        PAIRED(test_exchange_answer),
        PAIRED(test_metrics_line),
        PAIRED(test_fact_line),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
