#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Each allocation of plsubmit, plstat, plrun, plrund and the plugin fails once, and what they say and write stays
true: allocations.py [--all] [--jobs N] [SCENARIO[:N]...]

A scenario runs once with all memory. That counts the allocations, and tells what is right; then the
N-th allocation fails, for some N or (--all) for each. It is a defect if a tool

- dies of a signal, or does not end;
- gives exit code 0 and something else than with all memory;
- fails without a word;
- records a step as done whose rank failed, or loses a rank's output without a word;
- leaves a process.

PLUME_BUILD is the folder of the tools; $FAIL_MALLOC_LIB is tests/fakes/fail_malloc.c, built.
"""
import argparse
import concurrent.futures
import contextlib
import json
import multiprocessing
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import zlib

BUILD = pathlib.Path(os.environ.get("PLUME_BUILD", "build")).resolve()
LIB = pathlib.Path(os.environ.get("FAIL_MALLOC_LIB", BUILD / "tests/fakes/libfail-malloc.so")).resolve()
SOURCE = pathlib.Path(__file__).resolve().parents[2]
LIMIT = 20  # seconds for a run of one scenario
OUT_OF_MEMORY = re.compile(r"(?i)memory|cut off|cannot|without|missing|lost|could not|refused|did not|has ended|not ")
# libuv calls abort(3) where it finds no memory; then plrun says this.
ABORTED = re.compile(r"the node daemon(.* did not start| has ended| is gone|: Connection reset)")


class Outcome:
    """What a run of a scenario gave."""

    def __init__(self):
        self.codes, self.out, self.err = [], "", ""
        self.defects = []
        self.count, self.died = 0, set()

    def need(self, true, text):
        if not true:
            self.defects.append(text)


class Scenario:
    """A tool with its arguments, in a folder of its own."""

    tool = None

    def environment(self, folder, nth):
        return {
            "PATH": f"{folder}/bin:{BUILD}:/usr/bin:/bin", "HOME": str(folder), "LC_ALL": "C.UTF-8",
            "PLUME_HOME": f"{folder}/home", "PLUME_RUNTIME_DIR": f"{folder}/sockets", "TERM": "dumb",
            "LD_PRELOAD": str(LIB), "FAIL_MALLOC": str(nth), "FAIL_MALLOC_PROGRAM": self.tool,
            "FAIL_MALLOC_COUNT": f"{folder}/count",
            **({"FAIL_MALLOC_STACK": "1"} if "FAIL_MALLOC_STACK" in os.environ else {}),
        }

    def prepare(self, folder):
        for name in ("bin", "home", "sockets", "work"):
            (folder / name).mkdir(mode=0o700)

    def processes(self, folder, env):
        """(argv, environment) of what runs side by side."""
        raise NotImplementedError

    def may_be_killed(self, outcome):
        """True if a process other than the tool's may end by a signal."""
        return False

    def judge(self, folder, outcome, good):
        """Adds defects; good is the outcome with all memory."""
        raise NotImplementedError

    def normal(self, folder, text):
        """Without what differs per run."""
        text = re.sub(r"-[a-z2-7]{6}\b", "-ID", text.replace(str(folder), "FOLDER"))
        return re.sub(r'"time":[0-9.]+', '"time":0', text)

    def run(self, nth, good=None):
        folder = pathlib.Path(tempfile.mkdtemp(prefix="plume-alloc-", dir="/tmp"))
        outcome = Outcome()
        try:
            self.prepare(folder)
            self.start(folder, self.environment(folder, nth), outcome)
            with contextlib.suppress(FileNotFoundError):
                counts = [int(n) for n in (folder / "count").read_text().split()]
                outcome.count = max(counts, default=0)
                outcome.died = {-n for n in counts if n < 0}
            for number in outcome.died:
                outcome.need(number == signal.SIGABRT and ABORTED.search(outcome.err),
                             f"a process of {self.tool} dies of signal {number}")
            for code in outcome.codes:
                outcome.need(code >= 0 and code not in range(129, 160) or self.may_be_killed(outcome),
                             f"exit code {code}")
            self.judge(folder, outcome, good or outcome)
            return outcome
        finally:
            end_left_overs(folder, outcome)
            shutil.rmtree(folder, ignore_errors=True)

    def start(self, folder, env, outcome):
        running = []
        for i, (argv, own) in enumerate(self.processes(folder, env)):
            with open(folder / f"out.{i}", "wb") as out, open(folder / f"err.{i}", "wb") as err:
                running.append(subprocess.Popen(argv, env=own, cwd=folder / "work", stdout=out, stderr=err,
                                                stdin=subprocess.DEVNULL, start_new_session=True))
        end = time.monotonic() + LIMIT
        for p in running:
            try:
                outcome.codes.append(p.wait(max(end - time.monotonic(), 0.1)))
            except subprocess.TimeoutExpired:
                outcome.defects.append("does not end")
                os.killpg(p.pid, signal.SIGKILL)
                p.wait()
        for i in range(len(running)):
            outcome.out += self.normal(folder, (folder / f"out.{i}").read_text(errors="replace"))
            outcome.err += self.normal(folder, (folder / f"err.{i}").read_text(errors="replace"))


