/* SPDX-License-Identifier: MIT */
/* Checkpoints: the file, its contents for a run, retention, and the writer's thread. */
#include "common/base/fs.h"
#include "runtime/engine/checkpoint/ckpt_writer.h"
#include "runtime/engine/checkpoint/folder_lock.h"
#include "runtime/engine/checkpoint/resume_file.h"
#include "runtime/engine/checkpoint/retention.h"
#include "runtime/engine/train/train_state.h"
#include "runtime/engine/train/weights.h"
#include "runtime/engine/util/xxh64.h"
#include "tests/lib/tmpdir.h"

#include <dirent.h>
#include <fcntl.h>
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static char dir[64];

static char *in_dir(const char *name)
{
    char *path = pl_path_join(dir, name);

    assert_non_null(path);
    return path;
}

static bool is_there(const char *name)
{
    _cleanup_free_ char *path = in_dir(name);

    return access(path, F_OK) == 0;
}

/* Files that an unfinished write leaves. */
static int temporaries(void)
{
    struct dirent *entry;
    DIR *d = opendir(dir);
    int n = 0;

    assert_non_null(d);
    while ((entry = readdir(d)))
        n += strstr(entry->d_name, ".tmp") != NULL;
    closedir(d);
    return n;
}

/* Counts the folders that are written to the disk. */
static int folder_syncs;

int fsync(int fd)
{
    struct stat st;

    if (fstat(fd, &st) == 0 && S_ISDIR(st.st_mode))
        folder_syncs++;
    return (int)syscall(SYS_fsync, fd);
}

/* The specification's own vectors: the bytes are of its generator, here the short ones. */
static void test_xxh64_vectors(void **state)
{
    static const char text[] = "Nobody inspects the spammish repetition";
    struct pl_xxh64 x;

    assert_true(pl_xxh64("", 0) == 0xef46db3751d8e999u);
    assert_true(pl_xxh64("a", 1) == 0xd24ec4f1a98c6e5bu);
    assert_true(pl_xxh64("abc", 3) == 0x44bc2cf5ad770999u);
    assert_true(pl_xxh64(text, sizeof(text) - 1) == 0xfbcea83c8a378bf1u);
    for (size_t cut = 0; cut < sizeof(text); cut++) {
        pl_xxh64_init(&x);
        pl_xxh64_add(&x, text, cut);
        pl_xxh64_add(&x, text + cut, sizeof(text) - 1 - cut);
        assert_true(pl_xxh64_final(&x) == 0xfbcea83c8a378bf1u);
    }
}

static void make(struct pl_checkpoint *c, float first)
{
    const float w[] = {first, 2, 3, 4, 5, 6};
    const uint8_t odd[] = {7, 8, 9};

    *c = (struct pl_checkpoint){0};
    assert_int_equal(pl_checkpoint_set(c, "epoch", "3"), 0);
    assert_int_equal(pl_checkpoint_set(c, "odd \"key\"", "[1,{\"a\":null}]"), 0);
    assert_int_equal(pl_checkpoint_add(c, "odd", PLUME_U8, 1, (size_t[]){3}, odd, NULL), 0);
    assert_int_equal(pl_checkpoint_add(c, "w/\xc3\xa4", PLUME_F32, 2, (size_t[]){2, 3}, w, NULL),
                     0);
    assert_int_equal(pl_checkpoint_add(c, "scalar", PLUME_F32, 0, NULL, w, NULL), 0);
    assert_int_equal(pl_checkpoint_add(c, "empty", PLUME_F32, 1, (size_t[]){0}, NULL, NULL), 0);
}

static void test_file_round_trip(void **state)
{
    _cleanup_free_ char *path = in_dir("round.ckpt"), *text = NULL;
    const struct pl_checkpoint_tensor *t;
    struct pl_checkpoint c, back;
    struct pl_error err = {0};
    int64_t epoch;

    make(&c, 1);
    assert_int_equal(pl_checkpoint_add(&c, "odd", PLUME_U8, 1, (size_t[]){1}, "x", &err), -EEXIST);
    assert_int_equal(pl_checkpoint_write(&c, path, NULL), 0);
    pl_checkpoint_finish(&c);
    assert_int_equal(pl_checkpoint_read(path, &back, &err), 0);
    assert_int_equal(back.n, 4);
    assert_int_equal(pl_checkpoint_get_int(&back, "epoch", &epoch), 0);
    assert_int_equal(epoch, 3);
    text = pl_checkpoint_get(&back, "odd \"key\"");
    assert_string_equal(text, "[1,{\"a\":null}]");
    t = pl_checkpoint_find(&back, "w/\xc3\xa4");
    assert_non_null(t);
    assert_int_equal(t->rank, 2);
    assert_int_equal(t->shape[1], 3);
    assert_int_equal((uintptr_t)t->data % 4, 0);
    assert_false(back.foreign);
    assert_true(((const float *)t->data)[5] == 6);
    assert_int_equal(pl_checkpoint_find(&back, "odd")->bytes, 3);
    assert_int_equal(pl_checkpoint_find(&back, "scalar")->bytes, 4);
    assert_null(pl_checkpoint_find(&back, "none"));
    assert_null(pl_checkpoint_get(&back, "none"));
    assert_int_equal(temporaries(), 0);
    pl_checkpoint_finish(&back);
}

