#!/usr/bin/env bats
# SPDX-License-Identifier: MIT
# Strategy pipeline: the results of one process, whole checkpoints, and one line for what does not go.
# BUILD is the build folder, BROKEN the folder of odd.so, TURNS a module with two optimizers that take turns, SANITIZE how it was built.

bats_require_minimum_version 1.5.0
load ../lib/memory

setup() {
    PATH=$BUILD:$PATH
    unset RANK WORLD_SIZE PLUME_SOCKET
    cd "$BATS_TEST_TMPDIR" || return
}

readonly PIPE=(--strategy pipeline --microbatches 4)
readonly SHORT=(--limit-val-batches 1 --limit-test-batches 1)

# says STATUS WORDS ARGS...: pltrain exits with STATUS, and a line on stderr has the words.
says() {
    local status=$1 words=$2
    shift 2
    run "-$status" --separate-stderr pltrain "$@"
    [ "${#stderr_lines[@]}" -eq 1 ] || { echo "$stderr"; false; }
    [[ $stderr == "pltrain: "*"$words"* ]] || { echo "$stderr"; false; }
}

# hash_of ARGS...: that of the parameters, which all ranks agree on.
hash_of() {
    pltrain "${SHORT[@]}" --max-steps 4 "$@" >hash.out || return
    sed -n 's/.*param hash //p' hash.out | sort -u
}

