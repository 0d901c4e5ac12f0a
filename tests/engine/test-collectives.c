/* SPDX-License-Identifier: MIT */
/* Collectives between real processes: over shared memory, TCP and both. */
#include "common/base/fs.h"
#include "common/proto/rank/place.h"
#include "runtime/engine/comm/comm_mpi.h"
#include "tests/engine/ranks.h"
#include "tests/engine/say.h"
#include "tests/lib/today.h"

#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

/* {ranks, ranks a node}: shm, tcp (powers of two and not), and both, with uneven nodes. */
static const unsigned layouts[][2] = {
    {1, 0}, {2, 0}, {3, 0},  {12, 0}, {2, 1}, {3, 1},  {5, 1},
    {7, 1}, {8, 1}, {12, 1}, {4, 2},  {7, 3}, {12, 5}, {5, 4},
};

/* A thread sanitizer, which makes all ten times slower, sees the threads of one process: one layout
 * in five, without the largest. */
#ifdef __SANITIZE_THREAD__
#define LAYOUT_STEP 5
#else
#define LAYOUT_STEP 1
#endif

/* Whole numbers: sums are exact in any order. */
static const char *check_exact(struct pl_comm *comm, float *buf, size_t n)
{
    struct pl_error err = {0};
    double want = comm->size * (comm->size + 1) / 2.0;

    for (size_t i = 0; i < n; i++)
        buf[i] = (float)(comm->rank + 1 + i % 1000 * comm->size);
    TRY(pl_comm_allreduce(comm, buf, n, PL_REAL_F32, 0.5, &err));
    for (size_t i = 0; i < n; i++) {
        double expected = 0.5 * (want + (double)(i % 1000) * comm->size * comm->size);

        if (buf[i] != (float)expected)
            return say("%zu elements: [%zu] is %g, not %g", n, i, buf[i], expected);
    }
    return NULL;
}

/* Random numbers: near the true sum, and the same bits on all ranks. */
static const char *check_equal(struct pl_comm *comm, float *buf, float *other, size_t n)
{
    struct pl_error err = {0};

    for (size_t i = 0; i < n; i++) {
        double sum = 0;

        for (unsigned rank = 0; rank < comm->size; rank++) {
            double x = (double)(((uint32_t)i * 2654435761u + rank * 40503u) >> 8) * 0x1p-24;

            sum += x;
            if (rank == comm->rank)
                buf[i] = (float)x;
        }
        other[i] = (float)sum;
    }
    TRY(pl_comm_allreduce(comm, buf, n, PL_REAL_F32, 1, &err));
    for (size_t i = 0; i < n; i++)
        if (fabsf(buf[i] - other[i]) > 1e-5f) /* 16 numbers up to 1: 16 * 16 * 6e-8 */
            return say("%zu elements: sum [%zu] is %g, not %g", n, i, buf[i], other[i]);
    memcpy(other, buf, n * sizeof(*buf));
    TRY(pl_comm_broadcast(comm, other, n * sizeof(*buf), &err));
    if (memcmp(buf, other, n * sizeof(*buf)) != 0)
        return say("%zu elements: rank %u has other bits than rank 0", n, comm->rank);
    return NULL;
}

static const char *all_sizes(struct pl_comm *comm, void *shared)
{
    static const size_t sizes[] = {1, 2, 17, 1000, 5003, 32769, 70001};
    const size_t most = 70001;
    _cleanup_free_ float *own = malloc(most * sizeof(*own)), *other = malloc(most * sizeof(*own));
    struct pl_error err = {0};
    double numbers[5] = {1, 2, 3, 4, comm->rank};
    const char *text;
    void *slab;

    TRY(pl_comm_alloc(comm, most * sizeof(float), &slab, &err));
    if ((uintptr_t)slab % 64 || ((char *)slab)[most] != 0)
        return "memory is not aligned, or not zero";
    TRY(pl_comm_barrier(comm, &err));
    for (size_t i = 0; i < PL_COUNT(sizes); i++) {
        /* In the communicator's memory and outside. */
        if ((text = check_exact(comm, (float *)slab + most - sizes[i], sizes[i])) ||
            (text = check_exact(comm, own, sizes[i])) ||
            (text = check_equal(comm, slab, other, sizes[i])))
            return text;
    }
    for (int i = 0; i < 100; i++)
        if ((text = check_exact(comm, i % 2 ? own : slab, 100)))
            return text;
    TRY(pl_comm_allreduce(comm, numbers, 5, PL_REAL_F64, 1, &err));
    if (numbers[3] != 4.0 * comm->size || numbers[4] != comm->size * (comm->size - 1) / 2)
        return "sums in f64 are wrong";
    TRY(pl_comm_allreduce(comm, own, 0, PL_REAL_F32, 1, &err));
    return NULL;
}

