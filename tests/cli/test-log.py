#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""plstat log -f on a client of NFS, which does not see for a minute what it has looked for in vain, unless it asks again.
Argument: the build folder."""
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time

BUILD = os.path.realpath(sys.argv[1])
RUNS = os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "fixtures", "runs")
LIMIT_S, SOON_S = 60, 4  # a question to Slurm and the hub would come after ten seconds


def write(path, text):
    with open(path, "a", encoding="utf-8") as f:
        f.write(text)


def soon(top, text):
    end = time.monotonic() + SOON_S
    while True:
        with open(f"{top}/seen", encoding="utf-8") as f:
            if text in f.read():
                return
        if time.monotonic() > end:
            raise AssertionError(f"not within {SOON_S} s: {text!r}")
        time.sleep(0.02)


def waits(pid):
    """How often the process has waited."""
    with open(f"/proc/{pid}/status", encoding="utf-8") as f:
        return int(re.search(r"^voluntary_ctxt_switches:\s*(\d+)", f.read(), re.M).group(1))


def follow(top, library):
    shutil.copytree(f"{RUNS}/done", f"{top}/run")
    trial = f"{top}/run/trial-0001"
    os.rename(trial, f"{top}/kept")
    with open(f"{top}/seen", "wb") as seen, open(f"{top}/notes", "wb") as notes:
        process = subprocess.Popen([f"{BUILD}/plstat", "log", "-f", f"{top}/run/1"], stdout=seen, stderr=notes,
                                   stdin=subprocess.DEVNULL,
                                   env={"PATH": "/usr/bin:/bin", "HOME": top, "SLURM_CONF": "/nonexistent",
                                        "LD_PRELOAD": library, "FAKE_NFS": f"{top}/run"})
    try:
        end, first = time.monotonic() + LIMIT_S, None
        # It has said that the trial waits, and has looked for the attempt again since.
        while first is None or waits(process.pid) < first + 3:
            if process.poll() is not None or time.monotonic() > end:
                raise AssertionError(f"it ended: {process.returncode}")
            if first is None and os.path.getsize(f"{top}/notes"):
                first = waits(process.pid)
            time.sleep(0.02)
        for attempt in range(2):
            os.makedirs(f"{trial}/attempt-{attempt}")
            for name in ("claim", "events.jsonl"):
                shutil.copy(f"{top}/kept/attempt-0/{name}", f"{trial}/attempt-{attempt}")
            write(f"{trial}/attempt-{attempt}/rank-1.out", f"one {attempt}\n")
            soon(top, f"1: one {attempt}\n")
            write(f"{trial}/attempt-{attempt}/rank-0.err", f"two {attempt}\n")
            soon(top, f"0: two {attempt}\n")
        with open(f"{top}/kept/result.json", encoding="utf-8") as f:
            result = {**json.load(f), "attempt": 1, "attempts": 2}
        write(f"{trial}/result.new", json.dumps(result))
        os.rename(f"{trial}/result.new", f"{trial}/result.json")
        if process.wait(SOON_S) != 0:
            raise AssertionError(f"exit code {process.returncode}")
    finally:
        process.kill()
        process.wait()


def main():
    library, top = os.environ.get("FAKE_NFS_LIB"), tempfile.mkdtemp(prefix="plume-log-")
    print("1..1")
    try:
        if library:  # else a sanitizer's runtime must be loaded first
            follow(top, library)
        print("ok 1 plstat log -f on a network file system" + ("" if library else " # skip nothing can be preloaded"))
    except (AssertionError, subprocess.TimeoutExpired) as e:
        with open(f"{top}/notes", encoding="utf-8") as f:
            print(f"# {e}", *f"{f.read()}".splitlines(), sep="\n# ")
        print("not ok 1 plstat log -f on a network file system")
        sys.exit(1)
    finally:
        shutil.rmtree(top)


main()
