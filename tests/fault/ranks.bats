#!/usr/bin/env bats
# SPDX-License-Identifier: MIT
# Ranks that break, by plrun and by the plugin: which one was first and why, what becomes of the
# others, what the step ends with, and that nothing stays behind.

load ../lib/cluster
load ../lib/runtime

setup_file() {
    cluster_up 4
}

teardown_file() {
    cluster_down
}

setup() {
    work_dir
}

teardown() {
    thaw
    scancel_all
    all_well
}

# Under the plugin srun's code is Slurm's own: that of the rank with the highest one.
checked_plugin() {
    NO_CODE=1 checked "$@"
}

# wait_others: in a rank's program, to go on once all other ranks have made their at.* file.
# shellcheck disable=SC2034 # used in programs
export WAIT_OTHERS='until [ "$(ls at.$SLURM_JOB_ID.* 2>/dev/null | wc -l)" -ge $((WORLD_SIZE - 1)) ]; do sleep 0.01; done'

@test "a rank that segfaults" {
    for way in plrun plugin; do
        ranks "$way" "$way" -N2 -n4 -- bash -c '
            if [ $RANK = 2 ]; then echo "about to fall" >&2; kill -SEGV $$; fi; exec tail -f /dev/null' &
    done
    wait
    rc_is plrun 139
    checked plrun
    checked_plugin plugin
    for way in plrun plugin; do
        [ "$(result "$way" 'd["cause"]["kind"], d["cause"]["rank"], d["cause"]["signal"], d["cause"]["signal_name"]')" = \
            "('signal', 2, 11, 'SIGSEGV')" ]
        [ "$(result "$way" 'd["cause"]["text"]')" = 'about to fall' ]
        [ "$(result "$way" 'd["cause"]["node"]')" = "$(state "$way" 's["ranks"][2]["node"]')" ]
        [ "$(rank_states "$way")" = 'killed killed failed killed' ]
        [ "$(result "$way" 'd.get("others")')" = None ]
    done
}

@test "a rank that hangs is named, with its stack; --on-hang kill ends the step" {
    export PLUME_HANG_LIMIT=1.5 PLUME_ON_HANG=kill PLUME_METRIC='step=step=([0-9]+)'
    for way in plrun plugin; do
        ranks "$way" "$way" -N2 -n4 -- bash -c '
            for step in {1..9}; do echo "step=$step"; done
            if [ $RANK = 2 ]; then exec sleep 99; fi; echo "step=10"; exec tail -f /dev/null' &
    done
    wait
    rc_is plrun 1
    checked plrun
    checked_plugin plugin
    for way in plrun plugin; do
        [ "$(result "$way" 'd["state"], d["cause"]["kind"], d["cause"]["rank"], d["cause"]["step"], d["cause"]["confidence"]')" = \
            "('failed', 'hang', 2, 9, 'seen')" ]
        [ "$(rank_states "$way")" = 'killed killed killed killed' ]
        [ "$(state "$way" 's["ranks"][2]["role"] + " " + s["ranks"][2]["stack"]')" = 'root hang-rank-2.txt' ]
        grep -q '^== process .*: sleep 99' "$(trial "$way")/attempt-0/hang-rank-2.txt"
        [[ $(PLUME_HOME=$WORK/$way.home as_user plstat why last) == *'CAUSE rank 2 ('*'): made no progress and was ended'* ]]
    done
}

