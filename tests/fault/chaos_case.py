# SPDX-License-Identifier: MIT
"""One step with one fault, and the oracles of what must follow; chaos.py has the whole."""
import collections
import contextlib
import glob
import json
import os
import pathlib
import random
import subprocess
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
