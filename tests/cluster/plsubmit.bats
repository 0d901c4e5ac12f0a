#!/usr/bin/env bats
# SPDX-License-Identifier: MIT
# plsubmit against a real controller: what is submitted, how often, and what happens when not.

load ../lib/cluster
load ../lib/spank

setup_file() {
    cluster_up 4 --gpus 2 --max-array 1001
    mkdir "$WORK_BASE/own-home"
    export HOME=$WORK_BASE/own-home
}
teardown_file() { cluster_down; }
setup() {
    work_dir
    PATH=$PLUME_SRC/build:$PATH
}
teardown() {
    fsfreeze -u "$WORK/disk" 2>/dev/null || true
    umount -l "$WORK/disk" 2>/dev/null || true
    scontrol update NodeName=ALL State=RESUME 2>/dev/null || true # those that a failed test left drained
    scancel_all
    wait_for 60 queue_is_empty
}

# submit ARG...: plsubmit --parsable ARG...; sets SWEEP, RUN and JOBS (with commas).
submit() {
    run --separate-stderr plsubmit --parsable "$@"
    if ((status)); then
        grep -h cause runs/*/trial-*/result.json || true
        cat runs/*/slurm-*.out || true
        echo "$status $output $stderr"
        return 1
    fi
    [ -z "$stderr" ] || echo "# $stderr" >&3
    [ "${#lines[@]}" = 1 ]
    IFS=';' read -r SWEEP RUN JOBS <<<"$output"
}

# result TRIAL KEY: from the trial's result.json.
result() {
    python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))[sys.argv[2]])' \
        "$(printf '%s/trial-%04d/result.json' "$RUN" "$1")" "$2"
}

arrays() {
    squeue -h -o %F | sort -u
}

# fake NAME: the shell script on stdin stands in for a program; $REAL is the real one's folder.
fake() {
    mkdir -p fakes
    { printf '#!/bin/bash\nREAL=%q\n' "$(dirname "$(command -v "$1")")" && cat; } >"fakes/$1"
    chmod +x "fakes/$1"
    PATH=$PWD/fakes:$PATH
}

@test "a grid is one array, and every rank gets its trial's values" {
    run -0 --separate-stderr as_user plsubmit --grid lr=1e-3,1e-2,1e-1 --nodes 4 --wait \
        -- sh -c 'echo "$PLUME_PARAM_lr $RANK/$WORLD_SIZE $*"' sh
    [ "$stderr" = '' ]
    [[ ${lines[0]} =~ ^submitted\ (sh-[a-z2-7]{6}):\ 3\ trials,\ job\ ([0-9]+),\ folder\ (runs/sh-.*)$ ]]
    SWEEP=${BASH_REMATCH[1]} RUN=$PWD/${BASH_REMATCH[3]} job=${BASH_REMATCH[2]}
    [ "${lines[1]}" = "each trial: 4 nodes x 1 rank x 1 CPU" ]
    [ "${lines[2]}" = "plstat sweep $SWEEP" ]
    [ "${lines[3]}" = "$SWEEP: 3 of 3 trials done" ]
    [ "$RUN" = "$PWD/runs/$SWEEP" ]
    values=(1e-3 1e-2 1e-1)
    for i in 0 1 2; do
        [ "$(result $i state)" = 'done' ]
        [ "$(result $i job)" = "${job}_$i" ]
        for rank in 0 1 2 3; do
            [ "$(<"$RUN/trial-000$i/attempt-0/rank-$rank.out")" = \
                "${values[i]} $rank/4 --lr ${values[i]}" ]
        done
    done
    [ "$(stat -c %a "$RUN/key")" = 600 ]
    grep -q "\"sweep\":\"$SWEEP\".*\"jobs\":\[\"$job\"\]" "$WORK_BASE/home/.plume/runs.jsonl"
}

@test "the site's refusal is shown in sbatch's words, and nothing is left" {

    while read -r args; do
        read -r words
        # shellcheck disable=SC2086 # words
        run -1 --separate-stderr plsubmit $args true
        [ "$output" = '' ]
        [ "${#stderr_lines[@]}" = 1 ]
        [[ $stderr == "plsubmit: sbatch refused the array: "*"$words"* ]]
        [ -z "$(ls runs)" ]
    done <<'TXT'
-p nowhere
Invalid partition name specified
--gpus-per-node 3
Requested node configuration is not available
--sbatch no-such-option=1
unrecognized option '--no-such-option=1'
--sbatch begin=someday
Invalid time specification
TXT
    queue_is_empty
}

@test "no controller: 75, the folder stays, and --resume goes on" {
    sed 's/^SlurmctldPort=.*/SlurmctldPort=1/' "$SLURM_CONF" >dead.conf
    start=$(now_ms)
    SLURM_CONF=$PWD/dead.conf run -75 --separate-stderr plsubmit --grid a=1,2 true
    (($(now_ms) - start < 10000))
    [ "$output" = '' ]
    [[ $stderr =~ ^plsubmit:\ .*"; try again later: plsubmit --resume "(runs/true-[a-z2-7]{6})$ ]]
    folder=${BASH_REMATCH[1]}
    # shellcheck disable=SC2012 # names of ours
    [ "$(ls "$folder" | tr '\n' ' ')" = 'job.sh key sweep.json trials.jsonl ' ]

    submit --resume "$folder" --wait
    [ "$RUN" = "$PWD/$folder" ]
    [ "$(result 1 state)" = 'done' ]
    # Once more is no harm, and needs no controller.
    jobs=$JOBS
    SLURM_CONF=$PWD/dead.conf submit --resume "$folder"
    [ "$JOBS" = "$jobs" ]
}