/* Parts of different lengths, none of them too; short of and beyond the staging memory. */
static const char *check_gather(struct pl_comm *comm, size_t unit)
{
    size_t offset[RANKS_MAX + 1] = {0}, n = comm->size;
    _cleanup_free_ unsigned char *buf = NULL;
    struct pl_error err = {0};

    for (size_t i = 0; i < n; i++)
        offset[i + 1] = offset[i] + (i + 1) % 3 * unit;
    buf = calloc(1, offset[n] + 1);
    for (size_t i = offset[comm->rank]; i < offset[comm->rank + 1]; i++)
        buf[i] = (unsigned char)(i * 7 + comm->rank);
    TRY(pl_comm_allgather(comm, buf, offset, &err));
    for (size_t rank = 0; rank < n; rank++)
        for (size_t i = offset[rank]; i < offset[rank + 1]; i++)
            if (buf[i] != (unsigned char)(i * 7 + rank))
                return say("unit %zu: byte %zu of rank %zu is %u", unit, i, rank, buf[i]);
    return buf[offset[n]] ? "wrote past the end" : NULL;
}

/* Whole numbers, whose sums are exact in any order. Only the own part is defined afterwards. */
static const char *
check_scatter(struct pl_comm *comm, void *memory, const size_t *offset, enum pl_real real)
{
    struct pl_error err = {0};
    double want = comm->size * (comm->size + 1) / 2.0;
    float *f32 = memory;
    double *f64 = memory;

    for (size_t i = 0; i <= offset[comm->size]; i++) {
        double x = (double)(comm->rank + 1) * (double)(i % 1000);

        if (real == PL_REAL_F64)
            f64[i] = x;
        else
            f32[i] = (float)x;
    }
    TRY(pl_comm_reduce_scatter(comm, memory, offset, real, 0.5, &err));
    for (size_t i = offset[comm->rank]; i < offset[comm->rank + 1]; i++) {
        double is = real == PL_REAL_F64 ? f64[i] : (double)f32[i];

        if (is != 0.5 * want * (double)(i % 1000))
            return say("%zu elements, part %zu to %zu: [%zu] is %g", offset[comm->size],
                       offset[comm->rank], offset[comm->rank + 1], i, is);
    }
    return NULL;
}

/* Parts of different lengths, none of them too, and all elements in one part. */
static const char *scatter(struct pl_comm *comm, void *shared)
{
    static const size_t units[] = {0, 1, 7, 100, 3001, 20011};
    const size_t most = RANKS_MAX * 2 * 20011 + 1;
    _cleanup_free_ double *own = malloc(most * sizeof(*own));
    size_t offset[RANKS_MAX + 1] = {0}, n = comm->size;
    struct pl_error err = {0};
    const char *text = NULL;
    void *slab;

    TRY(pl_comm_alloc(comm, most * sizeof(double), &slab, &err));
    for (size_t k = 0; k < 3 * PL_COUNT(units) && !text; k++) {
        size_t unit = units[k / 3], lonely = k % n;

        for (size_t i = 0; i < n; i++)
            offset[i + 1] = offset[i] + (k % 3 == 2 ? (i == lonely) * unit : (i + k) % 3 * unit);
        text = check_scatter(comm, own, offset, k % 2 ? PL_REAL_F64 : PL_REAL_F32);
        /* The communicator's memory, also from its middle on. */
        if (!text)
            text = check_scatter(comm, (float *)slab + k, offset, PL_REAL_F32);
        if (!text)
            text = check_scatter(comm, slab, offset, PL_REAL_F64);
    }
    return text;
}

