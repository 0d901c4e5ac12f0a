/* SPDX-License-Identifier: MIT */
/* Streams with real pipes in a real loop. */
#include "common/base/fs.h"
#include "runtime/plrund/daemon/capture.h"
#include "tests/lib/tmpdir.h"

#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <cmocka.h>

struct seen {
    char names[256];
    double last;
    unsigned metrics, done;
};

static uv_loop_t loop;
static struct seen seen;
static int in, out; /* the rank's end, and where Slurm would read */
static struct pl_capture *capture;

static void on_metric(void *ctx, const char *name, double value)
{
    struct seen *s = ctx;
    size_t used = strlen(s->names);

    snprintf(s->names + used, sizeof(s->names) - used, "%s=%g;", name, value);
    s->last = value;
    s->metrics++;
}

static void on_done(void *ctx)
{
    ((struct seen *)ctx)->done++;
}

static const struct pl_capture_ops ops = {.metric = on_metric, .done = on_done};

static void begin(const struct pl_metric_rule *rules, size_t n)
{
    int rank[2], slurm[2];

    memset(&seen, 0, sizeof(seen));
    assert_int_equal(uv_loop_init(&loop), 0);
    assert_int_equal(pipe2(rank, O_CLOEXEC), 0);
    assert_int_equal(pipe2(slurm, O_CLOEXEC), 0);
    in = rank[1];
    out = slurm[0];
    assert_int_equal(
        pl_capture_create(&loop, NULL, rank[0], slurm[1], rules, n, &ops, &seen, &capture), 0);
}

static void finish(void)
{
    pl_capture_close(PL_TAKE(capture));
    assert_int_equal(uv_run(&loop, UV_RUN_DEFAULT), 0);
    assert_int_equal(uv_loop_close(&loop), 0);
    if (in >= 0)
        close(PL_TAKE_FD(in));
    close(out);
}

static void put(const char *text)
{
    assert_int_equal(pl_write_all(in, text, strlen(text)), 0);
}

/* The output at Slurm's end up to now; borrowed. */
static const char *came_out(void)
{
    static char text[65536];
    ssize_t n = read(out, text, sizeof(text) - 1);

    assert_true(n >= 0);
    text[n] = '\0';
    return text;
}

static void test_copy_and_done(void **state)
{
    begin(NULL, 0);
    put("one\n");
    uv_run(&loop, UV_RUN_ONCE);
    assert_string_equal(came_out(), "one\n");
    assert_false(pl_capture_is_done(capture));
    put("two");
    close(PL_TAKE_FD(in));
    uv_run(&loop, UV_RUN_DEFAULT); /* ends by itself: its handles are closed at the end */
    assert_string_equal(came_out(), "two");
    assert_string_equal(came_out(), ""); /* the end: nothing holds the stream open */
    assert_int_equal(seen.done, 1);
    assert_true(pl_capture_is_done(capture));
    finish();
}

static void test_tail_last_lines(void **state)
{
    char *tail;

    begin(NULL, 0);
    tail = pl_capture_tail(capture, 0);
    assert_string_equal(tail, "");
    free(tail);
    for (int i = 0; i < 30; i++) {
        char line[32];

        snprintf(line, sizeof(line), "line %d\n", i);
        put(line);
    }
    put("bad \xff\xe2\x82 and \xc3\xa9\r\n\n\n");
    pl_capture_drain(capture);
    tail = pl_capture_tail(capture, 0);
    assert_true(strncmp(tail, "line 11\n", 8) == 0);
    assert_non_null(strstr(tail, "bad \xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd and \xc3\xa9"));
    assert_int_equal(tail[strlen(tail) - 1], '\xa9');
    free(tail);
    finish();
}

static void test_tail_long_line(void **state)
{
    char block[10000];
    char *tail;

    begin(NULL, 0);
    memset(block, 'a', sizeof(block));
    for (int i = 0; i < 5; i++) {
        assert_int_equal(pl_write_all(in, block, sizeof(block)), 0);
        pl_capture_drain(capture);
        came_out();
    }
    put("END");
    pl_capture_drain(capture);
    tail = pl_capture_tail(capture, 0);
    assert_int_equal(strlen(tail), 4096);
    assert_string_equal(tail + 4093, "END");
    free(tail);
    finish();
}

