#!/usr/bin/env bats
# SPDX-License-Identifier: MIT
# plstat log on a real Slurm. The rank files themselves show what it must have written.

load ../lib/cluster

setup_file() {
    cluster_up 4
}
teardown_file() { cluster_down; }
setup() {
    work_dir
    export PLUME_HOME=$WORK/plume
    as_user mkdir -m 0700 "$PLUME_HOME"
    cat >prog <<'TXT'
#!/usr/bin/env bash
for i in 1 2 3; do
    echo "out $i of $RANK in $PLUME_ATTEMPT"
    echo "err $i of $RANK in $PLUME_ATTEMPT" >&2
    printf 'half'
    read -rt 0.1 <> <(:)
    echo ' and half'
done
printf 'no newline'
while [[ -n ${GO:-} && ! -e $GO ]]; do read -rt 0.1 <> <(:); done
exit "${1:-0}"
TXT
    chmod 0755 prog
}
teardown() {
    scancel_all
    wait_until 20 queue_is_empty || true
}

# submit ARG...: sets SWEEP, RUN and JOB.
submit() {
    local line
    line=$(as_user plsubmit --parsable "$@")
    IFS=';' read -r SWEEP RUN JOB <<<"$line"
}

# follow ARG...: plstat log -f ARG... in the background; sets FOLLOW.
follow() {
    as_user plstat log -f "$@" >seen 2>notes 3>&- &
    FOLLOW=$!
}

# ended CODE: the follower ends by itself with that code.
gone() { ! kill -0 "$FOLLOW" 2>/dev/null; }
ended() {
    local rc=0
    wait_for 60 gone
    wait "$FOLLOW" || rc=$?
    [ "$rc" = "$1" ] || {
        echo "exit code $rc"
        cat seen notes
        return 1
    }
}

# same ATTEMPT...: of each rank and stream, what was shown is what its files have, in their order.
same() {
    python3 - "$RUN" seen "$@" <<'PY'
import glob, os, re, sys
run, seen, attempts = sys.argv[1], open(sys.argv[2], encoding="utf-8").read(), sys.argv[3:]
want, shown = {}, {}
for attempt in attempts:
    for path in glob.glob(f"{run}/trial-0000/attempt-{attempt}/rank-*.*"):
        rank, stream = re.search(r"rank-(\d+)\.(out|err)$", path).groups()
        text = open(path, encoding="utf-8").read()
        want.setdefault((int(rank), stream), []).extend(text.removesuffix("\n").split("\n") if text else [])
labels = len({rank for rank, _ in want}) > 1
for line in seen.removesuffix("\n").split("\n"):
    rank, text = re.match(r"(\d+): (.*)", line).groups() if labels else ("0", line)
    stream = "err" if text.startswith(("err", "slurmstepd", "[plrund")) else "out"
    shown.setdefault((int(rank), stream), []).append(text)
if shown != want:
    sys.exit(f"shown {shown}\nwanted {want}")
PY
}

@test "a pending trial is awaited, followed into its requeue, and its end is the exit code" {
    export GO=$WORK/go
    submit --sbatch hold --requeue-on error -N 2 --ntasks-per-node 2 "$WORK/prog" 3
    follow "$SWEEP"
    wait_for 20 test -s notes
    [ ! -s seen ]
    as_user plsubmit --release "$SWEEP" >/dev/null
    wait_for 30 grep -q '^3: half and half$' seen
    as_user touch "$GO"
    wait_for 90 grep -q '^3: out 1 of 3 in 1$' seen
    ended 1
    same 0 1
    run grep -v 'waits to start again$\|: BeginTime$' notes # if it was seen to
    [[ ${lines[0]} == "plstat: $SWEEP waits in Slurm's queue: "*Held* ]]
    [ "${lines[1]}" = "plstat: $SWEEP has started again: attempt 2" ]
    [[ ${lines[2]} == "plstat: $SWEEP failed: rank "*"exit 3" ]]
    [ "${#lines[@]}" = 3 ]
    # The same afterwards, of the last attempt only, and of one rank without labels.
    as_user plstat log "$SWEEP" >seen
    same 1
    run -0 as_user plstat log "$SWEEP" --ranks 2 --stream err
    [ "${lines[0]}" = 'err 1 of 2 in 1' ]
    [ "${#lines[@]}" = 3 ]
}

@test "a trial that waits for its next start is said to wait, and why" {
    export GO=$WORK/go
    submit "$WORK/prog"
    follow "$SWEEP"
    wait_for 30 grep -q 'no newline' seen
    timeout 20 scontrol requeuehold "${JOB}_0"
    wait_for 40 grep -q "^plstat: $SWEEP waits in Slurm's queue: .*[Hh]eld" notes
    as_user touch "$GO"
    timeout 20 scontrol release "$JOB"
    ended 0
    same 0 1
    grep -qx "plstat: $SWEEP has started again: attempt 2" notes
}

@test "96 ranks with few descriptors, and a trial that is done" {
    submit -N 4 --ntasks-per-node 24 "$WORK/prog"
    (ulimit -n 80 && as_user plstat log -f "$SWEEP" >seen 2>notes)
    same 0
    [ "$(wc -l <seen)" = $((96 * 10)) ]
    [ ! -s notes ] || grep -q 'has not started yet\|waits in' notes
}

@test "one rank: a part of a line is shown, too, and nothing twice" {
    export GO=$WORK/go
    submit "$WORK/prog"
    follow "$SWEEP"
    wait_for 30 grep -q 'no newline' seen
    as_user touch "$GO"
    ended 0
    same 0
}

@test "a trial that never starts, one that is cancelled, and one of which nothing is left" {
    submit --sbatch hold -J never "$WORK/prog"
    follow "$SWEEP"
    wait_for 20 test -s notes
    timeout 20 scancel "$JOB"
    ended 1
    grep -q "^plstat: $SWEEP cancelled" notes

    export GO=$WORK/go
    submit -J ends -N 2 "$WORK/prog"
    follow "$SWEEP"
    wait_for 30 grep -q '^1: half and half' seen
    timeout 20 scancel "$JOB"
    ended 1
    same 0
    grep -q "^plstat: $SWEEP cancelled" notes

    submit -J gone "$WORK/prog"
    follow "$SWEEP"
    wait_for 30 grep -q 'half and half' seen
    as_user mv "$RUN" "$RUN.away"
    as_user mv "$RUN.away" "$RUN"
    as_user touch "$GO"
    ended 0
    same 0
}

@test "a job that its own script requeues after the trial has failed is followed" {
    export GO=$WORK/go
    cat >again <<'TXT'
#!/usr/bin/env bash
[[ -z ${SLURM_RESTART_COUNT:-} ]] || exit 0
while [[ ! -e $GO ]]; do read -rt 0.1 <> <(:); done
scontrol requeue "$SLURM_JOB_ID"
read -rt 60 <> <(:) # until Slurm ends it
TXT
    chmod 0755 again
    # shellcheck disable=SC2016 # the program's
    submit --teardown "$WORK/again" bash -c 'echo "attempt $PLUME_ATTEMPT"; ((PLUME_ATTEMPT)) || exit 3'
    follow "$SWEEP"
    failed() { as_user plstat sweep "$SWEEP" --json | grep -q '"state": *"failed", *"may_start_again": *true'; }
    wait_for 30 failed
    as_user touch "$GO"
    ended 0
    [ "$(cat seen)" = $'attempt 0\nattempt 1' ]
    run ! failed
}
