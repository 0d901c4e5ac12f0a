/* SPDX-License-Identifier: MIT */
#include "launcher/plsubmit/hints.h"
#include "common/base/fs.h"
#include "common/base/parse.h"
#include "common/base/program.h"
#include "common/base/term.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>

#define HEAD_BYTES 8192  /* of a script, with its lines #SBATCH */
#define SIGNAL_LEAD_S 60 /* of sbatch --signal without a time */
#define HIGHEST_USUAL 31 /* the largest number of a signal with a name of its own */

/* ---- the program ---- */

/* True for a file that the kernel does not start, so that execvp() gives it to a shell: text
 * without a #! line, or nothing. */
static bool is_headless(const char *path)
{
    _cleanup_close_ int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    unsigned char head[4];
    ssize_t n = fd >= 0 ? read(fd, head, sizeof(head)) : -1;

    if (n >= 2 && head[0] == '#' && head[1] == '!')
        return false;
    for (ssize_t i = 0; i < n; i++)
        if (head[i] >= 0x7f || (head[i] < ' ' && !strchr("\t\n\r", head[i])))
            return false;
    return n >= 0;
}

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');

    return slash ? slash + 1 : path;
}

/* True for the name of an interpreter of such files: "python3.11" for "train.py". */
static bool interprets(const char *program, const char *file)
{
    static const struct {
        const char *program, *ending;
    } table[] = {
        {"python", ".py"}, {"torchrun", ".py"}, {"bash", ".sh"},  {"sh", ".sh"},
        {"perl", ".pl"},   {"Rscript", ".R"},   {"julia", ".jl"}, {"node", ".js"},
    };
    const char *dot = strrchr(file, '.');

    for (size_t i = 0; i < PL_COUNT(table); i++) {
        size_t len = strlen(table[i].program);

        if (strncmp(program, table[i].program, len) == 0 &&
            !program[len + strspn(program + len, "0123456789.")])
            return dot && strcmp(dot, table[i].ending) == 0;
    }
    return false;
}

/* True for an option, or letters such as "-lc", with which the next word is a module or a command.
 */
static bool is_of_no_script(const char *option)
{
    return option[1] != '-' && strpbrk(option, "cm");
}

/* The script that an interpreter is to run; NULL: there is none, or it is not known. */
static const char *script_of(const struct pl_spec *spec)
{
    char *const *arg = spec->argv + 1;

    while (*arg && (*arg)[0] == '-' && !is_of_no_script(*arg))
        arg++;
    return *arg && (*arg)[0] != '-' && !strchr(*arg, '{') &&
                   interprets(base_name(spec->argv[0]), *arg)
               ? *arg
               : NULL;
}

/* Such a script if it is not there. A set-up or --sbatch chdir may change the folder. */
static const char *missing_script(const struct pl_spec *spec)
{
    const char *script = script_of(spec);

    if (spec->lists[PL_SPEC_SETUP] || spec->lists[PL_SPEC_LOAD] ||
        pl_spec_of_sbatch(spec, "chdir") || spec->values[PL_SPEC_SNAPSHOT].text ||
        spec->values[PL_SPEC_CONTAINER].text)
        return NULL;
    return script && access(script, F_OK) < 0 ? script : NULL;
}

/* True for a file with lines #SBATCH where sbatch reads them: before the first command. */
static bool has_directives(const char *path)
{
    _cleanup_close_ int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    static const char key[] = "#SBATCH";
    char text[HEAD_BYTES + 1];
    ssize_t n = fd >= 0 ? read(fd, text, HEAD_BYTES) : -1;

    if (n < 2 || memcmp(text, "#!", 2) != 0) /* sbatch takes no other file */
        return false;
    text[n] = '\0';
    for (const char *line = text; *line == '#' || *line == '\n'; line += *line == '\n') {
        if (strncmp(line, key, strlen(key)) == 0 && strchr(" \t", line[strlen(key)]))
            return true;
        line += strcspn(line, "\n");
    }
    return false;
}

