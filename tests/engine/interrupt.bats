#!/usr/bin/env bats
# SPDX-License-Identifier: MIT
# pltrain: what signals, stopped ranks and other runs do to a run.
# BUILD is the build folder, BROKEN the folder of the odd module.

bats_require_minimum_version 1.5.0

setup() {
    PATH=$BUILD:$PATH
    unset RANK WORLD_SIZE PLUME_SOCKET
    export PLUME_HOME=$BATS_TEST_TMPDIR/home
    cd "$BATS_TEST_TMPDIR"
}

# odd HOW STATUS WORDS ARGS...: the module does HOW; each line on stderr has the words.
odd() {
    local how=$1 status=$2 words=$3
    shift 3
    ODD=$how run "-$status" --separate-stderr timeout 60 pltrain "$@" "$BROKEN/odd.so"
    if [ -z "$stderr" ] || grep -vqF "$words" <<<"$stderr"; then
        echo "$how: $stderr"
        false
    fi
}

# until_seen WORDS FILE: waits for a line.
until_seen() {
    for _ in {1..600}; do ! grep -q "$1" "$2" || return 0; sleep 0.1; done
    cat "$2"
    false
}

# stopped_child PID: the process that SIGSTOP has stopped.
stopped_child() {
    local child
    for child in $(<"/proc/$1/task/$1/children"); do
        ! grep -q '^State:.T' "/proc/$child/status" || echo "$child"
    done
}

@test "a signal ends --validate, --test and --predict, and leaves nothing" {
    pltrain --epochs 0 --checkpoint-dir c "$BROKEN/odd.so"
    mkdir empty
    cd empty
    for ranks in 1 2; do
        for how in "validation --validate" "test --test" "predict --predict --out p.npy"; do
            read -r stage args <<<"$how"
            # shellcheck disable=SC2086 # words
            odd "signal-in-$stage" 130 "interrupted: there is no result" --processes $ranks $args \
                --weights ../c/epoch=0-step=0.ckpt --batch-size 4
            [ "${#stderr_lines[@]}" -eq 1 ]
            [ -z "$output$(ls -A)" ] || { echo "$how: $output"; ls -A; false; }
        done
    done
}

@test "a signal before the module is there becomes a checkpoint, too" {
    for ranks in 1 2; do
        for name in SIGTERM SIGUSR1; do
            odd $name-in-entry 130 "interrupted at step 0" --processes $ranks --checkpoint-dir c
            [[ $stderr == *"interrupted at step 0: saved 'c/hpc_ckpt_1.ckpt'"* ]]
            rm -r c
        done
    done
}

@test "a signal in the test after the last epoch is kept for the next run" {
    for ranks in 1 2; do
        odd signal-in-test 130 "interrupted at step " --processes $ranks --epochs 1 --batch-size 8 \
            --num-sanity-val-steps 0 --limit-val-batches 0 --checkpoint-dir c$ranks
        [[ $output != *test_loss* ]]
        ODD=none-at-all run -0 pltrain --processes $ranks --epochs 1 --batch-size 8 \
            --checkpoint-dir c$ranks "$BROKEN/odd.so"
        [[ $output == *"resuming from 'c$ranks/hpc_ckpt_1.ckpt'"* ]]
    done
}

@test "a signal in the last step leaves its epoch's end to the next run" {
    for how in "1 --max-steps 8" "1 --max-steps 8 --batch-size 4" "1 --epochs 1" "2 --max-steps 8 --batch-size 4"; do
        read -r ranks args <<<"$how"
        # shellcheck disable=SC2206 # words
        args=(--processes "$ranks" --epochs 5 --batch-size 8 $args)
        whole=$(pltrain "${args[@]}" "$BROKEN/odd.so")
        odd signal-in-step-8 130 "interrupted at step 8" --checkpoint-dir c "${args[@]}"
        [[ $output != *"epoch 1/"* ]]
        run -0 --separate-stderr pltrain --checkpoint-dir c "${args[@]}" "$BROKEN/odd.so"
        epoch=$(grep -o '^epoch 1/.* val_loss [0-9.]*' <<<"$whole")
        [[ $epoch == *" loss "* && $output == *"$epoch"* ]] || { echo "$how: $whole; $output"; false; }
        rm -r c
    done
}

@test "steps that become slow do not hide a signal or the end of the time" {
    for how in "" "--processes 2" "--processes 2 --average-every 50" "--processes 3 --processes-per-node 2"; do
        # shellcheck disable=SC2086 # words
        odd signal-in-slow-step 130 "interrupted at step 11" $how --epochs 100000 --checkpoint-dir c
        rm -r c
    done
    for how in "" "--processes 2 --average-every 50"; do
        # shellcheck disable=SC2086 # words
        ODD=slow-steps run -0 timeout 60 pltrain $how --epochs 100000 --max-time 0:01 "$BROKEN/odd.so"
    done
}

@test "a rank that is stopped is named, and the others end after the limit" {
    for how in "--comm shm" "--comm tcp" "--processes-per-node 2"; do
        : >err
        # shellcheck disable=SC2086 # words
        ODD=stop pltrain --processes 3 $how --collective-timeout 0.1 --collective-limit 0.5 --epochs 100 \
            "$BROKEN/odd.so" >out 2>err &
        pid=$!
        until_seen "pltrain: \(lost rank 2: .* has waited\|.*has waited .* for rank 2 \)" err
        stopped=$(stopped_child $pid)
        # The others end, which their parent has noticed.
        for _ in {1..600}; do [ "$(<"/proc/$pid/task/$pid/children")" != "$stopped " ] || break; sleep 0.1; done
        [ "$(<"/proc/$pid/task/$pid/children")" = "$stopped " ]
        kill -CONT "$stopped"
        wait $pid && status=0 || status=$?
        [ $status -eq 1 ]
    done
}

@test "one run writes to a checkpoint folder at a time" {
    mkfifo out
    pltrain --epochs 1000000 --checkpoint-dir c --save-last mlp >out 2>err &
    pid=$!
    exec 4<out
    read -r _ <&4
    for ranks in 1 2; do
        run -1 --separate-stderr pltrain --processes $ranks --epochs 1 --checkpoint-dir c mlp
        [ "${#stderr_lines[@]}" -eq $ranks ]
        [ "$(grep -c "another run (process $pid on .*) writes checkpoints to 'c': give each run a --checkpoint-dir of its own" <<<"$stderr")" -eq $ranks ]
    done
    [ -e /proc/$pid ] # the first one goes on
    # A run that is killed keeps nobody out, and its unfinished files go.
    kill -KILL $pid
    wait $pid && status=0 || status=$?
    exec 4<&-
    touch c/last.ckpt.tmp-0123456789abcdef
    run -0 --separate-stderr pltrain --epochs 1 --checkpoint-dir c --resume last mlp
    [ -z "$stderr" ]
    [ -z "$(find c -name '*.tmp*' -o -name '.*' ! -name c)" ]
}
