#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Converts a state dict that torch.save() wrote into a safetensors file for `pltrain --weights`.

Usage: to_safetensors.py IN.pt OUT.safetensors [KEY]

KEY is the place of the state dict in IN, such as state_dict in a checkpoint of Lightning. The file
is read with weights_only=True: it cannot run code. Needs PyTorch and the package safetensors."""
import sys

import torch
from safetensors.torch import save_file


def main():
    if len(sys.argv) not in (3, 4):
        sys.exit(__doc__)
    state = torch.load(sys.argv[1], map_location="cpu", weights_only=True)
    if len(sys.argv) == 4:
        if sys.argv[3] not in state:
            sys.exit(f"{sys.argv[1]} has no '{sys.argv[3]}', but: {', '.join(map(str, state))}")
        state = state[sys.argv[3]]
    # A tensor that two names share is written twice: each name is one tensor of a file.
    tensors = {k: v.detach().clone().contiguous() for k, v in state.items() if torch.is_tensor(v)}
    left = [str(k) for k in state if k not in tensors]
    if not tensors:
        sys.exit(f"{sys.argv[1]} has no tensors at its top, but: {', '.join(left)} (give a KEY)")
    save_file(tensors, sys.argv[2], metadata={"format": "pt"})
    print(f"{len(tensors)} tensors" + (f", left out: {', '.join(left)}" if left else ""))


main()
