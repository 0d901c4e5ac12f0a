# SPDX-License-Identifier: MIT
# shellcheck shell=bash
# ./dev cluster: a real Slurm on this machine: private munged, slurmctld and N slurmd on loopback.
#
# Everything of a cluster lies in one temporary folder; a registry file NAME holds the folder's path.
# A cluster is known by that folder: daemons by pid and start time (FOLDER/pids), job processes by
# the SLURM_CONF in their environment. Works as root (any user may submit) and as an ordinary user
# (that user only).

# shellcheck source=dev.d/cgroup2.bash
. "$PLUME_SRC/dev.d/cgroup2.bash"

readonly CLUSTER_PREFIX=plume-
# Below the kernel's ephemeral range, away from Plume's own hub_ports (20000-29999).
readonly CLUSTER_PORT_MIN=10000 CLUSTER_PORT_MAX=19999
readonly CLUSTER_START_LIMIT_S=30

cluster_usage() {
    cat <<'TXT'
Usage: ./dev cluster up N [OPTION...]
       ./dev cluster down|status|env [--name NAME]
       ./dev cluster sh [--name NAME] [COMMAND [ARGUMENT...]]
       ./dev cluster list

up starts a private Slurm cluster of N nodes on this machine, in seconds:
  --name NAME    name of the cluster [$PLUME_CLUSTER, or default]
  --cpus C       CPUs that each node claims to have [32]
  --gpus G       GPUs that each node claims to have [0]; Slurm hands them out
                 and sets CUDA_VISIBLE_DEVICES, there is nothing behind them
  --max-array M  MaxArraySize [100001]
  --cred-expire S  life of a job credential, which a requeued job waits [5];
                 Slurm takes less than 5 for 120
  --node-timeout S  seconds until a silent node is down (SlurmdTimeout) [30]
  --hosts        give each node a host name and an address of its own, and names
                 that resolve (namespaces; needs root), as on a real cluster
  --cgroup       track steps by control groups, version 1, and confine them to
                 their memory, CPUs and devices (needs root)
  --cgroup2      track steps by control groups, version 2, which need not be
                 the machine's; they are confined where the machine has no
                 others (needs root)
  --no-plugin    do not load spank_plume.so
  --quiet        print nothing when all goes well

down stops it and removes all of it; status shows nodes, ports and processes;
env prints shell code for eval; sh starts a shell (or COMMAND) with that
environment; list names the clusters of this user.

Plume is taken from build/, or from $PLUME_BUILD.
Partitions: main (default), scavenge (jobs there are requeued when urgent needs
the nodes) and urgent.
TXT
}

# The registry: one file a cluster, in a folder only this user can write. Holds fd 9 on the folder.
registry_open() {
    local base=${XDG_RUNTIME_DIR:-}
    [[ -n $base && -d $base && -w $base ]] || base=/tmp
    REGISTRY=$base/plume-dev-$UID
    while :; do
        mkdir -m 0700 "$REGISTRY" 2>/dev/null || true
        [[ -d $REGISTRY && ! -L $REGISTRY && -O $REGISTRY ]] ||
            die "'$REGISTRY' is not a folder of yours; remove it"
        { exec 9<"$REGISTRY"; } 2>/dev/null || continue
        # A `down` may have removed the folder meanwhile.
        [[ $REGISTRY -ef /proc/$BASHPID/fd/9 ]] && return 0
    done
}

# In a trap a bare `return` hands on the status before it, hence `return 0` throughout.
# registry_lock: ports are chosen, and the registry changed, by one process at a time.
registry_lock() {
    while :; do
        flock -w 120 9 || die "another ./dev cluster holds '$REGISTRY' for too long"
        [[ $REGISTRY -ef /proc/$BASHPID/fd/9 ]] && return 0
        registry_open
    done
}

registry_unlock() {
    flock -u 9
}

