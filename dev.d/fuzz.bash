# SPDX-License-Identifier: MIT
# shellcheck shell=bash
# ./dev fuzz [NAME [SECONDS]]: look for new inputs that break a parser, with libFuzzer under ASan
# and UBSan. What it finds goes to tests/fuzz/corpus/NAME, where ./dev test replays it.

# shellcheck source=dev.d/build.bash
. "$PLUME_SRC/dev.d/build.bash"

cmd_fuzz() {
    local name=${1:-} seconds=${2:-30} build=$PLUME_SRC/build-fuzz target
    (($# <= 2)) || die_usage "fuzz takes a name and a number of seconds"
    need_number SECONDS "$seconds" 1 86400
    [[ -z $name || -f $PLUME_SRC/tests/fuzz/fuzz-$name.c ]] ||
        die_usage "no fuzz target '$name'; see tests/fuzz/"
    deps_ensure build test
    CC=clang configure_in "$build" -Db_sanitize=address,undefined -Db_lundef=false \
        -Dc_args=-fsanitize=fuzzer-no-link
    for target in "$PLUME_SRC"/tests/fuzz/fuzz-*.c; do
        target=${target##*/fuzz-}
        target=${target%.c}
        [[ -n $name && $target != "$name" ]] || fuzz_one "$build/tests/fuzz/fuzz-$target" "$seconds"
    done
}

fuzz_one() {
    local name=${1##*/fuzz-} corpus found
    ninja_in "${1%/tests/*}" "tests/fuzz/fuzz-$name"
    corpus=$PLUME_SRC/tests/fuzz/corpus/$name
    found=$1-found
    mkdir -p "$found"
    say "dev: fuzzing $name for $2 s"
    "$1" -max_total_time="$2" -max_len=8192 -timeout=5 -verbosity=0 \
        -artifact_prefix="$corpus/found-" "$found" "$corpus" ||
        die "$name: broke; the input is in tests/fuzz/corpus/$name/"
}
