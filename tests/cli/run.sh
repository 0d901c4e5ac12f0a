#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Golden command lines: tests/cli/run.sh BUILD-FOLDER [--update] [CASE...]
#
# A case is a folder with `cmd` (bash; it runs in an empty folder with the tools in PATH and nearly
# no environment) and the expected `out`, `err` (absent: empty) and `rc` (absent: 0). WORK, BUILD,
# NAME-ID and VERSION replace paths, ids and the version, which differ per run. --update records the
# present output.
set -euo pipefail

here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd -P)
# shellcheck source=dev.d/common.bash
. "$here/../../dev.d/common.bash"
build=$(cd -- "$1" && pwd -P)
shift
update=no
if [[ ${1:-} == --update ]]; then
    update=yes
    shift
fi
cases=("$@")
((${#cases[@]})) || mapfile -t cases < <(cd "$here" && find . -mindepth 2 -name cmd | sed 's|^\./||; s|/cmd$||' | LC_ALL=C sort)

top=$(mktemp -d "${TMPDIR:-/tmp}/plume-cli-XXXXXX")
trap 'chmod -R u+rwx "$top"; rm -rf "$top"' EXIT

normalise() {
    sed -E -e "s#$work#WORK#g" -e "s#$build#BUILD#g" \
        -e 's#(runs/[A-Za-z0-9_.-]+)-[a-z2-7]{6}#\1-ID#g' \
        -e "s#(/[A-Za-z0-9_.-]+)-[a-z2-7]{6}(/job\\.sh|/slurm-|')#\\1-ID\\2#g" \
        -e 's#(sweep [A-Za-z0-9_.-]+)-[a-z2-7]{6},#\1-ID,#' \
        -e 's#(by plsubmit|\(Plume\)) [0-9]+\.[0-9]+\.[0-9]+#\1 VERSION#'
}

remove_folders() {
    rm -rf "$work" "${top:?}/home"
}

# run_case NAME: sets rc; writes the output to $top/out and $top/err.
run_case() {
    work=$top/work
    mkdir "$work" "$top/home"
    rc=0
    (cd "$work" && env -i PATH="$build:/usr/local/bin:/usr/bin:/bin" HOME="$top/home" TERM=dumb \
        LC_ALL=C.UTF-8 ASAN_OPTIONS="${ASAN_OPTIONS:-}" UBSAN_OPTIONS="${UBSAN_OPTIONS:-}" \
        timeout 60 bash "$here/$1/cmd" </dev/null >"$top/raw-out" 2>"$top/raw-err") || rc=$?
    normalise <"$top/raw-out" >"$top/out"
    normalise <"$top/raw-err" >"$top/err"
    # The executor of a local sweep may write its last file after --wait has ended.
    wait_until 10 remove_folders 2>/dev/null || remove_folders
}

# compare FILE NAME: prints the difference as TAP comments.
compare() {
    local want=$here/$2/$1
    [[ -e $want ]] || want=/dev/null
    diff -u --label "$1 wanted" --label "$1 given" "$want" "$top/$1" | sed 's/^/# /' || true
}

record() {
    local file
    for file in out err; do
        if [[ -s $top/$file ]]; then
            cp "$top/$file" "$here/$1/$file"
        else
            rm -f "$here/$1/$file"
        fi
    done
    rm -f "$here/$1/rc"
    ((rc == 0)) || printf '%s\n' "$rc" >"$here/$1/rc"
}

echo "1..${#cases[@]}"
number=0 failed=0
for name in "${cases[@]}"; do
    number=$((number + 1))
    run_case "$name"
    if [[ $update == yes ]]; then
        record "$name"
    fi
    want_rc=0
    if [[ -e $here/$name/rc ]]; then
        want_rc=$(<"$here/$name/rc")
    fi
    difference=$(
        compare out "$name"
        compare err "$name"
        ((rc == want_rc)) || echo "# rc wanted $want_rc, given $rc"
    )
    if [[ -z $difference ]]; then
        echo "ok $number - $name"
    else
        printf '%s\n' "not ok $number - $name" "$difference"
        failed=$((failed + 1))
    fi
done
((failed == 0))
