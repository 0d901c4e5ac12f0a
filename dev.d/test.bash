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
        tsan (what starts threads or locks, and daemons that resolve names
        and talk, under TSan)

Without a name all of them run. Ends with "N passed, N failed, N skipped";
the status is 0 when nothing failed. A test that fails beside others runs once
more, alone; if it passes then, it is named as unsteady.
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

# ---- what is being done, and how long it may still take ----

# Seconds of each step on two cores; what the last run took is in build/test-times and counts more.
declare -A STEP_S=([build]=270 [tests]=420 [asan]=400 [tsan]=75 [waiting]=5 [clusters]=250)
STEPS=() # those of this run that have not ended
STEP_START=

steps_read() {
    local name seconds
    [[ -f $PLUME_SRC/build/test-times ]] || return 0
    while read -r name seconds; do
        [[ -z ${STEP_S[$name]:-} || ! $seconds =~ ^[0-9]+$ ]] || STEP_S[$name]=$seconds
    done <"$PLUME_SRC/build/test-times"
}

clock() {
    printf '%d:%02d' "$(($1 / 60))" "$(($1 % 60))"
}

# step TEXT: the first of STEPS begins.
step() {
    local name left=0
    STEP_START=$SECONDS
    for name in "${STEPS[@]}"; do
        left=$((left + STEP_S[$name]))
    done
    say "dev: $(clock "$SECONDS") $1; about $(((left + 59) / 60)) min left"
}

step_end() {
    STEP_S[${STEPS[0]}]=$((SECONDS - STEP_START))
    STEPS=("${STEPS[@]:1}")
}

steps_write() {
    local name
    [[ -d $PLUME_SRC/build ]] || return 0
    for name in "${!STEP_S[@]}"; do
        printf '%s %s\n' "$name" "${STEP_S[$name]}"
    done >"$PLUME_SRC/build/test-times"
}

# ---- lanes ----

