/* SPDX-License-Identifier: MIT */
/* UTF-8 as RFC 3629 has it: no overlong forms, no surrogates, at most U+10FFFF. */
#ifndef PL_COMMON_BASE_UTF8_H
#define PL_COMMON_BASE_UTF8_H

#include "common/base/macros.h"

#include <stdbool.h>
#include <stdint.h>

/* Decodes the character at s[0..len). Returns its length in bytes (1 to 4) and sets *ret, or
 * -EILSEQ when the bytes are no character; then the caller may go on one byte further. */
int pl_utf8_decode(const char *s, size_t len, uint32_t *ret);

/* True where all len bytes are valid UTF-8 (NUL included as a character). */
bool pl_utf8_valid(const char *s, size_t len);

/* True for characters that show nothing, or move or reorder what stands next to them: controls (C0,
 * C1, DEL), bidirectional controls, characters without a width. */
bool pl_utf8_hidden(uint32_t c);

#endif
