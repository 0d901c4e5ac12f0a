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
    {"learning-rate", "write --lr X"},
    {"wd", "write --weight-decay X"},
    {"scheduler", "a module chooses the schedule of its learning rate"},
    {"lr-scheduler", "a module chooses the schedule of its learning rate"},
    {"device", "write --accelerator cpu or gpu; --devices K is their number"},
    {"backend", "write --comm tcp, mpi or nccl; --strategy ddp divides the work"},
    {"dist-backend", "write --comm tcp, mpi or nccl; --strategy ddp divides the work"},
    {"grad-clip", "write --clip VALUE"},
    {"clip-grad", "write --clip VALUE"},
    {"clip-grad-norm", "write --clip VALUE"},
    {"max-grad-norm", "write --clip VALUE"},
    {"grad-accum-steps", "write --accumulate N"},
    {"amp", "write --precision 16 or bf16"},
    {"half", "write --precision 16"},
    {"compile", "a module is compiled already: omit it"},
    {"eval", "write --validate or --test, with --weights FILE"},
    {"evaluate", "write --validate or --test, with --weights FILE"},
    {"checkpoint", "write --checkpoint-dir DIR to write them, --resume FILE to go on"},
    {"save-dir", "write --checkpoint-dir DIR and --log-dir DIR"},
    {"load", "write --weights FILE, or --resume FILE to go on"},
    {"pretrained", "write --weights FILE"},
    {"model", "write the module's name or path without an option"},
    {"data", "a module chooses its data, and looks in PLUME_DATA_DIR first"},
    {"data-dir", "a module chooses its data, and looks in PLUME_DATA_DIR first"},
    {"dataset", "a module chooses its data, and looks in PLUME_DATA_DIR first"},
    {"workers", "write --num-workers 0 or 1"},
    {"logger", "write --log-dir DIR: metrics.csv and TensorBoard's files"},
    {"tensorboard", "write --log-dir DIR: metrics.csv and TensorBoard's files"},
    {"csv", "write --log-dir DIR: metrics.csv and TensorBoard's files"},
    {"verbose", "set PLUME_LOG=info or debug"},
    {"rank", "plrun and Slurm give each rank its number: omit it"},
    {"local-rank", "plrun and Slurm give each rank its number: omit it"},
    {"node-rank", "plrun and Slurm give each node its number: omit it"},
    {"master-addr", "plrun sets it: omit it"},
    {"master-port", "plrun sets it: omit it"},
    {"standalone", "write --processes N for ranks on this machine"},
    {"fsdp", "write --strategy sharded --shard param"},
    {"deepspeed", "write --strategy sharded"},
    {"gradient-checkpointing", "write --recompute"},
    {"activation-checkpointing", "write --recompute"},
    {"output-dir", "write --checkpoint-dir DIR and --log-dir DIR"},
};

