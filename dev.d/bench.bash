# SPDX-License-Identifier: MIT
# shellcheck shell=bash
# ./dev bench [NAME] [--json]: the benchmarks in bench/, all or one, on the release build in
# build-bench; --record writes what they last found into bench/RESULTS.md.

# shellcheck source=dev.d/build.bash
. "$PLUME_SRC/dev.d/build.bash"

cmd_bench() {
    local script found=no name='' arg
    local -a args=()
    for arg; do
        case $arg in
        --json) args+=("$arg") ;;
        --record)
            python3 "$PLUME_SRC/bench/record.py" || die "the results could not be written"
            return 0
            ;;
        -*) die_usage "bench takes a name, --json and --record, not '$arg'" ;;
        *)
            [[ -z $name ]] || die_usage "bench takes one name at most"
            name=$arg
            ;;
        esac
    done
    deps_ensure build
    build_in "$PLUME_SRC/build-bench" --buildtype=release -Dcuda=disabled
    export PLUME_SRC PLUME_BUILD=$PLUME_SRC/build-bench
    for script in "$PLUME_SRC"/bench/*.py; do
        [[ -x $script ]] || continue
        [[ -z $name || ${script##*/} == "$name".* ]] || continue
        found=yes
        say "dev: ${script##*/}"
        "$script" "${args[@]}" || die "${script##*/} failed"
    done
    [[ $found == yes ]] || die "no benchmark '$name' in bench/"
}
