#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# cppcheck finds nothing. Its results are kept in the build folder: only changed files are read again.
. "$(dirname "$0")/../lib/lint.bash"

mapfile -t files < <(lint_files '*.c' | grep -v '^tests/')
((${#files[@]})) || lint_done
# It does not know __attribute__((cleanup)): leaks are left to ASan. It trips over its own
# tree, and takes every getpwuid() for one in a threaded program.
mkdir -p "$BUILD/cppcheck"
cppcheck --quiet --error-exitcode=1 --cppcheck-build-dir="$BUILD/cppcheck" -j "$(nproc)" \
    --enable=warning,portability --inline-suppr --std=c11 --library=posix --library=gnu \
    --suppress=resourceLeak --suppress=memleak --suppress=internalAstError --suppress=getpwuidCalled \
    --suppress=missingIncludeSystem --suppress=unknownMacro -D_GNU_SOURCE '-DPL_VERSION=""' \
    -I. -Iinclude --template='{file}:{line}: {id}: {message}' "${files[@]}"
lint_done
