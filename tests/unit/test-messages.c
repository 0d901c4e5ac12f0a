/* SPDX-License-Identifier: MIT */
/* Each message, from the line of an older peer to the struct and back; and the table of messages
 * against plume-protocol(7). */
#include "common/base/buf.h"
#include "common/base/fs.h"
#include "common/proto/json.h"
#include "common/proto/messages.h"
#include "common/proto/rank/rank_line.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

/* Each message as it was first written. A new message adds a line; a line is never changed. */
static const struct {
    enum pl_msg_type type;
    const char *line;
} recorded[] = {
    {PL_MSG_RANK_HELLO, "{\"type\":\"hello\",\"proto\":\"plume\",\"major\":1,\"minor\":0,\"role\":"
                        "\"starter\",\"rank\":3,\"local_rank\":1,\"pid\":77,\"guarded\":true}"},
    {PL_MSG_RANK_METRICS, "{\"type\":\"metrics\",\"step\":7,\"metrics\":{\"loss\":\"nan\"}}"},
    {PL_MSG_RANK_FACT, "{\"type\":\"fact\",\"key\":\"param_hash\",\"value\":\"8f\"}"},
    {PL_MSG_RANK_EXCHANGE, "{\"type\":\"exchange\",\"name\":\"ring\",\"value\":\"h:1\"}"},
    {PL_MSG_RANK_SPAWNED, "{\"type\":\"spawned\",\"rank\":2,\"pid\":123}"},
    {PL_MSG_RANK_SPAWNED, "{\"type\":\"spawned\",\"pid\":123}"},
    {PL_MSG_RANK_SIGNALLED, "{\"type\":\"signalled\",\"signal\":15}"},
    {PL_MSG_RANK_EXITED, "{\"type\":\"exited\",\"status\":768,\"at_ns\":9007199254740993}"},
    {PL_MSG_RANK_EXITED, "{\"type\":\"exited\",\"rank\":0,\"status\":15}"},
    {PL_MSG_RANK_EXITED, "{\"type\":\"exited\",\"status\":768,\"term_default\":1}"},
    {PL_MSG_RANK_WORLD, "{\"type\":\"world\",\"env\":[\"RANK=3\"],\"defaults\":[]}"},
    {PL_MSG_RANK_REFUSED, "{\"type\":\"refused\",\"text\":\"no\"}"},
    {PL_MSG_RANK_EXCHANGED, "{\"type\":\"exchanged\",\"name\":\"ring\",\"values\":[\"a\",\"b\"]}"},
    {PL_MSG_RANK_SIGNAL, "{\"type\":\"signal\",\"signal\":9}"},
    {PL_MSG_RANK_BEAT, "{\"type\":\"beat\"}"},
    {PL_MSG_RANK_VERDICT, "{\"type\":\"verdict\",\"code\":3}"},
    {PL_MSG_RANK_ERROR, "{\"type\":\"error\",\"text\":\"unknown type\"}"},
    {PL_MSG_OWNER_READY, "{\"type\":\"ready\",\"pid\":9,\"socket\":\"/tmp/s\"}"},
    {PL_MSG_OWNER_FAILED, "{\"type\":\"failed\",\"text\":\"no\"}"},
    {PL_MSG_OWNER_FAILED, "{\"type\":\"failed\",\"errno\":2}"},
    {PL_MSG_OWNER_BEAT, "{\"type\":\"beat\"}"},
    {PL_MSG_OWNER_BUSY, "{\"type\":\"busy\"}"},
    {PL_MSG_BANNER, "{\"proto\":\"plume\",\"major\":1,\"minor\":0,\"role\":\"hub\",\"job\":\"12\","
                    "\"step\":\"0\",\"attempt\":1,\"nonce\":\"11\"}"},
    {PL_MSG_HELLO, "{\"type\":\"hello\",\"role\":\"daemon\",\"proto\":\"plume\",\"major\":1,"
                   "\"minor\":0,\"nonce\":\"22\"}"},
    {PL_MSG_WELCOME, "{\"type\":\"welcome\"}"},
    {PL_MSG_BANNER,
     "{\"proto\":\"plume\",\"major\":1,\"minor\":1,\"role\":\"hub\",\"nonce\":\"11\","
     "\"tag\":\"aa\"}"},
    {PL_MSG_HELLO, "{\"type\":\"hello\",\"role\":\"daemon\",\"proto\":\"plume\",\"major\":1,"
                   "\"minor\":1,\"nonce\":\"22\",\"stream\":\"bb\"}"},
    {PL_MSG_WELCOME, "{\"type\":\"welcome\",\"stream\":\"cc\"}"},
    {PL_MSG_ASK_SNAPSHOT, "{\"type\":\"snapshot\"}"},
    {PL_MSG_WATCH, "{\"type\":\"watch\"}"},
    {PL_MSG_JOIN, "{\"type\":\"join\",\"node_id\":1,\"node\":\"n02\",\"local_ntasks\":8,\"clock\":"
                  "\"c\"}"},
    {PL_MSG_SNAPSHOT, "{\"type\":\"snapshot\",\"epoch\":\"0011\",\"seq\":3,\"state\":{\"nodes\":[],"
                      "\"ranks\":[]}}"},
    {PL_MSG_EVENT, "{\"type\":\"event\",\"event\":{\"type\":\"rank\",\"rank\":0,\"seq\":4}}"},
    {PL_MSG_ERROR, "{\"type\":\"error\",\"text\":\"unknown type\"}"},
    {PL_MSG_NODE_STARTED, "{\"type\":\"started\",\"rank\":0,\"pid\":77}"},
    {PL_MSG_NODE_EXITED,
     "{\"type\":\"exited\",\"rank\":0,\"status\":9,\"at_ns\":1,\"killed\":false,"
     "\"oom\":true,\"runtime\":false,\"text\":\"last\\nwords\"}"},
    {PL_MSG_NODE_METRICS, "{\"type\":\"metrics\",\"items\":[{\"rank\":0,\"metrics\":{}}]}"},
    {PL_MSG_NODE_METRICS_ITEM, "{\"rank\":0,\"metrics\":{\"loss\":0.5},\"step\":7}"},
    {PL_MSG_NODE_METRICS_ITEM, "{\"rank\":0,\"metrics\":{}}"},
    {PL_MSG_NODE_FACT, "{\"type\":\"fact\",\"key\":\"k\",\"value\":\"v\",\"rank\":1}"},
    {PL_MSG_NODE_EXCHANGE, "{\"type\":\"exchange\",\"name\":\"n\",\"value\":\"v\",\"rank\":1}"},
    {PL_MSG_NODE_SIGNALLED, "{\"type\":\"signalled\",\"signal\":2}"},
    {PL_MSG_NODE_GPUS, "{\"type\":\"gpus\",\"gpus\":[{\"gpu\":0}]}"},
    {PL_MSG_NODE_GPU,
     "{\"type\":\"gpu\",\"gpu\":0,\"event\":\"xid\",\"at_ns\":5,\"uuid\":\"GPU-1\","
     "\"xid\":79,\"text\":\"fell off\",\"ranks\":[0,1]}"},
    {PL_MSG_NODE_GPU, "{\"type\":\"gpu\",\"gpu\":0,\"event\":\"ecc\",\"at_ns\":5}"},
    {PL_MSG_NODE_PONG, "{\"type\":\"pong\",\"t\":1,\"mine\":2}"},
    {PL_MSG_NODE_BEAT, "{\"type\":\"beat\"}"},
    {PL_MSG_NODE_BYE, "{\"type\":\"bye\"}"},
    {PL_MSG_NODE_HUB_SILENT, "{\"type\":\"hub_silent\"}"},
    {PL_MSG_HUB_WORLD, "{\"type\":\"world\",\"attempt_dir\":\"/r/a\",\"run_dir\":\"/r\","
                       "\"master_addr\":\"10.0.0.1\",\"master_port\":4711,\"node_addr\":\"\"}"},
    {PL_MSG_HUB_WORLD, "{\"type\":\"world\",\"attempt_dir\":\"/r/a\",\"run_dir\":\"/r\","
                       "\"master_addr\":\"10.0.0.1\",\"master_port\":4711,\"node_addr\":\"\","
                       "\"coordinator_port\":4712}"},
    {PL_MSG_HUB_REFUSED, "{\"type\":\"refused\",\"text\":\"no\"}"},
    {PL_MSG_HUB_EXCHANGED, "{\"type\":\"exchanged\",\"name\":\"n\",\"values\":[\"v\"]}"},
    {PL_MSG_HUB_END_RANKS, "{\"type\":\"end_ranks\",\"grace_ms\":5000}"},
    {PL_MSG_HUB_END_RANKS, "{\"type\":\"end_ranks\",\"grace_ms\":5000,\"kill\":3}"},
    {PL_MSG_HUB_DECIDED, "{\"type\":\"decided\",\"root\":-1}"},
    {PL_MSG_HUB_DECIDED, "{\"type\":\"decided\",\"root\":3,\"code\":1}"},
    {PL_MSG_HUB_PING, "{\"type\":\"ping\",\"t\":1}"},
    {PL_MSG_HUB_BYE_OK, "{\"type\":\"bye_ok\"}"},
    {PL_MSG_JOIN, "{\"type\":\"join\",\"node_id\":1,\"node\":\"n02\",\"local_ntasks\":8,\"clock\":"
                  "\"c\",\"unable\":\"no room\"}"},
    {PL_MSG_RANK_METRICS, "{\"type\":\"metrics\",\"phase\":\"checkpoint\",\"own_us\":1200}"},
    {PL_MSG_NODE_METRICS_ITEM,
     "{\"rank\":0,\"metrics\":{},\"phase\":\"checkpoint\",\"own_us\":1200,\"moves\":3,"
     "\"gap_ms\":120}"},
    {PL_MSG_NODE_PROBED, "{\"type\":\"probed\",\"items\":[{\"rank\":0,\"state\":\"wait\"}]}"},
    {PL_MSG_NODE_PROBED_ITEM, "{\"rank\":0,\"state\":\"wait\"}"},
    {PL_MSG_NODE_PROBED_ITEM,
     "{\"rank\":0,\"state\":\"sleep\",\"doing\":\"clock_nanosleep\",\"collectives\":7,"
     "\"cpu_ms\":1200,\"silent_s\":3}"},
    {PL_MSG_NODE_STACK, "{\"type\":\"stack\",\"rank\":5,\"text\":\"#0 main\\n\"}"},
    {PL_MSG_HUB_PROBE, "{\"type\":\"probe\"}"},
    {PL_MSG_HUB_STACK, "{\"type\":\"stack\",\"rank\":5}"},
    {PL_MSG_NODE_PROBED_ITEM,
     "{\"rank\":0,\"state\":\"busy\",\"doing\":\"in hook on_fit_end\",\"collectives\":7,"
     "\"cpu_ms\":1200,\"silent_s\":3,\"hook\":\"on_fit_end\"}"},
    {PL_MSG_OWNER_VERDICT, "{\"type\":\"verdict\",\"code\":1}"},
    {PL_MSG_HUB_BYE_OK, "{\"type\":\"bye_ok\",\"text\":\"no room\"}"},
};

