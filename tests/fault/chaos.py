#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Faults at random moments in real steps, and a model of what must follow.

    chaos.py [--seed N] [--minutes M | --count K | --each [K]] [--jobs J] [--fault NAME] [--way plrun|plugin]
             [--case SEED:I] [--late S] [--nodes N] [--again]

A case is one step on a private cluster: its size, the way of launching (plrun, the plugin), the fault
and its moment follow from "SEED:I" alone, so that --case repeats it. The faults are functions of
chaos_*.py; each says what state, cause, exit code and rank states must follow. After each case the files
must hold together (check-run.py), and no process, socket or temporary file of the step may be left.
--each takes the seed's first K cases [1] of each fault and way. --again is as ./dev test: up to three
cases that were wrong beside others run once more, alone, and those that are right then are called unsteady.

Slurm's slurmd 22.05.8 dies by itself at times (doc/slurm-notes.md). The cases that fail then are not
judged; a new cluster begins, on which they run once more.

$CLUSTER_DIR and $SLURM_CONF name a cluster that runs (./dev cluster env); else one is started.
"""
import argparse
import collections
import concurrent.futures
import contextlib
import glob
import itertools
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True
# pylint: disable=wrong-import-position,unused-import
from chaos_case import BOTH, FAULTS, LEFT_S, PLACE, SOURCE, Case, Wrong, environment_of, sockets
import chaos_disks
import chaos_pairs
import chaos_ranks
import chaos_world

MOST_DEAD = 2   # slurmds that may die by themselves
SWEPT_S = 62    # sockets of killed daemons are removed after a minute, see stale_sockets.c
AGAIN_MOST = 3  # more wrong cases than this are no accident


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
        try:
            c.undo.close()
        except Exception as e:  # pylint: disable=broad-exception-caught
            wrong = wrong or f"{type(e).__name__}: {e}"
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


def first_of_each(args, work):
    """The seed's first cases of each fault and way."""
    missing = collections.Counter({(name, way): args.each for name, f in FAULTS.items() for way in f.ways
                                   if f.needs <= PLACE.has and args.fault in (None, name) and args.way in (None, way)})
    for i in itertools.count():
        if not any(missing.values()):
            return
        c = Case(f"{args.seed}:{i}", args, work)
        if missing[c.fault, c.way]:
            missing[c.fault, c.way] -= 1
            yield c.name


def names(args, work):
    """The cases, one after the other."""
    if args.case:
        yield args.case
        return
    if args.each:
        yield from first_of_each(args, work)
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


class Record:
    """What all cases came to, on one cluster after the other."""

    def __init__(self):
        self.total, self.right = collections.Counter(), collections.Counter()
        self.jobs, self.slowest, self.dead, self.left, self.load = set(), [], [], [], []
        self.wrong = []

    def add(self, c, wrong):
        self.total[c.fault, c.way] += 1
        self.right[c.fault, c.way] += not wrong
        self.jobs |= {c.job} - {None}
        self.load.append(os.getloadavg()[0])
        if c.took is not None:
            self.slowest.append((c.took - c.extra_s, c.describe()))
        if wrong:
            self.wrong.append((c, wrong))
            show(c, wrong)


def some_cases(todo, args, work, record):
    """Until all are done, or a slurmd has died; returns the names of those that were not judged then."""
    again, dead = [], None

    def take(done):
        nonlocal dead
        for f in done:
            c, wrong, _ = f.result()
            dead = dead or wrong and PLACE.dead_slurmd()
            if wrong and dead:
                print(f"# slurmd of {dead} has died by itself; not judged: {c.describe()}: {wrong}", flush=True)
                c.folder.rename(work / f"{c.folder.name}.not-judged.{len(record.dead)}")
                again.append(c.name)
            else:
                record.add(c, wrong)
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        running = set()
        while not dead and (name := next(todo, None)):
            running.add(pool.submit(run_case, name, args, work))
            if len(running) >= args.jobs:
                done, running = concurrent.futures.wait(running, return_when=concurrent.futures.FIRST_COMPLETED)
                take(done)
        take(concurrent.futures.wait(running)[0])
    if dead:
        record.dead.append(dead)
    return again


