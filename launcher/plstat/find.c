/* SPDX-License-Identifier: MIT */
#include "launcher/plstat/find.h"
#include "common/base/fs.h"
#include "common/base/parse.h"
#include "launcher/slurm/slurm_cluster.h"

#include <string.h>

void pl_target_finish(struct pl_target *target)
{
    pl_run_close(target->run);
    free(target->unreadable);
    *target = (struct pl_target){.trial = -1, .job = -1, .task = -1};
}

/* Parses "123" and "123_4". */
static void parse_job(const char *word, int64_t *ret_job, int64_t *ret_task)
{
    size_t digits = strspn(word, "0123456789");
    char number[24];

    if (digits == 0 || digits >= sizeof(number) || (word[digits] && word[digits] != '_'))
        return;
    memcpy(number, word, digits);
    number[digits] = '\0';
    if (word[digits] && pl_parse_int(word + digits + 1, 0, UINT32_MAX, ret_task, NULL) < 0)
        return;
    if (pl_parse_int(number, 1, UINT32_MAX, ret_job, NULL) < 0)
        *ret_job = *ret_task = -1;
}

/* Finds RUN/trial-0007 and RUN/trial-0007/attempt-0. -ENOENT for other folders. */
static int find_trial_folder(const char *word, struct pl_run_ref *ret)
{
    _cleanup_free_ char *path = realpath(word, NULL);
    char *slash = path ? strrchr(path, '/') : NULL, *number;

    if (slash && strncmp(slash, "/attempt-", 9) == 0) {
        *slash = '\0';
        slash = strrchr(path, '/');
    }
    if (!slash || slash == path || strncmp(slash, "/trial-", 7) != 0)
        return -ENOENT;
    number = slash + 7;
    while (number[0] == '0' && number[1])
        number++;
    if (pl_parse_int(number, 0, PL_RUN_TRIAL_LIMIT, &ret->trial, NULL) < 0)
        return -ENOENT;
    *slash = '\0';
    ret->folder = PL_TAKE(path);
    return 0;
}

/* Finds RUN and RUN/TRIAL without the index, which may be unreadable. -ENOENT for other folders,
 * -errno for one that cannot be looked at. */
static int find_run_folder(const char *word, struct pl_run_ref *ret, struct pl_error *err)
{
    _cleanup_free_ char *folder = strdup(word), *file = NULL;
    char *slash;

    for (int64_t trial = -1; folder;) {
        free(file);
        file = pl_path_join(folder, "sweep.json");
        if (file && access(file, F_OK) == 0) {
            *ret = (struct pl_run_ref){realpath(folder, NULL), trial};
            if (ret->folder)
                return 0;
        }
        if (file && errno != ENOENT && errno != ENOTDIR && errno != ENAMETOOLONG && errno != ELOOP)
            return pl_error_errno(err, errno, "cannot look at '%s'", file);
        slash = strrchr(folder, '/');
        if (trial >= 0 || !slash || slash == folder ||
            pl_parse_int(slash + 1, 0, PL_RUN_TRIAL_LIMIT, &trial, NULL) < 0)
            break;
        *slash = '\0';
    }
    return -ENOENT;
}

int pl_target_find(const char *word, struct pl_target *ret, struct pl_error *err)
{
    struct pl_target t = {.trial = -1, .job = -1, .task = -1};
    _cleanup_(pl_run_ref_finish) struct pl_run_ref ref = {.trial = -1};
    struct pl_error why = {0};
    int r;

    if (!*word)
        return pl_error_set(err, -EINVAL, "JOB must not be empty");
    parse_job(word, &t.job, &t.task);
    r = pl_slurm_find_run(word, &ref, &why);
    if (r < 0 && r != -ENOMEM && !ref.folder) {
        int found = find_run_folder(word, &ref, r == -ENOENT ? &why : NULL);

        if (found == -ENOENT)
            found = find_trial_folder(word, &ref);
        if (found == 0 || r == -ENOENT)
            r = found;
    }
    if (r == 0) {
        t.trial = ref.trial;
        r = pl_run_open(ref.folder, &t.run, &why);
        if (r == -EINVAL) /* the record is damaged, the word is not */
            r = -EBADMSG;
    }
    if (r == 0 && t.job >= 0 && pl_slurm_check_cluster(t.run, NULL) == -EXDEV) {
        t.elsewhere = true;
        r = pl_error_set(&why, -ENOENT, "job %s of cluster %s belongs to %s: plstat sweep %s", word,
                         pl_run_cluster(t.run), pl_run_sweep(t.run), pl_run_sweep(t.run));
        pl_run_close(PL_TAKE(t.run));
        t.trial = -1;
    }
    if (r < 0 && r != -ENOMEM && t.job >= 0) {
        if (ref.folder || r != -ENOENT)
            t.unreadable = strdup(pl_error_text(&why));
        r = 0;
    }
    if (r < 0)
        return pl_error_set(err, r, "%s", pl_error_text(&why));
    if (t.run && t.trial >= (int64_t)pl_run_n_trials(t.run)) {
        r = pl_error_set(err, -ENOENT, "sweep '%s' has no trial %lld: it has %u",
                         pl_run_sweep(t.run), (long long)t.trial, pl_run_n_trials(t.run));
        pl_target_finish(&t);
        return r;
    }
    *ret = t;
    return 0;
}
