/* SPDX-License-Identifier: MIT */
#include "common/base/fs.h"
#include "common/proto/json.h"
#include "common/proto/protocol.h"
#include "common/run/run_state.h"
#include "runtime/plrund/hub/thin.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#define RANKS 5
#define START 1795600000.0

/* Records, as the hub writes them; one of a rank has v, and every tenth w, too. */
struct records {
    struct pl_buf text;
    size_t n;
};

static void add(struct records *r, unsigned rank, unsigned second, const char *v, const char *more)
{
    assert_int_equal(
        pl_buf_addf(&r->text,
                    "{\"type\":\"metrics\",\"rank\":%u,\"step\":%u,\"metrics\":{\"v\":%s%s},"
                    "\"seq\":%zu,\"t\":%.3f}\n",
                    rank, second, v, more, ++r->n, START + second),
        0);
}

static struct records make(unsigned seconds, unsigned seed)
{
    struct records r = {0};

    srand(seed);
    for (unsigned s = 0; s < seconds; s++) {
        for (unsigned rank = 0; rank < RANKS; rank++) {
            char v[32], w[32] = "";

            snprintf(v, sizeof(v), rand() % 200 ? "%d" : "\"nan\"", rand() % 1000000);
            if (s % 10 == 3)
                snprintf(w, sizeof(w), ",\"w\":%u", s);
            add(&r, rank, s, v, w);
        }
        if (s % 5 == 0)
            pl_buf_addf(&r.text,
                        "{\"type\":\"gpus\",\"node_id\":0,\"gpus\":[{\"gpu\":0,\"util\":%d}],"
                        "\"seq\":%zu,\"t\":%.3f}\n",
                        rand() % 100, ++r.n, START + s);
    }
    return r;
}

static json_t *next_record(const char **at)
{
    const char *newline = strchr(*at, '\n');
    json_t *o;

    if (!newline)
        return NULL;
    assert_int_equal(pl_json_parse(*at, (size_t)(newline - *at), PL_FRAME_MAX, &o, NULL), 0);
    *at = newline + 1;
    return o;
}

static json_t *state_of(const char *text)
{
    json_t *state = pl_run_state_new(), *o;

    o = json_pack("{s:s, s:i, s:s}", "type", "attempt", "world_size", RANKS, "state", "waiting");
    assert_int_equal(pl_run_state_apply(state, o, NULL), 0);
    json_decref(o);
    while ((o = next_record(&text))) {
        assert_int_equal(pl_run_state_apply(state, o, NULL), 0);
        json_decref(o);
    }
    return state;
}

/* Lowest and highest value of v, and the numbers of its first record and of the first that is not
 * finite. */
struct edges {
    double low, high;
    int64_t first, odd;
};

static struct edges edges_of(const char *text, unsigned rank)
{
    struct edges e = {INFINITY, -INFINITY, -1, -1};
    json_t *o;

    for (; (o = next_record(&text)); json_decref(o)) {
        json_t *v = json_object_get(json_object_get(o, "metrics"), "v");
        int64_t of, seq;

        if (!v || pl_json_int(o, "rank", &of) < 0 || of != rank)
            continue;
        pl_json_int(o, "seq", &seq);
        e.first = e.first < 0 ? seq : e.first;
        if (!json_is_number(v)) {
            e.odd = e.odd < 0 ? seq : e.odd;
            continue;
        }
        e.low = fmin(e.low, json_number_value(v));
        e.high = fmax(e.high, json_number_value(v));
    }
    return e;
}

/* The longest time between two records of this rank. */
static double widest_gap(const char *text, unsigned rank)
{
    double widest = 0, last = NAN;
    json_t *o;

    for (; (o = next_record(&text)); json_decref(o)) {
        double t = json_number_value(json_object_get(o, "t"));
        int64_t of;

        if (pl_json_int(o, "rank", &of) < 0 || of != rank)
            continue;
        if (!isnan(last))
            widest = fmax(widest, t - last);
        last = t;
    }
    return widest;
}

static size_t count_lines(const char *text)
{
    size_t n = 0;

    while ((text = strchr(text, '\n')) && text++)
        n++;
    return n;
}

