/* SPDX-License-Identifier: MIT */
/* plstat ghosts: the node's GPUs, and processes that may have outlived their job (ghosts.h). */
#include "common/base/child.h"
#include "common/base/env.h"
#include "common/base/fs.h"
#include "common/base/parse.h"
#include "common/base/strv.h"
#include "common/proto/json.h"
#include "launcher/plstat/ghosts.h"
#include "launcher/plstat/node_answers.h"
#include "launcher/plstat/plstat.h"
#include "launcher/plstat/table.h"
#include "launcher/plstat/words.h"
#include "launcher/slurm/slurm_job.h"

#include <pwd.h>
#include <string.h>

#define GIB 1073741824.0
#define NODES_MS                                                                                   \
    120000 /* srun on the nodes of a job; each may wait for its driver and for Slurm               \
            */

/* ---- one node as a document ---- */

static int add_text(json_t *o, const char *key, const char *text)
{
    _cleanup_free_ char *clean = text ? pl_buf_dup_text(text) : NULL; /* valid UTF-8 */

    return clean ? json_object_set_new(o, key, json_string(clean)) : 0;
}

static json_t *process_json(const struct pl_ghost *g)
{
    const struct pl_node_process *p = &g->process;
    json_t *o =
        json_pack("{s:I, s:I, s:s, s:b}", "pid", (json_int_t)p->pid, "uid", (json_int_t)p->uid,
                  "job_state", pl_ghost_state_name(g->state), "ghost", g->state == PL_GHOST_ENDED);
    struct passwd *user = getpwuid(p->uid);
    int r = o ? 0 : -ENOMEM;

    if (r == 0 && user)
        r = add_text(o, "user", user->pw_name);
    if (r == 0 && p->job >= 0)
        r = json_object_set_new(o, "job", json_integer(p->job));
    if (r == 0 && p->age_s >= 0)
        r = json_object_set_new(o, "age_s", json_real(p->age_s));
    if (r == 0 && g->gpus)
        r = json_object_set(o, "gpus", g->gpus);
    if (r == 0 && g->bytes >= 0)
        r = json_object_set_new(o, "gpu_mem", json_integer(g->bytes));
    if (r == 0)
        r = add_text(o, "run_dir", p->run_dir);
    if (r == 0)
        r = add_text(o, "command", p->command);
    if (r == 0 && g->end)
        r = json_object_set_new(o, "ended", json_boolean(g->result == 0 || g->result == -ESRCH));
    if (r == 0 && g->end && g->result < 0)
        r = add_text(o, "why", pl_error_text(&g->why));
    if (r < 0) {
        json_decref(o);
        return NULL;
    }
    return o;
}

/* {"node","gpus":[..],"unsure":true,"processes":[..]} */
static json_t *node_json(const struct pl_ghosts *ghosts)
{
    const char *named = pl_env_text(PL_ENV_SLURMD_NODENAME);
    json_t *o = json_object(), *processes = json_array();
    char host[256] = "";
    int r = o && processes ? 0 : -ENOMEM;

    gethostname(host, sizeof(host) - 1);
    if (r == 0)
        r = add_text(o, "node", named ? named : host);
    if (r == 0 && ghosts->gpus)
        r = json_object_set(o, "gpus", ghosts->gpus);
    if (r == 0 && ghosts->unsure)
        r = json_object_set_new(o, "unsure", json_true());
    for (size_t i = 0; i < ghosts->n && r == 0; i++)
        r = json_array_append_new(processes, process_json(&ghosts->list[i]));
    if (r == 0)
        r = json_object_set(o, "processes", processes);
    json_decref(processes);
    if (r < 0) {
        json_decref(o);
        return NULL;
    }
    return o;
}

/* ---- the screen ---- */

static void
bytes_cell(struct pl_table *t, enum pl_term_style style, const json_t *o, const char *key)
{
    int64_t bytes;

    if (pl_json_int(o, key, &bytes) < 0)
        pl_table_cell(t, style, NULL);
    else
        pl_table_cellf(t, style, "%.1f", (double)bytes / GIB);
}

