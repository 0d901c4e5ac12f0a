# SPDX-License-Identifier: MIT
# shellcheck shell=bash
# Helpers for bats files that need a Slurm. One cluster a file:
#
#   load ../lib/cluster
#   setup_file()    { cluster_up 12 --gpus 4; }
#   teardown_file() { cluster_down; }
#   setup()         { work_dir; }      # $WORK: a fresh folder, the current one, the plain user's
#
# cluster_up exports SLURM_CONF, PLUME_CLUSTER, PATH with build/ first, and CLUSTER_DIR.
# As root, as_user COMMAND runs as uid 65534 with a HOME of its own; otherwise as the caller.
# Every wait takes a limit in seconds, and a job that never starts fails the test, not the lane.

bats_require_minimum_version 1.5.0

PLUME_SRC=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.." && pwd -P)
# shellcheck source=dev.d/common.bash
. "$PLUME_SRC/dev.d/common.bash"

readonly PLAIN_UID=65534

# For us only: jobs would inherit it.
export -n PLUME_TEST_ID PLUME_TEST_COPY PLUME_TEST_XLA_FLAGS PLUME_TEST_DAY

# cluster_up N [OPTION...]: ./dev cluster up with a name of this file's own.
cluster_up() {
    local name base
    base=${BATS_TEST_FILENAME##*/}
    name=${PLUME_TEST_ID:-test-$$}-${base%.bats}-$$
    "$PLUME_SRC/dev" cluster up "$@" --quiet --name "$name" || return
    eval "$("$PLUME_SRC/dev" cluster env --name "$name")"
    CLUSTER_DIR=${SLURM_CONF%/*}
    # Short, and where the plain user may go: bats' own folders are private.
    WORK_BASE=$(mktemp -d "${TMPDIR:-/tmp}/plume-work-XXXXXX")
    chmod 0755 "$WORK_BASE"
    mkdir "$WORK_BASE/home"
    ((EUID != 0)) || chown "$PLAIN_UID:$PLAIN_UID" "$WORK_BASE/home"
    export CLUSTER_DIR WORK_BASE
    # Slurm gives jobs the caller's environment: keep surprises of the outer one out.
    unset "${!SBATCH_@}" "${!SALLOC_@}" "${!SRUN_@}"
}

# cluster_down: also fails the file when processes of its jobs outlived them.
cluster_down() {
    local left=''
    [[ -n ${CLUSTER_DIR:-} ]] || return 0
    scancel_all
    wait_until 15 queue_is_empty || true
    wait_until 10 no_left_overs || left=$(left_overs)
    "$PLUME_SRC/dev" cluster down --name "$PLUME_CLUSTER"
    rm -rf -- "$WORK_BASE"
    if [[ -n $left ]]; then
        printf 'left over by jobs:\n%s\n' "$left" >&2
        return 1
    fi
}

scancel_all() {
    local -a jobs
    mapfile -t jobs < <(timeout 20 squeue -h -o %F | sort -u)
    ((${#jobs[@]} == 0)) || timeout 20 scancel -Q "${jobs[@]}" || true
}

queue_is_empty() {
    [[ -z $(timeout 20 squeue -h -o %A) ]]
}

# left_overs: one line for each process that still carries a job id of this cluster.
left_overs() {
    local file pid
    while read -r file; do
        pid=${file#/proc/}
        pid=${pid%/environ}
        tr '\0' '\n' 2>/dev/null <"$file" | grep -q '^SLURM_JOB_ID=' || continue
        pid_start "$pid" >/dev/null || continue
        printf '%s %s\n' "$pid" "$(tr '\0' ' ' 2>/dev/null <"/proc/$pid/cmdline")"
    done < <(grep -lsF "SLURM_CONF=$SLURM_CONF" /proc/[0-9]*/environ)
}

no_left_overs() {
    [[ -z $(left_overs) ]]
}

# work_dir: make $WORK, writable by the plain user too, and go there.
work_dir() {
    WORK=$WORK_BASE/${BATS_TEST_NUMBER:-0}
    mkdir -p "$WORK"
    ((EUID != 0)) || chown "$PLAIN_UID:$PLAIN_UID" "$WORK"
    cd "$WORK" || return
}

# as_user COMMAND [ARG...]: as an ordinary user.
as_user() {
    if ((EUID != 0)); then
        HOME=$WORK_BASE/home "$@"
    else
        HOME=$WORK_BASE/home USER=nobody LOGNAME=nobody \
            setpriv --reuid "$PLAIN_UID" --regid "$PLAIN_UID" --clear-groups "$@"
    fi
}

need_root() {
    ((EUID == 0)) || skip "no root"
}

# Debian's Slurm 26.05 comes without that plugin.
need_pmix() {
    srun --mpi=list 2>&1 | grep pmix >/dev/null || skip "this Slurm has no plugin for PMIx"
}

# wait_for SECONDS COMMAND [ARG...]: until COMMAND succeeds; says what it waited for when it did not.
wait_for() {
    local limit_s=$1
    shift
    wait_until "$limit_s" "$@" && return
    printf 'still not true after %s s: %s\n' "$limit_s" "$*" >&2
    squeue >&2 || true
    daemons_gone >&2
    return 1
}

# daemons_gone: a line for each of the cluster's daemons that has ended, with its last words.
daemons_gone() {
    local name pid start
    while read -r name pid start; do
        pid_is "$pid" "$start" ||
            printf '%s has ended: %s\n' "$name" "$(tail -n 1 "$CLUSTER_DIR/log/$name.log")"
    done <"$CLUSTER_DIR/pids"
}

# job_state JOB: Slurm's word for it, e.g. RUNNING or COMPLETED; of an array the first line.
job_state() {
    timeout 20 scontrol -o show job "$1" 2>/dev/null | sed -n '1s/.* JobState=\([A-Z_]*\).*/\1/p'
}

# job_field JOB FIELD: a field of scontrol show job, e.g. ExitCode, Restarts, Reason.
job_field() {
    timeout 20 scontrol -o show job "$1" | sed -n "1s/.*[ ^]$2=\([^ ]*\).*/\1/p"
}

job_is() {
    [[ $(job_state "$1") == "$2" ]]
}

# job_gone JOB: no task of it is waiting, running or completing any more.
job_gone() {
    [[ -z $(timeout 20 squeue -h -j "$1" -o %T 2>/dev/null) ]]
}

# job_wait JOB [SECONDS]: until it has left the queue.
job_wait() {
    wait_for "${2:-60}" job_gone "$1"
}

# job_wait_state JOB STATE [SECONDS]
job_wait_state() {
    wait_for "${3:-60}" job_is "$1" "$2"
}

no_slurmstepd() {
    local pid
    for pid in $(pgrep -f '^slurmstepd: \['); do
        ! grep -qsF "SLURM_CONF=$SLURM_CONF" "/proc/$pid/environ" || return 1
    done
}

all_nodes_idle() {
    [[ $(timeout 20 sinfo -h -p main -o %t | sort -u) == idle ]]
}

# all_well: nodes undrained, nothing left.
all_well() {
    wait_for 20 all_nodes_idle
    wait_for 10 no_slurmstepd
    wait_for 10 no_left_overs
}
