/* SPDX-License-Identifier: MIT */
/* pltrain: one rank of a training run, or the ranks of a run on this machine. */
#include "common/base/child.h"
#include "common/base/env.h"
#include "common/base/fs.h"
#include "common/base/log.h"
#include "common/base/site.h"
#include "common/base/time_limits.h"
#include "common/base/trace.h"
#include "common/proto/rank/place.h"
#include "kernels/pool/pool.h"
#include "runtime/engine/comm/comm_gpu.h"
#include "runtime/engine/comm/comm_mpi.h"
#include "runtime/engine/device/gpu.h"
#include "runtime/engine/module/module.h"
#include "runtime/engine/optim/precision.h"
#include "runtime/engine/tape/profile.h"
#include "runtime/engine/train/memory_plan.h"
#include "runtime/engine/train/memory_stages.h"
#include "runtime/engine/train/summary.h"
#include "runtime/engine/train/trainer.h"
#include "runtime/engine/util/crash.h"
#include "runtime/engine/util/hang.h"
#include "runtime/pltrain/auto_gpu.h"
#include "runtime/pltrain/compare.h"
#include "runtime/pltrain/pltrain_foreign.h"
#include "runtime/pltrain/pltrain_options.h"
#include "runtime/pltrain/spawn_local.h"
#include "runtime/pltrain/threads.h"
#include "runtime/pltrain/trial_checkpoints.h"
#include "runtime/pltrain/xla_hosts.h"

#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

static volatile sig_atomic_t interrupted;

/* A second Ctrl-C ends the rank at once. A terminal, srun and a shell may each pass on one Ctrl-C:
 * those within PL_INTERRUPT_AGAIN_MS are one. */
static void on_signal(int sig)
{
    static const char text[] = "pltrain: interrupted twice: ending without a checkpoint\n";
    static volatile uint64_t first_ns;
    uint64_t now = sig == SIGINT ? pl_now_ns() : 0;

    if (now && !first_ns)
        first_ns = now;
    if (now && now - first_ns > PL_INTERRUPT_AGAIN_MS * 1000000ull) {
        if (write(STDERR_FILENO, text, sizeof(text) - 1) < 0)
            (void)0; /* stderr is closed: ignore it */
        _exit(PL_EXIT_INTERRUPTED);
    }
    /* A signal to end outweighs SIGUSR1, which requeues. */
    if (!interrupted || sig != SIGUSR1)
        interrupted = sig;
}

/* Signals save a checkpoint if the options name a folder, and end --validate, --test and --predict
 * on all ranks after a batch; else they end the rank. */
static void catch_signals(struct pl_train_options *options)
{
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    bool saves = options->checkpoint_dir && !options->fast_dev_run;

    if (!saves && options->run == PL_RUN_TRAIN)
        return;
    options->interrupt = &interrupted;
    if (saves)
        sigaction(SIGUSR1, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGINT, &action, NULL);
}

/* Ranks mostly fail together, with one text. */
static int complain(int code, const struct pl_error *err)
{
    if (pl_local_first(pl_error_text(err)))
        pl_log_error("train", "%s", pl_error_text(err));
    return code;
}

/* Exit code of a failure. */
/* Of pl_module_open(): there is no module, or a file that is none on any machine. */
static int module_exit_code(int r)
{
    return r == -ENOENT || r == -ENOEXEC || r == -EPROTO || r == -EINVAL ? PL_EXIT_NOT_FOUND
                                                                         : PL_EXIT_FAILED;
}

/* The module may choose the address at which the ranks meet. */
static int choose_meeting_place(const struct plume_module *module,
                                struct pl_world *world,
                                struct pl_error *err)
{
    struct plume_connection c = {
        .struct_size = sizeof(c), .rank = world->rank, .world_size = world->size};
    const char *address = pl_env(PL_ENV_MASTER_ADDR), *port = pl_env(PL_ENV_MASTER_PORT);
    int r;

