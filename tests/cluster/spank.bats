#!/usr/bin/env bats
# SPDX-License-Identifier: MIT
# The SPANK plugin through srun, sbatch and salloc, with a daemon that needs no hub: what it does to
# a step is told apart from what the daemon does.

load ../lib/cluster
load ../lib/spank

setup_file() {
    cluster_up 3
}

teardown_file() {
    cluster_down
}

setup() {
    work_dir
    use_fake
    PLUGIN=$PLUME_SRC/build/spank_plume.so
}

teardown() {
    scancel_all
    all_well
}

# fake_field NODE FILTER: FILTER of the record in which a node's daemon describes itself.
fake_field() {
    python3 -c '
import json, sys
for line in open(sys.argv[1]):
    record = json.loads(line)
    if record["type"] == "self":
        print(eval(sys.argv[2], {}, {"d": record, "env": record["env"]}))' \
        "$PLUME_FAKE_LOG.$1" "$2"
}

# told NODE TYPE FILTER: FILTER of each message of this type, sorted.
told() {
    python3 -c '
import json, sys
for line in open(sys.argv[1]):
    m = json.loads(line)
    if m["type"] == sys.argv[2]:
        print(eval(sys.argv[3], {}, {"m": m}))' "$PLUME_FAKE_LOG.$1" "$2" "$3" | sort
}

@test "only hooks and the plugin's name are exported, and only libc is linked" {
    run -0 bash -c "nm -D --defined-only '$PLUGIN' | cut -d' ' -f3"
    [ "$(grep -vE '^(plugin_(name|type|version)|slurm_spank_[a-z_]+)$' <<<"$output")" = '' ]
    [ "$(grep -c . <<<"$output")" = 10 ]
    run -0 readelf -d "$PLUGIN"
    [ "$(grep NEEDED <<<"$output" | grep -o '\[.*\]')" = '[libc.so.6]' ]
    grep -q 'Flags:.*NOW' <<<"$output"
}

@test "an installed plugin looks for plrund where that is installed" {
    command -v meson >/dev/null || skip 'no meson'
    path=$(meson introspect --installed "$PLUME_SRC/build" |
        python3 -c 'import json, sys; print(next(v for k, v in json.load(sys.stdin).items() if k.endswith("/plrund")))')
    [ -n "$path" ]
    grep -qaF "$path" "$PLUGIN"
}

@test "srun, sbatch and salloc show the options" {
    for tool in srun sbatch salloc; do
        run -0 "$tool" --help
        for option in --plume --plume-nccl-debug=LEVEL --plume-master-port=RANGE \
            --plume-metric=NAME=REGEX; do
            grep -qE -- "^ +$option( |\$)" <<<"$output"
        done
        (($(awk '/--plume/ && length > 80' <<<"$output" | wc -l) == 0))
    done
}

