/* SPDX-License-Identifier: MIT */
/* git's part of a snapshot: where the repository is, and which files it has. */
#include "common/base/child.h"
#include "common/base/fs.h"
#include "common/base/strv.h"
#include "launcher/plsubmit/snapshot_private.h"

#include <string.h>

#define GIT_MS 120000u
#define DEPTH_MAX 16 /* submodules in submodules */
#define ARGS_MAX 8

/* ---- git ---- */

/* Our environment without what would make git look at another repository than that of the folder,
 * and without leave to fetch missing objects. */
static char **environment(void)
{
    static const char *const others[] = {
        "GIT_DIR=",        "GIT_WORK_TREE=",        "GIT_INDEX_FILE=", "GIT_PREFIX=",
        "GIT_COMMON_DIR=", "GIT_OBJECT_DIRECTORY=", "GIT_NAMESPACE=",  "GIT_LITERAL_PATHSPECS="};
    char **list = NULL;
    int r = pl_strv_append(&list, "GIT_NO_LAZY_FETCH=1");

    if (r == 0)
        r = pl_strv_append(&list, "GIT_TERMINAL_PROMPT=0");
    for (char **p = environ; *p && r == 0; p++) {
        bool other = false;

        for (size_t i = 0; i < PL_COUNT(others); i++)
            other |= strncmp(*p, others[i], strlen(others[i])) == 0;
        if (!other)
            r = pl_strv_append(&list, *p);
    }
    if (r < 0)
        pl_strv_free(PL_TAKE(list));
    return list;
}

/* Runs git in a folder; args end with NULL. The options keep the repository's configuration from
 * naming programs: a monitor of the file system, hooks, and the helpers of transports. */
static int
run_git(const char *folder, const char *const *args, struct pl_child *ret, struct pl_error *err)
{
    const char *argv[10 + ARGS_MAX] = {
        "git", "--no-optional-locks", "-C", folder,
        "-c",  "core.fsmonitor=",     "-c", "core.hooksPath=/dev/null",
        "-c",  "protocol.allow=never"};
    _cleanup_(pl_strv_freep) char **env = environment();
    size_t n = 10;
    int r;

    if (!env)
        return pl_error_nomem(err);
    while (*args)
        argv[n++] = *args++;
    argv[n] = NULL;
    r = pl_child_run(argv, env, GIT_MS, ret, err);
    if (r == -ENOENT)
        return pl_error_set(err, r, "--snapshot needs git, which is not in PATH");
    if (r == -ETIMEDOUT)
        return pl_error_set(err, r, "--snapshot: git did not end within %u s", GIT_MS / 1000);
    return r;
}

/* Prints what git said, after its "fatal: ". */
static int git_failed(const struct pl_child *child, const char *folder, struct pl_error *err)
{
    const char *text = pl_buf_str(&child->err);

    if (strncmp(text, "fatal: ", 7) == 0)
        text += 7;
    return pl_error_set(err, -ENOENT, "--snapshot: git in '%.300s': %.*s", folder,
                        (int)strcspn(text, "\n"), text);
}

int pl_snapshot_find_root(struct pl_snapshot *s, struct pl_error *err)
{
    static const char *const top[] = {"rev-parse", "--show-toplevel", NULL};
    static const char *const head[] = {"rev-parse", "--verify", "--quiet", "HEAD", NULL};
    _cleanup_(pl_child_finish) struct pl_child child = {0}, second = {0};
    int r = run_git(s->cwd, top, &child, err);
    size_t len = child.out.len;

    if (r < 0)
        return r;
    if (child.status != 0 || len < 2)
        return git_failed(&child, s->cwd, err);
    child.out.data[len - 1] = '\0';
    s->root = realpath(pl_buf_str(&child.out), NULL);
    if (!s->root)
        return pl_error_errno(err, errno, "--snapshot: cannot open '%.300s'",
                              pl_buf_str(&child.out));
    r = run_git(s->cwd, head, &second, err);
    if (r < 0 || second.status != 0)
        return r; /* no commit yet */
    s->commit = strndup(pl_buf_str(&second.out), strcspn(pl_buf_str(&second.out), "\n"));
    return s->commit ? 0 : pl_error_nomem(err);
}

/* ---- the list ---- */

struct lister {
    struct pl_snapshot *s;
    struct pl_spec *spec;
    struct pl_error *err;
    bool untracked;
    size_t room; /* in s->files */
};

static int list_repository(struct lister *l, const char *root, const char *inner, unsigned depth);

