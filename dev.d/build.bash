# SPDX-License-Identifier: MIT
# shellcheck shell=bash
# ./dev build: configure once, then build; and the same for the sanitizer lanes of ./dev test.

# shellcheck source=dev.d/deps.bash
. "$PLUME_SRC/dev.d/deps.bash"

# build_in DIR [MESON-OPTION...]: quiet unless something is wrong.
build_in() {
    configure_in "$@"
    ninja_in "$1"
}

# configure_in DIR [MESON-OPTION...]: configure DIR unless it is configured already.
configure_in() {
    [[ -f $1/build.ninja ]] || meson_setup "$@"
}

# reconfigure_in DIR [MESON-OPTION...]: also an existing DIR, if an option has another value there, or
# packages were installed.
reconfigure_in() {
    local dir=$1 option
    if [[ ! -f $dir/build.ninja ]]; then
        meson_setup "$@"
        return
    fi
    for option in "${@:2}"; do
        [[ $option == -D* ]] || continue
        option=${option#-D}
        [[ $(option_in "$dir" "${option%%=*}") == "${option#*=}" ]] || DEPS_CHANGED=yes
    done
    [[ -z $DEPS_CHANGED ]] || meson_setup --reconfigure "$@"
    DEPS_CHANGED=
}

# For one kind of GPU, with PTX for newer ones: a kind takes nvcc a minute of a core. Releases, and
# ./dev gpu-bundle, have all that meson_options.txt names.
meson_setup() {
    local log
    local -a how=()
    if [[ $1 == --reconfigure ]]; then how=("$1") && shift; else how=(-Dgpu_archs=80); fi
    log=$(meson setup "${how[@]}" "$1" "$PLUME_SRC" "${@:2}" 2>&1) || {
        say "$log"
        die "'$1' could not be configured; see above"
    }
    # Our own meson.build files warn of what will not work.
    sed -n 's/^[^ ]*meson\.build:[0-9]*: WARNING: /dev: /p' <<<"$log" >&2
}

# option_in DIR OPTION: its value in a configured folder.
option_in() {
    python3 -c 'import json, sys
for o in json.load(open(sys.argv[1])):
    if o["name"] == sys.argv[2]:
        v = o["value"]
        print(str(v).lower() if o["type"] == "boolean" else ",".join(v) if o["type"] == "array" else v)' \
        "$1/meson-info/intro-buildoptions.json" "$2"
}

# has_nvidia: this machine has a driver of NVIDIA, so that somebody can use what nvcc compiles.
has_nvidia() {
    [[ -e /proc/driver/nvidia/version || -e /dev/dxg ]]
}

ninja_in() {
    local dir=$1 log
    shift
    say "dev: building ${dir##*/}"
    log=$(ninja -C "$dir" -j "$(nproc)" --quiet "$@" 2>&1) || {
        say "$log"
        die "the build in '$dir' failed; see above"
    }
    grep -A 4 'warning: ' <<<"$log" >&2 || true
}

# As root some tests act as another user, who must be able to read the tree. In a copy it is as good as it gets.
others_can_read() {
    ((EUID != 0)) || [[ -n ${PLUME_TEST_COPY:-} ]] || setpriv --reuid 65534 --regid 65534 --clear-groups \
        test -x "$PLUME_SRC" -a -r "$PLUME_SRC/dev" -a -r "$PLUME_SRC/dev.d/test.bash" 2>/dev/null
}

# in_copy COMMAND...: ./dev COMMAND in a copy of the tree that others can read; does not return.
in_copy() {
    local copy rc=0
    copy=$(mktemp -d "${TMPDIR:-/tmp}/plume-src-XXXXXX")
    # shellcheck disable=SC2064 # this very folder
    trap "rm -rf '$copy'" EXIT
    chmod 0755 "$copy"
    say "dev: other users cannot read this tree; testing a copy of it"
    tar -C "$PLUME_SRC" --exclude='./build*' --exclude=./runs -cf - . | tar -C "$copy" -xf -
    chmod -R a+rX "$copy"
    PLUME_TEST_COPY=1 "$copy/dev" "$@" || rc=$?
    exit "$rc"
}

cmd_build() {
    local arg dir=$PLUME_SRC/build cuda=''
    local -a options=()
    for arg; do
        case $arg in
        --cuda) cuda=yes ;;
        -Dslurm_prefix=*)
            DEPS_PREFIX=${arg#*=}
            options+=("$arg")
            ;;
        -D?*=*) options+=("$arg") ;;
        -*) die_usage "build takes --cuda, -DOPTION=VALUE and a folder, not '$arg'" ;;
        *)
            [[ $dir == "$PLUME_SRC/build" ]] || die_usage "build takes one folder at most"
            dir=$arg
            ;;
        esac
    done
    deps_ensure build
    if [[ $cuda ]]; then
        options+=(-Dcuda=enabled)
    elif [[ ! -f $dir/build.ninja && ${options[*]} != *-Dcuda=* ]] && ! has_nvidia; then
        options+=(-Dcuda=disabled) # minutes of a processor for nobody here
    fi
    # ./dev test may have set it
    [[ ${options[*]} == *-Dgpu_quick=* ]] || options+=(-Dgpu_quick=false)
    reconfigure_in "$dir" "${options[@]}"
    ninja_in "$dir"
    [[ -e $dir/plume-cuda.so ]] || say "GPUs: not built; ./dev build --cuda"
}
