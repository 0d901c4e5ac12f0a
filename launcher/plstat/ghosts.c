/* SPDX-License-Identifier: MIT */
#include "launcher/plstat/ghosts.h"
#include "common/base/child.h"
#include "common/base/fs.h"
#include "common/base/process.h"
#include "common/proto/json.h"
#include "common/proto/messages.h"
#include "launcher/slurm/slurm_job.h"

#include <signal.h>
#include <string.h>
#include <sys/wait.h>

#define GPUS_MS                                                                                    \
    20000 /* a driver that is just loaded takes seconds; one with a lost GPU for ever              \
           */
#define GRACE_NS 5000000000u
#define PASSES_MAX 10 /* looks for what has appeared since the last one */
#define ASK_MAX 50    /* jobs of one user that Slurm is asked for: a process may name any number */
#define SAMPLE_MAX_BYTES ((size_t)1024 * 1024)

const char *pl_ghost_state_name(enum pl_ghost_state state)
{
    static const char *const names[] = {
        [PL_GHOST_NO_JOB] = "none",
        [PL_GHOST_ALIVE] = "alive",
        [PL_GHOST_ENDED] = "ended",
        [PL_GHOST_UNKNOWN] = "unknown",
    };

    return names[state];
}

void pl_ghosts_finish(struct pl_ghosts *ghosts)
{
    for (size_t i = 0; i < ghosts->n; i++) {
        pl_node_process_finish(&ghosts->list[i].process);
        json_decref(ghosts->list[i].gpus);
    }
    free(ghosts->list);
    json_decref(ghosts->gpus);
    *ghosts = (struct pl_ghosts){0};
}

/* ---- GPUs ---- */

/* Asks the driver through plrund, in a process of its own. -ENODEV: no driver is here. */
static int sample_gpus(json_t **ret, struct pl_error *err)
{
    _cleanup_free_ char *folder = pl_program_folder();
    _cleanup_free_ char *plrund = folder ? pl_path_join(folder, "plrund") : NULL;
    const char *const argv[] = {plrund, "--sample-gpus", NULL};
    _cleanup_(pl_child_finish) struct pl_child child = {0};
    _cleanup_(json_decrefp) json_t *message = NULL;
    const char *said;
    struct pl_msg m;
    int r;

    if (!plrund)
        return pl_error_nomem(err);
    r = pl_child_run(argv, NULL, GPUS_MS, &child, err);
    if (r == -ETIMEDOUT)
        return pl_error_set(err, r, "the GPU driver did not answer within %d s", GPUS_MS / 1000);
    if (r < 0)
        return r;
    said = child.err.len ? pl_buf_str(&child.err) : "plrund failed";
    if (child.status != 0)
        return pl_error_set(
            err,
            WIFEXITED(child.status) && WEXITSTATUS(child.status) == PL_EXIT_NOT_FOUND ? -ENODEV
                                                                                      : -EIO,
            "%.*s", (int)strcspn(said, "\n"), said);
    r = pl_json_parse(child.out.data, strcspn(pl_buf_str(&child.out), "\n"), SAMPLE_MAX_BYTES,
                      &message, err);
    if (r == 0 && (pl_msg_read(message, PL_WIRE_NODE_TO_HUB, &m) < 0 || m.type != PL_MSG_NODE_GPUS))
        return pl_error_set(err, -EPROTO, "plrund's answer cannot be read");
    if (r == 0)
        *ret = json_incref(m.node_gpus.gpus);
    return r;
}

static void note_no_sample(struct pl_ghosts *ghosts, struct pl_notes *notes, int r, const char *why)
{
    bool none = r == -ENODEV; /* as on most machines: then nothing holds a GPU */

    /* An epilog looks for processes of the job. It finds them without the driver. */
    pl_notes_add(notes, r == -ETIMEDOUT || (!none && !ghosts->epilog),
                 r == -ETIMEDOUT ? "%s" : "no GPUs seen: %s", why);
    ghosts->unsure |= !none && !ghosts->epilog;
}

/* GPUs whose processes the driver does not tell: one that is lost, or is divided (MIG) and shows
 * them to root alone. */
