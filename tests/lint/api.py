# SPDX-License-Identifier: MIT
"""Compares man/plume-module.7 with the headers of the module interface (include/plume).

Without arguments: one line a finding. With --entry NAME...: the entries of these functions for the
page, made of the headers' signatures and comments; a person reads them over."""
import glob
import re
import sys

PAGE = "man/plume-module.7"
COMMENT = r"/\*(?P<comment>(?:[^*]|\*(?!/))*)\*/\s*"
FUNCTION = re.compile(r"(?:" + COMMENT + r")?^static inline\s+(?P<type>[\w\s]+?[\s*]+)(?P<name>plume_\w+)"
                      r"\((?P<args>[^{;]*?)\)\s*\{", re.M)
HOOK = re.compile(r"(?:" + COMMENT + r")?^    (?P<type>[\w ]+?[ *]+)\(\*(?P<name>\w+)\)\((?P<args>[^;]*?)\);",
                  re.M)


def plain(text):
    """One space between words, none around stars and brackets."""
    text = re.sub(r"\s+", " ", text).strip()
    return re.sub(r"\s*\*\s*", " *", text).replace("* *", "**").replace(" *)", " *)")


def signature(match):
    args = [plain(a) for a in re.split(r",(?![^(]*\))", match["args"])]
    return plain(match["type"]), match["name"], args


def functions():
    found = {}
    for path in sorted(glob.glob("include/plume/*.h")):
        with open(path) as f:
            for match in FUNCTION.finditer(f.read()):
                found[match["name"]] = (signature(match), match["comment"], path)
    return found


def hooks():
    with open("include/plume/module.h") as f:
        body = re.search(r"^struct plume_module \{\n(.*?)^\};", f.read(), re.M | re.S)[1]
    return {m["name"]: (signature(m), m["comment"], "include/plume/module.h")
            for m in HOOK.finditer(body)}


def on_page():
    """{name: (type, name, args)} of each .Ft and .Fn of the page."""
    found, kind = {}, None
    with open(PAGE) as f:
        for line in f:
            if line.startswith(".Ft "):
                kind = plain(line[4:].strip().strip('"'))
            if line.startswith(".Fn ") and kind:
                words = re.findall(r'"([^"]*)"|(\S+)', line[4:])
                words = [a or b for a, b in words]
                found[words[0]] = (kind, words[0], [plain(w) for w in words[1:]])
                kind = None
    return found


def entry(this, comment):
    kind, name, args = this
    text = re.sub(r"\n\s*\*", "\n", comment or "")
    text = re.sub(r"\s+", " ", text).strip()
    text = re.sub(r"([.:;?]) (?=[A-Z0-9])", r"\1\n", text).replace("\\", "\\e")
    text = re.sub(r"^([.'])", r"\\&\1", text, flags=re.M)
    quoted = " ".join(f'"{a}"' for a in args)
    return f'.Ft "{kind}"\n.Fn {name} {quoted}\n.Pp\n{text}\n' if text else \
        f'.Ft "{kind}"\n.Fn {name} {quoted}\n'


def main():
    headers = {**functions(), **hooks()}
    if sys.argv[1:2] == ["--entry"]:
        for name in sys.argv[2:]:
            print(entry(*headers[name][:2]), end="")
        return
    page = on_page()
    if not functions() or not hooks():
        print("include/plume: no functions or no hooks are found")
    for name, (this, _, path) in headers.items():
        if name not in page:
            print(f"{PAGE}:1: {name}() of {path} is missing; its entry: "
                  f"python3 tests/lint/api.py --entry {name}")
        elif page[name] != this:
            print(f"{PAGE}:1: {name}() is {this} in {path}, {page[name]} on the page")
    for name in page:
        if name not in headers and name != "plume_module_entry":
            print(f"{PAGE}:1: {name}() is in no header")


main()
