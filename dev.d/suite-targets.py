#!/usr/bin/python3
# SPDX-License-Identifier: MIT
"""suite-targets.py DIR SUITE...: what ninja has to make in DIR for the tests of these suites."""
import json
import os
import sys

folder, suites = sys.argv[1], {"plume:" + s for s in sys.argv[2:]}


def intro(what):
    with open(os.path.join(folder, "meson-info", f"intro-{what}.json"), encoding="utf-8") as f:
        return json.load(f)


files = {t["id"]: t["filename"] for t in intro("targets")}
need = set()
for test in intro("tests"):
    if suites & set(test["suite"]):
        for target in test["depends"]:
            need.update(os.path.relpath(f, folder) for f in files[target])
for file in sorted(need):
    print(file)
