#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Every command that a document gives runs, without a cluster. Arguments: the source folder, the build folder.

A command stands in an indented block whose first word is a program, or after `$ `; in a man page in EXAMPLES. bash runs
those of a document one after another in one folder, with the real tools in PATH. srun's options go to the real srun,
and its program runs on one node; sbatch is a stand-in. Whatever a document has is run, or named in a table here. Of
fenced blocks only C may be: tests/engine/examples.bats compiles it."""
import concurrent.futures
import contextlib
import glob
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading

SRC, BUILD = (os.path.realpath(a) for a in sys.argv[1:3])
# Of a document. ./dev test multiplies meson's limit, which a test does not see, so this is long; meson's SIGTERM ends
# the commands, too.
LIMIT_S = 400
running, stopped = set(), threading.Event()  # process groups; set by SIGTERM
DOCUMENTS = ["README.md", "HACKING.md", "examples/README.md", "doc/debug.md", "doc/from-lightning.md",
             "doc/from-test-tube.md", "doc/recipes.md", *(f"man/{n}.1" for n in ("plrun", "plstat", "plsubmit", "pltrain"))]

# Programs with which a block of commands begins, after any NAME=VALUE.
PROGRAMS = "plsubmit plstat plrun pltrain srun ./dev cc cp jq meson mkdir ps read xargs IFS".split()
# Blocks that are no commands: document, how each begins. A program that is misspelt is found by these, too.
OTHERS = [
    ("README.md", r"optional /usr/lib"),  # a line of plugstack.conf
    ("HACKING.md", r" login node"),  # a drawing
    ("doc/debug.md", r"CAUSE rank"),
    ("doc/from-lightning.md", r" *(class|def) |    least = "),  # Python, C
    ("doc/recipes.md", r"(rank|process) \d|\d+_0 |requeing job|(accelerate|huggingface)-\w{6}  done|lr 0|Optuna's trial"),
]
# Commands that are not run: document, how each begins, why.
SKIPPED = [
    ("doc/debug.md", "mkdir found && mv crash-*", "the fuzzer's own files; a build without clang has no fuzzer"),
    ("doc/debug.md", "ps -eo", "finds the processes of others"),
]
# Programs that others bring, or that would take minutes here: they are there and do nothing.
STUBS = {
    "ninja": "would build", "torchrun": "PyTorch", "gdb": "looks into a rank", "ip": "a node's",
    "kill": "signals a rank",
}
# Files that a reader is told to have; programs of ours are copied from examples/.
STAND_INS = {
    "train.py": "the reader's program", "train.sh": "the same", "train": "the same", "publish.sh": "the reader's next step",
    "venv/bin/activate": "of --setup", "pytorch.sif": "an image", "train.bin": "the reader's text",
    "model.safetensors": "weights of GPT-2, 500 MB: so the options are read only, by --list-hparams",
}
# Names that stand for others; the sweeps' are in the list of the user's sweeps below.
WORDS = {r"--jobid JOB\b": "--jobid 4800", r"\bJOB(ID)?\b": "4800_0", r"PID\.\.\.": "4194304", r"\bSWEEP\b": "ok-00a1b2"}
# Sweeps and jobs that documents name (sweep, job), each a copy of a folder of tests/fixtures/runs.
RUNS = {("ok-00a1b2", "4800"): "done", ("mlp-pk4m2u", "1"): "done", ("train-4kq2zd", "2"): "done", ("lr-x3k2ab", "3"): "done",
        ("x-37", "37"): "mixed", ("x-4711", "4711"): "mixed", ("x-4713", "4713"): "mixed"}

TOOLS = {
    # Options that take a separate value, as the documents write them: -w, --jobid.
    "srun": r"""options=()
