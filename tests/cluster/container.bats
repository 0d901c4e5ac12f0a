#!/usr/bin/env bats
# SPDX-License-Identifier: MIT
# --container, without Slurm. The run-time is a stand-in, tests/fakes/apptainer, unless
# PLUME_TEST_IMAGE names an image for the apptainer in PATH: ./dev soak container.

load ../lib/cluster

setup() {
    WORK=$(mktemp -d "${TMPDIR:-/tmp}/plume-container-XXXXXX")
    cd "$WORK" || return
    mkdir home bin
    export HOME=$WORK/home PATH=$PLUME_SRC/build:$PATH
    unset SLURM_CONF "${!SLURM_@}" CUDA_VISIBLE_DEVICES
    IMAGE=${PLUME_TEST_IMAGE:-image}
    [ -z "${PLUME_TEST_IMAGE:-}" ] || return 0
    mkdir -p image/bin
    printf 'NCCL_DEBUG=OFF MASTER_PORT=1 TOKEN=image LANG=image\nexport NCCL_DEBUG MASTER_PORT TOKEN LANG\n' >image/environment
    ln -s "$PLUME_SRC/tests/fakes/apptainer" bin/apptainer
    PATH=$WORK/bin:$PATH
}
teardown() {
    plsubmit --cancel last &>/dev/null || true
    wait_until 30 executor_gone || true
    rm -rf "$WORK"
}

executor_gone() {
    local lock
    for lock in runs/*/local.lock; do
        [ ! -e "$lock" ] || flock -n "$lock" true || return 1
    done
}

submit() {
    run --separate-stderr plsubmit --parsable --local "$@"
    IFS=';' read -r SWEEP RUN _ <<<"${lines[0]}"
}
out() { printf '%s/trial-%04d/attempt-0/rank-%d.out' "$RUN" "$1" "$2"; }

@test "a container's rank has its values byte for byte, over the image's, and its folders" {
    cat >prog <<'TXT'
#!/bin/sh
printf '%s\n' "$PWD" "$1" "$PLUME_PARAM_a" "$TOKEN" "$SECRET" "$RANK/$WORLD_SIZE $NCCL_DEBUG" "$PLUME_CONTAINER$PLUME_CONTAINER_ENV"
[ -S "$PLUME_SOCKET" ] && [ "$MASTER_PORT" -gt 1 ] && echo here >"$PLUME_TRIAL_DIR/here-$RANK"
TXT
    chmod +x prog
    # shellcheck disable=SC2016 # nothing runs it
    printf '%s\n' 'SECRET=`touch ran` "$(touch ran)"' >f.env
    chmod 600 f.env
    # shellcheck disable=SC2016
    APPTAINER_CWD=/ SINGULARITY_PWD=/ FAKE_BINDS=$WORK/binds submit --container "$IMAGE" --ntasks-per-node 2 --grid 'a="x $(touch ran), \y"' \
        --env 'TOKEN=t "`touch ran`' --env-file f.env --nccl-debug INFO --runs 'r,u:n "s",ro' --wait ./prog '{a}'
    [ "$status" = 0 ]
    # shellcheck disable=SC2016
    for rank in 0 1; do
        diff <(printf '%s\n' "$WORK" 'x $(touch ran), \y' 'x $(touch ran), \y' 't "`touch ran`' '`touch ran` "$(touch ran)"' "$rank/2 INFO" '') \
            "$(out 0 $rank)"
        [ -e "$RUN/trial-0000/here-$rank" ]
    done
    [ ! -e ran ]
    [ -n "${PLUME_TEST_IMAGE:-}" ] || [ "$(grep -cxF -e "$RUN" -e "$WORK" -e "/tmp/plume-$UID" binds)" = 3 ]
    # --cleanenv leaves a rank its own variables.
    HIDDEN=x submit --container "$IMAGE" --container-option cleanenv --grid a=1 --wait -- sh -c 'echo "$RANK $PLUME_PARAM_a $PLUME_PARAMS $HIDDEN"'
    [ "$(<"$(out 0 0)")" = '0 1 {"a":"1"} ' ]
    # What a profile sets for plrun without plsubmit is not of the sweep.
    echo 'export PLUME_CONTAINER=/nonexistent PLUME_CONTAINER_OPTIONS=--none PLUME_LAUNCH=torchrun' >home/.bash_profile
    # shellcheck disable=SC2016
    submit --wait -- sh -c 'echo "$RANK $PLUME_CONTAINER"'
    [ "$(<"$(out 0 0)")" = '0 ' ]
    submit --container "$IMAGE" --wait true
    [ "$status" = 0 ]
}

@test "signals, exit codes and what is missing pass through a container" {
    cat >prog <<'TXT'
#!/bin/bash
trap 'echo USR1' USR1
trap 'echo TERM; exit 7' TERM
case $1 in fail) echo oops >&2; exit 3 ;; segv) kill -SEGV $$ ;; esac
echo $$ >"up-$RANK"
while :; do sleep 0.05; done
TXT
    chmod +x prog
    submit --container "$IMAGE" --wait ./prog fail
    [ "$status" = 1 ]
    [[ $(plstat why "$SWEEP") == *'exit 3'*oops* ]]
    submit --container "$IMAGE" --wait ./prog segv
    [[ $(plstat why "$SWEEP") == *'killed by SIGSEGV'* ]]
    submit --container "$IMAGE" --wait nosuchprog
    [[ $(plstat why "$SWEEP") == *'exit 255'*'"nosuchprog": executable file not found'* ]]
    # shellcheck disable=SC2016
    submit --container "$IMAGE" ./prog wait
    wait_for 30 test -s up-0
    plsubmit --cancel "$SWEEP"
    wait_for 30 executor_gone
    [ "$(<"$(out 0 0)")" = TERM ]
    [[ $(plstat why "$SWEEP") == *cancelled* ]]
    # No run-time on the node, nor where it was found at the submission.
    submit --container "$IMAGE" --no-submit ./prog fail
    sed -i 's|PLUME_CONTAINER_RUNTIME=[^ ]*|PLUME_CONTAINER_RUNTIME=/nonexistent|' "$RUN/job.sh"
    PATH=${PATH#"$WORK/bin:"} plsubmit --resume "$SWEEP" --wait || true
    [[ $(plstat why "$SWEEP") == *'exit 127'*'no apptainer and no singularity is in PATH'* ]]
}

@test "with singularity --cleanenv would lose variables, and is refused" {
    [ -z "${PLUME_TEST_IMAGE:-}" ] || return 0
    mv bin/apptainer bin/singularity
    if type -P apptainer >/dev/null; then
        echo "skipped: a real apptainer is in PATH"
        return 0
    fi
    submit --container "$IMAGE" --container-option cleanenv --grid a=1 --wait true
    [ "$status" = 1 ]
    [[ $(plstat why "$SWEEP") == *'exit 126'*"singularity's --cleanenv loses PLUME_PARAMS"* ]]
    submit --container "$IMAGE" --grid a=1 --wait true
    [ "$status" = 0 ]
}
