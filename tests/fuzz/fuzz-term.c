/* SPDX-License-Identifier: MIT */
/* Foreign text on its way to a terminal: what comes out moves no cursor and is UTF-8. */
#include "common/base/term.h"
#include "common/base/utf8.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct pl_buf out = {0};
    char *s = fuzz_string(data, size);

    FUZZ_CHECK(pl_term_escape(&out, (const char *)data, size) == 0);
    FUZZ_CHECK(pl_utf8_valid(out.data, out.len));
    for (size_t i = 0; i < out.len; i++)
        FUZZ_CHECK((unsigned char)out.data[i] >= 0x20 && out.data[i] != 0x7f);

    pl_buf_finish(&out);
    FUZZ_CHECK(pl_term_cell(&out, s, 10, size & 1, true) == 0);
    FUZZ_CHECK(pl_utf8_valid(out.data, out.len));
    pl_buf_finish(&out);
    free(s);
    return 0;
}
