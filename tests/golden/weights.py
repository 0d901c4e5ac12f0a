#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes tests/fixtures/weights/ and weights.h: tensors of PyTorch in safetensors files, and their
values as PyTorch converts them. Needs torch and safetensors.
Usage: tests/golden/weights.py"""
import json
import os

import torch
from safetensors.torch import save_file

HERE = os.path.dirname(os.path.abspath(__file__))
OUT = os.path.join(HERE, "..", "fixtures", "weights")

torch.manual_seed(14)


def values(*shape):
    """Of several magnitudes, denormal f16 among them."""
    return torch.randn(*shape, dtype=torch.float64) * 10.0 ** torch.randint(-7, 4, shape)


def main():
    os.makedirs(OUT, exist_ok=True)
    a, b, mean = values(5, 7), values(7, 3), values(4)
    lines = ["/* SPDX-License-Identifier: MIT */", "/* Made by weights.py. */", "#ifndef PL_TESTS_GOLDEN_WEIGHTS_H",
             "#define PL_TESTS_GOLDEN_WEIGHTS_H", ""]
    for name, dtype in (("f16", torch.float16), ("bf16", torch.bfloat16), ("f32", torch.float32),
                        ("f64", torch.float64)):
        # A byte first, so that nothing after it is aligned.
        state = {"model.a": a.to(dtype), "model.b": b.to(dtype), "bn.running_mean": mean.to(dtype),
                 "bn.num_batches_tracked": torch.tensor(3), "odd": torch.tensor([1], dtype=torch.uint8)}
        save_file(state, os.path.join(OUT, name + ".safetensors"), metadata={"format": "pt"})
        for key in ("model.a", "model.b", "bn.running_mean"):
            numbers = state[key].double()
            if key == "model.b":
                numbers = numbers.t()
            lines.append(f"static const double {name}_{key.split('.')[1]}[] = {{")
            lines += [f"    {x!r}," for x in numbers.flatten().tolist()]
            lines.append("};")
    save_file({"model.a": a.float()}, os.path.join(OUT, "model-00001-of-00002.safetensors"))
    save_file({"model.b": b.float(), "bn.running_mean": mean.float()},
              os.path.join(OUT, "model-00002-of-00002.safetensors"))
    index = {"metadata": {"total_size": 1}, "weight_map": {
        "model.a": "model-00001-of-00002.safetensors", "model.b": "model-00002-of-00002.safetensors",
        "bn.running_mean": "model-00002-of-00002.safetensors"}}
    with open(os.path.join(OUT, "model.safetensors.index.json"), "w") as f:
        json.dump(index, f, indent=2)
        f.write("\n")
    lines += ["", "#endif", ""]
    with open(os.path.join(HERE, "weights.h"), "w") as f:
        f.write("\n".join(lines))


main()