/* Every truncation and every flipped bit is detected, and the error names it. */
static void test_damage_is_found(void **state)
{
    _cleanup_free_ char *path = in_dir("damage.ckpt"), *bytes = NULL;
    struct pl_checkpoint c, back;
    struct pl_error err = {0};
    size_t len;

    make(&c, 1);
    assert_int_equal(pl_checkpoint_write(&c, path, NULL), 0);
    pl_checkpoint_finish(&c);
    assert_int_equal(pl_file_read(path, 1 << 20, &bytes, &len, NULL), 0);
    for (size_t cut = 0; cut < len; cut++) {
        _cleanup_free_ char *exact = malloc(cut + !cut); /* for ASan */

        memcpy(exact, bytes, cut);
        assert_int_equal(pl_checkpoint_parse(exact, cut, &back, &err), -EINVAL);
        assert_non_null(strstr(err.text, cut < 9 ? "neither" : "truncated"));
    }
    for (size_t i = 0; i < len; i++) {
        bytes[i] ^= 16;
        assert_true(pl_checkpoint_parse(bytes, len, &back, &err) < 0);
        assert_null(strchr(err.text, '\n'));
        bytes[i] ^= 16;
    }
    assert_int_equal(pl_checkpoint_read("/nonexistent.ckpt", &back, &err), -ENOENT);
    assert_int_equal(pl_checkpoint_read("/", &back, &err), -EINVAL);
    assert_int_equal(pl_checkpoint_read("/proc/self/stat", &back, &err), -EINVAL);
}

static double first_of(const char *path)
{
    struct pl_checkpoint c;
    double value;

    assert_int_equal(pl_checkpoint_read(path, &c, NULL), 0);
    value = (double)*(const float *)pl_checkpoint_find(&c, "scalar")->data;
    pl_checkpoint_finish(&c);
    return value;
}

/* The child's files may not grow past each size in turn: by error or by death in the middle of the
 * writing (SIGXFSZ). The old file stays whole. */
static void test_an_interrupted_write_leaves_the_old_file(void **state)
{
    _cleanup_free_ char *path = in_dir("old.ckpt");
    struct pl_folder_lock lock = PL_FOLDER_LOCK_INIT;
    struct pl_checkpoint c;
    struct stat st;

    make(&c, 1);
    assert_int_equal(pl_checkpoint_write(&c, path, NULL), 0);
    assert_int_equal(stat(path, &st), 0);
    pl_checkpoint_finish(&c);
    make(&c, 2);
    for (int i = 0; i < 16; i++) {
        pid_t pid = fork();
        int status;

        assert_true(pid >= 0);
        if (pid == 0) {
            rlim_t limit = (rlim_t)(i / 2) * (rlim_t)st.st_size / 8;
            struct pl_error err;

            signal(SIGXFSZ, i % 2 ? SIG_IGN : SIG_DFL);
            setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
            setrlimit(RLIMIT_FSIZE, &(struct rlimit){limit, limit});
            _exit(pl_checkpoint_write(&c, path, &err) == -EFBIG ? 7 : 8);
        }
        assert_int_equal(waitpid(pid, &status, 0), pid);
        if (i % 2)
            assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 7);
        else
            assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGXFSZ);
        assert_true(first_of(path) == 1);
    }
    assert_int_equal(pl_checkpoint_write(&c, path, NULL), 0);
    assert_true(first_of(path) == 2);
    pl_checkpoint_finish(&c);
    /* Those that were killed left a file each, of different names; the next run removes them. */
    assert_int_equal(temporaries(), 8);
    assert_int_equal(pl_folder_lock(dir, &lock, NULL), 0);
    assert_int_equal(temporaries(), 0);
    pl_folder_unlock(&lock);
    assert_true(first_of(path) == 2);
}

