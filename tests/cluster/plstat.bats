#!/usr/bin/env bats
# SPDX-License-Identifier: MIT
# plstat on a real Slurm: through the hub, from status.json, afterwards, and from Slurm alone.

load ../lib/cluster

setup_file() {
    cluster_up 4
}

teardown_file() {
    cluster_down
}

setup() {
    work_dir
    export PLUME_HOME=$WORK/plume
    as_user mkdir -m 0700 "$PLUME_HOME"
    # Reports a loss at once and then again until it is told to end.
    cat >train <<'TXT'
#!/usr/bin/env bash
echo "step=1 loss=0.5"
trap 'exit 143' TERM # not 0: a trial that is done stays so, whatever Slurm does with its job
for ((i = 2; i < 600; i++)); do
    [[ ! -e $GO ]] || exit "${CODE:-0}"
    echo "step=$i loss=0.$((1000 - i))"
    read -rt 0.1 <> <(:) || true
done
TXT
    chmod 0755 train
    export GO=$WORK/go
}

teardown() {
    scancel_all
    wait_until 20 queue_is_empty || true
    umount -l "$WORK/disk" 2>/dev/null || true
}

# json FILTER: FILTER of the document d on stdin.
json() {
    python3 -c 'import json, sys
d = json.load(sys.stdin)
print(eval(sys.argv[1]))' "$1"
}

# told FILTER COMMAND [ARG...]: FILTER of the document that plstat COMMAND prints.
told() {
    local filter=$1
    shift
    as_user plstat "$@" --json | json "$filter"
}

# is VALUE FILTER COMMAND [ARG...]
is() {
    LAST=$(told "$2" "${@:3}")
    [[ $LAST == "$1" ]]
}

# soon VALUE FILTER COMMAND [ARG...]: becomes true; Slurm's answer may be five seconds old.
soon() {
    wait_for 60 is "$@" || {
        printf 'it is: %s\n' "$LAST" >&2
        return 1
    }
}

# job_known: a job of ours is there.
job_known() {
    [[ -n $(timeout 20 squeue -h -o %A) ]]
}

# submit ARG...: sets SWEEP, RUN and JOB.
submit() {
    local line
    line=$(as_user plsubmit --parsable --metric 'loss=loss=([0-9.]+)' "$@")
    IFS=';' read -r SWEEP RUN JOB <<<"$line"
}

@test "live through the hub, with an event log that cannot be read" {
    submit --grid a=1 -N 4 "$WORK/train"
    soon 4 'sum("loss" in r["metrics"] for r in d["ranks"])' show "$SWEEP"
    chmod 000 "$RUN"/trial-0000/attempt-0/{events,metrics}.jsonl
    run -0 as_user plstat show "${JOB}_0"
    [[ ${lines[0]} == "${JOB}_0  $SWEEP  running "*"4 nodes 4 ranks  attempt 1" ]]
    [ "${lines[2]}" = 'live, from the hub' ]
    [ "$(told 'd["source"], d["partial"]' show "$SWEEP")" = "('hub', False)" ]
    [ "$(told 'sorted(r["rank"] for r in d["ranks"])' show "$SWEEP")" = '[0, 1, 2, 3]' ]
    [ "$(told 'all(r["state"] == "running" and r["pid"] > 0 and r["node"] for r in d["ranks"])' \
        show "$SWEEP")" = True ]
    run -0 as_user plstat sweep "$JOB"
    [[ $output == *"running ${JOB}_0"* ]]
    run -0 as_user plstat
    [[ $output == *"$SWEEP"*running* ]]
}

@test "status.json where the hub does not answer, with its age" {
    submit --grid a=1 -N 2 "$WORK/train"
    soon running 'd["ranks"][1]["state"]' show "$SWEEP"
    # Another key: to the hub we are strangers.
    as_user sh -c 'head -c 32 /dev/zero >"$0" && chmod 0600 "$0"' "$WORK/wrong-key"
    PLUME_KEY_FILE=$WORK/wrong-key run -0 --separate-stderr as_user plstat show "$SWEEP"
    [[ $output == *'s ago, from status.json'* ]]
    [[ $stderr == *"from status.json" ]]
    [ "${#lines[@]}" -ge 4 ]
}

