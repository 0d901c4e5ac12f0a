# SPDX-License-Identifier: MIT
"""Shared by the benchmarks: the private cluster, alternating variants, rows and their table.

A benchmark compares Plume with a peer in the same run, alternating (A B A B ...), and reports
medians with quartiles: the machines that run it differ and are shared.
"""

import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

SRC = os.environ.get("PLUME_SRC") or os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BUILD = os.environ.get("PLUME_BUILD") or os.path.join(SRC, "build-bench")
quiet_left_s = float(os.environ.get("PLUME_BENCH_WAIT", "60"))  # for a whole benchmark


def load():
    return os.getloadavg()[0]


def running():
    """The number of runnable processes, without this one."""
    with open("/proc/loadavg") as f:
        return int(f.read().split()[3].split("/")[0]) - 1


def quiet(limit_s=2):
    """Waits until no other process is runnable, with a limit per call and in total."""
    global quiet_left_s
    start = time.monotonic()
    end = start + min(limit_s, quiet_left_s)
    calm = 0
    while calm < 3 and time.monotonic() < end:
        calm = calm + 1 if running() == 0 else 0
        time.sleep(0.02)
    quiet_left_s -= time.monotonic() - start


def median(values):
    return statistics.median(values) if values else None


def quartiles(values):
    if len(values) < 2:
        return [values[0], values[0]] if values else [None, None]
    q = statistics.quantiles(values, n=4, method="inclusive")
    return [q[0], q[2]]


