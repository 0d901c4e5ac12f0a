/* SPDX-License-Identifier: MIT */
#include "launcher/plsubmit/python_env.h"
#include "common/base/fs.h"
#include "launcher/plsubmit/script.h"

#include <string.h>
#include <unistd.h>

static bool has_file(const char *folder, const char *name, int mode)
{
    _cleanup_free_ char *path = pl_path_join(folder, name);

    return path && access(path, mode) == 0;
}

static int make_absolute(char **path, struct pl_error *err)
{
    _cleanup_free_ char *cwd = getcwd(NULL, 0);
    char *full;

    if (!cwd)
        return pl_error_errno(err, errno, "cannot find the current folder");
    full = pl_path_join(cwd, *path);
    if (!full)
        return pl_error_nomem(err);
    free(*path);
    *path = full;
    return 0;
}

static int check_venv(struct pl_spec *spec, struct pl_error *err)
{
    char **path = &spec->values[PL_SPEC_VENV].text;
    int r = make_absolute(path, err);

    if (r < 0)
        return r;
    if (has_file(*path, "conda-meta", F_OK))
        return pl_error_set(err, -EINVAL, "--venv: '%s' is an environment of conda: write --conda",
                            *path);
    if (!has_file(*path, "bin/activate", R_OK))
        return pl_error_set(
            err, -EINVAL,
            "--venv: '%s' is not an environment of venv or uv: it has no bin/activate", *path);
    if (!has_file(*path, "bin/python", X_OK)) /* a link to a Python that was removed */
        return pl_error_set(err, -EINVAL, "--venv: '%s/bin/python' cannot run: make it anew",
                            *path);
    return 0;
}

/* A name is known to the node's conda only. */
static int check_conda(struct pl_spec *spec, struct pl_error *err)
{
    char **path = &spec->values[PL_SPEC_CONDA].text;
    int r;

    if (**path == '-') /* conda takes it for an option: -h activates nothing, and is no failure */
        return pl_error_set(err, -EINVAL,
                            "--conda: '%s' is not an environment: its name begins with -", *path);
    if (!strchr(*path, '/'))
        return 0;
    r = make_absolute(path, err);
    if (r == 0 && !has_file(*path, "conda-meta", F_OK))
        return pl_error_set(err, -EINVAL,
                            "--conda: '%s' is not an environment of conda: it has no conda-meta%s",
                            *path, has_file(*path, "bin/activate", R_OK) ? ": write --venv" : "");
    return r;
}

int pl_python_env_check(struct pl_spec *spec, struct pl_error *err)
{
    bool venv = spec->values[PL_SPEC_VENV].text, conda = spec->values[PL_SPEC_CONDA].text;

    if (venv && conda)
        return pl_error_set(err, -EINVAL,
                            "--venv and --conda both give the program a Python: omit one of them");
    return venv ? check_venv(spec, err) : conda ? check_conda(spec, err) : 0;
}

int pl_python_env_program(const struct pl_spec *spec, const char *name, char **ret)
{
    const char *folder = spec->values[PL_SPEC_VENV].text;
    _cleanup_free_ char *path = NULL;

    *ret = NULL;
    if (!folder || strchr(name, '/') || !*name)
        return 0;
    path = pl_strf("%s/bin/%s", folder, name);
    if (!path)
        return -ENOMEM;
    if (access(path, X_OK) == 0)
        *ret = PL_TAKE(path);
    return 0;
}

/* A venv that was moved or copied activates the folder for which it was made. */
static int add_venv(struct pl_buf *line, const char *venv)
{
    _cleanup_free_ char *activate = pl_path_join(venv, "bin/activate");
    int r = activate ? pl_buf_adds(line, "source ") : -ENOMEM;

    if (r == 0)
        r = pl_script_quote(line, activate);
    if (r == 0)
        r = pl_buf_adds(line, " && { [[ $VIRTUAL_ENV -ef ");
    if (r == 0)
        r = pl_script_quote(line, venv);
    return r == 0
               ? pl_buf_adds(line, " ]] || { echo \"--venv: it was made as '$VIRTUAL_ENV', and was "
                                   "moved or copied: make it anew\" >&2; false; }; }")
               : r;
}

int pl_python_env_command(const struct pl_spec *spec, char **ret)
{
    const char *venv = spec->values[PL_SPEC_VENV].text;
    const char *conda = spec->values[PL_SPEC_CONDA].text;
    _cleanup_(pl_buf_finish) struct pl_buf line = {0};
    int r = 0;

    *ret = NULL;
    if (venv)
        r = add_venv(&line, venv);
    else if (conda) /* "conda init" may not have been run, or only for interactive shells */
        r = pl_buf_adds(&line, "plume_conda=$(\"${CONDA_EXE:-conda}\" shell.bash hook) && "
                               "eval \"$plume_conda\" && conda activate ");
    else
        return 0;
    if (r == 0 && conda)
        r = pl_script_quote(&line, conda);
    if (r == 0 && !(*ret = pl_buf_take(&line)))
        r = -ENOMEM;
    return r;
}
