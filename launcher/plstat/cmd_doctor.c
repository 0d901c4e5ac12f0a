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
#include "launcher/plstat/doctor.h"
#include "launcher/plstat/node_answers.h"
#include "launcher/plstat/plstat.h"
#include "launcher/plstat/plstat_json.h"
#include "launcher/plstat/probe.h"
#include "launcher/slurm/slurm_site.h"

#include <fcntl.h>
#include <string.h>

#define ASK_MS 10000u
#define WRITE_MS 5000u
#define NODES_MS 180000u /* the nodes may wait for their resolver */
#define IMMEDIATE "--immediate=30"

/* ---- Slurm ---- */

/* Reports for each partition what happens to a preempted job. */
static void look_at_partitions(struct pl_doctor *d, const struct pl_slurm_site *site)
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
        pl_doctor_add(d, "ok", "partition %s: %s (PreemptMode=%s)", name,
                      pl_slurm_preempt_requeues(mode) ? "a preempted job starts again, or goes on"
                      : strstr(mode, "CANCEL")
                          ? "a preempted job is cancelled: --requeue-on preempt "
                            "has no effect, --retry has"
                          : "no job is preempted",
                      mode);
    }
}

static void look_for_plugin(struct pl_doctor *d)
{
    static const char *const argv[] = {"srun", "--help", NULL};
    _cleanup_(pl_child_finish) struct pl_child child = {0};

    if (pl_child_run(argv, NULL, ASK_MS, &child, NULL) < 0)
        return;
    d->plugin_here = strstr(pl_buf_str(&child.out), "--plume") != NULL;
    pl_doctor_add(d, "ok",
                  d->plugin_here ? "the plugin is loaded here: srun --plume"
                                 : "no plugin: plsubmit and srun plrun do not need it");
}

static int look_at_slurm(struct pl_doctor *d)
{
    struct pl_slurm_site site = {0};
    struct pl_error err = {0};

    if (pl_slurm_site_ask(&site, &err) < 0) {
        pl_doctor_add(d, "wrong", "%s", err.text);
        return -EHOSTUNREACH;
    }
    pl_doctor_add(d, "ok", "Slurm %s answers", site.release);
    d->munge = strcmp(site.auth, "auth/munge") == 0;
    memcpy(d->namespace, site.namespace, sizeof(d->namespace));
    pl_doctor_add(d, site.limits.max_array_size ? "ok" : "wrong",
                  "arrays of at most %u tasks (MaxArraySize)", site.limits.max_array_size);
    if (strcmp(site.job_requeue, "0") == 0)
        pl_doctor_add(
            d, "ok",
            "a job is requeued only where it asks for that (JobRequeue=0), as with --requeue-on");
    look_at_partitions(d, &site);
    look_for_plugin(d);
    return 0;
}

/* The plugin's plrund waits for the home folder, if it is that of the nodes, too. */
static void look_at_home(struct pl_doctor *d)
{
    _cleanup_free_ char *home = pl_home_dir(NULL);

    if (home && pl_slow_fs_try(home, WRITE_MS) < 0)
        pl_doctor_add(d, "wrong", "the file system of '%s' does not answer", home);
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
    /* plsubmit makes the folder: until then its parent shows what the nodes see. */
    while (folder && access(folder, F_OK) < 0 && errno == ENOENT && strrchr(folder, '/') > folder)
        *strrchr(folder, '/') = '\0';
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
run_on_nodes(struct pl_doctor *d, const char *path, struct pl_child *ret, struct pl_error *err)
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
static int read_nodes(struct pl_doctor *d, const char *text)
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

static void look_at_nodes(struct pl_doctor *d)
{
    _cleanup_(pl_child_finish) struct pl_child child = {0};
    _cleanup_free_ char *path = NULL;
    struct pl_error err = {0};
    double before_s, after_s;
    const char *said;
    char token[64];
    size_t n;
    int len, r;

    if (make_token(&path, token, sizeof(token), &err) < 0)
        pl_doctor_add(d, "wrong", "cannot write to the folder of runs: %s", err.text);
    before_s = pl_wall_s();
    r = run_on_nodes(d, path, &child, &err);
    after_s = pl_wall_s();
    if (path)
        unlink(path);
    if (r < 0) {
        pl_doctor_add(d, "wrong", "cannot look at nodes: %s", err.text);
        return;
    }
    if (read_nodes(d, pl_buf_str(&child.out)) < 0)
        return;
    len = pl_child_said(&child, &said);
    said = len ? said : "srun failed";
    n = json_array_size(d->nodes);
    if (n == 0 || child.status != 0) {
        pl_doctor_add(d, "wrong", "cannot look at %snodes: %.*s", n ? "all " : "",
                      len ? len : (int)strlen(said), said);
        if (n == 0)
            return;
    } else if ((int64_t)n < d->asked) {
        pl_doctor_add(d, "wrong", "%zu of %lld nodes gave an answer that can be read", n,
                      (long long)d->asked);
    }
    pl_doctor_look_at_answers(d, path ? token : NULL, before_s, after_s);
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
    struct pl_doctor d = {.ps = ps};
    int r;

    if (ps->probe) {
        json_t *facts = pl_probe(*ps->probe ? ps->probe : NULL);

        r = facts ? pl_json_dump_line(facts, &ps->text) : -ENOMEM;
        json_decref(facts);
        return r < 0 ? pl_error_nomem(err) : 0;
    }
    d.checks = json_array();
    d.of_nodes = json_object();
    d.nodes = json_array();
    if (d.checks && d.nodes && d.of_nodes && look_at_slurm(&d) == 0) {
        look_at_home(&d);
        look_at_nodes(&d);
        pl_doctor_check_socket(&d);
    }
    r = d.checks && d.nodes && d.of_nodes ? d.r : -ENOMEM;
    if (r == 0)
        r = ps->json ? pl_plstat_document(ps, pl_plstat_json_doctor(d.checks, d.nodes))
                     : print(ps, d.checks);
    json_decref(d.checks);
    json_decref(d.of_nodes);
    json_decref(d.nodes);
    return r < 0 ? pl_error_nomem(err) : 0;
}
