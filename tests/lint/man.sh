#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Man pages are clean mdoc, have the sections readers look for, and name the options --help names.
. "$(dirname "$0")/../lib/lint.bash"
lint_need groff

# options_of: the long options named on stdin, one a line.
options_of() {
    grep -oE -- '(^|[^A-Za-z0-9-])--[a-z][a-z0-9-]+' | grep -oE -- '--[a-z0-9-]+' | sort -u
}

while read -r page; do
    found_lines '' < <(groff -mandoc -ww -z "$page" 2>&1)
    # Ql and Fl quote the macros after them on their line: a quote in a quote, an option "-and".
    # shellcheck disable=SC1112
    found_lines "$page: one macro a line" < <(
        groff -mandoc -Tutf8 -P-cbou -rLL=9999n "$page" 2>/dev/null |
            grep -oE '‘[^’]{0,60}‘|“[^”]{0,60}“|[a-z],? -(and|or)[ ,]' || true
    )
    [[ $page != *.1 ]] || for section in EXAMPLES 'EXIT STATUS' ENVIRONMENT FILES; do
        grep -qx "\.Sh $section" "$page" || found "$page:1: no section $section"
    done
done < <(lint_files 'man/*.[1-8]')

for tool in plsubmit plstat plrun plrund pltrain; do
    [[ -x $BUILD/$tool ]] || continue
    help=$("$BUILD/$tool" --help 2>/dev/null </dev/null) || found "$tool: --help fails"
    [[ -n $help ]] || found "$tool: --help prints nothing on stdout"
    found_lines "$tool: --help has a line over 80 columns" < <(grep -nE '.{81,}' <<<"$help" || true)

    page=man/$tool.1
    [[ -e $page ]] || page=man/$tool.8
    if [[ ! -e $page ]]; then
        found "man/$tool.1:1: no such page"
        continue
    fi
    rendered=$(groff -mandoc -Tascii -P-cbou "$page" 2>/dev/null)
    found_lines "in $tool --help but not in $page" < <(
        comm -23 <(options_of <<<"$help") <(options_of <<<"$rendered")
    )
    # The other way round the list items decide: a page may mention other programs' options.
    found_lines "an option in $page but not in $tool --help" < <(
        comm -13 <(options_of <<<"$help") \
            <(sed -n 's/^\.It.* Fl \(\\&\)\{0,1\}\\\{0,1\}-\([a-z][a-z0-9-]*\).*/--\2/p' "$page" | sort -u)
    )
done
lint_done
