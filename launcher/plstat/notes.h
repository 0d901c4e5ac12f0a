/* SPDX-License-Identifier: MIT */
/* Notes on what a command could not reach, each once, and whether data is missing. */
#ifndef PL_LAUNCHER_PLSTAT_NOTES_H
#define PL_LAUNCHER_PLSTAT_NOTES_H

#include "common/base/error.h"

#include <jansson.h>
#include <stdbool.h>

struct pl_notes {
    json_t *list; /* strings; NULL: none yet */
    bool partial; /* the report is incomplete: exit code 4 */
};

void pl_notes_finish(struct pl_notes *notes);

/* Adds a line unless the list has it. Without memory the line is lost, but not `partial`. */
void pl_notes_add(struct pl_notes *notes, bool partial, const char *fmt, ...) PL_PRINTF(3, 4);

#endif
