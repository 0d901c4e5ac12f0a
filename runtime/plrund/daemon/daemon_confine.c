/* SPDX-License-Identifier: MIT */
/* Lists the folders and programs that the confined daemon needs. */
#include "common/base/env.h"
#include "common/base/fs.h"
#include "common/base/log.h"
#include "runtime/plrund/daemon/confine.h"
#include "runtime/plrund/daemon/daemon.h"

#include <limits.h>
#include <string.h>

/* The run folder, or the folder in which the hub makes one; then also the index of runs, which it
 * makes here for this. */
static int
find_folder(const struct pl_daemon *d, char **ret, char **ret_index, struct pl_error *err)
{
    _cleanup_free_ char *home = NULL, *steps = NULL, *index = NULL;
    int r;

    if (d->step.run_dir) {
        *ret = strdup(d->step.run_dir);
        return *ret ? 0 : pl_error_nomem(err);
    }
    home = pl_home_dir(err);
    if (!home)
        return err->code;
    steps = pl_path_join(home, "steps");
    index = pl_path_join(home, "runs.jsonl");
    if (!steps || !index)
        return pl_error_nomem(err);
    r = pl_mkdir_p(steps, 0700, err);
    if (r == 0)
        r = pl_file_append(index, "", 0, 0600, err);
    if (r < 0)
        return r;
    *ret = PL_TAKE(steps);
    *ret_index = PL_TAKE(index);
    return 0;
}

static char *parent(const char *path)
{
    const char *slash = strrchr(path, '/');

    return !slash ? strdup(".") : strndup(path, slash == path ? 1 : (size_t)(slash - path));
}

static int confine(struct pl_daemon *d, struct pl_error *err)
{
    const char *scontrol = pl_env(PL_ENV_PLUME_SCONTROL), *trace = pl_env_text(PL_ENV_PLUME_TRACE);
    _cleanup_free_ char *run = NULL, *index = NULL, *socket = parent(d->socket_path),
                        *traces = trace ? parent(trace) : NULL,
                        *program = pl_confine_find(scontrol ? scontrol : "scontrol"),
                        *self = realpath("/proc/self/exe", NULL);
    struct pl_confine what = {.programs = {program, self}};
    int r = find_folder(d, &run, &index, err);

    if (r < 0)
        return r;
    if (!socket || (trace && !traces))
        return pl_error_nomem(err);
    what.file = index;
    what.folders[0] = run;
    what.folders[1] = socket;
    what.folders[2] = traces;
    return pl_confine_apply(&what, err);
}

int pl_daemon_confine(struct pl_daemon *d, struct pl_error *err)
{
    struct pl_error why = {0};
    bool off, require;
    int r = pl_confine_read(&off, &require, err);

    if (r < 0 || (off && !d->step.plugin))
        return r;
    r = pl_daemon_helper_start(d, &why);
    if (off) { /* the helper is wanted all the same: it outlives a daemon that is killed */
        if (r < 0)
            pl_log_warn("daemon", "nobody ends what ranks leave if this daemon is killed: %s",
                        pl_error_text(&why));
        return 0;
    }
    if (r == 0)
        r = confine(d, &why);
    if (r == 0)
        return 0;
    if (require)
        return pl_error_set(err, r,
                            "cannot confine the node daemon, and PLUME_CONFINE is require: %s",
                            pl_error_text(&why));
    if (r == -EOPNOTSUPP)
        pl_log_info("daemon", "the node daemon is not confined: %s", pl_error_text(&why));
    else
        pl_log_warn("daemon", "the node daemon is not confined: %s", pl_error_text(&why));
    return 0;
}
