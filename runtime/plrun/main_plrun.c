/* SPDX-License-Identifier: MIT */
/* plrun(1): starts one rank of a step and guards it; also the job script's small helper. */
#include "common/base/fs.h"
#include "common/base/log.h"
#include "common/base/metric_rule.h"
#include "common/base/options.h"
#include "common/base/parse.h"
#include "runtime/node/net.h"
#include "runtime/node/slurm_step.h"
#include "runtime/plrun/starter.h"
#include "runtime/plrun/trial.h"

#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <string.h>

#define EXIT_DUPLICATE PL_EXIT_PARTIAL /* --claim: another array has the trial */

enum {
    OPT_METRIC,
    OPT_NCCL_DEBUG,
    OPT_NCCL_IFNAME,
    OPT_MASTER_PORT,
    OPT_TRIAL,
    OPT_CLAIM,
    OPT_FINISH,
    OPT_FIND_PROGRAM,
    OPT_HUB
};

static const struct pl_option options[] = {
    {"metric", 0, "NAME=REGEX", "Options",
     "find a metric in the rank's output: the number in the expression's first group "
     "(may be given several times)",
     OPT_METRIC},
    {"nccl-debug", 0, "LEVEL", NULL, "set NCCL_DEBUG for the ranks", OPT_NCCL_DEBUG},
    {"nccl-ifname", 0, "SPEC", NULL, "set NCCL_SOCKET_IFNAME for the ranks", OPT_NCCL_IFNAME},
    {"master-port", 0, "RANGE", NULL,
     "take MASTER_PORT from LOW-HIGH (checked, not held) instead of reserving a free one",
     OPT_MASTER_PORT},
    {"trial", 0, NULL, "For job scripts", "run the trial that PLUME_RUN_DIR and PLUME_TRIAL name",
     OPT_TRIAL},
    {"claim", 0, NULL, NULL, "claim that trial for this job and print the attempt's number",
     OPT_CLAIM},
    {"finish", 0, "CODE", NULL, "see to the trial's result; exits with the code to end with",
     OPT_FINISH},
    {"find-program", 0, "NAME", NULL,
     "print the file that runs as the trial's program: NAME by PATH, else the one that plsubmit "
     "found",
     OPT_FIND_PROGRAM},
    {"reserve-hub", 0, NULL, NULL,
     "print HOST:PORT for PLUME_HUB and hold the port until stdout is closed", OPT_HUB},
    {0},
};

static const struct pl_command command = {
    .name = "plrun",
    .synopsis = "[OPTIONS] [--] PROGRAM [ARG...]\n--trial | --claim | --finish CODE\n"
                "--find-program NAME | --reserve-hub",
    .summary = "Start PROGRAM as one rank of a Slurm step, with the environment that distributed "
               "training needs, and guard it: srun -N2 --ntasks-per-node=4 plrun -- ./train",
    .options = options,
};

struct arguments {
    int mode;         /* an OPT_*, or -1: a program */
    int code;         /* of --finish */
    const char *name; /* of --find-program */
};

static int add_metric(const char *value, struct pl_error *err)
{
    const char *before = getenv("PLUME_METRIC");
    _cleanup_free_ char *all = NULL;
    int r;

    if (strchr(value, '\n'))
        return pl_error_set(err, -EINVAL, "--metric: a line break is not allowed");
    r = pl_metric_rule_check(value, err);
    if (r < 0)
        return pl_error_wrap(err, r, "--metric");
    all = pl_strf("%s%s%s", before ? before : "", before && *before ? "\n" : "", value);
    return all && setenv("PLUME_METRIC", all, 1) == 0 ? 0 : -ENOMEM;
}

static int set(void *ctx, const struct pl_option *o, const char *value, struct pl_error *err)
{
    struct arguments *a = ctx;
    uint16_t low, high;
    int64_t code;
    int r = 0;

    switch (o->id) {
    case OPT_METRIC:
        return add_metric(value, err);
    case OPT_NCCL_DEBUG:
        return setenv("PLUME_NCCL_DEBUG", value, 1) < 0 ? -errno : 0;
    case OPT_NCCL_IFNAME:
        return setenv("PLUME_NCCL_IFNAME", value, 1) < 0 ? -errno : 0;
    case OPT_MASTER_PORT:
        r = pl_parse_port_range(value, &low, &high, err);
        if (r < 0)
            return pl_error_wrap(err, r, "--master-port");
        return setenv("PLUME_MASTER_PORT_RANGE", value, 1) < 0 ? -errno : 0;
    case OPT_FINISH:
        r = pl_parse_int(value, 0, 255, &code, err);
        if (r < 0)
            return pl_error_wrap(err, r, "--finish");
        a->code = (int)code;
        break;
    case OPT_FIND_PROGRAM:
        a->name = value;
        break;
    }
    if (a->mode >= 0)
        return pl_error_set(err, -EINVAL, "--%s does not go with another mode", o->name);
    a->mode = o->id;
    return 0;
}

