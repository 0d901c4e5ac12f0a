#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Seconds from srun of 12 ranks to the end of the engine's first all-reduce of gradients."""

import importlib.util
import os
import sys
import time

from plbench import BUILD, SRC, Bench

ROUNDS = 9


def reduced(b, argv, word, env=None):
    """Seconds until the last rank has printed WORD."""
    start = time.time()
    _, out = b.run(argv, stdout=-1, env=env)
    ends = [float(line.split()[1]) for line in out.splitlines() if line.startswith(word + " ")]
    if len(ends) != 12:
        raise SystemExit(f"allreduce: {len(ends)} of 12 ranks reduced")
    return max(ends) - start


def main():
    with Bench("allreduce", nodes=12) as b:
        module = os.path.join(BUILD, "bench", "bench-reduced.so")
        size = ["-N12", "--ntasks-per-node=1"]
        variants = {
            "true": lambda: b.run(["srun", *size, "true"])[0],
            "plrun": lambda: reduced(b, ["srun", *size, "plrun", "--", "pltrain", "--max-steps",
                                         "2", module], "reduced"),
            "plugin": lambda: reduced(b, ["srun", "--plume", *size, "pltrain", "--max-steps", "2",
                                          module], "reduced"),
        }
        times = b.alternate(variants, ROUNDS)
        python = os.environ.get("PLUME_TORCH_PYTHON", sys.executable)
        torch = python != sys.executable or importlib.util.find_spec("torch") is not None
        gloo = None
        if torch:
            script = os.path.join(SRC, "bench", "gloo_peer.py")
            gloo = b.alternate({"gloo": lambda: reduced(
                b, ["srun", *size, "plrun", "--", python, script], "reduced")}, 3)["gloo"]
        for name in ("plrun", "plugin"):
            b.row(f"12 ranks, {name}", times[name], gloo, "PyTorch gloo" if gloo else None,
                  below=0.6)
        b.row("srun of 12 x true, whole", times["true"])
        if not gloo:
            b.note("PyTorch is not installed here; with gloo it took 8 to 10 s on 2 cores "
                   "(measured before, from srun to the first all-reduce).")
        b.finish()


if __name__ == "__main__":
    main()
