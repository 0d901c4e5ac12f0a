/* SPDX-License-Identifier: MIT */
/* pltrain: one rank of a training run, or a few of them on this machine. */
#include "common/base/buf.h"
#include "common/base/fs.h"
#include "common/base/log.h"
#include "common/base/options.h"
#include "common/base/parse.h"
#include "runtime/engine/comm_mpi.h"
#include "runtime/engine/local.h"
#include "runtime/engine/module.h"
#include "runtime/engine/trainer.h"

#include <signal.h>
#include <string.h>

enum option_id {
    OPT_HPARAM,
    OPT_LIST_HPARAMS,
    OPT_SEED,
    OPT_EPOCHS,
    OPT_MAX_STEPS,
    OPT_LOG_EVERY,
    OPT_PROCESSES,
    OPT_PER_NODE,
    OPT_COMM,
};

static const struct pl_option options[] = {
    {"hparam", 0, "NAME=VALUE", "Training", "set a hyper-parameter; may be repeated", OPT_HPARAM},
    {"list-hparams", 0, NULL, NULL, "show the module's hyper-parameters and exit",
     OPT_LIST_HPARAMS},
    {"seed", 0, "N", NULL, "seed of start values and shuffling (0)", OPT_SEED},
    {"epochs", 0, "N", NULL, "the same as --hparam epochs=N", OPT_EPOCHS},
    {"max-steps", 0, "N", NULL, "stop after N optimizer steps", OPT_MAX_STEPS},
    {"log-every", 0, "N", NULL, "report the loss every N steps (10)", OPT_LOG_EVERY},
    {"processes", 0, "N", "Without a launcher", "start N ranks on this machine", OPT_PROCESSES},
    {"processes-per-node", 0, "N", NULL,
     "with --processes: pretend nodes of N ranks, which meet over TCP", OPT_PER_NODE},
    {"comm", 0, "KIND", "Collectives",
     "auto (shared memory inside a node; between nodes mpi where it started the job, else tcp), "
     "shm, tcp or mpi for all",
     OPT_COMM},
    {0},
};

static const struct pl_command command = {
    .name = "pltrain",
    .synopsis = "[OPTIONS] MODULE [--NAME VALUE...]",
    .summary = "Trains a module: the name of a bundled one (mlp) or the path of a shared object. "
               "Under plrun it is one rank of the run. Behind MODULE, --NAME VALUE sets a "
               "hyper-parameter.",
    .footer = "Exit status: 0 done, 1 failed, 2 usage, 3 no such module.",
    .options = options,
};

struct settings {
    const char *module;
    const char **hparams; /* "NAME=VALUE" */
    char **owned;         /* those of hparams that were made here */
    size_t n_hparams, n_owned;
    bool list;
    enum pl_comm_kind comm;
    int64_t processes, per_node; /* 0 = not given */
    struct pl_train_options train;
    char epochs[40];
};

/* *ret = which of the words it is; they end with NULL. */
static int
parse_choice(const char *value, const char *const *words, int64_t *ret, struct pl_error *err)
{
    _cleanup_(pl_buf_finish) struct pl_buf list = {0};

    for (size_t i = 0; words[i]; i++) {
        if (strcmp(value, words[i]) == 0) {
            *ret = (int64_t)i;
            return 0;
        }
        if (pl_buf_addf(&list, "%s%s", i ? ", " : "", words[i]) < 0)
            return pl_error_set(err, -ENOMEM, "out of memory");
    }
    return pl_error_set(err, -EINVAL, "'%s' is none of %s", value, pl_buf_str(&list));
}

