#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Seconds of srun with 96 ranks on 12 nodes: plain, with plrun, with the plugin."""


from plbench import Bench

ROUNDS = 9


def main():
    with Bench("launch", nodes=12) as b:
        for case, size, goal in (("96 ranks", ["-N12", "--ntasks-per-node=8"], 1.5),
                                 ("12 ranks", ["-N12", "--ntasks-per-node=1"], None),
                                 ("1 rank", ["-N1", "-n1"], None)):
            variants = {
                "plain": lambda: b.run(["srun", *size, "true"])[0],
                "plrun": lambda: b.run(["srun", *size, "plrun", "--", "true"])[0],
                "plugin": lambda: b.run(["srun", "--plume", *size, "true"])[0],
            }
            times = b.alternate(variants, ROUNDS)
            for name in ("plrun", "plugin"):
                b.row(f"{case}, {name}", times[name], times["plain"], "srun true",
                      ratio_goal=goal)
        b.finish()


if __name__ == "__main__":
    main()
