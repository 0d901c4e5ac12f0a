#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Which folder may include what: layers.py SOURCE. A folder is one library or one program; a new one
gets a row of its own here. Rows name folders exactly: a row for runtime/engine/tape says nothing of a
folder below it. Prints a line each finding; exit 1 where there is one."""
import fnmatch
import os
import re
import subprocess
import sys

BASE, RANK = "common/base", "common/proto/rank"
PROTO = [BASE, "common/proto", RANK]
RUN = PROTO + ["common/run"]
LAUNCHER = RUN + ["launcher/slurm"]
NODE = RUN + ["runtime/node"]
KERNELS = [BASE, "kernels", "kernels/pool"]

# The engine's levels, lowest first: a folder includes folders of lower levels only.
ENGINE = [["util"], ["config", "device", "report"], ["comm", "data", "tape"],
          ["checkpoint", "ops", "params"], ["optim"], ["reduce", "xla"], ["module"], ["train"]]
CUDA = "runtime/engine/cuda"
NVIDIA = ["cuda*.h", "cublas*.h", "cudnn*.h", "nccl.h", "nvml.h"]

# folder: (folders that it may include beside itself, headers of libraries beside libc's)
ROWS = {
    "common/base": ([], []),
    "common/proto/rank": ([BASE], []),
    "common/proto": ([BASE, RANK], ["jansson.h", "sodium.h"]),
    "common/run": (PROTO, ["jansson.h", "sodium.h"]),
    "include/plume": (["plume"], []),
    "kernels": ([BASE], []),
    "kernels/pool": ([BASE, "kernels"], []),
    "kernels/ref": (KERNELS, []),
    "kernels/cpu": (KERNELS, []),
    "kernels/cuda": (KERNELS, NVIDIA),
    "launcher/slurm": (RUN, ["jansson.h", "slurm/*.h"]),
    "launcher/plsubmit": (LAUNCHER, ["jansson.h", "sodium.h", "yaml.h"]),
    "launcher/plstat": (LAUNCHER, ["jansson.h", "sodium.h"]),
    "runtime/node": (PROTO, ["jansson.h", "sodium.h", "uv.h"]),
    "runtime/plrun": (NODE, ["jansson.h", "sodium.h"]),
    "runtime/plrund": (NODE + ["runtime/plrund/daemon", "runtime/plrund/hub"], ["jansson.h", "sodium.h", "uv.h"]),
    "runtime/plrund/daemon": (NODE, ["jansson.h", "sodium.h", "uv.h"]),
    "runtime/plrund/hub": (NODE, ["jansson.h", "sodium.h", "uv.h"]),
    "spank_plugin": ([BASE, RANK], ["slurm/spank.h"]),
    "examples/*": (["plume"], ["mpi.h"]),
    "bench/models": (["plume", "examples/cnn", "examples/gpt", "examples/lstm", "examples/mlp",
                      "examples/resnet"], []),
}


def engine_rows():
    below = [BASE, RANK, "kernels", "kernels/pool", "plume"]
    for level in ENGINE:
        for name in level:
            yield f"runtime/engine/{name}", (list(below), ["mpi.h"] if name == "comm" else [])
        below += [f"runtime/engine/{name}" for name in level]
    yield "runtime/pltrain", (below, [])
    yield "runtime/engine/pjrt", ([BASE, "runtime/engine/xla"], ["pjrt_c_api.h"])
    host = [BASE, "kernels", "kernels/cuda", "plume", "runtime/engine/device"]
    inside = [f"{CUDA}/{name}" for name in ("lazy", "util", "alloc", "cublaslt", "cudnn", "nccl", "device")]
    for i, folder in enumerate(inside):
        yield folder, (host + inside[:i], NVIDIA)


ROWS.update(engine_rows())
LIBRARIES = NVIDIA + ["jansson*.h", "sodium*.h", "uv.h", "uv/*", "yaml.h", "slurm/*", "cmocka*", "dnnl*",
                      "oneapi/*", "cblas*", "nvml*", "mpi.h", "munge.h", "pjrt_c_api.h"]
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^">]+)[">]')


def any_of(name, patterns):
    return any(fnmatch.fnmatchcase(name, p) for p in patterns)


def row_of(folder):
    return ROWS.get(folder) or next((r for f, r in ROWS.items() if "*" in f and any_of(folder, [f])), None)


def check(path):
    folder = os.path.dirname(path)
    row = row_of(folder)
    if row is None:
        yield f"{path}:1: '{folder}' has no row in tests/lint/layers.py"
        return
    with open(path, encoding="utf-8") as f:
        for number, line in enumerate(f, 1):
            match = INCLUDE.match(line)
            if not match:
                continue
            mark, header = match.groups()
            if mark == "<":
                if any_of(header, LIBRARIES) and not any_of(header, row[1]):
                    yield f"{path}:{number}: '{folder}' may not include <{header}>"
            elif os.path.dirname(header) not in [folder, *row[0]]:
                yield f"{path}:{number}: '{folder}' may not include '{header}' (only {' '.join(row[0]) or 'libc'})"


def main():
    os.chdir(sys.argv[1])
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "--deduplicate"],
                            capture_output=True, text=True, check=False).stdout.split("\n")
    if len(listed) < 2:  # not a checkout
        listed = [os.path.relpath(os.path.join(d, f)) for d, _, fs in os.walk(".") for f in fs
                  if not d.startswith("./build")]
    files = [f for f in listed if f.endswith((".c", ".h", ".cu", ".cuh")) and os.path.exists(f)
             and not f.startswith(("tests/", "bench/")) or f.startswith("bench/models/")]
    found = [text for path in sorted(files) for text in check(path)]
    if len(files) < 300:
        found.append(f"layers: {len(files)} files only in {sys.argv[1]}: no tree of Plume")
    print("\n".join(found), end="\n" if found else "")
    sys.exit(bool(found))


main()
