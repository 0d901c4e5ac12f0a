/* SPDX-License-Identifier: MIT */
/* plstat doctor: what of a site keeps distributed training from working, by Slurm's answers and by
 * a task on some nodes. */
#include "common/base/child.h"
#include "common/base/env.h"
#include "common/base/fs.h"
#include "common/base/options.h"
#include "common/base/parse.h"
#include "common/base/slow_fs.h"
#include "common/proto/json.h"
#include "launcher/plstat/node_answers.h"
#include "launcher/plstat/plstat.h"
#include "launcher/plstat/plstat_json.h"
#include "launcher/plstat/probe.h"
#include "launcher/slurm/slurm_site.h"

#include <fcntl.h>
#include <math.h>
#include <stdarg.h>
#include <string.h>

#define ASK_MS 10000u
#define WRITE_MS 5000u
#define NODES_MS 180000u /* the nodes may wait for their resolver */
#define IMMEDIATE "--immediate=30"
#define CLOCK_S 2.0 /* a larger difference is wrong: make(1), tokens and logs depend on clocks */

struct doctor {
    struct pl_plstat *ps;
    json_t *checks, *nodes;
    bool plugin_here, munge; /* Slurm's answers depend on munge */
    char namespace[64];      /* of struct pl_slurm_site */
    int64_t asked;           /* nodes */
    int r;                   /* the first failure of ours */
};

static void add(struct doctor *d, const char *verdict, const char *fmt, ...) PL_PRINTF(3, 4);

static void add(struct doctor *d, const char *verdict, const char *fmt, ...)
{
    bool wrong = strcmp(verdict, "wrong") == 0;
    _cleanup_free_ char *clean = NULL;
    char line[1200];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(line, sizeof(line), fmt, ap);
    va_end(ap);
    clean = pl_buf_dup_text(line); /* valid UTF-8 */
    d->ps->any_failure |= wrong;
    if (!clean || json_array_append_new(
                      d->checks, json_pack("{s:s, s:s}", "verdict", verdict, "text", clean)) < 0)
        d->r = -ENOMEM;
}

/* ---- Slurm ---- */

/* Reports for each partition what happens to a preempted job. */
static void look_at_partitions(struct doctor *d, const struct pl_slurm_site *site)
{
    static const char *const argv[] = {"scontrol", "-o", "show", "partition", NULL};
    _cleanup_(pl_child_finish) struct pl_child child = {0};
    char *line, *rest;

    if (pl_child_run(argv, NULL, ASK_MS, &child, NULL) < 0 || child.out.len == 0)
        return;
    rest = child.out.data;
    while ((line = strsep(&rest, "\n"))) {
        char name[64], mode[64];

        if (sscanf(line, "PartitionName=%63s", name) != 1)
            continue;
        pl_slurm_site_find(line, name, "PreemptMode", mode, sizeof(mode));
        if (!*mode)
            snprintf(mode, sizeof(mode), "%s", site->preempt_mode);
        add(d, "ok", "partition %s: %s (PreemptMode=%s)", name,
            pl_slurm_preempt_requeues(mode) ? "a preempted job starts again, or goes on"
            : strstr(mode, "CANCEL")        ? "a preempted job is cancelled: --requeue-on preempt "
                                              "has no effect, --retry has"
                                            : "no job is preempted",
            mode);
    }
}

static void look_for_plugin(struct doctor *d)
{
    static const char *const argv[] = {"srun", "--help", NULL};
    _cleanup_(pl_child_finish) struct pl_child child = {0};

    if (pl_child_run(argv, NULL, ASK_MS, &child, NULL) < 0)
        return;
    d->plugin_here = strstr(pl_buf_str(&child.out), "--plume") != NULL;
    add(d, "ok",
        d->plugin_here ? "the plugin is loaded here: srun --plume"
                       : "no plugin: plsubmit and srun plrun do not need it");
}

