/* SPDX-License-Identifier: MIT */
/* sinfo's lines about drained nodes, and which of them are of a trial. */
#include "common/base/fs.h"
#include "common/base/remove_tree.h"
#include "common/proto/json.h"
#include "launcher/plstat/node_reasons.h"
#include "launcher/plstat/words.h"
#include "launcher/slurm/slurm_cache.h"
#include "launcher/slurm/slurm_nodes.h"

#include <fcntl.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

/* The output of sinfo, with the mark "M|" where a line has "@". Freed by the caller. */
static char *marked(const char *lines)
{
    struct pl_buf text = {0};

    for (const char *p = lines; *p; p++)
        assert_int_equal(*p == '@' ? pl_buf_adds(&text, "M|") : pl_buf_addc(&text, *p), 0);
    return text.len ? pl_buf_take(&text) : strdup("");
}

/* The document of these records as text with sorted keys. */
static void assert_nodes(const char *lines, const char *want)
{
    _cleanup_(json_decrefp) json_t *nodes = NULL;
    _cleanup_free_ char *said = marked(lines), *text = NULL;

    assert_int_equal(pl_slurm_nodes_parse(said, "M", &nodes), 0);
    text = json_dumps(nodes, JSON_COMPACT | JSON_SORT_KEYS);
    assert_string_equal(text, want);
}

static void test_lines(void **state)
{
    assert_nodes("", "{}");
    assert_nodes("@n1|draining|root|1700000000|bad GPU\n",
                 "{\"n1\":{\"by\":\"root\",\"reason\":\"bad GPU\",\"since\":1700000000,"
                 "\"state\":\"draining\"}}");
    /* A '|' and blanks in the reason; a node of two partitions; no newline at the end. */
    assert_nodes(
        "@n1|drained|slurm|5| a|b |\n@n1|drained|slurm|5| a|b |",
        "{\"n1\":{\"by\":\"slurm\",\"reason\":\" a|b |\",\"since\":5,\"state\":\"drained\"}}");
    /* An unknown value has no key. */
    assert_nodes("@n1|down*|Unknown|Unknown|none\n@n2|fail|none|N/A|\n",
                 "{\"n1\":{\"state\":\"down*\"},\"n2\":{\"state\":\"fail\"}}");
    /* No records of nodes. */
    assert_nodes("\n|\nn1\nn3|down|root|1|x\n@\n@|\n@n1\n@n2|\n@n3|down|root|1\n@|down|root|1|x\n"
                 "@n4||root|1|x\n@\xff|down|root|1|x\nM\nM",
                 "{}");
    assert_nodes("@n1|down|ro\xffot|-3|\xc3\xa4\xff\n",
                 "{\"n1\":{\"by\":\"ro\xef\xbf\xbdot\",\"reason\":\"\xc3\xa4\xef\xbf\xbd\","
                 "\"state\":\"down\"}}");
}

/* Whoever drains a node chooses the reason, and must not speak for other nodes. */
static void test_reason_that_forges_a_line(void **state)
{
    assert_nodes("@n1|drained|bob|5|bad\nn2|drained|root|6|forged\n\nmore M|n3|down|root|6|x\n"
                 "@n4|down|slurm|7|own\n",
                 "{\"n1\":{\"by\":\"bob\",\"reason\":\"bad\\nn2|drained|root|6|forged\\n\\nmore "
                 "M|n3|down|root|6|x\",\"since\":5,\"state\":\"drained\"},"
                 "\"n4\":{\"by\":\"slurm\",\"reason\":\"own\",\"since\":7,\"state\":\"down\"}}");
    assert_nodes("n2|drained|root|6|before\n@n1|drained|bob|5|\x1b[31m\r\tred\n",
                 "{\"n1\":{\"by\":\"bob\",\"reason\":\"\\u001B[31m\\r\\tred\",\"since\":5,"
                 "\"state\":\"drained\"}}");
}

/* A megabyte of a reason is cut, and never within a character. */
static void test_reason_that_is_long(void **state)
{
    _cleanup_(pl_buf_finish) struct pl_buf text = {0};
    _cleanup_(json_decrefp) json_t *nodes = NULL;
    const char *reason;

    pl_buf_adds(&text, "M|n1|down|root|5|");
    for (size_t i = 0; i < 500000; i++)
        pl_buf_adds(&text, "\xc3\xa4");
    assert_int_equal(pl_slurm_nodes_parse(pl_buf_str(&text), "M", &nodes), 0);
    reason = pl_json_string(json_object_get(nodes, "n1"), "reason");
    assert_int_equal(strlen(reason), PL_SLURM_REASON_MAX - 1);
    assert_string_equal(reason + PL_SLURM_REASON_MAX - 6, "\xc3\xa4...");
}

/* ---- of a trial ---- */

/* Slurm's words on four nodes; base: second 0 of these tests. */
static json_t *reasons(double base)
{
    _cleanup_(pl_buf_finish) struct pl_buf text = {0};
    json_t *nodes = NULL;

    pl_buf_addf(&text, "M|n1|draining|root|%.0f|GPU 3\nM|n2|down*|slurm|%.0f|Not responding\n",
                base + 100, base + 200);
    pl_buf_addf(&text, "M|n3|drained|root|%.0f|long ago\nM|n9|drained|root|%.0f|of nobody\n",
                base - 90000, base + 100);
    assert_int_equal(pl_slurm_nodes_parse(pl_buf_str(&text), "M", &nodes), 0);
    return nodes;
}

