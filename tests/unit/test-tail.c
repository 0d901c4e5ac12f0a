/* SPDX-License-Identifier: MIT */
#include "common/base/buf.h"
#include "common/base/fs.h"
#include "common/base/tail.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

/* Adds the text in parts of `part` bytes, as a rank of number `rank`. */
static char *tail_of(const char *text, size_t part, int64_t rank)
{
    struct pl_tail tail = {0};
    size_t len = strlen(text);
    char *shown;

    for (size_t at = 0; at < len; at += part)
        pl_tail_add(&tail, text + at, PL_MIN(part, len - at));
    shown = pl_tail_text(&tail, rank);
    pl_tail_finish(&tail);
    return shown;
}

/* The tail is the same in one part and byte by byte. */
static void assert_tail(const char *text, const char *want)
{
    _cleanup_free_ char *whole = tail_of(text, SIZE_MAX / 2, 1), *bytes = tail_of(text, 1, 1);

    assert_string_equal(whole, want);
    assert_string_equal(bytes, want);
}

static void test_text_ends(void **state)
{
    assert_tail("", "");
    assert_tail("\n\r\n", "");
    assert_tail("one", "one");
    assert_tail("one\n\ntwo\r\n\n", "one\n\ntwo");
    assert_tail("caf\xc3\xa9 \xff", "caf\xc3\xa9 \xef\xbf\xbd");
}

static void test_text_limits(void **state)
{
    _cleanup_(pl_buf_finish) struct pl_buf text = {0};
    _cleanup_free_ char *tail = NULL, *wide = NULL;

    for (int i = 0; i < 100; i++)
        assert_int_equal(pl_buf_addf(&text, "line %d\n", i), 0);
    tail = tail_of(text.data, 100, 0);
    assert_memory_equal(tail, "line 80\n", 8);
    assert_string_equal(tail + strlen(tail) - 7, "line 99");
    for (int i = 0; i < 5 * PL_TAIL_BYTES; i++)
        assert_int_equal(pl_buf_addc(&text, 'x'), 0);
    wide = tail_of(text.data, 1000, 0);
    assert_int_equal(strlen(wide), PL_TAIL_BYTES);
}

static void test_text_progress_bars(void **state)
{
    _cleanup_(pl_buf_finish) struct pl_buf text = {0};

    assert_tail("10%\r20%\r30%\ndone\n", "30%\ndone");
    assert_tail("10%\r20%\r", "20%");
    assert_tail("10%\r20%\r\r\nlast", "20%\nlast");
    /* A bar of many updates is one line: it does not push out what came before. */
    assert_int_equal(pl_buf_adds(&text, "ValueError: loss is not finite\n"), 0);
    for (int i = 0; i < 1000; i++)
        assert_int_equal(pl_buf_addf(&text, "\r%3d/1000 [00:10<00:20, 3.1it/s]", i), 0);
    assert_tail(text.data, "ValueError: loss is not finite\n999/1000 [00:10<00:20, 3.1it/s]");
}

static void test_text_stack_frames(void **state)
{
    _cleanup_(pl_buf_finish) struct pl_buf text = {0};

    assert_int_equal(pl_buf_adds(&text, "F0501 Check failed: n > 0\n*** Check failure stack ***\n"),
                     0);
    for (int i = 0; i < 40; i++)
        assert_int_equal(pl_buf_addf(&text, "    @ 0x7f8b1c2e%04x  run()\n", i), 0);
    assert_tail(text.data, "F0501 Check failed: n > 0\n*** Check failure stack ***\n"
                           "    @ 0x7f8b1c2e0000  run()\n    @ 0x7f8b1c2e0001  run()\n"
                           "    ... 38 more stack frames");
    assert_int_equal(pl_buf_adds(&text, "Aborted\n"), 0);
    for (int i = 0; i < 3; i++)
        assert_int_equal(pl_buf_addf(&text, "[rank3]: frame #%d: <unknown> + 0x1 (libc.so)\n", i),
                         0);
    assert_tail(text.data, "F0501 Check failed: n > 0\n*** Check failure stack ***\n"
                           "    @ 0x7f8b1c2e0000  run()\n    @ 0x7f8b1c2e0001  run()\n"
                           "    ... 38 more stack frames\nAborted\n"
                           "[rank3]: frame #0: <unknown> + 0x1 (libc.so)\n"
                           "[rank3]: frame #1: <unknown> + 0x1 (libc.so)\n"
                           "    ... 1 more stack frame");
}

/* Python 3.14 writes more frames of C than are shown, below those of Python, which tell the line.
 */
