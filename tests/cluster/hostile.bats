#!/usr/bin/env bats
# SPDX-License-Identifier: MIT
# A user who means harm, with the real plugin and daemon: each step ends within 10 s with a message
# or as if nothing had been tried, and no slurmstepd, slurmd or node is the worse for it.

load ../lib/cluster
load ../lib/spank

setup_file() {
    cluster_up 2
}

teardown_file() {
    cluster_down
}

setup() {
    work_dir
    use_plugin
}

teardown() {
    scancel_all
    all_well
    unharmed
}

# unharmed: no daemon of Slurm's has ended, no node has a reason to be down, nobody has dumped core.
unharmed() {
    local name pid _
    while read -r name pid _; do
        kill -0 "$pid" || { echo "$name has ended" >&2 && return 1; }
    done < <(grep -E '^(n[0-9]+|slurmctld) ' "$CLUSTER_DIR/pids")
    [ "$(timeout 20 sinfo -h -R | wc -l)" = 0 ]
    run ! grep -rhE 'SIGSEGV|SIGABRT|terminated by signal|Segmentation|[Dd]raining' "$CLUSTER_DIR/log"
    [ "$(find "$CLUSTER_DIR" -name 'core*' -type f | wc -l)" = 0 ]
}

# ends COMMAND [ARG...]: as the user, within 30 s; what it says is harmless for a terminal.
ends() {
    local start
    start=$(now_ms)
    run --separate-stderr as_user timeout 60 "$@"
    printf 'exit %s\n%s\n%s\n' "$status" "${output:0:1000}" "${stderr:0:2000}"
    (($(now_ms) - start < 30000))
    [[ $stderr != *[$'\x01'-$'\x08\x0b'-$'\x1f\x7f']* ]]
}

@test "options of a changed srun: long, deep, binary, with lines of their own" {
    cat >values.py <<'PY'
import os, subprocess, sys

OPTION = "_SLURM_SPANK_OPTION_plume_plume"
BINARY = bytes(range(1, 256)).replace(b"=", b"")
cases = [
    ("_metric", b"loss=" + b"a" * 65536, "is longer than"),
    ("_metric", b"loss=" + b"(" * 25000 + b")" * 25000, "is longer than"),
    ("_metric", b"loss=" + b"(" * 500 + b")" * 500, "nests deeper than 64"),
    ("_metric", b"loss=" + b"[" * 1000, "Unmatched ["),
    ("_metric", BINARY * 60, "plume: node n"),
    ("_metric", b"\n" * 16000, "is not of the form"),
    ("_metric", b"\x1b]0;x\x07=\x1b[2J", "plume: node n"),
    ("_master_port", b"9" * 65536, "plume: node n"),
    ("_master_port", BINARY, "plume: node n"),
    ("_nccl_debug", b"INFO\nLD_PRELOAD=/tmp/x.so", "is not a level of NCCL_DEBUG"),
    ("_nccl_debug", b"%n%s" * 4096, "is not a level of NCCL_DEBUG"),
]
# All at once, as steps that share the nodes.
running = []
for name, value, want in cases:
    env = {**os.environb, os.fsencode(OPTION + name): value}
    running.append((name, value, want, subprocess.Popen(
        ["srun", "-Q", "--overlap", "--plume", "-N2", "-n2", "echo", "ran"], env=env,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE)))
for name, value, want, process in running:
    out, err = process.communicate(timeout=60)
    if process.returncode != 1 or out or want.encode() not in err or b"\x1b" in err:
        print(name, value[:40], process.returncode, out[:200], err[:1000])
        sys.exit(1)
PY
    as_user timeout 100 salloc -Q -N2 python3 values.py
}

# hostile [VARIABLE=VALUE]...: a step of a user with these, on both nodes.
hostile() {
    ends env "$@" srun -Q --plume -N2 -n2 echo ran
}

@test "variables of the plugin and the daemon that are not what they should be" {
    hostile _SLURM_SPANK_OPTION_plume_plume="$(printf 'x%.0s' {1..65536})" \
        _SLURM_SPANK_OPTION_plume_plume_bogus=1 _SLURM_SPANK_OPTION_plume_=x
    [ "$status" = 0 ]
    hostile PLUME_NODE_ID=-1 PLUME_NTASKS=4294967296 PLUME_LOCAL_NTASKS=x PLUME_JOB_ID=1 \
        PLUME_SCONTROL=/tmp/x SLURM_UMASK=99999999999999999 SLURM_RLIMIT_NOFILE=%s%n
    [ "$status" = 0 ]
    for pair in PLUME_HUB=$'127.0.0.1:1\e[2J' PLUME_KEY_FILE=/dev/zero PLUME_RUNTIME_DIR=/proc/self/fd; do
        hostile "$pair" # runs as if it were not there, or says why not
        if ((status == 0)); then
            [ "$output" = "$(printf 'ran\nran')" ]
        else
            [ "$status$output" = 1 ]
            [[ $stderr == *'plume: node n'* ]]
        fi
    done
}

