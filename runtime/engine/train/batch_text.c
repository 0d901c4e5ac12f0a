/* SPDX-License-Identifier: MIT */
#include "runtime/engine/train/batch_text.h"
#include "runtime/engine/reduce/strategy.h"

static void print_accumulated(const struct pl_trainer *t, uint64_t n)
{
    if (n > 1)
        fprintf(t->options->out, " x %llu batches", (unsigned long long)n);
    if (t->strategy.average_every)
        fprintf(t->options->out, "; averages every %llu steps",
                (unsigned long long)t->strategy.average_every);
    fputs(t->options->n_accumulate_from ? "; changes with epochs)\n" : ")\n", t->options->out);
    fflush(t->options->out);
}

void pl_print_batch(const struct pl_trainer *t)
{
    uint64_t rows = (uint64_t)pl_hparams_value(t->hparams, "batch_size");
    uint64_t n = pl_accumulate_at(t->options, t->state.epoch);
    unsigned ranks = t->comm->size * PL_MAX(t->xla.n, 1u), devices = t->strategy.devices;
    char ranks_of_each[32] = "";
    size_t chunk;

    if (t->comm->rank != 0 || !t->options->out || ranks * devices * n == 1)
        return;
    if (t->tp.on)
        snprintf(ranks_of_each, sizeof(ranks_of_each), " of %u ranks", t->tp.split.n);
    if (t->pipe.on) {
        fprintf(t->options->out,
                "batch: %llu samples per step (pipeline: %u pipeline%s of %u stages%s x %llu "
                "samples in %zu microbatches",
                (unsigned long long)(rows * n * t->pipe.n_pipes), t->pipe.n_pipes,
                t->pipe.n_pipes > 1 ? "s" : "", t->pipe.n_stages, ranks_of_each,
                (unsigned long long)rows, pl_pipe_microbatches(&t->pipe, (size_t)rows, &chunk));
        print_accumulated(t, n);
        return;
    }
    if (t->tp.on)
        ranks = t->tp.n_groups;
    fprintf(t->options->out, "batch: %llu samples per step (%s: %u %s%s",
            (unsigned long long)(rows * n * ranks), pl_strategy_names[t->strategy.kind], ranks,
            t->xla.n > 1 ? "replica"
            : t->tp.on   ? "group"
                         : "rank",
            ranks > 1 ? "s" : "");
    fprintf(t->options->out, "%s x %llu samples", ranks_of_each, (unsigned long long)rows);
    if (devices > 1)
        fprintf(t->options->out, ", split among %u devices", devices);
    print_accumulated(t, n);
}
