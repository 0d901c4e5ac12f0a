/* SPDX-License-Identifier: MIT */
#include "common/base/env_file.h"
#include "common/base/fs.h"
#include "common/base/strv.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static bool is_one_of(const char *name, size_t len, const char *const *list, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (strlen(list[i]) == len && memcmp(list[i], name, len) == 0)
            return true;
    return false;
}

static bool begins_with(const char *name, size_t len, const char *prefix)
{
    return len >= strlen(prefix) && memcmp(name, prefix, strlen(prefix)) == 0;
}

static bool is_name(const char *name, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        char c = name[i];

        if (!((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' ||
              (i > 0 && c >= '0' && c <= '9')))
            return false;
    }
    return len > 0;
}

/* Variables that Slurm sets for the job and for each task. srun reads some of them: if a user set
 * these, the step would have another shape than the job. */
static const struct {
    const char *name, *option; /* what the user may want; NULL: nothing */
} of_slurm[] = {
    {"SLURM_PROCID", NULL},
    {"SLURM_LOCALID", NULL},
    {"SLURM_NODEID", NULL},
    {"SLURM_JOB_ID", NULL},
    {"SLURM_JOBID", NULL},
    {"SLURM_STEPID", NULL},
    {"SLURM_TASK_PID", NULL},
    {"SLURMD_NODENAME", NULL},
    {"SLURM_NTASKS", "--ntasks N"},
    {"SLURM_NPROCS", "--ntasks N"},
    {"SLURM_NTASKS_PER_NODE", "--ntasks-per-node N"},
    {"SLURM_TASKS_PER_NODE", "--ntasks-per-node N"},
    {"SLURM_NNODES", "--nodes N"},
    {"SLURM_JOB_NUM_NODES", "--nodes N"},
    {"SLURM_NODELIST", "--nodelist NODES"},
    {"SLURM_JOB_NODELIST", "--nodelist NODES"},
    {"SLURM_CPUS_PER_TASK", "--cpus-per-task N"},
    {"SLURM_GPUS", "--gpus N"},
    {"SLURM_GPUS_PER_NODE", "--gpus-per-node N"},
    {"SLURM_GPUS_PER_TASK", "--gpus-per-task N"},
    {"SLURM_CPUS_ON_NODE", "--cpus-per-task N"},
    {"SLURM_JOB_PARTITION", "--partition PARTITION"},
    {"SLURM_RESTART_COUNT", NULL},
    {"SLURM_GTIDS", NULL},
    {"SLURM_JOB_UID", NULL},
    {"SLURM_JOB_GID", NULL},
    {"SLURM_JOB_USER", NULL},
    {"SLURM_LAUNCH_NODE_IPADDR", NULL},
    {"SLURM_PRIO_PROCESS", NULL},
    {"SLURM_SRUN_COMM_HOST", NULL},
    {"SLURM_SRUN_COMM_PORT", NULL},
    {"SLURM_TOPOLOGY_ADDR", NULL},
    {"SLURM_TOPOLOGY_ADDR_PATTERN", NULL},
};

