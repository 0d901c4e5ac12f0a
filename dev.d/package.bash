# SPDX-License-Identifier: MIT
# shellcheck shell=bash
# ./dev package: one Debian package of a release build, for the Slurm that this machine has, and one of
# plume-cuda.so; and the row of ./dev matrix that installs them in a chroot, uses them and removes them.

# shellcheck source=dev.d/build.bash
. "$PLUME_SRC/dev.d/build.bash"

package_usage() {
    cat <<'TXT'
Usage: ./dev package [FOLDER]
       ./dev package --cuda [FOLDER] [-DOPTION=VALUE...]

Makes plume_VERSION_ARCHITECTURE.deb in FOLDER [build-package]: a release build
for /usr, without plume-cuda.so, whose licences do not go with Slurm's. It
depends on the release of Slurm that libslurm-dev is of: make it on a machine
with the cluster's Debian and Slurm, and again after an upgrade of Slurm.

--cuda makes plume-cuda_VERSION_ARCHITECTURE.deb in FOLDER [build-package-cuda]:
plume-cuda.so alone, for pltrain of that version. It is for GPUs of compute
capability 8 and 9 (-Dgpu_archs=80,90), as PTX for newer ones, and for drivers
of the CUDA that nvcc is of. No library of NVIDIA's is in it: pltrain looks for
those at run time.
doc/install.md says how to use them.
TXT
}

# package_field SUBSTVAR: what dpkg-shlibdeps wrote of it.
package_field() {
    sed -n "s/^shlibs:$1=//p" debian/substvars
}

# package_slurm: the range of Slurm's releases that load the plugin. Slurm takes one of the same release but
# for the last number. libslurm's package has a name of its own in each, and apt leaves the old one beside the
# new one: slurm-wlm-basic-plugins has one name, and slurmd and Slurm's commands depend on exactly their own.
package_slurm() {
    local name version release next
    name=$(package_field Depends | grep -oE 'libslurm[0-9]+' | head -n 1)
    if [[ ! $name ]]; then
        say "dev: libslurm is of no package libslurmNN: this package does not depend on a release of Slurm"
        return
    fi
    version=$(dpkg-query -W -f '${Version}' "$name")
    release=${version%%-*}
    release=${release%.*}
    next=$(printf '%s.%02d' "${release%.*}" "$((10#${release##*.} + 1))")
    for name in "$name" slurm-wlm-basic-plugins; do
        printf ', %s (>= %s), %s (<< %s~)' "$name" "$release" "$name" "$next"
    done
}

# package_control ROOT: what dpkg must know.
package_control() {
    local depends
    local -a programs plugins
    mapfile -t programs < <(find "$1/usr/bin" "$1/usr/lib" -type f ! -name plume-mpi.so \
        \( -name '*.so' -o -perm -u+x \) -exec sh -c 'head -c 4 "$1" | grep -q ELF' _ {} \; -print)
    mapfile -t plugins < <(find "$1/usr/lib" -name plume-mpi.so)
    (
        cd "${1%/debian/plume}" || exit # where dpkg-shlibdeps finds debian/control
        printf 'Source: plume\n\nPackage: plume\nArchitecture: any\n' >debian/control
        # The plugin has the functions of Slurm from the program that loads it.
        dpkg-shlibdeps -Tdebian/substvars --ignore-missing-info --warnings=0 -dDepends "${programs[@]/#/-e}" \
            -dSuggests "${plugins[@]/#/-e}"
        depends=$(package_field Depends)$(package_slurm)
        mkdir -p "$1/DEBIAN"
        cat >"$1/DEBIAN/control" <<TXT
Package: plume
Version: $VERSION
Architecture: $(dpkg --print-architecture)
Maintainer: $(id -un) <$(id -un)@localhost>
Section: admin
Priority: optional
Installed-Size: $(du -sk --exclude=DEBIAN "$1" | cut -f 1)
Depends: $depends
Recommends: slurm-client
$(package_field Suggests | sed 's/^/Suggests: /')
Description: launches, runs and watches distributed training on Slurm clusters
 plsubmit turns a program and a grid of hyper-parameters into a Slurm job
 array; plrun and plrund start its ranks and guard them; plstat shows what is
 happening and names the rank that broke first; spank_plume.so does the same
 for plain srun; pltrain trains without Python. The plugin is used only by
 who names it in plugstack.conf: see /usr/share/doc/plume/install.md.
TXT
        sed -i '/^$/d' "$1/DEBIAN/control"
    )
}

# package_cuda_control ROOT CUDA: the same of plume-cuda. The driver and NVIDIA's libraries are of no package that
# one could name: they come from Debian, from NVIDIA, or from a Python's wheels.
package_cuda_control() {
    local library
    library=$(find "$1/usr/lib" -name plume-cuda.so)
    (
        cd "${1%/debian/plume}" || exit
        printf 'Source: plume\n\nPackage: plume-cuda\nArchitecture: any\n' >debian/control
        dpkg-shlibdeps -Tdebian/substvars --warnings=0 "-e$library"
        mkdir -p "$1/DEBIAN"
        cat >"$1/DEBIAN/control" <<TXT
Package: plume-cuda
Version: $VERSION
Architecture: $(dpkg --print-architecture)
Maintainer: $(id -un) <$(id -un)@localhost>
Section: admin
Priority: optional
Installed-Size: $(du -sk --exclude=DEBIAN "$1" | cut -f 1)
Depends: plume (= $VERSION), $(package_field Depends)
Description: lets pltrain of Plume use NVIDIA GPUs, by CUDA $2
 plume-cuda.so has the kernels of pltrain and what asks NVIDIA's libraries.
 pltrain loads it where it is to use a GPU. It needs a driver for CUDA $2.
 cuBLAS, cuDNN and NCCL are looked for at run time, also in Python's wheels.
TXT
    )
}

