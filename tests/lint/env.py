# SPDX-License-Identifier: MIT
"""Compares the table of environment variables with sources and man pages.

argv[1]: "ROW NAME USER | USER ..." of each row; stdin: the C sources and the templates. One line a finding."""
import re
import sys

PAGES = {"PLSUBMIT": "man/plsubmit.1", "PLSTAT": "man/plstat.1", "PLRUN": "man/plrun.1",
         "PLRUND": "man/plrund.8", "PLTRAIN": "man/pltrain.1", "PLUGIN": "man/spank_plume.8",
         "RANK": "man/plrun.1"}
# "As for plrun(1)": a page that includes another one.
ALSO = {"man/plrund.8": "man/plrun.1"}
# The folder of a tool: what it reads must be marked as its own in the table.
FOLDERS = {"launcher/plsubmit/": "PLSUBMIT", "launcher/plstat/": "PLSTAT",
           "runtime/plrun/": "PLRUN", "runtime/plrund/": "PLRUND", "runtime/pltrain/": "PLTRAIN",
           "runtime/engine/": "PLTRAIN", "spank_plugin/": "PLUGIN"}
# Slurm's own names of the plugin's options, which no table can have.
# PLUME_FAIL of fault.c is in no default build, so in no table either.
GETENV = {"common/base/env.c", "common/base/fault.c", "spank_plugin/options.c"}
# Other programs' variables that a page may name.
FOREIGN = re.compile(r"SLURM_|SBATCH_|LANG$|LC_ALL$|LOGNAME$|TMPDIR$|USER$")


def environment(page):
    """The names in the section ENVIRONMENT of a page; a name may end with '*'."""
    with open(page) as f:
        text = f.read()
    section = re.search(r"^\.Sh ENVIRONMENT\n(.*?)(?=^\.Sh )", text, re.M | re.S)
    names = set()
    for line in section.group(1).splitlines() if section else []:
        if re.match(r"\.(It )?Ev ", line):
            names.update(re.findall(r"\b[A-Z][A-Z_0-9]+\*?", re.sub(r"\bAr \w+", "", line)))
    return names


def main():
    table = {}
    for row in re.split(r"\bROW\b", sys.argv[1]):
        words = re.findall(r"\w+", row)
        if words:
            table[words[0]] = set(words[1:])
    pages = {page: environment(page) for page in PAGES.values()}

    for name, users in table.items():
        for user in sorted(users & PAGES.keys()):
            page = PAGES[user]
            named = pages[page] | pages.get(ALSO.get(page), set())
            if name not in named and not any(
                    n.endswith("*") and name.startswith(n[:-1]) and n != "PLUME_*" for n in named):
                print(f"{page}:1: the section ENVIRONMENT lacks {name}")
    for page, names in sorted(pages.items()):
        readers = {user for user, p in PAGES.items() if p == page}
        readers |= {user for user, p in PAGES.items() if ALSO.get(p) == page}
        for name in sorted(names):
            if name.endswith("*") or name.endswith("_") or FOREIGN.match(name):
                continue
            if name not in table:
                print(f"{page}:1: {name} is not in common/base/env_table.h")
            elif not table[name] & readers and "spank" not in page and page not in ALSO:
                print(f"{page}:1: env_table.h says that no tool of this page reads {name}")

    used = set()
    for path in sys.stdin.read().split():
        if re.match(r"tests/|bench/|examples/|common/base/env", path):
            continue
        with open(path) as f:
            lines = f.read().splitlines()
        user = next((u for folder, u in FOLDERS.items() if path.startswith(folder)), None)
        for number, line in enumerate(lines, 1):
            if re.search(r"\b(secure_)?getenv\s*\(\s*[^)\s]", line) and path not in GETENV:
                print(f"{path}:{number}: getenv(): use pl_env() and common/base/env_table.h")
            for name in re.findall(r"\bPL_ENV_([A-Z][A-Z_0-9]*)", line):
                if name not in table:
                    continue
                used.add(name)
                if user and "(PL_ENV_" in line and user not in table[name]:
                    print(f"{path}:{number}: env_table.h does not name {user} as a user of {name}")
            used.update(n for n in re.findall(r"[A-Z_]{3,}", line)
                        if f'"{n}' in line or path.startswith("templates/"))
    for name in sorted(table.keys() - used):
        if "DEVELOPER" not in table[name]:
            print(f"common/base/env_table.h:1: nothing reads or sets {name}")


main()
