#!/usr/bin/env bats
# SPDX-License-Identifier: MIT
# The runtime's own processes killed, stopped, refused or late: the step ends in bounded time, not
# with 0, says why, and leaves nothing.

load ../lib/cluster
load ../lib/runtime

setup_file() {
    cluster_up 8
}

teardown_file() {
    cluster_down
}

setup() {
    work_dir
    UNDER=()
}

teardown() {
    [[ -z ${STRANGERS:-} ]] || exec {STRANGERS}>&-
    scancel_all
    all_well
}

STAY=': >at.$SLURM_JOB_NAME.$RANK; exec tail -f /dev/null'

# start NAME NODES: two ranks a node, which stay; sets JOB, and NODE[0...] to the nodes' names. UNDER: a
# command that starts each plrun.
start() {
    step "$1" -J "$1" "-N$2" --ntasks-per-node=2 "${UNDER[@]}" plrun -- bash -c "$STAY" &
    wait_for 30 at_least $(($2 * 2)) "at.$1.*"
    JOB=$(squeue -h -n "$1" -o %A)
    mapfile -t NODE < <(scontrol show hostnames "$(squeue -h -n "$1" -o %N)")
}

# guard NODE LOCAL-RANK: pid of that rank's plrun, of the job started last.
guard() {
    local pid
    for pid in $(pids_of plrun "$1"); do
        if [[ $(tr '\0' '\n' <"/proc/$pid/environ" | grep -cx "SLURM_LOCALID=$2\|SLURM_JOB_ID=$JOB") == 2 ]]; then
            echo "$pid"
            return
        fi
    done
    return 1
}

# daemon NODE: its plrund; a child of rank 0's guard (its own environment is closed to others).
daemon() {
    pgrep -x -P "$(guard "$1" 0)" plrund
}

ended_badly() {
    local name
    for name; do
        [[ $(<"$name.rc") != 0 && $(<"$name.rc") != 124 ]] || {
            printf '%s: exit code %s\n' "$name" "$(<"$name.rc")" >&2
            cat "$name.err" >&2
            return 1
        }
    done
}

no_runtime_on() {
    [[ -z $(pids_of plrun "$1")$(pids_of plrund "$1") ]]
}

# stepd_of PID: the slurmstepd that it descends from.
stepd_of() {
    local pid=$1
    until [[ $(ps -o comm= -p "$pid") == slurmstepd ]]; do
        read -r pid < <(ps -o ppid= -p "$pid")
        ((pid > 1)) || return
    done
    echo "$pid"
}

@test "a slurmstepd that is killed takes the ranks of its node along, by plrun" {
    for name in stepd stepd-shell; do
        # A script that has started plrun is no guard of its own.
        UNDER=()
        [ "$name" = stepd ] || UNDER=(bash -c '"$@"; exit $?' bash)
        start "$name" 2
        pid=$(guard "${NODE[1]}" 0)
        tail=$(pgrep -P "$pid" -x tail)
        kill -KILL "$(stepd_of "$pid")"
        # Slurm neither ends them nor tells srun.
        wait_for 20 no_runtime_on "${NODE[1]}"
        [ ! -e "/proc/$tail" ]
        wait_for 20 has_ended "$name"
        [ "$(result "$name" 'd["state"], d["cause"]["kind"], d["cause"]["node"]')" = "('failed', 'runtime', '${NODE[1]}')" ]
        scancel "$JOB"
        wait
        ended_badly "$name"
    done
}

@test "plrun is killed: its rank dies with it, the others are ended" {
    for case in guest-1-1 owner-1-0 hub-0-0; do
        IFS=- read -r name node local <<<"$case"
        start "$name" 3
        kill -KILL "$(guard "${NODE[node]}" "$local")"
    done
    wait
    for case in guest-1-1 owner-1-0 hub-0-0; do
        IFS=- read -r name node local <<<"$case"
        rc_is "$name" 137
        checked "$name"
        [ "$(result "$name" 'd["cause"]["kind"], d["cause"]["process"], d["cause"]["rank"]')" = \
            "('runtime', 'plrun', $((node * 2 + local)))" ]
    done
}

