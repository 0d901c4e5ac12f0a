# SPDX-License-Identifier: MIT
# shellcheck shell=bash
# Helpers for tests on NFS; after `load ../lib/cluster`. The kernel serves a folder of its own, and each node
# of a cluster that is up --hosts mounts it in its own network namespace: each is a client of its own, with
# caches of its own. This host is one more, the login node.

readonly NFS_SERVED=/run/served NFS=/run/nfs

# nfs_why_not: what is missing. A kernel of its own, as its server would be the machine's.
nfs_why_not() {
    ((EUID == 0)) || { echo 'needs root' && return; }
    grep -qs 'User Mode Linux' /proc/cpuinfo || { echo 'needs a kernel of its own: ./dev soak nfs' && return; }
    for tool in modprobe mount.nfs exportfs rpc.nfsd rpc.mountd rpcbind mke2fs; do
        command -v "$tool" >/dev/null || { echo "needs $tool: the packages kmod, nfs-common, nfs-kernel-server, e2fsprogs" && return; }
    done
}

# nfs_options: of the mounts; $NFS_VERSION is a version, as 4.2 or 3.
nfs_options() {
    local version=${NFS_VERSION:-4.2}
    # Version 3 has its locks by daemons that each client would need.
    echo "vers=$version$([[ $version != 3 ]] || echo ,nolock)"
}

# nfs_kernel: what the cluster needs, before cluster_up. Slurm would take control groups where there are some.
nfs_kernel() {
    local module modules
    umount -l /sys/fs/cgroup 2>/dev/null || true
    modules=$(mktemp -d /run/modules-XXXXXX)
    mkdir -p "$modules/lib/modules"
    ln -s "/usr/lib/uml/modules/$(uname -r)" "$modules/lib/modules/"
    for module in bridge veth loop nfsd nfs nfsv3 nfsv4; do
        modprobe -d "$modules" "$module"
    done
}

nfs_serve() {
    mkdir -p "$NFS_SERVED" "$NFS"
    truncate -s 300M /run/disk
    mke2fs -q -F -t ext4 /run/disk
    mount -o loop /run/disk "$NFS_SERVED"
    mount -t tmpfs none /var/lib/nfs
    mkdir /var/lib/nfs/{v4recovery,rpc_pipefs,sm,sm.bak,nfsdcltrack}
    touch /var/lib/nfs/{etab,rmtab,state}
    mount -t nfsd nfsd /proc/fs/nfsd
    rpcbind -w 3>&- # bats waits for who has its descriptor
    echo 15 >/proc/fs/nfsd/nfsv4leasetime
    echo 15 >/proc/fs/nfsd/nfsv4gracetime
    # root of the clients is nobody's user, and not that of the tests either
    exportfs -o rw,root_squash,anonuid=65533,anongid=65533,no_subtree_check,fsid=0,sync "*:$NFS_SERVED"
    rpc.nfsd 4 3>&-
    rpc.mountd 3>&-
}

# nfs_nodes: NODE PID of each slurmd.
nfs_nodes() {
    awk '$1 ~ /^n[0-9]+$/ { print $1, $2 }' "$CLUSTER_DIR/pids"
}

# nfs_mount: on this host and on all nodes.
nfs_mount() {
    local address pid source=/
    address=$(ip -o -4 addr show "$(<"$CLUSTER_DIR/bridge")" | awk '{ sub("/.*", "", $4); print $4 }')
    [[ ${NFS_VERSION:-4.2} != 3 ]] || source=$NFS_SERVED
    mount -t nfs -o "$(nfs_options)" "$address:$source" "$NFS"
    while read -r _ pid; do
        nsenter -t "$pid" -m -n -u mount -t nfs -o "$(nfs_options)" "$address:$source" "$NFS"
    done < <(nfs_nodes)
}

# nfs_down: before cluster_down, with which the server's address goes: a mount would wait for it for ever.
nfs_down() {
    local pid
    scancel_all
    wait_until 15 queue_is_empty || true
    cd /
    while read -r _ pid; do
        nsenter -t "$pid" -m -n -u umount -l "$NFS"
    done < <(nfs_nodes)
    umount -l "$NFS"
    rpc.nfsd 0
    pidof rpc.mountd rpcbind | xargs kill
}

# on_node NODE COMMAND...: there, as the plain user.
on_node() {
    local pid
    pid=$(nfs_nodes | awk -v node="$1" '$1 == node { print $2 }')
    HOME=$WORK_BASE/home USER=nobody nsenter -t "$pid" -m -n -u --wd="$PWD" \
        setpriv --reuid "$PLAIN_UID" --regid "$PLAIN_UID" --clear-groups "${@:2}"
}

# nfs_work_dir: as work_dir(); root may write on the server only.
nfs_work_dir() {
    WORK=$WORK_BASE/${BATS_TEST_NUMBER:-0}
    mkdir -p "$NFS_SERVED/work/${WORK##*/}"
    chown "$PLAIN_UID:$PLAIN_UID" "$NFS_SERVED/work/${WORK##*/}"
    cd "$WORK" || return
}
