/* SPDX-License-Identifier: MIT */
#include "launcher/slurm/slurm_accounting.h"
#include "common/base/child.h"
#include "common/base/fs.h"
#include "common/base/parse.h"

#include <pwd.h>
#include <stdarg.h>
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

static void PL_PRINTF(3, 4)
    lower(struct pl_slurm_submit_limit *limit, const char *field, const char *fmt, ...)
{
    int64_t n;
    va_list ap;

    if (!*field || pl_parse_int(field, 0, INT32_MAX, &n, NULL) < 0 ||
        (limit->most >= 0 && limit->most <= n))
        return;
    limit->most = n;
    va_start(ap, fmt);
    vsnprintf(limit->what, sizeof(limit->what), fmt, ap);
    va_end(ap);
}

/* An association with a partition is of jobs in that partition only, and replaces the one without.
 */
void pl_slurm_read_associations(const char *text,
                                const struct pl_slurm_place *place,
                                struct pl_slurm_submit_limit *ret,
                                char *ret_qos,
                                size_t size)
{
    struct pl_slurm_submit_limit any = *ret, own = *ret;
    char any_qos[64] = "", own_qos[64] = "";
    bool found = false;

    while (*text) {
        size_t len = strcspn(text, "\n");
        _cleanup_free_ char *line = strndup(text, len);
        char *fields[FIELDS_MAX];
        const char *account;

        text += len + (text[len] == '\n');
        if (!line)
            break;
        split(line, fields);
        account = is_set(place->account) ? place->account : fields[0];
        if (strcasecmp(fields[1], account) != 0 || /* Slurm keeps it in small letters */
            (*fields[2] && !(is_set(place->partition) && strcmp(place->partition, fields[2]) == 0)))
            continue;
        found |= *fields[2] != '\0';
        if (!ret->user_by_qos)
            lower(*fields[2] ? &own : &any, fields[3], "MaxSubmitJobs of account %s", account);
        if (!ret->group_by_qos)
            lower(*fields[2] ? &own : &any, fields[4], "GrpSubmitJobs of account %s", account);
        snprintf(*fields[2] ? own_qos : any_qos, sizeof(own_qos), "%s", fields[5]);
    }
    *ret = found ? own : any;
    snprintf(ret_qos, size, "%s", found ? own_qos : any_qos);
}

void pl_slurm_read_account(const char *text,
                           const char *account,
                           struct pl_slurm_submit_limit *ret,
                           char *ret_parent,
                           size_t size)
{
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
        lower(ret, fields[3], "GrpSubmitJobs of account %s", account);
        snprintf(ret_parent, size, "%s", fields[1]);
    }
}

void pl_slurm_read_qos(const char *text, struct pl_slurm_submit_limit *ret)
{
    while (*text) {
        size_t len = strcspn(text, "\n");
        _cleanup_free_ char *line = strndup(text, len);
        char *fields[FIELDS_MAX];

        text += len + (text[len] == '\n');
        if (!line)
            return;
        split(line, fields);
        lower(ret, fields[1], "MaxSubmitJobsPerUser of QOS %s", fields[0]);
        lower(ret, fields[2], "GrpSubmitJobs of QOS %s", fields[0]);
        ret->user_by_qos |= *fields[1] != '\0';
        ret->group_by_qos |= *fields[2] != '\0';
    }
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

static int ask_qos(const char *names, struct pl_slurm_submit_limit *ret, struct pl_error *err)
{
    _cleanup_(pl_child_finish) struct pl_child child = {0};
    _cleanup_free_ char *where = pl_strf("names=%s", names);
    const char *argv[] = {"sacctmgr", "-nP", "show",
                          "qos",      where, "format=Name,MaxSubmitJobsPerUser,GrpSubmitJobs",
                          NULL};
    int r = where ? ask(argv, &child, err) : pl_error_nomem(err);

    if (r == 0)
        pl_slurm_read_qos(pl_buf_str(&child.out), ret);
    return r;
}

/* The account's own limit, and those of the accounts above it: all their users share them. */
static int ask_accounts(const char *account,
                        const char *cluster,
                        struct pl_slurm_submit_limit *ret,
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

int pl_slurm_submit_limit_ask(const struct pl_slurm_place *place,
                              struct pl_slurm_submit_limit *ret,
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
    struct pl_slurm_submit_limit unused = {.most = -1}; /* the QOS counts first */
    char own[64], account[64];
    const char *qos[2] = {is_set(place->qos) ? place->qos : own, place->partition_qos};
    int r = name && cluster ? ask(argv, &child, err) : pl_error_nomem(err);

    if (r < 0)
        return r;
    pl_slurm_read_associations(pl_buf_str(&child.out), place, &unused, own, sizeof(own));
    *ret = (struct pl_slurm_submit_limit){.most = -1};
    for (size_t i = 0; i < PL_COUNT(qos) && r == 0; i++)
        r = is_set(qos[i]) ? ask_qos(qos[i], ret, err) : 0;
    if (r < 0)
        return r;
    pl_slurm_read_associations(pl_buf_str(&child.out), place, ret, own, sizeof(own));
    if (is_set(place->account)) /* else the default one, the first field of each line */
        snprintf(account, sizeof(account), "%s", place->account);
    else
        snprintf(account, sizeof(account), "%.*s", (int)strcspn(pl_buf_str(&child.out), "|\n"),
                 pl_buf_str(&child.out));
    r = ask_accounts(account, is_set(place->cluster) ? cluster : NULL, ret, err);
    return r;
}

int pl_slurm_count_jobs(int64_t *ret, struct pl_error *err)
{
    _cleanup_(pl_child_finish) struct pl_child child = {0};
    _cleanup_free_ char *user = pl_strf("--user=%u", (unsigned)geteuid());
    const char *argv[] = {"squeue", "--noheader", "--array", "--format=%i", user, NULL};
    int r = user ? ask(argv, &child, err) : pl_error_nomem(err);

    if (r < 0)
        return r;
    *ret = 0;
    for (const char *p = pl_buf_str(&child.out); *p; p++)
        *ret += *p == '\n';
    return 0;
}