static void test_text_python_fault(void **state)
{
    static const char python[] =
        "Fatal Python error: Aborted\n\n"
        "Current thread 0x00007f8b1c2e0000 [python] (most recent call first):\n"
        "  File \"train.py\", line 11 in hang_here\n"
        "  File \"train.py\", line 17 in <module>\n\n"
        "Current thread's C stack trace (most recent call first):\n"
        "  Binary file \"python\", at _Py_DumpStack+0x4a [0x499c1d]\n"
        "  Binary file \"python\" [0x53bf79]\n";
    _cleanup_(pl_buf_finish) struct pl_buf text = {0}, want = {0};

    assert_int_equal(pl_buf_addf(&text, "%s", python), 0);
    for (int i = 0; i < 30; i++)
        assert_int_equal(
            pl_buf_adds(&text, "  Binary file \"/usr/lib/libc.so.6\", at pause+0x19 [0x7f8be]\n"),
            0);
    assert_int_equal(pl_buf_addf(&want, "%s    ... 30 more stack frames", python), 0);
    assert_tail(text.data, want.data);
}

/* ---- torchrun ---- */

#define SUMMARY(rank_, local_)                                                                     \
    "E0501 api.py:833] failed (exitcode: 1) local_rank: 0 (pid: 4711) of binary: python3\n"        \
    "Traceback (most recent call last):\n"                                                         \
    "  File \"/usr/bin/torchrun\", line 8, in <module>\n"                                          \
    "    sys.exit(main())\n"                                                                       \
    "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n"                        \
    "============================================================\n"                               \
    "train.py FAILED\n"                                                                            \
    "------------------------------------------------------------\n"                               \
    "Failures:\n"                                                                                  \
    "[1]:\n"                                                                                       \
    "  time      : 2026-05-01_12:00:01\n"                                                          \
    "  host      : n02\n"                                                                          \
    "  rank      : 7 (local_rank: 3)\n"                                                            \
    "  exitcode  : 1 (pid: 4712)\n"                                                                \
    "  error_file: <N/A>\n"                                                                        \
    "------------------------------------------------------------\n"                               \
    "Root Cause (first observed failure):\n"                                                       \
    "[0]:\n"                                                                                       \
    "  time      : 2026-05-01_12:00:00\n"                                                          \
    "  host      : n02\n"                                                                          \
    "  rank      : " rank_ " (local_rank: " local_ ")\n"                                           \
    "  exitcode  : 1 (pid: 4711)\n"                                                                \
    "  error_file: <N/A>\n"                                                                        \
    "  traceback : To enable traceback see: https://example.org/errors.html\n"                     \
    "============================================================\n"

static void test_torchrun_shows_the_worker(void **state)
{
    assert_tail("[rank6]: Traceback (most recent call last):\n"
                "[rank5]: Traceback (most recent call last):\n"
                "[rank6]:   File \"train.py\", line 9, in <module>\n"
                "[rank6]:     main()\n"
                "[rank5]:   File \"train.py\", line 12, in <module>\n"
                "[rank6]: RuntimeError: loss is not finite\n"
                "[rank6]: Compile with DEBUG for more.\n"
                "[rank5]: RuntimeError: NCCL error\n"
                "[rank6]:[W501 ProcessGroupNCCL.cpp:1496] destroy_process_group() was not called\n"
                "W0501 api.py:858] Sending process 4713 closing signal SIGTERM\n" SUMMARY("6", "2"),
                "worker 6 of agent 1:\n"
                "[rank6]: Traceback (most recent call last):\n"
                "[rank6]:   File \"train.py\", line 9, in <module>\n"
                "[rank6]:     main()\n"
                "[rank6]: RuntimeError: loss is not finite\n"
                "[rank6]: Compile with DEBUG for more.");
}

static void test_torchrun_prefix_of_the_local_rank(void **state)
{
    assert_tail("[default2]:Traceback (most recent call last):\n"
                "[default2]:  File \"train.py\", line 9, in <module>\n"
                "[default2]:KeyError: 'x'\n"
                "[default2]:\n"
                "[default2]:During handling of the above exception, another exception occurred:\n"
                "[default2]:\n"
                "[default2]:Traceback (most recent call last):\n"
                "[default2]:  File \"train.py\", line 11, in <module>\n"
                "[default2]:RuntimeError: no x\n" SUMMARY("6", "2"),
                "worker 6 of agent 1:\n"
                "[default2]:Traceback (most recent call last):\n"
                "[default2]:  File \"train.py\", line 9, in <module>\n"
                "[default2]:KeyError: 'x'\n"
                "[default2]:\n"
                "[default2]:During handling of the above exception, another exception occurred:\n"
                "[default2]:\n"
                "[default2]:Traceback (most recent call last):\n"
                "[default2]:  File \"train.py\", line 11, in <module>\n"
                "[default2]:RuntimeError: no x");
}