static void test_sums_are_scattered(void **state)
{
    for (size_t i = 0; i < PL_COUNT(layouts); i += LAYOUT_STEP)
        if (today(i, 2))
            ranks_run(layouts[i][0], layouts[i][1], scatter, NULL, 0);
}

/* Whole numbers that both 16-bit types have. */
static const char *check_halves(struct pl_comm *comm)
{
    const size_t n = 70001;
    _cleanup_free_ uint16_t *buf = malloc(n * sizeof(*buf));
    struct pl_error err = {0};

    for (int type = PL_HALF_BF16; type <= PL_HALF_F16; type++) {
        uint16_t one = type == PL_HALF_BF16 ? 0x3f80 : 0x3c00,
                 two = type == PL_HALF_BF16 ? 0x4000 : 0x4000;

        for (size_t i = 0; i < n; i++)
            buf[i] = one;
        TRY(pl_comm_allreduce_half(comm, buf, n, (enum pl_half)type, 2.0 / comm->size, &err));
        for (size_t i = 0; i < n; i++)
            if (buf[i] != two)
                return say("16-bit sum [%zu] of type %d is %04x", i, type, buf[i]);
    }
    return NULL;
}

static const char *gather(struct pl_comm *comm, void *shared)
{
    struct pl_error err = {0};
    const char *text = NULL;
    bool all;

    for (size_t unit = 1; unit < 400000 && !text; unit *= 27)
        text = check_gather(comm, unit);
    text = text ? text : check_halves(comm);
    if (text)
        return text;
    TRY(pl_comm_agree(comm, comm->rank != comm->size - 1, &all, &err));
    if (all)
        return "they agree, but one did not";
    TRY(pl_comm_agree(comm, true, &all, &err));
    return all ? NULL : "they do not agree, but all did";
}

/* The node daemon's view of this process. */
static int64_t collectives(void)
{
    struct pl_place place = {0};

    pl_place_open();
    return pl_place_read(getpid(), &place) == 0 ? place.collectives : -1;
}

/* Odd and even ranks in reverse order; the last rank is alone or in no group. */
static const char *split(struct pl_comm *comm, void *shared)
{
    unsigned last = comm->size - 1, want = 0;
    int color = comm->rank == last ? -1 : (int)comm->rank % 2;
    struct pl_comm *part;
    struct pl_error err = {0};
    float sum = (float)comm->rank;
    unsigned char names[RANKS_MAX] = {0};
    size_t offset[RANKS_MAX + 1] = {0};
    int64_t before, after;

    TRY(pl_comm_split(comm, color, -(int)comm->rank, &part, &err));
    if (color < 0)
        return part ? "a communicator for who wanted none" : gather(comm, NULL);
    for (unsigned i = comm->rank % 2; i < last; i += 2)
        want += i;
    before = collectives();
    TRY(pl_comm_allreduce(part, &sum, 1, PL_REAL_F32, 1, &err));
    after = collectives();
    if (before < 0 || after != before)
        return say("%lld collectives before one of a part, %lld after it", (long long)before,
                   (long long)after);
    if (sum != (float)want)
        return say("sum of rank %u's part is %g, not %u", comm->rank, sum, want);
    for (unsigned i = 0; i < part->size; i++)
        offset[i + 1] = i + 1;
    names[part->rank] = (unsigned char)comm->rank;
    TRY(pl_comm_allgather(part, names, offset, &err));
    for (unsigned i = 0; i < part->size; i++)
        if (names[i] != part->world_ranks[i] || (i && names[i] >= names[i - 1]))
            return say("member %u of rank %u's part is %u (%u)", i, comm->rank, names[i],
                       part->world_ranks[i]);
    pl_comm_destroy(part);
    return gather(comm, NULL); /* the whole communicator still works */
}

