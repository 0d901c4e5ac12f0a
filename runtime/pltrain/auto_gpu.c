/* SPDX-License-Identifier: MIT */
#include "runtime/pltrain/auto_gpu.h"
#include "common/base/child.h"
#include "common/base/env.h"
#include "common/base/fs.h"
#include "common/base/log.h"
#include "common/base/own.h"
#include "common/base/parse.h"
#include "runtime/engine/comm/gpu_test.h"
#include "runtime/engine/device/gpu.h"
#include "runtime/engine/util/xxh64.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <sys/stat.h>

#define TEST_LIMIT_MS 20000 /* of all GPUs of a node; an H100 took 3.8 s or less */
#define FOLDER "gpu-tests"  /* in ~/.plume */
#define RECORD_MAX 4096     /* bytes */
#define WHY_MAX 320
#define CONTROL_DEVICE "/dev/nvidiactl"

/* The GPUs for which bench/RESULTS-gpu.md has a measured row, by the name that the driver gives
 * them. All of it: a part of such a card ("... MIG 1g.10gb") and a card with another memory or
 * limit of power ("NVIDIA H100 PCIe") were not measured. */
static const char *const measured[] = {"NVIDIA H100 80GB HBM3", NULL};

/* A result holds for this GPU, driver, libraries and build of Plume only. */
struct key {
    unsigned index; /* of the GPU; twins have the same text */
    char name[sizeof(((struct pl_device_about *)0)->name)];
    char text[1024];
};

/* ---- what is there ---- */

/* Build for tests only: the start of more names, and another limit. */
static const char *of_tests(enum pl_env_id id)
{
#ifdef PL_TEST_BUILD
    return pl_env_text(id);
#else
    return NULL;
#endif
}

static bool is_measured(const char *name)
{
    const char *one = of_tests(PL_ENV_PLUME_GPUS_MEASURED);

    for (size_t i = 0; measured[i]; i++)
        if (strcmp(name, measured[i]) == 0)
            return true;
    return one && strncmp(name, one, strlen(one)) == 0;
}

/* The file that has our kernels: another build is another one. */
static void add_build(const struct pl_device_ops *ops, char *text, size_t size)
{
    size_t at = strlen(text);
    struct stat st;
    Dl_info info;

    if (!dladdr(ops, &info) || !info.dli_fname || stat(info.dli_fname, &st) < 0)
        return;
    snprintf(text + at, size - at, ", plume-cuda.so of %lld bytes at %lld.%09ld",
             (long long)st.st_size, (long long)st.st_mtim.tv_sec, st.st_mtim.tv_nsec);
}

static void add_nccl(const struct pl_nccl_table *nccl, char *text, size_t size)
{
    char why[PL_NCCL_TEXT];
    size_t at = strlen(text);
    int header = 0, library = 0;

    if (nccl && nccl->versions(&header, &library, why) == 0)
        snprintf(text + at, size - at, ", NCCL %d.%d.%d", library / 10000, library / 100 % 100,
                 library % 100);
    else
        snprintf(text + at, size - at, ", no NCCL");
}

static int key_of(const struct pl_device_ops *ops,
                  const struct pl_nccl_table *nccl,
                  unsigned index,
                  struct key *ret,
                  struct pl_error *err)
{
    struct pl_device_about about;
    int r = ops->about(index, &about, err);

    if (r < 0)
        return r;
    *ret = (struct key){.index = index};
    memcpy(ret->name, about.name, sizeof(ret->name));
    snprintf(ret->text, sizeof(ret->text), "%s, %s", about.name, about.versions);
    add_nccl(nccl, ret->text, sizeof(ret->text));
    add_build(ops, ret->text, sizeof(ret->text));
    return 0;
}

/* All GPUs that this process sees; NCCL is NULL where it is missing. */
struct gpus {
    const struct pl_device_ops *ops;
    const struct pl_nccl_table *nccl;
    unsigned n;
};

static int look(struct gpus *ret, struct pl_error *err)
{
    int r = pl_gpu_look(&ret->ops, &ret->n, err);

    if (r < 0)
        return r;
    if (!ret->ops->about)
        return pl_error_set(err, -ENOTSUP, "these GPUs have no test");
    if (pl_gpu_nccl(&ret->nccl, NULL) < 0)
        ret->nccl = NULL;
    return 0;
}

/* ---- results that are kept ---- */

static void record_of(const struct key *key, char name[32], char text[RECORD_MAX])
{
    snprintf(text, RECORD_MAX, "test of a GPU 1\n%s\npassed\n", key->text);
    snprintf(name, 32, "%016llx", (unsigned long long)pl_xxh64(text, strlen(text)));
}

