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

# lint_kept FOLDER: where results are kept from one clone to the next, as a compiler cache keeps objects.
lint_kept() {
    local folder=${XDG_CACHE_HOME:-$HOME/.cache}/plume/$1
    mkdir -p "$folder" 2>/dev/null && [[ -w $folder ]] && printf '%s\n' "$folder"
}

# lint_same VERSIONS FILE...: the check ends here, and well, if it has found nothing before in files of these
# names and contents, by programs of these versions, and by itself as it is now.
PASSED=
lint_same() {
    local folder sum
    folder=$(lint_kept lint) || return 0
    find "$folder" -type f -mtime +30 -delete
    sum=$({
        printf '%s\n' "$1"
        sha256sum -- "tests/lint/${0##*/}" tests/lib/lint.bash "${@:2}"
    } | sha256sum)
    PASSED=$folder/${sum%% *}
    [[ ! -e $PASSED ]] || exit 0
}

lint_done() {
    ((FOUND == 0)) || exit 1
    [[ -z $PASSED ]] || : >"$PASSED"
    exit 0
}
