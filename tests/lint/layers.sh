#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Which folder may include what (layers.py has the rows), and which library a binary may need.
. "$(dirname "$0")/../lib/lint.bash"

found_lines '' < <(python3 tests/lint/layers.py . || true)

# matches WORD PATTERN|PATTERN...
matches() {
    local pattern
    local -a patterns
    IFS='|' read -ra patterns <<<"$2"
    for pattern in "${patterns[@]}"; do
        # shellcheck disable=SC2053 # a pattern
        [[ $1 == $pattern ]] && return 0
    done
    return 1
}

# needs BINARY PATTERN...: libraries that the binary may need; with a leading ! those it may not.
needs() {
    local binary=$BUILD/$1 library
    shift
    [[ -e $binary ]] || return 0
    while read -r library; do
        if [[ $1 == '!'* ]]; then
            ! matches "$library" "${1#!}" || found "${binary##*/}: needs $library"
        else
            matches "$library" "$1" || found "${binary##*/}: needs $library"
        fi
    done < <(readelf -d "$binary" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p')
}

needs plrun '!libslurm*|libmunge*|libcuda*|libnccl*|libmpi*|libdnnl*'
needs plrund '!libslurm*|libmunge*|libcuda*|libnccl*|libmpi*|libdnnl*'
needs pltrain '!libslurm*|libmunge*|libjansson*|libuv*|libcu*|libnccl*|libmpi*|libstdc++*'
needs plsubmit '!libuv*|libmunge*|libcuda*|libnccl*|libmpi*'
needs plstat '!libuv*|libmunge*|libcuda*|libnccl*|libmpi*'
needs plume-cuda.so '!libcu*|libnccl*|libnv*'
needs spank_plume.so 'libc.so.*|ld-linux*'
lint_done