def again_alone(args, work, record):
    for c, wrong in record.wrong if len(record.wrong) <= AGAIN_MOST else ():
        c.folder.rename(work / f"{c.folder.name}.beside-others")
        second, wrong_again, _ = run_case(c.name, args, work)
        if wrong_again:
            show(second, wrong_again)
        else:
            record.right[c.fault, c.way] += 1
            record.jobs.discard(c.job)
            print(f"# unsteady: {c.describe()}: {wrong}", flush=True)


def all_cases(args, work):
    record, todo = Record(), None
    for _ in range(1 + MOST_DEAD):
        with cluster(args.nodes):
            todo = todo or names(args, work)
            again = some_cases(todo, args, work, record)
            if not again:
                if args.again:
                    again_alone(args, work, record)
                record.left = [f"node {line}" for line in wait_not_drained()] + left_of_all(record.jobs, args, work)
                return record
        if "own" not in PLACE.has:
            break
        todo = itertools.chain(again, todo)
    record.left = [f"slurmd of {node} has died" for node in record.dead]
    return record


def not_drained():
    said = subprocess.run(["sinfo", "-h", "-p", "main", "-N", "-o", "%N %t"], capture_output=True, text=True,
                          check=False, timeout=30).stdout
    return [line for line in said.splitlines() if line.split()[1].rstrip("*") not in ("idle", "alloc", "mix",
                                                                                   "comp")]


def swept(jobs, args, work):
    """Those of steps that were killed whole: the user's next step, a minute later, leaves none of them."""
    young = [s for s in sockets(jobs) if os.path.getmtime(s) > time.time() - SWEPT_S]
    time.sleep(SWEPT_S if young else 0)  # until the daemon takes them for old
    step = argparse.Namespace(**{**vars(args), "fault": "none", "way": "plrun"})
    _, wrong, _ = run_case(f"{args.seed}:next", step, work)
    return [f"the next step: {wrong}"] if wrong else [f"socket {s}, after the next step" for s in sockets(jobs)]


def left_of_all(jobs, args, work):
    """After all cases: processes of this cluster's jobs or of Plume's, sockets, temporary files."""
    def processes():
        conf, found = f"SLURM_CONF={os.environ['SLURM_CONF']}".encode(), []
        for entry in glob.glob("/proc/[0-9]*"):
            with contextlib.suppress(OSError):
                env = environment_of(entry)
                name = pathlib.Path(entry, "cmdline").read_bytes()
                if (conf in env and (any(e.startswith(b"SLURM_JOB_ID=") for e in env) or b"slurmstepd" in name) or
                        any(e.startswith(f"PLUME_HOME={work}".encode()) for e in env)):
                    found.append(f"process {entry[6:]} {name[:80]}")
        return found
    end = time.monotonic() + LEFT_S
    while processes() and time.monotonic() < end:
        time.sleep(0.1)
    spared = {c.job for c in PLACE.spared}
    found = processes() + [f"socket {s}" for s in sockets(jobs - spared)]
    if n := len(sockets(spared)):
        print(f"# {n} sockets of {len(spared)} steps that were killed whole")
        if args.minutes:
            found += swept(spared, args, work)
    return found


def wait_not_drained():
    """A node whose cable was pulled may be down for a moment."""
    end = time.monotonic() + 60
    while (left := not_drained()) and time.monotonic() < end:
        time.sleep(0.5)
    return left