# Those that the hub refuses, too: its node's tasks wait in slurmstepd meanwhile.
@test "a variable with a value that is none ends each task with the reason" {
    for pair in PLUME_ON_HANG=x PLUME_METRICS_MAX=-1 PLUME_HUB_PORTS=x \
        PLUME_NCCL_DEBUG=x PLUME_OUTPUT_RANKS=x PLUME_ENCRYPT=x PLUME_CONFINE=x; do
        as_user timeout 60 env "$pair" srun -Q --plume -N2 -n2 echo ran >"said.${pair%=*}" 2>&1 &
        steps[$!]=$pair
    done
    for pid in "${!steps[@]}"; do
        rc=0
        wait "$pid" || rc=$?
        name=${steps[$pid]%=*}
        echo "$name: exit $rc" && cat "said.$name"
        [ "$rc" = 1 ]
        grep -q "plume: node n[12]: .*$name" "said.$name"
        run ! grep -E '^ran|Terminated' "said.$name"
    done
}

@test "squatted folders and planted links" {
    mkdir victim
    echo untouched >victim/file
    chmod 0755 victim
    # the folder of sockets: another user's, a link to another user's, a file, open to others
    mkdir squat open
    chmod 0777 squat
    as_user ln -s "$WORK/victim" link
    as_user touch file
    for folder in squat link file; do
        hostile PLUME_RUNTIME_DIR="$WORK/$folder"
        [ "$status" = 1 ]
        [[ $stderr == *"plume: node n"*"$WORK/$folder"* ]]
    done
    # the run folders' parent
    as_user mkdir home
    as_user ln -s "$WORK/victim" home/.plume
    hostile HOME="$WORK/home"
    [ "$status" = 1 ]
    [ "$(ls victim)" = file ]
    [ "$(<victim/file)" = untouched ]
}

@test "a dead file system in each path that the user chooses" {
    need_root
    mkdir dead
    coproc FS { exec python3 "$PLUME_SRC/tests/fakes/dead_fs.py" "$WORK/dead"; }
    # shellcheck disable=SC2153 # of coproc
    fs_pid=$FS_PID fs_in=${FS[1]}
    read -r -t 10 -u "${FS[0]}" || skip 'no file system in user space here'
    # At once, as the daemon has 10 s to be ready.
    start=$(now_ms)
    for name in PLUME_RUN_DIR PLUME_KEY_FILE PLUME_RUNTIME_DIR HOME; do
        as_user timeout 60 env "$name=$WORK/dead/x" srun -Q --plume -N1 -n1 echo ran >"$name" 2>&1 &
        steps[$!]=$name
    done
    for pid in "${!steps[@]}"; do
        rc=0
        wait "$pid" || rc=$?
        cat "${steps[$pid]}"
        [ "$rc" = 1 ]
        grep -q 'plume: node n[12]: .* was not ready after 10000 ms' "${steps[$pid]}"
        run ! grep -x ran "${steps[$pid]}"
    done
    (($(now_ms) - start < 20000))
    all_well # while nobody answers
    exec {fs_in}>&-
    wait "$fs_pid"
}

@test "another user learns nothing of a run but what Slurm tells" {
    need_root
    as_user srun -Q --plume -N1 -n1 bash -c 'echo secret-output'
    # shellcheck disable=SC2012 # by time
    dir=$(ls -td "$WORK_BASE"/home/.plume/steps/* | head -n 1)
    job=${dir##*/}
    job=${job%%.*}
    run -0 as_user plstat show "$job"
    echo "$output"
    [[ $output == *'done after'* ]]
    mkdir -m 0777 other
    for args in "show $job" "show --json $dir" "why $dir"; do
        # shellcheck disable=SC2086 # words
        run env HOME="$WORK/other" setpriv --reuid 65533 --regid 65533 --clear-groups \
            timeout 60 plstat $args
        echo "$args: $output"
        [ "$status" != 0 ]
        [[ $output != *secret-* && $output != *'done'* ]]
    done
}
