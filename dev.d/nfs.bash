# SPDX-License-Identifier: MIT
# shellcheck shell=bash

# soak_nfs [VERSION]: nfs.bats in a kernel that serves NFS and mounts it on each node: User Mode Linux, a process of
# this machine, whose root is this machine's.
soak_nfs() {
    local folder rc=1 version=${1:-4.2}
    (($# <= 1)) || die_usage "soak nfs takes a version of NFS: 4.2, 4.1, 4.0 or 3"
    [[ $version =~ ^(4\.[012]|3)$ ]] || die_usage "soak nfs takes a version of NFS: 4.2, 4.1, 4.0 or 3"
    ((EUID == 0)) || die "soak nfs needs root, to be root in the kernel that it starts"
    command -v linux.uml >/dev/null || die "soak nfs needs linux.uml, of the package user-mode-linux"
    soak_build
    folder=$(mktemp -d)
    TMPDIR=$folder timeout 1500 linux.uml rootfstype=hostfs rw mem=2G quiet con=null con0=null,fd:1 NFS_VERSION="$version" \
        init=/bin/bash -- "$PLUME_SRC/tests/lib/uml_init.bash" "$folder" "$PLUME_SRC/tests/cluster/nfs.bats" </dev/null || true
    [[ ! -s $folder/rc ]] || rc=$(<"$folder/rc")
    rm -rf "$folder"
    return "$rc"
}
