#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Builds what `./dev gpu-bundle` has packed with gcc and nvcc, runs its tests and benchmarks, and
# prints a table: ./check [--cpu | --sanitize | --build CAPABILITY] [--next] [--again] [NAME...]
# It goes in stages, the most valuable first, each of 8 minutes at most: ops of GPT-2, GPT-2 beside
# PyTorch, the kernels' rates, all other ops, several ranks, four ops under compute-sanitizer if that is
# there, the rest. A stage that fails never stops the next. Each ends by packing results.tsv, the summary
# and the logs as results.tgz. Called again, it goes on: what is built is not built again unless a source
# is newer, and what passed is not run again. Tests run several at once, benchmarks alone.
#   --again  runs what passed, too
#   --cpu   what needs no GPU, the kernels on their emulator too, in the same stages; the rest is skipped
#   --build CAPABILITY  builds what a card of that capability (90: H100) will run, and runs nothing: a rented card
#           costs by the minute. The folder must be at the same path there, and keep its files' times.
#   --next  builds nothing, and measures in 10 minutes at most what bench/RESULTS-gpu.md lacks: the steps of
#           tests/gpu/next.tsv, each with a limit of its own; NAMEs are steps. The card's clocks and power meanwhile
#           are in log/card.csv, and for each step in its log. After --build it is what to run on a rented card
#   --sanitize  tests that need a GPU under compute-sanitizer, its memcheck and its racecheck; many
#           minutes, so NAMEs are a good idea
#   NAME    only tests and benchmarks of that name; without one all that need a GPU, or none
# cuDNN and NCCL may be CUDA's, the system's, or those of a PyTorch's wheels (python3's nvidia.*).
# Exit: 0 all passed, 1 something failed, 2 usage, 77 there is no GPU. CC, NVCC, CUDA_HOME and JOBS
# may be set, and CHECK_LIMIT_TIMES, by which each test's limit is multiplied. Nothing outside this folder is
# written.
set -euo pipefail

TOP=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd -P)
readonly TOP
limit_s=${CHECK_STAGE_S:-480} # of a stage: a machine with a GPU is borrowed by the minute
kill_s=${CHECK_KILL_S:-5}     # for what is to end to do so
times=${CHECK_LIMIT_TIMES:-1} # a limit ends what hangs: a slow machine has others
started=$SECONDS
cpu=no
sanitize=no
again=no
next=no
card=
names=()
while (($#)); do
    arg=$1
    shift
    case $arg in
    --build)
        [[ ${1-} =~ ^[0-9]{2,3}$ ]] || {
            echo "check: --build takes the capability of a card as two or three digits, such as 90" >&2
            exit 2
        }
        card=$1 limit_s=${CHECK_STAGE_S:-86400}
        shift
        ;;
    --cpu) cpu=yes limit_s=${CHECK_STAGE_S:-86400} ;;
    --sanitize) sanitize=yes limit_s=86400 ;;
    --again) again=yes ;;
    --next) next=yes ;;
    -*)
        echo "check: unknown option '$arg'" >&2
        exit 2
        ;;
    *) names+=("$arg") ;;
    esac
done

build_only=${card:+yes}
if [[ $cpu$build_only == no ]] && ! compgen -G '/dev/nvidia[0-9]*' >/dev/null; then
    echo "gpu-check: no NVIDIA GPU on this machine (no /dev/nvidia0): nothing was run" >&2
    exit 77
fi

CC=${CC:-gcc}
NVCC=${NVCC:-$(command -v nvcc || echo "${CUDA_HOME:-/usr/local/cuda}/bin/nvcc")}
CUDA=${CUDA_HOME:-$(dirname -- "$(dirname -- "$(readlink -f -- "$NVCC")")")}
export TOP CC NVCC CUDA
jobs=${JOBS:-$(nproc)}
at_once=$((jobs < 8 ? jobs : 8)) # of tests: each has a context on the GPU
sanitizer=$(command -v compute-sanitizer || echo "$CUDA/bin/compute-sanitizer")
total_s=${CHECK_STAGE_S:-600} # of all steps of --next
if [[ $next == yes && $build_only$sanitize == *yes* ]]; then
    echo "check: --next goes with neither --build nor --sanitize" >&2
    exit 2
