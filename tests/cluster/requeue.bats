#!/usr/bin/env bats
# SPDX-License-Identifier: MIT
# --requeue-on: which ends start a trial again, how often, and what stops it. A requeued job waits some
# seconds until Slurm starts it, so the sweeps of a test run side by side.

load ../lib/cluster

setup_file() {
    cluster_up 4
    mkdir "$WORK_BASE/own-home"
    export HOME=$WORK_BASE/own-home
}
teardown_file() { cluster_down; }
setup() {
    work_dir
    PATH=$PLUME_SRC/build:$PATH
}
teardown() {
    scancel_all
    wait_for 60 queue_is_empty
}

# submit NAME ARG...: plsubmit ARG... with the name; its folder is then $(run_of NAME).
submit() {
    local name=$1
    shift
    run --separate-stderr plsubmit --parsable -J "$name" "$@"
    if ((status)); then
        echo "$status $output $stderr"
        return 1
    fi
    printf '%s\n' "$output" >"$name.submitted"
}

run_of() { cut -d ';' -f 2 "$1.submitted"; }
job_of() { cut -d ';' -f 3 "$1.submitted"; }

# result NAME KEY: of trial 0; empty without one.
result() {
    python3 -c 'import json, sys; print(json.load(open(sys.argv[1])).get(sys.argv[2], ""))' \
        "$(run_of "$1")/trial-0000/result.json" "$2" 2>/dev/null
}

# is NAME STATE ATTEMPTS
is() { [ "$(result "$1" state) $(result "$1" attempts)" = "$2 $3" ]; }

# not_again NAME WHY: why it does not start again. The hub's first record has none.
not_again() { [ "$(result "$1" not_requeued)" = "$2" ]; }

@test "an error starts a trial again as itself, until it makes no progress or has had its turns" {
    cat >prog <<'TXT'
#!/bin/bash
echo "$PLUME_ATTEMPT $PLUME_REASON $PLUME_TRIAL_DIR"
case $1 in
once) ((PLUME_ATTEMPT)) ;;
hangs) for step in {1..9}; do echo "step=$step"; done; ((PLUME_ATTEMPT)) || exec sleep 99 ;;
saves) mkdir -p "$PLUME_TRIAL_DIR/checkpoints" && : >"$PLUME_TRIAL_DIR/checkpoints/$PLUME_ATTEMPT" && exit 3 ;;
*) exit 3 ;;
esac
TXT
    chmod +x prog
    submit once --requeue-on error:5 --grid a=1,2 ./prog once
    submit still --requeue-on error:5 --max-fail 0 ./prog never
    submit saves --requeue-on error ./prog saves
    submit total --requeue-on error:5 --max-requeues 1 ./prog saves
    submit never --requeue-on timeout ./prog never
    submit hangs --on-hang requeue --env PLUME_HANG_LIMIT=0.2 --metric 'step=step=([0-9]+)' ./prog hangs
    submit none ./prog never
    wait_for 60 is once 'done' 2
    wait_for 60 is still failed 2
    wait_for 60 is saves failed 2
    wait_for 60 is total failed 2
    wait_for 60 is hangs 'done' 2
    [[ $(<"$(run_of hangs)/trial-0000/attempt-1/rank-0.out") == '1 hang '* ]]
    [ -s "$(run_of hangs)/trial-0000/attempt-0/hang-rank-0.txt" ]
    [[ $(result still not_requeued) == 'two attempts in a row ended alike (error), the second without'* ]]
    wait_for 30 not_again saves '--requeue-on allows 1 requeue after the cause error'
    wait_for 30 not_again total '--max-requeues allows 1'
    wait_for 30 not_again never '--requeue-on does not have the cause error'
    is never failed 1
    [ "$(result none not_requeued)" = '' ]
    run=$(run_of once)
    [ "$(<"$run/trial-0000/attempt-0/rank-0.out")" = "0 first $run/trial-0000" ]
    [ "$(<"$run/trial-0000/attempt-1/rank-0.out")" = "1 error $run/trial-0000" ]
    [ "$(result once job)" = "$(job_of once)_0" ]
    wait_for 60 test -s "$run/trial-0001/attempt-1/rank-0.out"
    [ "$(<"$run/trial-0001/attempt-1/rank-0.out")" = "1 error $run/trial-0001" ]
    [ -e "$(run_of still)/failed/0000" ] # counted at its last end
    [[ $(plstat why "$(job_of saves)") == *'not requeued: --requeue-on allows 1 requeue'* ]]
    # A retry begins to count anew, and says so.
    plsubmit --retry "$(job_of saves)"
    wait_for 60 is saves failed 4
    [[ $(<"$(run_of saves)/trial-0000/attempt-2/rank-0.out") == '2 retry '* ]]
    [[ $(<"$(run_of saves)/trial-0000/attempt-3/rank-0.out") == '3 error '* ]]
}

