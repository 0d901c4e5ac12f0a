#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""plsubmit --job-file and --write-job: random command lines mean the same as the files that they become, each
error names its line and column, and a model gives the precedence of the sources. PLUME_TEST_SEED repeats a
run. Argument: the build folder."""
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile

PLSUBMIT = os.path.join(os.path.abspath(sys.argv[1]), "plsubmit")
SEED = int(os.environ.get("PLUME_TEST_SEED") or random.randrange(10**9))
WORK = tempfile.TemporaryDirectory(prefix="plume-job-file-")
ENV = {"PATH": "/usr/bin:/bin", "HOME": WORK.name, "LC_ALL": "C.UTF-8",
       **{k: v for k, v in os.environ.items() if k.endswith("SAN_OPTIONS")}}
PIECES = ["a", "7", "null", "~", ": ", "#", " #", "- ", "*", "&", "!", "%", "@", "`", "'", '"', "\\", "é", "你", "{", "}",
          "[", "]", ",", "|", ">", "?", "=", "yes", "\u2028", "\ufeff", "\U0001f600", " ", "$HOME", "\u0085"]


def run(*args, **env):
    done = subprocess.run([PLSUBMIT, *args], cwd=WORK.name, env={**ENV, **env}, capture_output=True, timeout=60,
                          check=False, stdin=subprocess.DEVNULL)
    return done.returncode, done.stdout.decode(), done.stderr.decode()


def write(name, text):
    path = os.path.join(WORK.name, name)
    with open(path, "wb") as f:
        f.write(text if isinstance(text, bytes) else text.encode())
    return path


def word(extra=()):
    return "".join(random.choice(PIECES + list(extra)) for _ in range(random.randrange(1, 6)))


def free():
    """A text that an option takes: no control character."""
    return word().replace("\u0085", "x")


# One random value of each option that a file can have; None: the option is a flag.
VALUES = {
    "name": free, "max-parallel": lambda: str(random.randrange(1, 9)), "nodes": lambda: random.choice(["2", "1-3"]),
    "gpus-per-node": lambda: random.choice(["4", "a100:2"]), "gpus": lambda: "8", "gpus-per-task": lambda: "1",
    "gres": lambda: "gpu:2", "ntasks-per-node": lambda: "2", "ntasks": lambda: "4", "cpus-per-task": lambda: "3",
    "cpus-per-gpu": lambda: "5", "mem": lambda: "4G", "mem-per-cpu": lambda: "1G", "mem-per-gpu": lambda: "2G",
    "time": lambda: random.choice(["10", "1:30:00", "1-0"]), "partition": free, "account": free, "qos": free,
    "constraint": free, "nodelist": lambda: "n[1-3]", "exclude": free, "dependency": lambda: "afterok:7",
    "mail": lambda: "END", "mail-type": lambda: "END,FAIL", "mail-user": free, "comment": free, "output": free, "load": lambda: "m" + free(),
    "setup": free, "env": lambda: "V" + str(random.randrange(9)) + "=" + free(), "nccl-debug": lambda: "info",
    "nccl-ifname": free, "master-port": lambda: "7000-7999", "runs": lambda: "r" + random.choice(["uns", " x", "é"]),
    "metric": lambda: random.choice("abcd") + "=x([0-9]+)" + random.choice(["", ": ", "#", "é"]),
    "objective": lambda: random.choice(["min:loss", "max:acc@best"]),
    "sbatch": lambda: random.choice(["exclusive", "signal=USR1@90", "mem=3G", "open-mode=truncate", "nodes=2k", "gpus-per-node=0"]),
    "srun": lambda: random.choice(["mpi=pmix", "label-x=" + free()]), "trials": lambda: "1", "repeat": lambda: "2",
    "launch": lambda: random.choice(["ranks", "mpi"]), "num-processes": lambda: "2", "strategy": lambda: "ddp",
    "precision": lambda: "bf16", "hparam": lambda: "lr=0." + random.choice("123"), "max-requeues": lambda: "7", "where": lambda: "1 < 2", "literal": lambda: random.choice("xy"),
    "output-ranks": lambda: random.choice(["all", "0"]), "signal": lambda: "USR1@90", "venv": lambda: "it's an é", "conda": free, "on-end": lambda: "echo " + random.choice(["$PLUME_SWEEP", "'a: b'"]), "teardown": lambda: "echo " + random.choice(["$1", "'a: b'", "\"é#\""]),
    "requeue-on": lambda: random.choice(["preempt", "timeout:2,error", "hang:2"]),
    "on-hang": lambda: random.choice(["warn", "kill"]),
    "snapshot": lambda: random.choice(["tracked", "untracked"]),
    "local": lambda: random.choice(["0", "2"]), "max-fail": lambda: random.choice(["3", "20%"]),
    **{name: None for name in ("no-name", "no-nodes", "no-ntasks-per-node", "no-output", "no-open-mode", "strict",
                               "parsable", "wait")},
}
# Those of which a random command line has more than one, or that need each other, a sweep or a file.
AXES = {"container", "container-option", "snapshot-max", "save-command", "save-grace", "grid", "zip", "sample", "random", "seed", "after", "env-file", "sbatch-comment"}
# Those that no file can have.
NOT_IN_FILES = {"help", "version", "dry-run", "check", "expand", "show-config", "job-file", "write-job", "resume", "retry",
                "extend", "no-submit", "cancel", "hold", "release", "update"}


def all_options():
    """Each name here is an option of --help, and each of those is here: --write-job drops what no row names."""
    names = set(re.findall(r"^ +(?:-\w, )?--([a-z-]+)", run("--help")[1], re.M))
    here = set(VALUES) | AXES | NOT_IN_FILES
    assert not here - names, f"no options: {here - names}"
    assert not names - here, f"give values to these in VALUES, or name them in NOT_IN_FILES: {sorted(names - here)}"
    for name in NOT_IN_FILES - {"help", "version"}:
        code, _, err = run("--job-file", write("x.yaml", f"{name}: x\n"), "--expand", "true")
        assert code == 2 and "belongs on the command line" in err, (name, err)


FLAGS = ["strict", "parsable", "wait", "no-output", "no-nodes"]


def flags():
    """An option without a value is what the highest source says that names it; --write-job keeps what the command
    line and the job file say."""
    for _ in range(25):
        said = {s: {f: random.choice(["true", "false"]) for f in FLAGS if random.random() < 0.5} for s in ("site", "user", "job")}
        line = [f for f in FLAGS if random.random() < 0.2]
        os.makedirs(os.path.join(WORK.name, ".plume"), exist_ok=True)
        write("site.yaml", "".join(f"{f}: {v}\n" for f, v in said["site"].items()))
        write(".plume/plsubmit.yaml", "".join(f"{f}: {v}\n" for f, v in said["user"].items()))
        write("flags.yaml", "command: sh\n" + "".join(f"{f}: {v}\n" for f, v in said["job"].items()))
        args = ["--job-file", "flags.yaml", *("--" + f for f in line)]
        own = {**said["job"], **{f: "true" for f in line}}
        code, out, err = run(*args, "--write-job", "-", PLUME_SITE_FILE="site.yaml")
        assert code == 0 and dict(re.findall("^([a-z-]+): (true|false)$", out, re.M)) == own, (said, line, out, err)
        code, out, err = run(*args, "--show-config", PLUME_SITE_FILE="site.yaml")
        want = {**said["site"], **said["user"], **own}
        for f, option in [("no-output", "output"), ("no-nodes", "nodes")]:
            removed = re.search(rf"^{option} .*\(removed\)$", out, re.M)
            assert code == 0 and bool(removed) == (want.get(f) == "true"), (said, line, out, err)
        # A name with a secret's form is a warning, which --strict refuses.
        code, out, err = run(*args, "--env", "A_TOKEN=1", "--show-config", PLUME_SITE_FILE="site.yaml")
        assert (code == 2) == (want.get("strict") == "true"), (said, line, code, err)
    os.unlink(os.path.join(WORK.name, ".plume/plsubmit.yaml"))


def hparams():
    """A JSON file without options is one of hyper-parameters: each an axis of one value, as test-tube's json_config
    has it. The command line's --grid comes first."""
    for _ in range(25):
        values = {random.choice([f"h{i}"] * 3 + ["name", "seed"]) if i else "h0": random.choice([random.random(), random.randrange(-9, 10**12), True, False, "é,\"x", "range(1,2,2)",
                                          10.0 ** random.randrange(-20, 20), "", "1e-3"]) for i in range(random.randrange(1, 5))}
        text = json.dumps(values, indent=random.choice([None, 2]), ensure_ascii=random.random() < 0.5)
        want = {k: v if isinstance(v, str) else str(v) if isinstance(v, bool) else json.dumps(v) for k, v in values.items()}
        grid = random.choice([None, "h0", "other"])
        code, out, err = run("--job-file", write("h.json", text), *(["--grid", grid + "=a,b"] if grid else []), "--expand", "sh")
        trials = [json.loads(line)["params"] for line in out.splitlines()]
        assert code == 0 and trials == [{**want, **({grid: v} if grid else {})} for v in ("ab" if grid else "a")], (text, out, err)
        assert f"its {len(values)} keys are hyper-parameters" in err, err
        assert ("but 'name' or 'seed'" in err) == bool({"name", "seed"} & set(values)), err
        code, out, _ = run("--job-file", write("h.yaml", text), "--expand", "sh")
        assert code == 2 and not out, (text, out)
    for text, says in [('{"a": [1, 2], "b": 3}', "1:7: a: a hyper-parameter has one value; several are an axis"),
                       ('{"a": {"b": 3}}', "1:7: a: a hyper-parameter has one value"), ('{"a": null}', "a: there is no value"),
                       ('{"a": 1, "nodes": 2}', "unknown key 'a'"), ('{"a b": 1}', "a b")]:
        code, out, err = run("--job-file", write("h.json", text), "--expand", "sh")
        assert code == 2 and not out and says in err and "h.json:1:" in err, (text, out, err)


