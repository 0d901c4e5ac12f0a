#!/usr/bin/env bats
# SPDX-License-Identifier: MIT
# dp and ddp2 on several emulated GPUs of a process: see gpu.bash.

bats_require_minimum_version 1.5.0
load gpu

@test "a batch's parts train on GPUs of their own as on one" {
    local -a few=(--max-steps 4 --limit-val-batches 1 --limit-test-batches 1)
    local -a dp=(--strategy dp "${few[@]}") ddp2=(--strategy ddp2 --num-nodes 2 "${few[@]}")
    split 1e-5 3 "${dp[@]}" mlp
    split 1e-5 3 "${dp[@]}" cnn --batch_size 8 --batchnorm 1 --dropout 0.2
    split 1e-5 2 "${dp[@]}" contrastive
    split 3e-3 2 "${dp[@]}" --precision bf16 contrastive
    split 3e-3 3 "${dp[@]}" --precision bf16 "${GPT[@]}" --batch_size 4
    split 1e-5 2 "${ddp2[@]}" contrastive
    split 1e-5 2 "${ddp2[@]}" --seed 1 cnn --batch_size 8 --batchnorm 1
}

# The tail of an epoch has fewer rows than there are parts, and then one.
@test "all that parts and the first GPU exchange" {
    local -a dp=(--strategy dp --epochs 2)
    local module=$PLUME_PLUGIN_DIR/scattered
    split 1e-5 3 "${dp[@]}" "$module.so"
    split 1e-5 3 "${dp[@]}" --precision 64 --hparam samples=28 "$module.so"
    split 3e-3 3 "${dp[@]}" --precision 16 --accumulate 2 "$module.so"
    split 3e-3 3 "${dp[@]}" --precision bf16 --amp-level O3 "$module.so"
    # O2 is for ddp2.
    split 3e-3 2 --strategy ddp2 --num-nodes 2 --precision 16 --amp-level O2 "$module.so"
    split 1e-5 3 "${dp[@]}" --hparam samples=28 --accumulate 3 "${module}_turns.so"
    # At O1 the result of a batch norm has 16 bits on a GPU, and 32 on the CPU.
    split 1e-2 2 "${dp[@]}" --precision bf16 "${module}_turns.so"
}