static json_t *parse(const char *line)
{
    struct pl_error err = {0};
    json_t *o = NULL;

    if (pl_json_parse(line, strlen(line), 65536, &o, &err) < 0)
        fail_msg("%s: %s", line, err.text);
    return o;
}

static int read_line(const char *line, enum pl_wire wire)
{
    _cleanup_(json_decrefp) json_t *o = parse(line);
    struct pl_msg m;

    return pl_msg_read(o, wire, &m);
}

static void test_read_recorded(void **state)
{
    bool seen[PL_MSG_N_TYPES] = {false};

    for (size_t i = 0; i < PL_COUNT(recorded); i++) {
        enum pl_msg_type type = recorded[i].type;
        _cleanup_(json_decrefp) json_t *o = parse(recorded[i].line), *again = NULL;
        _cleanup_(pl_buf_finish) struct pl_buf text = {0};
        struct pl_msg m = {.type = PL_MSG_N_TYPES};
        int r = pl_msg_type_name(type) ? pl_msg_read(o, pl_msg_wire(type), &m)
                                       : pl_msg_read_as(o, type, &m);

        if (r < 0 || m.type != type)
            fail_msg("%s: %d, type %d", recorded[i].line, r, (int)m.type);
        again = pl_msg_new(&m);
        assert_int_equal(pl_json_dump_line(again, &text), 0);
        text.data[text.len - 1] = '\0';
        assert_string_equal(text.data, recorded[i].line);
        seen[type] = true;
    }
    for (unsigned type = 0; type < PL_MSG_N_TYPES; type++)
        if (!seen[type])
            fail_msg("message %u is not recorded here", type);
}

