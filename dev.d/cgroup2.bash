# SPDX-License-Identifier: MIT
# shellcheck shell=bash
# ./dev cluster up --cgroup2: control groups of version 2 for slurmd, also on a machine that has version 1:
# a mount in a namespace of its own, whose root is a group of this cluster.

# cgroup2_prepare: sets OWN_CGROUP, what starts a command there.
cgroup2_prepare() {
    local one=${PLUME_BUILD:-$PLUME_SRC/build}/tests/fakes/libunified-cgroup.so
    # Slurm refuses to run where there are hierarchies of version 1.
    [[ $(</proc/self/cgroup) != 0::* ]] || one=
    [[ -z $one || -f $one ]] || die "--cgroup2 needs '$one': ninja -C build tests/fakes/libunified-cgroup.so"
    # shellcheck disable=SC2016,SC2034 # for the inner shells; used in cluster.bash
    OWN_CGROUP=(unshare --mount bash -c '
        mkdir -p "$1" && mount -t cgroup2 none "$1" && mkdir -p "$1/$2" && echo $$ >"$1/$2/cgroup.procs" &&
            umount "$1" && shift 2 && exec unshare --cgroup bash -c "$@"' _ "$FOLDER/cgroup2" "${FOLDER##*/}" '
        mount -t cgroup2 none /sys/fs/cgroup && mkdir -p /sys/fs/cgroup/system.slice &&
            LD_PRELOAD=$1 exec "${@:2}"' _ "$one")
}

# cgroup2_remove: the groups of a cluster whose processes have ended.
cgroup2_remove() {
    [[ -d $FOLDER/cgroup2 ]] || return 0
    # shellcheck disable=SC2016
    unshare --mount bash -c 'mount -t cgroup2 none "$1" && find "$1/$2" -depth -type d -exec rmdir {} +' \
        _ "$FOLDER/cgroup2" "${FOLDER##*/}" || true
}
