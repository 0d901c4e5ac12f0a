#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Hugging Face's Trainer with PlumeCallback: what it logs is in the sweep, and a signal of Slurm saves."""
import os

import plume
import torch
from plume_huggingface import PlumeCallback
from transformers import Trainer, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)

    def forward(self, x, labels):
        y = self.layer(x)
        return {"loss": torch.nn.functional.mse_loss(y, labels), "logits": y}


hp = plume.params(lr=0.05, steps=60)
x = torch.randn(256, 8, generator=torch.Generator().manual_seed(0))
data = [{"x": row, "labels": row.sum(0, keepdim=True)} for row in x]
folder = os.path.join(os.environ["PLUME_TRIAL_DIR"], "checkpoints")
trainer = Trainer(
    Net(), train_dataset=data, callbacks=[PlumeCallback()],
    args=TrainingArguments(output_dir=folder, use_cpu=not torch.cuda.is_available(), learning_rate=hp["lr"],
                           max_steps=hp["steps"], logging_steps=10, report_to=[], disable_tqdm=True))
trainer.train(resume_from_checkpoint=get_last_checkpoint(folder) if os.path.isdir(folder) else None)
print(f"rank {trainer.args.process_index} of {trainer.args.world_size}: step {trainer.state.global_step}")