# If python3 is a script that looks for the real one (pyenv's), each call takes a tenth of a second of a
# processor, and tests make hundreds of calls. They get the real one.
python_found() {
    local python magic=''
    python=$(command -v python3) || return 0
    IFS= read -r -N 2 magic <"$python" || true
    [[ $magic != '#!' ]] || python=$(python3 -c 'import sys; print(sys.executable)') || return 0
    [[ ${python%/*} == "$(dirname "$(command -v python3)")" ]] || PATH=${python%/*}:$PATH
}

# For tests on XLA's CPU device, whose compiler took two thirds of their time: here it optimises little. The row pjrt of
# ./dev matrix, and ./dev soak xla, leave it as users have it.
readonly XLA_QUICK='--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1'

# The time limits in meson.build are several times what a test takes on an idle machine with a fast disk. CI has
# had machines on which the same tests took 7 to 20 times as long: a limit ends what hangs, not what is slow.
readonly LIMITS_TIMES=4

# lane DIR LOG PROCESSES SUITE...: run the suites of a build folder; failures' output goes to stdout.
lane() {
    local dir=$1 log=$2 processes=$3 suite rc=0
    local -a args=()
    shift 3
    for suite; do
        args+=(--suite "$suite")
    done
    rm -f "$dir/meson-logs/$log.json"
    without_aslr meson test -C "$dir" --no-rebuild --num-processes "$processes" --logbase "$log" \
        --timeout-multiplier "$LIMITS_TIMES" --print-errorlogs "${args[@]}" || rc=$?
    # A lane that broke off is a failure, whatever its log has.
    ((rc == 0)) ||
        grep -qsE '"result": "(FAIL|ERROR|TIMEOUT|INTERRUPT|UNEXPECTEDPASS)"' "$dir/meson-logs/$log.json" ||
        printf '{"name": "meson test", "result": "FAIL", "stdout": "ended with status %d"}\n' "$rc" \
            >>"$dir/meson-logs/$log.json"
}

# many MORE: so many more than there are processors, as some tests wait.
many() {
    echo "$(($(nproc) + $1))"
}

# Line numbers and little optimisation: sanitizers need no more for their stack traces.
readonly -A LANE_OPTIONS=(
    [asan]='-Db_sanitize=address,undefined -Db_lundef=false -Doptimization=1 -Dc_args=-g1'
    [tsan]='-Db_sanitize=thread -Db_lundef=false -Doptimization=1 -Dc_args=-g1'
)
readonly -A LANE_SUITES=(
    [asan]='unit kernels cli daemon fuzz'
    [tsan]=threads
)

# build_suites DIR SUITE...: what their tests need, and the tools.
build_suites() {
    local dir=$1
    local -a targets=()
    shift
    # The folder of an older commit does not know of the newest tests. What fails here is told below.
    ninja -C "$dir" build.ninja &>/dev/null || true
    mapfile -t targets < <("$PLUME_SRC/dev.d/suite-targets.py" "$dir" "$@")
    if [[ $dir == "$PLUME_SRC/build" ]]; then
        targets+=(tools)
    else
        targets+=(plsubmit plstat plrun plrund pltrain) # all but the plugin: the lanes have no Slurm
    fi
    ninja_in "$dir" "${targets[@]}"
}

# build_most DIR: all but the tests for a GPU, 43 programs of 50 MB with all kernels each, which ./dev test does not run.
build_most() {
    local -a targets=()
    mapfile -t targets < <("$PLUME_SRC/dev.d/suite-targets.py" "$1" --without gpu)
    ninja_in "$1" "${targets[@]}"
}

build_lane() {
    local dir=$PLUME_SRC/build-$1 linker=''
    # It takes three fifths of ld's time, for 280 programs.
    ! command -v ld.lld >/dev/null || linker=-Dc_link_args=-fuse-ld=lld
    # shellcheck disable=SC2086 # words
    configure_in "$dir" ${LANE_OPTIONS[$1]} $linker
    # shellcheck disable=SC2086 # words
    build_suites "$dir" ${LANE_SUITES[$1]}
}

# sanitized DIR COMMAND...: with what the sanitizer of that build is told. TSan lets each process that ends sleep for
# a second, to see what other threads do meanwhile. Some tests start hundreds of processes, one after the other.
sanitized() {
    local dir=$1
    shift
    case ${dir##*/} in
        build-asan)
            ASAN_OPTIONS=detect_leaks=1:allocator_may_return_null=1 \
                UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 "$@"
            ;;
        build-tsan)
            TSAN_OPTIONS=halt_on_error=1:allocator_may_return_null=1:atexit_sleep_ms=20:suppressions=$PLUME_SRC/tests/lib/tsan.supp "$@"
            ;;
        *) "$@" ;;
    esac
}

run_lane() {
    local dir=$PLUME_SRC/build-$1
    # shellcheck disable=SC2086 # words
    sanitized "$dir" lane "$dir" testlog "$(many 2)" ${LANE_SUITES[$1]}
}

# More failed tests than this are no accident.
readonly AGAIN_MOST=6

