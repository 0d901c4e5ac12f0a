#!/usr/bin/env bats
# SPDX-License-Identifier: MIT
# --local: trials on this machine. There is no Slurm here, and nothing stands in for it.

load ../lib/cluster

setup() {
    WORK=$(mktemp -d "${TMPDIR:-/tmp}/plume-local-XXXXXX")
    cd "$WORK" || return
    mkdir home
    export HOME=$WORK/home PATH=$PLUME_SRC/build:$PATH
    unset SLURM_CONF "${!SLURM_@}" CUDA_VISIBLE_DEVICES
}
teardown() {
    plsubmit --cancel last &>/dev/null || true
    wait_until 30 executor_gone || true
    umount -l "$WORK/disk" 2>/dev/null || true
    rm -rf "$WORK"
}

executor_gone() {
    local lock
    for lock in {runs,disk}/*/local.lock; do
        [ ! -e "$lock" ] || flock -n "$lock" true || return 1
    done
}

is_no_process() { ! kill -0 "$1" 2>/dev/null; }

submit() {
    run --separate-stderr "${SUBMIT:-plsubmit}" --parsable "$@"
    if ((status)); then
        echo "$status $output $stderr"
        cat runs/*/slurm-*.out runs/*/local.log || true
        return 1
    fi
    IFS=';' read -r SWEEP RUN _ <<<"$output"
}

state() {
    python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["state"])' \
        "$(printf '%s/trial-%04d/result.json' "$RUN" "$1")" 2>/dev/null
}
has_state() { [ "$(state "$1")" = "$2" ]; }
sweep_is() {
    local table
    table=$(plstat sweep "$SWEEP" 2>&1) || true
    [[ $table == *"$1"* ]] && return
    tail -n 3 "$RUN"/slurm-*.out "$RUN"/trial-*/result.json >&2
    printf 'not %s: %s\n' "$1" "$table" >&2
    return 1
}

@test "--check tries to make a folder: permissions tell nothing of a quota or a full disk" {
    ((EUID == 0)) || skip "only root may mount a file system"
    mkdir disk && mount -t tmpfs -o nr_inodes=1 tmpfs disk || skip "no file system can be mounted"
    run plsubmit --check --local --runs disk true
    umount -l disk
    [[ $status == 1 && $output == *"wrong  cannot make run folders in '$PWD/disk': No space left on device"* ]]
    run -0 plsubmit --check --local --runs disk true
    [[ -z $(ls -A disk) ]]
}

@test "a local run on a full disk is not called cancelled, as its executor reads the record" {
    ((EUID == 0)) || skip "only root may mount a file system"
    mkdir disk && mount -t tmpfs -o size=2m tmpfs disk || skip "no file system can be mounted"
    submit --local=1 --runs disk --grid i=1,2 -- sh -c 'touch begun; exec sleep 300'
    wait_for 30 test -e begun
    cat /dev/zero >disk/fill 2>/dev/null || true
    run -1 --separate-stderr plsubmit --cancel "$RUN"
    [ -z "$output" ]
    [[ $stderr == *'sweep.json'*'No space left on device'* ]]
    run -0 plstat sweep "$RUN"
    [[ $output == *'2 trials: 1 waiting 1 running'* ]] || { echo "$output"; false; }
    rm disk/fill
    plsubmit --cancel "$RUN"
    sweep_is '2 trials: 2 cancelled' || wait_for 30 sweep_is '2 trials: 2 cancelled'
}

@test "trials run J at a time, each with GPUs that no other has" {
    cat >prog <<'TXT'
#!/bin/bash
# Each rank holds a lock on each of its GPUs.
IFS=, read -ra gpus <<<"$CUDA_VISIBLE_DEVICES"
if ((LOCAL_RANK == 0)); then
    for gpu in "${gpus[@]}"; do
        mkdir "busy/$gpu" || exit 5
    done
    ls busy >>seen
    rmdir "${gpus[@]/#/busy/}"
fi
echo "$1 $RANK/$WORLD_SIZE ${#gpus[@]} $CUDA_DEVICE_ORDER $PLUME_REASON"
TXT
    chmod +x prog
    mkdir busy
    CUDA_VISIBLE_DEVICES=1,3,GPU-7,9 submit --local --gpus-per-node 2 --grid a=1,2,3,4,5 --wait ./prog "{a}"
    for i in 0 1 2 3 4; do
        [ "$(<"$RUN/trial-000$i/attempt-0/rank-1.out")" = "$((i + 1)) 1/2 2 PCI_BUS_ID first" ]
    done
    sort -u seen | tr '\n' ' ' | grep -qx '1 3 9 GPU-7 '
    [[ $(plstat sweep "$SWEEP") == *'5 trials: 5 done'* ]]
    CUDA_VISIBLE_DEVICES=0 run -2 --separate-stderr plsubmit --local --gpus-per-node 2 true
    [ "$stderr" = 'plsubmit: each trial needs 2 GPUs, and --local has 1 here' ]
}

