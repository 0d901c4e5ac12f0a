#!/usr/bin/env bats
# SPDX-License-Identifier: MIT
# The emulator finds each kind of mistake in wrong.cu, in builds without its trace (racy.bats), too.

bats_require_minimum_version 1.5.0

setup() {
    ulimit -c 0
}

# ends CASE TEXT: the emulator ends it with this message.
ends() {
    run -134 "$BUILD/tests/cuda/wrong" "$1"
    [[ $output == "CUDA emulator: $2 (line "* ]] || {
        printf '%s: %s\n' "$1" "$output"
        false
    }
}

@test "a barrier or a shuffle that not all threads reach" {
    run -0 "$BUILD/tests/cuda/wrong" nothing-wrong
    [[ -z $output ]]
    ends some-return '__syncthreads() after a thread has ended'
    ends two-barriers 'threads wait at different barriers'
    ends two-shuffles 'lanes of a warp wait at different lines'
    ends half-of-a-warp 'only whole warps are emulated'
    ends part-of-a-warp 'only whole warps are emulated'
    ends each-waits 'threads wait for each other for ever'
}

@test "sizes of which 32 bits hold a part are refused, and not cut" {
    local large="its arrays are larger than its kernel can divide among a GPU's blocks (2147483647 x 65535)"
    ends large-grid "$large"
    ends larger-grid "$large"
    ends one-block-in-32-bits "$large"
    ends many-rows "$large"
    ends many-tokens 'the gradient of an embedding has at most 4294966271 tokens'
    ends many-labels 'counting what is correct takes at most 4294967295 rows and classes'
}

@test "shared memory: behind an array, never written, too much" {
    ends one-too-far 'written behind an array in shared memory'
    ends much-shared 'too much shared memory'
    for name in not-written of-the-block-before; do
        run -3 "$BUILD/tests/cuda/wrong" "$name"
        [[ $output == NaN ]]
    done
}

@test "a launch that no GPU takes, and blocks in no order" {
    ends empty-grid 'no such grid or block'
    ends large-block 'no such grid or block'
    run -3 "$BUILD/tests/cuda/wrong" in-order
    [[ $output == "not in order" ]]
}
