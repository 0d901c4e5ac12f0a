/* SPDX-License-Identifier: MIT */
/* The lifeline: a second small process beside the daemon, under the plugin, where no plrun ends a
 * rank whose daemon is gone. It holds a descriptor of each rank's process. When the daemon is
 * killed, or stays stopped for PLUME_SILENCE, it ends the ranks within the grace; slurmstepd then
 * ends the step. A stopped daemon is killed then, since it would hold srun's streams open, and its
 * socket is removed. It holds the helper's socket, too: the helper ends what the ranks have left
 * when the lifeline has ended. Who kills all three takes the ranks' last guard away: Slurm itself
 * must end the step then. */
#ifndef PL_RUNTIME_PLRUND_DAEMON_LIFELINE_H
#define PL_RUNTIME_PLRUND_DAEMON_LIFELINE_H

#include "common/base/error.h"

/* The process itself: `plrund --lifeline FD`. fd: the socket to the daemon. Returns when the daemon
 * has gone and no rank is left. -ENOMEM, and errors of poll(2). */
int pl_lifeline_run(int fd, struct pl_error *err);

/* The daemon sends one packet per message. The packet of a rank carries a pidfd of its process. */
#define PL_LIFELINE_BEAT 'b'
#define PL_LIFELINE_RANK 'r'
#define PL_LIFELINE_SOCKET 's' /* its path follows */
#define PL_LIFELINE_HELPER 'h' /* carries the daemon's end of its helper's socket */

/* The lifeline sends one, before it ends the ranks of a daemon that was silent for too long. */
#define PL_LIFELINE_GIVEN_UP 'g'

#endif
