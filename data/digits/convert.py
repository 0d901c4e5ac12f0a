#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Turn scikit-learn's digits.csv.gz into the .npy files of this folder.

Usage: convert.py PATH/TO/sklearn/datasets/data/digits.csv.gz [FOLDER]

Needs nothing but Python. The split is stratified and fixed: of each class, in the order of the
source, every tenth sample from the first on is validation, every fifth from the third on is test,
the rest is training. No random numbers are used, so the files are the same everywhere.
"""
import gzip
import struct
import sys
from pathlib import Path


def write_npy(path, data, shape):
    """NumPy format 1.0, u8, C order (numpy.lib.format)."""
    tuple_text = "(%s)" % (", ".join(map(str, shape)) + ("," if len(shape) == 1 else ""))
    header = "{'descr': '|u1', 'fortran_order': False, 'shape': %s, }" % tuple_text
    pad = -(10 + len(header) + 1) % 64
    header += " " * pad + "\n"
    path.write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() + data)


def main():
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    folder = Path(sys.argv[2] if len(sys.argv) == 3 else Path(__file__).parent)
    splits = {"train": [], "val": [], "test": []}
    seen = [0] * 10
    with gzip.open(sys.argv[1], "rt") as f:
        for line in f:
            row = [int(float(x)) for x in line.split(",")]
            pixels, label = row[:64], row[64]
            if len(row) != 65 or not 0 <= label <= 9 or not all(0 <= p <= 16 for p in pixels):
                sys.exit("unexpected line: %r" % line)
            nth = seen[label]
            seen[label] += 1
            name = "val" if nth % 10 == 0 else "test" if nth % 5 == 2 else "train"
            splits[name].append((bytes(pixels), label))
    for name, samples in splits.items():
        write_npy(folder / f"{name}-images.npy", b"".join(p for p, _ in samples), (len(samples), 8, 8))
        write_npy(folder / f"{name}-labels.npy", bytes(l for _, l in samples), (len(samples),))
        print(name, len(samples))


if __name__ == "__main__":
    main()
