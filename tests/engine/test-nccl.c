/* SPDX-License-Identifier: MIT */
/* NCCL in the engine between real processes, over a fake NCCL (fake_nccl.h): its sums, and that
 * each failure ends the run in bounded time and names the right rank. */
#include "common/base/fs.h"
#include "runtime/engine/comm/comm_nccl.h"
#include "tests/engine/ranks.h"
#include "tests/fakes/fake_nccl.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#define LIMIT_MS 20000
#define SHORT_MS 300
#define REMOTE 6 /* ncclRemoteError */
#define CUDA 1   /* ncclUnhandledCudaError */

extern const struct pl_nccl_table pl_nccl_table;

static char wrong[512];

static const char *PL_PRINTF(1, 2) say(const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(wrong, sizeof(wrong), fmt, ap);
    va_end(ap);
    return wrong;
}

#define TRY(call)                                                                                  \
    do {                                                                                           \
        if ((call) < 0)                                                                            \
            return say("%s", pl_error_text(&err));                                                 \
    } while (0)

/* The call must fail with this text. */
static const char *fails(int r, int want, const struct pl_error *err, const char *text)
{
    if (r != want)
        return say("returned %d, not %d: %s", r, want, pl_error_text(err));
    return strstr(err->text, text) ? NULL : say("'%s' has no '%s'", err->text, text);
}

/* Returns when all ranks have one, so that none fails while another is being created. */
static int make(struct pl_comm *host, struct pl_comm **ret, struct pl_error *err)
{
    int r = pl_comm_nccl_create(host, &pl_nccl_table, NULL, LIMIT_MS, ret, err);

    return r < 0 ? r : pl_comm_barrier(host, err);
}

/* ---- sums ---- */

static const char *collectives(struct pl_comm *host, void *shared)
{
    _cleanup_(pl_comm_destroyp) struct pl_comm *comm = NULL;
    struct pl_error err = {0};
    size_t offset[RANKS_MAX + 1] = {0};
    unsigned n = host->size, rank = host->rank;
    float sum = (float)(n * (n + 1) / 2), *f;
    uint16_t half[2];
    double d[3];
    char bytes[64];

    TRY(make(host, &comm, &err));
    if (strcmp(comm->ops->name, "nccl") != 0 || comm->size != n || comm->rank != rank ||
        comm->world_ranks[rank] != host->world_ranks[rank])
        return "not the members of the host's communicator";
    TRY(pl_comm_alloc(comm, 4000, (void **)&f, &err));
    for (size_t i = 0; i < 1000; i++)
        if (f[i] != 0)
            return "memory is not zeroed";
    for (size_t i = 0; i < 1000; i++)
        f[i] = (float)((rank + 1) * (i + 1));
    TRY(pl_comm_allreduce(comm, f, 1000, PL_REAL_F32, 0.5, &err));
    TRY(pl_comm_nccl_wait(comm, &err));
    for (size_t i = 0; i < 1000; i++)
        if (f[i] != 0.5f * sum * (float)(i + 1))
            return say("f32 [%zu] is %g", i, f[i]);
    for (size_t i = 0; i < 3; i++)
        d[i] = rank == i ? 1e-300 : 0;
    TRY(pl_comm_allreduce(comm, d, 3, PL_REAL_F64, 1, &err));
    half[0] = half[1] = 0x4000; /* 2 as bf16 */
    TRY(pl_comm_nccl_start(comm, half, 2, PL_NCCL_BF16, 0.25, &err));
    TRY(pl_comm_nccl_join(comm, &err));
    TRY(pl_comm_nccl_wait(comm, &err));
    for (size_t i = 0; i < PL_MIN(n, 3u); i++)
        if (d[i] != 1e-300)
            return say("f64 [%zu] is %g", i, d[i]);
    if ((float)n / 2 != (union {
                            uint32_t u;
                            float f;
                        }){(uint32_t)half[1] << 16}
                            .f)
        return say("bf16 is %x", half[1]);
    memset(bytes, rank == 0 ? 'x' : '-', sizeof(bytes));
    TRY(pl_comm_broadcast(comm, bytes, sizeof(bytes), &err));
    TRY(pl_comm_nccl_wait(comm, &err));
    if (bytes[0] != 'x' || bytes[63] != 'x')
        return "rank 0's bytes did not come";
    for (unsigned i = 0; i < n; i++) /* uneven, and one of them empty */
        offset[i + 1] = offset[i] + (i == 1 ? 0 : i + 1);
    memset(bytes, '-', sizeof(bytes));
    memset(bytes + offset[rank], 'a' + (int)rank, offset[rank + 1] - offset[rank]);
    TRY(pl_comm_allgather(comm, bytes, offset, &err));
    TRY(pl_comm_barrier(comm, &err));
    for (unsigned i = 0; i < n; i++)
        for (size_t k = offset[i]; k < offset[i + 1]; k++)
            if (bytes[k] != 'a' + (int)i)
                return say("byte %zu is %c", k, bytes[k]);
    for (unsigned i = 0; i < n; i++)
        offset[i + 1] = offset[i] + (i == 0 ? 0 : 100 * i);
    for (size_t i = 0; i < 1000; i++)
        f[i] = (float)((rank + 1) * (i + 1));
    TRY(pl_comm_reduce_scatter(comm, f, offset, PL_REAL_F32, 0.5, &err));
    TRY(pl_comm_nccl_wait(comm, &err));
    for (size_t i = offset[rank]; i < offset[rank + 1]; i++)
        if (f[i] != 0.5f * sum * (float)(i + 1))
            return say("scattered [%zu] is %g", i, f[i]);
    pl_comm_destroy(PL_TAKE(comm));
    if (fake_nccl.destroyed != 1 || fake_nccl.aborted || fake_nccl.registered ||
        fake_nccl.freed != 2)
        return "something was left";
    return NULL;
}

