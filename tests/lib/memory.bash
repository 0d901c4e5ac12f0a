# SPDX-License-Identifier: MIT
# shellcheck shell=bash
# Runs of pltrain that do not fit the memory of a rank.

# room MIB ARGS...: sets LIMIT, with which the engine has so much in each rank of a run.
room() {
    local mib=$1 engine
    shift
    # The address space of the rank that has least for the engine, in bytes.
    engine=$(ulimit -v 900000 && pltrain --max-steps 1 --summary "$@" | grep -E '^(needs|model:) ' |
        grep -o 'of [0-9.]* MB' | awk 'NR == 1 || $2 < least { least = $2 } END { printf "%.0f", least * 1e6 }')
    LIMIT=$(((900000 * 1024 - engine) / 1024 + mib * 1024))
}

# told MIB ARGS...: a run for whose memory the engine has so much is told that it does not fit, and what does (`told`).
told() {
    room "$@"
    shift
    output=$(ulimit -v $LIMIT && pltrain --max-steps 1 "$@" 2>&1) || true
    [[ $output =~ "warning: rank "[0-9]+(, stage [0-9]+,)?" needs "[0-9.]+" MB of "[0-9.]+" MB: what fits is "([^$'\n']*) ]] ||
        { echo "$output"; false; }
    export told=${BASH_REMATCH[2]}
}

# fits ARGS...: that runs in the same memory, and is not warned.
fits() {
    run -0 --separate-stderr pltrain_in "$LIMIT" --max-steps 1 "$@"
    # shellcheck disable=SC2154 # of bats
    [[ $stderr != *warning* ]] || { echo "$stderr"; false; }
}

pltrain_in() (ulimit -v "$1" && shift && pltrain "$@")
