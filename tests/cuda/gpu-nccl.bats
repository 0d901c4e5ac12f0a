#!/usr/bin/env bats
# SPDX-License-Identifier: MIT
# Ranks whose emulated GPUs add up by NCCL, which is emulated as well: see gpu.bash.

bats_require_minimum_version 1.5.0
load gpu


# by_nccl K ARGS...: K ranks with a GPU each train as K ranks on the CPU do, and all with the same result.
by_nccl() {
    local k=$1
    shift
    rm -rf cpu cpu.* gpu gpu.*
    trained cpu --processes "$k" "$@"
    if [[ " $* " == *" --processes-per-node "* ]]; then
        PLUME_EMULATED_GPUS=2 PLUME_LOG=debug:train trained gpu --accelerator gpu --processes "$k" "$@" 2>gpu.err
    else
        PLUME_EMULATED_GPUS=$k PLUME_LOG=debug:train trained gpu --gpus "$k" "$@" 2>gpu.err
    fi
    alike "${TOLERANCE:-1e-5}" cpu gpu || { echo "$k $*"; false; }
    [ "$(grep -c 'collectives [a-z+]* and nccl' gpu.err)" -eq "$k" ] || { cat gpu.err; false; }
    [ "$(grep -o 'hash .*' gpu.out | sort | uniq -c | awk '{ print $1 }')" -eq "$k" ]
}

@test "gradients are added up by NCCL" {
    by_nccl 2 "${SHORT[@]}" --clip 0.1 mlp
    by_nccl 3 "${SHORT[@]}" cnn --batch_size 8
    by_nccl 2 "${SHORT[@]}" --strategy horovod contrastive
    by_nccl 2 "${SHORT[@]}" --precision 64 --accumulate 2 contrastive
    by_nccl 2 "${SHORT[@]}" --sync-batchnorm cnn --batch_size 8 --batchnorm 1
    TOLERANCE=3e-3 by_nccl 2 "${SHORT[@]}" --precision bf16 "${GPT[@]}"
    TOLERANCE=3e-3 by_nccl 2 "${SHORT[@]}" --precision 16 --amp-level O2 "${GPT[@]}"
    # Optimizers that take turns; an epoch whose last batch is short.
    by_nccl 2 --epochs 2 "$PLUME_PLUGIN_DIR/scattered_turns.so"
}

@test "the profile shows that a bucket is reduced while backward goes on" {
    PLUME_EMULATED_GPUS=2 pltrain --gpus 2 --comm nccl --max-steps 2 --limit-val-batches 0 --limit-test-batches 0 \
        --num-sanity-val-steps 0 --profile=trace.json gpt --layers 4 --width 128 --heads 2 --context 8 --batch_size 2
    # Of two buckets, the first has 1 MiB; behind the last one only the reductions are waited for.
    python3 - <<'PY'
import json
events = json.load(open("trace.json"))["traceEvents"]
def of(category, name=None):
    return [e for e in events if e.get("cat") == category and name in (None, e["name"])]
steps, sums, ops = of("step", "backward"), of("ranks", "reduce"), of("backward")
assert len(steps) == 2 and len(sums) == 4, (len(steps), len(sums))
end = steps[-1]["ts"] + steps[-1]["dur"]
left = [sum(s["ts"] + s["dur"] <= op["ts"] < end for op in ops) for s in sums[-2:]]
assert steps[-1]["ts"] <= sums[-2]["ts"] and left[0] >= 10 and left[1] == 0, left
PY
}

@test "stages of a pipeline reach each other by NCCL" {
    by_nccl 2 "${SHORT[@]}" --strategy pipeline --stages 2 --microbatches 3 --clip 0.1 mlp
    TOLERANCE=3e-3 by_nccl 4 "${SHORT[@]}" --strategy pipeline --stages 2 --microbatches 2 --schedule gpipe --precision bf16 "${GPT[@]}"
}

