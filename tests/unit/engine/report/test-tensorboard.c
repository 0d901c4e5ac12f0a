/* SPDX-License-Identifier: MIT */
/* Event files, read back by a reader that shares no code with the writer. */
#include "common/base/buf.h"
#include "common/base/fs.h"
#include "runtime/engine/report/tensorboard.h"
#include "tests/lib/tmpdir.h"

#include <dirent.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <signal.h>

#include <cmocka.h>

static char dir[64];

static int set_up(void **state)
{
    (void)state;
    return tmpdir_make(dir, sizeof(dir));
}

/* The files' paths, in the order of their names; removes them where `remove`. */
static size_t list(char *paths[4], bool take_away)
{
    struct dirent **names;
    int n = scandir(dir, &names, NULL, alphasort);
    size_t count = 0;

    for (int i = 0; i < n; i++) {
        if (names[i]->d_name[0] != '.') {
            assert_int_equal(strncmp(names[i]->d_name, "events.out.tfevents.", 20), 0);
            assert_true(count < 4);
            paths[count] = pl_strf("%s/%s", dir, names[i]->d_name);
            if (take_away)
                unlink(paths[count]);
            count++;
        }
        free(names[i]);
    }
    free(names);
    return count;
}

static int tear_down(void **state)
{
    char *paths[4];

    (void)state;
    for (size_t n = list(paths, true); n-- > 0;)
        free(paths[n]);
    return rmdir(dir);
}

/* By table, unlike the writer's. */
static uint32_t crc32c(const uint8_t *p, size_t len)
{
    static uint32_t table[256];
    uint32_t crc = UINT32_MAX;

    for (uint32_t i = 0; i < 256 && !table[255]; i++)
        for (table[i] = i, crc = 0; crc < 8; crc++)
            table[i] = table[i] & 1 ? table[i] >> 1 ^ 0x82f63b78u : table[i] >> 1;
    crc = UINT32_MAX;
    while (len--)
        crc = table[(crc ^ *p++) & 255] ^ crc >> 8;
    return ~crc;
}

