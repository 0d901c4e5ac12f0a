#!/usr/bin/env bats
# SPDX-License-Identifier: MIT
# Runs whose folder and $HOME are on NFS: the login node and each node are clients with caches of their own, and
# root has no rights there. The trials are shorter than the half minute for which a client takes a name for missing.
# ./dev soak nfs runs this in a kernel that serves NFS.

load ../lib/cluster
load ../lib/spank
load ../lib/nfs

setup_file() {
    WHY_NOT=$(nfs_why_not)
    export WHY_NOT
    [[ -z $WHY_NOT ]] || return 0
    nfs_kernel
    cluster_up 3 --hosts --cpus 2
    nfs_serve
    nfs_mount
    rm -r "$WORK_BASE"
    export WORK_BASE=$NFS/work
    mkdir -p "$NFS_SERVED/work/home"
    chown "$PLAIN_UID:$PLAIN_UID" "$NFS_SERVED/work/home"
    chmod 0700 "$NFS_SERVED/work/home" # root of a node cannot read it
}

teardown_file() {
    [[ -n $WHY_NOT ]] || nfs_down
    cluster_down
}

setup() {
    [[ -z $WHY_NOT ]] || skip "$WHY_NOT"
    nfs_work_dir
    use_plugin
}

teardown() {
    [[ -n $WHY_NOT ]] || scancel_all
}

@test "nfs: root of a node has no rights" {
    run ! cat "$WORK_BASE/home/none"
    [[ $output == *'Permission denied'* ]]
}

@test "nfs: --wait sees the results of all trials, and plstat shows them" {
    run -0 as_user timeout 200 plsubmit --wait --grid a=1,2,3 --metric 'loss=loss=([0-9.]+)' sh -c 'sleep 8; echo loss={a}'
    [[ $output == *'3 of 3 trials done'* ]]
    run -0 as_user plstat sweep last
    [[ $output == *'3 done'* ]]
}