static void test_a_folder_has_one_run(void **state)
{
    struct pl_folder_lock lock = PL_FOLDER_LOCK_INIT, second = PL_FOLDER_LOCK_INIT;
    struct pl_error err = {0};
    char holder[64];
    int ready[2], status;
    pid_t pid;
    char c;

    unsetenv("SLURM_JOB_ID");
    assert_int_equal(pl_folder_lock(dir, &lock, NULL), 0);
    assert_int_equal(pl_folder_lock(dir, &second, &err), -EBUSY);
    snprintf(holder, sizeof(holder), "another run (process %d on ", (int)getpid());
    assert_non_null(strstr(err.text, holder));
    assert_non_null(strstr(err.text, "--checkpoint-dir of its own"));
    pl_folder_unlock(&lock);
    assert_false(is_there(PL_FOLDER_LOCK_NAME));
    assert_int_equal(pl_folder_lock(dir, &second, NULL), 0);
    pl_folder_unlock(&second);
    /* A killed holder does not count. */
    assert_int_equal(pipe(ready), 0);
    pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        if (pl_folder_lock(dir, &lock, NULL) < 0 || write(ready[1], "", 1) != 1)
            _exit(1);
        pause();
    }
    assert_int_equal(read(ready[0], &c, 1), 1);
    assert_int_equal(pl_folder_lock(dir, &second, NULL), -EBUSY);
    assert_int_equal(kill(pid, SIGKILL), 0);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(is_there(PL_FOLDER_LOCK_NAME));
    assert_int_equal(pl_folder_lock(dir, &second, NULL), 0);
    pl_folder_unlock(&second);
    close(ready[0]);
    close(ready[1]);
}

struct model {
    struct pl_comm *comm;
    struct pl_params params;
    struct pl_optimizers optimizers;
    struct pl_hparams hparams;
    struct pl_scaler scaler;
    struct pl_train_state state;
    plume_tensor running;
    float statistics[4];
    struct pl_buffer buffer;
};

/* Two parameters, in the order of use given by `turned`; adam with a plateau. */
static void build(struct model *m, enum pl_real real, bool turned)
{
    struct plume_optimizer options = {
        .lr = 0.1,
        .kind = PLUME_ADAM,
        .beta1 = 0.9,
        .beta2 = 0.99,
        .eps = 1e-8,
        .schedule = {.kind = PLUME_PLATEAU, .patience = -1, .factor = 0.3}};
    struct pl_world world = {.size = 1, .local_size = 1};
    struct pl_tape tape;
    plume_tensor *t;

    *m = (struct model){0};
    assert_int_equal(pl_comm_create(&world, NULL, &m->comm, NULL), 0);
    assert_int_equal(pl_hparams_init(&m->hparams, NULL, NULL), 0);
    pl_params_init(&m->params, pl_device_cpu(), real);
    for (int i = 0; i < 2; i++) {
        bool b = (i == 1) != turned;

        assert_int_equal(pl_params_declare(&m->params, b ? "b" : "a", PLUME_INIT_FAN_IN, 2,
                                           (size_t[]){b ? 3 : 5, 7}, &t, NULL),
                         0);
    }
    pl_tape_init(&tape, pl_device_cpu(), real, true);
    assert_int_equal(pl_params_layout(&m->params, &tape, m->comm, NULL), 0);
    pl_tape_finish(&tape);
    assert_int_equal(pl_params_init_values(&m->params, NULL, turned, NULL), 0);
    assert_int_equal(pl_optimizers_init(&m->optimizers, &m->params, &options, 1, NULL), 0);
    pl_scaler_init(&m->scaler, true);
    assert_int_equal(pl_tensor_init(&m->running, PLUME_F32, 1, (size_t[]){4}), 0);
    m->running.data = m->statistics;
    m->buffer = (struct pl_buffer){.name = "norm.running_mean", .tensor = &m->running};
    m->params.buffers = &m->buffer;
    m->params.n_buffers = 1;
    m->state = (struct pl_train_state){
        .module = "mlp",
        .params = &m->params,
        .optimizers = &m->optimizers,
        .scaler = &m->scaler,
        .hparams = &m->hparams,
        .seed = 5,
    };
}

static void tear(struct model *m)
{
    m->params.buffers = NULL;
    m->params.n_buffers = 0;
    pl_optimizers_finish(&m->optimizers);
    pl_params_finish(&m->params);
    pl_hparams_finish(&m->hparams);
    pl_comm_destroy(m->comm);
}

static double *gradients(struct model *m)
{
    return m->params.grads;
}