@test "bad values are refused at once, with the reason" {
    printf '#!/bin/sh\n' >job.sh
    for tool in 'srun -N1' 'sbatch -N1' 'salloc -N1'; do
        while read -r option text; do
            # shellcheck disable=SC2086 # words
            run -255 --separate-stderr timeout 20 $tool --plume "$option" ./job.sh
            [ "$output" = '' ]
            [[ $stderr == *"$text"* ]]
        done <<'TXT'
--plume-nccl-debug=LOUD 'LOUD' is not a level of NCCL_DEBUG
--plume-nccl-debug= '' is not a level of NCCL_DEBUG
--plume-master-port=0 --plume-master-port:
--plume-master-port=2000-1000 --plume-master-port:
--plume-metric=loss 'loss' is not of the form NAME=REGEX
--plume-metric=loss= 'loss=' has an empty expression
--plume-metric=loss=(a bad regular expression '(a': Unmatched (
TXT
    done
    [ -z "$(squeue -h)" ]
}

@test "an option without --plume is pointed out, and does nothing" {
    run -0 --separate-stderr srun --plume-nccl-debug=info -N1 bash -c 'echo "[$PLUME_NCCL_DEBUG]"'
    [ "$output" = '[]' ]
    [[ $stderr == *'options --plume-* do nothing without --plume'* ]]
    [ ! -e "$PLUME_FAKE_LOG.0" ]
}

# What a task has: its environment but for what differs from step to step, and its descriptors.
task_state='env -0 | sort -z | tr "\0" "\n" |
    grep -vE "^(SLURM_(JOB_?ID|JOB_SLUID|STEP_?ID|STEP_LAUNCHER_PORT|SRUN_COMM_PORT|TASK_PID|JOB_START_TIME|JOB_END_TIME)|_)="
    ls /proc/self/fd; grep -E "^(Sig(Blk|Ign|Cgt)|Groups|Umask):" /proc/self/status; ulimit -a'

@test "without the flag a step is as without the plugin" {
    run -0 --separate-stderr as_user srun -Q -w n1,n2 -n2 -o "with-%t" bash -c "$task_state"
    : >"$CLUSTER_DIR/plugstack.conf"
    run -0 --separate-stderr as_user srun -Q -w n1,n2 -n2 -o "without-%t" bash -c "$task_state"
    for i in 0 1; do
        diff "with-$i" "without-$i"
        [ -s "with-$i" ]
    done
    [ ! -e "$PLUME_FAKE_LOG.0" ]
}

@test "with the flag a task differs by its rank's environment only" {
    run -0 --separate-stderr as_user srun -Q -w n1,n2 -n2 -o "plain-%t" bash -c "$task_state"
    run -0 --separate-stderr as_user srun -Q --plume -w n1,n2 -n2 -o "plume-%t" bash -c "$task_state"
    run -1 diff plain-1 plume-1
    echo "$output"
    [ "$(grep '^[<>] [A-Z_]*=' <<<"$output" | sed 's/=.*//' | sort | tr '\n' ' ')" = \
        "$(printf '> %s ' FAKE_DEFAULT LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT \
            NODE_RANK OMP_NUM_THREADS PLUME_RUNTIME RANK \
            WORLD_SIZE)" ]
}

@test "ranks are numbered as Slurm numbers its tasks" {
    run -0 --separate-stderr as_user srun --plume -N3 -n7 bash -c \
        'echo $RANK.$SLURM_PROCID $LOCAL_RANK.$SLURM_LOCALID $NODE_RANK.$SLURM_NODEID $WORLD_SIZE'
    [ "${#lines[@]}" = 7 ]
    while read -r rank local node size; do
        [ "${rank%.*}" = "${rank#*.}" ]
        [ "${local%.*}" = "${local#*.}" ]
        [ "${node%.*}" = "${node#*.}" ]
        [ "$size" = 7 ]
    done <<<"$output"
}

@test "a rank's variables win over the user's, defaults do not" {
    export RANK=99 OMP_NUM_THREADS=3
    run -0 --separate-stderr as_user srun --plume -n1 bash -c \
        'echo "$RANK $OMP_NUM_THREADS $FAKE_DEFAULT"'
    [ "$output" = '0 3 quoted "value"' ]
}

@test "one daemon a node and step, as the user, with nothing of slurmstepd's" {
    umask 027
    run -0 as_user srun --plume -N2 -n4 true
    [ ! -e "$PLUME_FAKE_LOG.2" ]
    for node in 0 1; do
        [ "$(fake_field "$node" 'd["argv"]')" = "['--control-fd', '3']" ]
        ids="[$(as_user id -u), $(as_user id -u), $(as_user id -u)]"
        [ "$(fake_field "$node" 'd["uids"]')" = "$ids" ]
        ids="[$(as_user id -g), $(as_user id -g), $(as_user id -g)]"
        [ "$(fake_field "$node" 'd["gids"]')" = "$ids" ]
        # 4 is what lists them.
        [ "$(fake_field "$node" 'set(d["fds"]) - {4, 5}')" = '{0, 1, 2, 3}' ]
        [ "$(fake_field "$node" 'int(d["blocked"], 16)')" = 0 ]
        [ "$(fake_field "$node" 'int(d["ignored"], 16) & 0x7fff & ~0x1000')" = 0 ]
        [ "$(fake_field "$node" 'd["sid"] not in (0, 1)')" = True ]
        [ "$(fake_field "$node" 'd["oom"]')" = 0 ]
        [ "$(fake_field "$node" 'd["umask"]')" = 0027 ]
        [ "$(fake_field "$node" 'd["cwd"]')" = "$WORK" ]
        [ "$(fake_field "$node" 'env["PLUME_NODE_ID"]')" = "$node" ]
    done
    ((EUID != 0)) || [ "$(fake_field 0 'd["groups"]')" = '[65534]' ]
}

@test "the daemon's environment is what the protocol lists" {
    export PLUME_RUN_DIR=/run/dir PLUME_PARAM_lr=1 PLUME_RANK=5 LD_PRELOAD='' SECRET=1 PLUME_LOG=debug
    export PLUME_SCONTROL=$WORK/evil
    # What a loader, a shell or a library takes programs and files from; not of srun, only of its job.
    local evil=LD_PRELOAD=$WORK/evil.so name
    for name in LD_LIBRARY_PATH LD_AUDIT LD_DEBUG_OUTPUT GLIBC_TUNABLES GCONV_PATH LOCPATH NLSPATH MALLOC_CHECK_ \
        RES_OPTIONS HOSTALIASES LOCALDOMAIN RESOLV_HOST_CONF TZ TZDIR TERMINFO BASH_ENV ENV IFS PS4 CDPATH \
        PYTHONPATH PYTHONHOME PYTHONSTARTUP PERL5LIB NODE_OPTIONS OPENSSL_CONF SSL_CERT_FILE \
        UV_THREADPOOL_SIZE UV_USE_IO_URING ASAN_OPTIONS GCOV_PREFIX XDG_CONFIG_HOME SLURM_PLUGIN_DIR; do
        evil+=,$name=$WORK/evil
    done
    run -0 as_user env PATH="$WORK:$PATH" srun --plume --export="ALL,$evil" -J name -N2 -n3 \
        bash -c '[[ $GCONV_PATH == */evil ]]'
    [[ $(fake_field 1 'env') != *evil* ]]
    [[ $(fake_field 1 'env["PLUME_SCONTROL"]') == /*bin/scontrol ]]
    [ "$(fake_field 1 '" ".join(sorted(k for k in env if k[:6] == "PLUME_"))')" = \
        'PLUME_CLUSTER PLUME_FAKE_LOG PLUME_JOB_ID PLUME_LOCAL_NTASKS PLUME_LOG PLUME_NNODES PLUME_NODELIST PLUME_NODE_ID PLUME_NTASKS PLUME_PLUGIN PLUME_RESTART PLUME_RUN_DIR PLUME_SCONTROL PLUME_STEP_ID' ]
    [ "$(fake_field 1 '"SECRET" in env or "LD_PRELOAD" in env')" = False ]
    [ "$(fake_field 1 'env["PLUME_NODELIST"], env["PLUME_NNODES"], env["PLUME_NTASKS"], env["PLUME_STEP_ID"]')" = \
        "('n[1-2]', '2', '3', '0')" ]
    [ "$(fake_field 1 'env["SLURM_CONF"], env["SLURMD_NODENAME"], env["SLURM_JOB_NAME"], env["SLURM_LAUNCH_NODE_IPADDR"]')" = \
        "('$SLURM_CONF', 'n2', 'name', '127.0.0.1')" ]
}

@test "the daemon is told of each task's start and end" {
    run ! as_user srun --plume -N1 -n3 bash -c \
        'case $RANK in 0) exit 0 ;; 1) exit 3 ;; 2) kill -SEGV $$ ;; esac'
    [ "$(told 0 exited '(m["rank"], m["status"] & 0xff7f)')" = "$(printf '(0, 0)\n(1, 768)\n(2, 11)')" ]
    [ "$(told 0 spawned '(m["rank"], m["pid"])')" = "$(told 0 hello '(m["rank"], m["pid"])')" ]
    [ "$(told 0 hello '(m["rank"], m["role"], m["guarded"], m["fds"])')" = \
        "$(printf "(%d, 'starter', False, 4)\n" 0 1 2)" ]
    wait_for 10 grep -q goodbye "$PLUME_FAKE_LOG.0"
}

@test "a rank's exit code is the step's" {
    run -3 --separate-stderr as_user srun --plume -N2 -n2 bash -c 'exit $((RANK * 3))'
    run -139 --separate-stderr as_user srun --plume -n1 bash -c 'kill -SEGV $$'
    [[ $stderr == *'Segmentation fault'* ]]
}

@test "a program that cannot be run is told as without the plugin" {
    run -2 --separate-stderr as_user srun -Q -n1 "$WORK/none"
    plain=$stderr
    run -2 --separate-stderr as_user srun -Q --plume -n1 "$WORK/none"
    # Job, step and node numbers differ.
    [ "$(sort <<<"${stderr//[0-9.]/}")" = "$(sort <<<"${plain//[0-9.]/}")" ]
}

# same_output SRUN-OPTION... -- COMMAND...: bytes on stdout and stderr are those of plain srun.
# srun -Q: that a step waits for the last one's end is no difference.
same_output() {
    as_user srun -Q "$@" >plain.out 2>plain.err
    as_user srun -Q --plume "$@" >plume.out 2>plume.err
    for stream in out err; do
        cmp <(sort "plain.$stream") <(sort "plume.$stream")
    done
    [ -s plain.out ]
}

@test "stdout and stderr are those of plain srun" {
    # shellcheck disable=SC2016 # the task's
    same_output -N2 -n4 bash -c 'echo out $SLURM_PROCID; echo err $SLURM_PROCID >&2'
    [ -s plain.err ]
    same_output -n1 printf 'no\0newline'
    # shellcheck disable=SC2016
    same_output -l -N2 -n4 bash -c 'for i in 1 2 3; do echo $i; echo e$i >&2; done'
    grep -qx '3: e2' plume.err
}

@test "output files are those of plain srun" {
    for plume in '' --plume; do
        # shellcheck disable=SC2086
        as_user srun $plume -N2 -n2 -o "o$plume-%t" -e "e$plume-%t" bash -c \
            'echo out; echo err >&2; head -c 3000000 /dev/urandom >data-$SLURM_PROCID; cat data-$SLURM_PROCID >&2; cat data-$SLURM_PROCID'
    done
    for i in 0 1; do
        cmp "o--plume-$i" <(echo out && cat "data-$i")
        cmp "e--plume-$i" <(echo err && cat "data-$i")
        [ "$(stat -c '%a %u %s' "e-$i")" = "$(stat -c '%a %u %s' "e--plume-$i")" ]
    done
}

@test "stdin reaches the rank" {
    head -c 1000000 /dev/urandom >in
    as_user srun --plume -n1 sha256sum <in >out
    [ "$(<out)" = "$(sha256sum <in)" ]
}

@test "a terminal stays one" {
    run -0 --separate-stderr script -qec \
        "srun --plume --pty bash -c 'test -t 0 -a -t 1 -a -t 2 && echo terminal \$RANK; stty size'" /dev/null
    [[ $output == *'terminal 0'* ]]
    [ "$(told 0 hello 'm["fds"]')" = 0 ]
}

@test "srun -u: stdout is a terminal, stderr is captured" {
    run -0 --separate-stderr as_user srun -Q -u --plume -n1 bash -c \
        'test -t 1 && echo terminal; test -p /dev/stderr && echo pipe >&2'
    [[ $output == terminal* ]]
    [ "$stderr" = pipe ]
    [ "$(told 0 hello 'm["fds"]')" = 4 ]
}

@test "sbatch --plume: each srun of the script has it, the script itself has not" {
    job=$(as_user sbatch --parsable --plume --plume-nccl-debug=info --plume-metric='a=a (.*)' \
        --plume-metric='b=b (.*)' -N2 -o batch.out --wrap 'echo "script [$RANK]"
srun -Q bash -c "echo rank \$RANK"
srun -Q --plume-nccl-debug=WARN --plume-metric="b=B (.*)" --plume-metric="c=c (.*)" bash -c "echo again \$RANK"')
    job_wait "$job"
    cat batch.out
    [ "$(sort batch.out)" = "$(printf '%s\n' 'again 0' 'again 1' 'rank 0' 'rank 1' 'script []')" ]
    [ "$(fake_field 1 'env["PLUME_STEP_ID"], env["PLUME_NCCL_DEBUG"], env["PLUME_METRIC"].split("\n")')" = \
        "$(printf '%s\n' "('0', 'INFO', ['a=a (.*)', 'b=b (.*)'])" \
            "('1', 'WARN', ['a=a (.*)', 'b=B (.*)', 'c=c (.*)'])")" ]
}

@test "#SBATCH --plume" {
    cat >job.sh <<'TXT'
#!/bin/bash
#SBATCH --plume -N2 -o batch.out
#SBATCH --plume-master-port=20000-20099
srun bash -c 'echo rank $RANK of $WORLD_SIZE'
TXT
    job=$(as_user sbatch --parsable job.sh)
    job_wait "$job"
    [ "$(sort batch.out)" = "$(printf 'rank 0 of 2\nrank 1 of 2')" ]
    [ "$(fake_field 0 'env["PLUME_MASTER_PORT_RANGE"]')" = 20000-20099 ]
}

@test "a bad value in #SBATCH is refused" {
    printf '#!/bin/bash\n#SBATCH --plume --plume-master-port=x\ntrue\n' >job.sh
    run ! --separate-stderr sbatch job.sh
    [[ $stderr == *"--plume-master-port: 'x'"* ]]
    [ -z "$(squeue -h)" ]
}

@test "salloc --plume: each srun has it" {
    run -0 --separate-stderr as_user salloc --plume -N2 srun bash -c 'echo rank $RANK'
    [ "$(sort <<<"$output")" = "$(printf 'rank 0\nrank 1')" ]
}

@test "options reach the nodes where srun exports no environment" {
    use_plugin "plrund=$PLUME_SRC/tests/fakes/fake-plrund.py"
    run -0 --separate-stderr as_user srun --export=NONE --plume --plume-nccl-debug=trace \
        --plume-metric='loss=loss (.*)' -n1 /bin/bash -c 'echo "$RANK [$SECRET]"'
    [ "$output" = '0 []' ]
    run -0 --separate-stderr as_user srun --export=PLUME_FAKE_LOG --plume --plume-nccl-debug=trace \
        --plume-metric='loss=loss (.*)' -n1 /bin/bash -c 'echo "$RANK [$SECRET]"'
    [ "$(fake_field 0 'env["PLUME_NCCL_DEBUG"], env["PLUME_METRIC"]')" = "('TRACE', 'loss=loss (.*)')" ]
}

@test "as root too" {
    need_root
    run -0 --separate-stderr srun --plume -N2 -n2 bash -c 'echo $RANK $UID'
    [ "$(sort <<<"$output")" = "$(printf '0 0\n1 0')" ]
    [ "$(fake_field 0 'd["uids"]')" = '[0, 0, 0]' ]
}

@test "steps side by side have a daemon each" {
    run -0 --separate-stderr as_user salloc -N1 -n4 bash -c '
        for i in 1 2 3 4; do srun --plume -n1 --exact bash -c "echo \$RANK \$WORLD_SIZE" & done; wait'
    [ "$output" = "$(printf '0 1\n0 1\n0 1\n0 1')" ]
    [ "$(fake_field 0 'env["PLUME_STEP_ID"]' | sort)" = "$(seq 0 3)" ]
}

@test "a missing plugin with an optional line hurts nobody without the flag" {
    printf 'optional %s\n' "$WORK/none.so" >"$CLUSTER_DIR/plugstack.conf"
    run -0 --separate-stderr as_user srun -N2 -n2 echo ran
    [ "$output" = "$(printf 'ran\nran')" ]
    run ! --separate-stderr as_user srun --plume -n1 echo ran
    [[ $stderr == *"unrecognized option '--plume'"* ]]
    use_fake # the teardown's commands
}

@test "the manual's check tells whether a node has the plugin" {
    use_fake
    line=$(sed -n 's/^\.Dl \$ \(srun -w n17 --plume .*\)$/\1/p' "$PLUME_SRC/man/spank_plume.8")
    line=${line//'\(dq'/'"'}
    [[ $line == *'&& echo yes' ]]
    run -0 --separate-stderr as_user bash -c "${line/n17/n1}"
    [ "$output" = yes ]
    # srun has the plugin, and the nodes have none.
    cp "$CLUSTER_DIR/plugstack.conf" "$WORK/with.conf"
    sed "s|^PlugStackConfig=.*|PlugStackConfig=$WORK/with.conf|" "$SLURM_CONF" >"$WORK/slurm.conf"
    : >"$CLUSTER_DIR/plugstack.conf"
    run ! --separate-stderr as_user env SLURM_CONF="$WORK/slurm.conf" bash -c "${line/n17/n1}"
    [ "$output" = '' ]
    use_fake # the teardown's commands
}