@test "what failed is told from the folder, with Slurm and the hub gone" {
    CODE=3 submit --grid a=1,2 -N 2 "$WORK/train"
    soon running 'd["trials"][1]["state"]' sweep "$SWEEP"
    touch "$GO"
    job_wait "$JOB"
    export SLURM_CONF=$WORK/nonexistent
    run -0 as_user plstat sweep "$SWEEP"
    [[ ${lines[0]} == "$SWEEP  failed  2 trials: 2 failed"* ]]
    run -1 as_user plstat sweep "$SWEEP" --check
    run -0 as_user plstat why "$SWEEP"
    [[ $output == *'CAUSE rank '*' (n'*', pid '*'): exit 3'* ]]
    run -0 as_user plstat why "${JOB}_1" --json
    [ "$(json 'd["cause"]["kind"], d["cause"]["exit"], d["state"], d["job"]' <<<"$output")" = \
        "('exit', 3, 'failed', '${JOB}_1')" ]
    run -0 as_user plstat show "$SWEEP/0"
    [[ $output == *'exit 3'* ]]
}

@test "what Slurm knows better: cancelled, and put back into the queue" {
    submit --grid a=1,2 -N 1 "$WORK/train"
    soon "['running', 'running']" '[t["state"] for t in d["trials"]]' sweep "$SWEEP"
    soon 2 'len([r for r in d["ranks"] if r["state"] == "running"])' show "$SWEEP"
    as_user scancel "${JOB}_0"
    as_user scontrol requeuehold "${JOB}_1"
    # Slurm's answer may be five seconds old.
    soon "['cancelled', 'waiting']" '[t["state"] for t in d["trials"]]' sweep "$SWEEP"
    [ "$(told 'd["cause"]["kind"], d["cause"].get("inferred")' why "${JOB}_0")" = \
        "('cancelled', None)" ]
    soon True '"Held" in d["trials"][1].get("reason", "").title()' sweep "$SWEEP"
    [ "$(told '"cause" in d["trials"][1]' sweep "$SWEEP")" = False ]
    as_user scontrol release "${JOB}_1"
    soon "('running', 2)" 'd["trials"][1]["state"], d["trials"][1]["attempts"]' \
        sweep "$SWEEP"
}

@test "why Slurm has drained a node of a job: while it goes on, and after it has failed" {
    CODE=3 submit --grid a=1 -N 2 "$WORK/train"
    soon running 'd["ranks"][1]["state"]' show "$SWEEP"
    local node other line reason
    node=$(told 'd["ranks"][1]["node"]' show "$SWEEP")
    other=$(told 'd["ranks"][0]["node"]' show "$SWEEP")
    [ "$(told '"node_reasons" in d' show "$SWEEP")" = False ]
    line="! $node is draining: health check: GPU 3 | ECC ($(id -un), $(date +%Y-%m-%d)"
    scontrol update nodename="$node" state=drain reason='health check: GPU 3 | ECC'
    rm "$PLUME_HOME"/cache/nodes-* # that answer would do for 15 s
    run -0 --separate-stderr as_user plstat show "$SWEEP"
    [[ $output == *"$line"* && -z $stderr ]]
    [ "$(told '[(n["node"], n["reason"], n["by"]) for n in d["node_reasons"]]' show "$SWEEP")" = \
        "[('$node', 'health check: GPU 3 | ECC', '$(id -un)')]" ]
    # Whoever gives a reason speaks for no other node, and to no terminal.
    for reason in $'bad\n'"$other|drained|root|1800000000|forged"$'\n' $'\e[2J\r\xff\xc3\a\u202e' \
        "$(printf '%0120000d' 1)"; do
        scontrol update nodename="$node" state=drain reason="$reason"
        rm "$PLUME_HOME"/cache/nodes-*
        run -0 --separate-stderr as_user plstat show "$SWEEP"
        [ "$(grep -c '^!' <<<"$output")" = 1 ]
        [[ $output == *"! $node is draining: "* && -z $stderr ]]
        [[ $output != *[$'\x01'-$'\x08\x0b'-$'\x1f\x7f']* ]]
        [ "$(told '[n["node"] for n in d["node_reasons"]]' show "$SWEEP")" = "['$node']" ]
    done
    scontrol update nodename="$node" state=drain reason='health check: GPU 3 | ECC'
    touch "$GO"
    job_wait "$JOB"
    rm "$PLUME_HOME"/cache/nodes-*
    run -0 as_user plstat why "$SWEEP"
    scontrol update nodename="$node" state=resume
    [[ $output == *"! $node is drained: health check: GPU 3 | ECC"*'CAUSE rank '*': exit 3'* ]]
}

