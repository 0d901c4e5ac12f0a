/* SPDX-License-Identifier: MIT */
/* What ends a training. */
#include "tests/engine/fit_run.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static void test_early_stopping(void **state)
{
    struct fit_run *run = fit_new_run();

    run->options.stop =
        (struct pl_early_stop_rule){.monitor = "val_loss", .maximize = true, .patience = 3};
    snprintf(run->hparams[0], 32, "epochs=50");
    fit_go(run, 2, 0);
    fit_assert_good(run);
    assert_int_equal(run->epoch, 4); /* the first is the best */

    run = fit_new_run();
    run->options.stop =
        (struct pl_early_stop_rule){.monitor = "val_loss", .maximize = true, .patience = 3};
    run->options.min_epochs = 6;
    snprintf(run->hparams[0], 32, "epochs=50");
    fit_go(run, 1, 0);
    fit_assert_good(run);
    assert_int_equal(run->epoch, 6);

    /* The mean of each whole epoch counts once, whatever is validated. */
    for (int i = 0; i < 4; i++) {
        run = fit_new_run();
        run->options.stop =
            (struct pl_early_stop_rule){.monitor = "train_loss", .maximize = true, .patience = 2};
        if (i == 1)
            run->options.val_check = fit_share(0.25);
        if (i == 2)
            run->options.limit[PLUME_VALIDATE] = fit_batches(0);
        if (i == 3)
            run->options.val_every = 4;
        snprintf(run->hparams[0], 32, "epochs=9");
        fit_go(run, 1 + (unsigned)i % 2, 0);
        fit_assert_good(run);
        assert_int_equal(run->epoch, 3);
    }

    run = fit_new_run();
    run->options.stop = (struct pl_early_stop_rule){.monitor = "val_los"};
    fit_go(run, 1, 0);
    assert_non_null(strstr(run->error, "watches 'val_los', which nothing logs"));
}

/* What ends the training inside an epoch, after a validation, needs no second one. */
static void test_a_validation_that_stops_is_the_last(void **state)
{
    struct fit_run *run = fit_new_run();

    run->options.stop =
        (struct pl_early_stop_rule){.monitor = "val_loss", .maximize = true, .patience = 1};
    run->options.val_check = fit_batches(2);
    run->options.limit[PLUME_VALIDATE] = fit_batches(1);
    fit_hear(run);
    fit_go(run, 1, 0);
    fit_assert_good(run);
    assert_int_equal(run->step, 4);
    assert_int_equal(fit_count(run, "validation_start"), 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_early_stopping),
        cmocka_unit_test(test_a_validation_that_stops_is_the_last),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