static int open_folder(int *ret, struct pl_error *err)
{
    _cleanup_free_ char *home = pl_home_dir(err);
    _cleanup_free_ char *path = home ? pl_path_join(home, FOLDER) : NULL;

    if (!path)
        return home ? pl_error_nomem(err) : err->code;
    return pl_own_folder_make(AT_FDCWD, path, 0700, ret, err);
}

/* True if this very key has passed. Anything else in the file, and a file that others may write,
 * counts for nothing. */
static bool has_passed(const struct key *key)
{
    _cleanup_close_ int folder = -EBADF;
    _cleanup_free_ char *found = NULL;
    char name[32], text[RECORD_MAX];
    struct pl_error err = {0};
    size_t len = 0;
    int r = open_folder(&folder, &err);

    record_of(key, name, text);
    if (r == 0)
        r = pl_own_file_read(folder, name, RECORD_MAX, &found, &len, &err);
    if (r == 0 && len == strlen(text) && memcmp(found, text, len) == 0)
        return true;
    if (r < 0 && r != -ENOENT)
        pl_log_warn("train", "the results of earlier tests of GPUs are not used: %s",
                    pl_error_text(&err));
    else if (r == 0)
        pl_log_warn("train", "'" FOLDER "/%s' is damaged: the GPU is tested again", name);
    return false;
}

/* Without it the next run tests again. */
static void keep(const struct key *key)
{
    _cleanup_close_ int folder = -EBADF;
    char name[32], text[RECORD_MAX];
    struct pl_error err = {0};
    int r = open_folder(&folder, &err);

    record_of(key, name, text);
    if (r == 0)
        r = pl_file_write_at(folder, name, text, strlen(text), 0600, false, &err);
    if (r < 0)
        pl_log_warn("train", "the result of the GPU's test cannot be kept: %s",
                    pl_error_text(&err));
}

/* ---- the test ---- */

/* Has one of its kind come before, with this result? */
static bool has_twin(const struct key *keys, const bool *with, unsigned i)
{
    for (unsigned k = 0; k < i; k++)
        if (with[k] && strcmp(keys[i].text, keys[k].text) == 0)
            return true;
    return false;
}

/* A key that another thread finds out: that reads NVIDIA's libraries, which are large. */
struct key_search {
    const struct gpus *gpus;
    unsigned index;
    struct key *key;
    struct pl_error why;
    pthread_t thread;
    bool runs;
    int r;
};

static void *search(void *arg)
{
    struct key_search *s = arg;

    s->r = key_of(s->gpus->ops, s->gpus->nccl, s->index, s->key, &s->why);
    return NULL;
}

static void start_search(struct key_search *s)
{
    s->runs = pthread_create(&s->thread, NULL, search, s) == 0;
    if (!s->runs)
        search(s);
}

static int end_search(struct key_search *s, struct pl_error *err)
{
    if (s->runs)
        pthread_join(s->thread, NULL);
    s->runs = false;
    return s->r < 0 ? pl_error_set(err, s->r, "%s", pl_error_text(&s->why)) : 0;
}

/* GPUs of one kind are tested until one passes. A kind is not kept if one of it failed: that one
 * would be trusted later. */
static int test_all(const struct gpus *gpus, FILE *out, struct pl_error *err)
{
    _cleanup_free_ struct key *keys = calloc(gpus->n, sizeof(*keys));
    _cleanup_free_ bool *good = calloc(gpus->n, sizeof(*good)),
                        *bad = calloc(gpus->n, sizeof(*bad));
    bool failed = false;

    if (!keys || !good || !bad)
        return pl_error_nomem(err);
    for (unsigned i = 0; i < gpus->n; i++) {
        struct key_search key = {.gpus = gpus, .index = i, .key = &keys[i]};
        struct pl_error why = {0};
        uint64_t start = pl_now_ns();
        int r = 0, passed;

        start_search(&key);
        if (i > 0) /* the first is tested whatever its key is: meanwhile */
            r = end_search(&key, err);
        if (r == 0 && has_twin(keys, good, i))
            continue;
        passed = r < 0 ? r : pl_gpu_test_run(gpus->ops, i, gpus->nccl, &why);
        if (r == 0)
            r = end_search(&key, err);
        if (r < 0)
            return r;
        r = passed;
        good[i] = r == 0;
        bad[i] = r < 0;
        failed |= bad[i];
        if (r == 0 && !has_twin(keys, bad, i))
            keep(&keys[i]);
        fprintf(out, "GPU %u (%s): %s%s", i, keys[i].name, r < 0 ? "failed: " : "passed",
                r < 0        ? pl_error_text(&why)
                : gpus->nccl ? ""
                             : ", without NCCL");
        fprintf(out, " (%.1f s)\n", (double)(pl_now_ns() - start) * 1e-9);
    }
    return failed ? -EDOM : 0;
}