static void number_cell(struct pl_table *t, const json_t *o, const char *key)
{
    const json_t *value = json_object_get(o, key);

    if (json_is_number(value))
        pl_table_cellf(t, PL_TERM_PLAIN, "%.0f", json_number_value(value));
    else
        pl_table_cell(t, PL_TERM_PLAIN, NULL);
}

/* "pid user job", for each process of a GPU. */
static int add_holders(struct pl_buf *text, const json_t *node, const json_t *gpu)
{
    int64_t number = -1, job, pid;
    const json_t *process, *held;
    size_t i, k;
    int r = 0;

    pl_json_int(gpu, "gpu", &number);
    json_array_foreach (json_object_get(node, "processes"), i, process) {
        json_array_foreach (json_object_get(process, "gpus"), k, held) {
            const char *user = pl_json_string(process, "user");

            if (r < 0 || !json_is_integer(held) || json_integer_value(held) != number ||
                pl_json_int(process, "pid", &pid) < 0)
                continue;
            r = pl_buf_addf(text, "%s%lld %s", text->len ? ", " : "", (long long)pid,
                            user ? user : "?");
            if (r == 0 && pl_json_int(process, "job", &job) == 0)
                r = pl_buf_addf(text, " job %lld", (long long)job);
        }
    }
    return r;
}

static int print_gpus(struct pl_plstat *ps, const json_t *node)
{
    static const char *const titles[] = {"GPU", "USE%", "GIB", "OF", "C", "W", "CAP", "ECC"};
    struct pl_table t = {0};
    const json_t *gpu;
    size_t i;
    int r = 0;

    for (size_t k = 0; k < PL_COUNT(titles); k++)
        pl_table_column(&t, titles[k], true, false);
    pl_table_column(&t, "NAME", false, true);
    pl_table_column(&t, "PROCESSES", false, true);
    json_array_foreach (json_object_get(node, "gpus"), i, gpu) {
        _cleanup_(pl_buf_finish) struct pl_buf holders = {0};

        number_cell(&t, gpu, "gpu");
        number_cell(&t, gpu, "util");
        bytes_cell(&t, PL_TERM_PLAIN, gpu, "mem_used");
        bytes_cell(&t, PL_TERM_PLAIN, gpu, "mem_total");
        number_cell(&t, gpu, "temp_c");
        number_cell(&t, gpu, "power_w");
        number_cell(&t, gpu, "power_limit_w");
        number_cell(&t, gpu, "ecc_uncorrected");
        pl_table_cell(&t, PL_TERM_PLAIN, pl_json_string(gpu, "name"));
        r = r < 0 ? r : add_holders(&holders, node, gpu);
        pl_table_cell(&t, PL_TERM_PLAIN, holders.len ? pl_buf_str(&holders) : NULL);
    }
    if (r == 0 && i)
        r = pl_table_print(&t, ps->columns, ps->color, &ps->text);
    pl_table_finish(&t);
    return r;
}

static void process_row(struct pl_table *t, const json_t *p)
{
    bool ghost = json_is_true(json_object_get(p, "ghost"));
    enum pl_term_style style = ghost ? PL_TERM_RED : PL_TERM_PLAIN;
    const char *user = pl_json_string(p, "user"), *state = pl_json_string(p, "job_state");
    const json_t *age = json_object_get(p, "age_s");
    int64_t number;
    char text[32];

    number_cell(t, p, "pid");
    if (user || pl_json_int(p, "uid", &number) < 0)
        pl_table_cell(t, PL_TERM_PLAIN, user);
    else
        pl_table_cellf(t, PL_TERM_PLAIN, "%lld", (long long)number);
    number_cell(t, p, "job");
    pl_table_cell(t, style, state && strcmp(state, "none") != 0 ? state : NULL);
    bytes_cell(t, style, p, "gpu_mem");
    pl_words_duration(json_is_number(age) ? json_number_value(age) : -1, text, sizeof(text));
    pl_table_cell(t, PL_TERM_PLAIN, text);
    pl_table_cell(t, PL_TERM_PLAIN, pl_json_string(p, "command"));
}

