/* SPDX-License-Identifier: MIT */
/* Optimizers and learning-rate schedules, for configure_optimizers. Included by plume/module.h. All
 * formulas are PyTorch's (torch.optim, torch.optim.lr_scheduler). */
#ifndef PL_OPTIM_H
#define PL_OPTIM_H

#include "plume/types.h"

#ifdef __cplusplus
extern "C" {
#endif

enum plume_optimizer_kind {
    PLUME_SGD = 0,     /* momentum, nesterov; weight_decay is added to the gradient */
    PLUME_ADAM = 1,    /* beta1, beta2, eps; weight_decay is added to the gradient */
    PLUME_ADAMW = 2,   /* as ADAM with decoupled decay: p = p - lr weight_decay p */
    PLUME_RMSPROP = 3, /* alpha, eps, momentum, centered; weight_decay is added to the gradient */
    PLUME_ADAGRAD = 4, /* lr_decay, eps; weight_decay is added to the gradient */
};

enum plume_schedule_kind {
    PLUME_CONSTANT = 0,
    PLUME_STEP_LR = 1,    /* lr = base gamma^floor(t / step_size) */
    PLUME_MULTI_STEP = 2, /* lr = base gamma^(number of milestones <= t) */
    PLUME_COSINE = 3,     /* lr = eta_min + (base - eta_min) (1 + cos(pi t / t_max)) / 2 */
    PLUME_PLATEAU = 4,    /* lr = lr factor after more than `patience` checks without improvement */
    PLUME_EXPONENTIAL = 5, /* lr = base gamma^t */
    PLUME_POLYNOMIAL = 6,  /* lr = base (1 - min(t, t_max) / t_max)^power */
    PLUME_RESTARTS = 7, /* COSINE that begins again: after t_max, then t_max t_mult, t_max t_mult^2
                           ... (CosineAnnealingWarmRestarts) */
    PLUME_ONE_CYCLE =
        8, /* OneCycleLR over t_max: struct plume_schedule_more; base is the maximum */
};

#define PLUME_MILESTONES_MAX 16

/* t counts epochs, or optimizer steps if per_step is set; the optimizer's lr is the base. */
struct plume_schedule {
    enum plume_schedule_kind kind;
    int per_step;
    /* Linear warm-up before any kind, as SequentialLR(LinearLR, ...): for t < warmup the rate is
     * base (warmup_from + (1 - warmup_from) t / warmup); the schedule itself then starts with its t
     * = 0. 0 = none. warmup_from 0 means 1/3, PyTorch's default. */
    long long warmup;
    double warmup_from;
    double gamma;                              /* 0 means 0.1 */
    long long step_size;                       /* STEP_LR; > 0 */
    long long milestone[PLUME_MILESTONES_MAX]; /* MULTI_STEP; ascending, 0 ends them */
    long long t_max;                           /* COSINE, POLYNOMIAL, RESTARTS, ONE_CYCLE; > 0 */
    double eta_min;                            /* COSINE, RESTARTS */
    /* PLATEAU. It monitors a logged value, named with its stage's prefix ("val_loss"). An epoch
     * without a validation is no check of it; with per_step each step after the first validation is
     * one, of the newest value. */
    const char *monitor; /* NULL means "val_loss" */
    int maximize;        /* a larger value is an improvement */
    double factor;       /* 0 means 0.1 */
    int patience;        /* 0 means 10, -1 means 0 */
    double threshold;    /* relative, or absolute if so chosen; 0 means 1e-4, -1 means 0 */
    int threshold_absolute;
    int cooldown;  /* checks after a cut that do not count */
    double min_lr; /* lower limit of the rate */
};

/* The numbers of further schedules: OneCycleLR's names and defaults, where they have one. */
struct plume_schedule_more {
    double power;     /* POLYNOMIAL; 0 means 1 */
    long long t_mult; /* RESTARTS; 0 means 1 */
    /* ONE_CYCLE. From base / div_factor up to base in pct_start of t_max, then down to base /
     * div_factor / final_div_factor; with three_phase in as much time back to base / div_factor
     * first. After t_max the rate stays at the end. */
    double pct_start;        /* 0 means 0.3, -1 means 0 */
    double div_factor;       /* 0 means 25 */
    double final_div_factor; /* 0 means 1e4 */
    int linear;              /* between the rates; else along a cosine */
    int three_phase;
    /* Not 0: the momentum (ADAM's beta1) goes from max_momentum to base_momentum while the rate
     * rises, and back. This is the default of OneCycleLR. */
    int cycle_momentum;
    double base_momentum; /* 0 means 0.85 */
    double max_momentum;  /* 0 means 0.95 */
};

/* A group of an optimizer's parameters that has numbers of its own (plume_add_group()). They are
 * preset from the optimizer's. The schedule is the optimizer's, from the group's lr. */
struct plume_group {
    size_t struct_size; /* set by the engine */
    double lr, weight_decay;
};

/* One optimizer; filled by configure_optimizers. Its numbers are preset from the hyper-parameters.
 */
struct plume_optimizer {
    size_t struct_size; /* set by the engine */
    double lr, momentum, weight_decay;
    enum plume_optimizer_kind kind;
    int nesterov;
    double beta1, beta2; /* preset to 0.9, 0.999 */
    double eps;          /* preset to 1e-8; PyTorch's ADAGRAD has 1e-10 */
    struct plume_schedule schedule;
    /* Its parameters: those of the list, and those whose names begin with one of the prefixes
     * ("encoder., head.": separated by blanks and commas). An optimizer without either has all
     * parameters that no other one names. A parameter without an optimizer is not changed.
     * Borrowed; must live as long as the module's state. */
    const char *prefixes;
    plume_tensor *const *params;
    size_t n_params;
    struct plume_schedule_more schedule_more;
    double alpha;    /* RMSPROP; preset to 0.99 */
    int centered;    /* RMSPROP */
    double lr_decay; /* ADAGRAD: lr / (1 + (step - 1) lr_decay) */
};

#ifdef __cplusplus
}
#endif

#endif