static const char *everything(struct pl_comm *comm, void *shared)
{
    const char *text = all_sizes(comm, shared);

    text = text ? text : gather(comm, shared);
    text = text ? text : scatter(comm, shared);
    return text ? text : split(comm, shared);
}

static void test_parts_are_gathered(void **state)
{
    for (size_t i = 0; i < PL_COUNT(layouts); i += LAYOUT_STEP)
        if (today(i, 2))
            ranks_run(layouts[i][0], layouts[i][1], gather, NULL, 0);
}

static void test_a_communicator_is_split(void **state)
{
    for (size_t i = 0; i < PL_COUNT(layouts); i += LAYOUT_STEP)
        if (today(i, 2))
            ranks_run(layouts[i][0], layouts[i][1], split, NULL, 0);
}

static void test_all_layouts_and_sizes(void **state)
{
    for (size_t i = 0; i < PL_COUNT(layouts); i += LAYOUT_STEP)
        if (today(i, 2))
            ranks_run(layouts[i][0], layouts[i][1], all_sizes, NULL, 0);
}

/* Memory of each rank's own is summed in pieces, in the order of ranks: less than a piece, whole
 * ones, and more. */
static const char *pieces(struct pl_comm *comm, void *shared)
{
    static const size_t sizes[] = {131071, 131072, 262144, 400003, 5};
    _cleanup_free_ float *buf = malloc(400003 * sizeof(*buf));
    struct pl_error err = {0};

    for (size_t k = 0; k < PL_COUNT(sizes); k++) {
        for (size_t i = 0; i < sizes[k]; i++)
            buf[i] = (float)((i + k + 1) * (comm->rank * comm->rank + 1) % 9973) / 7;
        TRY(pl_comm_allreduce(comm, buf, sizes[k], PL_REAL_F32, 1.0f / 3, &err));
        for (size_t i = 0; i < sizes[k]; i++) {
            float sum = (float)((i + k + 1) % 9973) / 7;

            for (unsigned rank = 1; rank < comm->size; rank++)
                sum += (float)((i + k + 1) * (rank * rank + 1) % 9973) / 7;
            if (buf[i] != sum * (1.0f / 3))
                return say("%zu elements: [%zu] is %.9g, not %.9g", sizes[k], i, buf[i],
                           sum * (1.0f / 3));
        }
    }
    return NULL;
}

static void test_sums_of_own_memory(void **state)
{
    ranks_run(2, 0, pieces, NULL, 0);
    ranks_run(3, 0, pieces, NULL, 0);
}

/* Numbers whose sum depends on the order, against the sum in the order of ranks; in two orders, to
 * show that it matters. */
static const char *ordered(struct pl_comm *comm, void *shared)
{
    const size_t n = 70001;
    _cleanup_free_ float *buf = malloc(n * sizeof(*buf)), *part = malloc(n * sizeof(*part));
    size_t offset[RANKS_MAX + 1];
    bool *differs = shared;
    struct pl_error err = {0};

    for (int on = 1; on >= 0; on--) {
        comm->ordered = on;
        for (size_t i = 0; i < n; i++)
            part[i] = buf[i] = (float)((i + 1) * (comm->rank * comm->rank + 1) % 9973) / 7;
        for (unsigned rank = 0; rank <= comm->size; rank++)
            offset[rank] = n * rank / comm->size;
        TRY(pl_comm_reduce_scatter(comm, part, offset, PL_REAL_F32, 1.0f / 3, &err));
        TRY(pl_comm_allreduce(comm, buf, n, PL_REAL_F32, 1.0f / 3, &err));
        for (size_t i = 0; i < n; i++) {
            float sum = (float)((i + 1) % 9973) / 7;

            for (unsigned rank = 1; rank < comm->size; rank++)
                sum += (float)((i + 1) * (rank * rank + 1) % 9973) / 7;
            sum *= 1.0f / 3;
            if (on && sum != buf[i])
                return say("[%zu] is %.9g, in the order of ranks %.9g", i, buf[i], sum);
            if (on && offset[comm->rank] <= i && i < offset[comm->rank + 1] && part[i] != sum)
                return say("scattered [%zu] is %.9g, in the order of ranks %.9g", i, part[i], sum);
            *differs |= sum != buf[i];
        }
    }
    return NULL;
}

