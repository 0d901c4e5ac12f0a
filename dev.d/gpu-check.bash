# SPDX-License-Identifier: MIT
# shellcheck shell=bash
# ./dev gpu-check [--sanitize] [NAME...]: builds and runs all GPU tests and benchmarks and prints a table; 77 where
# there is no card. It is ./dev gpu-bundle and the bundle's own `check`.

# shellcheck source=dev.d/gpu-bundle.bash
. "$PLUME_SRC/dev.d/gpu-bundle.bash"

cmd_gpu-check() {
    local folder=$PLUME_SRC/build-gpu-bundle rc=0
    if ! compgen -G '/dev/nvidia[0-9]*' >/dev/null; then
        say "gpu-check: no NVIDIA GPU on this machine (no /dev/nvidia0): nothing was run"
        exit 77
    fi
    rm -rf "$folder"
    cmd_gpu-bundle "$folder" || exit 1
    "$folder/check" "$@" || rc=$?
    exit "$rc"
}