package_begin() {
    command -v dpkg-shlibdeps >/dev/null ||
        die "dpkg-shlibdeps is missing: as root, apt-get install dpkg-dev"
    VERSION=$(sed -n "s/^ *version: '\(.*\)',/\1/p" "$PLUME_SRC/meson.build" | head -n 1)
}

# package_end NAME DIR ROOT: packs ROOT, whose control file is written, and prints the file's name.
package_end() {
    (umask 022 && dpkg-deb --root-owner-group -Zxz --build "$3" "$2") >&2
    rm -rf "$2/package"
    printf '%s\n' "$2/$1_${VERSION}_$(dpkg --print-architecture).deb"
}

package_cuda_make() { # FOLDER [MESON-OPTION...]
    local dir root doc cuda
    dir=$(realpath -m -- "$1")
    root=$dir/package/debian/plume
    package_begin
    reconfigure_in "$dir" --buildtype=release --prefix=/usr -Dtests=disabled -Dcuda=enabled -Dslurm=disabled \
        -Dmpi=disabled -Dpjrt=disabled -Dgpu_archs=80,90 "${@:2}"
    ninja_in "$dir" plume-cuda.so
    rm -rf "$dir/package"
    (umask 022 && DESTDIR=$root meson install -C "$dir" --no-rebuild --strip --quiet --tags cuda) >&2
    doc=$root/usr/share/doc/plume-cuda
    install -d -m 0755 "$doc"
    install -m 0644 "$PLUME_SRC/LICENSE" "$doc/copyright"
    cuda=$("$(grep -om 1 "/[^ ']*/nvcc" "$dir/build.ninja")" --version | sed -n 's/.*release \([0-9.]*\),.*/\1/p')
    (umask 022 && package_cuda_control "$root" "$cuda")
    package_end plume-cuda "$dir" "$root"
}

package_make() {
    local dir root doc
    dir=$(realpath -m -- "$1")
    root=$dir/package/debian/plume
    package_begin
    reconfigure_in "$dir" --buildtype=release --prefix=/usr -Dtests=disabled -Dcuda=disabled
    ninja_in "$dir"
    rm -rf "$dir/package"
    # Whatever the caller's umask is, everybody may read what is installed.
    (umask 022 && DESTDIR=$root meson install -C "$dir" --no-rebuild --strip --quiet) >&2
    doc=$root/usr/share/doc/plume
    install -d -m 0755 "$doc"
    install -m 0644 "$PLUME_SRC"/{README,SECURITY}.md "$PLUME_SRC/doc/install.md" "$doc/"
    install -m 0644 "$PLUME_SRC/LICENSE" "$doc/copyright"
    (umask 022 && package_control "$root")
    package_end plume "$dir" "$root"
}

cmd_package() {
    if [[ ${1:-} == -h || ${1:-} == --help ]]; then
        package_usage
        return
    fi
    if [[ ${1:-} == --cuda ]]; then
        local folder=$PLUME_SRC/build-package-cuda
        shift
        [[ ${1:--} == -* ]] || { folder=$1 && shift; }
        [[ $# == 0 || " $*" != *" "[!-]* ]] || die_usage "package --cuda takes a folder and -DOPTION=VALUE; see --help"
        deps_ensure build
        package_cuda_make "$folder" "$@"
        return
    fi
    [[ $# -lt 2 && ${1:-} != -* ]] || die_usage "package takes one folder at most; see --help"
    deps_ensure build
    package_make "${1:-$PLUME_SRC/build-package}"
}

# The package in a chroot of this very Debian: everything that it installs is used there, and goes with it.
row_package() {
    local root=$MATRIX_DIR/package suite deb
    suite=$(sed -n 's/^VERSION_CODENAME=//p' /etc/os-release)
    command -v dpkg-deb >/dev/null || skip "no dpkg"
    matrix_need dpkg-shlibdeps dpkg-dev
    matrix_need slurmctld slurmctld
    matrix_chroot "$root" "$suite"
    deb=$(package_make "$MATRIX_DIR/package-build")
    cp "$deb" "$root/plume.deb"
    rm -f "$root/plume-cuda.deb"
    if command -v nvcc >/dev/null || [[ -x /usr/local/cuda/bin/nvcc ]]; then # it is installed there, and not run
        deb=$(package_cuda_make "$MATRIX_DIR/package-cuda" -Dgpu_quick=true -Dgpu_archs=80)
        cp "$deb" "$root/plume-cuda.deb"
    fi
    matrix_chroot_run "$root" 'apt-get -o APT::Update::Error-Mode=any -qq update &&
        apt-get -qq install -y --no-install-recommends slurmctld slurmd slurm-client munge iproute2 man-db' ||
        skip "the mirror of Debian does not answer"
    matrix_chroot_run "$root" 'dpkg -P plume 2>/dev/null || true; apt-get -qq autopurge -y' # of a run that broke off
    matrix_chroot_run "$root" tests/matrix/package.sh
}
