/* SPDX-License-Identifier: MIT */
#include "launcher/plsubmit/hparams.h"
#include "common/base/child.h"
#include "common/base/fs.h"
#include "common/base/strv.h"

#include <string.h>
#include <sys/wait.h>

#define LIMIT_MS 20000
#define BATCH_BYTES (32u * 1024) /* of one command line */
#define LINES_MAX 64             /* command lines of a process each */

bool pl_hparams_is_pltrain(const char *program)
{
    const char *slash = strrchr(program, '/');

    return strcmp(slash ? slash + 1 : program, "pltrain") == 0;
}

bool pl_hparams_is_module(const char *name, const char *pltrain)
{
    const char *const argv[] = {pltrain, "--list-hparams", "--", name, NULL};
    _cleanup_(pl_child_finish) struct pl_child child = {0};

    return pl_child_run(argv, NULL, LIMIT_MS, &child, NULL) == 0 && child.status == 0;
}

/* Appends arg with value number k of each axis, or an axis' last one. *ret_last: no axis in it has
 * more values than k + 1. */
static int add_values(
    const struct pl_grid *grid, const char *arg, size_t k, struct pl_buf *out, bool *ret_last)
{
    int r = 0;

    *ret_last = true;
    while (*arg && r == 0) {
        size_t len = 1 + strcspn(arg + 1, "{");
        const struct pl_axis *axis = NULL;

        for (size_t i = 0; i < grid->n_axes && *arg == '{' && !axis; i++) {
            size_t name = strlen(grid->axes[i].name);

            if (strncmp(arg + 1, grid->axes[i].name, name) == 0 && arg[1 + name] == '}') {
                axis = &grid->axes[i];
                len = name + 2;
            }
        }
        if (axis) {
            r = pl_buf_adds(out, axis->values[PL_MIN(k, axis->n_values - 1)]);
            *ret_last &= k + 1 >= axis->n_values;
        } else {
            r = pl_buf_add(out, arg, len);
        }
        arg += len;
    }
    return r;
}

static bool has_axis(const struct pl_grid *grid, const char *arg)
{
    for (size_t i = 0; i < grid->n_axes; i++) {
        const char *name = grid->axes[i].name;
        size_t len = strlen(name);

        for (const char *s = strchr(arg, '{'); s; s = strchr(s + 1, '{'))
            if (strncmp(s + 1, name, len) == 0 && s[1 + len] == '}')
                return true;
    }
    return false;
}

/* These words of pltrain, with their values; axes that no argument has are appended as
 * "--NAME VALUE", as pl_run_trial_argv() does. */
static int words_of(const struct pl_grid *grid, char *const *argv, char ***ret)
{
    _cleanup_(pl_strv_freep) char **words = NULL;
    bool any = false;
    int r = 0;

    for (size_t i = 0; argv[i] && r == 0; i++) {
        any |= has_axis(grid, argv[i]);
        r = pl_strv_append(&words, argv[i]);
    }
    for (size_t i = 0; i < grid->n_axes && r == 0 && !any; i++) {
        _cleanup_free_ char *word = pl_strf("--%s={%s}", grid->axes[i].name, grid->axes[i].name);

        r = word ? pl_strv_append(&words, word) : -ENOMEM;
    }
    *ret = r == 0 ? PL_TAKE(words) : NULL;
    return r;
}

/* Appends the words with value number k: all of them at first, then those with further values, each
 * with its option. *ret_more: there is a value k + 1. */
static int
add_words(const struct pl_grid *grid, char *const *words, size_t k, char ***list, bool *ret_more)
{
    int r = 0;

    *ret_more = false;
    for (size_t i = 0; words && words[i] && r == 0; i++) {
        bool of_option = i > 0 && words[i][0] != '-' && strncmp(words[i - 1], "--", 2) == 0 &&
                         !strchr(words[i - 1], '=');
        _cleanup_(pl_buf_finish) struct pl_buf word = {0};
        bool last;

        r = add_values(grid, words[i], k, &word, &last);
        *ret_more |= r == 0 && !last;
        if (r < 0 || (k > 0 && !has_axis(grid, words[i])))
            continue;
        if (k > 0 && of_option)
            r = pl_strv_append(list, words[i - 1]);
        if (r == 0)
            r = pl_strv_append(list, pl_buf_str(&word));
    }
    return r;
}

/* The first line of pltrain's answer that is no warning, without its name. */
static void first_line(const struct pl_child *child, char *ret, size_t size)
{
    static const char prefix[] = "pltrain: ";
    const char *s;

    pl_child_said(child, &s);
    if (strncmp(s, prefix, strlen(prefix)) == 0)
        s += strlen(prefix);
    snprintf(ret, size, "%.*s", (int)strcspn(s, "\n"), s);
}

/* Our environment without what changes the text of pltrain's messages. NULL: out of memory. The
 * caller frees the array alone. */
static char **plain_environment(void)
{
    char **list;
    size_t n = 0;

    while (environ[n])
        n++;
    list = calloc(n + 1, sizeof(*list));
    n = 0;
    for (char **p = environ; list && *p; p++)
        if (strncmp(*p, "PLUME_LOG=", 10) != 0 && strncmp(*p, "PLUME_LOG_FORMAT=", 17) != 0)
            list[n++] = *p;
    return list;
}

