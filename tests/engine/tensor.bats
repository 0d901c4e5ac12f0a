#!/usr/bin/env bats
# SPDX-License-Identifier: MIT
# --tensor-parallel: the results of one process, whole checkpoints, and one line for what does not go.
# BUILD is the build folder, TURNS a module with two optimizers that take turns.

bats_require_minimum_version 1.5.0

setup() {
    PATH=$BUILD:$PATH
    unset RANK WORLD_SIZE PLUME_SOCKET
    cd "$BATS_TEST_TMPDIR" || return
}

readonly RUN=(--precision 64 --clip 0.1 --optimizer adamw --limit-val-batches 1 --limit-test-batches 1)
readonly GPT=(gpt --context 8 --width 16 --layers 1 --heads 4 --dropout 0.1 --batch_size 8)

# says STATUS WORDS ARGS...: pltrain exits with STATUS, and each line on stderr has the words.
says() {
    local status=$1 words=$2
    shift 2
    run "-$status" --separate-stderr pltrain "$@"
    [[ $stderr == "pltrain: "*"$words"* ]] || { echo "$stderr"; false; }
    ! grep -qvF -- "$words" <<<"$stderr" || { echo "$stderr"; false; }
}

# losses_of ARGS...: those of a run of pltrain, without its times.
losses_of() {
    pltrain "${RUN[@]}" "$@" >losses.out || return
    sed -n 's/ (.*//; /^epoch\|^test/p' losses.out
}

@test "attention and linear layers are split, and results are those of one process" {
    losses_of --max-steps 4 "${GPT[@]}" >one
    [ -s one ]
    for k in 2 4; do
        losses_of --max-steps 4 --tensor-parallel $k "${GPT[@]}" | cmp - one
        # The share depends on the letters of the system's licences: 86 in Debian 12, 92 in forky.
        grep -qx "tensor parallel over $k ranks: 4 of 5 linear layers, 1 of 1 attentions, 6[0-9] % of the parameters" losses.out
        [ "$(grep -c "param hash" losses.out)" -eq $k ]
        [ "$(sed -n 's/.*param hash //p' losses.out | sort -u | wc -l)" -eq 1 ]
    done
    # Groups are to each other what ranks are in ddp.
    losses_of --max-steps 4 --processes 2 "${GPT[@]}" >two
    losses_of --max-steps 4 --tensor-parallel 2 --processes 4 --processes-per-node 2 "${GPT[@]}" | cmp - two
    grep -q "^batch: 16 samples per step (ddp: 2 groups of 2 ranks x 8 samples)" losses.out
}

@test "a run goes on under any number of ranks, with whole checkpoints" {
    losses_of --max-steps 4 --ema 0.9 "${GPT[@]}" | sed 's/ loss [^ ]*//' >whole # the loss is of a run's own steps
    [ -s whole ]
    losses_of --max-steps 2 --ema 0.9 --tensor-parallel 2 --checkpoint-dir a --save-last "${GPT[@]}" >/dev/null
    losses_of --max-steps 2 --ema 0.9 --checkpoint-dir b --save-last "${GPT[@]}" >/dev/null
    for more in "--resume a/last.ckpt" "--tensor-parallel 4 --resume a/last.ckpt" "--tensor-parallel 2 --resume b/last.ckpt"; do
        read -ra words <<<"$more"
        losses_of --max-steps 4 --ema 0.9 "${words[@]}" "${GPT[@]}" | sed 's/ loss [^ ]*//' | cmp - whole || { echo "$more"; cat whole losses.out; false; }
    done
    # Weights alone, and what is made of them.
    for what in --validate --test "--predict --out P.jsonl"; do
        read -ra words <<<"--precision 64 --limit-val-batches 1 --limit-test-batches 2 $what"
        pltrain "${words[@]/P.jsonl/one.jsonl}" --weights b/last.ckpt "${GPT[@]}" --write 4 >one
        pltrain "${words[@]/P.jsonl/two.jsonl}" --weights a/last.ckpt --tensor-parallel 2 "${GPT[@]}" --write 4 |
            sed '/^tensor parallel/d; s/two\.jsonl/one.jsonl/' >two
        cmp one two
    done
    [ -s one.jsonl ]
    cmp one.jsonl two.jsonl
}

