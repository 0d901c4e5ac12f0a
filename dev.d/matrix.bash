# SPDX-License-Identifier: MIT
# shellcheck shell=bash
# ./dev matrix: builds of the tools by other compilers, without features, against other headers, for
# another architecture. Tests run in ./dev test; here all but cuda, pjrt, races, gpu-check, chaos and aarch64 is
# compiled and linked only.

# shellcheck source=dev.d/package.bash
. "$PLUME_SRC/dev.d/package.bash"

readonly MATRIX_ROWS=(gcc no-slurm no-mpi no-cuda no-static_runtime no-yaml no-features slurm_prefix stubs
    cuda cuda-12 pjrt clang races gpu-check chaos hardened reproducible package gcc-11 debian13 aarch64)
# Debian's next release changes from day to day: it runs only where it is named.
readonly MATRIX_NAMED=(forky)
# These wait for most of their time, for faults, limits and mirrors: they run beside the others.
readonly MATRIX_BESIDE=(chaos debian13 forky)
readonly MATRIX_ROW_LIMIT_S=1500 MATRIX_DEBIAN13=trixie MATRIX_CHAOS_SEED=5
readonly MATRIX_STUBS=(20.11 21.08 22.05 23.02 23.11 24.05 24.11 25.05 25.11 26.05)
readonly MATRIX_ON=(-Dslurm=auto -Dmpi=auto -Dcuda=auto -Dstatic_runtime=auto -Dyaml=auto
    -Dpjrt=auto -Dslurm_prefix=)

matrix_usage() {
    cat <<'TXT'
Usage: ./dev matrix [ROW...]

Rows: gcc           the tools, all features that the machine has, -Werror
      no-slurm no-mpi no-cuda no-static_runtime no-yaml   without one feature
      no-features   without all of them
      slurm_prefix  a Slurm outside the system's folders, found by its rpath
      stubs         against stubs of Slurm's headers, 20.11 to 26.05
      cuda          plume-cuda.so by this machine's nvcc, and its tests
      cuda-12       plume-cuda.so by nvcc 12.4, which is unpacked from packages
                    of Debian 13 (1 GB; a mirror is needed)
      pjrt          the engine on XLA's CPU device, whose plugin is fetched from
                    the Python package index (63 MB)
      clang         by clang
      races         tests of CUDA kernels on the emulator, which looks for races
                    between threads, misaligned vectors and conflicts of banks
      gpu-check     the bundle of ./dev gpu-check, built by gcc alone: all its
                    stages, with the kernels on the emulator (needs nvcc)
      chaos         each fault of ./dev soak chaos, by plrun and by the plugin,
                    with fixed seeds (needs slurmctld; some faults need root)
      hardened      a release build with LTO and -Dhardening=true
      reproducible  the same once more, of a copy elsewhere: the same bytes
      package       the package of ./dev package in a chroot: a sweep, srun
                    --plume, and no file left when it is removed (root and a
                    mirror are needed)
      gcc-11        by gcc 11
      debian13      in a chroot of Debian 13: the demo, and tests with its Slurm
                    24.11 (root and a mirror are needed)
      aarch64       cross-compiled; the kernels' tests run under qemu
      forky         as debian13, with what Debian's next release has today, and
                    control groups of version 2; runs only if it is named

Without a name all but forky run; chaos and debian13, which wait for most of
their time, run beside the others. A row prints its name, its seconds, and ok,
failed or skipped with the reason. At the end it names the failed rows again,
each with its first failed tests. Ends with "N passed, N failed, N skipped";
the status is 0 when nothing failed.
TXT
}

# skip REASON: ends a row (each is a subshell).
skip() {
    printf '%s\n' "$*" >"$ROW_REASON"
    exit 77
}

# matrix_tools DIR [MESON-OPTION...]: configure and build what people call.
matrix_tools() {
    local dir=$MATRIX_DIR/$1
    reconfigure_in "$dir" -Dtests=disabled -Dwerror=true "${@:2}"
    ninja -C "$dir" -j "$(nproc)" --quiet tools
}

