#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Adds up what PLUME_EMULATED_BANKS=FOLDER has written (trace.h): for each line that reads or writes shared
memory how many passes over its banks an access takes, beside the fewest that its size needs. The worst line is
the last, so that the end of a log has it.

    banks.py FOLDER [--most X]    with --most: status 1 if a line's ratio is above X
"""
import argparse
import collections
import pathlib
import re
import sys

# Shapes are random: a line that few of them reach has a ratio by chance. It is judged as if so many accesses
# without a conflict stood beside its own.
FEW = 1000

# The compiler of the emulator may read a vector's elements one by one, each at a distance of the vector's size. A GPU
# reads the vector at once, in as many passes as it has words.
ELEMENT = re.compile(r"widen_all<.*, (\d+)> at ")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--most", type=float)
    options = parser.parse_args()
    lines = collections.defaultdict(lambda: [0, 0])
    for file in options.folder.iterdir():
        for text in file.read_text(encoding="utf-8").splitlines():
            passes, best, size, place = text.split(" ", 3)
            element = ELEMENT.match(place)
            if element:
                best = min(int(passes), int(best) * int(element.group(1)))
            where = place.rsplit(" at ", 1)[-1].split(" (")[0]
            lines[where, int(size)][0] += int(passes)
            lines[where, int(size)][1] += int(best)
    if not lines:
        sys.exit(f"banks.py: nothing is in '{options.folder}'")
    above = []
    for (where, size), (passes, best) in sorted(lines.items(), key=lambda line: line[1][0] / line[1][1]):
        print(f"{passes / best:6.2f}  {passes:12d}  {size:2d} bytes  {where}")
        if options.most is not None and (passes + FEW) / (best + FEW) > options.most:
            above.append(f"{passes / best:.2f} at {where} ({size} bytes)")
    if above:
        sys.stdout.flush()  # stderr comes after it
        sys.exit(f"banks.py: at most {options.most} passes are allowed where one would do: {', '.join(above)}")


if __name__ == "__main__":
    main()
