#!/usr/bin/env bats
# SPDX-License-Identifier: MIT
# Tests of ./dev: its messages for wrong usage, and the line that summarizes the tests.

bats_require_minimum_version 1.5.0

setup() {
    SRC=$BATS_TEST_DIRNAME/../..
    cd "$BATS_TEST_TMPDIR"
}

# log RESULT OUTPUT: a line of meson's testlog.json.
log() {
    mkdir -p build/meson-logs
    python3 -c 'import json, sys; print(json.dumps(dict(name="t", result=sys.argv[1],
        stdout=sys.argv[2], returncode=0)))' "$1" "$2" >>build/meson-logs/testlog.json
}

sum() {
    run --separate-stderr "$SRC/dev.d/sum-tests.py" build/meson-logs/testlog.json
}

@test "--help fits 80 columns, on stdout, and names each command" {
    for what in '' cluster matrix package soak test; do
        # shellcheck disable=SC2086 # nothing or one word
        run -0 --separate-stderr "$SRC/dev" $what --help
        [ -z "$stderr" ]
        run ! grep -E '.{81,}' <<<"$output"
    done
    run -0 "$SRC/dev" --help
    for file in "$SRC"/dev.d/*.bash; do
        name=${file##*/}
        # These are parts of others.
        [[ $name == @(cgroup2|common|nfs).bash ]] || grep -qw "^  ${name%.bash}" <<<"$output"
    done
}

@test "wrong use is status 2 with one line" {
    run -2 "$SRC/dev"
    for args in frob 'test frob' 'matrix frob' 'lint --frob' 'format x' 'build --x' 'fuzz frob' 'fuzz json x' \
        'demo x' 'deps x' 'deps build x' 'build a b' 'bench a b' 'package a b' 'package --cuda a b' 'package --x' \
        gpu-bundle cluster; do
        # shellcheck disable=SC2086 # words
        run -2 --separate-stderr "$SRC/dev" $args
        [ -z "$output" ]
        [ "${#stderr_lines[@]}" = 1 ]
        [[ $stderr == 'dev: '* ]]
    done
}

@test "without apt, deps names the programs and libraries that are missing" {
    mkdir bin
    for name in awk bash dirname env grep head sed sort; do
        ln -s "$(command -v "$name")" bin/
    done
    run -1 --separate-stderr env PATH="$PWD/bin" "$SRC/dev" deps build
    [[ $stderr == *'meson>=1.0'* ]]
    [[ $stderr == *'missing: program gcc, '*'library jansson, '* ]]
    [[ $stderr != *apt-get* && $stderr != *libjansson-dev* ]]
}

@test "a lint tool that is missing skips the check for a person, and fails it in CI" {
    mkdir bin build
    for name in bash dirname env git grep head sed sort; do
        [[ $name == git ]] && ! command -v git >/dev/null || ln -s "$(command -v "$name")" bin/
    done
    run -77 env -u CI PATH="$PWD/bin" "$SRC/tests/lint/shell.sh" "$SRC" build
    [[ $output == *'no shellcheck; ./dev deps lint'* ]]
    run -1 env CI=true PATH="$PWD/bin" "$SRC/tests/lint/shell.sh" "$SRC" build
}

@test "cases are counted, not programs" {
    log OK $'1..3\nok 1 a\nok 2 b # skip no GPU\nok 3 - c'
    log OK ''
    sum
    [ "$status" = 0 ]
    [ "${lines[0]}" = 'skipped: build: t: b no GPU' ]
    [ "${lines[-1]}" = '3 passed, 0 failed, 1 skipped' ]
}

@test "a failed case is named with what it said, and fails" {
    log FAIL $'1..2\nok 1 a\n# fine\nnot ok 2 b\n# why\n# where'
    sum
    [ "$status" = 1 ]
    [ "${lines[0]}" = 'failed: build: t: b' ]
    [ "${lines[1]}" = '    why' ]
    [ "${lines[2]}" = '    where' ]
    [ "${lines[-1]}" = '1 passed, 1 failed, 0 skipped' ]
}

@test "a program that breaks off fails, whatever it said before" {
    log TIMEOUT $'1..2\nok 1 a'
    log FAIL ''
    sum
    [ "$status" = 1 ]
    [ "${lines[-1]}" = '1 passed, 2 failed, 0 skipped' ]
}

