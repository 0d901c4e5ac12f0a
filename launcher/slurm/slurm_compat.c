/* SPDX-License-Identifier: MIT */
#include "launcher/slurm/slurm_compat.h"
#include "launcher/slurm/slurm_compat_private.h"

#include <slurm/slurm.h>
#include <slurm/slurm_errno.h>
#include <string.h>
#include <sys/wait.h>

/* 26.05 renamed the function. */
#if SLURM_VERSION_NUMBER >= SLURM_VERSION_NUM(26, 5, 0)
#define free_conf slurm_free_conf
#else
#define free_conf slurm_free_ctl_conf
#endif

/* libslurm's copy of slurm.conf, which it exports but does not declare. A ping of a controller that
 * slurm.conf does not have reads past an array, so their number must be known. */
extern slurm_conf_t slurm_conf __attribute__((weak));

/* squeue(1)'s names of reasons, which libslurm exports but does not declare either. 22.05 has the
 * first, 24.11 and 26.05 have the second. */
extern const char *slurm_job_reason_string(enum job_state_reason reason) __attribute__((weak));
extern const char *slurm_job_state_reason_string(enum job_state_reason reason)
    __attribute__((weak));

/* Without a controller other requests retry for half a minute; a ping does not. */
int pl_slurm_query_ping(struct pl_error *err)
{
    bool answered = false;
    int n;

    slurm_init(NULL);
    n = &slurm_conf ? (int)slurm_conf.control_cnt : 1;
    for (int i = 0; i < n && !answered; i++)
        answered = slurm_ping(i) == SLURM_SUCCESS;
    return answered ? 0 : pl_error_set(err, -EHOSTUNREACH, "the Slurm controller does not answer");
}

int pl_slurm_query_limits(struct pl_slurm_limits *ret, struct pl_error *err)
{
    slurm_conf_t *conf = NULL;
    int r = pl_slurm_query_ping(err);

    if (r < 0)
        return r;
    if (slurm_load_ctl_conf(0, &conf) != SLURM_SUCCESS)
        return pl_error_set(err, -EHOSTUNREACH, "%s", slurm_strerror(errno));
    *ret = (struct pl_slurm_limits){
        .max_array_size = conf->max_array_sz,
        .max_array_tasks = pl_slurm_max_array_tasks(conf->sched_params),
    };
    free_conf(conf);
    return 0;
}

/* ---- jobs ---- */

static const char *state_name(uint32_t state)
{
    static const char *const names[] = {
        [JOB_PENDING] = "PENDING",     [JOB_RUNNING] = "RUNNING",     [JOB_SUSPENDED] = "SUSPENDED",
        [JOB_COMPLETE] = "COMPLETED",  [JOB_CANCELLED] = "CANCELLED", [JOB_FAILED] = "FAILED",
        [JOB_TIMEOUT] = "TIMEOUT",     [JOB_NODE_FAIL] = "NODE_FAIL", [JOB_PREEMPTED] = "PREEMPTED",
        [JOB_BOOT_FAIL] = "BOOT_FAIL", [JOB_DEADLINE] = "DEADLINE",   [JOB_OOM] = "OUT_OF_MEMORY",
    };
    uint32_t base = state & JOB_STATE_BASE;

    /* A requeued task is completing, but its base state is already pending again. */
    if (base == JOB_PENDING && (state & JOB_COMPLETING))
        return "PENDING";
    return base < PL_COUNT(names) && names[base] ? names[base] : "UNKNOWN";
}

/* The usual reasons have their names here: Slurm's function for all of them is not part of its API.
 */
const char *pl_slurm_reason_name(uint32_t reason)
{
    static const struct {
        unsigned reason;
        const char *name;
    } names[] = {
        {WAIT_PRIORITY, "Priority"},
        {WAIT_DEPENDENCY, "Dependency"},
        {WAIT_RESOURCES, "Resources"},
        {WAIT_PART_NODE_LIMIT, "PartitionNodeLimit"},
        {WAIT_PART_TIME_LIMIT, "PartitionTimeLimit"},
        {WAIT_PART_DOWN, "PartitionDown"},
        {WAIT_PART_INACTIVE, "PartitionInactive"},
        {WAIT_HELD, "JobHeldAdmin"},
        {WAIT_HELD_USER, "JobHeldUser"},
        {WAIT_TIME, "BeginTime"},
        {WAIT_LICENSES, "Licenses"},
        {WAIT_RESERVATION, "Reservation"},
        {WAIT_NODE_NOT_AVAIL, "ReqNodeNotAvail"},
        {FAIL_DOWN_NODE, "NodeDown"},
        {FAIL_BAD_CONSTRAINTS, "BadConstraints"},
        {FAIL_SYSTEM, "SystemFailure"},
        {FAIL_LAUNCH, "JobLaunchFailure"},
        {FAIL_EXIT_CODE, "NonZeroExitCode"},
        {FAIL_TIMEOUT, "TimeLimit"},
        {WAIT_CLEANING, "Cleaning"},
        {WAIT_PROLOG, "Prolog"},
        {WAIT_ARRAY_TASK_LIMIT, "JobArrayTaskLimit"},
        {WAIT_QOS_JOB_LIMIT, "QOSJobLimit"},
        {WAIT_QOS_MAX_JOB_PER_USER, "QOSMaxJobsPerUserLimit"},
        {WAIT_ASSOC_JOB_LIMIT, "AssociationJobLimit"},
        {WAIT_ASSOC_MAX_JOBS, "AssocMaxJobsLimit"},
        {WAIT_DEP_INVALID, "DependencyNeverSatisfied"},
    };

    if (reason == WAIT_NO_REASON)
        return NULL;
    for (size_t i = 0; i < PL_COUNT(names); i++)
        if (names[i].reason == reason)
            return names[i].name;
    if (slurm_job_state_reason_string)
        return slurm_job_state_reason_string(reason);
    return slurm_job_reason_string ? slurm_job_reason_string(reason) : "Other";
}