@test "shards of the parts give the same results, and whole checkpoints" {
    local -a two=(--tensor-parallel 2 --processes 4 --strategy sharded) run=(--ema 0.9 --global-batch 8)
    local -a gpt=(gpt --context 8 --width 16 --layers 1 --heads 4) words
    local -a nodes=(--num-nodes 2 --shard-group node)
    losses_of --max-steps 4 "${run[@]}" "${gpt[@]}" | sed 's/ loss [^ ]*//' >whole
    losses_of --max-steps 2 "${run[@]}" --checkpoint-dir single --save-last "${gpt[@]}" >/dev/null
    for how in "--shard os" "--shard grad" "--shard param" "--shard param ${nodes[*]}"; do
        read -ra words <<<"$how"
        losses_of --max-steps 4 "${run[@]}" "${two[@]}" "${words[@]}" --resume single/last.ckpt "${gpt[@]}" |
            sed 's/ loss [^ ]*//' | cmp - whole || { echo "to $how"; false; }
        grep -Eq "^batch: 8 samples per step \(sharded: [24] groups of 2 ranks x [24] samples\)" losses.out
        [ "$(sed -n 's/.*param hash //p' losses.out | sort -u | wc -l)" -eq 1 ]
        rm -rf a
        losses_of --max-steps 2 "${run[@]}" "${two[@]}" "${words[@]}" --checkpoint-dir a --save-last "${gpt[@]}" >/dev/null
        losses_of --max-steps 4 "${run[@]}" --resume a/last.ckpt "${gpt[@]}" |
            sed 's/ loss [^ ]*//' | cmp - whole || { echo "from $how"; false; }
    done
    words=(--precision 64 --predict --limit-test-batches 1)
    pltrain "${words[@]}" --out one.npy --weights a/last.ckpt "${gpt[@]}" --write 4 --batch_size 8
    pltrain "${words[@]}" --out two.npy --weights a/last.ckpt "${two[@]}" --shard param "${gpt[@]}" --write 4 --batch_size 4
    cmp one.npy two.npy
    # One group has nobody to share its parts with.
    losses_of --max-steps 4 "${run[@]}" --strategy sharded --shard param --tensor-parallel 2 "${gpt[@]}" |
        sed 's/ loss [^ ]*//' | cmp - whole
}

@test "stages of parts give the same results, and whole checkpoints" {
    local -a run=(--global-batch 8 --max-steps 4) words
    local -a gpt=(gpt --context 8 --width 16 --layers 1 --heads 4 --dropout 0.1)
    losses_of "${run[@]}" "${gpt[@]}" >one
    sed 's/ loss [^ ]*//' one >whole
    losses_of "${run[@]}" --max-steps 2 --checkpoint-dir single --save-last "${gpt[@]}" >/dev/null
    for how in "--schedule 1f1b" "--schedule gpipe --microbatches 2"; do
        read -ra words <<<"--strategy pipeline --stages 2 --tensor-parallel 2 $how"
        losses_of "${run[@]}" "${words[@]}" "${gpt[@]}" | cmp - one
        grep -Eq "^batch: 8 samples per step \(pipeline: 1 pipeline of 2 stages of 2 ranks x 8 samples in [28] " losses.out
        grep -q "^tensor parallel over 2 ranks: 4 of 5 linear layers" losses.out
        [ "$(grep -c "^pipeline: 2 stages of" losses.out)" -eq 1 ]
        [ "$(sed -n 's/.*param hash //p' losses.out | sort | uniq -c | awk '{ print $1 }')" -eq 4 ]
        losses_of "${run[@]}" "${words[@]}" --resume single/last.ckpt "${gpt[@]}" |
            sed 's/ loss [^ ]*//' | cmp - whole || { echo "to $how"; false; }
        rm -rf a
        losses_of "${run[@]}" --max-steps 2 "${words[@]}" --checkpoint-dir a --save-last "${gpt[@]}" >/dev/null
        losses_of "${run[@]}" --resume a/last.ckpt "${gpt[@]}" | sed 's/ loss [^ ]*//' | cmp - whole || { echo "from $how"; false; }
    done
    words=(--precision 64 --predict --limit-test-batches 2 --weights a/last.ckpt "${gpt[@]}" --write 4)
    pltrain "${words[@]}" --out one.npy --batch_size 8
    pltrain "${words[@]}" --out two.npy --batch_size 4 --strategy pipeline --stages 2 --tensor-parallel 2 --processes 8
    cmp one.npy two.npy
    # Two pipelines, from a file of weights.
    pltrain --precision 64 --max-steps 2 --weights a/last.ckpt --processes 2 gpt "${gpt[@]:1:6}" --heads 4 |
        sed -n 's/ (.*//; /^epoch/p' >two
    pltrain --precision 64 --max-steps 2 --weights a/last.ckpt --strategy pipeline --stages 2 --tensor-parallel 2 \
        --processes 8 gpt "${gpt[@]:1:6}" --heads 4 | sed -n 's/ (.*//; /^epoch/p' | cmp - two
    says 1 "6 ranks do not make whole pipelines of 2 stages, each shared by --tensor-parallel: start a multiple of 4" \
        --strategy pipeline --stages 2 --tensor-parallel 2 --processes 6 mlp
}

