# SPDX-License-Identifier: MIT
# shellcheck shell=bash
# ./dev build: configure once, then build; and the same for the sanitizer lanes of ./dev test.

# shellcheck source=dev.d/deps.bash
. "$PLUME_SRC/dev.d/deps.bash"

# build_in DIR [MESON-OPTION...]: quiet unless something is wrong.
build_in() {
    local dir=$1 log
    shift
    if [[ ! -f $dir/build.ninja ]]; then
        log=$(meson setup "$dir" "$PLUME_SRC" "$@" 2>&1) || {
            say "$log"
            die "'$dir' could not be configured; see above"
        }
    fi
    ninja -C "$dir" -j "$(nproc)" --quiet 2>&1 | sed '/no work to do/d' >&2 ||
        die "the build in '$dir' failed; see above"
}

cmd_build() {
    (($# <= 1)) || die_usage "build takes one folder at most"
    [[ ${1:-} != -* ]] || die_usage "build takes a folder, not '$1'"
    deps_ensure
    build_in "${1:-$PLUME_SRC/build}"
}