/* A step whose gradients depend on the step and the parameter's name only. */
static void step(struct model *m, unsigned number)
{
    for (size_t i = 0; i < m->params.n; i++) {
        const struct pl_param *p = m->params.list[i];

        for (size_t k = 0; k < p->tensor->count; k++)
            gradients(m)[p->offset + k] =
                (double)m->scaler.scale * sin(number * 100 + p->name[0] * 10 + (double)k);
    }
    pl_optimizers_step(&m->optimizers, pl_kernels_best(PL_REAL_F64),
                       &(struct pl_clip_rule){PL_CLIP_NORM, 1}, &m->scaler, NULL, NULL);
}

static double one(void *ctx, const char *name)
{
    return strcmp(name, "val_loss") == 0 ? *(double *)ctx : NAN;
}

static const plume_tensor *param(const struct model *m, const char *name)
{
    for (size_t i = 0; i < m->params.n; i++)
        if (strcmp(m->params.list[i]->name, name) == 0)
            return m->params.list[i]->tensor;
    fail();
    return NULL;
}

static void save(struct model *m, bool weights_only, struct pl_checkpoint *ret)
{
    _cleanup_free_ char *path = in_dir("state.ckpt");
    struct pl_checkpoint c = {0};

    assert_int_equal(pl_train_state_save(&m->state, weights_only, &c, NULL), 0);
    assert_int_equal(pl_checkpoint_write(&c, path, NULL), 0);
    pl_checkpoint_finish(&c);
    assert_int_equal(pl_checkpoint_read(path, ret, NULL), 0);
}

/* A run whose gradients overflow in every step ends up with a scale of 0: it can still be saved,
 * and a later resume is refused. */
static void test_scale_of_0_is_saved(void **state)
{
    struct pl_error err = {0};
    struct pl_checkpoint c;
    struct model a, b;

    build(&a, PL_REAL_F64, false);
    build(&b, PL_REAL_F64, false);
    a.scaler.scale = 0;
    save(&a, false, &c);
    assert_int_equal(pl_train_state_load(&b.state, &c, &err), -EINVAL);
    assert_non_null(strstr(err.text, "amp_scaling_state"));
    pl_checkpoint_finish(&c);
    tear(&a);
    tear(&b);
}

/* Into a model that has its parameters in another order, then both go on: bit for bit alike. */
static void test_resume_is_exact(void **state)
{
    double loss = 1;
    struct pl_checkpoint c;
    struct model a, b;

    build(&a, PL_REAL_F64, false);
    build(&b, PL_REAL_F64, true);
    a.scaler.scale = 1024;
    a.scaler.good_steps = 77;
    a.statistics[2] = 0.25f;
    a.state.epoch = 2;
    a.state.step = 9;
    a.state.batch = 10;
    a.state.samples_per_step = 8 * 4; /* 4 ranks with batches of 8 */
    a.state.stop = (struct pl_early_stop){.any = true, .best = 0.5, .waited = 3};
    for (unsigned i = 0; i < 3; i++) {
        step(&a, i);
        assert_int_equal(pl_optimizers_schedule(&a.optimizers, false, one, &loss, NULL), 0);
    }
    save(&a, false, &c);
    b.state.samples_per_step = 8 * 2; /* 2 ranks now */
    assert_int_equal(pl_train_state_load(&b.state, &c, NULL), 0);
    pl_checkpoint_finish(&c);
    assert_int_equal(b.state.epoch, 2);
    assert_int_equal(b.state.step, 9);
    assert_int_equal(b.state.batch, 20);
    assert_true(b.state.stop.any && b.state.stop.best == 0.5 && b.state.stop.waited == 3);
    assert_true(b.scaler.scale == 1024 && b.scaler.good_steps == 80);
    assert_true(b.statistics[2] == 0.25f);
    assert_true(b.optimizers.list[0].schedule.lr == a.optimizers.list[0].schedule.lr);
    assert_true(fabs(b.optimizers.list[0].schedule.lr - 0.1 * 0.3 * 0.3) < 1e-15);
    for (unsigned i = 3; i < 6; i++) {
        step(&a, i);
        step(&b, i);
        pl_optimizers_schedule(&a.optimizers, false, one, &loss, NULL);
        pl_optimizers_schedule(&b.optimizers, false, one, &loss, NULL);
    }
    for (const char *name = "ab"; *name; name++) {
        char text[2] = {*name, 0};

        assert_memory_equal(param(&a, text)->data, param(&b, text)->data,
                            param(&a, text)->count * sizeof(double));
    }
    assert_int_equal(b.optimizers.list[0].steps, 6);
    tear(&a);
    tear(&b);
}

/* test_resume_is_exact's state as release 0.1 wrote it: the same, but for sin() in the last place.
 */
