#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""A PyTorch program whose sweep fills itself:

    plsubmit --grid lr=0.01,0.1 --objective min:loss -N 2 --ntasks-per-node 2 python train_torch.py

It resumes from its checkpoint after a requeue or a retry, and saves one when Slurm says that it ends."""
import os

import plume
import torch
import torch.distributed as dist

hp = plume.params(lr=0.05, steps=200)
stop_asked = plume.should_stop  # the first call catches signals, before the process group's threads
stop_asked()
if plume.world_size() > 1:
    dist.init_process_group("gloo")  # Plume has set MASTER_ADDR, MASTER_PORT, RANK and WORLD_SIZE

torch.manual_seed(0)
model = torch.nn.Linear(8, 1)
if plume.world_size() > 1:
    model = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=hp["lr"])

folder = os.path.join(os.environ.get("PLUME_RUN_DIR", "."), f"trial-{int(os.environ.get('PLUME_TRIAL', 0)):04}")
path = os.path.join(folder if os.path.isdir(folder) else ".", "checkpoint.pt")
first = 0
if plume.attempt() > 0 and os.path.exists(path):
    saved = torch.load(path, weights_only=True)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    first = saved["step"]


def save(step):
    if plume.rank() == 0:
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, path + ".new")
        os.replace(path + ".new", path)


def all_agree_to_stop():
    """Slurm's signal reaches the ranks at different steps; they must leave at the same one."""
    flag = torch.tensor(float(stop_asked()))
    if plume.world_size() > 1:
        dist.all_reduce(flag, op=dist.ReduceOp.MAX)
    return flag.item() > 0


data = torch.Generator().manual_seed(plume.rank())
target = torch.arange(8.0)
for step in range(first, hp["steps"]):
    x = torch.randn(32, 8, generator=data)
    loss = torch.nn.functional.mse_loss(model(x).squeeze(1), x @ target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    plume.report(step, loss=loss.item())
    if all_agree_to_stop():
        save(step + 1)
        break
else:
    save(hp["steps"])
    plume.finished()
print(f"rank {plume.rank()}: steps {first} to {step}, loss {loss.item():.4g}")
if plume.world_size() > 1:
    dist.destroy_process_group()
