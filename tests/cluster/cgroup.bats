#!/usr/bin/env bats
# SPDX-License-Identifier: MIT
# The plugin's daemon and Slurm's control groups (version 1; for version 2 Slurm wants the whole machine).

load ../lib/cluster

# A folder in a hierarchy proves that this machine lets us.
may_use_cgroups() {
    ((EUID == 0)) && mkdir "/sys/fs/cgroup/freezer/plume-test-$$" 2>/dev/null &&
        rmdir "/sys/fs/cgroup/freezer/plume-test-$$"
}

setup_file() {
    ! may_use_cgroups || cluster_up 1 --cgroup --cpus 4
}

teardown_file() {
    cluster_down
}

setup() {
    [[ -n ${CLUSTER_DIR:-} ]] || skip 'needs root and control groups of version 1'
    work_dir
}

teardown() {
    [[ -z ${CLUSTER_DIR:-} ]] || scancel_all
}

# In the step's for memory, CPUs and devices. Not in the one by which Slurm ends a step, as it has to
# report the ranks' ends after them.
@test "the daemon is in the step's control groups, but not in the one that Slurm kills" {
    cat >look <<'END'
#!/bin/bash
groups() {
    awk -F: '$2 ~ /^(memory|cpuset|devices|freezer)$/ { sub("/task_.*", "", $3); print $2, $3 }' "/proc/$1/cgroup"
}
groups $$ | sort >rank
for pid in $(pgrep -u "$UID" -x plrund); do
    ! grep -q "/job_$SLURM_JOB_ID" "/proc/$pid/cgroup" || groups "$pid" | sort >daemon
done
END
    chmod +x look
    run -0 --separate-stderr as_user timeout 60 srun --plume -N1 -n1 ./look
    [ "$(wc -l <rank)" = 4 ]
    grep -q '^memory /.*/job_[0-9]*/step_0$' rank
    diff <(sed '/^freezer/s|/step_0$||' rank) daemon
}

# Slurm sends SIGTSTP and SIGCONT to its tasks alone, here plrun, and freezes and thaws the rest.
@test "a job goes on after Slurm has suspended it" {
    cat >prog <<'END'
#!/bin/bash
touch "up-$SLURM_PROCID"
until [ -e go ]; do sleep 0.1; done
END
    chmod +x prog
    for way in plrun --plume 'env PLUME_SAVE_COMMAND=: plrun'; do
        # shellcheck disable=SC2086  # words
        as_user timeout 60 srun -Q -N1 -n2 $way ./prog &
        wait_for 30 test -e up-0 -a -e up-1
        job=$(squeue -h -o %A)
        scontrol suspend "$job"
        scontrol resume "$job"
        touch go
        wait $!
        rm up-* go
    done
}

# Version 1 counts that in the group of the task alone. A shell around the program hides the signal.
@test "a rank that the kernel ends for want of memory is the cause, also in a shell" {
    # shellcheck disable=SC2016 # for the ranks' shell
    rank='[ $RANK = 0 ] && echo $SLURM_JOB_ID >job.$1 && exec sleep 60; tail /dev/zero; exit $?'
    as_user timeout 60 srun -Q --mem=60M -N1 -n2 --plume bash -c "$rank" - plugin &
    as_user timeout 60 srun -Q --mem=60M -N1 -n2 plrun bash -c "$rank" - plrun &
    wait
    for way in plugin plrun; do
        run -0 --separate-stderr as_user plstat why --json "$(<"job.$way")"
        echo "$way: $output"
        [ "$(python3 -c 'import json, sys; c = json.loads(sys.argv[1])["cause"]; print(c["kind"], c["rank"])' "$output")" = 'oom 1' ]
    done
}
