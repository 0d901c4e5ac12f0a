/* SPDX-License-Identifier: MIT */
/* The prober: a child of the daemon, started before the daemon confines itself (confine.h), that
 * looks at the processes of ranks, which a confined process may not. It has no secret, no network
 * and no stream of the step. What it answers is text about the user's own processes; the stacks it
 * takes of this step's processes only, by their environment, of which it gives PL_PROBER_ENV. */
#ifndef PL_RUNTIME_PLRUND_DAEMON_PROBER_H
#define PL_RUNTIME_PLRUND_DAEMON_PROBER_H

#include "common/base/error.h"
#include "common/proto/rank/place.h"
#include "runtime/plrund/daemon/probe.h"

#include <stdbool.h>

#define PL_PROBER_PART 16384 /* bytes of a stack in one packet */

enum pl_prober_what {
    PL_PROBER_LOOK,  /* answered by one packet */
    PL_PROBER_STACK, /* answered by packets with text; the last one has none */
    PL_PROBER_ENV,   /* answered by one packet: its text has the rank's variables, NAME=VALUE with
                        a NUL each; none before the program has begun, and while it reads them */
};

struct pl_prober_request {
    uint32_t what, rank;
    int32_t pid;
};

struct pl_prober_answer {
    uint32_t what, rank;
    union {
        struct {
            struct pl_probe probe;
            struct pl_place place;
            bool has_place;
        } look;
        struct {
            uint32_t len;
            char text[PL_PROBER_PART];
        } part;
    };
};

/* The variables that PL_PROBER_ENV gives, beside PLUME_RUNTIME; NULL at the end. */
extern const char *const pl_prober_variables[];

/* The process itself: `plrund --prober FD`, a socket of packets. Returns when the daemon has closed
 * its end. */
int pl_prober_run(int fd, struct pl_error *err);

#endif