static void test_metrics_in_pieces(void **state)
{
    struct pl_metric_rule rules[2];
    struct pl_error err = {0};

    assert_int_equal(pl_metric_rule_init(&rules[0], "loss=loss[ =]([-+0-9.a-z]+)", &err), 0);
    assert_int_equal(pl_metric_rule_init(&rules[1], "whole=[0-9]+%", &err), 0);
    begin(rules, 2);
    put("loss=1.5\nlo");
    pl_capture_drain(capture);
    put("ss 2.5\rloss x\nnothing\n50%\nloss=nan\nloss=-inf\nloss=1e-3");
    pl_capture_drain(capture);
    assert_string_equal(seen.names, "loss=1.5;loss=2.5;whole=50;loss=nan;loss=-inf;");
    close(PL_TAKE_FD(in));
    uv_run(&loop, UV_RUN_DEFAULT);
    assert_non_null(strstr(seen.names, ";loss=0.001;")); /* a last line without its end */
    finish();
    pl_metric_rule_finish(&rules[0]);
    pl_metric_rule_finish(&rules[0]);
    pl_metric_rule_finish(&rules[1]);
}

/* "0,5" is not 0, and "1,234" is not 1: nothing is better than a wrong number. */
static void test_metrics_with_commas(void **state)
{
    struct pl_metric_rule rule;
    struct pl_error err = {0};

    assert_int_equal(pl_metric_rule_init(&rule, "loss=loss[ =](.*)", &err), 0);
    begin(&rule, 1);
    put("loss=0,5\nloss=1,234\nloss=-0,5\nloss=1,234.5\nloss=2, acc 0.5\nloss=0.5,7\nloss=3,\n"
        "loss=4 5,6\n");
    pl_capture_drain(capture);
    assert_string_equal(seen.names, "loss=2;loss=0.5;loss=3;loss=4;");
    close(PL_TAKE_FD(in));
    uv_run(&loop, UV_RUN_DEFAULT);
    finish();
    pl_metric_rule_finish(&rule);
}

/* The same where the rule takes digits only. A rule that has the comma itself means it: CSV. */
static void test_metrics_before_commas(void **state)
{
    struct pl_metric_rule rules[3];
    struct pl_error err = {0};

    assert_int_equal(pl_metric_rule_init(&rules[0], "loss=loss=([0-9.]+)", &err), 0);
    assert_int_equal(pl_metric_rule_init(&rules[1], "row=^[(]?\\(?(([0-9)])+),[0-9.]+$", &err), 0);
    assert_int_equal(pl_metric_rule_init(&rules[2], "acc=[0-9]+%", &err), 0);
    begin(rules, 3);
    put("loss=0,5\nloss=1,234.5\nloss=2, x\nloss=0.5,7\nloss=3,x\n10,0.5\n81%,3\n");
    pl_capture_drain(capture);
    assert_string_equal(seen.names, "loss=2;loss=0.5;loss=3;row=10;acc=81;");
    close(PL_TAKE_FD(in));
    uv_run(&loop, UV_RUN_DEFAULT);
    finish();
    for (size_t i = 0; i < PL_COUNT(rules); i++)
        pl_metric_rule_finish(&rules[i]);
}

/* Whatever else a rule has after the group: only a comma that stands there is meant. */
static void test_metrics_with_more_after_them(void **state)
{
    static const char *const checked[] = {".*", "[^0-9]", "(,|$)", ",?", ",*", ",{0,1}"};
    struct pl_metric_rule rule;
    struct pl_error err = {0};
    char spec[64];

    for (size_t i = 0; i < PL_COUNT(checked); i++) {
        snprintf(spec, sizeof(spec), "loss=loss=([0-9.]+)%s", checked[i]);
        assert_int_equal(pl_metric_rule_init(&rule, spec, &err), 0);
        begin(&rule, 1);
        put("loss=0,5\nloss=1,234.5\nloss=2, x\n");
        pl_capture_drain(capture);
        assert_string_equal(seen.names, "loss=2;");
        finish();
        pl_metric_rule_finish(&rule);
    }
}

