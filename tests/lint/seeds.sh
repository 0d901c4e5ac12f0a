#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Documents name tests as `FILE: CASE`, without folders, so that they survive moves. Each named test
# exists, and each row of doc/seeds.md has a test or a reason.
. "$(dirname "$0")/../lib/lint.bash"

documents=(doc/seeds.md doc/features.md doc/from-test-tube.md doc/semantics.md doc/debug.md SECURITY.md)

# All tests as "FILE: CASE": a bats title, a C or Python function, or (cli) a folder of tests/cli.
declare -A tests
while IFS= read -r name; do
    tests[$name]=1
done < <(
    lint_files '*.bats' '*/test-*.c' '*/test-*.py' |
        xargs grep -HoE -- '@test ".*"|(void|def) [A-Za-z0-9_]+\(' |
        sed -E 's|^([^:]*/)?([^/:]*):@test "(.*)"$|\2: \3|; s|^([^:]*/)?([^/:]*):(void\|def) (.*)\($|\2: \4|'
    lint_files '*/cmd' | sed -E 's|.*/([^/]*)/cmd$|cli: \1|'
)

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
        [[ -n ${tests[$text]:-} ]] || found "$document:$line: no such test: '$text'"
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

# A row: | feature | status | how | test or reason |
while IFS= read -r row; do
    line=${row%%:*}
    IFS='|' read -r _ _ status _ shown _ <<<"${row#*:}"
    status=${status// /}
    [[ $status != yes || $shown == *'`'*': '*'`'* ]] ||
        found "doc/features.md:$line: status 'yes' without a test"
    [[ -n ${shown// /} ]] || found "doc/features.md:$line: neither a test nor a reason"
done < <(grep -nE '^\|[^|]*\| (yes|partly|no) \|' doc/features.md)
lint_done
