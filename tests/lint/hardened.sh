#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# The built programs have what -Dhardening=true promises, and give nothing to who runs them with the rights
# of another user.
. "$(dirname "$0")/../lib/lint.bash"
lint_need readelf python3

option() {
    python3 -c 'import json, sys
print({o["name"]: o["value"] for o in json.load(open(sys.argv[1]))}[sys.argv[2]])' \
        "$BUILD/meson-info/intro-buildoptions.json" "$1"
}

# compiled_with FLAG: each C file of the product that the build compiles has it.
compiled_with() {
    python3 -c 'import json, sys
for c in json.load(open(sys.argv[1])):
    if c["file"].endswith(".c") and sys.argv[2] not in c["command"].split():
        print(c["file"].lstrip("./") + ": compiled without " + sys.argv[2])' \
        "$BUILD/compile_commands.json" "$1"
}

[[ $(option hardening) == True ]] || {
    echo "built with -Dhardening=false"
    exit 77
}
sanitized=$(option b_sanitize) optimization=$(option optimization) n=0
for name in plsubmit plstat plrun plrund pltrain spank_plume.so plume-mpi.so plume-cuda.so; do
    binary=$BUILD/$name
    [[ -e $binary ]] || continue
    n=$((n + 1))
    dynamic=$(readelf -dW "$binary") headers=$(readelf -hlW "$binary")
    symbols=$(readelf -W --dyn-syms "$binary")
    [[ $headers == *'Type:'*' DYN '* ]] || found "$name: not position-independent"
    [[ $name == *.so || $dynamic == *'Flags:'*PIE* ]] || found "$name: not position-independent"
    [[ $headers == *GNU_RELRO* && $dynamic == *BIND_NOW* ]] || found "$name: not all of RELRO"
    grep -q 'GNU_STACK .* RW ' <<<"$headers" || found "$name: its stack may be executed"
    [[ $dynamic != *TEXTREL* ]] || found "$name: relocations in its code"
    [[ $symbols == *__stack_chk_fail* ]] || found "$name: no stack protector"
    [[ $dynamic != *'(RPATH)'* ]] || found "$name: an RPATH"
    [[ $sanitized != none || $optimization == [0g] || $name == plume-*.so || $symbols == *__*_chk* ]] ||
        found "$name: no _FORTIFY_SOURCE"
done
((n > 3)) || found "$BUILD: only $n programs"
# A format that is not the text of the source is a warning, which ./dev matrix makes an error.
# The mark of control-flow protection is in a program only if the C library's start files have it, too.
flags=(-fstack-clash-protection -Wformat=2)
[[ $(uname -m) != x86_64 ]] || flags+=(-fcf-protection)
for flag in "${flags[@]}"; do
    found_lines '' < <(compiled_with "$flag")
done

# A variable that loads code: in builds with tests only. The library that it tries to load shows it.
said=$(PLUME_NVML=/nonexistent/nvml.so "$BUILD/plrund" --sample-gpus 2>&1 >"/dev/null" || true)
if [[ $(option buildtype) == release || $(option tests) == disabled ]]; then
    [[ $said != */nonexistent/* ]] || found "plrund: obeys PLUME_NVML in a release"
else
    [[ $said == *"'/nonexistent/nvml.so'"* ]] || found "plrund: does not obey PLUME_NVML in a build with tests: $said"
fi

# Set-user-ID: they refuse to run, whatever the word is.
if ((EUID == 0)) && [[ $sanitized == none ]]; then
    folder=$(mktemp -d)
    trap 'rm -rf "$folder"' EXIT
    chmod 0755 "$folder"
    for name in plsubmit plstat plrun plrund pltrain; do
        cp "$BUILD/$name" "$folder/"
        chown 65534 "$folder/$name"
        chmod 4755 "$folder/$name"
        rc=0
        said=$("$folder/$name" --version 2>&1) || rc=$?
        [[ $rc != 0 && $said == *"has the rights of another user"* ]] ||
            found "$name: set-user-ID, it exits with $rc and says '$said'"
    done
fi
lint_done
