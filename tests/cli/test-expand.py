#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""plsubmit --expand of random grids and draws against models: count, order, every value byte for byte.
PLUME_TEST_SEED repeats a run. Argument: the build folder."""
import itertools
import json
import math
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
        if not v or v[0] == '"' or set(v) & set(",([{") or random.random() < 0.2:
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


M64 = 2**64 - 1


class Splitmix:
    """Steele et al. 2014."""

    def __init__(self, state):
        self.state = state & M64

    def next(self):
        self.state = self.state + 0x9e3779b97f4a7c15 & M64
        z = self.state
        z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9 & M64
        z = (z ^ z >> 27) * 0x94d049bb133111eb & M64
        return z ^ z >> 31

    def below(self, n):
        while True:
            product = self.next() * n
            if product & M64 >= 2**64 % n:
                return product >> 64


def shortest(value):
    value = float(f"{value:.15g}")
    if value == int(value) and abs(value) < 1e15:
        return str(int(value))
    return next(t for t in (f"{value:.{d}g}" for d in range(1, 18)) if float(t) == value)


def distribution():
    """Its text, a function that draws from it, and the number of different values."""
    kind = random.choice(["int", "float", "log", "choice"])
    if kind == "int":
        low = random.randrange(-5, 5)
        high = low + random.choice([0, 1, 3, 1000, 2**40])
        return f"int({low},{high})", lambda g: str(low + g.below(high - low + 1)), high - low + 1
    if kind == "choice":
        values, text = axis(random.randrange(1, 4))
        return f"choice({text})", lambda g: values[g.below(len(values))], len(values)
    low = random.choice([1e-5, 0.5, 3.0]) - (4 if kind == "float" else 0)
    high = low + random.choice([0.25, 7.0, 1e6])

    def real(g):
        u = (g.next() >> 11) * 2.0**-53
        if kind == "log":
            return shortest(math.exp(math.log(low) * (1 - u) + math.log(high) * u))
        return shortest(low * (1 - u) + high * u)
    return f"{kind}({low!r},{high!r})", real, 2**50


def one_random():
    spec = [distribution() for _ in range(random.randrange(1, 4))]
    n = min(random.randrange(1, 40), math.prod(s[2] for s in spec) // random.randrange(1, 3) or 1)
    seed = random.choice([0, 1, random.randrange(2**63)])
    command = [PLSUBMIT, "--expand", "--random", str(n), "--seed", str(seed)]
    for i, (text, _, _) in enumerate(spec):
        command += ["--sample", f"x{i}={text}"]
    want, number = [], 0
    start = Splitmix(seed).next()
    while len(want) < n:
        g = Splitmix(Splitmix(start + number * 0xd1342543de82ef95).next())
        values = tuple(draw(g) for _, draw, _ in spec)
        number += 1
        if values not in want:
            want.append(values)
    done = subprocess.run(command + ["true"], capture_output=True, check=False, text=True, timeout=60)
    got = [tuple(json.loads(line)["params"].values()) for line in done.stdout.split("\n") if line]
    if done.returncode != 0 or got != want:
        raise AssertionError(f"{command}\n{done.stderr}\ngot {got}\nwant {want}")


def expression(depth, kind):
    """A random condition ("truth") or sum ("number") that Python reads the same way."""
    if kind == "truth":
        form = random.choice(["compare", "text", "and", "or", "not", "()"] if depth else ["compare", "text"])
        if form == "compare":
            return f"{expression(depth - 1, 'number')} {random.choice(['==', '!=', '<', '<=', '>', '>='])} " \
                   f"{expression(depth - 1, 'number')}"
        if form == "text":
            return f"t {random.choice(['==', '!='])} {random.choice(['sgd', 'a b', ''])!r}"
        if form == "not":
            return f"not {expression(depth - 1, 'truth')}"
        if form == "()":
            return f"({expression(depth - 1, 'truth')})"
        return f"{expression(depth - 1, 'truth')} {form} {expression(depth - 1, 'truth')}"
    form = random.choice(["atom", "+", "-", "*", "/", "neg", "()"] if depth > 0 else ["atom"])
    if form == "atom":
        return random.choice(["x", "y", "x % y", "2", "0.5", "1e-1", "3.", "7e+0"])
    if form == "neg":
        return f"-{expression(0, 'number')}"
    if form == "()":
        return f"({expression(depth - 1, 'number')})"
    return f"{expression(depth - 1, 'number')} {form} {expression(depth - 1, 'number')}"


def where():
    """--where keeps the points of which Python says that the same text is true."""
    axes = {"x": ["1", "2", "0.5", "4e0"], "y": ["2", "3", "10"], "t": ["sgd", "a b", "2"]}
    texts = [expression(3, "truth") for _ in range(random.choice([1, 1, 2]))]
    most = random.choice([None, 5])
    want = []
    try:
        for values in itertools.product(*axes.values()):
            at = dict(zip(axes, values))
            names = {k: v if k == "t" else float(v) for k, v in at.items()}
            if all(eval(t, {}, names) for t in texts):  # pylint: disable=eval-used
                want.append({"trial": len(want), "params": at})
    except ZeroDivisionError:
        want = []
    command = [PLSUBMIT, "--expand"]
    for name, values in axes.items():
        command += ["--grid", f"{name}={','.join(values)}"]
    for t in texts:
        t = t.replace(" and ", random.choice([" and ", " && ", "&&"])).replace(" or ", random.choice([" or ", "||"]))
        command += ["--where", t.replace("x", random.choice(["x", "{x}"]))]
    done = subprocess.run(command + (["--trials", str(most)] if most else []) + ["true"], capture_output=True,
                          check=False, text=True, timeout=60)
    got = [json.loads(line) for line in done.stdout.splitlines()]
    if got != (want[:most] if most else want) or (done.returncode != 0) != (not want):
        raise AssertionError(f"{command}\n{done.stderr}\ngot {got}\nwant {want}")


def even():
    """10,000 draws fill ten parts of each distribution evenly: within five deviations."""
    done = subprocess.run([PLSUBMIT, "--expand", "--random", "10000", "--seed", "3", "--sample",
                           "f=float(-1,1)", "--sample", "l=log(1e-3,1e3)", "--sample", "i=int(0,999)", "true"],
                          capture_output=True, check=True, text=True, timeout=60)
    rows = [json.loads(line)["params"] for line in done.stdout.splitlines()]
    for name, part in (("f", lambda v: (v + 1) / 2), ("l", lambda v: (math.log10(v) + 3) / 6),
                       ("i", lambda v: v / 1000)):
        parts = [0] * 10
        for row in rows:
            parts[int(part(float(row[name])) * 10)] += 1
        if max(abs(p - 1000) for p in parts) > 5 * 30:
            raise AssertionError(f"{name}: {parts}")


def main():
    random.seed(SEED)
    print("1..4")
    for number, (name, test, times) in enumerate([("random grids", one, 200),
                                                  ("random draws", one_random, 100),
                                                  ("conditions", where, 100),
                                                  ("draws are even", even, 1)], 1):
        why = None
        for _ in range(times):
            try:
                test()
            except AssertionError as e:
                why = str(e)
                break
        for line in (why or "").splitlines():
            print(f"# {line}")
        print(f"{'not ok' if why else 'ok'} {number} {name}" + (f" (PLUME_TEST_SEED={SEED})" if why else ""))
        if why:
            sys.exit(1)


main()
