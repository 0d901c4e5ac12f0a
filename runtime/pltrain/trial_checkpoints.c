/* SPDX-License-Identifier: MIT */
#include "runtime/pltrain/trial_checkpoints.h"
#include "common/base/env.h"
#include "common/base/fs.h"
#include "common/base/log.h"
#include "common/base/parse.h"
#include "common/base/shared_fs.h"
#include "runtime/engine/checkpoint/retention.h"
#include "runtime/engine/util/sha256.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

/* In a run's folder. TAKEN says by whom it was taken last: "ATTEMPT RUN HOW BEFORE ORDER", with RUN
 * the digest of the run, HOW "new" or "goes-on", BEFORE the number of the folder that the run
 * before had (0 = none), and ORDER, which grows over all that take a folder of this ID. FINISHED
 * has the last attempt in which a run was done. */
#define TAKEN ".plume-run"
#define FINISHED ".plume-finished"
#define LOCK ".plume-take" /* beside the folders: one run at a time takes one */
#define RUNS_MAX 10000     /* with the same hyper-parameters */
#define LOCK_TRIES 500     /* 5 s: a run that was stopped is not waited for */
#define WORD_MAX 63

struct folder {
    unsigned number;  /* in the name; 1 has none */
    bool taken, done; /* in this attempt */
    bool left;        /* the run that took it last was not done */
    bool goes_on;
    char run[WORD_MAX + 1]; /* "" = not known: a release without TAKEN was here */
    unsigned before;
    unsigned long long order;
};

struct folders {
    const char *first;   /* path of number 1 */
    struct folder *list; /* by number */
    size_t n;
};

char *
pl_trial_checkpoints(const char *trial, const char *module, const char *const *hparams, size_t n)
{
    uint8_t digest[PL_SHA256_BYTES];
    struct pl_sha256 sha;
    uint64_t id;

    pl_sha256_init(&sha);
    pl_sha256_add(&sha, module, strlen(module) + 1);
    for (size_t i = 0; i < n; i++)
        pl_sha256_add(&sha, hparams[i], strlen(hparams[i]) + 1);
    pl_sha256_final(&sha, digest);
    memcpy(&id, digest, sizeof(id));
    return pl_strf("%s/checkpoints/%016llx", trial, (unsigned long long)id);
}

static const char *attempt(void)
{
    const char *number = pl_env_text(PL_ENV_PLUME_ATTEMPT);

    return number ? number : "0";
}

static char *path_of(const struct folders *all, unsigned number)
{
    return number == 1 ? strdup(all->first) : pl_strf("%s-%u", all->first, number);
}

/* *ret = the words of the file, or NULL: there is none, or one that is not Plume's. A file that
 * cannot be read is an error: the run would begin anew. */
static int read_text(const char *dir, const char *name, char **ret, struct pl_error *err)
{
    _cleanup_free_ char *path = pl_path_join(dir, name);
    int r = path ? pl_file_read(path, 256, ret, NULL, err) : pl_error_nomem(err);

    if (r == 0)
        (*ret)[strcspn(*ret, "\n")] = '\0';
    else
        *ret = NULL;
    return r == -ENOENT || r == -ENOTDIR || r == -EFBIG || r == -EINVAL ? 0 : r;
}

static int look_at(const struct folders *all, struct folder *f, struct pl_error *err)
{
    _cleanup_free_ char *dir = path_of(all, f->number), *finished = NULL, *taken = NULL;
    char at[WORD_MAX + 1], how[WORD_MAX + 1];
    int r = dir ? read_text(dir, FINISHED, &finished, err) : pl_error_nomem(err);

    if (r == 0)
        r = read_text(dir, TAKEN, &taken, err);
    f->taken = f->done = finished && strcmp(finished, attempt()) == 0;
    if (taken &&
        sscanf(taken, "%63s %63s %63s %u %llu", at, f->run, how, &f->before, &f->order) == 5) {
        f->taken = f->taken || strcmp(at, attempt()) == 0;
        f->left = !finished || strcmp(finished, at) != 0;
        f->goes_on = strcmp(how, "goes-on") == 0;
    } else {
        f->run[0] = '\0';
    }
    return r;
}