@test "plrun is stopped: the step ends all the same, after the grace" {
    export PLUME_KILL_GRACE=2
    # Another rank fails, and each of these cannot end its rank.
    fails=': >at.$SLURM_JOB_NAME.$RANK
        if [ $RANK = 3 ]; then until [ -e fail.$SLURM_JOB_NAME ]; do sleep 0.01; done; exit 5; fi
        exec tail -f /dev/null'
    for case in guest-0-1 owner-1-0 hub-0-0; do
        IFS=- read -r name node local <<<"$case"
        STAY=$fails start "stop-$name" 2
        kill -STOP "$(guard "${NODE[node]}" "$local")"
        : >"fail.stop-$name"
    done
    begun=$(now_ms)
    wait
    (($(now_ms) - begun < 30000))
    for name in stop-guest stop-owner stop-hub; do
        NO_CODE=1 checked "$name"
        [ "$(result "$name" 'd["cause"]["kind"], d["cause"]["rank"], d["cause"]["exit"]')" = "('exit', 3, 5)" ]
        [[ $(<"$name.rc") != 0 && $(<"$name.rc") != 124 ]]
    done
    [ "$(rank_states stop-guest)" = 'killed killed killed failed' ]
}

@test "plrund is killed: its ranks end, the cause names it and its node" {
    export PLUME_KILL_GRACE=2
    start node 3
    kill -KILL "$(daemon "${NODE[1]}")"
    start hub 3
    kill -KILL "$(daemon "${NODE[0]}")"
    wait
    ended_badly node hub
    NO_CODE=1 checked node
    [ "$(result node 'd["cause"]["kind"], d["cause"]["rank"] in (2, 3), d["cause"]["node"]')" = \
        "('runtime', True, '$(state node 's["ranks"][2]["node"]')')" ]
    [ "$(rank_states node)" = 'killed killed lost lost killed killed' ]
    grep -q 'plrun: .*node daemon is gone' node.err
    # Nobody is left to write a result; those who lost the hub say so.
    run ! has_result hub
    grep -q 'plrund.*: lost the hub' hub.err
    grep -q 'plrun: .*node daemon is gone' hub.err
    # No socket is left in the way of others.
    for name in node hub; do
        job=$(basename "$(dirname "$(trial "$name")")")
        # Deeper are the run folders of other clusters; folders of other tests come and go.
        run --separate-stderr find /tmp/plume-*/ -maxdepth 1 -name "$job.*"
        [ "$output" = '' ]
    done
}

@test "plrund is stopped: as if it were killed, after the silence that is borne" {
    export PLUME_KILL_GRACE=2 PLUME_SILENCE=3
    start node 3
    kill -STOP "$(daemon "${NODE[1]}")"
    start hub 3
    kill -STOP "$(daemon "${NODE[0]}")"
    begun=$(now_ms)
    wait
    (($(now_ms) - begun < 40000))
    ended_badly node hub
    NO_CODE=1 checked node
    [ "$(result node 'd["cause"]["kind"], d["cause"]["rank"] in (2, 3)')" = "('runtime', True)" ]
    run ! has_result hub
}

# daemon_of JOB NODE-INDEX: the plrund there, whoever has started it; for root.
daemon_of() {
    local pid env
    for pid in $(pgrep -x plrund); do
        env=$(tr '\0' '\n' 2>/dev/null <"/proc/$pid/environ") || continue
        if grep -qx "SLURM_NODEID=$2\|PLUME_NODE_ID=$2" <<<"$env" &&
            grep -qx "SLURM_JOB_ID=$1\|PLUME_JOB_ID=$1" <<<"$env"; then
            echo "$pid"
            return
        fi
    done
    return 1
}

@test "plugin: plrund is killed or stopped: the lifeline ends the ranks, the cause names it" {
    need_root # to tell the daemons apart
    export PLUME_KILL_GRACE=2 PLUME_SILENCE=3
    for signal in KILL STOP; do
        ranks "$signal" plugin -J "$signal" -N2 --ntasks-per-node=2 -- bash -c "$STAY" &
        wait_for 30 at_least 4 "at.$signal.*"
        job=$(squeue -h -n "$signal" -o %A)
        kill "-$signal" "$(daemon_of "$job" 1)"
    done
    wait
    ended_badly KILL STOP
    for signal in KILL STOP; do
        wait_for 20 has_ended "$signal"
        NO_CODE=1 checked "$signal"
        [ "$(result "$signal" 'd["cause"]["kind"], d["cause"]["process"], d["cause"]["node"]')" = \
            "('runtime', 'plrund', '$(state "$signal" 's["ranks"][2]["node"]')')" ]
    done
}

