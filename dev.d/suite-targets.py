#!/usr/bin/python3
# SPDX-License-Identifier: MIT
"""suite-targets.py DIR SUITE...: what ninja has to make in DIR for the tests of these suites.
suite-targets.py DIR --without SUITE: what it makes by default, but for tests that are in this suite only. meson before
1.7 has "all" link every test, also one with build_by_default: false."""
import json
import os
import sys

folder, suites = sys.argv[1], {"plume:" + s for s in sys.argv[2:]}
without = suites if "plume:--without" in suites else set()


def intro(what):
    with open(os.path.join(folder, "meson-info", f"intro-{what}.json"), encoding="utf-8") as f:
        return json.load(f)


files = {t["id"]: t["filename"] for t in intro("targets")}
need = set()
for target in intro("targets"):
    if without and target["build_by_default"]:
        need.update(os.path.relpath(f, folder) for f in target["filename"])
for test in intro("tests"):
    if set(test["suite"]) - without if without else suites & set(test["suite"]):
        for target in test["depends"]:
            need.update(os.path.relpath(f, folder) for f in files[target])
for file in sorted(need):
    print(file)
