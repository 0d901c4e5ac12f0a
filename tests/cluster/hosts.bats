#!/usr/bin/env bats
# SPDX-License-Identifier: MIT
# Nodes that have a host name and an address each, as on a real cluster: network namespaces, joined
# by a bridge on which links can be cut. Elsewhere all nodes of the private cluster are one host.

load ../lib/cluster
load ../lib/runtime

setup_file() {
    ((EUID == 0)) || return 0
    cluster_up 4 --hosts
}

teardown_file() {
    ((EUID == 0)) || return 0
    cluster_down
}

setup() {
    need_root "network namespaces"
    work_dir
}

teardown() {
    ((EUID == 0)) || return 0
    scancel_all
    all_well
}

BUILT=$PLUME_SRC/build/tests/cluster

@test "each node has a name and an address of its own" {
    run -0 timeout 30 srun -Q -N4 hostname # nothing but the output
    [ "$(sort <<<"$output" | xargs)" = "n1 n2 n3 n4" ]
    # Each resolves all names, and its own to its own address.
    run -0 timeout 30 srun -Q -N4 bash -c 'getent ahostsv4 n1 n2 n3 n4 | awk "\$3 { print \$3 }" | xargs
        ip -o addr show | grep -cF " $(getent ahostsv4 "$(hostname)" | awk "{ print \$1; exit }")/"'
    [ "$(sort -u <<<"$output")" = $'1\nn1 n2 n3 n4' ]
}

@test "ranks meet across hosts at an address that others can reach" {
    for way in plrun plugin; do
        ranks "$way" "$way" -N4 --ntasks-per-node=2 -- bash -c 'echo "$MASTER_ADDR"' &
    done
    wait
    for way in plrun plugin; do
        rc_is "$way" 0
        [ "$(sort -u "$way.out" | wc -l)" = 1 ]
        run -1 grep -E '^127\.|^::1$' "$way.out"
    done
    ranks port plrun -N4 --ntasks-per-node=2 -- "$BUILT/master-port"
    rc_is port 0
}

@test "where a host's name does not lead to its address, gloo gets the interface" {
    printf '127.0.0.1 localhost\n' >no-names
    cat >without-names <<'SH'
#!/bin/sh
# The daemon is a child of plrun, so it sees this file, too.
mount --bind "$1" /etc/hosts && exec plrun -- sh -c 'echo "$GLOO_SOCKET_IFNAME $TP_SOCKET_IFNAME"'
SH
    chmod +x without-names
    AS=root step none -N2 unshare -m "$PWD/without-names" "$PWD/no-names"
    rc_is none 0
    [ "$(wc -l <none.out)" = 2 ]
    while read -r gloo tp; do
        [ "$gloo" = "$tp" ]
        [ -n "$gloo" ] && [ "$gloo" != lo ]
    done <none.out
    # The hub's node has an address that others can reach in its records, too.
    run ! grep -lF '127.0.0.1' "$(trial none)"/{status.json,attempt-0/events.jsonl}
    # What the user has set is kept; a step on one node needs nothing.
    GLOO_SOCKET_IFNAME=eth7 AS=root step own -N2 unshare -m "$PWD/without-names" "$PWD/no-names"
    [ "$(cut -d' ' -f1 own.out | sort -u)" = eth7 ]
    AS=root step one -N1 unshare -m "$PWD/without-names" "$PWD/no-names"
    [ "$(<one.out)" = ' ' ]
    AS=root step names -N2 plrun -- sh -c 'echo "$GLOO_SOCKET_IFNAME $TP_SOCKET_IFNAME"'
    [ "$(sort -u names.out)" = ' ' ]
}

@test "a hub that would listen on loopback alone: all hosts are told at once" {
    PLUME_HUB_BIND=lo step lo -N2 plrun -- true
    rc_is lo 1
    [ "$(grep -c "^plrun: .*PLUME_HUB_BIND: other nodes cannot reach '127.0.0.1'" lo.err)" = 2 ]
    PLUME_HUB_BIND=lo step alone -N1 plrun -- true
    rc_is alone 0
}

@test "a sweep trains across hosts, shared memory inside them and TCP between" {
    run -0 --separate-stderr timeout 60 plsubmit --grid lr=1e-1 -N4 --ntasks-per-node=2 --parsable --wait
    sweep=${output%%;*}
    folder=$(cut -d';' -f2 <<<"$output")
    python3 - "$folder/trial-0000/result.json" <<'PY'
import json, sys
r = json.load(open(sys.argv[1]))
assert r["state"] == "done" and r["world_size"] == 8 and r["params_equal"] is True, r
assert r["objective"] > 0.9, r
PY
    run -0 plstat sweep "$sweep"
}

# Rank 0 tells the others by the hub where it serves the values by which their plugins meet.
@test "XLA devices of several hosts meet and train, and one that does not start is told" {
    export PLUME_PLUGIN_DIR=$PLUME_SRC/build/tests/fakes
    train=(-N3 plrun -- pltrain --tpu-cores 2 --max-steps 2 --limit-val-batches 1 --limit-test-batches 0)
    step xla "${train[@]}" --pjrt-plugin x mlp
    rc_is xla 0
    grep -q '(ddp: 6 replicas x ' xla.out
    [ "$(sed -n 's/.*param hash //p' xla.out | sort | uniq -c | awk '{ print $1 }')" = 3 ]
    step fails "${train[@]}" --pjrt-plugin no-second-host mlp
    rc_is fails 1
    grep -q 'pltrain: .*the XLA device of the second host: is in use' fails.err
    [ ! -s fails.out ]
}

@test "plstat asks the hub on another host, and a node that drops off is the cause" {
    run -0 --separate-stderr plsubmit --grid x=1 -N3 --parsable --metric 'step=step=([0-9]+)' \
        bash -c 'for i in $(seq 1 600); do echo "step=$i"; sleep 0.2; done'
    sweep=${output%%;*}
    job=${output##*;}
    wait_for 20 bash -c "plstat show $sweep/0 --json | grep -q '\"source\":\"hub\"'"
    wait_for 10 bash -c "plstat show $sweep/0 --json | grep -q '\"step\":[1-9]'"
    # The second node's cable: no packet says that it is gone.
    lost=$(plstat show "$sweep/0" --json |
        python3 -c 'import json, sys; print(json.load(sys.stdin)["ranks"][1]["node"])')
    link=$(cat "$CLUSTER_DIR/bridge")-$((${lost#n} - 1))
    ip link set "$link" down
    wait_for 50 bash -c "plstat show $sweep/0 --json | grep -q '\"state\":\"node-failed\"'" ||
        { plstat show "$sweep/0" --json; plstat why "$sweep/0"; false; }
    ip link set "$link" up
    run -0 plstat why "$sweep/0" --json
    grep -q '"kind":"node"' <<<"$output"
    grep -q "\"node\":\"$lost\"" <<<"$output"
    scancel "$job"
    wait_for 60 bash -c "sinfo -h -o %t | grep -qx idle && [ -z \"\$(squeue -h)\" ]"
}
