#!/usr/bin/env bats
# SPDX-License-Identifier: MIT
# The peer's side of bench/gpu_engine.py, by a PyTorch on the CPU: PLUME_TORCH_PYTHON names a Python
# that has it. Not among the suites that ./dev test runs.

bats_require_minimum_version 1.5.0
load gpu
load gpu-engine

@test "PyTorch beside ours" {
    peer=${PLUME_TORCH_PYTHON:?names no Python with PyTorch} GPU_ENGINE_COMPILE=0 engine --tiny >table
    cat table
    [ "$(rows eager | cut -d ' ' -f 1 | tr '\n' ' ')" = "2 4 " ]
    # The best of both is compared.
    awk -F ' *[|] *' '
        NF == 14 && $5 == "eager" && $6 > eager { eager = $6 }
        NF == 11 && $2 == "gpt-tiny" { n++; bad = ($5 - eager) ^ 2 > 1 || ($4 / $5 - $7) ^ 2 > 0.0001 }
        END { exit bad || n != 1 }' table
}
