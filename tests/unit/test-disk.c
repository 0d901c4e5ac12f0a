/* SPDX-License-Identifier: MIT */
/* Work in a thread, in an order that the test dictates by pipes. */
#include "common/base/fs.h"
#include "runtime/node/disk.h"

#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#define LIMIT_MS 60000

/* Two turns of work, each of which lasts until the test says so. */
struct work {
    struct pl_disk_job job; /* first */
    struct pl_disk *disk;
    int go[2], came[2];
    unsigned turns, done;
};

static void read_byte(int fd)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    char byte;

    assert_int_equal(poll(&p, 1, LIMIT_MS), 1);
    assert_int_equal(read(fd, &byte, 1), 1);
}

static void write_byte(int fd)
{
    assert_int_equal(write(fd, "", 1), 1);
}

static void do_work(struct pl_disk_job *job)
{
    struct work *w = (struct work *)job;

    for (unsigned i = 0; i < w->turns; i++) {
        write_byte(w->came[1]);
        read_byte(w->go[0]);
        if (i + 1 < w->turns)
            pl_disk_answered(w->disk);
    }
}

static void on_done(struct pl_disk_job *job)
{
    ((struct work *)job)->done++;
}

static void begin(uv_loop_t *loop, struct work *w, unsigned turns)
{
    assert_int_equal(uv_loop_init(loop), 0);
    *w = (struct work){.job = {.work = do_work, .done = on_done}, .turns = turns};
    assert_int_equal(pipe2(w->go, O_CLOEXEC), 0);
    assert_int_equal(pipe2(w->came, O_CLOEXEC), 0);
    assert_int_equal(pl_disk_create(loop, &w->disk), 0);
    pl_disk_add(w->disk, &w->job);
}

static void finish(uv_loop_t *loop, struct work *w)
{
    pl_disk_close(w->disk);
    uv_run(loop, UV_RUN_DEFAULT);
    assert_int_equal(uv_loop_close(loop), 0);
    for (int i = 0; i < 2; i++) {
        close(w->go[i]);
        close(w->came[i]);
    }
}

/* A job that takes long is not one that waits long for the file system. */
static void test_answered(void **state)
{
    uint64_t released_ns, busy_ms, now_ns;
    uv_loop_t loop;
    struct work w;

    begin(&loop, &w, 2);
    read_byte(w.came[0]);
    while (pl_disk_busy_ms(w.disk) < 50)
        poll(NULL, 0, 1);
    released_ns = pl_now_ns();
    write_byte(w.go[1]);
    read_byte(w.came[0]);
    busy_ms = pl_disk_busy_ms(w.disk);
    now_ns = pl_now_ns();
    assert_true(busy_ms <= (now_ns - released_ns) / 1000000);
    write_byte(w.go[1]);
    assert_true(pl_disk_wait(w.disk, LIMIT_MS));
    assert_int_equal(pl_disk_busy_ms(w.disk), 0);
    finish(&loop, &w);
    assert_int_equal(w.done, 1);
}

/* After the wait more work can be added at once; the loop calls done() no second time. */
static void test_tell(void **state)
{
    uv_loop_t loop;
    struct work w;

    begin(&loop, &w, 1);
    assert_false(pl_disk_wait(w.disk, 0));
    pl_disk_tell(w.disk);
    assert_int_equal(w.done, 0);
    write_byte(w.go[1]);
    assert_true(pl_disk_wait(w.disk, LIMIT_MS));
    assert_int_equal(w.done, 0);
    pl_disk_tell(w.disk);
    assert_int_equal(w.done, 1);
    pl_disk_add(w.disk, &w.job);
    write_byte(w.go[1]);
    assert_true(pl_disk_wait(w.disk, LIMIT_MS));
    finish(&loop, &w);
    assert_int_equal(w.done, 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_answered),
        cmocka_unit_test(test_tell),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
