/* SPDX-License-Identifier: MIT */
#include "common/base/fs.h"
#include "common/proto/json.h"
#include "common/run/run_state.h"
#include "tests/lib/tmpdir.h"

#include <fcntl.h>
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

/* Single quotes stand for double ones. */
static json_t *parse(const char *text)
{
    char *copy = strdup(text);
    struct pl_error err = {0};
    json_t *o = NULL;

    for (char *p = copy; *p; p++)
        *p = *p == '\'' ? '"' : *p;
    if (pl_json_parse(copy, strlen(copy), SIZE_MAX, &o, &err) < 0)
        fail_msg("%s: %s", text, err.text);
    free(copy);
    return o;
}

static int apply(json_t *doc, const char *text)
{
    json_t *event = parse(text);
    struct pl_error err = {0};
    int r = pl_run_state_apply(doc, event, &err);

    assert_int_equal(r < 0, err.text[0] != '\0');
    json_decref(event);
    return r;
}

static void assert_doc(json_t *doc, const char *text)
{
    json_t *want = parse(text);

    if (!json_equal(doc, want)) {
        char *have = json_dumps(doc, 0);

        fail_msg("%s", have);
    }
    json_decref(want);
}

static void test_apply_events(void **state)
{
    json_t *doc = pl_run_state_new();

    assert_int_equal(apply(doc, "{'type':'attempt','t':1.5,'seq':1,'job':'7','world_size':2}"), 0);
    assert_int_equal(apply(doc, "{'type':'node','seq':2,'node_id':1,'node':'n1'}"), 0);
    assert_int_equal(apply(doc, "{'type':'rank','rank':1,'node':'n1','state':'running'}"), 0);
    assert_int_equal(apply(doc, "{'type':'metrics','rank':1,'step':5,'metrics':{'a':1,'b':2}}"), 0);
    assert_int_equal(apply(doc, "{'type':'metrics','rank':1,'metrics':{'a':'nan'}}"), 0);
    assert_int_equal(apply(doc, "{'type':'fact','rank':0,'key':'h','value':'x'}"), 0);
    assert_int_equal(apply(doc, "{'type':'later','rank':77}"), 0);
    assert_int_equal(apply(doc, "{'type':'cause','cause':{'kind':'exit'},'others':[]}"), 0);
    assert_int_equal(apply(doc, "{'type':'state','state':'failed','ended':3}"), 0);
    assert_doc(doc, "{'nodes':[{},{'node':'n1'}],'job':'7','world_size':2,'state':'failed',"
                    "'ended':3,'cause':{'kind':'exit'},'others':[],'ranks':["
                    "{'rank':0,'state':'starting','facts':{'h':'x'}},"
                    "{'rank':1,'state':'running','node':'n1','step':5,"
                    "'metrics':{'a':'nan','b':2}}]}");
    json_decref(doc);
}

static void test_apply_refused(void **state)
{
    static const char *const bad[] = {
        "{}",
        "{'type':7}",
        "{'type':'rank','state':'running'}",
        "{'type':'rank','rank':2,'state':'running'}",
        "{'type':'rank','rank':-1}",
        "{'type':'rank','rank':'0'}",
        "{'type':'rank','rank':9223372036854775807}",
        "{'type':'metrics','rank':4294967296,'metrics':{}}",
        "{'type':'fact','rank':0,'value':'x'}",
        "{'type':'fact','rank':0,'key':'k','value':1}",
        "{'type':'node','node':'x'}",
        "{'type':'node','node_id':-1}",
        "{'type':'node','node_id':4294967296}",
        "{'type':'gpu','gpu':0}",
        "{'type':'gpus','gpus':[]}",
        "{'type':'gpus','node_id':0}",
        "{'type':'gpus','node_id':0,'gpus':{}}",
        "{'type':'attempt','world_size':-1}",
        "{'type':'attempt','world_size':1000001}",
    };
    json_t *doc = pl_run_state_new(), *before;

    assert_int_equal(apply(doc, "{'type':'attempt','world_size':2}"), 0);
    before = json_deep_copy(doc);
    for (size_t i = 0; i < PL_COUNT(bad); i++)
        if (apply(doc, bad[i]) != -EINVAL)
            fail_msg("%s", bad[i]);
    /* A refused fact may have made an empty place for facts, and no more. */
    json_object_del(pl_run_state_rank(doc, 0), "facts");
    assert_true(json_equal(doc, before));
    json_decref(before);
    json_decref(doc);
}