static void test_collectives_layouts(void **state)
{
    static const unsigned layouts[][2] = {{2, 0}, {3, 0}, {2, 1}, {4, 2}};

    for (size_t i = 0; i < PL_COUNT(layouts); i++) {
        fake_nccl_share();
        ranks_run(layouts[i][0], layouts[i][1], collectives, NULL, 0);
    }
}

static const char *split(struct pl_comm *host, void *shared)
{
    _cleanup_(pl_comm_destroyp) struct pl_comm *comm = NULL, *part = NULL, *host_part = NULL;
    int color = host->rank == 3 ? -1 : (int)(host->rank % 2), key = -(int)host->rank;
    struct pl_error err = {0};
    const char *why = NULL;
    float f = 1.0f + (float)host->rank;

    TRY(make(host, &comm, &err));
    TRY(pl_comm_split(host, color, key, &host_part, &err));
    TRY(pl_comm_nccl_split(comm, host_part, color, key, &part, &err));
    if (!part != (color < 0))
        return "who gave no color has a part, or the others have none";
    if (part) { /* ranks 4, 2, 0 and rank 1 */
        TRY(pl_comm_allreduce(part, &f, 1, PL_REAL_F32, 1, &err));
        TRY(pl_comm_nccl_wait(part, &err));
        if (f != (color ? 2.0f : 9.0f))
            why = say("the sum of color %d is %g", color, f);
        if (part->rank != host_part->rank || part->world_ranks[part->rank] != host->rank)
            why = "the order is not that of the keys";
    }
    pl_comm_destroy(PL_TAKE(part));
    TRY(pl_comm_barrier(comm, &err));
    return why;
}

static void test_split_colors(void **state)
{
    fake_nccl_share();
    ranks_run(5, 0, split, NULL, 0);
}

/* ---- failures ---- */

static const char *old_library(struct pl_comm *host, void *shared)
{
    struct pl_comm *comm = NULL;
    struct pl_error err = {0};

    if (host->rank == 1)
        fake_nccl.library_version = 21805;
    return fails(make(host, &comm, &err), -ENOTSUP, &err,
                 "NCCL of rank 1: libnccl is 2.18.5, but plume-cuda.so was built for 2.");
}

/* Releases that differ in the last number only have the same functions. */
static const char *older_patch(struct pl_comm *host, void *shared)
{
    _cleanup_(pl_comm_destroyp) struct pl_comm *comm = NULL;
    struct pl_error err = {0};
    char why[PL_NCCL_TEXT];
    int header = 0, library = 0;

    TRY(pl_nccl_table.versions(&header, &library, why));
    fake_nccl.library_version = header / 100 * 100;
    TRY(make(host, &comm, &err));
    return NULL;
}

static const char *other_library(struct pl_comm *host, void *shared)
{
    struct pl_comm *comm = NULL;
    struct pl_error err = {0};

    if (host->rank == 2)
        fake_nccl.library_version = 29900;
    return fails(make(host, &comm, &err), -ENOTSUP, &err,
                 "and rank 2 has 2.99.0: all need the same");
}

static const char *init_fails(struct pl_comm *host, void *shared)
{
    struct pl_comm *comm = NULL;
    struct pl_error err = {0};

    if (host->rank == 1)
        fake_nccl.init_error = "no";
    return fails(make(host, &comm, &err), -ECONNRESET, &err,
                 "rank 1: ncclCommInitRankConfig: unhandled cuda error");
}

/* Rank 0 gives up; the others get its reason and do not wait for their own limit. */
static const char *init_hangs(struct pl_comm *host, void *shared)
{
    struct pl_comm *comm = NULL;
    struct pl_error err = {0};
    const char *why;
    int r;

    fake_nccl.hang_init = 1;
    r = pl_comm_nccl_create(host, &pl_nccl_table, NULL, host->rank == 0 ? SHORT_MS : LIMIT_MS,
                            &comm, &err);
    why = fails(r, host->rank == 0 ? -ETIMEDOUT : -ECONNRESET, &err,
                "rank 0: NCCL did not connect all ranks within 0.3 s");
    return why ? why : fake_nccl.aborted == 1 ? NULL : "NCCL was not aborted";
}

