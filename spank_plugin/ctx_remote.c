/* SPDX-License-Identifier: MIT */
/* In slurmstepd: one plrund a node and step, and each task a rank of it.
 *
 *   user_init       (user; root may return)  starts plrund, waits until it is ready
 *   task_post_fork  (root)                   tells it of the task
 *   task_init       (user, in the task)      joins, or says why not and ends the task
 *   task_exit       (root)                   tells it of the end; with the last one, waits until
 *                                            the trial's files are written: srun returns then
 *   exit            (root)                   says goodbye to it
 *
 * Whatever fails before task_init is kept in `failure`: only there does Slurm show a message to the
 * user and fail the task without draining the node. */
#include "common/base/env.h"
#include "common/base/fs.h"
#include "common/base/parse.h"
#include "common/proto/rank/rank_link.h"
#include "spank_plugin/conf.h"
#include "spank_plugin/daemon_env.h"
#include "spank_plugin/daemon_said.h"
#include "spank_plugin/node_daemon.h"
#include "spank_plugin/options.h"
#include "spank_plugin/task.h"
#include "spank_plugin/values.h"

#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>

/* plrund promises an answer within 2 s; a node on which much starts at once is slower. Slurm bears
 * user_init for much longer, but cannot cancel the step meanwhile. */
#define READY_MS 10000
/* plrund refuses after 120 s; Slurm bears task_init for more than 300 s (doc/slurm-notes.md). */
#define WORLD_MS 130000
#define GOODBYE_MS 3000
/* For the files of a step that is over; 0.1 s is usual, and Slurm may be asked before. */
#define SETTLE_MS 2000
#define GOODBYE_LATE_MS 1000 /* the goodbye to a daemon that has not settled */

#define STEP_SPECIAL_MIN 0xfffffff0u /* batch script, extern and interactive steps */

/* slurmstepd serves one step. Tasks inherit all this when they are forked. */
static struct {
    struct pl_spank_conf conf;
    struct pl_error failure;
    struct pl_node_daemon daemon;
    bool active;              /* this step wants us */
    uint32_t n_tasks;         /* of this node that have not ended */
    bool late;                /* the daemon has not settled in time */
    unsigned lines_left;      /* of those that the daemon may still say */
    _Atomic uint32_t *shared; /* among the node's tasks: hash of the message shown last, or NULL */
} self = {.daemon = PL_NODE_DAEMON_INIT, .lines_left = PL_DAEMON_SAID_MAX};

static const char *node_name(void)
{
    const char *name = pl_env(PL_ENV_SLURMD_NODENAME);

    return name ? name : "unknown";
}

static int item(spank_t spank, spank_item_t which, uint32_t *ret)
{
    return spank_get_item(spank, which, ret) == ESPANK_SUCCESS ? 0 : -EIO;
}

static int read_facts(spank_t spank, struct pl_daemon_facts *facts, struct pl_error *err)
{
    const struct {
        spank_item_t which;
        uint32_t *ret;
        const char *name;
    } items[] = {
        {S_JOB_ID, &facts->job_id, "job id"},
        {S_JOB_STEPID, &facts->step_id, "step id"},
        {S_JOB_NODEID, &facts->node_id, "node id"},
        {S_JOB_NNODES, &facts->nnodes, "number of nodes"},
        {S_JOB_TOTAL_TASK_COUNT, &facts->ntasks, "number of tasks"},
        {S_JOB_LOCAL_TASK_COUNT, &facts->local_ntasks, "number of this node's tasks"},
    };
    uint16_t cpus;

    for (size_t i = 0; i < PL_COUNT(items); i++)
        if (item(spank, items[i].which, items[i].ret) < 0)
            return pl_error_set(err, -EIO, "Slurm does not report the %s", items[i].name);
    if (spank_get_item(spank, S_JOB_NCPUS, &cpus) == ESPANK_SUCCESS)
        facts->cpus = cpus;
    if (item(spank, S_SLURM_RESTART_COUNT, &facts->restart) < 0)
        facts->restart = 0;
    facts->node = pl_env(PL_ENV_SLURMD_NODENAME);
    facts->conf = pl_env(PL_ENV_SLURM_CONF);
    facts->nccl_debug = pl_options()->nccl_debug;
    facts->master_port = pl_options()->master_port;
    facts->metric = pl_options()->metric;
    facts->on_hang = pl_options()->on_hang;
    return 0;
}

/* In a step over several components of a heterogeneous job SPANK's numbers are the component's, and
 * only the environment has the step's: there would be a world a component, with a rank 0 each. */
