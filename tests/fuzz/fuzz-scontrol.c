/* SPDX-License-Identifier: MIT */
/* The output of scontrol, which holds names and comments of users. */
#include "common/base/parse.h"
#include "runtime/plrund/hub/decide.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const keys[] = {"NodeAddr", "JobState", "Restarts", "PreemptTime", "x"};
    char *text = fuzz_string(data, size);

    for (size_t i = 0; i < PL_COUNT(keys); i++) {
        char *value = pl_parse_scontrol_field(text, keys[i]);

        FUZZ_CHECK(!value || (strstr(text, value) && !strpbrk(value, " \n")));
        free(value);
    }
    for (int i = 0; i < 4; i++) {
        struct pl_slurm_answer a = pl_slurm_answer_read(text, (unsigned)(i & 1), i & 2);

        FUZZ_CHECK(!a.silent);
    }
    free(text);
    return 0;
}
