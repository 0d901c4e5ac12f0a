#!/usr/bin/env bats
# SPDX-License-Identifier: MIT
# Strategy sharded: the bits of ddp under --deterministic, its checkpoints, and what each rank keeps.
# BUILD is the build folder, TURNS a module with two optimizers that take turns, SANITIZE how it was
# built.

bats_require_minimum_version 1.5.0
load ../lib/memory

setup() {
    PATH=$BUILD:$PATH
    unset RANK WORLD_SIZE PLUME_SOCKET
    cd "$BATS_TEST_TMPDIR" || return
}

readonly SHORT=(--deterministic --limit-val-batches 1 --limit-test-batches 1)
readonly GPT=(gpt --batch_size 2 --context 8 --layers 1 --heads 2 --width 32)

# says STATUS WORDS ARGS...: pltrain exits with STATUS and one line on stderr that has the words.
says() {
    local status=$1 words=$2
    shift 2
    run "-$status" --separate-stderr pltrain "$@"
    [ "${#stderr_lines[@]}" -eq 1 ] || { echo "$stderr"; false; }
    [[ $stderr == "pltrain: "*"$words"* ]] || { echo "$stderr"; false; }
}

# as_ddp KINDS ARGS...: all end with the same bits, and save the same checkpoint.
as_ddp() {
    local kinds=$1
    shift
    rm -rf c ddp.ckpt
    pltrain "${SHORT[@]}" --max-steps 4 --checkpoint-dir c --save-last "$@" >ddp.out
    mv c/last.ckpt ddp.ckpt
    grep -q hash ddp.out
    for kind in $kinds; do # "param/node": in groups of a node
        rm -r c
        [[ $kind != */node ]] || set -- --shard-group node "$@"
        pltrain "${SHORT[@]}" --max-steps 4 --checkpoint-dir c --save-last --strategy sharded \
            --shard "${kind%/node}" "$@" >sharded.out
        cmp <(grep hash ddp.out | sort) <(grep hash sharded.out | sort) || { echo "$kind $*"; false; }
        cmp ddp.ckpt c/last.ckpt || { echo "$kind $*"; false; }
    done
}

@test "sharded has the bits of ddp" {
    as_ddp "os grad param" --processes 3 --clip 0.1 --optimizer adamw mlp --hidden 100
    as_ddp "os" --processes 4 --processes-per-node 2 --accumulate 2 --clip 0.05 cnn --batch_size 4 --batchnorm 1
    as_ddp "grad param param/node" --processes 4 --processes-per-node 2 --clip 0.05 cnn --batch_size 4 --dropout 0.2
    as_ddp "os grad param" --processes 3 --comm tcp --precision 16 --amp-level O2 --optimizer adam "${GPT[@]}"
    as_ddp "os param" --processes 2 --precision bf16 --amp-level O3 --clip 0.1 "${GPT[@]}"
    as_ddp "os grad param" --processes 2 --precision 64 --clip 0.1 "$TURNS"
    as_ddp "grad" --accumulate 2 --clip 0.1 mlp
    as_ddp "grad param" --processes 7 --ema 0.9 mlp --hidden 1 # two blocks
}

@test "a share of the batches is the same samples as of ddp" {
    pltrain --epochs 1 --checkpoint-dir c --save-last mlp >/dev/null
    local -a run=(--test --json --weights c/last.ckpt --limit-test-batches 0.5)
    for ranks in 2 3 4; do # whose last batches differ
        pltrain "${run[@]}" --processes "$ranks" mlp --batch_size 1 >ddp.json
        pltrain "${run[@]}" --processes "$ranks" --strategy sharded --shard param mlp --batch_size 1 >param.json
        cmp ddp.json param.json || { echo "$ranks"; cat ddp.json param.json; false; }
    done
}

