#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""plsubmit, plrun and plstat against submitit: a submission, the way to the first line of the program, a rank
that fails, what the launcher takes on the node, and the status of 1,000 trials. PLUME_PEERS_PYTHON names a Python
that has submitit (python3); without one nothing is measured."""

import glob
import os
import re
import subprocess
import sys
import time

from plbench import Bench

PYTHON = os.environ.get("PLUME_PEERS_PYTHON", "python3")
ROUNDS, FAILURES, RANKS = 7, 5, 8
SLEEP_S, IDLE_S, LIMIT_S = 12, 5, 60

# What a user writes for a grid of trials: all of it is the peer's.
SUBMIT = """\
import itertools, sys
import submitit
from program import train
executor = submitit.AutoExecutor(folder="logs/%j")
executor.update_parameters(timeout_min=5, slurm_array_parallelism=int(sys.argv[1]))
jobs = executor.map_array(train, *zip(*itertools.product(*[range(int(n)) for n in sys.argv[2:]])))
print(jobs[0].job_id)
"""
PROGRAM = """\
import os, sys, time
def train(*values):
    with open(os.path.join(os.environ["FIRST"], "-".join(map(str, values))), "w") as f:
        f.write(str(time.time()))
if __name__ == "__main__":
    train(*sys.argv[1:])
"""
SEVERAL = """\
import sys
import submitit
from ranks import train
executor = submitit.AutoExecutor(folder="logs/%j")
executor.update_parameters(timeout_min=5, nodes=int(sys.argv[1]), tasks_per_node=int(sys.argv[2]),
                           slurm_srun_args=sys.argv[4:])
print(executor.submit(train, sys.argv[3]).job_id)
"""
# Rank 2 fails, and the others know nothing of it.
RANKS_PROGRAM = f"""\
import os, sys, time
def train(kind):
    rank = os.environ["SLURM_PROCID"]
    with open(os.path.join(os.environ["FIRST"], rank + ".new"), "w") as f:
        f.write(str(os.getpid()))
    os.rename(f.name, f.name[:-4])
    time.sleep(3)
    if kind == "fail" and rank == "2":
        with open(os.path.join(os.environ["FIRST"], "failed"), "w") as f:
            f.write(str(time.time()))
        raise RuntimeError("the cause")
    time.sleep({SLEEP_S - 3})
if __name__ == "__main__":
    train(sys.argv[1])