@test "a test that failed beside others and passed alone counts as passed, and is named" {
    log FAIL $'1..2\nok 1 a\nnot ok 2 b'
    run -0 "$SRC/dev.d/sum-tests.py" --failed build/meson-logs/testlog.json
    [ "$output" = t ]
    mv build/meson-logs/testlog.json first
    log FAIL $'1..2\nok 1 a\nnot ok 2 b'
    mv build/meson-logs/testlog.json build/meson-logs/testlog-again.json
    mv first build/meson-logs/testlog.json
    sum
    [ "$status" = 1 ]
    [ "${lines[-1]}" = '1 passed, 1 failed, 0 skipped' ]

    mv build/meson-logs/testlog.json first
    log OK $'1..2\nok 1 a\nok 2 b'
    mv build/meson-logs/testlog.json build/meson-logs/testlog-again.json
    mv first build/meson-logs/testlog.json
    sum
    [ "$status" = 0 ]
    [ "${lines[0]}" = 'unsteady: build: t: b: it passed alone' ]
    [ "${lines[-1]}" = '2 passed, 0 failed, 0 skipped' ]
}

@test "nothing run is no success" {
    mkdir -p build/meson-logs
    : >build/meson-logs/testlog.json
    sum
    [ "$status" = 1 ]
    [ "$output" = '0 passed, 0 failed, 0 skipped' ]
    run -1 "$SRC/dev.d/sum-tests.py" build/missing.json
}

# fake_ci TEST MATRIX: .ci/run with a ./dev whose commands these are.
fake_ci() {
    mkdir -p top/.ci
    cp "$SRC/.ci/run" top/.ci/
    printf '#!/bin/sh\ncase $1 in test) %s ;; matrix) %s ;; esac\n' "$1" "$2" >top/dev
    chmod +x top/dev
    run top/.ci/run
}

@test ".ci/run sums up its parts, and fails if one fails or breaks off" {
    fake_ci 'echo 3 passed, 0 failed, 1 skipped' 'echo 2 passed, 0 failed, 4 skipped'
    [ "$status" = 0 ]
    [ "${lines[-1]}" = '5 passed, 0 failed, 5 skipped' ]
    fake_ci 'echo 3 passed, 1 failed, 1 skipped; exit 1' 'echo 2 passed, 0 failed, 4 skipped'
    [ "$status" = 1 ]
    [ "${lines[-1]}" = '5 passed, 1 failed, 5 skipped' ]
    fake_ci 'echo 3 passed, 0 failed, 1 skipped' 'exit 2'
    [ "$status" = 2 ]
    [ "${lines[-1]}" = '3 passed, 1 failed, 1 skipped' ]
}

