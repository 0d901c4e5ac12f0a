#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""plsubmit of 9, 1,000 and 10,000 trials (two, three and five axes) against plain sbatch --array of the same
script."""

import os
import subprocess

from plbench import Bench

GRIDS = {9: (3, 3), 1000: (10, 10, 10), 10000: (10, 10, 10, 5, 2)}
ROUNDS = 11


def main():
    with Bench("submit", nodes=1, cluster_args=("--max-array", "200001")) as b:
        # Jobs stay pending: only the submission is measured.
        b.run(["scontrol", "update", "PartitionName=main", "State=down"])
        for trials, sizes in GRIDS.items():
            grid = []
            for name, size in zip("abcde", sizes):
                grid += ["--grid", name + "=" + ",".join(str(i) for i in range(1, size + 1))]
            state = {}

            def drop(job):
                b.run(["scancel", job])

            def ours():
                took, out = b.run(["plsubmit", "--parsable", *grid, "--nodes", "1",
                                   "--sbatch", "hold", "--", "/bin/true"], stdout=-1)
                _, folder, job = out.strip().split(";")
                state["folder"] = folder
                drop(job)
                return took

            def memory():
                p = subprocess.Popen(["plsubmit", "--no-submit", *grid, "--", "/bin/true"], env=b.env,
                                     cwd=b.dir, stdout=subprocess.DEVNULL)
                used = os.wait4(p.pid, 0)[2]
                p.returncode = 0
                return used.ru_maxrss / 1024

            def peer():
                took, out = b.run(["sbatch", "--parsable", "--hold", "--nodes=1",
                                   f"--array=0-{trials - 1}", "--output=/dev/null",
                                   os.path.join(state["folder"], "job.sh"), "0"], stdout=-1)
                drop(out.strip())
                return took

            times = b.alternate({"ours": ours, "peer": peer}, ROUNDS)
            limits = {1000: {"ratio_goal": 3}, 10000: {"below": 1}}.get(trials, {})
            b.row(f"{trials} trials", times["ours"], times["peer"], "sbatch --array", **limits)
            if trials == 10000:
                b.row(f"{trials} trials, memory", [memory()], unit="MiB", below=100)
        b.note("ours writes the run folder (all trials, the script, the key) and then calls sbatch.")
        b.finish()


main()
