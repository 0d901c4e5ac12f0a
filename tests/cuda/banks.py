#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Adds up what PLUME_EMULATED_BANKS=FOLDER has written (trace.h): for each line that reads or writes shared
memory how many passes over its banks an access takes, beside the fewest that its size needs.

    banks.py FOLDER [--most X]    with --most: status 1 if a line's ratio is above X
"""
import argparse
import collections
import pathlib
import sys


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--most", type=float)
    options = parser.parse_args()
    lines = collections.defaultdict(lambda: [0, 0])
    for file in options.folder.iterdir():
        for text in file.read_text(encoding="utf-8").splitlines():
            passes, best, size, place = text.split(" ", 3)
            where = place.rsplit(" at ", 1)[-1].split(" (")[0]
            lines[where, int(size)][0] += int(passes)
            lines[where, int(size)][1] += int(best)
    if not lines:
        sys.exit(f"banks.py: nothing is in '{options.folder}'")
    worst = 0.0
    for (where, size), (passes, best) in sorted(lines.items(), key=lambda line: -line[1][0] / line[1][1]):
        print(f"{passes / best:6.2f}  {passes:12d}  {size:2d} bytes  {where}")
        worst = max(worst, passes / best)
    if options.most is not None and worst > options.most:
        sys.exit(f"banks.py: {worst:.2f} passes where one would do; at most {options.most} are allowed")


if __name__ == "__main__":
    main()