static void test_release_0_1_is_read(void **state)
{
    static const char path[] = PL_FIXTURES "/checkpoints/release-0.1.ckpt";
    _cleanup_free_ char *bytes = NULL;
    struct pl_checkpoint c, back;
    struct pl_error err = {0};
    struct model a, b;
    double loss = 1;
    size_t len;

    build(&a, PL_REAL_F64, false);
    build(&b, PL_REAL_F64, true);
    a.scaler.scale = 1024;
    for (unsigned i = 0; i < 3; i++) {
        step(&a, i);
        assert_int_equal(pl_optimizers_schedule(&a.optimizers, false, one, &loss, NULL), 0);
    }
    assert_int_equal(pl_checkpoint_read(path, &c, NULL), 0);
    assert_int_equal(c.n, 7);
    assert_int_equal(pl_train_state_load(&b.state, &c, &err), 0);
    assert_int_equal(b.state.step, 9);
    assert_int_equal(b.optimizers.list[0].steps, 3);
    assert_true(b.scaler.good_steps == 80 && b.statistics[2] == 0.25f);
    for (const char *name = "ab"; *name; name++) {
        char text[2] = {*name, 0};
        const double *x = param(&a, text)->data, *y = param(&b, text)->data;

        for (size_t k = 0; k < param(&a, text)->count; k++)
            assert_true(fabs(x[k] - y[k]) < 1e-12);
    }
    pl_checkpoint_finish(&c);
    assert_int_equal(pl_file_read(path, 1 << 20, &bytes, &len, NULL), 0);
    for (size_t i = 0; i < len; i++) {
        bytes[i] ^= 16;
        assert_true(pl_checkpoint_parse(bytes, len, &back, &err) < 0);
        bytes[i] ^= 16;
    }
    bytes[8] = 2;
    assert_int_equal(pl_checkpoint_parse(bytes, len, &back, &err), -EPROTO);
    assert_string_equal(err.text, "the checkpoint has format version 2, this release reads 1");
    tear(&a);
    tear(&b);
}

static void test_weights_only(void **state)
{
    _cleanup_free_ char *path = in_dir("state.ckpt"), *report = NULL;
    struct pl_train_options options = {.weights = path};
    struct pl_checkpoint c;
    struct pl_error err = {0};
    struct model a, b;
    bool averaged;

    build(&a, PL_REAL_F64, false);
    build(&b, PL_REAL_F32, true);
    step(&a, 1);
    save(&a, true, &c);
    assert_int_equal(c.n, 3);
    for (size_t i = 0; i < c.n; i++)
        assert_int_not_equal(strncmp(c.tensors[i].name, "plume.", 6), 0);
    assert_null(pl_checkpoint_get(&c, "optimizer_states"));
    /* Enough for evaluating, in another type too, but not to go on with. */
    assert_int_equal(pl_train_state_load(&b.state, &c, &err), -EINVAL);
    assert_string_equal(err.text, "the checkpoint has weights only: give it to --weights instead");
    assert_int_equal(pl_weights_load(&b.params, &options, &averaged, &report, NULL), 0);
    assert_null(report);
    for (size_t i = 0; i < param(&a, "a")->count; i++)
        assert_true(((float *)param(&b, "a")->data)[i] ==
                    (float)((double *)param(&a, "a")->data)[i]);
    pl_checkpoint_finish(&c);
    tear(&a);
    tear(&b);
}

static void test_what_does_not_fit_is_refused(void **state)
{
    struct pl_checkpoint c;
    struct pl_error err = {0};
    struct model a, b;
    double before;

    build(&a, PL_REAL_F64, false);
    build(&b, PL_REAL_F64, true);
    before = *(double *)param(&b, "a")->data;
    save(&a, false, &c);
    b.state.seed = 6;
    assert_int_equal(pl_train_state_load(&b.state, &c, &err), -EINVAL);
    assert_non_null(strstr(err.text, "--seed 5"));
    b.state.seed = 5;
    b.params.n_buffers = 0;
    assert_int_equal(pl_train_state_load(&b.state, &c, &err), -EINVAL);
    assert_non_null(strstr(err.text, "3 parameters and buffers, the model 2"));
    b.params.n_buffers = 1;
    b.params.list[0]->tensor->shape[0] = 7; /* [7, 3] instead of [3, 7] */
    b.params.list[0]->tensor->shape[1] = 3;
    assert_int_equal(pl_train_state_load(&b.state, &c, &err), -EINVAL);
    assert_non_null(strstr(err.text, "'b' has another shape"));
    b.params.list[0]->tensor->shape[0] = 3;
    b.params.list[0]->tensor->shape[1] = 7;
    b.optimizers.list[0].options.kind = PLUME_ADAMW;
    assert_int_equal(pl_train_state_load(&b.state, &c, &err), -EINVAL);
    assert_string_equal(err.text, "the checkpoint is of optimizer 'adam', this run's is 'adamw'");
    b.params.list[0]->name[0] = 'c';
    assert_int_equal(pl_train_state_load(&b.state, &c, &err), -EINVAL);
    assert_non_null(strstr(err.text, "no 'c'"));
    b.params.list[0]->name[0] = 'b';
    assert_true(*(double *)param(&b, "a")->data == before);
    pl_checkpoint_finish(&c);
    tear(&a);
    tear(&b);
}

