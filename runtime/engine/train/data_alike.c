/* SPDX-License-Identifier: MIT */
#include "runtime/engine/train/data_alike.h"
#include "common/base/buf.h"
#include "runtime/engine/params/consistency.h"
#include "runtime/engine/util/xxh64.h"

#include <inttypes.h>

static int add_stage(struct pl_buf *buf, const struct pl_stage *s, const char *name)
{
    const struct pl_sampler_options *o = &s->loader.sampler.options;
    int r;

    if (!s->present)
        return pl_buf_addf(buf, "no %s data\n", name);
    r = pl_buf_addf(buf, "%zu samples of %s data\n", o->n, name);
    if (r == 0 && o->list)
        r = pl_buf_addf(buf, "a list of %zu samples of %s data, checksum %016" PRIx64 "\n",
                        o->n_list, name, pl_xxh64(o->list, o->n_list * sizeof(*o->list)));
    return r;
}

int pl_data_alike(const struct pl_trainer *t, struct pl_error *err)
{
    static const char *const names[] = {"training", "validation", "test"};
    _cleanup_(pl_buf_finish) struct pl_buf mine = {0};
    int r = pl_buf_addf(&mine, "--seed %" PRIu64 "\n", t->options->seed);

    for (int i = t->strategy.uneven_inputs ? PLUME_VALIDATE : PLUME_TRAIN;
         i <= PLUME_TEST && r == 0; i++)
        r = add_stage(&mine, &t->stage[i], names[i]);
    if (r < 0)
        return pl_error_nomem(err);
    return pl_agree_on_lines(pl_buf_str(&mine), "has", "hook data and --seed must be", t->comm,
                             err);
}