static void test_apply_gpus(void **state)
{
    json_t *doc = pl_run_state_new(), *errors;

    apply(doc, "{'type':'gpus','node_id':1,'gpus':[{'gpu':0,'util':1}]}");
    apply(doc, "{'type':'gpus','node_id':1,'gpus':[{'gpu':0,'util':2}],'t':5}");
    apply(doc, "{'type':'gpu','node_id':1,'node':'n','gpu':0,'xid':79,'ranks':[3],'t':7,'seq':1}");
    assert_doc(doc, "{'nodes':[{},{'gpus':[{'gpu':0,'util':2}],"
                    "'gpu_events':[{'gpu':0,'xid':79,'ranks':[3],'t':7}]}],'ranks':[]}");
    for (int i = 0; i < 16; i++)
        apply(doc, "{'type':'gpu','node_id':1,'gpu':0,'xid':31}");
    errors = json_object_get(json_array_get(json_object_get(doc, "nodes"), 1), "gpu_events");
    assert_int_equal(json_array_size(errors), 16); /* the first one is gone */
    assert_int_equal(json_integer_value(json_object_get(json_array_get(errors, 0), "xid")), 31);
    json_decref(doc);
}

/* Events that fall upon the document's own bones. */
static void test_apply_reserved_keys(void **state)
{
    json_t *doc = pl_run_state_new();

    apply(doc, "{'type':'attempt','world_size':2,'ranks':'gone','nodes':7}");
    apply(doc, "{'type':'state','ranks':null,'nodes':{},'state':'running'}");
    apply(doc, "{'type':'cause','ranks':[]}");
    apply(doc, "{'type':'rank','rank':1,'metrics':7,'facts':'x','state':'running'}");
    apply(doc, "{'type':'metrics','rank':1,'metrics':{'a':1}}");
    apply(doc, "{'type':'node','node_id':0,'node':'n'}");
    assert_int_equal(json_array_size(json_object_get(doc, "ranks")), 2);
    assert_int_equal(json_array_size(json_object_get(doc, "nodes")), 1);
    assert_string_equal(pl_json_string(pl_run_state_rank(doc, 1), "state"), "running");
    json_decref(doc);
}

/* The event stays as it was, whatever comes later. */
static void test_apply_keeps_event(void **state)
{
    json_t *doc = pl_run_state_new(), *event, *copy;

    apply(doc, "{'type':'attempt','world_size':1}");
    event = parse("{'type':'rank','rank':0,'metrics':{'a':1},'facts':{'f':'1'}}");
    copy = json_deep_copy(event);
    assert_int_equal(pl_run_state_apply(doc, event, NULL), 0);
    apply(doc, "{'type':'metrics','rank':0,'metrics':{'a':2}}");
    apply(doc, "{'type':'fact','rank':0,'key':'f','value':'2'}");
    assert_true(json_equal(event, copy));
    json_decref(copy);
    json_decref(event);
    json_decref(doc);
}

static char top[64];

static void put(const char *name, const char *text)
{
    _cleanup_free_ char *path = pl_path_join(top, name);

    unlink(path);
    assert_int_equal(pl_file_append(path, text, strlen(text), 0600, NULL), 0);
}

