/* SPDX-License-Identifier: MIT */
/* A file that two nodes write in parts, through a network file system. The calls below stand in for
 * libc's, in this program: node 0's go through the page cache of a client of NFS. A page that it
 * has whole, it reads from there and writes as a whole, and it does not see what node 1 writes. */
#include "common/base/fs.h"
#include "runtime/engine/checkpoint/checkpoint_parts.h"
#include "runtime/engine/util/rng.h"
#include "tests/unit/engine/checkpoint/checkpoint_dir.h"

#include <fcntl.h>
#include <string.h>
#include <sys/syscall.h>

#define PAGE 4096
#define PAGES 64
#define TENSORS 9
#define BYTES_MAX 4096

static enum {
    NODE_0,
    NODE_1,
    SERVER,
} host;

static struct {
    unsigned char data[PAGE];
    bool whole, dirty;
} pages[PAGES];
static off_t size;      /* of the file, as node 0 knows it */
static bool delegation; /* no other node has the file open: close() does not wait for the server */
static int interrupts;  /* of the next calls of fsync() */
static int close_error; /* a server tells only then what it could not write */

static size_t valid_bytes(off_t start)
{
    return size > start ? (size_t)PL_MIN(size - start, (off_t)PAGE) : 0;
}

/* The server has all that node 0 wrote. The pages stay. */
static void written_back(void)
{
    for (size_t i = 0; i < PAGES; i++)
        pages[i].dirty = false;
}

/* A piece within a page. */
static void write_page(int fd, const unsigned char *from, size_t n, off_t at)
{
    off_t start = at / PAGE * PAGE;
    size_t in = (size_t)at % PAGE, all;

    assert_true(start / PAGE < PAGES);
    if (valid_bytes(start) == 0) { /* nothing of the file is there: the rest is zeros */
        memset(pages[start / PAGE].data, 0, PAGE);
        pages[start / PAGE].whole = true;
    }
    memcpy(pages[start / PAGE].data + in, from, n);
    pages[start / PAGE].dirty = true;
    if (!pages[start / PAGE].whole) {
        assert_int_equal(syscall(SYS_pwrite64, fd, from, n, at), n);
        return;
    }
    all = PL_MAX(in + n, valid_bytes(start));
    assert_int_equal(syscall(SYS_pwrite64, fd, pages[start / PAGE].data, all, start), all);
}

ssize_t pwrite(int fd, const void *data, size_t len, off_t at)
{
    if (host != NODE_0)
        return (ssize_t)syscall(SYS_pwrite64, fd, data, len, at);
    for (size_t done = 0, n; done < len; done += n) {
        off_t place = at + (off_t)done;

        n = PL_MIN(len - done, PAGE - (size_t)place % PAGE);
        write_page(fd, (const unsigned char *)data + done, n, place);
        size = PL_MAX(size, place + (off_t)n);
    }
    return (ssize_t)len;
}

ssize_t read(int fd, void *to, size_t len)
{
    off_t at, start;
    size_t n;

    if (host != NODE_0)
        return (ssize_t)syscall(SYS_read, fd, to, len);
    at = lseek(fd, 0, SEEK_CUR);
    if (at >= size)
        return 0;
    start = at / PAGE * PAGE;
    n = PL_MIN(PL_MIN(len, (size_t)(start + PAGE - at)), (size_t)(size - at));
    if (!pages[start / PAGE].whole)
        assert_true(syscall(SYS_pread64, fd, pages[start / PAGE].data, PAGE, start) >= 0);
    pages[start / PAGE].whole = true;
    memcpy(to, pages[start / PAGE].data + (size_t)at % PAGE, n);
    assert_int_equal(lseek(fd, at + (off_t)n, SEEK_SET), at + (off_t)n);
    return (ssize_t)n;
}

int ftruncate(int fd, off_t len)
{
    size = host == NODE_0 ? len : size;
    return (int)syscall(SYS_ftruncate, fd, len);
}

int fsync(int fd)
{
    if (interrupts) {
        interrupts--;
        errno = EINTR;
        return -1;
    }
    if (host == NODE_0)
        written_back();
    return fd < 0 ? -1 : 0; /* this disk takes its time */
}

int close(int fd)
{
    bool writes = close_error && (fcntl(fd, F_GETFL) & O_ACCMODE) != O_RDONLY;
    int r = (int)syscall(SYS_close, fd);

    if (host == NODE_0 && !delegation)
        written_back();
    if (!writes)
        return r;
    errno = close_error;
    return -1;
}

int posix_fadvise(int fd, off_t at, off_t len, int advice)
{
    for (size_t i = 0; i < PAGES && host == NODE_0 && advice == POSIX_FADV_DONTNEED; i++)
        pages[i].whole &= pages[i].dirty;
    return at || len || fd < 0 ? EINVAL : 0;
}

static unsigned char bytes[TENSORS][BYTES_MAX];

