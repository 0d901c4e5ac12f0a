# SPDX-License-Identifier: MIT
# shellcheck shell=bash
# ./dev test: build everything, run every lane, end with one line that sums them up.

# shellcheck source=dev.d/build.bash
. "$PLUME_SRC/dev.d/build.bash"

readonly TEST_SUITES=(unit kernels cli daemon cluster fault fuzz lint)
readonly TEST_LANES=(asan tsan)

test_usage() {
    cat <<'TXT'
Usage: ./dev test [SUITE|LANE...]

Suites: unit kernels cli daemon cluster fault fuzz lint
Lanes:  asan (unit kernels cli daemon fuzz under ASan and UBSan)
        tsan (unit daemon under TSan)

Without a name all of them run. Ends with "N passed, N failed, N skipped";
the status is 0 when nothing failed.
TXT
}

# without_aslr COMMAND...: the sanitizers' shadow memory collides with randomised mappings.
without_aslr() {
    if setarch -R true 2>/dev/null; then
        setarch -R "$@"
    else
        "$@"
    fi
}

# lane DIR SUITE...: run the suites of a build folder; failures' output goes to stdout.
lane() {
    local dir=$1 suite
    local -a args=()
    shift
    for suite; do
        args+=(--suite "$suite")
    done
    say "dev: ${dir##*/}: $*"
    rm -f "$dir/meson-logs/testlog.json"
    without_aslr meson test -C "$dir" --no-rebuild --num-processes "$(nproc)" --print-errorlogs \
        "${args[@]}" || true
    LOGS+=("$dir/meson-logs/testlog.json")
}

readonly -A LANE_OPTIONS=(
    [asan]='-Db_sanitize=address,undefined -Db_lundef=false'
    [tsan]='-Db_sanitize=thread -Db_lundef=false'
)

readonly LANE_TSAN='unit daemon'

build_lane() {
    local dir=$PLUME_SRC/build-$1
    local -a targets=()
    # shellcheck disable=SC2086 # words
    configure_in "$dir" ${LANE_OPTIONS[$1]}
    if [[ $1 == tsan ]]; then # all but a part of it is for tests of other suites
        # shellcheck disable=SC2086 # words
        mapfile -t targets < <("$PLUME_SRC/dev.d/suite-targets.py" "$dir" $LANE_TSAN)
        targets+=(tools)
    fi
    ninja_in "$dir" "${targets[@]}"
}

lane_asan() {
    build_lane asan
    ASAN_OPTIONS=detect_leaks=1:allocator_may_return_null=1 \
        UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 \
        lane "$PLUME_SRC/build-asan" unit kernels cli daemon fuzz
}

lane_tsan() {
    build_lane tsan
    # shellcheck disable=SC2086 # words
    TSAN_OPTIONS=halt_on_error=1:allocator_may_return_null=1:suppressions=$PLUME_SRC/tests/lib/tsan.supp \
        lane "$PLUME_SRC/build-tsan" $LANE_TSAN
}

# Builds the lanes while tests run that mostly wait, those on clusters, at their leisure. Nothing is
# said: what is left over, or wrong, the lane itself builds and tells.
build_ahead() {
    local name
    for name; do
        (build_lane "$name") >/dev/null 2>&1 || return 0
    done
}

# Clusters of tests that did not get to stop their own (killed at a time limit).
test_sweep() {
    local name
    while read -r name _; do
        [[ $name == "$PLUME_TEST_ID"-* ]] || continue
        say "dev: cluster '$name' was left behind; taking it down"
        "$PLUME_SRC/dev" cluster down --name "$name"
    done < <("$PLUME_SRC/dev" cluster list)
}

test_end() {
    [[ -z $AHEAD ]] || kill -- "-$AHEAD" 2>/dev/null
    test_sweep
}

# As root some tests act as another user, who must be able to read the tree.
others_can_read() {
    ((EUID != 0)) || setpriv --reuid 65534 --regid 65534 --clear-groups \
        test -x "$PLUME_SRC" -a -r "$PLUME_SRC/dev" -a -r "$PLUME_SRC/dev.d/test.bash" 2>/dev/null
}

test_in_copy() {
    local copy rc=0
    copy=$(mktemp -d "${TMPDIR:-/tmp}/plume-src-XXXXXX")
    # shellcheck disable=SC2064 # this very folder
    trap "rm -rf '$copy'" EXIT
    chmod 0755 "$copy"
    say "dev: other users cannot read this tree; testing a copy of it"
    tar -C "$PLUME_SRC" --exclude='./build*' --exclude=./runs -cf - . | tar -C "$copy" -xf -
    chmod -R a+rX "$copy"
    PLUME_TEST_COPY=1 "$copy/dev" test "$@" || rc=$?
    exit "$rc"
}

cmd_test() {
    local arg
    local -a suites=() lanes=() cuda=()
    if [[ ${1:-} == -h || ${1:-} == --help ]]; then
        test_usage
        return
    fi
    for arg; do
        if [[ " ${TEST_SUITES[*]} " == *" $arg "* ]]; then
            suites+=("$arg")
        elif [[ " ${TEST_LANES[*]} " == *" $arg "* ]]; then
            lanes+=("$arg")
        else
            die_usage "unknown suite '$arg'; one of ${TEST_SUITES[*]} ${TEST_LANES[*]}"
        fi
    done
    if (($# == 0)); then
        suites=("${TEST_SUITES[@]}")
        lanes=("${TEST_LANES[@]}")
    fi
    deps_ensure build test lint
    others_can_read || [[ -n ${PLUME_TEST_COPY:-} ]] || test_in_copy "$@"

    LOGS=()
    export PLUME_TEST_ID=test-$$
    AHEAD=
    trap test_end EXIT
    trap 'exit 130' INT TERM HUP
    if ((${#suites[@]})); then
        (($#)) || cuda=(-Dcuda=auto) # ./dev build may have left it out
        reconfigure_in "$PLUME_SRC/build" -Dtests=enabled "${cuda[@]}"
        ninja_in "$PLUME_SRC/build"
        # On two processors the tests would feel it, some of which want to be quick.
        if (($(nproc) > 2)); then
            set -m # a process group of its own
            (
                renice -n 19 "$BASHPID" >/dev/null
                build_ahead "${lanes[@]}"
            ) &
            AHEAD=$!
            set +m
        fi
        lane "$PLUME_SRC/build" "${suites[@]}"
        [[ -z $AHEAD ]] || wait "$AHEAD" || true
        AHEAD=
    fi
    for arg in "${lanes[@]}"; do
        "lane_$arg"
    done
    python3 "$PLUME_SRC/dev.d/sum-tests.py" "${LOGS[@]}"
}
