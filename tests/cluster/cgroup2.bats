#!/usr/bin/env bats
# SPDX-License-Identifier: MIT
# The plugin's daemon and Slurm's control groups of version 2: in a mount of their own, as most machines for
# tests have version 1. Slurm then tracks and ends steps by them, and confines nothing: a controller that version
# 1 has, version 2 has not. ./dev soak cgroup2 runs all of this in a kernel whose version 2 has them.

load ../lib/cluster
load ../lib/spank
# shellcheck source=dev.d/cgroup2.bash
. "$PLUME_SRC/dev.d/cgroup2.bash"

# Says what is missing.
why_not() {
    ((EUID == 0)) || { echo 'needs root' && return; }
    compgen -G '/usr/lib*/slurm*/cgroup_v2.so' >/dev/null || compgen -G '/usr/lib/*/slurm*/cgroup_v2.so' >/dev/null ||
        { echo 'this Slurm has no plugin for control groups of version 2' && return; }
    # shellcheck disable=SC2016 # for the inner shell
    unshare --mount --cgroup bash -c 'umount /sys/fs/cgroup; mount -t cgroup2 none /sys/fs/cgroup &&
        mkdir "/sys/fs/cgroup/plume-test-$$" && rmdir "/sys/fs/cgroup/plume-test-$$"' 2>/dev/null ||
        echo 'control groups of version 2 cannot be mounted or made here'
}

setup_file() {
    WHY_NOT=$(why_not)
    export WHY_NOT
    [[ -n $WHY_NOT ]] || cluster_up 2 --cgroup2 --cpus 2
}

teardown_file() {
    cluster_down
}

setup() {
    [[ -z $WHY_NOT ]] || skip "$WHY_NOT"
    work_dir
    use_plugin
}

teardown() {
    [[ -n $WHY_NOT ]] || scancel_all
}

# A job's folder; of Slurm 26.05 it is its SLUID.
readonly JOB_FOLDER='(job_[0-9]+|s[0-9A-Z]{13})'

# group_of PID: its group of version 2, below the job's.
group_of() {
    sed -nE "s,^0::.*/$JOB_FOLDER/,,p" "/proc/$1/cgroup"
}

# groups_of_jobs: those that are left of this cluster's jobs. With controllers Slurm 22.05 leaves its own, also
# without the plugin: then the plugin's.
groups_of_jobs() {
    local name=".*/$JOB_FOLDER(/.*)?"
    ! cgroup2_has memory || name=".*/$JOB_FOLDER/(.*/)?plume"
    # shellcheck disable=SC2016 # for the inner shell
    unshare --mount bash -c 'umount /sys/fs/cgroup 2>/dev/null; mount -t cgroup2 none /sys/fs/cgroup && find "/sys/fs/cgroup/$1" -regextype posix-extended -type d -regex "$2"' \
        _ "${CLUSTER_DIR##*/}" "$name"
}

no_groups_of_jobs() {
    [[ -z $(groups_of_jobs) ]]
}

# sleeping_step [OPTION...]: a step of two ranks that would sleep; sets JOB, DAEMON (the pid) and RANKS (two pids).
sleeping_step() {
    # shellcheck disable=SC2016 # for the ranks' shell
    as_user srun --plume -N1 -n2 "$@" bash -c 'echo $$ >"pid.$RANK.new"; mv "pid.$RANK.new" "pid.$RANK"; exec sleep 300' 3>&- &
    STEP=$!
    wait_for 30 test -s pid.0 -a -s pid.1
    RANKS=("$(<pid.0)" "$(<pid.1)")
    JOB=$(squeue -h -o %A)
    # shellcheck disable=SC2016 # $2: awk's
    DAEMON=$(grep -lzxs "PLUME_JOB_ID=$JOB" /proc/[0-9]*/environ | while IFS=/ read -r _ _ pid _; do
        [[ $(<"/proc/$pid/comm") != plrund ]] || echo "$pid"
    done)
}

ended() {
    ! pid_start "$1" >/dev/null
}

# As soon as the node's tasks have ended, Slurm kills what is in the groups `user` and `slurm`.
@test "version 2: the daemon is in a group of its own in its step's" {
    sleeping_step
    [[ $(group_of "${RANKS[0]}") == step_0/user/task_* ]]
    [[ $(group_of "${RANKS[1]}") == step_0/user/task_* ]]
    [ "$(group_of "$DAEMON")" = step_0/plume ]
    for pid in $(<"/proc/$DAEMON/task/$DAEMON/children"); do # its lifeline and other helpers
        [ "$(group_of "$pid")" = step_0/plume ]
    done
}

# one_slurmstepd JOB: only one node's is left.
one_slurmstepd() {
    [[ $(pgrep -f "^slurmstepd: \\[$1\\.0\\]" | wc -l) == 1 ]]
}

@test "version 2: the hub stays for other nodes when its own node's tasks have ended" {
    mkfifo -m 0666 gate
    # shellcheck disable=SC2016 # for the ranks' shell
    as_user srun --plume -N2 -n2 bash -c 'echo "$SLURM_JOB_ID" >"job.$RANK"; [ "$RANK" = 0 ] && exit
        read -r _ <gate; echo survived' 3>&- >out &
    step=$!
    wait_for 30 test -s job.0 -a -s job.1
    job=$(<job.0)
    wait_for 30 one_slurmstepd "$job"
    timeout 10 sh -c 'echo go >gate'
    wait "$step"
    [ "$(<out)" = survived ]
    run -0 as_user plstat show "$job"
    [[ $output == *'done after'* ]]
    all_well
}