int pl_auto_gpu_test(FILE *out)
{
    struct pl_error err = {0};
    struct gpus gpus = {0};
    int r = look(&gpus, &err);

    if (r == 0)
        r = test_all(&gpus, out, &err);
    if (r < 0 && err.code < 0)
        pl_log_error("train", "%s", pl_error_text(&err));
    return r < 0 ? 1 : 0;
}

int pl_auto_gpu_check(bool *ret_there, struct pl_error *err)
{
    struct gpus gpus = {0};
    struct key key;
    int r = look(&gpus, err);

    *ret_there = r == 0;
    if (r == 0)
        r = key_of(gpus.ops, gpus.nccl, 0, &key, err);
    if (r < 0 || has_passed(&key))
        return r;
    r = pl_gpu_test_run(gpus.ops, 0, gpus.nccl, err);
    if (r == 0)
        keep(&key);
    return r < 0 ? pl_error_wrap(err, r, "pltrain --test-gpus") : 0;
}

static unsigned test_limit_ms(void)
{
    const char *text = of_tests(PL_ENV_PLUME_GPU_TEST_MS);
    int64_t ms;

    return text && pl_parse_int(text, 1, INT32_MAX, &ms, NULL) == 0 ? (unsigned)ms : TEST_LIMIT_MS;
}

/* The GPUs that this node's ranks take. */
struct taken {
    unsigned n;
    struct key *keys;
};

/* Is there a line of test_all() that begins with `start` and has `result` after a GPU's name? */
static bool tells(const char *out, const char *start, const char *result)
{
    for (const char *line = out; *line; line += strcspn(line, "\n"), line += *line == '\n') {
        const char *found = strstr(line, result);

        if (strncmp(line, start, strlen(start)) == 0 && found && found < line + strcspn(line, "\n"))
            return true;
    }
    return false;
}

/* None of them failed, and of each kind one has passed: in the test that wrote `out`, or before. */
static bool have_passed_now(const struct taken *taken, const char *out)
{
    for (unsigned i = 0; i < taken->n; i++) {
        char start[32], result[sizeof(taken->keys->name) + 16];

        snprintf(start, sizeof(start), "GPU %u (", taken->keys[i].index);
        if (tells(out, start, "): failed: "))
            return false;
        snprintf(result, sizeof(result), " (%s): passed", taken->keys[i].name);
        if (!tells(out, "GPU ", result) && !has_passed(&taken->keys[i]))
            return false;
    }
    return true;
}

/* A GPU that hangs, or a library that ends its process, must not take the run along. *ret_passed:
 * the GPUs that are taken are good, whatever the result is. */
static int test_in_child(const struct taken *taken, bool *ret_passed, struct pl_error *err)
{
    const char *const argv[] = {"/proc/self/exe", "--test-gpus", NULL};
    unsigned limit_ms = test_limit_ms();
    struct pl_child child = {0};
    struct pl_error why = {0};
    const char *failed;
    int r = pl_child_run(argv, NULL, limit_ms, &child, &why);

    if (r == -ETIMEDOUT)
        r = pl_error_set(err, r, "their test (pltrain --test-gpus) did not end within %g s",
                         limit_ms * 1e-3);
    else if (r < 0)
        r = pl_error_set(err, r, "their test did not start: %s", pl_error_text(&why));
    if (r == 0 && child.err.len) /* why a library is not used */
        fputs(pl_buf_str(&child.err), stderr);
    if (r == 0 && child.status != 0) {
        failed = child.out.len ? strstr(pl_buf_str(&child.out), "failed: ") : NULL;
        if (WIFSIGNALED(child.status))
            r = pl_error_set(err, -EIO, "their test died by signal %d", WTERMSIG(child.status));
        else
            r = pl_error_set(err, -EIO, "their test %.*s", failed ? (int)strcspn(failed, "\n") : 6,
                             failed ? failed : "failed");
    }
    *ret_passed = have_passed_now(taken, child.out.len ? pl_buf_str(&child.out) : "");
    pl_child_finish(&child);
    return r;
}

/* ---- auto ---- */

static bool all_have_passed(const struct taken *taken)
{
    for (unsigned i = 0; i < taken->n; i++)
        if (!has_passed(&taken->keys[i]))
            return false;
    return true;
}

