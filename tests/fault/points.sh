#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Each allocation, write and fork of plsubmit --dry-run fails once: the tool says so and exits, or
# does without. Only in builds with -Dfault_points=true: points.sh BUILD-FOLDER.
set -euo pipefail

build=$(cd -- "$1" && pwd -P)
work=$(mktemp -d "${TMPDIR:-/tmp}/plume-points-XXXXXX")
trap 'rm -rf "$work"' EXIT
cd "$work"
failed=0 reached=0
echo "1..3"
number=0
for point in malloc write fork; do
    bad=''
    for ((n = 1; n <= 40; n++)); do
        rc=0
        PLUME_FAIL=$point:$n timeout 20 "$build/plsubmit" --grid a=1,2 --dry-run true \
            >out 2>err </dev/null || rc=$?
        ((rc == 0)) || reached=$((reached + 1))
        # A signal, a time-out, or an exit code without a word is a defect.
        { ((rc <= 2)) && { ((rc == 0)) || [[ -s err ]]; }; } || bad+=" $point:$n=$rc"
    done
    number=$((number + 1))
    if [[ -z $bad ]]; then
        echo "ok $number - $point"
    else
        echo "not ok $number - $point:$bad"
        failed=1
    fi
done
((reached > 0)) || { echo "# no point was reached"; failed=1; }
exit "$failed"