    if (!module->init_ddp_connection || world->size == 1)
        return 0;
    snprintf(c.address, sizeof(c.address), "%s", address && *address ? address : "127.0.0.1");
    c.port = port ? (unsigned)strtoul(port, NULL, 10) : 0;
    r = module->init_ddp_connection(&c);
    if (r > 0)
        return pl_error_set(err, -EINVAL,
                            "hook init_ddp_connection returned %d: hooks return 0 or a negative "
                            "errno",
                            r);
    if (r < 0)
        return pl_error_errno(err, r, "hook init_ddp_connection failed");
    if (c.port > 65535 || !memchr(c.address, '\0', sizeof(c.address)))
        return pl_error_set(err, -EINVAL, "hook init_ddp_connection named no address and port");
    memcpy(world->store_address, c.address, sizeof(world->store_address));
    world->store_port = c.port;
    return 0;
}

/* A failure of one rank reaches the others. */
static int plan_memory(struct pl_trainer *t, double *ret, struct pl_error *err)
{
    int r = pl_memory_plan(t, ret, err);

    if (r < 0) {
        pl_pipe_fail(&t->pipe, r, err);
        pl_comm_fail(t->comm, r, err);
    }
    return r;
}

/* With --profile=FILE rank 0 writes what happens when. */
static int fit_timed(struct pl_trainer *t, struct pl_timeline *timeline, struct pl_error *err)
{
    uint64_t begin = pl_timeline_begin(timeline);
    double planned;
    int r;

    if (t->options->run != PL_RUN_TRAIN) {
        pl_trainer_time(t, timeline);
        r = pl_trainer_evaluate(t, err);
    } else {
        r = plan_memory(t, &planned, err);
        pl_trainer_time(t, timeline);
        if (r == 0)
            r = pl_trainer_fit(t, err);
    }
    pl_timeline_end(timeline, 0, "run", "run", NULL, begin);
    return r;
}

#define WARM_STEPS 2 /* of a device: the first finds plans, the second may capture them */

/* With --profile or $PLUME_PROFILE rank 0 prints the time of each op at the end. */
static int fit(struct pl_trainer *t, struct pl_error *err)
{
    const char *env = pl_env(PL_ENV_PLUME_PROFILE);
    struct pl_tape *tape = pl_stage_tape(&t->stage[PLUME_TRAIN]);
    uint64_t before = t->state.step;
    struct pl_device_memory memory;
    double planned = 0;
    int r;

    if (t->options->run != PL_RUN_TRAIN)
        return pl_trainer_evaluate(t, err);
    tape->timed = (t->options->profile && !t->options->profile_file) ||
                  (env && *env && strcmp(env, "0") != 0);
    if (tape->timed)
        t->optimizers.graphs = false;
    r = plan_memory(t, &planned, err);
    t->timed_step = before;
    t->timed_ns = pl_now_ns();
    t->warm_steps = tape->timed && !t->dev->ops->host && !t->pipe.on ? WARM_STEPS : 0;
    if (r == 0)
        r = pl_trainer_fit(t, err);
    if (r < 0 || !tape->timed || t->comm->rank != 0)
        return r;
    if (t->pipe.on)
        r = pl_pipe_timed(&t->pipe, &tape, err);
    if (r < 0)
        return r;
    if (t->pipe.on)
        fputs("the pipeline's first stage; a step is a microbatch here:\n", stderr);
    pl_profile_print(tape, t->pipe.on ? t->pipe.all_microbatches : t->state.step - t->timed_step,
                     (double)(pl_now_ns() - t->timed_ns) * 1e-9, stderr);
    if (t->timed_step > before)
        fprintf(stderr, "without the first %llu, which are slower on a GPU\n",
                (unsigned long long)(t->timed_step - before));
    t->dev->ops->memory(t->dev, &memory);
    fprintf(stderr, "peak_bytes %llu", (unsigned long long)memory.peak);
    if (planned > 0)
        fprintf(stderr, ", planned %.0f", planned);
    fputc('\n', stderr);
    return r;
}

/* Peak memory of the device, and who does its products, for tuning and bench/gpu_engine.py. What a
 * graph repeats counts once. */