/* Values by option; '-', '_' and the case are as in pl_near_distance(). */
static const struct {
    const char *name, *value, *text;
} values[] = {
    {"strategy", "fsdp", "--strategy sharded --shard param"},
    {"strategy", "fsdp2", "--strategy sharded --shard param"},
    {"strategy", "fsdp-native", "--strategy sharded --shard param"},
    {"strategy", "hsdp", "--strategy sharded --shard param --shard-group node"},
    {"strategy", "zero", "--strategy sharded"},
    {"strategy", "zero1", "--strategy sharded"},
    {"strategy", "zero-1", "--strategy sharded"},
    {"strategy", "zero2", "--strategy sharded --shard grad"},
    {"strategy", "zero-2", "--strategy sharded --shard grad"},
    {"strategy", "zero3", "--strategy sharded --shard param"},
    {"strategy", "zero-3", "--strategy sharded --shard param"},
    {"strategy", "deepspeed", "--strategy sharded --shard grad"},
    {"strategy", "deepspeed-stage-1", "--strategy sharded"},
    {"strategy", "deepspeed-stage-2", "--strategy sharded --shard grad"},
    {"strategy", "deepspeed-stage-3", "--strategy sharded --shard param"},
    {"strategy", "ddp-sharded", "--strategy sharded --shard grad"},
    {"strategy", "tp", "--tensor-parallel K"},
    {"strategy", "tensor-parallel", "--tensor-parallel K"},
    {"strategy", "megatron", "--tensor-parallel K"},
    {"strategy", "modelparallel", "--tensor-parallel K, or --strategy pipeline"},
    {"strategy", "model-parallel", "--tensor-parallel K, or --strategy pipeline"},
    {"strategy", "pp", "--strategy pipeline"},
    {"strategy", "pipe", "--strategy pipeline"},
    {"strategy", "gpipe", "--strategy pipeline --schedule gpipe"},
    {"strategy", "1f1b", "--strategy pipeline"},
    {"strategy", "dataparallel", "--strategy dp"},
    {"strategy", "distributeddataparallel", "--strategy ddp"},
    {"strategy", "ddp-cpu", "--strategy ddp --processes N"},
    {"strategy", "ddp-spawn", "--strategy ddp --processes N"},
    {"strategy", "ddp-fork", "--strategy ddp --processes N"},
    {"strategy", "ddp-find-unused-parameters-true", "--strategy ddp"},
    {"strategy", "ddp-find-unused-parameters-false", "--strategy ddp"},
    {"strategy", "gloo", "--comm tcp"},
    {"strategy", "nccl", "--comm nccl"},
    {"strategy", "mpi", "--comm mpi"},
    {"strategy", "single-device", "--strategy single"},
    {"strategy", "none", "--strategy auto"},
    {"shard", "zero1", "--shard os"},
    {"shard", "zero2", "--shard grad"},
    {"shard", "zero3", "--shard param"},
    {"shard", "1", "--shard os"},
    {"shard", "2", "--shard grad"},
    {"shard", "3", "--shard param"},
    {"shard", "full", "--shard param"},
    {"shard", "full-shard", "--shard param"},
    {"shard", "shard-grad-op", "--shard grad"},
    {"shard", "params", "--shard param"},
    {"shard", "grads", "--shard grad"},
    {"precision", "16-mixed", "--precision 16"},
    {"precision", "fp16", "--precision 16"},
    {"precision", "f16", "--precision 16"},
    {"precision", "float16", "--precision 16"},
    {"precision", "half", "--precision 16"},
    {"precision", "amp", "--precision 16"},
    {"precision", "mixed", "--precision 16, or bf16"},
    {"precision", "16-true", "--precision 16 --amp-level O3"},
    {"precision", "bf16-mixed", "--precision bf16"},
    {"precision", "bfloat16", "--precision bf16"},
    {"precision", "bf16-true", "--precision bf16 --amp-level O3"},
    {"precision", "32-true", "--precision 32"},
    {"precision", "fp32", "--precision 32"},
    {"precision", "f32", "--precision 32"},
    {"precision", "float32", "--precision 32"},
    {"precision", "float", "--precision 32"},
    {"precision", "tf32", "--tf32"},
    {"precision", "64-true", "--precision 64"},
    {"precision", "fp64", "--precision 64"},
    {"precision", "f64", "--precision 64"},
    {"precision", "float64", "--precision 64"},
    {"precision", "double", "--precision 64"},
    {"accelerator", "cuda", "--accelerator gpu"},
    {"accelerator", "nvidia", "--accelerator gpu"},
    {"accelerator", "xla", "--accelerator tpu"},
    {"accelerator", "ddp", "--strategy ddp"},
    {"devices", "cpu", "--accelerator cpu"},
    {"devices", "cuda", "--accelerator gpu"},
    {"devices", "gpu", "--accelerator gpu"},
    {"comm", "gloo", "--comm tcp, or shm"},
    {"comm", "openmpi", "--comm mpi"},
};

/* Parts of the names of learning rates' schedules. */
static const char *const rates[] = {"cos", "linear", "step", "plateau", "cycle", "exp", "constant"};

void pl_pltrain_explain_value(const char *name, const char *value, struct pl_error *err)
{
    for (size_t i = 0; i < PL_COUNT(values); i++)
        if (strcmp(name, values[i].name) == 0 && pl_near_distance(value, values[i].value) == 0) {
            pl_error_set(err, -EINVAL, "'%s' has another name here: write %s", value,
                         values[i].text);
            return;
        }
    for (size_t i = 0; i < PL_COUNT(rates); i++)
        if (strcmp(name, "schedule") == 0 && strcasestr(value, rates[i])) {
            pl_error_set(err, -EINVAL,
                         "'%s' is not 1f1b or gpipe, an order of a pipeline's work; a module "
                         "chooses the schedule of its learning rate",
                         value);
            return;
        }
    if ((strcmp(name, "devices") == 0 || strcmp(name, "gpus") == 0) &&
        (strcmp(value, "-1") == 0 || strcmp(value, "all") == 0))
        pl_error_set(err, -EINVAL, "'%s' for all devices does not exist here: write their number",
                     value);
}

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
