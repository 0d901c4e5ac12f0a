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
# A command after ! fails a test only as the last one of its function.
((${#tests[@]} == 0)) ||
    found_lines '! before a command fails no test; [[ ]] or "run -1" does' < <(awk '
        FNR == 1 { at = "" }
        at != "" && !/^}/ { print at }
        { at = /^ +! / && !/\|\|/ ? FILENAME ":" FNR : "" }' "${tests[@]}")
lint_done
