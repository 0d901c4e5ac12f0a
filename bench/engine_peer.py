# SPDX-License-Identifier: MIT
"""The PyTorch side of ./dev bench engine: trains one model and prints a JSON row.

    engine_peer.py [--model mlp,cnn,...] [--dtype f32,bf16] [--threads 1,2] [--ranks 1,2]
                   [--trials N] [--seconds S] [--compile] [--serve]

With lists it measures each combination in its own process (two processes for two ranks, connected
by gloo and DistributedDataParallel; each rank has its own batch). PLUME_TORCH_PYTHON is a Python
that has torch (pip install torch). With --serve, and one combination, it prints {"ready": ...}
after its warm-up and then runs one trial per line on stdin, so that the caller can alternate with
its own trials.

Written as usual for speed: gradients set to None, fused attention, the faster of the fused and the
foreach optimizer, channels last if that is faster (both timed at the start).
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time

from engine_models import ADAM, BATCH, GPT, LSTM, torch_models

EXEC = float(os.environ.get("ENGINE_PEER_EXEC", 0)) or time.time()
MODELS = ("mlp", "cnn", "gpt4", "gpt6", "resnet", "lstm")


def parse():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--model", default=",".join(MODELS))
    p.add_argument("--dtype", default="f32,bf16")
    p.add_argument("--threads", default="1,2", help="of a rank")
    p.add_argument("--ranks", default="1,2")
    p.add_argument("--trials", type=int, default=7)
    p.add_argument("--seconds", type=float, default=1.0, help="least length of a trial")
    p.add_argument("--compile", action="store_true", help="with torch.compile")
    p.add_argument("--serve", action="store_true", help="a trial a line of stdin")
    p.add_argument("--first-step", action="store_true", help="end after the first step")
    p.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    p.add_argument("--store", help=argparse.SUPPRESS)
    return p.parse_args()


def peak_mb():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


class Training:
    def __init__(self, args):
        import torch
        torch.set_num_threads(int(args.threads))
        torch.manual_seed(1 + (args.rank or 0))
        self.torch, self.args, self.step_no = torch, args, 0
        self.import_mb = peak_mb()
        self.ranks = int(args.ranks)
        if self.ranks > 1:
            torch.distributed.init_process_group(
                "gloo", init_method="file://" + args.store, rank=args.rank, world_size=self.ranks)
        make_net, make_batches = torch_models()
        gpt, batch = GPT.get(args.model, LSTM if args.model == "lstm" else None), BATCH[args.model]
        self.net, self.samples = make_net(args.model), batch * (gpt.context if gpt else 1)
        self.batches = make_batches(args.model, 8, batch)  # used alternately
        self.made = self.net
        if self.ranks > 1:
            self.net = torch.nn.parallel.DistributedDataParallel(self.net,
                                                                 gradient_as_bucket_view=True)
        if args.compile:
            self.net = torch.compile(self.net)
        self.optimizer_name, self.channels_last = "foreach", False
        self.optimizer = self.new_optimizer("foreach")

    def new_optimizer(self, kind):
        how = {kind: True}
        if self.args.model in GPT:
            return self.torch.optim.AdamW(self.made.parameters(), lr=3e-4, weight_decay=0.1, **how)
        if self.args.model in ADAM:
            return self.torch.optim.Adam(self.made.parameters(), lr=3e-3, **how)
        return self.torch.optim.SGD(self.made.parameters(), lr=0.01, momentum=0.9, **how)

    def step(self):
        torch = self.torch
        x, y = self.batches[self.step_no % len(self.batches)]
        self.step_no += 1
        self.optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", torch.bfloat16, enabled=self.args.dtype == "bf16"):
            logits = self.net(x)
            loss = torch.nn.functional.cross_entropy(logits.view(-1, logits.shape[-1]), y.view(-1))
        loss.backward()
        self.optimizer.step()
        return loss

    def time_of(self, function, least_s=0.3):
        """Seconds of a call, after one that does not count. With several ranks least_s is 0, which
        means one call: all ranks must make the same number."""
        function()
        n, start = 0, time.perf_counter()
        while n == 0 or time.perf_counter() - start < least_s:
            function()
            n += 1
        return (time.perf_counter() - start) / n

    def tune(self):
        """Chooses the faster optimizer and the faster layout of images."""
        times = {}
        for kind in ("foreach", "fused"):
            self.optimizer = self.new_optimizer(kind)
            times[kind] = self.time_of(self.optimizer.step, 0.2)
        self.optimizer_name = min(times, key=times.get)
        self.optimizer = self.new_optimizer(self.optimizer_name)
        if self.args.model in ("cnn", "resnet") and self.ranks == 1 and not self.args.compile:
            plain = self.time_of(self.step)
            batches = self.batches
            last = self.torch.channels_last
            self.net.to(memory_format=last)
            self.batches = [(x.to(memory_format=last), y) for x, y in batches]
            if self.time_of(self.step) < plain:
                self.channels_last = True
            else:
                self.net.to(memory_format=self.torch.contiguous_format)
                self.batches = batches
            self.optimizer = self.new_optimizer(self.optimizer_name)

    def agree(self, n):
        """Returns rank 0's number of steps on all ranks."""
        if self.ranks > 1:
            t = self.torch.tensor(n)
            self.torch.distributed.broadcast(t, 0)
            n = int(t)
        return n

    def trial(self, seconds):
        steps = self.agree(max(1, round(seconds / self.step_s)))
        start = time.perf_counter()
        for _ in range(steps):
            loss = self.step()
        took = time.perf_counter() - start
        assert bool(self.torch.isfinite(loss))
        return steps / took


