#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Circles and double names, by the linker's symbols: symbols.py SOURCE BUILD.

A file needs another one where it uses a function or variable that the other one defines. Neither
files nor folders of the product may need each other in a circle, and no global name has two homes.
Reads the objects of BUILD (compile_commands.json, nm), so that what the preprocessor leaves out does
not count. Prints a line each finding; exit 1 where there is one."""
import json
import os
import subprocess
import sys

PRODUCT = ("common/", "kernels/", "launcher/", "runtime/", "spank_plugin/")
# Files whose names are meant to be met again: programs, and plug-ins behind the same entry.
ENTRIES = {"main"}
# Each takes the place of another file, where a library is missing.
STAND_INS = ("_none.c",)


def objects(source, build):
    """(path of the source below SOURCE, object) of each product file that is built."""
    with open(os.path.join(build, "compile_commands.json"), encoding="utf-8") as f:
        for row in json.load(f):
            path = os.path.relpath(os.path.join(row["directory"], row["file"]), source)
            obj = os.path.join(row["directory"], row["output"])
            if path.startswith(PRODUCT) and os.path.exists(obj):
                yield path, obj


def symbols(objs):
    """Of each object the names that it defines, and those that it needs. One nm for all: hundreds take seconds."""
    text = subprocess.run(["nm", "--format=posix", *objs], check=True, capture_output=True, text=True)
    found = {obj: (set(), set()) for obj in objs}
    for line in text.stdout.splitlines():
        if line.endswith(":"):
            defined, needed = found[line[:-1]]
            continue
        name, kind = line.split()[:2]
        if kind in "TDBRVWCG":
            defined.add(name)
        elif kind == "U":
            needed.add(name)
    return found


def circles(graph):
    """Strongly connected components of more than one node (Tarjan 1972), without recursion."""
    index, low, stack, on_stack, found = {}, {}, [], set(), []
    for root in sorted(graph):
        if root in index:
            continue
        work = [(root, iter(sorted(graph[root])))]
        while work:
            node, rest = work[-1]
            if node not in index:
                index[node] = low[node] = len(index)
                stack.append(node)
                on_stack.add(node)
            for other in rest:
                if other not in index:
                    work.append((other, iter(sorted(graph.get(other, ())))))
                    break
                if other in on_stack:
                    low[node] = min(low[node], index[other])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == index[node]:
                    part = set()
                    while node not in part:
                        part.add(stack.pop())
                    on_stack -= part
                    if len(part) > 1:
                        found.append(sorted(part))
    return found


def main():
    source, build = map(os.path.realpath, sys.argv[1:3])
    homes, needs, bad = {}, {}, []
    paths = {obj: path for path, obj in objects(source, build)}
    for obj, (defined, needed) in symbols(list(paths)).items() if paths else ():
        path = paths[obj]
        for name in defined - ENTRIES:
            homes.setdefault(name, set()).add(path)
        needs.setdefault(path, set()).update(needed)
    if len(needs) < 100:
        sys.exit(f"symbols: {len(needs)} objects in {build}: build the tree first")
    for name, files in sorted(homes.items()):
        files = {f for f in files if not f.endswith(STAND_INS)}
        if len(files) > 1:
            bad.append(f"{name} is defined in {' and '.join(sorted(files))}")
    graph = {f: {min(homes[n]) for n in names if n in homes} - {f} for f, names in needs.items()}
    folders = {}
    for path, others in graph.items():
        here = folders.setdefault(os.path.dirname(path), set())
        here.update(os.path.dirname(o) for o in others)
        here.discard(os.path.dirname(path))
    for part in circles(folders):
        bad.append("folders need each other: " + " ".join(part))
    for part in circles(graph):
        bad.append("files need each other: " + " ".join(part))
        for path in part:
            for other in sorted(graph[path] & set(part)):
                names = sorted(n for n in needs[path] if other in homes.get(n, ()))
                bad.append(f"    {path} needs {other}: {' '.join(names)}")
    print("\n".join(bad), end="\n" if bad else "")
    sys.exit(bool(bad))


main()
