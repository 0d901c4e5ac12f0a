#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes tests/fixtures/weights/saved.pt by torch.save(), and saved.json: the numbers in it, as bytes.
Needs torch.
Usage: tests/golden/saved.py"""
import argparse
import collections
import json
import os

import torch

OUT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "fixtures", "weights")
TYPES = {torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16",
         torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8",
         torch.bool: "BOOL", torch.uint16: "U16", torch.float8_e4m3fn: "F8_E4M3"}


def main():
    torch.manual_seed(14)
    state = collections.OrderedDict()
    # mlp --hidden 3: a transposed matrix, a part of a larger one, a parameter, and one number repeated.
    state["w1"] = torch.randn(64, 3).t()
    state["b1"] = torch.randn(9)[1:9:3]
    state["w2"] = torch.nn.Parameter(torch.randn(10, 3, dtype=torch.float64))
    state["b2"] = torch.randn(1).expand(10)
    for dtype, name in TYPES.items():
        state["type." + name] = torch.arange(-3, 3).clamp(min=0).reshape(2, 3).to(torch.float32).to(dtype)
    state["tied"] = state["w2"]
    state["number"] = torch.tensor(2.5)
    state["empty"] = torch.zeros(0, 4)
    state["views"] = torch.arange(24.0).reshape(2, 3, 4).permute(2, 0, 1)[1:3]
    state["_extra_state"] = {"version": 1}
    state["complex"] = torch.zeros(2, dtype=torch.complex64)
    torch.save({"epoch": 3, "state_dict": state, "hyper_parameters": argparse.Namespace(lr=0.1)},
               os.path.join(OUT, "saved.pt"))
    want = {k: [TYPES[v.dtype], list(v.shape), v.detach().contiguous().flatten().view(torch.uint8).numpy().tobytes().hex()
                if v.numel() else ""] for k, v in state.items() if torch.is_tensor(v) and v.dtype in TYPES}
    with open(os.path.join(OUT, "saved.json"), "w") as f:
        f.write("{\n" + ",\n".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in want.items()) + "\n}\n")


main()
