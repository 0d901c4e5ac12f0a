# SPDX-License-Identifier: MIT
# shellcheck shell=bash
# ./dev demo: a sweep of three trials on twelve nodes of a private cluster, from nothing.

# shellcheck source=dev.d/build.bash
. "$PLUME_SRC/dev.d/build.bash"

readonly DEMO_LIMIT_S=300

# demo_counts JOB: how many tasks of the array are in which state, as squeue sees them.
demo_counts() {
    timeout 20 squeue -h -r -j "$1" -o %T 2>/dev/null | sort | uniq -c |
        awk '{ printf "%s%d %s", (NR > 1 ? ", " : ""), $1, tolower($2) }'
}

# Until the array has left the queue: the table redrawn on a terminal, else a line a change.
demo_watch() {
    local sweep=$1 job=$2 last='' now lines=0 start
    start=$(now_ms)
    while now=$(demo_counts "$job") && [[ -n $now ]]; do
        (($(now_ms) - start < DEMO_LIMIT_S * 1000)) ||
            die "the sweep has not ended after $DEMO_LIMIT_S s: $now"
        if [[ -t 1 ]]; then
            now=$(plstat sweep "$sweep" 2>&1) || true
            ((lines == 0)) || printf '\e[%dA\e[J' "$lines"
            printf '%s\n' "$now"
            lines=$(wc -l <<<"$now")
        elif [[ $now != "$last" ]]; then
            printf '%5.1f s  trials: %s\n' "$((($(now_ms) - start) / 100))e-1" "$now"
            last=$now
        fi
        sleep 0.3
    done
    ((lines == 0)) || printf '\e[%dA\e[J' "$lines"
}

cmd_demo() {
    local name=demo-$$ said sweep job ended
    (($# == 0)) || die_usage "demo takes no argument"
    DEPS_STRICT=yes deps_ensure build
    configure_in "$PLUME_SRC/build" -Dcuda=disabled
    ninja_in "$PLUME_SRC/build" tools

    # shellcheck disable=SC2064 # this very cluster
    trap "'$PLUME_SRC/dev' cluster down --name $name" EXIT
    trap 'exit 130' INT TERM HUP
    "$PLUME_SRC/dev" cluster up 12 --quiet --name "$name"
    eval "$("$PLUME_SRC/dev" cluster env --name "$name")"
    say "dev: twelve nodes of a private Slurm are up"
    cd "$PLUME_SRC" || exit
    unset PLUME_RUNS

    echo '$ plsubmit --grid lr=1e-3,1e-2,1e-1 --nodes 12'
    said=$(plsubmit --grid lr=1e-3,1e-2,1e-1 --nodes 12) || die "plsubmit failed"
    printf '%s\n' "$said"
    sweep=$(sed -n 's/^submitted \([^:]*\):.*/\1/p' <<<"$said")
    job=$(sed -n 's/^submitted .*, job \([0-9]*\).*/\1/p' <<<"$said")
    [[ -n $sweep && -n $job ]] || die "plsubmit's answer names no sweep and job"

    demo_watch "$sweep" "$job"
    printf '$ plstat sweep %s\n' "$sweep"
    plstat sweep "$sweep"
    ended=$(python3 -c 'import json, sys
print(sum(json.load(open(path))["state"] == "done" for path in sys.argv[1:]))' \
        "runs/$sweep"/trial-*/result.json)
    ((ended == 3)) || die "$ended of 3 trials are done; see plstat why $sweep, and runs/$sweep"
    say "dev: the run is kept in runs/$sweep"
}
