#!/usr/bin/env bats
# SPDX-License-Identifier: MIT
# The engine's strategies as Slurm starts them, and signals that Slurm sends.

load ../lib/cluster
load ../lib/runtime

setup_file() {
    cluster_up 4
}

teardown_file() {
    cluster_down
}

setup() {
    work_dir
    export PLUME_LOG=debug
}

teardown() {
    scancel_all
}

# trained N STRATEGY [srun's and pltrain's ARGS]: N ranks train so, and end with equal parameters.
trained() {
    local n=$1 strategy=$2
    shift 2
    run -0 as_user timeout 60 srun "$@"
    [ "$(grep -c "rank [0-9]* of $n, strategy $strategy," <<<"$output")" -eq "$n" ] ||
        { echo "$output"; false; }
    [ "$(grep -o 'param hash .*' <<<"$output" | sort | uniq -c | awk '{ print $1 }')" = "$n" ]
}

@test "every strategy, in 32 and 16 bits" {
    for bits in 32 bf16; do
        train=(plrun -- pltrain --epochs 1 --precision "$bits" mlp)
        trained 8 ddp -N4 --ntasks-per-node=2 "${train[@]}"
        trained 8 ddp -N4 --ntasks-per-node=2 "${train[@]}" --strategy ddp --devices 2
        trained 8 horovod -N4 --ntasks-per-node=2 "${train[@]}" --strategy horovod
        trained 4 ddp2 -N4 --ntasks-per-node=1 -c2 "${train[@]}" --strategy ddp2 --devices 2
        trained 1 dp -N1 -n1 -c2 "${train[@]}" --strategy dp --devices 2
        trained 1 single -N1 -n1 "${train[@]}"
    done
}

# sweep PLSUBMIT-ARGUMENT...: all trials end well, the ranks of each with one hash of the parameters.
# $run is its folder.
sweep() {
    PLUME_LOG='' run -0 --separate-stderr as_user plsubmit --parsable --wait -t 5 "$@" ||
        { cat "$(cut -d';' -f2 <<<"$output")"/trial-*/attempt-0/rank-*.err; echo "$output$stderr"; false; }
    run=$(cut -d';' -f2 <<<"$output")
    python3 - "$run"/trial-*/result.json <<'PY'
import json, sys
for name in sys.argv[1:]:
    with open(name, encoding="utf-8") as f:
        result = json.load(f)
    assert result["state"] == "done" and result["params_equal"], (name, result)
PY
}

@test "sweeps over strategies and precisions: cnn and contrastive" {
    train=(pltrain --epochs 1 --limit-train-batches 4 --limit-val-batches 2 --limit-test-batches 2)
    for module in cnn contrastive; do
        sweep --grid strategy=ddp,horovod --grid precision=32,bf16 -N4 --ntasks-per-node 2 -- \
            "${train[@]}" --strategy "{strategy}" --precision "{precision}" "$module"
        sweep --grid precision=32,bf16 -N4 --ntasks-per-node 1 -c2 -- \
            "${train[@]}" --strategy ddp2 --devices 2 --precision "{precision}" "$module"
        sweep --grid precision=32,bf16 -N1 -c2 -- \
            "${train[@]}" --strategy dp --devices 2 --precision "{precision}" "$module"
    done
}

# row RANKS STRATEGY BITS NODES RANKS-A-NODE STEPS [pltrain's ARGS]: a trial of plsubmit's that trains
# so; every rank says so, and they end with equal parameters. STEPS of an epoch: 1253 samples, a batch
# of 8 for each of the sampler's replicas.
row() {
    local ranks=$1 strategy=$2 bits=$3 nodes=$4 per_node=$5 steps=$6 r
    shift 6
    sweep -N "$nodes" --ntasks-per-node "$per_node" -c2 --env PLUME_LOG=debug -- \
        pltrain --epochs 1 --hparam batch_size=8 "$@" mlp
    for r in $(seq 0 $((ranks - 1))); do
        grep -q "rank $r of $ranks, strategy $strategy, precision $bits," \
            "$run/trial-0000/attempt-0/rank-$r.err"
    done
    grep -q "^epoch 1/1 step $steps " "$run/trial-0000/attempt-0/rank-0.out"
}

