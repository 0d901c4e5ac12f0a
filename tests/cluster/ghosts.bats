#!/usr/bin/env bats
# SPDX-License-Identifier: MIT
# plstat ghosts on a real Slurm: what is shown, what is ended, and what is never touched.

load ../lib/cluster

setup_file() {
    cluster_up 2
}

teardown_file() {
    cluster_down
}

# leave NAME: a process that outlives the job which starts it; its pid is in NAME.pid.
setup() {
    work_dir
    cat >leave <<'TXT'
#!/usr/bin/env bash
# As a daemon does: in a session of its own, and nobody's child.
PLUME_RUN_DIR=$PWD setsid bash -c 'echo $$ >"$1.tmp"; mv "$1.tmp" "$1.pid"; exec sleep 300' left "$1" \
    </dev/null &>/dev/null &
until [[ -s $1.pid ]]; do read -rt 0.05 <> <(:) || true; done
TXT
    chmod 0755 leave
}

teardown() {
    local file
    scancel_all
    for file in "$WORK"/*.pid; do
        [[ ! -s $file ]] || kill -9 "$(<"$file")" 2>/dev/null || true
    done
    wait_until 20 queue_is_empty || true
}

# state_of PID [WORD...]: the state of its job and whether it is a ghost, as plstat ghosts WORD... says.
state_of() {
    as_user plstat ghosts --json "${@:2}" 2>/dev/null | python3 -c '
import json, sys
p = [p for n in json.load(sys.stdin)["nodes"] for p in n["processes"] if p["pid"] == int(sys.argv[1])]
print(p[0]["job_state"], p[0]["ghost"]) if p else print("not listed")' "$1"
}

alive() {
    pid_start "$1" >/dev/null
}

ended() {
    ! alive "$1"
}

# left_by_job NAME: a job of the plain user's that has ended and left a process; prints its pid.
left_by_job() {
    as_user sbatch --quiet --wait --output /dev/null leave "$1"
    cat "$1.pid"
}

# job_runs [OPTION...]: a job of the plain user's that carries PLUME_RUN_DIR; sets JOB and PID.
# What a shell exports is in no file of /proc until it starts a program: the one that says its pid has it.
job_runs() {
    JOB=$(as_user sbatch --parsable --output /dev/null "$@" --wrap \
        'export PLUME_RUN_DIR=$PWD$LONG; exec bash -c "echo \$\$ >running.tmp; mv running.tmp running.pid; exec sleep 300"')
    wait_for 30 test -s running.pid
    PID=$(<running.pid)
}

job_is_gone() {
    [[ -z $(squeue -h -t all -j "$1" 2>/dev/null) || $(squeue -h -t all -j "$1" -o %T) == COMPLETED ]]
}

@test "a process of an ended job is a ghost, and --end ends it" {
    local pid
    pid=$(left_by_job a)
    [[ $(state_of "$pid") == 'ended True' ]]
    run as_user plstat ghosts --check
    [[ $status == 1 && $output =~ ' of ended jobs' && $output =~ (^|$'\n')\ *$pid\ .*\ ended\  ]]
    run as_user plstat ghosts --end "$pid"
    [[ $status == 0 && $output == *"$pid: ended"* ]]
    ended "$pid"
    wait_for 20 as_user plstat ghosts --check # tests beside this one may have a ghost for a moment
}

@test "a process of a running job is none, and --end refuses it" {
    job_runs
    [[ $(state_of "$PID") == 'alive False' ]]
    run as_user plstat ghosts --end "$PID"
    [[ $status == 4 && $output == *"$PID: not ended: its job $JOB has not ended"* ]]
    run as_user plstat ghosts --end --yes
    [[ $status == 0 ]]
    alive "$PID"
}

@test "what left its step but not its job is no ghost" {
    local pid
    as_user sbatch --quiet --output /dev/null --wrap './leave b; exec sleep 300'
    wait_for 30 test -s b.pid
    pid=$(<b.pid)
    [[ $(state_of "$pid") == 'alive False' ]]
    run as_user plstat ghosts --end "$pid"
    [[ $status == 4 && $output == *'has not ended'* ]]
    alive "$pid"
}

@test "the task of an array that bears the array's number is told from the others" {
    local pid job
    job=$(as_user sbatch --parsable --array 0-1 --output /dev/null --wrap \
        './leave "c$SLURM_ARRAY_TASK_ID"; [ "$SLURM_ARRAY_TASK_ID" = 0 ] || exec sleep 300')
    wait_for 30 test -s c1.pid
    wait_for 30 test -s c0.pid
    first_ended() { [[ $(squeue -h -t all -j "${job}_0" -o %T 2>/dev/null) =~ ^(COMPLETED|)$ ]]; }
    wait_for 30 first_ended
    [[ $(state_of "$(<c0.pid)") == 'ended True' && $(state_of "$(<c1.pid)") == 'alive False' ]]
}

@test "where Slurm does not answer, nothing is ended" {
    local pid pid_ctld
    pid=$(left_by_job d)
    pid_ctld=$(awk '$1 == "slurmctld" { print $2 }' "$CLUSTER_DIR/pids")
    kill -STOP "$pid_ctld"
    run as_user plstat ghosts --end "$pid"
    kill -CONT "$pid_ctld"
    [[ $status == 4 && $output == *"Slurm does not report that its job"* ]]
    alive "$pid"
}

# As sudo leaves it: a process of root's with a user's environment. That file may name plugins.
@test "root asks Slurm by its own settings, whatever a process's environment names" {
    need_root
    mkdir bin
    printf '#!/bin/sh\necho "$SLURM_CONF" >>%s/asked\n' "$WORK" >bin/squeue
    chmod 755 bin bin/squeue
    SLURM_CONF=$WORK/evil.conf SLURM_JOB_ID=7 PLUME_RUN_DIR=$WORK sleep 300 3>&- &
    echo $! >sudo.pid
    PATH=$WORK/bin:$PATH run plstat ghosts --check
    # To this Slurm, jobs of other tests' clusters have ended, too.
    [[ $output =~ ' of ended jobs' && $output =~ (^|$'\n')\ *$(<sudo.pid)\ +root\ +7\ ended\  ]]
    [[ $(sort -u asked) == "$SLURM_CONF" ]]
}

@test "other users' processes are shown, not touched" {
    need_root
    local pid
    pid=$(left_by_job e)
    run plstat ghosts --end "$pid"
    [[ $status == 4 && $output == *"$pid: not ended: it belongs to user $PLAIN_UID"* ]]
    alive "$pid"
}

@test "GPUs, and who holds them" {
    local pid
    job_runs
    tail -f /dev/null 3>&- &
    pid=$!
    echo "$pid" >plain.pid
    cat >gpus.json <<TXT
{"gpus": [{"uuid": "GPU-a", "name": "Fake A100", "util": 0, "power_mw": 61500, "power_limit_mw": 400000,
           "mem_used": 2147483648, "mem_total": 85899345920, "temp": 41, "ecc": [3, 1],
           "processes": [{"pid": $PID, "mem": 1073741824}, {"pid": $pid, "mem": 536870912}]},
          {"uuid": "GPU-b", "name": "Fake A100", "util": 97}]}
TXT
    chmod a+r gpus.json
    export PLUME_NVML=$FAKE_NVML PLUME_FAKE_NVML=$PWD/gpus.json COLUMNS=160
    run as_user plstat ghosts
    echo "$output"
    [[ $status == 0 && $output == *'0    0 2.0 80.0 41 62 400   1 Fake A100'* ]]
    [[ $output == *"$PID nobody job $JOB"* && $output =~ $PID\ nobody\ +$JOB\ alive\ +1\.0 ]]
    [[ $output == *'tail -f /dev/null'* ]]
    run as_user plstat ghosts --end "$pid"
    [[ $status == 4 && $output == *"$pid: not ended: "* ]]
    alive "$pid"
}

# idle_user COMMAND...: as a user without a process, whatever other tests run.
idle_user() {
    HOME=$WORK setpriv --reuid 65533 --regid 65533 --clear-groups -- "$@"
}

# unsure FRAGMENT [COMMAND...]: plstat ghosts --check claims no more than it knows, and says why.
unsure() {
    run idle_user "${@:2}" plstat ghosts --check
    echo "$output"
    [[ $status == 4 && $output == *"$1"* ]]
    [[ $output != *'no process holds a GPU'* ]]
}

@test "where processes and GPUs cannot be looked at, plstat claims nothing of them" {
    need_root
    unsure 'no GPUs seen: cannot fork' prlimit --nproc=0
    export PLUME_NVML=$FAKE_NVML PLUME_FAKE_NVML=$PWD/gpus.json
    echo '{"gpus": [{"processes": 4}, {"handle": 15}]}' >gpus.json # divided and not root; lost
    chmod a+r gpus.json
    unsure 'the driver does not tell which processes hold 2 GPUs (the first: GPU 0)'
    echo '{"gpus": [{"processes": [{"pid": 2147483647}]}]}' >gpus.json
    unsure '/proc does not show 1 of the processes that hold GPUs (the first: 2147483647)'
    echo '{"init": 999}' >gpus.json
    unsure 'no GPUs seen: plrund: the GPU driver does not answer'
    echo '{"init": 9}' >gpus.json # no driver is loaded: nothing can hold a GPU
    run idle_user plstat ghosts --check
    [[ $status == 0 && $output == *'does not answer: Driver Not Loaded'*'no process holds a GPU'* ]]
    echo '{"gpus": [{}]}' >gpus.json
    run idle_user plstat ghosts --check
    [[ $status == 0 && $output == *'no process holds a GPU or carries PLUME_RUN_DIR'* ]]
}

@test "--job looks at the nodes of a running job" {
    # Each node's document is longer than what Slurm hands on of a line: srun mixes the pieces.
    LONG=/$(printf %03000d 0) job_runs --nodes 2
    run --separate-stderr as_user plstat ghosts --json --job "$JOB"
    [[ $status == 0 ]] || { echo "$status: $output $stderr"; false; }
    [[ $(python3 -c 'import json, sys
print(len(json.loads(sys.argv[1])["nodes"]))' "$output") == 2 ]]
    [[ $(state_of "$PID" --job "$JOB") == 'alive False' ]]
}

@test "--job takes a task of an array by the number that plstat shows" {
    local array
    array=$(as_user sbatch --parsable --array=0-1 --nodes=1 --output=/dev/null --wrap 'sleep 600')
    wait_for 30 eval "squeue -h -t R -j ${array}_0 | grep -q ."
    run --separate-stderr as_user plstat ghosts --json --job "${array}_0"
    [[ $status == 0 ]] || { echo "$status: $output $stderr"; false; }
    [[ -z $stderr ]]
    # The array's number is that of one task, the last one.
    wait_for 30 eval "squeue -h -t R -j ${array}_1 | grep -q ."
    run --separate-stderr as_user plstat ghosts --json --job "$array"
    [[ $status == 0 && $output == *"job $array is an array: only its task of that number is shown"* ]]
    run as_user plstat ghosts --job "${array}_7"
    [[ $status == 3 && $output == *"job ${array}_7"* ]]
    scancel "$array"
    wait_for 30 eval "! squeue -h -t R -j ${array} 2>/dev/null | grep -q ."
    run as_user plstat ghosts --job "${array}_0"
    [[ $status == 3 && $output == *"job ${array}_0"* ]]
}

@test "--job and doctor say that a node's answer is missing" {
    local srun
    srun=$(command -v srun)
    mkdir bin # as where a task's prolog prints a line that begins as an answer
    printf '#!/bin/bash\n%q "$@" | sed "s/^1: {/1: {welcome}\\n&/"\n' "$srun" >bin/srun
    chmod 0755 bin/srun
    job_runs --nodes 2
    PATH=$PWD/bin:$PATH run as_user plstat ghosts --job "$JOB"
    [[ $status == 4 && $output == *'1 of 2 nodes gave an answer that can be read'* ]]
    scancel "$JOB"
    wait_for 30 queue_is_empty
    PATH=$PWD/bin:$PATH run plstat doctor --nodes 2
    [[ $output == *'wrong  1 of 2 nodes gave an answer that can be read'* ]]
}

@test "the epilog ends what its job left, and nothing of another job" {
    need_root
    local pid other
    mkdir bin
    sed -e "s,@BINDIR@,$PLUME_SRC/build," -e 's/^END=no/END=yes/' "$PLUME_SRC/templates/epilog.in" >epilog
    chmod 0755 epilog
    job_runs
    other=$(left_by_job f) # as of an earlier job of the same user
    cp "$SLURM_CONF" before.conf
    echo "Epilog=$PWD/epilog" >>"$SLURM_CONF"
    scontrol reconfigure
    pid=$(left_by_job g)
    wait_for 30 ended "$pid"
    cp before.conf "$SLURM_CONF"
    scontrol reconfigure
    alive "$other"
    alive "$PID"
}

@test "the epilog ends what a process forks when it is to end" {
    need_root
    local pid job
    cat >leave <<'TXT'
#!/usr/bin/env bash
PLUME_RUN_DIR=$PWD setsid bash -c 'again() { trap "again & exit" TERM; echo $BASHPID >"$0.tmp"; mv "$0.tmp" "$0.pid"
    while read -rt 1 <> <(:) || :; do :; done; }; again' "$1" </dev/null &>/dev/null &
until [[ -s $1.pid ]]; do read -rt 0.05 <> <(:) || true; done
TXT
    pid=$(left_by_job k)
    job=$(tr '\0' '\n' <"/proc/$pid/environ" | sed -n 's/^SLURM_JOB_ID=//p')
    kill "$pid" # it does
    wait_for 10 ended "$pid"
    wait_for 10 alive_in k.pid
    run env SLURM_JOB_ID="$job" SLURM_JOB_UID="$PLAIN_UID" timeout 60 plstat ghosts --epilog --end --yes
    echo "$output"
    [[ $status == 0 ]]
    run -0 env SLURM_JOB_ID="$job" SLURM_JOB_UID="$PLAIN_UID" timeout 60 plstat ghosts --epilog --check
    ended "$(<k.pid)"
}

# in_run NAME SLUID [VARIABLE=VALUE...]: a process of the plain user in a control group as Slurm 26.05 makes them
# for a run, with this environment alone; its pid is in NAME.pid.
in_run() {
    mkdir -p "$WORK/cgroup2/$TOP/slurmstepd.scope/$2/step_0/user"
    # shellcheck disable=SC2016 # for the inner shell
    as_user env -i "${@:3}" setsid bash -c 'echo $$ >"$0.new"; mv "$0.new" "$0.pid"; exec sleep 300' "$1" </dev/null &>/dev/null 3>&- &
    wait_for 10 test -s "$1.pid"
    cat "$1.pid" >"$WORK/cgroup2/$TOP/slurmstepd.scope/$2/step_0/user/cgroup.procs"
}

# The numbers in the environments are the programs' own.
@test "in control groups that name a run, the epilog takes that run's processes, and no other's" {
    need_root
    local this=sEKNKTV3WPV500 other=sEKNKTV3WPV501
    unshare --mount true && mkdir cgroup2 && mount -t cgroup2 none cgroup2 2>/dev/null && TOP=plume-test-$$ &&
        mkdir "cgroup2/$TOP" 2>/dev/null || skip "control groups of version 2 cannot be mounted or made here"
    in_run a "$this" SLURM_JOB_ID=7 SLURM_JOB_SLUID="$this"
    in_run b "$other" SLURM_JOB_ID=7 SLURM_JOB_SLUID="$other"
    in_run c "$this"
    in_run d "$other" SLURM_JOB_ID=7 SLURM_JOB_SLUID="$this"
    for name in a b c d; do
        wait_for 10 grep -qx sleep "/proc/$(<$name.pid)/comm"
    done
    sed -e "s,@BINDIR@,$PLUME_SRC/build,;s,| logger ,| tee -a $WORK/logged #,;s,^END=no,END=yes," \
        "$PLUME_SRC/templates/epilog.in" >epilog
    run -0 env SLURM_JOB_ID=7 SLURM_JOB_UID="$PLAIN_UID" SLURM_JOB_SLUID="$this" timeout 60 sh epilog
    cat logged
    # As slurmd of an older release would: then the environment's run has to be the group's.
    run -1 env SLURM_JOB_ID=7 SLURM_JOB_UID="$PLAIN_UID" timeout 60 plstat ghosts --epilog --check
    [[ $output == *"$(<b.pid)"* && $output != *"$(<d.pid)"* ]]
    ended "$(<a.pid)" && alive "$(<b.pid)" && ended "$(<c.pid)" && alive "$(<d.pid)"
    kill "$(<b.pid)" "$(<d.pid)"
    wait
    find "cgroup2/$TOP" -depth -type d -exec rmdir {} +
    umount cgroup2
}

# alive_in FILE: the process whose number is in it.
alive_in() {
    alive "$(<"$1")"
}

@test "the epilog ends nothing unless it is told to, and always succeeds" {
    need_root
    local pid
    sed -e "s,@BINDIR@,$PLUME_SRC/build," "$PLUME_SRC/templates/epilog.in" >epilog
    pid=$(left_by_job h)
    run env SLURM_JOB_ID="$(tr '\0' '\n' <"/proc/$pid/environ" | sed -n 's/^SLURM_JOB_ID=//p')" \
        SLURM_JOB_UID="$PLAIN_UID" sh epilog
    [[ $status == 0 ]]
    alive "$pid"
    run env -u SLURM_JOB_ID -u SLURM_JOB_UID sh epilog
    [[ $status == 0 ]]
}

# is_silent FILE: whoever reads the arguments of the process in FILE waits.
is_silent() {
    [[ -s $1 ]] && ! timeout -s KILL 0.2 cat "/proc/$(<"$1")/cmdline" &>/dev/null
}

# dead_files: mounts `dead`, whose files 0 to 9 do not answer, and makes the program `silent N` that locks its
# memory with file N. Sets fs_in, which takes it down when it is closed, and fs_pid.
dead_files() {
    mkdir dead
    coproc FS { exec python3 "$PLUME_SRC/tests/fakes/dead_fs.py" "$WORK/dead" pages; }
    # shellcheck disable=SC2153 # of coproc
    fs_pid=$FS_PID fs_in=${FS[1]}
    read -r -t 10 -u "${FS[0]}" || skip 'no file system in user space here'
    cat >silent <<'PY'
import mmap, os, sys, threading
# One thread reads a page that does not come, by a way that holds the lock of the address space; another waits
# for that lock to map something, and so does then whoever wants to look.
page = mmap.mmap(os.open("dead/" + sys.argv[1], os.O_RDONLY), mmap.PAGESIZE, mmap.MAP_PRIVATE, mmap.PROT_READ)
for line in open("/proc/self/maps"):
    if line.rstrip().endswith("dead/" + sys.argv[1]):
        place = int(line.split("-")[0], 16)
memory = os.open("/proc/self/mem", os.O_RDONLY)
open(sys.argv[1] + ".pid", "w").write(str(os.getpid()))
threading.Thread(target=os.pread, args=(memory, 1, place)).start()
while True:
    mmap.mmap(-1, mmap.PAGESIZE)
PY
}

# As one does whose driver hangs, and as a user can make one: it holds the lock of its memory for ever.
@test "a process whose memory does not answer hides no other, and is reported" {
    need_root
    local pid
    dead_files
    pid=$(left_by_job i)
    for i in 1 2; do
        PLUME_RUN_DIR=$WORK as_user setsid python3 silent "$i" </dev/null &>/dev/null 3>&- {fs_in}>&- &
        wait_for 10 is_silent "$i.pid"
    done
    start=$(now_ms)
    run as_user timeout 60 plstat ghosts --check
    echo "$output"
    (($(now_ms) - start < 15000))
    [[ $status == 1 && $output =~ (^|$'\n')\ *$pid\ .*\ ended\  ]]
    [[ $output == *'2 processes do not answer when their memory is read'* ]]
    sed -e "s,@BINDIR@,$PLUME_SRC/build,;s,| logger ,| tee $WORK/logged #," "$PLUME_SRC/templates/epilog.in" >epilog
    run -0 env SLURM_JOB_ID=1 SLURM_JOB_UID="$PLAIN_UID" timeout 60 sh epilog
    grep -x 'job 1: cannot see all that it left: plstat ended with 4:' logged
    exec {fs_in}>&-
    wait "$fs_pid"
}

# It does not answer only when the first look is over, and names no job: it may be one of this job's.
@test "the epilog reports a process whose memory does not answer after SIGTERM" {
    need_root
    local pid job
    dead_files
    sed -i '1i import os, sys, time\nopen("ready", "w").close()\nwhile not os.path.exists("go"): time.sleep(0.05)' silent
    cat >leave <<'TXT'
#!/usr/bin/env bash
PLUME_RUN_DIR=$PWD setsid bash -c 'trap "stop=1" TERM; echo $$ >"$1.tmp"; mv "$1.tmp" "$1.pid"
    until [[ $stop ]]; do read -rt 0.05 <> <(:) || :; done
    : >go
    until [[ -s 3.pid ]] && ! timeout -s KILL 0.2 cat "/proc/$(<3.pid)/cmdline"; do :; done' left "$1" </dev/null &>/dev/null &
until [[ -s $1.pid ]]; do read -rt 0.05 <> <(:) || true; done
TXT
    pid=$(left_by_job l)
    job=$(tr '\0' '\n' <"/proc/$pid/environ" | sed -n 's/^SLURM_JOB_ID=//p')
    PLUME_RUN_DIR=$WORK as_user setsid python3 silent 3 </dev/null &>/dev/null 3>&- {fs_in}>&- &
    wait_for 10 test -e ready
    run env SLURM_JOB_ID="$job" SLURM_JOB_UID="$PLAIN_UID" timeout 60 plstat ghosts --epilog --end --yes
    echo "$output"
    [[ -e go ]] # the first look has seen it answer
    [[ $status == 4 && $output == *"process $(<3.pid) does not answer when its memory is read"* ]]
    exec {fs_in}>&-
    wait "$fs_pid"
}

@test "a user who names many jobs has root ask for fifty" {
    need_root
    mkdir bin
    printf '#!/bin/sh\necho "$*" >>%s/asked\n' "$WORK" >bin/squeue
    chmod 755 bin bin/squeue
    for ((i = 0; i < 60; i++)); do
        SLURM_JOB_ID=$((900000 + i)) PLUME_RUN_DIR=$WORK setpriv --reuid 65533 --clear-groups sleep 300 3>&- &
        echo $! >"many$i.pid"
    done
    PATH=$WORK/bin:$PATH run plstat ghosts --check
    [[ $status == 1 && $output == *'user 65533 has processes of more than 50 jobs: Slurm was not asked for 10 more'* ]]
    [ "$(grep -c -- '--jobs 9000[0-9][0-9] ' asked)" = 50 ]
}

# Slurm hands them no variable of users; a site's own wrapper may.
@test "the epilog and the health check run nothing that their environment names, and log twenty lines at most" {
    local name
    mkdir evil own
    for name in env timeout plstat logger tail echo squeue; do
        printf '#!/bin/sh\n: >%s/ran-%s\n' "$WORK" "$name" >"evil/$name"
    done
    printf '#!/bin/sh\n/usr/bin/env >%s/seen\ni=0; while [ $i -lt 9999 ]; do echo "$i a process with a long command"; i=$((i+1)); done; exit 1\n' \
        "$WORK" >own/plstat
    printf '#!/bin/sh\ncat >>%s/logged\n' "$WORK" >own/logger
    chmod 755 evil/* own/*
    for name in epilog health-check; do
        sed -e "s,@BINDIR@,$WORK/own," -e "s,| logger ,| $WORK/own/logger ," "$PLUME_SRC/templates/$name.in" >"$name"
        rm -f logged seen
        run -0 env PATH="$WORK/evil" ENV="$WORK/evil/env" IFS=/ SLURM_CONF="$WORK/evil.conf" PLUME_NVML="$WORK/evil.so" \
            SLURM_JOB_ID=7 SLURM_JOB_UID="$PLAIN_UID" /bin/sh "$name"
        [ "$output" = '' ]
        [ "$(tail -n 1 logged | cut -d ' ' -f 1)" = 9998 ]
        (($(wc -l <logged) <= 21))
        [ "$(grep -cE '^(PATH=/usr/sbin:/usr/bin:/sbin:/bin|SLURM_JOB_ID=7|SLURM_JOB_UID=.*|SLURM_JOB_SLUID=|PWD=.*|OLDPWD=.*|SHLVL=.*|_=.*)$' seen)" = \
            "$(wc -l <seen)" ]
    done
    run ! compgen -G 'ran-*'
}

# /bin/sh is dash where echo obeys '\c', and a program chooses its command line.
@test "the epilog and the health check log each byte of a command line, and what they cannot see" {
    local name
    mkdir own
    printf '#!/bin/sh\ncat <<"TXT"\n7 evil \\c\\nfake line\\033[2J\\\\n\n8 other\nTXT\nexit 1\n' >own/plstat
    printf '#!/bin/sh\ncat >>%s/logged\n' "$WORK" >own/logger
    chmod 755 own/*
    for name in epilog health-check; do
        sed -e "s,@BINDIR@,$WORK/own," -e "s,| logger ,| $WORK/own/logger ," "$PLUME_SRC/templates/$name.in" >"$name"
        : >logged
        run -0 env SLURM_JOB_ID=7 SLURM_JOB_UID="$PLAIN_UID" /bin/sh "$name"
        cat logged
        grep -qxF '7 evil \c\nfake line\033[2J\\n' logged
        grep -qx '8 other' logged
    done
    for code in 1 4 124 127; do # without a word: it has failed
        printf '#!/bin/sh\nexit %s\n' "$code" >own/plstat
        for name in epilog health-check; do
            : >logged
            run -0 env SLURM_JOB_ID=7 SLURM_JOB_UID="$PLAIN_UID" /bin/sh "$name"
            grep -q "cannot see all .*plstat ended with $code" logged
        done
    done
}