/* Old releases print no prefix. The agent's own traceback is not a worker's. */
static void test_torchrun_without_a_prefix(void **state)
{
    _cleanup_free_ char *none = tail_of("lost\n" SUMMARY("6", "2"), 100, 3);

    assert_tail("Traceback (most recent call last):\n"
                "  File \"train.py\", line 9, in <module>\n"
                "ValueError: bad\n"
                "some other line\n" SUMMARY("6", "2"),
                "worker 6 of agent 1:\n"
                "Traceback (most recent call last):\n"
                "  File \"train.py\", line 9, in <module>\n"
                "ValueError: bad");
    assert_memory_equal(none, "worker 6 of agent 3:\n", 21);
    assert_null(strstr(none, "Traceback"));
    assert_non_null(strstr(none, "Root Cause"));
}

/* torchrun restarts its workers: a traceback of an earlier round is not the cause. */
static void test_torchrun_restarts(void **state)
{
    static const char first[] = "[rank6]: Traceback (most recent call last):\n"
                                "[rank6]: RuntimeError: first\n"
                                "E0501 api.py:833] failed (exitcode: 1) local_rank: 2\n";
    _cleanup_free_ char *silent = pl_strf("%s%s", first, SUMMARY("6", "2"));
    _cleanup_free_ char *both =
        pl_strf("%s%s%s%s", first, "[rank6]: Traceback (most recent call last):\n",
                "[rank6]: RuntimeError: second\n", SUMMARY("6", "2"));
    _cleanup_free_ char *shown = tail_of(silent, 64, 1);

    assert_null(strstr(shown, "RuntimeError: first"));
    assert_tail(both, "worker 6 of agent 1:\n"
                      "[rank6]: Traceback (most recent call last):\n"
                      "[rank6]: RuntimeError: second");
}

/* A deep stack keeps its end, where the message stands; many prefixes do no harm. */
static void test_torchrun_limits(void **state)
{
    _cleanup_(pl_buf_finish) struct pl_buf text = {0};
    _cleanup_free_ char *shown = NULL;

    for (int i = 0; i < 1000; i++)
        assert_int_equal(
            pl_buf_addf(&text, "[rank%d]: Traceback (most recent call last):\n", i % 500), 0);
    for (int i = 0; i < 1000; i++)
        assert_int_equal(pl_buf_addf(&text, "[rank6]:   File \"f.py\", line %d, in f\n", i), 0);
    assert_int_equal(pl_buf_adds(&text, "[rank6]: RecursionError: deep\n" SUMMARY("6", "2")), 0);
    shown = tail_of(text.data, 4096, 1);
    assert_non_null(strstr(shown, "[rank6]:   File \"f.py\", line 999, in f\n"
                                  "[rank6]: RecursionError: deep"));
    assert_memory_equal(shown, "worker 6 of agent 1:\n[rank6]: Traceback", 39);
    assert_true(strlen(shown) <= PL_TAIL_BYTES);
    assert_non_null(strstr(shown, "[rank6]:   ...\n"));
}

static void test_file(void **state)
{
    char path[] = "/tmp/plume-test-tail-XXXXXX";
    _cleanup_free_ char *tail = NULL, *worker = NULL;
    _cleanup_free_ char *from = NULL, *end = NULL, *cut = NULL;
    int fd = mkstemp(path);

    assert_true(fd >= 0);
    assert_int_equal(pl_write_all(fd, "first\nlast\n", 11), 0);
    tail = pl_tail_file(path, 0, 0);
    assert_string_equal(tail, "first\nlast");
    from = pl_tail_file(path, 6, 0);
    assert_string_equal(from, "last");
    end = pl_tail_file(path, 11, 0);
    assert_string_equal(end, "");
    cut = pl_tail_file(path, 12, 0); /* it was longer once: all of it is newer */
    assert_string_equal(cut, "first\nlast");
    assert_int_equal(pl_write_all(fd, SUMMARY("6", "2"), strlen(SUMMARY("6", "2"))), 0);
    close(fd);
    worker = pl_tail_file(path, 0, 0);
    unlink(path);
    assert_memory_equal(worker, "worker 6 of agent 0:\n", 21);
    assert_null(pl_tail_file(path, 0, 0));
    assert_null(pl_tail_file("/dev/null", 0, 0)); /* no regular file */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_text_ends),
        cmocka_unit_test(test_text_limits),
        cmocka_unit_test(test_text_progress_bars),
        cmocka_unit_test(test_text_stack_frames),
        cmocka_unit_test(test_text_python_fault),
        cmocka_unit_test(test_torchrun_shows_the_worker),
        cmocka_unit_test(test_torchrun_prefix_of_the_local_rank),
        cmocka_unit_test(test_torchrun_without_a_prefix),
        cmocka_unit_test(test_torchrun_restarts),
        cmocka_unit_test(test_torchrun_limits),
        cmocka_unit_test(test_file),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
