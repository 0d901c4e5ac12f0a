# SPDX-License-Identifier: MIT
"""Training on a GPU against PyTorch on the same GPU, as a table in Markdown: GPT-2 (124M, T 1024,
bf16, each side at its best batch), the MLP and the CNN of engine.py in f32, tf32 and bf16; where they
are named GPT-2 of 350M (gpt2-medium), ResNet-18 and ResNet-50 on images of 224 x 224 (resnet224,
resnet50), too.

    gpu_engine.py [--tiny]

Each row is printed at once, the comparisons at the end, also after a SIGTERM. Plume is pltrain with
bench/models; its loader reads and converts samples as always. The peer (see gpu_peer.py) is
PyTorch, eager and with torch.compile, on batches made before. One side uses the GPU at a time, and
Plume runs again after the others; GPT-2 then trains with --amp-level O2, too (everything but norms,
softmax and losses in 16 bits), a row that no comparison uses. PLUME_TORCH_PYTHON is a Python that
has torch (default: python3); without one the table has Plume's rows only. Exits with 77 without a
GPU, with 1 if Plume fails.

GPU_ENGINE_SECONDS limits the whole run (default: the time that check has left, at most 300); the
report names the rows that did not fit. GPU_ENGINE_MODELS=gpt2,mlp, GPU_ENGINE_BATCHES=16,32 (of
GPT-2) and GPU_ENGINE_TYPES=f32,tf32 (of the others) select a part; GPU_ENGINE_COMPILE=0 omits
torch.compile. --tiny tests the program itself on slow GPUs, with the CPU as the peer's device.
GPU_ENGINE_PROFILE=1 measures nothing of that: it prints the stages of pltrain --test-gpus, and for
each model what pltrain --profile says of the ops of a step, what the answers of cublasLt and their
variants take and, where Nsight Compute is (ncu, or GPU_ENGINE_NCU), the time and the bytes of each
kernel: what four steps have more than two.

MFU is the FLOPs of a step (flops_of in engine_models.py: for GPT-2 6 N + 6 L T C per token, the
causal half of attention, no recomputation) over its time and the GPU's dense peak of that type in
NVIDIA's data sheet. "Of products" is the same over the rate of the largest product of cuBLAS in
this run. Peak memory is the most that each side's allocator had handed out; in parentheses stands
what it had reserved. The first step's time is from exec to its end on the GPU, after all libraries
have been read once; of a peer process only the first row has one.
"""

import csv
import glob
import json
import math
import os
import re
import select
import shutil
import subprocess
import sys
import time

from engine_models import BATCH, GPT, flops_of, make_data, module_args
from plbench import BUILD, SRC, Bench, median, number, quartiles

TINY = "--tiny" in sys.argv[1:]
PYTHON = os.environ.get("PLUME_TORCH_PYTHON", "python3")
COMPILE = os.environ.get("GPU_ENGINE_COMPILE", "1") == "1"
BUDGET_S = float(os.environ.get("GPU_ENGINE_SECONDS") or
                 min(300, int(os.environ.get("CHECK_LEFT_S", "310")) - 10))
TRIALS, TRIAL_S = (2, 0.0) if TINY else (3, 0.5)
WARM_S = 2  # of Plume: first step, plans of libraries, graphs
PRODUCT = 256 if TINY else 8192
TYPES = os.environ.get("GPU_ENGINE_TYPES", "f32,tf32,bf16").split(",")  # types of the small models
NEED_S = {"Plume": 8, "eager": 20, "compile": 60, "compile small": 25}  # the least to start
# Samples: many steps per epoch, because the loader restarts with each, and full batches only.
ROWS = {"mlp": 120 * 512, "cnn": 480 * 128, "gpt2": 2048, "gpt2-medium": 1024, "resnet224": 60 * 128,
        "resnet50": 60 * 128}

# Dense TFLOP/s of tensor cores in bf16 and tf32, and of f32 without them. Sources: NVIDIA's data
# sheets of the H200, H100 and A100, whose figures "with sparsity" are twice these.
CARDS = (
    ("H200 NVL", {"bf16": 835.5, "tf32": 417.5, "f32": 60}),
    ("H200", {"bf16": 989.5, "tf32": 494.5, "f32": 67}),
    ("H100 NVL", {"bf16": 835.5, "tf32": 417.5, "f32": 60}),
    ("H100 PCIe", {"bf16": 756.5, "tf32": 378, "f32": 51}),
    ("H100", {"bf16": 989.5, "tf32": 494.5, "f32": 67}),
    ("A100", {"bf16": 312, "tf32": 156, "f32": 19.5}),
)


