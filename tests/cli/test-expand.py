#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""plsubmit --expand of random grids against a model: count, order, and every value byte for byte.
PLUME_TEST_SEED repeats a run. Argument: the build folder."""
import itertools
import json
import os
import random
import subprocess
import sys

PLSUBMIT = os.path.join(sys.argv[1], "plsubmit")
SEED = int(os.environ.get("PLUME_TEST_SEED") or random.randrange(10**9))
PIECES = ['"', ",", '""', "=", "\\", "\n", "x", "é", "{a}", "你", " ", "\x1b[1m", "$(id)", "'", "1e-3", "(", "range("]


def text_of(values):
    """An axis' values as --grid takes them; quoted where that is needed, or by chance."""
    out = []
    for v in values:
        if not v or v[0] == '"' or "," in v or v.startswith(("range(", "log(")) or random.random() < 0.2:
            v = '"' + v.replace('"', '""') + '"'
        out.append(v)
    return ",".join(out)


def axis(n):
    """n different values, and their text."""
    if n > 1 and random.random() < 0.3:
        low, step = random.randrange(-50, 50), random.randrange(1, 9)
        return [str(low + i * step) for i in range(n)], f"range({low},{low + (n - 1) * step},{n})"
    if n > 1 and random.random() < 0.2:
        return [str(2**i) for i in range(n)], f"log(1,{2**(n - 1)},{n})"
    values = set()
    while len(values) < n:
        values.add("".join(random.choice(PIECES) for _ in range(random.randrange(5))))
    values = random.sample(sorted(values), n)
    return values, text_of(values)


def one():
    n_axes = random.randrange(1, 6)
    names = [f"a{i}" for i in range(n_axes)]
    groups = {i: i for i in range(n_axes)}  # axis: leader
    zips = []
    if n_axes > 1 and random.random() < 0.5:
        zipped = sorted(random.sample(range(n_axes), random.randrange(2, n_axes + 1)))
        zips.append(",".join(names[i] for i in zipped))
        groups.update((i, zipped[0]) for i in zipped)
    sizes = {leader: random.randrange(1, 5) for leader in groups.values()}
    values, command = [], [PLSUBMIT, "--expand"]
    for i in range(n_axes):
        one_axis, text = axis(sizes[groups[i]])
        values.append(one_axis)
        command += ["--grid", f"{names[i]}={text}"]
    for z in zips:
        command += ["--zip", z]
    leaders = sorted(sizes)
    trials = []
    for index in itertools.product(*(range(sizes[leader]) for leader in leaders)):
        at = dict(zip(leaders, index))
        trials.append({names[i]: values[i][at[groups[i]]] for i in range(n_axes)})
    if random.random() < 0.3:
        k = random.randrange(1, 4)
        command += ["--repeat", str(k)]
        trials = [{**t, "seed": str(s)} for t in trials for s in range(k)]
    if random.random() < 0.3:
        n = random.randrange(1, len(trials) + 1)
        command += ["--trials", str(n)]
        trials = trials[:n]
    done = subprocess.run(command + ["true"], capture_output=True, check=False, text=True, timeout=60)
    want = [{"trial": i, "params": p} for i, p in enumerate(trials)]
    # By lines of JSON only: a value may have characters that other splitters take for line breaks.
    got = [json.loads(line) for line in done.stdout.split("\n") if line]
    if done.returncode != 0 or got != want:
        raise AssertionError(f"{command}\n{done.stderr}\ngot {got}\nwant {want}")


def main():
    random.seed(SEED)
    print("1..1")
    for _ in range(200):
        try:
            one()
        except AssertionError as e:
            print("\n".join("# " + line for line in str(e).split("\n")))
            print(f"not ok 1 random grids (PLUME_TEST_SEED={SEED})")
            sys.exit(1)
    print("ok 1 random grids")


main()
