#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Breaks the product in one place after another and looks whether the named test finds it:
mutate.py SOURCE [NAME...]. The places are in mutations.py. Works in a copy of SOURCE, builds only what
the test runs, and prints a line each place; exit 1 where a broken product passes its test."""
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))
from mutations import MUTATIONS  # noqa: E402

LIMIT_S = 300  # a test that hangs has found it, too


def run(*command, cwd, limit=None):
    try:
        return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=limit, check=False)
    except subprocess.TimeoutExpired:
        return None


class Tree:
    def __init__(self, source):
        self.top = tempfile.mkdtemp(prefix="plume-mutate-")
        os.chmod(self.top, 0o755)  # as root some tests act as another user
        self.src = os.path.join(self.top, "plume")
        self.build = os.path.join(self.src, "build")
        shutil.copytree(source, self.src, symlinks=True, ignore=lambda folder, names: [
            n for n in names if folder == source and (n in (".git", "runs") or n.split("-")[0] == "build")])
        done = run("meson", "setup", "build", "-Dcuda=disabled", cwd=self.src)
        if done.returncode:
            sys.exit(f"mutate: the copy cannot be configured\n{done.stdout}{done.stderr}")
        self.tests = {}  # two suites may have a test of the same name: both run
        for test in self.intro("tests"):
            self.tests.setdefault(test["name"], []).append(test)
        self.files = {t["id"]: t["filename"] for t in self.intro("targets")}

    def intro(self, what):
        with open(os.path.join(self.build, "meson-info", f"intro-{what}.json"), encoding="utf-8") as f:
            return json.load(f)

    def make(self, test):
        """Builds what the test runs; the compiler's text where that fails."""
        files = [os.path.relpath(f, self.build)
                 for row in self.tests[test] for t in row["depends"] for f in self.files[t]]
        suites = {s.split(":")[-1] for row in self.tests[test] for s in row["suite"]}
        if suites & {"cli", "daemon", "cluster", "fault", "lint"}:
            files.append("tools")
        done = run("ninja", "-C", "build", *files, cwd=self.src)
        return done.stdout if done.returncode else None

    def log(self):
        with open(os.path.join(self.build, "meson-logs", "testlog.txt"), encoding="utf-8", errors="replace") as f:
            return f.read()[-4000:]

    def passes(self, test):
        done = run("meson", "test", "-C", "build", "--no-rebuild", test, cwd=self.src, limit=LIMIT_S)
        return done is not None and done.returncode == 0


def home(tree, mutation):
    """The file that has the text, exactly once."""
    path = os.path.join(tree.src, mutation["file"])
    with open(path, encoding="utf-8") as f:
        text = f.read()
    if text.count(mutation["text"]) != 1:
        sys.exit(f"mutate: {mutation['file']} has the text {text.count(mutation['text'])} times, not once: "
                 f"{mutation['text']}")
    return path, text


def look(tree, mutation):
    path, text = home(tree, mutation)
    begun, test = time.monotonic(), mutation["test"]
    try:
        with open(path, "w", encoding="utf-8") as f:
            f.write(text.replace(mutation["text"], mutation["broken"]))
        why = tree.make(test)
        found = why is None and not tree.passes(test)
    finally:
        with open(path, "w", encoding="utf-8") as f:
            f.write(text)
    word = "does not build" if why is not None else "found" if found else "NOT FOUND"
    print(f"{word:14} {test:24} {mutation['file']} ({time.monotonic() - begun:.0f} s)", flush=True)
    if why is not None:
        print(why[-2000:])
    return found


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    wanted = [m for m in MUTATIONS if len(sys.argv) == 2 or {m["test"], m["file"]} & set(sys.argv[2:])]
    if not wanted:
        sys.exit("mutate: no place of that test or file in dev.d/mutations.py")
    tree = Tree(os.path.realpath(sys.argv[1]))
    try:
        for mutation in wanted:
            home(tree, mutation)
            if mutation["test"] not in tree.tests:
                sys.exit(f"mutate: there is no test '{mutation['test']}'")
        for test in sorted({m["test"] for m in wanted}):
            why = tree.make(test)
            if why is not None or not tree.passes(test):
                sys.exit(f"mutate: {test} fails before anything is broken\n{why or tree.log()}")
        found = sum(look(tree, m) for m in wanted)
    finally:
        shutil.rmtree(tree.top, ignore_errors=True)
    print(f"{found} passed, {len(wanted) - found} failed")
    sys.exit(found != len(wanted))


if __name__ == "__main__":
    main()
