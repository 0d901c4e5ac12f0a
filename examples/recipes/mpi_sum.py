#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""mpi4py, started by plsubmit --launch mpi."""
import plume
from mpi4py import MPI

comm = MPI.COMM_WORLD
total = comm.allreduce(comm.rank + 1)
plume.report(0, total=total)
print(f"rank {comm.rank} of {comm.size}: sum {total}, rank {plume.rank()} of the trial")