cluster_find() {
    registry_open
    [[ -f $REGISTRY/$NAME ]] && FOLDER=$(<"$REGISTRY/$NAME") && [[ -n $FOLDER ]]
}

cluster_need() {
    # The summary is written last: without it the cluster is still starting, or did not get there.
    cluster_find && [[ -f $FOLDER/summary ]] && return 0
    say "dev: no cluster '$NAME' is up; see ./dev cluster list"
    exit 3
}

# cluster_alive: does any daemon of FOLDER run?
cluster_alive() {
    local name pid start
    [[ -f $FOLDER/pids ]] || return 1
    while read -r name pid start; do
        pid_is "$pid" "$start" && return 0
    done <"$FOLDER/pids"
    return 1
}

# daemon_start NAME COMMAND [ARG...]: in a session of its own, with no descriptor but 0-2.
daemon_start() {
    local name=$1 pid
    shift
    (
        cd /
        for fd in /proc/"$BASHPID"/fd/*; do
            fd=${fd##*/}
            ((fd > 2)) && eval "exec $fd>&-"
        done
        export SLURM_CONF=$FOLDER/slurm.conf
        # No job of a surrounding cluster, no caller's settings.
        local var
        for var in $(compgen -v SLURM_) $(compgen -v SLURMD_); do
            [[ $var == SLURM_CONF ]] || unset "$var"
        done
        unset MALLOC_PERTURB_ # meson's, for what is tested
        exec setsid "$@" </dev/null >>"$FOLDER/log/$name.log" 2>&1
    ) &
    pid=$!
    printf '%s %s %s\n' "$name" "$pid" "$(pid_start "$pid" || echo 0)" >>"$FOLDER/pids"
}

# up_fail TEXT LOG: say what went wrong, show the end of the daemon's log, leave nothing behind.
up_fail() {
    say "dev: cluster '$NAME': $1"
    if [[ -s $FOLDER/log/$2.log ]]; then
        say "--- last lines of $2's log"
        tail -n 15 "$FOLDER/log/$2.log" >&2
        say "---"
    fi
    exit 1
}

# ports_choose COUNT: set PORT to the first of COUNT neighbouring ports that nobody listens on.
ports_choose() {
    local count=$1 try port
    local -A busy=()
    while read -r port; do
        busy[$port]=1
    done < <(ss -Htan | awk '{ sub(/.*:/, "", $4); print $4 }')
    for ((try = 0; try < 100; try++)); do
        PORT=$((CLUSTER_PORT_MIN + SRANDOM % (CLUSTER_PORT_MAX - CLUSTER_PORT_MIN - count)))
        for ((port = PORT; port < PORT + count; port++)); do
            [[ -z ${busy[$port]:-} ]] || continue 2
        done
        return 0
    done
    die "no $count free ports in $CLUSTER_PORT_MIN-$CLUSTER_PORT_MAX"
}

# node_lines REST: the NodeName lines of slurm.conf.
node_lines() {
    local i
    if [[ $HOSTS == no ]]; then
        echo "NodeName=$NODES NodeAddr=$ADDRESS Port=$PORTS $1"
        return
    fi
    for ((i = 0; i < COUNT; i++)); do
        echo "NodeName=${NODE_LIST[i]} NodeAddr=$SUBNET.$((i + 10)) Port=$((PORT + 1)) $1"
    done
}

# A bridge of our own with an address; it goes with bridge_remove. Its name is kept in FOLDER/bridge.
bridge_make() {
    local try
    for ((try = 0; try < 20; try++)); do
        SUBNET=10.$((200 + SRANDOM % 50)).$((SRANDOM % 250))
        [[ -z $(ip -o addr show to "$SUBNET.0/24") ]] || continue
        BRIDGE=plb$((SRANDOM % 1000000))
        ip link add "$BRIDGE" type bridge 2>/dev/null || continue
        echo "$BRIDGE" >"$FOLDER/bridge"
        ip addr add "$SUBNET.1/24" dev "$BRIDGE"
        ip link set "$BRIDGE" up
        ADDRESS=$SUBNET.1
        return 0
    done
    up_fail "no network for the nodes could be made" none
}

