/* SPDX-License-Identifier: MIT */
/* The last act of a trial: its result, its cause, and whether it starts again. */
#include "common/base/child.h"
#include "common/base/env.h"
#include "common/base/fs.h"
#include "common/base/log.h"
#include "common/base/parse.h"
#include "common/proto/json.h"
#include "common/run/cause.h"
#include "common/run/run_local.h"
#include "common/run/run_state.h"
#include "common/run/run_stop.h"
#include "common/run/run_stopped.h"
#include "runtime/plrun/requeue.h"
#include "runtime/plrun/trial_private.h"

#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>

#define ASK_MS 5000
#define ASK_TIMES 3
#define SIGNAL_LEAD_S 60 /* of sbatch --signal without a time */
#define SIGNAL_EARLY_S                                                                             \
    90 /* Slurm may send it 60 s early; and a lost while for srun and its answer */

/* True if a SIGTERM may have ended the job script or its ranks. During the set-up the job script
 * knows whether one came: a command of the set-up may exit with that code by itself. */
static bool may_be_terminated(int code)
{
    const char *signal = pl_env(PL_ENV_PLUME_SETUP_SIGNAL);

    return code == 128 + SIGTERM && (!signal || *signal);
}

/* Asks for Slurm's record of the job. Where Slurm ends it, a signal to all of its processes may end
 * the question, too. True if `ret`, which is to be finished, has the answer. */
static bool ask_of_job(struct pl_child *ret)
{
    const char *job = pl_env(PL_ENV_SLURM_JOB_ID);
    const char *argv[] = {"scontrol", "-o", "show", "job", job ? job : "", NULL};
    int r, turn = 0;

    do {
        pl_child_finish(ret);
        *ret = (struct pl_child){0};
        r = pl_child_run(argv, NULL, ASK_MS, ret, NULL);
    } while (r == 0 && WIFSIGNALED(ret->status) && ++turn < ASK_TIMES);
    return r == 0 && ret->status == 0;
}

/* The cause by Slurm's record of the job. hub_died: there is a log without an end. */
static enum pl_cause_kind ask_slurm(int code, unsigned restart, bool hub_died, bool *ret_inferred)
{
    struct pl_child child = {0};
    enum pl_cause_kind kind = PL_CAUSE_NONE;

    if (ask_of_job(&child)) {
        /* Ranks that lost their hub end by SIGTERM too: then only Slurm's record counts. */
        kind = pl_cause_from_slurm(pl_buf_str(&child.out), restart,
                                   may_be_terminated(code) && !hub_died, ret_inferred);
    } else if (may_be_terminated(code) && !hub_died) {
        kind = PL_CAUSE_CANCELLED;
        *ret_inferred = true;
    }
    pl_child_finish(&child);
    return kind;
}

/* srun gave up the launch, as slurmd of a node could not be reached, and ended the step on the
 * other nodes. No rank ran then; what a rank has started itself may say so, too. */
static bool says_launch_failed(const char *said, const json_t *doc)
{
    const char *state = pl_json_string(doc, "state");

    return said && (!state || strcmp(state, "waiting") == 0) &&
           strstr(said, "srun: error: Application launch failed: ");
}

/* Slurm writes into the output that it ended a step, and keeps no other record of that. Where it
 * had a reason of its own it adds " DUE TO NODE FAILURE", TIME LIMIT, PREEMPTION or JOB REQUEUE.
 * srun says so before, where it ends the step itself, as after a rank's failure.
 * said  what the attempt has written; NULL = not known
 * doc   the step's log, which has its number: a trial may start others. Before a hub has written
 *       that, srun has started no program: then any step of the job is the trial's */