static void test_read_fields(void **state)
{
    _cleanup_(json_decrefp) json_t *o = parse("{\"type\":\"exited\",\"status\":768,\"later\":[1]}");
    struct pl_msg m;

    assert_int_equal(pl_msg_read(o, PL_WIRE_RANK_TO_DAEMON, &m), 0);
    assert_int_equal(m.type, PL_MSG_RANK_EXITED);
    assert_int_equal(m.rank_exited.status, 768);
    assert_true(m.rank_exited.at_ns == PL_MSG_ABSENT && m.rank_exited.rank == PL_MSG_ABSENT);
    /* The other message of this type needs more. */
    assert_int_equal(pl_msg_read(o, PL_WIRE_NODE_TO_HUB, &m), -EINVAL);
    assert_int_equal(pl_msg_read(o, PL_WIRE_HUB_TO_NODE, &m), -ENOENT);
}

static void test_read_optional_of_another_type(void **state)
{
    _cleanup_(json_decrefp) json_t *o =
        parse("{\"type\":\"metrics\",\"step\":\"7\",\"metrics\":[\"loss\"]}");
    struct pl_msg m;

    assert_int_equal(pl_msg_read(o, PL_WIRE_RANK_TO_DAEMON, &m), 0);
    assert_true(m.rank_metrics.step == PL_MSG_ABSENT);
    assert_null(m.rank_metrics.metrics);
}