# One build folder for all features: each row builds what its option changes. The row hardened has what the same
# compiler warns of when it optimises, but for what is compiled only without a feature: yaml_tree_none.c,
# slurm_compat_none.c and cudnn_none.c, stubs which have nothing to optimise.
matrix_feature() {
    matrix_tools features -Doptimization=1 -Ddebug=false "${MATRIX_ON[@]}" "$@"
}

row_gcc() {
    matrix_feature
}

row_no-slurm() {
    matrix_feature -Dslurm=disabled
    ! links plsubmit libslurm && ! links plstat libslurm
}

row_no-mpi() {
    matrix_feature -Dmpi=disabled
}

row_no-cuda() {
    matrix_feature -Dcuda=disabled
}

row_no-static_runtime() {
    matrix_feature -Dstatic_runtime=disabled
    links plrund libjansson
}

row_no-yaml() {
    matrix_feature -Dyaml=disabled
    ! links plsubmit libyaml
}

row_no-features() {
    matrix_feature -Dslurm=disabled -Dmpi=disabled -Dcuda=disabled -Dstatic_runtime=disabled \
        -Dyaml=disabled -Dpjrt=disabled
}

# links TOOL LIBRARY: the tool of the features' folder needs this library.
links() {
    readelf -d "$MATRIX_DIR/features/$1" | grep -q "NEEDED.*\[$2"
}

row_slurm_prefix() {
    local prefix=$MATRIX_DIR/opt-slurm found
    [[ -f /usr/include/slurm/slurm.h ]] || skip "no libslurm-dev"
    found=$(gcc -print-file-name=libslurm.so)
    [[ -e $found ]] || skip "no libslurm.so"
    found=$(readlink -f "$found")
    mkdir -p "$prefix/include" "$prefix/lib"
    ln -sfn /usr/include/slurm "$prefix/include/slurm"
    cp "$found" "$prefix/lib/"
    ln -sfn "${found##*/}" "$prefix/lib/libslurm.so"
    ln -sfn "${found##*/}" "$prefix/lib/$(readelf -d "$found" | sed -n 's/.*SONAME.*\[\(.*\)\]/\1/p')"
    matrix_feature "-Dslurm_prefix=$prefix"
    for tool in plsubmit plstat; do
        ldd "$MATRIX_DIR/features/$tool" | grep -F "/${prefix##*/}/lib/libslurm.so"
    done
}

