/* SPDX-License-Identifier: MIT */
#include "launcher/plsubmit/script.h"
#include "common/base/fs.h"
#include "common/base/options.h"

#include <string.h>

static const char template[] =
#include "launcher/plsubmit/job.sh.inc"
    ;

int pl_script_quote(struct pl_buf *out, const char *s)
{
    size_t mark = out->len;
    int r = pl_buf_addc(out, '\'');

    for (; *s && r == 0; s++) {
        if (*s == '\n')
            r = -EINVAL;
        else
            r = *s == '\'' ? pl_buf_adds(out, "'\\''") : pl_buf_addc(out, *s);
    }
    if (r == 0)
        r = pl_buf_addc(out, '\'');
    if (r < 0 && out->data) {
        out->len = mark;
        out->data[mark] = '\0';
    }
    return r;
}

bool pl_script_directive_ok(const char *arg)
{
    return arg[0] && !arg[strspn(arg, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
                                      "0123456789_.,:/+@%=*[]-")];
}

/* Appends a word as sbatch(1) reads it in a #SBATCH line: quotes keep blanks and '#', and a
 * backslash escapes the next byte inside quotes, too. */
static int add_directive(struct pl_buf *out, const char *arg)
{
    int r = pl_buf_adds(out, "#SBATCH \"");

    for (; *arg && r == 0; arg++) {
        if (*arg == '"' || *arg == '\\')
            r = pl_buf_addc(out, '\\');
        if (r == 0)
            r = pl_buf_addc(out, *arg);
    }
    return r == 0 ? pl_buf_adds(out, "\"\n") : r;
}

/* Appends the comments of sbatch's option "--KEY" or "--KEY=VALUE". */
static int add_comments(const struct pl_script *s, const char *arg, struct pl_buf *out)
{
    const char *key = arg + strspn(arg, "-");
    size_t len = strcspn(key, "=");
    int r = 0;

    for (const char *const *item = s->comments; item && *item && r == 0; item++)
        if (strcspn(*item, "=") == len && strncmp(*item, key, len) == 0)
            r = pl_buf_addf(out, "# %s\n", *item + len + 1);
    return r;
}

static int add_sbatch(const struct pl_script *s, struct pl_buf *out)
{
    int r = pl_buf_addf(out, "#SBATCH --array=%s\n", s->array);

    for (size_t i = 0; s->sbatch_args[i] && r == 0; i++) {
        r = add_comments(s, s->sbatch_args[i], out);
        if (r < 0)
            break;
        r = pl_script_directive_ok(s->sbatch_args[i])
                ? pl_buf_addf(out, "#SBATCH %s\n", s->sbatch_args[i])
                : add_directive(out, s->sbatch_args[i]);
    }
    return r;
}

/* Appends one line per word: prefix, quoted word, suffix. */
static int
add_lines(struct pl_buf *out, const char *prefix, const char *const *words, const char *suffix)
{
    int r = 0;

    for (; words && *words && r == 0; words++) {
        r = pl_buf_adds(out, prefix);
        if (r == 0)
            r = pl_script_quote(out, *words);
        if (r == 0)
            r = pl_buf_addf(out, "%s\n", suffix);
    }
    return r;
}

/* Appends a command of the user. eval keeps a quote or here-document without an end from taking the
 * script's next lines. set -e ignores a failure before &&, so the script also checks the status.
 * `|| exit` would disable set -e inside a file that the command sources. */
static int add_command(struct pl_buf *out, const char *command)
{
    int r = pl_buf_adds(out, "plume_setup=");

    if (r == 0)
        r = pl_script_quote(out, command);
    return r == 0 ? pl_buf_adds(out, "\neval \"$plume_setup\"\nplume_check \"$?\"\n") : r;
}

/* True if a later item sets the variable. */
static bool is_set_later(const char *const *item)
{
    size_t len = strcspn(*item, "=");

    for (const char *const *later = item + 1; *later; later++)
        if (strncmp(*later, *item, len) == 0 && (*later)[len] == '=')
            return true;
    return false;
}

/* Appends the lines for --env NAME, after those for NAME=VALUE: the last option counts. */
static int add_kept(const struct pl_script *s, struct pl_buf *out)
{
    int r = 0;

    for (const char *const *name = s->kept; name && *name && r == 0; name++)
        if (!strchr(*name, '=') && !is_set_later(name))
            r = pl_buf_addf(out,
                            "export %s=\"${_PLUME_%s-${%s?is not set: --env takes it from the "
                            "submission}}\"\nunset _PLUME_%s\n",
                            *name, *name, *name, *name);
    return r;
}

/* Appends the lines for --env-file. plrun has checked the names, so that no export runs a command;
 * unset takes an integer's or a reference's attribute away. The last word is ".": without it plrun
 * has failed. */