bridge_remove() {
    local bridge
    [[ -s $FOLDER/bridge ]] || return 0
    bridge=$(<"$FOLDER/bridge")
    [[ $bridge == plb* ]] && ip link del "$bridge" 2>/dev/null
    return 0
}

# The nodes' /etc/hosts: programs look for each other, and for themselves, by name.
hosts_write() {
    local i
    {
        echo '127.0.0.1 localhost'
        echo "$ADDRESS $(uname -n)"
        for ((i = 0; i < COUNT; i++)); do
            echo "$SUBNET.$((i + 10)) ${NODE_LIST[i]}"
        done
    } >"$FOLDER/hosts"
    chmod 0644 "$FOLDER/hosts"
}

# host_start NODE INDEX COMMAND...: a daemon in a network, a host name and an /etc/hosts of its own.
# It waits for its interface, which only its parent can give it, on a fifo.
host_start() {
    local node=$1 index=$2 pid fifo=$FOLDER/run/$1.fifo
    shift 2
    mkfifo -m 0600 "$fifo"
    # shellcheck disable=SC2016 # for the inner shell
    daemon_start "$node" unshare --net --uts --mount bash -c '
        read -r _ <"$1"; hostname "$2"; ip link set lo up
        ip addr add "$3" dev eth0; ip link set eth0 up
        mount --bind "$4" /etc/hosts || echo "names do not resolve on $2" >&2
        shift 4; exec "$@"' \
        _ "$fifo" "$node" "$SUBNET.$((index + 10))/24" "$FOLDER/hosts" "$@"
    pid=$(awk -v name="$node" '$1 == name { pid = $2 } END { print pid }' "$FOLDER/pids")
    wait_until 10 in_own_net "$pid" || up_fail "node $node got no network of its own" "$node"
    ip link add "$BRIDGE-$index" type veth peer name eth0 netns "$pid" ||
        up_fail "node $node got no interface" "$node"
    ip link set "$BRIDGE-$index" master "$BRIDGE" up
    # shellcheck disable=SC2016 # for the inner shell
    timeout 10 bash -c 'echo go >"$1"' _ "$fifo" || up_fail "node $node did not start" "$node"
    rm -f "$fifo"
}

in_own_net() {
    [[ ! /proc/$1/ns/net -ef /proc/self/ns/net && -e /proc/$1/ns/net ]]
}