row_stubs() {
    local release number source stubs=$PLUME_SRC/tests/matrix/slurm-stubs
    local -a sources
    cd "$PLUME_SRC" || exit
    sources=(launcher/slurm/slurm_compat.c spank_plugin/*.c)
    for release in "${MATRIX_STUBS[@]}"; do
        number=$(printf '0x%02x%02x00' "$((10#${release%.*}))" "$((10#${release#*.}))")
        for source in "${sources[@]}"; do
            gcc -fsyntax-only -std=gnu11 -D_GNU_SOURCE -include common/base/banned.h -Wall -Wextra \
                -Wno-unused-parameter -Werror "-DSTUB_RELEASE=$number" '-DPL_PLRUND_PATH=""' \
                -I "$stubs" -I . -I include "$source" || die "Slurm $release"
        done
    done
}

# cuda_12_toolkit FOLDER: CUDA 12.4 of Debian 13 as a toolkit's own folder, without installing it. apt
# keeps its state there, so that this machine's own stays as it is.
cuda_12_toolkit() {
    local top=$1 apt=$1/apt mirror part
    local -a options=(-o Dir::State="$apt" -o Dir::State::status="$apt/status" -o Dir::Cache="$apt/cache"
        -o Dir::Etc::sourcelist="$apt/sources.list" -o Dir::Etc::sourceparts=/dev/null
        -o APT::Architecture=amd64 -o APT::Architectures=amd64 -o APT::Sandbox::User=root)
    mirror=$(apt_debian_mirror)
    [[ $mirror ]] || return
    mkdir -p "$apt/lists/partial" "$apt/cache/archives/partial" "$top/bin" "$top/nvvm/bin" "$top/lib64"
    : >"$apt/status"
    printf 'deb [signed-by=%s] %s %s non-free\n' /usr/share/keyrings/debian-archive-keyring.gpg "$mirror" \
        "$MATRIX_DEBIAN13" >"$apt/sources.list"
    apt-get "${options[@]}" -o APT::Update::Error-Mode=any -qq update || return
    (cd "$top" && apt-get "${options[@]}" -qq download nvidia-cuda-toolkit nvidia-cuda-dev) || return
    dpkg-deb -x "$top"/nvidia-cuda-toolkit_*.deb "$top/root" || return
    dpkg-deb --fsys-tarfile "$top"/nvidia-cuda-dev_*.deb | tar -x -C "$top/root" --wildcards \
        './usr/include/*' '*/libcudart_static.a' '*/libcudadevrt.a' '*/stubs/libcuda.so' || return
    rm "$top"/*.deb
    mv "$top"/root/usr/lib/nvidia-cuda-toolkit/bin/{nvcc,crt} "$top/bin/"
    mv "$top"/root/usr/bin/{cudafe++,ptxas,fatbinary,nvlink,bin2c} "$top/bin/"
    mv "$top/root/usr/lib/nvidia-cuda-toolkit/bin/cicc" "$top/nvvm/bin/"
    mv "$top/root/usr/lib/nvidia-cuda-toolkit/libdevice" "$top/nvvm/"
    mv "$top/root/usr/include" "$top/"
    for part in libcudart_static.a libcudadevrt.a stubs; do
        mv "$top/root/usr/lib/x86_64-linux-gnu/$part" "$top/lib64/"
    done
    # shellcheck disable=SC2016 # nvcc's own variables
    printf '%s\n' 'TOP = $(_HERE_)/..' 'NVVMIR_LIBRARY_DIR = $(TOP)/nvvm/libdevice' \
        'PATH += $(TOP)/nvvm/bin:$(_HERE_):' 'INCLUDES += "-isystem" "$(TOP)/include" $(_SPACE_)' \
        'LIBRARIES =+ $(_SPACE_) "-L$(TOP)/lib64"' >"$top/bin/nvcc.profile"
    rm -rf "$top/root"
    touch "$top/made"
}

# The headers of cuDNN and NCCL are the same for both. The toolkit is in the user's cache: meson takes no
# header below the source.
row_cuda-12() {
    local top=${XDG_CACHE_HOME:-$HOME/.cache}/plume/cuda-12 dir=$MATRIX_DIR/cuda-12
    [[ $(uname -m) == x86_64 ]] || skip "CUDA 12.4 is fetched for x86-64"
    command -v apt-get >/dev/null || skip "no apt-get, and so no CUDA 12"
    if [[ ! -e $top/made ]]; then
        rm -rf "$top"
        cuda_12_toolkit "$top" || skip "CUDA 12.4 of Debian 13 cannot be had"
    fi
    echo 'int main() {}' >"$top/probe.cu"
    "$top/bin/nvcc" -c "$top/probe.cu" -o "$top/probe.o" || skip "nvcc 12.4 does not go with this compiler"
    export PATH=$top/bin:$PATH CUDA_HOME=$top
    reconfigure_in "$dir" -Dcuda=enabled -Dgpu_quick=true -Dgpu_archs=90 -Dtests=disabled -Dwerror=true \
        -Dmpi=disabled -Dslurm=disabled
    ninja -C "$dir" -j "$(nproc)" --quiet plume-cuda.so
    grep -qF "$top/bin/nvcc" "$dir/build.ninja" || die "another nvcc was taken"
}

# matrix_devices OPTION...: one folder for the engine's libraries of devices, and their tests. Each row builds what its
# option changes.
matrix_devices() {
    reconfigure_in "$MATRIX_DIR/devices" -Dtests=enabled -Dwerror=true -Dgpu_quick=true -Dmpi=disabled -Dslurm=disabled "$@"
}

# ./dev test compiles nothing by nvcc where no GPU is: it has the same kernels on the emulator.
row_cuda() {
    local dir=$MATRIX_DIR/devices
    local -a tests=(cuda_plugin gpu-bundle)
    command -v nvcc >/dev/null || [[ -x /usr/local/cuda/bin/nvcc ]] || skip "no nvcc"
    matrix_devices -Dcuda=enabled -Dpjrt=disabled
    # It is there with cuDNN's headers.
    ! meson test -C "$dir" --list 2>/dev/null | grep -w cudnn_plans || tests+=(cudnn_plans)
    # A test for a GPU has all kernels in it: they link.
    ninja -C "$dir" -j "$(nproc)" --quiet tests/gpu/gpu-copy
    meson test -C "$dir" --num-processes "$(nproc)" --timeout-multiplier 6 --print-errorlogs "${tests[@]}"
    grep -q '"name": "[^"]*cuda_plugin".*"result": "OK"' "$dir/meson-logs/testlog.json" || die "cuda_plugin was skipped"
    "$PLUME_SRC/tests/lint/layers.sh" "$PLUME_SRC" "$dir"
}

# In the user's cache other builds would find the plugin; meson takes no header below the source.
row_pjrt() {
    local dir=$MATRIX_DIR/devices cache
    cache=$(mktemp -d "${TMPDIR:-/tmp}/plume-pjrt-XXXXXX")
    # shellcheck disable=SC2064 # this very folder
    trap "rm -rf '$cache'" EXIT
    XDG_CACHE_HOME=$cache "$PLUME_SRC/dev" deps pjrt || skip "PJRT's CPU plugin could not be had"
    matrix_devices -Dpjrt=enabled "-Dpjrt_dir=$(echo "$cache"/plume/pjrt-*)" -Dcuda=disabled
    meson test -C "$dir" --num-processes "$(nproc)" --timeout-multiplier 6 --print-errorlogs \
        xla.bats graphs-xla graphs-xla-huge engine_lower
    grep -q '"name": "[^"]*graphs-xla".*"result": "OK"' "$dir/meson-logs/testlog.json" || die "graphs-xla was skipped"
}

# cached COMPILER: through the compiler cache, which meson takes only for its own choice.
cached() {
    ! command -v ccache >/dev/null || printf 'ccache '
    printf '%s\n' "$1"
}

row_clang() {
    command -v clang >/dev/null || skip "no clang"
    CC=$(cached clang) matrix_tools clang
}

# A line of a kernel that takes more than thrice the passes over the banks that it needs fails the row.
row_races() {
    local dir=$MATRIX_DIR/races
    reconfigure_in "$dir" -Demulator_trace=true -Dtests=enabled -Dwerror=true -Dcuda=disabled \
        -Dmpi=disabled -Dslurm=disabled
    rm -rf "$MATRIX_DIR/banks"
    mkdir "$MATRIX_DIR/banks"
    PLUME_EMULATED_BANKS=$MATRIX_DIR/banks meson test -C "$dir" --suite kernels \
        --num-processes "$(nproc)" --timeout-multiplier 6 --print-errorlogs
    "$PLUME_SRC/tests/cuda/banks.py" "$MATRIX_DIR/banks" --most 3
}

# The bundle has nothing of a build but its commands, so that the folder is only configured. A stage without a test
# that has passed was not tried; those of benchmarks and of the sanitizer have none without a card. 430 s of a
# processor without a compiler cache.
row_gpu-check() {
    local dir=$MATRIX_DIR/gpu-build top=$MATRIX_DIR/gpu-check rc=0 stage
    command -v nvcc >/dev/null || [[ -x /usr/local/cuda/bin/nvcc ]] || skip "no nvcc"
    reconfigure_in "$dir" -Dtests=enabled -Dcuda=enabled -Dmpi=disabled -Dslurm=disabled
    rm -rf "$top"
    mkdir "$top"
    # It need not be fast, but be built soon.
    printf '#!/bin/sh\nexec %s "$@" -O1 -g0 -w\n' "$(cached gcc)" >"$top/quick-gcc"
    chmod +x "$top/quick-gcc"
    PLUME_BUILD=$dir "$PLUME_SRC/dev" gpu-bundle "$top/bundle"
    CC=$top/quick-gcc CHECK_LIMIT_TIMES=6 "$top/bundle/check" --cpu | tee "$top/said" || rc=$?
    for stage in "ops of GPT-2" "other ops" "several ranks" "all else"; do
        sed -n "/^stage [0-9]: $stage\$/,/^stage [0-9] took /p" "$top/said" | grep -cE '^test .* ok +[0-9]+$' >/dev/null ||
            die "stage '$stage': nothing has passed"
    done
    if grep -A 1 '^[a-z]* .* skipped ' "$top/said" | grep -vE ' skipped |no NVIDIA GPU was asked for|^--$'; then
        die "a test was skipped for another reason than that there is no GPU"
    fi
    return "$rc"
}

# --late: it may run beside other work. A case that is wrong runs once more, alone, as in ./dev test.
row_chaos() {
    local dir=$PLUME_SRC/build log=$MATRIX_DIR/chaos.txt
    command -v slurmctld >/dev/null || skip "no slurmctld"
    command -v munged >/dev/null || skip "no munged"
    others_can_read || in_copy matrix chaos
    # Those of ./dev test, where it has built them.
    if [[ ! -f $dir/build.ninja || $(option_in "$dir" tests) != enabled ]]; then
        dir=$MATRIX_DIR/chaos
        reconfigure_in "$dir" -Dtests=enabled -Dcuda=disabled -Dmpi=disabled
    fi
    ninja -C "$dir" -j "$(nproc)" --quiet tools tests/fakes/libfake-clock.so
    PLUME_BUILD=$dir "$PLUME_SRC/tests/fault/chaos.py" --each 3 --again --seed "$MATRIX_CHAOS_SEED" \
        --jobs 6 --nodes 12 --late 60 | tee "$log"
    sed -n 's/^# unsteady: //p' "$log" >"$ROW_REASON"
}

readonly MATRIX_RELEASE=(--buildtype=release -Db_lto=true -Dhardening=true)

row_hardened() {
    matrix_tools hardened "${MATRIX_RELEASE[@]}"
    "$PLUME_SRC/tests/lint/hardened.sh" "$PLUME_SRC" "$MATRIX_DIR/hardened"
}

# Another source folder, build folder, user's mask, time zone, language and number of processes, and no
# compiler cache: whoever builds a release gets the bytes that we have built.
row_reproducible() {
    local other=$MATRIX_DIR/reproducible/elsewhere
    matrix_tools hardened "${MATRIX_RELEASE[@]}"
    rm -rf "$MATRIX_DIR/reproducible"
    mkdir -p "$other"
    tar -C "$PLUME_SRC" --exclude='./build*' --exclude=./runs --exclude=./.git -cf - . | tar -C "$other" -xf -
    (
        umask 077
        export CCACHE_DISABLE=1 TZ=Pacific/Auckland LC_ALL=C
        meson setup "$other/out" "$other" -Dgpu_archs=80 -Dtests=disabled -Dwerror=true "${MATRIX_RELEASE[@]}"
        ninja -C "$other/out" -j 2 --quiet tools
    )
    matrix_hashes "$MATRIX_DIR/hardened" >"$MATRIX_DIR/reproducible/a.sha256"
    matrix_hashes "$other/out" >"$MATRIX_DIR/reproducible/b.sha256"
    (($(wc -l <"$MATRIX_DIR/reproducible/a.sha256") > 9)) || die "hardly anything was built"
    diff "$MATRIX_DIR/reproducible/a.sha256" "$MATRIX_DIR/reproducible/b.sha256"
    sha256sum "$MATRIX_DIR/reproducible/a.sha256"
}

# matrix_hashes BUILD-FOLDER: the hash of each program, plugin and module in it.
matrix_hashes() {
    (cd "$1" && find . -maxdepth 2 -path ./meson-private -prune -o -type f -perm -u+x \
        \( -name 'pl*' -o -name '*.so' \) -print0 | LC_ALL=C sort -z | xargs -0 sha256sum)
}

row_gcc-11() {
    matrix_need gcc-11 gcc-11
    CC=$(cached gcc-11) matrix_tools gcc-11
}

# apt_debian_mirror: the address of the Debian mirror that this machine's apt uses.
apt_debian_mirror() {
    # shellcheck disable=SC2016 # apt's own variables
    apt-get indextargets --format '$(SITE)' 'Identifier: Packages' 'Origin: Debian' 2>/dev/null |
        grep -v security | sort -u | head -n 1
}

# matrix_need PROGRAM PACKAGE...: install it if it can be had, else skip the row.
matrix_need() {
    local lock
    command -v "$1" >/dev/null && return
    ((EUID == 0)) || skip "no $1; as root it is installed"
    command -v apt-get >/dev/null || skip "no $1"
    exec {lock}>"$MATRIX_DIR/apt.lock"
    flock "$lock" # rows that run beside each other
    apt-get -qq update || true
    deps_install "${@:2}" || skip "no $1, and apt-get install ${*:2} failed"
    exec {lock}>&- # a row that needs two packages must not wait for itself
}

# matrix_chroot FOLDER SUITE: a minimal Debian with a copy of this tree in /src; kept for the next run.
matrix_chroot() {
    local root=$1 mirror script='' scripts=/usr/share/debootstrap/scripts
    ((EUID == 0)) || skip "a chroot needs root"
    unshare -mpf true 2>/dev/null || skip "no namespaces here (unshare -mpf)"
    mirror=$(apt_debian_mirror)
    [[ $mirror ]] || skip "apt has no Debian mirror"
    if [[ ! -e $root/made ]]; then
        matrix_need debootstrap debootstrap
        rm -rf --one-file-system "$root"
        [[ -e $scripts/$2 ]] || script=$scripts/sid # of a release that is newer than debootstrap
        debootstrap --variant=minbase "$2" "$root" "$mirror" ${script:+"$script"} ||
            skip "debootstrap of Debian's $2 failed"
        echo force-unsafe-io >"$root/etc/dpkg/dpkg.cfg.d/unsafe-io" # it is no system to keep
        echo 'Acquire::Check-Valid-Until "false";' >"$root/etc/apt/apt.conf.d/valid" # nor a mirror of today
        touch "$root/made"
    fi
    cp -L /etc/resolv.conf /etc/hosts "$root/etc/"
    rm -rf "$root/src"
    mkdir "$root/src"
    tar -C "$PLUME_SRC" --exclude='./build*' --exclude=./runs --exclude=./.git -cf - . |
        tar -C "$root/src" -xf -
}

# matrix_chroot_run ROOT COMMANDS: in the source folder there. All processes end with the namespace, and
# nothing is mounted outside of it.
matrix_chroot_run() {
    # shellcheck disable=SC2016 # for the inner shell
    unshare -mpf --kill-child bash -ec '
        mount --make-rprivate /
        mount --bind "$1" "$1" # a root is a mount, or nobody in it can have mounts of his own
        mount -t proc proc "$1/proc"
        mount --rbind /dev "$1/dev"
        exec env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
            HOME=/root LANG=C.UTF-8 chroot "$1" /bin/bash -ec "cd /src; $2"' bash "$1" "$2"
}

# Packages, build and demo of Debian 13: newer compilers, meson and Slurm.
row_debian13() {
    matrix_debian "$MATRIX_DIR/debian13" "$MATRIX_DEBIAN13"
}

# In its cluster the mount for version 2 is slurmd's own, but it needs a place.
row_forky() {
    matrix_debian "$MATRIX_DIR/forky" forky
    matrix_chroot_run "$MATRIX_DIR/forky" '
        mkdir -p build/tests/fakes
        gcc -shared -fPIC -D_GNU_SOURCE -o build/tests/fakes/libunified-cgroup.so tests/fakes/unified_cgroup.c
        mount -t sysfs sysfs /sys
        mount -t cgroup2 none /sys/fs/cgroup
        bats --tap tests/cluster/cgroup2.bats'
}

# matrix_debian FOLDER SUITE: packages, build, demo and tests of a release of Debian, in a chroot.
matrix_debian() {
    local root=$1
    matrix_chroot "$root" "$2"
    # A mirror that does not answer says nothing of this tree; one that falls silent gets a second chance.
    matrix_chroot_run "$root" 'apt-get -o APT::Update::Error-Mode=any -qq update' ||
        skip "the mirror of Debian's $2 does not answer"
    matrix_chroot_run "$root" './dev deps build' || matrix_chroot_run "$root" './dev deps build'
    matrix_chroot_run "$root" 'apt-get -qq install -y --no-install-recommends bats' ||
        skip "the mirror of Debian's $2 does not answer"
    matrix_chroot_run "$root" 'meson setup build -Dwerror=true -Dtests=disabled && ./dev demo'
    matrix_chroot_run "$root" tests/matrix/slurm.sh | tee "$root.tap"
    sed -n 's/^# \(unsteady: \)/\1/p' "$root.tap" >"$ROW_REASON"
}

# arm64_libraries FOLDER: what the build needs of Debian for arm64, unpacked. apt keeps its state there,
# so that this machine's own stays as it is.
arm64_libraries() {
    local apt=$1/apt deb
    local -a options=(-o APT::Architecture=arm64 -o APT::Architectures=arm64 -o Dir::State="$apt"
        -o Dir::State::status="$apt/status" -o Dir::Cache="$apt/cache" -o APT::Sandbox::User=root)
    mkdir -p "$apt/lists/partial" "$apt/cache/archives/partial"
    : >"$apt/status"
    apt-get "${options[@]}" -qq update || return
    apt-get "${options[@]}" -qq install -y --download-only --no-install-recommends \
        libjansson-dev libuv1-dev libsodium-dev libyaml-dev libslurm-dev libcmocka-dev || return
    for deb in "$apt"/cache/archives/*.deb; do
        # The cross-compiler has its own libc.
        [[ ${deb##*/} == @(libc6|libc-|gcc-|libgcc|linux-libc|libcrypt)* ]] ||
            dpkg-deb -x "$deb" "$1/root" || return
    done
}