static void test_sums_in_the_order_of_ranks(void **state)
{
    bool *differs = ranks_shared(sizeof(*differs));

    for (size_t i = 0; i < PL_COUNT(layouts); i += LAYOUT_STEP)
        if (today(i, 2))
            ranks_run(layouts[i][0], layouts[i][1], ordered, differs, 0);
    assert_true(*differs);
}

/* Sums that are started and joined later are those of an allreduce, bit by bit: of many pieces, so
 * that some have to be joined before the last is started, with collectives between them, and with
 * one piece in memory of the rank's own. A rank that is ahead changes other pieces meanwhile. */
static const char *later(struct pl_comm *comm, void *shared)
{
    const size_t n = 257, pieces = 150, all = n * pieces;
    _cleanup_free_ float *want = malloc(all * sizeof(*want)), *own = malloc(n * sizeof(*own));
    _cleanup_free_ float *mine = malloc(all * sizeof(*mine));
    struct pl_error err = {0};
    float one;
    void *slab;

    TRY(pl_comm_alloc(comm, all * sizeof(float), &slab, &err));
    TRY(pl_comm_join(comm, &err)); /* of nothing */
    for (int round = 0; round < 3; round++) {
        float *buf = slab;

        for (size_t i = 0; i < all; i++)
            want[i] = (float)((i + 1) * (comm->rank * comm->rank + 1) % 9973) / 7;
        memcpy(own, want, n * sizeof(*own));
        memcpy(mine, want, all * sizeof(*mine));
        for (size_t k = 0; k < pieces; k++)
            TRY(pl_comm_allreduce(comm, want + k * n, k % 9 ? n : n - k, PL_REAL_F32, 1.0f / 3,
                                  &err));
        for (size_t k = 0; k < pieces; k++) {
            memcpy(buf + k * n, mine + k * n, n * sizeof(*buf));
            TRY(pl_comm_allreduce_start(comm, k ? buf + k * n : own, k % 9 ? n : n - k, PL_REAL_F32,
                                        1.0f / 3, &err));
            one = (float)comm->rank;
            if (k % 50 == 20)
                TRY(pl_comm_broadcast(comm, &one, sizeof(one), &err));
            if (k % 50 == 20 && one != 0)
                return say("a broadcast between the starts gave %g", one);
        }
        TRY(pl_comm_join(comm, &err));
        memcpy(buf, own, n * sizeof(*buf));
        for (size_t i = 0; i < all; i++)
            if (buf[i] != want[i])
                return say("round %d: [%zu] is %.9g, an allreduce gives %.9g", round, i, buf[i],
                           want[i]);
    }
    return NULL;
}

static void test_sums_are_joined_later(void **state)
{
    ranks_run(1, 0, later, NULL, 0);
    ranks_run(2, 0, later, NULL, 0);
    ranks_run(5, 0, later, NULL, 0);
    ranks_run(2, 1, later, NULL, 0);
    ranks_run(3, 2, later, NULL, 0);
}

static const char *name_of(struct pl_comm *comm, void *shared)
{
    return strcmp(comm->ops->name, shared) == 0 ? NULL : comm->ops->name;
}

static void test_layout_decides_the_kind(void **state)
{
    ranks_run(3, 0, name_of, "shm", 0);
    ranks_run(3, 1, name_of, "tcp", 0);
    ranks_run(3, 2, name_of, "shm+tcp", 0);
}

/* The victim dies in the middle; all others must get an error that names it. */
struct death {
    unsigned victim;
    size_t count;
    uint64_t died_ns; /* by the shared monotonic clock */
};

