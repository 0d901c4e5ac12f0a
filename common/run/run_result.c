/* SPDX-License-Identifier: MIT */
/* Trial states, paths inside a run folder, and result.json. */
#include "common/base/fs.h"
#include "common/base/own.h"
#include "common/base/shared_fs.h"
#include "common/proto/json.h"
#include "common/run/run_folder_private.h"

#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define RESERVED "result.json.tmp"

static const char *const state_names[] = {
    [PL_TRIAL_WAITING] = "waiting",     [PL_TRIAL_RUNNING] = "running",
    [PL_TRIAL_DONE] = "done",           [PL_TRIAL_FAILED] = "failed",
    [PL_TRIAL_CANCELLED] = "cancelled", [PL_TRIAL_PRUNED] = "pruned",
    [PL_TRIAL_LOST] = "lost",           [PL_TRIAL_PREEMPTED] = "preempted",
    [PL_TRIAL_TIMED_OUT] = "timed-out", [PL_TRIAL_NODE_FAILED] = "node-failed",
};

const char *pl_trial_state_name(enum pl_trial_state state)
{
    return state_names[state];
}

int pl_trial_state_parse(const char *s, enum pl_trial_state *ret)
{
    for (size_t i = 0; i < PL_COUNT(state_names); i++)
        if (strcmp(s, state_names[i]) == 0) {
            *ret = (enum pl_trial_state)i;
            return 0;
        }
    return -EINVAL;
}

bool pl_trial_state_final(enum pl_trial_state state)
{
    return state == PL_TRIAL_DONE || state == PL_TRIAL_FAILED || state == PL_TRIAL_CANCELLED ||
           state == PL_TRIAL_PRUNED || state == PL_TRIAL_LOST;
}

char *pl_run_key_path(const struct pl_run *run)
{
    return pl_path_join(run->dir, "key");
}

char *pl_run_trial_path(const struct pl_run *run, unsigned trial, const char *name)
{
    return pl_strf("%s/trial-%04u%s%s", run->dir, trial, name ? "/" : "", name ? name : "");
}

char *
pl_run_attempt_path(const struct pl_run *run, unsigned trial, unsigned attempt, const char *name)
{
    return pl_strf("%s/trial-%04u/attempt-%u%s%s", run->dir, trial, attempt, name ? "/" : "",
                   name ? name : "");
}

int pl_run_make_trial(const struct pl_run *run, unsigned trial, int *ret_fd, struct pl_error *err)
{
    char name[32];

    snprintf(name, sizeof(name), "trial-%04u", trial);
    return pl_own_folder_make(run->dir_fd, name, pl_own_mode(run->dir_fd, 0777), ret_fd, err);
}

int pl_run_make_attempt(
    const struct pl_run *run, unsigned trial, unsigned attempt, int *ret_fd, struct pl_error *err)
{
    _cleanup_close_ int trial_fd = -EBADF;
    char name[32];
    int r = pl_run_make_trial(run, trial, &trial_fd, err);

    if (r < 0)
        return r;
    snprintf(name, sizeof(name), "attempt-%u", attempt);
    return pl_own_folder_make(trial_fd, name, pl_own_mode(trial_fd, 0777), ret_fd, err);
}

/* -ELOOP if a folder of this name is a link: somebody has put it there. Takes no descriptor: there
 * may be none. */