@test "a rank that exits 3: the others get SIGTERM, the step's code is 3" {
    for way in plrun plugin; do
        ranks "$way" "$way" -N2 -n4 -- bash -c '
            if [ $RANK = 1 ]; then eval "$WAIT_OTHERS"; echo "bad luck" >&2; exit 3; fi
            if [ $RANK != 3 ]; then trap "echo TERM >got.$PLUME_RUNTIME.$RANK; exit 0" TERM; fi
            : >at.$SLURM_JOB_ID.$RANK
            tail -f /dev/null & wait $!' &
    done
    wait
    rc_is plrun 3
    checked plrun
    checked_plugin plugin
    for way in plrun plugin; do
        [ "$(result "$way" 'd["cause"]["kind"], d["cause"]["rank"], d["cause"]["exit"], d["cause"]["text"]')" = \
            "('exit', 1, 3, 'bad luck')" ]
        # Those that end well on request did; the one that did not care was killed by it.
        [ "$(rank_states "$way")" = 'done failed done killed' ]
        [ "$(state "$way" '[r.get("role") for r in s["ranks"]]')" = "[None, 'root', None, 'collateral']" ]
        [ -e "got.$way.0" ]
        [ -e "got.$way.2" ]
    done
    [ "$(result plrun 'd["exit_code"]')" = 3 ]
}

@test "in a batch script the step's code is the first cause's too" {
    job=$(PLUME_HOME=$WORK/batch as_user sbatch --parsable -N2 -o out \
        --wrap 'srun plrun -- bash -c "[ \$RANK = 0 ] && exit 42; exec tail -f /dev/null"; echo code $?')
    job_wait "$job"
    grep -qx 'code 42' out
}

# thaw: processes in $FREEZER go on.
thaw() {
    [[ -d ${FREEZER:-} ]] || return 0
    echo THAWED >"$FREEZER/freezer.state"
    wait_for 20 rmdir "$FREEZER"
}

frozen() {
    [[ $(<"$FREEZER/freezer.state") == FROZEN ]]
}

@test "a rank that SIGKILL does not end: it is told, and given up" {
    FREEZER=/sys/fs/cgroup/freezer/plume-ranks-$$
    ((EUID == 0)) && mkdir "$FREEZER" 2>/dev/null || skip 'needs root and control groups of version 1'
    export PLUME_KILL_GRACE=1
    for way in plrun plugin; do
        as_user mkfifo "fail.$way"
        ranks "$way" "$way" -N2 -n4 -- bash -c '
            echo $$ >pid.$PLUME_RUNTIME.$RANK
            if [ $RANK = 1 ]; then read -r _ <fail.$PLUME_RUNTIME; exit 5; fi
            exec tail -f /dev/null' &
    done
    for way in plrun plugin; do
        wait_for 30 at_least 4 "pid.$way.*"
        wait_for 5 test -s "pid.$way.3"
        cat "pid.$way.3" >"$FREEZER/cgroup.procs"
    done
    echo FROZEN >"$FREEZER/freezer.state"
    wait_for 5 frozen
    for way in plrun plugin; do echo >"fail.$way"; done
    # The daemon gives up after the grace and 3 s, the hub after 10 s. slurmstepd waits for its task.
    for way in plrun plugin; do wait_for 40 has_ended "$way"; done
    wait_for 20 test -s plrun.rc
    [ ! -e plugin.rc ]
    for way in plrun plugin; do
        [ "$(result "$way" 'd["state"], d["cause"]["kind"], d["cause"]["rank"], d["cause"]["exit"]')" = \
            "('failed', 'exit', 1, 5)" ]
        [ "$(state "$way" 's["ranks"][3]["facts"]["unkillable"]')" = "process $(<"pid.$way.3"), state D" ]
    done
    [ "$(rank_states plrun)" = 'killed failed killed killed' ]
    [ "$(rank_states plugin)" = 'killed failed killed lost' ]
    thaw
    wait
    [[ $(<plrun.rc) != 0 && $(<plugin.rc) != 0 && $(<plugin.rc) != 124 ]]
    NO_CODE=1 checked plrun plugin
}

