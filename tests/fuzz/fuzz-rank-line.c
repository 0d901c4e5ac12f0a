/* SPDX-License-Identifier: MIT */
/* Lines of ranks, nodes and event logs: parsed with our limits, read as each message, and applied
 * to the document of a run. The document keeps its form whatever comes, and a second one that gets
 * the accepted events through a file is the same. */
#include "common/proto/json.h"
#include "common/proto/messages.h"
#include "common/proto/rank/rank_link.h"
#include "common/run/run_state.h"
#include "tests/fuzz/fuzz.h"

/* The readers of all messages: what is read can be written, and is then read as the same. */
static void read_messages(const json_t *o)
{
    for (unsigned type = 0; type < PL_MSG_N_TYPES; type++) {
        struct pl_msg m = {.type = PL_MSG_N_TYPES}, again;
        bool named = pl_msg_type_name(type);
        int r = named ? pl_msg_read(o, pl_msg_wire(type), &m) : pl_msg_read_as(o, type, &m);
        json_t *copy, *twice;

        FUZZ_CHECK(r == 0 || r == -EINVAL || (named && r == -ENOENT));
        if (r < 0)
            continue;
        copy = pl_msg_new(&m);
        FUZZ_CHECK(copy && pl_msg_read_as(copy, m.type, &again) == 0);
        twice = pl_msg_new(&again);
        FUZZ_CHECK(json_equal(copy, twice));
        json_decref(copy);
        json_decref(twice);
    }
}

static void check_bones(json_t *doc)
{
    json_t *ranks = json_object_get(doc, "ranks"), *nodes = json_object_get(doc, "nodes"), *o;
    size_t i;

    FUZZ_CHECK(json_is_array(ranks) && json_is_array(nodes));
    json_array_foreach (ranks, i, o) {
        json_t *metrics = json_object_get(o, "metrics"), *facts = json_object_get(o, "facts");

        FUZZ_CHECK(json_is_object(o) && pl_run_state_rank(doc, i) == o);
        FUZZ_CHECK(!metrics || json_is_object(metrics));
        FUZZ_CHECK(!facts || json_is_object(facts));
        FUZZ_CHECK(pl_run_state_exit_code(o) >= 0 && pl_run_state_exit_code(o) < 256);
    }
    json_array_foreach (nodes, i, o)
        FUZZ_CHECK(json_is_object(o));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    json_t *doc = pl_run_state_new(), *again = pl_run_state_new();
    const char *line = (const char *)data, *end = line + size;

    FUZZ_CHECK(doc && again);
    while (line < end) {
        const char *newline = memchr(line, '\n', (size_t)(end - line));
        size_t len = (size_t)((newline ? newline : end) - line);
        _cleanup_(json_decrefp) json_t *event = NULL, *copy = NULL;
        _cleanup_(pl_buf_finish) struct pl_buf text = {0};
        struct pl_error err = {0};
        int r = pl_json_parse(line, len, PL_RANK_LINE_MAX, &event, &err);
        json_int_t world = json_integer_value(json_object_get(event, "world_size"));
        json_int_t node = json_integer_value(json_object_get(event, "node_id"));

        line += len + 1;
        FUZZ_CHECK(r <= 0 && (r == 0) == (event != NULL));
        /* Large ones are allowed and merely slow. */
        if (r < 0 || world > 1000 || node > 1000)
            continue;
        FUZZ_CHECK(pl_json_dump_line(event, &text) == 0);
        FUZZ_CHECK(pl_json_parse(text.data, text.len, SIZE_MAX, &copy, &err) == 0);
        FUZZ_CHECK(json_equal(event, copy));
        read_messages(event);
        r = pl_run_state_apply(doc, event, &err);
        FUZZ_CHECK(r == pl_run_state_apply(again, copy, &err));
        FUZZ_CHECK(r == 0 || r == -EINVAL);
        FUZZ_CHECK(json_equal(event, copy)); /* applying changes no event */
    }
    check_bones(doc);
    FUZZ_CHECK(json_equal(doc, again));
    json_decref(doc);
    json_decref(again);
    return 0;
}