@test "a job that is suspended for longer goes on" {
    export PLUME_SILENCE=2
    gate
    step idle -J idle -N2 --ntasks-per-node=2 plrun -- bash -c ': >at.$RANK; read -r _ <gate' &
    wait_for 30 at_least 4 'at.*'
    job=$(squeue -h -n idle -o %A)
    scontrol suspend "$job"
    wait_for 20 job_is "$job" SUSPENDED
    # The silence that is borne, and more.
    begun=$(now_ms)
    late() { (($(now_ms) - begun > 5000)); }
    wait_for 20 late
    scontrol resume "$job"
    wait_for 20 job_is "$job" RUNNING
    gate_open 4
    wait
    rc_is idle 0
    checked idle
}

# Its host answers all the same: what Plume sees is the loss of its own processes.
@test "all processes of a step on a node are lost" {
    export PLUME_KILL_GRACE=1
    start lost 3
    pids=$(pids_of plrund "${NODE[2]}"; pids_of plrun "${NODE[2]}"; pids_of tail "${NODE[2]}")
    stepd=$(ps -o ppid= -p "$(guard "${NODE[2]}" 0)" | tr -d ' ')
    # The daemon first: it would report how the others end.
    # shellcheck disable=SC2086
    kill -KILL "$(daemon "${NODE[2]}")" "$stepd" $pids
    wait_for 30 has_ended lost
    [ "$(result lost 'd["state"], d["cause"]["kind"], d["cause"]["node"]')" = \
        "('failed', 'runtime', '${NODE[2]}')" ]
    [ "$(rank_states lost)" = 'killed killed killed killed lost lost' ]
    # Slurm itself takes longer to see it.
    scancel -n lost
    wait
}

@test "keys that are missing, open, wrong or no key at all" {
    export PLUME_LAUNCH_TIMEOUT=3
    as_user sh -c '
        umask 077
        head -c 32 /dev/urandom >good; head -c 32 /dev/urandom >other; cp good open; chmod 644 open
        head -c 31 good >short; ln -s good link; mkdir folder; mkfifo pipe; ln good twin; ln twin twins'
    key_step() {
        PLUME_KEY_FILE=$WORK/$2 step "$1" -N2 plrun -- true
    }
    for key in missing open short link folder pipe twin; do
        key_step "key-$key" "$key" &
    done
    # The second node has another key.
    cat >by-node <<'SH'
#!/bin/bash
[ "$SLURM_NODEID" = 0 ] && export PLUME_KEY_FILE=$PWD/good.key || export PLUME_KEY_FILE=$PWD/other
exec plrun -- true
SH
    chmod +x by-node
    as_user sh -c 'umask 077; cp other good.key; rm other; head -c 32 /dev/urandom >other'
    step differ -N2 ./by-node &
    # No place for a key of one's own.
    step home -N1 env PLUME_HOME=/proc/nowhere plrun -- true &
    begun=$(now_ms)
    wait
    (($(now_ms) - begun < 40000))
    for key in missing open short link folder pipe twin; do
        rc_is "key-$key" 1
        grep 'plrun: PLUME_KEY_FILE: ' "key-$key.err" || { cat "key-$key.err" && false; }
    done
    rc_is differ 1
    grep 'PLUME_KEY_FILE' differ.err || { cat differ.err && false; }
    checked differ
    [ "$(result differ 'd["cause"]["kind"]')" = launch ]
    rc_is home 1
    grep 'plrun: .*/proc/nowhere' home.err || { cat home.err && false; }
}

