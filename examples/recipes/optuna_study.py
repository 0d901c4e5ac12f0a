#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Optuna: each trial of the sweep makes one of Optuna's, in a study that is a file of the run folder.

    plsubmit --repeat 20 --max-parallel 4 --objective min:loss python optuna_study.py --seed {seed}
"""
import argparse
import os

import optuna
import plume
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

parser = argparse.ArgumentParser()
parser.add_argument("--seed", type=int, default=0)
optuna.logging.set_verbosity(optuna.logging.WARNING)
storage = JournalStorage(JournalFileBackend(os.path.join(os.environ["PLUME_RUN_DIR"], "optuna.log")))
study = optuna.create_study(
    study_name="study", storage=storage, direction="minimize", load_if_exists=True,
    sampler=optuna.samplers.TPESampler(seed=parser.parse_args().seed))
trial = study.ask()
x = trial.suggest_float("x", -10, 10)
lr = trial.suggest_float("lr", 1e-5, 1e-1, log=True)
loss = (x - 2) ** 2 + (lr - 0.01) ** 2
plume.report(trial.number, loss=loss, x=x, lr=lr)
study.tell(trial, loss)
print(f"Optuna's trial {trial.number}: x {x:.3f}, lr {lr:.6f}, loss {loss:.3f}")
