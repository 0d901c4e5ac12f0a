# SPDX-License-Identifier: MIT
# shellcheck shell=bash
# ./dev build: configure once, then build; and the same for the sanitizer lanes of ./dev test.

# shellcheck source=dev.d/deps.bash
. "$PLUME_SRC/dev.d/deps.bash"

# build_in DIR [MESON-OPTION...]: quiet unless something is wrong.
build_in() {
    configure_in "$@"
    ninja_in "$1"
}

configure_in() {
    local dir=$1 log
    shift
    [[ ! -f $dir/build.ninja ]] || return 0
    log=$(meson setup "$dir" "$PLUME_SRC" "$@" 2>&1) || {
        say "$log"
        die "'$dir' could not be configured; see above"
    }
}

ninja_in() {
    local dir=$1 log
    shift
    say "dev: building ${dir##*/}"
    log=$(ninja -C "$dir" -j "$(nproc)" --quiet "$@" 2>&1) || {
        say "$log"
        die "the build in '$dir' failed; see above"
    }
    grep -A 4 'warning: ' <<<"$log" >&2 || true
}

cmd_build() {
    (($# <= 1)) || die_usage "build takes one folder at most"
    [[ ${1:-} != -* ]] || die_usage "build takes a folder, not '$1'"
    deps_ensure
    build_in "${1:-$PLUME_SRC/build}"
}