static const char *reason_of(const slurm_job_info_t *job)
{
    bool described = job->state_desc && *job->state_desc;

    return described ? job->state_desc : pl_slurm_reason_name(job->state_reason);
}

static int set_int(json_t *o, const char *key, int64_t value)
{
    return json_object_set_new(o, key, json_integer(value));
}

/* Sets a text of Slurm, which need not be valid UTF-8: then '?' replaces every byte above 0x7f. */
static int set_text(json_t *o, const char *key, const char *value)
{
    char clean[512];
    size_t n = 0;

    if (!value)
        return 0;
    if (json_object_set_new(o, key, json_string(value)) == 0)
        return 0;
    for (; *value && n < sizeof(clean) - 1; value++)
        clean[n++] = (char)((unsigned char)*value < 0x80 ? *value : '?');
    clean[n] = '\0';
    return json_object_set_new(o, key, json_string(clean));
}

static int add_job(json_t *list, const slurm_job_info_t *job)
{
    json_t *o = json_object();
    int r = set_int(o, "id", job->job_id);

    if (job->array_job_id) {
        r |= set_int(o, "array", job->array_job_id);
        if (job->array_task_str)
            r |= set_text(o, "tasks", job->array_task_str);
        else if (job->array_task_id != NO_VAL) /* else: all tasks without a record of their own */
            r |= set_int(o, "task", job->array_task_id);
    }
    r |= set_text(o, "state", state_name(job->job_state));
    if (job->job_state & JOB_COMPLETING)
        r |= json_object_set_new(o, "completing", json_true());
    r |= set_text(o, "reason", reason_of(job));
    r |= set_text(o, "name", job->name);
    r |= set_text(o, "nodes", job->nodes && *job->nodes ? job->nodes : NULL);
    r |= set_int(o, "n_nodes", job->num_nodes);
    r |= set_int(o, "submitted", job->submit_time);
    if (job->start_time > 0)
        r |= set_int(o, "started", job->start_time);
    if (job->end_time > 0)
        r |= set_int(o, "ended", job->end_time);
    if (job->time_limit != INFINITE && job->time_limit != NO_VAL)
        r |= set_int(o, "limit_s", (int64_t)job->time_limit * 60);
    if (job->restart_cnt || (job->job_state & JOB_STATE_BASE) > JOB_SUSPENDED) /* it has ended */
        r |= set_int(o, "restarts", job->restart_cnt);
    if (WIFSIGNALED(job->exit_code))
        r |= set_int(o, "signal", WTERMSIG(job->exit_code));
    else
        r |= set_int(o, "exit", WEXITSTATUS(job->exit_code));
    if (r < 0 || json_array_append(list, o) < 0) {
        json_decref(o);
        return -ENOMEM;
    }
    json_decref(o);
    return 0;
}

int pl_slurm_query_jobs(uid_t uid, json_t **ret, struct pl_error *err)
{
    _cleanup_(json_decrefp) json_t *list = NULL;
    job_info_msg_t *msg = NULL;
    int r = 0;

    setenv("SLURM_BITSTR_LEN", "0", 1); /* full lists of pending tasks, not "1-9,..." */
    r = pl_slurm_query_ping(err);
    if (r < 0)
        return r;
    if (slurm_load_job_user(&msg, (uint32_t)uid, SHOW_ALL) < 0)
        return pl_error_set(err, -EHOSTUNREACH, "%s", slurm_strerror(errno));
    list = json_array();
    for (uint32_t i = 0; i < msg->record_count && list && r == 0; i++)
        r = add_job(list, &msg->job_array[i]);
    slurm_free_job_info_msg(msg);
    if (!list || r < 0)
        return pl_error_set(err, -ENOMEM, "out of memory");
    *ret = PL_TAKE(list);
    return 0;
}
