#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Each header compiles alone, and its guard follows its path.
. "$(dirname "$0")/../lib/lint.bash"

mapfile -t headers < <(lint_files '*.h' | grep -v '^tests/matrix/slurm-stubs/')
lint_same "$(gcc --version; pkg-config --modversion jansson libuv libsodium cmocka slurm 2>&1 || true)" "${headers[@]}"
read -ra flags < <(pkg-config --cflags jansson libuv libsodium cmocka 2>/dev/null || echo)
for header in "${headers[@]}"; do
    # PJRT's own header is there only after ./dev deps pjrt.
    [[ $header == runtime/engine/pjrt/* ]] || printf '#include "%s"\n' "$header" |
        gcc -fsyntax-only -xc -std=gnu11 -D_GNU_SOURCE -DPL_VERSION='""' -Wall -Wextra -Werror \
            -Wno-unused-parameter -Wno-unused-function -I. -Iinclude "${flags[@]}" - ||
        found "$header:1: does not compile alone"
    [[ $header != common/base/banned.h ]] || continue
    guard=${header#include/plume/}
    guard=PL_${guard^^}
    guard=${guard//[\/.-]/_}
    text=$'\n'$(<"$header")
    [[ $text == *$'\n'"#ifndef $guard"$'\n'* ]] || found "$header:1: the guard is not $guard"
done
lint_done
