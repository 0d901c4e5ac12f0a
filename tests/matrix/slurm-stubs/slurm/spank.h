/* SPDX-License-Identifier: MIT */
/* Stub; see README.md. */
#ifndef STUB_SPANK_H
#define STUB_SPANK_H

#ifndef STUB_RELEASE
#define STUB_RELEASE 0x1a0500
#endif

#if STUB_RELEASE < 0x150800
typedef enum { ESPANK_SUCCESS, ESPANK_ENV_EXISTS } spank_err_t;
#define STUB_PLUGIN_VERSION 0
#else
#include <slurm/slurm_errno.h>
#include <slurm/slurm_version.h>
typedef enum { ESPANK_ENV_EXISTS = 1 } slurm_err_t;
typedef slurm_err_t spank_err_t;
#define ESPANK_SUCCESS 0
#define STUB_PLUGIN_VERSION SLURM_VERSION_NUMBER
#endif

typedef struct spank_handle *spank_t;

/* Only the names of items and contexts matter here. */
typedef enum {
    S_JOB_UID,
    S_JOB_GID,
    S_JOB_ID,
    S_JOB_STEPID,
    S_JOB_NNODES,
    S_JOB_NODEID,
    S_JOB_LOCAL_TASK_COUNT,
    S_JOB_TOTAL_TASK_COUNT,
    S_JOB_NCPUS,
    S_JOB_ENV,
    S_JOB_SUPPLEMENTARY_GIDS,
    S_SLURM_RESTART_COUNT,
    S_TASK_ID,
    S_TASK_GLOBAL_ID,
    S_TASK_EXIT_STATUS,
    S_TASK_PID,
} spank_item_t;

typedef enum { S_CTX_ERROR, S_CTX_LOCAL, S_CTX_REMOTE, S_CTX_ALLOCATOR } spank_context_t;

typedef int (*spank_opt_cb_f)(int val, const char *optarg, int remote);

struct spank_option {
    char *name;
    char *arginfo;
    char *usage;
    int has_arg;
    int val;
    spank_opt_cb_f cb;
};

void slurm_error(const char *format, ...) __attribute__((format(printf, 1, 2)));
void slurm_info(const char *format, ...) __attribute__((format(printf, 1, 2)));
void slurm_spank_log(const char *format, ...) __attribute__((format(printf, 1, 2)));
spank_context_t spank_context(void);
const char *spank_strerror(spank_err_t err);
spank_err_t spank_option_register(spank_t spank, struct spank_option *option);
spank_err_t spank_get_item(spank_t spank, spank_item_t item, ...);
spank_err_t spank_setenv(spank_t spank, const char *name, const char *value, int overwrite);
spank_err_t spank_getenv(spank_t spank, const char *name, char *value, int len);
spank_err_t spank_unsetenv(spank_t spank, const char *name);

#define SPANK_PLUGIN(name, version)                                                                \
    const char plugin_name[] = #name;                                                              \
    const char plugin_type[] = "spank";                                                            \
    const unsigned int plugin_version = STUB_PLUGIN_VERSION;                                       \
    const unsigned int spank_plugin_version = version;

#endif