static void note_unread(struct pl_ghosts *ghosts, struct pl_notes *notes)
{
    unsigned n = 0;
    int64_t first = -1;
    json_t *gpu;
    size_t i;

    json_array_foreach (ghosts->gpus, i, gpu)
        if (json_is_true(json_object_get(gpu, "processes_unread")) && !n++)
            pl_json_int(gpu, "gpu", &first);
    if (!n || ghosts->epilog)
        return;
    pl_notes_add(notes, true,
                 "the driver does not tell which processes hold %u GPU%s (the first: GPU %lld)", n,
                 n == 1 ? "" : "s", (long long)first);
    ghosts->unsure = true;
}

static bool is_listed(const struct pl_ghosts *ghosts, int64_t pid)
{
    for (size_t i = 0; i < ghosts->n; i++)
        if (ghosts->list[i].process.pid == pid)
            return true;
    return false;
}

/* Processes that the driver names and /proc does not show. */
static void note_hidden(struct pl_ghosts *ghosts, struct pl_notes *notes)
{
    unsigned n = 0;
    int64_t pid, first = -1;
    json_t *gpu, *process;
    size_t i, k;

    json_array_foreach (ghosts->gpus, i, gpu) {
        json_array_foreach (json_object_get(gpu, "processes"), k, process)
            if (pl_json_int(process, "pid", &pid) == 0 && !is_listed(ghosts, pid) && !n++)
                first = pid;
    }
    if (!n || ghosts->epilog)
        return;
    pl_notes_add(notes, true,
                 "/proc does not show %u of the processes that hold GPUs (the first: %lld): it "
                 "hides them, or they have just ended",
                 n, (long long)first);
    ghosts->unsure = true;
}

/* Adds the GPUs that a process holds. */
static int add_gpus(const struct pl_ghosts *ghosts, struct pl_ghost *g)
{
    json_t *gpu, *process;
    int64_t pid, bytes;
    size_t i, k;

    g->bytes = -1;
    json_array_foreach (ghosts->gpus, i, gpu) {
        json_array_foreach (json_object_get(gpu, "processes"), k, process) {
            if (pl_json_int(process, "pid", &pid) < 0 || pid != g->process.pid)
                continue;
            if (!g->gpus)
                g->gpus = json_array();
            if (json_array_append(g->gpus, json_object_get(gpu, "gpu")) < 0)
                return -ENOMEM;
            if (pl_json_int(process, "mem", &bytes) == 0)
                g->bytes = PL_MAX(g->bytes, 0) + bytes;
        }
    }
    return 0;
}

/* ---- whose job has ended ---- */

struct find {
    struct pl_ghosts *ghosts;
    struct pl_notes *notes;
    struct pl_error no_answer; /* Slurm gives none, and is not asked again */
    unsigned n_silent;   /* processes that may be of an ended job and whose memory is not read */
    pid_t silent;        /* the first of them, */
    int why_silent;      /* and its pl_node_process.silent */
    unsigned n_too_many; /* processes that are not judged, because of ASK_MAX */
    uid_t too_many;      /* the first of their users */
};

/* A program may write any number into its environment, but not choose its control group. */
static bool left_by_job(const struct pl_ghosts *ghosts, const struct pl_node_process *p)
{
    return p->uid == ghosts->job_uid && p->job == ghosts->job && !p->in_step &&
           (p->cgroup_job < 0 || p->cgroup_job == ghosts->job);
}

/* In an epilog: a control group that names a run says whether it is this job's; 0: another's. */
static void name_job(const struct pl_ghosts *ghosts, struct pl_node_process *p)
{
    if (*ghosts->sluid && *p->sluid)
        p->job = p->cgroup_job = strcmp(p->sluid, ghosts->sluid) == 0 ? ghosts->job : 0;
}

/* Asks Slurm now. conf: only a file that our own user chose, as it may name plugins for squeue to
 * load. Root's processes prove no choice of root's: sudo(8) and other set-user-ID programs have a
 * user's environment. */
static enum pl_ghost_state ask(const struct pl_node_process *p, struct pl_error *err)
{
    const char *conf = geteuid() != 0 && p->uid == geteuid() ? p->slurm_conf : NULL;
    struct pl_slurm_job_now now;

