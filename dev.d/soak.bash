# SPDX-License-Identifier: MIT
# shellcheck shell=bash
# ./dev soak KIND [ARGUMENT...]: by the hundred what the suites run a small part of, against an oracle or a
# model of what must follow.

# shellcheck source=dev.d/cgroup2.bash
. "$PLUME_SRC/dev.d/cgroup2.bash"
# shellcheck source=dev.d/fuzz.bash
. "$PLUME_SRC/dev.d/fuzz.bash"
# shellcheck source=dev.d/nfs.bash
. "$PLUME_SRC/dev.d/nfs.bash"

# Seconds of each fuzz target: an hour for what reads bytes of strangers, ten minutes for the others.
declare -rA SOAK_FUZZ_S=(
    [protocol]=3600 [rank-line]=3600 [minijson]=3600
    [address]=600 [checkpoint]=600 [data]=600 [env-file]=600 [grid]=600 [job-file]=600 [json]=600
    [messages]=600 [npy]=600 [parse]=600 [plstat]=600 [plugin]=600 [run-folder]=600 [scontrol]=600
    [script]=600 [term]=600
)

soak_usage() {
    cat <<'TXT'
Usage: ./dev soak graphs [N [SEED]]
       ./dev soak pipelines [N [SEED]]
       ./dev soak shards [N [SEED]]
       ./dev soak xla [N [SEED]]
       ./dev soak allocations [SCENARIO[:N]...]
       ./dev soak fuzz [--list | DIVISOR]
       ./dev soak stalls [N [SEED]]
       ./dev soak chaos [--seed N] [--minutes M | --count K | --each [K]]
                        [--jobs J] [--way WAY] [--fault NAME] [--case SEED:I]
       ./dev soak recipes [NAME...]
       ./dev soak container IMAGE
       ./dev soak cgroup2
       ./dev soak nfs [VERSION]

  graphs       N random graphs of ops, in f64 and f32, and a quarter as many in
               f16 and in bf16, against the PyTorch that $PLUME_TORCH_PYTHON, or
               else python3, has
  pipelines    N random modules in random pipelines, beside one process or ddp
  shards       N random modules with --shard param, beside ddp
  xla          N random runs on 1 to 8 devices of XLA's CPU plugin, in one
               process or on simulated hosts, beside ranks of ddp
               (./dev deps pjrt)
  allocations  each allocation of plsubmit, plstat, plrun and plrund fails once
  fuzz         each target of tests/fuzz for its seconds, divided by DIVISOR;
               --list names them
  stalls       N simulated jobs with noisy steps, pauses and hangs: no alarm but
               for a hang, and each hang is named, in time and rightly
  chaos        faults at random moments in real steps on a private cluster, by
               plrun and by the plugin; [40 cases, 3 at a time, a clock's seed];
               --each takes each fault by each way K times [1]
  cgroup2      control groups of version 2 with their controllers, in User Mode
               Linux (the package user-mode-linux; needs root)
  nfs          runs whose folder and $HOME are on NFS, each node a client of its
               own, in User Mode Linux (the packages user-mode-linux, kmod,
               nfs-common, nfs-kernel-server; needs root); [4.2]
  recipes      each recipe of doc/recipes.md with the packages that the Python
               $PLUME_RECIPES_PYTHON, or else python3, has
  container    tests/cluster/container.bats with the apptainer in PATH and an
               IMAGE that has bash and sleep, in place of the stand-in

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
    graphs | pipelines | shards | xla | allocations | fuzz | stalls | chaos | recipes | container | cgroup2 | nfs) ;;
    *) die_usage "soak takes 'graphs', 'pipelines', 'shards', 'xla', 'allocations', 'fuzz', 'stalls', 'chaos', 'recipes', 'container', 'cgroup2' or 'nfs'; see ./dev soak --help" ;;
    esac
    shift
    "soak_$kind" "$@"
}