@test ".ci/run names what has failed once more at its end" {
    fake_ci 'echo failed: build: a test; echo 3 passed, 1 failed, 1 skipped; exit 1' \
        'echo failed: row; echo failed: row: 2 first; echo 2 passed, 1 failed, 4 skipped; exit 1'
    [ "$status" = 1 ]
    [ "$(tail -n 4 <<<"$output")" = 'failed: build: a test
failed: row
failed: row: 2 first
5 passed, 2 failed, 5 skipped' ]
}

@test "a row of the matrix installs one package after another" {
    ((EUID == 0)) || skip "only root installs packages"
    mkdir matrix bin
    printf '#!/bin/sh\n' >bin/apt-get && chmod +x bin/apt-get
    # shellcheck disable=SC2016 # for the inner shell
    run -0 env PLUME_SRC="$SRC" PATH="$PWD/bin:$PATH" timeout 20 bash -euo pipefail -c '
        . "$PLUME_SRC/dev.d/common.bash"
        . "$PLUME_SRC/dev.d/matrix.bash"
        MATRIX_DIR=$PWD/matrix
        deps_install() { echo "installs $*"; }
        matrix_need plume-none-1 first
        matrix_need plume-none-2 second third'
    [ "$output" = 'installs first
installs second third' ]
}

@test "matrix names the first failed tests of a row" {
    mkdir matrix
    printf '%s\n' '1..4' 'ok 1 a' 'not ok 2 first' '# (in test file x.bats)' 'not ok 3 second' 'not ok 4 busy' \
        '# unsteady: busy' >matrix/row.log
    printf 'error\n' >matrix/other.log
    # shellcheck disable=SC2016 # for the inner shell
    run -0 env PLUME_SRC="$SRC" bash -euo pipefail -c '
        . "$PLUME_SRC/dev.d/common.bash"
        . "$PLUME_SRC/dev.d/matrix.bash"
        MATRIX_DIR=$PWD/matrix
        matrix_failures row
        matrix_failures other'
    [ "$output" = 'failed: row
failed: row: 2 first
failed: row: 3 second
failed: other' ]
}

# slurm_tests: slurm.sh of the matrix with a fake bats, which takes a test's second result from a file of its name.
slurm_tests() {
    mkdir -p bin top/tests/matrix top/tests/cluster
    cp "$SRC/tests/matrix/slurm.sh" top/tests/matrix/
    cat >bin/bats <<'TXT'
#!/bin/bash
for file; do :; done
if [[ $2 == --filter ]]; then
    echo "once more: $3 of $file"
    exit "$(<"$TOP/second")"
fi
cat "$TOP/${file%.bats}.first" 2>/dev/null || exit 0
exit 1
TXT
    chmod +x bin/bats
    TOP=$PWD PATH="$PWD/bin:$PATH" timeout 20 top/tests/matrix/slurm.sh
}

@test "the matrix runs a test of Slurm that failed once more" {
    printf '%s\n' 'ok 1 a' 'not ok 2 who stops (at a.b)' >requeue.first
    echo 0 >second
    run -0 slurm_tests
    [[ $output == *'once more: ^who stops \(at a\.b\)$ of requeue.bats'*'# unsteady: who stops (at a.b)' ]]
    echo 1 >second
    run -1 slurm_tests
    [[ $output == *'failed twice: requeue: 2 who stops (at a.b)' ]]
    printf 'not ok %d x\n' {1..7} >spank.first
    echo 0 >second
    run -1 slurm_tests # too many for chance
    [[ $output != *'once more'* ]]
    echo 'bats: broken' >spank.first
    run -1 slurm_tests
    rm spank.first requeue.first
    run -0 slurm_tests
    [ -z "$output" ]
}

@test "soak knows what it runs for each kind of its help" {
    local kind n=0
    while read -r kind; do
        # shellcheck disable=SC2016 # for the inner shell
        run -0 env PLUME_SRC="$SRC" bash -euo pipefail -c '. "$PLUME_SRC/dev.d/common.bash"
            . "$PLUME_SRC/dev.d/soak.bash"; declare -F "soak_$1"' _ "$kind"
        n=$((n + 1))
    done < <("$SRC/dev" soak --help | grep -oE '^(Usage:|      ) ./dev soak [a-z0-9]+' | grep -oE '[a-z0-9]+$')
    ((n == 12))
}

@test "soak fuzz has seconds for each target, and targets for its seconds" {
    run -0 "$SRC/dev" soak fuzz --list
    [ "$(awk '{ print $1 }' <<<"$output" | sort)" = \
        "$(cd "$SRC/tests/fuzz" && printf '%s\n' fuzz-*.c | sed 's/^fuzz-//; s/\.c$//' | sort)" ]
    awk '$2 < 600 { exit 1 }' <<<"$output"
    run -2 "$SRC/dev" soak fuzz 0
}

@test "the bill of materials of a release has each source file and each library that is linked" {
    cp -r "$SRC/dev.d" "$SRC/meson.build" .
    mkdir -p src/dev.d && cp dev.d/deps.list src/dev.d/ && cp meson.build src/ && printf x >src/a.c
    run -0 --separate-stderr env SOURCE_DATE_EPOCH=1 dev.d/sbom.py src
    [ -z "$stderr" ]
    first=$output
    run -0 python3 -c '
import json, sys
d = json.loads(sys.argv[1])
print(d["spdxVersion"], d["creationInfo"]["created"], sorted(f["fileName"] for f in d["files"]))
print(sorted((p["name"], p["licenseDeclared"]) for p in d["packages"]))
ids = {x["SPDXID"] for x in d["packages"] + d["files"]} | {"SPDXRef-DOCUMENT"}
print(all({r["spdxElementId"], r["relatedSpdxElement"]} <= ids for r in d["relationships"]),
      [c["checksumValue"] for f in d["files"] if f["fileName"] == "./a.c" for c in f["checksums"]])' "$first"
    [ "${lines[0]}" = "SPDX-2.3 1970-01-01T00:00:01Z ['./a.c', './dev.d/deps.list', './meson.build']" ]
    [ "${lines[1]}" = "[('jansson', 'MIT'), ('libsodium', 'ISC'), ('libuv', 'MIT'), ('libyaml', 'MIT'), ('openmpi', 'BSD-3-Clause'), ('plume', 'MIT'), ('slurm', 'GPL-2.0-or-later')]" ]
    [ "${lines[2]}" = "True ['$(sha1sum <src/a.c | cut -c1-40)', '$(sha256sum <src/a.c | cut -c1-64)']" ]
    # A library without a licence here ends the release.
    printf '[build]\nlibnew-dev lib:new a new one\n' >src/dev.d/deps.list
    run -1 env SOURCE_DATE_EPOCH=1 dev.d/sbom.py src
    [[ $output == *lib:new* ]]
}