    if (p->in_step)
        return PL_GHOST_ALIVE;
    if (p->job < 0)
        return PL_GHOST_NO_JOB;
    if (pl_slurm_job_ask(p->job, conf, &now, err) < 0)
        return PL_GHOST_UNKNOWN;
    return now.life == PL_SLURM_JOB_ENDED ? PL_GHOST_ENDED : PL_GHOST_ALIVE;
}

static bool same_question(const struct pl_node_process *a, const struct pl_node_process *b)
{
    return a->job == b->job && a->uid == b->uid && !a->in_step &&
           strcmp(a->slurm_conf ? a->slurm_conf : "", b->slurm_conf ? b->slurm_conf : "") == 0;
}

/* Takes the answer for another process, or asks Slurm. */
static void judge_by_slurm(struct find *f, struct pl_ghost *g)
{
    struct pl_error err = {0};
    unsigned n_asked = 0;

    for (size_t i = 0; i < f->ghosts->n && !g->process.in_step && g->process.job >= 0; i++) {
        const struct pl_ghost *other = &f->ghosts->list[i];

        if (same_question(&other->process, &g->process)) {
            g->state = other->state;
            return;
        }
        n_asked += other->asked && other->process.uid == g->process.uid;
    }
    if (n_asked >= ASK_MAX && !f->n_too_many++)
        f->too_many = g->process.uid;
    g->asked = !g->process.in_step && g->process.job >= 0 && n_asked < ASK_MAX;
    if (n_asked >= ASK_MAX || (g->asked && f->no_answer.code)) {
        g->state = PL_GHOST_UNKNOWN;
        return;
    }
    g->state = ask(&g->process, &err);
    if (g->state != PL_GHOST_UNKNOWN)
        return;
    pl_notes_add(f->notes, true, "job %lld: %s", (long long)g->process.job, pl_error_text(&err));
    if (err.code == -ETIMEDOUT)
        f->no_answer = err;
}

static void judge(struct find *f, struct pl_ghost *g)
{
    if (f->ghosts->epilog) {
        g->state = PL_GHOST_ENDED;
        g->mine = f->ghosts->job_uid != 0;
        return;
    }
    g->mine = g->process.uid == geteuid();
    /* Slurm may hide others' jobs, and then denies that there are any. */
    if (!g->mine && geteuid() != 0 && g->process.job >= 0)
        g->state = g->process.in_step ? PL_GHOST_ALIVE : PL_GHOST_UNKNOWN;
    else
        judge_by_slurm(f, g);
}

/* Counts a process that may be one of those looked for. */
static void count_silent(struct find *f, const struct pl_node_process *p)
{
    bool wanted = f->ghosts->epilog ? p->uid == f->ghosts->job_uid && p->job < 0
                                    : geteuid() == 0 || p->uid == geteuid();

    if (p->silent && !p->in_step && wanted && !f->n_silent++) {
        f->silent = p->pid;
        f->why_silent = p->silent;
    }
}

static void note_silent(const struct find *f)
{
    f->ghosts->unsure |= f->n_silent > 0;
    if (f->n_silent && f->why_silent != -ETIMEDOUT)
        pl_notes_add(f->notes, true,
                     "cannot read the memory of processes: %s; %u of them may be of an ended job "
                     "(the first: %d)",
                     strerror(-f->why_silent), f->n_silent, (int)f->silent);
    else if (f->n_silent == 1)
        pl_notes_add(
            f->notes, true,
            "process %d does not answer when its memory is read: whether it is of an ended "
            "job is not known",
            (int)f->silent);
    else if (f->n_silent)
        pl_notes_add(f->notes, true,
                     "%u processes do not answer when their memory is read, or are of a user with "
                     "three such: whether they are of an ended job is not known (the first: %d)",
                     f->n_silent, (int)f->silent);
}