@test "a controller that does not answer is not waited for" {
    pid=$(awk '$1 == "slurmctld" { print $2 }' "$CLUSTER_DIR/pids")
    kill -STOP "$pid"
    start=$(now_ms)
    run --separate-stderr plsubmit true
    took=$(($(now_ms) - start))
    kill -CONT "$pid"
    [ "$status" = 75 ]
    ((took < 20000))
    [[ $stderr == *"did not answer within 10 s; try again later: plsubmit --resume runs/"* ]]
    # Whether or not it finds the question in its socket now: the trial runs once.
    submit --resume "${stderr##*--resume }" --wait
    wait_for 60 queue_is_empty
    [ "$(result 0 state) $(result 0 attempts)" = 'done 1' ]
}

@test "a signal to the job script and its srun does not end the trial" {
    # Slurm sends it to the ranks only through srun, which does not pass on these. A child of the job script that gets it
    # tells when all have it. ABRT, XCPU, XFSZ, VTALRM, PROF, IO, PWR.
    cat >witness <<'TXT'
for number in 6 24 25 26 27 29 30; do trap ">got-$number" "$number"; done
>witnesses
until [ -e go ]; do sleep 0.1; done
TXT
    submit -N 2 --setup "bash $PWD/witness &" -- bash -c "cd $PWD; >up-\$RANK; until [ -e go ]; do sleep 0.1; done"
    wait_for 30 test -e up-0 -a -e up-1 -a -e witnesses
    for number in 6 24 25 26 27 29 30; do
        scancel -f -s "$number" "$JOBS"
        wait_for 30 test -e "got-$number"
    done
    touch go
    wait_for 60 queue_is_empty
    [ "$(result 0 state)" = 'done' ]
    ! grep 'ended the set-up' "$RUN"/slurm-*.out || false
}

@test "a job whose output reaches the limit of a file's size goes on" {
    submit -N 2 --setup 'ulimit -f 64' -- bash -c "cd $PWD; printf '%100000s\n' x; >up-\$RANK; until [ -e go ]; do sleep 0.1; done"
    wait_for 30 test -e up-0 -a -e up-1
    wait_for 30 eval '[ "$(stat -c %s "$RUN"/slurm-*.out)" = 65536 ]' # srun meets it
    touch go
    wait_for 60 queue_is_empty
    [ "$(result 0 state)" = 'done' ]
}

@test "a signal in the tear-down leaves the trial its result" {
    submit --setup 'exit 3' --teardown "cd $PWD; >torn; until [ -e go ]; do sleep 0.1; done" -- true
    wait_for 30 test -e torn
    scancel -f -s USR1 "$JOBS"
    touch go
    wait_for 60 queue_is_empty
    [ "$(result 0 state) $(result 0 exit_code)" = 'failed 3' ]
}

@test "trials are held, released, cancelled, and those that failed run again" {
    submit --sbatch hold --grid a=1,2,3,4 -- sh -c 'test -e go || [ {a} = 2 ]'
    run -0 plsubmit --release "$SWEEP/0-1"
    [[ $output == "released $SWEEP: 2 trials, job ${JOBS}_[0-1], folder "* ]]
    wait_for 60 test -e "$RUN/trial-0000/result.json" -a -e "$RUN/trial-0001/result.json"
    run -0 plsubmit --parsable --cancel "$SWEEP/3"
    [ "$output" = "$SWEEP;$RUN;${JOBS}_[3]" ]
    [ "$(squeue -h -r -t PD -o %K)" = 2 ]

    touch go
    known() { [[ $(plstat sweep "$SWEEP") == *'1 waiting 1 done 1 failed 1 cancelled'* ]]; }
    wait_for 30 known # plstat asks Slurm every five seconds at most
    run -0 plsubmit --retry "$SWEEP"
    [[ $output == "submitted $SWEEP: 2 trials, job "* ]]
    run -0 plsubmit --retry "$SWEEP"
    [ "$output" = 'nothing to submit: 3 waiting, 1 done' ]
    [ "$(squeue -h -r -t PD -o %K | sort | tr '\n' ' ')" = '0 2 3 ' ] # once
    run -0 plsubmit --release "$SWEEP/0,3"
    wait_for 60 test -e "$RUN/trial-0003/result.json" -a -e "$RUN/trial-0000/attempt-1"
    [ "$(result 3 state)" = 'done' ]
    wait_for 60 eval '[ "$(result 0 state)" = "done" ]'
    [ "$(result 0 attempt) $(result 1 attempt) $(result 3 attempt)" = '1 0 0' ]
    [ ! -e "$RUN/trial-0002" ]
    nothing() { [ "$(plsubmit --retry "$SWEEP")" = 'nothing to submit: 1 waiting, 3 done' ]; }
    wait_for 30 nothing
    run -0 plsubmit --cancel "$SWEEP"
    [[ $output == "cancelled $SWEEP: 1 trial, job ${JOBS}_[2], folder "* ]]
}