# Slurm takes n4 for lost, and finds it again.
lose_node() {
    scontrol update nodename=n4 state=down reason=test
    wait_for 30 node_is_back
}
node_is_back() {
    scontrol update nodename=n4 state=resume 2>/dev/null # if it is not back by itself
    [[ $(sinfo -h -n n4 -o %t) != down* ]]
}

@test "Slurm's own requeues count under their cause" {
    cat >prog <<'TXT'
#!/bin/bash
# Its output is what is waited for: without the checkpoint the next end would be one without progress.
mkdir -p "$PLUME_TRIAL_DIR/checkpoints" && : >"$PLUME_TRIAL_DIR/checkpoints/$PLUME_ATTEMPT"
echo "$PLUME_REASON"
exec tail -f /dev/null
TXT
    chmod +x prog
    submit twice --requeue-on preempt:1 ./prog
    submit other --requeue-on error ./prog
    submit node --requeue-on node-fail:1 -w n4 ./prog
    for name in twice other node; do
        wait_for 60 test -s "$(run_of $name)/trial-0000/attempt-0/rank-0.out"
        [ $name = node ] || scontrol requeue "$(job_of $name)_0"
    done
    lose_node
    for name in twice other; do
        wait_for 60 test -s "$(run_of $name)/trial-0000/attempt-1/rank-0.out"
        [ "$(<"$(run_of $name)/trial-0000/attempt-1/rank-0.out")" = preempt ]
        scontrol requeue "$(job_of $name)_0"
    done
    # Requeues that --requeue-on does not name are Slurm's own affair.
    wait_for 60 test -s "$(run_of other)/trial-0000/attempt-2/rank-0.out"
    wait_for 60 is twice preempted 3
    wait_for 30 not_again twice '--requeue-on allows 1 requeue after the cause preempt'
    wait_for 60 test -s "$(run_of node)/trial-0000/attempt-1/rank-0.out"
    [ "$(<"$(run_of node)/trial-0000/attempt-1/rank-0.out")" = node-fail ]
    lose_node
    wait_for 60 is node node-failed 3
    wait_for 30 not_again node '--requeue-on allows 1 requeue after the cause node-fail'
    [ ! -e "$(run_of twice)/trial-0000/attempt-2/rank-0.out" ]
}

# plstat_is NAME TEXT: a line of its table.
plstat_is() { [[ $(plstat sweep "$(cut -d ';' -f 1 "$1.submitted")" 2>&1) == *"$2"* ]]; }

# waits_unfailed NAME: it waits; a look that calls it failed meanwhile is kept in the file "seen".
waits_unfailed() {
    plstat_is "$1" '1 trial: 1 waiting' && return
    ! plstat_is "$1" '1 trial: 1 failed' || plstat sweep "$(cut -d ';' -f 1 "$1.submitted")" >>seen
    return 1
}

@test "a requeue that is cancelled in the queue is cancelled, and until then it waits" {
    # The requeued job stays in the queue.
    mkdir bin
    printf '#!/bin/sh\n[ "$1" != requeue ] || { shift; set -- requeuehold "$@"; }\nexec %s "$@"\n' \
        "$(command -v scontrol)" >bin/scontrol
    chmod +x bin/scontrol
    for name in fails kept; do
        submit $name --requeue-on error:5 --setup "PATH=$PWD/bin:\$PATH" -- sh -c 'exit 3'
    done
    submit runs -- tail -f /dev/null
    for name in fails kept; do
        wait_for 60 is $name failed 1
        wait_for 60 waits_unfailed $name
    done
    [ ! -e seen ]
    run -0 plsubmit --retry "$(job_of fails)"
    [ "$output" = 'nothing to submit: 1 waiting' ]
    wait_for 60 test -s "$(run_of runs)/trial-0000/status.json"
    bin/scontrol requeue "$(job_of runs)_0"
    wait_for 60 plstat_is runs '1 trial: 1 waiting'
    scancel "$(job_of fails)" "$(job_of runs)"
    plsubmit --cancel "$(job_of kept)"
    for name in fails runs kept; do
        wait_for 30 plstat_is $name '1 trial: 1 cancelled'
    done
    [[ $(plstat why "$(job_of kept)") == *'attempt 1 (job '*') failed: '*': exit 3'*'CAUSE cancelled' ]]
}

