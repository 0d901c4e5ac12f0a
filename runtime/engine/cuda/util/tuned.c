/* SPDX-License-Identifier: MIT */
#include "runtime/engine/cuda/util/tuned.h"
#include "common/base/fs.h"
#include "common/base/log.h"
#include "common/base/macros.h"
#include "common/base/own.h"
#include "runtime/engine/cuda/util/plan_cache.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <time.h>

#define FORMAT 1
#define FILE_MAX ((size_t)4 << 20) /* bytes */
#define WHAT_MAX 1024
#define LOCK_TRIES 100 /* every 10 ms */

struct pl_tuned {
    const char *kind;
    char folder[32]; /* in ~/.plume */
    size_t key_bytes, value_bytes;
    char what[WHAT_MAX];
    char name[32]; /* of the file */
    struct pl_plan_cache known;
    bool told; /* that the file cannot be written */
};

static int open_folder(const struct pl_tuned *t, bool make, int *ret, struct pl_error *err)
{
    _cleanup_free_ char *home = pl_home_dir(err);
    _cleanup_free_ char *path = home ? pl_path_join(home, t->folder) : NULL;

    if (!path)
        return home ? pl_error_nomem(err) : err->code;
    return make ? pl_own_folder_make(AT_FDCWD, path, 0700, ret, err)
                : pl_own_folder_open(AT_FDCWD, path, ret, err);
}

/* ---- lines ---- */

static void put_hex(char *to, const unsigned char *from, size_t n)
{
    for (size_t i = 0; i < n; i++)
        snprintf(to + 2 * i, 3, "%02x", from[i]);
}

static int digit(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static bool take_hex(unsigned char *to, const char *from, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        int high = digit(from[2 * i]), low = high < 0 ? -1 : digit(from[2 * i + 1]);

        if (low < 0)
            return false;
        to[i] = (unsigned char)(high << 4 | low);
    }
    return true;
}

/* Key, value and hash in hexadecimal, and the line's end. */
static size_t line_bytes(const struct pl_tuned *t)
{
    return 2 * (t->key_bytes + t->value_bytes + sizeof(uint64_t)) + 1;
}

/* of: key and value. */
static void make_line(const struct pl_tuned *t, const unsigned char *of, char *ret)
{
    size_t n = t->key_bytes + t->value_bytes;
    uint64_t hash = pl_plan_hash(of, n);

    put_hex(ret, of, n);
    snprintf(ret + 2 * n, 18, "%016llx", (unsigned long long)hash);
    ret[line_bytes(t) - 1] = '\n';
}

static bool read_line(const struct pl_tuned *t, const char *line, unsigned char *ret)
{
    size_t n = t->key_bytes + t->value_bytes;
    char hash[17];

    if (!take_hex(ret, line, n))
        return false;
    snprintf(hash, sizeof(hash), "%016llx", (unsigned long long)pl_plan_hash(ret, n));
    return memcmp(hash, line + 2 * n, 16) == 0;
}

/* ---- memory ---- */

/* The file's valid lines, the oldest first. */
struct lines {
    char *text;
    size_t len;
};

/* A known value, and after it whether this process has asked for it. */
static unsigned char *known_value(struct pl_tuned *t, const unsigned char *key)
{
    return pl_plan_cache_find(&t->known, key);
}

/* Takes a choice; it replaces what is known for its key. */
static int learn(struct pl_tuned *t, const unsigned char *of)
{
    unsigned char *value = known_value(t, of);

    if (!value)
        value = pl_plan_cache_add(&t->known, of);
    if (!value)
        return -ENOMEM;
    memcpy(value, of + t->key_bytes, t->value_bytes);
    return 0;
}

/* Takes the choices of the file. With ret they are also moved together there; the caller frees its
 * text. */
static int read_file(struct pl_tuned *t, int folder, struct lines *ret, struct pl_error *err)
{
    _cleanup_free_ char *text = NULL;
    _cleanup_free_ unsigned char *of = malloc(t->key_bytes + t->value_bytes);
    size_t len = 0, head = strlen(t->what), bytes = line_bytes(t), bad = 0, good = 0;
    int r =
        of ? pl_own_file_read(folder, t->name, FILE_MAX, &text, &len, err) : pl_error_nomem(err);

    if (r == -ENOENT)
        return 0;
    if (r < 0)
        return r;
    if (len < head || memcmp(text, t->what, head) != 0)
        return pl_error_set(err, -EINVAL, "'%s/%s' is damaged", t->folder, t->name);
    for (size_t at = head; at < len; at += bytes)
        if (len - at < bytes || text[at + bytes - 1] != '\n' || !read_line(t, text + at, of)) {
            bad++;
        } else {
            if (learn(t, of) < 0)
                break;
            memmove(text + good, text + at, bytes);
            good += bytes;
        }
    if (ret)
        *ret = (struct lines){PL_TAKE(text), good};
    return bad ? pl_error_set(err, -EINVAL, "'%s/%s' is damaged: %zu lines are left out", t->folder,
                              t->name, bad)
               : 0;
}

static void read_or_tell(struct pl_tuned *t)
{
    _cleanup_close_ int folder = -EBADF;
    struct pl_error err = {0};
    int r = open_folder(t, false, &folder, &err);

    if (r == 0)
        r = read_file(t, folder, NULL, &err);
    if (r < 0 && r != -ENOENT)
        pl_log_warn("cuda", "choices of %s are timed again: %s", t->kind, pl_error_text(&err));
}

/* For one writer at a time, where the file system has locks. One that takes longer may have been
 * stopped, and is not waited for. */
static void lock(int folder)
{
    for (int i = 0; i < LOCK_TRIES && flock(folder, LOCK_EX | LOCK_NB) < 0 && errno == EWOULDBLOCK;
         i++)
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
}

