/* SPDX-License-Identifier: MIT */
/* Just enough JSON (RFC 8259) for one-line messages between a rank and its node daemon, for code
 * that may link nothing but libc: the SPANK plugin, plrun and the engine. Values are found in
 * place, nothing is allocated but decoded strings. The writer appends to a buffer. Daemons and
 * tools use common/proto/json.h. */
#ifndef PL_COMMON_PROTO_RANK_MINIJSON_H
#define PL_COMMON_PROTO_RANK_MINIJSON_H

#include "common/base/buf.h"

#include <stdbool.h>
#include <stdint.h>

#define PL_JSON_DEPTH_MAX 32

enum pl_mini_type {
    PL_MINI_STRING,
    PL_MINI_NUMBER,
    PL_MINI_BOOL,
    PL_MINI_NULL,
    PL_MINI_ARRAY,
    PL_MINI_OBJECT,
};

/* A value inside a text that must outlive it. */
struct pl_mini_value {
    enum pl_mini_type type;
    const char *start; /* first byte; strings include their quotes */
    size_t len;
};

/* Finds a key of the object `text` (NUL-terminated, whole line). Checks the whole object's form.
 * Returns 0, -ENOENT (no such key) or -EINVAL (not one JSON object, or nested deeper than
 * PL_JSON_DEPTH_MAX). */
int pl_mini_find(const char *text, const char *key, struct pl_mini_value *ret);

/* Steps through an array: *pos starts at 0. Returns 1 with *ret set, 0 at the end, -EINVAL. */
int pl_mini_next(const struct pl_mini_value *array, size_t *pos, struct pl_mini_value *ret);

/* The whole text as one value. -EINVAL if it is none, or more follows it. */
int pl_mini_parse(const char *text, struct pl_mini_value *ret);

/* Steps through an object in the same way: *ret_key is a string. */
int pl_mini_member(const struct pl_mini_value *object,
                   size_t *pos,
                   struct pl_mini_value *ret_key,
                   struct pl_mini_value *ret);

/* Decodes a string into UTF-8; caller frees. -EINVAL if the value is no string or holds U+0000,
 * -ENOMEM. */
int pl_mini_string(const struct pl_mini_value *value, char **ret);

/* The integer value; -EINVAL if it is none or does not fit. */
int pl_mini_int(const struct pl_mini_value *value, int64_t *ret);

/* Shortcuts for pl_mini_find() and the above. */
int pl_mini_get_string(const char *text, const char *key, char **ret);
int pl_mini_get_int(const char *text, const char *key, int64_t *ret);

/* True if the object's "type" is this. */
bool pl_mini_is(const char *text, const char *type);

/* Appends s as a JSON string with its quotes. Bytes that are no UTF-8 become U+FFFD. -ENOMEM. */
int pl_mini_quote(struct pl_buf *buf, const char *s);

/* A writer sets commas and keeps the first error, so a caller checks once:
 *   struct pl_mini_writer w = {.buf = &out};
 *   pl_mini_open(&w, NULL, '{');
 *   pl_mini_put_string(&w, "type", "spawned");
 *   pl_mini_put_int(&w, "pid", pid);
 *   return pl_mini_close(&w, '}');
 * key is NULL for the outermost value and for an array's items. */
struct pl_mini_writer {
    struct pl_buf *buf; /* borrowed; begins empty or ends in white space */
    int error;          /* 0 or -ENOMEM */
};

/* bracket: '{' or '[' opens, '}' or ']' closes. close returns the writer's error. */
void pl_mini_open(struct pl_mini_writer *w, const char *key, char bracket);
int pl_mini_close(struct pl_mini_writer *w, char bracket);
void pl_mini_put_string(struct pl_mini_writer *w, const char *key, const char *value);
void pl_mini_put_int(struct pl_mini_writer *w, const char *key, int64_t value);
void pl_mini_put_bool(struct pl_mini_writer *w, const char *key, bool value);
/* Nine digits, a decimal point in every locale. JSON has no NaN or infinity: they become the
 * strings "nan", "inf" and "-inf". */
void pl_mini_put_double(struct pl_mini_writer *w, const char *key, double value);

#endif
