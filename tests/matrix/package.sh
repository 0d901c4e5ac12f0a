#!/bin/bash
# SPDX-License-Identifier: MIT
# In a chroot, as root, with Slurm but without Plume: installs /plume.deb, uses it as a user does, removes it; and
# /plume-cuda.deb, if that is there, of which no more is seen than that pltrain loads it.
# It fails at the first thing that is not as doc/install.md says.
set -euo pipefail

user() {
    HOME=/tmp/home setpriv --reuid 65534 --regid 65534 --clear-groups "$@"
}

# What is on the disk but for logs, caches and dpkg's own notes.
files() {
    find / -xdev \( -path /proc -o -path /sys -o -path /dev -o -path /tmp -o -path /run -o -path /src \
        -o -path /var/lib/dpkg -o -path /var/lib/apt -o -path /var/cache -o -path /var/log \) -prune -o -print |
        LC_ALL=C sort
}

fail() {
    echo "package.sh: $*" >&2
    exit 1
}

# takes_slurm VERSION: whether apt would install that version of Slurm and leave Plume. Its packages are empty,
# and depend on each other as Debian's do.
takes_slurm() {
    local dir name status=0
    dir=$(mktemp -d)
    for name in slurm-wlm-basic-plugins slurm-client slurmctld slurmd; do
        install -d "$dir/$name/DEBIAN"
        printf '%s\n' "Package: $name" "Version: $1" "Architecture: all" "Maintainer: nobody <nobody@localhost>" \
            "Depends: slurm-wlm-basic-plugins (= $1)" "Description: empty" >"$dir/$name/DEBIAN/control"
        [[ $name != slurm-wlm-basic-plugins ]] || sed -i /^Depends/d "$dir/$name/DEBIAN/control"
        dpkg-deb --build "$dir/$name" "$dir/$name.deb" >/dev/null
    done
    apt-get -s --no-remove --no-install-recommends install "$dir"/*.deb &>"$dir/apt" || status=$?
    ((status == 0)) || cat "$dir/apt"
    rm -r "$dir"
    return "$status"
}

before=$(files)
DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends /plume.deb
library=$(dpkg -L plume | grep '/spank_plume\.so$') || fail "no plugin"
while read -r file; do
    [[ -d $file || -z $(find "$file" -perm /022) ]] || fail "others may write to $file"
done < <(dpkg -L plume)
for page in plsubmit plstat plrun pltrain plrund spank_plume plume.conf plume-run plume-protocol plume-module; do
    man -w "$page" >/dev/null || fail "no manual of $page"
done
for tool in plsubmit plstat plrun plrund pltrain; do
    "$tool" --version | grep -qF "$(dpkg-query -W -f '${Version}' plume)" || fail "$tool is of another version"
done
slurm=$(dpkg-query -W -f '${Version}' slurm-wlm-basic-plugins)
slurm=${slurm%%-*} # as 22.05.8
takes_slurm "${slurm%.*}.99-1" || fail "no bug fix of Slurm can be installed"
refused=$(takes_slurm "$((10#${slurm%%.*} + 1)).02.0-1") && fail "apt upgrades Slurm under the plugin"
[[ $refused == *'remove is disabled'* ]] || fail "apt: $refused"

if [[ -e /plume-cuda.deb ]]; then
    without=$(pltrain --gpus 1 --max-steps 1 mlp 2>&1) && fail "a GPU without plume-cuda.so"
    DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends /plume-cuda.deb
    plugin=$(dpkg -L plume-cuda | grep '/plume-cuda\.so$') || fail "no plume-cuda.so"
    [[ -z $(find "$plugin" -perm /022) ]] || fail "others may write to $plugin"
    said=$(pltrain --gpus 1 --max-steps 1 mlp 2>&1) && fail "a GPU in a chroot"
    [[ $said == *'NVIDIA driver'* && $said != "$without" ]] || fail "plume-cuda.so: $said"
fi

install -d -o 65534 -g 65534 /tmp/home
PLUME_BUILD=${library%/*} ./dev cluster up 2 --name package --quiet
trap './dev cluster down --name package' EXIT
eval "$(./dev cluster env --name package)"
cd /tmp/home
[[ $(user srun -Q --plume -N2 -n2 printenv RANK | sort | tr '\n' ' ') == '0 1 ' ]] || fail "srun --plume"
[[ $(user srun -Q -N2 -n2 plrun -- printenv WORLD_SIZE | tr '\n' ' ') == '2 2 ' ]] || fail "srun plrun"
# The bundled module and its data, in a sweep.
user plsubmit --grid lr=1e-2,1e-1 -N 2 --wait >/dev/null ||
    { user plstat last; fail "the sweep has failed"; }
[[ $(user plstat sweep last) == *'2 trials: 2 done'* ]] || fail "plstat: $(user plstat sweep last)"
# The scripts for slurmd, of which the document says that an administrator copies them.
SLURM_JOB_ID=1 SLURM_JOB_UID=65534 /usr/libexec/plume/plume-epilog || fail "the epilog"
/usr/libexec/plume/plume-health-check || fail "the health check"
cd /
trap - EXIT
/src/dev cluster down --name package
DEBIAN_FRONTEND=noninteractive apt-get -qq autopurge -y plume
left=$(comm -13 <(echo "$before") <(files))
[[ -z $left ]] || fail "left behind: $left"
gone=$(comm -23 <(echo "$before") <(files))
[[ -z $gone ]] || fail "taken away: $gone"
