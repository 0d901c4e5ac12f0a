/* SPDX-License-Identifier: MIT */
/* Lines of a run that goes on, on NFS. The calls below stand in for libc's, in this program: other
 * hosts see what sync_file_range() has sent. */
#include "common/base/fs.h"
#include "runtime/node/thread.h"
#include "runtime/plrund/daemon/daemon.h"
#include "runtime/plrund/hub/log_queue.h"
#include "tests/lib/tmpdir.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>

#include <cmocka.h>

#define LIMIT_MS 60000

static char top[64];
static bool on_nfs, in_loop; /* in_loop: it was sent by the thread that must not wait */
static off_t seen;           /* bytes of the file that other hosts see */
static unsigned n_sends, n_waits;
static bool no_statx, no_links; /* statx(2) is forbidden; it leaves the number of links out */
static sem_t gate;              /* with gated: the disk's thread waits here before it writes */
static atomic_bool gated, full; /* full: the file system has no room */
static bool no_thread, is_slow; /* of a new disk; it has not answered for a minute */
static pthread_t loops_thread;
static uv_loop_t loop;
static struct pl_disk *disk;

int fstatfs(int fd, struct statfs *fs)
{
    int r = (int)syscall(SYS_fstatfs, fd, fs);

    if (r == 0 && on_nfs)
        fs->f_type = NFS_SUPER_MAGIC;
    return r;
}

int sync_file_range(int fd, off_t from, off_t n, unsigned flags)
{
    assert_int_equal(from, 0);
    assert_int_equal(n, 0); /* all */
    assert_int_equal(flags, SYNC_FILE_RANGE_WRITE);
    seen = lseek(fd, 0, SEEK_END);
    n_sends++;
    in_loop = in_loop || pthread_equal(pthread_self(), loops_thread);
    return 0;
}

/* As the client does, it sends what was written, and waits for the server. */
int fstat(int fd, struct stat *st)
{
    int r = (int)syscall(SYS_fstat, fd, st);

    n_waits += r == 0 && on_nfs && S_ISREG(st->st_mode) && st->st_size;
    return r;
}

int statx(int dir, const char *restrict path, int flags, unsigned mask, struct statx *restrict st)
{
    int r;

    if (no_statx) {
        errno = EPERM;
        return -1;
    }
    r = (int)syscall(SYS_statx, dir, path, flags, mask, st);
    if (r == 0 && no_links) {
        st->stx_mask &= ~STATX_NLINK;
        st->stx_nlink = 1;
    }
    return r;
}

ssize_t write(int fd, const void *data, size_t len)
{
    if (gated && !pthread_equal(pthread_self(), loops_thread))
        sem_wait(&gate);
    if (full) {
        errno = ENOSPC;
        return -1;
    }
    return syscall(SYS_write, fd, data, len);
}

int __real_pl_thread_start(pthread_t *ret, void *(*work)(void *ctx), void *ctx);
int __wrap_pl_thread_start(pthread_t *ret, void *(*work)(void *ctx), void *ctx);
uint64_t __real_pl_disk_busy_ms(struct pl_disk *d);
uint64_t __wrap_pl_disk_busy_ms(struct pl_disk *d);

int __wrap_pl_thread_start(pthread_t *ret, void *(*work)(void *ctx), void *ctx)
{
    return no_thread ? -EAGAIN : __real_pl_thread_start(ret, work, ctx);
}

uint64_t __wrap_pl_disk_busy_ms(struct pl_disk *d)
{
    return is_slow ? 60000 : __real_pl_disk_busy_ms(d);
}

/* ---- a rank's file ---- */

static int in, out; /* the rank's end, and where Slurm would read */
static struct pl_capture *capture;
static struct pl_log_queue queue;

static void close_disk(void)
{
    if (disk)
        pl_disk_close(PL_TAKE(disk));
}

static void close_capture(void)
{
    if (!capture)
        return;
    pl_capture_close(PL_TAKE(capture));
    close_disk();
    close(in);
    close(out);
}

static int set_up(void **state)
{
    on_nfs = true;
    in_loop = no_statx = no_links = gated = full = no_thread = is_slow = false;
    seen = 0;
    n_sends = n_waits = 0;
    loops_thread = pthread_self();
    return sem_init(&gate, 0, 0) < 0 || tmpdir_make(top, sizeof(top)) < 0 ||
           uv_loop_init(&loop) < 0 || pl_disk_create(&loop, &disk) < 0;
}

