#!/usr/bin/env bats
# SPDX-License-Identifier: MIT
# Plain srun --plume with the real node daemon: the same environment, output, status and clean-up as
# through plrun.

load ../lib/cluster
load ../lib/spank

setup_file() {
    cluster_up 4
}

teardown_file() {
    cluster_down
}

setup() {
    work_dir
    use_plugin
}

teardown() {
    scancel_all
    all_well
}

# json FILTER: of the document on stdin, by Python.
json() {
    python3 -c 'import json, sys; d = json.load(sys.stdin); print(eval(sys.argv[1]))' "$1"
}

# job_named NAME: the number of a job in the queue.
job_named() {
    squeue -h -n "$1" -o %A
}

# steps: the run folders of bare steps, newest first.
steps() {
    ls -td "$WORK_BASE"/home/.plume/steps/*
}

# all_up N: so many ranks have written a line into the file `up`.
all_up() { [ "$(wc -l 2>/dev/null <up)" = "$1" ]; }

# last_job: the job that the newest of them names.
last_job() {
    local dir
    dir=$(steps | head -n 1)
    dir=${dir##*/}
    echo "${dir%%.*}"
}

# srun -Q: that a job waits for the last one's end is no news here.

@test "the ranks' environment is as through plrun" {
    cat >job.sh <<'TXT'
srun -o plrun-%t plrun -- env -0
srun -o plume-%t --plume env -0
TXT
    as_user salloc -Q -N2 -n5 -c2 bash job.sh
    for rank in 0 1 2 3 4; do
        run diff <(sort -z "plrun-$rank" | tr '\0' '\n') <(sort -z "plume-$rank" | tr '\0' '\n')
        echo "$output"
        # What differs from step to step, and how the rank was started.
        [ "$(grep '^[<>]' <<<"$output" | sed 's/^. //; s/=.*//' | sort -u | grep -vE \
            '^SLURM_(STEP_?ID|STEP_LAUNCHER_PORT|SRUN_COMM_PORT|TASK_PID)$' | tr '\n' ' ')" = \
            'JAX_COORDINATOR_ADDRESS MASTER_PORT NCCL_RAS_ADDR PLUME_RUNTIME PLUME_RUN_DIR PLUME_SOCKET ' ]
        grep -zqx 'PLUME_RUNTIME=plugin' "plume-$rank"
        grep -zqx "RANK=$rank" "plume-$rank"
        grep -zqx 'OMP_NUM_THREADS=2' "plume-$rank"
    done
    [ "$(cat plume-? | tr '\0' '\n' | grep '^MASTER_PORT=' | sort -u | wc -l)" = 1 ]
}

# slurmstepd runs these scripts after all of a plugin's hooks, and before the program: what they export
# is the task's last word, in plain Slurm, too. plrun is the program then, and replaces it.
@test "a TaskProlog's exports win under the plugin, which tells that, and not under plrun" {
    printf '#!/bin/sh\necho export RANK=99\necho export MASTER_PORT=1\necho export SITE=yes\n' >prolog
    chmod 755 prolog
    as_user timeout 60 srun -Q -N2 -n4 --task-prolog="$PWD/prolog" --plume \
        sh -c 'echo "$RANK $MASTER_PORT $SITE $WORLD_SIZE"; until [ -e go ]; do sleep 0.1; done' >out 2>err 3>&- &
    told() { [ "$(grep -cE '^plume: node n[0-9]: warning: rank [0-3] has RANK=99 instead of [0-3], MASTER_PORT=1 instead of [0-9]+: a TaskProlog' err)" = 2 ]; }
    wait_for 30 told
    run -0 as_user plstat "$(last_job)"
    grep -E '^! rank [0-3] has RANK=99 instead of [0-3], MASTER_PORT=1' <<<"$output"
    touch go
    wait
    [ "$(sort -u out)" = '99 1 yes 4' ]
    [ "$(wc -l <err)" = 2 ]
    run -0 as_user timeout 60 srun -Q -N2 -n2 --task-prolog="$PWD/prolog" plrun -- \
        sh -c '[ "$MASTER_PORT" != 1 ] && echo "$RANK $SITE $WORLD_SIZE"'
    [ "$(sort <<<"$output")" = $'0 yes 2\n1 yes 2' ]
}

@test "96 ranks on 4 nodes have one world" {
    run -0 --separate-stderr as_user srun -Q --plume -N4 -n96 bash -c \
        'echo $RANK $WORLD_SIZE $MASTER_ADDR:$MASTER_PORT'
    [ "$(cut -d' ' -f1 <<<"$output" | sort -n)" = "$(seq 0 95)" ]
    [ "$(cut -d' ' -f2- <<<"$output" | sort -u | wc -l)" = 1 ]
}

