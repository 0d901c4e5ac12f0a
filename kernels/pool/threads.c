/* SPDX-License-Identifier: MIT */
#include "common/base/env.h"
#include "common/base/fs.h"
#include "common/base/parse.h"
#include "kernels/kernels.h"

#include <sched.h>
#include <string.h>

/* cpu.max of this process's cgroup (v2): "QUOTA PERIOD" in microseconds, or "max PERIOD". */
static unsigned cgroup_limit(void)
{
    _cleanup_free_ char *self = NULL, *path = NULL, *text = NULL;
    unsigned long long quota, period;
    char *line;

    if (pl_file_read("/proc/self/cgroup", 4096, &self, NULL, NULL) < 0)
        return UINT32_MAX;
    line = strstr(self, "0::/");
    if (!line)
        return UINT32_MAX;
    line[strcspn(line, "\n")] = '\0';
    path = pl_strf("/sys/fs/cgroup%s/cpu.max", line + 3);
    if (!path || pl_file_read(path, 256, &text, NULL, NULL) < 0 ||
        sscanf(text, "%llu %llu", &quota, &period) != 2 || period == 0)
        return UINT32_MAX;
    return (unsigned)PL_MAX((quota + period - 1) / period, 1u);
}

unsigned pl_threads_available(void)
{
    const char *env = pl_env(PL_ENV_OMP_NUM_THREADS);
    unsigned n = cgroup_limit();
    cpu_set_t set;
    int64_t wish;

    if (sched_getaffinity(0, sizeof(set), &set) == 0)
        n = PL_MIN(n, (unsigned)CPU_COUNT(&set));
    if (env && pl_parse_int(env, 1, 4096, &wish, NULL) == 0)
        n = PL_MIN(n, (unsigned)wish);
    return n == UINT32_MAX ? 1 : PL_MAX(n, 1u);
}
