/* SPDX-License-Identifier: MIT */
#include "runtime/plrun/container.h"
#include "common/base/env.h"
#include "common/base/fs.h"
#include "common/base/program.h"
#include "common/base/strv.h"
#include "common/proto/rank/rank_link.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- variables ---- */

/* Variables of a rank, set by Slurm, Plume or plsubmit's options, go into the container. PATH,
 * HOME, LANG and such are the image's own. */
static bool is_of_rank(const char *name, size_t len)
{
    static const char *const prefixes[] = {"PLUME_", "SLURM_", "PMIX_", "PMI_",         "PMI2_",
                                           "PET_",   "NCCL_",  "GLOO_", "CUDA_VISIBLE_"};
    static const char *const names[] = {"CUDA_DEVICE_ORDER", "ROCR_VISIBLE_DEVICES",
                                        "ZE_AFFINITY_MASK", "OMP_NUM_THREADS", "SLURMD_NODENAME"};

    for (size_t i = 0; i < PL_COUNT(prefixes); i++)
        if (len > strlen(prefixes[i]) && memcmp(name, prefixes[i], strlen(prefixes[i])) == 0)
            return true;
    for (size_t i = 0; i < PL_COUNT(names); i++)
        if (strlen(names[i]) == len && memcmp(name, names[i], len) == 0)
            return true;
    for (const char *const *own = pl_rank_own_variables; *own; own++)
        if (strlen(*own) == len && memcmp(name, *own, len) == 0)
            return true;
    return false;
}

/* True if `list`, words with blanks between them, has this name. */
static bool has_name(const char *list, const char *name, size_t len)
{
    while (list && *list) {
        size_t n = strcspn(list, " ");

        if (n == len && memcmp(list, name, len) == 0)
            return true;
        list += n + strspn(list + n, " ");
    }
    return false;
}

/* Singularity has a shell read these values. Such a variable is inherited as it is, unless the
 * image sets it. */
static bool is_shell_text(const char *value)
{
    return strpbrk(value, "$`\\\"") != NULL;
}

/* Sets "APPTAINERENV_NAME" for each variable of the rank: it wins over what the image sets, and
 * --cleanenv keeps it. */
static int set_variables(bool apptainer, const char *asked)
{
    const char *prefix = apptainer ? "APPTAINERENV_" : "SINGULARITYENV_";
    _cleanup_(pl_strv_freep) char **list = NULL;
    int r = 0;

    for (char *const *entry = environ; *entry && r == 0; entry++) {
        size_t len = strcspn(*entry, "=");

        if ((*entry)[len] && (is_of_rank(*entry, len) || has_name(asked, *entry, len)) &&
            (apptainer || !is_shell_text(*entry + len + 1)))
            r = pl_strv_append(&list, *entry);
    }
    for (char **entry = list; r == 0 && entry && *entry; entry++) {
        char *equals = strchr(*entry, '=');
        _cleanup_free_ char *name = NULL;

        *equals = '\0';
        name = pl_strf("%s%s", prefix, *entry);
        r = name && setenv(name, equals + 1, 1) == 0 ? 0 : -ENOMEM;
    }
    /* Apptainer, too, has a shell read the values otherwise. */
    if (r == 0 && apptainer && setenv("APPTAINER_NO_EVAL", "1", 1) < 0)
        r = -ENOMEM;
    return r;
}

/* ---- the command line ---- */

/* Appends a field of --mount, which is a line of CSV. */
static int add_field(struct pl_buf *text, const char *key, const char *path)
{
    int r = pl_buf_addf(text, ",\"%s=", key);

    for (const char *p = path; *p && r == 0; p++) {
        if (*p == '"')
            r = pl_buf_addc(text, '"');
        if (r == 0)
            r = pl_buf_addc(text, *p);
    }
    return r == 0 ? pl_buf_addc(text, '"') : r;
}

/* Releases from before 2022 know --bind only, which has no way to write these characters: a folder
 * named "a,b:c,ro" is a bind with an option, whatever has a backslash. Its value is CSV, too. */
static int add_bind(char ***words, const char *path)
{
    _cleanup_(pl_buf_finish) struct pl_buf text = {0};
    int r;

    if (!path || path[0] != '/' || !path[1] || access(path, F_OK) < 0)
        return 0;
    if (!strpbrk(path, ":,^\\\"\r\n")) {
        r = pl_strv_append(words, "--bind");
        return r == 0 ? pl_strv_append(words, path) : r;
    }
    r = pl_buf_adds(&text, "type=bind");
    if (r == 0)
        r = add_field(&text, "source", path);
    if (r == 0)
        r = add_field(&text, "destination", path);
    if (r == 0)
        r = pl_strv_append(words, "--mount");
    return r == 0 ? pl_strv_append(words, pl_buf_str(&text)) : r;
}

static int add_binds(char ***words)
{
    const char *path = pl_env(PL_ENV_PLUME_SOCKET);
    _cleanup_free_ char *cwd = getcwd(NULL, 0), *sockets = path ? strdup(path) : NULL;
    char *slash = sockets ? strrchr(sockets, '/') : NULL;
    int r = path && !sockets ? -ENOMEM : 0;

    if (slash)
        *slash = '\0';
    if (r == 0)
        r = add_bind(words, pl_env(PL_ENV_PLUME_RUN_DIR));
    if (r == 0)
        r = add_bind(words, sockets);
    if (r == 0)
        r = add_bind(words, cwd);
    if (r == 0 && cwd)
        r = pl_strv_append(words, "--pwd");
    return r == 0 && cwd ? pl_strv_append(words, cwd) : r;
}

