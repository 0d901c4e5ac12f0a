#!/usr/bin/env bats
# SPDX-License-Identifier: MIT
# What comes after the first submission of a sweep, and what one sweep knows of another.

load ../lib/cluster

setup_file() {
    cluster_up 2
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

# submit ARG...: plsubmit --parsable ARG...; sets SWEEP, RUN and JOBS (with commas).
submit() {
    run --separate-stderr plsubmit --parsable "$@"
    if ((status)); then
        cat runs/*/slurm-*.out || true
        echo "$status $output $stderr"
        return 1
    fi
    IFS=';' read -r SWEEP RUN JOBS <<<"$output"
}

# state TRIAL: of its result; empty without one.
state() {
    python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["state"])' \
        "$(printf '%s/trial-%04d/result.json' "$RUN" "$1")" 2>/dev/null
}

# has_state TRIAL STATE
has_state() { [ "$(state "$1")" = "$2" ]; }

# sweep_is TEXT: a line of plstat's table.
sweep_is() { [[ $(plstat sweep "$SWEEP" 2>&1) == *"$1"* ]]; }

@test "what the index of runs could not take, --resume adds" {
    export PLUME_HOME=$WORK/plume
    mkdir -m 0700 "$PLUME_HOME" "$PLUME_HOME/runs.jsonl" # cannot be written
    submit --sbatch hold -- true
    [[ $stderr == *'cannot add the run to the index: '*"until plsubmit --resume $RUN adds it" ]]
    rmdir "$PLUME_HOME/runs.jsonl"
    run -3 plstat sweep "$SWEEP"
    run -0 plsubmit --resume "$RUN"
    [ "$output" = 'nothing to submit: Slurm has had all trials' ]
    run -0 plstat sweep "$SWEEP"
    run -0 plsubmit --resume "$SWEEP"
    [ "$(wc -l <"$PLUME_HOME/runs.jsonl")" = 1 ]
}

@test "plrun --trial, started by hand, leaves an attempt of another job as it is" {
    submit --nodes 1 --wait -- sh -c 'echo of-the-job'
    cp -r "$RUN/trial-0000" before
    export PLUME_RUN_DIR=$RUN PLUME_TRIAL=0
    run srun -N1 plrun --trial
    ((status == 1))
    [[ $output == *'PLUME_ATTEMPT is not set'* ]]
    export PLUME_ATTEMPT=0
    run srun -N1 plrun --trial
    ((status == 1))
    [[ $output == *"attempt 0 of trial 0 belongs to job "*": plsubmit --retry $SWEEP/0 starts the trial again"* ]]
    diff -r before "$RUN/trial-0000"
}

@test "a sweep of another cluster is not asked for here, and not changed" {
    export PLUME_HOME=$WORK/plume
    local conf=$SLURM_CONF change
    submit --sbatch hold -- true
    # The same controller stands for one that gives the same numbers to other jobs.
    sed 's/^ClusterName=.*/clustername = Other # of the same home/' "$conf" >other.conf
    export SLURM_CONF=$PWD/other.conf
    run --separate-stderr plstat sweep "$SWEEP"
    [ "$stderr" = "plstat: sweep $SWEEP is on cluster plume, but Slurm here is that of other" ]
    for change in cancel retry resume release max-parallel=1\ --update; do
        # shellcheck disable=SC2086 # two words
        run -1 plsubmit --$change "$SWEEP"
        [ "$output" = "plsubmit: sweep $SWEEP is on cluster plume, but Slurm here is that of other: run plsubmit on a host of plume" ]
    done
    run ! plsubmit --after "$SWEEP" -- true
    [[ $output == "plsubmit: "*"sweep $SWEEP is on cluster plume, but Slurm here is that of other: run plsubmit on a host of plume" ]]
    SLURM_CONF=$conf
    # A number is that of the job here, not of the other cluster's.
    sed -i 's/"cluster":"plume"/"cluster":"other"/' "$PLUME_HOME/runs.jsonl"
    sed -i 's/"cluster": "plume"/"cluster": "other"/' "$RUN/sweep.json"
    run plstat
    (($(grep -c "^$JOBS" <<<"$output") == 2))
    run -0 --separate-stderr plstat "$JOBS"
    [[ $output == *"waits in Slurm's queue: JobHeldUser" ]]
    [ "$stderr" = "plstat: job $JOBS of cluster other belongs to $SWEEP: plstat sweep $SWEEP" ]
    sed -i 's/"cluster":"other"/"cluster":"plume"/' "$PLUME_HOME/runs.jsonl"
    sed -i 's/"cluster": "other"/"cluster": "plume"/' "$RUN/sweep.json"
    # The variable is for new sweeps. There is no accounting here to find its cluster.
    change=$(find runs -maxdepth 1 | wc -l)
    run -1 plsubmit --after "$SWEEP" --sbatch clusters=other -- true
    [ "$output" = "plsubmit: --after: sbatch is to choose the cluster 'other', and a job there cannot wait for one of this cluster" ]
    (($(find runs -maxdepth 1 | wc -l) == change))
    SLURM_CLUSTERS=other run -0 plsubmit --cancel "$SWEEP"
    # The folder tells it all.
    SLURM_CONF=$PWD/other.conf run -0 plstat sweep "$SWEEP"
    [[ $output == "$SWEEP  cancelled"* ]]
    # A job's own commands ask its own cluster.
    mkdir site
    printf '#!/bin/sh\nexec %s --export=ALL,SLURM_CLUSTERS=other "$@"\n' "$(command -v sbatch)" >site/sbatch
    chmod +x site/sbatch
    PATH=$PWD/site:$PATH submit --wait -- sh -c 'test -z "$SLURM_CLUSTERS"'
    # Steps have the cluster's name, too, and are no sweeps.
    run -0 srun -N1 plrun true
    run -0 srun -N1 --plume true
    (($(grep -l '"cluster": "plume"' "$PLUME_HOME"/steps/*/sweep.json | wc -l) == 2))
    change=$(echo "$PLUME_HOME"/steps/*)
    run -2 plsubmit --retry "${change%% *}"
    [ "$output" = "plsubmit: ${change%% *} is no sweep of plsubmit, or has lost its job script" ]
    # Two clusters' answers are kept apart, wherever their slurm.conf is.
    (($(find "$PLUME_HOME/cache" -name 'jobs-*' | wc -l) == 1))
    cp "$conf" moved.conf
    SLURM_CONF=$PWD/moved.conf plstat
    sed -i 's/^ClusterName=.*/ClusterName=other/' moved.conf
    SLURM_CONF=$PWD/moved.conf run plstat
    (($(find "$PLUME_HOME/cache" -name 'jobs-*' | wc -l) == 3))
}

@test "--extend adds the trials that a sweep does not have, under the next numbers" {
    submit --grid a=1,2 --grid 'b=x y' --wait -- sh -c 'echo {b} {a}'
    first=$SWEEP
    run -0 --separate-stderr plsubmit --extend "$SWEEP" --grid 'b=x y' --grid a=2,3,4 --wait
    [ "$stderr" = 'plsubmit: warning: the sweep has 1 of these trials already' ]
    [[ ${lines[0]} =~ ^submitted\ $SWEEP:\ 2\ trials,\ job\ ([0-9]+),\ folder\ $RUN$ ]]
    [ "${lines[2]}" = "$SWEEP: 4 of 4 trials done" ]
    job=${BASH_REMATCH[1]}
    [ "$(<"$RUN/trial-0003/attempt-0/rank-0.out")" = 'x y 4' ]
    [ "$(sed -n 3p "$RUN/trials.jsonl")" = '{"trial":2,"params":{"a":"3","b":"x y"}}' ]
    run -0 plsubmit --extend "$SWEEP" --grid a=1,2 --grid 'b=x y'
    [ "$output" = 'nothing to submit: the sweep has all these trials' ]
    [[ $(plstat show "${job}_1") == *"$first"* ]]
    # What is written, but not submitted yet, is no basis for more.
    wait_for 60 queue_is_empty
    run -0 plsubmit --extend "$SWEEP" --grid a=5 --grid b=z --no-submit
    [ "${lines[1]}" = "plsubmit --resume $SWEEP" ]
    queue_is_empty
    run -75 plsubmit --extend "$SWEEP" --grid a=6 --grid b=z
    submit --resume "$SWEEP" --wait
    [ "$(<"$RUN/trial-0004/attempt-0/rank-0.out")" = 'z 5' ]
}

@test "--no-submit submits nothing, also of a retry" {
    submit --no-submit --grid a=1,2 -- sh -c 'exit 3'
    [ "$JOBS" = '' ]
    queue_is_empty
    run -1 --separate-stderr plsubmit --resume "$SWEEP" --wait
    wait_for 60 queue_is_empty
    run -0 plsubmit --retry "$SWEEP/1" --no-submit
    [[ $output == "not submitted: 1 trial of $SWEEP, folder $RUN"* ]]
    queue_is_empty
    [ ! -e "$RUN/trial-0001/attempt-1" ]
    run -1 --separate-stderr plsubmit --resume "$SWEEP" --wait
    [ -e "$RUN/trial-0001/attempt-1" ]
    [ ! -e "$RUN/trial-0000/attempt-1" ]
}

@test "--retry right after --cancel finds the trials, those that still end, too" {
    submit --sbatch hold --grid a=1,2 -- sh -c 'echo {a} >/dev/null; exec sleep 100'
    plstat sweep "$SWEEP" >/dev/null # its answer of Slurm is seconds old now
    plsubmit --release "$SWEEP/0"
    wait_for 60 sweep_is '1 waiting 1 running'
    plsubmit --cancel "$SWEEP"
    run -0 plsubmit --retry "$SWEEP" --no-submit
    [ "${lines[0]}" = "not submitted: 2 trials of $SWEEP, folder $RUN" ]
}

@test "a retry that ends before it begins has its own end, and not its attempt before's" {
    submit --sbatch hold --on-end 'echo "$PLUME_SWEEP_DONE $PLUME_SWEEP_FAILED" >>ended' --grid a=1,2,3,4 -- sh -c 'exit {a}'
    first=$JOBS
    plsubmit --release "$SWEEP"
    wait_for 60 sweep_is '4 trials: 4 failed'
    plsubmit --retry "$SWEEP" --wait --parsable >out 2>err 3>&- &
    waiter=$!
    waits() { [[ -s out ]] && sweep_is '4 trials: 4 waiting'; }
    wait_for 20 waits
    IFS=';' read -r _ _ JOBS <out
    [[ $(plstat show "$SWEEP/0") == *"before attempt 2"*"attempt 1 (job ${first}_0) failed: rank 0 ("*': exit 1'* ]]
    # By plsubmit, of which Slurm keeps no record; by scancel, of which it keeps one for all that are left.
    plsubmit --cancel "$SWEEP/1"
    sweep_is '4 trials: 3 waiting 1 cancelled'
    plsubmit --hold "$SWEEP/2"
    plsubmit --release "$SWEEP/3"
    wait_for 60 sweep_is '2 waiting 1 failed 1 cancelled'
    scancel "$JOBS"
    wait "$waiter" && return 1
    [ "$(<err)" = "trial 0 and 2 more cancelled: plstat why $SWEEP/0
trial 3 failed, exit code 4, rank 0 on $(sed 's/.*"host":"\([^"]*\)".*/\1/' "$RUN/trial-0003/attempt-1/claim"): plstat why $SWEEP/3" ] || { cat err; false; }
    run -0 plstat why "$SWEEP/1"
    [[ $output == "${JOBS}_1  $SWEEP/1  cancelled"*"attempt 1 (job ${first}_1) failed: "*': exit 2'*'CAUSE cancelled' ]]
    run -0 plstat --json why "$SWEEP/1"
    [[ $output == *'"earlier":{"state":"failed","attempt":0,"job":"'"${first}_1"'",'*'"exit":2}'* ]]
    wait_for 60 queue_is_empty
    [ "$(tail -n 1 ended)" = '0 1' ]
    run -0 plsubmit --retry "$SWEEP" --no-submit
    [[ $output == "not submitted: 4 trials of $SWEEP"* ]]
}

@test "--max-fail in a retry: what it keeps from starting is cancelled" {
    submit --sbatch hold --max-fail 3 --max-parallel 1 --grid a=1,2,3 -- sh -c 'exit 3'
    plsubmit --release "$SWEEP"
    wait_for 60 sweep_is '3 trials: 3 failed'
    submit --extend "$SWEEP" --grid a=4
    plsubmit --release "$SWEEP" # the fourth failure is one too many
    wait_for 60 sweep_is '4 trials: 4 failed'
    submit --retry "$SWEEP"
    plsubmit --release "$SWEEP"
    wait_for 60 sweep_is '1 failed 3 cancelled'
    [[ $(plstat why "$SWEEP/3") == *'attempt 1 ('*') failed: '*'CAUSE cancelled'*'--max-fail allows 3'* ]]
}

@test "a site whose slurm.conf only its commands know" {
    local name
    mkdir site
    for name in sbatch squeue scontrol scancel sinfo; do
        printf '#!/bin/sh\nSLURM_CONF=%s exec %s "$@"\n' "$SLURM_CONF" "$(command -v "$name")" >"site/$name"
    done
    chmod +x site/*
    (
        PATH=$WORK/site:$PATH
        unset SLURM_CONF
        submit --sbatch hold --grid a=1,2 -- sh -c 'test {a} = 1'
        sweep_is '0 1 waiting'
        [[ $(plstat sweep "$SWEEP") == *JobHeldUser* ]]
        grep '"cluster": "plume"' "$RUN/sweep.json"
        sed -i 's/"cluster": "plume"/"cluster": "other"/' "$RUN/sweep.json"
        run -1 plsubmit --cancel "$SWEEP"
        [ "$output" = "plsubmit: sweep $SWEEP is on cluster other, but Slurm here is that of plume: run plsubmit on a host of other" ]
        run plstat sweep "$SWEEP"
        [[ $output == *"$SWEEP is on cluster other, but Slurm here is that of plume"* ]]
        sed -i 's/"cluster": "other"/"cluster": "plume"/' "$RUN/sweep.json"
        plsubmit --cancel "$SWEEP/1"
        [[ $(plstat sweep "$SWEEP") == *'1 waiting 1 cancelled'* ]]
        submit --retry "$SWEEP"
        plsubmit --release "$SWEEP"
        wait_for 60 sweep_is '1 done 1 failed'
    )
}

@test "--check submits nothing, and fails with what Slurm would refuse" {
    run -0 plsubmit --check --grid a=1,2 -- sh -c 'echo {a}'
    [[ ${lines[0]} == "ok     run folders can be made in '$WORK'" ]]
    [[ ${lines[1]} =~ ^'ok     Slurm '[0-9.]+' answers'$ ]]
    [[ ${lines[2]} == 'ok     2 trials, 1 array of at most '* ]]
    [ "${lines[3]}" = "ok     no limit of a user's jobs: this Slurm enforces none (AccountingStorageEnforce=none)" ]
    [[ ${lines[4]} == 'ok     sbatch takes a trial, which could start at '* ]]
    run -1 plsubmit --check --repeat 300000 true
    [[ ${lines[3]} =~ ^'wrong  300000 jobs of this sweep: Slurm has at most '[0-9]+' of all users (MaxJobCount): ' ]]
    run -1 plsubmit --check -p nowhere --on-end true true
    [[ ${lines[5]} == 'wrong  sbatch refuses the job that runs the command of --on-end: '*artition* ]]
    run -1 plsubmit --check --nodes 500 true
    [ "${lines[4]}" = 'wrong  sbatch: Requested node configuration is not available' ]
    run -1 plsubmit --check -p nowhere --objective min:loss true
    [[ ${lines[0]} == "wrong  no --metric reads the objective 'loss'"* ]]
    [[ ${lines[5]} == 'wrong  sbatch: '*artition* ]]
    run -0 plsubmit --check -p scavenge --requeue-on preempt true
    [ "${lines[4]}" = 'ok     a preempted trial starts again (PreemptMode=REQUEUE)' ]
    mkdir bin # a site that cancels what it preempts
    printf '#!/bin/sh\n%s "$@" | sed s/PreemptMode=REQUEUE/PreemptMode=CANCEL/\n' "$(command -v scontrol)" >bin/scontrol
    chmod +x bin/scontrol
    PATH=$WORK/bin:$PATH run -1 plsubmit --check -p scavenge --requeue-on preempt true
    [[ ${lines[4]} == 'wrong  --requeue-on preempt: this Slurm cancels what it preempts (PreemptMode=CANCEL)'* ]]
    # The words of a site's job_submit plugin come before Slurm's own.
    mkdir refuses
    printf '#!/bin/sh\nprintf "sbatch: error: %%s\\n" "policy: name a project" "see the manual" >&2\n' >refuses/sbatch
    printf 'echo "allocation failure: Unspecified error" >&2; exit 1\n' >>refuses/sbatch
    chmod +x refuses/sbatch
    PATH=$PWD/refuses:$PATH run -1 plsubmit --check true
    [[ $output == *'wrong  sbatch: policy: name a project; see the manual; allocation failure: Unspecified error'* ]]
    SLURM_CONF=/nonexistent run -1 plsubmit --check true
    [ "${lines[1]}" = "wrong  cannot read SLURM_CONF '/nonexistent'" ]
    [ ! -e runs ]
    queue_is_empty
}

@test "--wait keeps no other client from changing the sweep" {
    submit --sbatch hold true
    plsubmit --resume "$SWEEP" --wait >waited &
    wait_for 20 test -s waited # it has resumed, and waits
    wait_for 20 plsubmit --release "$SWEEP"
    wait "$!"
    grep -q '1 of 1 trials done' waited
}

@test "--after waits for another sweep's trials" {
    submit --sbatch hold --grid a=1,2 true
    prep=$SWEEP prep_job=$JOBS
    submit --after "$prep" true
    [ "$(squeue -h -j "$JOBS" -o %E)" = "afterok:${prep_job}_*(unfulfilled)" ]
    plsubmit --release "$prep"
    wait_for 60 test -e "$RUN/trial-0000/result.json"
    # Of a sweep that has ended nothing is left to wait for.
    submit --after "$prep:ok" --after "$prep:any" --sbatch hold true
    [ "$(squeue -h -j "$JOBS" -o %E)" = '(null)' ]
    run -3 --separate-stderr plsubmit --after nothing true
    [ "$stderr" = "plsubmit: --after: no sweep, job or run folder has the name 'nothing': plstat --all lists them" ]
}

@test "--after SWEEP:ok starts nothing once a trial has failed, :any does" {
    submit --sbatch hold --grid a=1,2 -- sh -c 'test -e good || [ {a} = 2 ]'
    prep=$SWEEP prep_run=$RUN prep_job=$JOBS
    submit --after "$prep" true
    cancelled=$JOBS
    submit --after "$prep:any" true
    plsubmit --release "$prep"
    wait_for 60 has_state 0 'done'
    is_gone() { ! squeue -h -j "$cancelled" 2>/dev/null | grep -q .; } # Slurm cancels it
    wait_for 60 is_gone
    SWEEP=$prep RUN=$prep_run
    wait_for 30 sweep_is '1 done 1 failed'
    run -1 --separate-stderr plsubmit --after "$prep" true
    [[ $stderr == "plsubmit: --after: trial 0 of $prep is failed, not done: "* ]]
    # What succeeds in a retry is done.
    touch good
    submit --retry "$prep"
    [[ $JOBS != "$prep_job" ]]
    again=$JOBS
    submit --after "$prep" true
    [ "$(squeue -h -j "$JOBS" -o %E)" = "afterok:${again}_*(unfulfilled)" ]
    plsubmit --release "$prep" # as the sweep was held
    wait_for 60 has_state 0 'done'
}

limits_of() { squeue -h -o '%T %l %P %m' -j "$1" | sort -u; }

@test "--update changes --max-parallel of what waits and runs, and of what comes later" {
    submit -t 40 --max-parallel 1 --grid a=1,2,3 -- sh -c 'touch "up-$0"; until [ -e go ]; do sleep 0.05; done; exit 3' '{a}'
    wait_for 60 test -e up-1
    [ ! -e up-2 ]
    run -0 plsubmit --update "$SWEEP" --max-parallel 2 -t 50
    [[ $(limits_of "$JOBS") == *$'\nRUNNING 40:00 '* ]]
    [ "${lines[0]}" = "updated $SWEEP: 3 trials, job $JOBS, folder $RUN" ]
    wait_for 60 test -e up-2
    [ ! -e up-3 ]
    touch go
    wait_for 60 sweep_is '3 failed'
    wait_for 60 queue_is_empty
    run -0 plsubmit --update "$SWEEP" --max-parallel 3 --parsable
    [ "$output" = "$SWEEP;$RUN;$JOBS" ] || [ "${lines[-1]}" = "$SWEEP;$RUN;" ] # while Slurm remembers it, or not
    submit --retry "$SWEEP" --no-submit
    submit --resume "$SWEEP"
    [[ $(scontrol show job "${JOBS##*,}") == *ArrayTaskThrottle=3* ]]
    run -2 --separate-stderr plsubmit --update "$SWEEP"
    [ "$stderr" = 'plsubmit: --update changes --max-parallel, --time, --partition and --mem only: give one of them' ]
    run -2 --separate-stderr plsubmit --update "$SWEEP" --max-parallel 2 -N 3
    [[ $stderr == *'takes the program and its options from the run folder'* ]]
}

@test "--update changes time, partition and memory of what waits, and of a retry" {
    submit --sbatch hold -t 1 --mem 1G --grid a=1,2,3 -- sh -c 'exit 3'
    first=$JOBS
    run -0 plsubmit --update "$SWEEP" -t 1:30:00 -p scavenge --mem 2G
    [ "${lines[0]}" = "updated $SWEEP: 3 trials, job ${first}_[0-2], folder $RUN" ]
    [ "$(limits_of "$first")" = 'PENDING 1:30:00 scavenge 2G' ]
    # Where Slurm refuses, nothing is changed or recorded.
    run -1 --separate-stderr plsubmit --update "$SWEEP" -t 5 -p nonesuch --max-parallel 2
    [[ $stderr == *'scontrol update: '*'nvalid partition'* ]]
    [ "$(limits_of "$first")" = 'PENDING 1:30:00 scavenge 2G' ]
    run -2 --separate-stderr plsubmit --retry "$SWEEP" -t 5
    [[ $stderr == *"first by plsubmit --update $SWEEP" ]]
    run -2 plsubmit --update "$SWEEP" -t soon
    run -2 --separate-stderr plsubmit --update "$SWEEP" --mem-per-cpu 3G
    [[ $stderr == *'the sweep has --mem,'* ]]
    plsubmit --release "$SWEEP"
    wait_for 60 sweep_is '3 failed'
    wait_for 60 queue_is_empty
    run -0 plsubmit --update "$SWEEP" -t 40
    [[ $output == *'no trial waits'* ]]
    submit --retry "$SWEEP"
    [ "$(limits_of "${JOBS##*,}")" = 'PENDING 40:00 scavenge 2G' ]
    [ "$(jq -c '.options | [.time.value, .partition.value, .mem.value]' "$RUN/sweep.json")" = \
        '["40","scavenge","2G"]' ]
    plsubmit --cancel "$SWEEP"
}

@test "--cancel of several arrays goes on where Slurm refuses one" {
    submit --sbatch hold --grid a=1,2 -- true
    first=$JOBS
    submit --extend "$SWEEP" --grid a=3,4
    mkdir fakes
    printf '#!/bin/sh\ncase $1 in %s_*) echo "scancel: error: no" >&2; exit 1 ;; esac\nexec %s "$@"\n' \
        "$first" "$(command -v scancel)" >fakes/scancel
    chmod +x fakes/scancel
    PATH=$PWD/fakes:$PATH run -1 --separate-stderr plsubmit --cancel "$SWEEP"
    [ "$stderr" = "plsubmit: scancel ${first}_[0-1]: scancel: error: no" ]
    [ "$(squeue -h -r -o '%F' | sort -u)" = "$first" ]
    run -0 plsubmit --cancel "$SWEEP"
    wait_for 30 queue_is_empty
}

@test "--update of what cannot be recorded says that Slurm has it" {
    submit --sbatch hold -t 1 --grid a=1,2 -- true
    mkdir fakes
    # The disk fills while Slurm is asked: nothing replaces a folder.
    printf '#!/bin/sh\n%s "$@"\nmv "%s" kept && mkdir "%s"\n' \
        "$(command -v scontrol)" "$RUN/sweep.json" "$RUN/sweep.json" >fakes/scontrol
    chmod +x fakes/scontrol
    PATH=$PWD/fakes:$PATH run -1 --separate-stderr plsubmit --update "$SWEEP" -t 30 -p scavenge
    [ "$stderr" = "plsubmit: the trials that wait have the new values, but a later --retry would not\
 have them: repeat the command: run folder '$RUN': cannot write 'sweep.json': Is a directory" ]
    [[ "$(limits_of "$JOBS")" == 'PENDING 30:00 scavenge '* ]]
    rmdir "$RUN/sweep.json"
    mv kept "$RUN/sweep.json"
    run -0 plsubmit --update "$SWEEP" -t 30 -p scavenge
    [ "$(jq -c '.options | [.time.value, .partition.value]' "$RUN/sweep.json")" = \
        '["30","scavenge"]' ]
    plsubmit --cancel "$SWEEP"
}

@test "--max-fail stops a sweep, and a retry goes on" {
    submit --max-parallel 1 --max-fail 25% --grid a=1,2,3,4,5,6,7 -- sh -c 'test -e good'
    wait_for 60 sweep_is '2 failed 5 cancelled' # one of seven may fail
    [ ! -e "$RUN/trial-0002/attempt-0/rank-0.out" ]
    [[ $(plstat why "$SWEEP/4" 2>&1) == *'2 trials failed, and --max-fail allows 1'* ]]
    # A trial of the stopped sweep that starts all the same ends at once.
    job=$(sbatch --parsable --array=3 -o early.out "$RUN/job.sh" 0)
    wait_for 60 has_state 3 cancelled
    job_wait "$job"
    grep -q 'does not start: 2 trials failed' early.out
    touch good
    submit --retry "$SWEEP" --wait
    [ "$(state 0) $(state 3) $(state 6)" = 'done done done' ]
    run -0 plsubmit --retry "$SWEEP"
}

@test "--env NAME and --env-file reach the ranks, no file of the run has them, and nothing runs" {
    cat >file.env <<'TXT'
# a comment
export A=b c  $HOME `touch ran` $(touch ran) "x' \

EMPTY=
QUOTED="d  e"
SINGLE='$(touch ran)'
N=a[$(touch ran)]
MY_TOKEN=from-the-file
TXT
    chmod 600 file.env
    cat >prog <<'TXT'
#!/bin/bash
printf '%s|' "$A" "$EMPTY" "$QUOTED" "$SINGLE" "$N" "$MY_TOKEN" "$MY_KEY" "${_PLUME_MY_KEY-none}"
TXT
    chmod +x prog
    MY_KEY='hidden  $(touch ran)' submit --setup 'declare -i N=3' --setup 'readonly X=1' --env-file file.env \
        --env MY_KEY --env A2=b --wait ./prog
    [ "$(<"$RUN/trial-0000/attempt-0/rank-0.out")" = \
        'b c  $HOME `touch ran` $(touch ran) "x'\'' \||d  e|$(touch ran)|a[$(touch ran)]|from-the-file|hidden  $(touch ran)|none|' ]
    [ ! -e ran ]
    run -1 grep -rl -e hidden -e from-the-file "$RUN" --exclude=rank-0.out --exclude='slurm-*.out' # the program's
    # What the node refuses is a failed set-up, and the program does not run.
    MY_KEY=x submit --env-file file.env --sbatch hold --env MY_KEY ./prog
    chmod 644 file.env
    plsubmit --release "$SWEEP"
    wait_for 60 has_state 0 failed
    [[ $(plstat why "$SWEEP/0" 2>&1) == *'others may read'*'chmod 600'* ]]
    [ ! -s "$RUN/trial-0000/attempt-0/rank-0.out" ]
    # A retry asks for the value again.
    asks() { [[ $(plsubmit --retry "$SWEEP" 2>&1) == *'takes the value of MY_KEY'* ]]; }
    wait_for 20 asks
    chmod 600 file.env
    MY_KEY=again submit --retry "$SWEEP"
    plsubmit --release "$SWEEP"
    wait_for 60 has_state 0 'done'
    grep -q '|again|' "$RUN/trial-0000/attempt-1/rank-0.out"
}

@test "a set-up that ends the job script is no success" {
    for command in 'exit 0' 'return 0 2>/dev/null || exit 0' 'eval "echo \"a"' 'exec true' 'set +e; trap - ERR; false; exit'; do
        submit --setup "$command" -- sh -c 'echo ran'
        wait_for 60 queue_is_empty
        [ "$(state 0)" != 'done' ]
        [ ! -e "$RUN/trial-0000/attempt-0/rank-0.out" ]
    done
}

@test "a set-up that ends the job script without its last act is the cause" {
    for command in "trap 'echo bye' EXIT; trap 'echo err' ERR; false" "trap 'echo bye' EXIT; set -u; : \$nothing; true" 'exec false'; do
        submit --setup "$command" -- true
        wait_for 60 queue_is_empty
        told() { plstat why "$SWEEP" | grep -qx "CAUSE the job's set-up failed, exit 1 (inferred)"; }
        wait_for 20 told
        [ ! -e "$RUN/trial-0000/result.json" ]
        plstat why "$SWEEP" | grep 'has replaced the shell (exec) or its trap of EXIT'
    done
}

@test "a set-up that exits with 143 by itself is not cancelled" {
    # Names of variables that a set-up makes read-only are its own.
    for command in 'exit 143' 'readonly code=1 words=2 IFS=0123456789; sh -c "kill \$\$"'; do
        submit --setup "$command" -- true
        wait_for 60 queue_is_empty
        has_state 0 failed
        run -0 plstat why "$SWEEP"
        [[ $output == *"the job's set-up failed, exit 143"*"the set-up ended with exit code 143 at: $command"* ]]
    done
}

@test "a job file, the best value of an objective, and a tear-down" {
    cat >job.yaml <<'YAML'
grid: {a: [3, 1], b: [x y]}
where: a > 0
setup: export FROM_SETUP=1
teardown: echo "$1 $PLUME_TRIAL $FROM_SETUP" >>told
metric: {loss: 'loss ([0-9.]+)'}
objective: min:loss@best
command: [bash, -c, 'echo loss 0.{a}; echo loss 0.9; [ "$1$A" = "x yz" ]', bash, '{b}']
YAML
    submit --job-file job.yaml --env A=z --wait
    [ "$(python3 -c 'import json, sys
for path in sys.argv[1:]:
    result = json.load(open(path))
    print(result["objective"], result["objective_name"])' "$RUN"/trial-000?/result.json | paste -sd,)" = \
        '0.3 loss.best,0.1 loss.best' ]
    [ "$(sort told | paste -sd,)" = "0 0 1,0 1 1" ]
    [[ $(tr -d " \n" <"$RUN/sweep.json") == *'"where":{"value":["a>0"],"origin":"jobfile"}'* ]]
    run -0 plstat sweep "$SWEEP"
    grep -q 'best: trial 1' <<<"$output"
}

@test "--on-end runs once when all trials have ended, however they did, and again after a retry" {
    submit --sbatch hold --grid a=1,2,3 --on-end 'echo "$PLUME_SWEEP $PLUME_SWEEP_DONE $PLUME_SWEEP_FAILED $PLUME_SWEEP_TRIALS" >>ended; exit 3' \
        -- sh -c 'test -e good || [ {a} = 1 ]'
    [ "$(squeue -h -n "$SWEEP.end" -o '%T %E')" = "PENDING afterany:${JOBS}_*(unfulfilled)" ]
    plsubmit --cancel "$SWEEP/2"
    plsubmit --release "$SWEEP"
    wait_for 60 queue_is_empty
    [ "$(<ended)" = "$SWEEP 1 1 3" ]
    sweep_is '3 trials: 1 done 1 failed 1 cancelled'
    sweep_is '! --on-end: exit code 3: see on-end.out in the run folder'
    # Of two retries the second has the sweep's end; who asks for an end that has been finds it taken.
    touch good
    submit --retry "$SWEEP/1"
    submit --retry "$SWEEP/2"
    plsubmit --release "$SWEEP"
    wait_for 60 queue_is_empty
    for arrays in 1 2 3; do
        PLUME_RUN_DIR=$RUN plrun --end-sweep "$arrays"
    done
    [ "$(tail -n +2 ended)" = "$SWEEP 3 0 3" ]
    [ "$(cd "$RUN/ends" && echo ./*)" = './1.json ./3.json' ]
    run -0 plsubmit --resume "$SWEEP"
    queue_is_empty
}
