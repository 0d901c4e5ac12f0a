/* SPDX-License-Identifier: MIT */
#include "runtime/engine/checkpoint/resume_file.h"
#include "common/base/fs.h"
#include "common/base/log.h"
#include "runtime/engine/checkpoint/checkpoint.h"
#include "runtime/engine/checkpoint/retention.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The global step of a complete checkpoint; -1: the file is missing, or no run can resume from it.
 */
static int64_t step_of(const char *path)
{
    _cleanup_(pl_checkpoint_finish) struct pl_checkpoint c = {0};
    _cleanup_free_ char *optimizers = NULL;
    struct pl_error err = {0};
    int64_t step;
    int r = pl_checkpoint_read(path, &c, &err);

    if (r < 0) {
        if (r != -ENOENT)
            pl_log_warn("train", "taking another checkpoint: %s", pl_error_text(&err));
        return -1;
    }
    optimizers = pl_checkpoint_get(&c, "optimizer_states");
    return optimizers && pl_checkpoint_get_int(&c, "global_step", &step) == 0 ? step : -1;
}

/* The epoch=E-step=S.ckpt with the highest S; *ret = NULL: there is none. */
static int newest_kept(const char *dir, char **ret, struct pl_error *err)
{
    unsigned long long newest = 0, step;
    struct dirent *entry;
    DIR *d = opendir(dir);

    *ret = NULL;
    if (!d)
        return pl_error_errno(err, errno, "cannot read folder '%s'", dir);
    while ((entry = readdir(d))) {
        int end = 0;

        if (sscanf(entry->d_name, "epoch=%*[0-9]-step=%19llu.ckpt%n", &step, &end) != 1 ||
            end == 0 || entry->d_name[end] || (*ret && step <= newest))
            continue;
        free(*ret);
        *ret = pl_path_join(dir, entry->d_name);
        if (!*ret) {
            closedir(d);
            return pl_error_nomem(err);
        }
        newest = step;
    }
    closedir(d);
    return 0;
}

int pl_resume_file(const char *dir, const char *asked, char **ret, struct pl_error *err)
{
    _cleanup_free_ char *hpc = NULL, *last = NULL, *kept = NULL;
    const char *list[4], *best;
    int64_t most = -1, step;
    int r;

    if (dir) {
        last = pl_path_join(dir, "last.ckpt");
        r = last ? pl_hpc_latest(dir, &hpc, err) : pl_error_nomem(err);
        if (r < 0)
            return r;
    }
    if (asked && strcmp(asked, "last") == 0) {
        asked = last && access(last, F_OK) == 0 ? last : NULL;
        /* A run that began anew would replace the checkpoints of this one. */
        if (last && !asked && errno != ENOENT)
            return pl_error_errno(err, errno, "cannot look at checkpoint '%s'", last);
    }
    best = asked;
    if (hpc) {
        r = newest_kept(dir, &kept, err);
        if (r < 0)
            return r;
        best = hpc;
        list[0] = hpc;
        list[1] = asked;
        list[2] = asked == last ? NULL : last;
        list[3] = kept;
        for (size_t i = 0; i < PL_COUNT(list); i++) {
            step = list[i] ? step_of(list[i]) : -1;
            if (step > most) {
                most = step;
                best = list[i];
            }
        }
    }
    *ret = best ? strdup(best) : NULL;
    return best && !*ret ? pl_error_nomem(err) : 0;
}
