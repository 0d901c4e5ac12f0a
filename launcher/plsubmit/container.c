/* SPDX-License-Identifier: MIT */
#include "launcher/plsubmit/container.h"
#include "common/base/fs.h"
#include "common/base/program.h"
#include "launcher/plsubmit/hparams.h"
#include "launcher/plsubmit/spec_private.h"

#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* A file, or a folder that is an image. */
static int check_path(struct pl_spec *spec, struct pl_error *err)
{
    char **path = &spec->values[PL_SPEC_CONTAINER].text;
    bool later = spec->lists[PL_SPEC_SETUP] || spec->lists[PL_SPEC_LOAD];
    _cleanup_free_ char *cwd = getcwd(NULL, 0), *full = NULL, *bundle = NULL;
    struct stat st;

    if (!cwd)
        return pl_error_errno(err, errno, "cannot find the current folder");
    full = pl_path_join(cwd, *path);
    bundle = full ? pl_path_join(full, "config.json") : NULL;
    if (!bundle)
        return pl_error_nomem(err);
    if (stat(full, &st) < 0) {
        if (!later)
            return pl_error_set(err, -EINVAL, "--container: there is no image '%s': %s", *path,
                                strerror(errno));
        if (pl_spec_warn(spec,
                         "--container: there is no image '%s' here, unless the set-up brings "
                         "it",
                         *path) < 0)
            return pl_error_nomem(err);
    } else if (access(full, R_OK) < 0 || (!S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode))) {
        return pl_error_set(err, -EINVAL, "--container: '%s' cannot be read as an image", *path);
    } else if (S_ISDIR(st.st_mode) && access(bundle, F_OK) == 0) {
        return pl_error_set(err, -EINVAL,
                            "--container: '%s' is a bundle of OCI: write --sbatch container=%s",
                            *path, *path);
    }
    free(*path);
    *path = PL_TAKE(full);
    return 0;
}

/* Each rank of each trial would fetch it. */
static int warn_uri(struct pl_spec *spec)
{
    const char *image = spec->values[PL_SPEC_CONTAINER].text;

    return pl_spec_warn(spec,
                        "--container: each rank fetches and converts '%s' unless the node has it: "
                        "write apptainer pull image.sif %s once, and --container image.sif",
                        image, image);
}

/* The login shell of the job script may not have it in PATH. */
static int find_runtime(struct pl_spec *spec)
{
    int r = pl_program_search("apptainer", &spec->container_runtime);

    return r == 0 && !spec->container_runtime
               ? pl_program_search("singularity", &spec->container_runtime)
               : r;
}

/* A default of the user's or the site's gives way to an option that excludes it: removes it and
 * returns 1. Returns 0 if the job asks for both, which is an error. */
static int give_way(struct pl_spec *spec, enum pl_spec_key key)
{
    if (spec->values[key].origin >= PL_ORIGIN_JOB_FILE)
        return 0;
    return pl_spec_put(spec, key, NULL, PL_ORIGIN_NONE) < 0 ? -ENOMEM : 1;
}

static int check_python_env(struct pl_spec *spec, enum pl_spec_key key, struct pl_error *err)
{
    int r = spec->values[key].text ? give_way(spec, key) : 1;

    if (r != 0)
        return r < 0 ? pl_error_nomem(err) : 0;
    return pl_error_set(err, -EINVAL,
                        "--%s has no effect on the program of a container, which has the image's "
                        "PATH: name the environment's python instead",
                        pl_spec_option(key)->name);
}

int pl_container_check(struct pl_spec *spec, const char *program, struct pl_error *err)
{
    const char *image = spec->values[PL_SPEC_CONTAINER].text;
    char *const *options = spec->lists[PL_SPEC_CONTAINER_OPTION];
    int r;

    if (image && (!program || pl_hparams_is_pltrain(program))) {
        r = give_way(spec, PL_SPEC_CONTAINER);
        if (r == 0)
            return pl_error_set(err, -EINVAL,
                                "--container is for other programs: pltrain needs none, and is not "
                                "in the image");
        return r < 0 ? pl_error_nomem(err) : 0;
    }
    for (size_t i = 0; !image && options && options[i]; i++)
        if (pl_spec_item_origin(spec, PL_SPEC_CONTAINER_OPTION, i) >= PL_ORIGIN_JOB_FILE)
            return pl_error_set(err, -EINVAL,
                                "option '--container-option' needs '--container IMAGE'");
    if (!image)
        return 0;
    r = check_python_env(spec, PL_SPEC_VENV, err);
    if (r == 0)
        r = check_python_env(spec, PL_SPEC_CONDA, err);
    if (r < 0)
        return r;
    if (find_runtime(spec) < 0)
        return pl_error_nomem(err);
    if (strncmp(image, "instance://", 11) == 0)
        return pl_error_set(err, -EINVAL,
                            "--container: a running instance does not see the run folder: name "
                            "its image");
    if (strstr(image, "://"))
        return warn_uri(spec) < 0 ? pl_error_nomem(err) : 0;
    return check_path(spec, err);
}