static int add_env_files(const struct pl_script *s, struct pl_buf *out)
{
    int r = 0;

    for (const char *const *path = s->env_files; path && *path && r == 0; path++) {
        r = pl_buf_addf(out,
                        "while IFS= read -r -d '' plume_pair; do\n"
                        "    unset -n \"${plume_pair%%%%=*}\"\n"
                        "    unset -v \"${plume_pair%%%%=*}\"\n"
                        "    export \"$plume_pair\"\n%s"
                        "done < <(\"$PLUME_BIN/plrun\" --read-env=",
                        s->container ? "    plume_names+=\" ${plume_pair%%=*}\"\n" : "");
        if (r == 0)
            r = pl_script_quote(out, *path);
        if (r == 0)
            r = pl_buf_adds(out, ")\n[ \"$plume_pair\" = . ]\n");
    }
    return r;
}

/* --snapshot: the set-up, too, sees the copied files only. */
static int add_work_dir(const struct pl_script *s, struct pl_buf *out)
{
    int r;

    if (!s->work_dir)
        return 0;
    r = pl_buf_adds(out, "export PLUME_SUBMIT_DIR=");
    if (r == 0)
        r = pl_script_quote(out, s->submit_dir);
    if (r == 0)
        r = pl_buf_adds(out, "\ncd ");
    if (r == 0)
        r = pl_script_quote(out, s->work_dir);
    return r == 0 ? pl_buf_adds(out, "\n") : r;
}

/* The variables of --env win over those that the image of a container sets. */
static int add_names(const struct pl_script *s, struct pl_buf *out)
{
    int r = s->container ? pl_buf_adds(out, "plume_names='") : 0;

    for (const char *const *item = s->kept; s->container && item && *item && r == 0; item++)
        r = pl_buf_addf(out, "%s%.*s", item == s->kept ? "" : " ", (int)strcspn(*item, "="), *item);
    return s->container && r == 0 ? pl_buf_adds(out, "'\n") : r;
}

static int add_setup(const struct pl_script *s, struct pl_buf *out)
{
    int r = add_work_dir(s, out);

    /* `|| exit` instead of set -e: module is a shell function, in which set -e would also apply. */
    if (r == 0)
        r = add_lines(out, "module load ", s->modules, " || exit");
    if (r == 0 && s->python_env)
        r = add_command(out, s->python_env);
    for (const char *const *line = s->setup; line && *line && r == 0; line++)
        r = add_command(out, *line);
    if (r == 0 && (s->python_env || (s->setup && *s->setup)))
        r = pl_buf_adds(out, "plume_setup=\n");
    if (r == 0)
        r = add_names(s, out);
    if (r == 0)
        r = add_env_files(s, out);
    if (r == 0)
        r = add_lines(out, "export ", s->env, "");
    return r == 0 ? add_kept(s, out) : r;
}

/* Appends the commands of the user for the end. A time limit for each: Slurm ends the job some 30 s
 * after it has sent SIGTERM, and the result is still to be written. */
static int add_teardown(const struct pl_script *s, struct pl_buf *out)
{
    int r = 0;

    for (const char *const *command = s->teardown; command && *command && r == 0; command++) {
        r = pl_buf_adds(out, "    plume_teardown=");
        if (r == 0)
            r = pl_script_quote(out, *command);
        if (r == 0)
            r = pl_buf_adds(
                out, "\n    timeout -k 1 15 bash -c \"$plume_teardown\" teardown \"$plume_code\" "
                     "</dev/null ||\n        echo \"exit code $? of the tear-down: "
                     "$plume_teardown\" >&2\n");
    }
    return r;
}

/* Appends torchrun's variables that are equal in all ranks; plrun sets the others. Each of its
 * processes has a share of the rank's CPUs. */
static int add_torchrun(unsigned processes, struct pl_buf *out)
{
    return pl_buf_addf(
        out,
        "export PLUME_LAUNCH=torchrun PET_NPROC_PER_NODE=%u\n"
        "plume_cpus=${SLURM_CPUS_PER_TASK:-${SLURM_CPUS_ON_NODE:-1}}\n"
        "export OMP_NUM_THREADS=${OMP_NUM_THREADS:-$((plume_cpus > %u ? plume_cpus / %u : 1))}\n",
        processes, processes, processes);
}

/* Appends the variables by which each rank knows who starts it again, and saves at a signal. */
static int add_save(const struct pl_script *s, struct pl_buf *out)
{
    int r = s->requeue_on ? pl_buf_addf(out, "export PLUME_REQUEUE_ON=%s\n", s->requeue_on) : 0;

    if (r < 0 || !s->save_command)
        return r;
    r = pl_buf_adds(out, "export PLUME_SAVE_COMMAND=");
    if (r == 0)
        r = pl_script_quote(out, s->save_command);
    if (r == 0 && s->save_grace)
        r = pl_buf_addf(out, "\nexport PLUME_SAVE_GRACE=%s", s->save_grace);
    return r == 0 ? pl_buf_adds(out, "\n") : r;
}