static const char *one_dies(struct pl_comm *comm, void *shared)
{
    struct death *death = shared;
    struct pl_error err = {0};
    float *buf = calloc(death->count, sizeof(*buf));
    char word[32];
    int r = 0;

    for (int step = 0; step < 1000 && r == 0; step++) {
        if (step == 5 && comm->rank == death->victim) {
            death->died_ns = pl_now_ns();
            raise(SIGKILL);
        }
        r = pl_comm_allreduce(comm, buf, death->count, PL_REAL_F32, 1, &err);
    }
    free(buf);
    if (r != -ECONNRESET)
        return say("expected a lost rank, got %d", r);
    if (pl_now_ns() - death->died_ns > 5000000000ull)
        return say("noticed after %.1f s", (double)(pl_now_ns() - death->died_ns) * 1e-9);
    snprintf(word, sizeof(word), "lost rank %u:", death->victim);
    if (!strstr(err.text, word))
        return say("'%s' does not name rank %u", err.text, death->victim);
    r = pl_comm_barrier(comm, &err); /* the communicator stays broken */
    return r == -ECONNRESET ? NULL : "the communicator came back to life";
}

static void test_lost_rank_is_named(void **state)
{
    static const unsigned cases[][3] = {
        /* ranks, a node, victim */
        {2, 0, 1},  {5, 0, 0},  {12, 0, 7}, {2, 1, 0},  {5, 1, 4},   {12, 1, 0}, {12, 1, 3},
        {12, 1, 9}, {12, 5, 0}, {12, 5, 5}, {12, 5, 7}, {12, 5, 11}, {7, 3, 6},
    };
    struct death *death = ranks_shared(sizeof(*death));

    for (size_t i = 0; i < PL_COUNT(cases); i += LAYOUT_STEP) {
        for (size_t count = 100; count <= 40000; count *= 400) { /* doubling, ring */
            *death = (struct death){.victim = cases[i][2], .count = count};
            ranks_run(cases[i][0], cases[i][1], one_dies, death, 1u << cases[i][2]);
        }
    }
}

/* A rank that a launcher has started. Arguments: "mpi" or "auto", the kind that must result, and
 * the action: all collectives, these with small calls of MPI, or a death. Returns 0 on success. */
static int be_started(char **argv)
{
    struct death *death = ranks_shared(sizeof(*death));
    struct pl_comm *comm = NULL;
    struct pl_error err = {0};
    struct pl_world world;
    const char *text = NULL;
    int r = pl_world_open(&world, strcmp(argv[0], "mpi") == 0 ? PL_COMM_MPI : PL_COMM_AUTO, &err);

    if (strcmp(argv[2], "slices") == 0)
        pl_mpi_slice = 1000;
    if (r == 0)
        r = pl_comm_create(&world, NULL, &comm, &err);
    if (r < 0)
        text = pl_error_text(&err);
    else if (strcmp(comm->ops->name, argv[1]) != 0)
        text = comm->ops->name;
    else if (strcmp(argv[2], "die") == 0) {
        /* The time of death is that of the last collective before it. */
        *death = (struct death){.victim = 1, .count = 100, .died_ns = pl_now_ns()};
        text = one_dies(comm, death);
    } else
        text = everything(comm, NULL);
    pl_comm_destroy(comm);
    if (r == 0)
        pl_mpi_close(world.mpi, strcmp(argv[2], "die") == 0);
    printf("rank %u of %u: %s\n", world.rank, world.size, text ? text : "good");
    return text != NULL;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_layouts_and_sizes),
        cmocka_unit_test(test_parts_are_gathered),
        cmocka_unit_test(test_sums_are_scattered),
        cmocka_unit_test(test_sums_in_the_order_of_ranks),
        cmocka_unit_test(test_sums_of_own_memory),
        cmocka_unit_test(test_sums_are_joined_later),
        cmocka_unit_test(test_a_communicator_is_split),
        cmocka_unit_test(test_layout_decides_the_kind),
        cmocka_unit_test(test_lost_rank_is_named),
    };

    if (argc == 4)
        return be_started(argv + 1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