@test "a rank that ignores SIGTERM or is stopped is killed after the grace" {
    export PLUME_KILL_GRACE=1
    for way in plrun plugin; do
        ranks "$way" "$way" -N2 -n3 -- bash -c '
            if [ $RANK = 0 ]; then eval "$WAIT_OTHERS"; exit 5; fi
            trap "" TERM
            : >at.$SLURM_JOB_ID.$RANK
            [ $RANK != 1 ] || kill -STOP $$
            exec tail -f /dev/null' &
    done
    start=$(now_ms)
    wait
    (($(now_ms) - start < 20000))
    rc_is plrun 5
    checked plrun
    checked_plugin plugin
    for way in plrun plugin; do
        [ "$(rank_states "$way")" = 'failed killed killed' ]
        [ "$(state "$way" '[r.get("signal") for r in s["ranks"]]')" = '[None, 9, 9]' ]
    done
}

@test "a rank that ends early and well is no failure" {
    for way in plrun plugin; do
        ranks "$way" "$way" -N2 -n4 -- bash -c '
            if [ $RANK = 3 ]; then eval "$WAIT_OTHERS"; else : >at.$SLURM_JOB_ID.$RANK; fi' &
    done
    wait
    rc_is plrun 0
    rc_is plugin 0
    checked plrun plugin
}

# left TAG: processes with this word in their arguments.
left() {
    pgrep -f "^plume-left-$1 " || true
}

nothing_left() {
    [[ -z $(left "$1") ]]
}

@test "what a rank leaves behind is ended with it" {
    # $1: tag. A session of its own; one that ignores SIGTERM; a daemon by two forks; a tree of them.
    leave='
        stay() { exec -a "plume-left-$1" tail -f /dev/null; }
        export -f stay
        setsid bash -c "stay $1" &
        setsid bash -c "trap \"\" TERM HUP; stay $1" &
        (setsid bash -c "(stay $1) & (stay $1) &" &)
        while [ "$(pgrep -fc "^plume-left-$1 ")" -lt 4 ]; do sleep 0.01; done
        exit $2'
    for way in plrun plugin; do
        for code in 0 3; do
            ranks "$way-$code" "$way" -N1 -- bash -c "$leave" - "$way-$code" "$code" &
        done
    done
    wait
    for name in plrun-0 plrun-3 plugin-0 plugin-3; do
        rc_is "$name" "${name#*-}"
        checked "$name"
        # srun waits for plrun, which waits for them; the plugin's daemon is not waited for as long.
        [[ $name == plugin-* ]] || nothing_left "$name"
        wait_for 10 nothing_left "$name"
    done
}

@test "what wiped its environment is ended too, by plrun" {
    ranks wiped plrun -N1 -- bash -c '
        env -i setsid bash -c "exec -a plume-left-wiped tail -f /dev/null" &
        while ! pgrep -f "^plume-left-wiped "; do sleep 0.01; done'
    rc_is wiped 0
    nothing_left wiped
}

@test "a program that cannot be run" {
    : >noexec
    mkdir -m 0 shut
    ranks none plrun -N2 -n3 -- nonesuch-program arg &
    ranks closed plrun -N1 --export="ALL,PATH=$WORK/shut:$PATH" -- nonesuch-program &
    ranks path plrun -N1 -- ./nonesuch &
    ranks noexec plrun -N1 -- ./noexec &
    wait
    for name in none closed path; do
        rc_is "$name" 127
        checked "$name"
        grep -q "plrun: cannot run '.*nonesuch.*': No such file or directory" "$name.err"
        [ "$(result "$name" 'd["cause"]["kind"], d["cause"]["exit"]')" = "('exit', 127)" ]
        [[ $(result "$name" 'd["cause"]["text"]') == *'No such file'* ]]
    done
    rc_is noexec 126
    checked noexec
    grep -q "plrun: cannot run './noexec': Permission denied" noexec.err
}

