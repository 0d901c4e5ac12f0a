#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""All-reduce of 1, 10 and 100 MB on this machine: Plume against Open MPI and gloo.

The columns of nccl-tests: algbw = bytes / time, busbw = algbw * 2 (n - 1) / n, in GB/s. 2 ranks
(and 4 with that many cores); f32, in place, in buffers that the caller keeps."""

import importlib.util
import os
import shutil
import socket
import subprocess
import sys

from plbench import BUILD, SRC, Bench, median

SIZES = {1: 200, 10: 40, 100: 8}  # MB: iterations
ROUNDS = 5


def last_number(out):
    return float(out.strip().splitlines()[-1])


def gloo(b, python, ranks, size, rounds):
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    env = {**b.env, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
           "WORLD_SIZE": str(ranks), "GLOO_SOCKET_IFNAME": "lo"}
    argv = [python, os.path.join(SRC, "bench", "gloo_bandwidth.py"), str(size), str(rounds)]
    programs = [subprocess.Popen(argv, env={**env, "RANK": str(i)}, text=True, cwd=b.dir,
                                 stdout=subprocess.PIPE) for i in range(ranks)]
    outs = [p.communicate(timeout=120)[0] for p in programs]
    return last_number(outs[0])


def main():
    python = os.environ.get("PLUME_TORCH_PYTHON", sys.executable)
    torch = python != sys.executable or importlib.util.find_spec("torch") is not None
    ours = os.path.join(BUILD, "bench", "bench-bandwidth")
    mpi = os.path.join(BUILD, "bench", "bench-bandwidth-mpi")
    mpirun = shutil.which("mpirun") if os.path.exists(mpi) else None
    with Bench("bandwidth") as b:
        b.env.update(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
        for ranks in (2, 4) if os.cpu_count() >= 4 else (2,):
            for mb, rounds in SIZES.items():
                size = mb * 1000 * 1000
                variants = {}
                for mode in ("slab", "private", "tcp"):
                    variants[mode] = lambda mode=mode: last_number(
                        b.run([ours, str(ranks), mode, str(size), str(rounds)], stdout=-1)[1])
                if mpirun:
                    variants["mpi"] = lambda: last_number(
                        b.run([mpirun, "--oversubscribe", "-np", str(ranks), mpi, str(size),
                               str(rounds)], stdout=-1)[1])
                if torch:
                    variants["gloo"] = lambda: gloo(b, python, ranks, size, rounds)
                times = b.alternate(variants, ROUNDS, warm=0)
                factor = 2 * (ranks - 1) / ranks
                bus = {k: [size / t / 1e9 * factor for t in v] for k, v in times.items()}
                for mode in ("slab", "private", "tcp"):
                    for peer, name in (("mpi", "Open MPI"), ("gloo", "PyTorch gloo")):
                        if peer not in bus:
                            continue
                        goal = None if mode == "tcp" and peer == "mpi" else "> peer"
                        met = median(bus[mode]) > median(bus[peer]) if goal else None
                        b.row(f"{mb} MB, {ranks} ranks, {mode}", bus[mode], bus[peer], name,
                              unit="GB/s busbw", goal=goal, met=met)
                for k, v in times.items():
                    t = median(v)
                    b.note(f"{k:8} {ranks} ranks {mb:4} MB  time {t * 1e6:9.1f} us  "
                           f"algbw {size / t / 1e9:6.2f}  busbw {size / t / 1e9 * factor:6.2f} GB/s")
        b.finish()


if __name__ == "__main__":
    main()