static int add(struct pl_retention *b, uint64_t n, double value, char **path, char **gone)
{
    free(*path);
    free(*gone);
    *path = *gone = NULL;
    return pl_retention_add(b, n, n * 10, value, path, gone);
}

static void touch(const char *path)
{
    assert_int_equal(pl_file_replace(path, "x", 1, 0600, NULL), 0);
}

static void test_best_keeps_k(void **state)
{
    _cleanup_(pl_buf_finish) struct pl_buf json = {0};
    _cleanup_free_ char *path = NULL, *gone = NULL, *first = in_dir("epoch=4-step=40.ckpt");
    struct pl_retention b, again;

    assert_int_equal(pl_retention_init(&b, dir, NULL, false, 2, NULL), -EINVAL);
    assert_int_equal(pl_retention_init(&b, dir, "val_acc", true, 2, NULL), 0);
    assert_int_equal(add(&b, 0, NAN, &path, &gone), 1);
    assert_null(gone);
    assert_int_equal(add(&b, 1, 0.5, &path, &gone), 1);
    assert_null(gone);
    assert_int_equal(add(&b, 2, 0.4, &path, &gone), 1);
    assert_non_null(strstr(gone, "/epoch=0-step=0.ckpt"));
    assert_int_equal(add(&b, 3, 0.4, &path, &gone), 0); /* no better than the worst */
    assert_int_equal(add(&b, 4, 0.7, &path, &gone), 1);
    assert_string_equal(path, first);
    assert_non_null(strstr(gone, "/epoch=2-step=20.ckpt"));
    assert_true(b.kept[0].value == 0.7 && b.kept[1].value == 0.5);
    touch(path);
    assert_int_equal(pl_retention_save(&b, &json), 0);
    assert_int_equal(pl_retention_init(&again, dir, "val_acc", true, 2, NULL), 0);
    assert_int_equal(pl_retention_load(&again, pl_buf_str(&json)), 0);
    assert_int_equal(again.n, 1); /* the other file is not there */
    assert_string_equal(again.kept[0].path, first);
    assert_true(again.kept[0].value == 0.7);
    pl_retention_finish(&again);
    assert_int_equal(pl_retention_init(&again, dir, "val_loss", true, 2, NULL), 0);
    assert_int_equal(pl_retention_load(&again, pl_buf_str(&json)), 0);
    assert_int_equal(again.n, 0);
    assert_int_equal(pl_retention_load(&again, "{\"mode\":\"max\"}"), -EINVAL);
    pl_retention_finish(&again);
    pl_retention_finish(&b);
}

/* The folder by another name, and another folder, whose files are not this run's to remove. */
static void test_best_is_of_the_own_folder(void **state)
{
    _cleanup_(pl_buf_finish) struct pl_buf json = {0};
    _cleanup_free_ char *path = NULL, *gone = NULL, *again = pl_strf("%s/.", dir),
                        *other = in_dir("other");
    struct pl_retention b;

    assert_int_equal(pl_retention_init(&b, dir, NULL, false, 1, NULL), 0);
    assert_int_equal(add(&b, 1, NAN, &path, &gone), 1);
    touch(path);
    assert_int_equal(pl_retention_save(&b, &json), 0);
    pl_retention_finish(&b);
    assert_int_equal(pl_retention_init(&b, again, NULL, false, 1, NULL), 0);
    assert_int_equal(pl_retention_load(&b, pl_buf_str(&json)), 0);
    assert_int_equal(add(&b, 1, NAN, &path, &gone), 1); /* the same file anew */
    assert_null(gone);
    assert_int_equal(add(&b, 2, NAN, &path, &gone), 1);
    assert_non_null(strstr(gone, "/./epoch=1-step=10.ckpt"));
    pl_retention_finish(&b);
    assert_int_equal(mkdir(other, 0700), 0);
    for (int same_name = 0; same_name < 2; same_name++) {
        assert_int_equal(pl_retention_init(&b, other, NULL, false, 1, NULL), 0);
        assert_int_equal(pl_retention_load(&b, pl_buf_str(&json)), 0);
        assert_int_equal(add(&b, 2, NAN, &path, &gone), 1);
        assert_null(gone);
        pl_retention_finish(&b);
        free(path);
        path = pl_path_join(other, "epoch=1-step=10.ckpt");
        touch(path);
    }
}

