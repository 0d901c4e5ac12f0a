/* SPDX-License-Identifier: MIT */
/* pltrain's command line. */
#ifndef PL_RUNTIME_PLTRAIN_PLTRAIN_OPTIONS_H
#define PL_RUNTIME_PLTRAIN_PLTRAIN_OPTIONS_H

#include "common/base/options.h"
#include "runtime/engine/comm/comm.h"
#include "runtime/engine/config/train_options.h"
#include "runtime/engine/util/hparam.h"

#define PL_PLTRAIN_DEVICES_MAX 64 /* of a node */
#define PL_PLTRAIN_PATIENCE 3     /* without --patience */

/* Use of NCCL for collectives between GPUs. */
enum pl_pltrain_nccl { PL_NCCL_IF_POSSIBLE, PL_NCCL_NEVER, PL_NCCL_ALWAYS };

#define PL_PLTRAIN_DEVICE_OPTIONS 4 /* --devices, --gpus, --tpu-cores, --num-tpu-cores */

/* The last value of an option that names devices. */
struct pl_pltrain_devices {
    const char *option; /* NULL: not given */
    int64_t n;          /* 0 = auto */
    unsigned device[PL_PLTRAIN_DEVICES_MAX];
    size_t n_device;
};

struct pl_pltrain {
    const char *module;
    const char **hparams; /* "NAME=VALUE" */
    char **owned;         /* elements of hparams that p must free */
    size_t n_hparams, n_owned;
    const char **weights_maps; /* in train, too */
    char *
        trial_checkpoints; /* of the trial's first such run, if no option names a folder; or NULL */
    char *trial_run;       /* then the digest of the options that say what is trained */
    bool list;
    int64_t processes, per_node, nodes; /* 0 = not given */
    int64_t devices;                    /* 0 = auto */
    struct pl_pltrain_devices given_devices[PL_PLTRAIN_DEVICE_OPTIONS];
    int64_t global_batch;                    /* samples per step over all ranks; 0 = not given */
    unsigned device[PL_PLTRAIN_DEVICES_MAX]; /* the given list */
    size_t n_device;                         /* of the list; 0 = none */
    bool cpu, gpu;                           /* --accelerator cpu, gpu */
    bool auto_gpu;                           /* --accelerator auto: pl_auto_gpu() decides */
    bool test_gpus;                          /* and nothing else; no module then */
    bool tpu, tpu_cores;                     /* or another PJRT plugin; --tpu-cores */
    const char *plugin;                      /* of PJRT; NULL: libtpu.so */
    const char *dump; /* file for the programs of an XLA device; NULL = none */
    bool no_program_cache;
    bool compare; /* --compare-devices */
    bool schedule_given, balance_given, clip_given, clip_by_given;
    bool stop_mode_given, monitor_mode_given;
    enum pl_comm_kind comm;
    struct pl_comm_limits limits;
    enum pl_pltrain_nccl nccl;
    bool tf32; /* for f32 matmul and convolution on a GPU */
    struct pl_train_options train;
};

/* Answers "NAME" or "NAME=VALUE", which no option and no hyper-parameter of the module is: an
 * option of another program, or a misspelt one, unless err already names another hyper-parameter.
 * -EINVAL, or 0 with err as it was. */
int pl_pltrain_explain_unknown(const char *assignment, struct pl_error *err);

/* Allocates for argc words. -ENOMEM. */
int pl_pltrain_init(struct pl_pltrain *p, int argc, struct pl_error *err);
void pl_pltrain_finish(struct pl_pltrain *p);

/* Parses options, MODULE, and after it options and hyper-parameters by name, as plsubmit appends
 * them. *ret_done: --help or --version was given and printed. -EINVAL. argv is borrowed. */
int pl_pltrain_parse(
    struct pl_pltrain *p, int argc, char **argv, bool *ret_done, struct pl_error *err);

/* Options that disagree are -EINVAL, with a text that names them. pl_pltrain_parse() calls it. */
int pl_pltrain_check(const struct pl_pltrain *p, struct pl_error *err);

/* --global-batch: sets batch_size for this number of ranks. `given`: a hyper-parameter has set it.
 * -EINVAL if the samples cannot be divided equally; -ERANGE. */
int pl_pltrain_global_batch(const struct pl_pltrain *p,
                            unsigned ranks,
                            bool given,
                            struct pl_hparams *hparams,
                            struct pl_error *err);

/* Checks the options against the ranks that a launcher has started on this node. -EINVAL. */
int pl_pltrain_started(const struct pl_pltrain *p, unsigned local_size, struct pl_error *err);

/* Combines --devices, --processes, --num-nodes and --strategy. `started`: a launcher has started
 * the ranks, `local_size` on this node (0: not known yet; pl_pltrain_started() follows). Else the
 * caller starts *ret_ranks in all, *ret_per_node on each simulated node (1 and 0: only this
 * process). Sets train.devices. -EINVAL. */
int pl_pltrain_plan(struct pl_pltrain *p,
                    bool started,
                    unsigned local_size,
                    unsigned *ret_ranks,
                    unsigned *ret_per_node,
                    struct pl_error *err);

/* For one rank of a run: warns of what nobody means. The smallest accuracy is the best one unless
 * the user says otherwise, as in Lightning; some options have no effect alone. */
void pl_pltrain_warn_unmeant(const struct pl_pltrain *p);

#endif
