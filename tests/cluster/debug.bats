#!/usr/bin/env bats
# SPDX-License-Identifier: MIT
# The commands of doc/debug.md, taken from its text and run as they stand there.

load ../lib/cluster
load ../lib/runtime

PAGE=$PLUME_SRC/doc/debug.md

setup_file() {
    cluster_up 2
    # What the page's user has: a python, its own program, and the tools in PATH.
    mkdir "$WORK_BASE/bin"
    ln -s /usr/bin/python3 "$WORK_BASE/bin/python"
    export PATH=$WORK_BASE/bin:$PATH
}

teardown_file() {
    cluster_down
}

setup() {
    work_dir
    export PLUME_HOME=$WORK/home
    cat >train.py <<'PY'
import os
import signal

rank = int(os.environ["RANK"])
print("NCCL_DEBUG=%s NCCL_SOCKET_IFNAME=%s" % (os.environ.get("NCCL_DEBUG"), os.environ.get("NCCL_SOCKET_IFNAME")))


def hang_here():
    open("job", "w").write(os.environ["SLURM_JOB_ID"])
    open("pid.%d" % rank, "w").write("%d\n" % os.getpid())
    while True:
        signal.pause()


if os.environ.get("DO") == "segv" and rank == 0:
    os.kill(os.getpid(), signal.SIGSEGV)
if os.environ.get("DO"):
    hang_here()
PY
    printf '#!/bin/sh\necho trained\n' >train
    chmod 0755 train train.py
    chmod 0777 .
}

teardown() {
    scancel_all
}

# lines SECTION PATTERN: the commands of a section that match; a line that ends with \ has its next one.
lines() {
    awk -v section="## $1." -v pattern="$2" '
        /^## / { inside = index($0, section) == 1 }
        inside && /^    / {
            sub(/^    /, "")
            whole = whole $0 "\n"
            if (/\\$/) next
            if (whole ~ pattern) { printf "%s", whole; found = 1 }
            whole = ""
        }
        END { exit !found }' "$PAGE"
}

# typed SECTION PATTERN [NAME VALUE]...: these lines run as the user, each NAME replaced.
typed() {
    local text
    text=$(lines "$1" "$2") || {
        printf 'section %s has no command with %s\n' "$1" "$2" >&2
        return 1
    }
    shift 2
    while (($#)); do
        text=${text//"$1"/"$2"}
        shift 2
    done
    printf '+ %s\n' "$text"
    as_user timeout -k 5 100 bash -c "$text" 3>&- 2>&1
}

# hanging SRUN-OPTION...: a step whose ranks wait in train.py; JOB is its id, by its own word: the queue may
# still have the job of the test before.
hanging() {
    DO=hang as_user timeout -k 5 100 srun "$@" >srun.out 2>srun.err 3>&- &
    wait_for 60 all_hang "${2#-n}"
    JOB=$(<job)
}

all_hang() {
    [[ $(cat pid.* 2>/dev/null | wc -l) == "$1" ]]
}

@test "section 1: the cause, the ranks, the files" {
    as_user timeout 100 srun -N2 plrun -- bash -c 'echo $SLURM_JOB_ID >job; [ $RANK = 0 ] || exit 3; sleep 60' \
        3>&- >/dev/null 2>&1 || true
    JOB=$(<job)
    run -0 typed 1 '^plstat why' JOB "$JOB"
    [[ $output == *'rank 1'*'exit 3'* ]]
    run -0 typed 1 'show -a JOB' JOB "$JOB"
    [[ $output == *' 1 '*'failed'* ]]
    run -0 typed 1 'jq' JOB "$JOB"
    folder=${lines[-1]//\"/}
    [ -d "$folder" ]
}

@test "section 3: NCCL_DEBUG and the interface reach the ranks in each way" {
    run -0 typed 3 '^srun -N2 plrun --nccl-debug'
    [[ $output == *NCCL_DEBUG=INFO* ]]
    run -0 typed 3 '^srun -N2 --plume'
    [[ $output == *NCCL_DEBUG=INFO* ]]
    run -0 typed 3 '^plsubmit'
    wait_for 60 queue_is_empty
    grep -rqs NCCL_DEBUG=INFO --include='*.out' .
    run -0 typed 3 'ip -br addr'
    [[ $output == *lo* ]]
    run -0 typed 3 'nccl-ifname'
    [[ $output == *'NCCL_SOCKET_IFNAME=^docker0,lo'* ]]
}

@test "section 4: the fault handler tells where Python crashed, and where it hangs" {
    DO=segv run ! typed 4 '^PYTHONFAULTHANDLER'
    [[ $output == *'Segmentation fault'* ]]
    hanging -N2 -n2 plrun -- env PYTHONFAULTHANDLER=1 python train.py
    rm -f pid.*
    scancel_all
    wait_for 60 queue_is_empty

    hanging -N2 -n4 plrun -- env PYTHONFAULTHANDLER=1 python train.py
    NODE=$(as_user plstat show "$JOB" --json | jq -r '.ranks[3].node')
    [ -n "$NODE" ]
    block=$(lines 4 '^read')$'\n'$(lines 4 'kill -ABRT')
    as_user timeout 60 bash -c "${block//JOB/$JOB}"
    wait_for 60 queue_is_empty
    run typed 4 '^plstat why' JOB "$JOB"
    [[ $output == *'rank 3'*hang_here* ]]
}

@test "section 5: gdb on rank 3" {
    command -v gdb >/dev/null || fail_without gdb
    hanging -N2 -n4 plrun -- python train.py
    block=$(lines 5 '^read')$'\n'$(lines 5 'thread apply all bt')
    run as_user timeout 100 bash -c "${block//JOB/$JOB}"
    printf '%s\n' "$output"
    [[ $output == *'#0 '* ]]
}

fail_without() {
    printf '%s is not installed: ./dev deps test\n' "$1" >&2
    return 1
}

@test "section 6: whose process is it?" {
    hanging -N2 -n2 plrun -- python train.py
    run -0 typed 6 '^plstat ghosts.$'
    [[ $output == *" $JOB alive "* ]]
    run -0 typed 6 'plstat ghosts --job' JOB "$JOB"
    [[ $output == *" $JOB alive "* ]]
    run -4 typed 6 'plstat ghosts --end' PID... "$(<pid.1)"
    [[ $output == *"its job $JOB has not ended"* ]]
}

@test "section 8: logs, events, traces, the cluster" {
    run -0 typed 8 'debug:net,child'
    [[ $output == *trained* && $output == *debug* ]]
    run -0 typed 8 'LOG_FORMAT=json'
    head -n 1 log | jq -e . >/dev/null
    run -0 typed 8 '^PLUME_TRACE'
    run -0 typed 8 '^sort'
    [[ $output == *'"plrund"'* ]]
    folders=("$PLUME_HOME"/steps/*)
    folder=${folders[-1]}
    run -0 typed 8 'events.jsonl' runs/SWEEP "$folder"
    [[ $output == *'"exit"'* || $output == *'"state"'* ]]
    hanging -N2 -n2 plrun -- python train.py
    run -0 typed 8 '^ps'
    [[ $output == *plrun* ]]
    run -0 bash -c "cd '$PLUME_SRC' && ./dev cluster status --name '$PLUME_CLUSTER'"
}
