/* SPDX-License-Identifier: MIT */
/* The plugin's arguments in plugstack.conf, and where plrund is. No Slurm in here. */
#ifndef PL_SPANK_PLUGIN_CONF_H
#define PL_SPANK_PLUGIN_CONF_H

#include "common/base/error.h"

#include <stdint.h>

struct pl_spank_conf {
    const char *plrund;      /* borrowed from argv; NULL where not given */
    const char *runtime_dir; /* the same: below it each user gets a folder for his sockets */
    const char *scontrol;    /* the same */
    const char *namespace;   /* the same; %j is the job's number, %n the node's name */
};

/* Reads plrund=, runtime_dir=, scontrol= and mount_namespace=, each with an absolute path. -EINVAL
 * for anything else.
 */
int pl_conf_parse(struct pl_spank_conf *conf, int argc, char *const *argv, struct pl_error *err);

/* The daemon's path: as configured, else beside this plugin (a build folder), else as installed.
 * Caller frees. NULL when out of memory. */
char *pl_conf_plrund(const struct pl_spank_conf *conf);

/* The path of scontrol for the daemon, never by a job's PATH: as configured, else that of the Slurm
 * whose program this process runs (PREFIX/bin beside PREFIX/sbin), else of the system. Caller
 * frees;
 * "" if there is none; NULL when out of memory. */
char *pl_conf_scontrol(const struct pl_spank_conf *conf);

/* The file of the job's mount namespace on this node. *ret is NULL if none is configured. -ENOMEM.
 */
int pl_conf_namespace(const struct pl_spank_conf *conf,
                      uint32_t job_id,
                      const char *node,
                      char **ret);

#endif
