/* SPDX-License-Identifier: MIT */
/* Messages of peers that have the key, one a line: each is read on each wire. What is read can be
 * written, and is then read as the same. Events are applied to a state. */
#include "common/proto/json.h"
#include "common/proto/messages.h"
#include "common/run/run_state.h"
#include "tests/fuzz/fuzz.h"

static void one(json_t *o, enum pl_wire wire)
{
    struct pl_msg m, again_m;
    json_t *again, *third;

    if (pl_msg_read(o, wire, &m) < 0)
        return;
    again = pl_msg_new(&m);
    FUZZ_CHECK(again);
    FUZZ_CHECK(pl_msg_read(again, wire, &again_m) == 0 && again_m.type == m.type);
    third = pl_msg_new(&again_m);
    FUZZ_CHECK(json_equal(again, third));
    json_decref(again);
    json_decref(third);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *text = (const char *)data;
    json_t *state = pl_run_state_new();
    struct pl_msg m;

    FUZZ_CHECK(state);
    while (size) {
        const char *newline = memchr(text, '\n', size);
        size_t len = newline ? (size_t)(newline - text) : size;
        struct pl_error err = {0};
        json_t *o = NULL;

        if (pl_json_parse(text, len, 65536, &o, &err) == 0) {
            for (int wire = PL_WIRE_RANK_TO_DAEMON; wire <= PL_WIRE_HUB_TO_NODE; wire++)
                one(o, (enum pl_wire)wire);
            pl_msg_read_as(o, PL_MSG_BANNER, &m);
            pl_msg_read_as(o, PL_MSG_NODE_METRICS_ITEM, &m);
            if (pl_run_state_apply(state, o, &err) < 0)
                FUZZ_CHECK(err.text[0]);
        }
        json_decref(o);
        text += len + (newline != NULL);
        size -= len + (newline != NULL);
    }
    json_decref(state);
    return 0;
}
