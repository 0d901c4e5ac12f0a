/* SPDX-License-Identifier: MIT */
/* Asks the hubs of several running trials for their state in parallel. */
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
    json_t *state; /* run-state document, owned by the caller; NULL: no answer */
    struct pl_error err;
};

/* Sets the address from the "hub" object of a status.json. -EINVAL if it is no address. */
int pl_hub_query_init(struct pl_hub_query *q, const json_t *hub);

/* Asks all hubs with a limit of limit_ms for all of them. secret: see pl_key_load(). */
void pl_hub_query_all(struct pl_hub_query **queries,
                      size_t n,
                      const unsigned char secret[PL_KEY_SIZE],
                      unsigned limit_ms);

#endif