static int check_whole(const struct pl_daemon_facts *facts, char *const *env, struct pl_error *err)
{
    const char *ntasks = pl_env_get(env, "SLURM_STEP_NUM_TASKS");
    int64_t n;

    if (!ntasks || pl_parse_int(ntasks, 1, UINT32_MAX, &n, NULL) < 0 || n == facts->ntasks)
        return 0;
    return pl_error_set(err, -ENOTSUP,
                        "a step over several components of a heterogeneous job cannot be run with "
                        "--plume: give each its own step (srun --het-group=N)");
}

static int read_user(spank_t spank, char *const *env, struct pl_daemon_user *user)
{
    gid_t *groups = NULL;
    int n_groups = 0;

    if (spank_get_item(spank, S_JOB_UID, &user->uid) != ESPANK_SUCCESS ||
        spank_get_item(spank, S_JOB_GID, &user->gid) != ESPANK_SUCCESS)
        return -EIO;
    if (spank_get_item(spank, S_JOB_SUPPLEMENTARY_GIDS, &groups, &n_groups) != ESPANK_SUCCESS)
        n_groups = 0;
    user->groups = n_groups > 0 ? groups : &user->gid;
    user->n_groups = n_groups > 0 ? (size_t)n_groups : 1;
    user->umask = pl_daemon_umask(env);
    return 0;
}

static void free_env(char ***env)
{
    pl_daemon_env_free(*env);
}

static int start_daemon(spank_t spank, struct pl_error *err)
{
    _cleanup_(free_env) char **env = NULL;
    _cleanup_free_ char *path = pl_conf_plrund(&self.conf);
    _cleanup_free_ char *dir = NULL, *namespace = NULL, *scontrol = pl_conf_scontrol(&self.conf);
    struct pl_daemon_facts facts = {0};
    struct pl_daemon_user user = {0};
    char **job = NULL;
    int r;

    if (spank_get_item(spank, S_JOB_ENV, &job) != ESPANK_SUCCESS || !job)
        return pl_error_set(err, -EIO, "Slurm does not report the job's environment");
    if (read_user(spank, job, &user) < 0)
        return pl_error_set(err, -EIO, "Slurm does not report the job's user");
    if (self.conf.runtime_dir)
        dir = pl_strf("%s/%u", self.conf.runtime_dir, (unsigned)user.uid);
    if (!path || !scontrol || (self.conf.runtime_dir && !dir))
        return pl_error_set(err, -ENOMEM, "out of memory");
    facts.runtime_dir = dir;
    facts.scontrol = scontrol;
    user.runtime_dir = self.conf.runtime_dir;
    r = read_facts(spank, &facts, err);
    if (r == 0 && pl_conf_namespace(&self.conf, facts.job_id, node_name(), &namespace) < 0)
        r = pl_error_nomem(err);
    user.namespace = namespace;
    self.n_tasks = facts.local_ntasks;
    if (r == 0)
        r = check_whole(&facts, job, err);
    if (r == 0)
        r = pl_daemon_env(&facts, job, &env, err);
    if (r == 0)
        r = pl_node_daemon_start(&self.daemon, path, env, &user, READY_MS, err);
    return r;
}

static void init(spank_t spank, int argc, char **argv)
{
    if (pl_spank_options_register(spank, &self.failure) == 0)
        pl_conf_parse(&self.conf, argc, argv, &self.failure);
}