/* A line without an end is searched in parts of 4096 bytes, so that it takes no more memory. */
static void test_metrics_in_a_long_line(void **state)
{
    struct pl_metric_rule rule;
    struct pl_error err = {0};
    char filler[4097];

    memset(filler, 'x', sizeof(filler) - 1);
    filler[sizeof(filler) - 1] = '\0';
    assert_int_equal(pl_metric_rule_init(&rule, "loss=^loss=([0-9]+)", &err), 0);
    begin(&rule, 1);
    put(filler);
    put("loss=7\n");
    pl_capture_drain(capture);
    assert_string_equal(seen.names, "loss=7;");
    close(PL_TAKE_FD(in));
    uv_run(&loop, UV_RUN_DEFAULT);
    finish();
    pl_metric_rule_finish(&rule);
}

static void test_metric_rule_bad(void **state)
{
    static const char *const bad[] = {
        "", "loss", "=x", "loss=", "9a=x", "a b=x", "loss=(", "loss=["};
    struct pl_metric_rule rule;

    for (size_t i = 0; i < PL_COUNT(bad); i++) {
        struct pl_error err = {0};

        assert_int_equal(pl_metric_rule_init(&rule, bad[i], &err), -EINVAL);
        assert_int_not_equal(err.text[0], '\0');
    }
}

/* A rank waits while nobody takes its output, as it would without Plume. */
static void test_back_pressure(void **state)
{
    char block[4096];
    size_t written = 0, taken = 0;

    begin(NULL, 0);
    memset(block, 'x', sizeof(block));
    fcntl(in, F_SETFL, fcntl(in, F_GETFL) | O_NONBLOCK);
    for (int idle = 0; idle < 3;) {
        ssize_t n = write(in, block, sizeof(block));

        idle = n > 0 ? 0 : idle + 1;
        written += n > 0 ? (size_t)n : 0;
        uv_run(&loop, UV_RUN_NOWAIT);
        assert_true(written < 4u << 20);
    }
    fcntl(out, F_SETFL, fcntl(out, F_GETFL) | O_NONBLOCK);
    close(PL_TAKE_FD(in));
    while (!seen.done) {
        ssize_t n = read(out, block, sizeof(block));

        taken += n > 0 ? (size_t)n : 0;
        uv_run(&loop, UV_RUN_NOWAIT);
    }
    for (ssize_t n; (n = read(out, block, sizeof(block))) > 0;)
        taken += (size_t)n;
    assert_int_equal(taken, written);
    finish();
}

static void test_reader_gone(void **state)
{
    char dir[64], path[80], *text;
    struct pl_error err = {0};

    assert_int_equal(tmpdir_make(dir, sizeof(dir)), 0);
    snprintf(path, sizeof(path), "%s/rank-0.out", dir);
    signal(SIGPIPE, SIG_IGN);
    begin(NULL, 0);
    pl_capture_open_file(capture, dir, "rank-0.out");
    assert_int_equal(pl_capture_file_error(capture), 0);
    close(PL_TAKE_FD(out));
    put("still in the file\n");
    close(PL_TAKE_FD(in));
    uv_run(&loop, UV_RUN_DEFAULT);
    assert_int_equal(seen.done, 1);
    out = open("/dev/null", O_RDWR | O_CLOEXEC);
    finish();
    assert_int_equal(pl_file_read(path, 1000, &text, NULL, &err), 0);
    assert_string_equal(text, "still in the file\n");
    free(text);
    tmpdir_remove(dir);
}

/* A link that another user has put in the place of a rank's file is not followed, and a folder that
 * others may write to gets no file: the stream reaches its target all the same. */
static void test_open_file_hostile(void **state)
{
    char dir[64], victim[80], link[80], *text;
    struct pl_error err = {0};

    assert_int_equal(tmpdir_make(dir, sizeof(dir)), 0);
    snprintf(victim, sizeof(victim), "%s/victim", dir);
    snprintf(link, sizeof(link), "%s/rank-0.out", dir);
    assert_int_equal(pl_file_replace(victim, "precious", 8, 0600, &err), 0);
    assert_int_equal(symlink("victim", link), 0);
    begin(NULL, 0);
    pl_capture_open_file(capture, dir, "rank-0.out");
    assert_int_equal(pl_capture_file_error(capture), -ELOOP);
    assert_int_equal(chmod(dir, 0770), 0);
    pl_capture_open_file(capture, dir, "rank-1.out");
    assert_int_equal(pl_capture_file_error(capture), -EPERM);
    put("passed on");
    pl_capture_drain(capture);
    assert_string_equal(came_out(), "passed on");
    finish();
    assert_int_equal(pl_file_read(victim, 1000, &text, NULL, &err), 0);
    assert_string_equal(text, "precious");
    free(text);
    tmpdir_remove(dir);
}