/* Drops the oldest lines that this process has not asked for, until a quarter of the room is free;
 * and of others as many as have none. */
static int drop_oldest(struct pl_tuned *t, struct lines *lines, size_t room, struct pl_error *err)
{
    size_t bytes = line_bytes(t), kept = 0, most = room - room / 4;
    size_t surplus = lines->len > most ? (lines->len - most + bytes - 1) / bytes : 0;
    _cleanup_free_ unsigned char *of = malloc(t->key_bytes + t->value_bytes);

    if (!of)
        return pl_error_nomem(err);
    for (size_t at = 0; at < lines->len; at += bytes) {
        const unsigned char *value = read_line(t, lines->text + at, of) ? known_value(t, of) : NULL;

        if (surplus && !(value && value[t->value_bytes])) {
            surplus--;
            continue;
        }
        memmove(lines->text + kept, lines->text + at, bytes);
        kept += bytes;
    }
    surplus = kept > room ? (kept - room + bytes - 1) / bytes * bytes : 0;
    memmove(lines->text, lines->text + surplus, kept - surplus);
    lines->len = kept - surplus;
    return 0;
}

/* Puts a choice after all others, instead of the line that its key has. */
static int
append(struct pl_tuned *t, struct lines *lines, const unsigned char *of, struct pl_error *err)
{
    size_t bytes = line_bytes(t), key = 2 * t->key_bytes, kept = 0;
    size_t room = FILE_MAX - strlen(t->what) - bytes;
    char *text = realloc(lines->text, lines->len + bytes);

    if (!text)
        return pl_error_nomem(err);
    lines->text = text;
    make_line(t, of, text + lines->len);
    for (size_t at = 0; at < lines->len; at += bytes)
        if (memcmp(text + at, text + lines->len, key) != 0) {
            memmove(text + kept, text + at, bytes);
            kept += bytes;
        }
    lines->len = kept;
    if (lines->len > room && drop_oldest(t, lines, room, err) < 0)
        return err->code;
    make_line(t, of, text + lines->len);
    lines->len += bytes;
    return 0;
}

static int
write_file(const struct pl_tuned *t, int folder, const struct lines *lines, struct pl_error *err)
{
    size_t head = strlen(t->what);
    _cleanup_free_ char *whole = malloc(head + lines->len + 1);

    if (!whole)
        return pl_error_nomem(err);
    memcpy(whole, t->what, head);
    memcpy(whole + head, lines->text, lines->len);
    return pl_file_write_at(folder, t->name, whole, head + lines->len, 0600, false, err);
}

/* ---- */

int pl_tuned_open(const char *kind,
                  const char *what,
                  size_t key_bytes,
                  size_t value_bytes,
                  struct pl_tuned **ret,
                  struct pl_error *err)
{
    struct pl_tuned *t = calloc(1, sizeof(*t));

    if (!t)
        return pl_error_nomem(err);
    t->key_bytes = key_bytes;
    t->value_bytes = value_bytes;
    t->kind = kind;
    snprintf(t->folder, sizeof(t->folder), "gpu-%s", kind);
    snprintf(t->what, sizeof(t->what), "%s %d\n%.980s\n", kind, FORMAT, what);
    snprintf(t->name, sizeof(t->name), "%016llx",
             (unsigned long long)pl_plan_hash(t->what, strlen(t->what)));
    pl_plan_cache_init(&t->known, key_bytes, value_bytes + 1);
    read_or_tell(t);
    *ret = t;
    return 0;
}

void pl_tuned_close(struct pl_tuned *tuned)
{
    if (!tuned)
        return;
    pl_plan_cache_finish(&tuned->known, NULL);
    free(tuned);
}

const void *pl_tuned_find(struct pl_tuned *tuned, const void *key)
{
    unsigned char *value = known_value(tuned, key);

    if (value)
        value[tuned->value_bytes] = true;
    return value;
}

/* True if another process has made the choice. */
static bool is_chosen(struct pl_tuned *tuned, const void *key, const void *instead)
{
    const unsigned char *value = known_value(tuned, key);

    return value && !(instead && memcmp(value, instead, tuned->value_bytes) == 0);
}

void pl_tuned_add(struct pl_tuned *tuned, const void *key, const void *value, const void *instead)
{
    _cleanup_free_ unsigned char *of = malloc(tuned->key_bytes + 2 * tuned->value_bytes);
    unsigned char *before = of ? of + tuned->key_bytes + tuned->value_bytes : NULL;
    _cleanup_close_ int folder = -EBADF;
    struct pl_error err = {0}, ignored = {0};
    struct lines lines = {NULL, 0};
    int r = open_folder(tuned, true, &folder, &err);

    if (!of)
        return;
    memcpy(of, key, tuned->key_bytes);
    memcpy(of + tuned->key_bytes, value, tuned->value_bytes);
    if (instead) /* which may be what is known, and be replaced by what is read */
        memcpy(before, instead, tuned->value_bytes);
    if (r == 0) {
        lock(folder);
        read_file(tuned, folder, &lines, &ignored); /* what is damaged is replaced */
    }
    if (!is_chosen(tuned, key, instead ? before : NULL)) {
        if (learn(tuned, of) == 0 && r == 0)
            r = append(tuned, &lines, of, &err);
        if (r == 0)
            r = write_file(tuned, folder, &lines, &err);
    }
    free(lines.text);
    if (r == 0 || tuned->told)
        return;
    tuned->told = true;
    pl_log_warn("cuda", "cannot keep the choice of the fastest algorithms of %s: %s", tuned->kind,
                pl_error_text(&err));
}
