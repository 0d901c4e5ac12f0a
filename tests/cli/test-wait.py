#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""plsubmit --wait on a terminal: the live line, then causes. Slurm's commands are stand-ins; the test writes the
results of trials. Argument: the build folder."""
import fcntl
import json
import os
import pty
import re
import select
import shutil
import subprocess
import sys
import tempfile
import time

BUILD = os.path.abspath(sys.argv[1])
LIMIT = 60


def write(path, text):
    with open(path + ".new", "w") as f:
        f.write(text)
    os.chmod(path + ".new", 0o755)
    os.rename(path + ".new", path)


def result(run, trial, state, cause=None):
    os.makedirs(f"{run}/trial-{trial:04}", exist_ok=True)
    doc = {"schema": "plume-result/1", "trial": trial, "state": state, "attempt": 0, "metrics": {}}
    write(f"{run}/trial-{trial:04}/result.json", json.dumps({**doc, **({"cause": cause} if cause else {})}))


class Terminal:
    """What a process writes to a terminal."""

    def __init__(self, process, fd):
        self.process, self.fd, self.text = process, fd, ""

    def expect(self, pattern):
        end = time.monotonic() + LIMIT
        while not re.search(pattern, self.text):
            if time.monotonic() > end or not self.read():
                raise AssertionError(f"no {pattern!r} in {self.text!r}")

    def read(self):
        """False at the end."""
        if not select.select([self.fd], [], [], 1)[0]:
            return True
        try:
            data = os.read(self.fd, 65536)
        except OSError:
            data = b""
        self.text += data.decode()
        return bool(data)


def main():
    print("1..4")
    with tempfile.TemporaryDirectory(prefix="plume-wait-") as top:
        os.mkdir(f"{top}/fakes")
        os.mkdir(f"{top}/home")
        for name, text in {"sbatch": "case \"$*\" in *--test-only*) ;; *) echo 77 ;; esac", "scontrol": ":", "sinfo": ":",
                           "squeue": "echo >>asked; [ ! -e left ] || exit 0; for i in 0 1 2 3 4; do echo 77 $i; done"}.items():
            write(f"{top}/fakes/{name}", f"#!/bin/sh\ncd {top}\n{text}\n")
        write(f"{top}/slurm.conf", "")
        ours, theirs = pty.openpty()
        env = {**os.environ, "PATH": f"{top}/fakes:{BUILD}:{os.environ['PATH']}", "HOME": f"{top}/home",
               "SLURM_CONF": f"{top}/slurm.conf", "PLUME_HOME": f"{top}/home", "PLUME_RUNS": f"{top}/runs"}
        process = subprocess.Popen(["plsubmit", "--wait", "--grid", "a=1,2,3,4,5", "true"], cwd=top, env=env,
                                   stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs, start_new_session=True)
        os.close(theirs)
        t = Terminal(process, ours)
        try:
            t.expect(r"\r\S+: 0 of 5 done, 0 not, 0 running, 5 waiting\x1b\[K")
            run = f"{top}/runs/{os.listdir(f'{top}/runs')[0]}"
            # Who waits holds no lock: another plsubmit may change the sweep.
            fd = os.open(f"{run}/key", os.O_RDWR)
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.close(fd)
            os.mkdir(f"{run}/trial-0001")
            t.expect(r"\r\S+: 0 of 5 done, 0 not, 1 running, 4 waiting")
            result(run, 0, "done")
            t.expect(r"\r\S+: 1 of 5 done, 0 not, 1 running, 3 waiting")
            exits = {"kind": "exit", "rank": 3, "node": "n\x1b[5m02", "exit": 7}
            result(run, 1, "failed", exits)
            result(run, 2, "failed", {"kind": "signal", "rank": 1, "node": "n01", "signal": 11, "signal_name": "SIGSEGV"})
            result(run, 3, "failed", exits)
            result(run, 4, "cancelled", {"kind": "cancelled"})
            write(f"{top}/left", "")
            while t.read():
                pass
            if process.wait(LIMIT) != 1:
                raise AssertionError(process.returncode)
            sweep = os.path.basename(run)
            want = [f"trial 1 and 1 more failed, exit code 7, rank 3 on n\\e[5m02: plstat why {sweep}/1",
                    f"trial 2 failed, SIGSEGV, rank 1 on n01: plstat why {sweep}/2",
                    f"trial 4 cancelled: plstat why {sweep}/4", f"{sweep}: 1 of 5 trials done"]
            got = t.text.rsplit("\r\x1b[K", 1)[1].split("\r\n")
            if got[:-1] != want:
                raise AssertionError(f"{t.text!r}")
        except AssertionError as e:
            print(f"# {e}\nnot ok 1 --wait on a terminal")
            sys.exit(1)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
        print("ok 1 --wait on a terminal")
        test_teardown(top, env)
        test_late_result(top, env)
        test_network_file_system(top, env)


def test_teardown(top, env):
    """The hub writes a trial's result before the job script's tear-down, for which --wait waits, too."""
    os.unlink(f"{top}/left")
    os.unlink(f"{top}/asked")
    process = subprocess.Popen(["plsubmit", "--wait", "--parsable", "--teardown", "true", "true"], cwd=top, env=env,
                               stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        run = process.stdout.readline().split(";")[1]
        result(run, 0, "done")
        end = time.monotonic() + LIMIT
        while not os.path.exists(f"{top}/asked"):  # the queue still has the job
            if process.poll() is not None or time.monotonic() > end:
                raise AssertionError(f"ended before the job has left the queue: {process.returncode}")
            time.sleep(0.02)
        write(f"{top}/left", "")
        if process.wait(LIMIT) != 0:
            raise AssertionError(process.returncode)
        print("ok 2 --wait waits for the tear-down")
    except AssertionError as e:
        print(f"# {e}\nnot ok 2 --wait waits for the tear-down")
        sys.exit(1)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def test_late_result(top, env):
    """A result that plstat sees, and plsubmit did not: the exit code 1 has a reason."""
    write(f"{top}/left", "")
    result(f"{top}/late", 0, "done")
    os.mkdir(f"{top}/bin")
    shutil.copy(f"{BUILD}/plsubmit", f"{top}/bin")
    os.symlink(f"{BUILD}/plrun", f"{top}/bin/plrun")
    write(f"{top}/bin/plstat", f"""#!/bin/sh