static void test_read_refused(void **state)
{
    assert_int_equal(read_line("{}", PL_WIRE_RANK_TO_DAEMON), -ENOENT);
    assert_int_equal(read_line("{\"type\":1}", PL_WIRE_RANK_TO_DAEMON), -ENOENT);
    assert_int_equal(read_line("{\"type\":\"dance\"}", PL_WIRE_RANK_TO_DAEMON), -ENOENT);
    assert_int_equal(
        read_line("{\"type\":\"fact\",\"key\":1,\"value\":\"\"}", PL_WIRE_RANK_TO_DAEMON), -EINVAL);
    assert_int_equal(read_line("{\"type\":\"verdict\"}", PL_WIRE_DAEMON_TO_RANK), -EINVAL);
    assert_int_equal(read_line("{\"type\":\"verdict\",\"code\":1.0}", PL_WIRE_DAEMON_TO_RANK),
                     -EINVAL);
    assert_int_equal(read_line("{\"type\":\"gpus\",\"gpus\":{}}", PL_WIRE_NODE_TO_HUB), -EINVAL);
    assert_int_equal(pl_msg_read_as(NULL, PL_MSG_NODE_METRICS_ITEM, &(struct pl_msg){0}), -EINVAL);
}

static void test_new_refused(void **state)
{
    assert_null(pl_msg_new(&(struct pl_msg){.type = PL_MSG_RANK_FACT, .rank_fact = {.key = "k"}}));
    assert_null(pl_msg_new(&(struct pl_msg){.type = PL_MSG_ERROR, .error = {"\xff"}}));
    assert_null(pl_msg_new(&(struct pl_msg){.type = PL_MSG_NODE_GPUS}));
    assert_null(pl_msg_new(&(struct pl_msg){.type = PL_MSG_HUB_PING, .hub_ping = {PL_MSG_ABSENT}}));
}

