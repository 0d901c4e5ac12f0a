/* SPDX-License-Identifier: MIT */
/* A file of events with their times, in the Trace Event Format of Chrome (chrome://tracing and
 * Perfetto open it): complete events ("ph":"X"), in microseconds since the file was opened. Events
 * of one thread nest. Any thread may add events; a NULL timeline takes none. */
#ifndef PL_RUNTIME_ENGINE_UTIL_TIMELINE_H
#define PL_RUNTIME_ENGINE_UTIL_TIMELINE_H

#include "common/base/error.h"

#include <stdint.h>

struct pl_timeline;

/* name: of the process that the events belong to. -errno if the file cannot be created. */
int pl_timeline_open(const char *path,
                     const char *name,
                     struct pl_timeline **ret,
                     struct pl_error *err);

/* Completes the file and frees the timeline. NULL is ignored. -errno if not everything is written.
 */
int pl_timeline_close(struct pl_timeline *timeline, struct pl_error *err);

/* Now, for pl_timeline_end(); 0 without a timeline. */
uint64_t pl_timeline_begin(const struct pl_timeline *timeline);

/* Adds the event from `begin` to now. thread: from 0; 0 is the main one. category and name are
 * plain words; detail (may be NULL) needs no quoting either. After PL_TIMELINE_EVENTS_MAX events
 * those with a detail are left out. */
void pl_timeline_end(struct pl_timeline *timeline,
                     unsigned thread,
                     const char *category,
                     const char *name,
                     const char *detail,
                     uint64_t begin);

#define PL_TIMELINE_EVENTS_MAX 2000000 /* about 250 MB */

#endif
