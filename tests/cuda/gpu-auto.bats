#!/usr/bin/env bats
# SPDX-License-Identifier: MIT
# pltrain --accelerator auto and --test-gpus on an emulated GPU: see gpu.bash.

bats_require_minimum_version 1.5.0
load gpu

setup() {
    PATH=$BUILD:$PATH
    unset RANK WORLD_SIZE PLUME_SOCKET SLURM_JOB_ID PLUME_EMULATED_FAULT
    cd "$BATS_TEST_TMPDIR" || return
    export PLUME_HOME=$PWD/home PLUME_LOG=info PLUME_EMULATED_LIBRARY=1
    export PLUME_GPUS_MEASURED="Emulated"
}

readonly QUICK=(--max-steps 1 --limit-val-batches 0 --limit-test-batches 0 mlp)

# takes_cpu WORDS ARGS...: auto trains on the CPU, and says why.
takes_cpu() {
    local words=$1
    shift
    run -0 --separate-stderr env PLUME_LOG=debug pltrain "$@" "${QUICK[@]}"
    [[ $stderr == *"--accelerator auto takes the CPU: "*"$words"* && $stderr == *" device cpu,"* ]] ||
        { echo "$stderr"; false; }
}

# The files that are left, but bats' own.
kept() { find . -mindepth 1 -maxdepth 1 ! -name 'separate-stderr*'; }

takes_gpu() {
    run -0 --separate-stderr env PLUME_LOG=debug pltrain "$@" "${QUICK[@]}"
    [[ $stderr == *" device emulated:${TAKEN:-0},"* ]] || { echo "$stderr"; false; }
}

# Nothing is tested where this may not take longer than a millisecond.
takes_gpu_untested() { PLUME_GPU_TEST_MS=1 takes_gpu "$@"; }

@test "auto is the CPU where the GPU there is not measured" {
    PLUME_GPUS_MEASURED="NVIDIA H100" \
        takes_cpu "bench/RESULTS-gpu.md has no row for Emulated GPU; --accelerator gpu takes it all the same"
    [ ! -e home ]
    # Where there is none, our kernels are not even loaded.
    [ -e /dev/nvidiactl ] || (
        unset PLUME_GPUS_MEASURED
        mkdir none
        PLUME_PLUGIN_DIR=$PWD/none takes_cpu "there is no NVIDIA GPU (no /dev/nvidiactl)"
    )
    PLUME_GPUS_MEASURED="NVIDIA" PLUME_EMULATED_GPUS=0 takes_cpu "cannot use GPUs: none is emulated"
}

