/* SPDX-License-Identifier: MIT */
/* JSON writes a character beyond U+FFFF as a pair of escapes, "\ud83d\ude00", as Python's json
 * does. In YAML, whose reader takes our JSON, each of them is an error. */
#ifndef PL_LAUNCHER_PLSUBMIT_JSON_PAIRS_H
#define PL_LAUNCHER_PLSUBMIT_JSON_PAIRS_H

#include "common/base/buf.h"

/* Appends the text with YAML's escape in place of each pair, "\U0001F600", and as many bytes:
 * places in the text stay true. Appends nothing if the text has no pair or is not JSON. -ENOMEM. */
int pl_json_pairs(const char *text, size_t len, struct pl_buf *out);

#endif