static void user_init(spank_t spank)
{
    uint32_t step = STEP_SPECIAL_MIN;
    void *shared;

    if (!pl_options()->enabled || item(spank, S_JOB_STEPID, &step) < 0 || step >= STEP_SPECIAL_MIN)
        return;
    self.active = true;
    shared =
        mmap(NULL, sizeof(*self.shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared != MAP_FAILED)
        self.shared = shared;
    if (self.failure.code == 0)
        self.failure = pl_options()->failure;
    if (self.failure.code == 0)
        start_daemon(spank, &self.failure);
}

static void task_post_fork(spank_t spank)
{
    uint32_t rank;
    pid_t pid;

    if (self.active && item(spank, S_TASK_GLOBAL_ID, &rank) == 0 &&
        spank_get_item(spank, S_TASK_PID, &pid) == ESPANK_SUCCESS)
        pl_node_daemon_spawned(&self.daemon, rank, pid);
}

static int set_variable(void *ctx, const char *name, const char *value, bool overwrite)
{
    spank_err_t r = spank_setenv((spank_t)ctx, name, value, overwrite);

    return r == ESPANK_SUCCESS || (r == ESPANK_ENV_EXISTS && !overwrite) ? 0 : -EIO;
}

static int join(spank_t spank, struct pl_error *err)
{
    char socket[32];
    uint32_t rank;
    int local, r;

    if (self.failure.code) {
        *err = self.failure;
        return err->code;
    }
    if (item(spank, S_TASK_GLOBAL_ID, &rank) < 0 ||
        spank_get_item(spank, S_TASK_ID, &local) != ESPANK_SUCCESS)
        return pl_error_set(err, -EIO, "Slurm does not report the task's number");
    snprintf(socket, sizeof(socket), "/proc/self/fd/%d", self.daemon.socket_fd);
    r = pl_task_join(socket, rank, (unsigned)local, WORLD_MS, set_variable, spank, err);
    if (r < 0)
        return r;
    if (set_variable(spank, "PLUME_RUNTIME", "plugin", true) < 0)
        return pl_error_set(err, -EIO, "Slurm does not set the task's environment");
    return 0;
}

static uint32_t hash_of(const char *text)
{
    uint32_t hash = 2166136261u; /* FNV-1a */

    for (const char *p = text; *p; p++)
        hash = (hash ^ (unsigned char)*p) * 16777619u;
    return hash;
}

/* False where another task of this node has just said the same. */
static bool is_news(const char *text)
{
    uint32_t hash = hash_of(text);

    return !self.shared || atomic_exchange(self.shared, hash) != hash;
}

/* A step that a rank starts inherits the rank's variables: without us all its tasks would take
 * themselves for that rank, and with us they would keep its addresses. */
static void drop_inherited_rank(spank_t spank)
{
    char socket[256], value[256], master[256] = "";

    if (spank_getenv(spank, "PLUME_SOCKET", socket, sizeof(socket)) != ESPANK_SUCCESS)
        return;
    if (spank_getenv(spank, "MASTER_ADDR", master, sizeof(master)) != ESPANK_SUCCESS)
        master[0] = '\0';
    for (const char *const *name = pl_rank_own_variables; *name; name++)
        if (spank_getenv(spank, *name, value, sizeof(value)) == ESPANK_SUCCESS &&
            pl_rank_variable_is_ours(*name, value, master))
            spank_unsetenv(spank, *name);
}

static void task_init(spank_t spank)
{
    struct pl_error err = {0};

    drop_inherited_rank(spank);
    if (!self.active)
        return;
    pl_node_daemon_forget(&self.daemon);
    if (join(spank, &err) == 0)
        return;
    pl_values_make_printable(err.text); /* part of it may be the daemon's, which is the user's */
    if (is_news(pl_error_text(&err)))
        slurm_error("plume: node %s: %s", node_name(), pl_error_text(&err));
    /* This is the task's own process, not slurmstepd. A return value would not do: the line in
     * plugstack.conf is `optional`, and then Slurm runs the program all the same. */
    _exit(PL_EXIT_FAILED);
}

/* The daemon gives its tasks the same reasons as it logs. */
static void show(const char *line)
{
    if (self.shared && atomic_load(self.shared) == hash_of(line))
        return;
    slurm_error("plume: node %s: %s", node_name(), line);
}

static void task_exit(spank_t spank)
{
    uint32_t rank;
    int status;

    if (self.active && item(spank, S_TASK_GLOBAL_ID, &rank) == 0 &&
        spank_get_item(spank, S_TASK_EXIT_STATUS, &status) == ESPANK_SUCCESS)
        pl_node_daemon_exited(&self.daemon, rank, status);
    /* Slurm tells srun of the task's end after this. */
    if (self.n_tasks && --self.n_tasks == 0)
        self.late = pl_node_daemon_settle(&self.daemon, SETTLE_MS) == -ETIMEDOUT;
    /* slurmstepd's stderr is the step's until it waits for the end of the tasks' output. */
    pl_daemon_said_read(self.daemon.said, STDERR_FILENO, &self.lines_left, show);
}

static void on_exit_hook(void)
{
    int r = pl_node_daemon_stop(&self.daemon, self.late ? GOODBYE_LATE_MS : GOODBYE_MS);

    if (r == -ETIMEDOUT)
        slurm_info("plume: the node daemon had to be killed");
    else if (r < 0)
        slurm_info("plume: the node daemon does not end and cannot be killed: %s", strerror(-r));
}

const struct pl_spank_step pl_spank_remote = {
    .init = init,
    .user_init = user_init,
    .task_post_fork = task_post_fork,
    .task_init = task_init,
    .task_exit = task_exit,
    .exit = on_exit_hook,
};
