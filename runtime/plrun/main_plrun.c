/* SPDX-License-Identifier: MIT */
/* plrun(1): starts one rank of a step and guards it; also the job script's small helper. */
#include "common/base/child.h"
#include "common/base/env.h"
#include "common/base/env_file.h"
#include "common/base/fs.h"
#include "common/base/log.h"
#include "common/base/metric_rule.h"
#include "common/base/near.h"
#include "common/base/options.h"
#include "common/base/parse.h"
#include "common/base/site.h"
#include "common/base/trace.h"
#include "common/proto/rank/rank_link.h"
#include "common/run/on_hang.h"
#include "runtime/node/net.h"
#include "runtime/node/slurm_step.h"
#include "runtime/plrun/end.h"
#include "runtime/plrun/program.h"
#include "runtime/plrun/starter.h"
#include "runtime/plrun/tasks.h"
#include "runtime/plrun/trial.h"

#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <string.h>

#define EXIT_DUPLICATE PL_EXIT_PARTIAL /* --claim: another array has the trial */

/* The forms of the command line. */
enum mode {
    MODE_PROGRAM, /* the default; the others are an option each */
    MODE_TASKS,
    MODE_TRIAL,
    MODE_CLAIM,
    MODE_REASON,
    MODE_FINISH,
    MODE_END_SWEEP,
    MODE_FIND_PROGRAM,
    MODE_READ_ENV,
    MODE_RESERVE_HUB,
};

struct arguments {
    enum mode mode;
    const char *word; /* the mode's argument; NULL = none */
    int64_t code;     /* --finish, --tasks, --end-sweep */
    int64_t nodes;    /* --nodes */
};

static int add_metric(void *ctx, const struct pl_option *o, const char *value, struct pl_error *err)
{
    const char *before = pl_env(PL_ENV_PLUME_METRIC);
    _cleanup_free_ char *all = NULL;
    int r;

    if (strchr(value, '\n'))
        return pl_error_set(err, -EINVAL, "a line break is not allowed");
    r = pl_metric_rule_check(value, err);
    if (r < 0)
        return r;
    all = pl_strf("%s%s%s", before ? before : "", before && *before ? "\n" : "", value);
    return all ? pl_env_set(PL_ENV_PLUME_METRIC, all) : -ENOMEM;
}

static int
set_nccl_debug(void *ctx, const struct pl_option *o, const char *value, struct pl_error *err)
{
    const char *level;
    int r = pl_parse_nccl_level(value, &level, err);

    return r < 0 ? r : pl_env_set(PL_ENV_PLUME_NCCL_DEBUG, level);
}

static int
set_nccl_ifname(void *ctx, const struct pl_option *o, const char *value, struct pl_error *err)
{
    return pl_env_set(PL_ENV_PLUME_NCCL_IFNAME, value);
}

static int
set_master_port(void *ctx, const struct pl_option *o, const char *value, struct pl_error *err)
{
    uint16_t low, high;
    int r = pl_parse_port_range(value, &low, &high, err);

    if (r < 0)
        return r;
    return pl_env_set(PL_ENV_PLUME_MASTER_PORT_RANGE, value);
}

static int
set_on_hang(void *ctx, const struct pl_option *o, const char *value, struct pl_error *err)
{
    enum pl_on_hang policy;
    int r = pl_on_hang_parse_step(value, &policy, err);

    return r < 0 ? r : pl_env_set(PL_ENV_PLUME_ON_HANG, value);
}

static int set_mode(void *ctx, const struct pl_option *o, const char *value, struct pl_error *err)
{
    struct arguments *a = ctx;

    if (a->mode != MODE_PROGRAM)
        return pl_error_set(err, -EINVAL, "cannot be combined with another mode: omit one of them");
    a->mode = (enum mode)o->target.key;
    a->word = value;
    if (a->mode == MODE_TASKS || a->mode == MODE_END_SWEEP)
        return pl_parse_int(value, 1, 65535, &a->code, err);
    return a->mode == MODE_FINISH ? pl_parse_int(value, 0, 255, &a->code, err) : 0;
}

static int set_nodes(void *ctx, const struct pl_option *o, const char *value, struct pl_error *err)
{
    struct arguments *a = ctx;

    return pl_parse_int(value, 1, 65535, &a->nodes, err);
}

#define MODE(mode)                                                                                 \
    {                                                                                              \
        .set = set_mode, .key = (mode)                                                             \
    }

