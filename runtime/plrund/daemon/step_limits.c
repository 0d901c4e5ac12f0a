/* SPDX-License-Identifier: MIT */
#include "runtime/plrund/daemon/step_limits.h"
#include "common/base/macros.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#define PREFIX "SLURM_RLIMIT_"

static const struct {
    const char *name;
    int resource;
} table[] = {
    {"CPU", RLIMIT_CPU},       {"FSIZE", RLIMIT_FSIZE}, {"DATA", RLIMIT_DATA},
    {"STACK", RLIMIT_STACK},   {"CORE", RLIMIT_CORE},   {"RSS", RLIMIT_RSS},
    {"NPROC", RLIMIT_NPROC},   {"AS", RLIMIT_AS},       {"MEMLOCK", RLIMIT_MEMLOCK},
    {"NOFILE", RLIMIT_NOFILE},
};

static void apply(int resource, const char *value)
{
    struct rlimit limit;
    unsigned long long n;
    char *end;

    if (*value < '0' || *value > '9')
        return;
    errno = 0;
    n = strtoull(value, &end, 10);
    if (errno || *end || getrlimit(resource, &limit) < 0)
        return;
    limit.rlim_cur = PL_MIN((rlim_t)n, limit.rlim_max);
    setrlimit(resource, &limit);
}

void pl_step_limits_apply(char *const *env)
{
    for (; *env; env++) {
        const char *name = *env + strlen(PREFIX), *equals = strchr(*env, '=');

        if (strncmp(*env, PREFIX, strlen(PREFIX)) != 0 || !equals)
            continue;
        for (size_t i = 0; i < PL_COUNT(table); i++)
            if (strlen(table[i].name) == (size_t)(equals - name) &&
                strncmp(name, table[i].name, strlen(table[i].name)) == 0)
                apply(table[i].resource, equals + 1);
    }
}
