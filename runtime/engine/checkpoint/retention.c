/* SPDX-License-Identifier: MIT */
#include "runtime/engine/checkpoint/retention.h"
#include "common/base/fs.h"
#include "common/base/parse.h"
#include "runtime/engine/checkpoint/checkpoint.h"

#include <dirent.h>
#include <math.h>
#include <string.h>
#include <sys/stat.h>

int pl_retention_init(struct pl_retention *retention,
                      const char *dir,
                      const char *monitor,
                      bool maximize,
                      int k,
                      struct pl_error *err)
{
    struct pl_retention b = {.maximize = maximize, .k = k};

    if (k < -1)
        return pl_error_set(err, -EINVAL, "the number of checkpoints to keep must be -1 or more");
    if (!monitor && k > 1)
        return pl_error_set(err, -EINVAL,
                            "the best %d checkpoints need a value to monitor: give --monitor NAME",
                            k);
    b.dir = strdup(dir);
    b.monitor = monitor ? strdup(monitor) : NULL;
    if (!b.dir || (monitor && !b.monitor)) {
        pl_retention_finish(&b);
        return pl_error_nomem(err);
    }
    *retention = b;
    return 0;
}

void pl_retention_finish(struct pl_retention *retention)
{
    for (size_t i = 0; i < retention->n; i++)
        free(retention->kept[i].path);
    free(retention->kept);
    free(retention->monitor);
    free(retention->dir);
    *retention = (struct pl_retention){0};
}

/* Without a monitor the newest counts as best. */
static bool beats(const struct pl_retention *b, double value, double other)
{
    if (!b->monitor)
        return true;
    if (isnan(value) || isnan(other))
        return !isnan(value);
    return b->maximize ? value > other : value < other;
}

/* Takes ownership of path. Entries of a checkpoint are in order and are appended. */
static int insert(struct pl_retention *b, double value, char *path, bool append)
{
    struct pl_retention_kept *kept = reallocarray(b->kept, b->n + 1, sizeof(*kept));
    size_t at = b->n;

    if (!kept)
        return -ENOMEM;
    b->kept = kept;
    for (; !append && at > 0 && beats(b, value, kept[at - 1].value); at--)
        kept[at] = kept[at - 1];
    kept[at] = (struct pl_retention_kept){value, path};
    b->n++;
    return 0;
}

int pl_retention_add(struct pl_retention *retention,
                     uint64_t epoch,
                     uint64_t step,
                     double value,
                     char **ret_path,
                     char **ret_remove)
{
    _cleanup_free_ char *path = NULL, *copy = NULL;
    bool full = retention->k >= 0 && retention->n >= (size_t)retention->k;
    char name[80], *pushed = NULL;

    if (retention->k == 0 ||
        (full && !beats(retention, value, retention->kept[retention->n - 1].value)))
        return 0;
    snprintf(name, sizeof(name), "epoch=%llu-step=%llu.ckpt", (unsigned long long)epoch,
             (unsigned long long)step);
    path = pl_path_join(retention->dir, name);
    copy = path ? strdup(path) : NULL;
    if (!copy)
        return -ENOMEM;
    for (size_t i = 0; i < retention->n; i++) { /* the same path again, after another validation */
        if (strcmp(retention->kept[i].path, path) == 0) {
            free(retention->kept[i].path);
            memmove(&retention->kept[i], &retention->kept[i + 1],
                    (retention->n - i - 1) * sizeof(*retention->kept));
            retention->n--;
            full = false;
            break;
        }
    }
    if (full)
        pushed = retention->kept[--retention->n].path;
    if (insert(retention, value, path, false) < 0) {
        free(pushed);
        return -ENOMEM;
    }
    path = NULL;
    *ret_path = PL_TAKE(copy);
    *ret_remove = pushed;
    return 1;
}

int pl_retention_save(const struct pl_retention *retention, struct pl_buf *buf)
{
    size_t mark = buf->len;
    int r = pl_buf_adds(buf, "{\"monitor\":");

    r = r < 0 ? r
              : (retention->monitor ? pl_mini_quote(buf, retention->monitor)
                                    : pl_buf_adds(buf, "null"));
    r = r < 0
            ? r
            : pl_buf_addf(buf, ",\"mode\":\"%s\",\"kept\":[", retention->maximize ? "max" : "min");
    for (size_t i = 0; i < retention->n && r == 0; i++) {
        r = pl_buf_adds(buf, i ? ",{\"path\":" : "{\"path\":");
        r = r < 0 ? r : pl_mini_quote(buf, retention->kept[i].path);
        r = r < 0 ? r : pl_buf_adds(buf, ",\"value\":");
        r = r < 0 ? r : pl_json_add_double(buf, retention->kept[i].value);
        r = r < 0 ? r : pl_buf_addc(buf, '}');
    }
    r = r < 0 ? r : pl_buf_adds(buf, "]}");
    if (r < 0)
        buf->len = mark;
    return r;
}

/* The file's path by this run's name of the folder. *ret = NULL: the file is in another folder, as
 * that of the run that this one continues, or gone. -ENOMEM. */
