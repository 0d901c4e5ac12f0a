#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Shell scripts, found by their first line or name, pass shellcheck.
. "$(dirname "$0")/../lib/lint.bash"
lint_need shellcheck

mapfile -t files < <(
    lint_files '*.sh' '*.bash'
    lint_files '*' | grep -vE '\.[a-z0-9]+$' |
        xargs -r awk 'FNR == 1 && /^#!\/(usr\/bin\/env bash|bin\/(ba)?sh)/ { print FILENAME }'
)
mapfile -t files < <(printf '%s\n' "${files[@]}" | sort -u)
mapfile -t tests < <(lint_files '*.bats')
lint_same "$(shellcheck --version)" "${files[@]}" "${tests[@]}"
shellcheck -x -P SCRIPTDIR -P "$SOURCE" -- "${files[@]}"

# bats sets ${lines[0]} and friends, and ends a test at the first failure; scripts in single quotes
# are for the shell of the node.
((${#tests[@]} == 0)) ||
    shellcheck -x -P SCRIPTDIR -P "$SOURCE" -e SC2016,SC2030,SC2031,SC2154,SC2164 -- "${tests[@]}"
lint_done