@test "a run on a full disk is cancelled, with a warning" {
    mkdir disk
    mount -t tmpfs -o size=2m tmpfs disk || skip 'no file system can be mounted'
    cd disk
    submit --sbatch hold --grid i=1,2 true
    cat /dev/zero >fill 2>/dev/null || true
    run -0 --separate-stderr plsubmit --cancel "$SWEEP"
    [[ $output == "cancelled $SWEEP: 2 trials, job $JOBS"* ]]
    [[ $stderr == *"warning: cannot record what is cancelled: "*'No space left on device'* ]]
    wait_for 30 queue_is_empty
    umount -l "$WORK/disk"
}

@test "Slurm takes no more jobs: plsubmit tells that sbatch waits, and for how long" {
    mkdir bin
    printf '#!/bin/bash\necho "sbatch: error: Slurm is full, sleeping and retrying" >&2\nsleep 10.3\nexec %s "$@"\n' \
        "$(command -v sbatch)" >bin/sbatch
    chmod 755 bin/sbatch
    PATH=$PWD/bin:$PATH run -0 --separate-stderr plsubmit --wait true
    [ "${stderr%%$'\n'*}" = 'plsubmit: warning: sbatch has not ended after 10 s (Slurm is full, sleeping and retrying): waiting for it, 60 s at most' ]
}

@test "a run folder whose file system does not answer is named; --cancel and plstat doctor do not wait for it" {
    need_root
    truncate -s 16M image && mkdir disk
    { mkfs.ext4 -q -O ^has_journal image && mount -o loop image disk; } 2>/dev/null || skip "no file system to freeze"
    submit --runs disk --sbatch hold true
    mkdir -m 0700 disk/home
    fsfreeze -f disk # not even SIGKILL ends who writes now
    plsubmit --runs disk/runs --no-submit true >out 2>err 3>&- &
    { plsubmit --cancel "$RUN" >cancel.out 2>cancel.err && echo 0 >cancel.rc; } 3>&- &
    { PLUME_HOME=$WORK/disk/home PLUME_RUNS=$WORK/disk plstat doctor >doctor.out 2>&1; echo $? >doctor.rc; } 3>&- &
    { PLUME_HOME=$WORK/disk/home plsubmit --runs other --no-submit true >index.out 2>&1; echo $? >index.rc; } 3>&- &
    wait_until 60 grep -q 'warning: the file system of .*disk/runs/.* does not answer: waiting for it' err &&
        wait_until 60 test -s cancel.rc && wait_until 60 test -s doctor.rc && wait_until 60 test -s index.rc ||
        hangs=yes
    fsfreeze -u disk
    wait
    cat err cancel.err doctor.out index.out
    [ -z "${hangs:-}" ]
    grep -qF "warning: cannot record what is cancelled: the file system of '$RUN' does not answer" cancel.err
    wait_for 30 queue_is_empty
    [ "$(<index.rc)" = 0 ]
    grep -q "warning: cannot add the run to the index: its file system does not answer; .* until plsubmit --resume $WORK/other/" index.out
    grep -qF "wrong  cannot write to the folder of runs: the file system of '$WORK/disk' does not answer" doctor.out
    grep -qF "wrong  the file system of '$WORK/disk/home' does not answer" doctor.out
}

@test "past MaxArraySize the grid is split, under one numbering" {
    submit --sbatch hold --grid "i=$(seq -s, 0 1002)" --grid z=9 true
    [[ $JOBS =~ ^[0-9]+,[0-9]+$ ]]
    [ "$(squeue -h -o '%F %K' | sort | tr '\n' ' ')" = "${JOBS%,*} 0-1000 ${JOBS#*,} 0-1 " ]
    # The names by which a lost answer is found.
    [[ $(squeue -h -j "${JOBS%,*}" -o %o) == "$RUN/job.sh"?( 0) ]]
    [[ $(squeue -h -j "${JOBS#*,}" -o %o) == "$RUN/job-1001.sh"?( 1001) ]]
    scontrol release "${JOBS#*,}"
    wait_for 60 test -e "$RUN/trial-1001/result.json" -a -e "$RUN/trial-1002/result.json"
    [ "$(result 1002 job)" = "${JOBS#*,}_1" ]
    [ ! -e "$RUN/trial-0000" ]
    [ ! -e "$RUN/trial-0001" ]
}