static void test_without_a_monitor_the_newest_is_kept(void **state)
{
    _cleanup_free_ char *path = NULL, *gone = NULL;
    struct pl_retention b;

    assert_int_equal(pl_retention_init(&b, dir, NULL, false, 1, NULL), 0);
    assert_int_equal(add(&b, 1, NAN, &path, &gone), 1);
    assert_int_equal(add(&b, 2, NAN, &path, &gone), 1);
    assert_non_null(strstr(gone, "epoch=1-"));
    assert_int_equal(add(&b, 2, NAN, &path, &gone), 1); /* the same file anew */
    assert_null(gone);
    assert_int_equal(b.n, 1);
    pl_retention_finish(&b);
    assert_int_equal(pl_retention_init(&b, dir, NULL, false, 0, NULL), 0);
    assert_int_equal(add(&b, 1, 1, &path, &gone), 0);
    pl_retention_finish(&b);
    assert_int_equal(pl_retention_init(&b, dir, NULL, false, -1, NULL), 0);
    for (uint64_t i = 0; i < 9; i++) {
        assert_int_equal(add(&b, i, NAN, &path, &gone), 1);
        assert_null(gone);
    }
    pl_retention_finish(&b);
}

static void test_hpc_numbers(void **state)
{
    static const char *const names[] = {"hpc_ckpt_2.ckpt", "hpc_ckpt_10.ckpt", "hpc_ckpt_x.ckpt",
                                        "hpc_ckpt_99.ckpt.tmp", "hpc_ckpt_.ckpt"};
    _cleanup_free_ char *sub = in_dir("hpc"), *path = NULL;

    assert_int_equal(pl_hpc_latest(sub, &path, NULL), 0);
    assert_null(path);
    assert_int_equal(pl_hpc_next(sub, &path, NULL), 0);
    assert_non_null(strstr(path, "/hpc/hpc_ckpt_1.ckpt"));
    assert_int_equal(mkdir(sub, 0700), 0);
    for (size_t i = 0; i < PL_COUNT(names); i++) {
        _cleanup_free_ char *full = pl_path_join(sub, names[i]);

        touch(full);
    }
    free(path);
    assert_int_equal(pl_hpc_next(sub, &path, NULL), 0);
    assert_non_null(strstr(path, "/hpc_ckpt_11.ckpt"));
    free(path);
    assert_int_equal(pl_hpc_latest(sub, &path, NULL), 0);
    assert_non_null(strstr(path, "/hpc_ckpt_10.ckpt"));
}

/* A complete checkpoint, or one with weights only, of a step. */
static void put_step(const char *folder, const char *name, int step, bool complete)
{
    _cleanup_(pl_checkpoint_finish) struct pl_checkpoint c = {0};
    _cleanup_free_ char *path = pl_path_join(folder, name);
    char number[16];

    snprintf(number, sizeof(number), "%d", step);
    assert_int_equal(pl_checkpoint_set(&c, "global_step", number), 0);
    if (complete)
        assert_int_equal(pl_checkpoint_set(&c, "optimizer_states", "[]"), 0);
    assert_int_equal(pl_checkpoint_write(&c, path, NULL), 0);
}

static void expect_resume(const char *folder, const char *asked, const char *name)
{
    _cleanup_free_ char *path = NULL;

    assert_int_equal(pl_resume_file(folder, asked, &path, NULL), 0);
    if (!name)
        assert_null(path);
    else
        assert_string_equal(strrchr(path, '/') + 1, name);
}