def end_left_overs(folder, outcome):
    """Processes with this folder in their environment: there are none once the tools have ended."""
    mark = f"HOME={folder}\0".encode()
    for _ in range(300):  # a daemon may need a moment
        left = []
        for entry in pathlib.Path("/proc").iterdir():
            if entry.name.isdigit():
                with contextlib.suppress(OSError):
                    # A zombie has no command line.
                    if mark in (entry / "environ").read_bytes() and (entry / "cmdline").read_bytes():
                        left.append(int(entry.name))
        if not left:
            return
        time.sleep(0.01)
    outcome.defects.append(f"processes are left: {left}")
    for pid in left:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


class Command(Scenario):
    """A tool that prints, and changes nothing."""

    def __init__(self, *argv, runs=False):
        self.argv, self.tool, self.runs = argv, argv[0], runs

    def prepare(self, folder):
        super().prepare(folder)
        if self.runs:
            shutil.copytree(SOURCE / "tests/fixtures/runs", folder / "work/runs")

    def processes(self, folder, env):
        return [([str(BUILD / self.argv[0]), *self.argv[1:]], {**env, "SLURM_CONF": "/nonexistent"})]

    def judge(self, folder, outcome, good):
        same = (outcome.codes, outcome.out) == (good.codes, good.out)
        said = outcome.err != good.err and outcome.err.strip()
        outcome.need(same or said, f"other output without a word: {outcome.codes}\n{outcome.out}")
        outcome.need(outcome.codes != [0] or same or said, "exit code 0")


class Submit(Scenario):
    """plsubmit with an sbatch that takes all."""

    tool = "plsubmit"

    def prepare(self, folder):
        super().prepare(folder)
        for name in ("sbatch", "scontrol", "squeue", "sinfo"):
            path = folder / "bin" / name
            path.write_text("#!/bin/sh\n" + (f"echo x >>{folder}/calls; echo 1000\n"
                                             if name == "sbatch" else "exit 0\n"))
            path.chmod(0o755)
        (folder / "slurm.conf").touch()

    def processes(self, folder, env):
        argv = [str(BUILD / "plsubmit"), "--parsable", "--grid", "lr=1e-3,1e-2", "--nodes", "2", "true"]
        return [(argv, {**env, "SLURM_CONF": f"{folder}/slurm.conf"})]

    def judge(self, folder, outcome, good):
        calls = folder / "calls"
        submitted = len(calls.read_text().split()) if calls.exists() else 0
        if outcome is not good:
            # --test-only is a question of its own.
            outcome.need(submitted <= good.submitted, f"submitted {submitted} times")
        outcome.submitted = submitted
        complete = [r for r in (folder / "work").glob("runs/*") if not r.name.startswith(".")]
        for run in complete:
            if (run / "sweep.json").exists():
                json.loads((run / "sweep.json").read_text())
        if outcome.codes == [0]:
            outcome.need(outcome.out == good.out, f"other output: {outcome.out}")
            outcome.need(len(complete) == 1 and (complete[0] / "job.sh").exists(), "no run folder")
        else:
            outcome.need(outcome.err.strip(), f"exit code {outcome.codes} without a word")