row_aarch64() {
    local top=$MATRIX_DIR/arm64
    matrix_need aarch64-linux-gnu-gcc gcc-aarch64-linux-gnu libc6-dev-arm64-cross
    matrix_need qemu-aarch64 qemu-user
    if [[ ! -e $top/made ]]; then
        command -v apt-get >/dev/null || skip "no apt-get, and so no libraries for arm64"
        mkdir -p "$top/root"
        arm64_libraries "$top" || skip "Debian's libraries for arm64 cannot be had"
        touch "$top/made"
    fi
    cat >"$top/cross.ini" <<TXT
[binaries]
c = 'aarch64-linux-gnu-gcc'
ar = 'aarch64-linux-gnu-ar'
strip = 'aarch64-linux-gnu-strip'
pkgconfig = 'pkg-config'
exe_wrapper = ['qemu-aarch64', '-L', '/usr/aarch64-linux-gnu']
[properties]
sys_root = '$top/root'
pkg_config_libdir = '$top/root/usr/lib/aarch64-linux-gnu/pkgconfig'
[host_machine]
system = 'linux'
cpu_family = 'aarch64'
cpu = 'aarch64'
endian = 'little'
TXT
    reconfigure_in "$MATRIX_DIR/aarch64" --cross-file="$top/cross.ini" -Dwerror=true -Dcuda=disabled \
        -Dmpi=disabled -Dtests=enabled "-Dslurm_prefix=$top/root/usr"
    ninja -C "$MATRIX_DIR/aarch64" -j "$(nproc)" --quiet tools
    meson test -C "$MATRIX_DIR/aarch64" --suite kernels --num-processes "$(nproc)" \
        --timeout-multiplier 4 --print-errorlogs
}