@test "auto tests a measured GPU once for each version, and takes it" {
    takes_gpu
    [ "$(find home/gpu-tests -type f | wc -l)" -eq 1 ]
    takes_gpu_untested --accelerator auto
    # Another driver or library.
    PLUME_EMULATED_VERSION=2 PLUME_GPU_TEST_MS=1 takes_cpu "did not end within 0.001 s"
    PLUME_EMULATED_VERSION=2 takes_gpu
    takes_gpu_untested
    # Another build: of the same bytes, but younger.
    mkdir plugin
    cp -p "$PLUME_PLUGIN_DIR"/*.so plugin
    PLUME_PLUGIN_DIR=$PWD/plugin takes_gpu_untested
    touch -d '+1 minute' plugin/plume-cuda.so
    PLUME_PLUGIN_DIR=$PWD/plugin PLUME_GPU_TEST_MS=1 takes_cpu "did not end within 0.001 s"
    # Without a word about the CPU there is no GPU.
    run -0 --separate-stderr env PLUME_LOG=debug pltrain --accelerator cpu "${QUICK[@]}"
    [[ $stderr == *" device cpu,"* && $stderr != *auto* ]]
}

@test "what is wrong on a GPU, missing, stuck or broken keeps auto on the CPU, each time" {
    local fault
    for fault in "matmul f32" "matmul bf16" "linear_forward bf16" "linear_backward f16" \
        "attention_forward bf16" "attention_backward f16" "allreduce f32"; do
        PLUME_EMULATED_FAULT=$fault takes_cpu "in ${fault#* } is wrong: "
    done
    PLUME_EMULATED_FAULT=crash takes_cpu "their test died by signal 6"
    PLUME_EMULATED_FAULT=hang PLUME_GPU_TEST_MS=300 takes_cpu "(pltrain --test-gpus) did not end within 0.3 s"
    unset PLUME_EMULATED_LIBRARY
    takes_cpu "a matrix product in bf16 is done by Plume's own kernels"
    export PLUME_EMULATED_LIBRARY=1
    for fault in "attention_backward bf16" "linear_backward f16" "attention_forward f16"; do
        PLUME_EMULATED_OWN=$fault takes_cpu "in ${fault#* } is in part done by Plume's own kernels"
    done
    PLUME_EMULATED_NCCL=21903 takes_cpu "libnccl is 2.19.3, but plume-cuda.so was built for 2.20.0"
    PLUME_EMULATED_MEMORY=20000 takes_cpu "out of memory on emulated:0"
    [ -z "$(ls home/gpu-tests)" ]
    takes_gpu
}

@test "results that are damaged, another's or nobody's are not believed" {
    takes_gpu
    local kept
    kept=$(echo home/gpu-tests/*)
    cp "$kept" good
    # untested: only what is believed gets the GPU then.
    refused() { PLUME_GPU_TEST_MS=1 takes_cpu "did not end within"; [[ $stderr == *"$1"* ]] || { echo "$stderr"; false; }; }
    for damage in "" "passed" "$(head -c 40 good)" "$(sed s/Emulated/NVIDIA/ good)" "$(cat good good)"; do
        printf '%s' "$damage" >"$kept"
        refused "is damaged: the GPU is tested again"
    done
    head -c 100000 /dev/zero >"$kept"
    refused "the results of earlier tests of GPUs are not used"
    rm "$kept"
    ln -s "$PWD/good" "$kept"
    refused "are not used"
    rm "$kept"
    mkfifo "$kept"
    refused "are not used"
    rm "$kept"
    mkdir "$kept"
    refused "are not used"
    rmdir "$kept"
    cp good "$kept"
    chmod 0666 "$kept"
    refused "are not used"
    chmod 0600 "$kept"
    takes_gpu_untested
    chmod 0777 home/gpu-tests
    refused "are not used"
    chmod 0700 home/gpu-tests
    # What is damaged is replaced.
    echo >"$kept"
    takes_gpu
    cmp "$kept" good
}

@test "all ranks take a GPU, or none does" {
    takes_cpu "there are 1 for 2 ranks" --processes 2
    PLUME_EMULATED_GPUS=2 takes_gpu --processes 2
    [[ $stderr == *" device emulated:1,"* ]]
    PLUME_EMULATED_GPUS=2 takes_gpu --processes 2
    # Of two kinds.
    export PLUME_EMULATED_ODD=Tesla
    PLUME_EMULATED_GPUS=2 takes_cpu "bench/RESULTS-gpu.md has no row for Tesla" --processes 2
    # Nor of a card that was not measured as a whole, or has a relative that was.
    for name in "NVIDIA H100 80GB HBM3 MIG 1g.10gb" "NVIDIA H100 PCIe" "NVIDIA H100"; do
        PLUME_EMULATED_ODD=$name PLUME_EMULATED_GPUS=2 takes_cpu "has no row for $name;" --processes 2
    done
    PLUME_EMULATED_ODD="NVIDIA H100 80GB HBM3" PLUME_EMULATED_GPUS=2 takes_gpu --processes 2
    PLUME_EMULATED_ODD="Emulated too"
    PLUME_EMULATED_GPUS=2 PLUME_GPU_TEST_MS=1 takes_cpu "did not end within" --processes 2
    PLUME_EMULATED_GPUS=2 takes_gpu --processes 2
    PLUME_EMULATED_GPUS=2 PLUME_GPU_TEST_MS=1 takes_gpu --processes 2
    unset PLUME_EMULATED_ODD
    # What is wrong with a GPU that no rank takes keeps nobody from those that are taken, now or later.
    export PLUME_EMULATED_ODD=Other PLUME_EMULATED_VERSION=4 PLUME_EMULATED_MEMORY=1073741824,20000
    PLUME_EMULATED_GPUS=2 takes_gpu
    [[ $stderr == *"another GPU of this node, which is not taken, is not usable: their test failed: "*"out of memory on emulated:1"* ]]
    PLUME_EMULATED_GPUS=2 takes_gpu_untested
    PLUME_EMULATED_ODD="Emulated too" PLUME_EMULATED_GPUS=2 takes_cpu "out of memory on emulated:1" --processes 2
    unset PLUME_EMULATED_ODD PLUME_EMULATED_VERSION PLUME_EMULATED_MEMORY
    # Nor of the same kind. The one that failed is not taken, now or later; results are not kept then.
    export PLUME_EMULATED_VERSION=5 PLUME_EMULATED_GPUS=3
    for _ in 1 2; do
        PLUME_EMULATED_MEMORY=20000,1073741824,1073741824 TAKEN=2 takes_gpu --devices 2,1
        [[ $stderr == *"another GPU of this node, which is not taken, is not usable: their test failed: "*"out of memory on emulated:0"* ]]
        PLUME_EMULATED_MEMORY=20000,1073741824,1073741824 takes_cpu "out of memory on emulated:0"
        PLUME_EMULATED_MEMORY=20000,1073741824,1073741824 takes_cpu "out of memory on emulated:0" --devices 1,0
        PLUME_EMULATED_MEMORY=20000 takes_cpu "out of memory on emulated:0" --devices 2,1
    done
    TAKEN=2 takes_gpu --devices 2,1
    takes_gpu_untested
    unset PLUME_EMULATED_VERSION PLUME_EMULATED_GPUS
    # Ranks of simulated nodes, each with a GPU of its own as under Slurm.
    PLUME_EMULATED_VERSION=3 PLUME_EMULATED_FAULT="matmul f32" takes_cpu "a matrix product in f32 is wrong" \
        --processes 2 --processes-per-node 1
    [ "$(grep -c "takes the CPU" <<<"$stderr")" -eq 1 ]
}

@test "--test-gpus says what it found, and fails where something is wrong" {
    run -0 pltrain --test-gpus
    [[ $output == "GPU 0 (Emulated GPU): passed ("*" s)" ]]
    PLUME_EMULATED_NCCL=none run -0 pltrain --test-gpus
    [[ $output == "GPU 0 (Emulated GPU): passed, without NCCL ("* ]]
    PLUME_EMULATED_GPUS=3 run -0 pltrain --test-gpus
    [ "${#lines[@]}" -eq 1 ] # of one kind
    PLUME_EMULATED_MEMORY=20000,1073741824,1073741824 PLUME_EMULATED_GPUS=3 run -1 pltrain --test-gpus
    [[ ${lines[0]} == "GPU 0 (Emulated GPU): failed: out of memory"* && ${lines[1]} == "GPU 1 "*": passed"* ]]
    [ "${#lines[@]}" -eq 2 ]
    PLUME_EMULATED_FAULT="attention_backward bf16" run -1 pltrain --test-gpus
    [[ $output == "GPU 0 (Emulated GPU): failed: attention in bf16 is wrong: dk[7] is "*", by the reference "* ]]
    PLUME_EMULATED_GPUS=0 run -1 pltrain --test-gpus
    [ "$output" = "pltrain: cannot use GPUs: none is emulated" ]
    says 2 "option '--test-gpus' takes no module" --test-gpus mlp
    # It is what auto believes.
    takes_gpu_untested
}

@test "--compare-devices trains on each kind that is there, and recommends one" {
    export PLUME_LOG=warn
    run -0 --separate-stderr pltrain --compare-devices mlp
    [ -z "$stderr" ]
    [[ ${lines[1]} =~ ^cpu\ +[0-9.]+\ +[0-9.]+\ +[0-9.]+\ s\ +[0-9.]+\ +cpu$ ]]
    [[ ${lines[2]} =~ ^gpu\ +[0-9.]+\ +[0-9.]+\ +[0-9.]+\ s\ +[0-9.]+\ +emulated:0$ ]]
    [[ ${lines[3]} == "tpu "* ]]
    [[ ${lines[4]} =~ ^"recommended: --accelerator cpu, "[0-9.e+]+" times as fast as the gpu"$ ]]
    [ "$(kept)" = ./home ] # the result of the test
    # What is wrong on one of them is in its row.
    compared() {
        run "-$1" --separate-stderr pltrain --compare-devices "${@:3}"
        [[ $output == *"$2"* ]] || { echo "$output"; false; }
    }
    local other=(--pjrt-plugin ./nothing.so mlp)
    PLUME_EMULATED_GPUS=0 compared 0 "gpu    not here: cannot use GPUs: none is emulated" "${other[@]}"
    [[ ${lines[3]} == "tpu    not here: ./nothing.so: "* ]]
    [ "${lines[4]}" = "recommended: --accelerator cpu, the only device here" ]
    export PLUME_EMULATED_VERSION=2
    PLUME_EMULATED_FAULT="matmul f32" compared 0 "gpu    failed: pltrain --test-gpus: a matrix product in f32 is wrong" mlp
    [ "${lines[4]}" = "recommended: --accelerator cpu" ]
    PLUME_EMULATED_FAULT=crash compared 0 "gpu    failed: it died by signal 6" mlp
    compared 1 "cpu    failed: the loss is not a number at step 1" "$BUILD/tests/engine/broken_nan.so"
    [[ $output != *recommended* ]]
}

@test "--compare-devices refuses what it cannot do, or would have to keep" {
    local option
    for option in "--accelerator tpu" "--processes 2" "--devices 2" "--strategy ddp" \
        "--checkpoint-dir saved" "--log-dir log" "--profile"; do
        # shellcheck disable=SC2086
        says 2 "leave out ${option%% *}" --compare-devices $option mlp
    done
    says 2 "leave out --accelerator gpu" --compare-devices --gpus 1 mlp
    RANK=0 WORLD_SIZE=1 says 2 "is for one process: run it without srun" --compare-devices mlp
    [ -z "$(kept)" ]
}

# unmeasured SOURCE: the names in its table that are no cell of a row in bench/RESULTS-gpu.md.
unmeasured() {
    sed -n '/^static const char \*const measured\[\]/,/;/p' "$1" | grep -o '"[^"]*"' | tr -d '"' |
        while IFS= read -r name; do
            grep -qE "\| *$name *\|" "$BATS_TEST_DIRNAME/../../bench/RESULTS-gpu.md" || echo "$name"
        done
}

@test "auto trusts no GPU that was not measured" {
    local source=$BATS_TEST_DIRNAME/../../runtime/pltrain/auto_gpu.c
    grep -q '^static const char \*const measured\[\] = {' "$source"
    [ -z "$(unmeasured "$source")" ]
    sed 's/measured\[\] = {/&"NVIDIA Tesla", /' "$source" >claimed.c
    [ "$(unmeasured claimed.c)" = "NVIDIA Tesla" ]
    sed 's/ 80GB HBM3//' "$source" >claimed.c
    [ "$(unmeasured claimed.c)" = "NVIDIA H100" ]
}
