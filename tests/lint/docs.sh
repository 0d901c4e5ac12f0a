#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# References of the documents lead somewhere: links, names of documents, numbers of rules and items.
. "$(dirname "$0")/../lib/lint.bash"

mapfile -t documents < <(lint_files '*.md')

# names PATTERN: FILE:LINE:TEXT of each match in the documents.
names() {
    grep -HnoP -- "$1" "${documents[@]}" || true
}

# Relative links.
while IFS=: read -r file line target; do
    target=${target%%#*}
    [[ -z $target || $target =~ ^[a-z]+: ]] && continue
    [[ -e $(dirname "$file")/$target ]] || found "$file:$line: no such file: '$target'"
done < <(names '\]\(\K[^)\s]+')

# Documents that are named without a link.
while IFS=: read -r file line target; do
    [[ -e $target ]] || found "$file:$line: no such document: '$target'"
done < <(names '(?<![\w./-])doc/[a-z0-9_/-]+\.md')

# The pages of another time: what they said stands in doc/.
found_lines 'name doc/design.md or doc/style.md instead' < <(
    names '\b(DESIGN|STYLE)\.md\b|\bSTYLE rule\b|\bengine\.md\b'
)

# "checklist 4.1" is a section of doc/semantics.md, "design.md section 3" and "style.md rule 1" too.
# refers PATTERN DOCUMENT HEADING: the number that PATTERN ends with begins such a line there.
refers() {
    local file line number
    while IFS=: read -r file line number; do
        grep -sqE -- "^$3${number//./\\.}[. ]" "$2" || found "$file:$line: $2 has no '$number'"
    done < <(names "$1")
}
refers '\bchecklist \K[0-9]+\.[0-9]+' doc/semantics.md '## '
refers '\bdesign\.md,? section \K[0-9]+' doc/design.md '## '
refers '\bstyle\.md,? rule \K[0-9]+' doc/style.md ''
refers '\bdecision \K[0-9]{4}' doc/decisions/README.md '\| '

# Source files that the documents name for people who look for them: by path, or by name alone. Names
# with capitals (OP, NAME) stand for others. doc/style.md has examples only.
mapfile -t documents < <(lint_files HACKING.md 'doc/*.md' 'kernels/*.md' | grep -vxE 'doc/(style|debug|seeds)\.md')
mapfile -t tree < <(lint_files '*')
declare -A known=()
for path in "${tree[@]}"; do
    known[$path]=yes known[${path##*/}]=yes
done
while IFS=: read -r file line name; do
    case $name in
    *[[:upper:]]* | train.py | job.sh) continue ;;
    esac
    [[ -z ${known[$name]:-} ]] || continue
    for path in "${tree[@]}"; do
        # shellcheck disable=SC2053 # patterns
        [[ $path == $name || $path == */$name ]] && continue 2
    done
    found "$file:$line: no such file: '$name'"
done < <(names '(?<![\w./*-])[A-Za-z0-9_*-][A-Za-z0-9_./*-]*\.(c|h|cu|cuh|py|sh|bash|bats|in)(?![\w*])')

# Tests that a table of threats or faults names as `FILE: TEST`; `cli: FOLDER`, `chaos: FAULT`.
# has_test FILE TEST
has_test() {
    local what=$2
    local -a files
    case $1 in
    cli) [[ -e tests/cli/$what ]] && return ;;
    chaos) grep -qE "^def $what\(c\):" tests/fault/chaos_*.py && return ;;
    *)
        mapfile -t files < <(lint_files "tests/*/$1")
        ((${#files[@]})) || return
        if [[ $1 == *.bats ]]; then
            grep -qF -- "@test \"$what\" {" "${files[@]}"
        else
            grep -qE -- "\b$what\(" "${files[@]}"
        fi
        ;;
    esac
}
# shellcheck disable=SC2016 # backticks of the documents
named='`\K[\w.-]+(\.c|\.py|\.bats|(?<=`cli)|(?<=`chaos)): [^`]+'
while IFS=: read -r file line where what; do
    has_test "$where" "${what# }" || found "$file:$line: no such test: '$where:$what'"
done < <(grep -HnoP -- "$named" SECURITY.md doc/reliability.md || true)

(($(wc -l <HACKING.md) <= 100)) || found "HACKING.md:101: longer than 100 lines"
# A folder of more than three C files is described in its README, or in a row of one above it.
while read -r count folder; do
    ((count > 3)) || continue
    [[ -e $folder/README.md ]] && continue
    above=$folder
    while [[ $above == */* ]]; do
        above=${above%/*}
        name=${folder#"$above"/}
        [[ -e $above/README.md ]] && grep -qE "^\|.*\b$name\b|\`$name/\`" "$above/README.md" && continue 2
    done
    case $folder in
    include/plume | tests/unit/engine/*) continue ;; # include/README.md; they mirror runtime/engine/
    esac
    found "$folder: no README.md describes it"
done < <(lint_files '*.c' '*.h' '*.cu' '*.cuh' | sed 's|/[^/]*$||' | sort | uniq -c)

lint_done
