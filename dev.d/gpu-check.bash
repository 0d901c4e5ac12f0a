# SPDX-License-Identifier: MIT
# shellcheck shell=bash
# ./dev gpu-check [--sanitize] [--again] [NAME...]: builds and runs all GPU tests and benchmarks in stages; 77 where
# there is no card. It is ./dev gpu-bundle and the bundle's own `check`. With --next it measures what is not measured
# yet (tests/gpu/next.tsv) and builds nothing: --build before.

# shellcheck source=dev.d/gpu-bundle.bash
. "$PLUME_SRC/dev.d/gpu-bundle.bash"

cmd_gpu-check() {
    local folder=$PLUME_SRC/build-gpu-bundle rc=0
    if ! compgen -G '/dev/nvidia[0-9]*' >/dev/null; then
        say "gpu-check: no NVIDIA GPU on this machine (no /dev/nvidia0): nothing was run"
        exit 77
    fi
    # The same bundle goes on where it was; sources that have changed are packed anew.
    # shellcheck disable=SC2016 # for the shell that runs it
    if [[ -e $folder/check && -z $(cd "$PLUME_SRC" && git ls-files -z --cached --others --exclude-standard |
        xargs -0 -r sh -c 'find "$@" -maxdepth 0 -type f -newer "$0" -print -quit' "$folder/check") ]]; then
        say "gpu-check: going on in '$folder'"
    else
        rm -rf "$folder"
        cmd_gpu-bundle "$folder" || exit 1
    fi
    "$folder/check" "$@" || rc=$?
    exit "$rc"
}