int pl_env_name_check(const char *name, size_t len, struct pl_error *err)
{
    static const char *const owned[] = {"PLUME_RUN_DIR",
                                        "PLUME_BIN",
                                        "PLUME_TRIAL",
                                        "PLUME_ATTEMPT",
                                        "PLUME_TRIAL_DIR",
                                        "PLUME_REASON",
                                        "PLUME_REQUEUE_ON",
                                        "PLUME_HUB",
                                        "PLUME_PROGRAM",
                                        "PLUME_PARAMS",
                                        "PLUME_RETRY",
                                        "PLUME_SETUP_SIGNAL",
                                        "PLUME_SOCKET",
                                        "PLUME_NODE_ADDR",
                                        "PLUME_RUNTIME",
                                        "SLURM_EXPORT_ENV",
                                        "PLUME_CONTAINER",
                                        "PLUME_CONTAINER_RUNTIME",
                                        "PLUME_CONTAINER_OPTIONS",
                                        "PLUME_CONTAINER_ENV"};
    static const char *const of_rank[] = {
        "RANK",       "WORLD_SIZE",    "LOCAL_RANK",      "LOCAL_WORLD_SIZE",
        "NODE_RANK",  "GROUP_RANK",    "MASTER_ADDR",     "MASTER_PORT",
        "PET_NNODES", "PET_NODE_RANK", "PET_MASTER_ADDR", "PET_MASTER_PORT"};
    static const char *const of_bash[] = {"RANDOM",
                                          "SRANDOM",
                                          "SECONDS",
                                          "LINENO",
                                          "OPTIND",
                                          "OPTARG",
                                          "OPTERR",
                                          "HISTCMD",
                                          "EUID",
                                          "UID",
                                          "PPID",
                                          "SHELLOPTS",
                                          "DIRSTACK",
                                          "FUNCNAME",
                                          "GROUPS",
                                          "PIPESTATUS",
                                          "EPOCHSECONDS",
                                          "EPOCHREALTIME",
                                          "IFS",
                                          "PS4",
                                          "SHLVL",
                                          "GLOBIGNORE",
                                          "MAPFILE",
                                          "REPLY",
                                          "COPROC",
                                          "ENV",
                                          "CHILD_MAX",
                                          "POSIXLY_CORRECT",
                                          "PROMPT_COMMAND",
                                          "_"};

    if (!is_name(name, len))
        return pl_error_set(err, -EINVAL, "'%.*s' is not the name of a variable", (int)len, name);
    if (is_one_of(name, len, owned, PL_COUNT(owned)))
        return pl_error_set(err, -EINVAL, "Plume sets the variable %.*s itself", (int)len, name);
    if (begins_with(name, len, "PLUME_PARAM_"))
        return pl_error_set(err, -EINVAL, "an axis sets %.*s: write --grid %.*s=VALUE", (int)len,
                            name, (int)(len - strlen("PLUME_PARAM_")),
                            name + strlen("PLUME_PARAM_"));
    for (size_t i = 0; i < PL_COUNT(of_slurm); i++)
        if (strlen(of_slurm[i].name) == len && memcmp(of_slurm[i].name, name, len) == 0)
            return pl_error_set(err, -EINVAL, "Slurm sets the variable %s itself%s%s",
                                of_slurm[i].name, of_slurm[i].option ? ": write " : "",
                                of_slurm[i].option ? of_slurm[i].option : "");
    if (begins_with(name, len, "SLURM_STEP_") || begins_with(name, len, "SLURM_ARRAY_"))
        return pl_error_set(err, -EINVAL, "Slurm sets the variable %.*s itself", (int)len, name);
    if (begins_with(name, len, "PET_NPROC_PER_NODE") && len == strlen("PET_NPROC_PER_NODE"))
        return pl_error_set(
            err, -EINVAL, "the job script sets PET_NPROC_PER_NODE itself: write --num-processes N");
    if (is_one_of(name, len, of_rank, PL_COUNT(of_rank)))
        return pl_error_set(
            err, -EINVAL, "each rank gets a %.*s of its own, so this has no effect%s", (int)len,
            name,
            len == 11 && memcmp(name, "MASTER_PORT", 11) == 0 ? ": write --master-port LO-HI" : "");
    if (is_one_of(name, len, of_bash, PL_COUNT(of_bash)) || begins_with(name, len, "BASH") ||
        begins_with(name, len, "COMP_") || begins_with(name, len, "plume_") ||
        begins_with(name, len, "_PLUME_"))
        return pl_error_set(err, -EINVAL,
                            "%.*s belongs to the shell of the job script: it cannot be set",
                            (int)len, name);
    return 0;
}