/* The table reads all that is written without jansson; no field is unknown. */
static struct pl_msg read_back(const struct pl_buf *line, int written, json_t **ret)
{
    _cleanup_(json_decrefp) json_t *again = NULL;
    struct pl_msg m;

    assert_int_equal(written, 0);
    *ret = parse(line->data);
    if (pl_msg_read(*ret, PL_WIRE_RANK_TO_DAEMON, &m) < 0 &&
        pl_msg_read(*ret, PL_WIRE_DAEMON_TO_OWNER, &m) < 0)
        fail_msg("%s", line->data);
    again = pl_msg_new(&m);
    assert_true(json_equal(*ret, again));
    return m;
}

static void test_rank_line_is_read(void **state)
{
    static const char *const names[] = {"loss", "acc"};
    static const double values[] = {0.25, -1e-9};
    struct pl_buf l[13] = {{0}};
    json_t *o[PL_COUNT(l)] = {NULL};
    struct pl_msg m;

    m = read_back(&l[0], pl_rank_line_hello(&l[0], PL_RANK_ROLE_PROGRAM, 3, 1, 77, true), &o[0]);
    assert_string_equal(m.rank_hello.role, "program");
    assert_true(m.rank_hello.major == 1 && m.rank_hello.rank == 3 && m.rank_hello.local_rank == 1 &&
                m.rank_hello.pid == 77 && m.rank_hello.guarded);
    m = read_back(&l[1], pl_rank_line_metrics(&l[1], 7, 81000, names, values, 2), &o[1]);
    assert_true(m.rank_metrics.step == 7 && m.rank_metrics.own_us == 81000 &&
                json_object_size(m.rank_metrics.metrics) == 2);
    m = read_back(&l[2], pl_rank_line_fact(&l[2], "k", "v"), &o[2]);
    assert_string_equal(m.rank_fact.value, "v");
    m = read_back(&l[3], pl_rank_line_exchange(&l[3], "n", "\xff"), &o[3]);
    assert_string_equal(m.rank_exchange.value, "\xef\xbf\xbd");
    m = read_back(&l[4], pl_rank_line_spawned(&l[4], -1, 5), &o[4]);
    assert_true(m.rank_spawned.rank == PL_MSG_ABSENT && m.rank_spawned.pid == 5);
    m = read_back(&l[5], pl_rank_line_spawned(&l[5], 2, 5), &o[5]);
    assert_int_equal(m.rank_spawned.rank, 2);
    m = read_back(&l[6], pl_rank_line_signalled(&l[6], 15, 0), &o[6]);
    assert_true(m.rank_signalled.signal == 15 && m.rank_signalled.sender == PL_MSG_ABSENT);
    m = read_back(&l[12], pl_rank_line_signalled(&l[12], 2, 78), &o[12]);
    assert_true(m.rank_signalled.signal == 2 && m.rank_signalled.sender == 78);
    m = read_back(&l[7], pl_rank_line_exited(&l[7], -1, 768, UINT64_C(9007199254740993), 1), &o[7]);
    assert_true(m.rank_exited.status == 768 && m.rank_exited.at_ns == 9007199254740993 &&
                m.rank_exited.term_default == 1);
    m = read_back(&l[8], pl_rank_line_exited(&l[8], 0, 15, 0, -1), &o[8]);
    assert_true(m.rank_exited.rank == 0 && m.rank_exited.at_ns == PL_MSG_ABSENT &&
                m.rank_exited.term_default == PL_MSG_ABSENT);
    m = read_back(&l[9], pl_rank_line_ready(&l[9], 9, "/tmp/s"), &o[9]);
    assert_string_equal(m.owner_ready.socket, "/tmp/s");
    m = read_back(&l[10], pl_rank_line_failed(&l[10], "no"), &o[10]);
    assert_string_equal(m.owner_failed.text, "no");
    m = read_back(&l[11], pl_rank_line_exited(&l[11], 0, 0, 0, 0), &o[11]);
    assert_int_equal(m.rank_exited.term_default, 0);
    for (size_t i = 0; i < PL_COUNT(l); i++) {
        json_decref(o[i]);
        pl_buf_finish(&l[i]);
    }
}