# It waits for the second node when its limit is lowered.
@test "a rank that cannot be started for want of processes is the cause, and not plrun" {
    cat >late <<'SH'
#!/bin/bash
[ "$SLURM_NODEID" = 0 ] || until [ -e go ]; do sleep 0.02; done
exec plrun -- true
SH
    chmod +x late
    step few -J few -N2 -n2 ./late &
    waits() {
        node=$(scontrol show hostnames "$(squeue -h -n few -o %N)" | head -n 1)
        guard=$(pids_of plrun "$node" | head -n 1) && [ -n "$guard" ] && pgrep -x -P "$guard" plrund
    }
    wait_for 30 waits
    as_user prlimit --pid "$guard" --nproc=0:0
    : >go
    wait
    rc_is few 126
    checked few
    [ "$(result few 'd["cause"]["kind"], d["cause"]["rank"], d["cause"]["exit"]')" = "('exit', 0, 126)" ]
    [[ $(result few 'd["cause"]["text"]') == *"cannot start 'true': Resource temporarily unavailable"* ]]
}

# Each rank but 3 sees rank 3 give way (its end of a pipe is closed), complains as NCCL does and
# ends, before rank 3 itself has said what is wrong.
cascade='
if [ $RANK != 3 ]; then
    : >at.$SLURM_JOB_ID.$RANK
    read -r _ <pipe.$1
    echo "NCCL WARN Net: Connection closed by remote peer; ncclRemoteError" >&2
    exit 1
fi
exec 5<>pipe.$1
eval "$WAIT_OTHERS"
for i in 1 2 3 4 5 6 7; do echo; done >&5
/bin/true
echo "RuntimeError: the data are bad" >&2
exit 1'

@test "of several failures the earliest that is no echo is the cause, twenty times" {
    for i in {1..20}; do
        mkfifo -m 0666 "pipe.$i"
    done
    for i in {1..20}; do
        way=plrun
        ((i % 4)) || way=plugin
        ranks "run-$i" "$way" -N4 -n8 -- bash -c "$cascade" - "$i" &
        # Two at a time: many at once end a slurmd now and then (doc/slurm-notes.md).
        ((i % 2)) || wait
    done
    for i in {1..20}; do
        if ((i % 4)); then
            checked "run-$i"
            rc_is "run-$i" 1
        else # srun gives the highest of the tasks' own codes: who has not ended by itself was ended
            checked_plugin "run-$i"
            [[ $(<"run-$i.rc") == @(1|143) ]]
        fi
        [ "$(result "run-$i" 'd["cause"]["rank"], d["cause"]["text"]')" = "(3, 'RuntimeError: the data are bad')" ]
        # Nobody else is called a root; those that complained are its consequences.
        [ "$(state "run-$i" '{r.get("role") for r in s["ranks"]} - {"root", "cascade", "collateral", None}')" = 'set()' ]
    done
}

@test "of several failures of the same kind the earliest is the cause" {
    for i in 1 2 3 4; do
        mkfifo -m 0666 "pipe.$i"
        # The others end 50 ms after its process is gone, with higher codes.
        ranks "run-$i" plrun -N4 -n8 -- bash -c '
            if [ $RANK = 3 ]; then
                echo $$ >first.$1
                exec 5<>pipe.$1; eval "$WAIT_OTHERS"; for i in 1 2 3 4 5 6 7; do echo; done >&5; exit 7
            fi
            : >at.$SLURM_JOB_ID.$RANK; read -r _ <pipe.$1; read -r pid <first.$1
            for ((i = 0; i < 1000; i++)); do sleep 0.05; [ -e /proc/$pid ] || { sleep 0.05; break; }; done
            exit $((RANK + 20))' - "$i" &
    done
    wait
    for i in 1 2 3 4; do
        rc_is "run-$i" 7
        checked "run-$i"
        [ "$(result "run-$i" 'd["cause"]["rank"]')" = 3 ]
    done
}

