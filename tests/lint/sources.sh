#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Small rules for source text: licence line, who ends the process, waiting in tests.
. "$(dirname "$0")/../lib/lint.bash"

# matching PATTERN FILE...: FILE:LINE:TEXT; no match is fine.
matching() {
    local pattern=$1
    shift
    (($# == 0)) || grep -HnP -- "$pattern" "$@" || true
}

mapfile -t code < <(lint_files '*.c' '*.h' '*.cu' '*.cuh')
mapfile -t scripts < <(lint_files '*.sh' '*.bash' '*.bats' '*.py' dev .ci/run)
# without_licence FILE...: one awk for all, as hundreds of processes take seconds.
without_licence() {
    awk 'BEGIN { for (i = 1; i < ARGC; i++) missing[ARGV[i]] }
        /SPDX-License-Identifier: / { delete missing[FILENAME]; nextfile }
        FNR == 3 { nextfile }
        END { for (file in missing) print file ":1: no SPDX-License-Identifier in the first three lines" }' "$@"
}
found_lines '' < <(without_licence "${code[@]}" "${scripts[@]}")

# ./dev bench runs what is executable in bench/, so a forgotten mode bit hides a benchmark.
for file in bench/*.py; do
    [[ -x $file || $(head -c 2 "$file") != '#!' ]] ||
        found "$file:1: it begins with #! and is not executable"
done

# A program that a test starts in the source folder leaves its files there, and `git add -A` takes them along.
root='.ci|.clang-format|.clang-tidy|.editorconfig|.gitignore|CONTRIBUTING.md|HACKING.md|LICENSE|NEWS.md|README.md'
root+='|SECURITY.md|bench|common|data|dev|dev.d|doc|examples|include|kernels|launcher|man|meson.build'
root+='|meson_options.txt|modules|runtime|spank_plugin|templates|tests'
if git rev-parse --is-inside-work-tree >/dev/null 2>&1; then
    found_lines 'no entry of the root folder; if it is meant, name it here' < <(
        git ls-files | cut -d/ -f1 | sort -u | grep -vxE "${root//./\\.}" | sed 's/$/:1/' || true
    )
fi

# Other calls that we do not make are the compiler's business: common/base/banned.h.
mapfile -t libraries < <(
    printf '%s\n' "${code[@]}" | grep -vE '^(tests|examples)/|(^|/)main_[^/]*\.c$' || true
)
found_lines 'only main_*.c ends the process' < <(
    matching '^(?!\s*(\*|//|/\*)).*(?<![_\w.>])(exit|abort)\s*\(' "${libraries[@]}"
)

# Tests wait for the event, within a limit (wait_for in tests/lib/cluster.bash).
mapfile -t tests < <(lint_files 'tests/*.c' 'tests/*.bats' 'tests/*.sh')
found_lines 'a sleep in a test; wait for the event' < <(
    matching '^\s*(sleep\s+[0-9.]|(usleep|sleep|nanosleep)\s*\()' "${tests[@]}"
)
# Meson takes what cmocka says then for a failure.
found_lines "cmocka's skip(); print \"# skipped: WHY\" and return" < <(
    matching '^\s*skip\(\);' "${tests[@]}"
)
mapfile -t programs < <(lint_files 'tests/*.py')
found_lines 'a sleep outside of a loop that waits for an event, and no reason beside it' < <(
    python3 tests/lint/sleeps.py "${programs[@]}" || echo 'tests/lint/sleeps.py: failed'
)
found_lines 'unfinished' < <(
    matching '\b(TO''DO|FIX''ME|XX''X)\b' "${code[@]}" "${scripts[@]}"
)
# doc/style.md, English. A question may begin so.
found_lines 'a comment begins with its subject, not with a question word' < <(
    matching '/\* (What|Whether|How|Where|Which|Who)\b[^?]*$' "${code[@]}"
)

# Every kernel is called by a test that compares the backends.
mapfile -t kernels < <(grep -hoP '^\s+X\(\K\w+' kernels/args_*.h)
((${#kernels[@]} > 0)) || found 'kernels/args_*.h: no list of kernels'
for kernel in "${kernels[@]}"; do
    grep -qP -- "->$kernel\b" tests/kernels/*.c ||
        found "kernels: $kernel has no test in tests/kernels"
done
for file in tests/kernels/*.c; do
    grep -q "'$(basename "$file" .c)\(\.c\)\?'" tests/kernels/meson.build ||
        found "$file:1: tests/kernels/meson.build does not name it"
done
lint_done