static const char *words_for_none(const struct pl_plstat *ps, bool unsure)
{
    if (ps->ghosts.epilog)
        return unsure ? "no process of the job is known to be left"
                      : "no process of the job is left";
    return unsure ? "no process is known to hold a GPU or to carry PLUME_RUN_DIR"
                  : "no process holds a GPU or carries PLUME_RUN_DIR";
}

static int print_processes(struct pl_plstat *ps, const json_t *node)
{
    struct pl_table t = {0};
    const json_t *p;
    size_t i;
    int r = 0;

    pl_table_column(&t, "PID", true, false);
    pl_table_column(&t, "USER", false, false);
    pl_table_column(&t, "JOB", true, false);
    pl_table_column(&t, "JOB IS", false, false);
    pl_table_column(&t, "GIB", true, false);
    pl_table_column(&t, "AGE", true, false);
    pl_table_column(&t, "COMMAND", false, true);
    json_array_foreach (json_object_get(node, "processes"), i, p)
        process_row(&t, p);
    if (i)
        r = pl_table_print(&t, ps->columns, ps->color, &ps->text);
    else
        r = pl_plstat_line(ps, PL_TERM_PLAIN, "%s",
                           words_for_none(ps, json_is_true(json_object_get(node, "unsure"))));
    pl_table_finish(&t);
    return r;
}

/* A line for each process that was to be ended. */
static int print_ended(struct pl_plstat *ps, const json_t *node)
{
    const json_t *p;
    int64_t pid;
    size_t i;
    int r = 0;

    json_array_foreach (json_object_get(node, "processes"), i, p) {
        const json_t *ended = json_object_get(p, "ended");
        const char *why = pl_json_string(p, "why");

        if (r < 0 || !ended || pl_json_int(p, "pid", &pid) < 0)
            continue;
        r = json_is_true(ended)
                ? pl_plstat_line(ps, PL_TERM_GREEN, "%lld: ended", (long long)pid)
                : pl_plstat_line(ps, PL_TERM_RED, "%lld: not ended: %s", (long long)pid, why);
    }
    return r;
}

static size_t count_ghosts(const json_t *node)
{
    const json_t *p;
    size_t i, n = 0;

    json_array_foreach (json_object_get(node, "processes"), i, p)
        n +=
            json_is_true(json_object_get(p, "ghost")) && !json_is_true(json_object_get(p, "ended"));
    return n;
}

static int report_nodes(struct pl_plstat *ps, json_t *nodes)
{
    size_t i, ghosts = 0;
    json_t *node;
    int r = 0;

    json_array_foreach (nodes, i, node) {
        const char *name = pl_json_string(node, "node");
        size_t n = count_ghosts(node);

        ghosts += n;
        if (ps->json)
            continue;
        r = r < 0 ? r : pl_plstat_line(ps, PL_TERM_BOLD, "%s", name ? name : "?");
        r = r < 0 ? r : print_gpus(ps, node);
        r = r < 0 ? r : print_processes(ps, node);
        r = r < 0 ? r : print_ended(ps, node);
        if (r == 0 && n)
            r = pl_plstat_line(ps, PL_TERM_RED,
                               "%zu process%s of ended jobs: plstat ghosts --end PID", n,
                               n == 1 ? "" : "es");
    }
    ps->any_failure = ghosts > 0;
    if (r == 0 && ps->json)
        r = pl_plstat_document(ps, json_pack("{s:O}", "nodes", nodes));
    json_decref(nodes);
    return r;
}

/* ---- which ones to end ---- */

static struct pl_ghost *find_pid(struct pl_ghosts *ghosts, int64_t pid)
{
    for (size_t i = 0; i < ghosts->n; i++)
        if (ghosts->list[i].process.pid == pid)
            return &ghosts->list[i];
    return NULL;
}