bool pl_snapshot_path_ok(const char *path)
{
    while (*path) {
        size_t len = strcspn(path, "/");

        if (len == 0 || (len == 1 && path[0] == '.') || (len == 2 && !strncmp(path, "..", 2)) ||
            (len == 4 && strncasecmp(path, ".git", 4) == 0))
            return false;
        path += len;
        if (*path == '/' && !*++path)
            return false;
    }
    return true;
}

/* "INNER/PATH"; NULL when out of memory. */
static char *join(const char *inner, const char *path)
{
    return *inner ? pl_strf("%s/%s", inner, path) : strdup(path);
}

static int add_file(struct lister *l, const char *inner, const char *path, bool tracked)
{
    _cleanup_free_ char *whole = join(inner, path);
    struct pl_snapshot *s = l->s;

    if (!whole)
        return pl_error_nomem(l->err);
    if (!*path || !pl_snapshot_path_ok(whole))
        return pl_error_set(l->err, -EINVAL, "--snapshot: git lists '%.300s', which is not a path",
                            whole);
    if (s->n_files == l->room) {
        size_t room = l->room ? 2 * l->room : 256;
        struct pl_snapshot_file *more = realloc(s->files, room * sizeof(*more));

        if (!more)
            return pl_error_nomem(l->err);
        s->files = more;
        l->room = room;
    }
    s->files[s->n_files++] = (struct pl_snapshot_file){.path = PL_TAKE(whole), .tracked = tracked};
    return 0;
}

static int list_submodule(
    struct lister *l, const char *root, const char *inner, const char *path, unsigned depth)
{
    _cleanup_free_ char *whole = join(inner, path), *git = pl_strf("%s/%s/.git", root, whole);

    if (!whole || !git)
        return pl_error_nomem(l->err);
    if (!pl_snapshot_path_ok(whole))
        return pl_error_set(l->err, -EINVAL, "--snapshot: git lists '%.300s', which is not a path",
                            whole);
    if (access(git, F_OK) < 0)
        return pl_spec_warn(l->spec,
                            "the snapshot lacks submodule '%.300s', which is not checked out: git "
                            "submodule update --init",
                            whole) < 0
                   ? pl_error_nomem(l->err)
                   : 0;
    return list_repository(l, root, whole, depth + 1);
}

/* A line "MODE HASH STAGE<tab>PATH" of the index. */
static int
add_entry(struct lister *l, const char *root, const char *inner, const char *line, unsigned depth)
{
    const char *tab = strchr(line, '\t');

    if (!tab)
        return pl_error_set(l->err, -EINVAL, "--snapshot: cannot read git's list of files");
    if (strncmp(line, "160000 ", 7) == 0)
        return list_submodule(l, root, inner, tab + 1, depth);
    return add_file(l, inner, tab + 1, true);
}

/* A path of a file that git does not track; with a '/' at the end it is a repository. */
static int add_untracked(struct lister *l, const char *inner, const char *path)
{
    size_t len = strlen(path);

    if (len == 0 || path[len - 1] != '/')
        return add_file(l, inner, path, false);
    return pl_spec_warn(l->spec,
                        "the snapshot lacks '%s%s%.300s', a repository of its own: git submodule "
                        "add",
                        inner, *inner ? "/" : "", path) < 0
               ? pl_error_nomem(l->err)
               : 0;
}

static int list_repository(struct lister *l, const char *root, const char *inner, unsigned depth)
{
    static const char *const tracked[] = {"ls-files", "-z", "--cached", "--stage", NULL};
    static const char *const others[] = {"ls-files", "-z", "--others", "--exclude-standard", NULL};
    _cleanup_free_ char *folder = *inner ? pl_path_join(root, inner) : strdup(root);
    int r = folder ? 0 : pl_error_nomem(l->err);

    if (depth > DEPTH_MAX)
        return pl_error_set(l->err, -EINVAL, "--snapshot: more than %d submodules in each other",
                            DEPTH_MAX);
    for (int turn = 0; turn < (l->untracked ? 2 : 1) && r == 0; turn++) {
        _cleanup_(pl_child_finish) struct pl_child child = {0};

        r = run_git(folder, turn ? others : tracked, &child, l->err);
        if (r == 0 && child.status != 0)
            r = git_failed(&child, folder, l->err);
        for (size_t at = 0; r == 0 && at < child.out.len; at += strlen(child.out.data + at) + 1)
            r = turn ? add_untracked(l, inner, child.out.data + at)
                     : add_entry(l, root, inner, child.out.data + at, depth);
    }
    return r;
}

int pl_snapshot_list(struct pl_snapshot *s,
                     bool untracked,
                     struct pl_spec *spec,
                     struct pl_error *err)
{
    struct lister l = {.s = s, .spec = spec, .err = err, .untracked = untracked};

    return list_repository(&l, s->root, "", 0);
}
