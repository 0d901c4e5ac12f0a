/* SPDX-License-Identifier: MIT */
#include "launcher/plsubmit/change.h"
#include "common/base/child.h"
#include "common/base/fs.h"
#include "common/base/parse.h"
#include "common/base/shared_fs.h"
#include "common/proto/json.h"
#include "common/run/run_index.h"
#include "common/run/run_tasks.h"
#include "launcher/plsubmit/clusters.h"
#include "launcher/slurm/slurm_cluster.h"
#include "launcher/slurm/slurm_jobs.h"

#include <fcntl.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>

#define STATES_MS 120000u /* many trials on a slow file system */
#define STATES_MAX (512u << 20)
#define CHANGE_MS 60000u
#define ENDING_S 60 /* of a cancelled trial: above KillWait and the runtime's own limits */
#define ENDING_POLL_MS 300
#define TASKS_MAX 100000u /* bytes of one argument: Linux takes 128 KiB */

void pl_change_unlock(struct pl_change *change)
{
    for (size_t i = 0; i < PL_COUNT(change->locks); i++) {
        pl_closep(&change->locks[i]);
        change->locks[i] = -EBADF;
    }
}

void pl_change_finish(struct pl_change *change)
{
    pl_run_close(change->run);
    free(change->trials);
    pl_change_unlock(change);
    *change = PL_CHANGE_UNLOCKED;
}

/* ---- the sweep ---- */

/* Splits "SWEEP/3-8,10" into its parts. A word that is a path stays whole. */
static int split(const char *word, char **ret_sweep, char **ret_trials)
{
    const char *slash = strrchr(word, '/');
    bool trials = slash && slash != word && slash[1] &&
                  strspn(slash + 1, "0123456789,-") == strlen(slash + 1) && access(word, F_OK) < 0;

    *ret_trials = trials ? strdup(slash + 1) : NULL;
    *ret_sweep = trials ? strndup(word, (size_t)(slash - word)) : strdup(word);
    return !*ret_sweep || (trials && !*ret_trials) ? -ENOMEM : 0;
}

/* On NFS the lock of a folder is known to its host only, and that of a file, if it is open for
 * writing, to all hosts. A server may refuse the latter for a moment, and earlier releases lock one
 * of the two: so both are taken, the folder's first. */
int pl_change_lock(const char *dir, int ret[2], struct pl_error *err)
{
    _cleanup_close_ int folder = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC), key = -EBADF;
    int r;

    if (folder < 0)
        return pl_error_errno(err, errno, "cannot open run folder '%s'", dir);
    r = pl_file_lock(folder, 0);
    if (r != -ETIMEDOUT) {
        key = openat(folder, "key", O_RDWR | O_NOFOLLOW | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
        r = key >= 0 ? pl_file_lock(key, 0) : 0;
    }
    if (r == -ETIMEDOUT)
        return pl_error_set(err, -EBUSY, "another plsubmit changes '%s' now: try again later", dir);
    ret[0] = PL_TAKE_FD(folder);
    ret[1] = PL_TAKE_FD(key);
    return 0;
}

bool pl_change_takes_trials(enum pl_change_kind kind)
{
    return kind == PL_CHANGE_RETRY || kind == PL_CHANGE_CANCEL || kind == PL_CHANGE_HOLD ||
           kind == PL_CHANGE_RELEASE;
}

/* -EINVAL: a word that is no TRIALS follows a sweep. 0: the word is wrong as a whole. */
static int check_trials(enum pl_change_kind kind, const char *word, struct pl_error *err)
{
    static const char *const all[] = {
        [PL_CHANGE_RETRY] = "--retry takes all that failed",
        [PL_CHANGE_CANCEL] = "--cancel takes all that have not ended",
        [PL_CHANGE_HOLD] = "--hold takes all that wait",
        [PL_CHANGE_RELEASE] = "--release takes all that wait",
    };
    _cleanup_(pl_run_ref_finish) struct pl_run_ref ref = {.trial = -1};
    const char *slash = strrchr(word, '/');
    _cleanup_free_ char *sweep = slash && slash[1] ? strndup(word, (size_t)(slash - word)) : NULL;
    struct pl_run *run = NULL;

    if (!sweep || pl_slurm_find_run(sweep, &ref, NULL) < 0 ||
        pl_run_open(ref.folder, &run, NULL) < 0)
        return 0;
    pl_run_close(run);
    if (!pl_change_takes_trials(kind))
        return pl_error_set(err, -EINVAL,
                            "this change is of a whole sweep: write %.*s without '/%s'",
                            (int)(slash - word), word, slash + 1);
    return pl_error_set(err, -EINVAL, "'%s' is not a list of trials like 3-8,10: without one %s",
                        slash + 1, all[kind]);
}