static void test_resume_file_has_the_highest_step(void **state)
{
    _cleanup_free_ char *sub = in_dir("resume"), *other = in_dir("other.ckpt"), *bad = NULL;

    expect_resume(NULL, NULL, NULL);
    expect_resume(NULL, other, "other.ckpt");
    assert_int_equal(mkdir(sub, 0700), 0);
    put_step(sub, "last.ckpt", 40000, true);
    expect_resume(sub, NULL, NULL); /* nothing was interrupted */
    expect_resume(sub, "last", "last.ckpt");
    put_step(sub, "hpc_ckpt_1.ckpt", 100, true);
    put_step(sub, "hpc_ckpt_2.ckpt", 200, true);
    expect_resume(sub, NULL, "last.ckpt");
    expect_resume(sub, "last", "last.ckpt");
    put_step(sub, "last.ckpt", 200, true);
    expect_resume(sub, "last", "hpc_ckpt_2.ckpt"); /* it may be inside an epoch */
    put_step(sub, "last.ckpt", 40000, false);
    expect_resume(sub, NULL, "hpc_ckpt_2.ckpt");
    put_step(sub, "epoch=3-step=250.ckpt", 250, true);
    put_step(sub, "epoch=2-step=90.ckpt", 90, true);
    put_step(sub, "epoch=9-step=900.ckptx", 900, true);
    expect_resume(sub, NULL, "epoch=3-step=250.ckpt");
    put_step(dir, "other.ckpt", 300, true);
    expect_resume(sub, other, "other.ckpt");
    expect_resume(sub, "/none.ckpt", "epoch=3-step=250.ckpt");
    put_step(sub, "hpc_ckpt_3.ckpt", 500, true);
    expect_resume(sub, other, "hpc_ckpt_3.ckpt");
    bad = pl_path_join(sub, "hpc_ckpt_4.ckpt");
    touch(bad);
    expect_resume(sub, other, "other.ckpt");
    /* Only the highest stays. */
    assert_int_equal(pl_hpc_remove_older(sub, NULL), 0);
    assert_false(is_there("resume/hpc_ckpt_1.ckpt"));
    assert_false(is_there("resume/hpc_ckpt_3.ckpt"));
    assert_true(is_there("resume/hpc_ckpt_4.ckpt"));
    assert_true(is_there("resume/last.ckpt"));
}

static void test_writer_writes_in_order(void **state)
{
    _cleanup_(pl_ckpt_writer_destroyp) struct pl_ckpt_writer *w = NULL;
    _cleanup_free_ char *last = in_dir("last.ckpt");
    struct pl_error err = {0};
    struct pl_ckpt_job job = {0};
    char name[32];

    folder_syncs = 0;
    assert_int_equal(pl_ckpt_writer_create(&w, NULL), 0);
    for (int i = 0; i < 20; i++) {
        make(&job.checkpoint, (float)i);
        snprintf(name, sizeof(name), "w%d.ckpt", i);
        job.path = in_dir(name);
        job.also = strdup(last);
        snprintf(name, sizeof(name), "w%d.ckpt", i - 1);
        job.remove = i ? in_dir(name) : NULL;
        assert_int_equal(pl_ckpt_writer_submit(w, &job, NULL), 0);
        assert_null(job.path);
    }
    assert_int_equal(pl_ckpt_writer_flush(w, NULL), 0);
    assert_int_equal(folder_syncs, 2 * 20); /* after each rename */
    assert_true(first_of(last) == 19);
    assert_false(is_there("w18.ckpt"));
    assert_true(is_there("w19.ckpt"));
    assert_int_equal(temporaries(), 0);
    /* A failure is reported once, and the next job is written. */
    make(&job.checkpoint, 0);
    job.path = strdup("/nonexistent/x.ckpt");
    assert_int_equal(pl_ckpt_writer_submit(w, &job, NULL), 0);
    assert_int_equal(pl_ckpt_writer_flush(w, &err), -ENOENT);
    assert_non_null(strstr(err.text, "'/nonexistent/x.ckpt'"));
    make(&job.checkpoint, 5);
    job.path = strdup(last);
    assert_int_equal(pl_ckpt_writer_submit(w, &job, NULL), 0);
    assert_int_equal(pl_ckpt_writer_flush(w, NULL), 0);
    assert_true(first_of(last) == 5);
}

static int make_dir(void **state)
{
    return tmpdir_make(dir, sizeof(dir));
}

static int remove_dir(void **state)
{
    return tmpdir_remove(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_xxh64_vectors),
        cmocka_unit_test(test_file_round_trip),
        cmocka_unit_test(test_damage_is_found),
        cmocka_unit_test(test_an_interrupted_write_leaves_the_old_file),
        cmocka_unit_test(test_a_folder_has_one_run),
        cmocka_unit_test(test_scale_of_0_is_saved),
        cmocka_unit_test(test_resume_is_exact),
        cmocka_unit_test(test_release_0_1_is_read),
        cmocka_unit_test(test_weights_only),
        cmocka_unit_test(test_what_does_not_fit_is_refused),
        cmocka_unit_test(test_best_keeps_k),
        cmocka_unit_test(test_best_is_of_the_own_folder),
        cmocka_unit_test(test_without_a_monitor_the_newest_is_kept),
        cmocka_unit_test(test_hpc_numbers),
        cmocka_unit_test(test_resume_file_has_the_highest_step),
        cmocka_unit_test(test_writer_writes_in_order),
    };

    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