static int find_in(const char *dir, const char *saved, char **ret)
{
    const char *slash = strrchr(saved, '/');
    _cleanup_free_ char *path = pl_path_join(dir, slash ? slash + 1 : saved);
    struct stat there, here;

    *ret = NULL;
    if (!path)
        return -ENOMEM;
    if (stat(saved, &there) == 0 && stat(path, &here) == 0 && there.st_dev == here.st_dev &&
        there.st_ino == here.st_ino)
        *ret = PL_TAKE(path);
    return 0;
}

static int load_entry(struct pl_retention *b, const struct pl_mini_value *entry)
{
    _cleanup_free_ char *text = strndup(entry->start, entry->len), *saved = NULL, *path = NULL;
    double value;
    int r;

    if (!text)
        return -ENOMEM;
    if (pl_mini_get_string(text, "path", &saved) < 0 ||
        pl_json_get_double(text, "value", &value) < 0)
        return -EINVAL;
    r = find_in(b->dir, saved, &path);
    if (r < 0 || !path || (b->k >= 0 && b->n >= (size_t)b->k))
        return r;
    r = insert(b, value, path, true);
    if (r == 0)
        path = NULL;
    return r;
}

int pl_retention_load(struct pl_retention *retention, const char *json)
{
    _cleanup_free_ char *monitor = NULL, *mode = NULL;
    struct pl_mini_value list, entry;
    size_t pos = 0;
    int r;

    pl_mini_get_string(json, "monitor", &monitor);
    if (pl_mini_get_string(json, "mode", &mode) < 0 || pl_mini_find(json, "kept", &list) < 0 ||
        list.type != PL_MINI_ARRAY)
        return -EINVAL;
    if (strcmp(mode, retention->maximize ? "max" : "min") != 0 || !monitor != !retention->monitor ||
        (monitor && strcmp(monitor, retention->monitor) != 0))
        return 0; /* values of another monitor cannot be compared */
    while ((r = pl_mini_next(&list, &pos, &entry)) == 1) {
        r = load_entry(retention, &entry);
        if (r < 0)
            return r;
    }
    return r;
}

/* N of the name hpc_ckpt_N.ckpt; 0: it is another name. */
static int64_t hpc_number(const char *name)
{
    static const char prefix[] = "hpc_ckpt_", suffix[] = ".ckpt";
    const size_t ends = sizeof(prefix) + sizeof(suffix) - 2;
    size_t len = strlen(name);
    char number[24];
    int64_t n;

    if (len <= ends || len - ends >= sizeof(number) ||
        strncmp(name, prefix, sizeof(prefix) - 1) != 0 ||
        strcmp(name + len - (sizeof(suffix) - 1), suffix) != 0)
        return 0;
    memcpy(number, name + sizeof(prefix) - 1, len - ends);
    number[len - ends] = '\0';
    return pl_parse_int(number, 1, INT64_MAX - 1, &n, NULL) == 0 ? n : 0;
}

/* *ret = the highest N of hpc_ckpt_N.ckpt in the folder; 0 if there is none. Removes those with an
 * N below `below`. */
static int walk_hpc(const char *dir, int64_t below, int64_t *ret, struct pl_error *err)
{
    struct dirent *entry;
    DIR *d = opendir(dir);
    int r = 0;

    *ret = 0;
    if (!d && errno == ENOENT)
        return 0;
    if (!d)
        return pl_error_errno(err, errno, "cannot read folder '%s'", dir);
    while ((entry = readdir(d))) {
        int64_t n = hpc_number(entry->d_name);

        *ret = PL_MAX(*ret, n);
        if (n && n < below && unlinkat(dirfd(d), entry->d_name, 0) < 0 && errno != ENOENT)
            r = pl_error_errno(err, errno, "cannot remove '%s/%s'", dir, entry->d_name);
    }
    closedir(d);
    return r;
}

static int hpc_path(const char *dir, int64_t n, char **ret, struct pl_error *err)
{
    char name[64];

    snprintf(name, sizeof(name), "hpc_ckpt_%lld.ckpt", (long long)n);
    *ret = pl_path_join(dir, name);
    return *ret ? 0 : pl_error_nomem(err);
}

int pl_hpc_next(const char *dir, char **ret, struct pl_error *err)
{
    int64_t n;
    int r = walk_hpc(dir, 0, &n, err);

    return r < 0 ? r : hpc_path(dir, n + 1, ret, err);
}

int pl_hpc_latest(const char *dir, char **ret, struct pl_error *err)
{
    int64_t n;
    int r = walk_hpc(dir, 0, &n, err);

    if (r == 0 && n == 0)
        *ret = NULL;
    else if (r == 0)
        r = hpc_path(dir, n, ret, err);
    return r;
}

int pl_hpc_remove_older(const char *dir, struct pl_error *err)
{
    int64_t n;
    int r = walk_hpc(dir, 0, &n, err);

    return r < 0 ? r : walk_hpc(dir, n, &n, err);
}