/* Finds the value of a line's text after '='. */
static int unquote(const char **value, size_t *len, struct pl_error *err)
{
    char quote = *len > 0 ? (*value)[0] : 0;

    if (quote != '"' && quote != '\'')
        return 0;
    if (*len < 2 || (*value)[*len - 1] != quote || memchr(*value + 1, quote, *len - 2))
        return pl_error_set(err, -EINVAL,
                            "a value that begins with %c must end with it, and have "
                            "no other %c",
                            quote, quote);
    (*value)++;
    *len -= 2;
    for (size_t i = 0; quote == '"' && i < *len; i++)
        if (strchr("\\$`", (*value)[i]))
            return pl_error_set(err, -EINVAL,
                                "a value in double quotes has a '%c', and nothing is expanded: "
                                "write single quotes",
                                (*value)[i]);
    return 0;
}

static int parse_line(const char *line, size_t len, char ***list, struct pl_error *err)
{
    static const char export[] = "export ";
    _cleanup_free_ char *entry = NULL;
    const char *equals, *value;
    size_t name_len, value_len;
    int r;

    if (begins_with(line, len, export)) {
        line += strlen(export);
        len -= strlen(export);
    }
    equals = memchr(line, '=', len);
    if (!equals)
        return pl_error_set(err, -EINVAL, "not NAME=VALUE");
    name_len = (size_t)(equals - line);
    value = equals + 1;
    value_len = len - name_len - 1;
    r = pl_env_name_check(line, name_len, err);
    if (r == 0)
        r = unquote(&value, &value_len, err);
    if (r < 0)
        return r;
    entry = pl_strf("%.*s=%.*s", (int)name_len, line, (int)value_len, value);
    return entry && pl_strv_append(list, entry) == 0 ? 0 : pl_error_nomem(err);
}

int pl_env_file_parse(
    const char *text, size_t len, const char *path, char ***ret, struct pl_error *err)
{
    _cleanup_(pl_strv_freep) char **list = calloc(1, sizeof(*list));
    unsigned number = 1;

    if (!list)
        return pl_error_nomem(err);
    for (const char *line = text, *end; line < text + len; line = end + 1, number++) {
        const char *start = line;
        size_t n;
        int r;

        end = memchr(line, '\n', len - (size_t)(line - text));
        end = end ? end : text + len;
        while (start < end && (*start == ' ' || *start == '\t'))
            start++;
        n = (size_t)(end - start);
        if (n > 0 && start[n - 1] == '\r')
            n--;
        if (n == 0 || *start == '#')
            continue;
        r = memchr(start, '\0', n) ? pl_error_set(err, -EINVAL, "a NUL byte")
                                   : parse_line(start, n, &list, err);
        if (r < 0)
            return pl_error_wrap(err, r, "line %u of '%s'", number, path);
    }
    *ret = PL_TAKE(list);
    return 0;
}

int pl_env_file_read(const char *path, char ***ret, struct pl_error *err)
{
    _cleanup_close_ int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    _cleanup_free_ char *text = NULL;
    struct stat st;
    size_t len;
    int r;

    if (fd < 0)
        return pl_error_errno(err, errno, "cannot open '%s'", path);
    if (fstat(fd, &st) < 0)
        return pl_error_errno(err, errno, "cannot look at '%s'", path);
    if (!S_ISREG(st.st_mode))
        return pl_error_set(err, -EINVAL, "'%s' is not a regular file", path);
    if (st.st_uid != geteuid())
        return pl_error_set(err, -EPERM, "'%s' belongs to user %u, not to you", path,
                            (unsigned)st.st_uid);
    if (st.st_mode & 077)
        return pl_error_set(err, -EPERM, "others may read '%s' (mode %04o): chmod 600 it", path,
                            (unsigned)st.st_mode & 07777);
    r = pl_fd_read(fd, path, PL_ENV_FILE_MAX, &text, &len, err);
    if (r == 0)
        r = pl_env_file_parse(text, len, path, ret, err);
    if (text)
        explicit_bzero(text, len);
    return r;
}
