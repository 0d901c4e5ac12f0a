#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# STYLE rule 1: which folder may include what, and which library a binary may need.
. "$(dirname "$0")/../lib/lint.bash"

# Folder, the project's folders it may include, the libraries' headers it may include (patterns).
# The first folder that is a prefix of the file's path decides.
layers=(
    'common/base       common/base                                          -'
    'common/proto/rank common/base|common/proto/rank                        -'
    'common/proto      common/base|common/proto                             jansson.h|sodium*'
    'common/run        common                                               jansson.h|sodium*'
    'include           plume                                                -'
    'kernels           common/base|kernels|plume                            cuda*|cublas*|cudnn*|nvml.h'
    'runtime/engine/util common/base|common/proto/rank|kernels|plume|runtime/engine/util -'
    'runtime/engine/config common/base|common/proto/rank|kernels|plume|runtime/engine/util|runtime/engine/config -'
    'runtime/engine/device common/base|common/proto/rank|kernels|plume|runtime/engine/util|runtime/engine/device -'
    'runtime/engine/report common/base|common/proto/rank|kernels|plume|runtime/engine/util|runtime/engine/report -'
    'runtime/engine/comm common/base|common/proto/rank|kernels|plume|runtime/engine/util|runtime/engine/config|runtime/engine/device|runtime/engine/report|runtime/engine/comm mpi.h'
    'runtime/engine/data common/base|common/proto/rank|kernels|plume|runtime/engine/util|runtime/engine/config|runtime/engine/device|runtime/engine/report|runtime/engine/data -'
    'runtime/engine/tape common/base|common/proto/rank|kernels|plume|runtime/engine/util|runtime/engine/config|runtime/engine/device|runtime/engine/report|runtime/engine/tape -'
    'runtime/engine/checkpoint common/base|common/proto/rank|kernels|plume|runtime/engine/util|runtime/engine/config|runtime/engine/device|runtime/engine/report|runtime/engine/comm|runtime/engine/data|runtime/engine/tape|runtime/engine/checkpoint -'
    'runtime/engine/ops common/base|common/proto/rank|kernels|plume|runtime/engine/util|runtime/engine/config|runtime/engine/device|runtime/engine/report|runtime/engine/comm|runtime/engine/data|runtime/engine/tape|runtime/engine/ops -'
    'runtime/engine/params common/base|common/proto/rank|kernels|plume|runtime/engine/util|runtime/engine/config|runtime/engine/device|runtime/engine/report|runtime/engine/comm|runtime/engine/data|runtime/engine/tape|runtime/engine/params -'
    'runtime/engine/optim common/base|common/proto/rank|kernels|plume|runtime/engine/util|runtime/engine/config|runtime/engine/device|runtime/engine/report|runtime/engine/comm|runtime/engine/data|runtime/engine/tape|runtime/engine/checkpoint|runtime/engine/ops|runtime/engine/params|runtime/engine/optim -'
    'runtime/engine/reduce common/base|common/proto/rank|kernels|plume|runtime/engine/util|runtime/engine/config|runtime/engine/device|runtime/engine/report|runtime/engine/comm|runtime/engine/data|runtime/engine/tape|runtime/engine/checkpoint|runtime/engine/ops|runtime/engine/params|runtime/engine/optim|runtime/engine/reduce -'
    'runtime/engine/module common/base|common/proto/rank|kernels|plume|runtime/engine/util|runtime/engine/config|runtime/engine/device|runtime/engine/report|runtime/engine/comm|runtime/engine/data|runtime/engine/tape|runtime/engine/checkpoint|runtime/engine/ops|runtime/engine/params|runtime/engine/optim|runtime/engine/reduce|runtime/engine/module -'
    'runtime/engine/train common/base|common/proto/rank|kernels|plume|runtime/engine/util|runtime/engine/config|runtime/engine/device|runtime/engine/report|runtime/engine/comm|runtime/engine/data|runtime/engine/tape|runtime/engine/checkpoint|runtime/engine/ops|runtime/engine/params|runtime/engine/optim|runtime/engine/reduce|runtime/engine/module|runtime/engine/train -'
    'runtime/engine/cuda common/base|kernels|plume|runtime/engine/device|runtime/engine/cuda cuda*|cublas*|cudnn*|nccl*|nvml.h'
    'runtime/pltrain common/base|common/proto/rank|kernels|plume|runtime/engine|runtime/pltrain -'
    'runtime/node      common/base|common/proto|runtime/node                uv.h|jansson.h|sodium*'
    'runtime/plrun     common|runtime/node|runtime/plrun|runtime/plrund/daemon uv.h|jansson.h|sodium*'
    'runtime/plrund    common|runtime/node|runtime/plrund                   uv.h|jansson.h|sodium*'
    'launcher/slurm    common|launcher/slurm                                jansson.h|slurm/*'
    'launcher/plsubmit common|launcher/slurm|launcher/plsubmit              jansson.h|yaml.h|sodium*'
    'launcher/plstat   common|launcher/slurm|launcher/plstat                jansson.h|sodium*'
    'spank_plugin      common/base|common/proto/rank|spank_plugin           slurm/spank.h'
    'examples          plume                                                mpi.h'
)
# Every header that is not libc's or the kernel's.
foreign='jansson*|sodium*|uv.h|uv/*|yaml.h|slurm/*|cmocka*|dnnl*|oneapi/*|cblas*|cuda*|cublas*|cudnn*|nccl*|nvml*|mpi.h|munge.h'

