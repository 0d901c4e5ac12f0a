/* SPDX-License-Identifier: MIT */
/* Stub; see README.md. */
#ifndef STUB_SLURM_H
#define STUB_SLURM_H

#include <slurm/slurm_errno.h>
#include <slurm/slurm_version.h>
#include <stdbool.h>
#include <stdint.h>
#include <time.h>

#define INFINITE 0xffffffff
#define NO_VAL 0xfffffffe
#define SHOW_ALL 0x0001
#define JOB_STATE_BASE 0x000000ff
#define JOB_COMPLETING 0x00008000

enum job_states {
    JOB_PENDING,
    JOB_RUNNING,
    JOB_SUSPENDED,
    JOB_COMPLETE,
    JOB_CANCELLED,
    JOB_FAILED,
    JOB_TIMEOUT,
    JOB_NODE_FAIL,
    JOB_PREEMPTED,
    JOB_BOOT_FAIL,
    JOB_DEADLINE,
    JOB_OOM,
};

/* Their values differ from Slurm's; only the names matter here. */
enum job_state_reason {
    WAIT_NO_REASON,
    WAIT_PRIORITY,
    WAIT_DEPENDENCY,
    WAIT_RESOURCES,
    WAIT_PART_NODE_LIMIT,
    WAIT_PART_TIME_LIMIT,
    WAIT_PART_DOWN,
    WAIT_PART_INACTIVE,
    WAIT_HELD,
    WAIT_HELD_USER,
    WAIT_TIME,
    WAIT_LICENSES,
    WAIT_RESERVATION,
    WAIT_NODE_NOT_AVAIL,
    WAIT_CLEANING,
    WAIT_PROLOG,
    WAIT_ARRAY_TASK_LIMIT,
    WAIT_QOS_JOB_LIMIT,
    WAIT_QOS_MAX_JOB_PER_USER,
    WAIT_ASSOC_JOB_LIMIT,
    WAIT_ASSOC_MAX_JOBS,
    WAIT_DEP_INVALID,
    FAIL_DOWN_NODE,
    FAIL_BAD_CONSTRAINTS,
    FAIL_SYSTEM,
    FAIL_LAUNCH,
    FAIL_EXIT_CODE,
    FAIL_TIMEOUT,
};

typedef struct {
    uint32_t array_job_id;
    uint32_t array_task_id;
    char *array_task_str;
    time_t end_time;
    uint32_t exit_code;
    uint32_t job_id;
    uint32_t job_state;
    char *name;
    char *nodes;
    uint32_t num_nodes;
    uint16_t restart_cnt;
    time_t start_time;
    char *state_desc;
#if SLURM_VERSION_NUMBER >= SLURM_VERSION_NUM(23, 2, 0)
    uint32_t state_reason;
#else
    uint16_t state_reason;
#endif
    time_t submit_time;
    uint32_t time_limit;
} slurm_job_info_t;

typedef struct {
    uint32_t record_count;
    slurm_job_info_t *job_array;
} job_info_msg_t;

typedef struct {
    uint32_t control_cnt;
    uint32_t max_array_sz;
    char *sched_params;
} slurm_conf_t;

void slurm_init(const char *conf);
int slurm_ping(int dest);
int slurm_load_ctl_conf(time_t update_time, slurm_conf_t **ret);
#if SLURM_VERSION_NUMBER >= SLURM_VERSION_NUM(26, 5, 0)
void slurm_free_conf(slurm_conf_t *conf);
#else
void slurm_free_ctl_conf(slurm_conf_t *conf);
#endif
int slurm_load_job_user(job_info_msg_t **ret, uint32_t uid, uint16_t flags);
void slurm_free_job_info_msg(job_info_msg_t *msg);

#endif
