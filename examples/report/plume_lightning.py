# SPDX-License-Identifier: MIT
"""PyTorch Lightning: Trainer(logger=PlumeLogger(), callbacks=[PlumeStop()]). All that self.log() logs
goes to Plume; a signal of Slurm ends training after the batch, as max_steps would."""
import plume

try:
    from lightning.pytorch.callbacks import Callback
    from lightning.pytorch.loggers.logger import Logger
except ImportError:
    from pytorch_lightning.callbacks import Callback
    from pytorch_lightning.loggers.logger import Logger


class PlumeLogger(Logger):
    """Lightning calls log_metrics() on rank 0 only."""
    name = "plume"
    version = plume.attempt()

    def log_metrics(self, metrics, step=None):
        plume.report(step, metrics)

    def log_hyperparams(self, params, *args, **kwargs):
        """plume.params() has them."""


class PlumeStop(Callback):
    def on_train_start(self, trainer, pl_module):
        plume.should_stop()

    def on_train_batch_end(self, trainer, pl_module, *args):
        stop = trainer.strategy.reduce_boolean_decision(plume.should_stop(), all=False)
        trainer.should_stop = trainer.should_stop or stop
