# SPDX-License-Identifier: MIT
# shellcheck shell=bash
# ./dev deps: install the packages of deps.list that meet what is missing, and only those.

readonly DEPS_SETS=(build test lint)

# deps_rows SET...: the rows of these sets of deps.list.
deps_rows() {
    awk -v sets=" $* " '/^\[/ { on = index(sets, " " substr($0, 2, length($0) - 2) " "); next }
        on && !/^#/ && NF' "$PLUME_SRC/dev.d/deps.list"
}

# deps_met CHECK: is it here? DEPS_PREFIX is a Slurm of the site's own (-Dslurm_prefix).
deps_met() {
    local check=${1#\?} name
    local PATH=$PATH:/usr/sbin:/sbin${DEPS_PREFIX:+:$DEPS_PREFIX/bin:$DEPS_PREFIX/sbin}
    name=${check#*:}
    case $check in
    prog:clang-format-14) clang_format_14 >/dev/null ;;
    prog:*'>='*) deps_version "${name%%>=*}" "${name#*>=}" ;;
    prog:*) command -v "$name" >/dev/null ;;
    lib:*'|'*) pkg-config --exists "${name%%|*}" || pkg-config --exists "${name#*|}" ;;
    lib:*) pkg-config --exists "$name" ;;
    header:*) deps_compiles gcc "#include <stdint.h>
#include <$name>" -fsyntax-only ${DEPS_PREFIX:+-I"$DEPS_PREFIX/include"} ;;
    link:*) deps_compiles "${name%%:*}" 'int main(void) { return 0; }' "${name#*:}" -o /dev/null ;;
    *) die "deps.list: unknown check '$check'" ;;
    esac 2>/dev/null
}

deps_version() {
    local version
    version=$("$1" --version | head -n 1) &&
        printf '%s\n' "$2" "${version##* }" | sort -CV
}

deps_compiles() {
    local compiler=$1 text=$2
    shift 2
    "$compiler" -xc - "$@" <<<"$text" >/dev/null
}

# deps_unmet SET...: the rows whose check fails.
deps_unmet() {
    local packages check reason
    while read -r packages check reason; do
        deps_met "$check" || printf '%s %s %s\n' "$packages" "$check" "$reason"
    done < <(deps_rows "$@")
}

# deps_names: rows on stdin as "program x, library y", for people without apt.
deps_names() {
    local check names=''
    while read -r _ check _; do
        check=${check#\?}
        case $check in
        prog:*) names+=", program ${check#*:}" ;;
        lib:*) names+=", library ${check#*:}" ;;
        header:*) names+=", header ${check#*:}" ;;
        link:*) names+=", run-time library for ${check##*:}" ;;
        esac
    done
    printf '%s\n' "${names#, }"
}

