# SPDX-License-Identifier: MIT
"""Hugging Face: Trainer(..., callbacks=[PlumeCallback()]). What the Trainer logs goes to Plume; a
signal of Slurm saves a checkpoint and ends training after the step."""
import numbers

import plume
from transformers import TrainerCallback


class PlumeCallback(TrainerCallback):
    def on_train_begin(self, args, state, control, **kwargs):
        plume.should_stop()

    def on_log(self, args, state, control, logs=None, **kwargs):
        if state.is_world_process_zero:
            plume.report(state.global_step, {k: v for k, v in (logs or {}).items()
                                             if isinstance(v, numbers.Number)})

    def on_step_end(self, args, state, control, **kwargs):
        if plume.should_stop():
            control.should_save = control.should_training_stop = True
        return control

    def on_train_end(self, args, state, control, **kwargs):
        if state.global_step >= state.max_steps:
            plume.finished()
