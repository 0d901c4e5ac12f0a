/* SPDX-License-Identifier: MIT */
#include "common/run/run_stop.h"
#include "common/base/fs.h"
#include "common/base/own.h"
#include "common/base/parse.h"
#include "common/proto/json.h"
#include "common/run/run_folder_private.h"

#include <dirent.h>
#include <fcntl.h>
#include <string.h>

#define FAILED_FOLDER "failed"
#define STOPPED_FILE "stopped.json"
#define STOPPED_MAX 4096

int pl_run_parse_max_fail(const char *text, unsigned n, unsigned *ret, struct pl_error *err)
{
    size_t len = strlen(text);
    bool percent = len > 0 && text[len - 1] == '%';
    _cleanup_free_ char *number = strndup(text, len - percent);
    int64_t most;
    int r;

    if (!number)
        return pl_error_nomem(err);
    r = pl_parse_int(number, 0, percent ? 100 : PL_RUN_TRIAL_LIMIT, &most, err);
    if (r < 0)
        return r;
    *ret = (unsigned)(percent ? (uint64_t)n * (uint64_t)most / 100 : (uint64_t)most);
    return 0;
}

/* The number of trials that may fail; false: any number. */
static bool may_fail(const struct pl_run *run, unsigned *ret)
{
    const json_t *option = json_object_get(pl_run_options(run), "max-fail");
    const char *text = pl_json_string(option, "value");

    return text && pl_run_parse_max_fail(text, pl_run_n_trials(run), ret, NULL) == 0;
}

static int open_failed(const struct pl_run *run, int *ret, struct pl_error *err)
{
    if (run->dir_fd < 0)
        return pl_error_set(err, -EACCES, "run folder '%s' was opened for reading", run->dir);
    return pl_own_folder_make(run->dir_fd, FAILED_FOLDER, pl_own_mode(run->dir_fd, 0777), ret, err);
}

/* Counts the files, whose names begin with a digit. Closes the folder. */
static int count_files(int folder, unsigned *ret, struct pl_error *err)
{
    DIR *list = fdopendir(folder);
    const struct dirent *entry;

    if (!list) {
        close(folder);
        return pl_error_errno(err, errno, "cannot read '%s'", FAILED_FOLDER);
    }
    *ret = 0;
    while ((entry = readdir(list)))
        *ret += entry->d_name[0] >= '0' && entry->d_name[0] <= '9';
    closedir(list);
    return 0;
}

static int
write_stop(const struct pl_run *run, const struct pl_run_stop *stop, struct pl_error *err)
{
    _cleanup_(json_decrefp) json_t *o =
        json_pack("{si si si sf}", "failed", (int)stop->failed, "max", (int)stop->max, "retry",
                  (int)stop->retry, "time", pl_wall_s());
    _cleanup_(pl_buf_finish) struct pl_buf text = {0};

    if (!o || pl_json_dump_line(o, &text) < 0)
        return pl_error_nomem(err);
    return pl_run_write_file(run, STOPPED_FILE, pl_buf_str(&text), text.len, 0666, false, err);
}

int pl_run_count_failure(const struct pl_run *run,
                         unsigned trial,
                         unsigned retry,
                         bool *ret_stopped,
                         struct pl_error *err)
{
    struct pl_run_stop stop = {.retry = retry}, before;
    _cleanup_close_ int folder = -EBADF, fd = -EBADF;
    char name[16];
    int r;

    *ret_stopped = false;
    if (!may_fail(run, &stop.max))
        return 0;
    r = open_failed(run, &folder, err);
    if (r < 0)
        return r;
    snprintf(name, sizeof(name), "%04u", trial);
    r = pl_own_file_open(folder, name, O_WRONLY | O_CREAT, pl_own_mode(folder, 0666), &fd, err);
    if (r == 0)
        r = count_files(PL_TAKE_FD(folder), &stop.failed, err);
    if (r < 0 || stop.failed <= stop.max)
        return r;
    before = pl_run_read_stop(run);
    if (before.stopped && before.retry >= retry)
        return 0;
    r = write_stop(run, &stop, err);
    *ret_stopped = r == 0;
    return r;
}

void pl_run_forget_failure(const struct pl_run *run, unsigned trial)
{
    char path[32];

    snprintf(path, sizeof(path), FAILED_FOLDER "/%04u", trial);
    if (run->dir_fd >= 0)
        unlinkat(run->dir_fd, path, 0);
}

struct pl_run_stop pl_run_read_stop(const struct pl_run *run)
{
    _cleanup_(json_decrefp) json_t *o = NULL;
    _cleanup_free_ char *text = NULL;
    int64_t failed, max, retry;
    size_t len;

    if (pl_run_read_file(run, STOPPED_FILE, STOPPED_MAX, &text, &len, NULL) < 0 ||
        pl_json_parse(text, len, STOPPED_MAX, &o, NULL) < 0 ||
        pl_json_int(o, "failed", &failed) < 0 || pl_json_int(o, "max", &max) < 0 ||
        pl_json_int(o, "retry", &retry) < 0 || failed < 0 || max < 0 || retry < 0)
        return (struct pl_run_stop){0};
    return (struct pl_run_stop){true, (unsigned)failed, (unsigned)max, (unsigned)retry};
}

const char *pl_run_stop_text(const struct pl_run_stop *stop, char buf[PL_RUN_STOP_TEXT])
{
    snprintf(buf, PL_RUN_STOP_TEXT, "%u trial%s failed, and --max-fail allows %u", stop->failed,
             stop->failed == 1 ? "" : "s", stop->max);
    return buf;
}