def axes():
    out, n_axes = [], random.randrange(0, 4)
    for i in range(n_axes):
        values = sorted({word(["\n", "\x1b"]) for _ in range(2)} | {"x"})[:2]
        text = ",".join('"' + v.replace('"', '""') + '"' for v in values)
        out += ["--grid", f"a{i}=" + random.choice([text, "range(1,2,2)", "log(1,4,2)", "1e-3,2"])]
    if n_axes > 1 and random.random() < 0.3:
        out += ["--zip", "a0,a1"]
    if random.random() < 0.2:
        out += ["--random", "2", "--seed", "3", "--sample", "s=float(0,1)", "--sample", "c=choice(a,\"b,\n\",c)"]
    return out


def masked(text):
    """Without the random part of the sweep's name."""
    for sweep in set(re.findall(r"[A-Za-z0-9_.-]+-[a-z2-7]{6}(?=/job\.sh)", text)):
        text = text.replace(sweep, "SWEEP")
    return text


def random_line():
    options = axes()
    for name in random.sample(sorted(VALUES), random.randrange(8)):
        value = [VALUES[name]()] if VALUES[name] else []
        options += ["--local=" + value[0]] if name == "local" else ["--" + name, *value]
    words = random.choice([[], ["sh"] + [word(["\n", "{a0}"]) for _ in range(random.randrange(4))]])
    if words and random.random() < 0.2:
        options += ["--container", os.path.join(WORK.name, "im 'é.sif"), "--container-option", random.choice(["nv", "bind=" + free()])]
    return same_meaning(options, words)


