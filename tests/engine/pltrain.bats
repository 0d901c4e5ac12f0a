#!/usr/bin/env bats
# SPDX-License-Identifier: MIT
# pltrain's answers: what it prints, its exit codes, and what is wrong with a module.
# BUILD is the build folder, BROKEN the folder of the broken modules.

bats_require_minimum_version 1.5.0

setup() {
    PATH=$BUILD:$PATH
    unset RANK WORLD_SIZE PLUME_SOCKET
}

# says STATUS WORDS ARGS...: pltrain ends so, with one line on stderr that has the words.
says() {
    local status=$1 words=$2
    shift 2
    run "-$status" --separate-stderr pltrain "$@"
    [ "${#stderr_lines[@]}" -eq 1 ] || { echo "$stderr"; false; }
    [[ $stderr == "pltrain: "*"$words"* ]] || { echo "$stderr"; false; }
}

@test "mlp reads digits" {
    run -0 --separate-stderr pltrain --processes 12 mlp
    [ -z "$stderr" ]
    acc=$(sed -n 's/^test_acc //p' <<<"$output")
    awk -v acc="$acc" 'BEGIN { exit !(acc > 0.93) }' || { echo "test_acc $acc"; false; }
    [ "$(grep -c '^rank .* of 12: param hash [0-9a-f]\{16\}$' <<<"$output")" -eq 12 ]
    [ "$(sed -n 's/^rank .*param hash //p' <<<"$output" | sort -u | wc -l)" -eq 1 ]
    [ "$(grep -c '^epoch ' <<<"$output")" -eq 12 ]
}

@test "a run can be repeated bit for bit, and the seed matters" {
    first=$(pltrain --epochs 2 --seed 3 mlp | grep hash)
    [ "$first" = "$(pltrain --epochs 2 --seed 3 mlp | grep hash)" ]
    [ "$first" != "$(pltrain --epochs 2 --seed 4 mlp | grep hash)" ]
    first=$(pltrain --processes 5 --processes-per-node 2 --epochs 2 mlp | grep hash | sort)
    [ "$first" = "$(pltrain --processes 5 --processes-per-node 2 --epochs 2 mlp | grep hash | sort)" ]
}

@test "options" {
    run -0 --separate-stderr pltrain --max-steps 5 --hparam hidden=3 --hparam batch_size=100 mlp
    [[ ${lines[0]} == "epoch 1/12 step 5 "* ]]
    run -0 --separate-stderr pltrain --epochs 0 mlp
    [[ ${lines[0]} == test_loss* ]]
    run -0 pltrain --list-hparams mlp
    grep -q '^hidden  *64 ' <<<"$output"
    grep -q '^lr ' <<<"$output"
}

@test "usage errors are status 2" {
    says 2 "no module given"
    says 2 "more than one module" mlp mlp
    says 2 "unknown option '--frob'" --frob mlp
    says 2 "unknown hyper-parameter 'layers': this module has lr, momentum" --hparam layers=3 mlp
    says 2 "'lr'" --hparam lr=fast mlp
    says 2 "must be in [1, 65536]" --hparam hidden=0 mlp
    says 2 "whole number" --hparam batch_size=1.5 mlp
    says 2 "has no value" --hparam lr mlp
    says 2 "--processes" --processes 0 mlp
    says 2 "needs '--processes'" --processes-per-node 2 mlp
    RANK=0 WORLD_SIZE=1 says 2 "RANK is set" --processes 2 mlp
}

@test "a module that is not there is status 3" {
    says 3 "no module 'resnet' in " resnet
    says 3 "no module at './mlp.so'" ./mlp.so
}

@test "a module that is wrong is told so" {
    says 1 "made for module interface 2, this pltrain has 1" "$BROKEN/broken_abi.so"
    says 1 "has no symbol plume_module_entry" "$BROKEN/broken_entry.so"
    says 1 "plume_module_entry() returned NULL" "$BROKEN/broken_table.so"
    says 1 "lacks the hook configure" "$BROKEN/broken_hooks.so"
    says 1 "hook configure: the weather is bad" "$BROKEN/broken_hook.so"
    says 1 "linear: shapes do not fit" "$BROKEN/broken_shape.so"
    says 1 "asks for hyper-parameter 'learning_rate'" "$BROKEN/broken_optimizer.so"
    echo "not a shared object" >"$BATS_TEST_TMPDIR/text.so"
    says 1 "cannot load module" "$BATS_TEST_TMPDIR/text.so"
}

@test "a loss that is no number ends all ranks, and each says why" {
    says 1 "the loss is not a number at step 1 of epoch 1" "$BROKEN/broken_nan.so"
    for per_node in 1 2 3; do
        run -1 --separate-stderr pltrain --processes 3 --processes-per-node $per_node \
            "$BROKEN/broken_nan.so"
        [ "${#stderr_lines[@]}" -eq 3 ]
        grep -qx 'pltrain: the loss is not a number at step 1 .*' <<<"$stderr"
        [ "$(grep -c 'rank 2 gave up: the loss is not a number at step 1' <<<"$stderr")" -eq 2 ]
    done
}

@test "an interrupt ends all ranks and leaves nothing" {
    export PLUME_RUNTIME_DIR=$BATS_TEST_TMPDIR/run
    mkfifo "$BATS_TEST_TMPDIR/out"
    pltrain --processes 3 --epochs 1000000 mlp >"$BATS_TEST_TMPDIR/out" &
    pid=$!
    read -r line <"$BATS_TEST_TMPDIR/out" # training
    [[ $line == "epoch 1/"* ]]
    kill -TERM $pid
    wait $pid && status=0 || status=$?
    [ $status -eq 130 ]
    [ -z "$(ls -A "$PLUME_RUNTIME_DIR")" ]
}

@test "data that is not there is named" {
    mkdir "$BATS_TEST_TMPDIR/bin"
    cp "$BUILD/pltrain" "$BATS_TEST_TMPDIR/bin"
    run -1 --separate-stderr "$BATS_TEST_TMPDIR/bin/pltrain" "$BUILD/modules/mlp.so"
    [[ $stderr == *"digits/train-images.npy"* ]]
    PLUME_DATA_DIR=$BUILD/data "$BATS_TEST_TMPDIR/bin/pltrain" --epochs 0 "$BUILD/modules/mlp.so"
}

@test "ranks without a launcher are told what to do" {
    RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=2 NODE_RANK=0 \
        says 1 "PLUME_SOCKET is not set" mlp
    RANK=0 says 1 "WORLD_SIZE" mlp
    RANK=2 WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 NODE_RANK=0 says 1 "make no sense" mlp
    RANK=x WORLD_SIZE=2 says 1 "RANK" mlp
}