int pl_change_open(enum pl_change_kind kind,
                   const char *word,
                   struct pl_change *ret,
                   struct pl_error *err)
{
    _cleanup_(pl_change_finish) struct pl_change c = PL_CHANGE_UNLOCKED;
    _cleanup_(pl_run_ref_finish) struct pl_run_ref ref = {.trial = -1};
    _cleanup_free_ char *sweep = NULL;
    int r = split(word, &sweep, &c.trials);

    if (r < 0)
        return pl_error_set(err, r, "out of memory");
    r = pl_slurm_find_run(sweep, &ref, err);
    if (r == -ENOENT && !c.trials && check_trials(kind, word, err) < 0)
        return -EINVAL;
    if (r == 0)
        r = pl_change_lock(ref.folder, c.locks, err);
    if (r == 0)
        r = pl_run_open_own(ref.folder, &c.run, err);
    if (r == 0)
        r = pl_slurm_check_cluster(c.run, err);
    if (r == 0 && (r = pl_run_check_script(c.run, err)) == -ENOENT)
        r = pl_error_set(err, -EINVAL, "%s is no sweep of plsubmit, or has lost its job script",
                         pl_run_dir(c.run));
    if (r == 0 && c.trials)
        r = pl_tasks_check(c.trials, pl_run_n_trials(c.run), err);
    if (r < 0)
        return r;
    if (!c.trials && ref.trial >= 0) /* "123_4" */
        c.trials = pl_strf("%lld", (long long)ref.trial);
    if (!c.trials && ref.trial >= 0)
        return pl_error_set(err, -ENOMEM, "out of memory");
    pl_clusters_stay(c.run);
    *ret = c;
    c = PL_CHANGE_UNLOCKED;
    return 0;
}

/* ---- states ---- */

int pl_change_ask(const char *bin_dir, const char *dir, json_t **ret, struct pl_error *err)
{
    _cleanup_(pl_child_finish) struct pl_child child = {0};
    _cleanup_(json_decrefp) json_t *doc = NULL;
    _cleanup_free_ char *plstat = pl_path_join(bin_dir, "plstat");
    const char *argv[] = {plstat, "--json", "sweep", dir, NULL}, *said;
    int r;

    if (!plstat)
        return pl_error_set(err, -ENOMEM, "out of memory");
    pl_slurm_jobs_expire(geteuid()); /* an answer from before a change says nothing about it */
    r = pl_child_run(argv, NULL, STATES_MS, &child, err);
    if (r < 0)
        return pl_error_wrap(err, r, "cannot ask plstat for the trials");
    if (pl_json_parse(pl_buf_str(&child.out), child.out.len, STATES_MAX, &doc, NULL) < 0 ||
        !json_is_array(json_object_get(doc, "trials"))) {
        int len = pl_child_said(&child, &said);

        return pl_error_set(err, -EIO, "plstat does not report the trials: %.*s", len, said);
    }
    *ret = PL_TAKE(doc);
    return 0;
}

int pl_change_states(const char *bin_dir, const char *dir, json_t **ret, struct pl_error *err)
{
    _cleanup_(json_decrefp) json_t *doc = NULL;
    int r = pl_change_ask(bin_dir, dir, &doc, err);
    const char *note;

    if (r < 0)
        return r;
    note = json_string_value(json_array_get(json_object_get(doc, "notes"), 0));
    if (json_is_true(json_object_get(doc, "partial")))
        return pl_error_set(err, -EAGAIN, "the states of the trials are not known: %s",
                            note ? note : "plstat sees them only in part");
    *ret = PL_TAKE(doc);
    return 0;
}

/* Reads a trial of plstat's document; false where it is not one of those named. */
static bool
read_trial(const json_t *o, const char *trials, int64_t *ret, enum pl_trial_state *ret_state)
{
    const char *state = pl_json_string(o, "state");

    return pl_json_int(o, "trial", ret) == 0 && state &&
           pl_trial_state_parse(state, ret_state) == 0 &&
           (!trials || pl_tasks_contain(trials, *ret));
}

static bool concerns(enum pl_change_kind kind, enum pl_trial_state state, bool in_slurm)
{
    bool waits = state == PL_TRIAL_WAITING, runs = state == PL_TRIAL_RUNNING;

    if (kind == PL_CHANGE_RETRY)
        return !waits && !runs && state != PL_TRIAL_DONE && state != PL_TRIAL_PRUNED;
    return in_slurm && (waits || (runs && kind == PL_CHANGE_CANCEL));
}