@test "with plrun in between the rank is the same" {
    run -0 --separate-stderr as_user srun -Q --plume -N2 -n4 plrun -- bash -c \
        'echo $RANK $WORLD_SIZE $PLUME_RUNTIME'
    [ "$(sort <<<"$output")" = "$(printf '%s 4 plugin\n' 0 1 2 3)" ]
    # The second component has a job number of its own, which SLURM_JOB_ID does not tell.
    run -0 --separate-stderr as_user salloc -Q -N1 -n1 : -N1 -n2 srun -Q --plume --het-group=1 \
        plrun -- bash -c 'echo $RANK $WORLD_SIZE $PLUME_RUNTIME'
    [ "$(sort <<<"$output")" = "$(printf '%s 2 plugin\n' 0 1)" ]
}

@test "stdout, stderr and the rank files hold exactly the output" {
    # shellcheck disable=SC2016 # the task's
    program='head -c 300000 /dev/urandom >data-$RANK; cat data-$RANK; cat data-$RANK >&2; printf end'
    as_user srun -Q --plume -J out -N2 -n4 -o out-%t -e err-%t bash -c "$program"
    dir=$(steps | head -n 1)/trial-0000/attempt-0
    for i in 0 1 2 3; do
        cmp "err-$i" "data-$i" || { head -c 300 "err-$i" | cat -v; false; } # a line that is not the rank's
        cmp "out-$i" <(cat "data-$i" && printf end)
        cmp "$dir/rank-$i.err" "data-$i"
        cmp "$dir/rank-$i.out" "out-$i"
    done
}

@test "labels and order of a stream's lines are plain srun's" {
    for plume in '' --plume; do
        # shellcheck disable=SC2086,SC2016
        as_user srun -Q -l $plume -N2 -n4 bash -c \
            'for i in {1..200}; do echo "out $i"; echo "err $i" >&2; done' >"o$plume" 2>"e$plume"
    done
    for i in 0 1 2 3; do
        for stream in o e; do
            cmp <(grep "^$i: " "$stream") <(grep "^$i: " "$stream--plume")
        done
    done
    [ "$(wc -l <o--plume)" = 800 ]
}

@test "a terminal stays one" {
    run -0 --separate-stderr as_user env SHELL=/bin/sh script -qec \
        "srun --plume --pty bash -c 'test -t 0 -a -t 1 -a -t 2 && echo terminal \$RANK \$WORLD_SIZE'" \
        /dev/null
    [[ $output == *'terminal 0 1'* ]]
}

@test "a terminal gets what the first node's daemon says" {
    # shellcheck disable=SC2016 # the daemon's
    printf '#!/bin/sh\necho "plrund: warning: from $SLURMD_NODENAME" >&2\nexec "%s" "$@"\n' \
        "$PLUME_SRC/build/plrund" >says
    chmod 755 says
    use_plugin "plrund=$PWD/says"
    run -0 --separate-stderr as_user env SHELL=/bin/sh script -qec "srun -Q --plume --pty -N2 -n2 true" /dev/null
    [ "$(grep -c 'plume: node n[0-9]: warning: from n[0-9]' <<<"$output")" = 1 ]
    run -0 --separate-stderr as_user srun -Q --plume -N2 -n2 true
    [ "$(grep -c 'plume: node n[0-9]: warning: from n[0-9]' <<<"$stderr")" = 2 ]
}

@test "plstat shows the ranks and the metrics of a running step" {
    as_user srun -Q --plume -J live --plume-metric='loss=loss: ([0-9.]+)' -N2 -n4 bash -c \
        'echo "loss: 1.$RANK"; exec tail -f /dev/null' &
    metrics_there() {
        [ "$(as_user plstat show --json "$(job_named live)" 2>/dev/null |
            json '[r.get("metrics", {}).get("loss") for r in d["ranks"]]')" = '[1.0, 1.1, 1.2, 1.3]' ]
    }
    wait_for 20 metrics_there
    run -0 --separate-stderr as_user plstat show --json "$(job_named live)"
    [ "$(json '[r["state"] for r in d["ranks"]]' <<<"$output")" = "$(json '["running"] * 4' <<<'{}')" ]
    scancel -n live
    wait $! || true
}

@test "a rank that fails is the cause, with its words; the step's code is its own" {
    run -3 --separate-stderr as_user srun -Q --plume -J why -N2 -n4 bash -c '
        [[ $RANK != 2 ]] || { echo "ValueError: boom" >&2; exit 3; }; exit 0'
    run -0 --separate-stderr as_user plstat why --json "$(last_job)"
    [ "$(json 'd["cause"]["rank"], d["cause"]["kind"], d["cause"]["exit"], d["cause"]["text"]' \
        <<<"$output")" = "(2, 'exit', 3, 'ValueError: boom')" ]
}