static int look_at_slurm(struct doctor *d)
{
    struct pl_slurm_site site = {0};
    struct pl_error err = {0};

    if (pl_slurm_site_ask(&site, &err) < 0) {
        add(d, "wrong", "%s", err.text);
        return -EHOSTUNREACH;
    }
    add(d, "ok", "Slurm %s answers", site.release);
    d->munge = strcmp(site.auth, "auth/munge") == 0;
    memcpy(d->namespace, site.namespace, sizeof(d->namespace));
    add(d, site.limits.max_array_size ? "ok" : "wrong", "arrays of at most %u tasks (MaxArraySize)",
        site.limits.max_array_size);
    if (strcmp(site.job_requeue, "0") == 0)
        add(d, "ok",
            "a job is requeued only where it asks for that (JobRequeue=0), as with --requeue-on");
    look_at_partitions(d, &site);
    look_for_plugin(d);
    return 0;
}

/* Where it is that of the nodes, too, the plugin's plrund waits for it. */
static void look_at_home(struct doctor *d)
{
    _cleanup_free_ char *home = pl_home_dir(NULL);

    if (home && pl_slow_fs_try(home, WRITE_MS) < 0)
        add(d, "wrong", "the file system of '%s' does not answer", home);
}

/* ---- the nodes ---- */

/* The number of nodes of the default partition that could start a task now: 1 to `most`. */
static unsigned count_nodes(unsigned most)
{
    static const char *const argv[] = {"sinfo",       "--noheader", "--Node", "--states=idle,mixed",
                                       "--format=%P", NULL};
    const char *wanted = pl_env_named("SLURM_PARTITION");
    _cleanup_(pl_child_finish) struct pl_child child = {0};
    unsigned n = 0;

    if (pl_child_run(argv, NULL, ASK_MS, &child, NULL) < 0)
        return 1;
    for (const char *p = pl_buf_str(&child.out); *p; p += strcspn(p, "\n"), p += *p == '\n') {
        size_t len = strcspn(p, "\n"), name = strcspn(p, "*\n");

        n += wanted ? strlen(wanted) == name && strncmp(p, wanted, name) == 0 : name < len;
    }
    return PL_MAX(PL_MIN(n, most), 1u);
}

/* Makes a file with a token where run folders are, or would be. *ret_path is the caller's. */
static int make_token(char **ret_path, char *token, size_t size, struct pl_error *err)
{
    const char *runs = pl_env_text(PL_ENV_PLUME_RUNS);
    _cleanup_free_ char *cwd = getcwd(NULL, 0), *folder = NULL, *path = NULL;
    int r;

    folder = cwd ? pl_path_join(cwd, runs ? runs : "runs") : NULL;
    if (folder && access(folder, W_OK) < 0)
        folder[runs ? strlen(folder) : strlen(cwd)] = '\0';
    if (folder && pl_slow_fs_try(folder, WRITE_MS) < 0)
        return pl_error_set(err, -ETIMEDOUT, "the file system of '%s' does not answer", folder);
    path = folder ? pl_strf("%s/.plume-doctor", folder) : NULL;
    *ret_path = path ? pl_temp_name(path) : NULL;
    if (!*ret_path)
        return pl_error_nomem(err);
    snprintf(token, size, "%s", strrchr(*ret_path, '.') + 1);
    r = pl_file_write_atomic(*ret_path, token, strlen(token), 0600, err);
    if (r < 0)
        free(PL_TAKE(*ret_path));
    return r;
}

