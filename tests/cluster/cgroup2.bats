#!/usr/bin/env bats
# SPDX-License-Identifier: MIT
# The plugin's daemon and Slurm's control groups of version 2: in a mount of their own, as most machines for
# tests have version 1. Slurm then tracks and ends steps by them, and confines nothing.

load ../lib/cluster
load ../lib/spank

# Says what is missing.
why_not() {
    ((EUID == 0)) || { echo 'needs root' && return; }
    compgen -G '/usr/lib*/slurm*/cgroup_v2.so' >/dev/null || compgen -G '/usr/lib/*/slurm*/cgroup_v2.so' >/dev/null ||
        { echo 'this Slurm has no plugin for control groups of version 2' && return; }
    # shellcheck disable=SC2016 # for the inner shell
    unshare --mount --cgroup bash -c 'mount -t cgroup2 none /sys/fs/cgroup &&
        mkdir "/sys/fs/cgroup/plume-test-$$" && rmdir "/sys/fs/cgroup/plume-test-$$"' 2>/dev/null ||
        echo 'control groups of version 2 cannot be mounted or made here'
}

setup_file() {
    WHY_NOT=$(why_not)
    export WHY_NOT
    [[ -n $WHY_NOT ]] || cluster_up 1 --cgroup2 --cpus 2
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

# group_of PID: its group of version 2, below Slurm's.
group_of() {
    sed -n 's,^0::.*/job_[0-9]*/,,p' "/proc/$1/cgroup"
}

# groups_of_jobs: those that are left of this cluster's jobs.
groups_of_jobs() {
    # shellcheck disable=SC2016 # for the inner shell
    unshare --mount bash -c 'mount -t cgroup2 none /sys/fs/cgroup && find "/sys/fs/cgroup/$1" -name "job_*"' \
        _ "${CLUSTER_DIR##*/}"
}

no_groups_of_jobs() {
    [[ -z $(groups_of_jobs) ]]
}

# sleeping_step: a step of two ranks that would sleep; sets JOB, DAEMON (the pid) and RANKS (two pids).
sleeping_step() {
    # shellcheck disable=SC2016 # for the ranks' shell
    as_user srun --plume -N1 -n2 bash -c 'echo $$ >"pid.$RANK.new"; mv "pid.$RANK.new" "pid.$RANK"; exec sleep 300' 3>&- &
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

# The group of the tasks is the one that Slurm kills.
@test "version 2: the daemon is in its step's group for Slurm, and not in that of the tasks" {
    sleeping_step
    [[ $(group_of "${RANKS[0]}") == step_0/user/task_* ]]
    [[ $(group_of "${RANKS[1]}") == step_0/user/task_* ]]
    [ "$(group_of "$DAEMON")" = step_0/slurm ]
    for pid in $(<"/proc/$DAEMON/task/$DAEMON/children"); do # its lifeline and other helpers
        [ "$(group_of "$pid")" = step_0/slurm ]
    done
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
