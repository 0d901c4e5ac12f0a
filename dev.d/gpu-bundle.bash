# SPDX-License-Identifier: MIT
# shellcheck shell=bash
# ./dev gpu-bundle FOLDER: the engine, its kernels, tests and benchmarks, to be built with gcc and
# nvcc alone on a machine with a card: FOLDER/check does that and prints a table. PLUME_BUILD names
# the build folder that says what there is; without it build-gpu is configured.

# shellcheck source=dev.d/build.bash
. "$PLUME_SRC/dev.d/build.bash"

cmd_gpu-bundle() {
    (($# == 1)) || die_usage "gpu-bundle takes the folder to make"
    [[ $1 != -* ]] || die_usage "gpu-bundle takes the folder to make, and no options: $1"
    local build=${PLUME_BUILD:-$PLUME_SRC/build-gpu}
    if [[ ! -d $build/meson-info ]]; then
        meson setup "$build" "$PLUME_SRC" --buildtype=release >/dev/null ||
            die "cannot configure $build"
    fi
    ninja -C "$build" --quiet build.ninja >/dev/null || die "cannot configure $build"
    python3 "$PLUME_SRC/dev.d/gpu-bundle.py" "$PLUME_SRC" "$build" "$1" ||
        die "the bundle could not be made"
}