@contextlib.contextmanager
def disks(work, n):
    """Small file systems; made before the cluster, whose nodes have mounts of their own."""
    made = []
    try:
        if os.geteuid() == 0 and "CLUSTER_DIR" not in os.environ:
            for i in range(n):
                path = work / f"disk.{i}"
                path.mkdir()
                if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m,nr_inodes=300,mode=755", "none", str(path)],
                                  check=False, stderr=subprocess.DEVNULL).returncode:
                    break
                made.append(path)
                PLACE.disks.put(path)
        if made:
            PLACE.has |= {"disks"}
        yield
    finally:
        for path in made:
            subprocess.run(["umount", "-l", str(path)], check=False)


@contextlib.contextmanager
def cluster(nodes):
    """One of our own, unless one is named. As root each node is a host of its own."""
    if os.geteuid() == 0:
        PLACE.has |= {"root"}
    if "CLUSTER_DIR" in os.environ:
        yield
        return
    name = f"chaos-{os.getpid()}"
    PLACE.has |= {"own"} | ({"hosts"} if os.geteuid() == 0 else set())
    subprocess.run([str(SOURCE / "dev"), "cluster", "up", str(nodes), "--quiet", "--name", name,
                    *(["--hosts"] if "hosts" in PLACE.has else [])], check=True, stdin=subprocess.DEVNULL)
    try:
        said = subprocess.run(["bash", "-c", f'eval "$("{SOURCE}/dev" cluster env --name {name})"; env -0'],
                              capture_output=True, check=True).stdout
        for entry in said.split(b"\0"):
            key, _, value = entry.partition(b"=")
            if key in (b"SLURM_CONF", b"PATH", b"PLUME_CLUSTER", b"LD_LIBRARY_PATH"):
                os.environ[key.decode()] = value.decode()
        os.environ["CLUSTER_DIR"] = os.path.dirname(os.environ["SLURM_CONF"])
        PLACE.divide()
        yield
    finally:
        subprocess.run([str(SOURCE / "dev"), "cluster", "down", "--name", name], check=False,
                       stdin=subprocess.DEVNULL)
        os.environ.pop("CLUSTER_DIR", None)


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--seed", type=int, default=int(time.time()) % 10**7)
    parser.add_argument("--minutes", type=float, default=0)
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--each", type=int, nargs="?", const=1)
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--jobs", type=int, default=3)
    parser.add_argument("--fault", choices=sorted(FAULTS))
    parser.add_argument("--way", choices=BOTH)
    parser.add_argument("--case")
    parser.add_argument("--late", type=float, default=5, help="seconds beside the grace until a step is over")
    parser.add_argument("--nodes", type=int, default=6)
    args = parser.parse_args()
    print(f"# seed {args.seed}", flush=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the cluster is stopped
    work = pathlib.Path(tempfile.mkdtemp(prefix="plume-chaos-", dir="/tmp"))
    work.chmod(0o755)
    begun = time.monotonic()
    with disks(work, args.jobs), chaos_disks.freezers(work, args.jobs):
        r = all_cases(args, work)
    for (name, way), n in sorted(r.total.items()):
        print(f"# {name}, {way}: {r.right[name, way]} of {n}")
    for took, what in sorted(r.slowest, reverse=True)[:3]:
        print(f"# {took:.1f} s from the fault to the end: {what}")
    for line in r.left:
        print(f"# left: {line}")
    n, good = sum(r.total.values()), sum(r.right.values())
    bad = good < n or r.left
    print(f"# {n} cases in {(time.monotonic() - begun) / 60:.1f} minutes; after {len(r.jobs)} jobs {len(r.left)} "
          f"processes, sockets, temporary files and nodes are left or drained; load {min(r.load, default=0):.0f} to "
          f"{max(r.load, default=0):.0f}; {len(r.dead)} times a slurmd died by itself")
    print(f"1..1\n{'not ok' if bad else 'ok'} 1 chaos: {good} of {n} right, seed {args.seed}")
    if not r.wrong:
        shutil.rmtree(work, ignore_errors=True)
    sys.exit(bool(bad))


main()
