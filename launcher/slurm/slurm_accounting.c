/* SPDX-License-Identifier: MIT */
#include "launcher/slurm/slurm_accounting.h"
#include "common/base/child.h"
#include "common/base/fs.h"
#include "common/base/parse.h"

#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#define ASK_MS 10000
#define FIELDS_MAX 6
#define LEVELS_MAX 16 /* accounts, one above the other */

/* Splits "A|B|C" in place; missing fields are "". */
static void split(char *line, char *fields[FIELDS_MAX])
{
    static char empty[] = "";

    for (size_t i = 0; i < FIELDS_MAX; i++) {
        fields[i] = line ? strsep(&line, "|") : empty;
    }
}

static bool is_set(const char *text)
{
    return text && *text;
}

/* Adds a limit, if the field has a number. Returns true if it has. */
static bool add(struct pl_slurm_caps *caps,
                const char *field,
                const char *limit,
                const char *of,
                const struct pl_slurm_cap *whose)
{
    struct pl_slurm_cap *cap = &caps->cap[caps->n];
    int64_t n;

    if (!*field || pl_parse_int(field, 0, INT32_MAX, &n, NULL) < 0)
        return false;
    if (caps->n == PL_SLURM_CAPS_MAX)
        return true;
    *cap = *whose;
    cap->most = n;
    snprintf(cap->what, sizeof(cap->what), "%s of %s", limit, of);
    caps->n++;
    return true;
}

/* An association with a partition is of jobs in that partition only, and replaces the one without.
 */
void pl_slurm_read_associations(const char *text,
                                const struct pl_slurm_place *place,
                                struct pl_slurm_caps *ret,
                                char *ret_qos,
                                size_t size)
{
    char max[2][32] = {"", ""}, group[2][32] = {"", ""}, qos[2][64] = {"", ""};
    struct pl_slurm_cap whose = {.scope = PL_SLURM_CAP_USER_ACCOUNT};
    char of[80];
    int own = 0;

    while (*text) {
        size_t len = strcspn(text, "\n");
        _cleanup_free_ char *line = strndup(text, len);
        char *fields[FIELDS_MAX];
        const char *account;
        int k;

        text += len + (text[len] == '\n');
        if (!line)
            break;
        split(line, fields);
        account = is_set(place->account) ? place->account : fields[0];
        if (strcasecmp(fields[1], account) != 0 || /* Slurm keeps it in small letters */
            (*fields[2] && !(is_set(place->partition) && strcmp(place->partition, fields[2]) == 0)))
            continue;
        k = *fields[2] != '\0';
        own |= k;
        snprintf(whose.account, sizeof(whose.account), "%s", account);
        snprintf(max[k], sizeof(max[k]), "%s", fields[3]);
        snprintf(group[k], sizeof(group[k]), "%s", fields[4]);
        snprintf(qos[k], sizeof(qos[k]), "%s", fields[5]);
    }
    if (own)
        snprintf(whose.partition, sizeof(whose.partition), "%s", place->partition);
    snprintf(of, sizeof(of), "account %s", whose.account);
    if (!ret->user_by_qos && !ret->account_by_qos)
        add(ret, max[own], "MaxSubmitJobs", of, &whose);
    if (!ret->group_by_qos)
        add(ret, group[own], "GrpSubmitJobs", of, &whose);
    snprintf(ret_qos, size, "%s", qos[own]);
}

void pl_slurm_read_account(
    const char *text, const char *account, struct pl_slurm_caps *ret, char *ret_parent, size_t size)
{
    struct pl_slurm_cap whose = {.scope = PL_SLURM_CAP_ACCOUNT};
    char of[80];

    snprintf(whose.account, sizeof(whose.account), "%s", account);
    snprintf(of, sizeof(of), "account %s", account);
    *ret_parent = '\0';
    while (*text) {
        size_t len = strcspn(text, "\n");
        _cleanup_free_ char *line = strndup(text, len);
        char *fields[FIELDS_MAX];

        text += len + (text[len] == '\n');
        if (!line)
            return;
        split(line, fields);
        if (strcasecmp(fields[0], account) != 0 || *fields[2])
            continue;
        add(ret, fields[3], "GrpSubmitJobs", of, &whose);
        snprintf(ret_parent, size, "%s", fields[1]);
    }
}