@test "a shard's gradients are added up by NCCL, and its parameters gathered" {
    by_nccl 3 "${SHORT[@]}" --strategy sharded --clip 0.1 --optimizer adamw mlp --lr 0.001
    TOLERANCE=3e-3 by_nccl 2 "${SHORT[@]}" --strategy sharded --shard param --precision 16 --amp-level O2 "${GPT[@]}"
    by_nccl 2 --epochs 4 --strategy sharded --shard grad --accumulate 2 "$PLUME_PLUGIN_DIR/scattered_turns.so"
    # In 16 bits; through the host's memory, and from a checkpoint of all shards.
    export PLUME_EMULATED_GPUS=2
    trained low --gpus 2 --comm nccl --reduce-dtype bf16 "${SHORT[@]}" --strategy sharded mlp
    trained also --gpus 2 --comm nccl --reduce-dtype bf16 "${SHORT[@]}" --strategy sharded --shard grad mlp
    cmp low also
    local -a run=(--gpus 2 --deterministic --limit-val-batches 1 --limit-test-batches 1)
    pltrain "${run[@]}" --max-steps 6 mlp | grep -o 'hash .*' >whole
    pltrain "${run[@]}" --max-steps 3 --strategy sharded --checkpoint-dir a --save-last mlp >/dev/null
    pltrain "${run[@]}" --max-steps 6 --strategy sharded --shard param --resume a/last.ckpt mlp | grep -o 'hash .*' >rest
    cmp whole rest
}

@test "by NCCL each node has a copy of the shards" {
    local -a nodes=(--processes-per-node 2 "${SHORT[@]}" --strategy sharded --shard-group node)
    by_nccl 4 "${nodes[@]}" --clip 0.1 --optimizer adamw mlp --lr 0.001
    by_nccl 4 "${nodes[@]}" --shard param cnn --batch_size 8
    trained cpu --processes 4 "${nodes[@]}" --shard grad --accumulate 2 mlp --hidden 200
    PLUME_EMULATED_GPUS=2 trained gpu --accelerator gpu --processes 4 "${nodes[@]}" --shard grad --accumulate 2 \
        --comm nccl --reduce-dtype bf16 mlp --hidden 200
    alike 3e-3 cpu gpu
}

@test "tensor parallel ranks add up by NCCL, and what each of them computes stays alike" {
    local -a two=("${SHORT[@]}" --tensor-parallel 2 --clip 0.1 --optimizer adamw)
    by_nccl 2 "${two[@]}" "${GPT[@]}"
    TOLERANCE=3e-3 by_nccl 2 "${two[@]}" --precision bf16 "${GPT[@]}"
    by_nccl 4 "${two[@]}" --strategy sharded --shard param "${GPT[@]}"
    by_nccl 4 "${two[@]}" --strategy pipeline --stages 2 --microbatches 2 "${GPT[@]}"
    # Their devices are those of --deterministic: none chooses by times of its own.
    [ "$(grep -c 'train: rank .* (deterministic), kernels ' gpu.err)" -eq 4 ] || { cat gpu.err; false; }
}

@test "gradients are added up in 16 bits where one asks for it" {
    trained cpu --processes 3 "${SHORT[@]}" cnn --batch_size 8
    export PLUME_EMULATED_GPUS=3
    trained f32 --gpus 3 --comm nccl "${SHORT[@]}" cnn --batch_size 8
    for type in bf16 f16; do
        trained "$type" --gpus 3 --comm nccl --reduce-dtype "$type" "${SHORT[@]}" cnn --batch_size 8
        alike 3e-3 cpu "$type"
        run -1 cmp f32 "$type"
        [ "$(grep -o 'hash .*' "$type.out" | sort | uniq -c | awk '{ print $1 }')" -eq 3 ]
    done
    # Under the other ways to reduce.
    trained large --gpus 3 --comm nccl --reduce-dtype f16 "${SHORT[@]}" --precision 16 --strategy horovod contrastive
    trained turns --gpus 3 --comm nccl --reduce-dtype bf16 --epochs 2 \
        "$PLUME_PLUGIN_DIR/scattered_turns.so"
    says 2 "'f8' is none of" --reduce-dtype f8 mlp
    says 2 "option '--reduce-dtype' needs '--comm nccl'" --gpus 3 --reduce-dtype bf16 mlp
    says 2 "option '--reduce-dtype' and '--precision 64' disagree" --gpus 3 --comm nccl --reduce-dtype bf16 --precision 64 mlp
}

@test "what was begun by NCCL goes on by way of the host" {
    local -a run=(--gpus 2 --limit-val-batches 1 --limit-test-batches 1)
    export PLUME_EMULATED_GPUS=2
    pltrain "${run[@]}" --max-steps 6 mlp | grep -o 'hash .*' >whole
    pltrain "${run[@]}" --max-steps 3 --checkpoint-dir a --save-last mlp >/dev/null
    pltrain "${run[@]}" --max-steps 6 --resume a/last.ckpt --comm shm mlp | grep -o 'hash .*' >rest
    cmp whole rest # two numbers have one sum
}