@test "a program that knows no signals is saved by --save-command, and goes on in the next attempt" {
    cat >prog <<'TXT2'
#!/bin/bash
trap '' TERM USR1 USR2
step=$(cat "$PLUME_TRIAL_DIR/checkpoints/step" 2>/dev/null || echo 0)
echo "from $step in $PLUME_REASON"
((step == 0)) || exit 0
echo 41 >state
exec tail -f /dev/null
TXT2
    chmod +x prog
    submit saved --requeue-on preempt --save-command \
        'mkdir -p "$PLUME_TRIAL_DIR/checkpoints" && echo "$1 $RANK" && cp state new && mv new "$PLUME_TRIAL_DIR/checkpoints/step"' ./prog
    out=$(run_of saved)/trial-0000
    wait_for 60 test -s state
    scancel --signal=USR1 "$(job_of saved)_0"
    wait_for 60 test -s "$out/checkpoints/step"
    [ "$(sed 1d "$out/attempt-0/rank-0.out")" = 'USR1 0' ]
    scontrol requeue "$(job_of saved)_0"
    wait_for 60 is saved 'done' 2
    [ "$(<"$out/attempt-1/rank-0.out")" = 'from 41 in preempt' ]
    [ "$(sed 1d "$out/attempt-0/rank-0.out")" = 'USR1 0' ]
}

@test "who stops at Slurm's signal is not done, and Plume alone starts it again" {
    cat >prog <<TXT
#!/usr/bin/env python3
import os, sys, time
sys.dont_write_bytecode = True
sys.path.insert(0, "$PLUME_SRC/examples/report")
import plume
plume.should_stop()
plume.report(plume.attempt() * 10 + 1, loss=1)
print(os.environ["PLUME_REASON"], os.environ["PLUME_REQUEUE_ON"], flush=True)
while plume.attempt() == 0 and not plume.should_stop():
    time.sleep(0.05)
TXT
    chmod +x prog
    # Slurm sends it after 20 s at the earliest, and each of these is in its last 70 s from its start.
    submit stops -t 1 --signal USR1@10 --requeue-on timeout:1 ./prog
    submit trains -t 1 --signal USR1@10 --requeue-on timeout:1 pltrain --epochs 100000 mlp
    # with an hour to go, somebody has sent it
    plsubmit --parsable -J asked --wait --requeue-on timeout ./prog >asked.submitted 2>/dev/null 3>&- &
    waits=$!
    wait_for 30 test -s asked.submitted
    for name in stops asked; do
        wait_for 60 test -s "$(run_of $name)/trial-0000/attempt-0/rank-0.out"
    done
    wait_for 60 grep -q '^epoch 2/' "$(run_of trains)/trial-0000/attempt-0/rank-0.out"
    for name in stops trains asked; do
        scancel --signal=USR1 "$(job_of $name)_0" || [ $name != asked ]
    done
    wait_for 60 is asked cancelled 1
    job_wait "$(job_of asked)"
    [ "$(job_field "$(job_of asked)" ExitCode)" = 138:0 ] # no "afterok" takes it for done
    rc=0
    wait "$waits" || rc=$?
    [ "$rc" = 1 ] # nor does --wait
    wait_for 60 is stops 'done' 2
    [ "$(<"$(run_of stops)/trial-0000/attempt-1/rank-0.out")" = 'timeout timeout:1' ]
    wait_for 60 grep -q '^epoch' "$(run_of trains)/trial-0000/attempt-1/rank-0.out"
    scancel --signal=USR1 "$(job_of trains)_0" || true
    wait_for 60 is trains timed-out 2
    wait_for 30 not_again trains '--requeue-on allows 1 requeue after the cause timeout'
    [[ $(plstat why "$(job_of trains)") == *'time limit'*'the program stopped at SIGUSR1'* ]]
}

