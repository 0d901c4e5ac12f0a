/* SPDX-License-Identifier: MIT */
#include "common/base/fs.h"
#include "common/proto/json.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>

#include <cmocka.h>

static int parse(const char *text, json_t **ret)
{
    struct pl_error err = {0};
    int r = pl_json_parse(text, strlen(text), 64 * 1024, ret, &err);

    assert_true(r <= 0);
    assert_int_equal(r < 0, err.text[0] != '\0');
    assert_null(strchr(err.text, '\n'));
    return r;
}

static void test_parse_good(void **state)
{
    _cleanup_(json_decrefp) json_t *o = NULL;
    int64_t n = 7;

    assert_int_equal(parse(" {\"a\":\"x\\u00e9\",\"b\":-3,\"c\":[1,2],\"d\":1.5} ", &o), 0);
    assert_string_equal(pl_json_string(o, "a"), "x\xc3\xa9");
    assert_null(pl_json_string(o, "b"));
    assert_null(pl_json_string(o, "none"));
    assert_null(pl_json_string(NULL, "a"));
    assert_int_equal(pl_json_int(o, "b", &n), 0);
    assert_int_equal(n, -3);
    assert_int_equal(pl_json_int(o, "a", &n), -EINVAL);
    assert_int_equal(pl_json_int(o, "d", &n), -EINVAL);
    assert_int_equal(pl_json_int(o, "none", &n), -ENOENT);
    assert_int_equal(n, -3);
}

static void test_parse_bad(void **state)
{
    static const char *const bad[] = {
        "",
        "{",
        "[]",
        "1",
        "\"a\"",
        "{}{}",
        "{} x",
        "{\"a\":1,\"a\":1}",
        "{a:1}",
        "{\"a\":01}",
        "{\"a\":NaN}",
        "{'a':1}",
        "{\"a\":1,}",
        "null",
        "{\"a\":\"\\u0000\"}",
        "{\"a\":\"\xff\"}",
        "{\"a\":\"\xc0\x80\"}",
        "{\"a\":{\"b\":1,\"b\":2}}",
    };
    json_t *o = NULL;

    for (size_t i = 0; i < PL_COUNT(bad); i++)
        assert_int_equal(parse(bad[i], &o), -EINVAL);
    assert_null(o);
}

static int parse_nested(unsigned depth)
{
    _cleanup_(pl_buf_finish) struct pl_buf text = {0};
    _cleanup_(json_decrefp) json_t *o = NULL;

    for (unsigned i = 1; i < depth; i++)
        pl_buf_adds(&text, "{\"a\":");
    pl_buf_adds(&text, "{\"b\":\"]]}}\\\"[[[\"");
    for (unsigned i = 0; i < depth; i++)
        pl_buf_addc(&text, '}');
    return parse(pl_buf_str(&text), &o);
}

static void test_parse_depth(void **state)
{
    assert_int_equal(parse_nested(1), 0);
    assert_int_equal(parse_nested(PL_JSON_DEPTH_MAX), 0);
    assert_int_equal(parse_nested(PL_JSON_DEPTH_MAX + 1), -EINVAL);
    assert_int_equal(parse_nested(5000), -EINVAL);
}

static void test_parse_size(void **state)
{
    _cleanup_(json_decrefp) json_t *o = NULL;
    struct pl_error err = {0};

    assert_int_equal(pl_json_parse("{}  ", 2, 1, &o, &err), -EFBIG);
    assert_int_equal(pl_json_parse("{}garbage", 2, 2, &o, &err), 0);
}

/* ---- keys that fall into one bucket of jansson's hash table ---- */

#define SEED 1
#define COLLIDING 1000u /* of one bucket of 1024 */
#define BROKEN 255      /* exit code of a child in which the text cannot be parsed */

static uint32_t rotate(uint32_t x, unsigned k)
{
    return x << k | x >> (32 - k);
}

/* Bob Jenkins' lookup3 (public domain) of 8 bytes, which jansson uses. */
static uint32_t hash_of(const char key[8], uint32_t seed)
{
    uint32_t a = 0xdeadbeef + 8 + seed, b = a, c = a, word[2];

    memcpy(word, key, 8);
    a += word[0];
    b += word[1];
    c = (c ^ b) - rotate(b, 14);
    a = (a ^ c) - rotate(c, 11);
    b = (b ^ a) - rotate(a, 25);
    c = (c ^ b) - rotate(b, 16);
    a = (a ^ c) - rotate(c, 4);
    b = (b ^ a) - rotate(a, 14);
    return (c ^ b) - rotate(b, 24);
}

/* An object of COLLIDING keys; those of one bucket if the process's seed is SEED. */
static void make_object(struct pl_buf *out, bool colliding)
{
    unsigned n = 0;

    pl_buf_addc(out, '{');
    for (unsigned i = 0; n < COLLIDING; i++) {
        char key[8];

        for (unsigned k = 0; k < 8; k++)
            key[k] = "0123456789abcdef"[i >> 4 * k & 15];
        if (!colliding || (hash_of(key, SEED) & 1023) == 0)
            pl_buf_addf(out, "%s\"%.8s\":1", n++ ? "," : "", key);
    }
    pl_buf_addc(out, '}');
}