static int
set_option(void *ctx, const struct pl_option *option, const char *value, struct pl_error *err)
{
    struct settings *s = ctx;
    int64_t number = 0;
    int r = 0;

    switch ((enum option_id)option->id) {
    case OPT_HPARAM:
        s->hparams[s->n_hparams++] = value;
        return 0;
    case OPT_EPOCHS:
        r = pl_parse_int(value, 0, 1000000000, &number, err);
        snprintf(s->epochs, sizeof(s->epochs), "epochs=%lld", (long long)number);
        s->hparams[s->n_hparams++] = s->epochs;
        break;
    case OPT_LIST_HPARAMS:
        s->list = true;
        return 0;
    case OPT_SEED:
        r = pl_parse_int(value, 0, INT64_MAX, &number, err);
        s->train.seed = (uint64_t)number;
        break;
    case OPT_MAX_STEPS:
        r = pl_parse_int(value, 0, INT64_MAX, &number, err);
        s->train.max_steps = (uint64_t)number;
        break;
    case OPT_LOG_EVERY:
        r = pl_parse_int(value, 1, INT64_MAX, &number, err);
        s->train.log_every = (uint64_t)number;
        break;
    case OPT_PROCESSES:
        r = pl_parse_int(value, 1, 1024, &s->processes, err);
        break;
    case OPT_PER_NODE:
        r = pl_parse_int(value, 1, 1024, &s->per_node, err);
        break;
    case OPT_COMM:
        r = parse_choice(value, (const char *const[]){"auto", "shm", "tcp", "mpi", NULL}, &number,
                         err);
        s->comm = (enum pl_comm_kind)number;
        break;
    }
    return r < 0 ? pl_error_wrap(err, r, "option '--%s'", option->name) : 0;
}

static int complain(int code, const struct pl_error *err)
{
    pl_log_error("train", "%s", pl_error_text(err));
    return code;
}

/* Which exit code a failure to load or set up the module is. */
static int exit_code(int r)
{
    return r == -ENOENT ? PL_EXIT_NOT_FOUND : PL_EXIT_FAILED;
}

static int train_in(const struct settings *s,
                    const struct pl_module *module,
                    const struct pl_hparams *hparams,
                    const struct pl_world *world,
                    struct pl_error *err)
{
    _cleanup_(pl_comm_destroyp) struct pl_comm *comm = NULL;
    _cleanup_(pl_report_close) struct pl_report report = {.link = PL_RANK_LINK_INIT};
    struct pl_trainer trainer;
    int r = pl_report_open(&report, world->rank, world->local_rank, err);

    if (r == 0)
        r = pl_comm_create(world, report.link.fd >= 0 ? &report.link : NULL, &comm, err);
    if (r == 0)
        r = pl_trainer_init(&trainer, &module->hooks, hparams, &s->train, comm, &report, err);
    if (r < 0)
        return r;
    pl_log_debug("train", "rank %u of %u, collectives %s, kernels %s, %.3g Mflop a step",
                 world->rank, world->size, comm->ops->name, trainer.kernels->name,
                 (pl_tape_flops(&trainer.stage[PLUME_TRAIN].tape, false) +
                  pl_tape_flops(&trainer.stage[PLUME_TRAIN].tape, true)) *
                     1e-6);
    r = pl_trainer_fit(&trainer, err);
    pl_trainer_finish(&trainer);
    return r;
}

static int train(const struct settings *s,
                 const struct pl_module *module,
                 const struct pl_hparams *hparams,
                 struct pl_error *err)
{
    struct pl_world world;
    int r = pl_world_open(&world, s->comm, err);

    if (r < 0)
        return r;
    r = train_in(s, module, hparams, &world, err);
    pl_mpi_close(world.mpi, r < 0);
    return r;
}

static int run_rank(const struct settings *s)
{
    _cleanup_(pl_module_close) struct pl_module module = {0};
    _cleanup_(pl_hparams_finish) struct pl_hparams hparams = {0};
    struct pl_error err = {0};
    int r = pl_module_open(s->module, &module, &err);

    if (r < 0)
        return complain(exit_code(r), &err);
    r = pl_hparams_init(&hparams, module.hooks.hparams, &err);
    if (r < 0)
        return complain(PL_EXIT_FAILED, &err);
    for (size_t i = 0; i < s->n_hparams; i++)
        if (pl_hparams_set(&hparams, s->hparams[i], &err) < 0)
            return complain(PL_EXIT_USAGE, &err);
    if (s->list) {
        pl_hparams_print(&hparams, stdout);
        return PL_EXIT_OK;
    }
    r = train(s, &module, &hparams, &err);
    return r < 0 ? complain(PL_EXIT_FAILED, &err) : PL_EXIT_OK;
}

