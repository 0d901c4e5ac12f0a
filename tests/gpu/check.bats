#!/usr/bin/env bats
# SPDX-License-Identifier: MIT
# The stages of ./dev gpu-check, on a bundle of shell commands: CHECK is tests/gpu/check.sh.

bats_require_minimum_version 1.5.0

setup() {
    cd "$BATS_TEST_TMPDIR" || return
    mkdir -p bundle/build bundle/src
    cp "$CHECK" bundle/check
    echo . >bundle/folders
    echo source >bundle/src/a.c
    : >bundle/commands.tsv
    : >bundle/tests.tsv
    n=0
}

# add NAME COMMAND [COMPILE]: a test, with a command that builds what it needs.
add() {
    n=$((n + 1))
    printf 'compile\t%s\t%s\n' "$n" "${3:-echo $1 >>\$TOP/compiled}" >>bundle/commands.tsv
    printf 'test\t%s\tcpu\t1\tA=1\t%s\t%s\n' "$1" "$n" "$2" >>bundle/tests.tsv
}

# Files have times in whole ticks: the next source is newer for sure.
newer() { touch -d '+1 minute' "$1"; }

check() { run "-$1" bundle/check --cpu "${@:2}"; }

@test "a failing stage never stops the next, and the summary names what to look at first" {
    add other true
    add gpu-softmax "sh -c 'echo bad; exit 1'"
    add gpu-engine true
    add gpu-linear "sh -c 'echo why; exit 3'"
    add gpu-plugin true
    check 1
    # By worth, whatever the order in the list.
    [ "$(grep '^stage [0-9]:' <<<"$output")" = "stage 1: ops of GPT-2
stage 2: GPT-2 beside PyTorch
stage 4: other ops
stage 7: all else" ]
    [ "$(cut -f 1,2 bundle/results.tsv | tr '\t\n' ' ;')" = \
        "gpu-linear FAILED;gpu-plugin ok;gpu-engine ok;gpu-softmax FAILED;other ok;" ]
    [[ $output == *"3 passed, 2 failed, 0 skipped, 0 not begun"* ]]
    [[ ${lines[-1]} == "look first at: gpu-linear (FAILED): "*"/bundle/log/gpu-linear" ]]
    # The logs are packed.
    tar -xzOf bundle/results.tgz log/gpu-linear | grep -x why
    tar -xzOf bundle/results.tgz summary | grep "look first at: gpu-linear"
}

@test "ranks and the sanitizer have stages of their own, after all ops" {
    add gpu-ddp true
    add gpu-softmax true
    add gpu-copy true
    add gpu-layernorm "sh -c 'echo \$CHECK_SANITIZER; test \"\$CHECK_SANITIZER\" != racecheck'"
    add gpu-plugin true
    if ! command -v compute-sanitizer; then
        NVCC=$PWD/none/bin/nvcc check 0
        [[ $output == *"memcheck,gpu-copy"*"skipped"*"no compute-sanitizer in PATH"* ]]
    fi
    mkdir bin
    # shellcheck disable=SC2016 # for the tool
    printf '#!/bin/sh\n[ "$1" = --tool ] && echo "under $2" && shift 4 && exec "$@"\n' >bin/compute-sanitizer
    chmod +x bin/*
    PATH=$PWD/bin:$PATH check 1
    [ "$(grep '^stage [0-9]:' <<<"$output")" = "stage 1: ops of GPT-2
stage 4: other ops
stage 5: several ranks
stage 6: sanitizer" ]
    [ "$(tail -n 3 bundle/results.tsv | cut -f 1,2 | tr '\t\n' ' ;')" = \
        "memcheck,gpu-copy ok;memcheck,gpu-layernorm ok;racecheck,gpu-layernorm FAILED;" ]
    [ "$(cat bundle/log/memcheck,gpu-layernorm)" = "under memcheck
memcheck" ]
    # Who names a test wants no others.
    PATH=$PWD/bin:$PATH check 0 gpu-copy
    [[ $output != *sanitizer* ]]
}

@test "without a card, what runs on the emulator is in the stage of its like on a card" {
    add linear "sh -c 'exit 1'"
    add gpu-linear true
    add minijson true
    add emulated-ddp true
    add gpu-ddp true
    add softmax true
    add gpu-softmax true
    add emulated-other true
    sed -i '/\tgpu-/s/\tcpu\t/\tgpu\t/' bundle/tests.tsv
    check 1
    [ "$(sed -n 's/^stage [0-9]: /:/p; s/^test  *\([a-z-]*\)  *\([a-zA-Z]*\) .*/\1 \2/p' <<<"$output" | tr '\n' ';')" = \
        ":ops of GPT-2;linear FAILED;gpu-linear skipped;:other ops;softmax ok;gpu-softmax skipped;:several ranks;emulated-ddp ok;gpu-ddp skipped;:all else;minijson ok;emulated-other ok;" ]
    [[ ${lines[-1]} == "look first at: linear (FAILED): "* ]]
}

@test "called again it goes on: nothing is built twice, and what passed is not run twice" {
    add gpu-plugin "sh -c 'echo ran >>plugin'"
    add gpu-linear "sh -c 'test -e fixed'"
    check 1
    [ "$(sort bundle/compiled | tr '\n' ' ')" = "gpu-linear gpu-plugin " ]
    touch bundle/build/fixed
    check 0
    [ "$(wc -l <bundle/compiled)" -eq 2 ]
    [ "$(wc -l <bundle/build/plugin)" -eq 1 ]
    [[ $output == *"gpu-plugin               before"* ]]
    [[ $output == *"2 passed, 0 failed"* ]]
    check 0 --again
    [ "$(wc -l <bundle/compiled)" -eq 2 ]
    [ "$(wc -l <bundle/build/plugin)" -eq 2 ]
    # A name runs what it names.
    check 0 gpu-plugin
    [ "$(wc -l <bundle/build/plugin)" -eq 3 ]
}

@test "sources that have changed, and another compiler, are built anew" {
    add gpu-plugin true
    check 0
    newer bundle/src/a.c
    check 0
    [ "$(wc -l <bundle/compiled)" -eq 2 ]
    touch -d '-1 minute' bundle/src/a.c
    ln -s "$(command -v gcc)" other-gcc
    CC=$PWD/other-gcc check 0
    [ "$(wc -l <bundle/compiled)" -eq 3 ]
}

@test "what cannot be built, or takes too long, costs only itself" {
    add gpu-linear true "exit 1"
    add gpu-plugin true
    add gpu-softmax "sleep 30"
    add gpu-add true
    check 1
    [ "$(cut -f 1,2 bundle/results.tsv | tr '\t\n' ' ;')" = \
        "gpu-linear UNBUILT;gpu-plugin ok;gpu-softmax timeout;gpu-add ok;" ]
    [[ ${lines[-1]} == "look first at: gpu-linear (UNBUILT): "* ]]
    # Where all is slow.
    add gpu-slow "sleep 1.5"
    check 1 gpu-slow
    [[ $output == *"gpu-slow                 timeout"* ]]
    CHECK_LIMIT_TIMES=9 check 0 gpu-slow
}

@test "nvcc compiles for the card that is there only" {
    mkdir bin
    printf '#!/bin/sh\necho 9.0\n' >bin/nvidia-smi
    printf '#!/bin/sh\necho "$@" >>"%s/called"\n' "$PWD" >bin/nvcc
    chmod +x bin/*
    # shellcheck disable=SC2016 # for check
    add gpu-plugin true '"$NVCC" -O3 -gencode arch=compute_80,code=sm_80 -gencode arch=compute_80,code=compute_80 -c x.cu'
    NVCC=$PWD/bin/nvcc check 0
    grep -x -- "-O3 -gencode arch=compute_80,code=sm_80 -gencode arch=compute_80,code=compute_80 -c x.cu" called
    PATH=$PWD/bin:$PATH NVCC=$PWD/bin/nvcc check 0
    [ "$(tail -n 1 called)" = "-gencode arch=compute_90,code=sm_90 -O3 -c x.cu" ]
}

@test "--build builds for a card that is elsewhere, and runs nothing" {
    printf '#!/bin/sh\necho "$@" >>"%s/called"\n' "$PWD" >nvcc
    chmod +x nvcc
    # shellcheck disable=SC2016 # for check
    add gpu-plugin "sh -c 'echo ran >>plugin'" '"$NVCC" -gencode arch=compute_80,code=sm_80 -c x.cu'
    add gpu-linear true "exit 1"
    sed -i 's/\tcpu\t/\tgpu\t/' bundle/tests.tsv
    NVCC=$PWD/nvcc run -1 bundle/check --build 90
    grep -x -- "-gencode arch=compute_90,code=sm_90 -c x.cu" called
    [ ! -e bundle/build/plugin ]
    [[ $output == *"not built: gpu-linear"* ]]
    [[ ${lines[-1]} == "built for capability 90: 1 of 2 tests and benchmarks, in "* ]]
    # Where the card is, compilers have other names.
    NVCC=$PWD/nvcc run bundle/check --build 90 gpu-plugin
    sed -i 's/\tgpu\t/\tcpu\t/' bundle/tests.tsv
    mkdir bin
    printf '#!/bin/sh\necho 9.0\n' >bin/nvidia-smi
    ln -s "$(command -v gcc)" bin/other-gcc
    chmod +x bin/nvidia-smi
    : >called
    PATH=$PWD/bin:$PATH CC=other-gcc NVCC=$PWD/nvcc check 0 gpu-plugin
    [ ! -s called ]
    [ -e bundle/build/plugin ]
    run -2 bundle/check --build H100
    [[ $output == "check: --build takes the capability of a card as two or three digits, such as 90" ]]
}

@test "tests run several at once, and are reported in the order of the list" {
    # Each ends when the other has begun.
    add gpu-a "sh -c 'touch a; for i in 1 2 3 4 5 6 7 8 9; do test -e b && exit 0; sleep 0.1; done; exit 1'"
    add gpu-b "sh -c 'touch b; for i in 1 2 3 4 5 6 7 8 9; do test -e a && exit 0; sleep 0.1; done; exit 1'"
    JOBS=2 check 0
    [ "$(cut -f 1,2 bundle/results.tsv | tr '\t\n' ' ;')" = "gpu-a ok;gpu-b ok;" ]
}

# step STEP LIMIT TOOL PATTERN ENV: of --next.
step() {
    printf '%s\t%s\t%s\t%s\t%s\n' "$@" >>next.tsv
    export CHECK_NEXT=$PWD/next.tsv CHECK_KILL_S=1
}

@test "--next runs its steps in order, each with its own limit, and one that hangs costs no other its time" {
    add gpu-engine "sh -c 'echo models \$MODELS; test \$MODELS != none'"
    add gpu-hangs "sh -c 'trap : TERM; while :; do read -r x </dev/null || sleep 0.1; done'"
    add gpu-linear "sh -c 'echo \$CHECK_SANITIZER'"
    printf '%s\n' 1 2 3 >bundle/built
    echo ",ahead" >bundle/built.card
    mkdir bin
    # shellcheck disable=SC2016 # for the tool
    printf '#!/bin/sh\n[ "$1" = --tool ] && echo "under $2" && shift 4 && exec "$@"\n' >bin/compute-sanitizer
    printf '#!/bin/sh\nwhile :; do echo "now, 1700, 2600, 600.5, 60, 99"; sleep 0.1; done\n' >bin/nvidia-smi
    chmod +x bin/*
    step first 9 - gpu-engine MODELS=resnet
    step hangs 1 - gpu-hangs X=1
    step fails 9 - gpu-engine MODELS=none
    step memcheck 9 memcheck 'gpu-(linear|engine)' MODELS=few
    PATH=$PWD/bin:$PATH check 1 --next
    [ "$(cut -f 1,2 bundle/results.tsv | tr '\t\n' ' ;')" = \
        "first ok;hangs timeout;fails FAILED;memcheck,gpu-engine ok;memcheck,gpu-linear ok;" ]
    [[ $output == *"stage 1: first"*"stage 2: hangs"*"stage 3: fails"*"stage 4: memcheck"* ]]
    [[ $output == *"the card at work, "*" times: SM clock 1700 to 1700 MHz, mean 1700; 600 W, at most 600; at most 60 C"* ]]
    [ "$(cat bundle/log/first)" = "models resnet" ]
    [ "$(cat bundle/log/memcheck,gpu-linear)" = "under memcheck
memcheck" ]
    tar -xzOf bundle/results.tgz log/card.csv | grep -q 2600
    # Again it goes on: what has passed is not run again; a name is a step.
    PATH=$PWD/bin:$PATH check 1 --next
    [[ $output == *"first                    before"* ]]
    PATH=$PWD/bin:$PATH check 0 --next first
    [[ $output != *"stage 2"* ]]
}

@test "a step of several tests has a result and a log of each" {
    add gpu-graphs "sh -c 'echo wrong; exit 1'"
    add gpu-graphs-f16 true
    add gpu-other true
    printf '%s\n' 1 2 3 >bundle/built
    echo ",ahead" >bundle/built.card
    step graphs 9 - 'gpu-graphs.*' A=1
    for _ in 1 2 3 4 5; do
        check 1 --next --again
        [ "$(cut -f 1,2 bundle/results.tsv | tail -n 2 | tr '\t\n' ' ;')" = \
            "graphs,gpu-graphs FAILED;graphs,gpu-graphs-f16 ok;" ]
        [ "$(cat bundle/log/graphs,gpu-graphs)" = wrong ]
    done
}

@test "--next builds nothing, and ends when its time is over" {
    add gpu-engine "sh -c 'sleep 20'"
    add gpu-linear true
    step first 9 - gpu-linear A=1
    check 1 --next
    [[ $output == *"UNBUILT"*"not built: ./check --build CAPABILITY does it"* ]]
    [ ! -e bundle/compiled ]
    printf '%s\n' 1 2 >>bundle/built
    step slow 9 - gpu-engine A=1
    step late 9 - gpu-linear A=1
    CHECK_STAGE_S=6 check 1 --next
    [ "$(cut -f 1,2 bundle/results.tsv | tail -n 3 | tr '\t\n' ' ;')" = "first ok;slow timeout;late timeout;" ]
    [ "$(cat bundle/log/late)" = "no time was left: ./check late" ]
    check 2 --next nothing
    check 2 --next --sanitize
    [ "$output" = "check: --next goes with neither --build nor --sanitize" ]
}

@test "the steps of --next fit into ten minutes, and name tests that there are" {
    local list=${CHECK%/*}/next.tsv total=0 step limit tool pattern
    while IFS=$'\t' read -r step limit tool pattern _; do
        [[ $step && $step != \#* ]] || continue
        total=$((total + limit))
        [[ $tool == @(-|memcheck|racecheck) && $pattern == gpu-* ]]
        [[ $tool == - ]] || sed 's/.*(//; s/).*//; s/|/\n/g' <<<"$pattern" >>named
    done <"$list"
    echo "$total s"
    ((total > 300 && total <= 600))
    # Under compute-sanitizer each op's test runs once.
    (cd "${CHECK%/*}/../kernels" && grep -l '^void check_op' ./*.c) | sed 's/^[.]\///; s/[.]c$//' |
        grep -vx 'half\|check' | cat - <(echo plugin) | sort >ops
    sort named | diff - ops
}
