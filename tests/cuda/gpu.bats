#!/usr/bin/env bats
# SPDX-License-Identifier: MIT
# pltrain on GPUs, as far as that can be told without one: PLUME_PLUGIN_DIR has a plume-cuda.so whose
# GPUs are emulated (device.c), and modules for it. BUILD is the build folder.

bats_require_minimum_version 1.5.0

setup() {
    PATH=$BUILD:$PATH
    unset RANK WORLD_SIZE PLUME_SOCKET SLURM_JOB_ID
    cd "$BATS_TEST_TMPDIR" || return
}

# losses FILE: STEP LOSS of each step, from metrics.csv.
losses() {
    python3 - "$1" <<'PY'
import csv, sys
for row in csv.DictReader(open(sys.argv[1])):
    if row.get("loss"):
        print(row["step"], row["loss"])
PY
}

# alike TOLERANCE A B: the same steps, and losses that are so far apart at most.
alike() {
    paste -d ' ' "$2" "$3" | awk -v most="$1" '
        $1 != $3 || NF != 4 { print "not the same steps: " $0; bad = 1 }
        ($2 - $4) ^ 2 > most ^ 2 { print "off: " $0; bad = 1 }
        END { exit bad || NR < 3 }'
}

# trained WHERE ARGS...: losses of each step into WHERE.
trained() {
    local where=$1
    shift
    pltrain --log-dir "$where.log" --log-every 1 "$@" >"$where.out"
    losses "$where.log/metrics.csv" >"$where"
}

# same TOLERANCE ARGS...: on the CPU and on a GPU.
same() {
    local tolerance=$1
    shift
    rm -rf cpu cpu.log gpu gpu.log
    trained cpu "$@"
    trained gpu --gpus 1 "$@"
    alike "$tolerance" cpu gpu || { echo "$*"; false; }
}

# split TOLERANCE K ARGS...: in K parts on the CPU, on one GPU, and on K, which gives one GPU's bits.
split() {
    local tolerance=$1 k=$2 ends='hash|test_'
    shift 2
    rm -rf cpu cpu.log gpu gpu.log gpus gpus.log
    trained cpu --devices "$k" "$@"
    trained gpu --gpus "$k" "$@"
    PLUME_EMULATED_GPUS=$k trained gpus --gpus "$k" "$@"
    alike "$tolerance" cpu gpus || { echo "$k $*"; false; }
    cmp gpu.log/metrics.csv gpus.log/metrics.csv || { echo "$k $*"; false; }
    [ "$(grep -E "$ends" gpu.out | sort)" = "$(grep -E "$ends" gpus.out | sort)" ] ||
        { echo "$k $*"; false; }
}

# replayed N ARGS...: with graphs and without them the same bits, and N captures.
replayed() {
    local n=$1
    shift
    rm -rf on on.* off off.*
    PLUME_LOG=debug:tape trained on "$@" 2>on.err
    trained off --no-cuda-graphs "$@"
    cmp on off || { echo "$*"; false; }
    cmp <(grep hash on.out | sort) <(grep hash off.out | sort) || { echo "$*"; false; }
    grep -q hash on.out
    [ "$(grep -c 'captured ops' on.err)" -eq "$n" ] || { echo "$*"; cat on.err; false; }
}

# says STATUS WORDS ARGS...: pltrain ends so, with one line on stderr that has the words.
says() {
    local status=$1 words=$2
    shift 2
    run "-$status" --separate-stderr pltrain "$@"
    [ "${#stderr_lines[@]}" -eq 1 ] || { echo "$stderr"; false; }
    [[ $stderr == "pltrain: "*"$words"* ]] || { echo "$stderr"; false; }
}

readonly SHORT=(--max-steps 6 --limit-val-batches 2 --limit-test-batches 2)
readonly GPT=(gpt --batch_size 2 --context 24 --layers 1 --heads 2 --width 32)

@test "the examples train on a GPU as on the CPU" {
    same 1e-5 "${SHORT[@]}" mlp
    same 1e-5 "${SHORT[@]}" contrastive
    same 1e-5 "${SHORT[@]}" cnn --batch_size 8 --batchnorm 1 --dropout 0.2
    same 1e-5 "${SHORT[@]}" "${GPT[@]}"
    # The test's results, too.
    [ "$(grep test_ cpu.out | cut -c1-16)" = "$(grep test_ gpu.out | cut -c1-16)" ]
}

