# SPDX-License-Identifier: MIT
# shellcheck shell=bash
# Shared by tests/lint/*.sh, each started as: CHECK.sh SOURCE-FOLDER BUILD-FOLDER.
# A check prints one line a finding, FILE:LINE: what, and ends through lint_done.

set -euo pipefail

SOURCE=$1
# shellcheck disable=SC2034 # for the checks
BUILD=$2
cd "$SOURCE"
FOUND=0

# lint_files PATTERN...: files of the tree that match (git's patterns), new ones too.
lint_files() {
    if git rev-parse --is-inside-work-tree >/dev/null 2>&1; then
        git ls-files -co --exclude-standard --deduplicate -- "$@" | while read -r file; do
            [[ ! -e $file ]] || printf '%s\n' "$file"
        done
    else
        local -a names=()
        local pattern
        for pattern; do
            names+=(-o -path "./$pattern")
        done
        find . -path './build*' -prune -o -path ./runs -prune -o -type f \( "${names[@]:1}" \) -print |
            sed 's|^\./||'
    fi
}

found() {
    printf '%s\n' "$*"
    FOUND=$((FOUND + 1))
}

# found_lines COMMENT: each line of stdin is a finding.
found_lines() {
    local line
    while read -r line; do
        found "$line${1:+: $1}"
    done
}

# lint_need PROGRAM...: without one a person's check is skipped; CI has them all.
lint_need() {
    local program
    for program; do
        ! command -v "$program" >/dev/null || continue
        printf 'no %s; ./dev deps lint installs it\n' "$program"
        [[ ${CI:-} != true ]] || exit 1
        exit 77
    done
}

lint_done() {
    ((FOUND == 0)) || exit 1
    exit 0
}