static void log_use(struct pl_device *dev)
{
    struct pl_device_memory memory;
    struct pl_device_calls calls;

    dev->ops->memory(dev, &memory);
    pl_log_debug("train", "at most %.1f MiB of %s in use", (double)memory.peak / (1 << 20),
                 dev->name);
    if (!dev->ops->calls)
        return;
    dev->ops->calls(dev, &calls);
    pl_log_debug("train", "%llu products and attentions asked of the library, %llu of own kernels",
                 (unsigned long long)calls.library, (unsigned long long)calls.own);
}

static int build_timed(struct pl_trainer *trainer,
                       struct pl_timeline *timeline,
                       const struct pl_module *module,
                       const struct pl_hparams *hparams,
                       const struct pl_train_options *options,
                       struct pl_comm *comm,
                       struct pl_rank_report *report,
                       struct pl_error *err)
{
    uint64_t begin = pl_timeline_begin(timeline);
    int r = pl_trainer_init(trainer, &module->hooks, hparams, options, comm, report, err);

    pl_timeline_end(timeline, 0, "run", "build", NULL, begin);
    return r;
}

/* Trains on the device that options name. */
static int train_on(const struct pl_module *module,
                    const struct pl_hparams *hparams,
                    const struct pl_train_options *options,
                    struct pl_comm *comm,
                    struct pl_rank_report *report,
                    struct pl_error *err)
{
    struct pl_timeline *timeline = NULL;
    struct pl_trainer trainer;
    const struct pl_tape *tape;
    int r = 0, closed;

    if (options->profile_file && comm->rank == 0) {
        r = pl_timeline_open(options->profile_file, module->hooks.name, &timeline, err);
        if (r < 0)
            pl_comm_fail(comm, r, err);
    }
    if (r == 0)
        r = build_timed(&trainer, timeline, module, hparams, options, comm, report, err);
    if (r < 0) {
        pl_timeline_close(timeline, NULL);
        return r;
    }
    tape = pl_stage_tape(&trainer.stage[PLUME_TRAIN]);
    pl_log_debug(
        "train",
        "rank %u of %u, strategy %s, precision %s, collectives %s%s, device %s, kernels %s, %u "
        "threads, %.3g Mflop a step",
        comm->rank, comm->size, pl_strategy_names[trainer.strategy.kind],
        pl_precision_names[options->precision], comm->ops->name, comm->gpu ? " and nccl" : "",
        trainer.dev->name, trainer.kernels->name, pl_pool_threads(),
        (pl_tape_flops(tape, false) + pl_tape_flops(tape, true)) * trainer.strategy.devices * 1e-6);
    for (unsigned i = 1; options->part_devices && i < options->devices; i++)
        pl_log_debug("train", "part %u of a batch: device %s", i, options->part_devices[i]->name);
    if (trainer.pipe.on && options->run == PL_RUN_TRAIN)
        r = pl_memory_stages(&trainer, err);
    if (r == 0 && options->summary && comm->rank == 0 && options->out)
        r = pl_summary_print(&trainer, options->out, err);
    if (r < 0) {
        pl_pipe_fail(&trainer.pipe, r, err);
        pl_comm_fail(comm, r, err);
    } else {
        r = timeline ? fit_timed(&trainer, timeline, err) : fit(&trainer, err);
    }
    log_use(trainer.dev);
    pl_trainer_finish(&trainer);
    closed = pl_timeline_close(timeline, r == 0 ? err : NULL);
    return r < 0 ? r : closed;
}

/* GPUs of a rank: one, or one per part of a batch. */
struct gpus {
    struct pl_device *list[PL_PARTS_MAX];
    unsigned n;
};

static int open_gpus(const struct pl_pltrain *p,
                     const struct pl_comm *comm,
                     struct gpus *gpus,
                     struct pl_train_options *options,
                     struct pl_error *err)
{
    const struct pl_gpu_choice choice = {
        .list = p->device,
        .n = p->n_device,
        .asked = p->devices > 0,
        .local_rank = comm->world.local_rank,
        /* Ranks of tensor parallelism compute some results alike: the bits stay equal only if all
         * choose the same algorithms. */
        .options = {.tf32 = p->tf32,
                    .deterministic = p->train.deterministic || p->train.tensor_parallel > 1},
    };
    unsigned n = p->train.devices;
    int r;

