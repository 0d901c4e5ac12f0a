#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes tests/fixtures/twins/: random weights of PyTorch for each example, and twins.json with the
losses of 20 steps of its twin (examples/*/*.py) from these weights, in f64, and what gpt writes.
tests/engine/twins.bats is the other side. With torchvision and transformers, also checks that the
twins of ResNet and GPT-2 have their names and compute the same.

Usage, with a Python that has torch: tests/golden/twins.py (after ./dev build, for the digits)"""
import importlib.util
import json
import os
import subprocess
import sys

import torch

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.join(HERE, "..", "..")
OUT = os.path.join(HERE, "..", "fixtures", "twins")
TEXT = os.path.join(OUT, "text.txt")
NUMBERS = {
    "contrastive": {"hidden": 8, "features": 4},
    "gpt": {"layers": 2, "heads": 2, "width": 8, "context": 16},
    "lstm": {"layers": 2, "width": 6, "hidden": 8, "context": 8},
    "resnet": {"width": 2, "size": 64, "lr": 0.002},
    # A small learning rate: in 53 norms of few samples rounding grows thirtyfold with each step.
    "resnet50": {"depth": 50, "width": 2, "size": 64, "lr": 2e-07},
    "vae": {"hidden": 8, "latent": 3},
}
BATCH, BATCHES, WRITE = 4, 5, 12
TEST_FROM = 1103  # character of the text at which the test's part begins


def example(name):
    """resnet50 is the example resnet with other numbers."""
    return name.rstrip("0123456789")


def twin(name, *options):
    script = os.path.join(ROOT, "examples", example(name), example(name) + ".py")
    argv = [sys.executable, script, "--text", TEXT, "--batch_size", str(BATCH), "--batches", str(BATCHES), *options]
    for key, value in NUMBERS[name].items():
        argv += ["--" + key, str(value)]
    return subprocess.run(argv, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()


def load(name):
    path = os.path.join(ROOT, "examples", name, name + ".py")
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def same(name, ours, theirs, x):
    """The names, shapes and outputs of two models, the first with the weights of the second."""
    ours.load_state_dict(theirs.state_dict())
    with torch.no_grad():
        a, b = ours(x), theirs(x)
        b = b if torch.is_tensor(b) else b.logits
        assert torch.allclose(a, b, rtol=1e-9, atol=1e-9), (name, (a - b).abs().max())
    print(f"{name}: the same", file=sys.stderr)


def compare():
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(3)
    try:
        from torchvision import models
        for depth in (18, 34, 50, 101, 152):
            same(f"torchvision's resnet{depth}", load("resnet").ResNet(64, 1000, depth).eval(),
                 getattr(models, f"resnet{depth}")().eval(), torch.randn(2, 3, 64, 64))
    except ModuleNotFoundError as e:
        print(f"not compared: {e}", file=sys.stderr)
    try:
        from transformers import GPT2Config, GPT2LMHeadModel
        n = NUMBERS["gpt"]
        config = GPT2Config(vocab_size=40, n_positions=n["context"], n_embd=n["width"],
                            n_layer=n["layers"], n_head=n["heads"], resid_pdrop=0, embd_pdrop=0,
                            attn_pdrop=0)
        theirs = GPT2LMHeadModel(config).double()
        with torch.no_grad():  # GPT-2 begins with biases of zero
            for p in theirs.parameters():
                p += 0.1 * torch.randn_like(p)
        same("transformers' GPT-2",
             load("gpt").Gpt(40, n["layers"], n["heads"], n["width"], n["context"]), theirs,
             torch.randint(0, 40, (2, n["context"])))
    except ModuleNotFoundError as e:
        print(f"not compared: {e}", file=sys.stderr)


def main():
    compare()
    torch.set_num_threads(1)
    golden = {}
    for name, numbers in NUMBERS.items():
        weights = os.path.join(OUT, name + ".safetensors")
        twin(name, "--init", weights, "--seed", "4")
        golden[name] = {"numbers": numbers, "batch_size": BATCH, "batches": BATCHES,
                        "losses": [float(x) for x in twin(name, "--weights", weights)]}
    golden["gpt"]["write"] = WRITE
    golden["gpt"]["written"] = [
        json.loads(x) for x in twin("gpt", "--weights", os.path.join(OUT, "gpt.safetensors"),
                                    "--first", str(TEST_FROM), "--write", str(WRITE),
                                    "--batches", "1", "--batch_size", "3")]
    with open(os.path.join(OUT, "twins.json"), "w") as f:
        json.dump(golden, f, indent=1)
        f.write("\n")


main()