static bool says_step_cancelled(const char *said, const json_t *doc)
{
    const char *job = pl_json_string(doc, "job"), *number = pl_json_string(doc, "step");
    const char *step = said, *at, *due;
    _cleanup_free_ char *begin = NULL;

    if (!job || !number)
        begin = pl_strf("*** STEP %s.", pl_env(PL_ENV_SLURM_JOB_ID) ?: "");
    else
        begin = pl_strf("*** STEP %s.%s ON ", job, number);
    while (step && begin && (step = strstr(step, begin))) {
        const char *end = step + strcspn(step, "\n");

        at = strstr(step, " CANCELLED AT ");
        due = strstr(step, " DUE TO ");
        if (at && at < end && (!due || due > end))
            break;
        step = end;
    }
    return step && begin && !strstr(said, "srun: Terminating ") &&
           !strstr(said, "srun: error: Terminating ");
}

/* True if SIGKILL of a whole step may look so to a hub that it has not reached yet. */
static bool is_of_sigkill(const json_t *cause)
{
    enum pl_cause_kind kind = pl_cause_parse(pl_json_string(cause, "kind"));
    int64_t number;

    return kind == PL_CAUSE_RUNTIME || kind == PL_CAUSE_NODE ||
           (kind == PL_CAUSE_SIGNAL && pl_json_int(cause, "signal", &number) == 0 &&
            number == SIGKILL);
}

/* The cause of an end that began a log and that the hub did not finish. Where we run on the
 * hub's node, the node is well. */
static enum pl_cause_kind
after_hub_died(const json_t *doc, int code, const char *said, enum pl_confidence *ret)
{
    const char *hub = pl_json_string(json_array_get(json_object_get(doc, "nodes"), 0), "node");
    const char *node = pl_env(PL_ENV_SLURMD_NODENAME);

    *ret = PL_CONFIDENCE_INFERRED;
    if (says_launch_failed(said, doc))
        return PL_CAUSE_LAUNCH;
    if (says_step_cancelled(said, doc))
        return PL_CAUSE_CANCELLED; /* inferred: a program may print such a line, too */
    /* plrun says so and ends its rank, with SIGKILL if need be. It does where the hub was:
     * elsewhere the daemon lives and says that it has lost the hub. */
    if (said && strstr(said, "the node daemon ") && strstr(said, "; ending rank "))
        return PL_CAUSE_RUNTIME;
    if (code == 128 + SIGKILL) { /* who sent it is not known */
        *ret = PL_CONFIDENCE_SEEN;
        return PL_CAUSE_SIGNAL;
    }
    return hub && node && strcmp(hub, node) == 0 ? PL_CAUSE_RUNTIME : PL_CAUSE_NODE;
}

/* True if srun gave up a launch, which it may do with 0: a hub that has begun has a log. Where
 * somebody has removed the attempt's folder there is no claim either, and srun's word counts. */
static bool launch_given_up(const char *attempt_dir, int load_error)
{
    _cleanup_free_ char *claim = pl_path_join(attempt_dir, "claim");

    return pl_env(PL_ENV_PLUME_HUB) && load_error == -ENOENT && claim && access(claim, F_OK) == 0;
}

/* The cause of an end that the hub did not record. A new reference; NULL if nothing failed.
 * left: srun was killed, and we have ended its step, with SIGKILL */
