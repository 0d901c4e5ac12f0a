#!/usr/bin/env bats
# SPDX-License-Identifier: MIT
# Ends that Slurm orders: cancelled, out of time, preempted, requeued. Nothing inside the job says which
# it is; the trial's result does.

load ../lib/cluster
load ../lib/runtime

# What a trial runs: says that it is there, by attempt, and stays; in its second attempt it ends.
# MODE says how it takes a SIGTERM: by default not at all, polite ends with 0, curt with 9 at once, often
# before plrun has seen the signal; stubborn goes on.
write_program() {
    cat >trial <<'SH'
#!/bin/bash
case $1 in
polite) trap 'echo saved; exit 0' TERM ;;
curt) trap 'exit 9' TERM ;;
stubborn) trap '' TERM ;;
esac
: >"$2.$PLUME_ATTEMPT.$RANK"
[ "$PLUME_ATTEMPT" = 0 ] || exit 0
tail -f /dev/null &
wait $!
wait
SH
    chmod +x trial
}

setup_file() {
    cluster_up 6
    # The shortest time limit is a minute: these run beside the tests.
    BATS_TEST_NUMBER=limit work_dir
    write_program
    LIMIT_DIR=$WORK
    for mode in none polite stubborn; do
        submit "$mode" "$mode" --time 1 --nodelist n[5-6]
        echo "$DIR $JOB" >"$mode.submitted"
    done
    submit again none --time 1 --nodelist n[5-6] --requeue-on timeout
    echo "$DIR $JOB" >again.submitted
    export LIMIT_DIR
}

teardown_file() {
    cluster_down
}

setup() {
    work_dir
    write_program
}

# Not those of the time limit.
teardown() {
    local job
    for job in $(squeue -h -t R,PD,CG -o '%F %j' | sort -u | awk '$2 !~ /^limit-/ { print $1 }'); do
        scancel "$job"
        job_wait "$job" 30
    done
}

# submit NAME MODE OPTION...: a sweep of one trial on two nodes; sets DIR and JOB ("123_0").
submit() {
    local name=$1 mode=$2 line prefix=''
    shift 2
    [[ -n ${BATS_TEST_NAME:-} ]] || prefix=limit-
    line=$(as_user plsubmit --parsable --name "$prefix$name" --grid x=1 --nodes 2 --ntasks-per-node 2 "$@" \
        -- ./trial "$mode" "$PWD/$name")
    IFS=';' read -r _ DIR JOB <<<"$line"
    JOB+=_0
}

started() {
    wait_for 30 at_least 4 "$1.${2:-0}.*"
}

# ended_as STATE [KIND]: the trial's result.
ended_as() {
    local file=$DIR/trial-0000/result.json
    job_wait "$JOB" 40
    cat "$file" "$DIR"/slurm-*.out "$DIR/trial-0000"/attempt-?/events.jsonl
    [ "$(json "$file" 'd["state"]')" = "$1" ]
    [ "$(json "$file" 'd.get("cause", {}).get("kind")')" = "$2" ]
    # Where Slurm had to kill, the log has no end.
    [[ ${3:-} == stubborn || ${3:-} == killed ]] || "$PLUME_SRC/tests/lib/check-run.py" "$DIR/trial-0000"
}

@test "scancel: cancelled, whatever the program does" {
    for mode in none polite curt stubborn; do
        submit "$mode" "$mode"
        started "$mode"
        echo "$DIR $JOB" >"$mode.submitted"
        scancel "$JOB"
    done
    for mode in none polite curt stubborn; do
        read -r DIR JOB <"$mode.submitted"
        ended_as cancelled cancelled "$mode"
    done
}

@test "scancel under the plugin: cancelled, whatever the program does" {
    for mode in polite curt; do
        ranks "$mode" plugin -J "$mode" -N2 -n4 -- ./trial "$mode" "$PWD/$mode" &
    done
    for mode in polite curt; do
        started "$mode"
        scancel -n "$mode"
    done
    wait
    for mode in polite curt; do
        wait_for 20 has_ended "$mode"
        NO_CODE=1 checked "$mode"
        [ "$(result "$mode" 'd["state"]')" = cancelled ]
    done
}

