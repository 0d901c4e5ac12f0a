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