plume=()
while [[ ${1:-} == -* ]]; do
    case $1 in
    --plume | --plume-*)
        grep -q "name = \"$(tr -d - <<<"${1:0:2}")$(cut -d= -f1 <<<"${1:2}")\"" "$SRC/spank_plugin/options.c" ||
            { echo "spank_plume.so has no option $1" >&2; exit 1; }
        plume+=("${1/#--plume-/--}") ;;
    -w | --jobid) options+=("$1" "$2"); shift ;;
    *) options+=("$1") ;;
    esac
    shift
done
SLURM_CONF=$SRUN_CONF srun.real "${options[@]}" --help >/dev/null || exit
[[ ! " ${plume[*]} " == *" --plume "* ]] || set -- plrun "${plume[@]#--plume}" -- "$@"
exec "$@" """,
    "plrun": """args=()
for a in "$@"; do [[ -z $a ]] || args+=("$a"); done
SLURM_JOB_ID=$$ exec "$BUILD/plrun" --tasks=2 -- "$BUILD/plrun" "${args[@]}" """,
    # What plsubmit would start: a program of Python is there, and pltrain knows its own options.
    "plsubmit": r""""$BUILD/plsubmit" "$@" || exit
for a; do [[ $a != *.py || -e $a ]] || { echo "no program $a" >&2; exit 1; }; done
while (($#)) && [[ $1 != pltrain ]]; do shift; done
(($#)) && { "$@" >&2 || exit; }
exit 0""",
    # Options only: ghosts ends processes, -w goes on. Without Slurm (4) the list has the user's sweeps alone.
    "plstat": r"""case " $* " in
*" ghosts "* | *" -w "*) set -- "$@" --help ;;
esac
"$BUILD/plstat" "$@" || { rc=$?; [[ $# == 0 && $rc == 4 ]] || exit "$rc"; }""",
    "pltrain": r"""case " $* " in
*" model.safetensors "*) set -- --list-hparams "$@" ;;
*" --predict "*) ;;
*) set -- --max-steps 1 --limit-val-batches 1 --limit-test-batches 1 "$@" ;;
esac
exec "$BUILD/pltrain" "$@" """,
    "python": '[[ -e $1 ]] || { echo "no program $1" >&2; exit 1; }',
    "sbatch": '[[ " $* " == *" --test-only "* ]] || echo 1000',
    "meson": r"""for o in "$@"; do
    [[ $o != -D* ]] || grep -q "'$(sed 's/^-D//; s/=.*//' <<<"$o")'" "$SRC/meson_options.txt" || exit
done
[[ $1 == setup ]]""",
    "dev": r"""[[ -e $SRC/dev.d/$1.bash ]] || exit
[[ $1 != test ]] || for suite in "${@:2}"; do grep -rqE "suite: .*'$suite'" --include=meson.build "$SRC/tests" || exit; done""",
}


def blocks(document):
    """Yields (line, [line of text, ...]) of each block that may have commands."""
    with open(f"{SRC}/{document}", encoding="utf-8") as f:
        lines = f.read().splitlines()
    block, first, fenced, literal, examples = [], 0, False, False, False
    for i, text in enumerate([*lines, ""], 1):
        if document.startswith("man/"):
            if text.startswith(".Sh "):
                examples = text == ".Sh EXAMPLES"
            literal = examples and (text.startswith(".Bd -literal") or literal and text != ".Ed")
            if examples and text.startswith(".Dl "):
                yield i, [unescape(text[4:])]
            inside, text = literal and text[:1] != ".", unescape(text)
        else:
            if fence := re.match(r" {0,3}(```|~~~)\s*(\w*)", text):
                if not fenced and fence[2] != "c":
                    yield i, [text]
                fenced = not fenced
            # An indented block follows an empty line; a list's text does not.
            inside = text.startswith("    ") and not fenced and (block or i == 1 or not lines[i - 2])
            text = text[4:]
        if inside:
            first = first if block else i
            block.append(text)
        elif block:
            yield first, block
            block = []
    if fenced:
        yield len(lines), ["``` without an end"]


def unescape(text):
    for old, new in (("\\e", "\\"), ("\\(aq", "'"), ("\\-", "-"), ("\\&", "")):
        text = text.replace(old, new)
    return text


def commands(first, block):
    """(line, command) of each in the block; None if it has none."""
    prompt = any(t.startswith("$ ") for t in block)
    word = re.sub(r"^(\w+=\S* +)*", "", block[0]).split()[0].partition("=")[0]
    if not prompt and word not in PROGRAMS:
        return None
    found, goes_on = [], False
    for i, text in enumerate(block, first):
        if goes_on:
            found[-1] = (found[-1][0], found[-1][1] + "\n" + text)
        elif not prompt or text.startswith("$ "):
            found.append((i, text.removeprefix("$ ") if prompt else text))
        else:
            continue
        goes_on = text.endswith(("\\", "|"))
    return found


def end_group(pid):
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def stop(*_):
    stopped.set()
    for pid in list(running):
        end_group(pid)


def run(document, todo, top):
    """Runs the commands of a document; returns what was wrong."""
    work = f"{top}/{document.replace('/', '+')}"
    os.makedirs(f"{work}/home/.plume", mode=0o700)
    with open(f"{work}/home/.plume/runs.jsonl", "w", encoding="utf-8") as index:
        for (sweep, job), fixture in RUNS.items():
            folder = f"{work}/runs/{sweep}"
            shutil.copytree(f"{SRC}/tests/fixtures/runs/{fixture}", folder)
            for path in filter(os.path.isfile, glob.glob(f"{folder}/**", recursive=True)):
                with open(path, "r+", encoding="utf-8") as f:
                    text = re.sub("lr-7f3a2c|ok-00a1b2", sweep, re.sub('"(4713|4800)', f'"{job}', f.read()))
                    f.seek(0)
                    f.write(text)
                    f.truncate()
            index.write(json.dumps({"sweep": sweep, "folder": folder, "jobs": [job], "time": 1700000000}) + "\n")
    for path in STAND_INS:
        os.makedirs(os.path.dirname(f"{work}/{path}"), exist_ok=True)
        with open(f"{work}/{path}", "w", opener=lambda p, flags: os.open(p, flags, 0o755), encoding="utf-8") as f:
            f.write("#!/bin/sh\n" + "# to read, or to be, or not to be\n" * 100)
    for path in glob.glob(f"{SRC}/examples/re*/*.py"):
        shutil.copy(path, work)
    open(f"{work}/slurm.conf", "w", encoding="utf-8").close()  # empty: nothing asks a controller
    os.symlink(f"{SRC}/examples", f"{work}/examples")
    os.symlink(f"{top}/bin/dev", f"{work}/dev")
    os.symlink(BUILD, f"{work}/build-fault")
    with open(f"{SRC}/{document}", encoding="utf-8") as f, open(f"{work}/net.c", "w", encoding="utf-8") as net:
        net.write("".join(re.findall(r"^```c\n(.*?)^```", f.read(), re.M | re.S)))
    script = ""
    for i, (_, command) in enumerate(todo):
        for old, new in WORDS.items():
            command = re.sub(old, new, command)
        script += f"eval {shlex.quote(command)} >out-{i} 2>err-{i}\necho $? >rc-{i}\n"
    env = {
        "PATH": f"{top}/bin:/usr/local/bin:/usr/bin:/bin", "HOME": f"{work}/home", "LC_ALL": "C.UTF-8", "SRC": SRC, "BUILD": BUILD,
        "SLURM_CONF": f"{work}/slurm.conf", "SRUN_CONF": f"{top}/slurm.conf", "PLUME_RUNTIME_DIR": f"{top}/r", "EXAMPLE_TEXT": f"{work}/train.sh",
        "PKG_CONFIG_PATH": top, "CUDA_VISIBLE_DEVICES": "",
        **{k: v for k, v in os.environ.items() if k.endswith("SAN_OPTIONS")}}
    with subprocess.Popen(["bash", "-o", "pipefail", "-c", script], cwd=work, stdin=subprocess.DEVNULL, env=env, start_new_session=True) as bash:
        running.add(bash.pid)
        try:
            if stopped.is_set():  # since before this one was in the set
                end_group(bash.pid)
            bash.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            end_group(bash.pid)
        finally:
            running.discard(bash.pid)
    wrong = []
    for i, (line, command) in enumerate(todo):
        told = {}
        for kind in ("rc", "out", "err"):
            with contextlib.suppress(FileNotFoundError), open(f"{work}/{kind}-{i}", encoding="utf-8", errors="replace") as f:
                told[kind] = f.read().strip()
        text = told.get("err") or told.get("out", "")
        if not told.get("rc"):
            wrong.append(f"{document}:{line}: '{command}' timed out, and {len(todo) - i - 1} after it did not run: {text}")
            break
        if told["rc"] != "0":
            wrong.append(f"{document}:{line}: '{command}' exits with {told['rc']}: {text}")
    return wrong


def main():
    missing = [p for p in ("srun", "jq", "cc", "pkg-config", f"{BUILD}/plsubmit") if not shutil.which(p)]
    if missing:
        print(f"1..0 # SKIP without {missing}")
        return 0
    signal.signal(signal.SIGTERM, stop)
    wrong, todo, used = [], {}, set()
    for document in DOCUMENTS:
        todo[document] = []
        for first, block in blocks(document):
            found = commands(first, block)
            if found is None:
                rows = [r for r in OTHERS if r[0] == document and re.match(r[1], block[0])]
                used.update(rows)
                if not rows:
                    wrong.append(f"{document}:{first}: neither a command nor in OTHERS: '{block[0]}'")
            for line, command in found or ():
                rows = [r for r in SKIPPED if r[0] == document and command.startswith(r[1])]
                used.update(rows)
                if not rows:
                    todo[document].append((line, command))
    wrong += [f"no document has this row any more: {r}" for r in (*OTHERS, *SKIPPED) if r not in used]
    text = "\n".join(c for d in todo.values() for _, c in d)
    wrong += [f"no command has this word any more: {w}" for w in (*STUBS, *STAND_INS) if not re.search(rf"(?<![\w.-]){re.escape(w)}(?![\w-])", text)]
    wrong += [f"no command has this run any more: {r}" for r in RUNS if not any(re.search(rf"\b{n}(_\d+)?\b", text) for n in r) and r[1] != "4800"]
    wrong += [f"no command has this word any more: {w}" for w in WORDS if not re.search(w, text)]
    wrong += [f"{d}: no command found" for d in DOCUMENTS if not todo[d]]
    with tempfile.TemporaryDirectory(prefix="plume-doc-") as top, concurrent.futures.ThreadPoolExecutor(4) as pool:
        os.mkdir(f"{top}/bin")
        for name, body in {**TOOLS, **{n: "exit 0" for n in STUBS}}.items():
            with open(f"{top}/bin/{name}", "w", opener=lambda p, flags: os.open(p, flags, 0o755), encoding="utf-8") as f:
                f.write(f"#!/bin/bash\n{body}\n")
        with open(f"{BUILD}/meson-private/plume-module.pc", encoding="utf-8") as f, open(f"{top}/plume-module.pc", "w", encoding="utf-8") as pc:
            pc.write(re.sub(r"(?m)^prefix=.*", f"prefix={SRC}", f.read()))
        os.symlink(shutil.which("srun"), f"{top}/bin/srun.real")
        with open(f"{top}/slurm.conf", "w", encoding="utf-8") as f:
            f.write("ClusterName=x\nSlurmctldHost=localhost\n")
        for told in pool.map(lambda d: run(d, todo[d], top), DOCUMENTS):
            wrong += told
    print("1..1")
    for line in wrong:
        print("# " + line.replace("\n", "\n#     "))
    print("ok 1" if not wrong else "not ok 1", f"- {sum(map(len, todo.values()))} commands of {len(DOCUMENTS)} documents run")
    return bool(wrong)


sys.exit(main())