@test "a run goes on under any strategy and on any number of ranks" {
    local -a run=("${SHORT[@]}" --optimizer adam --clip 0.1)
    pltrain "${run[@]}" --processes 3 --strategy sharded --max-steps 3 --checkpoint-dir a --save-last mlp >/dev/null
    for ranks in 1 2 5; do
        pltrain "${run[@]}" --processes $ranks --max-steps 5 --resume a/last.ckpt mlp | grep hash | sort >ddp
        pltrain "${run[@]}" --processes $ranks --max-steps 5 --resume a/last.ckpt --strategy sharded mlp |
            grep hash | sort >shards
        [ -s ddp ]
        cmp ddp shards
    done
}

@test "after a signal, and with weights alone" {
    pltrain --processes 2 --strategy sharded --save-weights-only --checkpoint-dir w --save-last --max-steps 2 mlp
    says 1 "weights only" --resume w/last.ckpt mlp
    # All ranks hand over their shards when the run is interrupted.
    mkfifo out
    timeout 60 pltrain --processes 2 --strategy sharded --optimizer adam --epochs 100000 --checkpoint-dir s mlp >out &
    pid=$!
    exec 5<out
    for _ in 1 2 3; do read -r -t 30 <&5; done # the first epoch
    kill -TERM $pid
    cat <&5 >/dev/null
    run wait $pid
    ls s/hpc_ckpt_1.ckpt
    pltrain --processes 3 --optimizer adam --max-steps 1 --resume s/hpc_ckpt_1.ckpt mlp | grep -q hash
}

@test "a checkpoint that a rank cannot write is named, and leaves nothing" {
    local -a run=(--processes 3 --comm tcp --strategy sharded --shard param --optimizer adam --max-steps 2
        --checkpoint-dir c mlp --hidden 100)
    for kib in 4 70; do # not the header; parts of the last ranks only
        (ulimit -f $kib
        run -1 --separate-stderr pltrain "${run[@]}"
        [ "$(grep -c "cannot write checkpoint 'c/epoch=0-step=2.ckpt': File too large" <<<"$stderr")" -ge 1 ] ||
            { echo "$stderr"; false; })
        [ -z "$(ls c)" ] || { ls c; false; }
    done
    pltrain "${run[@]}" >/dev/null
    (($(stat -c %s c/epoch=0-step=2.ckpt) > 90000))
}

@test "what each rank keeps is a part" {
    # MiB of an item of --summary.
    mib() { sed -n "s/^MiB of this rank: .*$1 \([0-9.]*\),.*/\1/p" "$2"; }
    for kind in os grad param low; do
        [ "$kind" = low ] && set -- --precision bf16 # whose weights are gathered in 16 bits, and not kept
        pltrain --summary --max-steps 1 --processes 4 --strategy sharded --shard "${kind/low/param}" --optimizer adam "$@" \
            gpt --layers 6 --width 64 --batch_size 1 --context 8 >"$kind.txt"
        grep -qE '^needs [0-9.]+ MB of [0-9.]+ [MG]B per rank$' "$kind.txt"
    done
    # Ranks of a node share out the state under ddp, too.
    pltrain --summary --max-steps 1 --processes 4 --strategy ddp --optimizer adam \
        gpt --layers 6 --width 64 --batch_size 1 --context 8 >ddp.txt
    awk -v p="$(mib parameters os.txt)" -v s="$(mib optimizers os.txt)" -v g="$(mib gradients os.txt)" \
        -v sd="$(mib optimizers ddp.txt)" -v s2="$(mib optimizers grad.txt)" -v g2="$(mib gradients grad.txt)" \
        -v ul="$(mib gathered low.txt)" -v pl="$(mib parameters low.txt)" \
        -v sl="$(sed -n 's/.*, step \([0-9.]*\) (.*/\1/p' low.txt)" \
        -v p3="$(mib parameters param.txt)" -v u="$(mib gathered param.txt)" -v g3="$(mib gradients param.txt)" \
        'BEGIN { exit !(s > 0.48 * p && s < 0.52 * p && sd > 0.48 * p && sd < 0.52 * p && s2 == s && g == p && g2 > 0.25 * p && g2 < 0.6 * p &&
                        p3 > 0.24 * p && p3 < 0.26 * p && u > 0 && u < 0.3 * p && g3 == g2 &&
                        pl == p3 && ul > 0.4 * u && ul < 0.6 * u && sl > 0 && sl < 0.3 * p) }' ||
        { grep MiB ddp.txt os.txt grad.txt param.txt low.txt; false; }
}