    if (n > PL_PARTS_MAX)
        return pl_error_set(err, -E2BIG, "a process has at most %d devices, not %u", PL_PARTS_MAX,
                            n);
    if (n < 2)
        r = pl_gpu_open(&choice, &gpus->list[0], err);
    else
        r = pl_gpu_open_all(p->n_device ? p->device : NULL, n, &choice.options, gpus->list, err);
    if (r < 0)
        return r;
    gpus->n = PL_MAX(n, 1u);
    options->device = gpus->list[0];
    options->part_devices = gpus->list;
    return 0;
}

/* NCCL does not add in the order of the ranks, so --deterministic excludes it. */
static int
join_gpus(const struct pl_pltrain *p, struct pl_comm *comm, struct gpus *gpus, struct pl_error *err)
{
    if (p->nccl == PL_NCCL_NEVER || p->train.deterministic)
        return 0;
    return pl_comm_gpu_create(comm, gpus->list[0], p->nccl == PL_NCCL_ALWAYS, err);
}

/* The ranks of a pipeline share their batches, and tensor parallel ranks; an XLA device's replicas
 * have their own. */
static unsigned ranks_with_batches(const struct pl_pltrain *p, unsigned size)
{
    unsigned groups = PL_MAX(size / PL_MAX(p->train.tensor_parallel, 1u), 1u);
    unsigned stages = p->train.stages ? p->train.stages : groups;

    if (p->tpu)
        return size * PL_MAX(p->train.replicas, 1u);
    return p->train.strategy == PL_STRATEGY_PIPELINE ? PL_MAX(groups / stages, 1u) : groups;
}

/* In a trial that names no folder of checkpoints: takes one before, and leaves it after a run. Rank
 * 0 alone writes there, and alone knows from where the run goes on. A --fast-dev-run writes
 * nothing, and leaves the folder to the next run. */
static int train_in_folder(const struct pl_pltrain *p,
                           const struct pl_module *module,
                           const struct pl_hparams *hparams,
                           struct pl_train_options *options,
                           struct pl_comm *comm,
                           struct pl_rank_report *report,
                           struct pl_error *err)
{
    _cleanup_free_ char *dir = NULL, *from = NULL;
    bool goes_on = options->resume && strcmp(options->resume, "last") == 0;
    int r = 0;

    if (p->trial_checkpoints && comm->rank == 0) {
        r = pl_trial_checkpoints_next(p->trial_checkpoints, p->trial_run, goes_on,
                                      !options->fast_dev_run, &dir, &from, err);
        if (r < 0)
            pl_comm_fail(comm, r, err);
        options->checkpoint_dir = dir;
        if (from)
            options->resume = from;
    }
    if (r == 0)
        r = train_on(module, hparams, options, comm, report, err);
    return r == 0 && dir && !options->fast_dev_run ? pl_trial_checkpoints_done(dir, err) : r;
}

static int train_in(const struct pl_pltrain *p,
                    const struct pl_module *module,
                    struct pl_hparams *hparams,
                    bool batch_given,
                    struct pl_world *world,
                    struct pl_error *err)
{
    _cleanup_(pl_comm_destroyp) struct pl_comm *comm = NULL;
    _cleanup_(pl_rank_report_close) struct pl_rank_report report = {.link = PL_RANK_LINK_INIT};
    struct pl_train_options options = p->train;
    struct gpus gpus = {0};
    struct pl_xla_hosts hosts = {0};
    bool gpu = p->gpu;
    int r;

    pl_comm_limits = p->limits;
    pl_place_open();
    pl_hang_watch(p->limits.warn_s, world->rank);
    r = pl_rank_report_open(&report, world->rank, world->local_rank, err);