# matches WORD PATTERN|PATTERN...
matches() {
    local pattern
    local -a patterns
    IFS='|' read -ra patterns <<<"$2"
    for pattern in "${patterns[@]}"; do
        # shellcheck disable=SC2053 # a pattern
        [[ $1 == $pattern ]] && return 0
    done
    return 1
}

layer_of() {
    local row
    for row in "${layers[@]}"; do
        read -r folder own libs <<<"$row"
        [[ $1 == "$folder"/* ]] && return 0
    done
    return 1
}

while IFS=: read -r file line text; do
    layer_of "$file" || continue
    header=$(sed -E 's/^[[:space:]]*#[[:space:]]*include[[:space:]]*[<"]([^>"]*)[>"].*/\1/' <<<"$text")
    if [[ $text == *\"* ]]; then
        matches "$header" "${own//|//*|}/*" ||
            found "$file:$line: '$folder' may not include '$header' (only $own)"
    elif matches "$header" "$foreign" && ! matches "$header" "$libs"; then
        found "$file:$line: '$folder' may not include <$header>"
    fi
done < <(lint_files '*.c' '*.h' '*.cu' '*.cuh' | xargs grep -HnE '^[[:space:]]*#[[:space:]]*include')

# needs BINARY PATTERN...: libraries that the binary may need; with a leading ! those it may not.
needs() {
    local binary=$BUILD/$1 library
    shift
    [[ -e $binary ]] || return 0
    while read -r library; do
        if [[ $1 == '!'* ]]; then
            ! matches "$library" "${1#!}" || found "${binary##*/}: needs $library"
        else
            matches "$library" "$1" || found "${binary##*/}: needs $library"
        fi
    done < <(readelf -d "$binary" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p')
}

needs plrun '!libslurm*|libcuda*|libnccl*|libmpi*|libdnnl*'
needs plrund '!libslurm*|libcuda*|libnccl*|libmpi*|libdnnl*'
needs pltrain '!libslurm*|libjansson*|libuv*|libcu*|libnccl*|libmpi*|libstdc++*'
needs plsubmit '!libuv*|libcuda*|libnccl*|libmpi*'
needs plstat '!libuv*|libcuda*|libnccl*|libmpi*'
needs spank_plume.so 'libc.so.*|ld-linux*'
lint_done