static void test_load_files(void **state)
{
    struct pl_error err = {0};
    json_t *doc = NULL;

    assert_int_equal(pl_run_state_load(top, &doc, &err), -ENOENT);
    put("events.jsonl", "{\"type\":\"attempt\",\"world_size\":1}\n"
                        "{\"type\":\"rank\",\"rank\":0,\"state\":\"running\"}\n"
                        "{\"type\":\"rank\",\"rank\":0,\"sta");
    assert_int_equal(pl_run_state_load(top, &doc, &err), 0); /* a line that is being written */
    assert_doc(doc, "{'nodes':[],'world_size':1,'ranks':[{'rank':0,'state':'running'}]}");
    json_decref(doc);
    put("metrics.jsonl", "{\"type\":\"metrics\",\"rank\":0,\"metrics\":{\"a\":1}}\n");
    assert_int_equal(pl_run_state_load(top, &doc, &err), 0);
    json_decref(doc);
    put("events.jsonl", "{\"type\":\"attempt\",\"world_size\":1}\nrubbish\n");
    assert_int_equal(pl_run_state_load(top, &doc, &err), -EINVAL);
    assert_non_null(strstr(err.text, "line 2"));
    put("events.jsonl", "");
    put("metrics.jsonl", "");
    assert_int_equal(pl_run_state_load(top, &doc, &err), 0);
    json_decref(doc);
}

static void test_status_words(void **state)
{
    json_t *o = json_object(), *copy = json_object();

    assert_int_equal(pl_run_state_set_status(o, 3 << 8), 0);
    assert_doc(o, "{'exit':3}");
    assert_int_equal(pl_run_state_exit_code(o), 3);
    json_object_clear(o);
    assert_int_equal(pl_run_state_set_status(o, SIGSEGV | 0x80), 0);
    assert_doc(o, "{'signal':11,'signal_name':'SIGSEGV'}");
    assert_int_equal(pl_run_state_exit_code(o), 139);
    assert_int_equal(pl_run_state_copy_status(copy, o), 0);
    assert_true(json_equal(o, copy));
    json_object_clear(o);
    assert_int_equal(pl_run_state_set_status(o, SIGRTMIN + 3), 0);
    assert_non_null(pl_json_string(o, "signal_name"));
    json_object_clear(o);
    assert_int_equal(pl_run_state_exit_code(o), 1);
    json_object_set_new(o, "exit", json_integer(256));
    assert_int_equal(pl_run_state_exit_code(o), 1);
    json_object_set_new(o, "exit", json_integer(-1));
    json_object_set_new(o, "signal", json_integer(128));
    assert_int_equal(pl_run_state_exit_code(o), 1);
    json_decref(copy);
    json_decref(o);
}

static void test_number_spellings(void **state)
{
    json_t *o = parse("{'i':3,'r':1.5,'n':'nan','p':'inf','m':'-inf','x':'1','y':null}");
    double v = 7;

    assert_int_equal(pl_run_state_number(json_object_get(o, "i"), &v), 0);
    assert_true(v == 3);
    assert_int_equal(pl_run_state_number(json_object_get(o, "r"), &v), 0);
    assert_true(v == 1.5);
    assert_int_equal(pl_run_state_number(json_object_get(o, "n"), &v), 0);
    assert_true(isnan(v));
    assert_int_equal(pl_run_state_number(json_object_get(o, "p"), &v), 0);
    assert_true(isinf(v) && v > 0);
    assert_int_equal(pl_run_state_number(json_object_get(o, "m"), &v), 0);
    assert_true(isinf(v) && v < 0);
    assert_int_equal(pl_run_state_number(json_object_get(o, "x"), &v), -EINVAL);
    assert_int_equal(pl_run_state_number(json_object_get(o, "y"), &v), -EINVAL);
    assert_int_equal(pl_run_state_number(NULL, &v), -EINVAL);
    json_decref(o);
}

/* replay(log) == snapshot: whatever happens, the files make the document that the hub had. */
#define RANKS 6

static uint64_t seed;

static unsigned roll(unsigned n)
{
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return (unsigned)(seed % n);
}

