/* SPDX-License-Identifier: MIT */
/* Checks that the program's arguments use the axes of the grid. */
#include "launcher/plsubmit/axes.h"
#include "common/base/macros.h"
#include "common/base/near.h"
#include "common/base/parse.h"

#include <string.h>

/* The axis whose {NAME} stands at s, as pl_run_trial_argv() finds it; n_axes: none. */
static size_t find_axis(const struct pl_grid *grid, const char *s)
{
    size_t i = 0;

    for (; i < grid->n_axes; i++) {
        size_t len = strlen(grid->axes[i].name);

        if (strncmp(s + 1, grid->axes[i].name, len) == 0 && s[1 + len] == '}')
            break;
    }
    return i;
}

/* True if {NAME} stands at s, and the name is one of the list. */
static bool is_literal(char *const *list, const char *s)
{
    for (; list && *list; list++)
        if (strncmp(s + 1, *list, strlen(*list)) == 0 && s[1 + strlen(*list)] == '}')
            return true;
    return false;
}

/* -EINVAL: an axis would replace what --literal says to keep. */
static int check_literal(const struct pl_grid *grid, char *const *list, struct pl_error *err)
{
    for (; list && *list; list++)
        for (size_t i = 0; i < grid->n_axes; i++)
            if (strcmp(grid->axes[i].name, *list) == 0)
                return pl_error_set(err, -EINVAL, "--literal %s: there is an axis of this name",
                                    *list);
    return 0;
}

/* Refuses {NAME} at s if NAME is no axis but nearly one. "${NAME}" is the shell's. */
static int
check_typo(const struct pl_grid *grid, const char *arg, const char *s, struct pl_error *err)
{
    size_t len = strcspn(s + 1, "}");
    _cleanup_free_ char *name = NULL;
    struct pl_near near = {0};

    if (!s[1 + len] || !pl_name_valid(s + 1, len) || (s > arg && s[-1] == '$'))
        return 0;
    name = strndup(s + 1, len);
    if (!name)
        return pl_error_set(err, -ENOMEM, "out of memory");
    near.word = name;
    for (size_t i = 0; i < grid->n_axes; i++)
        pl_near_offer(&near, grid->axes[i].name);
    if (!near.best)
        return 0;
    return pl_error_set(err, -EINVAL,
                        "argument '%.200s': {%s} is not an axis: did you mean {%s}? If it is the "
                        "program's own: --literal %s",
                        arg, name, near.best, name);
}

/* True if the argument, or all after its '=', is {NAME} of no axis. */
static bool is_placeholder(const struct pl_grid *grid, char *const *literal, const char *arg)
{
    const char *s = strchr(arg, '{');
    size_t len = s ? strcspn(s + 1, "}") : 0;

    return s && (s == arg || s[-1] == '=') && s[1 + len] && !s[2 + len] &&
           pl_name_valid(s + 1, len) && find_axis(grid, s) == grid->n_axes &&
           !is_literal(literal, s);
}

/* True if plsubmit's own option stands among the arguments of the program: one that hardly any
 * program has, or with which nothing would have been submitted. */
static bool is_ours(const char *const *arg)
{
    static const char *const names[] = {"--dry-run",       "--job-file",       "--max-parallel",
                                        "--max-fail",      "--requeue-on",     "--gpus-per-node",
                                        "--cpus-per-task", "--ntasks-per-node"};
    size_t len = strcspn(*arg, "=");
    const char *value = strncmp(*arg, "--grid=", 7) == 0 ? *arg + 7
                        : strcmp(*arg, "--grid") == 0    ? arg[1]
                                                         : NULL;
    const char *equals = value ? strchr(value, '=') : NULL;

    for (size_t i = 0; i < PL_COUNT(names); i++)
        if (strlen(names[i]) == len && strncmp(names[i], *arg, len) == 0)
            return true;
    return equals && pl_name_valid(value, (size_t)(equals - value));
}

static int scan(const struct pl_grid *grid,
                char *const *literal,
                const char *arg,
                bool *used,
                bool *any,
                struct pl_error *err)
{
    int r = 0;

    for (const char *s = strchr(arg, '{'); s && r == 0; s = strchr(s + 1, '{')) {
        size_t axis = find_axis(grid, s);

        if (axis == grid->n_axes && !is_literal(literal, s))
            r = check_typo(grid, arg, s, err);
        else if (axis < grid->n_axes)
            used[axis] = *any = true;
    }
    return r;
}

int pl_axes_check(const struct pl_grid *grid,
                  const char *const *argv,
                  char *const *literal,
                  bool is_pltrain,
                  bool own_words,
                  const char **ret_unused,
                  const char **ret_wrong,
                  struct pl_error *err)
{
    _cleanup_free_ bool *used = calloc(grid->n_axes + 1, sizeof(*used));
    bool any = false;
    int r = used ? check_literal(grid, literal, err) : pl_error_set(err, -ENOMEM, "out of memory");

    *ret_wrong = NULL;
    for (const char *const *arg = argv + 1; argv[0] && *arg && r == 0; arg++) {
        r = scan(grid, literal, *arg, used, &any, err);
        if (!*ret_wrong && (is_placeholder(grid, literal, *arg) || (!own_words && is_ours(arg))))
            *ret_wrong = *arg;
    }
    *ret_unused = NULL;
    for (size_t i = 0; i < grid->n_axes && any && r == 0 && !*ret_unused; i++)
        if (!used[i])
            *ret_unused = grid->axes[i].name;
    if (r == 0 && *ret_unused && is_pltrain)
        return pl_error_set(err, -EINVAL,
                            "no argument uses axis '%s', and pltrain reads only its arguments: add "
                            "--%s={%s}",
                            *ret_unused, *ret_unused, *ret_unused);
    return r;
}