def same_meaning(options, words):
    path = os.path.join(WORK.name, "w.yaml")
    if os.path.exists(path):
        os.unlink(path)
    direct = run("--dry-run", *options, "--", *words)
    written = run("--write-job", "w.yaml", *options, "--", *words)
    assert written[0] == direct[0] and written[2] == direct[2], f"{options} {words}: {direct} {written}"
    if direct[0] != 0:
        assert not os.path.exists(path)
        return False
    again = run("--job-file", "w.yaml", "--dry-run")
    with open(path, encoding="utf-8") as f:
        text = f.read()
    assert masked(again[1]) == masked(direct[1]) and again[::2] == direct[::2], f"{options} {words}\n{text}\n{again}"
    # What is read and written once more is the same file, whatever the order of options was.
    assert run("--job-file", "w.yaml", "--write-job", "-")[1] == text
    return True


def random_lines():
    good = sum(random_line() for _ in range(40))
    assert good > 10, f"only {good} of 40 were valid"
    for value in "mem=3G", "open-mode=truncate", "nodes=2k", "gpus-per-node=0":  # the last two only sbatch reads
        assert same_meaning(["--sbatch", value], ["sh"]), value


ERRORS = [  # text of a file, what plsubmit says of it
    ("nodes: 0", "1:8: nodes: 0 is out of range"),
    ("nods: 2", "1:1: unknown key 'nods': did you mean nodes?"),
    ("a:\n  b\nnodes : x", "1:1: unknown key 'a'"),
    ("name: a\ngrid:\n  lr: [1, , 2]", "3:11: did not find expected node content: an item is empty"),
    ("grid: {lr: range(1,3,3)}", "1:12: lr: 'range(1' has no ')': within {} or [] a comma ends it"),
    ("grid: {lr: [log(1,3,3)]}", "1:13: lr: 'log(1' has no ')'"),
    ("grid: {a: range(1,3,3), b: range(1,2,3)}", "1:11: a: 'range(1' has no ')': within {} a comma ends it"),
    ("grid: {a: range(3,3,3)}", "1:11: a: 'range(3' has no ')'"),
    ("grid: {a: 1, b: f(1), a: 2}", "1:23: 'a' is given twice"),
    ("sample: {lr: log(1,3)}", "1:14: lr: 'log(1' has no ')'"),
    ("grid: {lr: [1,~]}", "1:15: lr: there is no value"),
    ("grid:\n  lr:\n  - 1\n  -\n", "4:4: lr: there is no value"),
    ("grid:\n  lr: []", "2:7: lr: the list is empty"),
    ("grid: {lr: [1, [2]]}", "1:16: lr: one value is needed, not a list"),
    ("grid: {lr: [1, 1]}", "1:8: grid: axis 'lr' has the value '1' twice"),
    ("grid: {lr: [1], l-r: [2], l_r: [3]}", "1:27: grid: axes 'l-r' and 'l_r'"),
    ("grid: {lr: [1]}\nname: é\ngrid: {b: [1]}", "3:1: 'grid' is given twice, first in line 1"),
    ("grid:\n  lr: 1,2", "2:7: lr: write a list"),
    ("grid: [lr=1]", "1:7: grid: write each axis in a line below"),
    ("grid:\n  lr: range(1,2)", "2:3: grid: axis 'lr'"),
    ("name: &x a", "1:7: '&x' is an anchor"),
    ("name: *x", "1:7: '*x' is an alias"),
    ("setup: [é, *x]", "1:12: '*x' is an alias"),
    ("setup: [*.py]", "1:10: did not find expected alphabetic or numeric character: quote"),
    ("nodes: !!int 3", "1:8: 'tag:yaml.org,2002:int' is a tag"),
    ("<<: {nodes: 1}", "1:1: unknown key '<<'"),
    ("\tnodes: 1", "1:1: found character that cannot start any token: indent with blanks"),
    ("nodes: 1\n  time: 2", "2:7: mapping values are not allowed"),
    ("setup:\n  - cd x: y", "2:5: setup: one value is needed, not a mapping: quote a text that has ': ' in it"),
    ('{"lr": [1, 2], "hidden": 3}', "1:2: unknown key 'lr', and no key of this file is an option: if they are "
     "hyper-parameters, put them below 'grid:'"),
    ("nodes: 2\nhidden: 3", "2:1: unknown key 'hidden': keys are the long options"),
    ("job-name: x", "1:1: job-name: unknown option '--job-name': write --name NAME"),
    ("name: ''", "1:7: name: the value is empty"),
    ("name:", "1:6: name: there is no value"),
    ('name: "1\\0"', "1:7: a text must not have a NUL in it"),
    ('name: "a\\n"', "1:7: name: 'a\\n' has a control character"),
    (b"name: a\nqos: \xff", "2:6: this is not valid UTF-8"),
    (b"name: a\nqos: a\x01", "2:7: control characters are not allowed"),
    ("strict: yes", "1:9: strict: write true or false"),
    ("command: a | b", "1:10: command: no shell reads it"),
    ("command: a $b", "1:10: command: no shell reads it"),
    ("command: \"a 'b\"", "1:10: command: the closing ' is missing"),
    ("command: ''", "1:10: command: there is no program"),
    ("command: []", "1:10: command: there is no program"),
    ("command: {a: b}", "1:10: command: write a text or a list"),
    ("load: {a: b}", "1:7: load: write a list"),
    ("env: [A=1, 7]", "1:12: env: "),
    ("env:\n  A: 1\n  RANK: 3", "3:3: env: each rank gets a RANK"),
    ("sbatch: {array: 1-3}", "1:10: sbatch: plsubmit sets --array itself"),
    ("metric: {loss: (}", "1:10: metric: "),
    ("[1]", "1:1: write 'KEY: VALUE' in each line"),
    ("? [a]\n: b", "1:3: a key is a word"),
    ("name: [", "2:1: did not find expected node content"),
    ("---\nname: a\n---\nname: b", "4:1: a second document begins"),
    ("name: " + "[" * 20, "1:14: lists are nested too deep"),
    ("".join(f"k{i}: 1\n" for i in range(1100)), "1025:1: a mapping has more than 1024 keys"),
]


