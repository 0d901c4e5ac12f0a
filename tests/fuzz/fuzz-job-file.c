/* SPDX-License-Identifier: MIT */
/* --job-file: a file that is read, written and read again is the same. */
#include "launcher/plsubmit/job_file.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct pl_spec spec = {0}, again = {0};
    struct pl_buf first = {0}, second = {0};
    struct pl_error err = {0};
    int r = pl_job_file_parse("f", (const char *)data, size, PL_ORIGIN_JOB_FILE, &spec, &err);

    if (r < 0) {
        FUZZ_CHECK(err.text[0]);
        return 0;
    }
    FUZZ_CHECK(pl_job_file_format(&spec, spec.command, &first, &err) == 0);
    FUZZ_CHECK(pl_job_file_parse("f", first.data, first.len, PL_ORIGIN_JOB_FILE, &again, &err) ==
               0);
    FUZZ_CHECK(pl_job_file_format(&again, again.command, &second, &err) == 0);
    FUZZ_CHECK(first.len == second.len && memcmp(first.data, second.data, first.len) == 0);
    pl_buf_finish(&first);
    pl_buf_finish(&second);
    pl_spec_finish(&spec);
    pl_spec_finish(&again);
    return 0;
}
