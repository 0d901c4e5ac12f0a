# SPDX-License-Identifier: MIT
"""The peer of allreduce.py: a PyTorch program that reports the end of its first all-reduce."""

import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 10))
loss = torch.nn.functional.cross_entropy(model(torch.rand(8, 64)), torch.randint(10, (8,)))
loss.backward()
print(f"reduced {time.time():.6f}", flush=True)
dist.barrier()
dist.destroy_process_group()
