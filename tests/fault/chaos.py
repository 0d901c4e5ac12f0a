#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Faults at random moments in real steps, and a model of what must follow.

    chaos.py [--seed N] [--minutes M | --count K] [--jobs J] [--fault NAME] [--way plrun|plugin]
             [--case SEED:I]

A case is one step on a private cluster: its size, the way of launching (plrun, the plugin), the fault
and its moment follow from "SEED:I" alone, so that --case repeats it. `faults` below says for each
fault what state, cause, exit code and rank states must follow. After each case the files must hold
together (check-run.py), and no process, socket or temporary file of the step may be left.

$CLUSTER_DIR and $SLURM_CONF name a cluster that runs (./dev cluster env); else one is started.
"""
import argparse
import collections
import concurrent.futures
import contextlib
import glob
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time

SOURCE = pathlib.Path(__file__).resolve().parents[2]
PLAIN_UID = 65534
COME_S = 60   # for all ranks of a step to run
END_S = 60    # for a step to end after its fault: grace, and much for a busy machine
LEFT_S = 15   # for the last process of a step to go
GRACE_S, SILENCE_S = 2, 4

STAY = "exec tail -f /dev/null\n"
RANK = """#!/bin/bash
cd "$CHAOS_FOLDER"
stand() { echo "$$ $PPID $SLURMD_NODENAME $SLURM_JOB_ID" >".at.$RANK"; mv ".at.$RANK" "at.$RANK"; }
reached() { until [ -e "$1" ]; do sleep 0.02; done; }
everybody() { until [ "$(ls at.* | wc -l)" = "$WORLD_SIZE" ]; do sleep 0.02; done; }
. "./plan.$RANK"
"""


class Wrong(Exception):
    """The oracle's verdict."""


def need(true, text):
    if not true:
        raise Wrong(text)


def wait_for(what, limit, check):
    end = time.monotonic() + limit
    while time.monotonic() < end:
        value = check()
        if value:
            return value
        time.sleep(0.02)
    raise Wrong(f"{what}: not within {limit} s")