/* Nanoseconds of a processor for parsing it; the best of some times. */
static uint64_t parse_ns(const struct pl_buf *text)
{
    uint64_t best = UINT64_MAX;

    for (int i = 0; i < 5; i++) {
        _cleanup_(json_decrefp) json_t *o = NULL;
        struct timespec a, b;

        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &a);
        if (pl_json_parse(text->data, text->len, 64 * 1024, &o, NULL) < 0 ||
            json_object_size(o) != COLLIDING)
            _exit(BROKEN);
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &b);
        best = PL_MIN(best, (uint64_t)(b.tv_sec - a.tv_sec) * 1000000000u + (uint64_t)b.tv_nsec -
                                (uint64_t)a.tv_nsec);
    }
    return best;
}

/* Times that colliding keys take longer, in a process of its own, which has no seed yet. */
static int slow_down(unsigned seed)
{
    int status;
    pid_t pid = fork();

    if (pid == 0) {
        _cleanup_(pl_buf_finish) struct pl_buf colliding = {0}, plain = {0};

        if (seed)
            json_object_seed(seed);
        make_object(&colliding, true);
        make_object(&plain, false);
        _exit((int)PL_MIN(parse_ns(&colliding) / PL_MAX(parse_ns(&plain), 1u), 200u));
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) != BROKEN);
    return WEXITSTATUS(status);
}

/* Whoever does not know the seed, which each process draws, makes no line that is slow to read. The
 * first test: no other may have drawn it. */
static void test_parse_colliding_keys(void **state)
{
    int known = slow_down(SEED), drawn = slow_down(0);

    print_message("# %dx as long with a known seed, %dx with a drawn one\n", known, drawn);
    if (known < 4)
        print_message("# skipped: this jansson has another hash\n");
    else
        assert_true(drawn < 3);
}

static void test_load_file(void **state)
{
    char path[] = "/tmp/plume-test-json-XXXXXX";
    _cleanup_(json_decrefp) json_t *o = NULL;
    struct pl_error err = {0};
    _cleanup_close_ int fd = mkstemp(path);

    assert_true(fd >= 0);
    assert_int_equal(pl_write_all(fd, "{\"a\":1}\n", 8), 0);
    assert_int_equal(pl_json_load_file(path, 100, &o, &err), 0);
    assert_int_equal(pl_write_all(fd, "}", 1), 0);
    json_decref(PL_TAKE(o));
    assert_int_equal(pl_json_load_file(path, 100, &o, &err), -EINVAL);
    assert_non_null(strstr(err.text, path));
    assert_int_equal(pl_json_load_file(path, 5, &o, &err), -EFBIG);
    unlink(path);
    assert_int_equal(pl_json_load_file(path, 100, &o, &err), -ENOENT);
}

static void test_dump_line(void **state)
{
    _cleanup_(pl_buf_finish) struct pl_buf out = {0};
    _cleanup_(json_decrefp) json_t *o = NULL;

    assert_int_equal(parse("{ \"z\": 1, \"a\": \"\xc3\xa9\\n\" }", &o), 0);
    assert_int_equal(pl_json_dump_line(o, &out), 0);
    assert_string_equal(pl_buf_str(&out), "{\"z\":1,\"a\":\"\xc3\xa9\\n\"}\n");
    assert_int_equal(pl_json_dump_line(NULL, &out), -EINVAL);
}

/* Exact, and no longer than it must be. */
static void test_dump_numbers(void **state)
{
    static const struct {
        double value;
        const char *text;
    } rows[] = {
        {0.919, "0.919"},
        {0.1, "0.1"},
        {3, "3.0"},
        {24.0 / 7, "3.4285714285714284"},
        {-1e-300, "-1e-300"},
        {1e22, "1e22"},
        {5e-324, NULL}, /* its digits depend on jansson's release */
        {1.0 / 3, "0.3333333333333333"},
        {123456789012345680, "1.2345678901234568e17"},
    };

    for (size_t i = 0; i < PL_COUNT(rows); i++) {
        _cleanup_(pl_buf_finish) struct pl_buf line = {0};
        json_t *o = json_pack("{s:f, s:s, s:I}", "v", rows[i].value, "s", "0.10000000000000001",
                              "i", (json_int_t)INT64_MAX),
               *back;
        char want[128];

        snprintf(want, sizeof(want),
                 "{\"v\":%s,\"s\":\"0.10000000000000001\",\"i\":9223372036854775807}\n",
                 rows[i].text ? rows[i].text : "");
        assert_int_equal(pl_json_dump_line(o, &line), 0);
        if (rows[i].text)
            assert_string_equal(line.data, want);
        assert_int_equal(pl_json_parse(line.data, line.len, SIZE_MAX, &back, NULL), 0);
        assert_true(json_equal(o, back));
        json_decref(back);
        json_decref(o);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parse_colliding_keys),
        cmocka_unit_test(test_parse_good),
        cmocka_unit_test(test_parse_bad),
        cmocka_unit_test(test_parse_depth),
        cmocka_unit_test(test_parse_size),
        cmocka_unit_test(test_load_file),
        cmocka_unit_test(test_dump_line),
        cmocka_unit_test(test_dump_numbers),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