# deps_package ALTERNATIVES: the first that apt can install; nothing if it knows none.
deps_package() {
    local name candidate
    for name in ${1//|/ }; do
        candidate=$(LC_ALL=C apt-cache policy "$name" 2>/dev/null | sed -n 's/^ *Candidate: //p')
        [[ -n $candidate && $candidate != '(none)' ]] || continue
        if [[ $name == meson ]] && dpkg --compare-versions "$candidate" lt 1.0; then
            continue # Ubuntu 22.04
        fi
        printf '%s\n' "$name"
        return
    done
}

# Prevents daemons from starting right after their installation, unless the machine has its policy.
deps_install() (
    local policy=/usr/sbin/policy-rc.d
    if [[ ! -e $policy ]]; then
        trap 'rm -f "$policy"' EXIT
        printf '#!/bin/sh\nexit 101\n' >"$policy"
        chmod 0755 "$policy"
    fi
    export DEBIAN_FRONTEND=noninteractive
    apt-get -o DPkg::Lock::Timeout=300 -qq install -y --no-install-recommends "$@" >/dev/null
)

# deps_wanted ROWS: the packages that apt has for them. An installed one that does not meet its check
# would be installed again each time.
deps_wanted() {
    local packages name
    while read -r packages _; do
        name=$(deps_package "$packages")
        [[ -z $name ]] || dpkg-query -W -f='${db:Status-Status}\n' "$name" 2>/dev/null |
            grep -qx installed || printf '%s\n' "$name"
    done <<<"$1"
}

# deps_apt ROWS SET...: install what apt has for them, as root or by sudo.
deps_apt() {
    local lists=yes
    local -a wanted
    compgen -G '/var/lib/apt/lists/*Packages*' >/dev/null || lists=''
    mapfile -t wanted < <(deps_wanted "$1")
    ((${#wanted[@]})) || [[ -z $lists ]] || return 0
    if ((EUID == 0)); then
        apt-get -o DPkg::Lock::Timeout=300 -qq update || say "dev: apt-get update failed; see above"
        mapfile -t wanted < <(deps_wanted "$1")
        ((${#wanted[@]})) || return 0
        say "dev: installing ${wanted[*]}"
        deps_install "${wanted[@]}" || say "dev: packages could not be installed; see above"
    elif command -v sudo >/dev/null; then
        sudo "$PLUME_SRC/dev" deps "${@:2}" || true
    else
        say "dev: packages are missing; as root: apt-get install ${wanted[*]}"
    fi
}

# deps_ensure [SET...]: what these sets [build] need is here afterwards. Rows with a ? may stay unmet,
# with a message, unless CI is true or DEPS_STRICT is set.
deps_ensure() {
    local rows before must
    DEPS_CHANGED=
    local -a sets=("${@:-build}")
    rows=$(deps_unmet "${sets[@]}")
    [[ -n $rows ]] || return 0

    if command -v apt-get >/dev/null; then
        deps_apt "$rows" "${sets[@]}"
        before=$rows
        rows=$(deps_unmet "${sets[@]}")
        # shellcheck disable=SC2034 # for reconfigure_in()
        [[ $rows == "$before" ]] || DEPS_CHANGED=yes
        [[ -n $rows ]] || return 0
    fi
    [[ $rows != *prog:meson* ]] ||
        say "dev: meson 1.0 or newer is needed: python3 -m pip install --user 'meson>=1.0'"
    must=$(grep -v ' ?' <<<"$rows" || true)
    [[ ${CI:-} != true && -z ${DEPS_STRICT:-} ]] || must=$rows
    [[ -z $must ]] || die "missing: $(deps_names <<<"$must")"
    say "dev: going on without $(deps_names <<<"$rows")"
}

# A CPU plugin of PJRT with its header, for XLA devices: no part of the sets above, since it comes from
# the Python package index (63 MB) and only builds with -Dpjrt have a use for it.
readonly DEPS_PJRT=xla-cpu-pjrt==0.0.1
readonly DEPS_PJRT_SHA256=55837b6b7b47daa717f2d9a5a03563ea0ceaa338d06a81a1e2d3f060d960decc

deps_pjrt() (
    dir=${XDG_CACHE_HOME:-$HOME/.cache}/plume/pjrt-${DEPS_PJRT##*=}
    if [[ ! -f $dir/xla_plugins/xla_cpu_pjrt/include/pjrt_c_api.h ]]; then
        mkdir -p "${dir%/*}"
        new=$(mktemp -d "$dir.XXXXXX")
        trap 'rm -rf "$new"' EXIT
        printf '%s --hash=sha256:%s\n' "$DEPS_PJRT" "$DEPS_PJRT_SHA256" >"$new/wanted"
        python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: \
            --require-hashes --dest "$new" --requirement "$new/wanted" >&2 ||
            die "PJRT's CPU plugin ($DEPS_PJRT) could not be had; see above"
        python3 -m zipfile -e "$new"/*.whl "$new/tree"
        mv -T "$new/tree" "$dir"
    fi
    say "dev: PJRT's header and CPU plugin are in '$dir'; ./dev build -Dpjrt=enabled uses them"
)

cmd_deps() {
    local set
    if [[ $* == pjrt ]]; then
        deps_pjrt
        return
    fi
    for set; do
        [[ " ${DEPS_SETS[*]} " == *" $set "* ]] ||
            die_usage "unknown set '$set'; one of ${DEPS_SETS[*]}, or pjrt alone"
    done
    (($#)) || set -- "${DEPS_SETS[@]}"
    deps_ensure "$@"
}