/* Also of a test that failed half way, whose open file would keep the loop at work. */
static int tear_down(void **state)
{
    gated = false;
    sem_post(&gate);
    close_capture();
    close_disk();
    uv_run(&loop, UV_RUN_DEFAULT);
    return uv_loop_close(&loop) < 0 || tmpdir_remove(top) < 0;
}

static void on_done(void *ctx) {}

static void open_capture(struct pl_disk *its_disk)
{
    static const struct pl_capture_ops ops = {.done = on_done};
    int rank[2], slurm[2];

    assert_int_equal(pipe2(rank, O_CLOEXEC), 0);
    assert_int_equal(pipe2(slurm, O_CLOEXEC), 0);
    in = rank[1];
    out = slurm[0];
    assert_int_equal(
        pl_capture_create(&loop, its_disk, rank[0], slurm[1], NULL, 0, &ops, NULL, &capture), 0);
    pl_capture_open_file(capture, top, "rank-0.out");
}

static void settle(void)
{
    do {
        assert_true(pl_disk_wait(disk, LIMIT_MS));
        pl_disk_tell(disk);
    } while (pl_capture_file_waits(capture));
}

static void put(const char *text)
{
    assert_int_equal(pl_write_all(in, text, strlen(text)), 0);
    pl_capture_drain(capture);
    settle();
}

static void tick(bool send)
{
    pl_capture_tick(capture, send);
    settle();
}

static void test_rank_file_is_seen_after_a_tick(void **state)
{
    open_capture(disk);
    settle();
    tick(true);
    assert_int_equal(n_sends, 0); /* nothing was written */
    put("one\n");
    put("two\n");
    tick(false);
    assert_int_equal(n_sends, 0);
    tick(true);
    assert_int_equal(seen, 8);
    tick(true);
    assert_int_equal(n_sends, 1);
    put("three\n");
    tick(true);
    assert_int_equal(seen, 14);
    assert_int_equal(n_sends, 2);
    assert_int_equal(n_waits, 0);
    assert_false(in_loop);
    close_capture();
}

/* A tick may come while the file is at work. */
static void test_rank_file_is_seen_when_it_is_busy(void **state)
{
    open_capture(disk);
    put("one\n");
    gated = true;
    assert_int_equal(pl_write_all(in, "two\n", 4), 0);
    pl_capture_drain(capture);
    pl_capture_tick(capture, true);
    assert_int_equal(pl_write_all(in, "three\n", 6), 0);
    pl_capture_drain(capture);
    assert_int_equal(n_sends, 0);
    gated = false;
    sem_post(&gate);
    settle();
    tick(true);
    assert_int_equal(seen, 14);
    assert_int_equal(n_sends, 1);
    close_capture();
}

/* A muted rank's lines go to Slurm's output once somebody has removed the rank's file. */
static void removed_file(void)
{
    struct pollfd p = {.events = POLLIN};
    char path[128];

    open_capture(disk);
    pl_capture_mute(capture);
    put("one\n");
    p.fd = out;
    assert_int_equal(poll(&p, 1, 0), 0);
    snprintf(path, sizeof(path), "%s/rank-0.out", top);
    assert_int_equal(unlink(path), 0);
    put("two\n");
    assert_int_equal(poll(&p, 1, 0), 1);
    close_capture();
}

static void test_rank_file_is_removed(void **state)
{
    removed_file();
}

static void test_rank_file_is_removed_without_statx(void **state)
{
    no_statx = true;
    removed_file();
}

static void test_rank_file_is_removed_without_links_of_statx(void **state)
{
    no_links = true;
    removed_file();
}

static void test_rank_file_elsewhere_is_let_be(void **state)
{
    on_nfs = false;
    open_capture(disk);
    put("one\n");
    tick(true);
    assert_int_equal(n_sends, 0);
    close_capture();
}

static void test_rank_file_without_a_thread_is_let_be(void **state)
{
    open_capture(NULL);
    put("one\n");
    tick(true);
    assert_int_equal(n_sends, 0);
    close_capture();
}

/* As where the user may have no more threads. */
static void test_rank_file_of_a_disk_without_a_thread(void **state)
{
    struct pl_disk *lame;

    no_thread = true;
    assert_int_equal(pl_disk_create(&loop, &lame), 0);
    open_capture(lame);
    put("one\n");
    tick(true);
    assert_int_equal(n_sends, 0);
    close_capture();
    pl_disk_close(lame);
}