def errors():
    for text, want in ERRORS:
        write("e.yaml", text)
        code, out, err = run("--job-file", "e.yaml", "--dry-run", "sh")
        assert code == 2 and out == "" and err.startswith(f"plsubmit: e.yaml:{want}"), f"{text!r}: {code} {err}"
        assert err.count("\n") == 1
    assert "cannot open 'none.yaml'" in run("--job-file", "none.yaml")[2]
    write("site.yaml", "qos: low\nname: x\n")
    code, _, err = run("--expand", "sh", PLUME_SITE_FILE="site.yaml")
    assert code == 2 and err.startswith("plsubmit: site.yaml:2:1: 'name' belongs to one sweep"), err
    write("f.yaml", "grid: {a: [1]}\n")
    code, _, err = run("--write-job", "f.yaml", "sh")
    assert code == 1 and "'f.yaml' exists" in err, err


def site_file_of_others():
    """Commands of the site's file run as the user: nobody but root may have written them."""
    for mode, owner, want in ("0644", "0", "qos: low"), ("0664", "0", None), ("0644", "65534", None):
        script = (f"mount -t tmpfs -o mode=0755 none /etc && mkdir /etc/plume && cd /etc/plume && echo 'qos: low' >plsubmit.yaml && "
                  f"chmod {mode} plsubmit.yaml && chown {owner} plsubmit.yaml && cd - >/dev/null || exit 77; exec \"$@\"")
        done = subprocess.run(["unshare", "--mount", "sh", "-c", script, "_", PLSUBMIT, "--show-config", "sh"], cwd=WORK.name,
                              env=ENV, capture_output=True, text=True, timeout=60, check=False, stdin=subprocess.DEVNULL)
        if done.returncode == 77 or "unshare" in done.stderr:
            print("# skipped: needs root and mounts")
            return
        said = (mode, owner, done.returncode, done.stdout, done.stderr)
        if want:
            assert done.returncode == 0 and "low" in done.stdout, said
        else:
            assert done.returncode == 2 and "plsubmit: '/etc/plume/plsubmit.yaml' belongs to user" in done.stderr, said


