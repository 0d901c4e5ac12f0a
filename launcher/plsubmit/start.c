/* SPDX-License-Identifier: MIT */
#include "launcher/plsubmit/start.h"
#include "common/base/fs.h"
#include "common/base/near.h"
#include "common/run/run_stopped.h"
#include "launcher/plsubmit/count.h"
#include "launcher/plsubmit/hparams.h"
#include "launcher/plsubmit/shape.h"
#include "launcher/plsubmit/spec_private.h"

#include <signal.h>
#include <string.h>

static const char *text(const struct pl_spec *spec, enum pl_spec_key key)
{
    return spec->values[key].text;
}

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');

    return slash ? slash + 1 : path;
}

enum pl_start_kind pl_start_kind_of(const struct pl_spec *spec)
{
    const char *name = text(spec, PL_SPEC_LAUNCH);

    for (int kind = PL_START_RANKS; name && pl_start_names[kind]; kind++)
        if (strcmp(name, pl_start_names[kind]) == 0)
            return (enum pl_start_kind)kind;
    return PL_START_RANKS;
}

/* ---- the words ---- */

static bool is_python(const char *word)
{
    return strncmp(base_name(word), "python", 6) == 0;
}

/* torchrun, or Python with its module. */
static bool is_torchrun(char *const *words)
{
    if (strcmp(base_name(words[0]), "torchrun") == 0)
        return true;
    return is_python(words[0]) && words[1] && strcmp(words[1], "-m") == 0 && words[2] &&
           (strcmp(words[2], "torch.distributed.run") == 0 ||
            strcmp(words[2], "torch.distributed.launch") == 0);
}

/* The value of pltrain's option in its words, the last one; NULL: it is not there. '-' and '_' are
 * equal. */
static const char *option_of(char *const *words, const char *name)
{
    const char *found = NULL;

    for (; *words; words++) {
        size_t len = strcspn(*words, "=");
        _cleanup_free_ char *word = strndup(*words, len);

        if (!word || strncmp(word, "--", 2) != 0 || pl_near_distance(word + 2, name) != 0)
            continue;
        found = (*words)[len] ? *words + len + 1 : words[1] ? words[1] : "";
    }
    return found;
}

/* Appends the options for modules; words: the user's, which must not have them, too. */
static int add_module_options(const struct pl_spec *spec,
                              char *const *words,
                              char ***list,
                              struct pl_error *err)
{
    static const enum pl_spec_key keys[] = {PL_SPEC_STRATEGY, PL_SPEC_PRECISION};
    int r = 0;

    for (size_t i = 0; i < PL_COUNT(keys) && r == 0; i++) {
        const char *name = pl_spec_option(keys[i])->name;
        _cleanup_free_ char *word = NULL;

        if (!text(spec, keys[i]))
            continue;
        if (option_of(words, name))
            return pl_error_set(err, -EINVAL,
                                "--%s is given twice, to plsubmit and to pltrain: omit one of them",
                                name);
        word = pl_strf("--%s=%s", name, text(spec, keys[i]));
        r = word ? pl_strv_append(list, word) : -ENOMEM;
    }
    for (char **item = spec->lists[PL_SPEC_HPARAM]; item && *item && r == 0; item++) {
        r = pl_strv_append(list, "--hparam");
        if (r == 0)
            r = pl_strv_append(list, *item);
    }
    return r < 0 ? pl_error_nomem(err) : 0;
}

/* The first option for modules; NULL: none is given. */
static const char *module_option(const struct pl_spec *spec)
{
    if (text(spec, PL_SPEC_STRATEGY))
        return "strategy";
    if (text(spec, PL_SPEC_PRECISION))
        return "precision";
    return spec->lists[PL_SPEC_HPARAM] ? "hparam" : NULL;
}

/* Appends the words that come before the program's arguments, and returns how many of the user's
 * they replace, or -ENOMEM. */
