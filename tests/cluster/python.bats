#!/usr/bin/env bats
# SPDX-License-Identifier: MIT
# plume.sweep().as_completed() on a real Slurm: each trial once, after its last attempt, whatever it ends by.

load ../lib/cluster

setup_file() {
    cluster_up 2 --cpus 8
}
teardown_file() { cluster_down; }
setup() {
    work_dir
    export PLUME_HOME=$WORK/plume
    as_user mkdir -m 0700 "$PLUME_HOME"
    export PYTHONPATH=$PLUME_SRC/examples/report PYTHONDONTWRITEBYTECODE=1
    cat >prog <<'TXT'
#!/usr/bin/env bash
case $1 in
ok) ;;
once) ((PLUME_ATTEMPT)) || exit 3 ;;
never) exit 3 ;;
waits | lost | cancelled | preempted)
    : >"$WORK/began-$1-$PLUME_ATTEMPT"
    while [[ ! -e $WORK/go ]]; do read -rt 0.2 <> <(:); done
    ;;
esac
exit 0
TXT
    chmod 0755 prog
    chown "$PLAIN_UID" . 2>/dev/null || true
    export WORK
}
teardown() {
    scancel_all
    wait_until 20 queue_is_empty || true
}

# collect ARG...: the trials of SWEEP in the background, one in a line: "NUMBER STATE ATTEMPTS".
collect() {
    cat >collect.py <<'PY'
import sys, plume
for t in plume.sweep(sys.argv[1]).as_completed(*map(float, sys.argv[2:])):
    print(t["trial"], t["state"], t["attempts"], flush=True)
PY
    as_user /usr/bin/python3 collect.py "$@" >ended 2>error 3>&- &
    COLLECT=$!
}

submit() {
    local line
    line=$(as_user plsubmit --parsable "$@")
    IFS=';' read -r SWEEP _ JOB <<<"$line"
}

has() { grep -qx "$1" ended; }

@test "trials come as they end: after a requeue, without a result, and those of a retry" {
    submit --requeue-on error --grid kind=ok,once,never,lost,cancelled,waits -- "$WORK/prog" '{kind}'
    collect "$SWEEP" 200
    wait_for 30 has '0 done 1'
    wait_for 30 test -e began-lost-0
    wait_for 30 test -e began-cancelled-0
    wait_for 30 test -e began-waits-0
    timeout 20 scancel "${JOB}_4"
    # All processes of the trial at once, as if its node were gone; Slurm knows what is left.
    mapfile -t pids < <(grep -lzxs "SLURM_ARRAY_JOB_ID=$JOB" /proc/[0-9]*/environ |
        xargs grep -lzxs SLURM_ARRAY_TASK_ID=3 | cut -d / -f 3)
    kill -KILL "${pids[@]}"
    timeout 20 scontrol requeue "${JOB}_5"
    wait_for 60 has '4 cancelled 1'
    wait_for 60 has '3 failed 1'
    wait_for 120 has '1 done 2'
    wait_for 120 has '2 failed 2'
    wait_for 120 test -e began-waits-1
    [ "$(wc -l <ended)" = 5 ]
    touch go
    wait "$COLLECT"
    has '5 done 2'
    [ "$(wc -l <ended)" = 6 ]
    [ "$(cut -d ' ' -f 1 ended | sort)" = "$(seq 0 5)" ]

    # A retry that waits is awaited. Those that are done come at once.
    as_user plsubmit --retry "$SWEEP" >/dev/null
    collect "$SWEEP" 200
    wait "$COLLECT"
    [ "$(sort ended)" = "$(printf '%s\n' '0 done 1' '1 done 2' '2 failed 4' '3 done 2' '4 done 2' '5 done 2')" ]
}

@test "a trial that never starts, the time that is over, and few questions to the controller" {
    asked() { sdiag | sed -n 's/.*REQUEST_JOB_USER_INFO *(.*) count:\([0-9]*\).*/\1/p'; }
    submit --grid kind=ok,waits,none -- "$WORK/prog" '{kind}'
    wait_for 30 test -e began-waits-0
    before=$(asked)
    collect "$SWEEP" 15
    local rc=0
    wait "$COLLECT" || rc=$?
    [ "$rc" = 1 ]
    (($(asked) - before <= 3))
    [ "$(sort ended)" = "$(printf '%s\n' '0 done 1' '2 done 1')" ]
    grep -q '^TimeoutError: plume: 1 of 3 trials have not ended$' error

    submit --sbatch hold --grid kind=ok,waits -- "$WORK/prog" '{kind}'
    collect "$SWEEP" 100
    wait_for 20 queue_has
    as_user plsubmit --cancel "$SWEEP/0" >/dev/null
    wait_for 40 has '0 cancelled 1'
    timeout 20 scancel "$JOB"
    wait "$COLLECT"
    has '1 cancelled 1'
}

queue_has() { [[ -n $(timeout 20 squeue -h) ]]; }