/* plrund stands beside plrun. */
static int find_daemon(char *ret, size_t size, struct pl_error *err)
{
    ssize_t n = readlink("/proc/self/exe", ret, size - 16);
    char *slash;

    if (n <= 0)
        return pl_error_errno(err, errno, "cannot find plrun's own folder");
    ret[n] = '\0';
    slash = strrchr(ret, '/');
    memcpy(slash + 1, "plrund", 7);
    return 0;
}

/* True in a rank of this very step: the plugin has made it one, or another plrun. The variables of
 * a rank may also come from another step, whose rank started ours or submitted our job. */
static bool is_rank(void)
{
    const char *socket = getenv("PLUME_SOCKET"), *slash = socket ? strrchr(socket, '/') : NULL;
    struct pl_slurm_step step;
    char name[96];
    int n;

    if (!getenv("PLUME_RUNTIME") || !slash || pl_slurm_step_from_env(&step, true, NULL) < 0)
        return false;
    n = snprintf(name, sizeof(name), "/%s.%s.", step.id.job, step.id.step);
    return n < (int)sizeof(name) && strncmp(slash, name, (size_t)n) == 0;
}

static int run_program(char **argv, bool trial, struct pl_error *err)
{
    static const char *const of_trial[] = {"PLUME_RUN_DIR", "PLUME_TRIAL", "PLUME_ATTEMPT",
                                           "PLUME_HUB", "PLUME_PROGRAM"};
    char plrund[PATH_MAX];
    int r;

    if (is_rank())
        return pl_starter_exec(argv);
    /* From a job script's set-up, or from a rank: this step is not the trial, whose files are its.
     */
    for (size_t i = 0; !trial && i < PL_COUNT(of_trial); i++)
        unsetenv(of_trial[i]);
    r = find_daemon(plrund, sizeof(plrund), err);
    return r < 0 ? r : pl_starter_run(argv, plrund, err);
}

static int run_trial(struct pl_error *err)
{
    char **argv = NULL;
    int r = pl_trial_program(&argv, err);

    if (r == 0)
        r = run_program(argv, true, err);
    pl_strv_free(argv);
    return r;
}

static int claim(struct pl_error *err)
{
    unsigned attempt;
    int r = pl_trial_claim(&attempt, err);

    if (r == -EEXIST) {
        pl_log_error("run", "nothing to do: %s", pl_error_text(err));
        return EXIT_DUPLICATE;
    }
    if (r == 0)
        printf("%u\n", attempt);
    return r;
}

static int find_program(const char *name, struct pl_error *err)
{
    _cleanup_free_ char *path = NULL;
    int r = pl_trial_find_program(name, &path, err);

    if (r == 0)
        printf("%s\n", path);
    return r;
}

/* Holds a port for the hub, which runs on this host as this user and may bind it all the same. */
static int reserve_hub(struct pl_error *err)
{
    const char *addr = getenv("SLURM_LAUNCH_NODE_IPADDR");
    _cleanup_close_ int fd = -EBADF;
    struct pollfd p = {.fd = STDOUT_FILENO};
    char host[256];
    uint16_t port;
    int r = pl_port_reserve(0, &fd, &port, err);

    if (r < 0)
        return r;
    if (!addr || !*addr) {
        r = pl_net_own_address(host, sizeof(host), err);
        if (r < 0)
            return r;
        addr = host;
    }
    printf(strchr(addr, ':') ? "[%s]:%u\n" : "%s:%u\n", addr, port);
    fflush(stdout);
    while (poll(&p, 1, -1) < 0 && errno == EINTR) /* until nobody can read any more */
        ;
    return 0;
}

int main(int argc, char **argv)
{
    struct arguments a = {.mode = -1};
    struct pl_error err = {0};
    int rest, r;
    bool done;

    pl_log_init("plrun");
    r = pl_options_parse(&command, argc, argv, set, &a, &rest, &done, &err);
    if (r == 0 && done)
        return PL_EXIT_OK;
    if (r == 0 && a.mode < 0 && rest == argc)
        r = pl_error_set(&err, -EINVAL, "no program given: see plrun --help");
    if (r == 0 && a.mode >= 0 && rest < argc)
        r = pl_error_set(&err, -EINVAL, "'%s': this mode takes no program", argv[rest]);
    if (r < 0) {
        pl_log_error("run", "%s", pl_error_text(&err));
        return PL_EXIT_USAGE;
    }
    switch (a.mode) {
    case OPT_TRIAL:
        r = run_trial(&err);
        break;
    case OPT_CLAIM:
        r = claim(&err);
        break;
    case OPT_FINISH:
        r = pl_trial_finish(a.code, &a.code, &err);
        if (r == 0)
            return a.code;
        pl_log_error("run", "%s", pl_error_text(&err));
        return a.code ? a.code : PL_EXIT_FAILED;
    case OPT_FIND_PROGRAM:
        r = find_program(a.name, &err);
        break;
    case OPT_HUB:
        r = reserve_hub(&err);
        break;
    default:
        r = run_program(argv + rest, false, &err);
    }
    if (r < 0) {
        pl_log_error("run", "%s", pl_error_text(&err));
        return PL_EXIT_FAILED;
    }
    return r;
}
