#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""plstat log: on a client of NFS, which does not see for a minute what it has looked for in vain, unless it asks again;
with a socket as its stdout, as ssh makes it. Argument: the build folder."""
import json
import os
import re
import select
import shutil
import signal
import socket
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


def start(top, *words):
    """plstat with a socket, which does not block, as stdout; the other end, and that one."""
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    process = subprocess.Popen([f"{BUILD}/plstat", *words], stdout=theirs, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL,
                               env={"PATH": "/usr/bin:/bin", "HOME": top, "SLURM_CONF": "/nonexistent"})
    return process, ours, theirs


def wait_until(true):
    end = time.monotonic() + LIMIT_S
    while not true():
        if time.monotonic() > end:
            raise AssertionError(f"not within {LIMIT_S} s")
        time.sleep(0.02)


def slow_reader(top):
    shutil.copytree(f"{RUNS}/done", f"{top}/run")
    text = "".join(f"line {i}\n" for i in range(200000))
    write(f"{top}/run/trial-0001/attempt-0/rank-1.out", text)
    process, ours, theirs = start(top, "log", "--ranks", "1", "--stream", "out", f"{top}/run/1")
    with ours:
        with theirs:  # until it is full
            wait_until(lambda: process.poll() is not None or not select.select([], [theirs], [], 0)[1])
        seen = b"".join(iter(lambda: ours.recv(65536), b""))
    err = process.communicate(timeout=LIMIT_S)[1]
    if (process.returncode, err, seen.decode()) != (0, b"", text):
        raise AssertionError(f"{process.returncode} {err} {len(seen)} bytes of {len(text)}")


def reader_goes(top):
    shutil.copytree(f"{RUNS}/done", f"{top}/run")
    os.unlink(f"{top}/run/trial-0001/result.json")
    for words, code in ((("log", "-f", f"{top}/run/1"), -signal.SIGPIPE), (("-w1000", f"{top}/run/1"), 4)):
        write(f"{top}/run/trial-0001/attempt-0/rank-1.out", "one\n")
        process, ours, theirs = start(top, *words)
        with ours, theirs:
            ours.recv(65536)
        try:
            process.communicate(timeout=SOON_S)
        finally:
            process.kill()
            process.wait()
        if process.returncode != code:
            raise AssertionError(f"{words}: exit code {process.returncode}")


TESTS = (("plstat log -f on a network file system", follow), ("no byte is lost if stdout does not block", slow_reader),
         ("a reader that closes a socket ends plstat", reader_goes))


def main():
    library, failures = os.environ.get("FAKE_NFS_LIB"), 0
    print(f"1..{len(TESTS)}")
    for number, (name, test) in enumerate(TESTS, 1):
        top = tempfile.mkdtemp(prefix="plume-log-")
        try:
            if test is not follow:
                test(top)
            elif library:  # else a sanitizer's runtime must be loaded first
                test(top, library)
            else:
                name += " # skip nothing can be preloaded"
            print(f"ok {number} {name}")
        except (AssertionError, subprocess.TimeoutExpired) as e:
            notes = open(f"{top}/notes", encoding="utf-8").read() if os.path.exists(f"{top}/notes") else ""
            print(f"# {e}", *notes.splitlines(), sep="\n# ")
            print(f"not ok {number} {name}")
            failures += 1
        finally:
            shutil.rmtree(top)
    sys.exit(failures > 0)


main()
