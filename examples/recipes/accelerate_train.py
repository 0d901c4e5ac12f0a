#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Accelerate: started as it is, without `accelerate launch`, since a rank has the variables that it reads."""
import plume
import torch
from accelerate import Accelerator
from accelerate.utils import set_seed

hp = plume.params(lr=0.1, steps=50)
accelerator = Accelerator(cpu=not torch.cuda.is_available())
set_seed(0)
x = torch.randn(512, 8)
data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True)), 8, shuffle=True)
model = torch.nn.Linear(8, 1)
model, optimizer, data = accelerator.prepare(model, torch.optim.SGD(model.parameters(), hp["lr"]), data)
step = 0
while step < hp["steps"]:
    for a, b in data:
        loss = torch.nn.functional.mse_loss(model(a), b)
        optimizer.zero_grad()
        accelerator.backward(loss)
        optimizer.step()
        step += 1
        plume.report(step, loss=loss.item())
        if step == hp["steps"]:
            break
loss = accelerator.reduce(loss.detach(), "mean").item()
print(f"rank {accelerator.process_index} of {accelerator.num_processes}: loss {loss:.4f}")
accelerator.end_training()