static int each(void *ctx, struct pl_node_process *p)
{
    struct find *f = ctx;
    struct pl_ghosts *ghosts = f->ghosts;
    struct pl_ghost g, *list;
    int r;

    name_job(ghosts, p);
    g = (struct pl_ghost){.process = *p};
    r = add_gpus(ghosts, &g);
    count_silent(f, p);
    if (r < 0 || (ghosts->epilog ? !left_by_job(ghosts, p) : !p->run_dir && !g.gpus)) {
        json_decref(g.gpus);
        return r;
    }
    judge(f, &g);
    list = realloc(ghosts->list, (ghosts->n + 1) * sizeof(*list));
    if (!list) {
        json_decref(g.gpus);
        return -ENOMEM;
    }
    ghosts->list = list;
    list[ghosts->n++] = g;
    *p = (struct pl_node_process){0}; /* the list owns it */
    return 0;
}

static int by_pid(const void *a, const void *b)
{
    const struct pl_ghost *x = a, *y = b;

    return (x->process.pid > y->process.pid) - (x->process.pid < y->process.pid);
}

int pl_ghosts_find(struct pl_ghosts *ghosts, struct pl_notes *notes, struct pl_error *err)
{
    struct find f = {.ghosts = ghosts, .notes = notes};
    struct pl_error why = {0};
    int r = sample_gpus(&ghosts->gpus, &why);

    if (r == -ENOMEM)
        return pl_error_nomem(err);
    if (r < 0)
        note_no_sample(ghosts, notes, r, pl_error_text(&why));
    note_unread(ghosts, notes);
    r = pl_node_processes_each(each, &f, err);
    note_silent(&f);
    if (r == 0)
        note_hidden(ghosts, notes);
    if (f.n_too_many)
        pl_notes_add(notes, true,
                     "user %u has processes of more than %d jobs: Slurm was not asked for %u more",
                     (unsigned)f.too_many, ASK_MAX, f.n_too_many);
    if (r == 0 && ghosts->n)
        qsort(ghosts->list, ghosts->n, sizeof(*ghosts->list), by_pid);
    return r;
}

/* ---- ending ---- */

static int may_end(const struct pl_ghosts *ghosts,
                   const struct pl_ghost *g,
                   const struct pl_node_process *now,
                   struct pl_error *err)
{
    enum pl_ghost_state state;

    if (now->start != g->process.start)
        return pl_error_set(err, -ESRCH, "it has ended already");
    if (!g->mine || now->uid != g->process.uid)
        return pl_error_set(err, -EPERM, "it belongs to user %u", (unsigned)now->uid);
    if (now->silent && (now->job < 0 || (!ghosts->epilog && !g->gpus)))
        return pl_error_set(err, -EPERM, "its memory cannot be read: %s", strerror(-now->silent));
    if (ghosts->epilog && !left_by_job(ghosts, now))
        return pl_error_set(err, -EPERM, "it does not belong to job %lld any more",
                            (long long)ghosts->job);
    if (!ghosts->epilog && !g->gpus && !now->run_dir)
        return pl_error_set(err, -EPERM, "it holds no GPU and carries no PLUME_RUN_DIR");
    state = ghosts->epilog ? PL_GHOST_ENDED : ask(now, err);
    switch (state) {
    case PL_GHOST_ENDED:
        return 0;
    case PL_GHOST_ALIVE:
        return pl_error_set(err, -EPERM, "its job %lld has not ended", (long long)now->job);
    case PL_GHOST_NO_JOB:
        return pl_error_set(err, -EPERM, "it belongs to no job of Slurm's");
    default:
        return pl_error_wrap(err, -EPERM, "Slurm does not report that its job %lld has ended",
                             (long long)now->job);
    }
}

/* Opens a handle and, if it holds the process that was found and that may be ended, sends SIGTERM.
 */
