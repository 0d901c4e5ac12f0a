#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes tests/fixtures/weights/sequential.safetensors: the state dict of a torch.nn.Sequential, which
names its parameters by their place. Needs torch.
Usage: tests/golden/sequential.py"""
import os
import subprocess
import sys
import tempfile

import torch

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")

torch.manual_seed(15)
net = torch.nn.Sequential(torch.nn.Linear(64, 2), torch.nn.ReLU(), torch.nn.Linear(2, 10))
with tempfile.TemporaryDirectory() as folder:
    saved = os.path.join(folder, "sequential.pt")
    torch.save(net.state_dict(), saved)
    subprocess.run([sys.executable, os.path.join(ROOT, "examples", "weights", "to_safetensors.py"), saved,
                    os.path.join(ROOT, "tests", "fixtures", "weights", "sequential.safetensors")],
                   check=True)
