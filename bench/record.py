# SPDX-License-Identifier: MIT
"""Writes the newest results of each benchmark into RESULTS.md, between its two marks. A benchmark that
has none in this build keeps its section, with the load and time that it names."""

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


def old_sections(text):
    """{name: text of its section}, from between the marks."""
    parts = text.split("\n## ")[1:]
    return {part.split("\n", 1)[0].strip(): "## " + part.strip() for part in parts}


def section(doc):
    lines = [f"## {doc['name']}", "",
             f"{doc['time']}, load {doc['load'][0]:.1f} before and {doc['load'][1]:.1f} "
             "after; seconds unless a unit is given; medians.", "",
             "| " + " | ".join(HEAD) + " |", "|" + "---|" * len(HEAD)]
    lines += ["| " + " | ".join(cells(row)) + " |" for row in doc["rows"]]
    lines += [""] + [line + "\n" for line in doc["notes"]]
    return "\n".join(lines).strip()


def main():
    target = os.path.join(SRC, "bench", "RESULTS.md")
    with open(target) as f:
        text = f.read()
    head, rest = text.split(BEGIN, 1)
    middle, tail = rest.split(END, 1)
    sections = old_sections(middle)
    for path in sorted(glob.glob(os.path.join(BUILD, "bench-results", "*.json"))):
        with open(path) as f:
            doc = json.load(f)
        sections[doc["name"]] = section(doc)
    lines = [BEGIN, "", *machine(), ""]
    for name in sorted(sections):
        lines += [sections[name], ""]
    with open(target, "w") as f:
        f.write(head + "\n".join(lines).rstrip() + "\n\n" + END + tail)


main()
