#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""A plsubmit that is killed at any system call leaves nothing, or what --resume completes: each array is
submitted once. Slurm's commands are stand-ins. PLUME_TEST_SEED repeats a run; PLUME_TEST_ALL=1 kills at
each call. Arguments: the build folder, kill-at."""
import concurrent.futures
import glob
import itertools
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile

BUILD, KILL_AT = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
SEED = int(os.environ.get("PLUME_TEST_SEED") or random.randrange(10**9))
POINTS = 12
FILES = ["job.sh", "key", "sweep.json", "trials.jsonl"]
SBATCH = """#!/bin/sh
[ "$1" != --test-only ] || exit 0
for arg; do [ "$arg" != --test-only ] || exit 0; done
exec 9>>calls && flock 9 && echo "$*" >&9 && echo $((999 + $(wc -l <calls)))
"""
SQUEUE = """#!/bin/sh
n=1000
while read -r line; do
    echo "$n PENDING /${line#* /}|ReqNodeNotAvail, UnavailableNodes:n1"
    n=$((n + 1))
done <calls
"""


class Folder:
    """An empty working folder with Slurm's commands."""

    def __enter__(self):
        self.path = tempfile.mkdtemp(prefix="plume-killed-")
        os.mkdir(os.path.join(self.path, "fakes"))
        for name, text in {"sbatch": SBATCH, "squeue": SQUEUE, "scontrol": "#!/bin/sh\n", "sinfo": "#!/bin/sh\n"}.items():
            with open(os.path.join(self.path, "fakes", name), "w") as f:
                f.write(text)
            os.chmod(f.name, 0o755)
        for name in ("calls", "slurm.conf"):
            open(os.path.join(self.path, name), "w").close()
        os.mkdir(os.path.join(self.path, "home"))
        self.env = dict(
            os.environ, PATH=f"{self.path}/fakes:{BUILD}:{os.environ['PATH']}", HOME=f"{self.path}/home",
            SLURM_CONF=f"{self.path}/slurm.conf",
            # LeakSanitizer is a tracer, too, and a process has one at most.
            ASAN_OPTIONS=os.environ.get("ASAN_OPTIONS", "") + ":detect_leaks=0")
        for name in ("PLUME_HOME", "PLUME_RUNS"):
            self.env.pop(name, None)
        return self

    def __exit__(self, *_):
        shutil.rmtree(self.path)

    def run(self, *args, kill_at=None):
        """(exit code, stdout, stderr); with kill_at 0 the number of calls is stdout."""
        command = ["plsubmit", *args]
        if kill_at is None:
            p = subprocess.run(command, cwd=self.path, env=self.env, capture_output=True, text=True, timeout=120)
            return p.returncode, p.stdout, p.stderr
        read, write = os.pipe()
        p = subprocess.Popen(
            ["sh", "-c", f'exec "$@" 3>&{write}', "sh", KILL_AT, str(kill_at), *command], cwd=self.path, env=self.env,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, pass_fds=[write])
        os.close(write)
        with os.fdopen(read) as f:
            text = f.read()
        return p.wait(timeout=120), text, ""

    def stat(self, run):
        return subprocess.run(
            ["plstat", "sweep", run], cwd=self.path, env=self.env, capture_output=True, text=True, timeout=120).stdout

    def calls(self):
        """FIRST [RETRY] of each array that was submitted."""
        with open(os.path.join(self.path, "calls")) as f:
            return sorted(re.search(r"/job(-[0-9.]+)?\.sh (.*)", line)[2] for line in f)

    def runs(self):
        return glob.glob(os.path.join(self.path, "runs", "*"))

    def end_trials(self, run, *states):
        for trial, state in enumerate(states):
            attempt = f"{run}/trial-{trial:04d}/attempt-0"
            os.makedirs(attempt)
            with open(f"{run}/trial-{trial:04d}/result.json", "w") as f:
                json.dump({"schema": "plume-result/1", "trial": trial, "state": state, "attempt": 0}, f)
            with open(f"{attempt}/claim", "w") as f:
                json.dump({"array": "1000", "task": trial, "job": "1", "restart": 0, "time": 1}, f)


def check(condition, text):
    if not condition:
        raise AssertionError(text)