def texts():
    """Each value is the text that it shows, in every style of YAML."""
    write("t.yaml", "grid:\n  a: [1e-3, 007, yes, 0x1F, 1_000, 'it''s', \"q\\\"\", \"range(1,2,2)\", \"a,b\"]\n"
          "  b: 2024-01-01\ncommand: >\n  sh 'two words' \"a'b\" {a}\n  --b={b} x''y ''\n")
    code, out, err = run("--job-file", "t.yaml", "--expand")
    values = re.findall(r'"a":"(.*?)","b":"2024-01-01"', out)
    assert code == 0 and values == ["1e-3", "007", "yes", "0x1F", "1_000", "it's", 'q\\"', "range(1,2,2)", "a,b"], err
    out = run("--job-file", "t.yaml", "--write-job", "-")[1]
    assert 'command: [sh, "two words", "a\'b", "{a}", "--b={b}", xy, ""]' in out, out
    write("c.yaml", "# nothing but a comment\n")
    assert run("--job-file", "c.yaml", "--expand", "sh")[0] == 0
    write("l.yaml", "local: true\n")
    assert re.search("local +job file +0", run("--job-file", "l.yaml", "--show-config", "sh")[1])
    # JSON is YAML.
    write("j.yaml", '{"grid": {"lr": [0.1, 1e-2], "n": "3"}, "nodes": 2, "command": ["sh", "{lr}{n}"]}')
    assert '{"lr":"1e-2","n":"3"}' in run("--job-file", "j.yaml", "--expand")[1]