/* module: for messages; NULL: not known. */
static int run(char *const *list, const char *module, char **ret_warning, struct pl_error *err)
{
    _cleanup_(pl_child_finish) struct pl_child child = {0};
    _cleanup_free_ char **env = plain_environment();
    char line[PL_ERROR_TEXT_MAX];
    int r;

    if (!env)
        return -ENOMEM;
    r = pl_child_run((const char *const *)list, env, LIMIT_MS, &child, err);
    if (r == 0 && child.status == 0)
        return 0;
    first_line(&child, line, sizeof(line));
    if (r == 0 && WIFEXITED(child.status) && WEXITSTATUS(child.status) == PL_EXIT_NOT_FOUND)
        return pl_error_set(err, -ENOENT, "pltrain: %s", line);
    if (r == 0 && WIFEXITED(child.status) && WEXITSTATUS(child.status) == PL_EXIT_USAGE)
        return pl_error_set(err, -EINVAL, "pltrain%s%.100s: %s", module ? " " : "",
                            module ? module : "", line);
    *ret_warning =
        pl_strf("pltrain cannot check the options of %s%.100s%s here: %s",
                module ? "module '" : "this module", module ? module : "", module ? "'" : "",
                r < 0     ? pl_error_text(err)
                : line[0] ? line
                          : "it ended without an answer");
    return *ret_warning ? 0 : pl_error_set(err, -ENOMEM, "out of memory");
}

static size_t bytes_of(char *const *list, size_t from)
{
    size_t bytes = 0;

    for (char *const *word = list + from; *word; word++)
        bytes += strlen(*word) + 1;
    return bytes;
}

/* As pl_hparams_check(), where options stand before the module: pltrain alone knows which word is
 * the module, so that it gets a whole command line for each value. */
static int check_lines(const struct pl_grid *grid,
                       char *const *argv,
                       const char *pltrain,
                       char **ret_warning,
                       struct pl_error *err)
{
    _cleanup_(pl_strv_freep) char **words = NULL;
    bool more = true;
    int r = words_of(grid, argv + 1, &words);

    for (size_t i = 0; argv[i]; i++)
        if (strcmp(argv[i], "--test-gpus") == 0) /* has no module, and is for the nodes */
            return 0;
    for (size_t k = 0; r == 0 && more && !*ret_warning && k < LINES_MAX; k++) {
        _cleanup_(pl_strv_freep) char **list = NULL;

        r = pl_strv_append(&list, pltrain);
        if (r == 0)
            r = pl_strv_append(&list, "--list-hparams");
        more = false;
        for (size_t i = 0; words[i] && r == 0; i++) {
            _cleanup_(pl_buf_finish) struct pl_buf word = {0};
            bool last;

            r = add_values(grid, words[i], k, &word, &last);
            more |= !last;
            if (r == 0)
                r = pl_strv_append(&list, pl_buf_str(&word));
        }
        if (r == 0)
            r = run(list, NULL, ret_warning, err);
    }
    return r == -ENOMEM ? pl_error_set(err, r, "out of memory") : r;
}

/* As pl_hparams_check(), for plsubmit's own pltrain. */
static int check(const struct pl_grid *grid,
                 char *const *argv,
                 const char *pltrain,
                 char **ret_warning,
                 struct pl_error *err)
{
    _cleanup_(pl_strv_freep) char **words = NULL;
    bool more = true;
    size_t k = 0;
    int r;

    if (!argv[1] || strchr(argv[1], '{') || access(pltrain, X_OK) < 0)
        return 0;
    if (argv[1][0] == '-')
        return check_lines(grid, argv, pltrain, ret_warning, err);
    r = words_of(grid, argv + 2, &words);
    while (r == 0 && more && !*ret_warning) {
        _cleanup_(pl_strv_freep) char **list = NULL;
        const char *const first[] = {pltrain, argv[1], "--list-hparams"};
        size_t n, bytes = 0;

        for (size_t i = 0; i < PL_COUNT(first) && r == 0; i++)
            r = pl_strv_append(&list, first[i]);
        for (n = PL_COUNT(first); r == 0 && more && bytes < BATCH_BYTES; k++) {
            r = add_words(grid, words, k, &list, &more);
            bytes += r == 0 ? bytes_of(list, n) : 0;
            while (r == 0 && list[n])
                n++;
        }
        if (r == 0)
            r = run(list, argv[1], ret_warning, err);
    }
    return r == -ENOMEM ? pl_error_set(err, r, "out of memory") : r;
}

/* False for a wrapper and another release, which may have other modules and options. */
static bool is_own(const char *program, const char *pltrain)
{
    _cleanup_free_ char *file = strchr(program, '/') ? realpath(program, NULL) : NULL;
    _cleanup_free_ char *own = realpath(pltrain, NULL);

    return file && own && strcmp(file, own) == 0;
}

int pl_hparams_check(const struct pl_grid *grid,
                     char *const *argv,
                     const char *pltrain,
                     char **ret_warning,
                     struct pl_error *err)
{
    int r;

    *ret_warning = NULL;
    r = check(grid, argv, pltrain, ret_warning, err);
    if ((r != -EINVAL && r != -ENOENT) || is_own(argv[0], pltrain))
        return r;
    *ret_warning = pl_strf("'%.200s' may take what plsubmit's own pltrain refuses: %s", argv[0],
                           pl_error_text(err));
    return *ret_warning ? 0 : pl_error_nomem(err);
}