def children(pid):
    """(pid, name) of a process's children."""
    for entry in glob.glob("/proc/[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError):
            with open(entry, encoding="utf-8", errors="replace") as f:
                head, rest = f.read().rsplit(")", 1)
            if int(rest.split()[1]) == pid:
                yield int(head.split()[0]), head.split("(", 1)[1]


def environment_of(entry):
    with open(f"{entry}/environ", "rb") as f:
        return set(f.read().split(b"\0"))


class Case:
    """One step with one fault."""

    def __init__(self, name, args, work):
        self.name, self.work = name, work
        self.random = random.Random(name)
        self.way = args.way or self.random.choice(("plrun", "plugin"))
        names = [n for n, f in FAULTS.items() if self.way in f.ways and args.fault in (None, n)]
        self.fault = self.random.choice(names)
        f = FAULTS[self.fault]
        self.nodes = self.random.randint(f.nodes, 3)
        self.per_node = self.random.randint(1, 3)
        if self.nodes * self.per_node < f.ranks:
            self.per_node = f.ranks
        self.world = self.nodes * self.per_node
        self.folder = work / name.replace(":", "-")
        self.job = self.srun = None
        self.code = None
        self.others = range(0)
        self.env = {}

    def describe(self):
        return f"{self.name} {self.fault}, {self.way}, {self.nodes} x {self.per_node} ranks"

    def pick(self, *without):
        return self.random.choice([r for r in range(self.world) if r not in without])

    def pause(self, most=0.5):
        time.sleep(self.random.uniform(0, most))

    # ---- what ranks do ----

    def plan(self, rank, text):
        (self.folder / f"plan.{rank}").write_text(text, encoding="utf-8")

    def plan_all(self, text):
        for rank in range(self.world):
            self.plan(rank, text)

    def let(self, name):
        """What ranks wait for by reached()."""
        (self.folder / name).touch()

    # ---- the step ----

    def prepare(self):
        self.folder.mkdir(mode=0o755)
        (self.folder / "home").mkdir(mode=0o700)
        (self.folder / "rank").write_text(RANK, encoding="utf-8")
        (self.folder / "rank").chmod(0o755)
        if os.geteuid() == 0:
            for path in (self.folder, self.folder / "home"):
                os.chown(path, PLAIN_UID, PLAIN_UID)

    def start(self):
        env = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM_JOB", "PLUME_"))}
        env.update({"HOME": str(self.folder / "home"), "PLUME_HOME": f"{self.folder}/plume",
                    "CHAOS_FOLDER": str(self.folder), "PLUME_KILL_GRACE": str(GRACE_S),
                    "PLUME_SILENCE": str(SILENCE_S), "PLUME_LAUNCH_TIMEOUT": "30", **self.env})
        argv = ["srun", "-Q", "-J", self.folder.name, f"-N{self.nodes}", f"-n{self.world}",
                f"--ntasks-per-node={self.per_node}"]
        argv += ["--plume", "./rank"] if self.way == "plugin" else ["plrun", "--", "./rank"]
        if os.geteuid() == 0:
            argv = ["setpriv", "--reuid", str(PLAIN_UID), "--regid", str(PLAIN_UID), "--clear-groups", *argv]
        with open(self.folder / "out", "wb") as out, open(self.folder / "err", "wb") as err:
            self.srun = subprocess.Popen(argv, cwd=self.folder, env=env, stdout=out, stderr=err,
                                         stdin=subprocess.DEVNULL, start_new_session=True)

    def ranks_there(self):
        """[(pid, parent, node)] by rank, once all stand."""
        def look():
            need(self.srun.poll() is None or len(glob.glob(f"{self.folder}/at.*")) == self.world,
                 f"srun ended with {self.srun.returncode} before all ranks ran")
            return len(glob.glob(f"{self.folder}/at.*")) == self.world
        wait_for("the ranks", COME_S, look)
        ret = []
        for rank in range(self.world):
            pid, parent, node, self.job = (self.folder / f"at.{rank}").read_text().split()
            ret.append((int(pid), int(parent), node))
        return ret

    def daemon_of(self, there, node_index):
        """The pid of this node's plrund."""
        first = there[node_index * self.per_node]
        if self.way == "plrun":
            found = [p for p, name in children(first[1]) if name == "plrund"]
        else:
            found = []
            for entry in glob.glob("/proc/[0-9]*"):
                with contextlib.suppress(OSError):
                    if pathlib.Path(entry, "comm").read_text() == "plrund\n" and {
                            f"PLUME_JOB_ID={self.job}".encode(),
                            f"PLUME_NODE_ID={node_index}".encode()} <= environment_of(entry):
                        found.append(int(entry[6:]))
        need(len(found) == 1, f"daemons of node {node_index}: {found}")
        return found[0]

    def trial(self):
        found = glob.glob(f"{self.folder}/plume/steps/*/trial-0000")
        need(len(found) <= 1, f"run folders: {found}")
        return pathlib.Path(found[0]) if found else None

    def load(self, name):
        trial = self.trial()
        with contextlib.suppress(FileNotFoundError, TypeError):
            return json.loads((trial / name).read_text(encoding="utf-8"))
        return None

    def err(self):
        return (self.folder / "err").read_text(encoding="utf-8", errors="replace")

    def end(self):
        """srun ends in bounded time, and nothing of the step is left."""
        try:
            self.code = self.srun.wait(END_S)
        except subprocess.TimeoutExpired:
            raise Wrong(f"srun has not ended {END_S} s after the fault") from None
        self.code = 128 - self.code if self.code < 0 else self.code
        if self.job:
            wait_for("no process left", LEFT_S, lambda: not self.left())

    def left(self):
        """Processes that have this job in their environment."""
        job, folder = f"SLURM_JOB_ID={self.job}".encode(), f"CHAOS_FOLDER={self.folder}".encode()
        found = []
        for entry in glob.glob("/proc/[0-9]*"):
            with contextlib.suppress(OSError):
                if {job, folder} <= environment_of(entry):
                    found.append(f"{entry[6:]} {pathlib.Path(entry, 'cmdline').read_bytes()[:80]}")
        return found

    def files_hold(self, code):
        trial = self.trial()
        need(trial, "no run folder")
        # The plugin's daemon outlives srun for a moment.
        wait_for("the end of the log", LEFT_S, lambda: "hub" not in (self.load("status.json") or {"hub": 1}))
        said = subprocess.run([str(SOURCE / "tests/lib/check-run.py"),
                               f"{trial}={code}" if code is not None else str(trial)],
                              capture_output=True, text=True, check=False)
        need(said.returncode == 0, f"check-run: {said.stderr}")
        odd = [str(p) for p in trial.rglob("*") if p.name.startswith(".") or ".tmp" in p.name]
        need(not odd, f"temporary files: {odd}")

    def no_socket(self):
        uid = PLAIN_UID if os.geteuid() == 0 else os.geteuid()
        left = glob.glob(f"/tmp/plume-{uid}/{self.job}.*")
        need(not left, f"sockets: {left}")

    def states(self):
        return [r["state"] for r in self.load("status.json")["state"]["ranks"]]

    # ---- verdicts ----

    def must_be_done(self):
        self.end()
        need(self.code == 0, f"exit code {self.code}, not 0")
        self.files_hold(0)
        need(self.load("result.json")["state"] == "done", self.load("result.json"))
        self.no_socket()

    def must_fail(self, code, **cause):
        """code: of the step under plrun, None = any but 0; the plugin's is Slurm's own, and not 0."""
        self.end()
        if self.way == "plugin":
            code = None
        need(self.code != 0 and code in (None, self.code), f"exit code {self.code}, not {code}")
        self.files_hold(code)
        result = self.load("result.json")
        need(result["state"] == cause.pop("state", "failed"), result)
        have = result["cause"]
        for key, value in cause.items():
            need(have.get(key) in value if isinstance(value, (set, tuple)) else have.get(key) == value,
                 f"cause {have}, want {key}={value}")
        self.no_socket()

    def must_lose_hub(self):
        """Nobody is left to write a result; srun's code and stderr say it."""
        self.end()
        need(self.code != 0, "exit code 0")
        result = self.load("result.json")
        need(result is None or result["state"] != "done", f"{result}")
        self.no_socket()


# ---- the faults ----

Fault = collections.namedtuple("Fault", "run ways nodes ranks")
FAULTS = {}
BOTH = ("plrun", "plugin")


def fault(ways=BOTH, nodes=1, ranks=1):
    def add(f):
        FAULTS[f.__name__] = Fault(f, ways, nodes, ranks)
        return f
    return add


@fault()
def none(c):
    c.plan_all("stand; everybody; exit 0\n")
    c.start()
    c.must_be_done()


@fault()
def exits(c):
    """One rank exits with a code, at any moment after its start; the others stay."""
    rank, code = c.pick(), c.random.randint(1, 125)
    c.plan_all("stand\n" + STAY)
    c.plan(rank, f"stand\n{c.random.choice(('', 'everybody'))}\nsleep {c.random.choice((0, 0, 0.1, 0.5))}\n"
                 f"echo reason >&2; exit {code}\n")
    c.start()
    c.must_fail(code, kind="exit", rank=rank, exit=code, text="reason")


@fault()
def signal_kills(c):
    """One rank ends by a signal that it, or somebody else, sends it."""
    rank = c.pick()
    number = c.random.choice((signal.SIGSEGV, signal.SIGABRT, signal.SIGKILL, signal.SIGBUS, signal.SIGFPE))
    c.plan_all("ulimit -c 0; stand\n" + STAY)
    c.start()
    there = c.ranks_there()
    c.pause()
    os.kill(there[rank][0], number)
    c.must_fail(128 + number, kind="signal", rank=rank, signal=int(number))


@fault(ranks=2)
def cascade(c):
    """The others complain as NCCL does, before the rank that failed has ended."""
    rank, code = c.pick(), c.random.randint(1, 125)
    c.plan_all("stand; reached gone; echo 'NCCL WARN: ncclRemoteError: Connection closed by remote peer' >&2; "
               "exit 1\n")
    c.plan(rank, f"stand; everybody; : >gone; sleep {c.random.choice((0, 0.02, 0.1, 0.3))}\n"
                 f"echo 'ValueError: bad data' >&2; exit {code}\n")
    c.start()
    c.must_fail(code, kind="exit", rank=rank, text="ValueError: bad data")


@fault(ranks=2)
def leaves_early(c):
    """A rank that has done its part is no fault."""
    rank = c.pick()
    c.plan_all("stand; everybody; sleep 0.5; exit 0\n")
    c.plan(rank, "stand; exit 0\n")
    c.start()
    c.must_be_done()


@fault(ranks=2)
def stubborn(c):
    """The other ranks take no SIGTERM: SIGKILL after the grace."""
    rank, code = c.pick(), c.random.randint(1, 125)
    c.plan_all("trap '' TERM; stand; while :; do sleep 1; done\n")
    c.plan(rank, f"stand; everybody; exit {code}\n")
    c.start()
    c.must_fail(code, kind="exit", rank=rank, exit=code)


@fault(ranks=2)
def saves(c):
    """The other ranks save and exit 0 when they get SIGTERM."""
    rank, code = c.pick(), c.random.randint(1, 125)
    c.plan_all("trap 'echo saved; exit 0' TERM; stand; while :; do sleep 0.1; done\n")
    c.plan(rank, f"stand; everybody; exit {code}\n")
    c.start()
    c.must_fail(code, kind="exit", rank=rank, exit=code)


@fault()
def grandchildren(c):
    """A rank that leaves processes in sessions of their own, and fails or not."""
    rank, code = c.pick(), c.random.choice((0, 0, 7))
    leave = "for i in 1 2 3; do setsid bash -c 'trap \"\" TERM HUP; while :; do sleep 1; done' & done\n"
    c.plan_all(leave + "stand; everybody; exit 0\n")
    c.plan(rank, leave + f"stand; everybody; exit {code}\n")
    c.start()
    if code:
        c.must_fail(code, kind="exit", rank=rank, exit=code)
    else:
        c.must_be_done()


@fault()
def much_output(c):
    """Output by the megabyte from all ranks, then a rank fails: its last line is there."""
    rank = c.pick()
    c.plan_all("stand; seq 100000; everybody\n" + STAY)
    c.plan(rank, "stand; seq 100000; seq 100000 >&2; everybody; echo the last line >&2; exit 9\n")
    c.start()
    c.must_fail(9, kind="exit", rank=rank, exit=9)
    text = c.load("result.json")["cause"]["text"]
    need(text.endswith("the last line"), f"text {text!r}")
    lines = (c.trial() / f"attempt-0/rank-{rank}.out").read_text().split()
    need(lines == [str(i) for i in range(1, 100001)], f"{len(lines)} lines of output")


@fault()
def metrics(c):
    """Reports by the thousand, garbage among them, are no fault."""
    c.plan_all("""stand; everybody
python3 - <<'PY'
import json, os, random, socket
for turn in range(3):
    s = socket.socket(socket.AF_UNIX)
    s.connect(os.environ["PLUME_SOCKET"])
    def say(**o):
        s.sendall(json.dumps(o).encode() + b"\\n")
    say(type="hello", proto="plume", major=1, minor=0, role="program", rank=int(os.environ["RANK"]),
        local_rank=int(os.environ["LOCAL_RANK"]))
    try:
        for i in range(2000):
            say(type="metrics", step=i, metrics={"loss": 1 / (i + 1)})
        say(type="exited", status=9, at_ns=1)
        s.sendall(bytes(random.randrange(256) for _ in range(2000)) + b"\\n")
    except OSError:
        pass
    s.close()
PY
exit 0
""")
    c.start()
    c.must_be_done()
    need(c.load("result.json")["metrics"].get("loss") is not None, "no metric")


@fault(ways=("plrun",))
def guard_killed(c):
    rank = c.pick()
    c.plan_all("stand\n" + STAY)
    c.start()
    there = c.ranks_there()
    c.pause()
    os.kill(there[rank][1], signal.SIGKILL)
    c.must_fail(137, kind="runtime", process="plrun", rank=rank, node=there[rank][2])


@fault(ways=("plrun",), ranks=2)
def guard_stopped(c):
    """A plrun that is stopped cannot end its rank; another rank fails."""
    rank = c.pick()
    other = c.pick(rank)
    c.plan_all("stand\n" + STAY)
    c.plan(other, "stand; reached go; exit 5\n")
    c.start()
    there = c.ranks_there()
    os.kill(there[rank][1], signal.SIGSTOP)
    c.let("go")
    c.end()
    need(c.code != 0, "exit code 0")
    c.files_hold(None)
    cause = c.load("result.json")["cause"]
    need((cause["kind"], cause["rank"], cause["exit"]) == ("exit", other, 5), f"cause {cause}")


@fault(nodes=2)
def daemon_killed(c):
    node = c.random.randrange(1, c.nodes)
    ranks = range(node * c.per_node, (node + 1) * c.per_node)
    c.plan_all("stand\n" + STAY)
    c.start()
    there = c.ranks_there()
    pid = c.daemon_of(there, node)
    c.pause()
    os.kill(pid, signal.SIGKILL)
    c.end()
    need(c.code != 0, "exit code 0")
    c.files_hold(None)
    cause = c.load("result.json")["cause"]
    need(cause["kind"] == "runtime" and cause["process"] == "plrund" and cause["rank"] in ranks
         and cause["node"] == there[ranks[0]][2], f"cause {cause}")
    c.no_socket()


@fault(nodes=2)
def daemon_stopped(c):
    """For longer than the silence that is borne."""
    node = c.random.randrange(1, c.nodes)
    ranks = range(node * c.per_node, (node + 1) * c.per_node)
    c.plan_all("stand\n" + STAY)
    c.start()
    there = c.ranks_there()
    os.kill(c.daemon_of(there, node), signal.SIGSTOP)
    c.end()
    need(c.code != 0, "exit code 0")
    c.files_hold(None)
    cause = c.load("result.json")["cause"]
    need(cause["kind"] == "runtime" and cause["rank"] in ranks, f"cause {cause}")


@fault()
def daemon_pauses(c):
    """Stopped for less than the silence that is borne, the hub's too: no fault."""
    node = c.random.randrange(c.nodes)
    c.plan_all("stand; reached go; exit 0\n")
    c.start()
    pid = c.daemon_of(c.ranks_there(), node)
    os.kill(pid, signal.SIGSTOP)
    time.sleep(c.random.uniform(0.1, 1.5))
    if c.random.random() < 0.5:
        c.let("go")  # ranks end meanwhile
    os.kill(pid, signal.SIGCONT)
    c.let("go")
    c.must_be_done()


@fault()
def hub_killed(c):
    c.plan_all("stand\n" + STAY)
    c.start()
    pid = c.daemon_of(c.ranks_there(), 0)
    c.pause()
    os.kill(pid, signal.SIGKILL)
    c.must_lose_hub()


@fault()
def suspended(c):
    """The whole job, by Slurm, while it runs or before all ranks stand."""
    c.plan_all("stand; reached go; exit 0\n")
    c.start()
    if c.random.random() < 0.5:
        c.ranks_there()
    else:
        wait_for("the first rank", COME_S, lambda: glob.glob(f"{c.folder}/at.*"))
    job = pathlib.Path(glob.glob(f"{c.folder}/at.*")[0]).read_text().split()[3]
    subprocess.run(["scontrol", "suspend", job], check=True, timeout=30)
    time.sleep(c.random.choice((0.2, 1, SILENCE_S + 2)))
    subprocess.run(["scontrol", "resume", job], check=True, timeout=30)
    c.let("go")
    c.ranks_there()
    c.must_be_done()


@fault()
def step_signalled_and_survives(c):
    """SIGTERM to the step by scancel -s: all ranks go on and exit 0."""
    c.plan_all("trap ': >got.$RANK' TERM; stand; until [ -e go ]; do sleep 0.05; done; exit 0\n")
    c.start()
    c.ranks_there()
    c.pause()
    subprocess.run(["scancel", "-s", "TERM", f"{c.job}.0"], check=True, timeout=30)
    wait_for("the signal", 30, lambda: len(glob.glob(f"{c.folder}/got.*")) == c.world)
    c.let("go")
    c.must_be_done()


@fault(ranks=2)
def step_signalled(c):
    """SIGTERM to the step by scancel -s, and the ranks end by it. Slurm lets the job run on."""
    c.plan_all("stand\n" + STAY)
    c.start()
    c.ranks_there()
    c.pause()
    subprocess.run(["scancel", "-s", "TERM", f"{c.job}.0"], check=True, timeout=30)
    c.must_fail(None, state="cancelled", kind="cancelled")


@fault()
def cancelled(c):
    """scancel of the job: a result, if the daemons got to it, says so; nothing is left in any case."""
    c.plan_all("stand\n" + STAY)
    c.start()
    c.ranks_there()
    c.pause()
    subprocess.run(["scancel", c.job], check=True, timeout=30)
    c.end()
    need(c.code != 0, "exit code 0")
    result = c.load("result.json")
    if result:
        need(result["state"] in ("cancelled", "failed"), result)
        need(result["state"] == "cancelled" or result["cause"]["kind"] == "signal", result)


@fault(ways=("plrun",))
def folder_removed(c):
    """The run folder goes while the ranks run, then one fails: exit code and stderr still say it."""
    rank = c.pick()
    c.plan_all("stand\n" + STAY)
    c.plan(rank, "stand; reached go; exit 7\n")
    c.start()
    c.ranks_there()
    shutil.rmtree(f"{c.folder}/plume", ignore_errors=True)
    c.let("go")
    c.end()
    need(c.code == 7, f"exit code {c.code}, not 7")
    need(f"rank {rank} on" in c.err() and "exit code 7" in c.err(), f"stderr: {c.err()}")


@fault()
def strangers_at_the_hub(c):
    """Garbage, silence and half greetings at the hub's port are no fault."""
    c.plan_all("stand; reached go; exit 0\n")
    c.start()
    c.ranks_there()
    hub = wait_for("status.json", 20, lambda: (c.load("status.json") or {}).get("hub"))
    open_ones = []
    import socket  # pylint: disable=import-outside-toplevel
    for i in range(40):
        with contextlib.suppress(OSError):
            s = socket.create_connection((hub["host"], hub["port"]), 5)
            open_ones.append(s)
            if i % 3 == 0:
                s.sendall(c.random.randbytes(c.random.randrange(1, 5000)))
            elif i % 3 == 1:
                s.sendall(b'{"type":"hello","proto":"plume","major":1,')
    c.let("go")
    c.must_be_done()
    for s in open_ones:
        s.close()


@fault()
def controller_stops(c):
    """slurmctld is stopped for a while: the ranks, and their verdict, do not depend on it."""
    daemons = pathlib.Path(os.environ["CLUSTER_DIR"], "pids").read_text().splitlines()
    pid = int(next(line.split()[1] for line in daemons if line.startswith("slurmctld ")))
    rank = c.pick()
    c.plan_all("stand\n" + STAY)
    c.plan(rank, "stand; reached go; exit 4\n")
    c.start()
    c.ranks_there()
    os.kill(pid, signal.SIGSTOP)
    try:
        c.let("go")
        time.sleep(c.random.uniform(0.2, 2))
    finally:
        os.kill(pid, signal.SIGCONT)
    c.must_fail(4, kind="exit", rank=rank, exit=4)


# ---- running them ----

def run_case(name, args, work):
    c = Case(name, args, work)
    begun = time.monotonic()
    wrong = None
    try:
        c.prepare()
        FAULTS[c.fault].run(c)
    except Wrong as e:
        wrong = str(e)
    except (OSError, subprocess.SubprocessError, KeyError, ValueError, TypeError) as e:
        wrong = f"{type(e).__name__}: {e}"
    finally:
        if c.srun and c.srun.poll() is None:
            with contextlib.suppress(Exception):
                c.srun.terminate()
                c.srun.wait(10)
        if wrong and c.job:
            with contextlib.suppress(Exception):
                subprocess.run(["scancel", "-Q", c.job], check=False, timeout=30)
    if not wrong:
        shutil.rmtree(c.folder, ignore_errors=True)
    return c, wrong, time.monotonic() - begun


def names(args):
    """The cases, one after the other."""
    if args.case:
        yield args.case
        return
    end = time.monotonic() + args.minutes * 60 if args.minutes else None
    i = 0
    while (end and time.monotonic() < end) or (not end and i < args.count):
        yield f"{args.seed}:{i}"
        i += 1


def show(c, wrong):
    print(f"# WRONG {c.describe()}: {wrong}\n#   exit code {c.code}, in {c.folder}; again: --case {c.name}")
    for line in c.err().splitlines()[-8:] if (c.folder / "err").exists() else ():
        print(f"#   {line}")
    sys.stdout.flush()


def all_cases(args, work):
    total = collections.Counter()
    right = collections.Counter()
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        running = set()

        def take(done):
            for f in done:
                c, wrong, _ = f.result()
                total[c.fault, c.way] += 1
                right[c.fault, c.way] += not wrong
                if wrong:
                    show(c, wrong)
        for name in names(args):
            running.add(pool.submit(run_case, name, args, work))
            if len(running) >= args.jobs:
                done, running = concurrent.futures.wait(
                    running, return_when=concurrent.futures.FIRST_COMPLETED)
                take(done)
        take(concurrent.futures.wait(running)[0])
    return total, right


def not_drained():
    said = subprocess.run(["sinfo", "-h", "-p", "main", "-N", "-o", "%N %t"], capture_output=True, text=True,
                          check=False, timeout=30).stdout
    return [line for line in said.splitlines() if line.split()[1].rstrip("*") not in ("idle", "alloc", "mix",
                                                                                   "comp")]


@contextlib.contextmanager
def cluster():
    """One of our own, unless one is named."""
    if "CLUSTER_DIR" in os.environ:
        yield
        return
    name = f"chaos-{os.getpid()}"
    subprocess.run([str(SOURCE / "dev"), "cluster", "up", "6", "--quiet", "--name", name], check=True,
                   stdin=subprocess.DEVNULL)
    try:
        said = subprocess.run(["bash", "-c", f'eval "$("{SOURCE}/dev" cluster env --name {name})"; env -0'],
                              capture_output=True, check=True).stdout
        for entry in said.split(b"\0"):
            key, _, value = entry.partition(b"=")
            if key in (b"SLURM_CONF", b"PATH", b"PLUME_CLUSTER", b"LD_LIBRARY_PATH"):
                os.environ[key.decode()] = value.decode()
        os.environ["CLUSTER_DIR"] = os.path.dirname(os.environ["SLURM_CONF"])
        yield
    finally:
        subprocess.run([str(SOURCE / "dev"), "cluster", "down", "--name", name], check=False,
                       stdin=subprocess.DEVNULL)


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--seed", type=int, default=int(time.time()) % 10**7)
    parser.add_argument("--minutes", type=float, default=0)
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--jobs", type=int, default=3)
    parser.add_argument("--fault", choices=sorted(FAULTS))
    parser.add_argument("--way", choices=BOTH)
    parser.add_argument("--case")
    args = parser.parse_args()
    print(f"# seed {args.seed}", flush=True)
    work = pathlib.Path(tempfile.mkdtemp(prefix="plume-chaos-", dir="/tmp"))
    work.chmod(0o755)
    with cluster():
        total, right = all_cases(args, work)
        drained = not_drained()
    for (name, way), n in sorted(total.items()):
        print(f"# {name}, {way}: {right[name, way]} of {n}")
    for line in drained:
        print(f"# node {line}")
    n, good = sum(total.values()), sum(right.values())
    bad = good < n or drained
    print(f"1..1\n{'not ok' if bad else 'ok'} 1 chaos: {good} of {n} right, seed {args.seed}")
    if good == n:
        shutil.rmtree(work, ignore_errors=True)
    sys.exit(bool(bad))


main()