static json_t *make_cause(const char *attempt_dir, int code, bool left, struct pl_error *err)
{
    _cleanup_(json_decrefp) json_t *doc = NULL;
    int64_t from = pl_trial_stderr_start(attempt_dir);
    _cleanup_free_ char *text = pl_trial_stderr_tail(from), *said = pl_trial_stderr_said(from);
    bool inferred = false, reached_srun = pl_env(PL_ENV_PLUME_HUB) != NULL;
    enum pl_confidence confidence = PL_CONFIDENCE_SEEN;
    const char *node = pl_env(PL_ENV_SLURMD_NODENAME);
    enum pl_cause_kind kind;
    unsigned restart = 0;
    json_t *cause = NULL;
    int r;

    pl_trial_env_number(PL_ENV_SLURM_RESTART_COUNT, 0, &restart, NULL);
    r = pl_run_state_load(attempt_dir, &doc, err);
    if (r == 0)
        cause = json_object_get(doc, "cause");
    if (cause && !(is_of_sigkill(cause) && (left || says_step_cancelled(said, doc))))
        return json_incref(cause);
    if (doc && pl_trial_hub_said(said, code, &cause))
        return cause;
    cause = NULL;
    kind = code ? ask_slurm(code, restart, doc != NULL, &inferred) : PL_CAUSE_NONE;
    if (kind == PL_CAUSE_NONE && code == 0 && !doc && !launch_given_up(attempt_dir, r))
        return NULL;
    if (kind != PL_CAUSE_NONE)
        confidence = inferred ? PL_CONFIDENCE_INFERRED : PL_CONFIDENCE_ASKED;
    else if (doc)
        kind = after_hub_died(doc, code, said, &confidence);
    else if (reached_srun && code && says_step_cancelled(said, NULL) &&
             !says_launch_failed(said, NULL)) {
        kind = PL_CAUSE_CANCELLED;
        confidence = PL_CONFIDENCE_INFERRED;
    }
    if (kind == PL_CAUSE_NONE)
        kind = reached_srun ? PL_CAUSE_LAUNCH : PL_CAUSE_SETUP;
    cause = json_pack("{s:s, s:s, s:i}", "kind", pl_cause_name(kind), "node", node ? node : "?",
                      "exit", code);
    if (cause && kind == PL_CAUSE_SIGNAL) {
        json_object_del(cause, "exit");
        pl_run_state_set_status(cause, code - 128);
    }
    if (cause && kind == PL_CAUSE_RUNTIME)
        json_object_set_new(cause, "process", json_string("plrund"));
    pl_run_state_set_confidence(cause, confidence);
    if (cause && text && *text)
        json_object_set_new(cause, "text", json_string(text));
    return cause;
}

/* ---- programs that stop at a signal ---- */

/* Seconds before the time limit at which --signal has Slurm send this signal; 0: not this one. */
static uint64_t signal_lead(const struct pl_run *run, int number)
{
    const json_t *option = json_object_get(pl_run_options(run), "signal");
    const char *text = pl_json_string(option, "value"), *at = text ? strchr(text, '@') : NULL;
    const char *colon = text ? strchr(text, ':') : NULL, *name = colon ? colon + 1 : text;
    int64_t seconds = SIGNAL_LEAD_S;

    if (!text || pl_run_stop_signal(name, strcspn(name, "@")) != number ||
        (at && pl_parse_int(at + 1, 0, INT32_MAX, &seconds, NULL) < 0))
        return 0;
    return (uint64_t)seconds;
}

/* True if the job's time limit is so near that Slurm may have sent the signal for it. */
static bool limit_is_near(const char *job, uint64_t lead_s)
{
    _cleanup_free_ char *ran = pl_parse_scontrol_job(job, "RunTime");
    _cleanup_free_ char *limit = pl_parse_scontrol_job(job, "TimeLimit");
    uint64_t ran_s, limit_s;

    return lead_s && ran && limit && pl_parse_slurm_time(ran, &ran_s, NULL) == 0 &&
           pl_parse_slurm_time(limit, &limit_s, NULL) == 0 &&
           limit_s <= ran_s + lead_s + SIGNAL_EARLY_S;
}

/* Why the signal came: Slurm sends it before the time limit, or at a preemption; else somebody has
 * sent it. Where Slurm does not answer, it is the time limit's if --signal asks for one that
 * scancel(1) does not send by itself. */