GROUPS = [{"mem", "mem-per-cpu", "mem-per-gpu"}, {"gpus", "gpus-per-node", "gpus-per-task"}]
PLAIN = {"partition": "PARTITION", "qos": "QOS", "time": "TIMELIMIT", "mem": "MEM_PER_NODE", "mem-per-cpu": "MEM_PER_CPU",
         "mem-per-gpu": "MEM_PER_GPU", "gpus": "GPUS", "gpus-per-node": "GPUS_PER_NODE"}
SOURCES = ["site file", "user file", "job file", "environment", "command line"]


def precedence():
    os.makedirs(os.path.join(WORK.name, ".plume"), exist_ok=True)
    for _ in range(25):
        given = {s: {k: str(random.randrange(1, 99)) for k in random.sample(sorted(PLAIN), random.randrange(4))}
                 for s in SOURCES}
        for group in GROUPS:  # sbatch judges two of one source, and of the environment and the command line
            for s in SOURCES:
                for k in sorted(group & set(given[s]))[1:]:
                    del given[s][k]
            if set(given[SOURCES[3]]) & group and set(given[SOURCES[4]]) & group:
                for k in group & set(given[SOURCES[3]]):
                    del given[SOURCES[3]][k]
        setup = {s: [s + c for c in "ab"[:random.randrange(3)]] for s in SOURCES if s != "environment"}
        paths = {}
        for s, path in zip(SOURCES, ("s.yaml", ".plume/plsubmit.yaml", "j.yaml")):
            paths[s] = write(path, "".join(f"{k}: {v}\n" for k, v in given[s].items()) +
                             "setup: [" + ", ".join(setup[s]) + "]\n")
        options = [f"--{k}={v}" for k, v in given[SOURCES[4]].items()] + [f"--setup={v}" for v in setup[SOURCES[4]]]
        env = {f"SBATCH_{PLAIN[k]}": v for k, v in given[SOURCES[3]].items()}
        code, out, err = run("--job-file", "j.yaml", *options, "--show-config", "sh", PLUME_SITE_FILE="s.yaml", **env)
        assert code == 0, err
        want, above = set(), set()
        for s in reversed(SOURCES):
            for k, v in given[s].items():
                rivals = {k}.union(*(g for g in GROUPS if k in g))
                want.add((k, s, v + (" (overridden)" if rivals & above else "")))
            above |= set(given[s])
        got = {tuple(re.split("  +", line, maxsplit=2)) for line in out.splitlines()}
        assert {g for g in got if g[0] in PLAIN} == want, f"{given}\n{out}\nwant {sorted(want)}"
        lines = [v for k, _, v in (re.split("  +", line, maxsplit=2) for line in out.splitlines()) if k == "setup"]
        assert lines == [v for s in SOURCES if s in setup for v in setup[s]], out
    # An axis keeps its place in the file and has the values of the command line.
    write("j.yaml", "grid: {a: [1], b: [2], c: [3]}\n")
    out = run("--job-file", "j.yaml", "--grid", "d=4", "--grid", "b=5,6", "--expand", "sh")[1]
    assert out.splitlines()[1] == '{"trial":1,"params":{"a":"1","b":"6","c":"3","d":"4"}}', out


