#!/usr/bin/env bats
# SPDX-License-Identifier: MIT
# The checkpoints of several runs in one trial of plsubmit --requeue-on, over its attempts.
# BUILD is the build folder, BROKEN the folder of the odd module.

bats_require_minimum_version 1.5.0

setup() {
    PATH=$BUILD:$PATH
    unset RANK WORLD_SIZE PLUME_SOCKET
    export PLUME_HOME=$BATS_TEST_TMPDIR/home
    export PLUME_REQUEUE_ON=timeout PLUME_TRIAL_DIR=$BATS_TEST_TMPDIR PLUME_ATTEMPT=0
    cd "$BATS_TEST_TMPDIR"
}

@test "models that one requeued trial trains have checkpoints of their own" {
    local -a short=(--limit-train-batches 1 --limit-val-batches 1 --limit-test-batches 1 --epochs 1)
    pltrain "${short[@]}" mlp
    pltrain "${short[@]}" mlp --lr 0.5
    PLUME_ATTEMPT=1 pltrain "${short[@]}" --log-dir again mlp --lr 0.5
    [ "$(find checkpoints -mindepth 1 -maxdepth 1 -type d | wc -l)" = 2 ]
    [ "$(find checkpoints -name '*.ckpt' | wc -l)" = 2 ]
}

# trains SEED FILE ARGS...: one run of an attempt resumes from ...FILE; "" = from none. $result has its step.
trains() {
    local seed=$1 resumes=$2
    shift 2
    run -0 pltrain --processes 2 --epochs 1 --batch-size 8 --seed "$seed" "$@" "$BROKEN/odd.so"
    if [ -n "$resumes" ]; then
        [[ $output == *"resuming from '$PLUME_TRIAL_DIR/checkpoints/"*$resumes"'"* ]]
    else
        [[ $output != *resuming* ]]
    fi || { echo "seed $seed: $output"; false; }
    result=$(grep -o 'param hash .*\|step [0-9]* loss .* (' <<<"$output" | sort -u)
}

# interrupted SEED HOW ARGS...: the run is interrupted, as ODD=HOW does it.
interrupted() {
    local seed=$1 how=$2
    shift 2
    ODD=$how run -130 pltrain --processes 2 --epochs 1 --batch-size 8 --seed "$seed" "$@" "$BROKEN/odd.so"
    [[ $output == *"interrupted at step "* ]]
}

# folders N: so many have been taken.
folders() {
    [ "$(find checkpoints -mindepth 1 -maxdepth 1 -type d | wc -l)" -eq "$1" ] || { ls -A checkpoints; false; }
}

@test "runs of one trial with the same hyper-parameters are told apart by their order" {
    trains 1 ""
    first=$result
    interrupted 2 signal-in-validation --num-sanity-val-steps 0
    # A run that was interrupted keeps its place, in this attempt and in the next one.
    [ "$(find checkpoints -name 'hpc_ckpt_1.ckpt')" = "$(echo checkpoints/*-2)/hpc_ckpt_1.ckpt" ]
    cp -r checkpoints before
    trains 2 "-2/hpc_ckpt_1.ckpt" --num-sanity-val-steps 0
    second=$result
    rm -r checkpoints
    mv before checkpoints
    export PLUME_ATTEMPT=1
    # A run that writes no checkpoint has no place.
    pltrain --epochs 1 --fast-dev-run "$BROKEN/odd.so"
    trains 1 ""
    [ "$result" = "$first" ]
    pltrain --epochs 1 --fast-dev-run "$BROKEN/odd.so"
    trains 2 "-2/hpc_ckpt_1.ckpt" --num-sanity-val-steps 0
    [ "$result" = "$second" ]
    trains 3 ""
    folders 3
}

@test "a run that goes on from the one before leaves it its own checkpoints" {
    local -a first=(--save-last --max-steps 2) second=(--resume last --max-steps 6)
    trains 3 "" "${first[@]}"
    a=$result
    interrupted 3 signal-in-step-4 "${second[@]}"
    [[ $output == *"resuming from '$PLUME_TRIAL_DIR/checkpoints/"*[!-]?"/last.ckpt'"* ]]
    for PLUME_ATTEMPT in 1 2; do
        trains 3 "" "${first[@]}"
        [ "$result" = "$a" ]
        trains 3 "-2/hpc_ckpt_1.ckpt" "${second[@]}"
        b=${b-$result}
        [ "$result" = "$b" ]
    done
    folders 2
    # The same without an interrupt, and from files by hand.
    [ "$a" != "$b" ]
    unset PLUME_REQUEUE_ON
    trains 3 "" "${first[@]}" --checkpoint-dir checkpoints/one
    trains 3 "one/last.ckpt" --max-steps 6 --resume "$PWD/checkpoints/one/last.ckpt" --checkpoint-dir two
    [ "$result" = "$b" ]
}

@test "what goes on without a last.ckpt of its own passes on that of the run before" {
    trains 3 "" --save-last --max-steps 1
    trains 3 "$(cd checkpoints && ls)/last.ckpt" --resume last --max-steps 2
    trains 3 "$(basename checkpoints/*[!-]?)/last.ckpt" --resume last --save-last --max-steps 3
    trains 3 "-3/last.ckpt" --resume last --max-steps 4
    # Not past a run that began anew, and has none.
    trains 5 "" --max-steps 2
    trains 5 "" --resume last --max-steps 3
    folders 6
    PLUME_ATTEMPT=1
    # A run that began anew does so again, though now it would go on.
    trains 5 "" --max-steps 2 --resume last
    # The run before is the one that was it, also in an attempt that leaves it out.
    rm checkpoints/*-3/last.ckpt
    trains 3 "$(basename checkpoints/*[!-]?)/last.ckpt" --resume last --save-last --max-steps 3
}

@test "a run that fails keeps its folder from runs with other options" {
    interrupted 1 signal-in-step-4
    trains 2 ""
    b=$result
    trains 1 "/hpc_ckpt_1.ckpt" --max-time 10
    a=$result
    folders 2
    PLUME_ATTEMPT=1
    ODD=returns-7 run -1 pltrain --epochs 1 --batch-size 8 --seed 1 "$BROKEN/odd.so"
    interrupted 2 signal-in-step-4
    PLUME_ATTEMPT=2
    trains 1 "[!-]?/hpc_ckpt_1.ckpt"
    [ "$result" = "$a" ]
    trains 2 "-2/hpc_ckpt_1.ckpt"
    [ "$result" = "$b" ]
    folders 2
}

@test "folders that do not tell whose they are go by the order of runs" {
    trains 1 ""
    interrupted 2 signal-in-step-4
    rm checkpoints/*/.plume-run
    PLUME_ATTEMPT=1
    trains 1 ""
    trains 2 "-2/hpc_ckpt_1.ckpt"
    trains 3 ""
    folders 3
    # Now they tell.
    PLUME_ATTEMPT=2
    trains 3 ""
    trains 2 "-2/hpc_ckpt_1.ckpt"
    folders 3
}

@test "a folder whose run cannot be read is not taken for another run's" {
    local -a short=(--limit-train-batches 1 --limit-val-batches 1 --limit-test-batches 1 --epochs 1)
    pltrain "${short[@]}" mlp
    taken=$(echo checkpoints/*/.plume-run)
    rm "$taken"
    ln -s .plume-run "$taken" # opening it is an error, for root, too
    PLUME_ATTEMPT=1 run -1 --separate-stderr pltrain "${short[@]}" mlp
    [ "$stderr" = "pltrain: cannot open '$PWD/$taken': Too many levels of symbolic links" ] || { echo "$stderr"; false; }
    folders 1
}