@test "in all precisions" {
    for how in "--precision 64" "--precision bf16" "--precision bf16 --amp-level O3" \
        "--precision 16" "--precision 16 --amp-level O2"; do
        # shellcheck disable=SC2086
        same 3e-3 "${SHORT[@]}" $how "${GPT[@]}"
    done
}

@test "as several ranks that share one GPU, and as one process with parts" {
    for how in "--processes 2" "--processes 2 --strategy horovod" "--strategy dp --devices 2" \
        "--num-nodes 2 --strategy ddp2 --devices 2"; do
        rm -rf cpu cpu.log gpu gpu.log
        # shellcheck disable=SC2086
        trained cpu "${SHORT[@]}" $how contrastive
        # shellcheck disable=SC2086
        trained gpu "${SHORT[@]}" $how --accelerator gpu contrastive
        alike 1e-5 cpu gpu || { echo "$how"; false; }
    done
}

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
    split 3e-3 2 "${dp[@]}" --precision bf16 "${module}_turns.so"
}

@test "a rank takes the GPU of its number, or that of the list" {
    export PLUME_EMULATED_GPUS=3 PLUME_LOG=debug
    taken() { pltrain "${SHORT[@]}" "$@" mlp 2>&1 | grep -o 'device emulated:[0-9]' | sort | cut -c17- | tr '\n' ' '; }
    [ "$(taken --gpus 3)" = "0 1 2 " ]
    [ "$(taken --gpus 2,1)" = "1 2 " ]
    [ "$(taken --gpus '0, 2')" = "0 2 " ]
    [ "$(taken --gpus 2,)" = "2 " ]
    [ "$(taken --accelerator gpu)" = "0 " ]
    # Those of a process' parts.
    [ "$(taken --strategy dp --gpus 3)" = "0 1 2 " ]
    [ "$(taken --strategy dp --accelerator gpu --devices 2)" = "0 1 " ]
    [ "$(taken --strategy dp --gpus 2,0)" = "0 2 " ]
    [ "$(taken --strategy dp --gpus 2,)" = "2 " ]
    [ "$(taken --strategy ddp2 --num-nodes 2 --gpus 2)" = "0 0 1 1 " ]
    # Slurm gave each rank one of its own.
    PLUME_EMULATED_GPUS=1
    [ "$(SLURM_JOB_ID=1 taken --gpus 2)" = "0 0 " ]
    # Parts share the only one, unless others are named.
    [ "$(taken --strategy dp --gpus 2)" = "0 0 " ]
    # Ranks share one unless so many were asked for.
    [ "$(taken --accelerator gpu --processes 2)" = "0 0 " ]
}

@test "what was begun on a GPU goes on there bit for bit, and on the CPU" {
    local -a run=("${GPT[@]}" --limit-val-batches 1 --limit-test-batches 1)
    pltrain --gpus 1 --max-steps 6 "${run[@]}" | grep hash >whole
    pltrain --gpus 1 --max-steps 3 --checkpoint-dir a --save-last "${run[@]}" >/dev/null
    pltrain --gpus 1 --max-steps 6 --resume a/last.ckpt "${run[@]}" | grep hash >parts
    cmp whole parts
    trained whole --gpus 1 --log-every 1 --max-steps 6 "${run[@]}"
    trained rest --log-every 1 --max-steps 6 --resume a/last.ckpt "${run[@]}"
    tail -n 3 whole >end
    alike 1e-5 end rest
    # The same with parts on two.
    export PLUME_EMULATED_GPUS=2
    local -a dp=(--strategy dp --gpus 2)
    pltrain "${dp[@]}" --max-steps 6 "${run[@]}" | grep hash >whole
    pltrain "${dp[@]}" --max-steps 3 --checkpoint-dir b --save-last "${run[@]}" >/dev/null
    pltrain "${dp[@]}" --max-steps 6 --resume b/last.ckpt "${run[@]}" | grep hash >parts
    cmp whole parts
}

@test "a step that is replayed gives the bits of one that is not" {
    local -a cnn=(cnn --batch_size 8 --dropout 0.3 --batchnorm 1) gpt=("${GPT[@]}" --dropout 0.2)
    local -a run=(--gpus 1 --max-steps 8 --limit-val-batches 4 --limit-test-batches 4)
    # Training forward and backward, validation, test.
    replayed 4 "${run[@]}" mlp
    replayed 4 "${run[@]}" "${cnn[@]}"
    for how in "" "--precision 64" "--precision bf16" "--precision 16" "--precision 16 --amp-level O3"; do
        # shellcheck disable=SC2086
        replayed 4 "${run[@]}" $how "${gpt[@]}"
    done
    # The first of three batches writes its gradients, the others add.
    replayed 5 "${run[@]}" --accumulate 3 "${cnn[@]}"
    # What was captured is what the last step of a run of plain ones does, too.
    replayed 4 "${run[@]}" --max-steps 3 "${cnn[@]}"
    grep -q "captured ops 0 to 9 forward, replayed from now on" on.err
    grep -q "captured ops 9 to 0 backward, replayed from now on" on.err
}