@test "why a trial waits" {
    submit --grid a=1,2 -N 4 --sbatch exclusive "$WORK/train"
    soon "['running', 'waiting']" '[t["state"] for t in d["trials"]]' sweep "$SWEEP"
    soon True 'd["trials"][1].get("reason") in ("Resources", "Priority")' sweep "$SWEEP"
    run -0 as_user plstat show "$SWEEP/1"
    [[ $output == *"waits in Slurm's queue: "[RP]* ]]
    [ "$(told 'd["ranks"]' show "$SWEEP/1")" = '[]' ]
    [ "$(told 'd["state"]' sweep "$SWEEP")" = running ]
}

@test "a trial that Slurm has forgotten is lost" {
    submit --grid a=1,2 -N 1 true
    job_wait "$JOB"
    soon "['done', 'done']" '[t["state"] for t in d["trials"]]' sweep "$SWEEP"
    # As if its node had burnt down, and Slurm's memory of it had run out.
    rm -r "$RUN"/trial-0001
    sed -i "s/\"$JOB\"/\"999999\"/" "$RUN/sweep.json"
    touch -d '1 minute ago' "$RUN/sweep.json"
    soon "['done', 'lost']" '[t["state"] for t in d["trials"]]' sweep "$SWEEP"
    run -0 as_user plstat why "$SWEEP"
    [[ $output == *'CAUSE'*'(inferred)'* ]]
    run -1 as_user plstat --check sweep "$SWEEP"
}

@test "a bare step, with plrun and with the plugin" {
    as_user srun -N 2 plrun "$WORK/train" >/dev/null 2>&1 &
    local step=$! job
    wait_for 30 job_known
    job=$(timeout 20 squeue -h -o %A)
    soon "['running', 'running']" '[r["state"] for r in d["ranks"]]' show "$job"
    [ "$(told 'd["source"], d["sweep"], d["job"]' show "$job")" = "('hub', '$job.0', '$job')" ]
    run -0 as_user plstat
    [[ $output == *"$job.0"*running* ]]
    [ "$(grep -c "^$job " <<<"$output")" = 1 ]
    touch "$GO"
    wait "$step"
    soon 'done' 'd["state"]' show "$job.0"
    rm "$GO"

    CODE=5 as_user srun -N 2 --plume "$WORK/train" >/dev/null 2>&1 &
    step=$!
    wait_for 30 job_known
    job=$(timeout 20 squeue -h -o %A)
    soon "['running', 'running']" '[r["state"] for r in d["ranks"]]' show "$job"
    touch "$GO"
    wait "$step" || true
    soon exit 'd.get("cause", {}).get("kind")' why "$job"
    run -0 as_user plstat why "$job"
    [[ $output == *'CAUSE rank '*': exit 5'* ]]
}

@test "root sees a user's run, and asks Slurm about that user" {
    need_root
    submit --grid a=1,2 -N 4 --sbatch exclusive "$WORK/train"
    soon "['running', 'waiting']" '[t["state"] for t in d["trials"]]' sweep "$SWEEP"
    PLUME_HOME=$WORK/root-home run -0 --separate-stderr plstat sweep "$RUN"
    [[ ${lines[0]} == "$SWEEP  running  2 trials: 1 waiting 1 running"* ]]
}

@test "a job without Plume is told from Slurm alone" {
    run -0 as_user sbatch --parsable -J "$(printf 'evil\033[2J')" -o /dev/null --wrap 'sleep 600'
    local job=$output
    job_wait_state "$job" RUNNING
    soon RUNNING "[j[\"slurm_state\"] for j in d[\"jobs\"] if j[\"job\"] == \"$job\"][0]"
    run -0 as_user plstat
    [[ $output == *"$job"*'evil\e[2J'*running* ]]
    run -4 --separate-stderr as_user plstat show "$job"
    [[ $output == "$job  evil\\e[2J  running  1 node  n"* ]]
    [[ $stderr == *"from Slurm alone: no run folder is known for job '$job'" ]]
    run -0 --separate-stderr as_user plstat why "$job"
    [ "$output" = "no failure: job $job is running" ]
    run -3 as_user plstat show 987654
    run -3 as_user plstat sweep "$job"
}

# says CODE TEXT [ARG...]: plstat ARG... ends with CODE and says TEXT.
says() {
    run as_user plstat "${@:3}"
    echo "$status: $output"
    [[ $status == "$1" && $output == *"$2"* ]]
}

