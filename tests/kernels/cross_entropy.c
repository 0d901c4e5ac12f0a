/* SPDX-License-Identifier: MIT */
#include "tests/kernels/check.h"

#include <math.h>
#include <string.h>

/* The vector exp has an error of 2e-7, a probability one more division or product; sums are in
 * double on both sides. exp is clamped below e^-87, while ref goes to 0: hence the absolute part.
 */
#define PROB_TOLERANCE(want) (5e-7 * fabs(want) + 2e-38)
#define LOSS_TOLERANCE(want) (1e-6 * (1 + fabs(want)))

/* Kept for backward. */
enum kept { NOTHING, PROBS, MAX_SUM, AHEAD, KEPT_COUNT };

static void one(const struct pl_kernels *ref,
                const struct pl_kernels *got,
                size_t rows,
                size_t classes,
                enum fill fill,
                bool bad_label,
                enum kept kept)
{
    size_t n = rows * classes;
    float *logits = check_floats(n, fill);
    int32_t *labels = check_labels(rows, classes);
    float *probs = check_floats(n, FILL_RANDOM), *probs2 = check_floats(n, FILL_RANDOM);
    float *max_sum = check_floats(2 * rows, FILL_RANDOM), *max_sum2 = check_copy(max_sum, 2 * rows);
    float *loss = check_floats(1, FILL_RANDOM), *loss2 = check_floats(1, FILL_RANDOM);
    float *dloss = check_floats(1, FILL_RANDOM);
    float *dz = check_floats(n, FILL_RANDOM), *dz2 = check_copy(dz, n);
    size_t masked = check_random(4) ? 0 : check_random(classes + 1);
    bool in_place = false;
    struct pl_cross_entropy_args a = {.rows = rows,
                                      .classes = classes,
                                      .dx_add = kept != AHEAD && check_random(2),
                                      .ahead = kept == AHEAD,
                                      .wide = check_random(2),
                                      .logits = logits,
                                      .labels = labels,
                                      .dloss = dloss};

    if (a.ahead && check_random(4) == 0)
        dloss[0] = 1;
    if (bad_label)
        labels[check_random(rows)] = check_random(2) ? -1 : (int32_t)classes;
    for (size_t i = 0; i < masked; i++) /* all of the first row, at most */
        logits[i] = -INFINITY;
    check_case(
        "cross_entropy rows %zu classes %zu add %d wide %d fill %d bad %d kept %d masked %zu", rows,
        classes, a.dx_add, a.wide, fill, bad_label, (int)kept, masked);
    a.probs = kept == PROBS ? probs : NULL;
    a.max_sum = kept == MAX_SUM ? max_sum : NULL;
    a.loss = loss;
    if (a.ahead && check_random(2)) { /* in place */
        memcpy(dz, logits, n * sizeof(*dz));
        memcpy(dz2, logits, n * sizeof(*dz));
        in_place = true;
    }
    a.dlogits = dz;
    a.logits = in_place ? dz : logits;
    ref->cross_entropy_forward(&a);
    ref->cross_entropy_backward(&a);
    a.probs = kept == PROBS ? probs2 : NULL;
    a.max_sum = kept == MAX_SUM ? max_sum2 : NULL;
    a.loss = loss2;
    a.dlogits = dz2;
    a.logits = in_place ? dz2 : logits;
    got->cross_entropy_forward(&a);
    a.probs =
        kept == PROBS ? probs : NULL; /* in 16 bits the others may be rounded to their neighbours */
    got->cross_entropy_backward(&a);
    check_close("loss", 0, loss2[0], loss[0],
                LOSS_TOLERANCE(loss[0]) - (a.wide ? check_rounding(loss[0]) : 0));
    if (bad_label && !isnan(loss2[0]))
        check_close("loss with a bad label", 0, loss2[0], NAN, 0);
    for (size_t r = 0; kept == MAX_SUM && r < rows; r++) {
        if (isnan(max_sum[2 * r + 1])) /* for any maximum */
            continue;
        check_close("max", r, max_sum2[2 * r], max_sum[2 * r], 0);
        check_close("sum", r, max_sum2[2 * r + 1], max_sum[2 * r + 1],
                    PROB_TOLERANCE(max_sum[2 * r + 1]));
    }
    for (size_t i = 0; i < n; i++) {
        if (kept == PROBS)
            check_close("probs", i, probs2[i], probs[i], PROB_TOLERANCE(probs[i]));
        /* The probability's error and three roundings of numbers up to 2 (what was there and the
         * scaled difference). */
        check_close("dlogits", i, dz2[i], dz[i], 1e-6 + (a.ahead ? check_rounding(dz[i]) : 0));
    }
    check_end_case();
}