@test "scancel of a step: cancelled where Slurm's output says so, else SIGKILL" {
    submit step none
    started step
    id=$(squeue -h -j "$JOB" -o %A)
    scancel "$id.0"
    ended_as cancelled cancelled killed
    # Without a script only the plugin's daemon outlives it, to tell the tale.
    for way in plrun plugin; do
        ranks "$way" "$way" -J "$way" -N2 -n2 -- bash -c ': >$SLURM_JOB_NAME.0.$RANK; exec tail -f /dev/null' &
        wait_for 20 at_least 2 "$way.0.*"
        scancel "$(squeue -h -n "$way" -o %A).0"
    done
    wait
    [ "$(<plrun.rc)" != 0 ]
    [ "$(<plugin.rc)" != 0 ]
    wait_for 20 has_ended plugin
    NO_CODE=1 checked plugin
    # Nobody but Slurm knows who sent the SIGKILL, and Slurm keeps no record of a step's.
    [ "$(result plugin 'd["state"], d["cause"]["kind"], d["cause"]["signal"]')" = "('failed', 'signal', 9)" ]
}

@test "Ctrl-C on srun ends the step" {
    ranks ctrl plrun -J ctrl -N2 -n2 -- bash -c ': >ctrl.0.$RANK; exec tail -f /dev/null' &
    wait_for 20 at_least 2 'ctrl.0.*'
    pid=$(pgrep -f '^srun -J ctrl ' | head -1)
    # srun wants two within a second, and hands the second on; a third would kill.
    kill -INT "$pid"
    wait_for 10 grep -q 'srun: interrupt' ctrl.err
    kill -INT "$pid"
    wait
    cat ctrl.err
    [ "$(<ctrl.rc)" != 0 ]
    # srun has Slurm kill the whole step at once, the daemons too: they may not get to a result.
    if wait_for 5 has_ended ctrl; then
        NO_CODE=1 checked ctrl
    fi
    if has_result ctrl; then
        [ "$(result ctrl 'd["state"]')" = cancelled ]
    fi
}

@test "preempted: requeued, and the second attempt is done" {
    for mode in none polite stubborn; do
        submit "$mode" "$mode" --partition scavenge --exclude n[5-6]
        started "$mode"
        echo "$DIR $JOB" >"$mode.submitted"
    done
    timeout 60 srun -Q -p urgent -N4 -x n[5-6] --exclusive true
    for mode in none polite stubborn; do
        read -r DIR JOB <"$mode.submitted"
        job_wait "$JOB" 60
        started "$mode" 1
        ended_as "done" None
        [ "$(json "$DIR/trial-0000/result.json" 'd["attempt"], d["attempts"]')" = '(1, 2)' ]
        # The first attempt's log says why it ended.
        grep -q '"kind":"preempted"' "$DIR/trial-0000/attempt-0/events.jsonl"
        [ -e "$DIR/trial-0000/attempt-1/rank-3.out" ]
    done
    grep -qx saved "$(cut -d' ' -f1 polite.submitted)"/trial-0000/attempt-0/rank-*.out
}