@test "a controller that takes less than the usual 1001 tasks is asked after its refusal" {
    # slurmctld notices a change once a second at most.
    takes_ten() {
        scontrol reconfigure
        sbatch --hold --array=0-9 -o /dev/null --wrap true &>/dev/null
    }
    takes_less() { ! takes_ten; }
    cp "$SLURM_CONF" slurm.conf
    sed -i 's/^SchedulerParameters=/&max_array_tasks=4,/' "$SLURM_CONF"
    wait_for 20 takes_less
    scancel_all
    wait_for 20 queue_is_empty
    submit --sbatch hold --grid "i=$(seq -s, 0 9)" true
    [ "$(squeue -h -o %K | sort | tr '\n' ' ')" = "0-1 0-3 0-3 " ]
    cat slurm.conf >"$SLURM_CONF"
    wait_for 20 takes_ten
    [[ $JOBS =~ ^[0-9]+,[0-9]+,[0-9]+$ ]]
}

@test "a split grid's second array waits where trials are limited" {
    submit --sbatch hold --max-parallel 7 --grid "i=$(seq -s, 0 1001)" true
    [ "$(squeue -h -j "${JOBS#*,}" -o %E)" = "afterany:${JOBS%,*}_*(unfulfilled)" ]
    [[ $(scontrol show job "${JOBS%,*}") == *ArrayTaskThrottle=7* ]]
    run -1 --separate-stderr plsubmit -d "afterany:${JOBS%,*}?afterany:${JOBS#*,}" \
        --max-parallel 7 --grid "i=$(seq -s, 0 1001)" true
    [[ $stderr == *"write ',' or leave out --max-parallel" ]]
}

@test "a refusal after the first array takes that one back" {
    fake sbatch <<'TXT'
[[ ${*: -1} == 0 ]] && exec "$REAL/sbatch" "$@"
echo 'sbatch: error: Batch job submission failed: Job violates accounting policy' >&2
exit 1
TXT
    run -1 --separate-stderr plsubmit --sbatch hold --grid "i=$(seq -s, 0 1001)" true
    [ "${#stderr_lines[@]}" = 1 ]
    [[ $stderr == *'cancelled the arrays submitted before: sbatch refused the array: '*'violates accounting policy' ]]
    wait_for 20 queue_is_empty
}

@test "a lost answer is found in the queue, not submitted again" {
    fake sbatch <<'TXT'
"$REAL/sbatch" "$@" >/dev/null
echo 'sbatch: error: Batch job submission failed: Socket timed out on send/recv operation' >&2
exit 1
TXT
    submit --sbatch hold --grid a=1,2 true
    [ "$(arrays)" = "$JOBS" ]
}

@test "a question that never arrived is asked again by --resume" {
    fake sbatch <<'TXT'
echo 'sbatch: error: Batch job submission failed: Socket timed out on send/recv operation' >&2
exit 1
TXT
    run -75 --separate-stderr plsubmit --grid a=1,2 true
    [[ $stderr == *'Socket timed out'*'plsubmit --resume runs/'* ]]
    queue_is_empty
    rm fakes/sbatch
    hash -r
    submit --resume "${stderr##*--resume }" --wait
    [ "$(result 0 state)" = 'done' ]
}

@test "a client killed before it knew its array finds it again" {
    fake sbatch <<'TXT'
"$REAL/sbatch" "$@" >/dev/null
kill -KILL "$PPID"
TXT
    run plsubmit --sbatch hold --grid a=1,2 true
    [ "$status" != 0 ]
    job=$(arrays)
    [ -n "$job" ]
    rm fakes/sbatch
    hash -r
    submit --resume runs/true-*
    [ "$JOBS" = "$job" ]
    [ "$(arrays)" = "$job" ]
}

@test "an array that waits for drained nodes is found again" {
    fake sbatch <<'TXT'
"$REAL/sbatch" "$@" >/dev/null
kill -KILL "$PPID"
TXT
    has_words() { [[ $(squeue -h -j "$job" -o %r) == *' '* ]]; } # Slurm's reason
    scontrol update NodeName=n[1-4] State=DRAIN Reason=test
    run plsubmit --grid a=1,2 true
    [ "$status" != 0 ]
    job=$(arrays)
    wait_for 190 has_words # its scheduler looks once a minute, and on a busy machine may pass a job over
    rm fakes/sbatch
    hash -r
    submit --resume runs/true-*
    scontrol update NodeName=n[1-4] State=RESUME
    [ "$JOBS" = "$job" ]
    [ "$(arrays)" = "$job" ]
}

@test "what has the name of an array's script, and is another, is not submitted" {
    submit --sbatch hold --grid a=1 true
    echo 'other' >"$RUN/job-1.sh"
    run -1 --separate-stderr plsubmit --extend "$SWEEP" --grid a=2
    [[ $stderr == *'job-1.sh is no link to job.sh: remove it' ]]
    [ "$(arrays)" = "$JOBS" ]
    rm "$RUN/job-1.sh"
    ln -s job.sh "$RUN/job-1.sh"
    submit --resume "$SWEEP"
    [ "$(arrays | wc -l)" = 2 ]
}

@test "an interrupted client says how to go on" {
    fake sbatch <<'TXT'
echo $$ >sbatch.pid
exec tail -f /dev/null
TXT
    run -130 --separate-stderr timeout --preserve-status -s INT 1 plsubmit true
    [[ $stderr =~ ^plsubmit:\ interrupted\;\ submit\ the\ rest\ with:\ plsubmit\ --resume\ (runs/true-[a-z2-7]{6})$ ]]
    wait_for 10 eval '! kill -0 "$(<sbatch.pid)"'
    rm fakes/sbatch
    hash -r
    submit --resume "${BASH_REMATCH[1]}" --wait

    run -143 --separate-stderr timeout --preserve-status 3 plsubmit --wait --sbatch hold true
    [[ $stderr == "plsubmit: interrupted; the trials continue: plstat sweep true-"* ]]
}

@test "a second array of the same run ends at once and changes nothing" {
    submit --grid a=1,2 --wait -- sh -c 'echo once'
    again=$(sbatch --parsable --array=0-1 -o 'again-%a' "$RUN/job.sh" 0)
    job_wait "$again"
    [ "$(job_state "${again}_0")" = COMPLETED ]
    [ "$(result 0 job)" = "${JOBS}_0" ]
    [ "$(ls "$RUN/trial-0000")" = "$(ls "$RUN/trial-0001")" ]
    [ ! -e "$RUN/trial-0000/attempt-1" ]
    [ "$(<"$RUN/trial-0000/attempt-0/rank-0.out")" = once ]
}

@test "commas, --export=NONE and CPUs do not get lost on the way to a rank" {
    # shellcheck disable=SC2016 # the rank's
    HIDDEN=1 submit --sbatch export=NONE --env 'A=a,B=b c' -c 2 --wait sh -c 'echo "$A|$B|$HIDDEN|$RANK|$SLURM_CPUS_PER_TASK|$(nproc)"'
    [ "$(<"$RUN/trial-0000/attempt-0/rank-0.out")" = 'a,B=b c|||0|2|2' ]
}

@test "job.sh by hand has the same options, and srun gets its own" {
    text='it'\''s  "mine" \ # 100%'
    submit --sbatch hold --comment "$text" -J 'my run' --srun 'export=ALL,OF_SRUN=a b' \
        sh -c 'echo "$OF_SRUN"'
    by_hand=$(sbatch --parsable --hold "$RUN/job.sh")
    for job in "$JOBS" "$by_hand"; do
        [[ $(scontrol show job "$job") == *"Comment=$text"* ]]
        [[ $(scontrol show job "$job") == *'JobName=my run'* ]]
    done
    scancel "$by_hand"
    scontrol release "$JOBS"
    wait_for 60 test -e "$RUN/trial-0000/result.json"
    [ "$(<"$RUN/trial-0000/attempt-0/rank-0.out")" = 'a b' ]
}

@test "values reach the program byte for byte, and nothing runs them" {
    cat >prog <<'TXT'
#!/bin/bash
printf '%s\0' "$@" >"argv-$PLUME_TRIAL"
printf '%s' "$PLUME_PARAM_v_x" >"env-$PLUME_TRIAL"
TXT
    chmod +x prog
    nasty=('$(touch pwned)' '`touch pwned`' "it's" 'say "hi"' ';touch pwned' $'two\nlines' $'\e[31m'
        $'\\n\\\\' '{v.x}{w}' ' ' '' $'\u4f60\u597d \u202e' '-x' '*' '%s%n' '&|<>!#~')
    for value in "${nasty[@]}"; do
        axis+=,\"${value//\"/\"\"}\"
    done
    PATH=$PWD:$PATH submit -J $'a "b" \'c\' $(touch pwned)' --grid "v.x=${axis#,}" --grid 'w=1' --wait \
        --env 'E=$(touch pwned)' -- prog '{v.x}' '<{v.x}{w}>' '{' '{nope}' '$(touch pwned)' ''
    [[ $SWEEP =~ ^a__b___c____touch_pwned_-[a-z2-7]{6}$ ]]
    for i in "${!nasty[@]}"; do
        mapfile -d '' -t argv <"argv-$i"
        [ "${#argv[@]}" = 6 ]
        [ "${argv[0]}" = "${nasty[i]}" ]
        [ "${argv[1]}" = "<${nasty[i]}1>" ]
        [ "${argv[2]} ${argv[3]} ${argv[4]} ${argv[5]}" = '{ {nope} $(touch pwned) ' ]
        [ "$(cat "env-$i"; echo .)" = "${nasty[i]}." ]
    done
    [ -z "$(find . -name pwned)" ]
}

@test "--wait says 1 when a trial fails, and tells set-up from the program" {
    run -1 --separate-stderr plsubmit --parsable --wait --grid c=0,3 -- sh -c 'exit $1' sh '{c}'
    IFS=';' read -r SWEEP RUN JOBS <<<"$output"
    [ "$(result 0 state) $(result 0 exit_code)" = 'done 0' ]
    [ "$(result 1 state) $(result 1 exit_code)" = 'failed 3' ]

    for setup in --setup='echo oops >&2; (exit 7)' --load=no-such-module; do
        run -1 --separate-stderr plsubmit --parsable --wait "$setup" --setup 'touch after' true
        IFS=';' read -r SWEEP RUN JOBS <<<"$output"
        [ "$(result 0 state)" = failed ]
        [[ $(result 0 cause) == *"'kind': 'setup'"* ]]
        [ ! -e after ]
    done
}

@test "each set-up command counts, and the one that fails is named" {
    echo 'false; touch after' >env.sh
    for setup in 'cd /nonexistent && true' 'set +e; false' 'source ./env.sh  # mine'; do
        run -1 --separate-stderr plsubmit --parsable --wait --setup true --setup "$setup" \
            --setup 'touch after' true
        IFS=';' read -r SWEEP RUN JOBS <<<"$output"
        [ "$(result 0 state) $(result 0 exit_code)" = 'failed 1' ]
        [[ $(result 0 cause) == *"'kind': 'setup'"* ]]
        [[ $(result 0 cause) == *"the set-up ended with exit code 1 at: $setup"* ]]
        [ ! -e after ]
    done
    submit --wait --setup 'mkdir sub && cd sub' --setup 'cd /nonexistent || true' -- pwd
    [ "$(<"$RUN/trial-0000/attempt-0/rank-0.out")" = "$PWD/sub" ]
}

@test "modules, set-up commands and variables reach the ranks" {
    mkdir bin
    printf '#!/bin/sh\necho "$A|$B|$NCCL_DEBUG|$NCCL_SOCKET_IFNAME|$MASTER_PORT|${PATH##*:}"\n' \
        >bin/later
    chmod +x bin/later
    run -0 --separate-stderr plsubmit --parsable --wait --setup 'export PATH=$PWD/bin:$PATH A=1' \
        --setup 'export B="$A 2"  # a comment' --nccl-debug WARN --nccl-ifname lo \
        --master-port 17000-17100 later
    [[ $stderr == "plsubmit: warning: program 'later' is not in PATH" ]]
    IFS=';' read -r SWEEP RUN JOBS <<<"$output"
    [[ $(<"$RUN/trial-0000/attempt-0/rank-0.out") =~ ^1\|1\ 2\|WARN\|lo\|17[0-9]{3}\|(.*)$ ]]
    [ -x "${BASH_REMATCH[1]}/plrun" ] # for steps of the trial's own
}

# says FOLDER WORD: makes an executable FOLDER/tool that prints its path and WORD.
says() {
    mkdir -p "$1"
    printf '#!/bin/sh\necho "$0 %s"\n' "$2" >"$1/tool"
    chmod +x "$1/tool"
}

# ran PATH WORD: trial 0 ran the tool at PATH, its record and plstat say so.
ran() {
    [ "$(<"$RUN/trial-0000/attempt-0/rank-0.out")" = "$1 $2" ]
    [ "$(result 0 program)" = "$1" ]
    grep -q "\"type\":\"attempt\".*\"program\":\"$1\"" \
        "$RUN/trial-0000/attempt-0/events.jsonl"
    run -0 plstat show "$RUN/0"
    [[ $output == *$'\n'"program $1"$'\n'* ]]
    run -0 plstat show --json "$RUN/0"
    [[ $output == *"\"program\":\"$1\""* ]]
}

# chooses_the_program [OPTION...]: the set-up's PATH decides, by each of the options that can set it.
chooses_the_program() {
    local here=$PWD PATH=$PATH
    says login login
    says node node
    PATH=$here/login:$PATH
    submit --wait "$@" tool
    ran "$here/login/tool" login
    submit --wait "$@" --setup "export PATH=$here/node:\$PATH" tool
    ran "$here/node/tool" node
    submit --wait "$@" --setup "module() { PATH=$here/\$2:\$PATH; }" --setup 'module load node' tool
    ran "$here/node/tool" node
    submit --wait "$@" --env "PATH=$here/node:$PATH" tool
    ran "$here/node/tool" node
    # A name with a slash and a set-up that brings no such program: as plsubmit found it.
    submit --wait "$@" --setup "export PATH=$here/node:\$PATH" login/tool
    ran login/tool login
    submit --wait "$@" --setup "export PATH=${PATH#"$here/login:"}" tool
    ran "$here/login/tool" login
    grep -q "'tool' is not in PATH" "$RUN"/slurm-*.out
}

@test "modules, set-up commands and PATH choose the program" {
    chooses_the_program
}

@test "under the plugin they choose the program too" {
    use_plugin
    chooses_the_program --sbatch plume
    # On a second node as well.
    submit --wait --sbatch plume -N 2 --setup "export PATH=$PWD/node:\$PATH" tool
    [ "$(<"$RUN/trial-0000/attempt-0/rank-1.out")" = "$PWD/node/tool node" ]
    echo >"$CLUSTER_DIR/plugstack.conf"
}

# slurm_has LINE...: all that Slurm's file has, in any order, once the job has ended.
slurm_has() {
    wait_for 60 queue_is_empty
    cat "$RUN"/slurm-*.out
    [ "$(sort "$RUN"/slurm-*.out)" = "$(printf '%s\n' "$@")" ]
}

# outputs ARG...: what Slurm's file and the ranks' files have, with these options.
outputs() {
    local i
    submit --wait -N 2 --ntasks-per-node 2 "$@" -- sh -c 'echo "out $RANK"; echo "err $RANK" >&2'
    for i in 0 1 2 3; do
        [ "$(<"$RUN/trial-0000/attempt-0/rank-$i.out")" = "out $i" ]
        [ "$(<"$RUN/trial-0000/attempt-0/rank-$i.err")" = "err $i" ]
    done
    slurm_has 'err 0' 'out 0'
    # The one that failed first is told.
    run -1 --separate-stderr plsubmit --wait --parsable -N 2 --ntasks-per-node 2 "$@" -- \
        sh -c '[ "$RANK" = 3 ] || exec sleep 60; echo "Error: three" >&2; exit 3'
    IFS=';' read -r SWEEP RUN JOBS <<<"${lines[0]}"
    wait_for 60 queue_is_empty
    grep -x -A1 '\[plrund: rank 3 failed first; the last lines of its rank-3.err:\]' "$RUN"/slurm-*.out
    [ "$(grep -c 'Error: three' "$RUN"/slurm-*.out)" = 1 ]
    [[ $(plstat why "$SWEEP") == *'Error: three'* ]]
}

@test "Slurm's file has the output of rank 0, and the last lines of the rank that failed first" {
    outputs
    submit --wait -N 2 --ntasks-per-node 2 --output-ranks all -- sh -c 'echo "out $RANK"'
    slurm_has 'out 0' 'out 1' 'out 2' 'out 3'
    # A step of another kind shows all ranks, inside a trial, too.
    submit --wait -N 2 --output-ranks 0 -- \
        sh -c '[ "$RANK" = 1 ] || srun --overlap plrun sh -c '\''echo "inner $RANK"'\'
    slurm_has 'inner 0' 'inner 1'
}

@test "under the plugin, too, Slurm's file has rank 0 and who failed first" {
    use_plugin
    outputs --sbatch plume
    echo >"$CLUSTER_DIR/plugstack.conf"
}

@test "the job file that is an example runs, on a smaller cluster" {
    cat >"$HOME/.bash_profile" <<'SH'
module() { export LOADED=$2; }
conda() { export CONDA=$2; }
SH
    mkdir bin
    printf '#!/bin/sh\necho "$LOADED|$CONDA|$NCCL_DEBUG|$NCCL_SOCKET_IFNAME|$PYTHONFAULTHANDLER|$RANK/$WORLD_SIZE|$*"\n' >bin/python
    chmod +x bin/python
    PATH=$PWD/bin:$PATH submit --wait --job-file "$PLUME_SRC/examples/jobs/grid.yaml" -N 2 --gpus-per-node 2 \
        --ntasks-per-node 2 --mem 100
    rm "$HOME/.bash_profile"
    values=({1e-3,1e-2,1e-1}" --layers "{16,32,64})
    for i in {0..8}; do
        for rank in {0..3}; do
            [ "$(<"$RUN/trial-000$i/attempt-0/rank-$rank.out")" = "NCCL/2.4.7-1-cuda.10.0|my_env|INFO|^docker0,lo|1|$rank/4|my_main_file.py --learning_rate ${values[i]}" ]
        done
    done
}

@test "torchrun has one rank per node, and its options from variables" {
    mkdir bin
    cat >bin/torchrun <<'SH'
#!/bin/sh
echo "$PET_NNODES $PET_NODE_RANK $PET_NPROC_PER_NODE $OMP_NUM_THREADS ${PLUME_LAUNCH-none} $*"
[ "$PET_MASTER_ADDR:$PET_MASTER_PORT" = "$MASTER_ADDR:$MASTER_PORT" ] && [ "$MASTER_PORT" -gt 0 ]
SH
    chmod +x bin/torchrun
    PATH=$PWD/bin:$PATH
    says() { [ "$(<"$RUN/trial-0000/attempt-0/rank-$1.out")" = "$2" ] || { grep . "$RUN"/trial-0000/attempt-0/*.out && false; }; }
    submit --wait -N 2 --gpus-per-node 2 -c 6 torchrun train.py --x 1
    says 0 "2 0 2 3 none train.py --x 1"
    says 1 "2 1 2 3 none train.py --x 1"
    use_plugin
    submit --wait -N 2 --sbatch plume --launch torchrun --num-processes 3 --env OMP_NUM_THREADS=7 sh -c ''
    says 1 "2 1 3 7 none --no-python sh -c "
    echo >"$CLUSTER_DIR/plugstack.conf"
}

@test "--launch mpi makes an MPI program's ranks those of the trial" {
    command -v mpicc >/dev/null || skip "no mpicc"
    need_pmix
    cat >ranks.c <<'C'
#include <mpi.h>
#include <stdlib.h>
int main(int argc, char **argv)
{
    int rank, size, sum;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    MPI_Finalize();
    return sum != 6 || rank != atoi(getenv("RANK")) || size != atoi(getenv("WORLD_SIZE"));
}
C
    mpicc -o ranks ranks.c
    # As in cluster.bats: all nodes have this machine's name.
    export SLURM_PMIX_FENCE=ring OMPI_MCA_btl=tcp,self OMPI_MCA_btl_tcp_if_include=lo
    submit --wait -N 2 --num-processes 2 --launch mpi ./ranks
    # Without it each rank is a world of its own.
    run -1 plsubmit --wait -N 2 --num-processes 2 ./ranks
}

@test "scancel ends a trial with a result" {
    submit -N2 -- sleep 300
    wait_for 60 test -e "$RUN/trial-0000/status.json"
    scancel "$JOBS"
    wait_for 60 test -e "$RUN/trial-0000/result.json"
    [ "$(result 0 state)" = cancelled ]
}

@test "--wait notices trials that are gone without a result" {
    submit --sbatch hold --grid a=1,2,3 true
    scancel "${JOBS}_1" # of which Slurm keeps no record
    scancel "$JOBS"
    run -1 --separate-stderr timeout 60 plsubmit --resume "$RUN" --wait
    [ "${lines[-1]}" = "$SWEEP: 0 of 3 trials done" ]
    # They never began: Slurm tells how they ended.
    [ "${stderr_lines[-1]}" = "trial 0 and 2 more cancelled: plstat why $SWEEP/0" ]
    [[ $(plstat why "$SWEEP/1") == *'CAUSE cancelled (inferred)'*'probably cancelled while it waited'* ]]
}

@test "--max-parallel is kept" {
    submit --max-parallel 1 --grid "i=1,2,3" --wait -- \
        bash -c "mkdir '$PWD/lock' && sleep 0.3 && rmdir '$PWD/lock'"
}

@test "trials start as others end, not in batches" {
    # With batches of two the first would wait for the last one for ever.
    submit --max-parallel 2 --grid "i=1,2,3,4" --wait -- \
        bash -c 'touch "$PLUME_PARAM_i"; ((PLUME_PARAM_i > 1)) || until [ -e 4 ]; do sleep 0.05; done'
}

@test "inside another job the new one starts clean" {
    cat >outer.sh <<'TXT'
#!/bin/bash
export MASTER_PORT=1 RANK=7 SBATCH_MEM_BIND=none SBATCH_NO_REQUEUE=1
plsubmit --parsable --runs "$1" -- sh -c 'echo $RANK/$WORLD_SIZE $SLURM_JOB_NUM_NODES $SBATCH_MEM_BIND'
TXT
    chmod +x outer.sh
    run -0 --separate-stderr srun -N2 -n2 -w n[1-2] --exact bash -c \
        '((SLURM_PROCID)) || ./outer.sh runs'
    IFS=';' read -r SWEEP RUN JOBS <<<"$output"
    [ "$(job_field "$JOBS" Requeue)" = 0 ]
    wait_for 60 test -e "$RUN/trial-0000/result.json"
    [ "$(<"$RUN/trial-0000/attempt-0/rank-0.out")" = '0/1 1' ]
}

@test "--wait follows a trial that Slurm starts again" {
    cat >prog <<'TXT'
#!/bin/bash
[[ -e $1 ]] && exit 0
touch "$1"
exec tail -f /dev/null
TXT
    chmod +x prog
    plsubmit --parsable --wait ./prog first >out 2>err 3>&- &
    waiter=$!
    wait_for 60 test -e first
    IFS=';' read -r SWEEP RUN JOBS <out
    scontrol requeue "${JOBS}_0"
    wait "$waiter"
    [ "$(result 0 state) $(result 0 attempts)" = 'done 2' ]
}

@test "a PyTorch program's ranks are one process group, and what it reports fills the sweep" {
    local python=${PLUME_TEST_PYTHON:-python3}
    if ! "$python" -c 'import torch.distributed' 2>/dev/null; then
        echo "# skipped: $python has no PyTorch (PLUME_TEST_PYTHON names one that has)" >&3
        return
    fi
    submit --wait -N 2 --grid lr=0.1 --objective min:loss --env PYTHONPATH="$PLUME_SRC/examples/report" \
        "$python" "$PLUME_SRC/examples/report/train_torch.py"
    [[ $(plstat sweep "$SWEEP") == *'1 trial: 1 done'*'* best: trial 0, loss '* ]]
    [[ $(plstat show --json "$SWEEP") == *'"world_size":2'* ]]
}