/* A script for sbatch, given to plsubmit in its place. */
static int hint_directives(struct pl_spec *spec)
{
    const char *script = script_of(spec);

    script = script ? script : spec->argv[0];
    return has_directives(script)
               ? pl_spec_warn(spec,
                              "'%s' has lines #SBATCH, which plsubmit does not read: write their "
                              "options before the program's name",
                              script)
               : 0;
}

/* A #! line that starts nothing. */
static int hint_interpreter(struct pl_spec *spec)
{
    const char *program = spec->argv[0];
    char name[256];
    bool cr;

    if (!pl_program_interpreter(program, name, sizeof(name), &cr))
        return 0;
    if (cr)
        return pl_spec_warn(
            spec,
            "program '%s' has a #! line that ends as on Windows (CR LF), so that it "
            "cannot start: convert the file, for example by dos2unix",
            program);
    return access(name, X_OK) < 0
               ? pl_spec_warn(spec,
                              "program '%s' has a #! line with '%s', which cannot be run here: %s",
                              program, name, strerror(errno))
               : 0;
}

/* True for a script of a shell whose first line ends as on Windows. */
static bool is_of_windows(const struct pl_spec *spec, const char *script)
{
    _cleanup_close_ int fd = open(script, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    const char *program = base_name(spec->argv[0]), *end;
    char text[HEAD_BYTES + 1];
    ssize_t n = -1;

    if (fd >= 0 && (strcmp(program, "bash") == 0 || strcmp(program, "sh") == 0))
        n = read(fd, text, HEAD_BYTES);
    text[PL_MAX(n, 0)] = '\0';
    end = strchr(text, '\n');
    return end && end > text && end[-1] == '\r';
}

static int hint_program(struct pl_spec *spec)
{
    const char *script = missing_script(spec);
    int r = 0;

    if (script)
        return pl_spec_warn(spec, "'%s' cannot run '%s': there is no such file here",
                            base_name(spec->argv[0]), script);
    if (!spec->values[PL_SPEC_CONTAINER].text && is_headless(spec->argv[0]))
        return pl_spec_warn(spec,
                            "program '%s' has no #! line, so that a shell runs it: name its "
                            "interpreter, or begin the file with a line such as "
                            "#!/usr/bin/env python3",
                            spec->argv[0]);
    script = script_of(spec);
    if (script && is_of_windows(spec, script))
        r = pl_spec_warn(
            spec,
            "'%s' has lines that end as on Windows (CR LF), and '%s' takes the CR for a "
            "part of the last word: convert the file, for example by dos2unix",
            script, base_name(spec->argv[0]));
    if (r == 0 && !spec->values[PL_SPEC_CONTAINER].text)
        r = hint_interpreter(spec);
    return r == 0 ? hint_directives(spec) : r;
}

/* ---- options ---- */

/* Slurm sends a signal at once that is due before the job starts. */
static int hint_signal(struct pl_spec *spec)
{
    const char *text = spec->values[PL_SPEC_SIGNAL].text, *at = text ? strchr(text, '@') : NULL;
    const char *time = spec->values[PL_SPEC_TIME].text;
    int64_t lead_s = SIGNAL_LEAD_S;
    uint64_t limit_s;

    if (text && pl_parse_int(text, HIGHEST_USUAL + 1, INT32_MAX, &lead_s, NULL) == 0)
        return pl_spec_warn(spec,
                            "--signal %s is the signal of that number, at the default time: write "
                            "USR1@%s for a signal %s seconds before the time limit",
                            text, text, text);
    if (!text || !time || pl_parse_slurm_time(time, &limit_s, NULL) < 0 || limit_s == 0 ||
        (at && pl_parse_int(at + 1, 0, INT32_MAX, &lead_s, NULL) < 0) || (uint64_t)lead_s < limit_s)
        return 0;
    return pl_spec_warn(spec,
                        "--signal %s: a trial gets the signal as soon as it starts, since its "
                        "--time %s is not longer",
                        text, time);
}

/* Slurm makes no folder for a job's output, and ends a job that has none. */
static int hint_output(struct pl_spec *spec)
{
    const struct pl_spec_value *output = &spec->values[PL_SPEC_OUTPUT];
    const char *slash = output->text ? strrchr(output->text, '/') : NULL;
    _cleanup_free_ char *folder = NULL;

    if (!slash || slash == output->text || output->origin == PL_ORIGIN_BUILTIN ||
        memchr(output->text, '%', (size_t)(slash - output->text)) ||
        spec->values[PL_SPEC_LOCAL].text ||
        (output->text[0] != '/' && pl_spec_of_sbatch(spec, "chdir"))) /* of that folder */
        return 0;
    folder = strndup(output->text, (size_t)(slash - output->text));
    if (!folder)
        return -ENOMEM;
    if (access(folder, F_OK) == 0 || errno != ENOENT)
        return 0;
    return pl_spec_warn(spec,
                        "--output %s: there is no folder '%s' here: Slurm makes none, and ends a "
                        "trial whose output it cannot write",
                        output->text, folder);
}

/* regcomp() takes Python's \d for a d. */
static int check_metric(const char *name, const char *regex, struct pl_error *err)
{
    for (const char *s = regex; (s = strchr(s, '\\')) && s[1]; s += 2)
        if (s[1] == 'd' || s[1] == 'D')
            return pl_error_set(err, -EINVAL,
                                "--metric %s: '\\%c' has no meaning in a POSIX regular expression: "
                                "write [%s0-9]",
                                name, s[1], s[1] == 'D' ? "^" : "");
    return 0;
}

/* Numbers as in "1e-4:1e-2:3" and "0.1..0.5", which other programs take for a range. */
static bool is_range(const char *text)
{
    const char *dots = strstr(text, "..");
    _cleanup_free_ char *copy =
        dots ? pl_strf("%.*s:%s", (int)(dots - text), text, dots + 2) : strdup(text);
    char *rest = copy;
    unsigned n = 0;
    double value;

    for (const char *word; (word = strsep(&rest, ":")); n++)
        if (pl_parse_double(word, &value, NULL) < 0)
            return false;
    return n > 1;
}

/* Several numbers with other marks between them are one value: a comma separates values. */
static bool is_numbers(const char *text)
{
    _cleanup_free_ char *copy = strdup(text);
    char *rest = copy;
    unsigned n = 0;
    double value;

    for (const char *word; (word = strsep(&rest, " ;|")); n++)
        if (pl_parse_double(word, &value, NULL) < 0)
            return false;
    return n > 1;
}

struct number {
    double value;
    const char *text;
};

static int compare(const void *va, const void *vb)
{
    double a = ((const struct number *)va)->value, b = ((const struct number *)vb)->value;

    return a < b ? -1 : a > b;
}

/* "1e-3" and "0.001" are two values, and most programs take them for one. */
static int hint_equal(struct pl_spec *spec, const struct pl_axis *axis)
{
    _cleanup_free_ struct number *list = calloc(axis->n_values, sizeof(*list));
    size_t n = 0;

    if (!list)
        return -ENOMEM;
    for (size_t i = 0; i < axis->n_values; i++)
        if (pl_parse_double(axis->values[i], &list[n].value, NULL) == 0)
            list[n++].text = axis->values[i];
    qsort(list, n, sizeof(*list), compare);
    for (size_t i = 1; i < n; i++)
        if (list[i].value == list[i - 1].value)
            return pl_spec_warn(spec,
                                "--grid: axis '%s' has the same number twice, '%.100s' and "
                                "'%.100s': the trials with one repeat those with the other",
                                axis->name, list[i - 1].text, list[i].text);
    return 0;
}

int pl_hints_axes(struct pl_spec *spec)
{
    int r = 0;

    for (size_t i = 0; i < spec->grid.n_axes && r == 0; i++) {
        const struct pl_axis *axis = &spec->grid.axes[i];

        if (axis->n_values == 1 && !axis->quoted && is_numbers(axis->values[0]))
            r = pl_spec_warn(spec,
                             "--grid: axis '%s' has one value, '%.200s': write a comma between "
                             "values, or quotes around the value",
                             axis->name, axis->values[0]);
        if (r == 0 && axis->n_values == 1 && !axis->quoted && is_range(axis->values[0]))
            r = pl_spec_warn(spec,
                             "--grid: axis '%s' has one value, '%.200s': write range(LO,HI,N) or "
                             "log(LO,HI,N) for N numbers, or quotes around the value",
                             axis->name, axis->values[0]);
        if (r == 0 && !axis->quoted && !axis->zipped)
            r = hint_equal(spec, axis);
    }
    return r;
}

/* ---- arguments ---- */

/* True if `word` is the axis' name between marks that other programs replace: $lr, %lr%, <lr>. */
static bool is_marked(const char *word, const char *name)
{
    size_t head = strspn(word, "$%<@(:"), len = strlen(name);
    const char *tail = word + head + len;

    return head && strncmp(word + head, name, len) == 0 && !tail[strspn(tail, "%>@)s:")];
}

/* True if {NAME} in the argument is a part of the shell's ${NAME} or of {{NAME}}. */
static bool is_wrapped(const char *arg, const char *name)
{
    _cleanup_free_ char *shell = pl_strf("${%s}", name), *braces = pl_strf("{{%s}}", name);

    return shell && braces && (strstr(arg, shell) || strstr(arg, braces));
}

/* before: the argument before it; NULL: none */
static int
hint_argument(struct pl_spec *spec, const char *name, const char *arg, const char *before)
{
    const char *equals = strncmp(arg, "--", 2) == 0 ? strchr(arg, '=') : NULL;
    const char *word = equals ? equals + 1 : arg;

    if (is_wrapped(arg, name))
        return pl_spec_warn(spec,
                            "argument '%.200s': the trial's value replaces {%s}, and all around it "
                            "stays: write {%s} alone",
                            arg, name, name);
    if (is_marked(word, name) || (before && strncmp(before, "--", 2) == 0 &&
                                  strcmp(before + 2, name) == 0 && strcmp(word, name) == 0))
        return pl_spec_warn(spec,
                            "argument '%.200s' is passed as it stands: write {%s} for the value of "
                            "the axis",
                            arg, name);
    return 0;
}

static int hint_arguments(struct pl_spec *spec)
{
    int r = 0;

    for (size_t i = 0; i < spec->grid.n_axes; i++)
        for (char **arg = spec->argv + 1; spec->argv[0] && *arg && r == 0; arg++)
            r = hint_argument(spec, spec->grid.axes[i].name, *arg,
                              arg > spec->argv + 1 ? arg[-1] : NULL);
    return r;
}

/* The next variable in a value that has several, as --export of sbatch takes them; NULL: none. */
static const char *next_variable(const char *value, size_t *ret_len)
{
    for (const char *at = strchr(value, ','); at; at = strchr(at + 1, ',')) {
        *ret_len = strspn(at + 1, "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_");
        if (*ret_len && at[1 + *ret_len] == '=')
            return at + 1;
    }
    return NULL;
}

/* The value itself may be a secret, and is not shown. */
static int hint_env(struct pl_spec *spec)
{
    int r = 0;

    for (char **item = spec->lists[PL_SPEC_ENV]; item && *item && r == 0; item++) {
        size_t len = 0, name = strcspn(*item, "=");
        const char *next = next_variable(*item + name, &len);

        if (next)
            r = pl_spec_warn(spec,
                             "--env: %.*s has all that follows as its value, and %.*s is not set: "
                             "write --env once for each variable",
                             (int)name, *item, (int)len, next);
    }
    return r;
}

int pl_hints_add(struct pl_spec *spec, struct pl_error *err)
{
    int r = 0;

    for (size_t i = 0; spec->metric_names && spec->metric_names[i] && r == 0; i++)
        r = check_metric(spec->metric_names[i], spec->metric_regexes[i], err);
    if (r < 0)
        return r;
    return hint_program(spec) < 0 || hint_signal(spec) < 0 || pl_hints_axes(spec) < 0 ||
                   hint_output(spec) < 0 || hint_arguments(spec) < 0 || hint_env(spec) < 0
               ? pl_error_nomem(err)
               : 0;
}

int pl_hints_show(const struct pl_spec *spec)
{
    const char *prefix = spec->strict ? "plsubmit: --strict" : "plsubmit: warning";

    for (char **line = spec->warnings; line && *line; line++)
        pl_term_complain(stderr, prefix, *line);
    return spec->strict && spec->warnings ? -EINVAL : 0;
}