@test "microbatches have the bits of accumulated batches" {
    for module in "mlp --optimizer adam" "cnn --batchnorm 1 --dropout 0" "mlp --precision bf16 --hidden 200" \
        "gpt --precision bf16 --context 8 --width 32 --layers 1 --amp-level O2"; do
        read -ra words <<<"$module"
        one=$(hash_of "${words[@]}" --accumulate 4 --batch_size 2)
        [ ${#one} -eq 16 ]
        for stages in "1" "3" "2 --schedule gpipe" "2 --comm tcp" "2 --processes 2 --processes-per-node 1"; do
            read -ra more <<<"$stages"
            got=$(hash_of "${words[@]}" "${PIPE[@]}" --stages "${more[@]}" --batch_size 8)
            [ "$got" = "$one" ] || { echo "$module $stages: $got, not $one"; false; }
        done
    done
}

@test "two pipelines are two ranks" {
    local -a run=(--max-steps 4 "${SHORT[@]}" --precision 64 --clip 0.1)
    for module in "gpt --context 8 --width 16 --layers 1 --dropout 0.2" "mlp --batch_size 5" "lstm --batch_size 2 --layers 1 --hidden 16"; do
        read -ra words <<<"$module"
        pltrain "${run[@]}" --processes 2 "${words[@]}" | sed -n 's/ (.*//; /^epoch\|^test/p' >ddp
        pltrain "${run[@]}" "${PIPE[@]}" --stages 2 --processes 4 "${words[@]}" | sed -n 's/ (.*//; /^epoch\|^test/p' >pipe
        [ -s ddp ]
        cmp ddp pipe || { cat ddp pipe; false; }
    done
}

@test "predictions are those of one process" {
    for module in "cnn --batchnorm 1" "vae --hidden 16" "mlp --batch_size 200 --precision bf16"; do
        read -ra words <<<"$module"
        rm -rf w
        pltrain --epochs 0 --checkpoint-dir w "${words[@]}" >/dev/null
        pltrain --predict --weights w/epoch=0-step=0.ckpt --out one.npy "${words[@]}"
        [ -s one.npy ]
        for stages in "2 --processes 2" "2 --processes 4" "3 --comm tcp --processes 3"; do
            read -ra more <<<"$stages"
            run -0 --separate-stderr pltrain "${PIPE[@]}" --stages "${more[@]}" --predict --weights w/epoch=0-step=0.ckpt --out p.npy "${words[@]}"
            cmp one.npy p.npy || { echo "$module $stages"; false; }
        done
    done
}

@test "a run goes on under any strategy, from a pipeline and in one" {
    local -a gpt=(gpt --context 8 --width 16 --layers 1 --dropout 0.1 --optimizer adamw)
    whole=$(hash_of "${PIPE[@]}" --stages 3 "${gpt[@]}")
    pltrain "${SHORT[@]}" "${PIPE[@]}" --stages 3 --max-steps 2 --checkpoint-dir a --save-last "${gpt[@]}" >/dev/null
    [ "$(hash_of "${PIPE[@]}" --stages 3 --resume a/last.ckpt "${gpt[@]}")" = "$whole" ]
    # With the same samples per step: in one process, in another pipeline, and back.
    pltrain "${SHORT[@]}" --max-steps 4 --resume a/last.ckpt "${gpt[@]}" | sed -n 's/ (.*//; /^epoch\|^test/p' >one
    pltrain "${SHORT[@]}" "${PIPE[@]}" --stages 2 --max-steps 4 --resume a/last.ckpt "${gpt[@]}" |
        sed -n 's/ (.*//; /^epoch\|^test/p' >two
    [ -s one ]
    cmp one two || { cat one two; false; }
    pltrain "${SHORT[@]}" --max-steps 2 --checkpoint-dir b --save-last --save-weights-only "${gpt[@]}" >/dev/null
    [ ${#whole} -eq 16 ]
    pltrain "${PIPE[@]}" --stages 2 --test --weights b/last.ckpt "${gpt[@]}" >pipe
    pltrain --test --weights b/last.ckpt "${gpt[@]}" >one
    cmp one <(grep -v "^pipeline:" pipe) || { cat one pipe; false; }
}

@test "weights alone, and after a signal" {
    pltrain "${SHORT[@]}" "${PIPE[@]}" --stages 2 --save-weights-only --checkpoint-dir w --save-last --max-steps 2 mlp >/dev/null
    says 1 "weights only" --resume w/last.ckpt mlp
    # All stages hand over what they have when the run is interrupted.
    mkfifo out
    timeout 60 pltrain "${PIPE[@]}" --stages 2 --processes 4 --optimizer adam --epochs 100000 --checkpoint-dir s mlp >out &
    pid=$!
    exec 5<out
    for _ in 1 2 3 4; do read -r -t 30 <&5; done # the first epoch
    kill -TERM $pid
    cat <&5 >/dev/null
    run wait $pid
    ls s/hpc_ckpt_1.ckpt
    pltrain --processes 3 --optimizer adam --max-steps 1 --resume s/hpc_ckpt_1.ckpt mlp | grep -q hash
}

# needs ARGS...: the first stage takes the memory that was planned, within 5 %, and each stage's need is told before.
needs() {
    run -0 --separate-stderr pltrain --profile --summary --max-steps 2 "${SHORT[@]}" --optimizer adam "$@"
    awk '$1 == "peak_bytes" { good = $2 / $4 > 0.95 && $2 / $4 < 1.05 } END { exit !good }' <<<"$stderr" ||
        { grep peak <<<"$stderr"; echo "$*"; false; }
    grep -qE '^needs by stage: [0-9.]+ [MG]B of [0-9.]+ [MG]B, [0-9.]+ [MG]B of [0-9.]+ [MG]B a rank$' <<<"$output"
}

@test "the memory that a stage takes is what was planned" {
    needs "${PIPE[@]}" --stages 2 --batch_size 10 gpt --context 64 --layers 2
    needs "${PIPE[@]}" --stages 2 --schedule gpipe --precision bf16 gpt --context 64 --layers 2
    needs --strategy pipeline --stages 2 --microbatches 3 --processes 4 cnn --batchnorm 1
}

@test "what does not go is one line" {
    says 2 "option '--stages' needs '--strategy pipeline'" --stages 2 mlp
    says 2 "option '--microbatches' needs '--strategy pipeline'" --microbatches 2 --strategy ddp mlp
    says 2 "option '--schedule' needs '--strategy pipeline'" --schedule gpipe mlp
    says 2 "option '--balance-every' needs '--strategy pipeline'" --balance-every 2 mlp
    says 2 "'zigzag' is none of 1f1b, gpipe" --strategy pipeline --schedule zigzag mlp
    says 2 "--stages" --strategy pipeline --stages 65 mlp
    says 1 "3 ranks do not make whole pipelines of 2 stages" --strategy pipeline --stages 2 --processes 3 mlp
    says 1 "ops: choose fewer by --stages" --strategy pipeline --stages 12 mlp
    says 1 "step_per_optimizer" --strategy pipeline --stages 2 "$TURNS"
    says 1 "keeps no moving average" --strategy pipeline --stages 2 --ema 0.9 mlp
}

@test "a label that is no class is named by all ranks, in any microbatch" {
    for order in 1f1b gpipe; do
        ODD=label run -1 --separate-stderr pltrain "${PIPE[@]}" --stages 2 --schedule $order --overfit-batches 1 "$BROKEN/odd.so"
        grep -q '^pltrain: label 3 of row 20 is not in \[0, 2\]' <<<"$stderr" || { echo "$stderr"; false; }
        grep -q '^pltrain: rank 1 gave up: label 3 of row 20 is not in' <<<"$stderr" || { echo "$stderr"; false; }
        [[ $stderr != *"not a number"* ]] || { echo "$stderr"; false; }
    done
}

@test "a module that does not fit one rank trains on four" {
    [ "$SANITIZE" = none ] || skip "a sanitizer's shadow memory has no limit"
    local -a gpt=(gpt --layers 8 --width 384 --context 8 --batch_size 4 --optimizer adam --max-steps 1)
    export OMP_NUM_THREADS=1 # threads have stacks
    (ulimit -v 180000 # KiB, of each rank
    says 1 " parameters, their gradients and the optimizers' state do not fit in the memory of rank 0 (--strategy sharded --shard param shares them among ranks, --strategy pipeline the layers): out of memory for" "${SHORT[@]}" "${gpt[@]}"
    pltrain "${SHORT[@]}" "${PIPE[@]}" --stages 4 --checkpoint-dir c --save-weights-only "${gpt[@]}" >out)
    grep -q "^test_loss" out
    (($(stat -c %s c/epoch=0-step=1.ckpt) > 50000000)) # each rank has written its part
    ulimit -v 110000
    says 1 "fits the devices' memory; by the same estimates a cut fits with --stages 4, on 4 ranks with as much memory each" \
        "${SHORT[@]}" "${PIPE[@]}" --stages 2 "${gpt[@]}"
    # Without momentum the optimizer has no state: two arrays fit where four do not.
    ulimit -v 101500
    gpt=(mlp --hidden 65536 --batch_size 1 --momentum 0 --max-steps 1)
    pltrain "${SHORT[@]}" "${PIPE[@]}" --stages 2 "${gpt[@]}" >out
    says 1 "fits the devices' memory" "${SHORT[@]}" "${PIPE[@]}" --stages 2 "${gpt[@]}" --optimizer adam
}

@test "stages that do not fit are told what does, and that does" {
    [ "$SANITIZE" = none ] || skip "a sanitizer's shadow memory has no limit"
    local -a run=(--strategy pipeline --optimizer adam --num-sanity-val-steps 0 --limit-val-batches 0 --limit-test-batches 0)
    local -a gpt=(gpt --layers 4 --width 32 --heads 2 --context 64 --batch_size 256) words
    export OMP_NUM_THREADS=1 # threads have stacks
    told 29 "${run[@]}" --stages 2 --microbatches 4 "${gpt[@]}"
    [[ $told =~ ^"--microbatches "([0-9]+)" ("[0-9.]+" MB)" ]] || { echo "$told"; false; }
    fits "${run[@]}" --stages 2 --microbatches "${BASH_REMATCH[1]}" "${gpt[@]}"
    fits "${run[@]}" --stages 2 --microbatches 4 --recompute "${gpt[@]}"
    # The fastest cut, about 21 and 20 ops, does not fit; another one does.
    LIMIT=$((LIMIT + 9216))
    fits "${run[@]}" --stages 2 --microbatches 4 "${gpt[@]}"
    [[ $output =~ "pipeline: 2 stages of "([0-9]+) ]]
    first=${BASH_REMATCH[1]}
    [[ $output =~ "pipeline: the stages' plans need more memory than there is; a cut fits of 1"[0-9]", 2"[0-9]" ops" ]] ||
        ((first < 19)) || { echo "$output"; false; } # the ops' times are measured
    # A run with more microbatches has neither the memory of this planning nor the links of another stage.
    gpt=(gpt --layers 4 --width 32 --heads 2 --context 64 --batch_size 64)
    told 4 "${run[@]}" --stages 2 --microbatches 4 "${gpt[@]}"
    [[ $told =~ ^"--microbatches "([0-9]+)" (" ]] || { echo "$told"; false; }
    fits "${run[@]}" --stages 2 --microbatches "${BASH_REMATCH[1]}" "${gpt[@]}"
    # Too many parameters per stage.
    gpt=(gpt --layers 6 --width 128 --context 8 --batch_size 2)
    told 9 "${run[@]}" --stages 2 "${gpt[@]}"
    [[ $told =~ ^"--stages "([0-9]+)", on "([0-9]+)" ranks with as much memory each" ]] || { echo "$told"; false; }
    words=(--stages "${BASH_REMATCH[1]}")
    room 9 "${run[@]}" "${words[@]}" "${gpt[@]}" # more ranks join more memory
    fits "${run[@]}" "${words[@]}" "${gpt[@]}"
}

@test "a loss that divides by a number of the batch is warned of, if it is cut" {
    local -a run=(--strategy pipeline --stages 2 --max-steps 2 --limit-val-batches 0 "$BROKEN/odd.so")
    ODD=masked run -0 --separate-stderr pltrain "${run[@]}" --microbatches 4
    [ "${#stderr_lines[@]}" -eq 1 ] || { echo "$stderr"; false; }
    [[ $stderr == *"the loss divides by a number that it computes from the batch"* ]] || { echo "$stderr"; false; }
    ODD=masked run -0 --separate-stderr pltrain "${run[@]}" --microbatches 1
    [ -z "$stderr" ] || { echo "$stderr"; false; }
    for odd in losses none; do # each of these divides by a constant
        ODD=$odd run -0 --separate-stderr pltrain "${run[@]}" --microbatches 4
        [ -z "$stderr" ] || { echo "$odd: $stderr"; false; }
    done
}