class Plugin(Scenario):
    """What the plugin does as root, with a daemon that only says that it is ready. Any allocation of
    slurmstepd itself that fails ends it, by Slurm's own choice; this is the plugin alone."""

    tool = "plugin_start"
    USER = 65534

    def prepare(self, folder):
        super().prepare(folder)
        folder.chmod(0o755)
        (folder / "sockets").chmod(0o755)
        daemon = folder / "plrund"
        daemon.write_text("#!/bin/sh\necho '{\"type\":\"ready\",\"pid\":1,\"socket\":\"/usr\"}' >&3\nexec cat <&3\n")
        daemon.chmod(0o755)

    def processes(self, folder, env):
        yield [str(BUILD / "tests/unit/plugin_start"), str(folder / "plrund"), str(folder / "sockets"),
               str(self.USER)], env

    def judge(self, folder, outcome, good):
        if outcome.codes != [0]:
            outcome.need(outcome is not good and outcome.err.strip(), f"exit code {outcome.codes} without a word")


class Step(Scenario):
    """A step of plrun, without Slurm: node 0, or two nodes. Rank 0 ends with this code."""

    def __init__(self, tool, code, nodes=1, at=0):
        self.tool, self.code, self.nodes, self.at = tool, code, nodes, at

    def prepare(self, folder):
        super().prepare(folder)
        (folder / "home/key").write_bytes(bytes(range(32)))
        (folder / "home/key").chmod(0o600)
        scontrol = folder / "bin/scontrol"
        scontrol.write_text("#!/bin/sh\nexit 1\n")
        scontrol.chmod(0o755)

    def processes(self, folder, env):
        program = (f': >{folder}/ran.$RANK; echo "out of $RANK"; echo "err of $RANK" >&2; '
                   f'[ $RANK = 0 ] || exit 0; exit {self.code}')
        # Each run is a job of its own: its hub's ports stay taken for a minute (TIME_WAIT).
        job = 10**6 + zlib.crc32(str(folder).encode()) % 10**9
        for node in range(self.nodes):
            own = {**env, "SLURM_JOB_ID": str(job), "SLURM_STEP_ID": "0",
                   "SLURM_NODEID": str(node), "SLURM_STEP_NUM_NODES": str(self.nodes),
                   "SLURM_STEP_NUM_TASKS": str(self.nodes), "SLURM_PROCID": str(node),
                   "SLURM_LOCALID": "0", "SLURM_STEP_TASKS_PER_NODE": f"1(x{self.nodes})",
                   "SLURM_STEP_NODELIST": f"n[0-{self.nodes - 1}]", "SLURMD_NODENAME": f"n{node}",
                   "SLURM_JOB_NAME": "test", "SLURM_LAUNCH_NODE_IPADDR": "127.0.0.1",
                   "PLUME_RUNTIME_DIR": f"{folder}/sockets", "PLUME_LAUNCH_TIMEOUT": "3",
                   "PLUME_HUB_PORTS": "20000-29999", "PLUME_KILL_GRACE": "2"}
            if node != self.at:
                own = {k: v for k, v in own.items() if k not in ("LD_PRELOAD", "FAIL_MALLOC")}
            yield [str(BUILD / "plrun"), "--", "bash", "-c", program], own

    def may_be_killed(self, outcome):
        """plrund says that it ends a plrun and its rank: it cannot tell it what it has to. A plrun
        whose plrund did not start has become one that tells the other nodes."""
        return self.tool == "plrund" and (re.search("cut off|lost the hub|ending rank", outcome.err) or
                                          signal.SIGABRT in outcome.died)

    def judge(self, folder, outcome, good):
        ran = sorted(int(p.suffix[1:]) for p in folder.glob("ran.*"))
        results = list(folder.glob("home/steps/*/trial-0000/result.json"))
        result = json.loads(results[0].read_text()) if results else None
        state = result and result["state"]
        said = bool(OUT_OF_MEMORY.search(outcome.err.replace(good.err, "")))
        for rank in ran:
            for stream, text in (("out", outcome.out), ("err", outcome.err)):
                outcome.need(f"{stream} of {rank}\n" in text or said,
                             f"rank {rank}'s {stream} is lost without a word")
        if self.code == 0:
            outcome.need(any(outcome.codes) or state == "done" or said, f"exit code 0, state {state}")
            outcome.need(state == "done" or not result or any(outcome.codes) or said, f"state {state}")
        else:
            outcome.need(state != "done", "a failed step is recorded as done")
            outcome.need(any(outcome.codes), "a failed step has exit code 0")
        outcome.need(state != "done" or len(ran) == self.nodes, "done, but a rank did not run")
        ends = ("done", "failed", "node-failed") if self.nodes > 1 else ("done", "failed")
        outcome.need(state is None or state in ends, f"state {state} at the end")
        outcome.need(state or said, "no result, without a word")
        if any(outcome.codes) and self.code not in outcome.codes:
            outcome.need(outcome.err.strip(), f"exit codes {outcome.codes} without a word")


