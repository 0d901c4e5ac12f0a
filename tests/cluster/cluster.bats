#!/usr/bin/env bats
# SPDX-License-Identifier: MIT
# The virtual cluster itself: everything else under tests/cluster and tests/fault stands on it.

load ../lib/cluster

setup_file() {
    local start
    start=$(now_ms)
    cluster_up 12 --gpus 4
    UP_MS=$(($(now_ms) - start))
    export UP_MS
}

teardown_file() {
    cluster_down
}

setup() {
    work_dir
}

dev() {
    "$PLUME_SRC/dev" "$@"
}

# processes_of FOLDER: those that name it in their arguments or environment, zombies aside.
processes_of() {
    local file pid
    while read -r file; do
        pid=${file#/proc/}
        pid=${pid%/*}
        # bats and this test have it in their environment.
        grep -q bats "/proc/$pid/cmdline" 2>/dev/null && continue
        pid_start "$pid" >/dev/null && echo "$pid"
    done < <(grep -lsF "$1" /proc/[0-9]*/cmdline /proc/[0-9]*/environ)
}

@test "twelve nodes are idle within 10 s" {
    echo "took $UP_MS ms"
    ((UP_MS < 10000))
    [ "$(sinfo -h -p main -o '%D %t')" = '12 idle' ]
}

@test "srun reaches all nodes, as the caller" {
    run -0 --separate-stderr srun -N12 bash -c 'echo $SLURMD_NODENAME $UID'
    [ "$(sort <<<"$output")" = "$(printf "n%02d $UID\n" {1..12})" ]
}

@test "srun reaches all nodes, as another user" {
    run -0 --separate-stderr as_user srun -N12 bash -c 'echo $SLURMD_NODENAME $UID'
    [ "${#lines[@]}" = 12 ]
    ((EUID != 0)) || [ "$(cut -d' ' -f2 <<<"$output" | sort -u)" = 65534 ]
}

@test "96 tasks run at once" {
    run -0 --separate-stderr srun -N12 -n96 bash -c 'echo $SLURM_PROCID'
    [ "$(sort -n <<<"$output")" = "$(seq 0 95)" ]
}

@test "three twelve-node jobs run side by side" {
    job=$(as_user sbatch --parsable -N12 --array=0-2 -o /dev/null --wrap 'exec tail -f /dev/null')
    three_running() { [ "$(squeue -h -t R -j "$job" -o %T | wc -l)" = 3 ]; }
    wait_for 20 three_running
    scancel "$job"
    job_wait "$job"
}

@test "a batch array runs each of its tasks once" {
    job=$(as_user sbatch --parsable -N2 --array=0-8 -o "$WORK/%a.out" \
        --wrap 'srun bash -c "echo \$SLURM_ARRAY_TASK_ID"')
    job_wait "$job"
    for i in {0..8}; do
        [ "$(sort -u "$i.out")" = "$i" ]
        [ "$(wc -l <"$i.out")" = 2 ]
    done
}

@test "GPUs are handed out by number" {
    run -0 --separate-stderr as_user srun -N1 --gres=gpu:2 -n1 bash -c 'echo $CUDA_VISIBLE_DEVICES'
    [ "$output" = 0,1 ]
    run -0 --separate-stderr as_user srun -N1 -n4 --gpus-per-task=1 --gpu-bind=single:1 \
        bash -c 'echo $CUDA_VISIBLE_DEVICES'
    [ "$(sort <<<"$output" | tr '\n' ' ')" = '0 1 2 3 ' ]
}

# mpi_srun ARG...: ranks of an MPI on four nodes. All nodes have this machine's name, so Open MPI would
# mix up their shared memory. Slurm 22.05's own ways of a fence, and its steps' credentials when they
# are not its own user's, let ranks die in MPI_Init now and then: doc/slurm-notes.md.
mpi_srun() {
    SLURM_PMIX_FENCE=ring OMPI_MCA_btl=tcp,self OMPI_MCA_btl_tcp_if_include=lo \
        timeout 60 srun --mpi=pmix -N4 "$@" 2>err || { cat err >&2 && return 1; }
}

@test "an MPI program spans the nodes" {
    cat >allreduce.c <<'C'
#include <mpi.h>
#include <stdio.h>
int main(int argc, char **argv)
{
    int rank, sum;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    printf("%d\n", sum);
    return MPI_Finalize();
}
C
    need_pmix
    mpicc -o allreduce allreduce.c
    mpi_srun -n8 ./allreduce >sums
    [ "$(wc -l <sums)" = 8 ]
    [ "$(sort -u sums)" = 28 ]
}

@test "ranks meet by the MPI that started them" {
    [ -e "$PLUME_SRC/build/plume-mpi.so" ] || skip "built without MPI"
    need_pmix
    mpi=$(mpi_srun --ntasks-per-node=2 plrun -- env PLUME_LOG=debug pltrain --epochs 1 mlp)
    [ "$(grep -c 'collectives shm+mpi' err)" = 8 ] || { cat err; false; }
    tcp=$(timeout 60 srun -N4 --ntasks-per-node=2 plrun -- pltrain --epochs 1 mlp)
    hash() { grep -o 'hash .*' | sort -u; }
    [ "$(hash <<<"$mpi" | wc -l)" = 1 ]
    [ "$(hash <<<"$tcp" | wc -l)" = 1 ]
}

@test "a requeued job runs again within 20 s" {
    job=$(as_user sbatch --parsable -o "$WORK/out" --open-mode=append --wrap \
        'echo start $SLURM_RESTART_COUNT; [ -n "$SLURM_RESTART_COUNT" ] || exec tail -f /dev/null')
    wait_for 20 grep -q start out
    scontrol requeue "$job"
    wait_for 20 grep -q 'start 1' out
    job_wait "$job"
}

@test "an urgent job requeues one in scavenge" {
    job=$(as_user sbatch --parsable -p scavenge -N12 --exclusive -o "$WORK/low" --open-mode=append \
        --wrap 'echo start; [ -n "$SLURM_RESTART_COUNT" ] || exec tail -f /dev/null')
    wait_for 20 grep -q start low
    timeout 30 srun -Q -p urgent -N12 --exclusive true
    wait_for 30 job_gone "$job"
    [ "$(grep -c start low)" = 2 ]
}

@test "two clusters start side by side and do not meet" {
    dev cluster up 2 --quiet --name "$PLUME_CLUSTER-a" 3>&- &
    dev cluster up 3 --quiet --name "$PLUME_CLUSTER-b" 3>&-
    wait $!
    run -0 dev cluster sh --name "$PLUME_CLUSTER-a" srun -N2 bash -c 'echo $SLURMD_NODENAME'
    [ "${#lines[@]}" = 2 ]
    run -0 dev cluster sh --name "$PLUME_CLUSTER-b" srun -N3 bash -c 'echo $SLURMD_NODENAME'
    [ "${#lines[@]}" = 3 ]
    # Nor do their jobs have a number in common: a thousand to each port.
    for name in a b; do
        conf=$(dev cluster sh --name "$PLUME_CLUSTER-$name" printenv SLURM_CONF)
        port=$(sed -n 's/^SlurmctldPort=//p' "$conf")
        grep -qx "FirstJobId=$(((port - 9999) * 1000))" "$conf"
    done
    run -1 dev cluster up 2 --name "$PLUME_CLUSTER-a"
    [[ $output == *"is up already"* ]]
    dev cluster down --name "$PLUME_CLUSTER-a"
    dev cluster down --name "$PLUME_CLUSTER-b"
}

@test "down ends running jobs and leaves no process and no folder" {
    name=$PLUME_CLUSTER-c
    dev cluster up 2 --quiet --name "$name" 3>&-
    eval "$(dev cluster env --name "$name")"
    folder=${SLURM_CONF%/*}
    job=$(sbatch --parsable -N2 -o /dev/null --wrap 'srun tail -f /dev/null')
    wait_for 20 job_is "$job" RUNNING
    # Not an orderly end: the controller cannot help.
    kill -KILL "$(awk '$1 == "slurmctld" { print $2 }' "$folder/pids")"
    dev cluster down --name "$name"
    [ ! -e "$folder" ]
    [ -z "$(processes_of "$folder")" ]
    run -3 dev cluster status --name "$name"
    # Once more does no harm.
    dev cluster down --name "$name"
}

@test "a daemon that does not start is shown, and nothing stays" {
    mkdir bin
    printf '#!/bin/sh\necho the disk is on fire\nexit 1\n' >bin/slurmd
    chmod +x bin/slurmd
    PATH=$WORK/bin:$PATH run -1 dev cluster up 2 --name "$PLUME_CLUSTER-d" 3>&-
    [[ $output == *"n1 ended at start"*"the disk is on fire"* ]]
    run -3 dev cluster status --name "$PLUME_CLUSTER-d"
}

@test "an ordinary user has a cluster too" {
    # A tree of his own: this one may be out of his reach.
    cp -R "$PLUME_SRC/dev" "$PLUME_SRC/dev.d" "$WORK"
    # Slurm 26.05 takes no SlurmUser=nobody.
    ((EUID != 0)) || chown -R daemon:daemon "$WORK"
    user() {
        local -a as=()
        ((EUID != 0)) || as=(setpriv --reuid daemon --regid daemon --clear-groups env USER=daemon LOGNAME=daemon)
        "${as[@]}" env -u XDG_RUNTIME_DIR HOME="$WORK" TMPDIR="$WORK" ./dev cluster "$@"
    }
    user up 4 --gpus 2 --quiet --name "$PLUME_CLUSTER-u" 3>&-
    run -0 user sh --name "$PLUME_CLUSTER-u" \
        srun -Q -N4 --gpus-per-node=2 bash -c 'echo $UID $CUDA_VISIBLE_DEVICES'
    user down --name "$PLUME_CLUSTER-u"
    [ "${#lines[@]}" = 4 ]
    [ "${lines[0]#* }" = 0,1 ]
    run ls -d plume-*
    [ "$status" != 0 ]
}

@test "MaxArraySize is as asked" {
    dev cluster up 1 --quiet --max-array 1001 --name "$PLUME_CLUSTER-m" 3>&-
    run dev cluster sh --name "$PLUME_CLUSTER-m" sbatch --array=0-1001 --wrap true
    dev cluster down --name "$PLUME_CLUSTER-m"
    [ "$status" != 0 ]
    [[ $output == *"Invalid job array specification"* ]]
}

@test "bad arguments are usage errors" {
    run -2 dev cluster up
    run -2 dev cluster up none
    run -2 dev cluster up 2 3
    run -2 dev cluster up 2 --cpus 0
    run -2 dev cluster up 2 --gpus
    run -2 dev cluster up 2 --name ../x
    run -2 dev cluster frob
    run -2 dev cluster up 2 --frob
}
