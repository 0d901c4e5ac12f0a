# SPDX-License-Identifier: MIT
# shellcheck shell=bash
# ./dev format: rewrite the C files that clang-format 14 would lay out differently.

cmd_format() {
    (($# == 0)) || die_usage "format takes no argument"
    cd "$PLUME_SRC" || exit
    local clang_format
    local -a files
    clang_format=$(clang_format_14) || die "clang-format 14 is missing; ./dev deps lint"
    mapfile -t files < <(git ls-files -co --exclude-standard --deduplicate '*.c' '*.h' '*.cu' '*.cuh')
    ((${#files[@]} == 0)) || "$clang_format" -i "${files[@]}"
}
