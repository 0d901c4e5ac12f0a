/* SPDX-License-Identifier: MIT */
/* The end of a node's ranks by order: SIGTERM, and SIGKILL after the grace. */
#include "common/base/env.h"
#include "common/base/fs.h"
#include "common/base/log.h"
#include "common/base/process.h"
#include "common/proto/messages.h"
#include "runtime/plrund/daemon/daemon.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>

#define SAVES_MS 100  /* between two looks at ranks whose save command runs */
#define GUARD_MS 3000 /* for a guard to end its rank, which takes it milliseconds */

#define WAKE_S 3 /* a guard whose rank has ended may stay stopped for so long */

static bool is_in_state(pid_t pid, char state)
{
    struct pl_process_stat stat;

    return pid > 1 && pl_process_stat(pid, &stat) == 0 && stat.state == state;
}

/* True if a child of the process has ended, and is not reaped. */
static bool has_ended_child(pid_t pid)
{
    _cleanup_free_ char *path = pl_strf("/proc/%d/task/%d/children", (int)pid, (int)pid);
    _cleanup_free_ char *text = NULL;
    char *word, *rest;

    if (!path || pl_file_read(path, 65536, &text, NULL, NULL) < 0)
        return false;
    for (word = strtok_r(text, " \n", &rest); word; word = strtok_r(NULL, " \n", &rest))
        if (is_in_state((pid_t)strtol(word, NULL, 10), 'Z'))
            return true;
    return false;
}

/* A guard may have been stopped before it could name the rank that it had started. */
static bool rank_has_ended(const struct pl_rank *rank)
{
    if (rank->ended || !rank->world_sent)
        return rank->ended;
    return rank->running ? is_in_state(rank->pid, 'Z') : has_ended_child(rank->guard_pid);
}

/* srun waits for it, and all that is left to it is to report that end and to leave. */
static void wake_guard(struct pl_rank *rank)
{
    if (!is_in_state(rank->guard_pid, 'T') || !rank_has_ended(rank)) {
        rank->guard_idle_s = 0;
        return;
    }
    if (++rank->guard_idle_s < WAKE_S)
        return;
    pl_log_warn("child", "plrun of rank %u is stopped, and the rank has ended: plrun goes on",
                rank->rank);
    pl_process_signal(&rank->guard, SIGCONT);
    rank->guard_idle_s = 0;
}

void pl_daemon_wake_guards(struct pl_daemon *d)
{
    for (unsigned i = 0; i < d->n_present; i++)
        if (d->ranks[i].guarded && d->ranks[i].starter)
            wake_guard(&d->ranks[i]);
}

/* SIGKILL has not ended it: it waits in the kernel, or its control group is frozen. Nobody can do
 * more, and its node needs a look. */
static void tell_unkillable(struct pl_rank *rank)
{
    _cleanup_free_ char *text = NULL;
    struct pl_process_stat stat;

    if (rank->unkillable || !rank->running || rank->ended ||
        pl_process_stat(rank->pid, &stat) < 0 || stat.state == 'Z' || stat.state == 'X')
        return;
    rank->unkillable = true;
    pl_log_error("child", "rank %u: SIGKILL does not end process %d, which is in state %c",
                 rank->rank, (int)rank->pid, stat.state);
    text = pl_strf("process %d, state %c", (int)rank->pid, stat.state);
    if (text)
        pl_uplink_send(rank->daemon->uplink,
                       &(struct pl_msg){.type = PL_MSG_NODE_FACT,
                                        .node_fact = {"unkillable", text, rank->rank}});
}

/* SIGKILL to the others while ranks save. False: none does, or for too long. */
static bool spare_savers(struct pl_daemon *d)
{
    bool saves = false;

    if (pl_now_ns() >= d->save_limit_ns)
        return false;
    for (unsigned i = 0; i < d->n_present; i++) {
        struct pl_rank *rank = &d->ranks[i];

        if (rank->running && !rank->ended && pl_process_saves(rank->pid))
            saves = true;
        else
            pl_rank_signal(rank, SIGKILL);
    }
    return saves;
}

/* SIGKILL to the rank of a guard that is stopped. The rank counts as ended with its guard, which is
 * killed next: whether it waits in the kernel must be seen before. */
static void kill_for_guard(struct pl_rank *rank)
{
    struct pl_process_stat stat;

    if (rank->guarded && rank->running && !rank->ended && is_in_state(rank->guard_pid, 'T') &&
        pl_process_stat(rank->pid, &stat) == 0 && stat.parent == rank->guard_pid)
        rank->killed_for_guard = kill(rank->pid, SIGKILL) == 0; /* not reaped, so it is still it */
}

void pl_daemon_on_grace_over(void *ctx)
{
    struct pl_daemon *d = ctx;

    if (!d->grace_over && spare_savers(d)) {
        pl_limit_start(&d->grace, SAVES_MS);
        return;
    }
    for (unsigned i = 0; i < d->n_present; i++) {
        struct pl_rank *rank = &d->ranks[i];

        /* A guard that is stopped has sent it no SIGKILL. */
        if (d->grace_over && (rank->killed_for_guard || !is_in_state(rank->guard_pid, 'T')))
            tell_unkillable(rank);
        /* A guard that was told so and has done nothing is stopped, or it hangs. The kernel ends
         * its rank with it. */
        if (d->grace_over && rank->guarded && !rank->ended)
            pl_process_kill(&rank->guard);
        pl_rank_signal(rank, SIGKILL);
        if (!d->grace_over)
            kill_for_guard(rank);
    }
    d->grace_over = true;
    pl_limit_start(&d->grace, GUARD_MS);
}

/* Has the rank end by SIGKILL if it might end well by SIGTERM. */
static void fail(struct pl_rank *rank)
{
    if (pl_process_may_survive(rank->pid, SIGTERM))
        pl_rank_signal(rank, SIGKILL);
}

void pl_daemon_end_ranks(struct pl_daemon *d, unsigned grace_ms, int64_t fail_rank)
{
    struct pl_rank *failing = NULL;

    if (d->teardown)
        return;
    d->teardown = true;
    if (!d->refusal)
        d->refusal = strdup("another rank failed first");
    pl_daemon_refuse_all(d);
    for (unsigned i = 0; i < d->n_present && d->step.plugin; i++) {
        struct pl_rank *rank = &d->ranks[i];

        if (rank->world_sent && !rank->ended &&
            (fail_rank == (int64_t)rank->rank ||
             (fail_rank == PL_DAEMON_FAIL_ANY && !pl_process_saves(rank->pid))))
            failing = rank;
    }
    if (failing)
        fail(failing);
    for (unsigned i = 0; i < d->n_present; i++)
        pl_rank_signal(&d->ranks[i], SIGTERM);
    pl_limit_start(&d->grace, grace_ms);
}

void pl_daemon_end_ranks_alone(struct pl_daemon *d, int64_t fail_rank)
{
    if (!d->teardown)
        d->save_limit_ns =
            pl_now_ns() +
            (pl_env_ms(PL_ENV_PLUME_SAVE_GRACE) + (uint64_t)PL_SAVE_END_MS) * 1000000u;
    pl_daemon_end_ranks(d, pl_env_ms(PL_ENV_PLUME_KILL_GRACE), fail_rank);
}
