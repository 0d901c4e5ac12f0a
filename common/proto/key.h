/* SPDX-License-Identifier: MIT */
/* The secret that the nodes of a run share. */
#ifndef PL_COMMON_PROTO_KEY_H
#define PL_COMMON_PROTO_KEY_H

#include "common/base/error.h"

#define PL_KEY_SIZE 32

/* The secret of a run: $PLUME_KEY_FILE, else DIR/key if dir is given, else ~/.plume/key, which
 * is made on first use. Checked like an ssh key; err names PLUME_KEY_FILE. */
int pl_key_load(const char *dir, unsigned char ret[PL_KEY_SIZE], struct pl_error *err);

#endif
