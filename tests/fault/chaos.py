#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Faults at random moments in real steps, and a model of what must follow.

    chaos.py [--seed N] [--minutes M | --count K] [--jobs J] [--fault NAME] [--way plrun|plugin]
             [--case SEED:I]

A case is one step on a private cluster: its size, the way of launching (plrun, the plugin), the fault
and its moment follow from "SEED:I" alone, so that --case repeats it. The faults are functions of
chaos_*.py; each says what state, cause, exit code and rank states must follow. After each case the files
must hold together (check-run.py), and no process, socket or temporary file of the step may be left.

$CLUSTER_DIR and $SLURM_CONF name a cluster that runs (./dev cluster env); else one is started.
"""
import argparse
import collections
import concurrent.futures
import contextlib
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True
# pylint: disable=wrong-import-position,unused-import
from chaos_case import BOTH, FAULTS, SOURCE, Case, Wrong
import chaos_ranks


def run_case(name, args, work):
    c = Case(name, args, work)
    begun = time.monotonic()
    wrong = None
    try:
        c.prepare()
        FAULTS[c.fault].run(c)
    except Wrong as e:
        wrong = str(e)
    except (OSError, subprocess.SubprocessError, KeyError, ValueError, TypeError) as e:
        wrong = f"{type(e).__name__}: {e}"
    finally:
        if c.srun and c.srun.poll() is None:
            with contextlib.suppress(Exception):
                c.srun.terminate()
                c.srun.wait(10)
        if wrong and c.job:
            with contextlib.suppress(Exception):
                subprocess.run(["scancel", "-Q", c.job], check=False, timeout=30)
    if not wrong:
        shutil.rmtree(c.folder, ignore_errors=True)
    return c, wrong, time.monotonic() - begun


def names(args):
    """The cases, one after the other."""
    if args.case:
        yield args.case
        return
    end = time.monotonic() + args.minutes * 60 if args.minutes else None
    i = 0
    while (end and time.monotonic() < end) or (not end and i < args.count):
        yield f"{args.seed}:{i}"
        i += 1


def show(c, wrong):
    print(f"# WRONG {c.describe()}: {wrong}\n#   exit code {c.code}, in {c.folder}; again: --case {c.name}")
    for line in c.err().splitlines()[-8:] if (c.folder / "err").exists() else ():
        print(f"#   {line}")
    sys.stdout.flush()


def all_cases(args, work):
    total = collections.Counter()
    right = collections.Counter()
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        running = set()

        def take(done):
            for f in done:
                c, wrong, _ = f.result()
                total[c.fault, c.way] += 1
                right[c.fault, c.way] += not wrong
                if wrong:
                    show(c, wrong)
        for name in names(args):
            running.add(pool.submit(run_case, name, args, work))
            if len(running) >= args.jobs:
                done, running = concurrent.futures.wait(
                    running, return_when=concurrent.futures.FIRST_COMPLETED)
                take(done)
        take(concurrent.futures.wait(running)[0])
    return total, right


def not_drained():
    said = subprocess.run(["sinfo", "-h", "-p", "main", "-N", "-o", "%N %t"], capture_output=True, text=True,
                          check=False, timeout=30).stdout
    return [line for line in said.splitlines() if line.split()[1].rstrip("*") not in ("idle", "alloc", "mix",
                                                                                   "comp")]


@contextlib.contextmanager
def cluster():
    """One of our own, unless one is named."""
    if "CLUSTER_DIR" in os.environ:
        yield
        return
    name = f"chaos-{os.getpid()}"
    subprocess.run([str(SOURCE / "dev"), "cluster", "up", "6", "--quiet", "--name", name], check=True,
                   stdin=subprocess.DEVNULL)
    try:
        said = subprocess.run(["bash", "-c", f'eval "$("{SOURCE}/dev" cluster env --name {name})"; env -0'],
                              capture_output=True, check=True).stdout
        for entry in said.split(b"\0"):
            key, _, value = entry.partition(b"=")
            if key in (b"SLURM_CONF", b"PATH", b"PLUME_CLUSTER", b"LD_LIBRARY_PATH"):
                os.environ[key.decode()] = value.decode()
        os.environ["CLUSTER_DIR"] = os.path.dirname(os.environ["SLURM_CONF"])
        yield
    finally:
        subprocess.run([str(SOURCE / "dev"), "cluster", "down", "--name", name], check=False,
                       stdin=subprocess.DEVNULL)


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--seed", type=int, default=int(time.time()) % 10**7)
    parser.add_argument("--minutes", type=float, default=0)
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--jobs", type=int, default=3)
    parser.add_argument("--fault", choices=sorted(FAULTS))
    parser.add_argument("--way", choices=BOTH)
    parser.add_argument("--case")
    args = parser.parse_args()
    print(f"# seed {args.seed}", flush=True)
    work = pathlib.Path(tempfile.mkdtemp(prefix="plume-chaos-", dir="/tmp"))
    work.chmod(0o755)
    with cluster():
        total, right = all_cases(args, work)
        drained = not_drained()
    for (name, way), n in sorted(total.items()):
        print(f"# {name}, {way}: {right[name, way]} of {n}")
    for line in drained:
        print(f"# node {line}")
    n, good = sum(total.values()), sum(right.values())
    bad = good < n or drained
    print(f"1..1\n{'not ok' if bad else 'ok'} 1 chaos: {good} of {n} right, seed {args.seed}")
    if good == n:
        shutil.rmtree(work, ignore_errors=True)
    sys.exit(bool(bad))


main()
