#!/usr/bin/env bats
# SPDX-License-Identifier: MIT
# The benchmark of training on GPUs (bench/gpu_engine.py), small enough for an emulated one.

bats_require_minimum_version 1.5.0
load gpu
load gpu-engine

@test "ours at each batch, and once more at the best one" {
    engine --tiny >table
    cat table
    grep -q '^emulated:0 (tf32); ' table
    [ "$(rows Plume | wc -l)" -eq 3 ]
    [ "$(rows 'Plume O2' | wc -l)" -eq 1 ]
    [ "$(rows Plume | cut -d ' ' -f 1 | head -n 2 | tr '\n' ' ')" = "2 4 " ]
    # A sample has 24 tokens; a larger batch takes more memory; a step comes before the end.
    rows Plume | awk -v most="$SECONDS" '
        ($2 * $3 / (24000 * $1) - 1) ^ 2 > 0.0001 { print "not its batch: " $0; bad = 1 }
        NR == 2 && $4 <= least || $5 <= 0 || $5 > most + 1 { print "implausible: " $0; bad = 1 }
        { least = $4 }
        END { exit bad }'
    grep -q "^- no peer: '/nowhere'" table
    grep -q '^- Plume, gpt-tiny bf16: 0 products .* libraries, [1-9][0-9]* of own kernels$' table
    [ "$(grep -c 'own kernels$' table)" -eq 1 ]
}

@test "memory ends the search for a batch, no other failure goes without notice" {
    export GPU_ENGINE_BATCHES=2,32,64
    PLUME_EMULATED_MEMORY=1400000 engine --tiny >table
    [ "$(rows Plume | cut -d ' ' -f 1 | tr '\n' ' ')" = "2 2 " ]
    [ "$(grep -c 'batch .*: out of memory' table)" -eq 1 ]
    GPU_ENGINE_BATCHES=2,65537 run -1 engine --tiny
    [[ $output == *"batch 65537: FAILED: pltrain: "* ]]
    local code=77
    ! compgen -G '/dev/nvidia[0-9]*' >/dev/null || code=1
    PLUME_EMULATED_GPUS=0 run "-$code" engine
    [ "$output" = "pltrain: cannot use GPUs: none is emulated" ]
}

@test "trials are as long as they shall be, and what there is no time for is said" {
    GPU_ENGINE_BATCHES=2 GPU_ENGINE_SECONDS=6 engine >table
    cat table
    [ "$(rows Plume | wc -l)" -eq 1 ]
    grep -q '^- Plume, gpt-tiny bf16, batch 2: not measured, no time was left' table
}

@test "a profile has the ops of a step and, by Nsight Compute, its kernels" {
    # In ncu's format: the kernels of each step, after those that only the first one has.
    cat >ncu <<'TXT'
#!/bin/bash
while [[ $1 != */pltrain ]]; do shift; done
"$@" || exit
for ((steps = 0; $# > 1; )); do
    shift
    [[ $1 != --max-steps ]] || steps=$2
done
echo '==PROF== Connected to process 1'
echo '"ID","Process ID","Kernel Name","gpu__time_duration.sum","dram__bytes.sum"'
echo '"","","","nsecond","Mbyte"'
echo '"0","1","void first(int)","9,000,000","1"'
for ((i = 0; i < steps; i++)); do
    echo '"1","1","void a_kernel<float, (int)4>(of<T1, (bool)0>)","1,000.5","2,000"'
    echo '"2","1","void a_kernel<float, 4>(T1 *)","999.5","1,000"'
    echo '"3","1","b_kernel","500","1.5"'
done
TXT
    chmod +x ncu
    PLUME_EMULATED_LIBRARY=1 GPU_ENGINE_PROFILE=1 GPU_ENGINE_NCU=$PWD/ncu GPU_ENGINE_BATCHES=2 engine --tiny >table
    cat table
    [ "$(grep -c '^GPU 0 (Emulated GPU): passed' table)" -eq 2 ]
    grep -q '^NCCL_NET=Socket NCCL_IB_DISABLE=1 GPU 0 (Emulated GPU): passed' table
    grep -q "the GPU's test did attention in bf16: [0-9]* ms" table
    grep -q '^gpt-tiny, bf16, batch 2:$' table
    grep -q '^layernorm ' table
    [ "$(grep '^|' table | tail -n +3)" = "| a_kernel<float, 4> | 2 | 2 | 3.000 | 1.5e+06 | 80.0 % |
| b_kernel | 1 | 0.5 | 0.002 | 3000 | 20.0 % |
| all | 3 | 2.5 | 3.002 | 1.201e+06 | 100.0 % |" ]
    GPU_ENGINE_PROFILE=1 GPU_ENGINE_NCU=/bin/false GPU_ENGINE_BATCHES=2 run -1 engine --tiny
    [[ $output == *"- gpt-tiny: FAILED: "* ]]
}