static int by_number(const void *a, const void *b)
{
    unsigned x = ((const struct folder *)a)->number, y = ((const struct folder *)b)->number;

    return (x > y) - (x < y);
}

/* The number of the folder with this name; 0: it has another ID. */
static unsigned number_of(const char *name, const char *id)
{
    size_t len = strlen(id);
    int64_t n;

    if (strncmp(name, id, len) != 0)
        return 0;
    if (!name[len])
        return 1;
    return name[len] == '-' && pl_parse_int(name + len + 1, 2, RUNS_MAX, &n, NULL) == 0
               ? (unsigned)n
               : 0;
}

/* The caller calls free(all->list), also after an error. -ENOMEM, or the error of reading the
 * folder. */
static int find_all(struct folders *all, const char *trial, struct pl_error *err)
{
    DIR *d = opendir(trial);
    struct dirent *entry;
    int r = 0;

    if (!d)
        return errno == ENOENT ? 0 : pl_error_errno(err, errno, "cannot read folder '%s'", trial);
    while (r == 0 && (entry = readdir(d))) {
        unsigned number = number_of(entry->d_name, strrchr(all->first, '/') + 1);
        struct folder *list = number ? realloc(all->list, (all->n + 1) * sizeof(*list)) : all->list;

        if (number && !list)
            r = pl_error_nomem(err);
        if (!number || r < 0)
            continue;
        all->list = list;
        list[all->n] = (struct folder){.number = number};
        r = look_at(all, &list[all->n++], err);
    }
    closedir(d);
    if (all->n > 0)
        qsort(all->list, all->n, sizeof(*all->list), by_number);
    return r;
}

/* The folder that somebody has taken last; NULL: nobody. */
static const struct folder *latest(const struct folders *all)
{
    const struct folder *ret = NULL;

    for (size_t i = 0; i < all->n; i++)
        if (all->list[i].run[0] && (!ret || all->list[i].order > ret->order))
            ret = &all->list[i];
    return ret;
}

/* The first folder of a run with this digest that is not done in this attempt. Else the first of a
 * run that nobody knows, as releases without TAKEN told runs apart by their order. Else a new one;
 * number 0: there are too many. */
static struct folder choose(const struct folders *all, const char *run)
{
    struct folder fresh = {.number = 1};

    for (size_t i = 0; i < all->n; i++)
        if (!all->list[i].done && strcmp(all->list[i].run, run) == 0)
            return all->list[i];
    for (size_t i = 0; i < all->n; i++) {
        if (!all->list[i].taken && !all->list[i].run[0])
            return all->list[i];
        if (all->list[i].number == fresh.number)
            fresh.number = fresh.number < RUNS_MAX ? fresh.number + 1 : 0;
    }
    return fresh;
}

static int is_there(const char *path, bool *ret, struct pl_error *err)
{
    int r = pl_file_look(path);

    *ret = r == 0;
    return r == 0 || r == -ENOENT ? 0 : pl_error_errno(err, r, "cannot look at '%s'", path);
}

/* *ret = the last.ckpt of folder `number`. If it has none, and its run went on from the run before:
 * of that one, and so on. NULL: none. */
static int last_of(const struct folders *all, unsigned number, char **ret, struct pl_error *err)
{
    *ret = NULL;
    for (size_t tries = 0; number && tries <= all->n; tries++) {
        _cleanup_free_ char *dir = path_of(all, number),
                            *path = dir ? pl_path_join(dir, "last.ckpt") : NULL;
        const struct folder *f = NULL;
        bool there = false;
        int r = path ? is_there(path, &there, err) : pl_error_nomem(err);

        if (r < 0)
            return r;
        if (there) {
            *ret = PL_TAKE(path);
            return 0;
        }
        for (size_t i = 0; i < all->n && !f; i++)
            f = all->list[i].number == number ? &all->list[i] : NULL;
        number = f && f->goes_on ? f->before : 0;
    }
    return 0;
}