@test "a run folder that cannot be written: each rank says so, quickly" {
    as_user sh -c 'mkdir -m 0700 shut.home && mkdir -m 0500 shut.home/steps'
    begun=$(now_ms)
    step shut -N3 -n6 plrun -- true
    (($(now_ms) - begun < 40000)) # a launch that waits takes PLUME_LAUNCH_TIMEOUT
    rc_is shut 1
    cat shut.err
    # Each of the six.
    [ "$(grep -c "^plrun: .*shut.home/steps" shut.err)" = 6 ]
    # A sweep's.
    as_user plsubmit --dry-run --grid x=1 true >/dev/null
    line=$(as_user plsubmit --parsable --grid x=1 --nodes 3 --sbatch hold true)
    IFS=';' read -r _ dir job <<<"$line"
    as_user mkdir -m 0500 -p "$dir/trial-0000"
    scontrol release "$job"
    job_wait "$job"
    cat "$dir"/slurm-*.out
    grep -q "$dir/trial-0000" "$dir"/slurm-*.out
}

# free_range COUNT: LOW-HIGH of neighbouring ports that nobody has.
free_range() {
    python3 - "$1" <<'PY'
import random, socket, sys
n = int(sys.argv[1])
while True:
    low = random.randrange(20000, 29000)
    try:
        for port in range(low, low + n):
            with socket.socket() as s:
                s.bind(("", port))
        break
    except OSError:
        continue
print(f"{low}-{low + n - 1}")
PY
}

# An allocation of three nodes whose hub has strangers for neighbours; $1 is their range.
with_strangers() {
    cat >inside <<'SH'
#!/bin/bash
export STRANGER_BANNER='{"proto":"plume","major":1,"minor":0,"role":"hub","job":"'$SLURM_JOB_ID'","step":"0","attempt":0,"nonce":"00112233445566778899aabbccddeeff"}
'
mkfifo stop
"$STRANGERS_PY" "$1" <stop >strangers 2>strangers.err &
exec {stop}>stop
until [ -s strangers ]; do sleep 0.02; done
PLUME_HOME=$PWD/guest.home srun -N3 -n3 plrun -- bash -c 'echo $RANK $WORLD_SIZE' >guest.out 2>guest.err
echo $? >guest.rc
exec {stop}>&-
wait
SH
    chmod +x inside
    STRANGERS_PY=$PLUME_SRC/tests/fault/strangers.py as_user timeout 90 salloc -Q -N3 ./inside "$1" 3>&-
}

@test "strangers on all of the hub's ports but one: silent, chatty, or posing as the hub" {
    range=$(free_range 8)
    export PLUME_HUB_PORTS=$range
    with_strangers "${range%-*}-$((${range#*-} - 1))"
    [ "$(wc -w <strangers)" = 8 ]
    rc_is guest 0
    checked guest
    [ "$(sort guest.out)" = "$(printf '0 3\n1 3\n2 3')" ]
    # They were told nothing.
    [ ! -s strangers.log ]
}

@test "strangers on all of the hub's ports: a launch error that says so" {
    range=$(free_range 8)
    export PLUME_HUB_PORTS=$range
    with_strangers "$range"
    [ "$(wc -w <strangers)" = 9 ]
    rc_is guest 1
    # At once, and to all nodes.
    [ "$(grep -c '^plrun: .* ports is free on this node: give another range in PLUME_HUB_PORTS' guest.err)" = 3 ]
}

@test "bad ranges of hub ports are refused" {
    for range in 0-5 5-1 x 70000-70010; do
        PLUME_HUB_PORTS=$range step "bad-$range" -N2 plrun -- true &
    done
    wait
    for range in 0-5 5-1 x 70000-70010; do
        rc_is "bad-$range" 1
        grep -q PLUME_HUB_PORTS "bad-$range.err"
    done
}

@test "node 0 comes twenty seconds late" {
    cat >late <<'SH'
#!/bin/bash
[ "$SLURM_NODEID" != 0 ] || sleep 20
exec plrun -- bash -c 'echo $RANK $MASTER_PORT'
SH
    chmod +x late
    step late -N4 -n8 ./late
    rc_is late 0
    checked late
    [ "$(cut -d' ' -f1 late.out | sort | tr -d '\n')" = 01234567 ]
    [ "$(cut -d' ' -f2 late.out | sort -u | wc -l)" = 1 ]
}

