# SPDX-License-Identifier: MIT
"""The PyTorch side of gpu_engine.py, which starts it. It reads one job per line of stdin, as JSON,
and answers each with a line of JSON on stdout; its first line describes the system.

    gpu_peer.py [--device cuda|cpu]      cpu: to test the program without a GPU

    {"do": "train", "model": "gpt2", "dtype": "bf16", "batch": 16, "mode": null, "trials": 4,
     "seconds": 0.5, "channels_last": null}
    {"do": "products", "size": 8192}

mode is null (eager) or a mode of torch.compile. dtype f32 disables tf32, which cuDNN would use.

Written as usual for speed: autocast with parameters in f32 (the same as Plume's --precision bf16),
fused optimizers, gradients set to None, fused causal attention, channels last if that is faster,
the loss compiled together with the model, batches in pinned memory that are copied during the step
before. Nothing waits for the GPU inside a trial, and nothing reads the loss before its end.
"""

import argparse
import gc
import json
import os
import sys
import time

from engine_models import GPT, RESNET, torch_models

EXEC = float(os.environ.get("GPU_PEER_EXEC", 0)) or time.time()
WARM_STEPS = 3
BATCHES = 8  # used alternately

try:
    import torch
except ModuleNotFoundError as e:
    print(f"gpu_peer: {e}; name a Python that has it in PLUME_TORCH_PYTHON", file=sys.stderr)
    sys.exit(77)


class WithLoss(torch.nn.Module):
    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, x, y):
        logits = self.net(x)
        return torch.nn.functional.cross_entropy(logits.view(-1, logits.shape[-1]), y.view(-1))


class Training:
    def __init__(self, device, job):
        self.device, self.cuda = device, device == "cuda"
        self.half, self.graphs = job["dtype"] == "bf16", job["mode"] == "reduce-overhead"
        set_tf32(job["dtype"] != "f32")
        make_net, make_batches = torch_models()
        torch.manual_seed(1)
        with torch.device(device):
            self.made = WithLoss(make_net(job["model"]))
        self.batches = make_batches(job["model"], BATCHES, job["batch"])
        if self.cuda:
            self.batches = [(x.pin_memory(), y.pin_memory()) for x, y in self.batches]
        if job["channels_last"]:
            self.lay_out(torch.channels_last)
        self.net = torch.compile(self.made, mode=job["mode"]) if job["mode"] else self.made
        self.optimizer = self.new_optimizer(job["model"])
        self.step_no = 0

    def lay_out(self, how):
        self.made.to(memory_format=how)
        pinned = self.cuda and self.batches[0][0].is_pinned()
        self.batches = [(x.contiguous(memory_format=how), y) for x, y in self.batches]
        if pinned:
            self.batches = [(x.pin_memory(), y) for x, y in self.batches]

    def new_optimizer(self, model):
        if model in GPT:
            return torch.optim.AdamW(self.made.parameters(), lr=3e-4, weight_decay=0.1, fused=True)
        return torch.optim.SGD(self.made.parameters(), lr=0.01, momentum=0.9, fused=True)

    def step(self):
        x, y = self.batches[self.step_no % BATCHES]
        self.step_no += 1
        x, y = x.to(self.device, non_blocking=True), y.to(self.device, non_blocking=True)
        self.optimizer.zero_grad(set_to_none=True)
        if self.graphs:
            torch.compiler.cudagraph_mark_step_begin()
        with torch.autocast(self.device, torch.bfloat16, enabled=self.half):
            loss = self.net(x, y)
        loss.backward()
        self.optimizer.step()
        return loss

    def wait(self):
        if self.cuda:
            torch.cuda.synchronize()

    def trial(self, seconds):
        """Steps per second."""
        self.wait()
        n, start = 0, time.perf_counter()
        while n == 0 or time.perf_counter() - start < seconds:
            loss = self.step()
            n += 1
        self.wait()
        took = time.perf_counter() - start
        if not bool(torch.isfinite(loss)):
            raise RuntimeError("the loss is not finite")
        return n / took

    def warm(self):
        for _ in range(WARM_STEPS):
            self.step()
        self.wait()

    def tune(self, seconds):
        """Chooses the faster layout of images; True: channels last."""
        self.warm()
        plain = self.trial(seconds)
        self.lay_out(torch.channels_last)
        self.optimizer = self.new_optimizer("cnn")  # its momentum has the parameters' strides
        self.warm()
        if self.trial(seconds) > plain:
            return True
        self.lay_out(torch.contiguous_format)
        self.optimizer = self.new_optimizer("cnn")
        return False


def set_tf32(allowed):
    torch.backends.cuda.matmul.allow_tf32 = allowed
    torch.backends.cudnn.allow_tf32 = allowed


def mib(n):
    return round(n / 2 ** 20, 1)


def train(device, job):
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    t = Training(device, job)
    t.step()
    t.wait()
    first = time.time() - EXEC
    last = job["channels_last"]
    if last is None and job["model"] in ("cnn", *RESNET):
        last = t.tune(job["seconds"])
    t.warm()
    answer = {"rates": [t.trial(job["seconds"]) for _ in range(job["trials"])],
              "first_s": first, "channels_last": bool(last), "peak_mib": None}
    if device == "cuda":
        answer["peak_mib"] = mib(torch.cuda.max_memory_allocated())
        answer["reserved_mib"] = mib(torch.cuda.max_memory_reserved())
    return answer


def products(device, job):
    """TFLOP/s of the best of several large matrix products with cuBLAS, by type."""
    n, best = job["size"], {}
    for name, dtype in (("bf16", torch.bfloat16), ("tf32", torch.float32), ("f32", torch.float32)):
        set_tf32(name == "tf32")
        a, b = (torch.rand(n, n, device=device).sub_(0.5).to(dtype) for _ in range(2))
        for _ in range(8):
            start = time.perf_counter()
            for _ in range(2):
                c = a @ b
            if device == "cuda":
                torch.cuda.synchronize()
            rate = 2 * 2 * n ** 3 / (time.perf_counter() - start) * 1e-12
            best[name] = max(rate, best.get(name, 0))
        del a, b, c
    return {"tflops": best}


def answer_to(device, job):
    try:
        return {"train": train, "products": products}[job["do"]](device, job)
    except torch.OutOfMemoryError:
        return {"out_of_memory": True}
    except Exception as e:  # pylint: disable=broad-except # the next job may succeed
        return {"error": f"{type(e).__name__}: {e}".splitlines()[0][:300]}


def forget(device):
    """Frees the memory of the last job, so that it does not count in the next one's peak."""
    torch.compiler.reset()
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    device = p.parse_args().device
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # compilers print to stdout
    if device == "cuda" and not torch.cuda.is_available():
        print("gpu_peer: this PyTorch sees no GPU", file=sys.stderr)
        return 77
    ready = {"name": f"PyTorch {torch.__version__}", "cuda": torch.version.cuda,
             "cudnn": torch.backends.cudnn.version() if device == "cuda" else None}
    print(json.dumps(ready), file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps(answer_to(device, json.loads(line))), file=answers, flush=True)
        forget(device)
    return 0


if __name__ == "__main__":
    sys.exit(main())
