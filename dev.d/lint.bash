# SPDX-License-Identifier: MIT
# shellcheck shell=bash
# ./dev lint: the lint suite; with --deep clang-tidy over every C file as well. That takes minutes,
# and its findings are for a person to judge: it does not follow list invariants and clean-ups.

# shellcheck source=dev.d/build.bash
. "$PLUME_SRC/dev.d/build.bash"

lint_deep() {
    command -v clang-tidy >/dev/null || die "clang-tidy is missing; ./dev deps lint"
    local -a files
    mapfile -t files < <(cd "$PLUME_SRC" && git ls-files '*.c' | grep -v '^tests/')
    cd "$PLUME_SRC" || exit
    printf '%s\0' "${files[@]}" |
        xargs -0 -n 1 -P "$(nproc)" clang-tidy -p build --quiet 2>/dev/null
}

cmd_lint() {
    case ${1:-} in
    '' | --deep) (($# <= 1)) || die_usage "lint takes --deep only" ;;
    *) die_usage "lint: unknown argument '$1'" ;;
    esac
    deps_ensure build test lint
    reconfigure_in "$PLUME_SRC/build" -Dtests=enabled
    ninja_in "$PLUME_SRC/build"
    meson test -C "$PLUME_SRC/build" --no-rebuild --suite lint --print-errorlogs
    [[ ${1:-} != --deep ]] || lint_deep
}
