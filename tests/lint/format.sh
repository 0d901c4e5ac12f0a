#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# C sources are as clang-format 14 makes them; ./dev format does it.
. "$(dirname "$0")/../lib/lint.bash"
# shellcheck source=dev.d/common.bash
. dev.d/common.bash
clang_format=$(clang_format_14) || lint_need clang-format-14

mapfile -t files < <(lint_files '*.c' '*.h' '*.cu' '*.cuh')
((${#files[@]})) || lint_done
lint_same "$("$clang_format" --version)" .clang-format "${files[@]}"
"$clang_format" --dry-run -Werror "${files[@]}"
lint_done
