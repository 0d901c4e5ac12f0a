# SPDX-License-Identifier: MIT
# shellcheck shell=bash
# ./dev deps: install the packages of deps.list that are missing, and only those.

deps_missing() {
    local -a wanted
    mapfile -t wanted < <(awk '!/^#/ && NF { print $1 }' "$PLUME_SRC/dev.d/deps.list")
    local installed
    # shellcheck disable=SC2016 # the ${...} are dpkg-query's
    installed=$(dpkg-query -W -f='${db:Status-Status} ${Package}\n' "${wanted[@]}" 2>/dev/null |
        sed -n 's/^installed //p') || true
    printf '%s\n' "${wanted[@]}" | grep -vxF -- "$installed" || true
}

# Daemons that a package would start at once are told not to, unless the machine has its own policy.
deps_install() (
    local policy=/usr/sbin/policy-rc.d
    if [[ ! -e $policy ]]; then
        trap 'rm -f "$policy"' EXIT
        printf '#!/bin/sh\nexit 101\n' >"$policy"
        chmod 0755 "$policy"
    fi
    export DEBIAN_FRONTEND=noninteractive
    apt-get -o DPkg::Lock::Timeout=300 -qq update
    apt-get -o DPkg::Lock::Timeout=300 -qq install -y --no-install-recommends "$@" >/dev/null
)

deps_ensure() {
    command -v dpkg-query >/dev/null ||
        die "this is not a Debian system; install the counterparts of dev.d/deps.list by hand"
    local -a missing
    mapfile -t missing < <(deps_missing)
    ((${#missing[@]})) || return 0

    say "dev: installing ${missing[*]}"
    if ((EUID == 0)); then
        deps_install "${missing[@]}" || die "packages could not be installed; see above"
    elif command -v sudo >/dev/null; then
        sudo "$PLUME_SRC/dev" deps
    else
        die "packages are missing; as root: apt-get install ${missing[*]}"
    fi
}

cmd_deps() {
    (($# == 0)) || die_usage "deps takes no argument"
    deps_ensure
}
