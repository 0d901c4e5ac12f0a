#!/usr/bin/env bats
# SPDX-License-Identifier: MIT
# A module that was built with the headers of release 0.1, tests/fixtures/abi-0.1/old-x86_64.so, runs
# as the same source built with today's headers.
# BUILD is the build folder, SRC the source's.

bats_require_minimum_version 1.5.0

@test "a module of release 0.1 trains, saves, resumes and tests as ever" {
    PATH=$BUILD:$PATH
    unset RANK WORLD_SIZE PLUME_SOCKET
    cd "$BATS_TEST_TMPDIR" || exit
    [ "$(uname -m)" = x86_64 ] || skip "the binary is for x86_64"
    cp "$SRC/tests/fixtures/abi-0.1/old-x86_64.so" old.so
    cc -std=c11 -shared -fPIC -I "$SRC/include" -o new.so "$SRC/tests/fixtures/abi-0.1/old.c"
    for how in "" "--strategy dp --devices 2" "--strategy ddp --processes 2 --precision 64"; do
        for module in old new; do
            # shellcheck disable=SC2086 # words
            run -0 --separate-stderr pltrain $how --epochs 1 --checkpoint-dir c --save-last ./$module.so
            # shellcheck disable=SC2086,SC2154 # words; bats sets stderr
            run -0 --separate-stderr pltrain $how --epochs 3 --checkpoint-dir c --resume last ./$module.so
            # shellcheck disable=SC2154 # bats sets stderr
            [ -z "$stderr" ] || { echo "$stderr"; false; }
            grep -E '^test_acc|param hash' <<<"$output" | sort >$module.out
            rm -r c
        done
        diff old.out new.out
        grep -q 'param hash' old.out && grep -q '^test_acc' old.out
    done
}