    if (r == 0)
        r = choose_meeting_place(&module->hooks, world, err);
    if (r == 0)
        r = pl_comm_create(world, report.link.fd >= 0 ? &report.link : NULL, &comm, err);
    if (r == 0 && comm->rank == 0)
        pl_pltrain_warn_unmeant(p);
    if (r == 0 && !pl_env(PL_ENV_RANK) && pl_mpi_launched())
        r = pl_pltrain_started(p, comm->world.local_size, err);
    if (r == 0 && p->nodes && comm->world.n_nodes != (unsigned)p->nodes)
        r = pl_error_set(err, -EINVAL, "option '--num-nodes' says %lld, but there are %u",
                         (long long)p->nodes, comm->world.n_nodes);
    if (r == 0)
        r = pl_pltrain_global_batch(p, ranks_with_batches(p, comm->size), batch_given, hparams,
                                    err);
    if (r == 0)
        r = pl_threads_share(comm, err);
    if (r == 0 && p->auto_gpu && !p->tpu)
        r = pl_auto_gpu(p, comm, &gpu, err);
    if (r == 0 && gpu) {
        r = open_gpus(p, comm, &gpus, &options, err);
        if (r == 0)
            r = join_gpus(p, comm, &gpus, err);
        if (r < 0)
            pl_comm_abort(comm, pl_error_text(err));
    }
    if (r == 0 && p->tpu)
        r = pl_xla_hosts_open(&hosts, p, comm, &options, err);
    if (r == 0)
        r = train_in_folder(p, module, hparams, &options, comm, &report, err);
    pl_xla_hosts_close(&hosts, &options);
    if (comm) /* tells the others why, unless all ranks are done or agreed to stop */
        pl_comm_gpu_destroy(comm, r < 0 && r != -EINTR ? pl_error_text(err) : NULL);
    pl_gpu_close_all(gpus.list, gpus.n);
    pl_hang_stop();
    return r;
}

static int train(const struct pl_pltrain *p,
                 const struct pl_module *module,
                 struct pl_hparams *hparams,
                 bool batch_given,
                 struct pl_error *err)
{
    struct pl_world world;
    int r = pl_world_open(&world, p->comm, err);

    if (r < 0)
        return r;
    r = train_in(p, module, hparams, batch_given, &world, err);
    pl_mpi_close(world.mpi, r < 0);
    return r;
}

/* Sets the hyper-parameters of the command line. *ret_batch: batch_size is among them. */
static int set_hparams(const struct pl_pltrain *p,
                       struct pl_hparams *hparams,
                       bool *ret_batch,
                       struct pl_error *err)
{
    double preset = pl_hparams_value(hparams, "batch_size"), *batch;
    size_t at = 0;

    while (strcmp(hparams->list[at].name, "batch_size") != 0)
        at++;
    batch = &hparams->list[at].value;
    *batch = NAN; /* no assignment gives it */
    for (size_t i = 0; i < p->n_hparams; i++) {
        int r = pl_hparams_set(hparams, p->hparams[i], err);

        if (r == -ENOENT)
            r = pl_pltrain_explain_unknown(p->hparams[i], err) < 0 ? -EINVAL : r;
        if (r < 0)
            return r;
    }
    *ret_batch = !isnan(*batch);
    if (!*ret_batch)
        *batch = preset;
    return 0;
}

/* The training of a comparison. */
struct trained {
    const struct pl_pltrain *p;
    const struct pl_module *module;
    struct pl_hparams *hparams;
    bool batch_given;
};

static int train_again(void *ctx, struct pl_error *err)
{
    const struct trained *c = ctx;

    return train(c->p, c->module, c->hparams, c->batch_given, err);
}

static int run_module(struct pl_pltrain *p)
{
    _cleanup_(pl_module_close) struct pl_module module = {0};
    _cleanup_(pl_hparams_finish) struct pl_hparams hparams = {0};
    struct pl_error err = {0};
    bool batch_given;
    int r;

    pl_crash_module(p->module);
    pl_crash_hook("plume_module_entry");
    r = pl_module_open(p->module, &module, &err);
    pl_crash_hook(NULL);

    if (r < 0)
        return complain(module_exit_code(r), &err);
    r = pl_hparams_init(&hparams, module.hooks.hparams, &err);
    if (r < 0)
        return complain(PL_EXIT_FAILED, &err);
    if (set_hparams(p, &hparams, &batch_given, &err) < 0)
        return complain(PL_EXIT_USAGE, &err);
    if (p->list) {
        pl_hparams_print(&hparams, stdout);
        return PL_EXIT_OK;
    }
    if (p->compare)
        return pl_compare_devices(p, &hparams, train_again,
                                  &(struct trained){p, &module, &hparams, batch_given}, stdout);
    r = train(p, &module, &hparams, batch_given, &err);
    if (r == 0)
        return PL_EXIT_OK;
    return complain(r == -EINTR ? PL_EXIT_INTERRUPTED : PL_EXIT_FAILED, &err);
}