# matrix_row NAME: run it within its limit; sets OUTCOME, and REASON of a skipped one.
matrix_row() {
    local start=$SECONDS pid rc=0
    ROW_REASON=$MATRIX_DIR/$1.reason
    : >"$ROW_REASON"
    set -m # a process group of its own
    (
        set -e
        "row_$1"
    ) </dev/null >"$MATRIX_DIR/$1.log" 2>&1 8>&- &
    pid=$!
    MATRIX_PID=$pid
    set +m
    if wait_until "$MATRIX_ROW_LIMIT_S" matrix_ended "$pid"; then
        wait "$pid" || rc=$?
    else
        kill -- "-$pid" 2>/dev/null || true
        wait "$pid" || true
        printf 'no end within %d s\n' "$MATRIX_ROW_LIMIT_S" >>"$MATRIX_DIR/$1.log"
        rc=1
    fi
    MATRIX_PID=
    case $rc in
    0) OUTCOME=ok ;;
    77) OUTCOME=skipped ;;
    *) OUTCOME=failed ;;
    esac
    printf '%-18s %4d s  %s%s\n' "$1" "$((SECONDS - start))" "$OUTCOME" \
        "$(sed 's/^/: /' "$ROW_REASON")"
    [[ $OUTCOME != failed ]] || tail -n 40 "$MATRIX_DIR/$1.log"
}

