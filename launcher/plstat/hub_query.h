/* SPDX-License-Identifier: MIT */
/* Asks the hubs of several running trials for their state at once. */
#ifndef PL_LAUNCHER_PLSTAT_HUB_QUERY_H
#define PL_LAUNCHER_PLSTAT_HUB_QUERY_H

#include "common/proto/protocol.h"

#include <jansson.h>

struct pl_hub_query {
    /* in */
    char host[256];
    uint16_t port;
    struct pl_session_id id;
    /* out */
    json_t *state; /* the run-state document, the caller's; NULL where the hub did not answer */
    struct pl_error err;
};

/* Fills the address from the "hub" object of a status.json. -EINVAL where it is none. */
int pl_hub_query_init(struct pl_hub_query *q, const json_t *hub);

/* Asks all, some at a time, for limit_ms together. secret: see pl_key_load(). */
void pl_hub_query_all(struct pl_hub_query **queries,
                      size_t n,
                      const unsigned char secret[PL_KEY_SIZE],
                      unsigned limit_ms);

#endif