static int
run_on_nodes(struct doctor *d, const char *path, struct pl_child *ret, struct pl_error *err)
{
    _cleanup_free_ char *folder = pl_program_folder();
    _cleanup_free_ char *plstat = folder ? pl_path_join(folder, "plstat") : NULL;
    _cleanup_free_ char *probe = path ? pl_strf("--probe=%s", path) : strdup("--probe=");
    const char *job = pl_env_text(PL_ENV_SLURM_JOB_ID),
               *of_job = pl_env_named("SLURM_JOB_NUM_NODES");
    const char *argv[20] = {"srun", "--quiet", "--label", "--ntasks-per-node=1", "--input=none"};
    char nodes[48];
    size_t n = 5;

    if (!plstat || !probe)
        return pl_error_nomem(err);
    d->asked = 1;
    if (!job)
        d->asked = count_nodes(d->ps->doctor_nodes);
    else if (of_job)
        pl_parse_int(of_job, 1, UINT32_MAX, &d->asked, NULL);
    snprintf(nodes, sizeof(nodes), "--nodes=%lld", (long long)d->asked);
    argv[n++] = nodes;
    argv[n++] = job ? "--overlap" : IMMEDIATE;
    if (!job)
        argv[n++] = "--time=5";
    if (d->plugin_here)
        argv[n++] = "--plume";
    argv[n++] = plstat;
    argv[n++] = "doctor";
    argv[n++] = probe;
    return pl_child_run(argv, NULL, NODES_MS, ret, err);
}

/* Adds the document of each node. */
static int read_nodes(struct doctor *d, const char *text)
{
    _cleanup_(json_decrefp) json_t *answers = json_array();
    json_t *o;
    size_t i;

    if (!answers || pl_node_answers(text, answers) < 0)
        d->r = -ENOMEM;
    json_array_foreach (answers, i, o)
        if (pl_json_string(o, "node") && json_array_append(d->nodes, o) < 0)
            d->r = -ENOMEM;
    return d->r;
}

/* ---- what the nodes say ---- */

/* The names of all nodes, as one node resolves them. */
static void check_names(struct doctor *d, const json_t *node)
{
    const json_t *names = json_object_get(node, "names"), *entry;
    const char *of = pl_json_string(node, "node"), *no_address = NULL, *no_name = NULL;
    size_t i, n_address = 0, n_name = 0;

    json_array_foreach (names, i, entry) {
        const char *name = pl_json_string(entry, "name");

        if (!pl_json_string(entry, "address")) {
            no_address = no_address ? no_address : name;
            n_address++;
        } else if (!pl_json_string(entry, "back")) {
            no_name = no_name ? no_name : name;
            n_name++;
        }
    }
    if (n_address)
        add(d, "wrong",
            "on node %s: %zu of %zu nodes' names have no address, such as %s: Plume uses Slurm's "
            "addresses, programs that look names up fail",
            of, n_address, json_array_size(names), no_address);
    if (n_name)
        add(d, "wrong",
            "on node %s: the addresses of %zu of %zu nodes lead to no name, such as that of %s: "
            "some programs wait for one",
            of, n_name, json_array_size(names), no_name);
}

static void
check_node(struct doctor *d, const json_t *node, const char *token, double before_s, double after_s)
{
    const char *name = pl_json_string(node, "node"), *read = pl_json_string(node, "token");
    const char *version = pl_json_string(node, "version");
    double time_s = json_number_value(json_object_get(node, "time"));
    double off_s = fmax(before_s - time_s, time_s - after_s);

    if (token && (!read || strcmp(read, token) != 0))
        add(d, "wrong", "node %s does not see the folder of runs: choose one that all nodes share",
            name);
    if (off_s > CLOCK_S)
        add(d, "wrong", "the clock of node %s differs by %.0f s from this host's", name, off_s);
    if (version && strcmp(version, pl_version()) != 0)
        add(d, "wrong", "node %s has Plume %s, this host %s", name, version, pl_version());
    if (d->plugin_here && !json_is_true(json_object_get(node, "plugin")))
        add(d, "wrong", "node %s does not load the plugin: see plugstack.conf there", name);
    check_names(d, node);
}