/* The nodes that are told of a trial of n1 (twice), n3 and n4, whose cause names n2. */
static void
assert_told(enum pl_trial_state state, double base, double started, double ended, const char *want)
{
    _cleanup_(json_decrefp) json_t *nodes = reasons(base);
    struct pl_trial_status ts = {
        .array = 5, .state = state, .started_s = base + started, .ended_s = base + ended};
    _cleanup_(pl_buf_finish) struct pl_buf text = {0};
    const json_t *o;
    size_t i;

    ts.doc = json_pack("{s:[{s:s}, {s:s}, {s:s}, {s:s}, {}]}", "nodes", "node", "n1", "node", "n1",
                       "node", "n3", "node", "n4");
    ts.cause = json_pack("{s:s}", "node", "n2");
    assert_int_equal(pl_node_reasons_choose(&ts, nodes), 0);
    json_array_foreach (ts.node_reasons, i, o)
        pl_buf_addf(&text, "%s ", pl_json_string(o, "node"));
    assert_string_equal(pl_buf_str(&text), want);
    json_decref(ts.doc);
    json_decref(ts.cause);
    json_decref(ts.node_reasons);
}

static void test_of_a_trial(void **state)
{
    double lately = floor(pl_wall_s()) - 6000, long_ago = lately - 90000;

    assert_told(PL_TRIAL_RUNNING, lately, 0, 0, "n1 n3 n2 ");
    assert_told(PL_TRIAL_WAITING, lately, 0, 0, "");
    assert_told(PL_TRIAL_DONE, lately, 0, 300, "");
    assert_told(PL_TRIAL_FAILED, lately, 0, 300, "n1 n2 ");
    assert_told(PL_TRIAL_NODE_FAILED, lately, 0, 50, "n1 n2 ");
    assert_told(PL_TRIAL_FAILED, lately, 100.9, 300,
                "n1 n2 "); /* Slurm's times are whole seconds */
    assert_told(PL_TRIAL_FAILED, lately, 101, 300, "n2 ");
    assert_told(PL_TRIAL_FAILED, lately, -5000, -3450,
                "n1 "); /* n2's came more than an hour later */
    assert_told(PL_TRIAL_FAILED, long_ago, 0, 300, "");
}

static void test_words(void **state)
{
    _cleanup_(pl_buf_finish) struct pl_buf text = {0};
    _cleanup_(json_decrefp) json_t *full =
        json_pack("{s:s, s:s, s:s, s:s, s:i}", "node", "n1", "state", "draining", "reason", "GPU 3",
                  "by", "root", "since", 1700000000);
    _cleanup_(json_decrefp) json_t *bare = json_pack("{s:s, s:s}", "node", "n2", "state", "down*");

    setenv("TZ", "UTC", 1);
    assert_int_equal(pl_words_node_reason(full, &text), 0);
    assert_string_equal(pl_buf_str(&text), "n1 is draining: GPU 3 (root, 2023-11-14 22:13)");
    pl_buf_consume(&text, text.len);
    assert_int_equal(pl_words_node_reason(bare, &text), 0);
    assert_string_equal(pl_buf_str(&text), "n2 is down*: no reason is given");
}

/* The same slurm.conf leads to every cluster that SLURM_CLUSTERS names. */
static void test_file_of_each_cluster(void **state)
{
    static const char *const places[][2] = {
        {"/a", NULL}, {"/a", "b"}, {"/ab", NULL}, {NULL, "/ab"}};
    char home[] = "/tmp/test-slurm_nodes-XXXXXX";
    struct stat st;

    assert_non_null(mkdtemp(home));
    setenv("PLUME_HOME", home, 1);
    for (size_t i = 0; i < 2 * PL_COUNT(places); i++) {
        const char *const *place = places[i % PL_COUNT(places)];
        int fd;

        place[0] ? setenv("SLURM_CONF", place[0], 1) : unsetenv("SLURM_CONF");
        place[1] ? setenv("SLURM_CLUSTERS", place[1], 1) : unsetenv("SLURM_CLUSTERS");
        fd = pl_slurm_cache_open("test", geteuid());
        assert_true(fd >= 0);
        assert_int_equal(fstat(fd, &st), 0);
        assert_int_equal(st.st_size, i < PL_COUNT(places) ? 0 : i % PL_COUNT(places) + 1);
        assert_int_equal(ftruncate(fd, (off_t)(i % PL_COUNT(places) + 1)), 0);
        close(fd);
    }
    unsetenv("SLURM_CONF");
    unsetenv("SLURM_CLUSTERS");
    assert_int_equal(pl_remove_tree(AT_FDCWD, home), 0);
}

/* A plstat that its user has stopped may have the lock: the others ask Slurm without the file. */
static void test_lock_of_somebody_who_is_stopped(void **state)
{
    char home[] = "/tmp/test-slurm_nodes-XXXXXX";
    uint64_t start;
    int fd;

    assert_non_null(mkdtemp(home));
    setenv("PLUME_HOME", home, 1);
    fd = pl_slurm_cache_open("test", geteuid());
    assert_true(fd >= 0);
    start = pl_now_ns();
    alarm(20); /* it would wait for ever */
    assert_int_equal(pl_slurm_cache_open("test", geteuid()), -EBADF);
    alarm(0);
    assert_true(pl_now_ns() - start > 6000000000ull); /* one that asks Slurm is waited for */
    close(fd);
    fd = pl_slurm_cache_open("test", geteuid());
    assert_true(fd >= 0);
    close(fd);
    assert_int_equal(pl_remove_tree(AT_FDCWD, home), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lines),
        cmocka_unit_test(test_reason_that_forges_a_line),
        cmocka_unit_test(test_reason_that_is_long),
        cmocka_unit_test(test_of_a_trial),
        cmocka_unit_test(test_words),
        cmocka_unit_test(test_file_of_each_cluster),
        cmocka_unit_test(test_lock_of_somebody_who_is_stopped),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