@test "a rank that segfaults is the cause" {
    run -139 --separate-stderr as_user srun -Q --plume -N2 -n4 bash -c \
        '[[ $RANK != 1 ]] || kill -SEGV $$'
    run -0 --separate-stderr as_user plstat why --json "$(last_job)"
    [ "$(json 'd["cause"]["rank"], d["cause"]["kind"], d["cause"]["signal"]' <<<"$output")" = \
        "(1, 'signal', 11)" ]
}

@test "the others end when one rank fails" {
    start=$(now_ms)
    run --separate-stderr as_user srun -Q --plume -N2 -n4 bash -c \
        '[[ $RANK != 0 ]] || exit 3; exec tail -f /dev/null'
    ((status != 0))
    (($(now_ms) - start < 20000))
}

@test "scancel ends all of it" {
    as_user srun -Q --plume -J cancel -N2 -n4 bash -c 'echo up >>up; exec tail -f /dev/null' &
    wait_for 20 all_up 4
    scancel -n cancel
    rc=0
    wait $! || rc=$?
    [ "$rc" = 143 ]
}

@test "ranks that outlive scancel's SIGTERM are cancelled" {
    as_user srun -Q --plume -J outlives -N1 -n2 bash -c 'trap "" TERM; echo up >>up; exec tail -f /dev/null' &
    wait_for 20 all_up 2
    scancel -n outlives
    rc=0
    wait $! || rc=$?
    [ "$rc" = 137 ]
    result=$(steps | head -n 1)/trial-0000/result.json
    wait_for 20 test -s "$result"
    [ "$(json 'd["exit_code"], d["state"], d["cause"]["confidence"]' <"$result")" = "(137, 'cancelled', 'inferred')" ]
}

@test "a child that a rank leaves behind is ended" {
    run -0 --separate-stderr as_user srun -Q --plume -n1 bash -c \
        'setsid tail -f /dev/null </dev/null >/dev/null 2>&1 & echo $! >left'
    gone() { ! pid_start "$(<left)" >/dev/null; }
    wait_for 10 gone
}

@test "the result is there once srun has ended" {
    run -0 as_user srun -Q --plume -n1 true
    [ "$(json 'd["exit_code"], d["state"]' <"$(steps | head -n 1)/trial-0000/result.json")" = "(0, 'done')" ]
    # The other ranks are ended: srun's code is theirs.
    run as_user srun -Q --plume -N3 -n3 bash -c '((RANK == 2)) && exit 3; exec tail -f /dev/null'
    [ "$(json 'd["exit_code"], d["state"]' <"$(steps | head -n 1)/trial-0000/result.json")" = "(3, 'failed')" ]
}

@test "two steps of a job at once do not mix" {
    run -0 --separate-stderr as_user salloc -Q -N2 -n4 bash -c '
        for i in 1 2; do
            srun --plume -N2 -n2 --exact bash -c "echo \$RANK \$WORLD_SIZE \$MASTER_PORT" >step-$i &
        done
        wait'
    for i in 1 2; do
        [ "$(cut -d' ' -f1,2 "step-$i" | sort)" = "$(printf '0 2\n1 2')" ]
        [ "$(cut -d' ' -f3 "step-$i" | sort -u | wc -l)" = 1 ]
    done
    [ "$(cut -d' ' -f3 step-1 step-2 | sort -u | wc -l)" = 2 ]
}

@test "a range for MASTER_PORT is kept to" {
    run -0 --separate-stderr as_user srun -Q --plume --plume-master-port=9700-9799 -N2 -n2 bash -c \
        'echo $MASTER_PORT'
    ((lines[0] >= 9700 && lines[0] <= 9799))
    [ "${lines[0]}" = "${lines[1]}" ]
}

@test "NCCL_DEBUG is set by the option" {
    export NCCL_DEBUG=WARN
    run -0 --separate-stderr as_user srun -Q --plume --plume-nccl-debug=info -n1 printenv NCCL_DEBUG
    [ "$output" = INFO ]
    run -0 --separate-stderr as_user srun -Q --plume -n1 printenv NCCL_DEBUG
    [ "$output" = WARN ]
}

@test "the engine trains under plain srun" {
    [ -x "$PLUME_SRC/build/pltrain" ] || skip 'no pltrain in this build'
    run -0 --separate-stderr as_user srun -Q --plume -N2 -n4 pltrain mlp --lr 1e-2 --epochs 1
    trained() {
        [ "$(as_user plstat show --json "$(last_job)" | json 'd["world_size"], d["state"]')" = "(4, 'done')" ]
    }
    wait_for 20 trained # srun may be back before the daemon has written the result
}