static const struct pl_option options[] = {
    {"metric", 0, "NAME=REGEX", "Options",
     "read a metric from the ranks' output: the number in the first group of a POSIX extended "
     "regular expression, or in the whole match; repeatable",
     PL_OPTION_CALL(add_metric)},
    {"nccl-debug", 0, "LEVEL", NULL, "set NCCL_DEBUG for the ranks",
     PL_OPTION_CALL(set_nccl_debug)},
    {"nccl-ifname", 0, "SPEC", NULL, "set NCCL_SOCKET_IFNAME for the ranks",
     PL_OPTION_CALL(set_nccl_ifname)},
    {"master-port", 0, "RANGE", NULL,
     "take MASTER_PORT from LOW-HIGH (checked, not held); default: a free port, held",
     PL_OPTION_CALL(set_master_port)},
    {"on-hang", 0, "POLICY", NULL,
     "once ranks that report steps make no progress: warn, or kill, which ends the step (warn)",
     PL_OPTION_CALL(set_on_hang)},
    {"trial", 0, NULL, "For job scripts", "run the trial that PLUME_RUN_DIR and PLUME_TRIAL name",
     MODE(MODE_TRIAL)},
    {"tasks", 0, "N", NULL,
     "start PROGRAM N times on this machine, as srun starts the tasks of a step", MODE(MODE_TASKS)},
    {"nodes", 0, "N", NULL,
     "with --tasks: as the tasks of a step on N nodes, each with a daemon (1)",
     PL_OPTION_CALL(set_nodes)},
    {"claim", 0, NULL, NULL, "claim that trial for this job and print the number of the attempt",
     MODE(MODE_CLAIM)},
    {"reason", 0, NULL, NULL, "print why this attempt starts: first, retry, preempt, ...",
     MODE(MODE_REASON)},
    {"finish", 0, "CODE", NULL,
     "write the trial's result if the runtime could not; exit with the result's code",
     MODE(MODE_FINISH)},
    {"end-sweep", 0, "N", NULL,
     "run the command of plsubmit --on-end of the sweep in PLUME_RUN_DIR, unless it has more than "
     "N "
     "arrays, or the command has begun at this end",
     MODE(MODE_END_SWEEP)},
    {"find-program", 0, "NAME", NULL,
     "print the file of the trial's program: NAME in PATH, else the one that plsubmit found",
     MODE(MODE_FIND_PROGRAM)},
    {"read-env", 0, "FILE", NULL,
     "print the variables of FILE, each with a NUL after it, and a last word \".\"",
     MODE(MODE_READ_ENV)},
    {"reserve-hub", 0, NULL, NULL,
     "print HOST:PORT for PLUME_HUB and hold the port until the reader closes stdout",
     MODE(MODE_RESERVE_HUB)},
    {0},
};

/* Options of other launchers. */
static int explain(const char *word, struct pl_error *err)
{
    static const struct {
        const char *name, *text;
    } others[] = {
        {"--nproc-per-node", "srun starts the ranks: srun --ntasks-per-node=N plrun -- PROGRAM"},
        {"--nnodes", "srun starts the ranks: srun --nodes=N plrun -- PROGRAM"},
        {"--ntasks", "it is srun's: srun --ntasks=N plrun -- PROGRAM"},
        {"--ntasks-per-node", "it is srun's: srun --ntasks-per-node=N plrun -- PROGRAM"},
        {"-n", "it is srun's: srun -n N plrun -- PROGRAM"},
        {"-N", "it is srun's: srun -N N plrun -- PROGRAM"},
        {"--gpus", "it is srun's: srun --gpus=N plrun -- PROGRAM"},
        {"--gpus-per-node", "it is srun's: srun --gpus-per-node=N plrun -- PROGRAM"},
        {"--env", "write plrun -- env NAME=VALUE PROGRAM"},
        {"--standalone", "write plsubmit --local -n N PROGRAM for ranks on this machine"},
    };

    for (size_t i = 0; i < PL_COUNT(others); i++)
        if (word[1] == '-' ? pl_near_distance(word, others[i].name) == 0
                           : strcmp(word, others[i].name) == 0) /* -n is not -N */
            return pl_error_set(err, -EINVAL, "unknown option '%s': %s", word, others[i].text);
    return 0;
}

static const struct pl_command command = {
    .name = "plrun",
    .synopsis = "[OPTIONS] [--] PROGRAM [ARG...]\n--tasks N [--nodes N] -- PROGRAM "
                "[ARG...]\n--trial | --claim "
                "| --reason | --finish CODE | --end-sweep N\n"
                "--find-program NAME | --read-env FILE | --reserve-hub",
    .summary = "Starts PROGRAM as one rank of a Slurm step, with the environment of distributed "
               "training, and watches it: srun -N2 --ntasks-per-node=4 plrun -- ./train",
    .options = options,
    .explain = explain,
};

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

/* In a heterogeneous job SLURM_JOB_ID is that of the whole job, and the plugin names the socket by
 * the job of the component. */