static int add_torchrun(char *const *words, char ***list)
{
    static const char *const module[] = {"-m", "torch.distributed.run"};
    int r;

    if (is_torchrun(words))
        return 0;
    if (!is_python(words[0])) {
        r = pl_strv_append(list, "torchrun");
        if (r == 0 &&
            !(strlen(words[0]) > 3 && strcmp(words[0] + strlen(words[0]) - 3, ".py") == 0))
            r = pl_strv_append(list, "--no-python");
        return r;
    }
    r = pl_strv_append(list, words[0]);
    for (size_t i = 0; i < PL_COUNT(module) && r == 0; i++)
        r = pl_strv_append(list, module[i]);
    return r < 0 ? r : 1;
}

/* The command runs at these signals, and SIGTERM then ends the program: too early for a signal that
 * comes before the time limit. */
static int check_save_signal(const char *value, struct pl_error *err)
{
    const char *name = strchr(value, ':') ? strchr(value, ':') + 1 : value;
    size_t len = strcspn(name, "@");
    int number = pl_run_stop_signal(name, len);

    if (number == SIGUSR1 || number == SIGUSR2)
        return 0;
    return pl_error_set(err, -EINVAL, "--save-command runs at USR1 and USR2: write --signal USR1%s",
                        name + len);
}

static int check_save(const struct pl_spec *spec, bool pltrain, struct pl_error *err)
{
    const char *command = text(spec, PL_SPEC_SAVE_COMMAND), *signal = text(spec, PL_SPEC_SIGNAL);

    if (!command && text(spec, PL_SPEC_SAVE_GRACE) &&
        spec->values[PL_SPEC_SAVE_GRACE].origin >= PL_ORIGIN_JOB_FILE)
        return pl_error_set(err, -EINVAL, "option '--save-grace' needs '--save-command CMD'");
    if (!command)
        return 0;
    if (pltrain)
        return pl_error_set(err, -EINVAL,
                            "--save-command is for other programs: pltrain saves a checkpoint at "
                            "--signal USR1@SECONDS itself");
    return signal ? check_save_signal(signal, err) : 0;
}

static int check_launch(struct pl_spec *spec, char *const *words, struct pl_error *err)
{
    enum pl_start_kind kind = pl_start_kind_of(spec);
    const char *name = words[0] ? base_name(words[0]) : "pltrain", *option = module_option(spec);
    bool pltrain = !words[0] || pl_hparams_is_pltrain(words[0]);
    int r = check_save(spec, pltrain, err);

    if (r < 0)
        return r;
    if (option && !pltrain)
        return pl_error_set(
            err, -EINVAL,
            "--%s is for pltrain, and the program is '%.100s': write its own option "
            "after its name",
            option, name);
    if (kind == PL_START_TORCHRUN && pltrain)
        return pl_error_set(err, -EINVAL,
                            "torchrun starts Python programs: omit --launch torchrun");
    if (kind == PL_START_TORCHRUN && is_python(words[0]) && words[1] && words[1][0] == '-' &&
        strcmp(words[1], "-m") != 0)
        return pl_error_set(err, -EINVAL,
                            "--launch torchrun cannot pass on Python's option '%.100s': write "
                            "torchrun SCRIPT",
                            words[1]);
    if (kind == PL_START_MPI && (strcmp(name, "mpirun") == 0 || strcmp(name, "mpiexec") == 0))
        return pl_error_set(err, -EINVAL,
                            "--launch mpi starts the ranks by srun: write the program without %s",
                            name);
    if (kind == PL_START_MPI && text(spec, PL_SPEC_LOCAL))
        return pl_error_set(err, -EINVAL,
                            "--launch mpi needs Slurm: with --local write mpirun -np N PROGRAM");
    return 0;
}

