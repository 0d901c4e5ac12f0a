/* SPDX-License-Identifier: MIT */
/* The peer of bandwidth.c with the installed MPI: bench-bandwidth-mpi BYTES ITERATIONS. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WARM 3

int main(int argc, char **argv)
{
    long bytes = argc == 3 ? strtol(argv[1], NULL, 10) : 0;
    long rounds = argc == 3 ? strtol(argv[2], NULL, 10) : 0;
    double begin = 0;
    void *buf;
    int rank;

    if (bytes < 4 || rounds < 1 || posix_memalign(&buf, 4096, (size_t)bytes) != 0)
        return 2;
    memset(buf, 0, (size_t)bytes);
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    for (long i = -WARM; i < rounds; i++) {
        if (i == 0) {
            MPI_Barrier(MPI_COMM_WORLD);
            begin = MPI_Wtime();
        }
        MPI_Allreduce(MPI_IN_PLACE, buf, (int)(bytes / 4), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0)
        printf("%.9f\n", (MPI_Wtime() - begin) / (double)rounds);
    free(buf);
    return MPI_Finalize();
}
