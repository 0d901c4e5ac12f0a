#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Documents name tests as `FILE: CASE`, without folders, so that they survive moves. Each named test
# exists, and each row of doc/seeds.md has a test or a reason.
. "$(dirname "$0")/../lib/lint.bash"

documents=(doc/seeds.md doc/from-test-tube.md doc/semantics.md doc/debug.md SECURITY.md)

# test_exists FILE CASE: a bats title, a cmocka or Python function, or (cli) a folder of tests/cli.
test_exists() {
    local name=$1 case=$2 file
    case $name in
    cli)
        [[ -n $(lint_files "*/$case/cmd") ]]
        ;;
    *.bats)
        while read -r file; do
            ! grep -qF -- "@test \"$case\"" "$file" || return 0
        done < <(lint_files "*/$name")
        return 1
        ;;
    *)
        while read -r file; do
            ! grep -qE -- "(void|def) $case\(" "$file" || return 0
        done < <(lint_files "*/$name")
        return 1
        ;;
    esac
}

# shellcheck disable=SC2016 # backticks of Markdown
pattern='`(cli|[A-Za-z0-9_-]+\.bats|test-[A-Za-z0-9_-]+\.(c|py)): [^`]+`'
named=0
for document in "${documents[@]}"; do
    if [[ ! -e $document ]]; then
        found "$document:1: no such document"
        continue
    fi
    while IFS=: read -r line text; do
        text=${text:1:-1}
        named=$((named + 1))
        test_exists "${text%%: *}" "${text#*: }" || found "$document:$line: no such test: '$text'"
    done < <(grep -noE -- "$pattern" "$document")
done
((named > 0)) || found "${documents[0]}:1: no document names a test"

# A row: | statement | status | command | test or reason |
while IFS= read -r row; do
    line=${row%%:*}
    IFS='|' read -r _ _ status _ shown _ <<<"${row#*:}"
    status=${status// /}
    case $status in
    yes | partly | differs | no) ;;
    *) found "doc/seeds.md:$line: status '$status' is none of yes, partly, differs, no" ;;
    esac
    [[ -n ${shown// /} ]] || found "doc/seeds.md:$line: neither a test nor a reason"
    [[ $status != yes && $status != partly ]] || [[ $shown == *'`'*': '*'`'* ]] ||
        found "doc/seeds.md:$line: status '$status' without a test"
done < <(grep -nE '^\| [0-9]+\. ' doc/seeds.md)
lint_done
