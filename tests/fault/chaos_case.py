# SPDX-License-Identifier: MIT
"""One step with one fault, and the oracles of what must follow; chaos.py has the whole."""
import collections
import contextlib
import glob
import json
import os
import pathlib
import queue
import random
import socket
import struct
import subprocess
import threading
import time

SOURCE = pathlib.Path(__file__).resolve().parents[2]
PLAIN_UID = 65534
SOCKETS = f"/tmp/plume-{os.geteuid() or PLAIN_UID}"
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


def has(document, key, value):
    """value: what it must be, or a container of what it may be."""
    have = document.get(key)
    need(have in value if isinstance(value, (set, tuple, range)) else have == value,
         f"{key} is {have!r}, not {value!r}, in {document}")


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


def load(path):
    with contextlib.suppress(FileNotFoundError):
        return json.loads(path.read_text(encoding="utf-8"))
    return None


def sockets(jobs):
    """What is left of these jobs where plrund has its sockets."""
    return [path for job in jobs for path in glob.glob(f"{SOCKETS}/{job}.*")]


def environment_of(entry):
    with open(f"{entry}/environ", "rb") as f:
        return set(f.read().split(b"\0"))


class Case:
    """One step with one fault."""

    def __init__(self, name, args, work):
        self.name, self.work = name, work
        self.random = random.Random(name)
        self.fault = self.random.choice([n for n, f in FAULTS.items() if args.way in (None, *f.ways)
                                         and args.fault in (None, n) and f.needs <= PLACE.has])
        f = FAULTS[self.fault]
        self.way = args.way or self.random.choice(f.ways)
        self.alone = f.alone
        self.nodes = self.random.randint(f.nodes, 3)
        self.per_node = self.random.randint(1, 3)
        if self.nodes * self.per_node < f.ranks:
            self.per_node = f.ranks
        self.world = self.nodes * self.per_node
        self.folder = work / name.replace(":", "-")
        self.home = self.folder / "plume"
        self.job = self.srun = None
        self.code = None
        self.env = {}
        self.wrap = []          # before plrun
        self.struck = None      # when the fault came, by the monotonic clock; None = by the log
        self.extra_s = 0        # that its end may take beside the grace
        self.late_s = args.late
        self.took = None        # seconds from the fault to the step's end
        self.undo = contextlib.ExitStack()
        self.quiet = ["-Q"]     # srun says nothing of its own

    def strike(self, extra_s=0):
        """The fault comes now; extra_s: the silence that is borne, for one that nobody sees."""
        self.struck, self.extra_s = time.monotonic(), extra_s

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

    def environment(self):
        env = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM_JOB", "PLUME_"))}
        env.update({"HOME": str(self.folder / "home"), "PLUME_HOME": str(self.home),
                    "CHAOS_FOLDER": str(self.folder), "PLUME_KILL_GRACE": str(GRACE_S),
                    "PLUME_SILENCE": str(SILENCE_S), "PLUME_LAUNCH_TIMEOUT": "30", **self.env})
        return env

    def size(self):
        return [f"-N{self.nodes}", f"-n{self.world}", f"--ntasks-per-node={self.per_node}"]

    def what(self):
        return ["--plume", "./rank"] if self.way == "plugin" else [*self.wrap, "plrun", "--", "./rank"]

    def as_user(self, argv):
        if os.geteuid() == 0:
            argv = ["setpriv", "--reuid", str(PLAIN_UID), "--regid", str(PLAIN_UID), "--clear-groups", *argv]
        return argv

    def where(self):
        """Options of srun and sbatch: nodes of its own until all of it is undone, or those for all others."""
        if not self.alone:
            return ["-x", ",".join(PLACE.apart)] if PLACE.apart else []
        group = PLACE.groups.get(timeout=900)
        self.undo.callback(PLACE.groups.put, group)
        return ["-w", ",".join(group[:self.nodes])]

    def start(self):
        argv = self.as_user(["srun", *self.quiet, "-J", self.folder.name, *self.size(), *self.where(),
                             *self.what()])
        with open(self.folder / "out", "wb") as out, open(self.folder / "err", "wb") as err:
            self.srun = subprocess.Popen(argv, cwd=self.folder, env=self.environment(), stdout=out, stderr=err,
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
            # Who listens; a user may not read the environment of a daemon that is confined.
            with socket.socket(socket.AF_UNIX) as s:
                s.connect(f"{SOCKETS}/{self.job}.0.0.{node_index}")
                pid, _, _ = struct.unpack("3i", s.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
            found = [pid] if pathlib.Path(f"/proc/{pid}/comm").read_text() == "plrund\n" else []
        need(len(found) == 1, f"daemons of node {node_index}: {found}")
        return found[0]

    def trial(self):
        found = glob.glob(f"{self.home}/steps/*/trial-0000")
        need(len(found) <= 1, f"run folders: {found}")
        return pathlib.Path(found[0]) if found else None

    def load(self, name):
        trial = self.trial()
        return load(trial / name) if trial else None

    def err(self):
        return (self.folder / "err").read_text(encoding="utf-8", errors="replace")

    def end(self):
        """srun ends in bounded time, and nothing of the step is left."""
        try:
            self.code = self.srun.wait(END_S)
        except subprocess.TimeoutExpired:
            raise Wrong(f"srun has not ended {END_S} s after the fault") from None
        ended, ended_wall = time.monotonic(), time.time()
        self.code = 128 - self.code if self.code < 0 else self.code
        self.find_job()
        self.nothing_left()
        if self.struck:
            self.took = ended - self.struck
        elif self.first_end():
            self.took = ended_wall - self.first_end()

    def find_job(self):
        for path in glob.glob(f"{self.folder}/at.*"):
            self.job = pathlib.Path(path).read_text().split()[3]
        for path in glob.glob(f"{self.home}/steps/*"):
            self.job = os.path.basename(path).split(".")[0]

    def nothing_left(self):
        wait_for("no process left", LEFT_S, lambda: not self.left())

    def events(self, trial=None):
        """Those of the log that are whole lines; a hub that is killed leaves no other."""
        trial = trial or self.trial()
        with contextlib.suppress(OSError, TypeError):
            with open(trial / "attempt-0/events.jsonl", encoding="utf-8") as f:
                return [json.loads(line) for line in f]
        return []

    def first_end(self):
        """When the first rank failed, by the wall clock; of ranks that are done the last."""
        ends = [(e["state"] == "done", e["t"]) for e in self.events()
                if e["type"] == "rank" and e.get("state") in ("done", "failed", "killed", "lost")]
        failed = [t for done, t in ends if not done]
        return min(failed) if failed else max((t for _, t in ends), default=None)

    def in_time(self):
        """Not for what Slurm itself takes long to see."""
        limit = GRACE_S + self.extra_s + self.late_s
        need(self.took is None or self.took <= limit, f"{self.took:.1f} s to the end, not {limit}" if self.took else "")

    def left(self):
        """Processes that have this case in their environment: ranks, plrun, plrund, the lifeline."""
        folder = f"CHAOS_FOLDER={self.folder}".encode()
        found = []
        for entry in glob.glob("/proc/[0-9]*"):
            with contextlib.suppress(OSError):
                environment = environment_of(entry)
                if (folder in environment or f"PLUME_HOME={self.home}".encode() in environment) and (
                        pathlib.Path(entry, "comm").read_text() != "srun\n"):
                    found.append(f"{entry[6:]} {pathlib.Path(entry, 'cmdline').read_bytes()[:80]}")
        return found

    def files_hold(self, code, trial=None):
        trial = trial or self.trial()
        need(trial, "no run folder")
        # The plugin's daemon outlives srun for a moment.
        wait_for("the end of the log", LEFT_S, lambda: "hub" not in (load(trial / "status.json") or {"hub": 1}))
        said = subprocess.run([str(SOURCE / "tests/lib/check-run.py"),
                               f"{trial}={code}" if code is not None else str(trial)],
                              capture_output=True, text=True, check=False)
        need(said.returncode == 0, f"check-run: {said.stderr}")
        self.no_temporary_file()
        causes = [e for e in self.events(trial) if e["type"] == "cause"]
        need(len(causes) <= 1, f"{len(causes)} decisions")

    def slurm_killed_all(self):
        """Nobody was left to remove anything."""
        PLACE.spared.append(self)

    def no_temporary_file(self):
        odd = [str(p) for p in self.home.rglob("*") if p.name.startswith(".") or ".tmp" in p.name]
        need(not odd, f"temporary files: {odd}")

    def no_socket(self):
        need(self.job, "no job")
        left = sockets([self.job])
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
        self.in_time()

    def must_fail(self, code, **cause):
        """code: of the step under plrun, None = any but 0; the plugin's is Slurm's own, and not 0."""
        self.end()
        if self.way == "plugin":
            code = None
        need(self.code != 0 and code in (None, self.code), f"exit code {self.code}, not {code}")
        self.files_hold(code)
        result = self.load("result.json")
        has(result, "state", cause.pop("state", "failed"))
        for key, value in cause.items():
            has(result["cause"], key, value)
        if self not in PLACE.spared:
            self.no_socket()
        self.in_time()

    def told(self):
        """The cause that plstat tells, once Slurm knows that the job has ended."""
        def ask():
            said = subprocess.run(self.as_user(["plstat", "why", "-j", str(self.trial().parent)]), check=False,
                                  env=self.environment(), capture_output=True, timeout=60)
            document = json.loads(said.stdout)
            return document if document.get("state") not in ("running", "waiting") else None
        return wait_for("plstat's verdict", 30, ask).get("cause") or {}

    def must_lose_hub(self):
        """Nobody is left to write a result; srun's code and stderr say it."""
        self.end()
        need(self.code != 0, "exit code 0")
        result = self.load("result.json")
        need(result is None or result["state"] != "done", f"{result}")
        self.no_socket()
        self.in_time()

    def must_agree(self, did):
        """Whatever failed: srun and the files say one and the same. did: every rank did its part, so
        that a good end is no lie; a bad one never is, if something says why."""
        self.end()
        result = self.load("result.json")
        if result and (self.events() or (result.get("cause") or {}).get("kind") != "launch"):
            self.files_hold(self.code)
        if result:
            need((result["state"] == "done") == (self.code == 0), f"exit code {self.code}: {result}")
        need(self.code != 0 or did, "exit code 0, and not all ranks did their part")
        need(self.code == 0 or self.err().strip(), "not a word on stderr")
        if "cannot write 'trial-0000/result.json'" not in self.err():
            self.no_temporary_file()
        if self.job:
            self.no_socket()


# ---- the faults ----

Fault = collections.namedtuple("Fault", "run ways nodes ranks alone needs")
FAULTS = {}
BOTH = ("plrun", "plugin")


def fault(ways=BOTH, nodes=1, ranks=1, alone=False, needs=()):
    """alone: on nodes that no other step has; needs: of PLACE.has."""
    def add(f):
        FAULTS[f.__name__] = Fault(f, ways, nodes, ranks, alone, frozenset(needs))
        return f
    return add


class Place:
    """The cluster of all cases, and what it has: "hosts" (each node is a host of its own), "disks"
    (small file systems)."""

    def __init__(self):
        self.has = frozenset()
        self.disks = queue.SimpleQueue()
        self.freezers = queue.SimpleQueue()
        self.apart = []                     # nodes for cases that must have theirs alone,
        self.groups = queue.SimpleQueue()   # and their groups
        self.lock = threading.Lock()
        self.spared = []  # cases whose processes were all killed at once

    def divide(self):
        """Three nodes of six are for cases alone."""
        said = subprocess.run(["sinfo", "-h", "-p", "main", "-N", "-o", "%N"], capture_output=True, text=True,
                              check=True, timeout=30).stdout.split()
        self.groups = queue.SimpleQueue()  # those of a cluster before are gone
        groups = [said[i:i + 3] for i in range(len(said) - len(said) // 6 * 3, len(said), 3)]
        for group in groups:
            self.groups.put(group)
        self.apart = sum(groups, [])

    @property
    def folder(self):
        return pathlib.Path(os.environ["CLUSTER_DIR"])

    def pid_of(self, daemon):
        """slurmctld's, or that of a node's slurmd."""
        for line in (self.folder / "pids").read_text().splitlines():
            name, pid, _ = line.split()
            if name == daemon:
                found = int(pid)
        return found

    def dead_slurmd(self):
        """A node of all cases whose slurmd has died by itself, as 22.05.8 does at times
        (doc/slurm-notes.md); None."""
        for line in (self.folder / "pids").read_text().splitlines():
            name, pid, _ = line.split()
            if name.strip("0123456789") == "n" and name not in self.apart and not os.path.exists(f"/proc/{pid}/exe"):
                return name
        return None

    def address(self, node):
        for line in (self.folder / "hosts").read_text().splitlines():
            if line.split()[1] == node:
                return line.split()[0]
        raise KeyError(node)


PLACE = Place()