static bool is_socket_of_component(const char *socket, const char *step)
{
    const char *job;

    for (unsigned i = 0;; i++) {
        char name[48];

        snprintf(name, sizeof(name), "SLURM_JOB_ID_HET_GROUP_%u", i);
        job = pl_env_named(name);
        if (!job || pl_rank_socket_is_of(socket, job, step))
            return job != NULL;
    }
}

/* True in a rank of this very step: the plugin has made it one, or another plrun. The variables of
 * a rank may also come from another step, whose rank started ours or submitted our job. */
static bool is_rank(void)
{
    const char *socket = pl_env(PL_ENV_PLUME_SOCKET);
    struct pl_slurm_step step;

    return pl_env(PL_ENV_PLUME_RUNTIME) && pl_slurm_step_from_env(&step, true, NULL) == 0 &&
           (pl_rank_socket_is_of(socket, step.id.job, step.id.step) ||
            is_socket_of_component(socket, step.id.step));
}

/* This process is no rank of its step: the variables are of a rank that has started the step. */
static void drop_inherited_rank(void)
{
    const char *master = pl_env(PL_ENV_MASTER_ADDR);
    _cleanup_free_ char *addr = master ? strdup(master) : NULL;

    if (!pl_env(PL_ENV_PLUME_SOCKET))
        return;
    for (enum pl_env_id id = PL_ENV_NONE + 1; id < PL_ENV_COUNT; id++)
        for (const char *const *name = pl_rank_own_variables; *name; name++)
            if (pl_env(id) && strcmp(pl_env_var(id)->name, *name) == 0 &&
                pl_rank_variable_is_ours(*name, pl_env(id), addr))
                unsetenv(*name);
}

static int run_program(char **argv, bool trial, struct pl_error *err)
{
    static const char *const of_trial[] = {"PLUME_RUN_DIR", "PLUME_TRIAL", "PLUME_ATTEMPT",
                                           "PLUME_HUB", "PLUME_PROGRAM"};
    char plrund[PATH_MAX];
    int r;

    if (is_rank())
        return pl_program_exec(argv);
    /* From a job script's set-up, or from a rank: this step is not the trial, whose files are its.
     */
    if (!trial && pl_env(PL_ENV_PLUME_RUN_DIR))
        unsetenv("PLUME_OUTPUT_RANKS");
    for (size_t i = 0; !trial && i < PL_COUNT(of_trial); i++)
        unsetenv(of_trial[i]);
    drop_inherited_rank();
    r = find_daemon(plrund, sizeof(plrund), err);
    return r < 0 ? r : pl_starter_run(argv, plrund, err);
}

/* A trial's program finds plrun, for steps of its own: the last folder of PATH is ours. */
static int add_own_folder(struct pl_error *err)
{
    const char *before = pl_env(PL_ENV_PATH);
    _cleanup_free_ char *path = NULL;
    char folder[PATH_MAX];
    int r = find_daemon(folder, sizeof(folder), err);

    if (r < 0)
        return r;
    *strrchr(folder, '/') = '\0';
    path = pl_strf("%s%s%s", before ? before : "", before && *before ? ":" : "", folder);
    return path && pl_env_set(PL_ENV_PATH, path) == 0 ? 0
                                                      : pl_error_set(err, -ENOMEM, "out of memory");
}

static int run_trial(struct pl_error *err)
{
    char **argv = NULL;
    int r = pl_trial_program(&argv, err);

    if (r == 0)
        r = add_own_folder(err);
    if (r == 0)
        r = run_program(argv, true, err);
    pl_strv_free(argv);
    return r;
}

/* Slurm may signal every process of the job: half a claim helps nobody, and the job script ends
 * next. Without the result that its end writes the trial is lost. A message is written to the job's
 * output, which may be as large as the user's limit lets it be. */
static void ignore_signals(void)
{
    static const int ignored[] = {SIGTERM, SIGINT,  SIGQUIT, SIGHUP,    SIGUSR1, SIGUSR2, SIGALRM,
                                  SIGABRT, SIGXCPU, SIGXFSZ, SIGVTALRM, SIGPROF, SIGIO,   SIGPWR};

    for (size_t i = 0; i < PL_COUNT(ignored); i++)
        signal(ignored[i], SIG_IGN);
}

static int claim(struct pl_error *err)
{
    unsigned attempt;
    int r;

    ignore_signals();
    r = pl_trial_claim(&attempt, err);
    if (r == -EEXIST) {
        pl_log_error("run", "nothing to do: %s", pl_error_text(err));
        return EXIT_DUPLICATE;
    }
    if (r == 0)
        printf("%u\n", attempt);
    return r;
}