/* The libraries of NVIDIA's driver are the node's. */
static bool has_gpus(void)
{
    const char *visible = pl_env_named("CUDA_VISIBLE_DEVICES");

    return (visible && *visible) || access("/dev/nvidiactl", F_OK) == 0;
}

static int add_options(char ***words)
{
    const char *text = pl_env(PL_ENV_PLUME_CONTAINER_OPTIONS);
    int r = 0;

    while (text && *text && r == 0) {
        size_t len = strcspn(text, "\n");
        _cleanup_free_ char *word = strndup(text, len);

        r = word ? pl_strv_append(words, word) : -ENOMEM;
        text += len + (text[len] == '\n');
    }
    return r;
}

/* In the present PATH, else where plsubmit found it; NULL: nowhere. */
static int find_runtime(char **ret)
{
    const char *known = pl_env_text(PL_ENV_PLUME_CONTAINER_RUNTIME);
    int r = pl_program_search("apptainer", ret);

    if (r == 0 && !*ret)
        r = pl_program_search("singularity", ret);
    if (r == 0 && !*ret && known && known[0] == '/' && pl_program_is(known))
        *ret = strdup(known);
    return r;
}

bool pl_container_is_set(void)
{
    return pl_env_text(PL_ENV_PLUME_CONTAINER) != NULL;
}

/* The option, or its variable, with which singularity passes no variable of the node on; NULL:
 * none. */
static const char *clean_option(char *const *words)
{
    static const struct {
        const char *option, *variable;
    } clean[] = {{"--cleanenv", "SINGULARITY_CLEANENV"},
                 {"--containall", "SINGULARITY_CONTAINALL"},
                 {"--compat", "SINGULARITY_COMPAT"}};

    for (size_t i = 0; i < PL_COUNT(clean); i++) {
        if (pl_env_named(clean[i].variable))
            return clean[i].option;
        for (char *const *word = words; *word; word++)
            if (strcmp(*word, clean[i].option) == 0)
                return clean[i].option;
    }
    return NULL;
}

/* A variable that is_shell_text() would have the container lose. */
static int check_clean(char *const *words, const char *asked, struct pl_error *err)
{
    const char *option = clean_option(words);

    for (char *const *entry = environ; option && *entry; entry++) {
        size_t len = strcspn(*entry, "=");

        if ((*entry)[len] && (is_of_rank(*entry, len) || has_name(asked, *entry, len)) &&
            is_shell_text(*entry + len + 1))
            return pl_error_set(err, -EINVAL,
                                "singularity's %s loses %.*s, whose value a shell would read: "
                                "leave it out, or use apptainer",
                                option, (int)len, *entry);
    }
    return 0;
}

/* The variables for the container, without those that ask for one: a step of the program's own has
 * other ranks. The user's own default of a working directory would win over ours.
 * words  the command so far */
static int set_environment(bool apptainer, char *const *words, struct pl_error *err)
{
    static const enum pl_env_id ours[] = {PL_ENV_PLUME_CONTAINER, PL_ENV_PLUME_CONTAINER_RUNTIME,
                                          PL_ENV_PLUME_CONTAINER_OPTIONS,
                                          PL_ENV_PLUME_CONTAINER_ENV};
    static const char *const folders[] = {"APPTAINER_CWD", "APPTAINER_PWD", "SINGULARITY_CWD",
                                          "SINGULARITY_PWD"};
    const char *text = pl_env(PL_ENV_PLUME_CONTAINER_ENV);
    _cleanup_free_ char *asked = text ? strdup(text) : NULL;

    if (text && !asked)
        return pl_error_nomem(err);
    for (size_t i = 0; i < PL_COUNT(ours); i++)
        unsetenv(pl_env_var(ours[i])->name);
    for (size_t i = 0; i < PL_COUNT(folders); i++)
        unsetenv(folders[i]);
    if (!apptainer && check_clean(words, asked, err) < 0)
        return err->code;
    return set_variables(apptainer, asked) < 0 ? pl_error_nomem(err) : 0;
}

int pl_container_words(char *const *argv, char ***ret, struct pl_error *err)
{
    _cleanup_(pl_strv_freep) char **words = NULL;
    _cleanup_free_ char *runtime = NULL;
    int r = find_runtime(&runtime);

    if (r == 0 && !runtime)
        return pl_error_set(err, -ENOENT,
                            "no apptainer and no singularity is in PATH on this node: --load or "
                            "--setup of plsubmit may add it");
    if (r == 0)
        r = pl_strv_append(&words, runtime);
    if (r == 0)
        r = pl_strv_append(&words, "exec");
    if (r == 0 && has_gpus())
        r = pl_strv_append(&words, "--nv");
    if (r == 0)
        r = add_binds(&words);
    if (r == 0)
        r = add_options(&words);
    if (r == 0)
        r = pl_strv_append(&words, pl_env(PL_ENV_PLUME_CONTAINER));
    if (r < 0)
        return pl_error_nomem(err);
    r = set_environment(strcmp(strrchr(runtime, '/') + 1, "apptainer") == 0, words, err);
    if (r < 0)
        return r;
    for (char *const *word = argv; *word && r == 0; word++)
        r = pl_strv_append(&words, *word);
    if (r < 0)
        return pl_error_nomem(err);
    *ret = PL_TAKE(words);
    return 0;
}
