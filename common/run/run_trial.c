/* SPDX-License-Identifier: MIT */
/* Reads trials.jsonl and makes the arguments and environment of a trial's program from it. */
#include "common/base/fs.h"
#include "common/base/own.h"
#include "common/base/parse.h"
#include "common/proto/json.h"
#include "common/run/run_folder_private.h"

#include <fcntl.h>
#include <string.h>

#define BISECT_BYTES 4096

/* Reads the file and the offsets of its lines. */
int pl_run_load_trials(struct pl_run *run, struct pl_error *err)
{
    _cleanup_free_ char *text = NULL;
    _cleanup_free_ size_t *lines = calloc((size_t)run->n_trials + 1, sizeof(*lines));
    size_t len, n = 0;
    int r;

    if (!lines)
        return pl_error_set(err, -ENOMEM, "out of memory");
    r = pl_run_read_file(run, PL_RUN_TRIALS_FILE, PL_RUN_TRIALS_MAX, &text, &len, err);
    if (r < 0)
        return r;
    for (size_t i = 0; i < len && n < run->n_trials; i++)
        if (text[i] == '\n')
            lines[++n] = i + 1;
    if (n < run->n_trials)
        return pl_error_set(err, -EINVAL, "'%s/%s' has %zu lines instead of %u", run->dir,
                            PL_RUN_TRIALS_FILE, n, run->n_trials);
    run->trials = PL_TAKE(text);
    run->lines = PL_TAKE(lines);
    return 0;
}

/* The parameters in a line of trials.jsonl; a new reference. */
static int parse_line(const struct pl_run *run,
                      unsigned trial,
                      const char *text,
                      size_t len,
                      json_t **ret,
                      struct pl_error *err)
{
    _cleanup_(json_decrefp) json_t *line = NULL;
    json_t *params, *value;
    const char *key;
    int64_t number;
    int r = pl_json_parse(text, len, PL_RUN_TRIALS_MAX, &line, err);

    if (r < 0)
        return pl_error_wrap(err, r, "line %u of '%s/%s'", trial + 1, run->dir, PL_RUN_TRIALS_FILE);
    params = json_object_get(line, "params");
    if (pl_json_int(line, "trial", &number) < 0 || number != trial || !json_is_object(params))
        goto damaged;
    json_object_foreach (params, key, value) {
        if (!json_is_string(value))
            goto damaged;
    }
    *ret = json_incref(params);
    return 0;

damaged:
    return pl_error_set(err, -EINVAL, "line %u of '%s/%s' is damaged: it is not this trial",
                        trial + 1, run->dir, PL_RUN_TRIALS_FILE);
}

static int check_trial(const struct pl_run *run, unsigned trial, struct pl_error *err)
{
    return trial < run->n_trials
               ? 0
               : pl_error_set(err, -ENOENT, "no trial %u: sweep '%s' has trials 0 to %u", trial,
                              pl_run_sweep(run), run->n_trials - 1);
}

int pl_run_trial_params(struct pl_run *run, unsigned trial, json_t **ret, struct pl_error *err)
{
    int r = check_trial(run, trial, err);

    if (r == 0 && !run->trials)
        r = pl_run_load_trials(run, err);
    if (r < 0)
        return r;
    return parse_line(run, trial, run->trials + run->lines[trial],
                      run->lines[trial + 1] - run->lines[trial], ret, err);
}

/* ---- one line ---- */

/* The number in '{"trial":7,"params":...', as pl_run_add_trial_line() begins a line; -EINVAL. */
static int64_t number_of(const char *line)
{
    static const char begin[] = "{\"trial\":";
    size_t n = strlen(begin), digits;
    int64_t number;
    char text[12];

    if (strncmp(line, begin, n) != 0)
        return -EINVAL;
    digits = strspn(line + n, "0123456789");
    if (digits == 0 || digits >= sizeof(text) || line[n + digits] != ',')
        return -EINVAL;
    memcpy(text, line + n, digits);
    text[digits] = '\0';
    return pl_parse_int(text, 0, UINT32_MAX, &number, NULL) == 0 ? number : -EINVAL;
}

/* Reads the line of a trial by bisection, since line N is trial N: a rank needs one of perhaps a
 * million. -ENOENT: the file is not as we write it. */
static int find_line(FILE *file, unsigned trial, char **line, size_t *size, ssize_t *ret_len)
{
    off_t low = 0, high; /* the trial's line begins at `low` or after it, and before `high` */

    if (fseeko(file, 0, SEEK_END) < 0 || (high = ftello(file)) < 0)
        return -errno;
    while (high - low > BISECT_BYTES) {
        off_t middle = low + (high - low) / 2, start;
        int64_t number;

        if (fseeko(file, middle, SEEK_SET) < 0 || getline(line, size, file) < 0 ||
            (start = ftello(file)) < 0)
            return -ENOENT;
        if (start >= high || getline(line, size, file) < 0) {
            high = middle + 1; /* no line begins between them */
            continue;
        }
        number = number_of(*line);
        if (number < 0)
            return -ENOENT;
        if (number <= (int64_t)trial)
            low = start;
        else
            high = middle + 1;
    }
    if (fseeko(file, low, SEEK_SET) < 0)
        return -errno;
    while ((*ret_len = getline(line, size, file)) > 0) {
        int64_t number = number_of(*line);

        if (number == (int64_t)trial)
            return 0;
        if (number < 0 || number > (int64_t)trial)
            break;
    }
    return -ENOENT;
}