@test "a loss scale that changes is seen by a step that is replayed" {
    local -a run=(--gpus 1 --max-steps 12 --limit-val-batches 1 --limit-test-batches 0)
    replayed 2 "${run[@]}" --precision 16 --checkpoint-dir a --save-last mlp --lr 30
    grep -aq '"skipped":[4-9]' a/last.ckpt
}

@test "a batch of another size is not replayed, and those behind it are again" {
    # Forward and backward in each of the epochs, which end with a short batch, and the validation.
    replayed 7 --gpus 1 --epochs 3 --limit-val-batches 2 --limit-test-batches 2 mlp --batch_size 200
    # Each batch is of another size than the one before.
    replayed 0 --gpus 1 --epochs 2 --num-sanity-val-steps 0 --limit-val-batches 1 \
        --limit-test-batches 1 mlp --batch_size 800
}

@test "graphs leave out where ranks meet" {
    local -a run=(--accelerator gpu --max-steps 6 --limit-val-batches 1 --limit-test-batches 1)
    local -a cnn=(cnn --batch_size 8 --dropout 0.3 --batchnorm 1)
    replayed 4 "${run[@]}" --processes 2 "${cnn[@]}"
    replayed 4 "${run[@]}" --processes 2 --strategy horovod "${cnn[@]}"
    replayed 4 "${run[@]}" --processes 2 --sync-batchnorm "${cnn[@]}"
    run ! grep "captured ops 9 to 0" on.err
    replayed 4 "${run[@]}" --strategy dp --devices 2 "${cnn[@]}"
}

@test "where a step cannot be captured it runs plainly" {
    local -a run=(--gpus 1 --max-steps 6 --limit-val-batches 1 --limit-test-batches 1)
    for n in 0 1; do
        PLUME_EMULATED_GRAPHS=$n replayed $n "${run[@]}" cnn --batch_size 8 --dropout 0.3
        [ "$(grep -c 'no graphs of this plan: there are enough' on.err)" -eq 1 ]
    done
    # Times of single ops are asked for.
    PLUME_PROFILE=1 replayed 0 "${run[@]}" mlp
}

@test "no GPU, too few, too little memory: one line says so" {
    PLUME_EMULATED_GPUS=0 says 1 "cannot use GPUs: none is emulated" --gpus 1 mlp
    PLUME_EMULATED_GPUS=2 says 1 "GPU 5 is asked for (by the rank with local rank 0), but 2 are visible" \
        --gpus 5, mlp
    says 1 "GPU 3 is asked for (by the rank with local rank 0), but 1 are visible" --gpus 3, mlp
    run -1 pltrain --gpus 2 mlp
    [[ $output == *"GPU 1 is asked for (by the rank with local rank 1), but 1 are visible"* ]]
    says 2 "x" --gpus x mlp
    PLUME_EMULATED_GPUS=2 says 1 "GPU 2 is asked for (by part 2 of the batches), but 2 are visible" \
        --strategy dp --gpus 3 mlp
    says 1 "GPU 1 is asked for (by part 1 of the batches), but 1 are visible" --strategy dp --gpus 0,1 mlp
    PLUME_EMULATED_GPUS=2 PLUME_EMULATED_MEMORY=1000000,20000 \
        says 1 "out of memory on emulated:1" --strategy dp --gpus 2 mlp
    # Also then nothing is left on any of them (device.c).
    PLUME_EMULATED_GPUS=2 says 1 "the loss is" --strategy dp --gpus 2 "$PLUME_PLUGIN_DIR/scattered.so" --lr 1e6
    PLUME_EMULATED_MEMORY=20000 says 1 "out of memory on emulated:0" --gpus 1 mlp
    says 2 "device 1 is there twice" --gpus 1,1 mlp
    cp "$BUILD/pltrain" .
    PATH=$PWD:$PATH
    PLUME_PLUGIN_DIR=/nowhere PLUME_MODULE_PATH=$BUILD/modules \
        says 1 "cannot use GPUs: plume-cuda.so is not installed" --gpus 1 mlp
}