def work(args):
    try:
        t = Training(args)
    except ModuleNotFoundError as e:
        print(f"engine_peer: {e}; pip install torch, or set PLUME_TORCH_PYTHON", file=sys.stderr)
        sys.exit(77)
    t.step()
    first = time.time() - EXEC
    if args.first_step:
        if not args.rank:
            print(json.dumps({"first_step_s": round(first, 3)}), flush=True)
        return
    t.tune()
    t.step_s = t.time_of(t.step, 0.3 if t.ranks == 1 else 0)
    facts = {
        "model": args.model, "dtype": args.dtype, "threads": int(args.threads), "ranks": t.ranks,
        "compiled": args.compile, "peer_name": "PyTorch " + t.torch.__version__,
        "optimizer": t.optimizer_name, "channels_last": t.channels_last,
        "samples_a_step": t.samples, "unit": "steps/s",
        "params": sum(p.numel() for p in t.made.parameters()),
        "first_step_s": round(first, 3),
    }
    if args.serve:
        serve(t, args, facts)
        return
    n = args.trials if t.agree(int(t.step_s < 2)) else min(args.trials, 3)  # 3 if a step takes 2 s
    rates = sorted(t.trial(args.seconds) for _ in range(n))
    if not args.rank:
        facts.update(median=statistics.median(rates), min=rates[0], max=rates[-1], n=len(rates),
                     peak_mb=round(peak_mb(), 1), import_mb=round(t.import_mb, 1))
        print(json.dumps(facts), flush=True)


def serve(t, args, facts):
    """Runs one trial per line; an empty line ends it. Rank 0 reads, the others follow."""
    if not args.rank:
        print(json.dumps({"ready": True, **facts}), flush=True)
    while True:
        line = sys.stdin.readline().strip() if not args.rank else ""
        if not t.agree(int(bool(line))):
            break
        rate = t.trial(float(line or 0) or args.seconds)
        if not args.rank:
            print(json.dumps({"rate": rate, "peak_mb": round(peak_mb(), 1),
                              "import_mb": round(t.import_mb, 1)}), flush=True)


def start(args, model, dtype, threads, ranks):
    """Starts the processes of one combination; rank 0 inherits stdout and stdin."""
    python = os.environ.get("PLUME_TORCH_PYTHON", "python3")
    argv = [python, os.path.abspath(__file__), "--model", model, "--dtype", dtype, "--threads",
            threads, "--ranks", ranks, "--trials", str(args.trials), "--seconds",
            str(args.seconds)]
    argv += [o for o in ("--compile", "--serve", "--first-step")
             if getattr(args, o[2:].replace("-", "_"))]
    # No accelerator, and the variables by which libraries choose their number of threads.
    env = dict(os.environ, CUDA_VISIBLE_DEVICES="", OMP_NUM_THREADS=threads,
               MKL_NUM_THREADS=threads)
    with tempfile.TemporaryDirectory(prefix="plume-peer-") as folder:
        env["ENGINE_PEER_EXEC"] = repr(time.time())
        ranks_run = [subprocess.Popen([*argv, "--rank", str(r), "--store",
                                       os.path.join(folder, "store")], env=env,
                                      stdin=None if r == 0 else subprocess.DEVNULL)
                     for r in range(int(ranks))]
        codes = [p.wait() for p in ranks_run]
    return max(abs(c) for c in codes)


def main():
    args = parse()
    if args.rank is not None:
        work(args)
        return 0
    worst = 0
    for ranks in args.ranks.split(","):
        for dtype in args.dtype.split(","):
            for threads in args.threads.split(","):
                for model in args.model.split(","):
                    if int(ranks) > 1 and int(threads) > 1:
                        continue
                    worst = max(worst, start(args, model, dtype, threads, ranks))
                    if worst == 77:
                        return worst
    return 1 if worst else 0


if __name__ == "__main__":
    sys.exit(main())
