/* SPDX-License-Identifier: MIT */
/* One question to a hub. */
#ifndef PL_COMMON_PROTO_HUB_ASK_H
#define PL_COMMON_PROTO_HUB_ASK_H

#include "common/proto/protocol.h"

/* A blocking client, for tools: connects, asks (a question without fields) and waits for one
 * message of the answer's type, which the caller reads: pl_msg_read_as().
 * -ECONNREFUSED, -ETIMEDOUT, and the errors of pl_session_next(). */
int pl_hub_ask(const char *host,
               uint16_t port,
               const struct pl_session_id *id,
               const unsigned char secret[PL_KEY_SIZE],
               enum pl_msg_type question,
               enum pl_msg_type answer,
               unsigned timeout_ms,
               json_t **ret,
               struct pl_error *err);

#endif