# nested N: a rule whose expression has N groups, one in the other.
nested() {
    python3 -c 'import sys; n = int(sys.argv[1]); print("loss=" + "(" * n + "a" + ")" * n)' "$1"
}

# refused_by_node TEXT VARIABLE=VALUE: a step that srun lets pass is refused on the node: within 30 s
# the user reads TEXT, and no program runs. all_well() then looks at the nodes.
refused_by_node() {
    local start
    start=$(now_ms)
    run -1 --separate-stderr as_user env "$2" timeout 60 srun -Q --plume -N2 -n2 echo ran
    echo "${stderr:0:2000}"
    (($(now_ms) - start < 30000))
    [ "$output" = '' ]
    [[ $stderr == *"plume: node n"[1-4]": "*"$1"* ]]
}

# srun looks at its command line; these variables go to slurmstepd unseen, as from a changed srun.
@test "options that srun did not check end the step with the reason, and harm no node" {
    option=_SLURM_SPANK_OPTION_plume_plume
    refused_by_node 'is longer than' "${option}_metric=$(nested 25000)"
    refused_by_node 'is longer than' "${option}_metric=$(nested 1000)"
    refused_by_node 'nests deeper than 64' "${option}_metric=$(nested 100)"
    refused_by_node 'Unmatched (' "${option}_metric=loss=("
    refused_by_node 'is not of the form NAME=REGEX' "${option}_metric=loss"
    refused_by_node 'is longer than' "PLUME_METRIC=$(nested 25000)"
    refused_by_node 'too large' "PLUME_METRIC=loss=a{9999}{9999}"
    refused_by_node 'is not a port or a port range' "${option}_master_port=x"
    refused_by_node 'is not a level of NCCL_DEBUG' "${option}_nccl_debug=LOUD"
    while read -r name pid _; do
        [[ $name != n[1-4] ]] || kill -0 "$pid"
    done <"$CLUSTER_DIR/pids"
}

@test "as root too" {
    need_root
    run -0 --separate-stderr env HOME="$WORK" srun -Q --plume -N2 -n2 bash -c 'echo $RANK $UID'
    [ "$(sort <<<"$output")" = "$(printf '0 0\n1 0')" ]
}

@test "a full disk: the step's stderr and plstat tell what is cut, and the output is whole" {
    mkdir disk && mount -t tmpfs -o size=1m tmpfs disk || skip 'no file system can be mounted'
    mkdir -m 777 disk/work
    export PLUME_HOME=$WORK/disk/work/home
    for code in 0 3; do
        run as_user timeout 60 srun -Q --plume -N2 -n4 -o out-%t -e err-%t bash -c \
            "head -c 1000000 /dev/zero; echo two >&2; echo end; exit $code"
        [ "$status" = "$code" ]
        cat err-* | tee err # one file of all would be out-%t in Slurm 26.05
        for i in 0 1 2 3; do
            [ "$(wc -c <"out-$i")" = 1000004 ]
        done
        # The numbers are those of what is missing.
        lacking=0
        while read -r n; do
            ((lacking += n))
        done < <(sed -nE 's/.*plume: node n[0-9]: .* lacks? ([0-9]+) bytes .*: No space left on device$/\1/p' err)
        [ "$lacking" = $((4 * 1000008 - $(cat disk/work/home/steps/*/trial-0000/attempt-0/rank-* | wc -c))) ]
        (($(grep -c 'plume: node ' err) <= 4))
        run as_user plstat why "$(ls disk/work/home/steps)"
        grep -E '^! rank-[0-3].(out|err) lacks output: No space left on device' <<<"$output"
        rm -rf disk/work/home
    done
    umount -l disk
}

@test "the reason why a step cannot start is told once per node, and nothing else" {
    mkdir -m 700 home && mkdir -m 500 home/steps
    ((EUID != 0)) || chown -R "$PLAIN_UID" home
    export PLUME_HOME=$WORK/home
    run -1 as_user timeout 60 srun -Q --plume -N2 -n4 true
    echo "$output"
    for node in n1 n2; do
        [ "$(grep -c "plume: node $node: " <<<"$output")" = 1 ]
        grep "plume: node $node: .*cannot create run folder '$PLUME_HOME/steps/.*': Permission denied" <<<"$output"
    done
}

@test "a step without a result: its stderr has the end, whichever node leaves last" {
    for first in 0 1; do
        export PLUME_HOME=$WORK/home-$first
        run as_user timeout 60 srun -Q --plume -N2 -n2 bash -c "((RANK == $first)) && exit
            mv $PLUME_HOME/steps/* $PLUME_HOME/away; exit 3"
        echo "$output"
        [ "$status" = 3 ]
        grep "plume: node n.: .*this attempt is failed, by its cause 'exit': rank $((1 - first)) on n" <<<"$output"
    done
}
