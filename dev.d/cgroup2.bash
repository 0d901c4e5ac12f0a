# SPDX-License-Identifier: MIT
# shellcheck shell=bash
# Control groups of version 2. ./dev cluster up --cgroup2: for slurmd, also on a machine that has version 1: a
# mount in a namespace of its own, whose root is a group of this cluster. ./dev soak cgroup2: with controllers.

# cgroup2_has CONTROLLER: true if this machine's version 2 has it. One that version 1 has, version 2 has not.
cgroup2_has() {
    [[ $(</proc/self/cgroup) == 0::* ]] && grep -qsw "$1" /sys/fs/cgroup/cgroup.controllers
}

# cgroup2_prepare: sets OWN_CGROUP, what starts a command there. A group whose subgroups have controllers must
# not have processes: the command is in one of these.
cgroup2_prepare() {
    local one=${PLUME_BUILD:-$PLUME_SRC/build}/tests/fakes/libunified-cgroup.so controllers=
    # Slurm refuses to run where there are hierarchies of version 1.
    [[ $(</proc/self/cgroup) != 0::* ]] || one=
    [[ -z $one || -f $one ]] || die "--cgroup2 needs '$one': ninja -C build tests/fakes/libunified-cgroup.so"
    ! cgroup2_has memory || controllers='+memory +cpu +cpuset +pids' # Slurm 22.05 overlooks the last of a list
    # shellcheck disable=SC2016,SC2034 # for the inner shells; used in cluster.bash
    OWN_CGROUP=(unshare --mount bash -c '
        give() { for c in $1; do echo "$c" >"$2/cgroup.subtree_control" 2>/dev/null || true; done; }
        export -f give
        mkdir -p "$1" && mount -t cgroup2 none "$1" && mkdir -p "$1/$2/$$" && give "$3" "$1" && give "$3" "$1/$2" &&
            echo $$ >"$1/$2/$$/cgroup.procs" && umount "$1" && shift 2 && exec unshare --cgroup bash -c "$2" _ "$1" "${@:3}"
        ' _ "$FOLDER/cgroup2" "${FOLDER##*/}" "$controllers" '
        umount /sys/fs/cgroup 2>/dev/null # the kernel mounts no file system on itself
        mount -t cgroup2 none /sys/fs/cgroup && mkdir -p /sys/fs/cgroup/system.slice /sys/fs/cgroup/slurmd &&
            echo $$ >/sys/fs/cgroup/slurmd/cgroup.procs && give "$1" /sys/fs/cgroup &&
            give "$1" /sys/fs/cgroup/system.slice && LD_PRELOAD=$2 exec "${@:3}"
        ' "$one")
}

# cgroup2_remove: the groups of a cluster whose processes have ended.
cgroup2_remove() {
    [[ -d $FOLDER/cgroup2 ]] || return 0
    # shellcheck disable=SC2016
    unshare --mount bash -c 'mount -t cgroup2 none "$1" && find "$1/$2" -depth -type d -exec rmdir {} +' \
        _ "$FOLDER/cgroup2" "${FOLDER##*/}" || true
}

# soak_cgroup2: cgroup2.bats in a kernel that has version 2 only, with all its controllers: User Mode Linux, a
# process of this machine, whose root is this machine's.
soak_cgroup2() {
    local folder rc=1
    (($# == 0)) || die_usage "soak cgroup2 takes no argument"
    ((EUID == 0)) || die "soak cgroup2 needs root, to be root in the kernel that it starts"
    command -v linux.uml >/dev/null || die "soak cgroup2 needs linux.uml, of the package user-mode-linux"
    soak_build
    folder=$(mktemp -d)
    TMPDIR=$folder timeout 900 linux.uml rootfstype=hostfs rw mem=2G quiet con=null con0=null,fd:1 \
        init=/bin/bash -- "$PLUME_SRC/tests/lib/uml_init.bash" "$folder" "$PLUME_SRC/tests/cluster/cgroup2.bats" </dev/null || true
    [[ ! -s $folder/rc ]] || rc=$(<"$folder/rc")
    rm -rf "$folder"
    return "$rc"
}
