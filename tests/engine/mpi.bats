#!/usr/bin/env bats
# SPDX-License-Identifier: MIT
# Collectives by the installed MPI, started by its own launcher.
# BUILD is the build folder, COLLECTIVES the program of test-collectives.c.

bats_require_minimum_version 1.5.0

setup() {
    PATH=$BUILD:$PATH
    unset RANK WORLD_SIZE PLUME_SOCKET
    export PLUME_PLUGIN_DIR=$BUILD
    export ASAN_OPTIONS=${ASAN_OPTIONS-}:detect_leaks=0 # Open MPI's own, some kilobytes
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
}

# Open MPI 4's mpirun sometimes reports a good run as failed, with a rank "with PID 0" that left
# without finalize (open-mpi/ompi issue 7833): repeat such a run, at most twice.
ranks() {
    local rc
    for _ in 1 2 3; do
        rc=0
        timeout 45 mpirun --oversubscribe -np "$@" >"$BATS_TEST_TMPDIR/out" 2>"$BATS_TEST_TMPDIR/err" || rc=$?
        ((rc)) || break
        grep -q 'with PID 0 on$' "$BATS_TEST_TMPDIR/err" || break
    done
    cat "$BATS_TEST_TMPDIR/out"
    cat "$BATS_TEST_TMPDIR/err" >&2
    return "$rc"
}

# good N ARGS...: N ranks run ARGS, and all must report success.
good() {
    run --separate-stderr ranks "$1" "$COLLECTIVES" "${@:2}"
    [ "$status" -eq 0 ] || { echo "$output$stderr"; false; }
    [ "$(grep -c "^rank [0-9]* of $1: good$" <<<"$output")" -eq "$1" ] || { echo "$output"; false; }
}

@test "all collectives and splits, in all sizes" {
    for n in 1 2 3 4; do
        good $n mpi mpi all
    done
    # What is more than MPI can count, as if that were 1000 bytes.
    good 3 mpi mpi slices
}

@test "ranks of one machine use its memory unless MPI is asked for" {
    good 3 auto shm all
}

@test "a lost rank is named within 5 s" {
    # mpirun ends the others when it sees a rank die; without that they must see it themselves.
    run --separate-stderr timeout 100 mpirun --oversubscribe --enable-recovery -np 4 \
        "$COLLECTIVES" mpi mpi die
    [ "$(grep -c '^rank [023] of 4: good$' <<<"$output")" -eq 3 ] || { echo "$output$stderr"; false; }
}

@test "training by MPI is training" {
    shm=$(pltrain --processes 2 --epochs 2 --seed 5 mlp | grep -o 'hash .*' | sort -u)
    mpi=$(ranks 2 pltrain --comm mpi --epochs 2 --seed 5 mlp | grep -o 'hash .*' | sort -u)
    [ "$shm" = "$mpi" ] # two numbers have one sum
    shm=$(pltrain --processes 3 --max-steps 9 mlp | grep -o 'hash .*' | sort -u)
    mpi=$(ranks 3 pltrain --comm mpi --deterministic --max-steps 9 mlp | grep -o 'hash .*' | sort -u)
    [ "$shm" = "$mpi" ]
    mpi=$(ranks 3 pltrain --comm mpi --deterministic --strategy sharded --max-steps 9 mlp | grep -o 'hash .*' | sort -u)
    [ "$shm" = "$mpi" ]
}

@test "the ranks that mpirun has started on the node are those of --devices and --processes" {
    for how in "--devices 3" "--devices 0,1,2" "--processes 3"; do
        # shellcheck disable=SC2086 # words
        run -1 --separate-stderr ranks 2 pltrain $how --max-steps 1 mlp
        [[ $stderr == *" 2 ranks are on this node"* || $stderr == *"started already, 2 on this node"* ]] ||
            { echo "$how: $stderr"; false; }
    done
    for how in "--devices 1" "--devices 2" "--processes 2"; do
        # shellcheck disable=SC2086 # words
        [ "$(ranks 2 pltrain $how --max-steps 1 mlp | grep -c 'of 2: param hash')" = 2 ]
    done
}

@test "an MPI that grants no threads is refused" {
    cd "$BATS_TEST_TMPDIR"
    cat >single.c <<'C'
int PMPI_Init_thread(int *argc, char ***argv, int wanted, int *granted);
int MPI_Init_thread(int *argc, char ***argv, int wanted, int *granted)
{
    int r = PMPI_Init_thread(argc, argv, wanted, granted);

    *granted = 0; /* MPI_THREAD_SINGLE */
    return r;
}
C
    cc -shared -fPIC -o single.so single.c
    run -1 --separate-stderr ranks 1 env LD_PRELOAD="$PWD/single.so" \
        ASAN_OPTIONS="$ASAN_OPTIONS:verify_asan_link_order=0" pltrain --comm mpi --max-steps 1 mlp
    [[ $stderr == *"this MPI allows no threads (MPI_THREAD_SINGLE): try --comm tcp"* ]] || { echo "$stderr"; false; }
}

@test "without plume-mpi.so it says what to do" {
    mkdir "$BATS_TEST_TMPDIR/bin"
    cp "$BUILD/pltrain" "$BATS_TEST_TMPDIR/bin"
    unset PLUME_PLUGIN_DIR
    export PLUME_DATA_DIR=$BUILD/data
    run -1 --separate-stderr "$BATS_TEST_TMPDIR/bin/pltrain" --comm mpi "$BUILD/modules/mlp.so"
    [[ $stderr == *"cannot use MPI"*"install an MPI"* ]] || { echo "$stderr"; false; }
}
