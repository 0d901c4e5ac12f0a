#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# The first process of User Mode Linux, for ./dev soak cgroup2 and nfs: uml_init.bash FOLDER BATS-FILE. FOLDER/rc gets
# the exit code. The root is that of the host: only FOLDER may change, and what lies in memory.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/run/home LC_ALL=C.UTF-8
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t cgroup2 cgroup2 /sys/fs/cgroup
mkdir /sys/fs/cgroup/tests && echo $$ >/sys/fs/cgroup/tests/cgroup.procs # as on a machine: not the root
exec 5>"$1/rc"
for memory in /run /tmp /var/tmp /dev/shm; do
    [[ ! -d $memory || $2 == "$memory"/* ]] || mount -t tmpfs -o mode=1777 none "$memory"
done
mkdir -m 0700 /run/home
[[ -e /dev/fd ]] || ln -s /proc/self/fd /dev/fd
ip link set lo up
ip addr add 10.9.8.7/32 dev lo # with no address but the loopback's nothing resolves (AI_ADDRCONFIG)
hostname localhost
export TMPDIR=/run
cd / && bats --tap "$2" </dev/null | tee /run/said
rc=${PIPESTATUS[0]}
! grep -q '^ok .* # skip' /run/said || rc=1 # all must run here
echo "$rc" >&5
sync
echo o >/proc/sysrq-trigger
read -r -t 60 </dev/zero
