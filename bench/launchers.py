#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""plsubmit against other ways to run a grid: Hydra with its submitit launcher, test-tube, TorchX, simple_slurm, and a
script written by hand. Each submits the same grid of two parameters, whose program writes the time when it begins.
PLUME_PEERS_PYTHON names a Python that has them (python3); what it lacks is not measured. peers.py compares with
submitit."""

import os
import subprocess
import sys
import time

from peers import PYTHON, Peers, wait_for
from plbench import Bench

ROUNDS, SLOW_ROUNDS = 9, 3
SIDES = (3, 10)  # of the grid: 9 and 100 trials
SLOW = ("test-tube", "TorchX")  # a command for each trial

# What runs, and what a user writes for it. Lines that end with "# trial" are the program's own.
HYDRA = """\
import hydra
from program import train  # trial
@hydra.main(version_base=None)
def main(cfg):
    train(cfg.a, cfg.b)  # trial
main()
"""
TEST_TUBE = """\
import os, sys
from program import train  # trial
from test_tube import HyperOptArgumentParser, SlurmCluster
parser = HyperOptArgumentParser(strategy="grid_search")
values = list(range(int(os.environ["SIDE"])))
parser.opt_list("--a", default=0, type=int, options=values, tunable=True)
parser.opt_list("--b", default=0, type=int, options=values, tunable=True)
cluster = SlurmCluster(hyperparam_optimizer=parser.parse_args(), log_path="logs", python_cmd=sys.executable)
cluster.memory_mb_per_node = 100
cluster.optimize_parallel_cluster_cpu(lambda hparams, *_: train(hparams.a, hparams.b), len(values) ** 2, "tt")
"""
SIMPLE = """\
import os, sys
from simple_slurm import Slurm
side = int(os.environ["SIDE"])
slurm = Slurm(array=range(side * side), time="5", output="/dev/null")
slurm.sbatch(f"{sys.executable} program.py $((SLURM_ARRAY_TASK_ID / {side})) $((SLURM_ARRAY_TASK_ID % {side}))")
"""
BY_HAND = """\
#!/bin/bash
#SBATCH --time=5 --output=/dev/null
srun PYTHON program.py $((SLURM_ARRAY_TASK_ID / SIDE)) $((SLURM_ARRAY_TASK_ID % SIDE))
"""


class Launchers(Peers):
    def __init__(self, bench):
        super().__init__(bench)
        for name, text in (("hydra_program.py", HYDRA), ("test_tube_program.py", TEST_TUBE), ("simple.py", SIMPLE)):
            with open(os.path.join(bench.dir, name), "w") as f:
                f.write(text)
        bench.env["PYTHONPATH"] = bench.dir
        self.waiting = None  # Hydra's process, which waits for its trials

    def submitted(self):
        return len(self.b.run(["squeue", "-h", "-r", "-o", "%i"], stdout=-1)[1].split())

    def plsubmit(self, side):
        self.ours((side, side))

    def hydra(self, side):
        """Until Slurm has the array, and a little longer: the answers of squeue take some milliseconds."""
        values = f"range({side})"
        self.waiting = subprocess.Popen(
            [PYTHON, "hydra_program.py", "--multirun", "hydra/launcher=submitit_slurm", "hydra.launcher.timeout_min=5",
             "hydra.launcher.array_parallelism=1000", f"+a={values}", f"+b={values}"],
            cwd=self.b.dir, env=self.b.env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL)
        wait_for(lambda: self.submitted() or self.begun())

    def test_tube(self, side):
        self.b.run([PYTHON, "test_tube_program.py"], env={"SIDE": str(side)})

    def torchx(self, side):
        """Without slurmdbd each command ends with 1, as its sacct does, after it has submitted the job."""
        torchx = os.path.join(os.path.dirname(PYTHON), "torchx")
        for n in range(side * side):
            self.b.run([torchx, "run", "-s", "slurm", "-cfg", "time=5", "utils.sh", PYTHON, "program.py",
                        str(n // side), str(n % side)], check=False, stderr=subprocess.DEVNULL)

    def simple_slurm(self, side):
        self.b.run([PYTHON, "simple.py"], env={"SIDE": str(side)})

    def by_hand(self, side):
        with open(os.path.join(self.b.dir, "grid.sh"), "w") as f:
            f.write(BY_HAND.replace("PYTHON", PYTHON).replace("SIDE", str(side)))
        self.b.run(["sbatch", f"--array=0-{side * side - 1}", "grid.sh"])

    def begun(self):
        return os.listdir(self.first)

    def end(self):
        if self.waiting:
            self.waiting.kill()
            self.waiting.wait()
            self.waiting = None
        self.b.run(["scancel", "--me"])
        self.b.idle()

    def until_submitted(self, submit, side):
        self.fresh()
        start = time.monotonic()
        submit(side)
        took = time.monotonic() - start
        wait_for(lambda: self.submitted() == side * side)
        self.end()
        return took

    def until_begun(self, submit, side):
        self.fresh()
        start = time.time()
        submit(side)
        wait_for(lambda: len(self.begun()) == side * side)
        times = [float(wait_for(lambda name=name: open(os.path.join(self.first, name)).read()))
                 for name in self.begun()]
        self.end()
        return max(times) - start

    def measure(self, name, submit, lines, submit_goal=1, start_goal=1):
        """The goals are multiples of the peer's time."""
        b = self.b
        kind = name.split()[0]
        rounds = SLOW_ROUNDS if kind in SLOW else ROUNDS
        b.run(["scontrol", "update", "PartitionName=main", "State=down"])
        for side in SIDES:
            if side > 3 and kind == "TorchX":
                continue  # each of its commands takes as long
            times = b.alternate({who: lambda who=who, side=side: self.until_submitted(who, side)
                                 for who in (self.plsubmit, submit)}, rounds)
            b.row(f"{side * side} trials, submitted", times[self.plsubmit], times[submit], name, ratio_goal=submit_goal)
        b.run(["scontrol", "update", "PartitionName=main", "State=up"])
        times = b.alternate({who: lambda who=who: self.until_begun(who, 3) for who in (self.plsubmit, submit)}, rounds)
        b.row("9 trials, all: command to program", times[self.plsubmit], times[submit], name,
              ratio_goal=start_goal)
        b.row("what the user writes beside the program", [1], [lines], name, unit="lines")