# takes ARGS...: a run takes the memory that was planned, within 5 %.
takes() {
    run -0 --separate-stderr pltrain --profile --max-steps 2 --limit-val-batches 1 --limit-test-batches 1 \
        --optimizer adam "$@"
    awk '$1 == "peak_bytes" { good = $2 / $4 > 0.95 && $2 / $4 < 1.05 } END { exit !good }' <<<"$stderr" ||
        { grep peak <<<"$stderr"; echo "$*"; false; }
}

@test "the memory that a run takes is what was planned" {
    for kind in os grad param; do
        takes --processes 3 --strategy sharded --shard $kind --ema 0.9 mlp --hidden 200
        takes --processes 2 --strategy sharded --shard $kind cnn --batch_size 4 --batchnorm 1
        takes --processes 2 --strategy sharded --shard $kind --precision bf16 "${GPT[@]}"
    done
    takes --processes 2 --strategy sharded --shard param lstm --batch_size 2
    takes --processes 2 --strategy sharded --shard param "$TURNS"
    takes --devices 2 --strategy dp mlp
    takes --processes 3 --strategy ddp mlp --hidden 200
}

@test "a module that does not fit one rank trains on four" {
    [ "$SANITIZE" = none ] || skip "a sanitizer's shadow memory has no limit"
    local -a run=("${SHORT[@]}" --max-steps 1 --num-sanity-val-steps 0 --optimizer adam --processes 4)
    local -a gpt=(gpt --layers 6 --width 256 --context 8 --batch_size 1)
    export OMP_NUM_THREADS=1 # threads have stacks
    (ulimit -v 95000 # KiB, of each rank
    run -1 pltrain "${run[@]}" --strategy sharded "${gpt[@]}"
    [[ $output == *"memory"* ]] # of each rank that has too little
    # A checkpoint is three times as large as what a rank may take: each writes its part.
    pltrain "${run[@]}" --strategy sharded --shard param --checkpoint-dir c --save-last "${gpt[@]}" >out
    (($(stat -c %s c/last.ckpt) > 50000000))
)
    # Mapping the file is what the limit forbids, not its memory.
    pltrain "${run[@]}" --strategy sharded --shard param --resume c/last.ckpt --max-steps 2 "${gpt[@]}" >again
    grep -q "^test_loss" out
    grep -q "^resuming from 'c/last.ckpt': epoch 1, step 1$" again
}

@test "a run that does not fit is told what does, and that does" {
    [ "$SANITIZE" = none ] || skip "a sanitizer's shadow memory has no limit"
    local -a run=("${SHORT[@]}" --num-sanity-val-steps 0 --optimizer adam)
    local -a gpt=(gpt --layers 4 --width 32 --heads 2 --context 32) mlp=(mlp --hidden 20000)
    export OMP_NUM_THREADS=1 # threads have stacks
    told 11 --profile "${run[@]}" "${gpt[@]}" --batch_size 32
    # The run goes on, as it was planned and not as its warning was.
    [[ $output =~ peak_bytes\ ([0-9]+),\ planned\ ([0-9]+) ]] || { echo "$output"; false; }
    ((BASH_REMATCH[1] * 105 > BASH_REMATCH[2] * 100 && BASH_REMATCH[2] > 11 << 20)) || { echo "$output"; false; }
    [[ $told == "--recompute ("*" MB), or --batch_size 16 --accumulate 2 ("*" MB)" ]] || { echo "$told"; false; }
    fits "${run[@]}" --recompute "${gpt[@]}" --batch_size 32
    fits "${run[@]}" --accumulate 2 "${gpt[@]}" --batch_size 16
    told 16 --processes 2 "${run[@]}" "${mlp[@]}" --batch_size 1
    [[ $told == "4 ranks with as much memory each under --strategy sharded --shard os ("*" MB)" ]] || { echo "$told"; false; }
    # Ranks that share no memory have the whole state each.
    told 21 --processes 2 --comm tcp "${run[@]}" "${mlp[@]}" --batch_size 1
    [[ $told == "--strategy sharded --shard os ("*" MB)" ]] || { echo "$told"; false; }
    fits --processes 2 --comm tcp "${run[@]}" --strategy sharded --shard os "${mlp[@]}" --batch_size 1
}