class OutOfMemory(Exception):
    pass


class Row:
    """The result of one side with a model; `rates` are steps per second."""

    def __init__(self, side, model, dtype, batch, rates, first_s, peak_mib, how="",
                 reserved_mib=None):
        self.side, self.model, self.dtype, self.batch, self.how = side, model, dtype, batch, how
        self.rates, self.first_s = rates, first_s
        self.peak_mib, self.reserved_mib = peak_mib, reserved_mib

    def items(self):
        """Tokens or samples per step."""
        return self.batch * (GPT[self.model].context if self.model in GPT else 1)

    def speed(self):
        return median(self.rates) * self.items()

    def tflops(self):
        return median(self.rates) * flops_of(self.model, self.batch) * 1e-12


class Report:
    """Prints the rows at once, and the comparisons at the end."""

    HEAD = ("model", "type", "batch", "side", "tokens or samples/s", "quartiles", "ms a step",
            "TFLOP/s", "MFU", "of products", "peak MiB", "exec to first step")

    def __init__(self):
        self.rows, self.notes = [], []
        self.card, self.peaks, self.products, self.peer = None, None, {}, None
        self.ended = False

    def set_card(self, name):
        if self.card is None:
            self.card = name
            self.peaks = next((p for part, p in CARDS if part in name), {})
            print(f"{name}; {about_card()}\n")
            line(self.HEAD)
            line(["---"] * len(self.HEAD))

    def add(self, row):
        low, high = (number(q * row.items()) for q in quartiles(row.rates))
        peak = "-" if row.peak_mib is None else f"{row.peak_mib:.1f}"
        if row.reserved_mib is not None:
            peak += f" ({row.reserved_mib:.1f})"
        line((row.model, row.dtype, row.batch, row.side + (f", {row.how}" if row.how else ""),
              number(row.speed()), f"{low}..{high}", number(1e3 / median(row.rates)),
              number(row.tflops()), self.share(row, self.peaks), self.share(row, self.products),
              peak, "-" if row.first_s is None else f"{row.first_s:.2f} s"))
        if row.how == "again":
            self.best(row.side, row.model, row.dtype).rates += row.rates
        else:
            self.rows.append(row)

    @staticmethod
    def share(row, peaks):
        peak = (peaks or {}).get(row.dtype)
        return f"{100 * row.tflops() / peak:.1f} %" if peak else "-"

    def note(self, text):
        self.notes.append(text)

    def set_calls(self, what, calls):
        """Who does the products, convolutions and attentions; what a graph repeats counts once."""
        if calls and not any(n.startswith(what + ": ") for n in self.notes):
            self.note(f"{what}: {calls[1]} products and attentions asked of NVIDIA's libraries, "
                      f"{calls[2]} of own kernels")

    def best(self, side, model, dtype):
        rows = [r for r in self.rows if (r.side, r.model, r.dtype) == (side, model, dtype)]
        return max(rows, key=Row.speed, default=None)

    def memory(self, model, dtype):
        """The ratio of our rate to eager's, at the largest batch of both."""
        peaks = {}
        for r in self.rows:
            if (r.model, r.dtype) == (model, dtype) and r.peak_mib:
                peaks.setdefault(r.batch, {})[r.side] = r.peak_mib
        both = [b for b, sides in peaks.items() if {"Plume", "eager"} <= set(sides)]
        return f"{peaks[max(both)]['Plume'] / peaks[max(both)]['eager']:.3f}" if both else "-"

    def compare(self):
        head = ("model", "type", "Plume", "eager", "compile", "Plume/eager", "Plume/compile",
                "MFU of Plume", "memory, Plume/eager")
        print()
        line(head)
        line(["---"] * len(head))
        for model, dtype in dict.fromkeys((r.model, r.dtype) for r in self.rows):
            ours, eager, compiled = (self.best(s, model, dtype)
                                     for s in ("Plume", "eager", "compile"))
            line((model, dtype, *(number(r and r.speed()) for r in (ours, eager, compiled)),
                  ratio(ours, eager), ratio(ours, compiled),
                  self.share(ours, self.peaks) if ours else "-", self.memory(model, dtype)))

    def end(self):
        if self.ended:
            return
        self.ended = True
        if self.rows:
            self.compare()
            print()
        if self.peer:
            print(f"- {self.peer}")
        if self.products:
            print(f"- a product of {PRODUCT}^3 by cuBLAS: " +
                  ", ".join(f"{v:.4g} TFLOP/s in {k}" for k, v in self.products.items()))
        for text in self.notes:
            print(f"- {text}")
        sys.stdout.flush()


