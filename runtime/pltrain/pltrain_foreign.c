/* SPDX-License-Identifier: MIT */
#include "runtime/pltrain/pltrain_foreign.h"
#include "common/base/macros.h"
#include "common/base/near.h"
#include "runtime/engine/reduce/strategy.h"
#include "runtime/pltrain/pltrain_options.h"

#include <string.h>
#include <strings.h>

int pl_pltrain_set_use_amp(void *ctx,
                           const struct pl_option *o,
                           const char *value,
                           struct pl_error *err)
{
    static const char *const words[] = {"true", "1", "yes", "false", "0", "no"};
    struct pl_pltrain *p = ctx;
    size_t i = 0;

    while (value && i < PL_COUNT(words) && strcasecmp(value, words[i]) != 0)
        i++;
    if (i == PL_COUNT(words))
        return pl_error_set(err, -EINVAL, "'%s' is neither True nor False", value);
    if (i < PL_COUNT(words) / 2)
        p->train.precision = PL_PRECISION_16;
    return 0;
}

int pl_pltrain_set_backend(void *ctx,
                           const struct pl_option *o,
                           const char *value,
                           struct pl_error *err)
{
    struct pl_pltrain *p = ctx;
    int kind = PL_STRATEGY_AUTO;
    int r =
        strcasecmp(value, "none") == 0 ? 0 : pl_parse_choice(value, pl_strategy_names, &kind, err);

    if (r == 0)
        p->train.strategy = (enum pl_strategy_kind)kind;
    return r;
}

static const struct {
    const char *name, *text;
} others[] = {
    {"nproc-per-node", "write --processes N"},
    {"nnodes", "write --num-nodes N"},
    {"nodes", "write --num-nodes N; plsubmit --nodes N asks Slurm for them"},
    {"default-root-dir", "write --checkpoint-dir DIR and --log-dir DIR"},
    {"gradient-clip-val", "write --clip VALUE"},
    {"accumulate-grad-batches", "write --accumulate N"},
    {"ckpt-path", "write --resume FILE"},
    {"resume-from-checkpoint", "write --resume FILE"},
    {"log-every-n-steps", "write --log-every N"},
    {"enable-model-summary", "write --summary"},
    {"profiler", "write --profile"},
    {"num-gpus", "write --gpus N"},
    {"world-size", "write --processes N"},
    {"ntasks", "it is for srun and plsubmit; without Slurm write --processes N"},
    {"ntasks-per-node", "it is for srun and plsubmit; without Slurm write --processes N"},
    {"gres", "it is for srun and plsubmit; pltrain has --gpus N"},
    {"fp16", "write --precision 16"},
    {"bf16", "write --precision bf16"},
    {"mixed-precision", "write --precision 16 or bf16"},
    {"num-epochs", "write --epochs N"},
    {"num-train-epochs", "write --epochs N"},
    {"gradient-accumulation-steps", "write --accumulate N"},
    {"output-dir", "write --checkpoint-dir DIR and --log-dir DIR"},
};

/* word: as typed, with `name` in it */
static int explain(const char *name, const char *word, struct pl_error *err)
{
    for (size_t i = 0; i < PL_COUNT(others); i++)
        if (pl_near_distance(name, others[i].name) == 0)
            return pl_error_set(err, -EINVAL, "unknown option '%s': %s", word, others[i].text);
    return 0;
}

int pl_pltrain_explain(const char *word, struct pl_error *err)
{
    return word[1] == '-' ? explain(word + 2, word, err) : 0;
}

int pl_pltrain_explain_hparam(const char *assignment, struct pl_error *err)
{
    char word[64];

    snprintf(word, sizeof(word), "--%.*s", (int)strcspn(assignment, "="), assignment);
    return explain(word + 2, word, err);
}