def lines_of(text):
    return sum(not line.endswith("# trial") for line in text.splitlines())


def version(package):
    done = subprocess.run([PYTHON, "-c", "import sys; from importlib.metadata import version; "
                           "print(version(sys.argv[1]))", package], text=True, stdout=subprocess.PIPE,
                          stderr=subprocess.DEVNULL, check=False)
    return done.stdout.strip() if done.returncode == 0 else None


def main():
    with Bench("launchers", nodes=4) as b:
        for key in [k for k in b.env if k.startswith("OPENBLAS_")]:
            del b.env[key]
        launchers = Launchers(b)
        launchers.measure("sbatch by hand", launchers.by_hand, lines_of(BY_HAND) + 1, 3, 1.5)
        for name, package, submit, lines, start_goal in (
                ("simple_slurm", "simple_slurm", launchers.simple_slurm, lines_of(SIMPLE), 1.5),
                ("Hydra and submitit", "hydra-submitit-launcher", launchers.hydra, lines_of(HYDRA) + 1, 1),
                ("test-tube", "test-tube", launchers.test_tube, lines_of(TEST_TUBE), 1),
                ("TorchX", "torchx", launchers.torchx, 3, 1)):
            found = version(package)
            if found:
                launchers.measure(f"{name} {found}", submit, lines, 1, start_goal)
            else:
                print(f"launchers: {name} is not measured: {PYTHON} lacks it", file=sys.stderr)
        b.note("submitted: until the command returns, while the partition is down; Hydra's does not return before its "
               "last trial has ended, so its time is until Slurm has the array. A script by hand and simple_slurm start "
               "the program and nothing else: no file for each trial, no state, no values but numbers of the array. "
               "TorchX and test-tube submit a job for each trial; TorchX has no grid, so the user writes the loops.")
        b.note("test-tube's trials import test_tube and PyTorch, Hydra's import Hydra and OmegaConf; the others start "
               "a Python that imports nothing.")
        b.finish()


if __name__ == "__main__":
    main()
