/* SPDX-License-Identifier: MIT */
#include "launcher/plsubmit/asked.h"
#include "common/base/fs.h"
#include "common/proto/json.h"
#include "launcher/slurm/slurm_cache.h"

#include <string.h>
#include <sys/utsname.h>

#define CACHE_NAME "asked"
#define STARTS_MAX 1000 /* kinds of jobs */

static uint64_t add_hash(uint64_t hash, const char *text)
{
    for (;; text++) { /* FNV-1a, with the NUL */
        hash = (hash ^ (unsigned char)*text) * 0x100000001b3u;
        if (!*text)
            return hash;
    }
}

static bool starts_with(const char *s, const char *const *prefixes)
{
    for (; *prefixes; prefixes++)
        if (strncmp(s, *prefixes, strlen(*prefixes)) == 0)
            return true;
    return false;
}

/* The kind of job: what Slurm looks at to tell whether it can start. */
static void make_key(const struct pl_run *run, char key[17])
{
    static const char *const names[] = {"--job-name=", "--output=", "--error=", NULL};
    static const char *const variables[] = {"SBATCH_", "SLURM_", NULL};
    uint64_t hash = 0xcbf29ce484222325u;

    for (const char *const *arg = pl_run_sbatch_args(run); *arg; arg++)
        if (!starts_with(*arg, names))
            hash = add_hash(hash, *arg);
    for (char **p = environ; *p; p++)
        if (starts_with(*p, variables))
            hash = add_hash(hash, *p);
    snprintf(key, 17, "%016llx", (unsigned long long)hash);
}

static bool is_recent(const json_t *time, double age_s)
{
    double passed = pl_wall_s() - json_number_value(time);

    return json_is_number(time) && passed >= 0 && passed < age_s;
}

/* The answers of this host; an empty object without any. NULL when out of memory. */
static json_t *read_doc(int fd)
{
    struct utsname host = {0};
    json_t *doc = NULL;
    const char *theirs;

    if (uname(&host) < 0 || pl_slurm_cache_read(fd, &doc) < 0)
        doc = NULL;
    theirs = pl_json_string(doc, "host");
    if (theirs && strcmp(theirs, host.nodename) == 0)
        return doc;
    json_decref(doc); /* which nodes are other machines depends on the host */
    return json_pack("{s:s}", "host", host.nodename);
}

void pl_asked_read(const struct pl_run *run, struct pl_asked *ret)
{
    _cleanup_close_ int fd = pl_slurm_cache_open_soon(CACHE_NAME, geteuid());
    _cleanup_(json_decrefp) json_t *doc = fd < 0 ? NULL : read_doc(fd);
    const char *node = pl_json_string(doc, "node");
    char key[17];

    *ret = (struct pl_asked){0};
    make_key(run, key);
    ret->start = is_recent(json_object_get(json_object_get(doc, "starts"), key), PL_ASKED_S);
    ret->place = is_recent(json_object_get(doc, "place"), node ? PL_ASKED_NODE_S : PL_ASKED_S);
    if (ret->place && node)
        ret->place = (ret->node = strdup(node)) != NULL;
}

/* Changes the document, and writes it. */
static void keep(int (*change)(json_t *doc, const char *text), const char *text)
{
    _cleanup_close_ int fd = pl_slurm_cache_open_soon(CACHE_NAME, geteuid());
    _cleanup_(json_decrefp) json_t *doc = fd < 0 ? NULL : read_doc(fd);
    _cleanup_(pl_buf_finish) struct pl_buf out = {0};

    if (doc && json_object_set_new(doc, "time", json_real(pl_wall_s())) == 0 &&
        change(doc, text) == 0 && pl_json_dump_line(doc, &out) == 0)
        pl_slurm_cache_write(fd, &out);
}

static int set_start(json_t *doc, const char *key)
{
    json_t *starts = json_object_get(doc, "starts"), *time;
    const char *other;
    void *next;

    json_object_foreach_safe(starts, next, other, time) if (!is_recent(time, PL_ASKED_S))
        json_object_del(starts, other);
    if (!json_is_object(starts) || json_object_size(starts) >= STARTS_MAX) {
        starts = json_object();
        if (!starts || json_object_set_new(doc, "starts", starts) < 0)
            return -ENOMEM;
    }
    return json_object_set_new(starts, key, json_real(pl_wall_s()));
}

static int set_place(json_t *doc, const char *node)
{
    json_object_del(doc, "node");
    if (node && json_object_set_new(doc, "node", json_string(node)) < 0)
        return -ENOMEM;
    return json_object_set_new(doc, "place", json_real(pl_wall_s()));
}

void pl_asked_keep_start(const struct pl_run *run)
{
    char key[17];

    make_key(run, key);
    keep(set_start, key);
}

void pl_asked_keep_place(const char *node)
{
    keep(set_place, node);
}
