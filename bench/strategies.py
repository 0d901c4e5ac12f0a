#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Samples per second and memory of each strategy on two processors, for doc/strategies.md.

Every strategy trains the same number of samples per step, with one thread per rank or device. The
peer of each row is strategy ddp. STRATEGIES_MODELS and STRATEGIES_TRIALS select a part."""

import json
import os
import subprocess

from engine_models import BATCH, make_data, module_args
from plbench import BUILD, Bench, median, quiet

MODELS = os.environ.get("STRATEGIES_MODELS", "mlp,gpt4").split(",")
TRIALS = int(os.environ.get("STRATEGIES_TRIALS", "5"))
TRIAL_S = float(os.environ.get("STRATEGIES_TRIAL_SECONDS", "1.5"))
BATCHES = 16
WARM = 3  # first steps that do not count
# Name: options, and among how many the loader's batch of a step is shared out.
WAYS = {
    "ddp": (["--strategy", "ddp", "--processes", "2"], 2),
    "single": (["--strategy", "single"], 1),
    "dp": (["--strategy", "dp", "--devices", "2"], 1),
    "ddp2, 2 nodes": (["--strategy", "ddp2", "--num-nodes", "2"], 2),
    "horovod": (["--strategy", "horovod", "--processes", "2"], 2),
    "sharded --shard os": (["--strategy", "sharded", "--processes", "2"], 2),
    "sharded --shard grad": (["--strategy", "sharded", "--shard", "grad", "--processes", "2"], 2),
    "pipeline": (["--strategy", "pipeline", "--processes", "2"], 1),
}


def run(b, model, way, steps):
    """(samples per second of all, MB of the largest process)."""
    options, ranks = WAYS[way]
    env = {**b.env, "PLUME_DATA_DIR": os.path.join(b.dir, model),
           "OMP_NUM_THREADS": "2" if way == "dp" else "1"}
    argv = [os.path.join(BUILD, "pltrain"), "--log-every", "1000000", "--max-steps", str(steps),
            *options, *module_args(BUILD, model, BATCH[model] // ranks)]
    done = subprocess.run(argv, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True, timeout=600, check=False)
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode != 0 or not rows:
        raise SystemExit(f"strategies: {way}: {done.stderr.strip()}")
    rate = min(len(r["step_s"][WARM:]) / sum(r["step_s"][WARM:]) for r in rows)
    return rate * BATCH[model], max(r["peak_kb"] for r in rows) / 1024


def main():
    for key in ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE"):
        os.environ.pop(key, None)
    with Bench("strategies") as b:
        for model in MODELS:
            make_data(os.path.join(b.dir, model), model, BATCHES * BATCH[model])
            steps = {w: WARM + 3 + round(TRIAL_S * run(b, model, w, WARM + 4)[0] / BATCH[model])
                     for w in WAYS}
            found = {w: [] for w in WAYS}
            for _ in range(TRIALS):
                for way in WAYS:
                    quiet(0.5)
                    found[way].append(run(b, model, way, steps[way]))
            for way in WAYS:
                rates, peaks = zip(*found[way])
                b.row(f"{model}, {way}", list(rates), [r for r, _ in found["ddp"]],
                      "ddp", unit="samples/s",
                      extra={"model": model, "strategy": way, "peak_mb": round(median(peaks), 1)})
                b.note(f"{model}, {way}: {median(peaks):.0f} MB in the largest process")
        b.finish()


if __name__ == "__main__":
    main()
