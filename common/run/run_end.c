/* SPDX-License-Identifier: MIT */
#include "common/run/run_end.h"
#include "common/base/fs.h"
#include "common/base/own.h"
#include "common/proto/json.h"
#include "common/run/run_folder_private.h"
#include "common/run/run_local.h"
#include "common/run/run_state.h"

#include <fcntl.h>
#include <string.h>
#include <sys/wait.h>

#define ENDS_FOLDER "ends"
#define END_MAX 4096
#define NAME_SIZE 32
#define OUTPUT_HERE PL_RUN_END_OUTPUT " in the run folder"

static void end_name(unsigned arrays, char ret[NAME_SIZE])
{
    snprintf(ret, NAME_SIZE, ENDS_FOLDER "/%u.json", arrays);
}

const char *pl_run_on_end(const struct pl_run *run)
{
    return pl_json_string(json_object_get(pl_run_options(run), "on-end"), "value");
}

int pl_run_end_claim(const struct pl_run *run, unsigned arrays, struct pl_error *err)
{
    _cleanup_close_ int folder = -EBADF, fd = -EBADF;
    _cleanup_(pl_buf_finish) struct pl_buf text = {0};
    char name[NAME_SIZE];
    int r;

    if (run->dir_fd < 0)
        return pl_error_set(err, -EACCES, "run folder '%s' was opened for reading", run->dir);
    r = pl_own_folder_make(run->dir_fd, ENDS_FOLDER, pl_own_mode(run->dir_fd, 0777), &folder, err);
    if (r < 0)
        return r;
    end_name(arrays, name);
    r = pl_own_file_open(folder, name + strlen(ENDS_FOLDER "/"), O_WRONLY | O_CREAT | O_EXCL,
                         pl_own_mode(folder, 0666), &fd, err);
    if (r < 0)
        return r;
    if (pl_buf_addf(&text, "{\"time\":%.3f}\n", pl_wall_s()) < 0)
        return pl_error_nomem(err);
    r = pl_write_all(fd, pl_buf_str(&text), text.len);
    if (close(PL_TAKE_FD(fd)) < 0 && r == 0) /* a network file system writes it now */
        r = -errno;
    if (r < 0) /* the command does not begin: leave it to a later job */
        unlinkat(run->dir_fd, name, 0);
    return r < 0 ? pl_error_errno(err, r, "cannot write '%s/%s'", run->dir, name) : 0;
}

/* A new reference; NULL: the command has not begun at this end. */
static json_t *read_end(const struct pl_run *run, unsigned arrays)
{
    _cleanup_free_ char *text = NULL;
    char name[NAME_SIZE];
    json_t *o = NULL;
    size_t len;

    end_name(arrays, name);
    if (pl_run_read_file(run, name, END_MAX, &text, &len, NULL) < 0)
        return NULL;
    /* It is empty for a moment after its claim. */
    return pl_json_parse(text, len, END_MAX, &o, NULL) == 0 ? o : json_object();
}

int pl_run_end_write(const struct pl_run *run,
                     unsigned arrays,
                     int wait_status,
                     struct pl_error *err)
{
    _cleanup_(json_decrefp) json_t *o = read_end(run, arrays);
    _cleanup_(pl_buf_finish) struct pl_buf text = {0};
    char name[NAME_SIZE];

    if (!o) /* somebody has removed the claim */
        o = json_object();
    if (!o || json_object_set_new(o, "ended", json_real(pl_wall_s())) < 0 ||
        pl_run_state_set_status(o, wait_status) < 0 || pl_json_dump_line(o, &text) < 0)
        return pl_error_nomem(err);
    end_name(arrays, name);
    return pl_run_write_file(run, name, pl_buf_str(&text), text.len, 0666, false, err);
}

struct pl_run_end pl_run_end_read(const struct pl_run *run)
{
    const json_t *recorded = json_object_get(run->sweep, "on_end");
    const char *job = pl_json_string(recorded, "job");
    _cleanup_(json_decrefp) json_t *o = NULL;
    struct pl_run_end end = {0};
    int64_t arrays = 0, n;

    if (!pl_run_on_end(run))
        return end;
    if (pl_run_is_local(run))
        arrays = (int64_t)pl_run_n_submissions(run);
    else
        pl_json_int(recorded, "arrays", &arrays);
    if (arrays <= 0 || arrays > PL_RUN_TRIAL_LIMIT)
        return end;
    end.arrays = (unsigned)arrays;
    if (job)
        snprintf(end.job, sizeof(end.job), "%s", job);
    o = read_end(run, end.arrays);
    end.begun = o != NULL;
    if (pl_json_int(o, "exit", &n) == 0 && n >= 0 && n <= 255) {
        end.ended = true;
        end.status = (int)n << 8;
    } else if (pl_json_int(o, "signal", &n) == 0 && n > 0 && n < 128) {
        end.ended = true;
        end.status = (int)n;
    }
    return end;
}

int pl_run_end_text(const struct pl_run *run, bool over, struct pl_buf *out)
{
    const struct pl_run_end end = pl_run_end_read(run);

    if (end.arrays == 0 || !over || (end.ended && end.status == 0))
        return 0;
    if (end.ended && WIFSIGNALED(end.status))
        return pl_buf_addf(out, "--on-end: SIG%s: see " OUTPUT_HERE,
                           sigabbrev_np(WTERMSIG(end.status)) ? sigabbrev_np(WTERMSIG(end.status))
                                                              : "?");
    if (end.ended)
        return pl_buf_addf(out, "--on-end: exit code %d: see " OUTPUT_HERE,
                           WEXITSTATUS(end.status));
    if (end.begun)
        return pl_buf_adds(out, "--on-end: has begun, and not ended: see " OUTPUT_HERE);
    return end.job[0] ? pl_buf_addf(out, "--on-end: has not begun: job %s", end.job)
                      : pl_buf_adds(out, "--on-end: has not begun");
}
