#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The kernels' speed with 1 and with 2 threads: GFLOP/s of those with matrix products against the
gemm peak, and GB/s of the others.

./dev bench kernels [--json]; bench/kernels.c has the shapes.
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
            "gflops": float(rate) or None,
            "share": round(float(rate) / peak, 3) or None,
            "gb_s": float(bytes_rate) or None,
        }
        for op, shape, ms, rate, bytes_rate in rows
    ]


def main():
    rows = [row for threads in (1, 2) for row in measure(threads)]
    if "--json" in sys.argv[1:]:
        print(json.dumps(rows, indent=1))
        return
    print(f"{'op':22} {'shape':28} {'threads':>7} {'ms':>9} {'GFLOP/s':>8} {'of peak':>8} "
          f"{'GB/s':>6}")
    for r in rows:
        rate = f"{r['gflops']:8.1f} {r['share']:8.0%}" if r["gflops"] else f"{'':17}"
        moved = f"{r['gb_s']:6.1f}" if r["gb_s"] else ""
        print(f"{r['op']:22} {r['shape']:28} {r['threads']:7} {r['ms']:9.3f} {rate} {moved}"
              .rstrip())


if __name__ == "__main__":
    main()
