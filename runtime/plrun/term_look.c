/* SPDX-License-Identifier: MIT */
#include "runtime/plrun/term_look.h"
#include "common/base/macros.h"
#include "common/base/process.h"

#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* PreemptParameters=send_user_signal has Slurm send the signal of --signal in place of SIGTERM.
 * SIGINT is not asked for: every Python handles it. */
void pl_term_look_last(struct pl_term_look *look, pid_t child)
{
    static const int signals[] = {SIGTERM, SIGUSR1, SIGUSR2, SIGHUP};

    for (size_t i = 0; i < PL_COUNT(signals) && !look->survives; i++)
        look->survives = pl_process_may_survive(child, signals[i]);
}

void pl_term_look(struct pl_term_look *look, pid_t child)
{
    char path[32], theirs[PATH_MAX] = "", ours[PATH_MAX] = "";

    if (look->survives)
        return;
    snprintf(path, sizeof(path), "/proc/%d/exe", (int)child);
    if (readlink(path, theirs, sizeof(theirs) - 1) <= 0 ||
        readlink("/proc/self/exe", ours, sizeof(ours) - 1) <= 0 || strcmp(theirs, ours) == 0)
        return;
    look->looked = true;
    pl_term_look_last(look, child);
}

int pl_term_default(const struct pl_term_look *look)
{
    if (look->survives)
        return 0;
    return look->looked ? 1 : -1;
}