int pl_change_select(enum pl_change_kind kind,
                     const json_t *states,
                     const char *trials,
                     int64_t **ret,
                     size_t *ret_n,
                     struct pl_error *err)
{
    const json_t *list = json_object_get(states, "trials"), *o;
    int64_t *selected = calloc(json_array_size(list) + 1, sizeof(*selected));
    enum pl_trial_state state;
    size_t i, n = 0;

    if (!selected)
        return pl_error_set(err, -ENOMEM, "out of memory");
    json_array_foreach (list, i, o) {
        if (read_trial(o, trials, &selected[n], &state) &&
            concerns(kind, state, pl_json_string(o, "job")))
            n++;
    }
    *ret = selected;
    *ret_n = n;
    return 0;
}

struct task {
    int64_t array, task; /* task -1: a job that is no array */
};

static int parse_job(const char *text, struct task *ret);

/* The number of named trials that run, but are cancelled. */
static unsigned count_ending(const struct pl_run *run, const json_t *states, const char *trials)
{
    enum pl_trial_state state;
    struct task task;
    const json_t *o;
    unsigned n = 0;
    int64_t trial;
    size_t i;

    json_array_foreach (json_object_get(states, "trials"), i, o) {
        const char *job = pl_json_string(o, "job");

        n += job && read_trial(o, trials, &trial, &state) && state == PL_TRIAL_RUNNING &&
             parse_job(job, &task) == 0 && pl_run_is_cancelled(run, task.array, task.task);
    }
    return n;
}

int pl_change_await_ends(const struct pl_run *run,
                         const char *bin_dir,
                         const char *trials,
                         json_t **states,
                         struct pl_error *err)
{
    uint64_t until = pl_now_ns() + ENDING_S * UINT64_C(1000000000);
    unsigned n;

    while ((n = count_ending(run, *states, trials)) > 0) {
        json_t *now = NULL;
        int r;

        if (pl_now_ns() > until)
            return pl_error_set(err, -EAGAIN, "%u cancelled trial%s not ended within %d s", n,
                                n == 1 ? " has" : "s have", ENDING_S);
        /* the end is in files of another node: there is no event */
        nanosleep(&(struct timespec){.tv_nsec = ENDING_POLL_MS * 1000000l}, NULL);
        r = pl_change_states(bin_dir, pl_run_dir(run), &now, err);
        if (r < 0)
            return r;
        json_decref(*states);
        *states = now;
    }
    return 0;
}

char *pl_change_counts(const json_t *states, const char *trials)
{
    size_t counts[PL_TRIAL_NODE_FAILED + 1] = {0}, i;
    _cleanup_(pl_buf_finish) struct pl_buf text = {0};
    enum pl_trial_state state;
    const json_t *o;
    int64_t trial;
    int r = 0;

    json_array_foreach (json_object_get(states, "trials"), i, o) {
        if (read_trial(o, trials, &trial, &state))
            counts[state]++;
    }
    for (i = 0; i < PL_COUNT(counts) && r == 0; i++)
        if (counts[i])
            r = pl_buf_addf(&text, "%s%zu %s", text.len ? ", " : "", counts[i],
                            pl_trial_state_name((enum pl_trial_state)i));
    return r == 0 ? strdup(pl_buf_str(&text)) : NULL;
}

/* ---- jobs ---- */

static int compare_tasks(const void *va, const void *vb)
{
    const struct task *a = va, *b = vb;

    if (a->array != b->array)
        return a->array < b->array ? -1 : 1;
    return a->task < b->task ? -1 : a->task > b->task;
}

/* Parses "123_4" or "123". */
static int parse_job(const char *text, struct task *ret)
{
    _cleanup_free_ char *array = strndup(text, strcspn(text, "_"));
    const char *task = strchr(text, '_');

    ret->task = -1;
    if (!array)
        return -ENOMEM;
    if (pl_parse_int(array, 1, UINT32_MAX, &ret->array, NULL) < 0 ||
        (task && pl_parse_int(task + 1, 0, UINT32_MAX, &ret->task, NULL) < 0))
        return -EINVAL;
    return 0;
}

static int find_tasks(const json_t *states, const int64_t *trials, size_t n, struct task *tasks)
{
    const json_t *o;
    size_t i, found = 0;
    int64_t trial;
    int r = 0;

    json_array_foreach (json_object_get(states, "trials"), i, o) {
        if (r == 0 && found < n && pl_json_int(o, "trial", &trial) == 0 && trial == trials[found])
            r = parse_job(pl_json_string(o, "job"), &tasks[found++]);
    }
    return found == n ? r : -EINVAL;
}