"""


def wait_for(what):
    end = time.monotonic() + LIMIT_S
    while not (found := what()):
        if time.monotonic() > end:
            raise SystemExit("peers: waited too long")
        time.sleep(0.005)
    return found


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as f:
            return f.read().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


def cost(pid):
    """Proportional memory in MiB, and processor time in ms, of a process."""
    with open(f"/proc/{pid}/smaps_rollup") as f:
        pss = int(re.search(r"^Pss:\s+(\d+)", f.read(), re.M).group(1)) / 1024
    ns = 0
    for path in glob.glob(f"/proc/{pid}/task/*/schedstat"):
        with open(path) as f:
            ns += int(f.read().split()[0])
    return pss, ns / 1e6


class Peers:
    def __init__(self, bench):
        self.b = bench
        for name, text in (("submit.py", SUBMIT), ("program.py", PROGRAM), ("several.py", SEVERAL),
                           ("ranks.py", RANKS_PROGRAM)):
            with open(os.path.join(bench.dir, name), "w") as f:
                f.write(text)
        self.turn = 0

    def fresh(self):
        self.turn += 1
        self.first = os.path.join(self.b.dir, f"first-{self.turn}")
        os.mkdir(self.first)
        self.b.env["FIRST"] = self.first

    def ours(self, sizes, parallel=1000, *options):
        grid = []
        for name, size in zip("abc", sizes):
            grid += ["--grid", name + "=" + ",".join(map(str, range(size)))]
        took, out = self.b.run(["plsubmit", "--parsable", "--max-parallel", str(parallel), "--time", "5",
                                *grid, *options, "--", PYTHON, "program.py",
                                *["{" + n + "}" for n in "abc"[:len(sizes)]]], stdout=-1)
        self.folder, self.job = out.strip().split(";")[1:3]
        return took

    def submitit(self, sizes, parallel=1000):
        took, out = self.b.run([PYTHON, "submit.py", str(parallel), *map(str, sizes)], stdout=-1)
        self.job = out.strip().split("_")[0]
        return took

    def rpcs(self):
        """{type: count} of what users' commands have asked the controller."""
        text = self.b.run(["sdiag"], stdout=-1)[1]
        kinds = re.findall(r"^\s+(REQUEST_\w+)\s.*count:(\d+)", text.split("by user")[0], re.M)
        return {k: int(n) for k, n in kinds if k not in ("REQUEST_STATS_INFO", "REQUEST_PING")
                and "COMPLETE" not in k}

    def asked(self, function):
        before = self.rpcs()
        function()
        after = self.rpcs()
        return sum(n - before.get(k, 0) for k, n in after.items())

    def cancel(self):
        self.b.run(["scancel", self.job])

    def submissions(self):
        """Nothing starts: the partition is down."""
        b = self.b
        self.fresh()
        b.run(["scontrol", "update", "PartitionName=main", "State=down"])
        b.idle_first = False  # jobs wait on purpose
        for sizes, goal in (((1,), 0.5), ((3, 3), 0.5), ((10, 10, 10), 0.5)):
            def timed(submit):
                took = submit(sizes)
                self.cancel()
                return took
            n = 1
            for size in sizes:
                n *= size
            times = b.alternate({"ours": lambda: timed(self.ours), "submitit": lambda: timed(self.submitit)},
                                ROUNDS)
            case = "1 trial" if n == 1 else f"{n} trials"
            b.row(f"{case}, submitted", times["ours"], times["submitit"], self.name, ratio_goal=goal)
            self.questions(case, sizes)
            if n == 1000:
                self.status()
            else:
                self.cancel()
        b.run(["scontrol", "update", "PartitionName=main", "State=up"])
        b.idle_first = True

    def questions(self, case, sizes):
        """Jobs that could start, but for their time. The last one of ours is left waiting."""
        peer = self.asked(lambda: self.submitit(sizes))
        self.cancel()
        self.b.run(["scontrol", "update", "PartitionName=main", "State=up"])
        for path in glob.glob(os.path.join(self.b.dir, ".plume", "cache", "asked-*")):
            os.unlink(path)
        for turn in ("first of a minute", "next one"):
            asked = self.asked(lambda: self.ours(sizes, 1000, "--sbatch", "begin=now+1hour"))
            self.b.row(f"{case}, questions to the controller: {turn}", [asked], [peer], self.name, unit="RPCs")
            if turn != "next one":
                self.cancel()
        self.b.run(["scontrol", "update", "PartitionName=main", "State=down"])

    def status(self):
        b, sweep = self.b, os.path.basename(self.folder)

        def plstat():
            # plstat keeps an answer of the controller for five seconds.
            for path in glob.glob(os.path.join(b.dir, ".plume", "*cache*")):
                os.path.isfile(path) and os.unlink(path)
            return b.run(["plstat", "sweep", sweep])[0]
        times = b.alternate({"ours": plstat, "squeue": lambda: b.run(["squeue", "-r"])[0]}, ROUNDS)
        b.row("1000 waiting trials, their status", times["ours"], times["squeue"], "squeue -r")
        b.run(["scancel", "--me"])

    def starts(self):
        """Seconds from the command to the first line of the program, in the last trial that is awaited."""
        b = self.b
        for case, sizes, awaited, parallel, goal in (("1 trial", (1,), 1, 1000, 1), ("9 trials, all", (3, 3), 9,
                                                     1000, 1), ("1000 trials, the first", (10, 10, 10), 1, 1, 1)):
            def timed(submit):
                self.fresh()
                start = time.time()
                submit(sizes, parallel)
                wait_for(lambda: len(os.listdir(self.first)) >= awaited)
                times = []
                for name in os.listdir(self.first):
                    text = wait_for(lambda: open(os.path.join(self.first, name)).read())
                    times.append(float(text) - start)
                self.cancel()
                b.idle()
                return sorted(times)[awaited - 1]
            times = b.alternate({"ours": lambda: timed(self.ours), "submitit": lambda: timed(self.submitit)},
                                ROUNDS)
            b.row(f"{case}: command to program", times["ours"], times["submitit"], self.name, ratio_goal=goal)

    def several(self, who, kind, nodes, per_node):
        self.fresh()
        if who == "ours":
            out = self.b.run(["plsubmit", "--parsable", "--time", "5", "-N", str(nodes), "--ntasks-per-node",
                              str(per_node), "--", PYTHON, "ranks.py", kind], stdout=-1)[1]
            self.folder, self.job = out.strip().split(";")[1:3]
        else:
            args = ["--kill-on-bad-exit=1"] if who == "kill" else []
            out = self.b.run([PYTHON, "several.py", str(nodes), str(per_node), kind, *args], stdout=-1)[1]
            self.job = out.strip()
            self.folder = os.path.join(self.b.dir, "logs", self.job)
        paths = [os.path.join(self.first, str(rank)) for rank in range(nodes * per_node)]
        wait_for(lambda: all(os.path.exists(p) for p in paths))
        return [int(open(p).read()) for p in paths]

    def failures(self):
        known = {"ours": [], "default": [], "kill": []}
        decided = []

        def ended(who):
            pids = self.several(who, "fail", 2, 2)
            failed = float(wait_for(lambda: glob.glob(self.first + "/failed")
                                    and open(self.first + "/failed").read()))

            def is_known():
                if who != "ours":
                    return glob.glob(self.folder + "/*_2_result.pkl")
                return '"rank":2,"node":"n2","state":"failed"' in events()

            def events():
                with open(self.folder + "/trial-0000/attempt-0/events.jsonl") as f:
                    return f.read()
            wait_for(is_known)
            known[who].append(time.time() - failed)
            if who == "ours":
                wait_for(lambda: '"type":"cause"' in events())
                decided.append(time.time() - failed)
            wait_for(lambda: not any(alive(p) for p in pids))
            took = time.time() - failed
            self.b.idle()
            return took
        times = self.b.alternate({who: lambda who=who: ended(who) for who in known}, FAILURES, warm=0)
        self.b.row("1 of 4 ranks fails: in a file", known["ours"], known["default"], self.name)
        self.b.row("1 of 4 ranks fails: the first cause is decided", decided)
        self.b.row("1 of 4 ranks fails: all ended", times["ours"], times["default"], self.name, ratio_goal=0.1)
        self.b.row("1 of 4 ranks fails: all ended", times["ours"], times["kill"],
                   self.name + ", --kill-on-bad-exit")

    def costs(self):
        pss, cpu = {"ours": [], "peer": []}, {"ours": [], "peer": []}
        for _ in range(FAILURES):
            pids = self.several("ours", "sleep", 1, RANKS)
            time.sleep(IDLE_S)
            program = [cost(p) for p in pids]
            mine = []
            for path in glob.glob("/proc/[0-9]*/exe"):
                try:
                    environ = open(os.path.dirname(path) + "/environ", "rb").read()
                    if os.path.basename(os.readlink(path)) in ("plrun", "plrund") \
                            and f"FIRST={self.first}".encode() in environ.split(b"\0"):
                        mine.append(cost(path.split("/")[2]))
                except OSError:
                    pass
            if len(mine) < RANKS + 1:
                raise SystemExit(f"peers: {len(mine)} processes of Plume for {RANKS} ranks")
            self.cancel()
            self.b.idle()
            pids = self.several("default", "sleep", 1, RANKS)
            time.sleep(IDLE_S)
            whole = [cost(p) for p in pids]
            self.cancel()
            self.b.idle()
            for kind, i in ((pss, 0), (cpu, 1)):
                kind["ours"].append(sum(c[i] for c in mine) / RANKS)
                kind["peer"].append((sum(c[i] for c in whole) - sum(c[i] for c in program)) / RANKS)
        self.b.row(f"{RANKS} ranks of a node, {IDLE_S} s: memory per rank", pss["ours"], pss["peer"], self.name,
                   unit="MiB", ratio_goal=1)
        self.b.row(f"{RANKS} ranks of a node, {IDLE_S} s: CPU time per rank", cpu["ours"], cpu["peer"], self.name,
                   unit="ms", ratio_goal=1)