/* The test is of all GPUs of the node: one that is not taken may have failed. */
static int test_taken(const struct taken *taken, unsigned there, struct pl_error *err)
{
    struct pl_error why = {0};
    bool passed = false;
    int r = test_in_child(taken, &passed, &why);

    if (r < 0 && taken->n < there && passed) {
        pl_log_warn("train", "another GPU of this node, which is not taken, is not usable: %s",
                    pl_error_text(&why));
        return 0;
    }
    return r < 0 ? pl_error_set(err, r, "%s", pl_error_text(&why)) : 0;
}

/* The number of GPUs that the ranks of this node take. */
static int count_wanted(const struct pl_pltrain *p,
                        const struct pl_comm *comm,
                        unsigned there,
                        unsigned *ret,
                        struct pl_error *err)
{
    unsigned ranks = comm->world.local_size, n = PL_MAX(ranks, p->train.devices);

    if (pl_env(PL_ENV_SLURM_JOB_ID) && there == 1)
        n = 1; /* Slurm gives each rank its own */
    if (n > there)
        return pl_error_set(err, -ENODEV, "there are %u for %u rank%s with %u device%s each", there,
                            ranks, ranks == 1 ? "" : "s", p->train.devices,
                            p->train.devices == 1 ? "" : "s");
    *ret = n;
    return 0;
}

/* Of this node; the text of an error is the reason not to. */
static int decide(const struct pl_pltrain *p, const struct pl_comm *comm, struct pl_error *err)
{
    _cleanup_free_ struct key *keys = NULL;
    struct gpus gpus = {0};
    unsigned wanted = 0;
    int r = 0;

    /* Before our kernels are loaded: they are large, and most machines have no use for them. */
    if (access(CONTROL_DEVICE, F_OK) < 0 && !of_tests(PL_ENV_PLUME_GPUS_MEASURED))
        r = pl_error_set(err, -ENODEV, "there is no NVIDIA GPU (no " CONTROL_DEVICE ")");
    if (r == 0)
        r = look(&gpus, err);
    if (r == 0)
        r = count_wanted(p, comm, gpus.n, &wanted, err);
    keys = r == 0 ? calloc(wanted, sizeof(*keys)) : NULL;
    if (r == 0 && !keys)
        r = pl_error_nomem(err);
    for (unsigned i = 0; r == 0 && i < wanted; i++) {
        unsigned index = i < p->n_device ? p->device[i] : i;

        r = key_of(gpus.ops, gpus.nccl, index, &keys[i], err);
        if (r == 0 && !is_measured(keys[i].name))
            r = pl_error_set(err, -ENOTSUP,
                             "bench/RESULTS-gpu.md has no row for %s; --accelerator gpu takes it "
                             "all the same",
                             keys[i].name);
    }
    if (r < 0 || all_have_passed(&(struct taken){wanted, keys}))
        return r;
    return test_taken(&(struct taken){wanted, keys}, gpus.n, err);
}

static void log_reason(const char *why)
{
    bool there = access(CONTROL_DEVICE, F_OK) == 0;

    pl_log_write(there ? PL_LOG_WARN : PL_LOG_INFO, "train",
                 "--accelerator auto takes the CPU%s: %s", there ? ", though there are GPUs" : "",
                 why);
}

/* Each node's reason not to, at the place of its first rank. */
static int agree(const struct pl_pltrain *p,
                 struct pl_comm *comm,
                 char (*why)[WHY_MAX],
                 size_t *offset,
                 struct pl_error *err)
{
    struct pl_error own = {0};

    for (unsigned k = 0; k <= comm->size; k++)
        offset[k] = k * sizeof(*why);
    if (comm->world.local_rank == 0 && decide(p, comm, &own) < 0)
        snprintf(why[comm->rank], WHY_MAX, "%s", pl_error_text(&own));
    return pl_comm_allgather(comm, why, offset, err);
}

int pl_auto_gpu(const struct pl_pltrain *p, struct pl_comm *comm, bool *ret, struct pl_error *err)
{
    _cleanup_free_ char(*why)[WHY_MAX] = calloc(comm->size, sizeof(*why));
    _cleanup_free_ size_t *offset = calloc(comm->size + 1, sizeof(*offset));
    unsigned i = 0;
    int r;

    if (!why || !offset)
        return pl_error_nomem(err);
    *ret = false;
    r = agree(p, comm, why, offset, err);
    if (r < 0)
        return r;
    while (i < comm->size && !why[i][0])
        i++;
    *ret = i == comm->size;
    if (!*ret && comm->rank == 0) {
        why[i][WHY_MAX - 1] = '\0';
        log_reason(why[i]);
    }
    return 0;
}
