#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# C sources are as clang-format 14 makes them; ./dev format does it.
. "$(dirname "$0")/../lib/lint.bash"

mapfile -t files < <(lint_files '*.c' '*.h' '*.cu' '*.cuh')
((${#files[@]} == 0)) || clang-format --dry-run -Werror "${files[@]}"
lint_done