def complete(folder, wanted):
    """What the killed client left is nothing, or --resume makes it whole."""
    runs = folder.runs()
    check(len(runs) <= 1, f"run folders {runs}")
    if not runs:
        check(folder.calls() == [], "submitted, but there is no run folder")
        return
    here = sorted(f for f in os.listdir(runs[0]) if not f.startswith(("trial-", "job-")))
    check([f for f in here if "." not in f or f.count(".") == 1] == FILES, f"the run folder has {here}")
    code, _, err = folder.run("--resume", runs[0])
    check(code == 0, f"--resume: {code} {err}")
    check(folder.calls() in wanted, f"arrays {folder.calls()}, wanted one of {wanted}")
    with open(os.path.join(runs[0], "sweep.json")) as f:
        sweep = json.load(f)
    check(len(sweep["submissions"]) == len(folder.calls()), f"submissions {sweep['submissions']}")
    check("planned" not in sweep, "a planned array is left")
    code, out, err = folder.run("--resume", runs[0])
    check(code == 0 and "nothing to submit" in out, f"--resume once more: {code} {out} {err}")


def submission(folder, at):
    code = folder.run("--grid", "a=1,2,3", "true", kill_at=at)
    complete(folder, [["0"]])
    return code


def changed(folder, at, args, wanted):
    code, out, err = folder.run("--parsable", "--grid", "a=1,2,3", "true")
    check(code == 0, err)
    run = out.split(";")[1]
    folder.end_trials(run, "failed", "failed", "done")
    code = folder.run(*(a.replace("RUN", run) for a in args), kill_at=at)
    complete(folder, wanted)
    return code


def retry(folder, at):
    return changed(folder, at, ["--retry", "RUN/0-1"], [["0"], ["0", "0 1"]])


def extension(folder, at):
    code = changed(folder, at, ["--extend", "RUN", "--grid", "a=3,4,5"], [["0"], ["0", "3"]])
    # The numbers go on, also after a client that was killed in between.
    run = folder.runs()[0]
    check(folder.run("--extend", run, "--grid", "a=4,5,6")[0] == 0, "--extend again")
    with open(os.path.join(run, "trials.jsonl")) as f:
        lines = [json.loads(line) for line in f]
    check([l["trial"] for l in lines] == list(range(6)), f"{lines}")
    check(sorted(l["params"]["a"] for l in lines) == list("123456"), f"{lines}")
    return code


def not_submitted(folder, at):
    code = folder.run("--no-submit", "--grid", "a=1,2,3", "true", kill_at=at)
    check(folder.calls() == [], "--no-submit submitted")
    complete(folder, [["0"]])
    return code


def executor_ends(run):
    """Waits until no executor holds the lock of a run of --local."""
    with open(os.open(f"{run}/local.lock", os.O_RDWR | os.O_CREAT, 0o600)) as f:
        code = subprocess.run(["flock", "-w", "60", str(f.fileno())], pass_fds=[f.fileno()]).returncode
    check(code == 0, "the executor does not end")


def local(folder, at):
    code = folder.run("--local=2", "--grid", "a=1,2", "sh", "-c", "echo >>ran-{a}", kill_at=at)
    check(len(folder.runs()) <= 1, f"run folders {folder.runs()}")
    for run in folder.runs():
        executor_ends(run)
        check(folder.run("--resume", run)[0] == 0, "--resume")
        executor_ends(run)
        for trial in (1, 2):
            with open(os.path.join(folder.path, f"ran-{trial}")) as f:
                check(f.read() == "\n", f"trial {trial} did not run once")
        check("2 done" in folder.stat(run), folder.stat(run))
    return code


def kill_everywhere(case, most=POINTS):
    with Folder() as folder:
        code, text, _ = case(folder, 0)
        check(code == 0, f"exit code {code}")
        n = int(text)
    check(n > 50, f"only {n} calls")
    points = range(1, n + 1)
    if not os.environ.get("PLUME_TEST_ALL"):
        points = random.sample(points, most)
    for at in points:
        with Folder() as folder:
            try:
                case(folder, at)
            except AssertionError as e:
                raise AssertionError(f"killed at call {at} of {n}: {e}") from e


