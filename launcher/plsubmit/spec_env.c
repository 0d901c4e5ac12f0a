/* SPDX-License-Identifier: MIT */
/* sbatch's SBATCH_* variables: they set options that the command line does not set, so that
 * plsubmit's own defaults do not contradict them. */
#include "common/base/fs.h"
#include "common/base/utf8.h"
#include "launcher/plsubmit/spec_private.h"

#include <string.h>

/* Not here: SBATCH_OUTPUT and SBATCH_OPEN_MODE, because plsubmit always sets these two. */
static const struct {
    const char *name; /* after SBATCH_ */
    enum pl_spec_key key;
} variables[] = {
    {"JOB_NAME", PL_SPEC_NAME},
    {"GPUS", PL_SPEC_GPUS},
    {"GPUS_PER_NODE", PL_SPEC_GPUS_PER_NODE},
    {"GPUS_PER_TASK", PL_SPEC_GPUS_PER_TASK},
    {"GRES", PL_SPEC_GRES},
    {"CPUS_PER_GPU", PL_SPEC_CPUS_PER_GPU},
    {"MEM_PER_NODE", PL_SPEC_MEM},
    {"MEM_PER_CPU", PL_SPEC_MEM_PER_CPU},
    {"MEM_PER_GPU", PL_SPEC_MEM_PER_GPU},
    {"TIMELIMIT", PL_SPEC_TIME},
    {"PARTITION", PL_SPEC_PARTITION},
    {"ACCOUNT", PL_SPEC_ACCOUNT},
    {"QOS", PL_SPEC_QOS},
    {"CONSTRAINT", PL_SPEC_CONSTRAINT},
    {"SIGNAL", PL_SPEC_SIGNAL},
};

static const char prefix[] = "SBATCH_";

/* sbatch refuses two of these. */
static bool is_memory(enum pl_spec_key key)
{
    return key == PL_SPEC_MEM || key == PL_SPEC_MEM_PER_CPU || key == PL_SPEC_MEM_PER_GPU;
}

static const enum pl_spec_key memory[] = {PL_SPEC_MEM, PL_SPEC_MEM_PER_CPU, PL_SPEC_MEM_PER_GPU};

static int check_memory(const struct pl_spec *spec,
                        enum pl_spec_key key,
                        const char *name,
                        struct pl_error *err)
{
    for (size_t i = 0; i < PL_COUNT(memory) && is_memory(key); i++)
        if (spec->values[memory[i]].origin == PL_ORIGIN_ENVIRONMENT)
            return pl_error_set(err, -EINVAL,
                                "SBATCH_%s: another SBATCH_ variable sets --%s, and sbatch refuses "
                                "two of them: unset one, or write the option",
                                name, pl_spec_option(memory[i])->name);
    return 0;
}

static bool is_set(const struct pl_spec *spec, enum pl_spec_key key)
{
    bool set = spec->values[key].origin >= PL_ORIGIN_ENVIRONMENT;

    for (size_t i = 0; i < PL_COUNT(memory) && is_memory(key); i++)
        set |= spec->values[memory[i]].origin >= PL_ORIGIN_ENVIRONMENT;
    return set;
}

static bool is_of_file(enum pl_origin origin)
{
    return origin > PL_ORIGIN_BUILTIN && origin < PL_ORIGIN_ENVIRONMENT;
}

/* Sets a value, which replaces what files say. */
static int put(struct pl_spec *spec, enum pl_spec_key key, const char *value)
{
    struct pl_spec_value before = spec->values[key];
    int r = 0;

    if (is_of_file(before.origin))
        r = pl_spec_note_file(spec, before.origin, pl_spec_option(key)->name, before.text);
    if (r == 0)
        r = pl_spec_put(spec, key, value, PL_ORIGIN_ENVIRONMENT);
    for (int other = 0; other < PL_SPEC_N_KEYS && r == 0; other++) {
        struct pl_spec_value *v = &spec->values[other];

        if (!is_of_file(v->origin) ||
            !pl_spec_excludes(spec, key, (enum pl_spec_key)other, v->text))
            continue;
        r = pl_spec_note_file(spec, v->origin, pl_spec_option(other)->name, v->text);
        free(v->text);
        *v = (struct pl_spec_value){0};
    }
    return r;
}

static bool usable(const char *value)
{
    if (!*value || !pl_utf8_valid(value, strlen(value)))
        return false;
    for (; *value; value++)
        if ((unsigned char)*value < 0x20 || *value == 0x7f)
            return false;
    return true;
}

/* The value of a variable in env; NULL: not set, or sbatch would not take it. */
static const char *find(char *const *env, const char *name)
{
    size_t n = strlen(prefix), len = strlen(name);

    for (; *env; env++)
        if (strncmp(*env, prefix, n) == 0 && strncmp(*env + n, name, len) == 0 &&
            (*env)[n + len] == '=')
            return usable(*env + n + len + 1) ? *env + n + len + 1 : NULL;
    return NULL;
}

static bool has_key(const char *entry)
{
    for (size_t i = 0; i < PL_COUNT(variables); i++) {
        size_t len = strlen(variables[i].name);

        if (strncmp(entry + strlen(prefix), variables[i].name, len) == 0 &&
            entry[strlen(prefix) + len] == '=')
            return true;
    }
    return false;
}

int pl_spec_read_env(struct pl_spec *spec, const char *runs, char *const *env, struct pl_error *err)
{
    int r = 0;

    if (runs && *runs && spec->values[PL_SPEC_RUNS].origin < PL_ORIGIN_ENVIRONMENT)
        r = put(spec, PL_SPEC_RUNS, runs);

    for (size_t i = 0; i < PL_COUNT(variables) && r == 0; i++) {
        const char *value = find(env, variables[i].name);
        _cleanup_free_ char *line = NULL;

        if (!value)
            continue;
        r = check_memory(spec, variables[i].key, variables[i].name, err);
        if (r < 0)
            return r;
        if (!is_set(spec, variables[i].key)) {
            r = put(spec, variables[i].key, value);
            continue;
        }
        line = pl_strf("%s=%s (overridden)", pl_spec_option(variables[i].key)->name, value);
        r = line ? pl_strv_append(&spec->sbatch_env, line) : -ENOMEM;
    }
    for (; *env && r == 0; env++)
        if (strncmp(*env, prefix, strlen(prefix)) == 0 && strchr(*env, '=') && !has_key(*env))
            r = pl_strv_append(&spec->sbatch_env, *env);
    return r;
}