/* ---- the manual page ---- */

/* The keys of the sample object that begins at p; values may be "...". */
static json_t *sample_keys(const char *p)
{
    json_t *keys = json_object();
    unsigned depth = 0;

    do {
        if (*p == '{' || *p == '[')
            depth++;
        if (*p == '}' || *p == ']')
            depth--;
        if (*p == '"') {
            const char *end = strchr(p + 1, '"');

            if (!end)
                fail_msg("a sample without an end: %.40s", p);
            if (depth == 1 && end[1] == ':')
                json_object_setn_new(keys, p + 1, (size_t)(end - p - 1), json_null());
            p = end;
        }
    } while (*p++ && depth);
    return keys;
}

/* Marks the fields of this row that a sample shows. False: it shows a key that the row lacks. */
static bool show(enum pl_msg_type type, json_t *keys, bool shown[16])
{
    const char *name;
    size_t known = 1; /* "type" */

    for (size_t i = 0; (name = pl_msg_field_name(type, i)); i++)
        known += json_object_get(keys, name) != NULL;
    if (known != json_object_size(keys))
        return false;
    for (size_t i = 0; (name = pl_msg_field_name(type, i)); i++)
        shown[i] |= json_object_get(keys, name) != NULL;
    return true;
}

/* Each sample in the page is a message of the table, and the samples show every message and every
 * field. */
static void test_page_shows_the_table(void **state)
{
    static bool shown[PL_MSG_N_TYPES][16], seen[PL_MSG_N_TYPES];
    static const char start[] = "{\"type\":\"";
    _cleanup_free_ char *page = NULL;
    struct pl_error err = {0};
    const char *name;

    if (pl_file_read(PL_FIXTURES "/../../man/plume-protocol.7", 1 << 20, &page, NULL, &err) < 0)
        fail_msg("%s", err.text);
    for (const char *p = page; (p = strstr(p, start)); p += strlen(start)) {
        _cleanup_(json_decrefp) json_t *keys = sample_keys(p);
        const char *type = p + strlen(start);
        bool known = false;

        for (unsigned i = 0; i < PL_MSG_N_TYPES; i++) {
            name = pl_msg_type_name(i);
            if (!name || strlen(name) != strcspn(type, "\"") ||
                strncmp(name, type, strlen(name)) != 0 || !show(i, keys, shown[i]))
                continue;
            known = seen[i] = true;
        }
        if (!known)
            fail_msg("the table has no such message: %.60s", p);
    }
    for (unsigned i = 0; i < PL_MSG_N_TYPES; i++) {
        name = pl_msg_type_name(i);
        if (name && !seen[i])
            fail_msg("the page does not show message '%s' (%u)", name, i);
        for (size_t k = 0; (name = pl_msg_field_name(i, k)); k++) {
            _cleanup_free_ char *key = pl_strf("\"%s\":", name);

            if (!shown[i][k] && (seen[i] || !strstr(page, key)))
                fail_msg("the page does not show field '%s' of message %u", name, i);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_read_recorded),
        cmocka_unit_test(test_read_fields),
        cmocka_unit_test(test_read_optional_of_another_type),
        cmocka_unit_test(test_read_refused),
        cmocka_unit_test(test_new_refused),
        cmocka_unit_test(test_rank_line_is_read),
        cmocka_unit_test(test_page_shows_the_table),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
