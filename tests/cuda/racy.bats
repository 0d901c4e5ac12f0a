#!/usr/bin/env bats
# SPDX-License-Identifier: MIT
# The emulator's trace finds each kind of mistake in racy.cu, and accuses no kernel without one.

bats_require_minimum_version 1.5.0

setup() {
    RACY=$BUILD/tests/cuda/racy
    ulimit -c 0
    unset PLUME_EMULATED_BANKS
}

# ends CASE TEXT: it aborts with this message, which names the line of racy.cu.
ends() {
    run -134 "$RACY" "$1"
    [[ $output == "CUDA emulator: $2"*"racy.cu:"* ]] || {
        printf '%s: %s\n' "$1" "$output"
        false
    }
}

@test "what barriers, atomics and launches order is no race" {
    for name in barrier syncwarp rounds own-place two-launches atomic copied filled aligned banks-33 banks-32; do
        run -0 "$RACY" "$name"
        [[ -z $output ]]
    done
}

@test "a race in a block, between blocks, in a warp" {
    ends no-barrier 'race: a thread ' # which one comes first follows from the seed
    ends shuffle 'race: a thread '
    ends no-second-barrier 'race: a thread writes what another read, 4 bytes of shared memory'
    ends one-place 'race: a thread writes what another wrote, 4 bytes of global memory'
    ends threads-at-one-place 'race: a thread writes what another wrote, 4 bytes of global memory'
    ends copied-to-one-place 'race: a thread writes what another wrote, 64 bytes of global memory'
    ends one-place-filled 'race: a thread writes what another wrote, 64 bytes of global memory'
    ends no-atomic 'race: a thread '
    ends other-blocks-read 'race: a thread '
}

@test "a vector that is not aligned" {
    ends misaligned 'an address that is not aligned to what is moved, 16 bytes of global memory'
}

# passes CASE: those of the column's read, then those of the best case.
passes() {
    mkdir "$BATS_TEST_TMPDIR/$1"
    PLUME_EMULATED_BANKS=$BATS_TEST_TMPDIR/$1 run -0 "$RACY" "$1"
    awk -v line="$(grep -n 'of\[t \* pitch\]' "$SOURCE/tests/cuda/racy.cu" | cut -d: -f1)" \
        '$0 ~ "racy.cu:" line "( |$)" { print $1, $2 }' "$BATS_TEST_TMPDIR/$1"/*
}

@test "passes over the banks of shared memory" {
    [[ $(passes banks-33) == "1 1" ]]
    [[ $(passes banks-2) == "2 1" ]]
    [[ $(passes banks-32) == "32 1" ]]
}