static void test_open_file_bad(void **state)
{
    begin(NULL, 0);
    pl_capture_open_file(capture, "/dev/null/x", "out");
    assert_true(pl_capture_file_error(capture) < 0);
    put("passed on all the same");
    pl_capture_drain(capture);
    assert_string_equal(came_out(), "passed on all the same");
    finish();
}

/* A muted stream with a file; dir gets its folder, path the file. */
static void begin_muted(char dir[static 64], char path[static 80])
{
    assert_int_equal(tmpdir_make(dir, 64), 0);
    snprintf(path, 80, "%s/rank-1.err", dir);
    begin(NULL, 0);
    fcntl(out, F_SETFL, O_NONBLOCK);
    pl_capture_open_file(capture, dir, "rank-1.err");
    assert_int_equal(pl_capture_file_error(capture), 0);
    pl_capture_mute(capture);
}

static void nothing_came_out(void)
{
    char byte;

    assert_int_equal(read(out, &byte, 1), -1);
    assert_int_equal(errno, EAGAIN);
}

/* The end of the stream, too, waits until it is known who failed. */
static void test_mute(void **state)
{
    char dir[64], path[80], *text;

    begin_muted(dir, path);
    put("of this rank\n");
    pl_capture_drain(capture);
    nothing_came_out();
    close(PL_TAKE_FD(in));
    pl_capture_drain(capture);
    nothing_came_out();
    assert_int_equal(seen.done, 0);
    assert_true(pl_capture_is_done(capture));
    pl_capture_let_go(capture, "the last lines\n");
    assert_string_equal(came_out(), "the last lines\n");
    pl_capture_let_go(capture, "not twice\n");
    uv_run(&loop, UV_RUN_DEFAULT);
    assert_string_equal(came_out(), "");
    assert_int_equal(seen.done, 1);
    assert_int_equal(pl_file_read(path, 1000, &text, NULL, NULL), 0);
    assert_string_equal(text, "of this rank\n");
    free(text);
    finish();
    tmpdir_remove(dir);
}

static void test_mute_full_disk(void **state)
{
    const struct rlimit small = {.rlim_cur = 8, .rlim_max = RLIM_INFINITY};
    const struct rlimit large = {.rlim_cur = RLIM_INFINITY, .rlim_max = RLIM_INFINITY};
    char dir[64], path[80], *text;

    begin_muted(dir, path);
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    put("12345678and more\n");
    pl_capture_drain(capture);
    put("and still more\n");
    pl_capture_drain(capture);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &large), 0);
    assert_string_equal(came_out(), "and more\nand still more\n");
    put("there is room\n");
    pl_capture_drain(capture);
    nothing_came_out();
    pl_capture_let_go(capture, NULL);
    assert_int_equal(pl_file_read(path, 1000, &text, NULL, NULL), 0);
    assert_string_equal(text, "12345678\n[plrund: 24 bytes could not be written]\nthere is room\n");
    free(text);
    finish();
    tmpdir_remove(dir);
}

/* There is room again only after the last output: the file says where it lacks some. */
static void test_full_disk_at_the_end(void **state)
{
    const struct rlimit small = {.rlim_cur = 8, .rlim_max = RLIM_INFINITY};
    const struct rlimit large = {.rlim_cur = RLIM_INFINITY, .rlim_max = RLIM_INFINITY};
    char dir[64], path[80], *text;

    begin_muted(dir, path);
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    put("12345678and more\n");
    pl_capture_drain(capture);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &large), 0);
    close(PL_TAKE_FD(in));
    pl_capture_drain(capture);
    pl_capture_let_go(capture, NULL);
    uv_run(&loop, UV_RUN_DEFAULT);
    assert_string_equal(came_out(), "and more\n");
    assert_int_equal(pl_file_read(path, 1000, &text, NULL, NULL), 0);
    assert_string_equal(text, "12345678\n[plrund: 9 bytes could not be written]\n");
    free(text);
    finish();
    tmpdir_remove(dir);
}