static int run_local(const struct settings *s)
{
    struct pl_local_options local = {.processes = (unsigned)s->processes,
                                     .per_node = (unsigned)s->per_node};
    struct pl_error err = {0};
    int status = 0, r;

    if (getenv("RANK")) {
        pl_error_set(&err, -EINVAL,
                     "option '--processes' is for runs without a launcher, but RANK "
                     "is set");
        return complain(PL_EXIT_USAGE, &err);
    }
    r = pl_local_run(&local, &status, &err);
    if (r < 0)
        return complain(PL_EXIT_FAILED, &err);
    return r == 1 ? run_rank(s) : status;
}

/* "--NAME VALUE" or "--NAME=VALUE" of a hyper-parameter; words it took, or an error. */
static int take_hparam(struct settings *s, int argc, char **argv, struct pl_error *err)
{
    const char *word = argv[0] + 2, *equals = strchr(word, '=');
    char *text;

    if (!equals && argc < 2)
        return pl_error_set(err, -EINVAL, "'%s' needs a value", argv[0]);
    text = equals ? strdup(word) : pl_strf("%s=%s", word, argv[1]);
    if (!text)
        return pl_error_set(err, -ENOMEM, "out of memory");
    s->owned[s->n_owned++] = text;
    s->hparams[s->n_hparams++] = text;
    return equals ? 1 : 2;
}

/* What stands behind MODULE: options, and hyper-parameters by name, as plsubmit appends them. */
static int
parse_behind(struct settings *s, int argc, char **argv, bool *ret_done, struct pl_error *err)
{
    for (int i = 0; i < argc && !*ret_done;) {
        const struct pl_option *o = pl_options_find(&command, argv[i]);
        bool builtin = strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "--version") == 0;
        char *words[4] = {argv[i], argv[i], i + 1 < argc ? argv[i + 1] : NULL, NULL};
        int n = o && o->arg && !strchr(argv[i], '=') ? 2 : 1, rest, r;

        if (o || builtin) {
            r = pl_options_parse(&command, PL_MIN(n, argc - i) + 1, words, set_option, s, &rest,
                                 ret_done, err);
            if (r < 0)
                return r;
        } else if (strncmp(argv[i], "--", 2) == 0 && argv[i][2]) {
            n = take_hparam(s, argc - i, argv + i, err);
            if (n < 0)
                return n;
        } else {
            return pl_error_set(err, -EINVAL, "'%s': more than one module given", argv[i]);
        }
        i += n;
    }
    return 0;
}

static void free_owned(struct settings *s)
{
    while (s->n_owned)
        free(s->owned[--s->n_owned]);
}

int main(int argc, char **argv)
{
    _cleanup_free_ const char **hparams = calloc((size_t)argc + 1, sizeof(*hparams));
    _cleanup_free_ char **owned = calloc((size_t)argc + 1, sizeof(*owned));
    _cleanup_(free_owned) struct settings s = {
        .hparams = hparams,
        .owned = owned,
        .train = pl_train_options_default(),
    };
    struct pl_error err = {0};
    bool done;
    int rest;

    pl_log_init("pltrain");
    s.train.out = stdout;
    signal(SIGPIPE, SIG_IGN); /* a lost daemon or rank is an error code */
    if (!hparams || !owned)
        return PL_EXIT_FAILED;
    if (pl_options_parse(&command, argc, argv, set_option, &s, &rest, &done, &err) < 0)
        return complain(PL_EXIT_USAGE, &err);
    if (!done && rest == argc) {
        pl_error_set(&err, -EINVAL, "no module given: see pltrain --help");
        return complain(PL_EXIT_USAGE, &err);
    }
    if (!done && parse_behind(&s, argc - rest - 1, argv + rest + 1, &done, &err) < 0)
        return complain(PL_EXIT_USAGE, &err);
    if (done)
        return PL_EXIT_OK;
    if (s.per_node && !s.processes) {
        pl_error_set(&err, -EINVAL, "option '--processes-per-node' needs '--processes'");
        return complain(PL_EXIT_USAGE, &err);
    }
    s.module = argv[rest];
    return s.processes && !s.list ? run_local(&s) : run_rank(&s);
}