class Bench:
    """One benchmark: its temporary folder, its cluster if it has one, and its rows."""

    def __init__(self, name, nodes=0, cluster_args=()):
        self.name, self.nodes, self.cluster_args = name, nodes, list(cluster_args)
        self.cluster = f"bench-{name}-{os.getpid()}"
        self.rows, self.notes = [], []
        self.idle_first = nodes > 1
        self.env = dict(os.environ)

    def __enter__(self):
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda n, _: sys.exit(128 + n))
        self.started, self.load = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()), load()
        self.dir = tempfile.mkdtemp(prefix=f"plume-bench-{self.name}-")
        # Remove the variables of the caller's Plume and of a surrounding job.
        for key in list(self.env):
            if key.startswith(("SLURM_", "SBATCH_", "PLUME_")):
                del self.env[key]
        self.env.update(HOME=self.dir, PLUME_BUILD=BUILD, PLUME_CLUSTER=self.cluster)
        self.env["PATH"] = BUILD + ":" + self.env["PATH"]
        if self.nodes:
            self.dev("cluster", "up", str(self.nodes), "--quiet", *self.cluster_args)
            for line in self.dev("cluster", "env").splitlines():
                if line.startswith("export SLURM_CONF="):
                    self.env["SLURM_CONF"] = line.split("=", 1)[1]
        return self

    def __exit__(self, kind, value, trace):
        if self.nodes:
            self.dev("cluster", "down", check=False)
        shutil.rmtree(self.dir, ignore_errors=True)

    def dev(self, *args, check=True):
        done = subprocess.run([os.path.join(SRC, "dev"), *args], env=self.env, text=True,
                              stdout=subprocess.PIPE, check=check)
        return done.stdout

    def run(self, argv, timeout=120, env=None, check=True, stdout=subprocess.DEVNULL, cwd=None,
            stderr=None):
        """Runs a command; returns its seconds and its output."""
        start = time.monotonic()
        done = subprocess.run(argv, env={**self.env, **(env or {})}, stdin=subprocess.DEVNULL,
                              stdout=stdout, stderr=stderr, timeout=timeout, text=True,
                              cwd=cwd or self.dir, check=False)
        took = time.monotonic() - start
        if check and done.returncode != 0:
            raise SystemExit(f"{self.name}: {' '.join(argv[:8])} ... ended with {done.returncode}")
        return took, done.stdout

    def idle(self):
        """Waits until no job is left, so that the next allocation does not wait."""
        while self.run(["squeue", "-h"], stdout=-1)[1].strip():
            time.sleep(0.05)

    def alternate(self, variants, rounds, warm=1):
        """{name: function returning seconds} -> {name: [seconds]}, alternating."""
        result = {name: [] for name in variants}
        for i in range(warm + rounds):
            for name, function in variants.items():
                if self.idle_first:
                    self.idle()
                quiet()
                took = function()
                if i >= warm:
                    result[name].append(took)
        return result

    def row(self, case, ours, peer=None, peer_name=None, unit="s", goal=None, met=None,
            ratio_goal=None, below=None, ratio_least=None, least=None, extra=None):
        """ours, peer: lists of numbers. goal: a ratio, or a limit for ours. extra: more members of
        the JSON row."""
        a, b = median(ours), median(peer) if peer else None
        ratio = a / b if b else None
        if ratio_goal is not None:
            goal, met = f"<= {ratio_goal:g} x", ratio <= ratio_goal
        elif below is not None:
            goal, met = f"< {below:g} {unit}", a < below
        elif ratio_least is not None:
            goal, met = f">= {ratio_least:g} x", ratio >= ratio_least
        elif least is not None:
            goal, met = f">= {least:g} {unit}", a >= least
        self.rows.append({
            "name": self.name, "case": case, "ours": a, "peer": b, "peer_name": peer_name,
            "ratio": ratio, "unit": unit, "goal": goal, "met": met, "n": len(ours),
            "spread": quartiles(ours), "peer_spread": quartiles(peer) if peer else None,
            **(extra or {}),
        })
        self.show(self.rows[-1])

    def show(self, row):
        """Prints a row as soon as it is there: a benchmark may take a quarter of an hour. The table
        follows at the end."""
        if "--json" in sys.argv[1:]:
            print(json.dumps(row), flush=True)
            return
        case, ours, _, peer, _, peer_is, ratio, goal, met, _ = cells(row)
        text = f"{self.name}: {case}: {ours}"
        text += f"; {peer_is} {peer}, ratio {ratio}" if row["peer"] is not None else ""
        text += f"; goal {goal}: {met}" if row["met"] is not None else ""
        print(text, file=sys.stderr, flush=True)

    def note(self, text):
        self.notes.append(text)

    def finish(self):
        doc = {"name": self.name, "time": self.started, "load": [self.load, load()],
               "rows": self.rows, "notes": self.notes}
        folder = os.path.join(BUILD, "bench-results")
        os.makedirs(folder, exist_ok=True)
        with open(os.path.join(folder, self.name + ".json"), "w") as f:
            json.dump(doc, f, indent=1)
        if "--json" not in sys.argv[1:]:
            print(table(doc))


def number(value):
    return "-" if value is None else f"{value:.4g}"


def span(pair):
    return "-" if not pair or pair[0] is None else f"{number(pair[0])}..{number(pair[1])}"


HEAD = ("case", "ours", "quartiles", "peer", "quartiles", "peer is", "ratio", "goal", "met", "n")


def cells(row):
    unit = "" if row["unit"] == "s" else " " + row["unit"]
    return (row["case"], number(row["ours"]) + unit, span(row["spread"]), number(row["peer"]),
            span(row["peer_spread"]), row["peer_name"] or "-", number(row["ratio"]),
            row["goal"] or "-", {True: "yes", False: "NO", None: "-"}[row["met"]], str(row["n"]))


def table(doc):
    lines = [HEAD] + [cells(row) for row in doc["rows"]]
    widths = [max(len(line[i]) for line in lines) for i in range(len(HEAD))]
    text = [f"{doc['name']}, {doc['time']}, load {doc['load'][0]:.1f} to {doc['load'][1]:.1f}; "
            "seconds unless a unit is given, medians"]
    text += ["  ".join(c.ljust(w) for c, w in zip(line, widths)).rstrip() for line in lines]
    return "\n".join(text + doc["notes"])
