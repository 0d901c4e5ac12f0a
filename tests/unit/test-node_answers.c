/* SPDX-License-Identifier: MIT */
/* The output of srun --label of several nodes, whose lines it mixes in pieces of 1024 bytes. */
#include "common/base/buf.h"
#include "common/proto/json.h"
#include "launcher/plstat/node_answers.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define PIECE 1024 /* MAX_MSG_LEN of slurmstepd's io.c */

static json_t *answers_of(const char *text)
{
    json_t *list = json_array();

    assert_int_equal(pl_node_answers(text, list), 0);
    return list;
}

static void assert_answers(const char *text, size_t n)
{
    json_t *list = answers_of(text);

    assert_int_equal(json_array_size(list), n);
    json_decref(list);
}

static void test_short_lines(void **state)
{
    assert_answers("", 0);
    assert_answers("0: {\"a\":1}\n1: {\"a\":2}\n", 2);
    assert_answers(" 0: {\"a\":1}\n10: {\"a\":2}", 2);
    assert_answers("0: welcome to this site\n0: {\"a\":1}\n0: {\"goodbye\":1}\n1: \n", 1);
    assert_answers("{\"a\":1}\nsrun: 1: {\"a\":1}\n0:{\"a\":1}\n0\n0:\n0: {\"a\":\n", 0);
}

/* Documents of many sizes and tasks, whose pieces come in any order: each comes back as it was. */
static void test_pieces_are_mixed(void **state)
{
    enum { TASKS = 12 };

    srand(7);
    for (int round = 0; round < 200; round++) {
        json_t *docs[TASKS], *list;
        char *texts[TASKS], *left[TASKS];
        struct pl_buf said = {0};
        size_t open = TASKS, i;

        for (int t = 0; t < TASKS; t++) {
            docs[t] = json_pack("{s:i, s:[{}]}", "task", t, "processes");
            for (int k = rand() % 60; k > 0; k--) /* ends of objects at any place */
                json_array_append_new(json_object_get(docs[t], "processes"),
                                      json_pack("{s:i, s:{s:s}}", "pid", rand(), "why", "text",
                                                rand() % 2 ? "a: {}" : "0: }}"));
            left[t] = texts[t] = json_dumps(docs[t], JSON_COMPACT);
        }
        while (open > 0) {
            int t = rand() % TASKS;
            size_t n = left[t] ? strlen(left[t]) : 0;

            if (!left[t])
                continue;
            n = n < PIECE ? n : PIECE;
            assert_int_equal(pl_buf_addf(&said, "%2d: %.*s\n", t, (int)n, left[t]), 0);
            left[t] += n;
            if (!*left[t]) {
                left[t] = NULL;
                open--;
            }
        }
        list = answers_of(pl_buf_str(&said));
        assert_int_equal(json_array_size(list), TASKS);
        for (i = 0; i < TASKS; i++) {
            json_t *o = json_array_get(list, i);

            assert_true(json_equal(o, docs[json_integer_value(json_object_get(o, "task"))]));
        }
        json_decref(list);
        pl_buf_finish(&said);
        for (int t = 0; t < TASKS; t++) {
            json_decref(docs[t]);
            free(texts[t]);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_short_lines),
        cmocka_unit_test(test_pieces_are_mixed),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