@test "version 2: a step that Slurm ends is recorded by the daemon, and leaves no group" {
    sleeping_step
    scancel "$JOB"
    wait "$STEP" || true
    for pid in "${RANKS[@]}" "$DAEMON"; do
        wait_for 20 ended "$pid"
    done
    run -0 as_user plstat why "$JOB"
    [[ $output == *cancelled* ]]
    wait_for 20 no_groups_of_jobs
    all_well
}

@test "version 2: a daemon that is killed takes its ranks with it, and leaves no group" {
    sleeping_step
    kill -KILL "$DAEMON"
    wait "$STEP" || true
    for pid in "${RANKS[@]}"; do
        wait_for 20 ended "$pid"
    done
    wait_for 20 no_groups_of_jobs
    all_well
}

# intrude DAEMON: a program of the user's gets into the daemon's group, as one does that takes over a child of
# the daemon's by ptrace(2); sets INTRUDER. It shows no job in its environment.
intrude() {
    # shellcheck disable=SC2016 # for the user's shell
    as_user env -i sh -c 'echo $$ >intruder.new; mv intruder.new intruder; exec sleep 300' 3>&- &
    wait_for 20 test -s intruder
    INTRUDER=$(<intruder)
    # shellcheck disable=SC2016 # for the inner shell
    unshare --mount bash -c 'umount /sys/fs/cgroup 2>/dev/null; mount -t cgroup2 none /sys/fs/cgroup &&
        echo "$1" >"/sys/fs/cgroup$(sed -n "s,^0::,,p" "/proc/$2/cgroup")/cgroup.procs"' _ "$INTRUDER" "$1"
}

@test "version 2: a program of the user's in the daemon's group ends with the step" {
    sleeping_step
    intrude "$DAEMON"
    [ "$(group_of "$INTRUDER")" = step_0/plume ]
    scancel "$JOB"
    wait "$STEP" || true
    wait_for 20 ended "$INTRUDER"
    wait_for 20 no_groups_of_jobs
    all_well
}

@test "version 2: a program that stays with a hub is in a group of its job's name, and an epilog ends it" {
    mkfifo -m 0666 gate.0 gate.1
    # shellcheck disable=SC2016 # for the ranks' shell
    as_user srun --plume -N2 -n2 bash -c 'echo "$SLURM_JOB_ID" >"job.$RANK"; read -r _ <"gate.$RANK"' 3>&- &
    step=$!
    wait_for 30 test -s job.0 -a -s job.1
    job=$(<job.0)
    daemon=$(grep -lzxs "PLUME_JOB_ID=$job" /proc/[0-9]*/environ | while IFS=/ read -r _ _ pid _; do
        [[ $(<"/proc/$pid/comm") != plrund ]] || ! grep -qzx PLUME_NODE_ID=0 "/proc/$pid/environ" || echo "$pid"
    done)
    intrude "$daemon"
    timeout 10 sh -c 'echo go >gate.0'
    wait_for 30 one_slurmstepd "$job"
    timeout 10 sh -c 'echo go >gate.1'
    wait "$step"
    wait_for 30 ended "$daemon"
    sed -n 's,^0::,,p' "/proc/$INTRUDER/cgroup"
    [[ $(sed -n 's,^0::,,p' "/proc/$INTRUDER/cgroup") =~ /plume/$JOB_FOLDER$ ]]
    SLURM_JOB_ID=$job SLURM_JOB_UID=$PLAIN_UID \
        SLURM_JOB_SLUID=$(sed -nE 's,^0::.*/plume/(s[0-9A-Z]{13})$,\1,p' "/proc/$INTRUDER/cgroup") \
        plstat ghosts --epilog --end --yes
    wait_for 20 ended "$INTRUDER"
    all_well
}

need_controllers() {
    cgroup2_has memory || skip 'version 1 has the controllers here: ./dev soak cgroup2'
}

# limit FILE PID: what the memory controller allows this process's group, or one above it.
limit() {
    local group
    group=$(sed -n 's,^0::,,p' "/proc/$2/cgroup")
    while [[ -n $group && $(<"/sys/fs/cgroup$group/$1") == max ]]; do
        group=${group%/*}
    done
    cat "/sys/fs/cgroup$group/$1"
}

# SLURM's own group has no limit of its own, the job's group has.
@test "version 2: the daemon has the limit of the job's memory" {
    need_controllers
    sleeping_step --mem=60M
    [ "$(limit memory.max "$DAEMON")" = $((60 << 20)) ]
    [ "$(limit memory.max "${RANKS[0]}")" = $((60 << 20)) ]
    scancel "$JOB"
    wait "$STEP" || true
    wait_for 20 no_groups_of_jobs
    all_well
}

@test "version 2: a rank that the kernel ends for want of memory is the cause, also in a shell" {
    need_controllers
    # shellcheck disable=SC2016 # for the ranks' shell
    rank='[ $RANK = 0 ] && echo $SLURM_JOB_ID >job.$1 && exec sleep 60; tail /dev/zero; exit $?'
    as_user timeout 100 srun -Q --mem=60M -N1 -n2 --plume bash -c "$rank" - plugin || true
    as_user timeout 100 srun -Q --mem=60M -N1 -n2 plrun bash -c "$rank" - plrun || true
    for way in plugin plrun; do
        run -0 --separate-stderr as_user plstat why --json "$(<"job.$way")"
        echo "$way: $output"
        [ "$(python3 -c 'import json, sys; c = json.loads(sys.argv[1])["cause"]; print(c["kind"], c["rank"])' "$output")" = 'oom 1' ]
    done
    all_well
}
