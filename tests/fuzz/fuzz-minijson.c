/* SPDX-License-Identifier: MIT */
/* Lines between a rank and its daemon, where no JSON library is at hand. */
#include "common/base/utf8.h"
#include "common/proto/rank/minijson.h"
#include "tests/fuzz/fuzz.h"

#include <errno.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = fuzz_string(data, size);
    struct pl_mini_value value, item, key;
    char *s = NULL;
    int64_t i;
    int r = 0;
    size_t pos = 0;

    if (pl_mini_get_string(text, "a", &s) == 0) {
        /* A string that we quote is found again, unchanged. */
        struct pl_buf line = {0};
        char *back = NULL;

        FUZZ_CHECK(pl_buf_add(&line, "{\"a\":", 5) == 0);
        FUZZ_CHECK(pl_mini_quote(&line, s) == 0);
        FUZZ_CHECK(pl_buf_add(&line, "}", 2) == 0);
        FUZZ_CHECK(pl_mini_get_string(line.data, "a", &back) == 0);
        /* Bytes that are no UTF-8 come out as given, and are quoted as U+FFFD. */
        FUZZ_CHECK(strcmp(s, back) == 0 || !pl_utf8_valid(s, strlen(s)));
        free(back);
        free(s);
        pl_buf_finish(&line);
    }
    pl_mini_get_int(text, "a", &i);
    pl_mini_is(text, "hello");
    if (pl_mini_find(text, "a", &value) == 0) {
        FUZZ_CHECK(value.start >= text && value.start + value.len <= text + strlen(text));
        while (value.type == PL_MINI_ARRAY && pl_mini_next(&value, &pos, &item) == 1)
            FUZZ_CHECK(item.start >= value.start &&
                       item.start + item.len <= value.start + value.len);
    }
    pos = 0;
    if (pl_mini_parse(text, &value) == 0) {
        bool is_object = value.type == PL_MINI_OBJECT;

        /* An object's form is checked already. */
        while (is_object && (r = pl_mini_member(&value, &pos, &key, &item)) == 1)
            FUZZ_CHECK(key.start >= value.start && key.start[0] == '"' && item.start > key.start &&
                       item.start + item.len < value.start + value.len);
        FUZZ_CHECK(r == 0);
        FUZZ_CHECK(is_object == (pl_mini_find(text, "", &item) != -EINVAL));
    }
    free(text);
    return 0;
}