/* Nobody can read a file that was removed, and a rank without a file has its target only. */
static void test_mute_without_file(void **state)
{
    char dir[64], path[80];

    begin_muted(dir, path);
    assert_int_equal(unlink(path), 0);
    put("passed on\n");
    pl_capture_drain(capture);
    assert_string_equal(came_out(), "passed on\n");
    pl_capture_let_go(capture, "again\n");
    nothing_came_out();
    finish();
    tmpdir_remove(dir);
    begin(NULL, 0);
    pl_capture_open_file(capture, "/dev/null/x", "out");
    assert_true(pl_capture_file_error(capture) < 0);
    pl_capture_mute(capture);
    put("passed on, too\n");
    pl_capture_drain(capture);
    assert_string_equal(came_out(), "passed on, too\n");
    pl_capture_let_go(capture, "again\n");
    close(PL_TAKE_FD(in));
    uv_run(&loop, UV_RUN_DEFAULT);
    assert_string_equal(came_out(), "");
    assert_int_equal(seen.done, 1);
    pl_capture_let_go(NULL, NULL);
    finish();
}

/* ---- with a thread that may be held up ---- */

/* Work that lasts until the test says so. */
struct gate {
    struct pl_disk_job job; /* first */
    int open[2];
};

static struct pl_disk *disk;

static void gate_work(struct pl_disk_job *job)
{
    struct pollfd p = {.fd = ((struct gate *)job)->open[0], .events = POLLIN};

    assert_int_equal(poll(&p, 1, 60000), 1);
}

static void gate_done(struct pl_disk_job *job) {}

/* As begin_muted(), but the work on files waits for open_gate(). */
static void begin_gated(struct gate *g, const char *dir)
{
    int rank[2], slurm[2];

    memset(&seen, 0, sizeof(seen));
    assert_int_equal(uv_loop_init(&loop), 0);
    assert_int_equal(pl_disk_create(&loop, &disk), 0);
    assert_int_equal(pipe2(g->open, O_CLOEXEC), 0);
    assert_int_equal(pipe2(rank, O_CLOEXEC), 0);
    assert_int_equal(pipe2(slurm, O_CLOEXEC), 0);
    in = rank[1];
    out = slurm[0];
    g->job = (struct pl_disk_job){.work = gate_work, .done = gate_done};
    pl_disk_add(disk, &g->job);
    assert_int_equal(
        pl_capture_create(&loop, disk, rank[0], slurm[1], NULL, 0, &ops, &seen, &capture), 0);
    fcntl(out, F_SETFL, O_NONBLOCK);
    pl_capture_open_file(capture, dir, "rank-1.err");
    pl_capture_mute(capture);
}

static void open_gate(struct gate *g)
{
    assert_int_equal(write(g->open[1], "", 1), 1);
    assert_true(pl_disk_wait(disk, 60000));
    for (int i = 0; i < 100 && pl_capture_file_waits(capture); i++) {
        uv_run(&loop, UV_RUN_NOWAIT);
        assert_true(pl_disk_wait(disk, 60000));
    }
}

static void finish_gated(struct gate *g)
{
    pl_capture_close(PL_TAKE(capture));
    pl_disk_close(disk);
    finish();
    close(g->open[0]);
    close(g->open[1]);
}

/* Output of the rank before it is known that there will be no file reaches the target. */
static void test_mute_open_fails_late(void **state)
{
    struct gate g;

    begin_gated(&g, "/dev/null/x");
    put("said before\n");
    pl_capture_drain(capture);
    nothing_came_out();
    open_gate(&g);
    assert_string_equal(came_out(), "said before\n");
    put("said after\n");
    pl_capture_drain(capture);
    assert_string_equal(came_out(), "said after\n");
    close(PL_TAKE_FD(in));
    pl_capture_drain(capture);
    assert_int_equal(seen.done, 1);
    finish_gated(&g);
}