static json_t *random_event(void)
{
    static const char *const states[] = {"starting", "running", "done", "failed", "lost"};
    static const char *const names[] = {"loss", "acc", "x"};
    json_t *e;

    switch (roll(8)) {
    case 0:
        return json_pack("{s:s, s:i, s:s, s:s}", "type", "node", "node_id", (int)roll(4), "node",
                         "n", "state", states[roll(5)]);
    case 1:
    case 2:
        e = json_pack("{s:s, s:i, s:s}", "type", "rank", "rank", (int)roll(RANKS + 1), "state",
                      states[roll(5)]);
        if (roll(2))
            pl_run_state_set_status(e, (int)roll(65536));
        return e;
    case 3:
        return json_pack("{s:s, s:i, s:s, s:s}", "type", "fact", "rank", (int)roll(RANKS + 1),
                         "key", names[roll(3)], "value", states[roll(5)]);
    case 4:
        return json_pack("{s:s, s:{s:s, s:i}, s:[{s:i}]}", "type", "cause", "cause", "kind", "exit",
                         "rank", (int)roll(RANKS), "others", "rank", (int)roll(RANKS));
    case 5:
        return json_pack("{s:s, s:s, s:f}", "type", "state", "state", states[roll(5)], "ended",
                         (double)roll(1000) / 8);
    default:
        e = json_pack("{s:s, s:i, s:{s:f}}", "type", "metrics", "rank", (int)roll(RANKS + 1),
                      "metrics", names[roll(3)], (double)roll(1000) / 7);
        if (roll(2))
            json_object_set_new(e, "step", json_integer(roll(1000)));
        return e;
    }
}

static void test_replay_equals_snapshot(void **state)
{
    _cleanup_free_ char *events = pl_path_join(top, "events.jsonl");
    _cleanup_free_ char *metrics = pl_path_join(top, "metrics.jsonl");
    const char *given = getenv("PLUME_TEST_SEED");

    seed = given ? strtoull(given, NULL, 10) : (uint64_t)time(NULL) * 1000003 + 1;
    print_message("# PLUME_TEST_SEED=%llu\n", (unsigned long long)seed);
    for (int round = 0; round < 600; round++) {
        struct pl_buf files[2] = {{0}, {0}};
        json_t *doc = pl_run_state_new(), *again = NULL, *e;
        struct pl_error err = {0};
        unsigned n = roll(40);

        for (unsigned i = 0; i <= n; i++) {
            e = i ? random_event()
                  : json_pack("{s:s, s:i}", "type", "attempt", "world_size", RANKS);
            assert_non_null(e);
            json_object_set_new(e, "seq", json_integer(i));
            if (pl_run_state_apply(doc, e, &err) == 0) /* what is refused is not logged */
                pl_json_dump_line(e, &files[strcmp(pl_json_string(e, "type"), "metrics") == 0]);
            json_decref(e);
        }
        for (int i = 0; i < 2; i++) {
            int fd = open(i ? metrics : events, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

            assert_int_equal(pl_write_all(fd, pl_buf_str(&files[i]), files[i].len), 0);
            close(fd);
            pl_buf_finish(&files[i]);
        }
        if (pl_run_state_load(top, &again, &err) < 0)
            fail_msg("round %d: %s", round, err.text);
        if (!json_equal(doc, again)) {
            char *a = json_dumps(doc, JSON_SORT_KEYS), *b = json_dumps(again, JSON_SORT_KEYS);

            fprintf(stderr, "# %s\n# %s\n", a, b);
            fail_msg("round %d", round);
        }
        json_decref(again);
        json_decref(doc);
    }
}

static int make_top(void **state)
{
    return tmpdir_make(top, sizeof(top));
}

static int remove_top(void **state)
{
    return tmpdir_remove(top);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_apply_events),
        cmocka_unit_test(test_apply_refused),
        cmocka_unit_test(test_apply_gpus),
        cmocka_unit_test(test_apply_reserved_keys),
        cmocka_unit_test(test_apply_keeps_event),
        cmocka_unit_test(test_load_files),
        cmocka_unit_test(test_status_words),
        cmocka_unit_test(test_number_spellings),
        cmocka_unit_test(test_replay_equals_snapshot),
    };

    return cmocka_run_group_tests(tests, make_top, remove_top);
}
