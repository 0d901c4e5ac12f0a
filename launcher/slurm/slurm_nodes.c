/* SPDX-License-Identifier: MIT */
#include "launcher/slurm/slurm_nodes.h"
#include "common/base/child.h"
#include "common/base/env.h"
#include "common/base/fs.h"
#include "common/base/parse.h"
#include "common/base/strv.h"
#include "common/base/utf8.h"
#include "common/proto/json.h"
#include "launcher/slurm/slurm_cache.h"
#include "launcher/slurm/slurm_conf.h"

#include <string.h>
#include <sys/random.h>

#define CACHE_NAME "nodes"

/* ---- sinfo's answer ---- */

/* Slurm's texts need not be valid UTF-8. */
static int set_text(json_t *o, const char *key, const char *text)
{
    _cleanup_free_ char *clean = NULL;

    if (!*text || strcmp(text, "none") == 0 || strcmp(text, "Unknown") == 0 ||
        strcmp(text, "N/A") == 0)
        return 0;
    clean = pl_buf_dup_text(text);
    return clean ? json_object_set_new(o, key, json_string(clean)) : -ENOMEM;
}

/* Cuts a reason that is too long, between two characters. */
static void shorten(char *reason)
{
    static const char end[] = "...";
    size_t len = strlen(reason), cut = PL_SLURM_REASON_MAX - strlen(end);

    if (len <= PL_SLURM_REASON_MAX)
        return;
    while (cut > 0 && ((unsigned char)reason[cut] & 0xc0) == 0x80)
        cut--;
    memcpy(reason + cut, end, sizeof(end));
}

/* Adds a node's record; it is split in place. */
static int add_record(json_t *nodes, char *line)
{
    char *fields[5]; /* the last one, the reason, may have a '|' and line breaks */
    _cleanup_(json_decrefp) json_t *node = NULL;
    int64_t since;
    int r;

    for (size_t i = 0; i < PL_COUNT(fields); i++) {
        fields[i] = i + 1 < PL_COUNT(fields) ? strsep(&line, "|") : line;
        if (!fields[i])
            return 0;
    }
    if (!*fields[0] || !pl_utf8_valid(fields[0], strlen(fields[0])) || !*fields[1])
        return 0;
    node = json_object();
    r = node ? set_text(node, "state", fields[1]) : -ENOMEM;
    if (r == 0)
        r = set_text(node, "by", fields[2]);
    if (r == 0 && pl_parse_int(fields[3], 1, INT64_MAX, &since, NULL) == 0)
        r = json_object_set_new(node, "since", json_integer(since));
    shorten(fields[4]);
    if (r == 0)
        r = set_text(node, "reason", fields[4]);
    return r < 0 || json_object_set(nodes, fields[0], node) < 0 ? -ENOMEM : 0;
}

/* The line that begins with the mark, at text or later; NULL = none. */
static const char *find_record(const char *text, const char *mark)
{
    size_t len = strlen(mark);

    while (strncmp(text, mark, len) != 0 || text[len] != '|') {
        text = strchr(text, '\n');
        if (!text)
            return NULL;
        text++;
    }
    return text;
}

int pl_slurm_nodes_parse(const char *text, const char *mark, json_t **ret)
{
    _cleanup_(json_decrefp) json_t *nodes = json_object();
    const char *record = find_record(text, mark);

    if (!nodes)
        return -ENOMEM;
    while (record) {
        const char *start = record + strlen(mark) + 1, *next = find_record(start, mark);
        size_t len = next ? (size_t)(next - start) : strlen(start);
        _cleanup_free_ char *copy = NULL;

        if (len > 0 && start[len - 1] == '\n')
            len--;
        copy = strndup(start, len);
        if (!copy || add_record(nodes, copy) < 0)
            return -ENOMEM;
        record = next;
    }
    *ret = PL_TAKE(nodes);
    return 0;
}

/* ---- the query ---- */