# again LOG...: tests that failed beside others run once more, alone, when all else has ended. Whatever comes of
# it, the sum names them (sum-tests.py reads LOG's name with -again).
again() {
    local log dir
    local -a failed
    for log; do
        rm -f "${log%.json}-again.json"
    done
    mapfile -t failed < <(python3 "$PLUME_SRC/dev.d/sum-tests.py" --failed "$@")
    ((${#failed[@]} > 0 && ${#failed[@]} <= AGAIN_MOST)) || return 0
    for log; do
        dir=${log%/meson-logs/*}
        mapfile -t failed < <(python3 "$PLUME_SRC/dev.d/sum-tests.py" --failed "$log")
        ((${#failed[@]})) || continue
        say "dev: $(clock "$SECONDS") ${dir##*/}: again, alone: ${failed[*]}"
        sanitized "$dir" without_aslr meson test -C "$dir" --no-rebuild --num-processes 1 \
            --timeout-multiplier "$LIMITS_TIMES" --logbase "$(basename "${log%.json}")-again" --print-errorlogs "${failed[@]}" || true
    done
}

# ahead_start LANE...: builds the lanes with what tests leave of the processors: these find one at once.
# It says nothing: what is left over, or wrong, the lane itself builds and tells.
ahead_start() {
    (($#)) || return 0
    set -m # a process group of its own
    (
        chrt --idle --pid 0 "$BASHPID" || renice -n 19 "$BASHPID"
        for name; do
            (build_lane "$name") || true
        done
    ) >/dev/null 2>&1 &
    AHEAD=$!
    set +m
}

# Two must not build in one folder, and what is waited for is not built with what others leave.
# ninja deletes what it has not finished: nobody else may build there meanwhile.
ahead_gone() {
    ! kill -0 -- "-$AHEAD" 2>/dev/null
}

ahead_stop() {
    [[ -n $AHEAD ]] || return 0
    kill -- "-$AHEAD" 2>/dev/null || true
    wait "$AHEAD" 2>/dev/null || true
    wait_until 30 ahead_gone || kill -KILL -- "-$AHEAD" 2>/dev/null || true
    AHEAD=
}

# Tests on clusters mostly wait: they run beside all else, and are shown when they have ended.
waiting_start() {
    set -m
    lane "$PLUME_SRC/build" testlog-waiting "$(nproc)" "$@" >"$PLUME_SRC/build/waiting.txt" 2>&1 &
    WAITING=$!
    set +m
}

waiting_end() {
    [[ -n $WAITING ]] || return 0
    wait "$WAITING" 2>/dev/null || true
    WAITING=
    cat "$PLUME_SRC/build/waiting.txt"
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
    ahead_stop
    if [[ -n $WAITING ]]; then
        kill -- "-$WAITING" 2>/dev/null || true
        wait "$WAITING" 2>/dev/null || true
    fi
    test_sweep
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
    others_can_read || in_copy test "$@"

    python_found
    # ./dev build may have left CUDA out. Without a GPU nvcc works in ./dev matrix only, whose row cuda has what these
    # suites could test of plume-cuda.so.
    if has_nvidia; then
        (($#)) || cuda=(-Dcuda=auto)
    elif [[ ! -f $PLUME_SRC/build/build.ninja ]]; then
        cuda=(-Dcuda=disabled)
    fi
    export PLUME_TEST_ID=test-$$ PLUME_TEST_XLA_FLAGS=$XLA_QUICK
    AHEAD='' WAITING='' SECONDS=0
    trap test_end EXIT
    trap 'exit 130' INT TERM HUP
    test_run
}

# test_run: all of `suites` and `lanes`.
test_run() {
    local name
    local -a waiting=() others=() logs=()
    for name in "${suites[@]}"; do
        if [[ $name == cluster || $name == fault ]]; then waiting+=("$name"); else others+=("$name"); fi
    done
    STEPS=(${suites:+build} ${others:+tests} "${lanes[@]}")
    if ((${#waiting[@]} > 0)); then
        if ((${#STEPS[@]} > 1)); then STEPS+=(waiting); else STEPS+=(clusters); fi
    fi
    steps_read

    if ((${#suites[@]})); then
        step "build"
        reconfigure_in "$PLUME_SRC/build" -Dtests=enabled "${cuda[@]}"
        if ((${#waiting[@]})); then
            build_suites "$PLUME_SRC/build" "${waiting[@]}"
            waiting_start "${waiting[@]}"
            logs+=("$PLUME_SRC/build/meson-logs/testlog-waiting.json")
        fi
        # Below the clusters, which want answers in time.
        ((${#others[@]} == 0)) || (renice -n 10 "$BASHPID" >/dev/null && build_most "$PLUME_SRC/build")
        step_end
    fi
    ahead_start "${lanes[@]}"
    if ((${#others[@]})); then
        step "build: ${others[*]}${waiting:+, beside ${waiting[*]}}"
        lane "$PLUME_SRC/build" testlog "$(many 2)" "${others[@]}"
        logs+=("$PLUME_SRC/build/meson-logs/testlog.json")
        step_end
    fi
    while ((${#lanes[@]})); do
        name=${lanes[0]}
        lanes=("${lanes[@]:1}")
        step "build-$name: ${LANE_SUITES[$name]}"
        ahead_stop
        build_lane "$name"
        ahead_start "${lanes[@]}"
        run_lane "$name"
        logs+=("$PLUME_SRC/build-$name/meson-logs/testlog.json")
        step_end
    done
    if ((${#waiting[@]})); then
        step "build: ${waiting[*]}"
        waiting_end
        step_end
    fi
    steps_write
    again "${logs[@]}"
    say "dev: $(clock "$SECONDS") done"
    python3 "$PLUME_SRC/dev.d/sum-tests.py" "${logs[@]}"
}
