# SPDX-License-Identifier: MIT
# shellcheck shell=bash
# Helpers for tests of plrun and plrund; after `load ../lib/cluster`.
#
# A step is started under a name, with run folders of its own in $WORK/NAME.home, so that several may
# run at once:
#
#   step NAME SRUN-ARGUMENT...        NAME.out, NAME.err and NAME.rc are what srun gave
#   ranks NAME WAY SRUN-OPTION... -- PROGRAM [ARG...]
#                                     the same PROGRAM by plrun (WAY is plrun) or srun --plume (plugin)
#   checked NAME...                   their logs hold together, and agree with srun's exit code

# step: as the plain user, unless AS=root. Ends within 100 s, whatever hangs.
step() {
    local name=$1 rc=0
    shift
    if [[ ${AS:-user} == root ]]; then
        PLUME_HOME=$WORK/$name.home timeout -k 5 100 srun "$@" >"$name.out" 2>"$name.err" 3>&- || rc=$?
    else
        PLUME_HOME=$WORK/$name.home as_user timeout -k 5 100 srun "$@" \
            >"$name.out" 2>"$name.err" 3>&- || rc=$?
    fi
    echo "$rc" >"$name.rc"
}

ranks() {
    local name=$1 way=$2
    local -a options=()
    shift 2
    while [[ $1 != -- ]]; do
        options+=("$1")
        shift
    done
    shift
    if [[ $way == plugin ]]; then
        step "$name" "${options[@]}" --plume "$@"
    else
        step "$name" "${options[@]}" plrun -- "$@"
    fi
}

# rc_is NAME CODE: srun's exit code; shows its stderr where it is another.
rc_is() {
    [[ $(<"$1.rc") == "$2" ]] && return
    printf '%s: exit code %s, not %s\n' "$1" "$(<"$1.rc")" "$2" >&2
    cat -- "$1.err" >&2
    return 1
}

# trial NAME: the folder of its only trial, with result.json and attempt-0.
trial() {
    local -a found=("$WORK/$1.home"/steps/*/trial-0000)
    ((${#found[@]} == 1)) && [[ -d ${found[0]} ]] || return
    printf '%s\n' "${found[0]}"
}

# json FILE EXPRESSION: of Python, over d, the file's object; its value as text.
json() {
    python3 -c 'import json, sys
print(eval(sys.argv[2], {}, {"d": json.load(open(sys.argv[1]))}))' "$1" "$2"
}

# result NAME EXPRESSION: over d, its result.json; state NAME EXPRESSION: over the last snapshot.
result() {
    json "$(trial "$1")/result.json" "$2"
}

state() {
    json "$(trial "$1")/status.json" "(lambda s: $2)(d[\"state\"])"
}

has_result() {
    [[ -s $(trial "$1")/result.json ]] 2>/dev/null
}

# has_ended NAME: the hub wrote the last it had to say. Where Slurm ends a step, a result.json is
# there before, as SIGKILL may cut the daemons off at any time.
has_ended() {
    has_result "$1" && [[ $(json "$(trial "$1")/status.json" '"hub" in d') == False ]]
}

# rank_states NAME: "done" or, where they differ, one word a rank.
rank_states() {
    state "$1" '" ".join(r["state"] for r in s["ranks"])'
}

# checked NAME...: see tests/lib/check-run.py; the code that srun gave is the result's (with NO_CODE=1
# it need not be).
checked() {
    local name dir
    local -a list=()
    for name; do
        dir=$(trial "$name") || {
            printf '%s: no trial folder\n' "$name" >&2
            cat -- "$name.err" >&2
            return 1
        }
        # With the plugin srun may be back before the daemon has written it.
        wait_for 20 test -e "$dir/result.json"
        [[ -n ${NO_CODE:-} ]] || dir="$dir=$(<"$name.rc")"
        list+=("$dir")
    done
    "$PLUME_SRC/tests/lib/check-run.py" "${list[@]}" || {
        cat -- "${@/%/.err}" >&2
        return 1
    }
}

# gate: ranks wait for it with `read -r _ <gate`, a line each; gate_open N lets N of them go on.
gate() {
    rm -f gate
    mkfifo -m 0666 gate
    exec {GATE}<>gate
}

gate_open() {
    local i
    for ((i = 0; i < $1; i++)); do
        echo >&"$GATE"
    done
}

# count_is N FILE...: N of the files are there.
count_is() {
    local n=$1 file seen=0
    shift
    for file; do
        [[ ! -e $file ]] || seen=$((seen + 1))
    done
    ((seen == n))
}

# at_least N GLOB: so many files match (quote the pattern).
at_least() {
    local -a found
    mapfile -t found < <(compgen -G "$2")
    ((${#found[@]} >= $1))
}

# pids_of NAME NODE: pids of plrund (NAME) or plrun on a node of this cluster, by their environment.
pids_of() {
    local file pid
    while read -r file; do
        pid=${file#/proc/}
        pid=${pid%/environ}
        [[ $(cat "/proc/$pid/comm" 2>/dev/null) == "$1" ]] || continue
        if tr '\0' '\n' 2>/dev/null <"$file" | grep -qx "SLURMD_NODENAME=$2"; then
            echo "$pid"
        fi
    done < <(grep -lsF "SLURM_CONF=$SLURM_CONF" /proc/[0-9]*/environ)
}