def main():
    found = subprocess.run([PYTHON, "-c", "import submitit; print(submitit.__version__)"], text=True,
                           stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False)
    if found.returncode != 0:
        print(f"peers: not measured: {PYTHON} has no submitit (PLUME_PEERS_PYTHON names a Python)", file=sys.stderr)
        return
    with Bench("peers", nodes=4) as b:
        for key in [k for k in b.env if k.startswith("OPENBLAS_")]:
            del b.env[key]
        peers = Peers(b)
        peers.name = "submitit " + found.stdout.strip()
        peers.submissions()
        peers.starts()
        peers.costs()
        peers.failures()
        b.row("what the user writes beside the program", [1], [SUBMIT.count("\n")], peers.name, unit="lines")
        b.note("five questions: sbatch asks one, two are whether the trials can start, and two where the nodes are, "
               "since the run folder is on a local file system. The last two are asked once a day where nodes are "
               "other machines, and none of the four again within a minute, for jobs of the same kind that can start.")
        b.note("both start the same Python; submitit's memory and CPU time are those of its ranks, less those of "
               "the program without it. Ours are those of plrun and plrund, without the plugin.")
        b.note(f"by default submitit's other ranks go on after a failure: here they end by themselves {SLEEP_S} s "
               "after their start. With --kill-on-bad-exit they get SIGTERM, which submitit's ranks ignore, and "
               "SIGKILL after KillWait: 5 s here, 30 s by Slurm's default.")
        b.note("submitit's states need slurmdbd, which is not there: not measured.")
        b.note("launchers.py has others: Hydra, test-tube, TorchX, simple_slurm, a script by hand. Not measured: "
               "dask-jobqueue, Lightning.")
        b.finish()


if __name__ == "__main__":
    main()
