#!/bin/bash
# SPDX-License-Identifier: MIT
# slurm.sh: runs the tests of what asks Slurm, reads its answers or is loaded by it, with the Slurm of this machine.
# It prints TAP, of one file after another. A test that failed runs once more, alone, as in ./dev test; if it passes
# then, a line "# unsteady: NAME" says so. The status is 0 if each test has passed.
set -uo pipefail

readonly AGAIN_MOST=6
cd "$(dirname "$0")/../cluster" || exit
top=$(mktemp -d) || exit
trap 'rm -rf "$top"' EXIT

# lane FILE...: runs these; what they print is kept in $top.
lane() {
    local file rc=0
    for file; do
        bats --tap "$file.bats" | tee "$top/$file.tap" && continue
        rc=1
        # Without one it broke off, and says nothing of the others.
        grep -q '^not ok ' "$top/$file.tap" || touch "$top/broken"
    done
    return "$rc"
}

# again: runs what has failed, one by one; fails if one fails again.
again() {
    local file number name rc=0
    while IFS=: read -r file number name <&3; do
        # shellcheck disable=SC2016 # the name as a regular expression
        if bats --tap --filter "^$(sed 's/[][\.*^$(){}?+|/]/\\&/g' <<<"$name")\$" "$file.bats"; then
            printf '# unsteady: %s\n' "$name"
        else
            printf 'failed twice: %s: %s %s\n' "$file" "$number" "$name"
            rc=1
        fi
    done 3<"$top/failed"
    return "$rc"
}

rc=0
lane plsubmit requeue &
first=$!
lane plstat spank spank-fake spank-run || rc=1
wait "$first" || rc=1
((rc)) || exit 0
for tap in "$top"/*.tap; do
    sed -n "s/^not ok \([0-9]*\) /$(basename "$tap" .tap):\1:/p" "$tap"
done >"$top/failed"
[[ ! -e $top/broken ]] || exit 1
(($(wc -l <"$top/failed") <= AGAIN_MOST)) || exit 1
again
