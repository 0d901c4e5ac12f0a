# SPDX-License-Identifier: MIT
# shellcheck shell=bash
# ./dev soak KIND [ARGUMENT...]: by the hundred what the suites run a small part of, against an oracle or a
# model of what must follow.

# shellcheck source=dev.d/build.bash
. "$PLUME_SRC/dev.d/build.bash"

soak_usage() {
    cat <<'TXT'
Usage: ./dev soak graphs [N [SEED]]
       ./dev soak allocations [SCENARIO[:N]...]

  graphs       N random graphs of ops, in f64 and f32, against the PyTorch that
               $PLUME_TORCH_PYTHON, or else python3, has
  allocations  each allocation of plsubmit, plstat, plrun and plrund fails once

What is wrong is named; the same numbers repeat it.
TXT
}

cmd_soak() {
    local kind=${1:-}
    case $kind in
    -h | --help)
        soak_usage
        return
        ;;
    graphs | allocations) ;;
    *) die_usage "soak takes 'graphs' or 'allocations'; see ./dev soak --help" ;;
    esac
    shift
    "soak_$kind" "$@"
}

soak_graphs() {
    local n=${1:-1000} seed=${2:-$RANDOM} build=$PLUME_SRC/build
    local python=${PLUME_TORCH_PYTHON:-python3}
    (($# <= 2)) || die_usage "soak graphs takes a number of graphs and a seed"
    need_number N "$n" 1 10000000
    need_number SEED "$seed" 0 1000000
    "$python" -c 'import torch' 2>/dev/null ||
        die "'$python' has no PyTorch: name a Python that has one by PLUME_TORCH_PYTHON"
    configure_in "$build"
    ninja_in "$build" tests/graphs/test-graphs
    say "dev: $n graphs from seed $seed"
    "$python" "$PLUME_SRC/tests/graphs/graphs.py" "$n" "$seed" | "$build/tests/graphs/test-graphs" -
}

# soak_build: the tools, and what tests preload or start.
soak_build() {
    deps_ensure build test
    reconfigure_in "$PLUME_SRC/build" -Dtests=enabled
    ninja_in "$PLUME_SRC/build"
}

soak_allocations() {
    soak_build
    PLUME_BUILD=$PLUME_SRC/build "$PLUME_SRC/tests/fault/allocations.py" --all --jobs "$(nproc)" "$@"
}
