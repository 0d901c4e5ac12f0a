/* SPDX-License-Identifier: MIT */
#include "launcher/slurm/slurm_conf.h"
#include "common/base/env.h"
#include "common/base/fs.h"
#include "common/base/parse.h"

#include <ctype.h>
#include <string.h>

#define CONF_MAX ((size_t)16 << 20)

/* The slurm.conf that libslurm reads. NULL: none that we can read. */
static const char *find_conf(void)
{
    static const char *const places[] = {PL_SLURM_CONF, "/etc/slurm/slurm.conf",
                                         "/etc/slurm-llnl/slurm.conf", "/usr/local/etc/slurm.conf",
                                         "/run/slurm/conf/slurm.conf"};
    const char *given = pl_env(PL_ENV_SLURM_CONF);

    if (given && *given)
        return access(given, R_OK) == 0 ? given : NULL;
    for (size_t i = 0; i < PL_COUNT(places); i++)
        if (access(places[i], R_OK) == 0)
            return places[i];
    return NULL;
}

bool pl_slurm_conf_readable(void)
{
    return find_conf();
}

char *pl_slurm_conf_cluster(void)
{
    static const char key[] = "ClusterName";
    const char *path = find_conf();
    _cleanup_free_ char *text = NULL;

    if (!path || pl_file_read(path, CONF_MAX, &text, NULL, NULL) < 0)
        return NULL;
    for (char *line = text; line; line = strchr(line, '\n'), line += line ? 1 : 0) {
        char *p = line + strspn(line, " \t"), *name;

        if (strncasecmp(p, key, strlen(key)) != 0)
            continue;
        p += strlen(key);
        p += strspn(p, " \t");
        if (*p != '=')
            continue;
        p += 1 + strspn(p + 1, " \t\"");
        name = strndup(p, strcspn(p, " \t\r\n\"#"));
        for (char *c = name; c && *c; c++) /* as Slurm does */
            *c = (char)tolower((unsigned char)*c);
        return name;
    }
    return NULL;
}

/* The decimal number at s; 0: none. */
static unsigned number_at(const char *s)
{
    char digits[12];
    size_t len = strspn(s, "0123456789");
    int64_t n = 0;

    if (len < sizeof(digits)) {
        memcpy(digits, s, len);
        digits[len] = '\0';
        pl_parse_int(digits, 0, UINT32_MAX, &n, NULL);
    }
    return (unsigned)n;
}

unsigned pl_slurm_max_array_tasks(const char *params)
{
    static const char key[] = "max_array_tasks=";

    for (const char *p = params; p && *p; p += *p == ',') {
        if (strncmp(p, key, strlen(key)) == 0)
            return number_at(p + strlen(key));
        p += strcspn(p, ",");
    }
    return 0;
}

/* Finds the value in a line "KEY   = VALUE". */
static const char *find_line(const char *text, const char *key)
{
    size_t len = strlen(key);

    for (const char *line = text; line; line = strchr(line, '\n'), line += line ? 1 : 0) {
        const char *p = line + len;

        if (strncmp(line, key, len) != 0)
            continue;
        p += strspn(p, " ");
        if (*p == '=')
            return p + 1 + strspn(p + 1, " ");
    }
    return NULL;
}

int pl_slurm_limits_parse(const char *text, struct pl_slurm_limits *ret)
{
    const char *size = find_line(text, "MaxArraySize");
    const char *params = find_line(text, "SchedulerParameters");
    _cleanup_free_ char *line = params ? strndup(params, strcspn(params, "\n")) : NULL;

    if (!size || number_at(size) == 0)
        return -EINVAL;
    *ret = (struct pl_slurm_limits){number_at(size), pl_slurm_max_array_tasks(line)};
    return 0;
}