/* Marks them; notes the words that name none. */
static int choose(struct pl_plstat *ps, struct pl_ghosts *ghosts, struct pl_error *err)
{
    int64_t pid;
    int r = 0;

    for (char **word = ps->ghosts.pids; word && *word && r == 0; word++) {
        struct pl_ghost *g;

        if (pl_parse_int(*word, 2, INT32_MAX, &pid, NULL) < 0)
            return pl_error_set(err, -EINVAL, "--end: '%s' is not a PID that can be ended", *word);
        g = find_pid(ghosts, pid);
        if (g)
            g->end = true;
        else
            pl_notes_add(&ps->notes, true, "%lld: not ended: no process of this number %s",
                         (long long)pid,
                         ghosts->unsure ? "is known to hold a GPU or to carry PLUME_RUN_DIR"
                                        : "holds a GPU or carries PLUME_RUN_DIR");
    }
    for (size_t i = 0; i < ghosts->n && !ps->ghosts.pids; i++)
        ghosts->list[i].end = ghosts->list[i].mine && ghosts->list[i].state == PL_GHOST_ENDED;
    return r;
}

static int epilog_job(struct pl_ghosts *ghosts, struct pl_error *err)
{
    const char *job = pl_env(PL_ENV_SLURM_JOB_ID), *uid = pl_env(PL_ENV_SLURM_JOB_UID),
               *sluid = pl_env(PL_ENV_SLURM_JOB_SLUID);
    int64_t number;

    if (geteuid() != 0)
        return pl_error_set(err, -EINVAL, "--epilog is for slurmd's epilog, which runs as root");
    if (!job || !uid || pl_parse_int(job, 1, INT64_MAX, &ghosts->job, NULL) < 0 ||
        pl_parse_int(uid, 0, UINT32_MAX, &number, NULL) < 0)
        return pl_error_set(err, -EINVAL,
                            "--epilog needs SLURM_JOB_ID and SLURM_JOB_UID, which slurmd sets");
    ghosts->epilog = true;
    ghosts->job_uid = (uid_t)number;
    if (sluid && strlen(sluid) < sizeof(ghosts->sluid))
        memcpy(ghosts->sluid, sluid, strlen(sluid) + 1);
    return 0;
}

static int report_here(struct pl_plstat *ps, struct pl_error *err)
{
    const struct pl_ghosts_options *o = &ps->ghosts;
    struct pl_ghosts ghosts = {0};
    json_t *nodes = json_array();
    int r = nodes ? 0 : -ENOMEM;

    if (r == 0 && o->epilog)
        r = epilog_job(&ghosts, err);
    if (r == 0)
        r = pl_ghosts_find(&ghosts, &ps->notes, err);
    if (r == 0 && o->end)
        r = choose(ps, &ghosts, err);
    if (r == 0 && o->end) {
        pl_ghosts_end(&ghosts);
        r = o->epilog ? pl_ghosts_end_new(&ghosts, &ps->notes, err) : 0;
    }
    for (size_t i = 0; i < ghosts.n; i++)
        ps->notes.partial |=
            ghosts.list[i].end && ghosts.list[i].result < 0 && ghosts.list[i].result != -ESRCH;
    if (r == 0)
        r = json_array_append_new(nodes, node_json(&ghosts)) < 0 ? -ENOMEM : 0;
    pl_ghosts_finish(&ghosts);
    if (r == 0)
        return report_nodes(ps, nodes);
    json_decref(nodes);
    return r;
}

/* ---- the nodes of a running job ---- */

static int add_answer(struct pl_plstat *ps, json_t *nodes, const json_t *doc)
{
    const json_t *note;
    json_t *node;
    size_t i;

    json_array_foreach (json_object_get(doc, "notes"), i, note)
        if (json_is_string(note))
            pl_notes_add(&ps->notes, json_is_true(json_object_get(doc, "partial")), "%s",
                         json_string_value(note));
    json_array_foreach (json_object_get(doc, "nodes"), i, node)
        if (json_array_append(nodes, node) < 0)
            return -ENOMEM;
    return 0;
}