@test "requeued by hand while the old hub lingers on one of the ports" {
    # Eight ports: the second attempt's hub and the first's meet there.
    export PLUME_HUB_PORTS=$((21000 + RANDOM % 8000))
    PLUME_HUB_PORTS+=-$((PLUME_HUB_PORTS + 7))
    cat >job <<'SH'
#!/bin/bash
srun -N3 plrun -- bash -c 'echo attempt ${SLURM_RESTART_COUNT:-0}: $RANK of $WORLD_SIZE; [ -n "$SLURM_RESTART_COUNT" ] || exec tail -f /dev/null'
SH
    job=$(PLUME_HOME=$WORK/home as_user sbatch --parsable -N3 -o out --open-mode=append job)
    three() { [ "$(grep -c "^attempt $1: [012] of 3$" out 2>/dev/null)" = 3 ]; }
    wait_for 30 three 0
    # A daemon of the first attempt that Slurm does not know of: waits for its other nodes for ever.
    mkdir -m 0700 old
    ((EUID != 0)) || chown "$PLAIN_UID:$PLAIN_UID" old
    PLUME_HOME=$WORK/home PLUME_JOB_ID=$job PLUME_STEP_ID=0 PLUME_NODE_ID=0 PLUME_NNODES=3 PLUME_NTASKS=3 \
        PLUME_LOCAL_NTASKS=1 PLUME_NODELIST=n1 PLUME_RUNTIME_DIR=$WORK/old \
        as_user /usr/bin/python3 -c '
import os, socket, sys
ours, its = socket.socketpair()
pid = os.fork()
if pid == 0:
    os.dup2(its.fileno(), 9)
    os.execvp("plrund", ["plrund", "--control-fd", "9"])
its.close()
print(pid, ours.recv(4096).decode(), flush=True)
sys.stdin.read()
os.kill(pid, 9)' < <(exec tail -f --pid=$$ /dev/null) >lingers 2>lingers.err 3>&- &
    keeper=$!
    wait_for 20 grep -q ready lingers || { cat lingers lingers.err && false; }
    scontrol requeue "$job"
    wait_for 60 three 1
    job_wait "$job"
    pid_start "$(cut -d' ' -f1 lingers)"
    kill "$keeper"
    # ~1 is the one that lingers.
    "$PLUME_SRC/tests/lib/check-run.py" "home/steps/$job.0~2/trial-0000"
    [ "$(json "home/steps/$job.0~2/trial-0000/result.json" 'd["state"]')" = "done" ]
    "$PLUME_SRC/tests/lib/check-run.py" "home/steps/$job.0/trial-0000"
    [ "$(json "home/steps/$job.0/trial-0000/result.json" 'd["state"]')" = preempted ]
}

@test "out of time: timed-out, whatever the program does" {
    cd "$LIMIT_DIR"
    for mode in none polite stubborn; do
        read -r DIR JOB <"$mode.submitted"
        job_wait "$JOB" 100
    done
    for mode in none polite stubborn; do
        read -r DIR JOB <"$mode.submitted"
        at_least 4 "$mode.0.*"
        ended_as timed-out timeout "$mode"
    done
    # --requeue-on timeout: again, in the next attempt.
    read -r DIR JOB <again.submitted
    started "$PWD/again" 1
    ended_as "done" None
    grep -q '"counts":{"timeout":1}' "$DIR/trial-0000/requeues.json"
}

@test "the controller is restarted: the verdict falls without it, and srun ends after it" {
    local pid way
    gate
    for way in plrun plugin; do
        ranks "$way" "$way" -N2 -n2 -- bash -c ": >$way.0.\$RANK; read -r _ <gate; exit 4" &
        wait_for 20 at_least 2 "$way.0.*"
    done
    read -r pid < <(awk '$1 == "slurmctld" { print $2 }' "$CLUSTER_DIR/pids")
    kill "$pid"
    ended() { ! pid_start "$pid" >/dev/null; }
    wait_for 20 ended
    gate_open 4
    for way in plrun plugin; do
        wait_for 20 has_ended "$way"
        [ "$(result "$way" 'd["state"], d["cause"]["kind"], d["cause"]["exit"]')" = "('failed', 'exit', 4)" ]
    done
    setsid slurmctld -D -f "$SLURM_CONF" </dev/null >>"$CLUSTER_DIR/log/slurmctld.log" 2>&1 3>&- &
    pid=$!
    sed -i "s/^slurmctld .*/slurmctld $pid $(pid_start "$pid")/" "$CLUSTER_DIR/pids"
    wait_for 60 count_is 2 plrun.rc plugin.rc
    rc_is plrun 4
    rc_is plugin 4
    checked plrun plugin
}
