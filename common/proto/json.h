/* SPDX-License-Identifier: MIT */
/* jansson with limits: size, nesting and duplicate keys are checked before a value is read. All
 * text from files and sockets is parsed here. */
#ifndef PL_COMMON_PROTO_JSON_H
#define PL_COMMON_PROTO_JSON_H

#include "common/base/buf.h"
#include "common/base/error.h"
#include "common/proto/rank/minijson.h" /* PL_JSON_DEPTH_MAX */

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

/* jansson.h has the clean-up: _cleanup_(json_decrefp) json_t *o = NULL; */

/* Parses one JSON object (only white space may follow it). text need not end in NUL.
 * max_bytes  longest text accepted
 * ret        a new reference
 * Returns 0, -EFBIG (too long), -EINVAL (no object, malformed, not UTF-8, U+0000 in a string, a key
 * twice, nested deeper than PL_JSON_DEPTH_MAX), -ENOMEM. */
int pl_json_parse(
    const char *text, size_t len, size_t max_bytes, json_t **ret, struct pl_error *err);

/* Reads and parses a regular file; the text of err names it. Also -errno of open and read. */
int pl_json_load_file(const char *path, size_t max_bytes, json_t **ret, struct pl_error *err);

/* The string under key, borrowed from o; NULL if o is no object, lacks the key or has another type
 * there. */
const char *pl_json_string(const json_t *o, const char *key);

/* The integer under key. 0, -ENOENT (no such key) or -EINVAL (another type). */
int pl_json_int(const json_t *o, const char *key, int64_t *ret);

/* Appends o in compact form, keys in their order, and a newline. -ENOMEM, -EINVAL. */
int pl_json_dump_line(const json_t *o, struct pl_buf *out);

/* json_dumps(3), which returns a text with a hole where an allocation has failed. The caller frees;
 * NULL when out of memory. */
char *pl_json_dumps(const json_t *o, size_t flags);

/* True if an allocation of jansson's has failed in this thread since the last call: a value that
 * was built meanwhile may lack a part. */
bool pl_json_had_no_memory(void);

#endif
