#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""FILE:LINE of each time.sleep() that is neither in a loop that waits for an event, nor of random length (the
moment of a fault), nor has a comment on its line that tells why time itself must pass. Arguments: files."""
import ast
import sys


def waits(node):
    """True of a loop that an event can end: a while loop, or a for loop with a way out."""
    return isinstance(node, ast.While) or (
        isinstance(node, ast.For) and any(isinstance(n, (ast.Return, ast.Break)) for n in ast.walk(node)))


def sleeps(node, in_loop=False):
    """The calls below node, each with true if a loop that waits repeats it."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.FunctionDef, ast.Lambda)):
            inside = False
        else:
            inside = in_loop or waits(child)
        if isinstance(child, ast.Call) and ast.unparse(child.func) in ("time.sleep", "sleep"):
            yield child, inside
        yield from sleeps(child, inside)


for path in sys.argv[1:]:
    with open(path, encoding="utf-8") as f:
        text = f.read()
    lines = text.splitlines()
    for call, in_loop in sleeps(ast.parse(text, path)):
        line = lines[call.lineno - 1]
        if not (in_loop or "random" in ast.unparse(call) or "  # " in line):
            print(f"{path}:{call.lineno}: {line.strip()}")
