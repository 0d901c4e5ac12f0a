/* SPDX-License-Identifier: MIT */
/* Every JSON document of plstat is made here, schema "plstat/1" (plstat(1), JSON). A key that is
 * not known is absent. Names never change their meaning and are never removed. */
#ifndef PL_LAUNCHER_PLSTAT_PLSTAT_JSON_H
#define PL_LAUNCHER_PLSTAT_PLSTAT_JSON_H

#include "launcher/plstat/status.h"

#define PL_PLSTAT_SCHEMA "plstat/1"

/* All return a new reference, NULL when out of memory. */

/* plstat sweep; also each of the list's sweeps, there without trials. */
json_t *pl_plstat_json_sweep(const struct pl_run_status *s, bool trials);

/* plstat show: keys of one trial, or ranks of all, each with its trial. */
json_t *pl_plstat_json_show(const struct pl_run_status *s);

/* A job that only Slurm knows. */
json_t *pl_plstat_json_slurm_job(const struct pl_slurm_job *job);

/* plstat why. ts NULL: nothing of the run failed. cause (borrowed) has its
 * "others"; NULL none. */
json_t *
pl_plstat_json_why(const struct pl_run_status *s, const struct pl_trial_status *ts, json_t *cause);

/* Sets "schema", "kind" ("list", "show", "sweep", "why") and "time" in front of a document, and
 * "partial" and "notes" behind it. On failure *doc is NULL. -ENOMEM. */
int pl_plstat_json_finish(json_t **doc, const char *kind, const struct pl_notes *notes);

#endif