/* Our environment without what changes sinfo's answer. */
static char **environment(void)
{
    char **list = NULL;
    int r = pl_strv_append(&list, "SLURM_TIME_FORMAT=%s"); /* seconds since 1970 */

    for (char **p = environ; *p && r == 0; p++)
        if (strncmp(*p, "SINFO_", 6) != 0 && strncmp(*p, "SLURM_TIME_FORMAT=", 18) != 0)
            r = pl_strv_append(&list, *p);
    if (r < 0)
        pl_strv_free(PL_TAKE(list));
    return list;
}

/* 32 random digits: no text that stands in Slurm already has them. */
static int make_mark(char ret[33], struct pl_error *err)
{
    unsigned char bytes[16];

    if (getrandom(bytes, sizeof(bytes), 0) != (ssize_t)sizeof(bytes))
        return pl_error_errno(err, errno, "no random numbers");
    for (size_t i = 0; i < sizeof(bytes); i++)
        snprintf(ret + 2 * i, 3, "%02x", bytes[i]);
    return 0;
}

static int ask(json_t **ret, struct pl_error *err)
{
    char mark[33], format[80];
    const char *const argv[] = {"sinfo",          "--noheader", "--all", "--Node",
                                "--list-reasons", format,       NULL};
    _cleanup_(pl_child_finish) struct pl_child child = {0};
    _cleanup_(pl_strv_freep) char **env = environment();
    const char *said;
    int r = env ? make_mark(mark, err) : pl_error_nomem(err);

    if (r == 0) {
        snprintf(format, sizeof(format), "--format=%s|%%N|%%T|%%u|%%H|%%E", mark);
        r = pl_child_run(argv, env, PL_SLURM_NODES_MS, &child, err);
    }
    if (r == -ETIMEDOUT)
        return pl_error_set(err, r, "the Slurm controller did not answer within %d s",
                            PL_SLURM_NODES_MS / 1000);
    if (r < 0)
        return r;
    said = pl_buf_str(&child.err);
    if (child.status != 0)
        return pl_error_set(err, -EHOSTUNREACH, "%.*s", *said ? (int)strcspn(said, "\n") : 12,
                            *said ? said : "sinfo failed");
    return pl_slurm_nodes_parse(pl_buf_str(&child.out), mark, ret) < 0 ? pl_error_nomem(err) : 0;
}

/* Asks, and keeps the answer, or why there is none, in the file. */
static int refresh(int cache, json_t **ret, struct pl_error *err)
{
    _cleanup_(json_decrefp) json_t *nodes = NULL, *doc = NULL;
    _cleanup_(pl_buf_finish) struct pl_buf text = {0};
    int r = ask(&nodes, err);

    if (r == -ENOMEM)
        return r;
    doc = r < 0 ? json_pack("{s:f, s:s, s:i}", "time", pl_wall_s(), "error", pl_error_text(err),
                            "errno", r)
                : json_pack("{s:f, s:O}", "time", pl_wall_s(), "nodes", nodes);
    if (cache >= 0 && doc && pl_json_dump_line(doc, &text) == 0)
        pl_slurm_cache_write(cache, &text);
    if (r == 0)
        *ret = PL_TAKE(nodes);
    return r;
}

int pl_slurm_nodes_get(json_t **ret, struct pl_error *err)
{
    _cleanup_close_ int cache = pl_slurm_cache_open(CACHE_NAME, geteuid());
    const char *conf = pl_env(PL_ENV_SLURM_CONF), *text;
    _cleanup_(json_decrefp) json_t *doc = NULL;
    int64_t code = -EHOSTUNREACH;

    if (!pl_slurm_conf_readable() && conf && *conf)
        return pl_error_set(err, -ENOENT, "cannot read SLURM_CONF '%s'", conf);
    if (pl_slurm_cache_read(cache, &doc) < 0 ||
        !pl_slurm_cache_is_recent(cache, doc, PL_SLURM_NODES_AGE_S))
        return refresh(cache, ret, err);
    text = pl_json_string(doc, "error");
    pl_json_int(doc, "errno", &code);
    if (text)
        return pl_error_set(err, code < 0 ? (int)code : -EHOSTUNREACH, "%s", text);
    *ret = json_incref(json_object_get(doc, "nodes"));
    return *ret ? 0 : pl_error_set(err, -EINVAL, "the file of Slurm's nodes is damaged");
}