def at_one_instant():
    """Ten submissions have ten numbers; of ten retries one takes place."""
    with Folder() as folder, concurrent.futures.ThreadPoolExecutor(10) as pool:
        done = list(pool.map(lambda i: folder.run("--parsable", "--grid", "a=1,2", "true"), range(10)))
        check(all(code == 0 for code, _, _ in done), f"{done}")
        check(len({out.split(";")[0] for _, out, _ in done}) == 10 == len(folder.runs()), f"{done}")
        check(len({out.split(";")[2] for _, out, _ in done}) == 10, f"{done}")
    with Folder() as folder, concurrent.futures.ThreadPoolExecutor(10) as pool:
        run = folder.run("--parsable", "--grid", "a=1,2", "true")[1].split(";")[1]
        folder.end_trials(run, "failed", "failed")
        done = list(pool.map(lambda i: folder.run("--retry", run), range(10)))
        check(all(code in (0, 75) for code, _, _ in done), f"{done}")
        submitted = sum(out.startswith("submitted") for _, out, _ in done)
        check(submitted == len(folder.calls()) - 1 >= 1, f"{done} {folder.calls()}")
        numbers = [c.split()[1] for c in folder.calls()[1:]]
        check(len(set(numbers)) == len(numbers), f"{folder.calls()}")


def ten_thousand():
    """A grid of 10,000 trials over five axes needs less than 100 MiB, from its expansion to the run folder."""
    sizes = {"a": 10, "b": 10, "c": 10, "d": 5, "e": 2}
    grid = [w for name, n in sizes.items() for w in ("--grid", f"{name}={','.join(map(str, range(n)))}")]
    with Folder() as folder:
        p = subprocess.Popen(["plsubmit", "--no-submit", *grid, "true"], cwd=folder.path, env=folder.env,
                             stdout=subprocess.DEVNULL)
        _, status, used = os.wait4(p.pid, 0)
        p.returncode = os.waitstatus_to_exitcode(status)
        check(p.returncode == 0, f"exit code {p.returncode}")
        if not any(name.endswith("SAN_OPTIONS") for name in os.environ):  # sanitizers keep what is freed
            check(used.ru_maxrss < 100 * 1024, f"{used.ru_maxrss} KiB")
        with open(os.path.join(folder.runs()[0], "trials.jsonl")) as f:
            trials = [json.loads(line)["params"] for line in f]
        check([tuple(int(t[name]) for name in sizes) for t in trials] ==
              list(itertools.product(*map(range, sizes.values()))), "the trials are not the product")


def stale():
    """The next submission removes what a killed one left, an hour later; nothing else."""
    with Folder() as folder:
        kept = [".mine-abcdef.0123456789abcdeg", ".x.0123456789abcdef", "mine.0123456789abcdef"]
        old = ".true-abcdef.0123456789abcdef"
        for name in [old, *kept]:
            os.makedirs(os.path.join(folder.path, "runs", name))
            with open(os.path.join(folder.path, "runs", name, "key"), "w"):
                pass
        for name in [old, kept[0], kept[2]]:
            os.utime(os.path.join(folder.path, "runs", name), (1, 1))
        check(folder.run("true")[0] == 0, "submission")
        left = [n for n in os.listdir(os.path.join(folder.path, "runs")) if not re.fullmatch("true-.{6}", n)]
        check(sorted(left) == sorted(kept), f"{left}")


CASES = {
    "a submission": lambda: kill_everywhere(submission),
    "a retry": lambda: kill_everywhere(retry),
    "an extension": lambda: kill_everywhere(extension),
    "a submission with --no-submit": lambda: kill_everywhere(not_submitted),
    "a submission with --local": lambda: kill_everywhere(local, 4),
    "at one instant": at_one_instant,
    "10,000 trials": ten_thousand,
    "what a killed client left": stale,
}

random.seed(SEED)
print(f"1..{len(CASES)}\n# PLUME_TEST_SEED={SEED}")
failed = 0
for number, (name, case) in enumerate(CASES.items(), 1):
    try:
        case()
        print(f"ok {number} - {name}", flush=True)
    except (AssertionError, OSError, ValueError, subprocess.TimeoutExpired) as e:
        failed += 1
        print(f"not ok {number} - {name}\n# {e}", flush=True)
sys.exit(failed > 0)
