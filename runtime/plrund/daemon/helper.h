/* SPDX-License-Identifier: MIT */
/* The helper: a child of the daemon, started before the daemon confines itself (confine.h), that
 * does what a confined process may not. It does nothing but the requests below, one after another,
 * for this daemon alone, and knows no secret. A request is a row of the table in helper.c; whoever
 * adds one asks what a daemon in a stranger's hand could do with it. */
#ifndef PL_RUNTIME_PLRUND_DAEMON_HELPER_H
#define PL_RUNTIME_PLRUND_DAEMON_HELPER_H

#include "runtime/plrund/daemon/daemon.h"

enum pl_helper_what {
    PL_HELPER_ORPHANS, /* ends what a rank (UINT_MAX: any) has left, but `spare` */
    PL_HELPER_GUARD,   /* `spare` is a rank's plrun; no answer */
};

struct pl_helper_request {
    uint32_t sequence; /* set by pl_daemon_helper_ask() */
    uint32_t what;
    uint32_t rank;
    int32_t spare;
};

struct pl_helper_answer {
    uint32_t sequence;
    int32_t result;
};

/* The process itself: `plrund --helper FD`. Returns when the daemon and its lifeline have closed
 * their end, or have been killed; under the plugin it then ends what the ranks have left, unless
 * that is done. Under plrun it then has each plrun that is stopped go on. */
int pl_helper_run(int fd, struct pl_error *err);

#endif
