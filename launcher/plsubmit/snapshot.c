/* SPDX-License-Identifier: MIT */
#include "launcher/plsubmit/snapshot.h"
#include "common/base/fs.h"
#include "common/base/parse.h"
#include "launcher/plsubmit/hparams.h"
#include "launcher/plsubmit/snapshot_private.h"

#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>

#define WARNINGS_MAX 3 /* of arguments */

void pl_snapshot_finish(struct pl_snapshot *s)
{
    for (size_t i = 0; i < s->n_files; i++)
        free(s->files[i].path);
    free(s->files);
    free(s->root);
    free(s->cwd);
    free(s->prefix);
    free(s->commit);
    *s = (struct pl_snapshot){0};
}

/* ---- the files ---- */

static int compare_files(const void *va, const void *vb)
{
    const struct pl_snapshot_file *a = va, *b = vb;

    return strcmp(a->path, b->path);
}

static const struct pl_snapshot_file *find_file(const struct pl_snapshot *s, const char *path)
{
    struct pl_snapshot_file key = {.path = (char *)(uintptr_t)path};

    return s->n_files ? bsearch(&key, s->files, s->n_files, sizeof(key), compare_files) : NULL;
}

/* True for a file that can be copied; sets its size. A deleted file, or one whose place is now
 * something else, is not in the snapshot, as it is not in the working tree. */