def line(cells):
    print("| " + " | ".join(str(c) for c in cells) + " |", flush=True)


def ratio(a, b):
    return f"{a.speed() / b.speed():.3f}" if a and b else "-"


def command_output(*argv):
    """The output of a command; empty without such a command."""
    try:
        return subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.DEVNULL, text=True, timeout=20,
                              check=False).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        return ""


def about_card():
    which = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
    card = command_output("nvidia-smi", "-i", which, "--format=csv,noheader",
                "--query-gpu=driver_version,power.limit,clocks.max.sm,memory.total").split(", ")
    nvcc = re.search(r"release ([\d.]+)", command_output(os.environ.get("NVCC", "nvcc"), "--version"))
    names = ("driver", "power limit", "SM clock at most", "memory")
    parts = [f"{n} {v}" for n, v in zip(names, card)] if len(card) == len(names) else []
    return ", ".join(parts + [f"nvcc {nvcc[1] if nvcc else 'unknown'}",
                              time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())])


class Run:
    def __init__(self, bench):
        self.bench, self.report = bench, Report()
        self.end_at = time.monotonic() + BUDGET_S
        self.failed = False
        self.torch = True

    def left(self):
        return self.end_at - time.monotonic()

    def has_time(self, what, need):
        if self.left() >= min(NEED_S[need], BUDGET_S / 2):
            return True
        self.report.note(f"{what}: not measured, no time was left")
        return False

    def data(self, model):
        folder = os.path.join(self.bench.dir, model)
        if not os.path.isdir(folder):
            make_data(folder, model, 64 if TINY else ROWS.get(model, 64))
        return folder

    def env(self, model):
        mine = {k: v for k, v in os.environ.items()
                if k == "PLUME_PLUGIN_DIR" or k.startswith(("PLUME_EMULATED_", "PLUME_GPU_"))}
        return {**self.bench.env, **mine, "PLUME_DATA_DIR": self.data(model),
                "PLUME_LOG": "debug:train,cuda", "TIMED_SECONDS": str(TRIAL_S),
                "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}

    def command(self, model, dtype, batch, *options):
        """pltrain on the GPU."""
        argv = [os.path.join(BUILD, "pltrain"), "--gpus", "1", "--log-every", "1000000", *options]
        argv += ["--precision", "bf16"] if dtype == "bf16" else []
        argv += ["--tf32"] if dtype != "f32" else []
        return argv + module_args(BUILD, model, batch)

    def execute(self, argv, model):
        return subprocess.run(argv, env=self.env(model), text=True, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              timeout=max(self.left(), 10), check=False)

    def pltrain(self, model, dtype, batch, warm_s, level=None):
        """The output of a run: its JSON, its messages, its start time."""
        seconds = math.ceil(warm_s + (TRIALS + 1) * TRIAL_S)
        options = (["--max-steps", str(TRIALS + 2)] if TINY else
                   ["--max-time", f"00:{seconds // 60:02}:{seconds % 60:02}"])
        options += ["--amp-level", level] if level else []
        start = time.time()
        done = self.execute(self.command(model, dtype, batch, *options), model)
        result = [json.loads(x) for x in done.stdout.splitlines() if x.startswith("{")]
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        if done.returncode != 0 and "out of memory" in last:
            raise OutOfMemory(last)
        if done.returncode != 0 or not result:
            raise RuntimeError(last)
        return result[0], done.stderr, start

    def ours(self, model, dtype, batch, how="", level=None):
        for warm_s in (WARM_S, 5 * WARM_S):
            result, messages, start = self.pltrain(model, dtype, batch, warm_s, level)
            rates = [1 / s for s in result["step_s"][1:]]  # the first one is the warm-up
            if rates:
                break
        memory = re.search(r"at most ([\d.]+) MiB of (.*) in use", messages)
        if not rates or not memory:
            raise RuntimeError(f"pltrain reported {len(rates)} trials: {messages[-200:]}")
        self.report.set_card(memory[2])
        self.report.set_calls(f"Plume, {model} {dtype}", re.search(
            r"(\d+) products and attentions asked of the library, (\d+) of own kernels", messages))
        row = Row(f"Plume {level}" if level else "Plume", model, dtype, batch, rates,
                  result["first_step"] - start, float(memory[1]), how)
        self.report.add(row)
        return row

    def try_ours(self, model, dtype, batch, how="", level=None):
        """A row; None if memory or time is exhausted, or the run failed."""
        what = f"Plume, {model} {dtype}, batch {batch}"
        if not self.has_time(what, "Plume"):
            return None
        try:
            return self.ours(model, dtype, batch, how, level)
        except OutOfMemory:
            self.report.note(f"{what}: out of memory")
        except (RuntimeError, subprocess.TimeoutExpired) as e:
            self.report.note(f"{what}: FAILED: {e}")
            self.failed = True
        return None

    def peer(self):
        """A new peer; None: not available."""
        if not self.torch:
            return None
        try:
            peer = Peer(self)
        except RuntimeError as e:
            self.report.note(f"no peer: {e}")
            self.torch = False
            return None
        self.report.peer = peer.about
        return peer


class Peer:
    """A process of gpu_peer.py. Its first row has the time from exec to the first step."""

    def __init__(self, run):
        self.run, self.fresh, self.process = run, True, None
        self.log = os.path.join(run.bench.dir, "peer.err")
        argv = [PYTHON, os.path.join(SRC, "bench", "gpu_peer.py")] + TINY * ["--device", "cpu"]
        env = {**os.environ, "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
               "TORCHINDUCTOR_CACHE_DIR": os.path.join(run.bench.dir, "inductor"),
               "TRITON_CACHE_DIR": os.path.join(run.bench.dir, "triton")}
        # check's additions to the environment would give PyTorch other libraries than its own.
        env["LD_LIBRARY_PATH"] = env.get("CHECK_LD_LIBRARY_PATH", env.get("LD_LIBRARY_PATH", ""))
        env["GPU_PEER_EXEC"] = repr(time.time())
        with open(self.log, "w", encoding="utf-8") as log:
            try:
                self.process = subprocess.Popen(argv, env=env, stdin=subprocess.PIPE, text=True,
                                                stdout=subprocess.PIPE, stderr=log)
            except OSError as e:
                raise RuntimeError(f"'{PYTHON}': {e}") from e
        ready = self.answer()
        self.about = f"{ready['name']}, CUDA {ready['cuda']}, cuDNN {ready['cudnn']}"

    def why(self):
        with open(self.log, encoding="utf-8", errors="replace") as f:
            return (f.read().strip().splitlines() or ["it printed nothing"])[-1]

    def answer(self):
        try:
            if not select.select([self.process.stdout], [], [], max(self.run.left(), 1))[0]:
                raise RuntimeError("no time was left for it")
            text = self.process.stdout.readline()
            if not text:
                raise RuntimeError(self.why())
            return json.loads(text)
        except BaseException:
            self.close()
            raise

    def ask(self, **job):
        if self.process.poll() is not None:
            raise RuntimeError("it has ended")
        self.process.stdin.write(json.dumps(job) + "\n")
        self.process.stdin.flush()
        return self.answer()

    def train(self, side, model, dtype, batch, mode=None, channels_last=None):
        """A row; None: no row."""
        what = f"{side}, {model} {dtype}, batch {batch}" + (f", {mode}" if mode else "")
        need = side if side == "eager" or model.startswith("gpt2") else "compile small"
        if not self.run.has_time(what, need):
            return None
        try:
            result = self.ask(do="train", model=model, dtype=dtype, batch=batch, mode=mode,
                            trials=TRIALS, seconds=TRIAL_S, channels_last=channels_last)
        except (RuntimeError, OSError, ValueError) as e:
            result = {"error": str(e)}
        first, self.fresh = self.fresh, False
        if "rates" not in result:
            self.run.report.note(what + ": " + result.get("error", "out of memory"))
            return None
        how = [mode or "", "channels last" if result["channels_last"] else ""]
        row = Row(side, model, dtype, batch, result["rates"], result["first_s"] if first else None,
                  result["peak_mib"], ", ".join(h for h in how if h), result.get("reserved_mib"))
        self.run.report.add(row)
        return row

    def products(self):
        try:
            self.run.report.products = self.ask(do="products", size=PRODUCT).get("tflops", {})
        except (RuntimeError, OSError, ValueError) as e:
            self.run.report.note(f"products: {e}")

    def close(self):
        if self.process and self.process.poll() is None:
            self.process.kill()
        if self.process:
            self.process.wait()
            self.process.stdin.close()
            self.process.stdout.close()


def with_peer(run, function):
    """Passes a new peer to a function and ends it afterwards."""
    peer = run.peer()
    if peer is None:
        return
    try:
        function(peer)
    finally:
        peer.close()


def until_none(function, batches):
    """Stops at the first None: larger batches need even more memory."""
    for batch in batches:
        if function(batch) is None:
            return


def language(run, model, batches):
    """GPT-2 in bf16, each side at its best batch. torch.compile takes most of a minute per batch:
    it gets eager's best batch, and twice that if time is left."""
    def eager(peer):
        until_none(lambda n: peer.train("eager", model, "bf16", n), batches)

    def compiled(mode, times=1):
        best = run.report.best("eager", model, "bf16")
        if best and COMPILE:
            with_peer(run, lambda p: p.train("compile", model, "bf16", best.batch * times, mode))

    def more():
        compiled("default", 2)
        compiled("max-autotune-no-cudagraphs")

    until_none(lambda n: run.try_ours(model, "bf16", n), batches)
    with_peer(run, eager)
    compiled("default")
    best = run.report.best("Plume", model, "bf16")
    if best:
        run.try_ours(model, "bf16", best.batch, "again")
        run.try_ours(model, "bf16", best.batch, level="O2")
    return more


def small(run, model, batch):
    """Measures one batch in all types, of a large network in bf16 only."""
    types = TYPES if model in ("mlp", "cnn") else [t for t in TYPES if t == "bf16"]

    def eager(peer):
        for dtype in types:
            peer.train("eager", model, dtype, batch)

    def compiled(peer):
        for dtype in reversed(types):
            as_eager = run.report.best("eager", model, dtype)
            for mode in ("reduce-overhead", "default"):
                peer.train("compile", model, dtype, batch, mode,
                           bool(as_eager and "channels last" in as_eager.how))

    for dtype in types:
        run.try_ours(model, dtype, batch)
    with_peer(run, eager)
    return lambda: with_peer(run, compiled) if COMPILE else None


def wanted():
    """{model: batches}"""
    models = os.environ.get("GPU_ENGINE_MODELS", "gpt-tiny,mlp,cnn" if TINY else "gpt2,mlp,cnn")
    batches = os.environ.get("GPU_ENGINE_BATCHES", "2,4" if TINY else "8,16,32,64")
    return {m: [int(n) for n in batches.split(",")] if m in GPT else [2 if TINY else BATCH[m]]
            for m in models.split(",")}


def measure(run):
    later = []  # rows that may be missing, because those above matter more
    with_peer(run, Peer.products)
    for model, batches in wanted().items():
        later.append(language(run, model, batches) if model in GPT else
                     small(run, model, batches[0]))
    for function in later[1:] + later[:1]:
        function()


UNITS = {"ns": 1e-9, "nsecond": 1e-9, "us": 1e-6, "usecond": 1e-6, "ms": 1e-3, "msecond": 1e-3,
         "s": 1, "second": 1, "byte": 1, "Kbyte": 1e3, "Mbyte": 1e6, "Gbyte": 1e9}
METRICS = ("gpu__time_duration.sum", "dram__bytes.sum")


def kernels_of(text):
    """{kernel: [launches, seconds, bytes]} of what ncu has printed; its second row has the units."""
    lines = text.splitlines()
    head = next((i for i, x in enumerate(lines) if x.startswith('"ID"')), None)
    if head is None:
        raise RuntimeError("ncu: " + (lines or ["it printed nothing"])[-1])
    rows = list(csv.DictReader(x for x in lines[head:] if x.startswith('"')))
    units = [UNITS[rows[0][m].split("/")[0]] for m in METRICS]
    found = {}
    for row in rows[1:]:
        name = re.sub(r"^void |\((int|bool|unsigned int)\)", "", row["Kernel Name"])
        k = found.setdefault(re.sub(r"\(.*$", "", name), [0, 0, 0])
        k[0] += 1
        for i, (metric, unit) in enumerate(zip(METRICS, units)):
            k[i + 1] += float(row[metric].replace(",", "")) * unit
    return found


def profile_kernels(run, ncu, model, batch):
    """A step's kernels, each alone on the GPU."""
    runs = []
    for steps in (2, 4):
        argv = [ncu, "--clock-control", "none", "--csv", "--page", "raw", "--metrics",
                ",".join(METRICS)]
        done = run.execute(argv + run.command(model, "bf16", batch, "--no-cuda-graphs", "--max-steps",
                                              str(steps)), model)
        if done.returncode != 0:
            raise RuntimeError((done.stderr.strip().splitlines() or done.stdout.splitlines() or
                                [f"exit code {done.returncode}"])[-1])
        runs.append(kernels_of(done.stdout))
    step = {k: [(a - b) / 2 for a, b in zip(v, runs[0].get(k, (0, 0, 0)))]
            for k, v in runs[1].items()}
    whole = [sum(v[i] for v in step.values()) for i in range(3)]
    print()
    line(("kernel", "launches", "us", "GB", "GB/s", "of the time"))
    line(["---"] * 6)
    for name, (n, s, size) in sorted(step.items(), key=lambda k: -k[1][1]) + [("all", whole)]:
        if n > 0:
            line((name, number(n), number(1e6 * s), f"{1e-9 * size:.3f}",
                  number(1e-9 * size / s) if s else "-", f"{100 * s / whole[1]:.1f} %"))


def test_gpus(run, model):
    """pltrain --test-gpus and its stages, twice: the first one may read libraries from the disk; and
    where NCCL looks for no InfiniBand, which one rank does not need."""
    for how in ([], [], ["NCCL_NET=Socket", "NCCL_IB_DISABLE=1"]):
        done = run.execute(["env", *how, os.path.join(BUILD, "pltrain"), "--test-gpus"], model)
        run.failed |= done.returncode != 0
        print(" ".join([*how, done.stdout.strip()]))
        print("\n".join(x for x in done.stderr.splitlines() if "the GPU's test" in x), flush=True)


def profile(run):
    test_gpus(run, next(iter(wanted())))
    ncu = os.environ.get("GPU_ENGINE_NCU") or shutil.which("ncu")
    for model, batches in wanted().items():
        try:
            done = run.execute(run.command(model, "bf16", batches[-1], "--profile", "--max-steps",
                                           "4" if TINY else "12"), model)
            print(f"\n{model}, bf16, batch {batches[-1]}:\n")
            print(done.stderr.strip(), flush=True)
            if done.returncode != 0:
                raise RuntimeError(f"exit code {done.returncode}")
            if ncu:
                profile_kernels(run, ncu, model, batches[-1])
        except (RuntimeError, OSError, KeyError, ValueError, subprocess.TimeoutExpired) as e:
            print(f"- {model}: FAILED: {e}", flush=True)
            run.failed = True
    if not ncu:
        print("- kernels by themselves: not measured, there is no ncu")


def look_for_gpu(run):
    """True if there is a GPU; otherwise pltrain prints the reason."""
    model = "gpt-tiny"
    env = run.env(model)
    try:
        done = subprocess.run([os.path.join(BUILD, "pltrain"), "--gpus", "1", "--max-steps", "0",
                               *module_args(BUILD, model, 1)], env=env, text=True, check=False,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, timeout=120)
    except subprocess.TimeoutExpired as e:
        sys.exit(f"gpu_engine: pltrain does not find out within {e.timeout:.0f} s what GPU there is")
    if done.returncode == 0:
        return True
    print((done.stderr.strip().splitlines() or ["pltrain failed"])[-1])
    return False


def main():
    with Bench("gpu-engine") as b:
        run = Run(b)
        if not look_for_gpu(run):
            return 1 if glob.glob("/dev/nvidia[0-9]*") else 77
        try:
            if os.environ.get("GPU_ENGINE_PROFILE", "0") == "1":
                profile(run)
            else:
                measure(run)
        finally:
            run.report.end()
        return 1 if run.failed else 0


if __name__ == "__main__":
    sys.exit(main())
