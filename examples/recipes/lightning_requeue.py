#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""PyTorch Lightning, which requeues its job itself (SLURMEnvironment): Plume counts the attempts."""
import os
import time

import lightning as L
import plume
import torch
from lightning.pytorch.plugins.environments import SLURMEnvironment
from plume_lightning import PlumeLogger


class Net(L.LightningModule):
    def __init__(self, lr):
        super().__init__()
        self.layer, self.lr = torch.nn.Linear(8, 1), lr

    def training_step(self, batch, index):
        x, y = batch
        loss = torch.nn.functional.mse_loss(self.layer(x), y)
        self.log("loss", loss)
        time.sleep(0.05)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), self.lr)


hp = plume.params(lr=0.1, steps=100)
folder = os.environ["PLUME_TRIAL_DIR"]  # the same for each attempt: hpc_ckpt_N.ckpt is found again
L.seed_everything(0, verbose=False)
x = torch.randn(256, 8)
data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True)), 8)
trainer = L.Trainer(
    accelerator="cpu", devices=int(os.environ["LOCAL_WORLD_SIZE"]), num_nodes=int(os.environ["SLURM_NNODES"]),
    plugins=SLURMEnvironment(auto_requeue=True), logger=PlumeLogger(), default_root_dir=folder, max_epochs=-1,
    max_steps=hp["steps"], log_every_n_steps=1, enable_progress_bar=False, enable_model_summary=False,
    enable_checkpointing=False)
trainer.fit(Net(hp["lr"]), data)
if trainer.global_step == hp["steps"]:
    plume.finished()
print(f"attempt {plume.attempt()}: rank {trainer.global_rank} of {trainer.world_size}, step {trainer.global_step}")