/* A batch by chunks of rows, with its gradient or without, beside ref's of the whole batch. */
static void by_chunks(const struct pl_kernels *ref,
                      const struct pl_kernels *got,
                      size_t rows,
                      size_t classes,
                      bool bad_label)
{
    size_t n = rows * classes, chunk = 1 + check_random(rows);
    float *logits = check_floats(n, FILL_RANDOM), *dz = check_copy(logits, n);
    float *dz2 = check_copy(logits, n);
    double *row_loss = check_doubles(rows);
    float *loss = check_floats(1, FILL_RANDOM), *loss2 = check_floats(1, FILL_RANDOM);
    int32_t *labels = check_labels(rows, classes);
    struct pl_cross_entropy_args a = {.rows = rows,
                                      .classes = classes,
                                      .ahead = check_random(2),
                                      .wide = check_random(2),
                                      .logits = dz,
                                      .dlogits = dz,
                                      .labels = labels,
                                      .loss = loss};

    if (bad_label)
        labels[check_random(rows)] = (int32_t)classes;
    check_case("cross_entropy of %zu rows by %zu, classes %zu wide %d ahead %d bad %d", rows, chunk,
               classes, a.wide, a.ahead, bad_label);
    ref->cross_entropy_forward(&a);
    a.of = rows;
    a.row_loss = row_loss;
    a.loss = loss2;
    for (; a.first < rows; a.first += a.rows) {
        a.rows = chunk < rows - a.first ? chunk : rows - a.first;
        a.labels = labels + a.first;
        a.logits = a.dlogits = dz2 + a.first * classes;
        got->cross_entropy_forward(&a);
    }
    check_close("loss", 0, loss2[0], loss[0],
                LOSS_TOLERANCE(loss[0]) - (a.wide ? check_rounding(loss[0]) : 0));
    for (size_t i = 0; i < n; i++)
        check_close("dlogits", i, dz2[i], dz[i], 1e-6);
    check_end_case();
}

struct step {
    const struct pl_kernels *k;
    struct pl_cross_entropy_args a;
};

static void run(void *args)
{
    const struct step *s = args;

    s->k->cross_entropy_forward(&s->a);
    s->k->cross_entropy_backward(&s->a);
}

/* More rows than chunks, so that a chunk has several whatever their length is. */
static void threads(const struct pl_kernels *got)
{
    enum { ROWS = 3001, CLASSES = 33 };
    float *dz = check_floats(ROWS * CLASSES, FILL_RANDOM);
    float *loss = check_floats(1, FILL_RANDOM);
    struct step s = {got,
                     {.rows = ROWS,
                      .classes = CLASSES,
                      .logits = check_floats(ROWS * CLASSES, FILL_RANDOM),
                      .labels = check_labels(ROWS, CLASSES),
                      .dloss = check_floats(1, FILL_RANDOM),
                      .probs = check_floats(ROWS * CLASSES, FILL_RANDOM),
                      .loss = loss,
                      .dlogits = dz}};

    check_case("cross_entropy on 1, 2 and 3 threads");
    check_threads("loss", run, &s, loss, 1);
    check_threads("dlogits", run, &s, dz, ROWS * CLASSES);
    check_end_case();
}

void check_op(const struct pl_kernels *ref, const struct pl_kernels *got)
{
    for (size_t n = 0; n < check_many(400, 100); n++)
        one(ref, got, 1 + check_random(20), 1 + check_random(40),
            (enum fill)check_random(FILL_COUNT), check_random(10) == 0,
            (enum kept)check_random(KEPT_COUNT));
    for (size_t n = 0; n < check_many(16, 4); n++)
        one(ref, got, 1 + check_random(3), 200 + check_random(2500),
            (enum fill)check_random(FILL_COUNT), false, (enum kept)check_random(KEPT_COUNT));
    for (size_t n = 0; n < check_many(60, 20); n++)
        by_chunks(ref, got, 1 + check_random(20), 1 + check_random(n % 4 ? 40 : 600), n % 8 == 0);
    for (enum kept kept = NOTHING; kept < KEPT_COUNT; kept++) {
        one(ref, got, 2, 9001, FILL_RANDOM, false, kept);
        one(ref, got, 1500, 37, FILL_RANDOM, false, kept);
        one(ref, got, 2, 16400 + check_random(8), FILL_RANDOM, false, kept); /* the largest block */
        one(ref, got, 1, 66000, FILL_RANDOM, false, kept); /* which cannot hold it */
    }
    threads(got);
}
