# SPDX-License-Identifier: MIT
# shellcheck shell=bash
# ./dev soak graphs [N [SEED]]: N random graphs of ops, in f64 and f32, against a PyTorch that
# $PLUME_TORCH_PYTHON, or else python3, has. What differs is named; the same N and SEED repeat it.

# shellcheck source=dev.d/build.bash
. "$PLUME_SRC/dev.d/build.bash"

cmd_soak() {
    local what=${1:-} n=${2:-1000} seed=${3:-$RANDOM} build=$PLUME_SRC/build
    local python=${PLUME_TORCH_PYTHON:-python3}
    [[ $what == graphs ]] || die_usage "soak takes 'graphs'"
    (($# <= 3)) || die_usage "soak graphs takes a number of graphs and a seed"
    need_number N "$n" 1 10000000
    need_number SEED "$seed" 0 1000000
    "$python" -c 'import torch' 2>/dev/null ||
        die "'$python' has no PyTorch: name a Python that has one by PLUME_TORCH_PYTHON"
    configure_in "$build"
    ninja_in "$build" tests/graphs/test-graphs
    say "dev: $n graphs from seed $seed"
    "$python" "$PLUME_SRC/tests/graphs/graphs.py" "$n" "$seed" | "$build/tests/graphs/test-graphs" -
}
