/* SPDX-License-Identifier: MIT */
/* plume-mpi.so, see comm_mpi_table.h. Functions and semantics: MPI 3.1. */
#include "runtime/engine/comm/comm_mpi_table.h"

#include <limits.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

#define TAG 0x706c

struct group {
    MPI_Comm comm;
    MPI_Request request;
    int *numbers; /* counts, and displacements of an allgather */
};

static int tell(int code, const char *what, char *text)
{
    char why[MPI_MAX_ERROR_STRING];
    int len;

    if (code == MPI_SUCCESS)
        return 0;
    if (MPI_Error_string(code, why, &len) != MPI_SUCCESS)
        snprintf(why, sizeof(why), "error %d", code);
    snprintf(text, PL_MPI_TEXT, "MPI: %s: %.100s", what, why);
    return -1;
}

static int table_init(struct pl_mpi_layout *ret, char *text)
{
    int rank, size, local_rank, local_size, first, node = 0, done, level, *all;
    MPI_Comm local;

    MPI_Initialized(&done);
    if (!done && tell(MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &level), "init", text) < 0)
        return -1;
    if (done && tell(MPI_Query_thread(&level), "thread level", text) < 0)
        return -1;
    if (level < MPI_THREAD_FUNNELED) {
        snprintf(text, PL_MPI_TEXT,
                 "this MPI allows no threads (MPI_THREAD_SINGLE): try --comm tcp, or an MPI that "
                 "was built with threads");
        return -1;
    }
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (tell(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &local),
             "split by node", text) < 0)
        return -1;
    MPI_Comm_rank(local, &local_rank);
    MPI_Comm_size(local, &local_size);
    first = rank;
    MPI_Bcast(&first, 1, MPI_INT, 0, local);
    MPI_Comm_free(&local);
    all = malloc((size_t)size * sizeof(*all));
    if (!all) {
        snprintf(text, PL_MPI_TEXT, "out of memory");
        return -1;
    }
    if (tell(MPI_Allgather(&first, 1, MPI_INT, all, 1, MPI_INT, MPI_COMM_WORLD), "gather nodes",
             text) < 0) {
        free(all);
        return -1;
    }
    for (int i = 0; i < first; i++)
        node += all[i] == i;
    free(all);
    *ret = (struct pl_mpi_layout){.rank = (unsigned)rank,
                                  .size = (unsigned)size,
                                  .local_rank = (unsigned)local_rank,
                                  .local_size = (unsigned)local_size,
                                  .node = (unsigned)node};
    return 0;
}

static void table_finalize(void)
{
    MPI_Finalize();
}

static int table_group(const unsigned *ranks, unsigned n, void **ret, char *text)
{
    struct group *g = calloc(1, sizeof(*g));
    int *list = calloc(n, sizeof(*list)), r = -1;
    MPI_Group world, part;

    if (!g || !list || !(g->numbers = calloc(2 * (size_t)n, sizeof(*g->numbers)))) {
        snprintf(text, PL_MPI_TEXT, "out of memory");
        goto out;
    }
    for (unsigned i = 0; i < n; i++)
        list[i] = (int)ranks[i];
    g->request = MPI_REQUEST_NULL;
    MPI_Comm_group(MPI_COMM_WORLD, &world);
    r = tell(MPI_Group_incl(world, (int)n, list, &part), "choose ranks", text);
    if (r == 0) {
        r = tell(MPI_Comm_create_group(MPI_COMM_WORLD, part, TAG, &g->comm), "make a group", text);
        MPI_Group_free(&part);
    }
    MPI_Group_free(&world);
    if (r == 0) {
        MPI_Comm_set_errhandler(g->comm, MPI_ERRORS_RETURN);
        *ret = g;
    }
out:
    free(list);
    if (r < 0 && g) {
        free(g->numbers);
        free(g);
    }
    return r;
}

static void table_free(void *group)
{
    struct group *g = group;

    MPI_Comm_free(&g->comm);
    free(g->numbers);
    free(g);
}

static int table_allreduce(void *group, void *buf, size_t count, int real, char *text)
{
    struct group *g = group;

    if (count > INT_MAX) {
        snprintf(text, PL_MPI_TEXT, "MPI: %zu elements are too many for one call", count);
        return -1;
    }
    return tell(MPI_Iallreduce(MPI_IN_PLACE, buf, (int)count, real ? MPI_DOUBLE : MPI_FLOAT,
                               MPI_SUM, g->comm, &g->request),
                "allreduce", text);
}

static int table_broadcast(void *group, void *buf, size_t bytes, char *text)
{
    struct group *g = group;

    if (bytes > INT_MAX) {
        snprintf(text, PL_MPI_TEXT, "MPI: %zu bytes are too many for one call", bytes);
        return -1;
    }
    return tell(MPI_Ibcast(buf, (int)bytes, MPI_BYTE, 0, g->comm, &g->request), "broadcast", text);
}

static int table_barrier(void *group, char *text)
{
    struct group *g = group;

    return tell(MPI_Ibarrier(g->comm, &g->request), "barrier", text);
}

static int table_allgather(void *group, void *buf, const size_t *offset, char *text)
{
    struct group *g = group;
    int n;

    MPI_Comm_size(g->comm, &n);
    if (offset[n] > INT_MAX) {
        snprintf(text, PL_MPI_TEXT, "MPI: %zu bytes are too many for one call", offset[n]);
        return -1;
    }
    for (int i = 0; i < n; i++) {
        g->numbers[i] = (int)(offset[i + 1] - offset[i]);
        g->numbers[n + i] = (int)offset[i];
    }
    return tell(MPI_Iallgatherv(MPI_IN_PLACE, 0, MPI_BYTE, buf, g->numbers, g->numbers + n,
                                MPI_BYTE, g->comm, &g->request),
                "allgather", text);
}

static int table_reduce_scatter(void *group, void *buf, const size_t *offset, int real, char *text)
{
    struct group *g = group;
    int n;

    MPI_Comm_size(g->comm, &n);
    if (offset[n] > INT_MAX) {
        snprintf(text, PL_MPI_TEXT, "MPI: %zu elements are too many for one call", offset[n]);
        return -1;
    }
    for (int i = 0; i < n; i++)
        g->numbers[i] = (int)(offset[i + 1] - offset[i]);
    return tell(MPI_Ireduce_scatter(MPI_IN_PLACE, buf, g->numbers, real ? MPI_DOUBLE : MPI_FLOAT,
                                    MPI_SUM, g->comm, &g->request),
                "reduce-scatter", text);
}

static int table_test(void *group, int *ret_done, char *text)
{
    struct group *g = group;

    return tell(MPI_Test(&g->request, ret_done, MPI_STATUS_IGNORE), "test", text);
}

static int table_gather_world(void *buf, size_t bytes, char *text)
{
    return tell(MPI_Allgather(MPI_IN_PLACE, 0, MPI_BYTE, buf, (int)bytes, MPI_BYTE, MPI_COMM_WORLD),
                "meeting", text);
}

__attribute__((visibility("default"))) extern const struct pl_mpi_table pl_mpi_table;
const struct pl_mpi_table pl_mpi_table = {
    .version = PL_MPI_TABLE_VERSION,
    .init = table_init,
    .finalize = table_finalize,
    .group = table_group,
    .free = table_free,
    .allreduce = table_allreduce,
    .broadcast = table_broadcast,
    .barrier = table_barrier,
    .allgather = table_allgather,
    .reduce_scatter = table_reduce_scatter,
    .test = table_test,
    .gather_world = table_gather_world,
};
