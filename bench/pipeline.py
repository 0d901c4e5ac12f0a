#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Pipelines that balance themselves: a slow device with its cut moved, beside equal cuts."""

import json
import os
import re
import signal
import subprocess
import threading
import time

from plbench import BUILD, Bench

ROUNDS = 3
NAP_US = 2000  # of an emulated layer; more where the machine is busy
# A held rank runs every other slice. Neighbours are at most a microbatch or two apart, so a slice is short beside a
# microbatch (about 30 ms): else the ranks wait for each other in each slice, whatever the cut is.
SLICE_S = 0.002


def emulated(b):
    """Four emulated devices, one at half speed: tests/engine/test-pipeline_cut.c."""
    env = dict(b.env, PLUME_BENCH_PIPELINE=str(NAP_US), PLUME_DATA_DIR=os.path.join(BUILD, "data"))
    out = subprocess.run([os.path.join(BUILD, "tests/engine/test-pipeline_cut")], env=env, check=True,
                         stdout=subprocess.PIPE, text=True).stdout
    return json.loads(next(line for line in out.splitlines() if line.startswith("{")))


def hold(pid, stop):
    """Half a core for a process."""
    try:
        while not stop.is_set():
            os.kill(pid, signal.SIGSTOP)
            time.sleep(SLICE_S)
            os.kill(pid, signal.SIGCONT)
            time.sleep(SLICE_S)
    except ProcessLookupError:
        pass


def held(b, every):
    """Seconds per sample of the last epoch; rank 1 is held from the first epoch's end on."""
    argv = ["pltrain", "gpt", "--strategy", "pipeline", "--stages", "2", "--microbatches", "16",
            "--balance-every", str(every), "--layers", "6", "--width", "128", "--context", "64",
            "--batch_size", "128", "--epochs", "4", "--limit-train-batches", "12",
            "--limit-val-batches", "0", "--limit-test-batches", "0"]
    env = dict(b.env, OMP_NUM_THREADS="1", PLUME_DATA_DIR=os.path.join(BUILD, "data"),
               PLUME_MODULE_PATH=os.path.join(BUILD, "modules"))
    p = subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, text=True)
    stop, rate, holder = threading.Event(), None, None
    try:
        for line in p.stdout:
            found = re.match(r"epoch .*\((\d+) samples/s\)", line)
            rate = float(found[1]) if found else rate
            if found and not holder:
                with open(f"/proc/{p.pid}/task/{p.pid}/children") as f:
                    second = sorted(int(x) for x in f.read().split())[1]
                holder = threading.Thread(target=hold, args=(second, stop))
                holder.start()
    finally:
        stop.set()
        if holder:
            holder.join()
    if p.wait() != 0 or not rate:
        raise SystemExit("pipeline: pltrain failed")
    return 1 / rate


def main():
    with Bench("pipeline") as b:
        found = [emulated(b) for _ in range(ROUNDS)]
        b.row("4 emulated devices, one at half speed", [1 / x["balanced_s"] for x in found],
              [1 / x["equal_s"] for x in found], "equal cuts", unit="steps/s", ratio_least=1.6)
        b.row("4 emulated devices, bubbles", [100 * x["bubble"] for x in found],
              [100 * x["formula"] for x in found], "the formula", unit="%", ratio_goal=1.05)
        times = b.alternate({"moved": lambda: held(b, 3), "equal": lambda: held(b, 0)}, ROUNDS)
        b.row("2 ranks, one held to half a core", [1 / x for x in times["moved"]],
              [1 / x for x in times["equal"]], "equal cuts", unit="samples/s", ratio_least=1.3)
        b.note("The bounds are 1.75 and 1.5: the speed of all devices together, beside that of as "
               "many as the slowest one. A busy machine makes slow and other devices more alike.")
        b.finish()


if __name__ == "__main__":
    main()
