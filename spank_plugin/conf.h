/* SPDX-License-Identifier: MIT */
/* The plugin's arguments in plugstack.conf, and where plrund is. No Slurm in here. */
#ifndef PL_SPANK_PLUGIN_CONF_H
#define PL_SPANK_PLUGIN_CONF_H

#include "common/base/error.h"

struct pl_spank_conf {
    const char *plrund;      /* borrowed from argv; NULL where not given */
    const char *runtime_dir; /* the same: below it each user gets a folder for his sockets */
};

/* Reads plrund=/ABSOLUTE/PATH and runtime_dir=/ABSOLUTE/PATH. -EINVAL for anything else. */
int pl_conf_parse(struct pl_spank_conf *conf, int argc, char *const *argv, struct pl_error *err);

/* The daemon's path: as configured, else beside this plugin (a build folder), else as installed.
 * Caller frees. NULL when out of memory. */
char *pl_conf_plrund(const struct pl_spank_conf *conf);

#endif
