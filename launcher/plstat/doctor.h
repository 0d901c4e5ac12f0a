/* SPDX-License-Identifier: MIT */
/* plstat doctor: its findings. */
#ifndef PL_LAUNCHER_PLSTAT_DOCTOR_H
#define PL_LAUNCHER_PLSTAT_DOCTOR_H

#include "launcher/plstat/plstat.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

struct pl_doctor {
    struct pl_plstat *ps;
    json_t *checks, *nodes;
    json_t *of_nodes;        /* what is wrong on nodes: the text, and the nodes' names */
    bool plugin_here, munge; /* Slurm's answers depend on munge */
    char namespace[64];      /* of struct pl_slurm_site */
    int64_t asked;           /* nodes */
    int r;                   /* the first failure of ours */
};

/* Adds a finding. verdict: "ok", "check", "wrong". */
void pl_doctor_add(struct pl_doctor *d, const char *verdict, const char *fmt, ...) PL_PRINTF(3, 4);

/* Adds what the answers of `nodes` show, of which there is at least one.
 * token: what the nodes should have read in the folder of runs; NULL = nothing was written.
 * before_s, after_s: this host's clock around their answers. */
void pl_doctor_look_at_answers(struct pl_doctor *d,
                               const char *token,
                               double before_s,
                               double after_s);

/* Adds what they show of the socket by which programs of 'srun --plume' report: it is below /tmp,
 * if nothing else is configured. There may be no answer. */
void pl_doctor_check_socket(struct pl_doctor *d);

#endif