@test "what cannot be read is not said to be missing" {
    CODE=3 submit --grid a=1 "$WORK/train"
    touch "$GO"
    job_wait "$JOB"
    as_user mkdir hidden
    as_user mv "$RUN" hidden/run
    says 0 failed "$WORK/hidden/run"
    as_user chmod 0 hidden
    for word in "$WORK/hidden/run" hidden/run/0 hidden/run/trial-0000; do
        says 4 'Permission denied' "$word"
        says 4 'Permission denied' show "$word"
    done
    as_user chmod 0 "$PLUME_HOME/runs.jsonl"
    says 4 "runs.jsonl': Permission denied" "$SWEEP"
    says 4 "runs.jsonl': Permission denied" 999999
    says 4 'no recent sweeps or jobs are known, but not all could be looked at'
    as_user chmod 600 "$PLUME_HOME/runs.jsonl"
    as_user chmod 700 hidden
    # The folder's key, too: no other stands for it.
    rm -f "$GO"
    submit --grid a=1 "$WORK/train"
    soon hub 'd["source"]' show "$SWEEP"
    as_user chmod 0 "$RUN/key"
    says 0 'as of ' show "$SWEEP"
    [[ $output == *"/key': Permission denied"* ]]
    as_user rm -f "$RUN/key"
    ln -s key "$RUN/key"
    says 0 'as of ' show "$SWEEP"
    [[ $output == *"/key': Too many levels of symbolic links"* ]]
}

@test "an array's task by Slurm's own number" {
    submit --grid a=1,2 -N 1 "$WORK/train"
    soon "['running', 'running']" '[t["state"] for t in d["trials"]]' sweep "$SWEEP"
    local raw
    raw=$(squeue -h -j "${JOB}_0" -o %A)
    [ "$(told 'd["trial"], d["sweep"]' show "$raw")" = "(0, '$SWEEP')" ]
}

@test "a controller that hangs: the folder and the hub still tell, in bounded time" {
    submit --grid a=1 -N 1 "$WORK/train"
    soon running 'd["ranks"][0]["state"]' show "$SWEEP"
    local pid
    pid=$(awk '$1 == "slurmctld" { print $2 }' "$CLUSTER_DIR/pids")
    kill -STOP "$pid"
    rm -f "$PLUME_HOME"/cache/*
    run -0 as_user timeout 5 plstat show "$SWEEP"
    run -4 --separate-stderr as_user timeout 30 plstat
    local listed=$output said=$stderr
    run -4 --separate-stderr as_user timeout 5 plstat # the failure is remembered: a question takes 6 s
    kill -CONT "$pid"
    [[ $listed == *"$SWEEP"*running* ]]
    [[ $said == *'cannot ask Slurm: the Slurm controller does not answer' ]]
}

@test "the controller is asked once in five seconds by all together" {
    asked() {
        sdiag | sed -n 's/.*REQUEST_JOB_USER_INFO *(.*) count:\([0-9]*\).*/\1/p'
    }
    local before
    as_user plstat >/dev/null
    before=$(asked)
    for ((i = 0; i < 10; i++)); do
        as_user plstat >/dev/null &
        as_user plstat --json >/dev/null
    done
    wait
    (($(asked) - before <= 1))
}