static enum pl_cause_kind
why_signalled(const struct pl_run *run, int number, enum pl_confidence *ret)
{
    _cleanup_(pl_child_finish) struct pl_child child = {0};
    uint64_t lead_s = signal_lead(run, number);
    enum pl_cause_kind kind;
    unsigned restart = 0;
    bool inferred;

    *ret = PL_CONFIDENCE_INFERRED;
    if (!ask_of_job(&child))
        return lead_s && number != SIGTERM ? PL_CAUSE_TIMEOUT : PL_CAUSE_CANCELLED;
    pl_trial_env_number(PL_ENV_SLURM_RESTART_COUNT, 0, &restart, NULL);
    kind = pl_cause_from_slurm(pl_buf_str(&child.out), restart, false, &inferred);
    if (kind != PL_CAUSE_NONE && !inferred)
        *ret = PL_CONFIDENCE_ASKED;
    if (kind != PL_CAUSE_NONE) /* inferred: Slurm ends the job, and not for its time */
        return kind;
    return limit_is_near(pl_buf_str(&child.out), lead_s) ? PL_CAUSE_TIMEOUT : PL_CAUSE_CANCELLED;
}

/* A program that has saved and left at a signal of Slurm is not done, whatever its exit code: the
 * result, of which the hub has written only this, gets the cause of the signal. */
static void settle_stopped(
    const struct pl_run *run, unsigned trial, json_t *result, enum pl_trial_state *state, int *code)
{
    bool ended = pl_run_stopped_at_term(run, result); /* what the hub says may hold */
    int number = ended ? SIGTERM : pl_run_stopped_at(run, result, *state);
    enum pl_confidence confidence;
    enum pl_cause_kind kind;
    int64_t n;

    if (!number)
        return;
    kind = why_signalled(run, number, &confidence);
    if (ended && kind == PL_CAUSE_CANCELLED)
        return;
    if (pl_run_set_stopped(result, number, kind, confidence, state) < 0)
        return;
    if (pl_json_int(result, "exit_code", &n) == 0 && n > 0 && n <= 255)
        *code = (int)n;
    pl_trial_write_changed(run, trial, *state, result);
}

/* Cancels what waits of the sweep. A retry may be submitted as soon as the results are there, and
 * this is later: it is not stopped by failures before it. */
static void cancel_waiting(const struct pl_run *run, unsigned retry)
{
    size_t n = pl_run_n_submissions(run), k = 0;
    _cleanup_free_ const char **argv = calloc(n + 3, sizeof(*argv));
    struct pl_child child = {0};
    struct pl_error err = {0};

    if (!argv || pl_run_is_local(run)) /* which has no queue: their claims end them */
        return;
    argv[k++] = "scancel";
    argv[k++] = "--state=PENDING";
    for (size_t i = 0; i < n; i++) {
        const struct pl_run_submission sub = pl_run_submission(run, i);

        if (sub.retry <= retry)
            argv[k++] = sub.job;
    }
    /* A trial that starts all the same ends at once, by its claim. Without a job scancel would
     * cancel all of the user's. */
    if (k > 2 && pl_child_run(argv, NULL, ASK_MS, &child, &err) < 0)
        pl_log_warn("run", "cannot cancel the waiting trials: %s", pl_error_text(&err));
    pl_child_finish(&child);
}

/* Requeues the job if --requeue-on says so, or by_slurm: Slurm has done so. Returns true if the
 * trial starts again. */
static bool requeue(const struct pl_run *run,
                    unsigned trial,
                    unsigned attempt,
                    json_t *result,
                    enum pl_trial_state state,
                    bool by_slurm)
{
    struct pl_attempt_end end = {
        .trial = trial, .attempt = attempt, .state = state, .result = result, .by_slurm = by_slurm};
    struct pl_error err = {0};
    int r;

    if (json_is_true(json_object_get(result, "finished")))
        return false;
    pl_trial_env_number(PL_ENV_PLUME_RETRY, 0, &end.retry, NULL);
    r = pl_requeue_decide(run, &end, &err);
    if (r == 0)
        return by_slurm;
    /* written first: Slurm's answer to the request may be the end of this process */
    if (r > 0 && json_object_set_new(result, "requeued", json_true()) == 0)
        pl_trial_write_changed(run, trial, state, result);
    if (r > 0 && !by_slurm) {
        signal(SIGTERM, SIG_DFL); /* and of scontrol, whose end by it is no refusal */
        r = pl_requeue_ask(&err) < 0 ? err.code : 1;
        signal(SIGTERM, SIG_IGN); /* after a refusal the result is changed again */
    }
    if (r > 0)
        return true;
    pl_log_warn("run", "the trial is not requeued: %s", pl_error_text(&err));
    json_object_del(result, "requeued");
    if (json_object_set_new(result, "not_requeued", json_string(pl_error_text(&err))) == 0)
        pl_trial_write_changed(run, trial, state, result);
    return false;
}