static int reason(struct pl_error *err)
{
    const char *text;
    int r = pl_trial_reason(&text, err);

    if (r == 0)
        puts(text);
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

/* No shell reads the file. A reader that gets no "." knows of a failure. */
static int read_env(const char *path, struct pl_error *err)
{
    _cleanup_(pl_strv_freep) char **list = NULL;
    int r = pl_env_file_read(path, &list, err);

    for (char **entry = list; r == 0 && *entry; entry++)
        fwrite(*entry, 1, strlen(*entry) + 1, stdout);
    if (r == 0)
        putchar('.');
    return r;
}

/* Holds a port for the hub, which runs on this host as this user and may bind it all the same; no
 * other user may. */
static int reserve_hub(struct pl_error *err)
{
    const char *addr = pl_env(PL_ENV_SLURM_LAUNCH_NODE_IPADDR);
    const char *range = pl_env_text(PL_ENV_PLUME_HUB_PORTS);
    _cleanup_close_ int fd = -EBADF;
    struct pollfd p = {.fd = STDOUT_FILENO};
    char host[256] = "";
    uint16_t port, low = 0, high = 0;
    int r = 0;

    if (range && (r = pl_parse_port_range(range, &low, &high, err)) < 0)
        return pl_error_wrap(err, r, "PLUME_HUB_PORTS");
    r = pl_port_reserve_own(low, high, &fd, &port, err);
    if (r < 0)
        return r;
    r = pl_hub_bind_address(host, sizeof(host), err);
    if (r == 0 && !*host && (!addr || !*addr))
        r = pl_net_own_address(host, sizeof(host), err);
    if (r < 0)
        return r;
    if (*host)
        addr = host;
    printf(strchr(addr, ':') ? "[%s]:%u\n" : "%s:%u\n", addr, port);
    fflush(stdout);
    while (poll(&p, 1, -1) < 0 && errno == EINTR) /* until nobody can read any more */
        ;
    return 0;
}

/* pl_trial_finish() reports a failure of its own with the code of the trial if that is not 0. */
static int finish(int code, struct pl_error *err)
{
    int r;

    ignore_signals();
    r = pl_trial_finish(code, &code, err);
    if (r == 0)
        return code;
    pl_log_error("run", "%s", pl_error_text(err));
    return code ? code : PL_EXIT_FAILED;
}

/* Returns an exit code or a negative errno. */
static int run(const struct arguments *a, char **program, struct pl_error *err)
{
    int r;

    switch (a->mode) {
    case MODE_TRIAL:
        return run_trial(err);
    case MODE_TASKS:
        return pl_tasks_run(program, (unsigned)a->code, (unsigned)a->nodes, err);
    case MODE_CLAIM:
        return claim(err);
    case MODE_REASON:
        return reason(err);
    case MODE_FINISH:
        return finish((int)a->code, err);
    case MODE_END_SWEEP:
        r = add_own_folder(err);
        return r < 0 ? r : pl_end_run((unsigned)a->code, err);
    case MODE_FIND_PROGRAM:
        return find_program(a->word, err);
    case MODE_READ_ENV:
        return read_env(a->word, err);
    case MODE_RESERVE_HUB:
        return reserve_hub(err);
    case MODE_PROGRAM:
        return run_program(program, false, err);
    }
    return -ENOTSUP;
}

int main(int argc, char **argv)
{
    struct arguments a = {.nodes = 1};
    struct pl_error err = {0};
    int rest, r;
    bool done;

    pl_std_open();
    pl_child_init();
    pl_log_init("plrun");
    pl_trace_init("plrun");
    r = pl_site_load(&err);
    if (r == 0)
        r = pl_options_parse(&command, argc, argv, &a, &rest, &done, &err);
    if (r == 0 && done)
        return PL_EXIT_OK;
    if (r == 0 && (a.mode == MODE_PROGRAM || a.mode == MODE_TASKS) && rest == argc)
        r = pl_error_set(&err, -EINVAL, "no program given: see plrun --help");
    if (r == 0 && a.nodes > (a.mode == MODE_TASKS ? a.code : 1))
        r = pl_error_set(&err, -EINVAL, "--nodes %d needs --tasks with at least as many tasks",
                         (int)a.nodes);
    if (r == 0 && a.mode != MODE_PROGRAM && a.mode != MODE_TASKS && rest < argc)
        r = pl_error_set(&err, -EINVAL, "'%s': this mode takes no program", argv[rest]);
    if (r < 0) {
        pl_log_error("run", "%s", pl_error_text(&err));
        return PL_EXIT_USAGE;
    }
    r = run(&a, argv + rest, &err);
    if (r < 0) {
        pl_log_error("run", "%s", pl_error_text(&err));
        return PL_EXIT_FAILED;
    }
    return r;
}
