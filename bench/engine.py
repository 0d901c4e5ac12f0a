#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Steps per second of Plume's training engine against PyTorch's, on six models.

For each model and type: one process with 1 and with 2 threads, two ranks with one thread, and two
independent processes side by side. Plume and the peer (engine_peer.py) alternate.
PLUME_TORCH_PYTHON is a Python that has torch; without one the table has Plume's rows only. All of it
takes 20 minutes; a model's rows are printed when its trials are done. ENGINE_MODELS, ENGINE_DTYPES
and ENGINE_TRIALS select a part. ENGINE_COMPILE=1 adds rows against torch.compile, each of which
takes a minute longer. Three minutes:

    ENGINE_MODELS=resnet,lstm ENGINE_DTYPES=f32 ENGINE_TRIALS=3 ./dev bench engine
"""

import json
import os
import select
import subprocess
import sys
import time

from engine_models import BATCH, flops_of, make_data, module_args
from plbench import BUILD, SRC, Bench, median, quiet

PYTHON = os.environ.get("PLUME_TORCH_PYTHON", "python3")
MODELS = os.environ.get("ENGINE_MODELS", "mlp,cnn,gpt4,gpt6,resnet,lstm").split(",")
DTYPES = os.environ.get("ENGINE_DTYPES", "f32,bf16").split(",")
TRIALS = int(os.environ.get("ENGINE_TRIALS", "7"))
COMPILE = os.environ.get("ENGINE_COMPILE", "0") == "1"
TRIAL_S = float(os.environ.get("ENGINE_TRIAL_SECONDS", "1.5"))
BATCHES = 16  # made-up batches per rank
WARM = 3  # first steps that do not count: they allocate memory
# Two ranks and two independent processes differ by less than a virtual core's speed does from
# second to second.
PAIR_S = 3 * TRIAL_S
SETUPS = ((1, 1), (2, 1), (1, 2))  # threads per rank, ranks
# Times PyTorch's rate, f32 and one thread. The MLP is at the peak of products on both sides.
GOALS = {"mlp": 1.03, "cnn": 2.2, "gpt4": 1.4, "gpt6": 1.25, "resnet": 1.2, "lstm": 1.2}


class Ours:
    """A trial is a run of pltrain; the module reports the time of each step (bench/models)."""

    def __init__(self, bench, model, dtype, threads, ranks):
        self.bench, self.threads, self.ranks = bench, threads, ranks
        self.data = os.path.join(bench.dir, f"{model}-{ranks}")
        make_data(self.data, model, BATCHES * BATCH[model] * ranks)
        self.argv = [os.path.join(BUILD, "pltrain"), "--log-every", "1000000"]
        if dtype != "f32":
            self.argv += ["--precision", dtype]
        if ranks > 1:
            self.argv += ["--processes", str(ranks)]
        self.module = module_args(BUILD, model)
        self.rates, self.firsts, self.peaks = [], [], []
        self.steps = 0

    def start(self, steps, profile=False):
        env = {**self.bench.env, "OMP_NUM_THREADS": str(self.threads),
               "PLUME_DATA_DIR": self.data, "PLUME_PROFILE": str(int(profile))}
        self.exec_at = time.time()
        return subprocess.Popen([*self.argv, "--max-steps", str(steps), *self.module], env=env,
                                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, text=True)

    def rows(self, process):
        """What each rank reported when the run had ended."""
        out, err = process.communicate(timeout=600)
        rows = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
        if process.returncode != 0 or len(rows) != self.ranks:
            raise RuntimeError(err.strip().splitlines()[-1] if err.strip() else
                               f"exit code {process.returncode}")
        return rows

    def end(self, process):
        """(steps per second, end of the first step, peak MB) of the slowest or largest rank."""
        rows = self.rows(process)
        rate = min(len(r["step_s"][WARM:]) / sum(r["step_s"][WARM:]) for r in rows)
        return (rate, max(r["first_step"] for r in rows) - self.exec_at,
                max(r["peak_kb"] for r in rows) / 1024)

    def warm(self):
        rate = self.end(self.start(WARM + 4))[0]
        seconds = PAIR_S if self.ranks > 1 else TRIAL_S
        self.steps = WARM + 2 + max(3, min(20000, round(seconds * rate)))

    def trial(self):
        rate, first, peak = self.end(self.start(self.steps))
        self.rates.append(rate)
        self.firsts.append(first)
        self.peaks.append(peak)

    def profile(self):
        """The time per op, as pltrain reports it."""
        return self.start(self.steps, True).communicate(timeout=600)[1].rstrip()


class Independent:
    """Two runs of one rank at the same time: what two ranks could do if they did not meet.

    Ranks of ddp do meet: each step takes as long as the slower rank's. `met` has the rates that
    these two runs would have had if they had met after each step and meeting took no time."""

    def __init__(self, bench, model, dtype):
        self.runs = [Ours(bench, model, dtype, 1, 1) for _ in range(2)]
        self.rates, self.met = [], []

    def trial(self, steps):
        started = [run.start(steps) for run in self.runs]
        times = [run.rows(p)[0]["step_s"][WARM:] for run, p in zip(self.runs, started)]
        self.rates.append(min(len(t) / sum(t) for t in times))
        slower = [max(pair) for pair in zip(*times)]
        self.met.append(len(slower) / sum(slower))


TOUCH = """import mmap, sys, time
m = mmap.mmap(-1, int(sys.argv[1]) << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
m.madvise(mmap.MADV_HUGEPAGE)
print("ready", flush=True)
sys.stdin.read()
begin = time.monotonic()
for at in range(0, len(m), 2 << 20):
    m[at] = 1
print(time.monotonic() - begin)
"""


class Touch:
    """As many processes as ranks write to as much fresh memory for the first time: what the system
    takes for memory alone. In a virtual machine it may have to ask its host for each page."""

    def __init__(self):
        self.seconds = []

    def trial(self, ranks, peak_mb):
        argv = [sys.executable, "-c", TOUCH, str(round(peak_mb))]
        all_of = [subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
                  for _ in range(ranks)]
        for p in all_of:
            p.stdout.readline()
        for p in all_of:
            p.stdin.close()
        self.seconds.append(max(float(p.stdout.readline()) for p in all_of))
        for p in all_of:
            p.stdout.close()
            p.wait(60)


class Peer:
    """engine_peer.py, which keeps running and makes a trial on request."""

    def __init__(self, model, dtype, threads, ranks, compiled=False):
        argv = [sys.executable, os.path.join(SRC, "bench", "engine_peer.py"), "--model", model,
                "--dtype", dtype, "--threads", str(threads), "--ranks", str(ranks), "--serve"]
        argv += ["--compile"] if compiled else []
        env = dict(os.environ, PLUME_TORCH_PYTHON=PYTHON)
        for key in ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE"):
            env.pop(key, None)
        self.process = subprocess.Popen(argv, env=env, stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                                        text=True)
        self.rates, self.peak = [], None
        self.facts = self.line(600)

    def line(self, limit_s):
        if not select.select([self.process.stdout], [], [], limit_s)[0]:
            raise RuntimeError("the peer prints nothing")
        text = self.process.stdout.readline()
        if not text:
            raise RuntimeError("the peer ended")
        return json.loads(text)

    def trial(self):
        self.process.stdin.write(f"{TRIAL_S}\n")
        self.process.stdin.flush()
        row = self.line(600)
        self.rates.append(row["rate"])
        self.peak = row["peak_mb"]

    def close(self):
        try:
            self.process.stdin.close()
            self.process.wait(60)
        except (OSError, subprocess.TimeoutExpired):
            self.process.kill()
            self.process.wait()


def has_torch():
    try:
        return subprocess.run([PYTHON, "-c", "import torch"], stderr=subprocess.DEVNULL,
                              timeout=120, check=False).returncode == 0
    except OSError:
        return False


def gemm_peak(b):
    """GFLOP/s of one thread: our best square matrix product, and multiply-adds alone."""
    _, out = b.run([os.path.join(BUILD, "bench", "bench-gemm-peak")], stdout=subprocess.PIPE,
                   env={"OMP_NUM_THREADS": "1"})
    return tuple(map(float, out.split()))


def measure(b, model, dtype, torch):
    """{(threads, ranks): (Ours, Peer or None, compiled Peer or None)}, Independent and Touch,
    alternating."""
    sides, peers, apart, touch = {}, [], Independent(b, model, dtype), Touch()

    def new_peer(*args):
        try:
            peers.append(Peer(model, dtype, *args))
            return peers[-1]
        except RuntimeError as e:
            b.note(f"{model} {dtype}, {args}: {e}")
            return None

    try:
        for setup in SETUPS:
            ours = Ours(b, model, dtype, *setup)
            ours.warm()
            sides[setup] = (ours, new_peer(*setup) if torch else None,
                            new_peer(*setup, True) if COMPILE and torch and setup == (1, 1)
                            else None)
        for i in range(TRIALS):
            for setup, (ours, *theirs) in sides.items():
                quiet(0.5)
                ours.trial()
                if setup == (1, 2):
                    apart.trial(ours.steps)
                for peer in theirs:
                    # If a step takes seconds, three trials are enough.
                    if peer and (i < 3 or peer.rates[0] > 0.5):
                        peer.trial()
            quiet(0.5)
            touch.trial(2, max(sides[1, 2][0].peaks))
    finally:
        for peer in peers:
            peer.close()
    return sides, apart, touch


def efficiency(sides, which):
    """The ratio of a rank of two to a single rank, from the medians."""
    one, two = sides[1, 1][which], sides[1, 2][which]
    return median(two.rates) / median(one.rates) if one and two else None


def rows_of(b, model, dtype, sides, apart, touch, peak):
    for (threads, ranks), (ours, peer, compiled) in sides.items():
        name = peer.facts["peer_name"] if peer else None
        about = {"model": model, "dtype": dtype, "threads": threads, "ranks": ranks}
        case = f"{model} {dtype}, " + (f"{ranks} ranks" if ranks > 1 else
                                       f"{threads} thread{'s' * (threads > 1)}")
        share = median(ours.rates) * flops_of(model) / (peak * 1e9 * threads)
        b.row(case, ours.rates, peer.rates if peer else None, name, unit="steps/s",
              ratio_least=GOALS.get(model) if peer and (dtype, threads, ranks) == ("f32", 1, 1)
              else None,
              extra={**about, "efficiency": efficiency(sides, 0) if ranks > 1 else None,
                     "gemm_share": round(share, 3) if dtype == "f32" else None,
                     "peak_mb": round(max(ours.peaks), 1), "peer_peak_mb": peer and peer.peak})
        if b.rows[-1]["met"] is False:
            missed = GOALS[model] * b.rows[-1]["peer"] - b.rows[-1]["ours"]
            b.note(f"{case}: {missed:.3g} steps/s less than the goal; milliseconds of a step:\n"
                   + ours.profile())
        if compiled:
            b.row(case + ", compiled peer", ours.rates, compiled.rates, name + " torch.compile",
                  unit="steps/s", extra=about)
        if ranks > 1:
            b.row(case + ": efficiency", [100 * efficiency(sides, 0)],
                  [100 * efficiency(sides, 1)] if peer else None, name, unit="%", extra=about)
            b.row(case + ": efficiency, independent",  # each trial beside the next
                  [100 * o / a for o, a in zip(ours.rates, apart.rates)], unit="%", least=97,
                  extra={**about, "independent": median(apart.rates)})
            b.row(case + ": the same, if the independent met",
                  [100 * o / m for o, m in zip(ours.rates, apart.met)], unit="%",
                  extra={**about, "if_met": median(apart.met)})
            # Without the step itself the number is the cost of the start on any machine.
            theirs = peer and peer.facts["first_step_s"]
            b.row(case + ": exec to first step", ours.firsts, [theirs] if peer else None, name,
                  extra=about)
            b.row(case + ": the same but for the step",
                  [s - 1 / r for s, r in zip(ours.firsts, ours.rates)],
                  [max(0, theirs - 1 / median(peer.rates))] if peer else None, name, below=0.1,
                  extra=about)
            b.row(case + ": first touch of as much memory", touch.seconds, extra=about)
        if (threads, ranks) == (1, 1):
            b.row(case + ": peak memory", ours.peaks, [peer.peak] if peer else None, name,
                  unit="MB", ratio_goal=0.5 if peer else None, extra=about)
            if dtype == "f32":
                b.row(case + ": share of the gemm peak", [100 * share],
                      [100 * median(peer.rates) * flops_of(model) / (peak * 1e9)] if peer else
                      None, name, unit="%", extra=about)


def main():
    for key in ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE"):
        os.environ.pop(key, None)
    with Bench("engine") as b:
        torch = has_torch()
        peak, fma = gemm_peak(b)
        for model in MODELS:
            for dtype in DTYPES:
                try:
                    rows_of(b, model, dtype, *measure(b, model, dtype, torch), peak)
                except RuntimeError as e:
                    b.note(f"{model} {dtype}: not measured: {e}")
        again, fma_again = gemm_peak(b)
        b.note(f"gemm peak of one thread: {peak:.1f} GFLOP/s before and {again:.1f} after (f32, "
               f"1024^3, ours), multiply-adds alone {max(fma, fma_again):.1f}; each trial lasts "
               f"{TRIAL_S:g} s, of ranks {PAIR_S:g} s")
        if not torch:
            b.note("PyTorch is not installed here: pip install torch, or name a Python that has "
                   "it in PLUME_TORCH_PYTHON")
        b.finish()


if __name__ == "__main__":
    main()
