/* SPDX-License-Identifier: MIT */
/* Makes every JSON document of plstat, schema "plstat/1" (plstat(1), JSON). A value that is not
 * known has no key. A key never changes its meaning and is never removed. */
#ifndef PL_LAUNCHER_PLSTAT_PLSTAT_JSON_H
#define PL_LAUNCHER_PLSTAT_PLSTAT_JSON_H

#include "launcher/plstat/status.h"

#define PL_PLSTAT_SCHEMA "plstat/1"

/* All return a new reference, NULL when out of memory. */

/* plstat sweep, and each sweep of the list (without trials). */
json_t *pl_plstat_json_sweep(const struct pl_run_status *s, bool trials);

/* plstat show: the keys and ranks of one trial, or the ranks of all trials, each with its trial. */
json_t *pl_plstat_json_show(const struct pl_run_status *s);

/* A job that only Slurm knows. */
json_t *pl_plstat_json_slurm_job(const struct pl_slurm_job *job);

/* plstat why. ts NULL: no trial failed. cause is borrowed and has "others"; NULL: none. */
json_t *
pl_plstat_json_why(const struct pl_run_status *s, const struct pl_trial_status *ts, json_t *cause);

/* plstat doctor: its findings and the facts of each node; borrowed. */
json_t *pl_plstat_json_doctor(json_t *checks, json_t *nodes);

/* Adds "schema", "kind" ("list", "show", "sweep", "why") and "time" at the start of a document, and
 * "partial" and "notes" at its end. On failure *doc is NULL. -ENOMEM. */
int pl_plstat_json_finish(json_t **doc, const char *kind, const struct pl_notes *notes);

#endif