@test "ranks that share a GPU, and sums in the order of ranks, go by way of the host" {
    says_way() { # WORDS ARGS...
        run -0 --separate-stderr env PLUME_LOG=debug:train pltrain "${SHORT[@]}" "${@:2}" mlp
        [[ $stderr == *"$1"* && $stderr != *"and nccl"* ]] || { echo "$stderr"; false; }
    }
    says_way "gradients go through the host's memory: ranks 0 and 1 share a GPU" --accelerator gpu --processes 2
    # In a job each could have its own: that is a warning.
    SLURM_JOB_ID=7 run -0 --separate-stderr pltrain --accelerator gpu --processes 2 "${SHORT[@]}" mlp
    [[ $stderr == *"pltrain: warning: gradients go through the host's memory, which is slower: ranks 0 and 1 share a GPU (NCCL needs one for each, and no MIG parts of one)"* ]] ||
        { echo "$stderr"; false; }
    export PLUME_EMULATED_GPUS=2
    says_way "collectives shm, device" --gpus 2 --deterministic
    says_way "collectives shm, device" --gpus 2 --comm shm
    says_way "collectives tcp, device" --gpus 2 --comm tcp
}

@test "where NCCL cannot be used and must be, a line says why" {
    says 2 "option '--comm nccl' needs '--accelerator gpu'" --comm nccl mlp
    says 2 "'--deterministic' disagree" --comm nccl --gpus 2 --deterministic mlp
    run -1 --separate-stderr pltrain --comm nccl --accelerator gpu --processes 2 mlp
    [[ $stderr == *"cannot use NCCL: ranks 0 and 1 share a GPU"* ]] || { echo "$stderr"; false; }
    export PLUME_EMULATED_GPUS=2
    PLUME_EMULATED_NCCL=21903 run -1 --separate-stderr pltrain --gpus 2 mlp
    [[ $stderr == *"NCCL of rank 0: libnccl is 2.19.3, but plume-cuda.so was built for 2.20.0"* ]] ||
        { echo "$stderr"; false; }
}

@test "where there is no NCCL gradients go by the hosts, and a line says so" {
    export PLUME_EMULATED_GPUS=2 PLUME_EMULATED_NCCL=none
    run -0 --separate-stderr pltrain --gpus 2 --max-steps 1 mlp
    [ "$stderr" = "pltrain: warning: gradients go through the host's memory, which is slower: rank 0: NCCL (libnccl.so.2) is nowhere" ] ||
        { echo "$stderr"; false; }
    run -1 --separate-stderr pltrain --gpus 2 --comm nccl --max-steps 1 mlp
    [[ $stderr == *"cannot use NCCL: rank 0: NCCL (libnccl.so.2) is nowhere"* ]] || { echo "$stderr"; false; }
}

@test "a rank that is killed amid sums is named" {
    export PLUME_EMULATED_GPUS=2 PLUME_LOG=debug:train
    mkfifo err
    timeout 60 pltrain --gpus 2 --epochs 100000 --log-every 1000000 cnn --batch_size 8 >/dev/null 2>err &
    exec 5<err
    while read -r -t 30 line <&5; do
        [[ $line == *"rank 1 of 2"* ]] && break
    done
    # pltrain[PID]: train: rank 1 of 2, ...
    pid=${line#*[}
    kill -KILL "${pid%%]*}"
    said=$(timeout 20 cat <&5)
    run wait %1
    [ "$status" -ne 0 ]
    [[ $said == *"rank 1"* ]] || { echo "$said"; false; }
    [[ $said != *"the loss is"* ]] || { echo "$said"; false; }
}

@test "a sum that NCCL itself fails in is never made use of, not even the last one" {
    export PLUME_EMULATED_GPUS=2
    # The only sum of a run's only step.
    PLUME_EMULATED_NCCL_FAILS=1 run -1 --separate-stderr pltrain --gpus 2 --max-steps 1 \
        --checkpoint-dir a --save-last mlp
    [[ $output != *hash* && ! -e a/last.ckpt ]] || { echo "$output"; false; }
    # NCCL's error is reported.
    [ "$(grep -c 'the network is gone' <<<"$stderr")" -ge 1 ] || { echo "$stderr"; false; }
}
