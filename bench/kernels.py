#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""How near the kernels with products come to the peak of gemm, with 1 and with 2 threads.

./dev bench kernels [--json]; shapes in bench/kernels.c.
"""

import json
import os
import subprocess
import sys

SRC = os.environ.get("PLUME_SRC") or os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BUILD = os.environ.get("PLUME_BUILD") or os.path.join(SRC, "build-bench")


def measure(threads):
    text = subprocess.run(
        [os.path.join(BUILD, "bench", "bench-kernels"), str(threads)],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    ).stdout
    rows = [line.split("\t") for line in text.splitlines()]
    peak = float(rows[0][3])
    return [
        {
            "op": op,
            "shape": shape,
            "threads": threads,
            "ms": float(ms),
            "gflops": float(rate),
            "share": round(float(rate) / peak, 3),
        }
        for op, shape, ms, rate in rows
    ]


def main():
    rows = [row for threads in (1, 2) for row in measure(threads)]
    if "--json" in sys.argv[1:]:
        print(json.dumps(rows, indent=1))
        return
    print(f"{'op':16} {'shape':28} {'threads':>7} {'ms':>9} {'GFLOP/s':>8} {'of peak':>8}")
    for r in rows:
        print(
            f"{r['op']:16} {r['shape']:28} {r['threads']:7} {r['ms']:9.3f} "
            f"{r['gflops']:8.1f} {r['share']:8.0%}"
        )


if __name__ == "__main__":
    main()
