/* SPDX-License-Identifier: MIT */
/* Units of the parameters (--shard param: ZeRO's third stage, Rajbhandari et al., SC 2020, arXiv
 * 1910.02054; FSDP, Zhao et al., VLDB 2023, arXiv 2304.11277). Between two uses a rank has the
 * values of its own shard only. A unit is a range of neighbouring parameters in the arenas, which
 * have the tape's order. Before an operation uses a parameter, all ranks gather its unit; after the
 * last operation of a stay its memory is another unit's. Backward gathers again what it reads.
 *
 * A stay is the time for which a unit has memory, in positions of the tape (tape.h). Uses of one
 * direction that are near each other are one stay; tied weights, which are used at both ends of a
 * model, have several. Stays that do not meet share memory (tape_memory.h). A unit that lies in the
 * own shard is used where it is.
 *
 * With autocast a parameter that is only read in 16 bits (the tape's `lends`) is gathered in 16
 * bits: its owner rounds it, and the outputs of its casts lie in the unit's memory. The f32 masters
 * stay with the shards.
 *
 * All ranks gather the same units in the same order. So before a batch they compare their tapes. If
 * these differ, or a rank has no batch, they gather all units at once and keep them for the batch.
 *
 *     init -> (trace) -> begin -> forward -> backward -> begin ... finish
 *
 * On GPUs that are joined by NCCL a unit's gather is started when the unit before it comes into
 * use, and runs beside the operations of that one. Else a gather runs in the calling thread, as
 * reductions do: on a CPU it needs the same core. */
#ifndef PL_RUNTIME_ENGINE_PARAMS_UNITS_H
#define PL_RUNTIME_ENGINE_PARAMS_UNITS_H

#include "runtime/engine/params/params.h"

struct pl_unit {
    size_t from, to; /* elements of the arenas */
    size_t first, n; /* its parameters, as laid out */
    bool own;        /* it lies in the own shard */
    size_t stay;     /* the running one, of units' `running` */
};

struct pl_unit_stay {
    size_t unit;
    size_t from, to; /* positions, both included */
    size_t begin;    /* its gather is started here; `from`, or earlier */
    size_t offset;   /* in the units' memory; SIZE_MAX: in the own shard */
};

/* A parameter, as laid out, while it is gathered. */
struct pl_unit_place {
    size_t at;  /* bytes from the beginning of its unit's memory */
    size_t low; /* its casts, of the plan's `casts`: index of the first + 1; 0: it is in its own
                   type */
};

/* The output of a cast that the tape lends. */
struct pl_unit_cast {
    plume_tensor *t;
    size_t param; /* as laid out */
    size_t at;    /* bytes, if all casts lie together: for batches whose ranks differ */
};

/* The stays of one tape. Zeroed memory is valid. */
struct pl_unit_plan {
    struct pl_unit_place *places; /* by parameter */
    size_t *unit_bytes;
    struct pl_unit_cast *casts; /* by parameter */
    size_t n_casts, casts_bytes;
    const struct pl_tape *tape;
    uint64_t plans;            /* of the tape, for which this was made */
    struct pl_unit_stay *list; /* in the order of `from` */
    size_t n;
    size_t bytes;  /* of the units' memory */
    uint64_t hash; /* of what must be alike on all ranks */
};

struct pl_units {
    struct pl_params *params;
    struct pl_comm *comm;
    struct pl_unit *list;
    size_t n;
    char *memory;
    size_t bytes;
    size_t *offset;            /* comm's size + 1 */
    uint64_t *hashes;          /* by rank */
    struct pl_unit_plan whole; /* all units at once */
    const struct pl_unit_plan *running;
    const struct pl_unit_plan *own; /* of this rank's tape, if `running` is `whole`; or NULL */
    /* Stays of `running`: the next to come into use; the first whose gather was not started; the
     * first that may still last. */
    size_t next, started, done;
    bool ahead; /* gathers run beside the device's work */
    struct pl_tape_leaves leaves;
    bool told; /* that ranks differ */
};

/* Call after the layout with PL_SHARD_PARAM. Borrows params and comm. Units have at most max_bytes;
 * a larger parameter is a unit of its own. The struct may not be moved afterwards. Zeroed memory
 * may be finished. -ENOMEM. */
int pl_units_init(struct pl_units *units,
                  struct pl_params *params,
                  struct pl_comm *comm,
                  size_t max_bytes,
                  struct pl_error *err);
void pl_units_finish(struct pl_units *units);

/* Plans the stays of a planned tape, if it has changed. -ENOMEM. */
int pl_unit_plan_make(const struct pl_units *units,
                      struct pl_unit_plan *plan,
                      const struct pl_tape *tape,
                      struct pl_error *err);
void pl_unit_plan_finish(struct pl_unit_plan *plan);

/* Sets the places of a plan that has its stays, and of its casts. -ENOMEM. */
int pl_unit_plan_place(const struct pl_units *units, struct pl_unit_plan *plan);

/* The unit is used where it is, in the own shard. */
bool pl_unit_stays_in_place(const struct pl_unit_plan *plan, const struct pl_unit *u);

/* Bytes of an element of a parameter, as laid out. */
size_t pl_unit_element(const struct pl_units *units, const struct pl_unit_plan *plan, size_t param);

/* Call before the planned tape runs forward, on all ranks: from now on the tape gathers units.
 * Collective. -ENOMEM, -ECONNRESET. */
int pl_units_begin(struct pl_units *units,
                   struct pl_unit_plan *plan,
                   struct pl_tape *tape,
                   struct pl_error *err);

/* Instead of begin and a run forward: takes part in the gathers of the other ranks. tape: planned,
 * as theirs should be; NULL if this rank does not know. Collective. */
int pl_units_assist(struct pl_units *units,
                    struct pl_unit_plan *plan,
                    const struct pl_tape *tape,
                    struct pl_error *err);

#endif