/* Adds the job of tasks[0..n), all of one array. */
static int add_job(char ***list, const struct task *tasks, size_t n)
{
    _cleanup_(pl_buf_finish) struct pl_buf text = {0};
    _cleanup_free_ int64_t *numbers = calloc(n, sizeof(*numbers));
    int r = numbers ? pl_buf_addf(&text, "%lld", (long long)tasks[0].array) : -ENOMEM;

    for (size_t i = 0; i < n && r == 0; i++)
        numbers[i] = tasks[i].task;
    if (r == 0 && tasks[0].task >= 0) {
        r = pl_buf_adds(&text, "_[");
        if (r == 0)
            r = pl_tasks_format(numbers, n, &text);
        if (r == 0)
            r = pl_buf_addc(&text, ']');
    }
    return r == 0 ? pl_strv_append(list, pl_buf_str(&text)) : r;
}

int pl_change_jobs(const json_t *states, const int64_t *trials, size_t n, char ***ret)
{
    _cleanup_free_ struct task *tasks = calloc(n + 1, sizeof(*tasks));
    _cleanup_(pl_strv_freep) char **list = calloc(1, sizeof(*list));
    int r = tasks && list ? find_tasks(states, trials, n, tasks) : -ENOMEM;

    if (r == 0)
        qsort(tasks, n, sizeof(*tasks), compare_tasks);
    for (size_t i = 0, end; i < n && r == 0; i = end) {
        for (end = i + 1; end < n && tasks[end].array == tasks[i].array; end++)
            if ((end - i) * 11 > TASKS_MAX)
                break;
        r = add_job(&list, tasks + i, end - i);
    }
    if (r < 0)
        return r;
    *ret = PL_TAKE(list);
    return 0;
}

/* ---- changes ---- */

int pl_change_plan_retry(
    struct pl_run *run, const int64_t *trials, size_t n, unsigned max, struct pl_error *err)
{
    _cleanup_free_ int64_t *tasks = calloc(n + 1, sizeof(*tasks));
    int r = tasks ? 0 : -ENOMEM;

    for (size_t i = 0, end; i < n && r == 0; i = end) {
        _cleanup_(pl_buf_finish) struct pl_buf text = {0};

        for (end = i; end < n && trials[end] - trials[i] < max; end++)
            tasks[end - i] = trials[end] - trials[i];
        r = pl_tasks_format(tasks, end - i, &text);
        if (r == 0)
            r = pl_run_plan_add(run, (unsigned)trials[i], (unsigned)tasks[end - i - 1] + 1,
                                pl_buf_str(&text));
    }
    return r < 0 ? pl_error_set(err, r, "out of memory") : pl_run_plan_write(run, err);
}

/* True if the command failed only because the jobs have ended meanwhile. */
static bool has_ended(const char *messages)
{
    return strstr(messages, "already completing or completed") ||
           strstr(messages, "already finished") || strstr(messages, "Invalid job id");
}

int pl_change_command(const char *const *argv, bool *ret_ended, struct pl_error *err)
{
    _cleanup_(pl_child_finish) struct pl_child child = {0};
    int r = pl_child_run(argv, NULL, CHANGE_MS, &child, err);
    const char *text = pl_buf_str(child.err.len ? &child.err : &child.out);
    bool failed = r == 0 && child.status != 0, some = failed && has_ended(text);

    /* scontrol also fails if it changed only some tasks of an array. Its text says so. */
    *ret_ended = some && !strstr(text, ": No error");
    if (!failed || some)
        return r;
    return pl_error_set(err, -EREMOTEIO, "%s %s: %.*s", argv[0], argv[1], (int)strcspn(text, "\n"),
                        text);
}

int pl_change_apply(enum pl_change_kind kind, char *const *jobs, struct pl_error *err)
{
    struct pl_error first = {0};
    int r = 0;

    /* Slurm refuses one array for a reason of its own: the others do not run on for that. */
    for (; *jobs && (r == 0 || r == -EREMOTEIO); jobs++) {
        const char *cancel[] = {"scancel", *jobs, NULL};
        const char *other[] = {"scontrol", kind == PL_CHANGE_HOLD ? "hold" : "release", *jobs,
                               NULL};
        struct pl_error why = {0};
        bool ended;

        r = pl_change_command(kind == PL_CHANGE_CANCEL ? cancel : other, &ended, &why);
        if (r < 0 && !first.code)
            first = why;
    }
    pl_slurm_jobs_expire(geteuid());
    return first.code ? pl_error_set(err, first.code, "%s", first.text) : 0;
}
