#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Hydra: Plume expands the grid and gives each trial its overrides; Hydra composes the configuration."""
import hydra
import plume
from omegaconf import DictConfig


@hydra.main(version_base=None, config_name="hydra_app", config_path=".")
def main(config: DictConfig):
    loss = (config.optimizer.lr - 0.01) ** 2 + config.model.layers
    plume.report(1, loss=loss)
    print(f"lr {config.optimizer.lr}, layers {config.model.layers}, loss {loss:.6f}")


main()