@test "several nodes are daemons of this machine, each with its ranks and GPUs" {
    # shellcheck disable=SC2016 # the ranks'
    CUDA_VISIBLE_DEVICES=1,3,GPU-7,9 submit --local -N 2 --gpus-per-node 2 --wait -- sh -c \
        'echo "$RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE $NODE_RANK ${SLURMD_NODENAME##*-} $CUDA_VISIBLE_DEVICES"'
    [ "$(cat "$RUN"/trial-0000/attempt-0/rank-?.out)" = '0/4 0/2 0 0 1,3
1/4 1/2 0 0 1,3
2/4 0/2 1 1 GPU-7,9
3/4 1/2 1 1 GPU-7,9' ]
    # Three ranks on two nodes: the first has one more. One that fails ends those of the other node.
    # shellcheck disable=SC2016
    submit --local -N 2 -n 3 -- sh -c '[ "$RANK" = 2 ] && exit 5; exec tail -f /dev/null'
    wait_for 30 executor_gone
    [[ $(plstat why "$SWEEP") == *"2 nodes 3 ranks"*'rank 2 ('*-1,*'exit 5'* ]]
    # A GPU that no trial can get is named, unless there are fewer trials than the others serve.
    CUDA_VISIBLE_DEVICES=0,1,2 run -0 --separate-stderr plsubmit --local -N 2 --gpus-per-node 1 --no-submit true
    [ "$stderr" = 'plsubmit: warning: 1 of the 3 GPUs here stays idle: each trial takes 2 (CUDA_VISIBLE_DEVICES names those to use)' ]
    CUDA_VISIBLE_DEVICES=0,1,2,3,4 run -0 --separate-stderr plsubmit --local -N 2 --gpus-per-node 1 --no-submit true
    [ "$stderr" = '' ]
    # A hang is found across the nodes, and named.
    submit --local -N 2 --on-hang kill --env PLUME_HANG_LIMIT=0.2 --metric 'step=step=([0-9]+)' -- sh -c \
        'for i in 1 2 3 4 5 6 7 8 9; do [ "$RANK$i" != 19 ] || break; echo "step=$i"; done; exec tail -f /dev/null'
    wait_for 30 executor_gone
    [[ $(plstat why "$SWEEP") == *'CAUSE rank 1 ('*'-1'*'made no progress'* ]]
    run -2 --separate-stderr plrun --tasks 1 --nodes 2 -- true
    [ "$stderr" = 'plrun: --nodes 2 needs --tasks with at least as many tasks' ]
}

# limited N COMMAND...: as the user LONELY, with at most N processes.
limited() {
    setpriv --reuid "$LONELY" --regid "$LONELY" --clear-groups prlimit --nproc="$1" "${@:2}"
}

@test "no task begins where the kernel refuses one: the others would wait for it" {
    ((EUID == 0)) || skip "no root"
    # The kernel counts a user's processes on the whole machine: another run of this test has another user.
    LONELY=$((20000 + BASHPID % 40000))
    limited 1000 plrun --version >/dev/null || skip "user $LONELY cannot run $(command -v plrun)"
    run -1 --separate-stderr limited 4 plrun --tasks 8 -- echo ran
    [ "$output" = '' ]
    [ "$stderr" = "plrun: cannot start 8 tasks of 'echo': Resource temporarily unavailable" ]
    run -0 limited 9 plrun --tasks 8 -- true
    # A trial of which all else starts: that is its cause, and it ends at once.
    chmod 777 . home
    run -1 limited 1000 timeout 60 plsubmit --wait --local -n 40 --setup 'ulimit -u 30' -- tail -f /dev/null
    run -0 limited 1000 plstat why last
    [[ $output == *'the ranks could not be started'*"cannot start 40 tasks of '"*'Resource temporarily unavailable'* ]]
}

@test "each rank gets the SIGTERM of --cancel once, and that of a guard whose executor was killed" {
    cat >count.py <<'TXT'
import os, signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
name = "{PLUME_TRIAL}-{RANK}".format(**os.environ)
open(f"up-{name}", "w").close()
n, wait = 0, 60
while signal.sigtimedwait({signal.SIGTERM}, wait):
    n, wait = n + 1, 1
with open(f"part-{name}", "w") as f:
    f.write(f"{n}\n")
os.rename(f"part-{name}", f"got-{name}")
TXT
    ln -s "$(command -v plsubmit)" linked # whatever the executor's file is called
    # shellcheck disable=SC2016  # bash runs it
    for way in 'plsubmit --cancel "$SWEEP"' 'kill -KILL "$(grep -o "[0-9]*}" "$RUN/local.lock" | tr -d "}")"'; do
        # Two signals that come at once are one: of so many ranks some would see both.
        SUBMIT=./linked submit --local=4 --grid i=1,2,3,4 --ntasks-per-node 2 -- python3 "$PWD/count.py"
        wait_for 30 eval '[ "$(ls up-* 2>/dev/null | wc -l)" = 8 ]'
        eval "$way"
        wait_for 30 eval '[ "$(ls got-* 2>/dev/null | wc -l)" = 8 ]'
        [ "$(sort -u got-*)" = 1 ]
        rm up-* got-*
    done
}

@test "a set-up that meets the limit of a file's size fails, and its trial has a result" {
    submit --local --setup 'ulimit -f 64' --setup "printf '%70000s' >big" --setup 'touch after' -- true
    wait_for 30 has_state 0 failed
    run -0 plstat why "$SWEEP"
    [[ $output == *"the job's set-up failed, exit 1"*'printf: write error: File too large'* ]]
    [ ! -e after ]
    # A program of the set-up gets the signal, though plsubmit and the job script outlive it.
    submit --local --setup '(ulimit -f 64; head -c 100000 /dev/zero >big) || echo $? >code' -- true
    wait_for 30 has_state 0 'done'
    [ "$(<code)" = 153 ]
    # Nor is there room for what the job script says of its end.
    submit --local --setup "printf '%70000s'" --setup 'ulimit -f 64; false' -- true
    wait_for 30 has_state 0 failed
}

@test "a signal in the set-up cancels the trial after the command in the foreground" {
    # As with '&', in a script; without nohup, which lets the trials ignore SIGHUP, as it is meant to.
    printf '#!/bin/bash\ntrap "" INT QUIT\nexec env --default-signal=HUP plsubmit "$@"\n' >ignoring
    chmod 755 ignoring
    for name in HUP INT QUIT ALRM TERM USR1 USR2 ABRT XCPU; do
        SUBMIT=./ignoring submit --local --setup "kill -$name \$\$; >after" -- true
        wait_for 30 sweep_is '1 cancelled'
        has_state 0 cancelled
        [[ $(plstat why "$SWEEP") == *"SIG$name ended the set-up at: kill -$name"* ]]
        [ ! -e after ]
    done
    submit --local --setup "bash -c 'kill -USR1 \$PPID; >up; until [ -e go ]; do sleep 0.1; done; >ended'" -- true
    wait_for 30 test -e up
    touch go
    wait_for 30 has_state 0 cancelled
    [ -e ended ]
    # The command has a trap of its own for the end of the script.
    submit --local --setup 'trap ">own" EXIT; kill -TERM $$' -- true
    wait_for 30 has_state 0 cancelled
    [ -e own ]
}

@test "a set-up command that fails after it has trapped the script's end has a result, and its trap runs" {
    # Last of all: in POSIX mode exit has no function, but set -e has its trap. The script's own sub-shells end unseen.
    # shellcheck disable=SC2016  # the job script's
    for command in 'false' 'exit 1' 'f() { false; }; f' 'source <(echo exit 1)' '(exit 1)' 'test -e nowhere || exit' \
        'set -o posix; false' '(trap - EXIT; exit 1); >after' 'echo "$(trap ">other" EXIT; exit 1)" >/dev/null; false'; do
        submit --local --setup "trap '>own' EXIT; $command; >after" -- true
        wait_for 30 has_state 0 failed
        [[ $(plstat why "$SWEEP") == *"the job's set-up failed, exit 1"*'the set-up ended with exit code 1 at: trap'* ]]
        [[ -e own && ! -e after ]]
        rm own
    done
    # A trap for ERR of its own stays; a later exit code is the one that counts; a good command goes on.
    submit --local --setup 'trap ">own" EXIT; trap ">err" ERR; exit 7' -- true
    wait_for 30 has_state 0 failed
    [[ -e own && ! -e err && $(plstat why "$SWEEP") == *'exit 7'* ]]
    submit --local --setup 'trap "echo \$? >own" EXIT; trap ">err" ERR; set +e; false; set -e' --wait -- true
    [[ -e err && $(<own) == 0 ]]
    has_state 0 'done'
}

@test "a rank that meets the limit of a file's size ends by its signal; the job's output may meet it" {
    submit --local --setup 'ulimit -f 64' -- sh -c 'exec head -c 100000 /dev/zero >big'
    wait_for 30 has_state 0 failed
    run -0 plstat why "$SWEEP"
    [[ $output == *'killed by SIGXFSZ (signal 25), a file has reached'* ]]
    submit --local --setup 'ulimit -f 64' --wait -- sh -c "printf '%100000s' x; >ended"
    [ -e ended ]
    has_state 0 'done'
}

@test "a child that plrun has from an exec is no task of it" {
    # One that has ended before the tasks begin, and is not reaped.
    run -3 --separate-stderr python3 -c '
import os, sys
pid = os.fork() or os._exit(77)
os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
os.execvp(sys.argv[1], sys.argv[1:])' plrun --tasks 2 -- sh -c 'echo ran; exit 3'
    [ "$output$stderr" = $'ran\nran' ]
    # One that ends while they run: plrun waits for both tasks.
    cat >tasks.sh <<'TXT'
(until [ -e go ]; do sleep 0.01; done; exit 77) &
export CHILD=$!
exec plrun --tasks 2 -- sh -c '
    touch go
    [ "$SLURM_PROCID" = 0 ] && exit 5
    while kill -0 "$CHILD"; do sleep 0.01; done
    touch ended'
TXT
    run -5 sh tasks.sh
    [ -e ended ]
}

@test "the executor outlives its client and the terminal; plstat, --cancel, --retry and --extend work" {
    cat >prog <<'TXT'
#!/bin/bash
[[ -e go ]] && exit 0
touch "started-$1"
exec tail -f /dev/null
TXT
    chmod +x prog
    submit --local=2 --grid a=1,2,3 ./prog "{a}"
    wait_for 30 test -e started-1 -a -e started-2
    [ ! -e started-3 ]
    sweep_is '1 waiting 2 running'
    run -75 --separate-stderr plsubmit --extend "$SWEEP" --grid a=9
    [[ $stderr == *'still run on this machine'* ]]
    run -2 plsubmit --hold "$SWEEP"
    plsubmit --cancel "$SWEEP/2"
    plsubmit --cancel "$SWEEP/0"
    wait_for 30 has_state 0 cancelled
    sweep_is '1 running 2 cancelled'
    [ ! -e started-3 ]
    plsubmit --cancel "$SWEEP"
    wait_for 30 executor_gone
    sweep_is '3 cancelled'
    touch go
    submit --retry "$SWEEP" --wait
    sweep_is '3 done'
    [ "$(wc -l <"$RUN/trials.jsonl")" = 3 ]
    submit --extend "$SWEEP" --grid a=1,10 --wait
    sweep_is '4 done'
    run -0 plsubmit --retry "$SWEEP"
}

@test "an executor that is killed leaves no trial that seems to run" {
    submit --local --grid a=1,2 -- bash -c 'touch started; exec tail -f /dev/null'
    wait_for 30 test -e started
    pid=$(python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["pid"])' "$RUN/local.lock")
    script=$(ps -o pid= --ppid "$pid")
    kill -KILL "$pid"
    kill -KILL -- "-${script// /}"
    wait_for 30 sweep_is '1 lost' # the one that waited; the other's daemon sees how it ends
    wait_for 30 eval '! sweep_is running'
    rm started
    submit --retry "$SWEEP"
    wait_for 30 test -e started
    pid=$(python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["pid"])' "$RUN/local.lock")
    kill -TERM "$pid" # it ends its trials
    wait_for 30 executor_gone
    has_state 0 cancelled
    sweep_is '1 cancelled 1 lost'
}

@test "--cancel ends the trials of an executor that somebody has stopped" {
    submit --local -- bash -c '>up; exec sleep 300'
    wait_for 30 test -e up
    kill -STOP "$(python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["pid"])' "$RUN/local.lock")"
    plsubmit --cancel "$SWEEP"
    wait_for 20 executor_gone
    has_state 0 cancelled
}

@test "an executor that is killed takes its trials along, and no second attempt runs beside one" {
    cat >slow <<'TXT'
#!/bin/bash
trap "" TERM
touch started
until [ -e go ]; do sleep 0.1; done
TXT
    chmod +x slow
    submit --local --setup "$PWD/slow" -- bash -c 'echo ran >>ran'
    wait_for 30 test -e started
    pid=$(python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["pid"])' "$RUN/local.lock")
    kill -KILL "$pid"
    run -0 plsubmit --retry "$SWEEP"
    [[ $output == *'1 running'* ]]
    plsubmit --cancel "$SWEEP"
    touch go
    wait_for 30 executor_gone
    [ ! -e ran ]
    submit --retry "$SWEEP" --wait
    sweep_is '1 done'
    [ "$(wc -l <ran)" = 1 ]
}

# True if a job script has begun the end of its trial, or is gone.
is_finishing() {
    local file pid child
    for file in script.*; do
        pid=$(<"$file")
        [ -d "/proc/$pid" ] || return 0
        for child in $(<"/proc/$pid/task/$pid/children"); do
            ! grep -qs -- --finish "/proc/$child/cmdline" || return 0
        done
    done
    return 1
}

@test "a signal to the job script alone does not end its trial" {
    local signals=(HUP USR1 USR2 ALRM ABRT XCPU VTALRM PROF IO PWR) i
    submit --local=10 --grid i=0,1,2,3,4,5,6,7,8,9 --setup 'echo $$ >script.$PLUME_TRIAL' -- \
        bash -c '>runs.$PLUME_TRIAL; until [ -e go ]; do sleep 0.1; done'
    for i in {0..9}; do
        wait_for 30 test -e "runs.$i"
        kill -"${signals[i]}" "$(<"script.$i")"
    done
    # bash would run its EXIT trap at once, with the status 0 of the command before.
    ! wait_until 2 is_finishing || false
    touch go
    wait_for 30 sweep_is '10 done'
    ! grep 'ended the set-up' "$RUN"/slurm-*.out || false
}

@test "SIGTERM before the trial is claimed ends it with a result" {
    # The shell signals itself just before that command.
    echo "trap '[[ \$BASH_COMMAND != PLUME_ATTEMPT=* ]] || kill -TERM \$\$' DEBUG" >home/.bash_profile
    submit --local -- bash -c '>ran'
    wait_for 30 sweep_is '1 cancelled'
    has_state 0 cancelled
    [ ! -e ran ]
}

@test "a signal while a trial ends leaves it its result" {
    # To the job script from its tear-down, and to plrun from the scontrol that it asks.
    for name in TERM HUP INT ALRM USR1 USR2; do
        submit --local --setup 'exit 3' --teardown "kill -$name \"\$(ps -o ppid= -p \"\$PPID\")\"; >torn" -- true
        wait_for 30 sweep_is '1 failed'
        has_state 0 failed
        [ -e torn ]
        rm torn
    done
    run -0 --separate-stderr plsubmit --no-submit --parsable true
    IFS=';' read -r SWEEP RUN _ <<<"$output"
    mkdir bin
    local ignored=(TERM INT QUIT HUP USR1 USR2 ALRM ABRT XCPU XFSZ VTALRM PROF IO PWR)
    printf '%s\n' '#!/bin/bash' "for n in ${ignored[*]}; do kill -\$n \$PPID; done" 'echo JobState=CANCELLED' >bin/scontrol
    chmod +x bin/scontrol
    export PLUME_RUN_DIR=$RUN PLUME_TRIAL=0 SLURM_JOB_ID=7
    # Its claim, which waits until somebody reads its number.
    run -0 python3 -c '
import os, signal, subprocess, sys, time
r, w = os.pipe()
os.set_blocking(w, False)
try:
    while True:
        os.write(w, b"." * 65536)
except BlockingIOError:
    os.set_blocking(w, True)
p = subprocess.Popen(["plrun", "--claim"], stdout=w)
os.close(w)
while not os.path.exists(sys.argv[1]) and p.poll() is None:
    time.sleep(0.01)
for name in sys.argv[2:]:
    p.send_signal(getattr(signal, "SIG" + name))
with os.fdopen(r, "rb") as f:
    number = f.read().strip(b".")
print(p.wait(), number)' "$RUN/trial-0000/attempt-0/claim" "${ignored[@]}"
    [ "$output" = "0 b'0\\n'" ]
    PLUME_ATTEMPT=0
    PATH=$PWD/bin:$PATH PLUME_ATTEMPT=$PLUME_ATTEMPT run plrun --finish 143
    has_state 0 cancelled
}

@test "a trial that saves and ends with 0 when it is cancelled is not done" {
    submit --local -- bash -c 'trap "exit 0" TERM; >up; until [ -e go ]; do sleep 0.1; done'
    wait_for 30 test -e up
    plsubmit --cancel "$SWEEP"
    wait_for 30 sweep_is '1 cancelled'
    has_state 0 cancelled
}

@test "a rank of two that gets SIGTERM alone takes the other along, which does not obey" {
    submit --local --ntasks-per-node 2 -- \
        bash -c '((RANK)) && trap "" TERM; echo $PPID $$ >up.$RANK; until [ -e go ]; do sleep 0.1; done'
    wait_for 30 test -s up.0 -a -s up.1
    # Of plrun, as by somebody who wants memory: no executor ends what is left.
    read -r guard _ <up.0
    read -r _ other <up.1
    kill -TERM "$guard"
    wait_for 30 is_no_process "$other"
    wait_for 30 sweep_is '1 cancelled'
}

@test "what has no effect without Slurm is refused, and without Slurm --local is named" {
    for args in '--after x' '--requeue-on timeout' '-t 10' '-p main' '--sbatch hold' '--srun mpi=none' \
        '--max-parallel 2' '-d singleton' '-N 2-3' '-N 2 -n 1' '-N 2 -n 3 --gpus 3'; do
        # shellcheck disable=SC2086 # words
        run --separate-stderr plsubmit --local $args true
        ((status == 2 || status == 3))
        [ "${#stderr_lines[@]}" = 1 ]
        [ ! -e runs ]
    done
    run --separate-stderr plsubmit true
    [[ $stderr == *'--local runs the trials on this machine'* ]]
}

@test "--max-fail, --env-file and a failing set-up" {
    echo 'A=$(touch ran)' >f.env
    chmod 600 f.env
    submit --local --max-fail 0 --env-file f.env --grid i=1,2,3 --ntasks-per-node 2 -- \
        bash -c 'printf "%s" "$A"; ((RANK == 0))'
    wait_for 30 sweep_is '1 failed 2 cancelled'
    [ "$(<"$RUN/trial-0000/attempt-0/rank-1.out")" = '$(touch ran)' ]
    [ ! -e ran ]
    wait_for 30 executor_gone
    submit --local --setup 'exit 0' true
    wait_for 30 has_state 0 failed
}

@test "what a user's file sets for Slurm does not matter here" {
    mkdir home/.plume
    printf 'requeue-on: error\npartition: gpu\ntime: 10\n' >home/.plume/plsubmit.yaml
    submit --local false
    wait_for 30 has_state 0 failed
    wait_for 30 executor_gone
    [ ! -e "$RUN/trial-0000/requeues.json" ]
    run -1 grep -q not_requeued "$RUN/trial-0000/result.json"
}

@test "--venv and --conda choose the Python, and what is missing is named" {
    python3 -m venv --without-pip "it's"
    submit --local --venv "it's" --wait python -c 'import sys; print(sys.prefix)'
    [ "$(<"$RUN/trial-0000/attempt-0/rank-0.out")" = "$WORK/it's" ]
    [[ $(plstat show --json "$SWEEP") == *"\"program\":\"$WORK/it's/bin/python\""* ]]
    # An environment that is gone when the trial starts.
    submit --local --no-submit --venv "it's" python -c 1
    mv "it's" moved
    plsubmit --resume "$SWEEP" --wait || true
    [[ $(plstat why "$SWEEP") == *"exit code 1 at: source '$WORK/it"* ]]
    run -2 --separate-stderr plsubmit --local --venv "it's" python
    [ "$stderr" = "plsubmit: --venv: '$WORK/it's' is not an environment of venv or uv: it has no bin/activate" ]
    # One that was copied activates the one of which it is a copy.
    run -1 --separate-stderr plsubmit --local --venv moved --wait sh -c 'python -c 1'
    [[ $(plstat why last) == *"it was made as '$WORK/it's', and was moved or copied: make it anew"* ]]
    rm moved/bin/python
    ln -s /nonexistent/python moved/bin/python
    run -2 --separate-stderr plsubmit --local --venv moved python
    [ "$stderr" = "plsubmit: --venv: '$WORK/moved/bin/python' cannot run: make it anew" ]
    # conda itself is a stand-in: it prints a shell function, and fails as conda does.
    mkdir -p bin envs/train/bin envs/train/conda-meta
    cat >bin/conda <<'TXT'
#!/bin/bash
[ "$*" = 'shell.bash hook' ] || exit 2
echo "root=$PWD/envs"
cat <<'HOOK'
conda() {
    local env=$2
    [[ $env == */* ]] || env=$root/$env
    [ "$1" = activate ] && [ -d "$env" ] || { echo "EnvironmentNameNotFound: Could not find conda environment: $2" >&2; return 1; }
    export CONDA_PREFIX=$env PATH=$env/bin:$PATH
}
HOOK
TXT
    printf '#!/bin/sh\necho "$CONDA_PREFIX"\n' >envs/train/bin/train
    chmod +x bin/conda envs/train/bin/train
    for env in train ./envs/train; do
        CONDA_EXE=$WORK/bin/conda submit --local --conda "$env" --wait train
        [[ $(<"$RUN/trial-0000/attempt-0/rank-0.out") =~ ^$WORK/(./)?envs/train$ ]]
    done
    CONDA_EXE=$WORK/bin/conda run -1 --separate-stderr plsubmit --local --conda other --wait train
    [[ $(plstat why last) == *'EnvironmentNameNotFound: Could not find conda environment: other'* ]]
    run -1 --separate-stderr plsubmit --local --conda other --wait train
    [[ $(plstat why last) == *'conda: command not found'* ]]
    run -2 --separate-stderr plsubmit --local --venv envs/train train
    [ "$stderr" = "plsubmit: --venv: '$WORK/envs/train' is an environment of conda: write --conda" ]
    run -2 --separate-stderr plsubmit --local --conda ./moved train
    [[ $stderr == *'is not an environment of conda: it has no conda-meta: write --venv' ]]
    run -2 --separate-stderr plsubmit --local --conda=-h train
    [ "$stderr" = "plsubmit: --conda: '-h' is not an environment: its name begins with -" ]
    run -2 --separate-stderr plsubmit --conda a --venv b train
    [ "$stderr" = 'plsubmit: --venv and --conda both give the program a Python: omit one of them' ]
}

@test "--on-end runs once after all trials of --local, cancelled ones, too" {
    submit --local --grid a=1,2 --on-end 'echo "$PLUME_SWEEP_DONE $PLUME_SWEEP_FAILED $PLUME_SWEEP_TRIALS" >>ended; sleep 200 & echo $! >left; kill -9 $$' \
        -- sh -c 'touch started; until [ -e go ]; do sleep 0.1; done'
    wait_until 30 test -e started
    plsubmit --cancel "$SWEEP/1"
    touch go
    wait_until 30 sweep_is '! --on-end: SIGKILL: see on-end.out in the run folder'
    [ "$(<ended)" = "1 0 2" ]
    wait_until 10 is_no_process "$(<left)"
    sweep_is '2 trials: 1 done 1 cancelled'
    submit --retry "$SWEEP"
    wait_until 30 test -s "$RUN/ends/2.json"
    wait_until 30 grep -q signal "$RUN/ends/2.json"
    [ "$(tail -n +2 ended)" = "2 0 2" ]
}
