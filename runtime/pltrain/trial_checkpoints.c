/* SPDX-License-Identifier: MIT */
#include "runtime/pltrain/trial_checkpoints.h"
#include "common/base/env.h"
#include "common/base/fs.h"
#include "runtime/engine/util/sha256.h"

#include <string.h>

#define FINISHED                                                                                   \
    ".plume-finished"  /* has the number of the last attempt in which a run was done               \
                        */
#define RUNS_MAX 10000 /* of one attempt, with the same hyper-parameters */

char *
pl_trial_checkpoints(const char *trial, const char *module, const char *const *hparams, size_t n)
{
    uint8_t digest[PL_SHA256_BYTES];
    struct pl_sha256 sha;
    uint64_t id;

    pl_sha256_init(&sha);
    pl_sha256_add(&sha, module, strlen(module) + 1);
    for (size_t i = 0; i < n; i++)
        pl_sha256_add(&sha, hparams[i], strlen(hparams[i]) + 1);
    pl_sha256_final(&sha, digest);
    memcpy(&id, digest, sizeof(id));
    return pl_strf("%s/checkpoints/%016llx", trial, (unsigned long long)id);
}

static const char *attempt(void)
{
    const char *number = pl_env_text(PL_ENV_PLUME_ATTEMPT);

    return number ? number : "0";
}

/* 1 if a run of this attempt was done with the folder; 0, -ENOMEM. */
static int is_done(const char *dir)
{
    _cleanup_free_ char *path = pl_path_join(dir, FINISHED), *text = NULL;

    if (!path)
        return -ENOMEM;
    if (pl_file_read(path, 64, &text, NULL, NULL) < 0)
        return 0;
    text[strcspn(text, "\n")] = '\0';
    return strcmp(text, attempt()) == 0;
}

int pl_trial_checkpoints_next(const char *first, bool goes_on, char **ret, struct pl_error *err)
{
    _cleanup_free_ char *before = NULL;

    for (unsigned i = 1; i <= RUNS_MAX; i++) {
        _cleanup_free_ char *dir = i == 1 ? strdup(first) : pl_strf("%s-%u", first, i);
        int r = dir ? is_done(dir) : -ENOMEM;

        if (r < 0)
            return pl_error_nomem(err);
        if (r == 0) {
            *ret = goes_on && before ? PL_TAKE(before) : PL_TAKE(dir);
            return 0;
        }
        free(before);
        before = PL_TAKE(dir);
    }
    return pl_error_set(err, -E2BIG,
                        "more than %d runs with the same hyper-parameters: give each a "
                        "--checkpoint-dir of its own",
                        RUNS_MAX);
}

int pl_trial_checkpoints_done(const char *dir, struct pl_error *err)
{
    _cleanup_free_ char *path = pl_path_join(dir, FINISHED), *text = pl_strf("%s\n", attempt());
    int r = path && text ? pl_file_write_atomic(path, text, strlen(text), 0666, err)
                         : pl_error_nomem(err);

    return r == -ENOENT ? 0 : r;
}