static uint32_t masked(const uint8_t *p, size_t len)
{
    uint32_t crc = crc32c(p, len);

    return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

static uint64_t take_varint(const uint8_t **at, const uint8_t *end)
{
    uint64_t value = 0;

    for (unsigned shift = 0; *at < end; shift += 7) {
        uint8_t byte = *(*at)++;

        value |= (uint64_t)(byte & 0x7f) << shift;
        if (byte < 0x80)
            return value;
    }
    fail_msg("a number without an end");
    return 0;
}

/* Prints a message as text: "5{1{1"loss"2:f0.5}}"; times (which change) as "t". A group of bytes is
 * a message if `nested` has its path, e.g. "/5/1". */
static void print(struct pl_buf *out, const uint8_t *at, const uint8_t *end, const char *path)
{
    static const char *const messages[] = {
        "/5",           "/5/1",           "/5/1/8",          "/5/1/8/2",
        "/5/1/9",       "/5/1/9/1",       "/5/1/9/1/2",      "/5/1/9/1/2/3",
        "/5/1/9/1/2/4", "/5/1/9/1/2/3/1", "/5/1/9/1/2/3/1/2"};

    while (at < end) {
        uint64_t tag = take_varint(&at, end), len;
        _cleanup_free_ char *here = pl_strf("%s/%llu", path, (unsigned long long)(tag >> 3));
        bool message = false;
        double d;
        float f;

        pl_buf_addf(out, "%llu", (unsigned long long)(tag >> 3));
        switch (tag & 7) {
        case 0:
            pl_buf_addf(out, ":%llu ", (unsigned long long)take_varint(&at, end));
            break;
        case 1:
            assert_true(end - at >= 8);
            memcpy(&d, at, 8);
            at += 8;
            if (d > 1e9)
                pl_buf_adds(out, ":t ");
            else
                pl_buf_addf(out, ":%g ", d);
            break;
        case 5:
            assert_true(end - at >= 4);
            memcpy(&f, at, 4);
            at += 4;
            pl_buf_addf(out, ":f%g ", (double)f);
            break;
        case 2:
            len = take_varint(&at, end);
            assert_true((uint64_t)(end - at) >= len);
            for (size_t i = 0; i < PL_COUNT(messages); i++)
                message |= strcmp(here, messages[i]) == 0;
            pl_buf_addc(out, message ? '{' : '"');
            if (message)
                print(out, at, at + len, here);
            else
                pl_buf_add(out, at, len);
            pl_buf_addc(out, message ? '}' : '"');
            at += len;
            break;
        default:
            fail_msg("wire type %d", (int)(tag & 7));
        }
    }
}

/* The whole file, one line a record; fails on any wrong check sum. */
static char *read_back(const char *path)
{
    _cleanup_free_ char *text = NULL;
    struct pl_buf out = {0};
    const uint8_t *at, *end;
    size_t len = 0;

    assert_int_equal(pl_file_read(path, 1 << 24, &text, &len, NULL), 0);
    for (at = (uint8_t *)text, end = at + len; at < end;) {
        uint64_t n;
        uint32_t crc;

        assert_true(end - at >= 16);
        memcpy(&n, at, 8);
        memcpy(&crc, at + 8, 4);
        assert_int_equal(crc, masked(at, 8));
        assert_true((uint64_t)(end - at) >= 16 + n);
        memcpy(&crc, at + 12 + n, 4);
        assert_int_equal(crc, masked(at + 12, n));
        print(&out, at + 12, at + 12 + n, "");
        pl_buf_addc(&out, '\n');
        at += 16 + n;
    }
    return pl_buf_take(&out);
}

static void test_reader(void **state)
{
    (void)state;
    assert_int_equal(crc32c((const uint8_t *)"123456789", 9), 0xe3069283u); /* RFC 3720 */
}

static void test_scalars_and_session(void **state)
{
    const struct pl_event_hparam list_of[] = {{"lr", NULL, 0.1}, {"act", "gelu", 0}};
    _cleanup_free_ char *text = NULL;
    struct pl_tensorboard *events = NULL;
    char *paths[4];

    (void)state;
    assert_int_equal(pl_tensorboard_open(dir, &events, NULL), 0);
    assert_int_equal(pl_tensorboard_session_start(events, "g", list_of, 2, NULL), 0);
    assert_int_equal(pl_tensorboard_scalar(events, "loss", 0.5, 300, NULL), 0);
    assert_int_equal(pl_tensorboard_scalar(events, "val_acc", (double)NAN, 1LL << 40, NULL), 0);
    assert_int_equal(pl_tensorboard_session_end(events, true, NULL), 0);
    assert_int_equal(list(paths, false), 1);
    text = read_back(paths[0]); /* before it is closed: the end flushes */
    assert_string_equal(
        text,
        "1:t 3\"brain.Event:2\"\n"
        "1:t 2:0 5{1{1\"_hparams_/session_start_info\"8{1:1 2{2\"\"}}9{1{1\"hparams\"2{3{"
        "1{1\"lr\"2{2:0.1 }}1{1\"act\"2{3\"gelu\"}}4\"g\"5:t }}}}}}\n"
        "1:t 2:300 5{1{1\"loss\"2:f0.5 }}\n"
        "1:t 2:1099511627776 5{1{1\"val_acc\"2:fnan }}\n"
        "1:t 2:0 5{1{1\"_hparams_/session_end_info\"8{1:1 2{2\"\"}}9{1{1\"hparams\"2{4{1:1 2:t }}}"
        "}}}\n");
    pl_tensorboard_close(events);
    free(paths[0]);
}

static void test_open_twice_in_a_second(void **state)
{
    struct pl_tensorboard *a = NULL, *b = NULL;
    char *paths[4];

    (void)state;
    assert_int_equal(pl_tensorboard_open(dir, &a, NULL), 0);
    assert_int_equal(pl_tensorboard_open(dir, &b, NULL), 0);
    pl_tensorboard_close(a);
    pl_tensorboard_close(b);
    assert_int_equal(list(paths, false), 2);
    free(paths[0]);
    free(paths[1]);
}

static void test_open_without_folder(void **state)
{
    struct pl_tensorboard *events = NULL;
    struct pl_error err = {0};

    (void)state;
    assert_int_equal(pl_tensorboard_open("/nonexistent/x", &events, &err), -ENOENT);
    assert_non_null(strstr(pl_error_text(&err), "/nonexistent/x/events.out"));
}

/* A full disk: one error, then the file is given up. */
static void test_flush_on_a_full_disk(void **state)
{
    struct rlimit old, limit;
    struct pl_tensorboard *events = NULL;
    struct pl_error err = {0};
    int r = 0;

    (void)state;
    assert_int_equal(pl_tensorboard_open(dir, &events, NULL), 0);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    limit = old;
    limit.rlim_cur = 100;
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    for (int i = 0; i < 10 && r == 0; i++)
        r = pl_tensorboard_scalar(events, "loss", i, i, &err);
    assert_int_equal(r, 0); /* collected */
    assert_int_equal(pl_tensorboard_flush(events, &err), -EFBIG);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    assert_int_equal(pl_tensorboard_scalar(events, "loss", 1, 1, &err), -EFBIG);
    pl_tensorboard_close(events);
}

int main(void)
{
#define CASE(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        CASE(test_reader),
        CASE(test_scalars_and_session),
        CASE(test_open_twice_in_a_second),
        CASE(test_open_without_folder),
        CASE(test_flush_on_a_full_disk),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
