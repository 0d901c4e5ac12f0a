/* SPDX-License-Identifier: MIT */
#include "launcher/plsubmit/foreign.h"
#include "common/base/macros.h"
#include "common/base/near.h"

#include <string.h>

#define OF_PROGRAM "an option of the program: write it after the program's name, "
#define OF_PLTRAIN "an option of the program: write it after the program's name; for pltrain: "

static const struct {
    const char *name, *text;
} others[] = {
    /* sbatch's, where plsubmit has a way of its own */
    {"array", "plsubmit sets --array itself: write --grid and --max-parallel"},
    {"wrap", "write the program and its arguments as they are"},
    {"job-name", "write --name NAME"},
    {"error", "each rank's stderr is in rank-R.err; for Slurm's own: --sbatch error=FILE"},
    {"test-only", "write --dry-run"},
    {"wait", "write --wait"},
    {"tasks-per-node", "write --ntasks-per-node N"},
    {"export", "the job gets the whole environment; write --env NAME=VALUE to set a variable"},
    {"export-file", "write --setup 'source FILE'"},
    {"chdir", "write --setup 'cd DIR'"},
    {"input", "write sh -c 'PROGRAM <FILE'"},
    {"requeue", "write --requeue-on preempt,timeout,node-fail; sbatch's own: --sbatch requeue"},
    {"cpus", "write --cpus-per-task N"},
    /* other launchers' */
    {"module", "write --load MODULE"},
    {"modules", "write --load MODULE, once for each"},
    {"virtualenv", "write --venv DIR"},
    {"uv", "write --venv DIR"},
    {"image", "write --container IMAGE"},
    {"docker", "write --container docker://IMAGE"},
    {"nv", "--container adds it where there are GPUs"},
    {"gpu", "write --gpus-per-node N"},
    {"nb-gpu-nodes", "write --nodes N, and --gpus-per-node for the GPUs of each"},
    {"num-nodes", "write --nodes N, and --gpus-per-node for the GPUs of each"},
    {"nnodes", "write --nodes N"},
    {"processes", "write --ntasks-per-node N, or --gpus-per-node N: one rank per GPU"},
    {"nproc-per-node", "write --ntasks-per-node N, or --gpus-per-node N: one rank per GPU"},
    {"devices", "write --gpus-per-node N"},
    {"nb-trials", "write --trials N for the first N of a grid, --random N for draws; without, the "
                  "whole grid is submitted"},
    {"log-dir", "write --runs DIR"},
    {"num-tpu-cores", OF_PLTRAIN "--tpu-cores N"},
    {"tpu-cores", OF_PLTRAIN "--tpu-cores N"},
    {"container-image", "write --srun container-image=IMAGE for pyxis, or --container IMAGE for "
                        "Apptainer and Singularity"},
    {"container-mounts", "write --srun container-mounts=LIST for pyxis, or --container-option "
                         "bind=LIST for Apptainer and Singularity"},
    {"apptainer", "write --container IMAGE"},
    {"singularity", "write --container IMAGE"},
    /* test-tube's SlurmCluster */
    {"log-path", "write --runs DIR"},
    {"per-experiment-nb-nodes", "write --nodes N"},
    {"per-experiment-nb-gpus", "write --gpus-per-node N"},
    {"per-experiment-nb-cpus", "write --cpus-per-task N"},
    {"memory-mb-per-node", "write --mem N"},
    {"gpu-type", "write --gpus-per-node TYPE:N"},
    {"job-time", "write --time TIME"},
    {"job-display-name", "write --name NAME"},
    {"minutes-to-checkpoint-before-walltime", "write --signal USR1@SECONDS"},
    {"enable-auto-resubmit", "write --requeue-on timeout,preempt"},
    {"add-slurm-cmd", "write --sbatch KEY=VALUE"},
    {"add-command", "write --setup CMD"},
    {"load-modules", "write --load MODULE, once for each"},
    {"notify-job-status", "write --mail END,FAIL --mail-user USER: mail of each trial"},
    {"hpc-exp-number", "the program reads its trial's number from PLUME_TRIAL"},
    {"script-name", "write the program and its arguments as they are"},
    {"python-cmd", "write the interpreter before the script: plsubmit python3 train.py"},
    {"max-nb-trials", "write --trials N"},
    {"nb-parallel", "write --max-parallel N, or --local=N"},
    {"nb-workers", "write --max-parallel N, or --local=N"},
    {"gpu-ids", "write --local: it hands out the GPUs of CUDA_VISIBLE_DEVICES"},
    /* submitit's */
    {"timeout-min", "write --time MINUTES"},
    {"slurm-time", "write --time TIME"},
    {"mem-gb", "write --mem NG"},
    {"slurm-mem", "write --mem SIZE"},
    {"slurm-partition", "write --partition NAME"},
    {"slurm-account", "write --account NAME"},
    {"slurm-qos", "write --qos NAME"},
    {"slurm-constraint", "write --constraint LIST"},
    {"slurm-exclude", "write --exclude NODES"},
    {"slurm-nodelist", "write --nodelist NODES"},
    {"slurm-comment", "write --comment TEXT"},
    {"slurm-gres", "write --gres LIST"},
    {"slurm-job-name", "write --name NAME"},
    {"slurm-nodes", "write --nodes N"},
    {"slurm-ntasks-per-node", "write --ntasks-per-node N"},
    {"slurm-cpus-per-task", "write --cpus-per-task N"},
    {"slurm-gpus-per-node", "write --gpus-per-node N"},
    {"slurm-gpus-per-task", "write --gpus-per-task N"},
    {"slurm-array-parallelism", "write --max-parallel N"},
    {"slurm-setup", "write --setup CMD"},
    {"slurm-signal-delay-s", "write --signal USR1@SECONDS"},
    {"slurm-max-num-timeout", "write --requeue-on timeout:N"},
    {"slurm-additional-parameters", "write --sbatch KEY=VALUE"},
    {"slurm-srun-args", "write --srun KEY=VALUE"},
    {"executor", "write --local for this machine; else Slurm runs the trials"},
    {"cluster", "write --local for this machine; for another cluster --sbatch clusters=NAME"},
    {"folder", "write --runs DIR"},
    /* of other programs for sweeps */
    {"sweep", "write --grid NAME=V1,V2, once for each axis"},
    {"params", "write --grid NAME=V1,V2, once for each axis"},
    {"multirun", "write --grid NAME=V1,V2, once for each axis"},
    {"num-samples", "write --random N --sample NAME=DIST"},
    {"max-concurrent", "write --max-parallel N"},
    {"gpus-per-trial", "write --gpus N"},
    {"cpus-per-trial", "write --cpus-per-task N"},
    {"num-gpus", "write --gpus-per-node N"},
    {"retries", "write --requeue-on error:N"},
    {"max-retries", "write --requeue-on error:N"},
    {"queue", "write --partition NAME"},
    {"walltime", "write --time TIME"},
    {"follow", "write --wait, or follow the sweep by plstat sweep SWEEP --watch"},
    {"config", "write --job-file FILE"},
    {"debug", "write --dry-run to see what would be submitted, or --local to run it here"},
    /* the program's */
    {"use-amp", "write --precision 16"},
    {"amp-level", OF_PROGRAM "pltrain MODULE --precision 16 --amp-level O2"},
    {"distributed-backend", "write --strategy dp, ddp or ddp2"},
    {"accelerator", OF_PROGRAM "pltrain MODULE --accelerator gpu"},
    {"batch-size", OF_PLTRAIN "--hparam batch_size=N"},
    {"epochs", OF_PLTRAIN "--hparam epochs=N"},
    {"max-epochs", OF_PLTRAIN "--hparam epochs=N"},
    {"lr", OF_PLTRAIN "--hparam lr=VALUE; or --grid lr=V1,V2"},
    {"learning-rate", OF_PLTRAIN "--hparam lr=VALUE; or --grid lr=V1,V2"},
};