void pl_slurm_read_qos(const char *text, const char *account, struct pl_slurm_caps *ret)
{
    while (*text) {
        size_t len = strcspn(text, "\n");
        _cleanup_free_ char *line = strndup(text, len);
        struct pl_slurm_cap whose = {.scope = PL_SLURM_CAP_USER_QOS};
        char *fields[FIELDS_MAX], of[80];

        text += len + (text[len] == '\n');
        if (!line)
            return;
        split(line, fields);
        snprintf(whose.qos, sizeof(whose.qos), "%s", fields[0]);
        snprintf(of, sizeof(of), "QOS %s", fields[0]);
        if (!ret->user_by_qos)
            ret->user_by_qos = add(ret, fields[1], "MaxSubmitJobsPerUser", of, &whose);
        whose.scope = PL_SLURM_CAP_QOS;
        if (!ret->group_by_qos)
            ret->group_by_qos = add(ret, fields[2], "GrpSubmitJobs", of, &whose);
        whose.scope = PL_SLURM_CAP_ACCOUNT_QOS;
        snprintf(whose.account, sizeof(whose.account), "%s", account);
        if (!ret->account_by_qos)
            ret->account_by_qos = add(ret, fields[3], "MaxSubmitJobsPerAccount", of, &whose);
    }
}

/* "GrpSubmitJobs=40(7)", where N stands for no limit. */
static int64_t count_in(const char *line, size_t len)
{
    static const char key[] = " GrpSubmitJobs=";
    const char *at = memmem(line, len, key, strlen(key));
    const char *open = at ? memchr(at, '(', len - (size_t)(at - line)) : NULL;
    char number[24];
    int64_t n;

    if (!open)
        return -1;
    snprintf(number, sizeof(number), "%.*s",
             (int)PL_MIN(strcspn(open + 1, ")"), sizeof(number) - 1), open + 1);
    return pl_parse_int(number, 0, INT64_MAX, &n, NULL) == 0 ? n : -1;
}

int64_t pl_slurm_find_group(const char *text, const char *account, const char *qos)
{
    char start[160];

    if (account)
        snprintf(start, sizeof(start), " Account=%s UserName= Partition= ", account);
    else
        snprintf(start, sizeof(start), "QOS=%s(", qos);
    while (*text) {
        size_t len = strcspn(text, "\n");
        const char *at = account ? memmem(text, len, " ", 1) : text; /* after ClusterName=C */

        if (at && strncasecmp(at, start, strlen(start)) == 0)
            return count_in(text, len);
        text += len + (text[len] == '\n');
    }
    return -1;
}

static int ask(const char *const *argv, struct pl_child *child, struct pl_error *err)
{
    const char *said;
    int r = pl_child_run(argv, NULL, ASK_MS, child, err);

    if (r == -ETIMEDOUT)
        return pl_error_set(err, r, "%s did not answer within %d s", argv[0], ASK_MS / 1000);
    if (r < 0 || child->status == 0)
        return r;
    said = pl_buf_str(child->err.len ? &child->err : &child->out);
    return pl_error_set(err, -EHOSTUNREACH, "%s: %.*s", argv[0], (int)strcspn(said, "\n"), said);
}