int pl_run_one_trial_params(struct pl_run *run, unsigned trial, json_t **ret, struct pl_error *err)
{
    _cleanup_close_ int fd = -EBADF;
    _cleanup_free_ char *line = NULL;
    size_t size = 0;
    ssize_t len = 0;
    FILE *file = NULL;
    int r = check_trial(run, trial, err);

    if (r < 0)
        return r;
    if (run->dir_fd >= 0)
        r = pl_own_file_open(run->dir_fd, PL_RUN_TRIALS_FILE, O_RDONLY, 0, &fd, NULL);
    if (r == 0 && fd >= 0)
        file = fdopen(fd, "re");
    if (file) {
        (void)PL_TAKE_FD(fd);
        r = find_line(file, trial, &line, &size, &len);
        fclose(file);
        if (r == 0)
            return parse_line(run, trial, line, (size_t)len, ret, err);
    }
    return pl_run_trial_params(run, trial, ret, err); /* which says what is wrong */
}

/* The axis whose {NAME} stands at s; NULL: none. */
static const char *placeholder(const struct pl_run *run, const char *s, size_t *ret_len)
{
    for (size_t i = 0; i < pl_run_n_axes(run); i++) {
        const char *axis = pl_run_axis(run, i);
        size_t len = strlen(axis);

        if (strncmp(s + 1, axis, len) == 0 && s[1 + len] == '}') {
            *ret_len = len + 2;
            return axis;
        }
    }
    return NULL;
}

/* Replaces the placeholders of one argument and counts them in *used. */
static int substitute(
    const struct pl_run *run, const json_t *params, const char *arg, char **ret, size_t *used)
{
    _cleanup_(pl_buf_finish) struct pl_buf out = {0};
    const char *axis, *value;
    size_t len;
    int r = 0;

    while (*arg && r == 0) {
        axis = *arg == '{' ? placeholder(run, arg, &len) : NULL;
        if (!axis) {
            len = 1 + strcspn(arg + 1, "{");
            r = pl_buf_add(&out, arg, len);
        } else {
            value = pl_json_string(params, axis);
            r = value ? pl_buf_adds(&out, value) : -EINVAL;
            (*used)++;
        }
        arg += len;
    }
    if (r < 0)
        return r;
    *ret = pl_buf_take(&out);
    return *ret ? 0 : -ENOMEM;
}

static int append_options(const struct pl_run *run, const json_t *params, char **list)
{
    for (size_t i = 0; i < pl_run_n_axes(run); i++) {
        const char *axis = pl_run_axis(run, i), *value = pl_json_string(params, axis);

        if (!value)
            return -EINVAL;
        list[0] = pl_strf("--%s", axis);
        list[1] = list[0] ? strdup(value) : NULL;
        if (!list[1])
            return -ENOMEM;
        list += 2;
    }
    return 0;
}

int pl_run_trial_argv(const struct pl_run *run,
                      const json_t *params,
                      char ***ret,
                      struct pl_error *err)
{
    _cleanup_(pl_strv_freep) char **list = NULL;
    const char *const *argv;
    size_t n, used = 0;
    int r = 0;

    argv = pl_run_argv(run, &n);
    list = calloc(n + 2 * pl_run_n_axes(run) + 1, sizeof(*list));
    if (!list)
        return pl_error_set(err, -ENOMEM, "out of memory");
    list[0] = strdup(argv[0]);
    if (!list[0])
        r = -ENOMEM;
    for (size_t i = 1; i < n && r == 0; i++)
        r = substitute(run, params, argv[i], &list[i], &used);
    if (r == 0 && used == 0)
        r = append_options(run, params, list + n);
    if (r < 0)
        return pl_error_set(err, r, "%s",
                            r == -EINVAL ? "the trial has no value for an axis" : "out of memory");
    *ret = PL_TAKE(list);
    return 0;
}

int pl_run_trial_env(const json_t *params, char ***ret, struct pl_error *err)
{
    json_t *object = (json_t *)(uintptr_t)params, *value; /* the iterator takes no const */
    _cleanup_(pl_strv_freep) char **list = calloc(json_object_size(params) + 2, sizeof(*list));
    _cleanup_free_ char *all = pl_json_dumps(params, JSON_COMPACT);
    const char *key;
    size_t n = 0;

    if (!list || !all)
        return pl_error_set(err, -ENOMEM, "out of memory");
    json_object_foreach (object, key, value) {
        list[n] = pl_strf("PLUME_PARAM_%s=%s", key, json_string_value(value));
        if (!list[n])
            return pl_error_set(err, -ENOMEM, "out of memory");
        for (char *p = list[n]; *p != '='; p++)
            if (*p == '.' || *p == '-')
                *p = '_';
        n++;
    }
    list[n] = pl_strf("PLUME_PARAMS=%s", all);
    if (!list[n])
        return pl_error_set(err, -ENOMEM, "out of memory");
    *ret = PL_TAKE(list);
    return 0;
}
