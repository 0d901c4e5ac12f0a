/* SPDX-License-Identifier: MIT */
/* pltrain --compare-devices: a few steps of a training on each kind of device, and which one to
 * take. */
#ifndef PL_RUNTIME_PLTRAIN_COMPARE_H
#define PL_RUNTIME_PLTRAIN_COMPARE_H

#include "runtime/pltrain/pltrain_options.h"

enum pl_compare_kind { PL_COMPARE_CPU, PL_COMPARE_GPU, PL_COMPARE_TPU, PL_COMPARE_KINDS };

/* The measurements of one kind of device. */
struct pl_compare_row {
    bool there;                  /* else `why` says what is missing */
    char why[PL_ERROR_TEXT_MAX]; /* there are no numbers; "" if there are */
    char device[128];
    uint64_t steps;    /* that were measured, after the first ones */
    double seconds;    /* for them */
    double first_s;    /* from the start to the end of the first step */
    double samples;    /* of a step */
    double peak_bytes; /* 0: not known */
};

/* Trains on each kind in a process of its own: it calls train(ctx), which trains as *p says, after
 * it has set the device, and ends the training once it has seen enough steps. Returns the exit
 * code. */
int pl_compare_devices(struct pl_pltrain *p,
                       struct pl_hparams *hparams,
                       int (*train)(void *ctx, struct pl_error *err),
                       void *ctx,
                       FILE *out);

/* Prints the table and the recommendation. Returns the exit code: it is 0 if a row has numbers. */
int pl_compare_print(const struct pl_compare_row rows[PL_COMPARE_KINDS], FILE *out);

#endif
