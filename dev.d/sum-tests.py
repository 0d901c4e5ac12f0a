#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Sum up meson's testlog.json files: sum-tests.py [--failed] LOG...

Counts single cases where the test's output names them (cmocka, TAP), else the test as one.
Prints the failed ones with their TAP diagnostics, the reasons of the skipped, the slowest tests, and "N passed, N failed,
N skipped" last; exits 1 when anything failed or when nothing ran.
A test that failed counts as passed, and is named as unsteady, where NAME-again.json beside NAME.json says that it
passed when it ran alone. With --failed: only the names of the tests that failed, for meson test.
"""
import json
import os
import re
import sys

CMOCKA = re.compile(r"^\[\s+(OK|FAILED|SKIPPED)\s+\] (\S+)$", re.M)
# A case, then the lines that begin with #.
TAP = re.compile(r"^(ok|not ok)\b[ \t]*\d*(?:[ \t]*-)?[ \t]*(.*)((?:\n#.*)*)", re.M)

SLOWEST = 10


def cases_of(test):
    """Yield (outcome, name, reason) for each case of one meson test."""
    out = test.get("stdout", "")
    if re.search(r"^1\.\.\d+", out, re.M):
        for word, name, said in TAP.findall(out):
            skip = re.search(r"#\s*skip\b\s*(.*)$", name, re.I)
            if skip:
                yield "skipped", name[: skip.start()].strip(), skip.group(1)
            else:
                yield ("passed" if word == "ok" else "failed"), name, said.replace("\n#", "\n   ")
    else:
        text = out + test.get("stderr", "")
        seen = {}
        for word, name in CMOCKA.findall(text):
            seen[name] = {"OK": "passed", "FAILED": "failed", "SKIPPED": "skipped"}[word]
        for name, outcome in seen.items():
            if not name.isdigit():
                yield outcome, name, ""


def outcome_of(test):
    result = test["result"]
    if result in ("OK", "EXPECTEDFAIL"):
        return "passed"
    return "skipped" if result == "SKIP" else "failed"


def tests_of(log):
    if not os.path.exists(log):
        return []
    with open(log, encoding="utf-8", errors="replace") as file:
        return [json.loads(line) for line in file]


def print_failed(logs):
    for test in (t for log in logs for t in tests_of(log)):
        if outcome_of(test) == "failed":
            print(test["name"].split(" / ")[-1])


def main(logs):
    slow = []
    counts = {"passed": 0, "failed": 0, "skipped": 0}
    lines = []
    for log in logs:
        lane = os.path.basename(os.path.dirname(os.path.dirname(log)))
        again = {t["name"]: t for t in tests_of(log[: -len(".json")] + "-again.json")}
        for test in tests_of(log):
            slow.append((test.get("duration", 0), f"{lane}: {test['name']}"))
            second = again.get(test["name"])
            if outcome_of(test) == "failed" and second and outcome_of(second) == "passed":
                for outcome, name, _ in cases_of(test):
                    if outcome == "failed":
                        lines.append(f"unsteady: {lane}: {test['name']}: {name}: it passed alone")
                lines.append(f"unsteady: {lane}: {test['name']}: failed beside others, passed alone")
                test = second
            whole = outcome_of(test)
            cases = [] if whole == "skipped" else list(cases_of(test))
            if not cases or (whole == "failed" and all(c[0] != "failed" for c in cases)):
                reason = (test.get("stdout", "").strip().splitlines() or [""])[-1]
                cases.append((whole, f"({test['result']})", reason))
            for outcome, name, reason in cases:
                counts[outcome] += 1
                if outcome != "passed":
                    line = f"{outcome}: {lane}: {test['name']}: {name}"
                    lines.append(line + ("" if reason[:1] == "\n" else " ") + reason)
    for line in sorted(lines):
        print(line.rstrip())
    for seconds, name in sorted(slow, reverse=True)[:SLOWEST]:
        if seconds >= 1:
            print(f"slow: {seconds:.0f} s: {name}")
    print("{passed} passed, {failed} failed, {skipped} skipped".format(**counts))
    return 1 if counts["failed"] or not counts["passed"] else 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--failed"]:
        print_failed(sys.argv[2:])
    else:
        sys.exit(main(sys.argv[1:]))