int pl_start_words(struct pl_spec *spec, char *const *words, char ***ret, struct pl_error *err)
{
    _cleanup_(pl_strv_freep) char **list = calloc(1, sizeof(*list));
    size_t i = 0;
    int r = list ? 0 : pl_error_nomem(err);

    if (r == 0 && !text(spec, PL_SPEC_LAUNCH) && words[0] && is_torchrun(words))
        r = pl_spec_put(spec, PL_SPEC_LAUNCH, "torchrun", PL_ORIGIN_BUILTIN);
    if (r == 0)
        r = check_launch(spec, words, err);
    if (r == 0 && pl_start_kind_of(spec) == PL_START_TORCHRUN) {
        r = add_torchrun(words, &list);
        if (r > 0)
            i++;
    } else if (r == 0 && words[0] && module_option(spec)) {
        /* after MODULE, where plsubmit checks them */
        r = pl_strv_append(&list, words[i++]);
        if (r == 0 && words[i] && words[i][0] != '-')
            r = pl_strv_append(&list, words[i++]);
    }
    if (r >= 0 && module_option(spec))
        r = add_module_options(spec, words, &list, err);
    for (; r >= 0 && words[i]; i++)
        r = pl_strv_append(&list, words[i]);
    if (r < 0)
        return r == -ENOMEM ? pl_error_nomem(err) : r;
    *ret = PL_TAKE(list);
    return 0;
}

/* ---- the shape ---- */

static bool is_given(const struct pl_spec *spec, enum pl_spec_key key)
{
    return spec->values[key].origin != PL_ORIGIN_NONE;
}

/* One rank per node, if the user asks for no other number. */
static int one_per_node(struct pl_spec *spec)
{
    if (is_given(spec, PL_SPEC_NTASKS) || is_given(spec, PL_SPEC_NTASKS_PER_NODE))
        return 0;
    return pl_spec_put(spec, PL_SPEC_NTASKS_PER_NODE, "1", PL_ORIGIN_BUILTIN);
}

/* True if one process of pltrain has all devices of its node. */
static bool is_whole(const struct pl_spec *spec, char *const *words)
{
    const char *strategy = text(spec, PL_SPEC_STRATEGY), *other;

    if (words[0] && !pl_hparams_is_pltrain(words[0]))
        return false;
    other = option_of(words, "distributed-backend");
    if (!strategy)
        strategy = option_of(words, "strategy");
    if (!strategy)
        strategy = other;
    return strategy && (strcmp(strategy, "dp") == 0 || strcmp(strategy, "ddp2") == 0);
}

static int num_processes(struct pl_spec *spec, struct pl_error *err)
{
    const struct pl_spec_value *n = &spec->values[PL_SPEC_NUM_PROCESSES];

    if (!n->text || pl_start_kind_of(spec) == PL_START_TORCHRUN)
        return 0;
    if (spec->values[PL_SPEC_NTASKS_PER_NODE].origin > n->origin)
        return 0;
    if (spec->values[PL_SPEC_NTASKS_PER_NODE].origin == n->origin)
        return pl_error_set(err, -EINVAL,
                            "--num-processes and --ntasks-per-node both set the ranks of a node: "
                            "omit one of them");
    return pl_spec_put(spec, PL_SPEC_NTASKS_PER_NODE, n->text, n->origin);
}

/* Programs that start the processes of a job, each in its own way. */
static const char *own_launcher(const char *word)
{
    static const struct {
        const char *name, *text;
    } launchers[] = {
        {"mpirun", "write --launch mpi, and the program without it"},
        {"mpiexec", "write --launch mpi, and the program without it"},
        {"srun", "the job script starts the ranks by srun: write the program without it"},
        {"accelerate", "write python instead of accelerate launch: a rank has the variables that "
                       "Accelerate reads"},
        {"deepspeed", "write python instead: a rank has the variables that DeepSpeed reads"},
        {"horovodrun", "write --launch mpi, and the program without it"},
    };

    for (size_t i = 0; i < PL_COUNT(launchers); i++)
        if (strcmp(base_name(word), launchers[i].name) == 0)
            return launchers[i].text;
    return NULL;
}