write_config() {
    local user host plugin=${PLUME_BUILD:-$PLUME_SRC/build}/spank_plume.so gres='' grestypes=''
    user=$(id -un 2>/dev/null) || user=$UID
    host=$(uname -n)
    host=${host%%.*}

    : >"$FOLDER/plugstack.conf"
    if [[ $PLUGIN == yes && -f $plugin ]]; then
        printf 'optional %s\n' "$plugin" >"$FOLDER/plugstack.conf"
    fi
    if [[ $CGROUP == yes ]]; then
        printf '%s\n' CgroupPlugin=cgroup/v1 ConstrainRAMSpace=yes ConstrainCores=yes ConstrainDevices=yes \
            >"$FOLDER/cgroup.conf"
    elif [[ $CGROUP == 2 ]]; then
        printf '%s\n' CgroupPlugin=cgroup/v2 IgnoreSystemd=yes >"$FOLDER/cgroup.conf"
        ! cgroup2_has memory || echo ConstrainRAMSpace=yes >>"$FOLDER/cgroup.conf"
        ! cgroup2_has cpuset || echo ConstrainCores=yes >>"$FOLDER/cgroup.conf"
    # From 23.11 on slurmd wants a cgroup to live in, even where no plugin uses it, unless told.
    elif [[ $(slurmctld -V) =~ ([0-9]+)\.([0-9]+) ]] &&
        ((BASH_REMATCH[1] * 100 + 10#${BASH_REMATCH[2]} >= 2311)); then
        echo CgroupPlugin=disabled >"$FOLDER/cgroup.conf"
    elif ! mountpoint -q /sys/fs/cgroup; then
        # Before, only looking for the version fails where nothing is mounted, as in a chroot.
        echo CgroupPlugin=cgroup/v1 >"$FOLDER/cgroup.conf"
    fi

    if ((GPUS > 0)); then
        grestypes=GresTypes=gpu
        gres=" Gres=gpu:$GPUS"
        make_gpus
        printf 'NodeName=%s Name=gpu File=%s/dev/nvidia%s\n' "$NODES" "$FOLDER" \
            "$( ((GPUS > 1)) && echo "[0-$((GPUS - 1))]" || echo 0)" >"$FOLDER/gres.conf"
    fi

    cat >"$FOLDER/slurm.conf" <<CONF
# A private cluster made by ./dev cluster up; gone with ./dev cluster down --name $NAME.
ClusterName=plume
SlurmctldHost=$host($ADDRESS)
SlurmctldPort=$PORT
SlurmUser=$user
SlurmdUser=$user
AuthType=auth/munge
AuthInfo=socket=$FOLDER/munge/socket,cred_expire=$CRED_EXPIRE
PlugStackConfig=$FOLDER/plugstack.conf

StateSaveLocation=$FOLDER/state
SlurmdSpoolDir=$FOLDER/spool/%n
SlurmctldPidFile=$FOLDER/run/slurmctld.pid
SlurmdPidFile=$FOLDER/run/slurmd-%n.pid
SlurmctldDebug=info
SlurmdDebug=info
LogTimeFormat=iso8601_ms
MailProg=/bin/true
# One folder a node, or Open MPI's pmix trips over its neighbours' files.
TmpFS=$FOLDER/tmpfs/%n

# No accounting, no task plugin and no MPI are Slurm's defaults; the names of "none" vary.
$(if [[ $CGROUP != no ]]; then echo ProctrackType=proctrack/cgroup; echo TaskPlugin=task/cgroup; else echo ProctrackType=proctrack/linuxproc; fi)

SelectType=select/cons_tres
# Only what Slurm counts does it confine a step to.
SelectTypeParameters=$(if [[ $CGROUP == yes ]] || { [[ $CGROUP == 2 ]] && cgroup2_has memory; }; then echo CR_CPU_Memory; else echo CR_CPU; fi)
SchedulerType=sched/backfill
# Start what can start at once: tests wait for it.
SchedulerParameters=batch_sched_delay=0,sched_min_interval=0,sched_interval=1,default_queue_depth=1000,bf_interval=1,bf_resolution=1,bf_yield_interval=1000000,bf_continue
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
PriorityType=priority/basic
JobRequeue=1
EpilogMsgTime=0

MaxArraySize=$MAX_ARRAY
MaxJobCount=$((MAX_ARRAY * 2 + 10000))
# Clusters side by side are one machine to their jobs, which know each other by number: as apart as
# their ports, which no two have in common.
FirstJobId=$((1000 * (PORT - CLUSTER_PORT_MIN + 1)))
MaxStepCount=100000
KillWait=5
InactiveLimit=0
MessageTimeout=30
SlurmctldTimeout=30
SlurmdTimeout=$NODE_TIMEOUT
ReturnToService=2
SlurmdParameters=config_overrides
$grestypes

$(node_lines "CPUs=$CPUS RealMemory=65536$gres State=UNKNOWN")
PartitionName=DEFAULT Nodes=$NODES MaxTime=INFINITE DefaultTime=60 State=UP OverSubscribe=NO
PartitionName=main Default=YES PriorityTier=10 PreemptMode=OFF
PartitionName=scavenge PriorityTier=1 PreemptMode=REQUEUE GraceTime=0
PartitionName=urgent PriorityTier=20 PreemptMode=OFF
CONF
    chmod 0644 "$FOLDER"/*.conf
}

# slurmd wants character devices whose names end in the GPU's number; where they lead is all the
# same to it, so this needs neither a driver nor root.
make_gpus() {
    local i
    rm -rf "${FOLDER:?}/dev"
    mkdir -m 0755 "$FOLDER/dev"
    for ((i = 0; i < GPUS; i++)); do
        ln -s /dev/null "$FOLDER/dev/nvidia$i"
    done
}

start_munged() {
    mkdir -m 0755 "$FOLDER/munge"
    (umask 077 && head -c 128 /dev/urandom >"$FOLDER/munge/key")
    daemon_start munged munged --foreground --force --num-threads=4 \
        --key-file="$FOLDER/munge/key" --socket="$FOLDER/munge/socket" \
        --pid-file="$FOLDER/munge/pid" --seed-file="$FOLDER/munge/seed" \
        --log-file="$FOLDER/log/munged.log"
    wait_until "$CLUSTER_START_LIMIT_S" daemon_ready munged test -S "$FOLDER/munge/socket" || true
    daemon_runs munged && [[ -S $FOLDER/munge/socket ]] && return 0
    up_fail "munged did not start" munged
}

daemon_runs() {
    local pid start
    read -r pid start < <(awk -v name="$1" '$1 == name { print $2, $3 }' "$FOLDER/pids") || return
    pid_is "$pid" "$start"
}

# daemon_ready NAME COMMAND...: true when COMMAND is, or when the daemon has ended (then stop waiting).
daemon_ready() {
    local name=$1
    shift
    "$@" || ! daemon_runs "$name"
}

listens() {
    [[ -n $(ss -Htln "sport = :$1") ]]
}

# Set on each attempt: PORT (slurmctld's), PORTS (Slurm's range expression for the nodes).
start_slurm() {
    local node i
    local -a OWN_CGROUP=()
    [[ $CGROUP != 2 ]] || cgroup2_prepare
    ports_choose $((COUNT + 1))
    PORTS=$((PORT + 1))
    ((COUNT == 1)) || PORTS="[$PORTS-$((PORT + COUNT))]"
    write_config
    daemon_start slurmctld slurmctld -D -f "$FOLDER/slurm.conf"
    wait_until "$CLUSTER_START_LIMIT_S" daemon_ready slurmctld listens "$PORT" || true
    daemon_runs slurmctld || return
    for ((i = 0; i < COUNT; i++)); do
        node=${NODE_LIST[i]}
        if [[ $HOSTS == yes ]]; then
            host_start "$node" "$i" slurmd -D -N "$node" -f "$FOLDER/slurm.conf"
        else
            daemon_start "$node" "${OWN_CGROUP[@]}" slurmd -D -N "$node" -f "$FOLDER/slurm.conf"
        fi
    done
    wait_until "$CLUSTER_START_LIMIT_S" nodes_settled || return
    first_dead >/dev/null && return 1
    return 0
}

# first_dead: name of a daemon that has ended; 1 when all run.
first_dead() {
    local name pid start
    while read -r name pid start; do
        pid_is "$pid" "$start" || { echo "$name" && return; }
    done <"$FOLDER/pids"
    return 1
}

# All nodes idle, or a daemon has ended.
nodes_settled() {
    first_dead >/dev/null || [[ $(idle_count) == "$COUNT" ]]
}

idle_count() {
    SLURM_CONF=$FOLDER/slurm.conf timeout 5 sinfo -h -p main -N -o %t 2>/dev/null |
        grep -cx idle || true
}

up_parse() {
    COUNT=0 CPUS=32 GPUS=0 MAX_ARRAY=100001 CRED_EXPIRE=5 NODE_TIMEOUT=30 PLUGIN=yes QUIET=no
    HOSTS=no CGROUP=no
    while (($#)); do
        case $1 in
        --name | --cpus | --gpus | --max-array | --cred-expire | --node-timeout)
            (($# > 1)) || die_usage "$1 needs a value"
            ;;&
        --name) NAME=$2 && shift ;;
        --cpus) need_number "$1" "$2" 1 1024 && CPUS=$2 && shift ;;
        --gpus) need_number "$1" "$2" 0 64 && GPUS=$2 && shift ;;
        --max-array) need_number "$1" "$2" 1 4000001 && MAX_ARRAY=$2 && shift ;;
        --cred-expire) need_number "$1" "$2" 5 3600 && CRED_EXPIRE=$2 && shift ;;
        --node-timeout) need_number "$1" "$2" 1 3600 && NODE_TIMEOUT=$2 && shift ;;
        --no-plugin) PLUGIN=no ;;
        --hosts) HOSTS=yes ;;
        --cgroup) CGROUP=yes ;;
        --cgroup2) CGROUP=2 ;;
        --quiet) QUIET=yes ;;
        -*) die_usage "unknown option '$1'; see ./dev cluster --help" ;;
        *)
            ((COUNT == 0)) || die_usage "one number of nodes, please; got '$1' too"
            need_number "the number of nodes" "$1" 1 512
            COUNT=$1
            ;;
        esac
        shift
    done
    ((COUNT > 0)) || die_usage "say how many nodes: ./dev cluster up 12"
    if [[ $HOSTS == yes ]]; then
        ((EUID == 0)) || die "--hosts needs root: it makes network namespaces"
        ((COUNT <= 200)) || die_usage "--hosts takes 200 nodes at most"
    fi
    name_check
    local width=${#COUNT} i
    NODE_LIST=()
    for ((i = 1; i <= COUNT; i++)); do
        NODE_LIST+=("$(printf 'n%0*d' "$width" "$i")")
    done
    NODES=${NODE_LIST[0]}
    ((COUNT == 1)) || NODES="n[${NODES#n}-$COUNT]"
}

name_check() {
    [[ $NAME =~ ^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$ ]] || die_usage "bad cluster name '$NAME'"
}

# Claim the name; a cluster whose daemons are all gone does not count.
up_claim() {
    if cluster_find; then
        cluster_alive && die "cluster '$NAME' is up already; ./dev cluster down --name $NAME"
        cluster_remove
    fi
    # Sockets have short paths: the folder's must be short too.
    local base=${TMPDIR:-/tmp}
    ((${#base} <= 60)) || base=/tmp
    registry_lock
    if ! (set -C && : >"$REGISTRY/$NAME") 2>/dev/null; then
        die "cluster '$NAME' is being started by another process"
    fi
    FOLDER=$(mktemp -d "$base/${CLUSTER_PREFIX}XXXXXX")
    printf '%s\n' "$FOLDER" >"$REGISTRY/$NAME"
    registry_unlock
    trap 'cluster_remove' EXIT
    trap 'exit 130' INT TERM HUP
    # As root other users submit too: they need slurm.conf and the munge socket.
    ((EUID == 0)) && chmod 0755 "$FOLDER"
    mkdir -m 0755 "$FOLDER"/{log,state,spool,run,tmpfs}
    local node
    for node in "${NODE_LIST[@]}"; do
        mkdir -m 0755 "$FOLDER/spool/$node"
        mkdir -m 1777 "$FOLDER/tmpfs/$node"
    done
}

cluster_up() {
    local start try dead
    start=$(now_ms)
    up_parse "$@"
    up_claim
    ADDRESS=127.0.0.1
    start_munged
    if [[ $HOSTS == yes ]]; then
        bridge_make
        hosts_write
    fi
    for try in 1 2 3 4 5; do
        registry_lock
        if start_slurm; then
            registry_unlock
            break
        fi
        registry_unlock
        dead=$(first_dead) || up_fail "the nodes are not idle after $CLUSTER_START_LIMIT_S s: $(
            SLURM_CONF=$FOLDER/slurm.conf timeout 5 sinfo -h -N -p main -o '%N %T' 2>&1 | tr '\n' ' '
        )" slurmctld
        # Somebody else took a port between the look and the bind: choose others.
        if ((try == 5)) || ! grep -qi 'address already in use' "$FOLDER/log/$dead.log"; then
            up_fail "$dead ended at start" "$dead"
        fi
        stop_daemons slurm
    done
    printf 'name=%s\ncount=%s\nnodes=%s\nport=%s\ngpus=%s\n' \
        "$NAME" "$COUNT" "$NODES" "$PORT" "$GPUS" >"$FOLDER/summary"
    trap - EXIT INT TERM HUP
    [[ $QUIET == yes ]] || printf "cluster '%s' is up: %s, %d CPUs and %d GPUs a node, %d ms\n" \
        "$NAME" "$NODES" "$CPUS" "$GPUS" "$(($(now_ms) - start))"
    if [[ $QUIET == no ]]; then
        # shellcheck disable=SC2016 # for the reader to type
        printf 'use it: eval "$(./dev cluster env%s)"\n' \
            "$([[ $NAME == default ]] || echo " --name $NAME")"
    fi
}

# stop_daemons all|slurm: by pid and start time, TERM first; slurm leaves munged alone.
stop_daemons() {
    local name pid start sig
    [[ -f $FOLDER/pids ]] || return 0
    for sig in TERM KILL; do
        while read -r name pid start; do
            [[ $1 == all || $name != munged ]] || continue
            pid_is "$pid" "$start" && kill -s "$sig" "$pid" 2>/dev/null
        done <"$FOLDER/pids"
        wait_until 5 daemons_gone "$1" && break
    done
    if [[ $1 == slurm ]]; then
        sed -i '/^munged /!d' "$FOLDER/pids"
    fi
}

daemons_gone() {
    local name pid start
    while read -r name pid start; do
        [[ $1 == all || $name != munged ]] || continue
        pid_is "$pid" "$start" && return 1
    done <"$FOLDER/pids"
    return 0
}

# Processes of the cluster's jobs: slurmstepd and everything that carries this SLURM_CONF and a job
# id. Never an ancestor of ours: down may be called inside a job or a shell of the cluster.
job_pids() {
    local -A spare=()
    local pid=$BASHPID dir environ
    while ((pid > 1)); do
        spare[$pid]=1
        pid=$(awk '$1 == "PPid:" { print $2 }' "/proc/$pid/status" 2>/dev/null) || break
    done
    while read -r dir; do
        pid=${dir#/proc/}
        pid=${pid%/environ}
        [[ -z ${spare[$pid]:-} ]] || continue
        environ=$(tr '\0' '\n' 2>/dev/null <"$dir") || continue
        if grep -q '^SLURM_JOB_ID=' <<<"$environ" ||
            [[ $(tr '\0' ' ' 2>/dev/null <"/proc/$pid/cmdline") == *slurmstepd* ]]; then
            pid_start "$pid" >/dev/null && echo "$pid"
        fi
    done < <(grep -lsF "SLURM_CONF=$FOLDER/slurm.conf" /proc/[0-9]*/environ)
    return 0
}

no_job_pids() {
    [[ -z $(job_pids) ]]
}

queue_empty() {
    local jobs
    jobs=$(SLURM_CONF=$FOLDER/slurm.conf timeout 5 squeue -h -o %A 2>/dev/null) || return 0
    [[ -z $jobs ]]
}

# Jobs end the orderly way first, within a limit, then by force.
stop_jobs() {
    local -a jobs
    daemon_runs slurmctld && ! queue_empty || return 0
    mapfile -t jobs < <(SLURM_CONF=$FOLDER/slurm.conf timeout 5 squeue -h -o %F | sort -u)
    printf '%s\n' "${jobs[@]}" |
        SLURM_CONF=$FOLDER/slurm.conf timeout 10 xargs -r scancel -Q 2>/dev/null || true
    wait_until 8 queue_empty || true
}

cluster_remove() {
    trap - EXIT INT TERM HUP
    if [[ -n ${FOLDER:-} && -d $FOLDER && -O $FOLDER && ${FOLDER##*/} == "$CLUSTER_PREFIX"* ]]; then
        stop_jobs
        stop_daemons all
        local -a pids
        for _ in 1 2 3 4 5; do
            mapfile -t pids < <(job_pids)
            ((${#pids[@]})) || break
            kill -KILL "${pids[@]}" 2>/dev/null || true
            wait_until 2 no_job_pids || true
        done
        bridge_remove
        cgroup2_remove
        rm -rf -- "$FOLDER"
    fi
    registry_lock
    rm -f -- "$REGISTRY/$NAME"
    rmdir -- "$REGISTRY" 2>/dev/null || true
    registry_unlock
}

cluster_down() {
    if cluster_find || [[ -e $REGISTRY/$NAME ]]; then
        cluster_remove
    else
        rmdir -- "$REGISTRY" 2>/dev/null || true
    fi
}

cluster_env() {
    cluster_need
    printf 'export SLURM_CONF=%q\n' "$FOLDER/slurm.conf"
    printf 'export PLUME_CLUSTER=%q\n' "$NAME"
    # shellcheck disable=SC2016 # expanded by the reader's shell
    printf 'case ":$PATH:" in %q:*) ;; *) export PATH=%q:"$PATH" ;; esac\n' \
        ":${PLUME_BUILD:-$PLUME_SRC/build}" "${PLUME_BUILD:-$PLUME_SRC/build}"
}

cluster_sh() {
    eval "$(cluster_env)"
    exec 9<&-
    if (($#)); then
        exec "$@"
    fi
    say "cluster '$NAME': leave with exit; it stays up"
    exec "${SHELL:-/bin/bash}"
}

cluster_status() {
    local name pid start state
    cluster_need
    printf 'cluster  %s\nfolder   %s\nslurmctld port %s, nodes %s\n' "$NAME" "$FOLDER" \
        "$(sed -n 's/^SlurmctldPort=//p' "$FOLDER/slurm.conf" 2>/dev/null)" \
        "$(sed -n 's/^NodeName=\([^ ]*\) .* Port=\([^ ]*\) .*/\1 ports \2/p' "$FOLDER/slurm.conf" \
            2>/dev/null)"
    while read -r name pid start; do
        pid_is "$pid" "$start" && state=running || state=ended
        printf '%-10s %7d  %s\n' "$name" "$pid" "$state"
    done <"$FOLDER/pids"
    SLURM_CONF=$FOLDER/slurm.conf timeout 10 sinfo || return 1
}

cluster_list() {
    local file state
    registry_open
    for file in "$REGISTRY"/*; do
        [[ -f $file ]] || continue
        FOLDER=$(<"$file")
        cluster_alive && state=up || state=dead
        printf '%-16s %-5s %s\n' "${file##*/}" "$state" "$FOLDER"
    done
    rmdir -- "$REGISTRY" 2>/dev/null || true
}

cmd_cluster() {
    local verb=${1:-}
    NAME=${PLUME_CLUSTER:-default}
    shift || true
    case $verb in
    -h | --help | help)
        cluster_usage
        return 0
        ;;
    up)
        cluster_up "$@"
        return 0
        ;;
    down | status | env | sh | list) ;;
    *) die_usage "cluster up, down, status, sh, env or list; see ./dev cluster --help" ;;
    esac
    if [[ ${1:-} == --name ]]; then
        (($# > 1)) || die_usage "--name needs a value"
        NAME=$2
        shift 2
    fi
    name_check
    [[ $verb == sh ]] || (($# == 0)) || die_usage "cluster $verb: unexpected '$1'"
    "cluster_$verb" "$@"
}
