#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Seconds from a rank's crash to its failure in the event log, in plstat show and in plstat why.

96 ranks run; one of them records the time and raises SIGSEGV. plstat is called repeatedly.
"""

import glob
import json
import os
import subprocess
import threading
import time

from plbench import Bench, quiet

ROUNDS = 9
CRASHING = 37
DELAY_MS = 1500


def plstat(b, *args):
    _, out = b.run(["plstat", *args, "--json"], stdout=-1, check=False, stderr=subprocess.DEVNULL)
    try:
        return json.loads(out)
    except ValueError:
        return {}


def shown(b, folder, found, ended):
    """Calls plstat until it shows the rank's failure, then until it names the cause."""
    while not ended.is_set() and "show" not in found:
        ranks = plstat(b, "show", folder).get("ranks", [])
        if any(r.get("rank") == CRASHING and r.get("state") == "failed" for r in ranks):
            found["show"] = time.time()
    while not ended.is_set() and "why" not in found:
        if plstat(b, "why", folder).get("cause", {}).get("rank") == CRASHING:
            found["why"] = time.time()


def one(b, size, plugin):
    quiet()
    before = set(glob.glob(b.dir + "/.plume/steps/*"))
    argv = ["srun", "--plume", *size] if plugin else ["srun", *size, "plrun", "--"]
    step = subprocess.Popen(
        [*argv, os.path.join(b.env["PLUME_BUILD"], "bench", "bench-crasher"), str(CRASHING),
         str(DELAY_MS)],
        env=b.env, cwd=b.dir, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL)
    folder, end = None, time.monotonic() + 20
    while not folder:
        new = set(glob.glob(b.dir + "/.plume/steps/*")) - before
        new = [d for d in new if glob.glob(d + "/trial-0000/status.json")]
        folder = new[0] if new else None
        if time.monotonic() > end:
            raise SystemExit("crash: the step did not start")
        time.sleep(0.01)
    found, ended = {}, threading.Event()
    asker = threading.Thread(target=shown, args=(b, folder, found, ended))
    time.sleep(DELAY_MS / 1000 / 2)
    asker.start()
    step.wait(timeout=60)
    found["end"] = time.time()
    ended.set()
    asker.join()
    attempt = folder + "/trial-0000/attempt-0/"
    with open(attempt + f"rank-{CRASHING}.err") as f:
        start = float(f.read().split()[1])
    with open(attempt + "events.jsonl") as f:
        for event in map(json.loads, f):
            if event["type"] == "rank" and event.get("rank") == CRASHING:
                if event.get("state") == "failed":
                    found["log"] = event["t"]
            elif event["type"] == "cause":
                found["cause"] = event["t"]
                if event["cause"].get("rank") != CRASHING:
                    raise SystemExit("crash: the cause is wrong")
    return {key: 1000 * (value - start) for key, value in found.items()}


def main():
    with Bench("crash", nodes=12) as b:
        size = ["-N12", "--ntasks-per-node=8"]
        for name, plugin in (("plrun", False), ("plugin", True)):
            all_ = [one(b, size, plugin) for _ in range(ROUNDS + 1)][1:]

            def row(key, case, **kw):
                values = [r[key] for r in all_ if key in r]
                if values:
                    b.row(f"{case}, {name}", values, unit="ms", **kw)

            row("log", "rank failed, in the log", below=10)
            row("show", "rank failed, in plstat show", below=10)
            row("cause", "cause decided, in the log", below=150)
            row("why", "cause, in plstat why", below=150)
            row("end", "step over (95 ranks ended)")
        b.note("the hub waits 100 ms for an earlier failure from another node before it decides.")
        b.finish()


if __name__ == "__main__":
    main()