static int warn(struct pl_spec *spec, char *const *words)
{
    const struct pl_shape s = pl_shape_of(spec);
    bool pltrain = !words[0] || pl_hparams_is_pltrain(words[0]);
    const char *gpus = option_of(words, "gpus"),
               *instead = words[0] ? own_launcher(words[0]) : NULL;
    int r = 0;

    if (!gpus)
        gpus = option_of(words, "devices");
    if (instead && (s.ranks > 1 || s.ranks_per_node > 1))
        r = pl_spec_warn(spec, "%s would start the processes once in each of %u ranks: %s",
                         base_name(words[0]), s.ranks ? s.ranks : s.ranks_per_node, instead);
    if (pltrain && gpus && (strchr(gpus, ',') || gpus[0] == '[') && r == 0 &&
        !text(spec, PL_SPEC_LOCAL))
        r = pl_spec_warn(
            spec,
            "'%.100s' names GPUs, but Slurm hands them out and numbers a job's from 0: "
            "give pltrain their number",
            gpus);
    if (pltrain && (s.gpus || s.gpus_per_node || s.gpus_per_rank) && !gpus && r == 0 &&
        !option_of(words, "accelerator"))
        r = pl_spec_warn(spec, "pltrain trains on the CPU unless it is told to use the GPUs: add "
                               "pltrain's --accelerator gpu, or omit them");
    return r;
}

/* Refuses options that contradict each other: another number of processes would start silently. */
static int check_shape(const struct pl_spec *spec, struct pl_error *err)
{
    const struct pl_shape s = pl_shape_of(spec);
    const char *n = text(spec, PL_SPEC_NUM_PROCESSES), *per_node;

    if (pl_start_kind_of(spec) == PL_START_TORCHRUN)
        return n || !s.gpus || s.gpus_per_rank || s.gpus_per_node
                   ? 0
                   : pl_error_set(err, -EINVAL,
                                  "torchrun starts a process per GPU of a node, and with --gpus %u "
                                  "here their number is not known: write --gpus-per-node N, or "
                                  "--num-processes N",
                                  s.gpus);
    per_node = text(spec, PL_SPEC_NTASKS_PER_NODE);
    if (n && per_node && strcmp(n, per_node) == 0 && text(spec, PL_SPEC_NTASKS) && s.nodes &&
        s.nodes == s.nodes_max && s.ranks != s.nodes * pl_count(n, strlen(n)))
        return pl_error_set(err, -EINVAL,
                            "--num-processes %s on %u node%s and --ntasks %u are different numbers "
                            "of ranks: omit one of them",
                            n, s.nodes, s.nodes == 1 ? "" : "s", s.ranks);
    return 0;
}

int pl_start_shape(struct pl_spec *spec, char *const *words, struct pl_error *err)
{
    int r = num_processes(spec, err);

    if (r < 0)
        return r;
    if ((pl_start_kind_of(spec) == PL_START_TORCHRUN || is_whole(spec, words)))
        r = one_per_node(spec);
    if (r == 0)
        r = pl_shape_defaults(spec);
    if (r < 0)
        return pl_error_nomem(err);
    r = check_shape(spec, err);
    if (r < 0)
        return r;
    return warn(spec, words) < 0 ? pl_error_nomem(err) : 0;
}

bool pl_start_needs_pmix(const struct pl_spec *spec)
{
    for (char **item = spec->lists[PL_SPEC_SRUN]; item && *item; item++)
        if (strncmp(*item, "mpi=", 4) == 0)
            return false;
    return pl_start_kind_of(spec) == PL_START_MPI;
}

unsigned pl_start_workers(const struct pl_spec *spec)
{
    const char *n = text(spec, PL_SPEC_NUM_PROCESSES);
    const struct pl_shape s = pl_shape_of(spec);

    if (pl_start_kind_of(spec) != PL_START_TORCHRUN)
        return 0;
    if (n)
        return pl_count(n, strlen(n));
    return PL_MAX(s.gpus_per_rank ? s.gpus_per_rank : s.gpus_per_node, 1u);
}