@test "a rank that the kernel ends for want of memory" {
    export PLUME_CGROUP_ROOT=$WORK/cgroup
    # Where the kernel would count, by version 2 or 1 of cgroups.
    while IFS=: read -r _ controllers path; do
        case $controllers in
        '') file=$PLUME_CGROUP_ROOT$path/memory.events ;;
        memory) file=$PLUME_CGROUP_ROOT/memory$path/memory.oom_control ;;
        *) continue ;;
        esac
        mkdir -p "${file%/*}"
        printf 'oom_kill_disable 0\noom 0\noom_kill 0\n' >"$file"
        chmod 0666 "$file"
    done </proc/self/cgroup
    [ -n "$file" ]
    for way in plrun plugin; do
        ranks "$way" "$way" -N2 -n2 -- bash -c 'if [ $RANK = 1 ]; then
            for f in $(find $PLUME_CGROUP_ROOT -type f); do printf "oom 1\noom_kill %s\n" "$1" >$f; done
            kill -KILL $$; fi; exec tail -f /dev/null' - "$([[ $way == plrun ]] && echo 1 || echo 2)"
        [ "$(result "$way" 'd["cause"]["kind"], d["cause"]["rank"], d["cause"]["signal"]')" = "('oom', 1, 9)" ]
    done
    rc_is plrun 137
    checked plrun
    checked_plugin plugin
    # Without the kernel's word it is a signal.
    ranks killed plrun -N2 -n2 -- bash -c '[ $RANK = 1 ] && kill -KILL $$; exec tail -f /dev/null'
    rc_is killed 137
    checked killed
    [ "$(result killed 'd["cause"]["kind"], d["cause"]["rank"], d["cause"]["signal"]')" = "('signal', 1, 9)" ]
}

@test "what ends the ranks may end the question to Slurm, which is asked again" {
    mkdir bin
    # Preemption signals the step twice, 0.1 s apart: the second one hits scontrol.
    cat >bin/scontrol <<-'END'
	#!/bin/sh
	[ "$1 $2 $3" = "-o show job" ] || exec /usr/bin/env PATH="${PATH#*:}" scontrol "$@"
	[ -e asked ] || { : >asked; kill -TERM $$; }
	echo "JobId=$4 JobState=COMPLETING Restarts=7 RunTime=00:00:01 TimeLimit=UNLIMITED"
	END
    chmod +x bin/scontrol
    # This scontrol writes where that of a confined daemon may not.
    PLUME_CONFINE=off PATH=$PWD/bin:$PATH ranks again plrun -N1 -n2 -- bash -c 'kill -TERM $$'
    [ -e asked ]
    [ "$(result again 'd["cause"]["kind"], d["state"]')" = "('preempted', 'preempted')" ]
}

@test "ranks that all end while Slurm is asked why wait for its answer" {
    mkdir bin
    cat >bin/scontrol <<-'END'
	#!/bin/sh
	[ "$1 $2 $3" = "-o show job" ] || exec /usr/bin/env PATH="${PATH#*:}" scontrol "$@"
	: >asked
	until grep -q '"rank":1,.*"failed"' slow.home/steps/*/trial-0000/attempt-0/events.jsonl
	do sleep 0.01; done; sleep 0.2 # until its node has said bye, which leaves no trace
	echo "JobId=$4 JobState=COMPLETING Restarts=7 RunTime=00:00:01 TimeLimit=UNLIMITED"
	END
    chmod +x bin/scontrol
    PLUME_CONFINE=off PATH=$PWD/bin:$PATH ranks slow plrun -N2 -n2 -- bash -c '
        [ $RANK = 0 ] || until [ -e asked ]; do sleep 0.01; done
        kill -TERM $$'
    [ "$(result slow 'd["cause"]["kind"], d["state"]')" = "('preempted', 'preempted')" ]
}

@test "as root too" {
    need_root
    AS=root ranks root plrun -N2 -n4 -- bash -c '[ $RANK = 3 ] && exit 3; exec tail -f /dev/null'
    rc_is root 3
    checked root
    [ "$(result root 'd["cause"]["rank"]')" = 3 ]
}
