/* SPDX-License-Identifier: MIT */
/* --grid: NUL separates axes. What is accepted can be written down and read back the same. */
#include "common/base/utf8.h"
#include "launcher/plsubmit/grid.h"
#include "tests/fuzz/fuzz.h"

#define TRIALS_LOOKED_AT 64

static void check_axis(const struct pl_axis *axis)
{
    struct pl_grid again = {0};
    struct pl_buf text = {0};
    struct pl_error err = {0};

    FUZZ_CHECK(axis->n_values > 0);
    FUZZ_CHECK(pl_grid_format(axis, &text) == 0);
    FUZZ_CHECK(pl_grid_add(&again, pl_buf_str(&text), &err) == 0);
    FUZZ_CHECK(strcmp(again.axes[0].name, axis->name) == 0);
    FUZZ_CHECK(again.axes[0].n_values == axis->n_values);
    for (size_t i = 0; i < axis->n_values; i++) {
        FUZZ_CHECK(strcmp(again.axes[0].values[i], axis->values[i]) == 0);
        FUZZ_CHECK(pl_utf8_valid(axis->values[i], strlen(axis->values[i])));
    }
    pl_buf_finish(&text);
    pl_grid_finish(&again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct pl_grid grid = {0};
    char *s = fuzz_string(data, size);

    for (size_t i = 0; i <= size; i += strlen(s + i) + 1) {
        size_t before = grid.n_axes;
        struct pl_error err = {0};

        if (pl_grid_add(&grid, s + i, &err) < 0) {
            FUZZ_CHECK(grid.n_axes == before);
            FUZZ_CHECK(err.text[0]);
        } else {
            check_axis(&grid.axes[before]);
        }
    }
    for (unsigned t = 0; t < pl_grid_n_trials(&grid) && t < TRIALS_LOOKED_AT; t++)
        for (size_t a = 0; a < grid.n_axes; a++)
            FUZZ_CHECK(pl_grid_value(&grid, t, a));
    pl_grid_finish(&grid);
    free(s);
    return 0;
}