# matrix_failures NAME: a line for the failed row, and one for each of its first tests that failed.
matrix_failures() {
    local log=$MATRIX_DIR/$1.log
    printf 'failed: %s\n' "$1"
    # Not those that passed when they ran once more.
    grep -a '^not ok ' "$log" | grep -vFf <(sed -n 's/^# unsteady: //p' "$log") | head -n 10 |
        sed "s/^not ok/failed: $1:/" || true
}

matrix_ended() {
    ! pid_start "$1" >/dev/null
}

# matrix_rows ROW...: run them one after the other; a line "OUTCOME ROW" of each is added to MATRIX_SUM.
matrix_rows() {
    local row
    MATRIX_PID=
    trap '[[ -z $MATRIX_PID ]] || kill -- "-$MATRIX_PID"' EXIT
    trap 'exit 130' INT TERM HUP
    for row; do
        matrix_row "$row"
        printf '%s %s\n' "$OUTCOME" "$row" >>"$MATRIX_SUM"
    done
}

cmd_matrix() {
    local row outcome pid
    local -a failed=() beside=() others=() pids=()
    local -A count=([ok]=0 [failed]=0 [skipped]=0)
    if [[ ${1:-} == -h || ${1:-} == --help ]]; then
        matrix_usage
        return
    fi
    for row; do
        [[ " ${MATRIX_ROWS[*]} ${MATRIX_NAMED[*]} " == *" $row "* ]] ||
            die_usage "unknown row '$row'; one of ${MATRIX_ROWS[*]} ${MATRIX_NAMED[*]}"
    done
    (($#)) || set -- "${MATRIX_ROWS[@]}"
    MATRIX_DIR=$PLUME_SRC/build-matrix
    mkdir -p "$MATRIX_DIR"
    exec 8>"$MATRIX_DIR/lock"
    flock -n 8 || die "another ./dev matrix works in '$MATRIX_DIR'"
    CI='' deps_ensure build test
    MATRIX_SUM=$MATRIX_DIR/sum
    : >"$MATRIX_SUM"
    for row; do
        if [[ " ${MATRIX_BESIDE[*]} " == *" $row "* ]]; then beside+=("$row"); else others+=("$row"); fi
    done
    trap 'kill "${pids[@]}" 2>/dev/null || true' EXIT
    trap 'exit 130' INT TERM HUP
    if ((${#beside[@]})); then
        matrix_rows "${beside[@]}" &
        pids+=("$!")
        # Below them, which want answers in time.
        ((${#others[@]} == 0)) || renice -n 10 "$BASHPID" >/dev/null
    fi
    if ((${#others[@]})); then
        matrix_rows "${others[@]}" &
        pids+=("$!")
    fi
    for pid in "${pids[@]}"; do
        wait "$pid" || true
    done
    trap - EXIT
    # A row without an outcome broke off.
    for row; do
        outcome=$(awk -v row="$row" '$2 == row { print $1 }' "$MATRIX_SUM")
        outcome=${outcome:-failed}
        count[$outcome]=$((count[$outcome] + 1))
        [[ $outcome != failed ]] || failed+=("$row")
    done
    for row in "${failed[@]}"; do
        matrix_failures "$row"
    done
    printf '%d passed, %d failed, %d skipped\n' "${count[ok]}" "${count[failed]}" "${count[skipped]}"
    ((count[failed] == 0)) || exit 1
    ((count[ok] > 0)) || exit 77
}