/* Compares a fact of the nodes: a difference is wrong, except that nobody has it. */
static void compare(struct doctor *d, const char *key, const char *what)
{
    const json_t *first = json_array_get(d->nodes, 0), *node;
    const char *a = pl_json_string(first, key);
    bool same = true;
    size_t i;

    json_array_foreach (d->nodes, i, node) {
        const char *b = pl_json_string(node, key);

        if ((!a) == (!b) && (!a || strcmp(a, b) == 0))
            continue;
        same = false;
        add(d, "wrong", "%s differs: %s on node %s, %s on node %s", what, a ? a : "none",
            pl_json_string(first, "node"), b ? b : "none", pl_json_string(node, "node"));
        break;
    }
    if (same && a)
        add(d, "ok", "%s: %s", what, a);
}

/* Releases before 0.5.18 hand the key to local users (CVE-2026-25506), unless the distribution has
 * mended its package under the old number: a thing to look at, and no proof. */
static void check_munge(struct doctor *d)
{
    const json_t *node;
    size_t i;

    json_array_foreach (d->nodes, i, node) {
        const char *text = pl_json_string(node, "munge");
        unsigned major, minor, patch;

        if (!text || sscanf(text, "munge-%u.%u.%u", &major, &minor, &patch) != 3 || major > 0 ||
            minor > 5 || (minor == 5 && patch >= 18))
            continue;
        add(d, "check",
            "munge %u.%u.%u on node %s: releases before 0.5.18 give local users the key of all "
            "credentials (CVE-2026-25506), unless the distribution has mended its package",
            major, minor, patch, pl_json_string(node, "node"));
        return; /* the same on the others, or compare() names the difference */
    }
}

/* The interface with this name on a node. NULL: none. */
static const json_t *find_interface(const json_t *node, const char *name)
{
    const json_t *entry;
    size_t i;

    json_array_foreach (json_object_get(node, "interfaces"), i, entry) {
        const char *of = pl_json_string(entry, "name");

        if (of && strcmp(of, name) == 0)
            return entry;
    }
    return NULL;
}

/* Proposes the fastest interface that all nodes have. */
static void propose(struct doctor *d)
{
    const json_t *entry, *node;
    const char *best = NULL;
    int64_t best_speed = -1;
    size_t i, k;

    json_array_foreach (json_object_get(json_array_get(d->nodes, 0), "interfaces"), i, entry) {
        const char *name = pl_json_string(entry, "name");
        int64_t speed = 0, slowest = INT64_MAX;
        bool everywhere = name != NULL;

        json_array_foreach (d->nodes, k, node) {
            const json_t *there = name ? find_interface(node, name) : NULL;

            everywhere &= there != NULL;
            speed = 0;
            pl_json_int(there, "speed", &speed);
            slowest = PL_MIN(slowest, speed);
        }
        if (everywhere && slowest > best_speed) {
            best = name;
            best_speed = slowest;
        }
    }
    if (best)
        add(d, "ok", "all nodes have interface %s: NCCL_SOCKET_IFNAME=%s GLOO_SOCKET_IFNAME=%s",
            best, best, best);
    else if (json_array_size(d->nodes) > 1)
        add(d, "wrong",
            "no network interface has the same name on all nodes: set "
            "NCCL_SOCKET_IFNAME by prefix, such as NCCL_SOCKET_IFNAME=ib,eth");
}

