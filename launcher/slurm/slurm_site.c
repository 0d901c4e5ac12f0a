/* SPDX-License-Identifier: MIT */
#include "launcher/slurm/slurm_site.h"
#include "common/base/child.h"
#include "common/base/parse.h"
#include "launcher/slurm/slurm_limits.h"

#include <string.h>

/* Copies the value of the line "KEY   = VALUE"; "" without one. */
static void copy_value(const char *text, const char *key, char *ret, size_t size)
{
    size_t len = strlen(key);

    *ret = '\0';
    for (const char *line = text; *line; line += strcspn(line, "\n"), line += *line == '\n') {
        const char *p = line + len;

        if (strncmp(line, key, len) != 0)
            continue;
        p += strspn(p, " ");
        if (*p != '=')
            continue;
        p += 1 + strspn(p + 1, " ");
        snprintf(ret, size, "%.*s", (int)strcspn(p, "\n"), p);
        return;
    }
}

/* JobContainerType, of which Slurm 25.11 has made NamespaceType. Others than these name no /tmp. */
static void copy_namespace(const char *text, char *ret, size_t size)
{
    static const char *const keys[] = {"JobContainerType", "NamespaceType"};
    static const char *const known[] = {"job_container/tmpfs", "namespace/tmpfs",
                                        "namespace/linux"};
    char value[64];

    *ret = '\0';
    for (size_t i = 0; i < PL_COUNT(keys); i++) {
        copy_value(text, keys[i], value, sizeof(value));
        for (size_t k = 0; k < PL_COUNT(known); k++)
            if (strcmp(value, known[k]) == 0)
                snprintf(ret, size, "%s", value);
    }
}

int pl_slurm_site_parse(const char *text, struct pl_slurm_site *ret)
{
    struct pl_slurm_site site = {0};
    char jobs[16];
    int64_t n;
    int r = pl_slurm_limits_parse(text, &site.limits);

    if (r < 0)
        return r;
    copy_value(text, "SLURM_VERSION", site.release, sizeof(site.release));
    copy_value(text, "PreemptMode", site.preempt_mode, sizeof(site.preempt_mode));
    copy_value(text, "JobRequeue", site.job_requeue, sizeof(site.job_requeue));
    copy_value(text, "PlugStackConfig", site.plugstack, sizeof(site.plugstack));
    copy_value(text, "AuthType", site.auth, sizeof(site.auth));
    copy_value(text, "ClusterName", site.cluster, sizeof(site.cluster));
    copy_namespace(text, site.namespace, sizeof(site.namespace));
    copy_value(text, "AccountingStorageEnforce", site.enforce, sizeof(site.enforce));
    copy_value(text, "MaxJobCount", jobs, sizeof(jobs));
    if (pl_parse_int(jobs, 1, UINT32_MAX, &n, NULL) == 0)
        site.max_jobs = (unsigned)n;
    *ret = site;
    return 0;
}

int pl_slurm_site_ask(struct pl_slurm_site *ret, struct pl_error *err)
{
    static const char *const argv[] = {"scontrol", "show", "config", NULL};
    _cleanup_(pl_child_finish) struct pl_child child = {0};
    const char *said;
    int r = pl_slurm_limits_ping(err); /* without a controller scontrol retries for a minute */

    if (r == 0)
        r = pl_child_run(argv, NULL, PL_SLURM_LIMITS_MS, &child, err);
    if (r == -ETIMEDOUT)
        return pl_error_set(err, r, "the Slurm controller did not answer within %d s",
                            PL_SLURM_LIMITS_MS / 1000);
    if (r < 0)
        return r;
    if (child.status == 0 && pl_slurm_site_parse(pl_buf_str(&child.out), ret) == 0)
        return 0;
    said = pl_buf_str(&child.err);
    return pl_error_set(err, -EHOSTUNREACH, "scontrol show config: %.*s", (int)strcspn(said, "\n"),
                        said);
}

/* Of "a,b" Slurm may choose either: the first stands for them. */
static bool is_first(const char *partitions, const char *name)
{
    size_t len = strcspn(partitions, ",");

    return strlen(name) == len && strncmp(name, partitions, len) == 0;
}

void pl_slurm_site_find(
    const char *text, const char *partition, const char *field, char *ret, size_t size)
{
    *ret = '\0';
    while (*text) {
        size_t len = strcspn(text, "\n");
        _cleanup_free_ char *line = strndup(text, len);
        _cleanup_free_ char *name = line ? pl_parse_scontrol_field(line, "PartitionName") : NULL;
        _cleanup_free_ char *value = line ? pl_parse_scontrol_field(line, field) : NULL;
        _cleanup_free_ char *is_default = line ? pl_parse_scontrol_field(line, "Default") : NULL;

        if (name && value &&
            (partition ? is_first(partition, name)
                       : is_default && strcmp(is_default, "YES") == 0)) {
            snprintf(ret, size, "%s", value);
            return;
        }
        text += len + (text[len] == '\n');
    }
}

void pl_slurm_site_partition(const char *partition, const char *field, char *ret, size_t size)
{
    static const char *const argv[] = {"scontrol", "-o", "show", "partition", NULL};
    _cleanup_(pl_child_finish) struct pl_child child = {0};

    *ret = '\0';
    if (pl_child_run(argv, NULL, PL_SLURM_LIMITS_MS, &child, NULL) == 0)
        pl_slurm_site_find(pl_buf_str(&child.out), partition, field, ret, size);
}

bool pl_slurm_preempt_requeues(const char *mode)
{
    return strstr(mode, "REQUEUE") || strstr(mode, "SUSPEND");
}
