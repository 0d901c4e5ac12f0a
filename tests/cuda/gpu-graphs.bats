#!/usr/bin/env bats
# SPDX-License-Identifier: MIT
# Steps that are captured and replayed: see gpu.bash.

bats_require_minimum_version 1.5.0
load gpu

@test "a step that is replayed gives the bits of one that is not" {
    local -a cnn=(cnn --batch_size 4 --dropout 0.3 --batchnorm 1) gpt=("${GPT[@]}" --dropout 0.2)
    local -a run=(--gpus 1 --max-steps 8 --limit-val-batches 4 --limit-test-batches 4)
    # Training forward and backward, validation, test.
    replayed 4 "${run[@]}" mlp
    replayed 4 "${run[@]}" "${cnn[@]}"
    for how in "" "--precision 64" "--precision bf16" "--precision 16" "--precision 16 --amp-level O3"; do
        # shellcheck disable=SC2086
        replayed 4 "${run[@]}" $how "${gpt[@]}"
    done
    # The first of three batches writes its gradients, the others add.
    replayed 5 "${run[@]}" --max-steps 4 --accumulate 3 "${cnn[@]}"
    # A captured step is the same as the last step of a run without graphs.
    replayed 4 "${run[@]}" --max-steps 3 "${cnn[@]}"
    grep -q "captured ops 0 to 9 forward, replayed from now on" on.err
    grep -q "captured ops 9 to 0 backward, replayed from now on" on.err
}

@test "a loss scale that changes is seen by a step that is replayed" {
    local -a run=(--gpus 1 --max-steps 12 --limit-val-batches 1 --limit-test-batches 0)
    replayed 2 "${run[@]}" --precision 16 --checkpoint-dir a --save-last mlp --lr 30
    grep -aq 'skipped[^,]*:[4-9]' a/last.ckpt
}

@test "gradients are measured by a graph, with the same bits" {
    local -a run=(--gpus 1 --max-steps 8 --limit-val-batches 1 --limit-test-batches 0)
    local -a gpt=("${GPT[@]}") clip=(--clip 0.5)
    # measured N ARGS...: N captures of it, apart from the tape's.
    measured() {
        local n=$1
        shift
        rm -rf on on.* off off.*
        PLUME_LOG=debug:optim trained on "${run[@]}" "$@" 2>on.err
        trained off "${run[@]}" --no-cuda-graphs "$@"
        cmp on off || { echo "$*"; false; }
        cmp <(grep hash on.out | sort) <(grep hash off.out | sort) || { echo "$*"; false; }
        [ "$(grep -c 'captured how gradients are measured' on.err)" -eq "$n" ] ||
            { echo "$*"; cat on.err; false; }
    }
    for optimizer in sgd adam adamw rmsprop adagrad; do
        measured 1 "${clip[@]}" --optimizer "$optimizer" mlp
    done
    measured 0 mlp
    measured 0 "${clip[@]}" --clip-by value mlp
    measured 1 "${clip[@]}" --ema 0.9 --accumulate 2 mlp
    measured 1 "${clip[@]}" --precision bf16 --amp-level O2 "${gpt[@]}"
    measured 1 "${clip[@]}" --precision 16 "${gpt[@]}"
    measured 1 "${clip[@]}" --deterministic mlp
    # Steps are skipped, and the scale is another one then.
    measured 2 --max-steps 16 --precision 16 --checkpoint-dir a --save-last mlp --lr 1
    grep -aq 'skipped[^,]*:[2-9]' a/last.ckpt
    # Half of it, and the rest from a checkpoint: a graph for each.
    measured 1 "${clip[@]}" --max-steps 4 --checkpoint-dir b --save-last mlp
    measured 1 "${clip[@]}" --resume b/last.ckpt mlp
    PLUME_PROFILE=1 measured 0 "${clip[@]}" mlp
    measured 0 "${clip[@]}" --recompute mlp
    PLUME_EMULATED_GRAPHS=0 measured 0 "${clip[@]}" mlp
    grep -q 'emulated:0: gradients are measured without a graph, which is slower: there are enough' on.err
}

@test "a batch of another size has graphs of its own, and the full ones keep theirs" {
    # Forward and backward of full batches and of the short one at the end of each epoch; the validation's.
    replayed 5 --gpus 1 --epochs 5 --limit-val-batches 2 --limit-test-batches 2 mlp --batch_size 200
    # Each batch is of another size than the one before.
    replayed 5 --gpus 1 --epochs 3 --num-sanity-val-steps 0 --limit-val-batches 1 \
        --limit-test-batches 1 mlp --batch_size 800
}

@test "graphs leave out where ranks meet" {
    local -a run=(--accelerator gpu --max-steps 6 --limit-val-batches 1 --limit-test-batches 1)
    local -a cnn=(cnn --batch_size 4 --dropout 0.3 --batchnorm 1)
    replayed 4 "${run[@]}" --processes 2 "${cnn[@]}"
    replayed 4 "${run[@]}" --processes 2 --strategy horovod "${cnn[@]}"
    replayed 4 "${run[@]}" --processes 2 --sync-batchnorm "${cnn[@]}"
    run ! grep "captured ops 9 to 0" on.err
    replayed 4 "${run[@]}" --strategy dp --devices 2 "${cnn[@]}"
}

@test "where a step cannot be captured it runs plainly" {
    local -a run=(--gpus 1 --max-steps 6 --limit-val-batches 1 --limit-test-batches 1)
    for n in 0 1; do
        PLUME_EMULATED_GRAPHS=$n replayed $n "${run[@]}" cnn --batch_size 4 --dropout 0.3
        [ "$(grep -c 'no graphs of this plan: there are enough' on.err)" -eq 1 ]
    done
    # That is slower: who has not asked for messages is told, too, and once.
    PLUME_EMULATED_GRAPHS=0 run -0 --separate-stderr pltrain "${run[@]}" --max-steps 12 mlp --batch_size 400
    [ "$stderr" = "pltrain: warning: emulated:0: steps are not replayed as graphs, which is slower: there are enough" ] ||
        { echo "$stderr"; false; }
    # Times of single ops are asked for.
    PLUME_PROFILE=1 replayed 0 "${run[@]}" mlp
    # Who did the products, too: of two layers y and the gradients of weights, and of one that of x.
    grep -q '^linear .* 0\.0 *3\.0$' on.err
    grep -q '^linear .* 0\.0 *2\.0$' on.err
    grep -q '^0\.0 products and attentions a step by the library, 5\.0 by own kernels$' on.err
    # And what share of the card's limits, which are 0.01 GB/s and 0.1 GFLOP/s.
    awk '/^op  / { wide = index($0, "share") + 5 }
        wide && /%/ && !/^rest/ {
            split(substr($0, wide), of)
            least = $1 == "linear" && of[1] / 10 > of[2] ? of[1] / 10 : of[2]
            if (of[3] + 0 < 10000 * least - 60 || $1 != "linear" && of[3] + 0 > 10000 * least + 60)
                bad = 1
            n++
        }
        END { exit bad || n < 3 }' on.err
}