static int look_at(struct pl_snapshot_place *from, struct pl_snapshot_file *file)
{
    const char *name;
    struct stat st;
    int fd = pl_snapshot_place_open(from, file->path, false, &name);

    if (fd == -ENOENT || fd == -ENOTDIR || fd == -ELOOP)
        return 0;
    if (fd < 0)
        return fd;
    if (fstatat(fd, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
        return errno == ENOENT || errno == ENOTDIR ? 0 : -errno;
    file->size = (uint64_t)st.st_size;
    return S_ISREG(st.st_mode) || S_ISLNK(st.st_mode);
}

/* True if a folder above the file, in the repository, is a run folder. */
static bool is_of_run(const struct pl_snapshot *s, const char *path)
{
    static const char *const files[] = {"sweep.json", "trials.jsonl", "job.sh"};

    for (const char *slash = strchr(path, '/'); slash; slash = strchr(slash + 1, '/')) {
        size_t n = 0;

        while (n < PL_COUNT(files)) {
            _cleanup_free_ char *file =
                pl_strf("%s/%.*s/%s", s->root, (int)(slash - path), path, files[n]);

            if (!file || access(file, F_OK) < 0)
                break;
            n++;
        }
        if (n == PL_COUNT(files))
            return true;
    }
    return false;
}

/* Keeps the files that exist, once each, and of those that git does not track none of a run: a
 * snapshot with older snapshots in it would double with each sweep. runs: the folder of runs; NULL:
 * it does not exist. */
static int keep_existing(struct pl_snapshot *s, const char *runs, struct pl_error *err)
{
    _cleanup_close_ int root = open(s->root, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    _cleanup_(pl_snapshot_place_finish) struct pl_snapshot_place from = {.root = root,
                                                                         .fd = -EBADF};
    bool inside = runs && pl_snapshot_is_below(runs, s->root); /* it is no folder of sources, too */
    size_t n = 0;

    if (root < 0)
        return pl_error_errno(err, errno, "--snapshot: cannot open '%.300s'", s->root);
    if (s->n_files)
        qsort(s->files, s->n_files, sizeof(*s->files), compare_files);
    for (size_t i = 0; i < s->n_files; i++) {
        struct pl_snapshot_file *file = &s->files[i];
        _cleanup_free_ char *whole = pl_path_join(s->root, file->path);
        bool twice = n > 0 && strcmp(s->files[n - 1].path, file->path) == 0;
        bool of_run = !file->tracked && whole &&
                      ((inside && pl_snapshot_is_below(whole, runs)) || is_of_run(s, file->path));
        int r = !whole ? -ENOMEM : twice || of_run ? 0 : look_at(&from, file);

        if (r < 0)
            return pl_error_errno(err, r, "--snapshot: cannot look at '%.300s'", file->path);
        if (r == 0) {
            free(PL_TAKE(file->path));
            continue;
        }
        s->bytes += file->size;
        s->files[n++] = *file;
        if (n <= i)
            file->path = NULL;
    }
    s->n_files = n;
    return 0;
}

/* "34 kB" */
static char *size_text(uint64_t bytes)
{
    static const char *const units[] = {"B", "kB", "MB", "GB", "TB"};
    double v = (double)bytes;
    size_t unit = 0;

    while (v >= 1000 && unit + 1 < PL_COUNT(units)) {
        v /= 1000;
        unit++;
    }
    return pl_strf(unit && v < 10 ? "%.1f %s" : "%.0f %s", v, units[unit]);
}

static int check_size(const struct pl_snapshot *s, const struct pl_spec *spec, struct pl_error *err)
{
    const char *max = spec->values[PL_SPEC_SNAPSHOT_MAX].text;
    const struct pl_snapshot_file *largest = NULL;
    _cleanup_free_ char *all = NULL, *one = NULL, *most = NULL;
    uint64_t limit = PL_SNAPSHOT_MAX_BYTES;

    if (max && pl_parse_mem(max, &limit, err) < 0)
        return err->code;
    if (s->bytes <= limit)
        return 0;
    for (size_t i = 0; i < s->n_files; i++)
        if (!largest || s->files[i].size > largest->size)
            largest = &s->files[i];
    all = size_text(s->bytes);
    one = size_text(largest->size);
    most = size_text(limit);
    if (!all || !one || !most)
        return pl_error_nomem(err);
    return pl_error_set(err, -EFBIG,
                        "the snapshot would have %s in %zu files, more than %s; the largest is "
                        "'%.300s', %s: write --snapshot-max SIZE, or keep large files out of git",
                        all, s->n_files, most, largest->path, one);
}

/* ---- the program ---- */

/* The path of a file in the repository; NULL: it is elsewhere. */
static char *path_in_root(const struct pl_snapshot *s, const char *word)
{
    _cleanup_free_ char *whole = NULL;

    if (word[0] == '/')
        return pl_snapshot_is_below(word, s->root) ? pl_snapshot_clean_path(word + strlen(s->root))
                                                   : NULL;
    whole = pl_strf("%s/%s", s->prefix, word);
    return whole ? pl_snapshot_clean_path(whole) : NULL;
}

static int check_program(const struct pl_snapshot *s, const char *program, struct pl_error *err)
{
    _cleanup_free_ char *path = strchr(program, '/') ? path_in_root(s, program) : NULL;

    if (!path || program[0] == '/' || find_file(s, path))
        return 0;
    return pl_error_set(err, -ENOENT,
                        "program '%.300s' is not in the snapshot: git add it, write "
                        "--snapshot=untracked, or give its absolute path",
                        program);
}

/* True if the snapshot has a file in the folder. */
static bool has_folder(const struct pl_snapshot *s, const char *path)
{
    bool has = !*path || strcmp(path, s->prefix) == 0;

    for (size_t i = 0; i < s->n_files && !has; i++)
        has = pl_snapshot_is_below(s->files[i].path, path);
    return has;
}

/* Warns of an argument that means something else in the snapshot than here. A folder is one with a
 * '/' in its name: "test" may be any word. */
static int check_argument(const struct pl_snapshot *s, const char *word, struct pl_spec *spec)
{
    const char *value = word[0] == '-' ? strchr(word, '=') : NULL;
    _cleanup_free_ char *path = NULL;
    struct stat st;
    bool has, folder;

    word = value ? value + 1 : word;
    path = path_in_root(s, word);
    if (!path || !*word || stat(word, &st) < 0)
        return 0;
    folder = S_ISDIR(st.st_mode) && word[0] != '/' && strchr(word, '/');
    if (!S_ISREG(st.st_mode) && !folder)
        return 0;
    has = folder ? has_folder(s, path) : find_file(s, path) != NULL;
    if (word[0] == '/' && has)
        return pl_spec_warn(spec,
                            "'%.300s' names the original file, not its copy in the snapshot: "
                            "write its path relative to the current folder",
                            word) < 0
                   ? -ENOMEM
                   : 1;
    if (word[0] != '/' && !has)
        return pl_spec_warn(spec,
                            "'%.300s' is not in the snapshot: git add it, write "
                            "--snapshot=untracked, or give its absolute path",
                            word) < 0
                   ? -ENOMEM
                   : 1;
    return 0;
}

static int check_words(const struct pl_snapshot *s, struct pl_spec *spec, struct pl_error *err)
{
    int r = 0, n = 0;

    if (!spec->bundled && !pl_hparams_is_pltrain(spec->argv[0])) {
        r = check_program(s, spec->argv[0], err);
        if (r == 0 && spec->argv[0][0] == '/' && !spec->program)
            n = check_argument(s, spec->argv[0], spec);
    }
    for (char **word = spec->argv + 1; spec->argv[0] && *word && r == 0 && n < WARNINGS_MAX;
         word++) {
        int warned = check_argument(s, *word, spec);

        if (warned < 0)
            return pl_error_nomem(err);
        n += warned;
    }
    return r == 0 && n < 0 ? pl_error_nomem(err) : r;
}

/* Options that the snapshot contradicts. */
static int check_options(const struct pl_spec *spec, struct pl_error *err)
{
    for (char **item = spec->lists[PL_SPEC_SBATCH]; item && *item; item++)
        if (strncmp(*item, "chdir=", 6) == 0)
            return pl_error_set(err, -EINVAL,
                                "--sbatch chdir: with --snapshot the trials run in the snapshot: "
                                "omit one of them");
    return 0;
}

int pl_snapshot_plan(struct pl_spec *spec, struct pl_snapshot *ret, struct pl_error *err)
{
    _cleanup_(pl_snapshot_finish) struct pl_snapshot s = {.wanted = true};
    const char *mode = spec->values[PL_SPEC_SNAPSHOT].text;
    const struct pl_spec_value *max = &spec->values[PL_SPEC_SNAPSHOT_MAX];
    _cleanup_free_ char *runs = NULL;
    int r;

    *ret = (struct pl_snapshot){0};
    if (!mode && (max->origin == PL_ORIGIN_COMMAND_LINE || max->origin == PL_ORIGIN_JOB_FILE))
        return pl_error_set(err, -EINVAL, "option '--snapshot-max' needs '--snapshot'");
    if (!mode)
        return 0;
    s.cwd = getcwd(NULL, 0);
    if (!s.cwd)
        return pl_error_errno(err, errno, "cannot find the current folder");
    r = check_options(spec, err);
    if (r == 0)
        r = pl_snapshot_find_root(&s, err);
    if (r < 0)
        return r;
    if (strcmp(s.root, "/") == 0 ||
        (strcmp(s.cwd, s.root) != 0 && !pl_snapshot_is_below(s.cwd, s.root)))
        return pl_error_set(err, -EINVAL,
                            "--snapshot: git's folder '%.300s' is not around '%.300s'", s.root,
                            s.cwd);
    s.prefix = strdup(s.cwd[strlen(s.root)] ? s.cwd + strlen(s.root) + 1 : "");
    runs = realpath(spec->values[PL_SPEC_RUNS].text, NULL); /* NULL: there are no files in it */
    r = s.prefix ? pl_snapshot_list(&s, strcmp(mode, "untracked") == 0, spec, err)
                 : pl_error_nomem(err);
    if (r == 0)
        r = keep_existing(&s, runs, err);
    if (r == 0)
        r = check_size(&s, spec, err);
    if (r == 0)
        r = check_words(&s, spec, err);
    if (r < 0)
        return r;
    *ret = s;
    s = (struct pl_snapshot){0};
    return 0;
}

/* ---- names ---- */

char *pl_snapshot_folder(const struct pl_snapshot *s, const char *run_dir)
{
    return pl_strf("%s/" PL_RUN_SNAPSHOT "%s%s", run_dir, *s->prefix ? "/" : "", s->prefix);
}

char *pl_snapshot_text(const struct pl_snapshot *s)
{
    _cleanup_free_ char *size = size_text(s->bytes);

    if (!size)
        return NULL;
    return s->commit
               ? pl_strf("%zu file%s, %s, commit %.12s", s->n_files, s->n_files == 1 ? "" : "s",
                         size, s->commit)
               : pl_strf("%zu file%s, %s, no commit", s->n_files, s->n_files == 1 ? "" : "s", size);
}

json_t *pl_snapshot_json(const struct pl_snapshot *s)
{
    /* a path that is not valid UTF-8 is left out: s* takes NULL only */
    json_t *root = json_string(s->root);
    json_t *o = json_pack("{s:s*, s:I, s:I}", "commit", s->commit, "files", (json_int_t)s->n_files,
                          "bytes", (json_int_t)s->bytes);

    if (o && root)
        json_object_set(o, "repository", root);
    json_decref(root);
    return o;
}
