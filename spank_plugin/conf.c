/* SPDX-License-Identifier: MIT */
#include "spank_plugin/conf.h"
#include "common/base/buf.h"
#include "common/base/fs.h"

#include <dlfcn.h>
#include <inttypes.h>
#include <stdbool.h>
#include <string.h>
#include <sys/stat.h>

int pl_conf_parse(struct pl_spank_conf *conf, int argc, char *const *argv, struct pl_error *err)
{
    for (int i = 0; i < argc; i++) {
        if (strncmp(argv[i], "plrund=/", 8) == 0)
            conf->plrund = strchr(argv[i], '/');
        else if (strncmp(argv[i], "runtime_dir=/", 13) == 0)
            conf->runtime_dir = strchr(argv[i], '/');
        else if (strncmp(argv[i], "scontrol=/", 10) == 0)
            conf->scontrol = strchr(argv[i], '/');
        else if (strncmp(argv[i], "mount_namespace=/", 17) == 0)
            conf->namespace = strchr(argv[i], '/');
        else
            return pl_error_set(err, -EINVAL,
                                "plugstack.conf: '%s' is not an argument of this plugin: use "
                                "plrund=/PATH, runtime_dir=/PATH, scontrol=/PATH or "
                                "mount_namespace=/PATH",
                                argv[i]);
    }
    return 0;
}

/* plrund in the folder of this very object; NULL if it is not there. */
static char *beside_us(void)
{
    _cleanup_free_ char *path = NULL;
    const char *slash;
    struct stat st;
    Dl_info info;

    if (!dladdr(__extension__(void *) beside_us, &info) || !info.dli_fname)
        return NULL;
    slash = strrchr(info.dli_fname, '/');
    if (!slash || info.dli_fname[0] != '/')
        return NULL;
    path = pl_strf("%.*s/plrund", (int)(slash - info.dli_fname), info.dli_fname);
    return path && stat(path, &st) == 0 && S_ISREG(st.st_mode) ? PL_TAKE(path) : NULL;
}

char *pl_conf_plrund(const struct pl_spank_conf *conf)
{
    char *path;

    if (conf->plrund)
        return strdup(conf->plrund);
    path = beside_us();
    return path ? path : strdup(PL_PLRUND_PATH);
}

static bool is_program(const char *path)
{
    struct stat st;

    return path && stat(path, &st) == 0 && S_ISREG(st.st_mode) && (st.st_mode & 0111);
}

char *pl_conf_scontrol(const struct pl_spank_conf *conf)
{
    static const char *const beside[] = {"scontrol", "../bin/scontrol"},
                             *const installed[] = {"/usr/bin/scontrol", "/usr/local/bin/scontrol"};
    _cleanup_free_ char *folder = pl_program_folder();

    if (conf->scontrol)
        return strdup(conf->scontrol);
    for (size_t i = 0; folder && i < PL_COUNT(beside); i++) {
        _cleanup_free_ char *path = pl_path_join(folder, beside[i]);

        if (is_program(path))
            return PL_TAKE(path);
    }
    for (size_t i = 0; i < PL_COUNT(installed); i++)
        if (is_program(installed[i]))
            return strdup(installed[i]);
    return strdup("");
}

int pl_conf_namespace(const struct pl_spank_conf *conf,
                      uint32_t job_id,
                      const char *node,
                      char **ret)
{
    _cleanup_(pl_buf_finish) struct pl_buf path = {0};
    int r = 0;

    *ret = NULL;
    if (!conf->namespace)
        return 0;
    for (const char *p = conf->namespace; *p && r == 0; p++) {
        bool job = strncmp(p, "%j", 2) == 0, name = strncmp(p, "%n", 2) == 0;

        r = job    ? pl_buf_addf(&path, "%" PRIu32, job_id)
            : name ? pl_buf_adds(&path, node)
                   : pl_buf_addc(&path, *p);
        p += job || name;
    }
    if (r == 0)
        *ret = strdup(pl_buf_str(&path));
    return *ret ? 0 : -ENOMEM;
}