static int ask_qos(const char *name,
                   const char *account,
                   struct pl_slurm_caps *ret,
                   bool *ret_over,
                   struct pl_error *err)
{
    _cleanup_(pl_child_finish) struct pl_child child = {0};
    _cleanup_free_ char *where = pl_strf("names=%s", name);
    const char *argv[] = {
        "sacctmgr", "-nP",
        "show",     "qos",
        where,      "format=Name,MaxSubmitJobsPerUser,GrpSubmitJobs,MaxSubmitJobsPerAccount,Flags",
        NULL};
    int r = where ? ask(argv, &child, err) : pl_error_nomem(err);

    if (r == 0 && ret_over)
        *ret_over = strstr(pl_buf_str(&child.out), "OverPartQOS") != NULL;
    else if (r == 0)
        pl_slurm_read_qos(pl_buf_str(&child.out), account, ret);
    return r;
}

/* squeue knows a job by its own QOS only: that of a partition counts the jobs there. */
static void set_partition(struct pl_slurm_caps *caps, const char *qos, const char *partition)
{
    for (size_t i = 0; i < caps->n; i++)
        if (strcmp(caps->cap[i].qos, qos) == 0)
            snprintf(caps->cap[i].partition, sizeof(caps->cap[i].partition), "%s", partition);
}

/* The job's QOS and its partition's, in the order in which they count.
 * where  the partition */
static int ask_both_qos(const char *own,
                        const char *partition,
                        const char *where,
                        const char *account,
                        struct pl_slurm_caps *ret,
                        struct pl_error *err)
{
    const char *first = partition, *then = own;
    bool over = false;
    int r = 0;

    if (is_set(partition) && is_set(own))
        r = ask_qos(own, account, ret, &over, err);
    if (over) {
        first = own;
        then = partition;
    }
    if (r == 0 && is_set(first))
        r = ask_qos(first, account, ret, NULL, err);
    if (r == 0 && is_set(then) && !(first && strcmp(first, then) == 0))
        r = ask_qos(then, account, ret, NULL, err);
    if (r == 0 && is_set(where) && is_set(partition) && !(own && strcmp(own, partition) == 0))
        set_partition(ret, partition, where);
    return r;
}

/* The account's own limit, and those of the accounts above it: all their users share them. */
static int ask_accounts(const char *account,
                        const char *cluster,
                        struct pl_slurm_caps *ret,
                        struct pl_error *err)
{
    char name[64], parent[64];

    snprintf(name, sizeof(name), "%s", account);
    for (int level = 0; *name && !ret->group_by_qos && level < LEVELS_MAX; level++) {
        _cleanup_(pl_child_finish) struct pl_child child = {0};
        _cleanup_free_ char *where = pl_strf("accounts=%s", name);
        const char *argv[] = {"sacctmgr",     "-nP", "show",
                              "associations", where, "format=Account,ParentName,User,GrpSubmitJobs",
                              cluster,        NULL};
        int r = where ? ask(argv, &child, err) : pl_error_nomem(err);

        if (r < 0)
            return r;
        pl_slurm_read_account(pl_buf_str(&child.out), name, ret, parent, sizeof(parent));
        snprintf(name, sizeof(name), "%s", parent);
    }
    return 0;
}

/* ---- the jobs that are there ---- */

/* Counts the jobs in the queue that squeue shows, each task of an array for itself. */
static int count_queue(struct pl_slurm_cap *cap, struct pl_error *err)
{
    bool own = cap->scope == PL_SLURM_CAP_USER_ACCOUNT || cap->scope == PL_SLURM_CAP_USER_QOS;
    _cleanup_(pl_child_finish) struct pl_child child = {0};
    _cleanup_free_ char *user = pl_strf("--user=%u", (unsigned)geteuid());
    _cleanup_free_ char *account = pl_strf("--account=%s", cap->account);
    _cleanup_free_ char *partition = pl_strf("--partition=%s", cap->partition);
    _cleanup_free_ char *qos = pl_strf("--qos=%s", cap->qos);
    const char *argv[10] = {"squeue", "--noheader", "--array", "--format=%i"};
    size_t n = 4;
    int r;

    if (!user || !account || !partition || !qos)
        return pl_error_nomem(err);
    if (own)
        argv[n++] = user;
    if (*cap->account)
        argv[n++] = account;
    if (*cap->partition)
        argv[n++] = partition;
    if (*cap->qos && !*cap->partition)
        argv[n++] = qos;
    r = ask(argv, &child, err);
    cap->there = 0;
    for (const char *p = r < 0 ? "" : pl_buf_str(&child.out); *p; p++)
        cap->there += *p == '\n';
    return r;
}