@test "the same bits with --deterministic, however the ranks are joined" {
    local -a run=(--deterministic --clip 0.1 --optimizer adam --max-steps 3 --limit-val-batches 1 --limit-test-batches 1)
    local -a gpt=(gpt --context 8 --width 32 --layers 2 --heads 4 --dropout 0.1 --batch_size 4) words
    hashes() {
        pltrain "${run[@]}" "$@" "${gpt[@]}" >hash.out || return
        sed -n 's/.*param hash //p; s/^test_loss/&/p' hash.out | sort -u
    }
    # Sums over groups, over their copies, and over both.
    for how in "--tensor-parallel 4" "--tensor-parallel 2 --processes 6" \
        "--tensor-parallel 2 --processes 6 --strategy sharded --shard param" \
        "--tensor-parallel 4 --processes 8 --strategy pipeline --stages 2"; do
        read -ra words <<<"$how"
        first=$(hashes "${words[@]}")
        [ "$(wc -l <<<"$first")" -eq 2 ] || { echo "$how: $first"; false; }
        again=$(hashes "${words[@]}")
        [ "$again" = "$first" ] || { echo "$how: $first, then $again"; false; }
        again=$(hashes "${words[@]}" --comm tcp)
        [ "$again" = "$first" ] || { echo "$how: $first, by tcp $again"; false; }
    done
    first=$(hashes --tensor-parallel 2 --processes 6)
    again=$(hashes --tensor-parallel 2 --processes 6 --processes-per-node 2)
    [ "$again" = "$first" ] || { echo "$first, on three nodes $again"; false; }
}

@test "a signal saves what all ranks have" {
    mkfifo out
    timeout 60 pltrain --tensor-parallel 2 --optimizer adam --epochs 100000 --checkpoint-dir s mlp >out &
    pid=$!
    exec 5<out
    for _ in 1 2 3 4; do read -r -t 30 <&5; done # the first epoch
    kill -TERM $pid
    cat <&5 >/dev/null
    run wait $pid
    pltrain --optimizer adam --max-steps 1 --resume s/hpc_ckpt_1.ckpt mlp | grep -q hash
}

@test "the summary has whole shapes, and what a rank keeps" {
    pltrain "${RUN[@]}" --max-steps 1 --tensor-parallel 2 --summary "${GPT[@]}" >out
    grep -q "^parameter h0.qkv.w  *f64\[48, 16\]  *768$" out
    grep -q "^16 parameters of 4[0-9]* numbers, 3[0-9]* of them on this rank, 0 buffers of 0$" out
}

@test "what does not go is one line" {
    says 2 "for strategies ddp, sharded and pipeline, not horovod" --tensor-parallel 2 --strategy horovod mlp
    says 2 "'--tensor-parallel' and '--average-every'" --tensor-parallel 2 --average-every 2 mlp
    says 2 "--tensor-parallel" --tensor-parallel 0 mlp
    says 2 "leave out --tensor-parallel" --tensor-parallel 2 --compare-devices mlp
    says 1 "needs a multiple of 2 ranks, not 3" --tensor-parallel 2 --processes 3 mlp
    says 1 "is inside a node" --tensor-parallel 2 --processes 2 --processes-per-node 1 mlp
    says 1 "step_per_optimizer" --tensor-parallel 2 "$TURNS"
    says 1 "needs several groups of --tensor-parallel on each node" --tensor-parallel 2 --processes 4 --processes-per-node 2 \
        --strategy sharded --shard-group node mlp
    says 1 "finds nothing to split" --tensor-parallel 2 lstm
    says 1 "finds nothing to split" --tensor-parallel 7 "${GPT[@]}"
}