SCENARIOS = {
    "plrund-fails": Step("plrund", 3),
    "plrund-done": Step("plrund", 0),
    "plrund-hub": Step("plrund", 3, nodes=2),
    "plrund-node": Step("plrund", 3, nodes=2, at=1),
    "plrun-fails": Step("plrun", 3),
    "plrun-done": Step("plrun", 0),
    "plugin": Plugin(),
    "plsubmit-dry": Command("plsubmit", "--dry-run", "--grid", "lr=1e-3,1e-2", "--nodes", "2", "true"),
    "plsubmit": Submit(),
    "plstat-list": Command("plstat", runs=True),
    "plstat-show": Command("plstat", "show", "runs/mixed/2", runs=True),
    "plstat-show-json": Command("plstat", "show", "--json", "runs/mixed/2", runs=True),
    "plstat-why": Command("plstat", "why", "runs/mixed/2", runs=True),
    "plstat-sweep": Command("plstat", "sweep", "runs/mixed", runs=True),
    "plstat-sweep-json": Command("plstat", "sweep", "--json", "runs/mixed", runs=True),
}
# What runs in the suite, as parts of all: many at equal distances, and where a step ends well.
EIGHT, FOUR = [[i / n for i in range(n)] for n in (8, 4)]
SAMPLE = {"plrund-fails": EIGHT, "plrund-done": (0.86, 0.87, 0.885, 0.9, 0.915, 0.925), "plrun-fails": FOUR,
          "plugin": EIGHT, "plsubmit-dry": FOUR, "plstat-show": FOUR}


def one(name, nth, good):
    try:
        outcome = SCENARIOS[name].run(nth, good)
    except Exception as e:  # pylint: disable=broad-except
        outcome = Outcome()
        outcome.defects.append(f"{type(e).__name__}: {e}")
    return name, nth, outcome


def cases(args):
    """(scenario, n) of each run, and the outcomes with all memory."""
    wanted = {}
    for word in args.scenario or (SCENARIOS if args.all else SAMPLE):
        if word == "plugin" and os.geteuid() != 0:
            print("# skipped: plugin: needs root, as slurmstepd is")
            continue
        name, _, nth = word.partition(":")
        wanted.setdefault(name, []).extend([int(nth)] if nth else [])
    good, todo = {}, []
    for name, numbers in wanted.items():
        good[name] = SCENARIOS[name].run(0)
        if good[name].defects or not good[name].count:
            print(f"# {name}, with all memory: {good[name].defects}, {good[name].count} allocations\n"
                  f"{good[name].err}")
            sys.exit(2)
        total = good[name].count
        if not numbers and (args.all or args.scenario):
            numbers = range(1, total + 1)
        elif not numbers:
            numbers = sorted({1 + int(total * part) for part in SAMPLE[name]})
        todo += [(name, n) for n in numbers]
    return good, todo


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("scenario", nargs="*")
    args = parser.parse_args()
    good, todo = cases(args)
    bad, count = 0, {}
    # The workers share what this process has set up: Python 3.14 starts them anew by default.
    fork = multiprocessing.get_context("fork")
    with concurrent.futures.ProcessPoolExecutor(args.jobs, fork) as pool:
        futures = [pool.submit(one, name, n, good[name]) for name, n in todo]
        for f in concurrent.futures.as_completed(futures):
            name, nth, outcome = f.result()
            count[name] = count.get(name, 0) + 1
            if outcome.defects:
                bad += 1
                print(f"# {name}:{nth}: {'; '.join(outcome.defects)}", flush=True)
                for line in outcome.err.splitlines()[:12]:
                    print(f"#     {line}", flush=True)
    for name, n in count.items():
        print(f"# {name}: {n} of its {good[name].count} allocations failed")
    print(f"1..1\n{'not ok' if bad else 'ok'} 1 allocations: {len(todo) - bad} of {len(todo)} right")
    sys.exit(bad > 0)


main()
