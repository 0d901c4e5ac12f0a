#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Fault points are in no default build, and never in the plugin: slurmd would run them as root.
. "$(dirname "$0")/../lib/lint.bash"

binaries=("$BUILD/spank_plume.so")
with_points=$(
    meson introspect "$BUILD" --buildoptions 2>/dev/null | python3 -c 'import json, sys
print(any(o["name"] == "fault_points" and o["value"] for o in json.load(sys.stdin)))'
)
if [[ $with_points == False ]]; then
    binaries+=("$BUILD"/{plsubmit,plstat,plrun,plrund,pltrain} "$BUILD"/plume-*.so)
fi
for binary in "${binaries[@]}"; do
    [[ -e $binary ]] || continue
    ! grep -qF PLUME_FAIL "$binary" || found "$binary: has PLUME_FAIL"
    ! nm -D --undefined-only "$binary" | grep -qw pl_fault || found "$binary: needs pl_fault()"
done
lint_done