def json_pairs():
    """What Python's json writes is read as it was, characters beyond U+FFFF and escapes among them."""
    values = {"".join(random.choice("\U0001f600\U0010ffff\ud7ff\u2028\x7f\\\"/é\t a") for _ in range(random.randrange(1, 9)))
              for _ in range(200)} | {"\\ud83d\\ude00", "\\\U0001f600", "\"\U0001f600\""}
    write("pairs.json", json.dumps({"grid": {"a": sorted(values)}, "command": ["sh", "{a}", "\U0001f600"]},
                                   indent=random.choice([None, 1, "\t"])))
    code, out, err = run("--job-file", "pairs.json", "--expand")
    assert code == 0, err
    got = [json.loads(line)["params"]["a"] for line in out.split("\n")[:-1]]
    assert got == sorted(values), f"{got} {values}"
    for text, place in (('{"name": "\\ud83d\\ude00 \\ud83d\\ude00", "nodess": 1}', "1:39: unknown key 'nodess': did you mean nodes?"),
                        ('{"name": "\\ude00\\ud83d", "nodes": 1}', "1:13: found invalid Unicode character escape code"),
                        ('name: "\\ud83d\\ude00"', "1:10: found invalid Unicode character escape code: write")):
        write("pairs.json", text)
        code, _, err = run("--job-file", "pairs.json", "--expand", "sh")
        assert code == 2 and f"pairs.json:{place}" in err, err


def main():
    random.seed(SEED)
    if "built without libyaml" in run("--job-file", write("x.yaml", ""), "--expand", "sh")[2]:
        print("1..0 # SKIP this build has no libyaml")
        sys.exit(77)
    if shutil.which("git"):  # --snapshot is of a repository
        subprocess.run(["git", "init", "-q", WORK.name], env=ENV, check=True)
    os.makedirs(os.path.join(WORK.name, "it's an é", "bin"))
    write("im 'é.sif", "")
    for name in "activate", "python":
        os.symlink("/bin/sh", os.path.join(WORK.name, "it's an é", "bin", name))
    tests = [all_options, errors, site_file_of_others, texts, flags, hparams, random_lines, precedence, json_pairs]
    print(f"1..{len(tests)}")
    for number, test in enumerate(tests, 1):
        try:
            test()
        except AssertionError as e:
            for line in str(e).splitlines():
                print(f"# {line}")
            print(f"not ok {number} {test.__name__} (PLUME_TEST_SEED={SEED})")
            sys.exit(1)
        print(f"ok {number} {test.__name__}")


main()
