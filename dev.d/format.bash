# SPDX-License-Identifier: MIT
# shellcheck shell=bash
# ./dev format: rewrite the C files that clang-format 14 would lay out differently.

cmd_format() {
    (($# == 0)) || die_usage "format takes no argument"
    cd "$PLUME_SRC" || exit
    local -a files
    mapfile -t files < <(git ls-files -co --exclude-standard --deduplicate '*.c' '*.h' '*.cu' '*.cuh')
    ((${#files[@]} == 0)) || clang-format -i "${files[@]}"
}
