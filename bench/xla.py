#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""A step of GPT-4L on XLA's CPU device beside the CPU's kernels, and the time until the first step:
with the program compiled, and with the one that an earlier run has kept.

$PLUME_PJRT_PLUGIN is the plugin; if not given, what ./dev deps pjrt has fetched.
"""

import os
import re

from plbench import BUILD, Bench

ROUNDS = 3
PLUGIN = os.environ.get("PLUME_PJRT_PLUGIN") or os.path.join(
    os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "plume", "pjrt-0.0.1",
    "xla_plugins", "xla_cpu_pjrt", "xla_cpu_pjrt.so")
MODEL = ["gpt", "--layers", "4", "--heads", "4", "--width", "128", "--context", "128",
         "--batch_size", "16"]


def compare(b, *options):
    """{"cpu", "tpu": (seconds of a step, seconds until the first one)}"""
    env = {"PLUME_DATA_DIR": os.path.join(BUILD, "data"),
           "PLUME_MODULE_PATH": os.path.join(BUILD, "modules"), "PLUME_PLUGIN_DIR": BUILD}
    argv = ["pltrain", "--compare-devices", "--pjrt-plugin", PLUGIN, *options, *MODEL]
    out = b.run(argv, env=env, stdout=-1)[1]
    return {m[1]: (float(m[2]) / 1000, float(m[3]))
            for m in re.finditer(r"^(cpu|tpu) +([0-9.]+) +[0-9.]+ +([0-9.]+)", out, re.M)}


def main():
    if not os.path.exists(PLUGIN) or not os.path.exists(os.path.join(BUILD, "plume-pjrt.so")):
        print(f"xla: left out: no plugin '{PLUGIN}', or a build without PJRT (./dev deps pjrt)")
        return
    with Bench("xla") as b:
        found = b.alternate({"kept": lambda: compare(b), "new": lambda: compare(b, "--no-program-cache")},
                            ROUNDS)
        both = found["kept"] + found["new"]
        b.row("gpt4 f32: a step on XLA's CPU device", [row["tpu"][0] for row in both],
              [row["cpu"][0] for row in both], "the cpu backend")
        b.row("gpt4 f32: until the first step, program kept", [row["tpu"][1] for row in found["kept"]],
              [row["tpu"][1] for row in found["new"]], "compiled")
        b.finish()


if __name__ == "__main__":
    main()