/* After a time without an answer it has a note in place of some lines. */
static void test_rank_file_that_lacks_lines(void **state)
{
    static char lines[65536];

    memset(lines, '\n', sizeof(lines));
    open_capture(disk);
    settle();
    pl_capture_mute(capture);
    gated = is_slow = true;
    for (int i = 0; pl_capture_unwritten(capture) < 8 * sizeof(lines); i++) {
        assert_true(i < 100);
        assert_int_equal(pl_write_all(in, lines, sizeof(lines)), 0);
        for (int k = 0; k < 2; k++)
            pl_capture_drain(capture);
    }
    gated = false;
    sem_post(&gate);
    settle();
    assert_int_equal(n_sends, 0);
    tick(true);
    assert_int_equal(n_sends, 1);
    close_capture();
}

/* The files of 1,000 ranks in a second: those of a larger job take turns. */
static void test_rank_files_of_many_ranks(void **state)
{
    struct pl_rank rank = {0};
    struct pl_daemon d = {.ranks = &rank, .n_present = 1};

    open_capture(disk);
    rank.out = rank.err = capture;
    for (unsigned many = 0; many < 2; many++) {
        d.step.ntasks = many ? 1000 : 999;
        d.n_ticks = 0;
        for (unsigned i = 0; i < 4; i++) {
            put("one\n");
            if (i % 2)
                rank.out = NULL;
            else
                rank.err = NULL;
            pl_daemon_tick_output(&d);
            settle();
            rank.out = rank.err = capture;
            assert_int_equal(n_sends, 1 + (many ? 4 + i / 2 : i));
        }
    }
    close_capture();
}

static void test_rank_file_that_is_closed(void **state)
{
    open_capture(disk);
    put("one\n");
    close(in);
    in = dup(out);
    pl_capture_drain(capture);
    tick(true);
    assert_int_equal(n_sends, 0); /* to close it has sent it */
    close_capture();
}

/* ---- the hub's logs ---- */

static void put_line(void)
{
    pl_log_queue_put(&queue, "{}\n", 3);
    pl_log_queue_send(&queue);
    assert_true(pl_disk_wait(disk, LIMIT_MS));
    pl_disk_tell(disk);
}

static void log_of(struct pl_disk *its_disk, off_t want)
{
    int folder = open(top, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    queue = (struct pl_log_queue)PL_LOG_QUEUE_INIT;
    assert_int_equal(pl_log_queue_open(&queue, its_disk, 1000, folder, "events.jsonl", NULL), 0);
    close(folder);
    for (int i = 0; i < 3; i++)
        put_line();
    assert_int_equal(queue.file.size, 9);
    assert_int_equal(n_sends, 0);
    for (int i = 0; i < 2; i++) {
        pl_log_queue_flush(&queue);
        assert_true(pl_disk_wait(disk, LIMIT_MS));
        pl_disk_tell(disk);
        assert_int_equal(n_sends, want ? 1 : 0);
    }
    assert_int_equal(seen, want);
    assert_false(in_loop);
    put_line(); /* no flush: another host sees it later */
    assert_int_equal(n_sends, want ? 1 : 0);
    full = true; /* what came before is sent */
    put_line();
    for (int i = 0; i < 2; i++) {
        pl_log_queue_flush(&queue);
        assert_true(pl_disk_wait(disk, LIMIT_MS));
        pl_disk_tell(disk);
        assert_int_equal(n_sends, want ? 2 : 0);
    }
    close_disk();
    pl_log_queue_finish(&queue);
}

static void test_log_is_seen_after_a_flush(void **state)
{
    log_of(disk, 9);
}

static void test_log_elsewhere_is_let_be(void **state)
{
    on_nfs = false;
    log_of(disk, 0);
}

static void test_log_without_a_thread_is_let_be(void **state)
{
    log_of(NULL, 0);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(test_rank_file_is_seen_after_a_tick),
        TEST(test_rank_file_is_seen_when_it_is_busy),
        TEST(test_rank_file_elsewhere_is_let_be),
        TEST(test_rank_file_without_a_thread_is_let_be),
        TEST(test_rank_file_of_a_disk_without_a_thread),
        TEST(test_rank_file_that_lacks_lines),
        TEST(test_rank_files_of_many_ranks),
        TEST(test_rank_file_that_is_closed),
        TEST(test_rank_file_is_removed),
        TEST(test_rank_file_is_removed_without_statx),
        TEST(test_rank_file_is_removed_without_links_of_statx),
        TEST(test_log_is_seen_after_a_flush),
        TEST(test_log_elsewhere_is_let_be),
        TEST(test_log_without_a_thread_is_let_be),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