@test "a value that one rank alone logs keeps no parameters on a rank" {
    cat >one.c <<'C'
#include <plume/module.h>
static plume_tensor *w[2];
static int configure(struct plume_context *pl)
{
    w[0] = plume_param(pl, "a", PLUME_INIT_FAN_IN, 2, (size_t[]){64, 64});
    w[1] = plume_param(pl, "b", PLUME_INIT_FAN_IN, 2, (size_t[]){64, 64});
    return 0;
}
static int fill(void *ctx, uint64_t epoch, size_t index, void *const *out, size_t size)
{
    for (size_t i = 0; i < 64; i++)
        ((float *)out[0])[i] = (float)(index + i) / 100;
    return 0;
}
static int data(struct plume_context *pl, enum plume_stage stage, struct plume_data *ret)
{
    if (stage != PLUME_TRAIN)
        return 0;
    ret->n_fields = 1;
    ret->field[0].dtype = PLUME_F32;
    ret->rank[0] = 1;
    ret->shape[0][0] = 64;
    ret->length = 32;
    ret->fill = fill;
    return 0;
}
static int step(struct plume_context *pl, const struct plume_batch *batch, plume_tensor **ret)
{
    plume_tensor *x = batch->field[0], *norm;
    for (int i = 0; i < 2; i++)
        x = plume_linear(pl, x, w[i], NULL, PLUME_TANH);
    *ret = plume_mse(pl, x, batch->field[0]);
    norm = plume_sum(pl, plume_mul(pl, w[0], w[0]), 0, 2);
    if (pl->rank == 0)
        plume_log(pl, "norm", norm, 1, 1);
    return 0;
}
static int ddp(struct plume_context *pl, struct plume_ddp *ret)
{
    ret->bucket_bytes = 64; /* each parameter is a unit */
    return 0;
}
static const struct plume_module module = {.struct_size = sizeof(module),
                                           .abi = PLUME_MODULE_ABI,
                                           .name = "one",
                                           .configure = configure,
                                           .data = data,
                                           .training_step = step,
                                           .configure_ddp = ddp};
const struct plume_module *plume_module_entry(void)
{
    return &module;
}
C
    cc -std=c11 -shared -fPIC -I "$BATS_TEST_DIRNAME/../../include" -o one.so one.c
    for precision in 32 bf16; do
        run -0 --separate-stderr pltrain --processes 2 --strategy sharded --shard param --precision $precision --max-steps 2 ./one.so
        [[ $stderr != *branches* ]] || { echo "$stderr"; false; }
    done
}

@test "what cannot be sharded is a usage error" {
    says 2 "'half' is none of os, grad, param" --strategy sharded --shard half mlp
    says 2 "option '--shard' needs '--strategy sharded'" --shard os mlp
    says 2 "option '--shard-group' needs '--strategy sharded'" --shard-group node mlp
    says 2 "'rack' is none of all, node" --strategy sharded --shard-group rack mlp
    run -1 pltrain --processes 3 --processes-per-node 2 --strategy sharded --shard-group node mlp
    [[ $output == *"needs the same number of ranks on each node"* ]] || { echo "$output"; false; }
    run -1 pltrain --processes 2 --processes-per-node 1 --strategy sharded --shard-group node mlp
    [[ $output == *"needs several ranks on each node"* ]] || { echo "$output"; false; }
    says 2 "option '--shard' needs '--strategy sharded'" --processes 2 --strategy ddp --shard os mlp
}