soak_pipelines() {
    local n=${1:-300} seed=${2:-$RANDOM} build=$PLUME_SRC/build
    (($# <= 2)) || die_usage "soak pipelines takes a number of modules and a seed"
    need_number N "$n" 1 10000000
    need_number SEED "$seed" 0 1000000
    configure_in "$build"
    ninja_in "$build" tests/engine/test-pipeline data/digits/train-images.npy
    say "dev: $n random modules from seed $seed"
    PLUME_DATA_DIR=$build/data PLUME_TEST_PIPELINES="$n $seed" "$build/tests/engine/test-pipeline"
}

soak_shards() {
    local n=${1:-100} seed=${2:-$RANDOM} build=$PLUME_SRC/build
    (($# <= 2)) || die_usage "soak shards takes a number of modules and a seed"
    need_number N "$n" 1 10000000
    need_number SEED "$seed" 0 1000000
    configure_in "$build"
    ninja_in "$build" tests/engine/test-units data/digits/train-images.npy
    say "dev: $n random modules from seed $seed"
    PLUME_DATA_DIR=$build/data PLUME_TEST_UNITS="$n $seed" "$build/tests/engine/test-units"
}

soak_graphs() {
    local n=${1:-1000} seed=${2:-$RANDOM} build=$PLUME_SRC/build
    local python=${PLUME_TORCH_PYTHON:-python3} plugin type rc=0
    (($# <= 2)) || die_usage "soak graphs takes a number of graphs and a seed"
    need_number N "$n" 1 10000000
    need_number SEED "$seed" 0 1000000
    "$python" -c 'import torch' 2>/dev/null ||
        die "'$python' has no PyTorch: name a Python that has one by PLUME_TORCH_PYTHON"
    configure_in "$build"
    ninja_in "$build" tests/graphs/test-graphs
    say "dev: $n graphs from seed $seed"
    "$python" "$PLUME_SRC/tests/graphs/graphs.py" "$n" "$seed" >"$build/graphs.txt"
    "$build/tests/graphs/test-graphs" "$build/graphs.txt" || rc=1
    for type in f16 bf16; do
        "$python" "$PLUME_SRC/tests/graphs/halves.py" "$type" "$((n / 4 + 1))" "$seed" >"$build/graphs-$type.txt"
        "$build/tests/graphs/test-graphs" --half "$type" "$build/graphs-$type.txt" || rc=1
    done
    plugin=$(soak_plugin)
    [[ -f $plugin && -f $build/plume-pjrt.so ]] || return "$rc"
    PLUME_PLUGIN_DIR=$build "$build/tests/graphs/test-graphs" --pjrt "$plugin" 1 "$build/graphs.txt" && return "$rc"
}

# soak_plugin: the path of XLA's CPU plugin, whether it is there or not.
soak_plugin() {
    echo "${PLUME_PJRT_PLUGIN:-${XDG_CACHE_HOME:-$HOME/.cache}/plume/pjrt-0.0.1/xla_plugins/xla_cpu_pjrt/xla_cpu_pjrt.so}"
}

soak_xla() {
    local n=${1:-100} seed=${2:-$RANDOM} build=$PLUME_SRC/build plugin
    (($# <= 2)) || die_usage "soak xla takes a number of runs and a seed"
    need_number N "$n" 1 10000000
    need_number SEED "$seed" 0 1000000
    configure_in "$build"
    ninja_in "$build" pltrain modules/mlp.so data/digits/{train,val,test}-{images,labels}.npy
    plugin=$(soak_plugin)
    [[ -f $plugin ]] || die "no XLA plugin '$plugin': run ./dev deps pjrt"
    ninja_in "$build" plume-pjrt.so tests/xla/hosts.so
    say "dev: $n runs from seed $seed"
    PATH=$build:$PATH "$PLUME_SRC/tests/xla/random_runs.py" "$plugin" "$build/tests/xla/hosts.so" "$n" "$seed"
}

# soak_build: the tools, and what tests preload or start.
soak_build() {
    deps_ensure build test
    reconfigure_in "$PLUME_SRC/build" -Dtests=enabled
    ninja_in "$PLUME_SRC/build"
}

soak_stalls() {
    local n=${1:-10000} seed=${2:-$RANDOM} build=$PLUME_SRC/build
    (($# <= 2)) || die_usage "soak stalls takes a number of jobs and a seed"
    need_number N "$n" 1 10000000
    need_number SEED "$seed" 0 1000000
    reconfigure_in "$build" -Dtests=enabled
    ninja_in "$build" tests/unit/stall_model
    "$build/tests/unit/stall_model" "$n" "$seed"
}

soak_allocations() {
    soak_build
    PLUME_BUILD=$PLUME_SRC/build "$PLUME_SRC/tests/fault/allocations.py" --all --jobs "$(nproc)" "$@"
}

# soak_fuzz_names: the targets; every file has its seconds, and the other way round.
soak_fuzz_names() {
    local file name
    for file in "$PLUME_SRC"/tests/fuzz/fuzz-*.c; do
        name=${file##*/fuzz-}
        name=${name%.c}
        [[ -n ${SOAK_FUZZ_S[$name]:-} ]] || die "soak fuzz: the target '$name' has no seconds in dev.d/soak.bash"
        echo "$name"
    done
    for name in "${!SOAK_FUZZ_S[@]}"; do
        [[ -f $PLUME_SRC/tests/fuzz/fuzz-$name.c ]] || die "soak fuzz: there is no tests/fuzz/fuzz-$name.c"
    done
}

soak_fuzz() {
    local divisor=${1:-1} names name seconds
    (($# <= 1)) || die_usage "soak fuzz takes --list or a divisor"
    names=$(soak_fuzz_names)
    if [[ $divisor == --list ]]; then
        for name in $names; do
            echo "$name ${SOAK_FUZZ_S[$name]}"
        done
        return
    fi
    need_number DIVISOR "$divisor" 1 3600
    for name in $names; do
        seconds=$((SOAK_FUZZ_S[$name] / divisor))
        cmd_fuzz "$name" $((seconds > 0 ? seconds : 1))
    done
}

soak_chaos() {
    soak_build
    "$PLUME_SRC/tests/fault/chaos.py" "$@"
}

soak_recipes() {
    soak_build
    "$PLUME_SRC/tests/recipes.py" "$@"
}

soak_container() {
    (($# == 1)) || die_usage "soak container takes an image"
    [[ -r $1 ]] || die "cannot read the image '$1'"
    command -v apptainer >/dev/null || die "no apptainer is in PATH"
    soak_build
    PLUME_TEST_IMAGE=$(realpath -- "$1") bats "$PLUME_SRC/tests/cluster/container.bats"
}