cp -r {top}/late/trial-0000 "$(cat {top}/run)" && exec {BUILD}/plstat "$@"
""")
    os.chmod(f"{top}/home", 0o700)
    process = subprocess.Popen([f"{top}/bin/plsubmit", "--wait", "--parsable", "true"], cwd=top, env=env,
                               stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                               start_new_session=True)
    try:
        sweep, run = process.stdout.readline().split(";")[:2]
        write(f"{top}/run", run)
        err = process.communicate(timeout=LIMIT)[1]
        want = f"plsubmit: 1 trial left the queue without a result that could be read: plstat sweep {sweep}\n"
        if process.returncode != 1 or err != want:
            raise AssertionError(f"{process.returncode}: {err!r}")
        print("ok 3 --wait for a late result")
    except AssertionError as e:
        print(f"# {e}\nnot ok 3 --wait for a late result")
        sys.exit(1)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def test_network_file_system(top, env):
    """A client of NFS that has looked for a result in vain does not see it for a minute, unless it asks again."""
    library = os.environ.get("FAKE_NFS_LIB")
    if not library:  # a sanitizer's runtime must be loaded first
        print("ok 4 --wait on a network file system # skip nothing can be preloaded")
        return
    os.unlink(f"{top}/left")
    os.unlink(f"{top}/asked")
    process = subprocess.Popen(["plsubmit", "--wait", "--parsable", "--grid", "a=1,2", "true"], cwd=top,
                               env={**env, "LD_PRELOAD": library, "FAKE_NFS": f"{top}/runs/"},
                               stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        run = process.stdout.readline().split(";")[1]
        os.mkdir(f"{run}/trial-0000")
        end = time.monotonic() + LIMIT
        while not os.path.exists(f"{top}/asked"):  # it has looked for the results
            if process.poll() is not None or time.monotonic() > end:
                raise AssertionError(f"ended before the job has left the queue: {process.returncode}")
            time.sleep(0.02)
        result(run, 0, "done")
        result(run, 1, "done")
        write(f"{top}/left", "")
        if process.wait(LIMIT) != 0:
            raise AssertionError(f"{process.returncode}: {process.stdout.read()}")
        print("ok 4 --wait on a network file system")
    except AssertionError as e:
        print(f"# {e}\nnot ok 4 --wait on a network file system")
        sys.exit(1)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


main()