/* Both have the same tensors; those of `apart` have no data there. */
static void make(struct pl_rng *rng, struct pl_checkpoint *whole, struct pl_checkpoint *apart)
{
    *whole = *apart = (struct pl_checkpoint){0};
    for (size_t i = 0; i < TENSORS; i++) {
        size_t shape[] = {1 + pl_rng_below(rng, BYTES_MAX / 4)};
        char name[16];

        snprintf(name, sizeof(name), "t%zu", i);
        for (size_t b = 0; b < BYTES_MAX; b++)
            bytes[i][b] = (unsigned char)pl_rng_below(rng, 256);
        assert_int_equal(pl_checkpoint_add(whole, name, PLUME_F32, 1, shape, bytes[i], NULL), 0);
        if (i % 2)
            assert_int_equal(pl_checkpoint_add_apart(apart, name, PLUME_F32, 1, shape, NULL), 0);
        else
            assert_int_equal(pl_checkpoint_add(apart, name, PLUME_F32, 1, shape, bytes[i], NULL),
                             0);
    }
}

/* Node 0 writes the first part of each tensor, and node 1 the rest: first one node, then the other.
 */
static void put(struct pl_rng *rng,
                const struct pl_checkpoint *apart,
                const char *temp,
                const uint64_t *places,
                bool node_0_first)
{
    size_t parts[TENSORS], n = 0;
    _cleanup_close_ int fd = open(temp, O_WRONLY | O_CLOEXEC);

    assert_true(fd >= 0);
    delegation = false; /* node 1 has opened it, too */
    written_back();
    for (size_t i = 1; i < TENSORS; i += 2)
        parts[n++] = pl_rng_below(rng, apart->tensors[i].bytes + 1);
    for (int turn = 0; turn < 2; turn++) {
        host = (turn == 0) == node_0_first ? NODE_0 : NODE_1;
        for (size_t k = 0; k < n; k++) {
            const unsigned char *data = bytes[2 * k + 1];
            size_t all = apart->tensors[2 * k + 1].bytes;
            size_t from = host == NODE_0 ? 0 : parts[k], to = host == NODE_0 ? parts[k] : all;

            assert_int_equal(pl_checkpoint_put_part(fd, places[k] + from, data + from, to - from),
                             0);
        }
    }
}

static void test_each_node_writes_its_bytes_only(void **state)
{
    _cleanup_free_ char *one = in_dir("one.ckpt"), *parts = in_dir("parts.ckpt");
    struct pl_rng rng;

    pl_rng_init(&rng, 1, 2);
    for (int i = 0; i < 100; i++) {
        _cleanup_free_ char *temp = NULL, *want = NULL, *got = NULL;
        struct pl_checkpoint whole, apart, back;
        uint64_t places[TENSORS] = {0};
        size_t n, m;

        host = SERVER;
        make(&rng, &whole, &apart);
        assert_int_equal(pl_checkpoint_write(&whole, one, NULL), 0);
        host = NODE_0;
        size = 0;
        memset(pages, 0, sizeof(pages));
        delegation = i / 2 % 2;
        assert_int_equal(pl_checkpoint_begin(&apart, parts, &temp, places, NULL), 0);
        put(&rng, &apart, temp, places, i % 2);
        host = NODE_0;
        assert_int_equal(pl_checkpoint_seal(temp, parts, NULL), 0);
        host = SERVER;
        assert_int_equal(pl_file_read(one, 1 << 20, &want, &n, NULL), 0);
        assert_int_equal(pl_file_read(parts, 1 << 20, &got, &m, NULL), 0);
        assert_int_equal(n, m);
        assert_memory_equal(want, got, n);
        assert_int_equal(pl_checkpoint_read(parts, &back, NULL), 0); /* its checksum is right */
        pl_checkpoint_finish(&back);
        pl_checkpoint_finish(&whole);
        pl_checkpoint_finish(&apart);
    }
}

/* The trainer takes -EINTR for what all ranks have agreed on. */
static void test_a_signal_is_no_failure(void **state)
{
    _cleanup_free_ char *path = in_dir("interrupted.ckpt"), *temp = NULL;
    struct pl_checkpoint whole, apart;
    uint64_t places[TENSORS] = {0};
    struct pl_rng rng;

    pl_rng_init(&rng, 1, 2);
    host = SERVER;
    make(&rng, &whole, &apart);
    close_error = EINTR;
    interrupts = 1;
    assert_int_equal(pl_checkpoint_begin(&apart, path, &temp, places, NULL), 0);
    close_error = 0;
    assert_int_equal(interrupts, 0);
    assert_non_null(temp);
    pl_checkpoint_finish(&whole);
    pl_checkpoint_finish(&apart);
}

static void test_begin_tells_what_close_reports(void **state)
{
    _cleanup_free_ char *path = in_dir("full.ckpt"), *temp = NULL;
    struct pl_checkpoint whole, apart;
    uint64_t places[TENSORS] = {0};
    struct pl_rng rng;

    pl_rng_init(&rng, 1, 2);
    host = SERVER;
    make(&rng, &whole, &apart);
    close_error = EDQUOT;
    assert_int_equal(pl_checkpoint_begin(&apart, path, &temp, places, NULL), -EDQUOT);
    close_error = 0;
    assert_null(temp);
    pl_checkpoint_finish(&whole);
    pl_checkpoint_finish(&apart);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_node_writes_its_bytes_only),
        cmocka_unit_test(test_a_signal_is_no_failure),
        cmocka_unit_test(test_begin_tells_what_close_reports),
    };

    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