/* Runs `plstat ghosts --json` once on each node, of which there are *ret_n. */
static int
run_on_nodes(struct pl_plstat *ps, struct pl_child *ret, unsigned *ret_n, struct pl_error *err)
{
    _cleanup_free_ char *folder = pl_program_folder();
    _cleanup_free_ char *plstat = folder ? pl_path_join(folder, "plstat") : NULL;
    struct pl_slurm_job_now now;
    char nodes[32], number[24];
    int64_t job = 0;
    const char *const argv[] = {"srun",
                                "--jobid",
                                number,
                                "--overlap",
                                "--quiet",
                                "--label",
                                nodes,
                                "--ntasks-per-node=1",
                                "--input=none",
                                plstat,
                                "ghosts",
                                "--json",
                                NULL};
    int r = plstat ? pl_slurm_job_number(ps->ghosts.job, &job, err) : -ENOMEM;

    if (r == 0)
        r = pl_slurm_job_ask(job, NULL, &now, err);
    if (r < 0)
        return r;
    if (strcmp(now.state, "RUNNING") != 0)
        return pl_error_set(err, -ENOENT, "job %s is not running: %s", ps->ghosts.job,
                            *now.state ? now.state : "Slurm does not know it");
    if (now.n_others && !strchr(ps->ghosts.job, '_'))
        pl_notes_add(&ps->notes, false,
                     "job %s is an array: only its task of that number is shown: name another as "
                     "--job %s_TASK",
                     ps->ghosts.job, ps->ghosts.job);
    *ret_n = now.n_nodes;
    snprintf(number, sizeof(number), "%lld", (long long)job);
    snprintf(nodes, sizeof(nodes), "--nodes=%u", now.n_nodes);
    r = pl_child_run(argv, NULL, NODES_MS, ret, err);
    if (r == -ETIMEDOUT)
        pl_error_set(err, r, "the nodes of job %s did not answer within %d s", ps->ghosts.job,
                     NODES_MS / 1000);
    return r;
}

static int report_job(struct pl_plstat *ps, struct pl_error *err)
{
    _cleanup_(pl_child_finish) struct pl_child child = {0};
    _cleanup_(json_decrefp) json_t *answers = json_array();
    json_t *nodes = json_array();
    const json_t *doc;
    const char *said;
    size_t i;
    unsigned n = 0;
    int len, r = nodes && answers ? run_on_nodes(ps, &child, &n, err) : -ENOMEM;

    if (r == 0)
        r = pl_node_answers(pl_buf_str(&child.out), answers);
    json_array_foreach (answers, i, doc)
        r = r < 0 ? r : add_answer(ps, nodes, doc);
    len = pl_child_said(&child, &said);
    if (r == 0 && json_array_size(nodes) == 0)
        r = pl_error_set(err, -EHOSTUNREACH, "cannot look at the nodes of job %s: %.*s",
                         ps->ghosts.job, len, said);
    if (r == 0 && child.status != 0 && len)
        pl_notes_add(&ps->notes, true, "%.*s", len, said);
    if (r == 0 && json_array_size(nodes) < n)
        pl_notes_add(&ps->notes, true, "%zu of %u nodes gave an answer that can be read",
                     json_array_size(nodes), n);
    if (r == 0)
        return report_nodes(ps, nodes);
    json_decref(nodes);
    return r;
}

int pl_cmd_ghosts(struct pl_plstat *ps, struct pl_error *err)
{
    const struct pl_ghosts_options *o = &ps->ghosts;
    int r;

    if (o->end && !o->pids && !o->yes)
        return pl_error_set(
            err, -EINVAL, "--end needs the PIDs to end, or --yes for all of yours that are ghosts");
    if (!o->end && (o->pids || o->yes))
        return pl_error_set(err, -EINVAL, "PIDs and --yes go with --end");
    if (o->end && ps->watch)
        return pl_error_set(err, -EINVAL, "--end does not go with --watch");
    if (o->job && (o->end || o->epilog))
        return pl_error_set(
            err, -EINVAL,
            "--job only lists processes: to end them, run plstat ghosts --end on their node");
    r = o->job ? report_job(ps, err) : report_here(ps, err);
    return r == -ENOMEM ? pl_error_nomem(err) : r;
}