@test "nfs: plstat sees a trial begin and end on other nodes" {
    local run
    run=$(as_user plsubmit --parsable --nodes 2 --ntasks 2 sh -c 'until [ -e go ]; do sleep 0.2; done; echo end') && run=${run#*;} && run=${run%%;*}
    # plstat looks for the trial all the time, and says what it saw first after the files were there.
    # shellcheck disable=SC2016 # for the inner shell
    as_user timeout 150 bash -c 'for file in status result; do
            until [ -e "$1/trial-0000/$file.json" ]; do plstat show last >/dev/null; done
            plstat show last; : >"/run/$file"
        done' _ "$NFS_SERVED/${run#"$NFS"/}" >"$BATS_TEST_TMPDIR/said" 2>&1 3>&- &
    local asks=$!
    wait_for 60 test -e /run/status
    on_node n3 touch go
    wait "$asks"
    cat "$BATS_TEST_TMPDIR/said"
    grep -q running "$BATS_TEST_TMPDIR/said"
    grep -q 'done after' "$BATS_TEST_TMPDIR/said"
}

# late FILE: the longest time in whole seconds until this host sees one of the first 20 lines, each of which has the
# time when it was written. All hosts have one clock.
late() {
    timeout 150 python3 - "$1" <<'PY'
import os, re, sys, time
path, worst, seen = sys.argv[1], 0, 0
while seen < 20:
    time.sleep(0.1)
    try:
        for up in "../..", "..", ".":  # else a name that was not there stays missing for up to a minute
            os.listdir(os.path.normpath(os.path.join(os.path.dirname(path), up)))
        with open(path) as file:  # opened anew, it is as the server has it
            times = re.findall(r'"t": ?([0-9.]+).*\n', file.read())
    except FileNotFoundError:
        continue
    worst = max([worst] + [time.time() - float(t) for t in times[seen:]])
    seen = len(times)
print(f"{path}: {worst:.1f} s late at most", file=sys.stderr)
print(int(worst))
PY
}

@test "nfs: the login node sees lines of a run that goes on within seconds" {
    local run file pids=() pid
    # shellcheck disable=SC2016 # for the inner shell
    run=$(as_user plsubmit --parsable --nodes 2 --ntasks 2 --metric 'n=n=([0-9]+)' \
        sh -c 'for i in $(seq 200); do date "+\"t\": %s.%N n=$i"; sleep 0.5; done') && run=${run#*;} && run=${run%%;*}
    for file in rank-1.out metrics.jsonl; do
        late "$run/trial-0000/attempt-0/$file" >"$BATS_TEST_TMPDIR/$file" 3>&- & pids+=($!)
    done
    for pid in "${pids[@]}"; do
        wait "$pid"
    done
    for file in rank-1.out metrics.jsonl; do
        (($(<"$BATS_TEST_TMPDIR/$file") < 10)) # without pl_file_send() up to half a minute
    done
}

@test "nfs: two hosts add to the index at the same time" {
    local before pids=() pid
    before=$(as_user plstat --all --json | python3 -c 'import json, sys; print(len(json.load(sys.stdin)["sweeps"]))')
    # shellcheck disable=SC2016 # for the inner shell
    local each='for i in 1 2 3 4 5 6 7 8 9 10; do plsubmit --parsable --no-submit --runs "$1" true || exit; done'
    on_node n1 bash -c "$each" _ "$WORK/a" >"$BATS_TEST_TMPDIR/a" 2>&1 3>&- & pids+=($!)
    on_node n2 bash -c "$each" _ "$WORK/b" >"$BATS_TEST_TMPDIR/b" 2>&1 3>&- & pids+=($!)
    for pid in "${pids[@]}"; do
        wait "$pid"
    done
    run -0 as_user plstat --all --json
    [ "$(python3 -c 'import json, sys; print(len(json.load(sys.stdin)["sweeps"]))' <<<"$output")" = $((before + 20)) ]
}

@test "nfs: ranks of several nodes write one checkpoint, and others resume from it" {
    local run=(pltrain --deterministic --optimizer adam --limit-val-batches 1 --limit-test-batches 1)
    local out=$BATS_TEST_TMPDIR sharded=(--strategy sharded --shard param --save-last)
    as_user timeout 100 srun -Q -N2 -n2 -w n1,n3 plrun -- "${run[@]}" --max-steps 6 "${sharded[@]}" --checkpoint-dir other mlp >"$out/whole"
    as_user timeout 100 srun -Q -N2 -n2 -w n1,n2 plrun -- "${run[@]}" --max-steps 3 "${sharded[@]}" --checkpoint-dir ck mlp >"$out/first"
    as_user timeout 100 srun -Q -N2 -n2 -w n2,n3 plrun -- "${run[@]}" --max-steps 6 "${sharded[@]}" --checkpoint-dir ck --resume last mlp >"$out/second"
    grep hash "$out"/*
    [ "$(grep -o 'hash .*' "$out/second" | sort -u)" = "$(grep -o 'hash .*' "$out/whole" | sort -u)" ]
}

@test "nfs: a trial starts again on other nodes, and --on-end counts what there is" {
    run -0 as_user timeout 250 plsubmit --wait --requeue-on error --grid a=1,2 \
        --on-end 'echo "$PLUME_SWEEP_DONE $PLUME_SWEEP_FAILED" >ended' \
        sh -c 'sleep 5; [ -e "saved-{a}" ] || { touch "saved-{a}"; exit 3; }'
    echo "$output"
    wait_for 60 test -s "$NFS_SERVED/${WORK#"$NFS"/}/ended"
    [ "$(<"$NFS_SERVED/${WORK#"$NFS"/}/ended")" = '2 0' ]
}

@test "nfs: the plugin serves a home that root cannot read" {
    run -0 as_user timeout 100 srun -Q -N3 -n3 --plume sh -c 'echo "$RANK of $WORLD_SIZE"'
    [ "$(sort <<<"$output" | xargs)" = '0 of 3 1 of 3 2 of 3' ]
    all_well
}

@test "nfs: a server that stops for a while delays, and loses nothing" {
    local run
    run=$(as_user plsubmit --parsable --nodes 2 --ntasks 2 sh -c 'for i in $(seq 40); do echo "line $i"; sleep 0.5; done') && run=${run#*;} && run=${run%%;*}
    wait_for 60 test -s "$NFS_SERVED/${run#"$NFS"/}/trial-0000/status.json"
    rpc.nfsd 0
    run -124 timeout 12 stat "$NFS/none" # it waits for the server
    rpc.nfsd 4
    wait_for 200 test -e "$NFS_SERVED/${run#"$NFS"/}/trial-0000/result.json"
    run -0 as_user plstat show last
    [[ $output == *'done after'* ]]
    [ "$(grep -c line "$NFS_SERVED/${run#"$NFS"/}/trial-0000/attempt-0/rank-1.out")" = 40 ]
}

@test "nfs: no file that was removed while it was open is left" {
    all_well
    run find "$NFS_SERVED" -name '.nfs*'
    [ -z "$output" ]
}
