/* SPDX-License-Identifier: MIT */
/* What a command could not reach, said once each, and whether data is missing for it. */
#ifndef PL_LAUNCHER_PLSTAT_NOTES_H
#define PL_LAUNCHER_PLSTAT_NOTES_H

#include "common/base/error.h"

#include <jansson.h>
#include <stdbool.h>

struct pl_notes {
    json_t *list; /* strings; NULL while there is none */
    bool partial; /* what was asked for could not be had in full: exit code 4 */
};

void pl_notes_finish(struct pl_notes *notes);

/* Adds a line unless it is there already. Out of memory loses it, not `partial`. */
void pl_notes_add(struct pl_notes *notes, bool partial, const char *fmt, ...) PL_PRINTF(3, 4);

#endif
