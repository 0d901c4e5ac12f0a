/* SPDX-License-Identifier: MIT */
/* Values that ranks on several nodes give each other by key. */
#include "runtime/engine/comm/kv_store.h"
#include "tests/engine/ranks.h"

#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#define WAIT_MS 20000
#define LARGE 300000

static const char *name_of(const char *what, unsigned i, char buf[32])
{
    snprintf(buf, 32, "%s/%u", what, i);
    return buf;
}

static int
put(struct pl_kv_store *store, const char *key, const char *value, size_t len, struct pl_error *err)
{
    return pl_kv_store_put(store, key, strlen(key), value, len, err);
}

/* True if the key has the value. */
static bool has(struct pl_kv_store *store, const char *key, const char *value, size_t len)
{
    char *got = NULL;
    size_t n = 0;
    int r = pl_kv_store_get(store, key, strlen(key), WAIT_MS, &got, &n, NULL);
    bool same = r == 0 && n == len && memcmp(got, value, n) == 0 && got[n] == '\0';

    free(got);
    return same;
}

static int early(struct pl_kv_store *store, const char *key, unsigned ms)
{
    char *got = NULL;
    size_t n = 0;
    int r = pl_kv_store_get(store, key, strlen(key), ms, &got, &n, NULL);

    free(got);
    return r;
}

/* ---- what ranks do; each returns a text if it fails ---- */

static const char *exchange(struct pl_comm *comm, void *shared)
{
    struct pl_kv_store *store;
    struct pl_error err = {0};
    char key[32], *large = malloc(LARGE);
    bool good = large && pl_kv_store_open(comm, &store, &err) == 0;

    if (!good)
        return "cannot open";
    memset(large, 'a' + (int)comm->rank, LARGE);
    large[7] = '\0';
    good = early(store, name_of("nobody", comm->rank, key), 0) == -ENOENT &&
           early(store, key, 30) == -ETIMEDOUT;
    good = good && put(store, name_of("large", comm->rank, key), large, LARGE, &err) == 0 &&
           put(store, key, "x", 1, &err) == -EEXIST &&
           put(store, name_of("empty", comm->rank, key), "", 0, &err) == 0;
    for (unsigned i = 0; i < comm->size && good; i++) {
        memset(large, 'a' + (int)i, LARGE);
        large[7] = '\0';
        good = has(store, name_of("large", i, key), large, LARGE) &&
               has(store, name_of("empty", i, key), "", 0);
    }
    /* A chain: each waits for the next one, in the order that makes all wait at first. */
    if (good && comm->rank + 1 < comm->size)
        good = has(store, name_of("chain", comm->rank + 1, key), "go", 2);
    good = good && put(store, name_of("chain", comm->rank, key), "go", 2, &err) == 0 &&
           pl_kv_store_put(store, key, PL_KV_KEY_MAX + 1, "", 0, NULL) == -EMSGSIZE;
    if (pl_comm_barrier(comm, &err) < 0) /* rank 0 serves until all are done */
        good = false;
    pl_kv_store_close(store);
    free(large);
    return good ? NULL : "a value is not what was put";
}

/* While one thread waits, another one puts what it waits for. */
static void *wait_for_it(void *arg)
{
    return has(arg, "from the other thread", "here", 4) ? arg : NULL;
}

static const char *threads(struct pl_comm *comm, void *shared)
{
    struct pl_kv_store *store;
    pthread_t thread;
    void *good = NULL;

    if (pl_kv_store_open(comm, &store, NULL) < 0)
        return "cannot open";
    if (pthread_create(&thread, NULL, wait_for_it, store) != 0)
        return "no thread";
    if (comm->rank == 0)
        (void)put(store, "from the other thread", "here", 4, NULL);
    pthread_join(thread, &good);
    (void)pl_comm_barrier(comm, NULL);
    pl_kv_store_close(store);
    return good ? NULL : "the thread did not get it";
}

/* 49 days and a little, which are a moment in an int of milliseconds with the time for the talk. */
static void *wait_for_weeks(void *arg)
{
    return early(arg, "weeks", UINT32_MAX - 9950) == 0 ? arg : NULL;
}

static const char *waits_for_weeks(struct pl_comm *comm, void *shared)
{
    struct pl_kv_store *store;
    pthread_t thread;
    void *good = NULL;

    if (pl_kv_store_open(comm, &store, NULL) < 0)
        return "cannot open";
    if (pthread_create(&thread, NULL, wait_for_weeks, store) != 0)
        return "no thread";
    (void)early(store, "nobody", 300); /* for longer than that moment */
    if (comm->rank == 0)
        (void)put(store, "weeks", "over", 4, NULL);
    pthread_join(thread, &good);
    (void)pl_comm_barrier(comm, NULL);
    pl_kv_store_close(store);
    return good ? NULL : "it did not wait";
}

static const char *one_gives_up(struct pl_comm *comm, void *shared)
{
    struct pl_kv_store *store;
    struct pl_error err = {0};
    char *got = NULL;
    size_t n;
    int r = -ECANCELED;

    if (pl_kv_store_open(comm, &store, &err) < 0)
        return "cannot open";
    if (comm->rank == 2)
        pl_kv_store_fail(store, "rank 2 has no device");
    else
        r = pl_kv_store_get(store, "topology", 8, WAIT_MS, &got, &n, &err);
    (void)pl_comm_barrier(comm, NULL);
    pl_kv_store_close(store);
    free(got);
    return r == -ECANCELED && (comm->rank == 2 || strcmp(err.text, "rank 2 has no device") == 0)
               ? NULL
               : "it was not told";
}

static const char *first_is_gone(struct pl_comm *comm, void *shared)
{
    struct pl_kv_store *store;
    struct pl_error err = {0};
    int r = -ECONNRESET;

    if (pl_kv_store_open(comm, &store, &err) < 0)
        return "cannot open";
    if (comm->rank) {
        (void)pl_comm_barrier(comm, NULL);
        r = put(store, "late", "", 0, &err);
    }
    pl_kv_store_close(store);
    if (comm->rank == 0)
        (void)pl_comm_barrier(comm, NULL);
    return r < 0 && (comm->rank == 0 || strstr(err.text, "rank 0 does not answer")) ? NULL
                                                                                    : "it answers";
}

static void test_ranks_exchange_values(void **state)
{
    ranks_run(1, 0, exchange, NULL, 0);
    ranks_run(4, 2, exchange, NULL, 0);
}

static void test_a_get_waits_beside_a_put(void **state)
{
    ranks_run(2, 1, threads, NULL, 0);
    ranks_run(1, 1, waits_for_weeks, NULL, 0);
}

static void test_a_rank_that_gives_up_is_told(void **state)
{
    assert_true(ranks_run(3, 1, one_gives_up, NULL, 0) < WAIT_MS / 1000.0);
}

static void test_a_store_that_is_gone_is_told(void **state)
{
    ranks_run(2, 1, first_is_gone, NULL, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ranks_exchange_values),
        cmocka_unit_test(test_a_get_waits_beside_a_put),
        cmocka_unit_test(test_a_rank_that_gives_up_is_told),
        cmocka_unit_test(test_a_store_that_is_gone_is_told),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
