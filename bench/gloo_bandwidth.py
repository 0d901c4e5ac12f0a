# SPDX-License-Identifier: MIT
"""The peer of bandwidth.c with PyTorch's gloo: gloo_bandwidth.py BYTES ITERATIONS."""

import sys
import time

import torch
import torch.distributed as dist

size, rounds = int(sys.argv[1]), int(sys.argv[2])
torch.set_num_threads(1)
dist.init_process_group("gloo")
x = torch.zeros(size // 4)
for i in range(-3, rounds):
    if i == 0:
        dist.barrier()
        begin = time.monotonic()
    dist.all_reduce(x)
dist.barrier()
if dist.get_rank() == 0:
    print(f"{(time.monotonic() - begin) / rounds:.9f}", flush=True)
dist.destroy_process_group()
