# SPDX-License-Identifier: MIT
# shellcheck shell=bash
# ./dev bench [NAME]: the benchmarks in bench/, all or one, on the release build in build-bench.

# shellcheck source=dev.d/build.bash
. "$PLUME_SRC/dev.d/build.bash"

cmd_bench() {
    local script found=no
    (($# <= 1)) || die_usage "bench takes one name at most"
    deps_ensure
    build_in "$PLUME_SRC/build-bench" --buildtype=release
    export PATH=$PLUME_SRC/build-bench:$PATH PLUME_SRC PLUME_BUILD=$PLUME_SRC/build-bench
    for script in "$PLUME_SRC"/bench/*.sh "$PLUME_SRC"/bench/*.py; do
        [[ -x $script ]] || continue
        [[ -z ${1:-} || ${script##*/} == "$1".* ]] || continue
        found=yes
        say "dev: ${script##*/}"
        "$script" || die "${script##*/} failed"
    done
    [[ $found == yes ]] || die "no benchmark '${1:-}' in bench/"
}
