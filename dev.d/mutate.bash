# SPDX-License-Identifier: MIT
# shellcheck shell=bash
# ./dev mutate [TEST|FILE...]: break the product in the places of mutations.py, one after another, and
# see that the named test finds each.

# shellcheck source=dev.d/deps.bash
. "$PLUME_SRC/dev.d/deps.bash"

cmd_mutate() {
    [[ ${1:-} != -* ]] || die_usage "mutate takes names of tests or files, not '$1'"
    deps_ensure build test
    python3 "$PLUME_SRC/dev.d/mutate.py" "$PLUME_SRC" "$@"
}