/* Warns if a run was interrupted that nobody has gone on with: its options may have changed. */
static void tell_left(const struct folders *all)
{
    for (size_t i = 0; i < all->n; i++) {
        const struct folder *f = &all->list[i];
        _cleanup_free_ char *dir = f->left && !f->taken ? path_of(all, f->number) : NULL,
                            *hpc = NULL;

        if (!dir || pl_hpc_latest(dir, &hpc, NULL) < 0 || !hpc)
            continue;
        pl_log_warn("train",
                    "a run with other options was interrupted, with checkpoints in '%s': only a "
                    "run with the same options goes on from there",
                    dir);
        return;
    }
}

static int take(const struct folder *f, const char *dir, const char *run, struct pl_error *err)
{
    _cleanup_free_ char *path = pl_path_join(dir, TAKEN),
                        *text = pl_strf("%s %s %s %u %llu\n", attempt(), run,
                                        f->goes_on ? "goes-on" : "new", f->before, f->order);
    int r = path && text ? pl_mkdir_p(dir, 0777, err) : pl_error_nomem(err);

    return r < 0 ? r : pl_file_write_atomic(path, text, strlen(text), 0666, err);
}

/* Without locks on the file system, or beside a run that was stopped with the lock, does nothing.
 */
static int lock(const char *trial)
{
    _cleanup_free_ char *path = pl_path_join(trial, LOCK);
    int fd;

    if (!path || pl_mkdir_p(trial, 0777, NULL) < 0)
        return -EBADF;
    fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NOCTTY, 0666);
    for (int i = 0; fd >= 0 && i < LOCK_TRIES; i++) {
        if (flock(fd, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK)
            break;
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    }
    return fd;
}

/* The same with the lock. */
static int next(struct folders *all,
                const char *run,
                bool goes_on,
                bool takes,
                char **ret,
                char **from,
                struct pl_error *err)
{
    struct folder f = choose(all, run);
    const struct folder *before = latest(all);
    bool again = strcmp(f.run, run) == 0;
    _cleanup_free_ char *dir = path_of(all, f.number), *last = NULL;
    bool there = false;
    int r = 0;

    if (f.number == 0)
        return pl_error_set(err, -E2BIG,
                            "more than %d runs with the same hyper-parameters: give each a "
                            "--checkpoint-dir of its own",
                            RUNS_MAX);
    /* A run that began anew does so again, and one that went on has the same run before it, even
     * where the script leaves that one out now, as it is done. */
    f.goes_on = goes_on && (!again || f.goes_on);
    if (before && !again)
        f.before = before->number;
    f.order = before ? before->order + 1 : 1;
    last = dir ? pl_path_join(dir, "last.ckpt") : NULL;
    r = last ? is_there(last, &there, err) : pl_error_nomem(err);
    if (r == 0 && f.goes_on && !there)
        r = last_of(all, f.before, from, err);
    if (r < 0)
        return r;
    if (takes && !again)
        tell_left(all);
    if (takes)
        r = take(&f, dir, run, err);
    if (r == 0)
        *ret = PL_TAKE(dir);
    return r;
}

int pl_trial_checkpoints_next(const char *first,
                              const char *run,
                              bool goes_on,
                              bool takes,
                              char **ret,
                              char **from,
                              struct pl_error *err)
{
    _cleanup_free_ char *trial = strndup(first, (size_t)(strrchr(first, '/') - first));
    int fd = trial && takes ? lock(trial) : -EBADF;
    struct folders all = {.first = first};
    int r = trial ? find_all(&all, trial, err) : pl_error_nomem(err);

    *ret = *from = NULL;
    if (r == 0)
        r = next(&all, run, goes_on, takes, ret, from, err);
    if (r < 0) {
        free(*from);
        *from = NULL;
    }
    free(all.list);
    pl_closep(&fd);
    return r;
}

int pl_trial_checkpoints_done(const char *dir, struct pl_error *err)
{
    _cleanup_free_ char *path = pl_path_join(dir, FINISHED), *text = pl_strf("%s\n", attempt());

    int r = path && text ? pl_file_write_atomic(path, text, strlen(text), 0666, err)
                         : pl_error_nomem(err);

    return r == -ENOENT ? 0 : r; /* somebody has removed the folder */
}