static int check_folders(const struct pl_run *run, const char *name)
{
    for (const char *slash = strchr(name, '/'); slash; slash = strchr(slash + 1, '/')) {
        _cleanup_free_ char *folder = strndup(name, (size_t)(slash - name));
        struct stat st;

        if (!folder)
            return -ENOMEM;
        if (fstatat(run->dir_fd, folder, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISLNK(st.st_mode))
            return -ELOOP;
    }
    return 0;
}

int pl_run_write_file(const struct pl_run *run,
                      const char *name,
                      const void *data,
                      size_t len,
                      mode_t bits,
                      bool sync,
                      struct pl_error *err)
{
    int r;

    if (run->dir_fd < 0)
        return pl_error_set(err, -EACCES, "run folder '%s' was opened for reading", run->dir);
    r = check_folders(run, name);
    if (r < 0)
        pl_error_errno(err, r, "cannot write '%s'", name);
    else
        r = pl_file_write_at(run->dir_fd, name, data, len, pl_own_mode(run->dir_fd, bits), sync,
                             err);
    return r < 0 ? pl_error_wrap(err, r, "run folder '%s'", run->dir) : 0;
}

int pl_run_n_attempts(const struct pl_run *run, unsigned trial, unsigned *ret)
{
    _cleanup_free_ char *folder = pl_run_trial_path(run, trial, NULL);

    if (!folder)
        return -ENOMEM;
    pl_dir_renew(folder); /* another host may have begun one */
    for (unsigned n = 0;; n++) {
        _cleanup_free_ char *path = pl_run_attempt_path(run, trial, n, NULL);
        struct stat st;

        if (!path)
            return -ENOMEM;
        if (stat(path, &st) < 0) {
            if (errno != ENOENT)
                return -errno;
            *ret = n;
            return 0;
        }
    }
}

/* True if what the result has of these keys is of its type: readers pass it on. */
static bool has_types(const json_t *o)
{
    static const struct {
        const char *key;
        json_type type;
    } keys[] = {
        {"cause", JSON_OBJECT},       {"metrics", JSON_OBJECT},  {"others", JSON_ARRAY},
        {"exit_code", JSON_INTEGER},  {"attempt", JSON_INTEGER}, {"attempts", JSON_INTEGER},
        {"world_size", JSON_INTEGER}, {"program", JSON_STRING},
    };

    for (size_t i = 0; i < PL_COUNT(keys); i++) {
        const json_t *value = json_object_get(o, keys[i].key);

        if (value && json_typeof(value) != keys[i].type)
            return false;
    }
    return true;
}

int pl_run_result_read(const struct pl_run *run,
                       unsigned trial,
                       json_t **ret,
                       enum pl_trial_state *ret_state,
                       struct pl_error *err)
{
    _cleanup_free_ char *path = pl_run_trial_path(run, trial, "result.json");
    _cleanup_(json_decrefp) json_t *o = NULL;
    const char *schema, *state_name;
    enum pl_trial_state state;
    int64_t number;
    int r;

    if (!path)
        return pl_error_set(err, -ENOMEM, "out of memory");
    r = pl_json_load_file(path, PL_RUN_RESULT_MAX, &o, err);
    if (r < 0)
        return r;
    schema = pl_json_string(o, "schema");
    state_name = pl_json_string(o, "state");
    if (!schema || strcmp(schema, PL_RESULT_SCHEMA) != 0 || !state_name ||
        pl_trial_state_parse(state_name, &state) < 0 || pl_json_int(o, "trial", &number) < 0 ||
        number != trial || !has_types(o))
        return pl_error_set(err, -EINVAL, "'%s' is not a result of trial %u", path, trial);
    if (ret_state)
        *ret_state = state;
    *ret = PL_TAKE(o);
    return 0;
}

int pl_run_result_reserve(const struct pl_run *run,
                          unsigned trial,
                          size_t size,
                          struct pl_error *err)
{
    _cleanup_free_ char *spaces = NULL;
    _cleanup_close_ int dir_fd = -EBADF, fd = -EBADF;
    int r = pl_run_make_trial(run, trial, &dir_fd, err);

    if (r == 0)
        r = pl_own_file_open(dir_fd, RESERVED, O_WRONLY | O_CREAT, pl_own_mode(dir_fd, 0666), &fd,
                             err);
    if (r < 0)
        return r;
    size = PL_MIN(size, (size_t)PL_RUN_RESULT_MAX);
    spaces = malloc(size);
    if (!spaces)
        return pl_error_set(err, -ENOMEM, "out of memory");
    memset(spaces, ' ', size);
    r = pl_write_all(fd, spaces, size);
    if (close(PL_TAKE_FD(fd)) < 0 && r == 0) /* a network file system writes it now */
        r = -errno;
    if (r < 0) {
        unlinkat(dir_fd, RESERVED, 0);
        return pl_error_errno(err, r, "cannot reserve room for the result of trial %u", trial);
    }
    return 0;
}

/* Overwrites the reserved file and renames it. -ENOENT: nothing is reserved. */
static int write_reserved(const struct pl_run *run, unsigned trial, const struct pl_buf *text)
{
    _cleanup_close_ int dir_fd = -EBADF, fd = -EBADF;
    char name[32];
    int r;

    if (run->dir_fd < 0)
        return -EACCES;
    snprintf(name, sizeof(name), "trial-%04u", trial);
    r = pl_own_folder_open(run->dir_fd, name, &dir_fd, NULL);
    if (r == 0)
        r = pl_own_file_open(dir_fd, RESERVED, O_WRONLY, 0, &fd, NULL);
    if (r == 0)
        r = pl_write_all(fd, text->data, text->len);
    if (r == 0 && ftruncate(fd, (off_t)text->len) < 0)
        r = -errno;
    if (r == 0)
        r = pl_fd_sync(fd);
    return r == 0 && renameat(dir_fd, RESERVED, dir_fd, "result.json") < 0 ? -errno : r;
}

/* True if an attempt after that of the result has claimed the trial. */
static bool is_superseded(const struct pl_run *run, unsigned trial, const json_t *result)
{
    _cleanup_free_ char *folder = pl_run_trial_path(run, trial, NULL), *path = NULL;
    int64_t attempt;

    if (pl_json_int(result, "attempt", &attempt) < 0 || attempt < 0 || attempt >= INT32_MAX)
        return false;
    if (folder)
        pl_dir_renew(folder); /* another host may have */
    path = pl_run_attempt_path(run, trial, (unsigned)attempt + 1, "claim");
    return path && access(path, F_OK) == 0;
}

int pl_run_result_write(const struct pl_run *run,
                        unsigned trial,
                        enum pl_trial_state state,
                        const json_t *more,
                        struct pl_error *err)
{
    json_t *source = (json_t *)(uintptr_t)more; /* only read */
    _cleanup_free_ char *name = pl_strf("trial-%04u/result.json", trial);
    _cleanup_free_ char *room = pl_strf("trial-%04u/" RESERVED, trial);
    _cleanup_(pl_buf_finish) struct pl_buf text = {0};
    _cleanup_(json_decrefp) json_t *o = json_pack("{sssiss}", "schema", PL_RESULT_SCHEMA, "trial",
                                                  (int)trial, "state", pl_trial_state_name(state));
    bool reserved;
    int r;

    if (is_superseded(run, trial, more))
        return 0;
    if (!name || !room || !o || (source && json_object_update_missing(o, source) < 0) ||
        pl_json_dump_line(o, &text) < 0)
        return pl_error_set(err, -ENOMEM, "out of memory");
    r = write_reserved(run, trial, &text);
    if (r == 0)
        return 0;
    reserved = r != -ENOENT; /* its room may be out of reach: it takes two descriptors */
    r = pl_run_write_file(run, name, pl_buf_str(&text), text.len, 0666, true, err);
    if (r == 0 && reserved)
        unlinkat(run->dir_fd, room, 0);
    return r;
}
