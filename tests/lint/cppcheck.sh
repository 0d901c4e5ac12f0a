#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# cppcheck finds nothing. Its results are kept: only changed files are read again.
. "$(dirname "$0")/../lib/lint.bash"
lint_need cppcheck

mapfile -t files < <(lint_files '*.c' | grep -v '^tests/')
((${#files[@]})) || lint_done
# Left out, as it is wrong about them here: leaks (it does not know __attribute__((cleanup)); ASan
# does), uninitialised values (it takes &x for a use; gcc and valgrind do not), functions that are
# not reentrant (getpwuid, readdir: no threads there), arguments and null pointers across files
# (it does not see who checked), pointers to locals in the result of a function that was given them
# (of ops, which copy), and its own broken trees.
kept=$(lint_kept cppcheck) && exec 8>"$kept/lock" && flock -n 8 || kept=$BUILD/cppcheck # another one works there
mkdir -p "$kept"
cppcheck --quiet --error-exitcode=1 --cppcheck-build-dir="$kept" -j "$(nproc)" \
    --enable=warning,portability --inline-suppr --std=c11 --library=posix \
    --suppress=resourceLeak --suppress=memleak --suppress=internalAstError --suppress=getpwuidCalled \
    --suppress=readdirCalled --suppress=uninitvar --suppress=legacyUninitvar --suppress=ctuuninitvar \
    --suppress=ctunullpointer --suppress=returnDanglingLifetime --suppress=invalidFunctionArg \
    --suppress=missingIncludeSystem --suppress=unknownMacro -D_GNU_SOURCE '-DPL_VERSION=""' \
    -I. -Iinclude --template='{file}:{line}: {id}: {message}' "${files[@]}"
lint_done