static void check(const struct records *r, size_t target, double grid_s, struct pl_thinned *ret)
{
    json_t *before = state_of(pl_buf_str(&r->text)), *after;
    const char *all = pl_buf_str(&r->text), *line = all;

    assert_int_equal(pl_thin(all, r->text.len, target, grid_s, ret), 0);
    after = state_of(pl_buf_str(&ret->text));
    assert_true(json_equal(before, after));
    json_decref(before);
    json_decref(after);
    assert_int_equal(count_lines(pl_buf_str(&ret->text)) + ret->n_left_out, count_lines(all));
    for (const char *at = pl_buf_str(&ret->text); *at; at = strchr(at, '\n') + 1) {
        char *copy = strndup(at, strcspn(at, "\n") + 1);

        line = strstr(line, copy); /* the same lines, in the same order */
        assert_non_null(line);
        free(copy);
    }
}

static void test_thin_keeps_the_state_the_edges_and_an_even_sample(void **state)
{
    for (unsigned seed = 1; seed <= 20; seed++) {
        struct records r = make(600, seed);
        size_t target = r.text.len / (seed % 2 ? 4 : 12);
        struct pl_thinned t;

        check(&r, target, 0, &t);
        assert_in_range(t.text.len, target / 4, target);
        for (unsigned rank = 0; rank < RANKS; rank++) {
            struct edges a = edges_of(pl_buf_str(&r.text), rank);
            struct edges b = edges_of(pl_buf_str(&t.text), rank);

            assert_true(a.low == b.low && a.high == b.high && a.first == b.first);
            assert_int_equal(a.odd, b.odd);
            assert_true(widest_gap(pl_buf_str(&t.text), rank) <= 2 * t.grid_s);
        }
        pl_buf_finish(&t.text);
        pl_buf_finish(&r.text);
    }
}

/* Again and again, with new records after the thinned ones: nothing of the above is lost. */
static void test_thin_repeated(void **state)
{
    struct records all = {0}, file = {0};
    double grid_s = 0;

    for (unsigned s = 0; s < 6000; s++) {
        char v[32];

        snprintf(v, sizeof(v), "%d", (int)((s * 7919u) % 10007u));
        add(&all, 1, s, v, "");
        add(&file, 1, s, v, "");
        if (file.text.len > 40000) {
            struct pl_thinned t;

            assert_int_equal(pl_thin(pl_buf_str(&file.text), file.text.len, 12000, grid_s, &t), 0);
            assert_true(t.text.len <= 12000 && t.grid_s >= grid_s);
            pl_buf_finish(&file.text);
            file.text = t.text;
            grid_s = t.grid_s;
        }
    }
    for (int i = 0; i < 2; i++) { /* the second time without new records: nothing more goes */
        struct edges a = edges_of(pl_buf_str(&all.text), 1);
        struct edges b = edges_of(pl_buf_str(&file.text), 1);
        struct pl_thinned t;

        assert_true(a.low == b.low && a.high == b.high && a.first == b.first);
        assert_true(widest_gap(pl_buf_str(&file.text), 1) <= 2 * grid_s);
        assert_int_equal(pl_thin(pl_buf_str(&file.text), file.text.len, 12000, grid_s, &t), 0);
        pl_buf_finish(&file.text);
        file.text = t.text;
        grid_s = t.grid_s;
    }
    pl_buf_finish(&all.text);
    pl_buf_finish(&file.text);
}

static void test_thin_too_small_a_target_keeps_the_state(void **state)
{
    struct records r = make(100, 7);
    struct pl_thinned t;

    check(&r, 10, 0, &t);
    assert_true(count_lines(pl_buf_str(&t.text)) <= 3 * RANKS + 1);
    pl_buf_finish(&t.text);
    pl_buf_finish(&r.text);
}

static void test_thin_keeps_what_is_no_record(void **state)
{
    static const char odd[] = "{\"type\":\"other\",\"t\":1}\nnot json\n{\"type\":\"metrics\"}\n"
                              "{\"type\":\"metrics\",\"rank\":-1,\"t\":1}\n"
                              "{\"type\":\"metrics\",\"rank\":99999999,\"t\":1}\n\n";
    struct records r = make(50, 3);
    struct pl_thinned t;

    assert_int_equal(pl_buf_adds(&r.text, odd), 0);
    assert_int_equal(pl_thin(pl_buf_str(&r.text), r.text.len, 500, 0, &t), 0);
    assert_non_null(strstr(pl_buf_str(&t.text), odd));
    pl_buf_finish(&t.text);
    pl_buf_finish(&r.text);
    assert_int_equal(pl_thin("", 0, 500, 0, &t), 0);
    assert_int_equal(t.text.len, 0);
    pl_buf_finish(&t.text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_thin_keeps_the_state_the_edges_and_an_even_sample),
        cmocka_unit_test(test_thin_repeated),
        cmocka_unit_test(test_thin_too_small_a_target_keeps_the_state),
        cmocka_unit_test(test_thin_keeps_what_is_no_record),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