@test "doctor looks at nodes, and says what differs" {
    mkdir bin
    # mpirun has another release on each node.
    printf '#!/bin/sh\necho "mpirun (Open MPI) 4.1.${SLURMD_NODENAME#n}"\n' >bin/mpirun
    # An old munge, of which all nodes have the same.
    printf '#!/bin/sh\necho "munge-0.5.17 (2025-11-01)"\n' >bin/munge
    # No apptainer, and a singularity of another release on each node.
    # shellcheck disable=SC2016 # the node's
    printf '#!/bin/sh\necho "singularity-ce version 4.${SLURMD_NODENAME#n}"\n' >bin/singularity
    chmod 755 bin bin/*
    PATH=$WORK/bin:$PATH run -1 as_user plstat doctor --check
    grep -Eq '^ok     Slurm [0-9.]+ answers$' <<<"$output"
    grep -q '^ok     partition scavenge: a preempted job starts again, or goes on (PreemptMode=REQUEUE)$' <<<"$output"
    grep -q '^ok     looked at 2 nodes$' <<<"$output"
    grep -Eq '^wrong  MPI differs: mpirun \(Open MPI\) 4.1.[1-4] on node n[1-4], mpirun ' <<<"$output"
    grep -Eq '^wrong  container run-time differs: singularity-ce version 4.[1-4] on node n' <<<"$output"
    grep -q '^ok     munge: munge-0.5.17 (2025-11-01)$' <<<"$output"
    grep -Eq '^check  munge 0.5.17 on node n[1-4]: releases before 0.5.18 ' <<<"$output"
    # One that is mended is no finding; a finding to look at is no failure.
    sed -i 's/0.5.17/0.5.18/' bin/munge
    PATH=$WORK/bin:$PATH run as_user plstat doctor
    [[ $output == *'ok     munge: munge-0.5.18'* && $output != *'check  '* ]]
    # What all nodes have is one line; plsubmit would make the folder of runs.
    PLUME_RUNS=$WORK/none/runs run as_user plstat doctor --nodes 3
    grep -Eq "^wrong  on 3 nodes, such as n[1-4]: 3 of 3 nodes' names have no address" <<<"$output"
    [[ $output != *'folder of runs'* && ! -e none ]]
    run -0 as_user plstat --json doctor --nodes 3
    [ "$(json '[d["kind"], len(d["nodes"]), len({n["token"] for n in d["nodes"]}), len(d["nodes"][0]["names"])]' <<<"$output")" = \
        "['doctor', 3, 1, 3]" ]
    [[ ! $(ls -A "$WORK") == *plume-doctor* ]]
    # A node that sees another folder, and whose clock is wrong.
    cat >bin/srun <<TXT
#!/bin/bash
file=\${@: -1}
rm -f "/\${file#*=/}"
exec $(command -v srun) "\$@" > >(sed 's/"time":[0-9.]*/"time":1000.5/')
TXT
    chmod 755 bin/srun
    PATH=$WORK/bin:$PATH run -1 as_user plstat doctor --check --nodes 1
    grep -Eq '^wrong  on node n[1-4]: the folder of runs is not there: ' <<<"$output"
    grep -Eq '^wrong  on node n[1-4]: the clock differs by [0-9]+ s from' <<<"$output"
    # Jobs have a /tmp of their own, and the plugin is not told so.
    cat >bin/srun <<TXT
#!/bin/bash
exec $(command -v srun) "\$@" > >(sed 's/"socket":true/"socket":false/')
TXT
    # shellcheck disable=SC2016 # for sh; the second name is of Slurm 25.11 and later
    printf '#!/bin/sh\n%s "$@" | sed -E "s,^(JobContainer|Namespace)Type .*,JobContainerType = job_container/tmpfs,"\n' \
        "$(command -v scontrol)" >bin/scontrol
    chmod 755 bin/*
    PATH=$WORK/bin:$PATH run -1 as_user plstat doctor --check --nodes 1
    grep -Eq '^wrong  on node n[1-4] tasks of srun --plume do not see the socket of plrund, as jobs .*job_container/tmpfs\): set runtime_dir' <<<"$output"
    printf '#!/bin/sh\nexit 1\n' >bin/srun
    sed -i '2i case $* in *--help*) echo --plume; exit;; esac' bin/srun
    PATH=$WORK/bin:$PATH run -1 as_user plstat doctor --check --nodes 1
    grep -q '^check  jobs have a /tmp of their own (job_container/tmpfs): the plugin needs runtime_dir' <<<"$output"
    rm bin/srun
    PATH=$WORK/bin:$PATH run as_user plstat doctor
    grep -q '^ok     jobs have a /tmp of their own (job_container/tmpfs), and tasks see' <<<"$output"
    SLURM_CONF=/nonexistent run -1 plstat doctor --check
    [ "$output" = "wrong  cannot read SLURM_CONF '/nonexistent'" ]
}

@test "a home whose file system takes no writes delays plstat, and does not stop it" {
    need_root
    truncate -s 16M image && mkdir disk
    { mkfs.ext4 -q -O ^has_journal image && mount -o loop image disk; } 2>/dev/null || skip "no file system to freeze"
    export PLUME_HOME=$WORK/disk/plume
    run -0 plsubmit --parsable --wait -- true
    sweep=${output%%;*}
    rm -rf "$PLUME_HOME/cache"
    fsfreeze -f disk
    for i in 1 2; do
        { plstat >"out.$i" 2>&1; echo "$?" >"rc.$i"; } 3>&- &
    done
    wait_until 60 test -s rc.1 && wait_until 60 test -s rc.2 || echo "plstat hangs"
    [ "$(cat rc.1 rc.2)" = $'0\n0' ] || bad=1
    fsfreeze -u disk # what is written now is no file of the answer
    wait
    cat out.1 out.2
    [ -z "${bad:-}" ]
    grep -q "$sweep  *done" out.1
    grep -q "$sweep  *done" out.2
}
