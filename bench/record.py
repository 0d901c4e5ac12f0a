# SPDX-License-Identifier: MIT
"""Writes the newest results of each benchmark into RESULTS.md, between its two marks."""

import glob
import json
import os
import platform
import subprocess

from plbench import BUILD, HEAD, SRC, cells

BEGIN, END = "<!-- results -->", "<!-- end of results -->"


def command_output(*argv):
    try:
        return subprocess.run(argv, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "?"


def machine():
    model = "?"
    with open("/proc/cpuinfo") as f:
        for line in f:
            if line.startswith("model name"):
                model = line.split(":", 1)[1].strip()
                break
    return [f"- machine: {model}, {os.cpu_count()} cores (virtual, shared with other work)",
            f"- Linux {platform.release()}, {command_output('slurmctld', '-V')}, "
            f"{command_output('cc', '--version').splitlines()[0]}, release build"]


def main():
    lines = [BEGIN, "", *machine(), ""]
    for path in sorted(glob.glob(os.path.join(BUILD, "bench-results", "*.json"))):
        with open(path) as f:
            doc = json.load(f)
        lines += [f"## {doc['name']}", "",
                  f"{doc['time']}, load {doc['load'][0]:.1f} before and {doc['load'][1]:.1f} "
                  "after; seconds unless a unit is given; medians.", "",
                  "| " + " | ".join(HEAD) + " |", "|" + "---|" * len(HEAD)]
        lines += ["| " + " | ".join(cells(row)) + " |" for row in doc["rows"]]
        lines += [""] + [line + "\n" for line in doc["notes"]]
    target = os.path.join(SRC, "bench", "RESULTS.md")
    with open(target) as f:
        text = f.read()
    head, rest = text.split(BEGIN, 1)
    tail = rest.split(END, 1)[1]
    with open(target, "w") as f:
        f.write(head + "\n".join(lines).rstrip() + "\n\n" + END + tail)


main()
