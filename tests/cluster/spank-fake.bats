#!/usr/bin/env bats
# SPDX-License-Identifier: MIT
# The SPANK plugin when its daemon fails, with a daemon made for that: a clear message on the user's
# stderr, exit code 1, no drained node, nothing left behind.

load ../lib/cluster
load ../lib/spank

setup_file() {
    cluster_up 2
}

teardown_file() {
    cluster_down
}

setup() {
    work_dir
    use_fake
}

teardown() {
    scancel_all
    all_well
}

# fails_with TEXT: srun of four tasks on two nodes fails, says TEXT once a node, runs no task.
fails_with() {
    run -1 --separate-stderr as_user timeout 60 srun --plume -N2 -n4 echo ran
    [ "$output" = '' ]
    echo "$stderr"
    [ "$(grep -c "plume: node n[12]: .*$1" <<<"$stderr")" = 2 ]
}

@test "a missing plrund" {
    use_plugin plrund=/nonexistent/plrund
    fails_with "cannot run '/nonexistent/plrund': No such file or directory"
}

@test "a plrund that is no program" {
    : >"$WORK/plrund"
    use_plugin "plrund=$WORK/plrund"
    fails_with "cannot run '$WORK/plrund': Permission denied"
}

@test "a plrund that ends at once" {
    PLUME_FAKE=die fails_with 'ended before it was ready'
}

@test "a plrund that says why it failed" {
    PLUME_FAKE=failed fails_with 'no key: set PLUME_KEY_FILE'
}

@test "a plrund that talks nonsense" {
    PLUME_FAKE=garbage fails_with 'gave an answer that this plugin does not know'
}

@test "a plrund that never says ready" {
    PLUME_FAKE=silent fails_with 'was not ready after 10000 ms'
}

@test "a plrund that refuses the ranks; its text cannot harm the terminal" {
    PLUME_FAKE=refuse fails_with 'the world is not?\[31m complete'
}

@test "a plrund that ends while ranks wait" {
    export PLUME_FAKE=vanish
    run -1 --separate-stderr as_user timeout 60 srun --plume -N2 -n4 echo ran
    [ "$output" = '' ]
    grep 'plume: node n[12]: ' <<<"$stderr"
}

@test "a plrund that does not end is killed" {
    export PLUME_FAKE=stay
    run -0 --separate-stderr as_user timeout 60 srun --plume -N2 -n2 echo ran
    [ "$output" = "$(printf 'ran\nran')" ]
}

@test "ranks that wait for the world can be cancelled" {
    export PLUME_FAKE=mute
    as_user timeout 60 srun --plume -J waits -N2 -n4 echo ran >out 2>err &
    both_wait() { [ "$(cat fake.0 fake.1 2>/dev/null | grep -c '"type": "hello"')" = 4 ]; }
    wait_for 20 both_wait
    start=$(now_ms)
    scancel -n waits
    rc=0
    wait $! || rc=$?
    (($(now_ms) - start < 20000))
    [ "$rc" = 143 ]
    [ ! -s out ]
}

@test "a bad argument in plugstack.conf" {
    use_plugin plrund=relative
    fails_with "plugstack.conf: 'plrund=relative' is not an argument of this plugin"
}

@test "a failure touches only steps that have the flag" {
    use_plugin plrund=/nonexistent/plrund
    run -0 --separate-stderr as_user timeout 60 srun -Q -N2 -n2 echo ran
    [ "$output" = "$(printf 'ran\nran')" ]
    [ "$stderr" = '' ]
}

@test "a batch job whose step fails goes on, and its node stays" {
    use_plugin plrund=/nonexistent/plrund
    job=$(as_user sbatch --parsable --plume -N1 -o batch.out --wrap 'srun echo ran; echo "rc $?"')
    job_wait "$job"
    cat batch.out
    grep -x 'rc 1' batch.out
    run ! grep -x ran batch.out
}

@test "a step over components of a heterogeneous job is refused, one of a component is not" {
    run -0 --separate-stderr as_user salloc -Q -N1 -n1 : -N1 -n2 bash -c '
        srun --plume --het-group=0,1 echo ran
        echo "rc $?"
        srun --plume --het-group=1 bash -c "echo \$RANK \$WORLD_SIZE"'
    [ "$(sort <<<"$output")" = "$(printf '0 2\n1 2\nrc 1')" ]
    [ "$(grep -c 'plume: node n[12]: a step over several components' <<<"$stderr")" = 2 ]
}

@test "a daemon that is killed while ranks run does not hold up the step's end" {
    as_user timeout 60 srun --plume -J orphans -N1 -n2 tail -f /dev/null &
    both_there() { [ "$(grep -c '"type": "hello"' fake.0 2>/dev/null)" = 2 ]; }
    wait_for 20 both_there
    pid=$(python3 -c 'import json; print(json.loads(open("fake.0").readline())["pid"])')
    kill -KILL "$pid"
    scancel -n orphans
    rc=0
    wait $! || rc=$?
    [ "$rc" = 143 ]
}

@test "a requeued job's daemon learns how often it was" {
    job=$(as_user sbatch --parsable --requeue --plume -N1 -n1 -o batch.out --wrap \
        'srun bash -c "echo \$SLURM_RESTART_COUNT; exec tail -f /dev/null"')
    runs() { [ "$(grep -c '"type": "hello"' fake.0 2>/dev/null)" = "$1" ]; }
    wait_for 20 runs 1
    scontrol requeue "$job"
    wait_for 60 runs 2
    scancel "$job"
    job_wait "$job"
    run -0 python3 -c '
import json
for line in open("fake.0"):
    m = json.loads(line)
    if m["type"] == "self":
        print(m["env"]["PLUME_RESTART"])'
    echo "$output"
    [ "$output" = "$(printf '0\n1')" ]
}
