/* SPDX-License-Identifier: MIT */
/* Text from files and sockets, through jansson with our limits; what it takes, minijson takes. */
#include "common/proto/json.h"
#include "tests/fuzz/fuzz.h"

#include <errno.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    _cleanup_(json_decrefp) json_t *o = NULL, *again = NULL;
    _cleanup_(pl_buf_finish) struct pl_buf line = {0};
    struct pl_error err = {0};
    struct pl_mini_value value;
    int r;

    r = pl_json_parse((const char *)data, size, 1 << 16, &o, &err);
    FUZZ_CHECK(r <= 0);
    FUZZ_CHECK((r == 0) == (o != NULL));
    if (r < 0)
        return 0;

    /* Our reader reads our own output back unchanged. */
    FUZZ_CHECK(pl_json_dump_line(o, &line) == 0);
    FUZZ_CHECK(pl_json_parse(line.data, line.len, SIZE_MAX, &again, &err) == 0);
    FUZZ_CHECK(json_equal(o, again));

    r = pl_mini_find(line.data, "no such key, surely", &value);
    FUZZ_CHECK(r == -ENOENT || json_object_get(o, "no such key, surely"));
    return 0;
}