static int begin_end(const struct pl_ghosts *ghosts, struct pl_ghost *g, struct pl_process *handle)
{
    struct pl_node_process now = {0};
    struct pl_error *err = &g->why;
    int r;

    pl_process_open(handle, g->process.pid);
    r = pl_node_process_get(g->process.pid, &now);
    if (r == -ESRCH)
        return pl_error_set(err, r, "it has ended already");
    if (r < 0)
        return pl_error_errno(err, r, "cannot look at it");
    name_job(ghosts, &now);
    r = may_end(ghosts, g, &now, err);        /* it started when the one in the list did .. */
    if (r == 0 && handle->start != now.start) /* .. and so did the one of the handle */
        r = pl_error_set(err, -ESRCH, "it has ended already");
    if (r == 0 && (r = pl_process_signal(handle, ghosts->at_once ? SIGKILL : SIGTERM)) < 0)
        pl_error_errno(err, -r, "cannot end it");
    pl_node_process_finish(&now);
    return r;
}

void pl_ghosts_end(struct pl_ghosts *ghosts)
{
    struct pl_process *handles = calloc(ghosts->n + 1, sizeof(*handles));
    uint64_t limit_ns;

    for (size_t i = 0; i < ghosts->n; i++) {
        struct pl_ghost *g = &ghosts->list[i];

        if (!g->end)
            continue;
        g->result = handles ? begin_end(ghosts, g, &handles[i]) : pl_error_nomem(&g->why);
    }
    limit_ns = pl_now_ns() + GRACE_NS;
    for (size_t i = 0; i < ghosts->n; i++)
        if (ghosts->list[i].end && ghosts->list[i].result == 0 &&
            pl_process_wait(&handles[i], limit_ns) == -ETIMEDOUT)
            pl_process_kill(&handles[i]);
    limit_ns = pl_now_ns() + GRACE_NS;
    for (size_t i = 0; i < ghosts->n; i++) {
        struct pl_ghost *g = &ghosts->list[i];

        if (g->end && g->result == 0 && pl_process_wait(&handles[i], limit_ns) == -ETIMEDOUT)
            g->result = pl_error_set(&g->why, -ETIMEDOUT,
                                     "it survives SIGKILL: it hangs in the kernel, perhaps in a "
                                     "driver, and ends when the "
                                     "node is booted");
        if (g->end && handles)
            pl_process_close(&handles[i]);
    }
    free(handles);
}

static bool has_process(const struct pl_ghosts *ghosts, const struct pl_node_process *p)
{
    for (size_t i = 0; i < ghosts->n; i++)
        if (ghosts->list[i].process.pid == p->pid && ghosts->list[i].process.start == p->start)
            return true;
    return false;
}

/* Moves the ones that are to be ended to the end of the list. */
static int add_ended(struct pl_ghosts *ghosts, struct pl_ghosts *more)
{
    struct pl_ghost *list = realloc(ghosts->list, (ghosts->n + more->n) * sizeof(*list));

    if (!list)
        return -ENOMEM;
    ghosts->list = list;
    for (size_t i = 0; i < more->n; i++)
        if (more->list[i].end) {
            list[ghosts->n++] = more->list[i];
            more->list[i] = (struct pl_ghost){0};
        }
    return 0;
}

int pl_ghosts_end_new(struct pl_ghosts *ghosts, struct pl_notes *notes, struct pl_error *err)
{
    size_t n_new = 1;
    int r = 0;

    for (unsigned pass = 0; r == 0 && n_new && pass < PASSES_MAX; pass++) {
        struct pl_ghosts more = {
            .epilog = true, .at_once = true, .job = ghosts->job, .job_uid = ghosts->job_uid};
        struct find f = {.ghosts = &more, .notes = notes};

        n_new = 0;
        memcpy(more.sluid, ghosts->sluid, sizeof(more.sluid));
        r = pl_node_processes_each(each, &f, err);
        for (size_t i = 0; i < more.n; i++) {
            more.list[i].end = more.list[i].mine && !has_process(ghosts, &more.list[i].process);
            n_new += more.list[i].end;
        }
        if (r == 0 && n_new) {
            pl_ghosts_end(&more);
            r = add_ended(ghosts, &more);
        }
        if (r < 0 || !n_new || pass + 1 == PASSES_MAX)
            note_silent(&f);
        pl_ghosts_finish(&more);
    }
    if (r == 0 && n_new)
        pl_notes_add(notes, true, "new processes of job %lld appear as fast as others are ended",
                     (long long)ghosts->job);
    return r == -ENOMEM ? pl_error_nomem(err) : r;
}