/* Counts a trial that failed for --max-fail. */
static void count_failure(const struct pl_run *run, unsigned trial, enum pl_trial_state state)
{
    char text[PL_RUN_STOP_TEXT];
    struct pl_run_stop stop;
    struct pl_error err = {0};
    unsigned retry = 0;
    bool stopped;

    if (state != PL_TRIAL_FAILED && state != PL_TRIAL_TIMED_OUT && state != PL_TRIAL_NODE_FAILED)
        return;
    pl_trial_env_number(PL_ENV_PLUME_RETRY, 0, &retry, NULL);
    if (pl_run_count_failure(run, trial, retry, &stopped, &err) < 0) {
        pl_log_warn("run", "cannot count the failure for --max-fail: %s", pl_error_text(&err));
        return;
    }
    if (!stopped)
        return;
    stop = pl_run_read_stop(run);
    pl_log_warn("run", "%s: cancelling the waiting trials", pl_run_stop_text(&stop, text));
    cancel_waiting(run, stop.retry);
}

int pl_trial_finish(int code, int *ret_code, struct pl_error *err)
{
    _cleanup_(pl_run_closep) struct pl_run *run = NULL;
    _cleanup_(json_decrefp) json_t *result = NULL, *cause = NULL;
    _cleanup_free_ char *dir = NULL;
    const char *job = pl_env(PL_ENV_SLURM_JOB_ID), *array = pl_env(PL_ENV_SLURM_ARRAY_JOB_ID);
    const char *task = pl_env(PL_ENV_SLURM_ARRAY_TASK_ID);
    _cleanup_free_ char *name = array && task ? pl_strf("%s_%s", array, task) : NULL;
    enum pl_trial_state state;
    unsigned trial, attempt = 0;
    bool by_slurm, left;
    int64_t n;
    int r = pl_trial_open_run(&run, &trial, err);

    *ret_code = code;
    if (r == 0)
        r = pl_trial_env_number(PL_ENV_PLUME_ATTEMPT, -1, &attempt, err);
    if (r < 0)
        return r;
    dir = pl_run_attempt_path(run, trial, attempt, NULL);
    if (!dir)
        return pl_error_set(err, -ENOMEM, "out of memory");
    result = pl_trial_await_result(run, trial, attempt, dir, code, &left);
    state = pl_trial_result_state(result);
    if (result) {
        if (pl_json_int(result, "exit_code", &n) == 0 && n >= 0 && n <= 255)
            *ret_code = (int)n;
        by_slurm = pl_trial_settle_requeue(run, trial, result, &state);
        settle_stopped(run, trial, result, &state, ret_code);
        if (!requeue(run, trial, attempt, result, state, by_slurm))
            count_failure(run, trial, state);
        return 0;
    }
    cause = make_cause(dir, code, left, err);
    if (cause && code == 0)
        *ret_code = code = PL_EXIT_FAILED;
    result = json_pack("{s:i, s:i, s:s, s:s, s:i, s:f}", "attempt", (int)attempt, "attempts",
                       (int)attempt + 1, "job",
                       name  ? name
                       : job ? job
                             : "",
                       "job_id", job ? job : "", "exit_code", code, "time", pl_wall_s());
    if (!result)
        return pl_error_set(err, -ENOMEM, "out of memory");
    if (cause)
        json_object_set(result, "cause", cause);
    state = pl_cause_state(pl_cause_parse(pl_json_string(cause, "kind")));
    r = pl_run_result_write(run, trial, state, result, err);
    if (!requeue(run, trial, attempt, result, state, false))
        count_failure(run, trial, state);
    return r;
}
