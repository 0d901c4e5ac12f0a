/* SPDX-License-Identifier: MIT */
/* Values that people and Slurm write: each parser sees each text. */
#include "common/base/hostlist.h"
#include "common/base/metric_rule.h"
#include "common/base/parse.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *s = fuzz_string(data, size);
    struct pl_error err = {0};
    int64_t i;
    double d;
    uint64_t u;
    uint16_t lo, hi;
    unsigned n;
    char *host = NULL;

    if (pl_parse_int(s, -5, 1000, &i, &err) == 0)
        FUZZ_CHECK(i >= -5 && i <= 1000);
    if (pl_parse_double(s, &d, &err) == 0)
        FUZZ_CHECK(d - d == 0); /* finite */
    pl_parse_slurm_time(s, &u, &err);
    pl_parse_mem(s, &u, &err);
    if (pl_parse_port_range(s, &lo, &hi, &err) == 0)
        FUZZ_CHECK(lo >= 1 && lo <= hi);
    pl_parse_tasks_per_node(s, 0, &n, &err);
    pl_parse_tasks_per_node(s, 1000000, &n, &err);
    for (n = 0; n < 8 && pl_hostlist_nth(s, n, &host) == 0; n++) {
        FUZZ_CHECK(*host && !strpbrk(host, "[],"));
        free(host);
    }
    if (pl_hostlist_nth(s, UINT32_MAX, &host) == 0)
        free(host);
    pl_name_valid(s, strlen(s));
    pl_metric_rule_check(s, NULL);
    free(s);
    return 0;
}