/* Long names of sbatch(1) in Slurm 22.05 to 26.05 that are no options of plsubmit. */
static const char *const sbatchs[] = {
    "acctg-freq",
    "batch",
    "bb",
    "bbf",
    "begin",
    "bind",
    "cluster-constraint",
    "clusters",
    "consolidate-segments",
    "container-id",
    "contiguous",
    "core-spec",
    "cores-per-socket",
    "cpu-freq",
    "deadline",
    "delay-boot",
    "distribution",
    "exclusive",
    "extra",
    "extra-node-info",
    "get-user-env",
    "gid",
    "gpu-bind",
    "gpu-freq",
    "gpus-per-socket",
    "gres-flags",
    "hint",
    "hold", /* for -H; --hold is an option here */
    "ignore-pbs",
    "kill-on-invalid-dep",
    "licenses",
    "mcs-label",
    "mem-bind",
    "mincpus",
    "network",
    "nice",
    "no-kill",
    "no-requeue",
    "nodefile",
    "ntasks-per-core",
    "ntasks-per-gpu",
    "ntasks-per-socket",
    "oom-kill-step",
    "open-mode",
    "overcommit",
    "oversubscribe",
    "power",
    "prefer",
    "priority",
    "profile",
    "propagate",
    "quiet",
    "reboot",
    "reservation",
    "resv-ports",
    "segment",
    "sockets-per-node",
    "spread-job",
    "spread-segments",
    "stepmgr",
    "switches",
    "thread-spec",
    "threads-per-core",
    "time-min",
    "tmp",
    "tres-bind",
    "tres-per-task",
    "uid",
    "use-min-nodes",
    "verbose",
    "wait-all-nodes",
    "wckey",
    "x11",
};

/* sbatch's short options that plsubmit does not have. */
static const struct {
    char letter;
    const char *name;
} letters[] = {
    {'a', "array"},         {'b', "begin"},     {'D', "chdir"},        {'e', "error"},
    {'F', "nodefile"},      {'H', "hold"},      {'i', "input"},        {'k', "no-kill"},
    {'L', "licenses"},      {'M', "clusters"},  {'m', "distribution"}, {'O', "overcommit"},
    {'s', "oversubscribe"}, {'S', "core-spec"}, {'W', "wait"},
};

static const char *of_letter(char letter)
{
    for (size_t i = 0; i < PL_COUNT(letters); i++)
        if (letters[i].letter == letter)
            return letters[i].name;
    return NULL;
}

int pl_foreign_explain(const char *word, struct pl_error *err)
{
    const char *name = word[1] == '-' ? word + 2 : of_letter(word[1]);

    for (size_t i = 0; name && i < PL_COUNT(others); i++)
        if (pl_near_distance(name, others[i].name) == 0)
            return pl_error_set(err, -EINVAL, "unknown option '%s': %s", word, others[i].text);
    for (size_t i = 0; name && i < PL_COUNT(sbatchs); i++)
        if (strcmp(name, sbatchs[i]) == 0)
            return pl_error_set(err, -EINVAL,
                                "unknown option '%s': for sbatch's write --sbatch %s[=VALUE]", word,
                                name);
    return 0;
}
