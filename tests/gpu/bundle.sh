#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# The bundle builds where there is nothing but gcc, its tests that need no GPU pass there and the others
# are skipped; without a GPU gpu-check ends with 77 and one line: bundle.sh SOURCE BUILD [NAME...]
# NAMEs are of tests that are built and run; GPU tests' names begin with gpu-.
set -euo pipefail

source=$1 build=$2
shift 2
top=$(mktemp -d "${TMPDIR:-/tmp}/plume-bundle-XXXXXX")
trap 'rm -rf "$top"' EXIT

fail() {
    echo "bundle.sh: $*" >&2
    exit 1
}

PLUME_BUILD=$build "$source/dev" gpu-bundle "$top/bundle"
size_kib=$(du -sk "$top/bundle" | cut -f 1)
((size_kib < 60 * 1024)) || fail "it has $size_kib KiB"
for test in 'linear	cpu' 'gpu-linear	gpu' 'engine_tape	cpu'; do
    grep -q "^test	$test	" "$top/bundle/tests.tsv" || fail "no test '$test' in it"
done
grep -q '^bench	gpu-engine	gpu	.*	python3 .*gpu_engine.py' "$top/bundle/tests.tsv" ||
    fail "no script 'gpu-engine' in it"

# A folder of programs, so that no meson and no packages' tools are found.
mkdir "$top/bin" "$top/home"
for tool in bash sh gcc as ld ar nproc cat sed tail head mkdir dirname basename readlink timeout \
    xargs rm env mktemp find tar gzip mv; do
    while read -r file; do # a link to ccache would find no compiler behind it in this folder
        [[ $(readlink -f "$file") == */ccache ]] || break
    done < <(type -aP "$tool")
    ln -s "$file" "$top/bin/$tool"
done
if ! compgen -G '/dev/nvidia[0-9]*' >/dev/null; then
    for command in "$top/bundle/check" "$source/dev gpu-check"; do
        rc=0
        # shellcheck disable=SC2086 # a command and its word
        $command >"$top/said" 2>&1 || rc=$?
        [[ $rc == 77 && $(wc -l <"$top/said") == 1 ]] || fail "$command: $rc, $(cat "$top/said")"
        grep -q 'no NVIDIA GPU' "$top/said" || fail "$command: $(cat "$top/said")"
    done
fi
# Not optimised, so that it is built sooner; what counts is that it can be.
cat >"$top/bin/cc-fast" <<'TXT'
#!/bin/bash
exec gcc "$@" -O0 -g0 -w
TXT
chmod +x "$top/bin/cc-fast"
env -i PATH="$top/bin" HOME="$top/home" TMPDIR="$top/home" CC=cc-fast JOBS=1 "$top/bundle/check" --cpu "$@" |
    tee "$top/said"
for name; do
    case $name in
    gpu-*) grep -A 1 "^test *$name *skipped " "$top/said" | grep -q 'no NVIDIA GPU' ;;
    *) grep -q "^test *$name *ok " "$top/said" ;;
    esac || fail "what of $name?"
done
