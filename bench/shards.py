#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Strategy sharded on two ranks: the time of a step beside ddp's, memory beside PyTorch's FSDP.

The model is GPT-6L (10.8 million numbers, AdamW), a thread a rank. PyTorch takes part where
$PLUME_TORCH_PYTHON, or else python3, has it.
"""

import json
import os
import re
import subprocess

from plbench import BUILD, SRC, Bench

ROUNDS = 3
KINDS = {"ddp": ["ddp"], **{kind: ["sharded", "--shard", kind] for kind in ("os", "grad", "param")}}
GOALS = {"os": 1.15, "param": 1.3}
MODEL = ["gpt", "--layers", "6", "--heads", "6", "--width", "384", "--context", "256",
         "--batch_size", "4"]


def train(b, kind):
    """(seconds of a step, MB at most) of a run."""
    argv = ["pltrain", "--processes", "2", "--strategy", *KINDS[kind], "--optimizer", "adamw",
            "--max-steps", "6", "--limit-val-batches", "0", "--limit-test-batches", "0", "--profile",
            *MODEL]
    env = dict(b.env, OMP_NUM_THREADS="1", PLUME_DATA_DIR=os.path.join(BUILD, "data"),
               PLUME_MODULE_PATH=os.path.join(BUILD, "modules"))
    done = subprocess.run(argv, env=env, text=True, capture_output=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"shards: {' '.join(argv)} ended with {done.returncode}: {done.stderr}")
    return (float(re.search(r"^([0-9.]+) ms a step", done.stderr, re.M)[1]) / 1000,
            int(re.search(r"^peak_bytes (\d+)", done.stderr, re.M)[1]) / 1e6)


def fsdp():
    """PyTorch's row; None without PyTorch."""
    places = [os.environ.get("PLUME_TORCH_PYTHON"), "python3"]
    python = next(p for p in places if p and (os.sep not in p or os.path.exists(p)))
    done = subprocess.run([python, os.path.join(SRC, "bench", "shards_peer.py")], text=True,
                          stdout=subprocess.PIPE, check=False)
    return json.loads(done.stdout) if done.returncode == 0 and done.stdout else None


def main():
    with Bench("shards") as b:
        found = b.alternate({kind: lambda kind=kind: train(b, kind) for kind in KINDS}, ROUNDS)
        times = {kind: [t for t, _ in found[kind]] for kind in KINDS}
        for kind in list(KINDS)[1:]:
            b.row(f"gpt6, 2 ranks: a step, --shard {kind}", times[kind], times["ddp"], "ddp",
                  ratio_goal=GOALS.get(kind))
        peer = fsdp()
        for kind in KINDS:
            mb = [most for _, most in found[kind]]
            if kind == "param" and peer:
                b.row("gpt6, 2 ranks: memory, --shard param", mb, [peer["mb"]], peer["peer_name"],
                      unit="MB")
            else:
                b.row(f"gpt6, 2 ranks: memory, {kind}", mb, unit="MB")
        b.note("Memory: ours is the most that the allocator has given out (peak_bytes); PyTorch's "
               "what the process has grown by since its imports." if peer else
               "No PyTorch: PLUME_TORCH_PYTHON is a Python that has torch.")
        b.finish()


if __name__ == "__main__":
    main()