static void test_create_errors(void **state)
{
    const char *(*const cases[])(struct pl_comm *, void *) = {
        old_library, older_patch, other_library, init_fails, init_hangs};

    for (size_t i = 0; i < PL_COUNT(cases); i++) {
        fake_nccl_share();
        ranks_run(3, 0, cases[i], NULL, 0);
    }
}

/* In an allreduce that rank 1 never joins. */
static const char *killed(struct pl_comm *host, void *shared)
{
    _cleanup_(pl_comm_destroyp) struct pl_comm *comm = NULL;
    struct pl_error err = {0};
    const char *why;
    float f = 1;
    int r;

    TRY(make(host, &comm, &err));
    if (host->rank == 1)
        raise(SIGKILL);
    r = pl_comm_allreduce(comm, &f, 1, PL_REAL_F32, 1, &err);
    if (r == 0)
        r = pl_comm_nccl_wait(comm, &err);
    why = fails(r, -ECONNRESET, &err, "rank 1");
    if (!why)
        why = fails(pl_comm_allreduce(comm, &f, 1, PL_REAL_F32, 1, &err), -ECONNRESET, &err,
                    "rank 1");
    return why ? why : fake_nccl.aborted == 1 ? NULL : "NCCL was not aborted once";
}

/* A rank's own device fails: the others get the error from that rank. */
static const char *device_breaks(struct pl_comm *host, void *shared)
{
    _cleanup_(pl_comm_destroyp) struct pl_comm *comm = NULL;
    struct pl_error err = {0};
    float f = 1;
    int r = 0;

    TRY(make(host, &comm, &err));
    if (host->rank == 2)
        fake_nccl.async_error = CUDA;
    else /* these may know already */
        r = pl_comm_allreduce(comm, &f, 1, PL_REAL_F32, 1, &err);
    if (r == 0)
        r = pl_comm_nccl_wait(comm, &err);
    return fails(r, -ECONNRESET, &err, "rank 2: NCCL: unhandled cuda error");
}

/* NCCL sees the loss first and cannot name the rank; the connection can. */
static const char *remote_error(struct pl_comm *host, void *shared)
{
    _cleanup_(pl_comm_destroyp) struct pl_comm *comm = NULL;
    struct pl_error err = {0};

    TRY(make(host, &comm, &err));
    if (host->rank != 1)
        fake_nccl.async_error = REMOTE;
    TRY(pl_comm_barrier(host, &err));
    if (host->rank == 1)
        raise(SIGKILL);
    return fails(pl_comm_nccl_wait(comm, &err), -ECONNRESET, &err, "rank 1");
}

static const char *gives_up(struct pl_comm *host, void *shared)
{
    _cleanup_(pl_comm_destroyp) struct pl_comm *comm = NULL;
    struct pl_error err = {0};
    float f = 1;

    TRY(make(host, &comm, &err));
    if (host->rank == 1)
        pl_comm_abort(comm, "no more data");
    else
        pl_comm_allreduce(comm, &f, 1, PL_REAL_F32, 1, &err);
    return fails(pl_comm_nccl_wait(comm, &err), -ECONNRESET, &err, "rank 1 gave up: no more data");
}

static const char *start_hangs(struct pl_comm *host, void *shared)
{
    _cleanup_(pl_comm_destroyp) struct pl_comm *comm = NULL;
    struct pl_error err = {0};
    float f = 1;
    int r;

    fake_nccl.hang_start = host->rank == 0;
    r = pl_comm_nccl_create(host, &pl_nccl_table, NULL, host->rank == 0 ? SHORT_MS : LIMIT_MS,
                            &comm, &err);
    if (r == 0)
        r = pl_comm_allreduce(comm, &f, 1, PL_REAL_F32, 1, &err);
    if (r == 0)
        r = pl_comm_nccl_wait(comm, &err);
    return fails(r, host->rank == 0 ? -ETIMEDOUT : -ECONNRESET, &err,
                 "rank 0: NCCL did not start a collective within 4.5 s");
}

static void test_failures_named(void **state)
{
    static const struct {
        const char *(*f)(struct pl_comm *, void *);
        uint64_t victims;
    } cases[] = {{killed, 2}, {device_breaks, 0}, {remote_error, 2}, {gives_up, 0}};

    for (size_t i = 0; i < PL_COUNT(cases); i++) {
        fake_nccl_share();
        assert_true(ranks_run(3, i % 2, cases[i].f, NULL, cases[i].victims) < LIMIT_MS / 1000.0);
    }
    fake_nccl_share();
    ranks_run(2, 0, start_hangs, NULL, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_collectives_layouts),
        cmocka_unit_test(test_split_colors),
        cmocka_unit_test(test_create_errors),
        cmocka_unit_test(test_failures_named),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