@test "who stops at the SIGTERM of --signal starts again, and who is cancelled then does not" {
    cat >prog <<TXT
#!/usr/bin/env python3
import os, sys, time
sys.dont_write_bytecode = True
sys.path.insert(0, "$PLUME_SRC/examples/report")
import plume
plume.should_stop()
plume.report(plume.attempt() * 10 + 1, loss=1)
print(os.environ["PLUME_REASON"], flush=True)
while plume.attempt() == 0 and not plume.should_stop():
    time.sleep(0.05)
sys.exit(plume.attempt() == 0 and int(sys.argv[1]))
TXT
    chmod +x prog
    # Slurm sends it after 20 s at the earliest here too, and to "cancelled" after 30 s.
    submit zero -t 1 --signal TERM@10 --requeue-on timeout:1 ./prog 0
    submit stops -t 1 --signal TERM@10 --requeue-on timeout:1 ./prog 143
    submit trains -t 1 --signal TERM@10 --requeue-on timeout:1 pltrain --epochs 100000 mlp
    submit cancelled -t 2 --signal TERM@60 --requeue-on timeout:1 ./prog 143
    wait_for 60 test -s "$(run_of cancelled)/trial-0000/attempt-0/rank-0.out"
    scancel "$(job_of cancelled)_0"
    for name in zero stops; do
        wait_for 60 test -s "$(run_of $name)/trial-0000/attempt-0/rank-0.out"
    done
    wait_for 60 grep -q '^epoch 2/' "$(run_of trains)/trial-0000/attempt-0/rank-0.out"
    for name in zero stops trains; do
        scancel --signal=TERM "$(job_of $name)_0" || true
    done
    for name in zero stops; do
        wait_for 60 is $name 'done' 2
        [ "$(<"$(run_of $name)/trial-0000/attempt-1/rank-0.out")" = timeout ]
    done
    wait_for 60 grep -q '^epoch' "$(run_of trains)/trial-0000/attempt-1/rank-0.out"
    scancel --signal=TERM "$(job_of trains)_0" || true
    wait_for 60 is trains timed-out 2
    job_wait "$(job_of cancelled)"
    wait_for 60 is cancelled cancelled 1
    [ "$(result cancelled stopped) $(result cancelled requeued)" = 'TERM ' ]
}

# is_completing NAME: Slurm ends its job.
is_completing() { [[ $(scontrol -o show job "$(job_of "$1")_0") == *JobState=COMPLETING* ]]; }

@test "a program that obeys Slurm's signal before its plrun has seen it is not done" {
    cat >prog <<'TXT'
#!/bin/bash
trap 'exit 0' TERM
echo "$PLUME_REASON"
[[ $1 != leaves ]] && ((PLUME_ATTEMPT == 0)) || exit 0
echo "$$ $(($(ps -o ppid= -p $PPID)))" >"$1.new" && mv "$1.new" "$1"
sleep infinity &
if [[ $1 == outlives ]]; then
    trap '((n++)) && exit 0; : >got' TERM
    while :; do wait; done
fi
wait
TXT
    chmod +x prog
    for name in requeued cancelled leaves outlives; do
        submit $name ./prog $name
    done
    wait_for 60 is leaves 'done' 1
    wait_for 60 test -s outlives
    scancel --signal=TERM "$(job_of outlives)_0"
    wait_for 60 test -e got
    scancel "$(job_of outlives)_0"
    for name in requeued cancelled; do
        wait_for 60 test -s $name
        # slurmstepd is about to signal plrun, and has signalled the program.
        kill -STOP "$(cut -d ' ' -f 2 $name)"
    done
    scontrol requeue "$(job_of requeued)_0"
    scancel "$(job_of cancelled)_0"
    for name in requeued cancelled; do
        wait_for 30 is_completing $name
        kill -TERM "$(cut -d ' ' -f 1 $name)"
        wait_for 30 test -s "$(run_of $name)/trial-0000/result.json"
        kill -CONT "$(cut -d ' ' -f 2 $name)"
    done
    wait_for 60 is requeued 'done' 2
    [ "$(<"$(run_of requeued)/trial-0000/attempt-1/rank-0.out")" = preempt ]
    for name in cancelled outlives; do
        wait_for 60 is $name cancelled 1
    done
    [[ $(plstat why "$(job_of cancelled)") == *'CAUSE cancelled'* ]]
}

@test "the last act is killed before it asks Slurm for a requeue: the trial is what its result says" {
    mkdir bin
    printf '#!/bin/bash\n[ "$1" = requeue ] && kill -KILL $PPID && exit 1\nexec %s "$@"\n' "$(command -v scontrol)" >bin/scontrol
    chmod 755 bin/scontrol
    submit killed --requeue-on error --setup "export PATH=$PWD/bin:\$PATH" bash -c 'echo boom >&2; exit 3'
    wait_for 30 queue_is_empty
    local folder
    folder=$(run_of killed)
    failed() { plstat why "$folder" | grep -Exq 'CAUSE rank 0 \(n[0-9]+, pid [0-9]+\): exit 3'; }
    wait_for 30 failed
    run -0 plstat why "$folder"
    grep -qx 'not requeued: its job ended before Slurm was asked to start it again' <<<"$output"
    run -0 plsubmit --retry "$folder"
    [[ $output == submitted* ]]
}