/* squeue may not show everybody's jobs (PrivateData), nor does it know which accounts are below
 * one: the controller's own count is asked for first. */
static int count_jobs(struct pl_slurm_caps *caps, struct pl_error *err)
{
    static const char *const argv[] = {"scontrol",        "-o", "show", "assoc_mgr",
                                       "flags=assoc,qos", NULL};
    _cleanup_(pl_child_finish) struct pl_child child = {0};
    const char *text = NULL;
    int r = 0;

    for (size_t i = 0; i < caps->n && r == 0; i++) {
        struct pl_slurm_cap *cap = &caps->cap[i];
        bool group = cap->scope == PL_SLURM_CAP_ACCOUNT || cap->scope == PL_SLURM_CAP_QOS;

        if (group && !text)
            text = ask(argv, &child, NULL) == 0 ? pl_buf_str(&child.out) : "";
        cap->there =
            group ? pl_slurm_find_group(
                        text, cap->scope == PL_SLURM_CAP_ACCOUNT ? cap->account : NULL, cap->qos)
                  : -1;
        if (cap->there < 0)
            r = count_queue(cap, err);
    }
    return r;
}

int pl_slurm_caps_ask(const struct pl_slurm_place *place,
                      struct pl_slurm_cap *ret,
                      struct pl_error *err)
{
    static const char format[] =
        "format=DefaultAccount,Account,Partition,MaxSubmitJobs,GrpSubmitJobs,DefaultQOS";
    _cleanup_(pl_child_finish) struct pl_child child = {0};
    const struct passwd *user = getpwuid(geteuid());
    _cleanup_free_ char *name = pl_strf("names=%s", user ? user->pw_name : "?");
    _cleanup_free_ char *cluster = pl_strf("clusters=%s", place->cluster ? place->cluster : "");
    const char *argv[] = {"sacctmgr", "-nP",  "show",      "user",
                          name,       format, "withassoc", is_set(place->cluster) ? cluster : NULL,
                          NULL};
    _cleanup_free_ struct pl_slurm_caps *caps = calloc(1, sizeof(*caps));
    struct pl_slurm_caps unused = {0}; /* the QOS counts first */
    char own[64], account[64];
    int r = caps && name && cluster ? ask(argv, &child, err) : pl_error_nomem(err);

    if (r < 0)
        return r;
    if (is_set(place->account)) /* else the default one, the first field of each line */
        snprintf(account, sizeof(account), "%s", place->account);
    else
        snprintf(account, sizeof(account), "%.*s", (int)strcspn(pl_buf_str(&child.out), "|\n"),
                 pl_buf_str(&child.out));
    pl_slurm_read_associations(pl_buf_str(&child.out), place, &unused, own, sizeof(own));
    r = ask_both_qos(is_set(place->qos) ? place->qos : own, place->partition_qos, place->partition,
                     account, caps, err);
    if (r < 0)
        return r;
    pl_slurm_read_associations(pl_buf_str(&child.out), place, caps, own, sizeof(own));
    r = ask_accounts(account, is_set(place->cluster) ? cluster : NULL, caps, err);
    if (r == 0)
        r = count_jobs(caps, err);
    *ret = (struct pl_slurm_cap){.most = -1};
    for (size_t i = 0; i < caps->n; i++)
        if (ret->most < 0 || caps->cap[i].most - caps->cap[i].there < ret->most - ret->there)
            *ret = caps->cap[i];
    return r;
}
