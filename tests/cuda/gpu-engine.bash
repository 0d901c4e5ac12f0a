# SPDX-License-Identifier: MIT
# shellcheck shell=bash
# For gpu-engine*.bats: the benchmark of training on GPUs, small enough for an emulated one.

# engine ARGS...: the benchmark of the smallest GPT alone; without PyTorch unless one is named.
engine() {
    PLUME_BUILD=$BUILD PLUME_TORCH_PYTHON=${peer:-/nowhere} GPU_ENGINE_MODELS=gpt-tiny \
        timeout 200 python3 "$BATS_TEST_DIRNAME/../../bench/gpu_engine.py" "$@"
}

# rows SIDE: BATCH TOKENS MS MIB SECONDS of its rows in `table`.
rows() {
    awk -F ' *[|] *' -v side="$1" 'NF == 14 && $5 ~ "^" side "(,|$)" { print $4, $6, $8, $12, $13 + 0 }' table
}