static void look_at_nodes(struct doctor *d)
{
    _cleanup_(pl_child_finish) struct pl_child child = {0};
    _cleanup_free_ char *path = NULL;
    struct pl_error err = {0};
    double before_s, after_s;
    const char *said;
    const json_t *node;
    char token[64];
    size_t i, n;
    int len, r;

    if (make_token(&path, token, sizeof(token), &err) < 0)
        add(d, "wrong", "cannot write to the folder of runs: %s", err.text);
    before_s = pl_wall_s();
    r = run_on_nodes(d, path, &child, &err);
    after_s = pl_wall_s();
    if (path)
        unlink(path);
    if (r < 0) {
        add(d, "wrong", "cannot look at nodes: %s", err.text);
        return;
    }
    if (read_nodes(d, pl_buf_str(&child.out)) < 0)
        return;
    len = pl_child_said(&child, &said);
    said = len ? said : "srun failed";
    n = json_array_size(d->nodes);
    if (n == 0 || child.status != 0) {
        add(d, "wrong", "cannot look at %snodes: %.*s", n ? "all " : "",
            len ? len : (int)strlen(said), said);
        if (n == 0)
            return;
    } else if ((int64_t)n < d->asked) {
        add(d, "wrong", "%zu of %lld nodes gave an answer that can be read", n,
            (long long)d->asked);
    }
    json_array_foreach (d->nodes, i, node)
        check_node(d, node, path ? token : NULL, before_s, after_s);
    add(d, "ok", "looked at %zu node%s", n, n == 1 ? "" : "s");
    compare(d, "slurm", "Slurm on the nodes");
    compare(d, "driver", "NVIDIA driver");
    compare(d, "nccl", "NCCL of the system");
    compare(d, "mpi", "MPI");
    compare(d, "container", "container run-time");
    if (d->munge) {
        compare(d, "munge", "munge");
        check_munge(d);
    }
    propose(d);
}

/* Programs of 'srun --plume' report by a socket below /tmp, if nothing else is configured. */
static void check_socket(struct doctor *d)
{
    const char *hidden = NULL;
    const json_t *node;
    size_t i, n = 0;

    if (!d->plugin_here)
        return;
    json_array_foreach (d->nodes, i, node) {
        const json_t *socket = json_object_get(node, "socket");

        n += socket != NULL;
        if (json_is_false(socket) && !hidden)
            hidden = pl_json_string(node, "node");
    }
    if (hidden)
        add(d, "wrong",
            "on node %s tasks of srun --plume do not see the socket of plrund%s%s%s: set "
            "runtime_dir or mount_namespace, see spank_plume(8); plsubmit and srun plrun work",
            hidden, *d->namespace ? ", as jobs have a /tmp of their own (" : "", d->namespace,
            *d->namespace ? ")" : "");
    else if (*d->namespace && n == 0)
        add(d, "check",
            "jobs have a /tmp of their own (%s): the plugin needs runtime_dir or mount_namespace, "
            "see spank_plume(8)",
            d->namespace);
    else if (*d->namespace)
        add(d, "ok", "jobs have a /tmp of their own (%s), and tasks see the socket of plrund",
            d->namespace);
}

/* ---- the report ---- */

static int print(struct pl_plstat *ps, const json_t *checks)
{
    const json_t *entry;
    size_t i;
    int r = 0;

    json_array_foreach (checks, i, entry) {
        _cleanup_free_ char *line =
            pl_strf("%-6s %s", pl_json_string(entry, "verdict"), pl_json_string(entry, "text"));

        if (r == 0)
            r = line ? pl_plstat_text(ps, 0, line) : -ENOMEM;
    }
    return r;
}

int pl_cmd_doctor(struct pl_plstat *ps, struct pl_error *err)
{
    struct doctor d = {.ps = ps};
    int r;

    if (ps->probe) {
        json_t *facts = pl_probe(*ps->probe ? ps->probe : NULL);

        r = facts ? pl_json_dump_line(facts, &ps->text) : -ENOMEM;
        json_decref(facts);
        return r < 0 ? pl_error_nomem(err) : 0;
    }
    d.checks = json_array();
    d.nodes = json_array();
    if (d.checks && d.nodes && look_at_slurm(&d) == 0) {
        look_at_home(&d);
        look_at_nodes(&d);
        check_socket(&d);
    }
    r = d.checks && d.nodes ? d.r : -ENOMEM;
    if (r == 0)
        r = ps->json ? pl_plstat_document(ps, pl_plstat_json_doctor(d.checks, d.nodes))
                     : print(ps, d.checks);
    json_decref(d.checks);
    json_decref(d.nodes);
    return r < 0 ? pl_error_nomem(err) : 0;
}
