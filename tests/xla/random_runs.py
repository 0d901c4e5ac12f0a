#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""random_runs.py PLUGIN HOSTS N SEED: N runs with random options on 1 to 8 XLA devices, in one process or
on up to 4 simulated hosts (by HOSTS, the plugin of hosts.c), each beside as many ranks of ddp on the CPU:
the same status, and the same rows and numbers within rounding in metrics.csv. pltrain is the one in
$PATH. ./dev soak xla calls it."""

import csv
import glob
import os
import random
import shutil
import subprocess
import sys
import tempfile


def options(draw):
    """Random options of a run, and of its module."""
    some = lambda share, *values: list(draw.choice(values)) if draw.random() < share else []
    run = ["--log-every", "1", "--max-steps", str(draw.randint(2, 9)), "--seed", str(draw.randint(1, 99)),
           # adam takes steps by what rounding leaves of a gradient that is 0
           "--optimizer", draw.choice(["sgd", "adamw", "rmsprop", "adagrad"]),
           "--limit-val-batches", draw.choice(["1", "3", "0.5", "1.0"]),
           "--limit-test-batches", draw.choice(["1", "2", "0.5"])]
    run += some(0.4, ["--clip", "0.1"], ["--clip", "1"], ["--clip", "0.01", "--clip-by", "value"])
    run += some(0.4, ["--accumulate", "2"], ["--accumulate", "3"], ["--accumulate", "1,2:3"])
    run += some(0.3, ["--limit-train-batches", "2"], ["--limit-train-batches", "0.2"])
    run += some(0.3, ["--val-check-interval", "1"], ["--val-check-interval", "2"])
    run += some(0.2, ["--overfit-batches", "2"])
    run += some(0.3, ["--precision", "bf16"])
    run += some(0.3, ["--num-sanity-val-steps", "1"], ["--num-sanity-val-steps", "0"])
    return run + ["mlp", "--batch_size", str(draw.choice([7, 16, 33, 60])), "--epochs", "3",
                  "--hidden", str(draw.choice([4, 9]))]


def rows_of(folder):
    found = glob.glob(f"{folder}/**/metrics.csv", recursive=True)
    if not found:
        return []
    with open(found[0], newline="") as f:
        return list(csv.DictReader(f))


def train(how, argv, folder):
    """(exit status, rows of metrics.csv, the last line of stderr)"""
    done = subprocess.run(["pltrain", *how, "--log-dir", folder, *argv], text=True,
                          capture_output=True, check=False)
    return done.returncode, rows_of(folder), done.stderr.strip().rpartition("\n")[2]


def differs(a, b, limit):
    """What differs, or None."""
    if a[0] != b[0]:
        return f"status {a[0]} ({a[2]}), and of ranks {b[0]} ({b[2]})"
    if len(a[1]) != len(b[1]):
        return f"{len(a[1])} rows, and of ranks {len(b[1])}"
    for x, y in zip(a[1], b[1]):
        for key in x:
            u, v = float(x[key] or 0), float(y[key] or 0)
            if (x[key] == "") != (y[key] == "") or abs(u - v) > limit * max(1, abs(v)):
                return f"{key} at step {x['step']}: {x[key]}, and of ranks {y[key]}"
    return None


def on_devices(draw, plugin, hosts):
    """(how many devices, the options for them)"""
    n_hosts = draw.choice([1, 1, 2, 3, 4])
    if n_hosts == 1:
        n = draw.choice([1, 2, 3, 4, 5, 8])
        return n, ["--pjrt-plugin", plugin, "--tpu-cores", str(n)]
    each = draw.choice([1, 2])
    os.environ["HOSTS_DEVICES"] = str(each)
    os.environ.pop("HOSTS_KNOWN", None)
    if draw.random() < 0.5:
        os.environ["HOSTS_KNOWN"] = "1"
    return n_hosts * each, ["--pjrt-plugin", hosts, "--num-nodes", str(n_hosts), "--tpu-cores", str(each)]


def main():
    plugin, hosts, count, seed = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    bad = failed = 0
    with tempfile.TemporaryDirectory(prefix="plume-xla-") as top:
        os.environ["HOME"] = top  # compiled programs are kept there
        os.environ.pop("PLUME_HOME", None)
        os.environ["PJRT_PLUGIN"] = plugin  # for HOSTS
        for i in range(count):
            draw = random.Random(f"{seed} {i}")
            argv = options(draw)
            n, how = on_devices(draw, plugin, hosts)
            found = [train(how, argv, f"{top}/{i}-0"), train(["--processes", str(n)], argv, f"{top}/{i}-1")]
            why = differs(*found, 2e-3 if "bf16" in argv else 5e-5)
            failed += found[0][0] != 0
            bad += why is not None
            if why:
                print(f"run {i}: {' '.join(how + argv)}: {why}", flush=True)
            for k in range(2):
                shutil.rmtree(f"{top}/{i}-{k}", ignore_errors=True)
    print(f"{count} runs, {bad} differ; {failed} are refused on both")
    sys.exit(bad > 0 or failed > count // 2)


if __name__ == "__main__":
    main()