fi
if [[ $sanitize == yes && ! -x $sanitizer ]]; then
    echo "gpu-check: --sanitize needs compute-sanitizer, which is neither in PATH nor in '$CUDA/bin'" >&2
    exit 1
fi
if [[ $next == no ]] && ! command -v "$CC" >/dev/null; then
    echo "gpu-check: no compiler '$CC'" >&2
    exit 1
fi

# Only for this card: nvcc takes a minute of a core for each kind.
if [[ ! $build_only ]]; then
    card=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | head -n 1 || true)
    card=${card//[. ]/}
fi
[[ $card =~ ^[0-9]{2,3}$ ]] || card=
card_only() {
    [[ $card ]] || { cat && return; }
    sed -E "s/ -gencode arch=compute_[0-9]+,code=(sm|compute)_[0-9]+//g; s/^(\"\\\$NVCC\")/\1 -gencode arch=compute_$card,code=sm_$card/"
}

# As it was, for a PyTorch that a benchmark compares with: it has libraries of its own.
export CHECK_LD_LIBRARY_PATH=${LD_LIBRARY_PATH-}

# Headers and libraries of a wheel, under names that a linker finds.
use_wheel() { # NAME HEADER
    local root lib base
    for root in "$CUDA/include" /usr/include /usr/local/include; do
        [[ ! -e $root/$2 ]] || return 0
    done
    root=$(python3 -c 'import importlib.util as u, sys
s = u.find_spec("nvidia." + sys.argv[1])
print(list(s.submodule_search_locations)[0])' "$1" 2>/dev/null) || return 0
    export CPATH=$root/include${CPATH:+:$CPATH}
    export LD_LIBRARY_PATH=$root/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
    mkdir -p "$TOP/libs"
    for lib in "$root"/lib/*.so*; do
        base=${lib##*/}
        ln -sf "$lib" "$TOP/libs/${base%%.so*}.so"
    done
}
use_wheel nccl nccl.h
use_wheel cudnn cudnn.h
export LIBRARY_PATH=$TOP/libs:$CUDA/lib64:$CUDA/lib${LIBRARY_PATH:+:$LIBRARY_PATH}
export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$CUDA/lib64:$CUDA/lib

wanted() { # NAME
    local name
    ((${#names[@]})) || return 0
    for name in "${names[@]}"; do
        [[ $name != "$1" ]] || return 0
    done
    return 1
}

# The targets of the chosen tests, each once and in order: a line has a target and its command.
declare -A need=()
tests=()
# The command of a test under compute-sanitizer, where there is one.
sanitized() { # TOOL COMMAND
    echo "$sanitizer --tool $1 --error-exitcode 9 $2"
}

# Those of --next, in its order: STEP, or STEP,TEST under the sanitizer and where a step has several tests: each
# has a log and a result of its own.
steps=() step_limits=()
add_steps() {
    local step limit_of tool pattern extra kind name suite env targets command several
    while IFS=$'\t' read -r step limit_of tool pattern extra; do
        [[ $step && $step != \#* ]] || continue
        wanted "$step" || continue
        steps+=("$step") step_limits+=("$limit_of")
        several=$(cut -f 2 "$TOP/tests.tsv" | grep -cxE "$pattern" || true)
        while IFS=$'\t' read -r kind name suite _ env targets command; do
            [[ $name =~ ^($pattern)$ ]] || continue
            [[ $cpu == no || $suite != gpu ]] || targets="no NVIDIA GPU was asked for (--cpu)"
            env+=" $extra"
            if [[ $tool == - ]]; then
                if ((several > 1)); then name=$step,$name; else name=$step; fi
            else
                name=$step,$name env+=" CHECK_SANITIZER=$tool" command=$(sanitized "$tool" "$command")
                [[ -x $sanitizer ]] || targets="no compute-sanitizer in PATH or in '$CUDA/bin'"
            fi
            tests+=("$kind"$'\t'"$name"$'\t'"$limit_of"$'\t'"$env"$'\t'"$targets"$'\t'"$command")
        done <"$TOP/tests.tsv"
    done <"${CHECK_NEXT:-$TOP/tests/gpu/next.tsv}"
}
[[ $next == no ]] || add_steps

# The sanitizer's stage has those whose threads share most, or whose addresses are data.
watched='gpu-embedding|gpu-layernorm|gpu-attention|gpu-copy'
sanitized_ones=()
while IFS=$'\t' read -r kind name suite limit env targets command; do
    [[ $next == no ]] || break
    wanted "$name" || continue
    ((${#names[@]})) || [[ $cpu == yes || $suite == gpu ]] || continue
    if [[ $cpu == yes && $suite == gpu ]]; then
        targets="no NVIDIA GPU was asked for (--cpu)"
    elif [[ $suite == headers && ! -e $CUDA/include/cuda_runtime_api.h ]]; then
        targets="no CUDA headers in '$CUDA/include'"
    fi
    if [[ $sanitize == no ]]; then
        tests+=("$kind"$'\t'"$name"$'\t'"$limit"$'\t'"$env"$'\t'"$targets"$'\t'"$command")
        [[ ${#names[@]} == 0 && $name == @($watched) ]] || continue
        [[ $targets == no* || -x $sanitizer ]] || targets="no compute-sanitizer in PATH or in '$CUDA/bin'"
        for tool in memcheck racecheck; do
            [[ $tool == memcheck || $name == gpu-layernorm ]] || continue # of others it takes too long
            sanitized_ones+=("$kind"$'\t'"$tool,$name"$'\t'"$((limit * 20))"$'\t'"$env CHECK_SANITIZER=$tool"$'\t'"$targets"$'\t'"$(sanitized "$tool" "$command")")
        done
    elif [[ $kind == test && $suite == gpu ]]; then
        for tool in memcheck racecheck; do
            tests+=("$kind"$'\t'"$name,$tool"$'\t'"$((limit * 20))"$'\t'"$env CHECK_SANITIZER=$tool"$'\t'"$targets"$'\t'"$(sanitized "$tool" "$command")")
        done
    else
        continue
    fi
done <"$TOP/tests.tsv"
tests+=("${sanitized_ones[@]}")
if ((${#tests[@]} == 0)); then
    echo "gpu-check: no test of that name" >&2
    exit 2
fi

# Stages by worth; the first pattern that fits a name is its stage, looked at in the order of stage_order.
stage_names=("ops of GPT-2" "GPT-2 beside PyTorch" "rates of kernels" "other ops" "several ranks" "sanitizer" "all else")
stage_order=(0 1 2 4 5 3 6)
stage_patterns=(
    '^gpu-(plugin|libraries|attention|linear|matmul|layernorm|cross_entropy|golden)(,|$)'
    '^gpu-engine$'
    '^gpu-kernels$'
    '^gpu-[a-z0-9_]+(,|$)'
    '^gpu-(ddp|strategies)(,|$)'
    '^(memcheck|racecheck),'
    '.'
)
if [[ $next == yes ]]; then
    stage_names=("${steps[@]}") stage_patterns=()
    for step in "${steps[@]}"; do
        stage_patterns+=("^$step(,|\$)")
    done
    stage_order=("${!stage_patterns[@]}")
fi
# Where no card is asked for, a kernel's test on the emulator has the stage of its test on a card, and the
# engine's so: a run without a card goes through the stages that one with a card has.
declare -A on_card=() stage=()
[[ $cpu$next != yesno ]] || while IFS=$'\t' read -r kind name _; do
    [[ $kind,$name != test,gpu-* ]] || on_card[${name#gpu-}]=1
done <"$TOP/tests.tsv"
find_stage() { # NAME
    local i name=${1#emulated-}
    if [[ ${on_card[$name]:-} ]]; then name=gpu-$name; else name=$1; fi
    for i in "${stage_order[@]}"; do
        if [[ $name =~ ${stage_patterns[i]} ]]; then
            stage[$1]=$i
            return
        fi
    done
}
for line in "${tests[@]}"; do
    IFS=$'\t' read -r _ name _ <<<"$line"
    find_stage "$name"
done

cd "$TOP/build"
xargs -r mkdir -p <"$TOP/folders"
mkdir -p "$TOP/log"
: >>"$TOP/built"
: >>"$TOP/results.tsv"

# What was built from older sources, or for another card, is built anew; compilers' names say nothing of
# what was built elsewhere.
by=$card,${build_only:+ahead}
[[ $build_only ]] || by+=$CC,$NVCC
if [[ -n $(find "$TOP" -path "$TOP/build" -prune -o -path "$TOP/log" -prune -o -type f \
    \( -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' -o -name commands.tsv \) \
    -newer "$TOP/built" -print -quit) || $(cat "$TOP/built.card" 2>/dev/null) != @("$by"|"$card,ahead") ]]; then
    : >"$TOP/built"
    : >"$TOP/results.tsv"
    rm -f "$TOP/built.card"
fi
[[ -e $TOP/built.card ]] || echo "$by" >"$TOP/built.card"
declare -A built=() passed=()
read_built() {
    local target
    while read -r target; do
        built[$target]=1
    done <"$TOP/built"
}
read_built
while IFS=$'\t' read -r name result _; do
    [[ $result != ok ]] || passed[$name]=1
done <"$TOP/results.tsv"

# Notes the targets that were built; tests that need another one are not run.
build() { # KIND PARALLEL
    local kind id command left=$((limit_s - (SECONDS - started)))
    # shellcheck disable=SC2016 # for the shell that runs it
    while IFS=$'\t' read -r kind id command; do
        if [[ $kind == "$1" && ${need[$id]:-} && ! ${built[$id]:-} ]]; then
            printf '%s %s\0' "$id" "$(card_only <<<"$command")"
        fi
    done <"$TOP/commands.tsv" | timeout -k 5 "$((left > 0 ? left : 1))" \
        xargs -0 -r -n 1 -P "$2" bash -c 'eval "${1#* }" && echo "${1%% *}" >>"$TOP/built"' _ || true
}

build_stage() { # INDEX
    local line targets target begin=$SECONDS
    [[ $next == no ]] || return 0
    need=()
    for line in "${tests[@]}"; do
        IFS=$'\t' read -r _ name _ _ targets _ <<<"$line"
        [[ ${stage[$name]} == "$1" && $targets != no* ]] || continue
        for target in $targets; do
            need[$target]=1
        done
    done
    build compile "$jobs"
    build archive 1
    build link "$jobs"
    read_built
    echo "built in $((SECONDS - begin)) s"
}

failed=0 skipped=0 done_before=0
first_failure=''

# A program that waits for a GPU which does not answer cannot be killed: it is left behind then.
run_limited() { # SECONDS COMMAND
    local pid rc=0
    (eval "$2") &
    pid=$!
    timeout "$(($1 + kill_s + 2))" tail --pid="$pid" -s 0.1 -f /dev/null || rc=$?
    if ((rc == 124)); then
        echo "it could not be killed"
        return 137
    fi
    wait "$pid"
}

# Runs a test and leaves its result and its seconds in log/NAME.end.
run_one() { # LINE
    local kind name limit env targets command left begin=$SECONDS rc=0 target result=ok
    IFS=$'\t' read -r kind name limit env targets command <<<"$1"
    left=$((limit_s - (SECONDS - started)))
    ((left > 0)) || left=1
    if [[ $targets == no* ]]; then # why it is skipped, in place of what it needs
        echo "$targets" >"$TOP/log/$name"
        rc=77 targets=
    fi
    for target in $targets; do
        [[ ${built[$target]:-} ]] || {
            rc=300
            [[ $next == no ]] || echo "not built: ./check --build CAPABILITY does it, where there need be no card" \
                >"$TOP/log/$name"
        }
    done
    if ((rc == 0 && left < 5 && left < limit)); then # what begins now would be cut off
        echo "no time was left: ./check $name" >"$TOP/log/$name"
        rc=124
    fi
    [[ $next == yes ]] || limit=$((limit * times))
    ((limit < left)) || limit=$left
    ((rc)) || run_limited "$limit" "export CHECK_LEFT_S=$left $env; exec timeout -k $kill_s $limit $command" \
        >"$TOP/log/$name" 2>&1 </dev/null || rc=$?
    case $rc in
    0) ;;
    77) result=skipped ;;
    300) result=UNBUILT ;;
    124 | 137) result=timeout ;;
    *) result=FAILED ;;
    esac
    printf '%s\t%s\n' "$result" "$((SECONDS - begin))" >"$TOP/log/$name.end.new"
    mv "$TOP/log/$name.end.new" "$TOP/log/$name.end"
}

report() { # LINE
    local kind name result=FAILED seconds=0
    IFS=$'\t' read -r kind name _ <<<"$1"
    IFS=$'\t' read -r result seconds <"$TOP/log/$name.end" || true
    rm -f "$TOP/log/$name.end"
    case $result in
    ok) ;;
    skipped) skipped=$((skipped + 1)) ;;
    *)
        failed=$((failed + 1))
        [[ $first_failure ]] || first_failure="$name ($result)"
        ;;
    esac
    printf '%s\t%s\t%s\n' "$name" "$result" "$seconds" >>"$TOP/results.tsv"
    printf '%-6s %-24s %-8s %s\n' "$kind" "$name" "$result" "$seconds"
    case $kind,$result in
    *,UNBUILT) [[ $next == no ]] || sed 's/^/    /' "$TOP/log/$name" ;;
    *,skipped) tail -n 1 "$TOP/log/$name" | sed 's/^/    /' ;;
    bench,*) sed 's/^/    /' "$TOP/log/$name" ;; # what it has found before it failed, too
    *,FAILED | *,timeout) tail -n 20 "$TOP/log/$name" | sed 's/^/    /' ;;
    esac
}

# Runs tests several at once, and reports each as soon as those before it have been reported.
run_tests() { # LINE...
    local line name running=0 begun_ones=0
    waiting=("$@")
    for line; do
        IFS=$'\t' read -r _ name _ <<<"$line"
        rm -f "$TOP/log/$name.end"
    done
    while ((begun_ones < $#)) || ((running > 0)); do
        if ((running == at_once || begun_ones == $#)); then
            wait -n || true
            running=$((running - 1))
            report_ended
            continue
        fi
        begun_ones=$((begun_ones + 1))
        run_one "${!begun_ones}" &
        running=$((running + 1))
    done
}

report_ended() {
    local name
    while ((${#waiting[@]})); do
        IFS=$'\t' read -r _ name _ <<<"${waiting[0]}"
        [[ -e $TOP/log/$name.end ]] || return 0
        report "${waiting[0]}"
        waiting=("${waiting[@]:1}")
    done
}

# The sums so far, and what to look at first: the earliest failure of the most valuable stage.
summary() {
    echo "$((${#tests[@]} - failed - skipped - left_over)) passed, $failed failed, $skipped skipped," \
        "$left_over not begun, in $((SECONDS - begun)) s"
    if [[ $first_failure ]]; then
        echo "look first at: $first_failure: $TOP/log/${first_failure%% *}"
    elif ((left_over == 0 && skipped == ${#tests[@]})); then
        echo "look first at: nothing was run; each test says why"
    fi
}

pack() {
    summary >"$TOP/summary"
    tar -C "$TOP" -czf "$TOP/results.tgz.new" results.tsv summary log
    mv "$TOP/results.tgz.new" "$TOP/results.tgz"
}

# Begins to write down the card every half second, and tells the process that does so. It is no job of
# this shell, which waits for the next job that ends.
watch_card() {
    nvidia-smi -lms 500 --format=csv,noheader,nounits \
        --query-gpu=timestamp,clocks.sm,clocks.mem,power.draw,temperature.gpu,utilization.gpu \
        >"$TOP/log/card.csv" 2>/dev/null </dev/null &
    echo "$!"
}

# The rows since row FIRST in which the card had work.
tell_card() { # FIRST
    tail -n "+$1" "$TOP/log/card.csv" 2>/dev/null | awk -F ', *' '
        $6 >= 50 {
            if (!n || $2 < low) low = $2
            if ($2 > high) high = $2
            if ($4 > watts) watts = $4
            if ($5 > degrees) degrees = $5
            clock += $2
            power += $4
            n++
        }
        END {
            if (n)
                printf "the card at work, %d times: SM clock %d to %d MHz, mean %d; %.0f W, at most %.0f; at most %d C\n",
                    n, low, high, clock / n, power / n, watts, degrees
        }'
}

begun=$SECONDS
left_over=${#tests[@]}
watcher=
if [[ $next == yes ]]; then
    echo "nothing is built; at most $total_s s"
    watcher=$(watch_card)
    trap 'kill "$watcher" 2>/dev/null || true' EXIT
else
    echo "building with $("$CC" --version | head -n 1)${card:+, for GPUs of capability $card}"
fi
for i in "${!stage_names[@]}"; do
    begin=$SECONDS any=no
    for line in "${tests[@]}"; do
        IFS=$'\t' read -r _ name _ <<<"$line"
        [[ ${stage[$name]} != "$i" ]] || any=yes
    done
    [[ $any == yes ]] || continue
    started=$SECONDS
    if [[ $next == yes ]]; then
        limit_s=$((total_s - (SECONDS - begun)))
        ((limit_s < step_limits[i])) || limit_s=${step_limits[i]}
        card_row=$(($(wc -l 2>/dev/null <"$TOP/log/card.csv" || echo 0) + 1))
    fi
    printf '\nstage %s: %s\n' "$((i + 1))" "${stage_names[i]}"
    build_stage "$i"
    [[ ! $build_only ]] || continue
    printf '%-6s %-24s %-8s %s\n' KIND NAME RESULT SECONDS
    alone=() beside=()
    for line in "${tests[@]}"; do
        IFS=$'\t' read -r kind name _ <<<"$line"
        [[ ${stage[$name]} == "$i" ]] || continue
        left_over=$((left_over - 1))
        if [[ ${passed[$name]:-} && $again == no ]] && ((${#names[@]} == 0)); then
            done_before=$((done_before + 1))
            printf '%-6s %-24s %-8s %s\n' "$kind" "$name" before -
            continue
        fi
        if [[ $kind == bench ]]; then
            alone+=("$line")
        else
            beside+=("$line")
        fi
    done
    run_tests "${beside[@]}"
    for line in "${alone[@]}"; do
        run_tests "$line"
    done
    [[ $next == no ]] || tell_card "$card_row" | tee -a "$TOP/log/card"
    pack
    echo "stage $((i + 1)) took $((SECONDS - begin)) s; results.tgz has its logs"
done
echo
if [[ $build_only ]]; then
    n=0
    for line in "${tests[@]}"; do
        IFS=$'\t' read -r kind name _ _ targets _ <<<"$line"
        [[ $targets != no* ]] || continue
        for target in $targets; do
            if [[ ! ${built[$target]:-} ]]; then
                echo "not built: $name"
                n=$((n + 1))
                break
            fi
        done
    done
    echo "built for capability $card: $((${#tests[@]} - n)) of ${#tests[@]} tests and benchmarks, in $((SECONDS - begun)) s"
    ((n == 0))
    exit
fi
summary
((failed == 0))