/* Output goes to a file, as in a batch script: it cannot be waited for, and need not be. */
static void test_real_is_a_file(void **state)
{
    FILE *f = tmpfile();
    char text[64] = {0};
    int rank[2];

    memset(&seen, 0, sizeof(seen));
    assert_int_equal(uv_loop_init(&loop), 0);
    assert_int_equal(pipe2(rank, O_CLOEXEC), 0);
    in = rank[1];
    out = fileno(f);
    assert_int_equal(
        pl_capture_create(&loop, NULL, rank[0], dup(out), NULL, 0, &ops, &seen, &capture), 0);
    put("into the file");
    close(PL_TAKE_FD(in));
    uv_run(&loop, UV_RUN_DEFAULT);
    assert_int_equal(seen.done, 1);
    assert_int_equal(pread(out, text, sizeof(text) - 1, 0), 13);
    out = dup(out);
    finish();
    fclose(f);
}

/* The stream's open file is shared with others, who do not expect EAGAIN. */
static void test_real_flags_kept(void **state)
{
    for (int socket = 0; socket < 2; socket++) {
        char block[4096] = {0};
        int rank[2], slurm[2];

        memset(&seen, 0, sizeof(seen));
        assert_int_equal(uv_loop_init(&loop), 0);
        assert_int_equal(pipe2(rank, O_CLOEXEC), 0);
        assert_int_equal(
            socket ? socketpair(AF_UNIX, SOCK_STREAM, 0, slurm) : pipe2(slurm, O_CLOEXEC), 0);
        in = rank[1];
        out = slurm[0];
        assert_int_equal(
            pl_capture_create(&loop, NULL, rank[0], dup(slurm[1]), NULL, 0, &ops, &seen, &capture),
            0);
        assert_false(fcntl(slurm[1], F_GETFL) & O_NONBLOCK);
        /* More than it takes: this must not wait all the same. */
        for (int i = 0; i < 200; i++) {
            assert_int_equal(pl_write_all(in, block, sizeof(block)), 0);
            pl_capture_drain(capture);
        }
        close(PL_TAKE_FD(in));
        finish();
        assert_false(fcntl(slurm[1], F_GETFL) & O_NONBLOCK);
        close(slurm[1]);
    }
}

/* A process that the rank left running writes without end: the tail still ends. */
static void test_drain_endless(void **state)
{
    pid_t writers[2];

    begin(NULL, 0);
    for (int i = 0; i < 2; i++) {
        writers[i] = fork();
        if (writers[i] == 0) {
            char block[65536];

            memset(block, 'y', sizeof(block));
            while (write(in, block, sizeof(block)) > 0)
                ;
            _exit(0);
        }
    }
    for (int i = 0; i < 50; i++)
        pl_capture_drain(capture);
    for (int i = 0; i < 2; i++) {
        kill(writers[i], SIGKILL);
        waitpid(writers[i], NULL, 0);
    }
    finish();
}

static void test_close_half_way(void **state)
{
    begin(NULL, 0);
    put("not yet read");
    pl_capture_close(capture);
    pl_capture_close(capture); /* twice, and NULL */
    capture = NULL;
    pl_capture_close(NULL);
    pl_capture_drain(NULL);
    assert_true(pl_capture_is_done(NULL));
    finish();
    assert_int_equal(seen.done, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_copy_and_done),
        cmocka_unit_test(test_tail_last_lines),
        cmocka_unit_test(test_tail_long_line),
        cmocka_unit_test(test_metrics_in_pieces),
        cmocka_unit_test(test_metrics_with_commas),
        cmocka_unit_test(test_metrics_before_commas),
        cmocka_unit_test(test_metrics_with_more_after_them),
        cmocka_unit_test(test_metrics_in_a_long_line),
        cmocka_unit_test(test_metric_rule_bad),
        cmocka_unit_test(test_back_pressure),
        cmocka_unit_test(test_reader_gone),
        cmocka_unit_test(test_open_file_hostile),
        cmocka_unit_test(test_open_file_bad),
        cmocka_unit_test(test_real_is_a_file),
        cmocka_unit_test(test_real_flags_kept),
        cmocka_unit_test(test_mute),
        cmocka_unit_test(test_mute_full_disk),
        cmocka_unit_test(test_full_disk_at_the_end),
        cmocka_unit_test(test_mute_without_file),
        cmocka_unit_test(test_mute_open_fails_late),
        cmocka_unit_test(test_drain_endless),
        cmocka_unit_test(test_close_half_way),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
