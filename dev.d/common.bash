# SPDX-License-Identifier: MIT
# shellcheck shell=bash
# Shared by all commands of ./dev: messages, bounded waits, processes known by pid and start time.

say() {
    printf '%s\n' "$*" >&2
}

die() {
    say "dev: $*"
    exit 1
}

die_usage() {
    say "dev: $*"
    exit 2
}

# wait_until SECONDS COMMAND [ARG...]: run COMMAND until it succeeds; 1 when the limit is over.
# It looks again after an eighth of the time that it has waited: a look may cost more than what it waits for.
wait_until() {
    local limit_ms=$(($1 * 1000)) start=$((${EPOCHREALTIME/[.,]/} / 1000)) ms pause
    shift
    until "$@"; do
        ms=$((${EPOCHREALTIME/[.,]/} / 1000 - start))
        ((ms < limit_ms)) || return 1
        pause=$((ms < 400 ? 50 : ms > 2400 ? 300 : ms / 8))
        printf -v pause '0.%03d' "$pause"
        sleep "$pause"
    done
}

now_ms() {
    printf '%s\n' "$((${EPOCHREALTIME/[.,]/} / 1000))"
}

# pid_start PID: start time in clock ticks since boot; with the pid it names one process for ever.
pid_start() {
    local stat
    { read -r stat <"/proc/$1/stat"; } 2>/dev/null || return 1
    stat=${stat##*) }
    local -a field
    read -ra field <<<"$stat"
    # A zombie has ended; it only waits to be reaped.
    [[ ${field[0]} != [ZX] ]] || return 1
    printf '%s\n' "${field[19]}"
}

# pid_is PID START: is that very process still running?
pid_is() {
    [[ $(pid_start "$1") == "$2" ]]
}

# need_number NAME VALUE MIN MAX: a usage error unless VALUE is a decimal number in the range.
need_number() {
    if [[ ! $2 =~ ^[0-9]{1,7}$ ]] || ((10#$2 < $3 || 10#$2 > $4)); then
        die_usage "bad value '$2' for $1; give a number from $3 to $4"
    fi
}

# clang_format_14: the command's name; 1 if there is none. Other versions lay out differently.
clang_format_14() {
    local name
    for name in clang-format-14 clang-format; do
        if [[ $("$name" --version 2>/dev/null) == *'version 14.'* ]]; then
            printf '%s\n' "$name"
            return
        fi
    done
    return 1
}