static int run_rank(struct pl_pltrain *p)
{
    int status;

    pl_crash_watch();
    status = run_module(p);
    pl_crash_done();
    return status;
}

static int run(struct pl_pltrain *p)
{
    bool started = pl_env(PL_ENV_RANK) || pl_mpi_launched();
    struct pl_local_options local = {0};
    struct pl_error err = {0};
    struct pl_world world;
    int status = 0, r;

    if (p->compare && started) {
        pl_error_set(&err, -EINVAL,
                     "option '--compare-devices' is for one process: run it without srun, plrun "
                     "and mpirun");
        return complain(PL_EXIT_USAGE, &err);
    }
    if (p->list)
        return run_rank(p);
    if (pl_world_from_env(&world, &err) < 0)
        return complain(PL_EXIT_FAILED, &err);
    /* The number of ranks on this node is known only after MPI_Init(). */
    if (started && !pl_env(PL_ENV_RANK))
        world.local_size = 0;
    if (pl_pltrain_plan(p, started, world.local_size, &local.processes, &local.per_node, &err) < 0)
        return complain(PL_EXIT_USAGE, &err);
    if (p->gpu && p->n_device && pl_env(PL_ENV_SLURM_JOB_ID) && world.local_rank == 0)
        pl_log_warn("train",
                    "the list of --gpus has no use under Slurm, which hands GPUs out and "
                    "numbers a job's from 0: write --gpus %zu",
                    p->n_device);
    if (!p->compare) /* before the ranks start, which would end without a word */
        catch_signals(&p->train);
    if (started || (local.processes == 1 && !p->processes))
        return run_rank(p);
    r = pl_local_run(&local, &status, &err);
    if (r < 0)
        return complain(PL_EXIT_FAILED, &err);
    return r == 1 ? run_rank(p) : status;
}

/* A run whose results stdout did not take has failed, unless nobody is there to read them: stdout
 * was closed from the start (pl_std_open()), or its reader has left. */
static int check_stdout(int code)
{
    struct pollfd out = {.fd = STDOUT_FILENO};
    struct pl_error err = {0};

    if (code != PL_EXIT_OK || (fflush(stdout) == 0 && !ferror(stdout)) ||
        (fcntl(STDOUT_FILENO, F_GETFL) & O_ACCMODE) == O_RDONLY ||
        (poll(&out, 1, 0) > 0 && out.revents & POLLERR))
        return code;
    pl_error_set(&err, -EIO, "cannot write to stdout: lines are missing");
    return complain(PL_EXIT_FAILED, &err);
}

int main(int argc, char **argv)
{
    _cleanup_(pl_pltrain_finish) struct pl_pltrain p = {0};
    struct pl_error err = {0};
    bool done;

    pl_std_open();
    pl_child_init();
    pl_log_init("pltrain");
    pl_trace_init("pltrain");
    signal(SIGPIPE, SIG_IGN); /* a lost daemon or rank is an error code */
    signal(SIGXFSZ, SIG_IGN); /* and so is a file that is as large as it may be */
    if (pl_site_load(&err) < 0 || pl_pltrain_init(&p, argc, &err) < 0)
        return complain(PL_EXIT_FAILED, &err);
    if (pl_pltrain_parse(&p, argc, argv, &done, &err) < 0)
        return complain(PL_EXIT_USAGE, &err);
    if (!done && p.test_gpus)
        return check_stdout(pl_auto_gpu_test(stdout));
    return check_stdout(done ? PL_EXIT_OK : run(&p));
}