# The table of configurations of the documents that Plume began with, a test a row: one GPU or more,
# dp or ddp, 16 bits; here "--devices k" is on CPUs. Then what they left out.
@test "configurations: one device" {
    row 1 single 32 1 1 157 --devices 1
}

@test "configurations: one device, 16 bits" {
    row 1 single 16 1 1 157 --devices 1 --precision 16
}

@test "configurations: k devices, dp" { # they split the batch
    row 1 dp 32 1 1 157 --devices 2 --strategy dp
}

@test "configurations: k devices, ddp" { # a batch each
    row 2 ddp 32 1 2 79 --devices 2 --strategy ddp
}

@test "configurations: k devices, ddp, 16 bits" {
    row 2 ddp 16 1 2 79 --devices 2 --strategy ddp --precision 16
}

@test "configurations: k devices on several nodes, ddp by itself" {
    row 8 ddp 32 4 2 20 --devices 2
}

@test "configurations: k devices, dp, 16 bits" {
    row 1 dp 16 1 1 157 --devices 2 --strategy dp --precision 16
}

@test "configurations: ddp2, 16 bits" { # a batch a node
    row 4 ddp2 16 4 1 40 --devices 2 --strategy ddp2 --precision 16
}

@test "what cannot be is told by every rank" {
    run as_user timeout 60 srun -N4 --ntasks-per-node=1 plrun -- pltrain --strategy dp --devices 2 mlp
    [ "$status" -ne 0 ]
    [[ $output == *"strategy dp is one process on one node, but there are 4 nodes: choose ddp2"* ]]
    run as_user timeout 60 srun -N2 --ntasks-per-node=2 plrun -- pltrain --strategy ddp2 mlp
    [ "$status" -ne 0 ]
    [[ $output == *"start one a node (srun --ntasks-per-node=1)"* ]]
    run as_user timeout 60 srun -N2 --ntasks-per-node=2 plrun -- pltrain --devices 4 mlp
    [ "$status" -ne 0 ]
    [[ $output == *"4 devices are asked for, but 2 ranks are on this node"* ]]
    run as_user timeout 60 srun -N2 --ntasks-per-node=1 plrun -- pltrain --num-nodes 3 mlp
    [ "$status" -ne 0 ]
    [[ $output == *"'--num-nodes' says 3, but there are 2"* ]]
}

@test "SIGUSR1 becomes a checkpoint, and the job goes on with it when it is queued again" {
    cat >job.sh <<'SH'
#!/bin/bash
srun --kill-on-bad-exit=0 plrun -- pltrain --epochs 2000 --max-steps 60000 --checkpoint-dir ckpt mlp
SH
    job=$(as_user sbatch --parsable -N2 --ntasks-per-node=1 --requeue --open-mode=append \
        -o "$WORK/out" job.sh)
    wait_for 30 grep -q '^epoch 2/' out
    scancel -s USR1 "$job.0"
    wait_for 30 grep -q "saved 'ckpt/hpc_ckpt_1.ckpt'" out
    wait_for 60 grep -q 'param hash' out
    [ "$(grep -c '^epoch 1/' out)" -eq 1 ] || { cat out; false; }
    job_wait "$job" || true
}

@test "ranks that see different files do not resume" {
    local -a train=(pltrain --limit-train-batches 2 --limit-val-batches 1 --checkpoint-dir c --save-last)
    # As where a node still sees the file that was replaced: each rank has a folder of its own.
    mkdir 0 1
    for rank in 0 1; do
        (cd "$rank" && PLUME_LOG='' "${train[@]}" --epochs "$((rank + 1))" mlp >/dev/null)
    done
    cp -a 0 before
    ((EUID != 0)) || chown -R "$PLAIN_UID:$PLAIN_UID" 0 1
    step two -N2 -n2 plrun -- bash -c 'cd $RANK && exec "$@"' _ "${train[@]}" --epochs 3 --resume last mlp
    rc_is two 1
    grep -q "cannot resume from 'c/last.ckpt': the ranks read different versions of it" two.err || { cat two.err && false; }
    cmp before/c/last.ckpt 0/c/last.ckpt
}