/* Appends the variables by which each rank runs in a container. */
static int add_container(const struct pl_script *s, struct pl_buf *out)
{
    int r;

    if (!s->container)
        return 0;
    r = pl_buf_adds(out, "export PLUME_CONTAINER=");
    if (r == 0)
        r = pl_script_quote(out, s->container);
    if (r == 0 && s->container_runtime)
        r = pl_buf_adds(out, " PLUME_CONTAINER_RUNTIME=");
    if (r == 0 && s->container_runtime)
        r = pl_script_quote(out, s->container_runtime);
    for (const char *const *option = s->container_options; option && *option && r == 0; option++) {
        _cleanup_free_ char *word = pl_strf("--%s", *option);

        r = !word                            ? -ENOMEM
            : option == s->container_options ? pl_buf_adds(out, " PLUME_CONTAINER_OPTIONS=")
                                             : pl_buf_adds(out, "$'\\n'");
        if (r == 0)
            r = pl_script_quote(out, word);
    }
    if (r == 0)
        r = pl_buf_adds(out, "\nexport PLUME_CONTAINER_ENV=\"$plume_names\"\n");
    return r;
}

/* Appends the command that starts the ranks. */
static int add_step(const struct pl_script *s, struct pl_buf *out)
{
    static const char trial[] = "\"$PLUME_BIN/plrun\" --trial\n";
    int r = s->torchrun ? add_torchrun(s->torchrun, out) : 0;

    if (r == 0)
        r = add_save(s, out);
    if (r == 0)
        r = add_container(s, out);
    if (r < 0)
        return r;
    if (s->local && s->local_nodes > 1)
        return pl_buf_addf(out, "\"$PLUME_BIN/plrun\" --tasks=%u --nodes=%u -- %s", s->local,
                           s->local_nodes, trial);
    if (s->local)
        return pl_buf_addf(out, "\"$PLUME_BIN/plrun\" --tasks=%u -- %s", s->local, trial);
    r = pl_buf_adds(out, "srun --kill-on-bad-exit=0 "
                         "${SLURM_CPUS_PER_TASK:+\"--cpus-per-task=$SLURM_CPUS_PER_TASK\"} \\\n");
    if (r == 0 && s->pmix)
        r = pl_buf_adds(out, "    --mpi=pmix \\\n");
    for (const char *const *option = s->srun; option && *option && r == 0; option++) {
        _cleanup_free_ char *word = pl_strf("--%s", *option);

        r = word ? pl_buf_adds(out, "    ") : -ENOMEM;
        if (r == 0)
            r = pl_script_quote(out, word);
        if (r == 0)
            r = pl_buf_adds(out, " \\\n");
    }
    return r == 0 ? pl_buf_addf(out, "    %s", trial) : r;
}

static int add_program(const struct pl_script *s, struct pl_buf *out)
{
    int r;

    if (!s->program)
        return 0;
    r = pl_buf_adds(out, "\n# The program in the present PATH, else the one that plsubmit found.\n"
                         "PLUME_PROGRAM=$(\"$PLUME_BIN/plrun\" --find-program=");
    if (r == 0)
        r = pl_script_quote(out, s->program);
    return r == 0 ? pl_buf_adds(out, ") && export PLUME_PROGRAM\n") : r;
}

/* Appends the text for the placeholder whose name is the len bytes at `name`. */
static int
add_placeholder(const struct pl_script *s, const char *name, size_t len, struct pl_buf *out)
{
    static const struct {
        const char *name;
        int (*add)(const struct pl_script *s, struct pl_buf *out);
    } blocks[] = {{"SBATCH", add_sbatch},
                  {"SETUP", add_setup},
                  {"TEARDOWN", add_teardown},
                  {"PROGRAM", add_program},
                  {"STEP", add_step}};
    const struct {
        const char *name, *value;
        bool quote;
    } values[] = {
        {"SWEEP", s->sweep, false},
        {"VERSION", pl_version(), false},
        {"RUN_DIR", s->run_dir, true},
        {"BIN", s->bin_dir, true},
    };

    for (size_t i = 0; i < PL_COUNT(blocks); i++)
        if (strlen(blocks[i].name) == len && memcmp(blocks[i].name, name, len) == 0)
            return blocks[i].add(s, out);
    for (size_t i = 0; i < PL_COUNT(values); i++)
        if (strlen(values[i].name) == len && memcmp(values[i].name, name, len) == 0)
            return values[i].quote ? pl_script_quote(out, values[i].value)
                                   : pl_buf_adds(out, values[i].value);
    return -ENOKEY;
}

int pl_script_render(const struct pl_script *script, struct pl_buf *out, struct pl_error *err)
{
    const char *t = template;
    int r = 0;

    while (*t && r == 0) {
        size_t len = strcspn(t, "@"), name;

        r = pl_buf_add(out, t, len);
        t += len;
        if (!*t || r < 0)
            break;
        name = strspn(t + 1, "ABCDEFGHIJKLMNOPQRSTUVWXYZ_");
        if (t[1 + name] != '@' || name == 0) {
            r = pl_buf_addc(out, *t++);
            continue;
        }
        r = add_placeholder(script, t + 1, name, out);
        t += name + 2;
        /* A block has its own line breaks. */
        if (*t == '\n' && out->len && out->data[out->len - 1] == '\n')
            t++;
    }
    if (r == -EINVAL)
        return pl_error_set(err, r, "a value for the job script has a line break");
    return r < 0 ? pl_error_errno(err, r, "cannot write the job script") : 0;
}