@test "a node that never comes: the launch ends, and names it" {
    export PLUME_LAUNCH_TIMEOUT=3
    cat >never <<'SH'
#!/bin/bash
[ "$SLURM_NODEID" != "$1" ] || exit 0
exec plrun -- true
SH
    chmod +x never
    step other -N3 ./never 1 &
    step first -N3 ./never 0 &
    wait
    rc_is other 1
    checked other
    [ "$(result other 'd["cause"]["kind"]')" = launch ]
    grep "missing: $(result other 'd["cause"]["node"]'))" other.err
    [[ $(result other 'd["cause"]["text"]') =~ 'may they connect to port '[0-9]+' of n'[0-9]+' (PLUME_HUB_PORTS)?' ]]
    rc_is first 1
    grep -E 'found no hub on the step.s first node .*: [0-9.]+:[0-9]+ and [0-9]+ more take no connection; ' first.err
}

@test "a rank that never comes: the step ends, and names it" {
    export PLUME_LAUNCH_TIMEOUT=3 PLUME_KILL_GRACE=1
    cat >never <<'SH'
#!/bin/bash
[ "$SLURM_PROCID" != 1 ] || exit 0
exec plrun -- "$@"
SH
    chmod +x never
    step two -N2 -n3 --distribution=block ./never sleep 300 &
    step one -N1 -n2 ./never sleep 300 &
    # No rank is left to fail the step.
    step well -N1 -n2 ./never true &
    step far -N2 -n3 --distribution=block ./never true &
    wait
    for name in two one well far; do
        rc_is "$name" 1
        checked "$name"
        [ "$(result "$name" '(d["cause"]["kind"], d["cause"]["rank"])')" = "('launch', 1)" ]
    done
}

@test "a node whose daemon cannot start: the launch ends at once, and names it" {
    mkdir own
    cp "$PLUME_SRC/build/plrun" own/
    cat >own/plrund <<SH
#!/bin/bash
[ "\$SLURM_NODEID" = "\$BROKEN" ] && [ "\$1" = --control-fd ] && exit 1
exec "$PLUME_SRC/build/plrund" "\$@"
SH
    chmod -R a+rx own
    BROKEN=1 step other -N3 -n6 own/plrun -- touch ran &
    BROKEN=0 step first -N3 -n6 own/plrun -- touch ran &
    SECONDS=0
    wait
    ((SECONDS < 60)) # the limit for a launch is 120 s
    [ ! -e ran ]
    for name in other first; do
        rc_is "$name" 1
        grep -E 'node [^ ]+ cannot serve the step: the node daemon .* did not start' "$name.err"
        [ "$(result "$name" 'd["cause"]["kind"]')" = launch ]
    done
    checked other
}

# saving NAME WAY: two ranks, of which rank 1 runs its save command at Slurm's USR1 until `go` is there.
saving() {
    # shellcheck disable=SC2016 # for the save command's shell
    PLUME_SAVE_COMMAND='[ $RANK = 1 ] || exit 0; : >saving.$SLURM_JOB_NAME
        until [ -e go ]; do sleep 0.05; done; : >saved.$SLURM_JOB_NAME' \
        ranks "$1" "$2" -J "$1" -N2 -n2 -- plrun -- bash -c \
        'trap "" USR1; trap ": >ordered.$SLURM_JOB_NAME.$RANK" TERM; : >at.$SLURM_JOB_NAME.$RANK
        while :; do sleep 0.05; done'
}

@test "a rank that saves has the time for that, though its daemon is killed, or the hub" {
    need_root # to tell the daemons apart
    export PLUME_KILL_GRACE=0.3
    saving by_plrun plrun &
    saving by_plugin plugin &
    saving lost_hub plrun &
    for name in by_plrun by_plugin lost_hub; do
        wait_for 30 count_is 2 "at.$name."{0,1}
        job=$(squeue -h -n "$name" -o %A)
        scancel -s USR1 "$job.0"
        wait_for 30 test -e "saving.$name"
        node=1
        [ "$name" != lost_hub ] || node=0
        kill -KILL "$(daemon_of "$job" "$node")"
        wait_for 30 test -e "ordered.$name.1" # its grace has begun
    done
    begun=$(now_ms)
    grace_is_over() { (($(now_ms) - begun > 1000)); }
    wait_for 20 grace_is_over
    : >go
    wait
    for name in by_plrun by_plugin lost_hub; do
        [ -e "saved.$name" ]
        ended_badly "$name"
        [ "$name" = lost_hub ] ||
            [ "$(result "$name" 'd["cause"]["kind"], d["cause"]["process"]')" = "('runtime', 'plrund')" ]
    done
}
