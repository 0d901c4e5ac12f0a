#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""plsubmit --snapshot copies what git tracks, as the working tree has it, runs nothing of the repository, and
leaves nothing when it fails. A model knows the files of random repositories. PLUME_TEST_SEED repeats a run.
Argument: the build folder."""
import glob
import hashlib
import json
import os
import re
import random
import shutil
import subprocess
import sys
import tempfile

if not shutil.which("git"):
    print("1..0 # SKIP no git")
    sys.exit(77)
PLSUBMIT = os.path.join(os.path.abspath(sys.argv[1]), "plsubmit")
SEED = int(os.environ.get("PLUME_TEST_SEED") or random.randrange(10**9))
TOP = tempfile.TemporaryDirectory(prefix="plume-snapshot-")
CONFIG = os.path.join(TOP.name, "gitconfig")
ENV = {"PATH": os.environ["PATH"], "HOME": TOP.name, "LC_ALL": "C.UTF-8", "GIT_CONFIG_GLOBAL": CONFIG,
       "GIT_CONFIG_NOSYSTEM": "1", **{k: v for k, v in os.environ.items() if k.endswith("SAN_OPTIONS")}}
NAMES = ["a", "b c", "new\nline", '"q"', "-x", "é", "$(touch ran)", "back\\slash", "*", "d/e", "d/f g/h", "d/i",
         ":(top)z"]


def run(*args, cwd, code=0, **env):
    done = subprocess.run(args, cwd=cwd, env={**ENV, **env}, capture_output=True, timeout=60, check=False,
                          stdin=subprocess.DEVNULL)
    assert done.returncode == code, (args, done.returncode, done.stdout, done.stderr)
    return done.stdout.decode(), done.stderr.decode()


def git(cwd, *args):
    return run("git", *args, cwd=cwd)[0].strip()


def write(*path, text="", mode=0o644):
    path = os.path.join(*path)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as f:
        f.write(text)
    os.chmod(path, mode)


def repository(name):
    path = os.path.join(TOP.name, name)
    os.mkdir(path)
    git(path, "init", "-q")
    return path


def submit(repo, *args, code=0, **env):
    """The snapshot of a run folder that is not submitted, and what was said; None without one."""
    out, err = run(PLSUBMIT, "--no-submit", "--parsable", "--runs", os.path.join(TOP.name, "runs"), *args, cwd=repo,
                   code=code, **env)
    return (os.path.join(out.split(";")[1], "snapshot") if out else None), err


def tree(folder):
    """Path: the text and mode of a file, or the target of a link."""
    found = {}
    for base, folders, files in os.walk(folder):
        for name in files + [f for f in folders if os.path.islink(os.path.join(base, f))]:
            path = os.path.join(base, name)
            if os.path.islink(path):
                found[os.path.relpath(path, folder)] = os.readlink(path)
            else:
                assert os.stat(path).st_mode & 0o77 == 0, path
                with open(path, encoding="utf-8") as f:
                    found[os.path.relpath(path, folder)] = (f.read(), bool(os.stat(path).st_mode & 0o100))
    return found


def random_repository(number):
    repo = repository(f"random{number}")
    tracked, loose = {}, {}
    for name in random.sample(NAMES, 8):
        kind = random.random()
        text = name * random.randrange(3)
        if kind < 0.15:
            os.makedirs(os.path.join(repo, os.path.dirname(name)), exist_ok=True)
            os.symlink("nowhere", os.path.join(repo, name))
            loose[name] = "nowhere"
        else:
            write(repo, name, text=text, mode=0o755 if kind > 0.8 else 0o644)
            loose[name] = (text, kind > 0.8)
    for name in list(loose):
        if random.random() < 0.7:
            git(repo, "--literal-pathspecs", "add", "--", name)
            tracked[name] = loose.pop(name)
    if random.random() < 0.8:
        git(repo, "commit", "-q", "--allow-empty", "-m", "one")
    for name in list(tracked):
        chance = random.random()
        path = os.path.join(repo, name)
        if chance < 0.2:
            os.unlink(path)
            del tracked[name]
        elif chance < 0.4 and not os.path.islink(path):
            write(repo, name, text="changed")
            tracked[name] = ("changed", False)
    if random.random() < 0.5:  # the folder of tracked files becomes a link
        if os.path.isdir(os.path.join(repo, "d")):
            os.rename(os.path.join(repo, "d"), os.path.join(TOP.name, f"away{number}"))
        os.symlink(os.path.join(TOP.name, f"away{number}"), os.path.join(repo, "d"))
        for files in (tracked, loose):
            for name in [n for n in files if n.startswith("d/")]:
                del files[name]
        loose["d"] = os.path.join(TOP.name, f"away{number}")
    write(repo, ".git", "info", "exclude", text="ignored\n")
    write(repo, "ignored", text="x")
    got, _ = submit(repo, "--snapshot", "true")
    assert tree(got) == tracked, (number, tree(got), tracked)
    got, _ = submit(repo, "--snapshot=untracked", "true")
    assert tree(got) == {**tracked, **loose}, (number, tree(got), tracked, loose)


def test_random():
    for number in range(6):
        random_repository(number)


def test_links():
    repo = repository("links")
    write(repo, "in", "file", text="x")
    for name, target in {"in/same": "file", "in/up": "../in/file", "in/out": "../../away", "whole": repo + "/in/file",
                         "other": "/etc/passwd"}.items():
        os.symlink(target, os.path.join(repo, name))
    git(repo, "add", "-A")
    got, _ = submit(repo, "--snapshot", "true")
    links = tree(got)
    assert links["in/same"] == "file" and links["in/up"] == "../in/file" and links["other"] == "/etc/passwd", links
    assert os.path.normpath(links["in/out"]) == os.path.join(TOP.name, "away"), links
    assert links["whole"] == got + "/in/file" and os.path.exists(links["whole"]), links


def test_runs_in_the_repository():
    """The folder of runs may be around the sources, or have some; an older run is in no snapshot."""
    repo = repository("around")
    write(repo, "train.py", text="x")
    write(repo, "sub", "y", text="y")
    git(repo, "add", "-A")
    write(repo, "new", text="z")
    for runs in (repo, TOP.name, os.path.join(repo, "sub"), os.path.join(repo, "other"), repo):
        for mode, files in (("tracked", {"train.py", "sub/y"}), ("untracked", {"train.py", "sub/y", "new"})):
            got, err = submit(repo, "--runs", runs, f"--snapshot={mode}", "cat", "train.py")
            assert set(tree(got)) == files and not err, (runs, mode, tree(got), err)


def test_submodules():
    library = repository("library")
    write(library, "lib.py", text="1")
    git(library, "add", "-A")
    git(library, "commit", "-qm", "one")
    repo = repository("modules")
    write(repo, "sub", "main", text="1")
    git(repo, "submodule", "--quiet", "add", library, "deep/lib")
    git(repo, "add", "-A")
    git(repo, "commit", "-qm", "one")
    write(repo, "deep", "lib", "lib.py", text="2")
    write(repo, "deep", "lib", "new", text="3")
    os.makedirs(os.path.join(repo, "own"))
    git(os.path.join(repo, "own"), "init", "-q")
    got, _ = submit(os.path.join(repo, "sub"), "--snapshot", "true")
    assert set(tree(got)) == {".gitmodules", "deep/lib/lib.py", "sub/main"} and tree(got)["deep/lib/lib.py"][0] == "2"
    got, err = submit(repo, "--snapshot=untracked", "true")
    assert tree(got)["deep/lib/new"][0] == "3" and "the snapshot lacks 'own/', a repository of its own" in err, err
    with open(os.path.join(os.path.dirname(got), "sweep.json"), encoding="utf-8") as f:
        record = json.load(f)["snapshot"]
    assert record["commit"] == git(repo, "rev-parse", "HEAD") and record["repository"] == os.path.realpath(repo), record
    assert record["files"] == 4, record
    git(repo, "submodule", "--quiet", "deinit", "-f", "deep/lib")
    _, err = submit(repo, "--snapshot", "true")
    assert "lacks submodule 'deep/lib', which is not checked out" in err, err


def test_runs_nothing():
    """git status runs a program of this repository's configuration; a snapshot runs none."""
    mark = os.path.join(TOP.name, "mark")
    evil = os.path.join(TOP.name, "evil")
    write(evil, text=f"#!/bin/sh\necho \"$0\" >>{mark}\ncat\n", mode=0o755)
    repo = repository("hostile")
    write(repo, "file", text="x")
    write(repo, ".gitattributes", text="* filter=evil diff=evil\n")
    git(repo, "add", "-A")
    git(repo, "commit", "-qm", "one")
    for hook in ("post-index-change", "fsmonitor-watchman", "post-checkout"):
        write(repo, ".git", "hooks", hook, text=f"#!/bin/sh\necho hook >>{mark}\n", mode=0o755)
    for key in ("core.fsmonitor", "core.sshCommand", "core.pager", "core.editor", "core.askPass", "filter.evil.clean",
                "filter.evil.smudge", "filter.evil.process", "diff.external", "diff.evil.textconv", "pager.ls-files"):
        git(repo, "config", key, evil)
    git(repo, "config", "alias.ls-files", f"!{evil}")
    git(repo, "config", "remote.evil.url", f"ext::{evil}")
    git(repo, "config", "remote.evil.promisor", "true")
    git(repo, "config", "extensions.partialClone", "evil")
    write(repo, "file", text="y")
    subprocess.run(["git", "status"], cwd=repo, env=ENV, capture_output=True, timeout=60, check=False)
    assert os.path.exists(mark), "the trap does not work"
    os.unlink(mark)
    got, _ = submit(repo, "--snapshot", "true")
    assert tree(got)["file"][0] == "y"
    got, _ = submit(repo, "--snapshot=untracked", "true")
    assert not os.path.exists(mark), mark
    # An index with a path that leads out of the snapshot.
    hash_ = subprocess.run(["git", "hash-object", "-w", "--stdin"], cwd=repo, env=ENV, input=b"", capture_output=True,
                           check=True).stdout.decode().strip()
    index = os.path.join(repo, ".git", "index")
    os.unlink(index)
    subprocess.run(["git", "update-index", "--add", "--cacheinfo", f"100644,{hash_},xx/out"], cwd=repo, env=ENV,
                   check=True, stderr=subprocess.DEVNULL)
    with open(index, "rb") as f:
        data = f.read()[:-20].replace(b"xx/out", b"../out")
    with open(index, "wb") as f:
        f.write(data + hashlib.sha1(data).digest())
    write(TOP.name, "out", text="out")
    _, err = submit(repo, "--snapshot", "true", code=2)
    assert "git lists '../out', which is not a path" in err, err


def test_refusals():
    repo = repository("refusals")
    write(repo, "train.sh", text="#!/bin/sh\n", mode=0o755)
    write(repo, "new.sh", text="#!/bin/sh\n", mode=0o755)
    write(repo, "big", text="x" * 3000000)
    git(repo, "add", "train.sh", "big")
    before = set(os.listdir(os.path.join(TOP.name, "runs")))
    for args, words in [
            (("--snapshot", "--snapshot-max=2M", "true"),
             "the snapshot would have 3.0 MB in 2 files, more than 2.1 MB; the largest is 'big', 3.0 MB"),
            (("--snapshot", "./new.sh"), "program './new.sh' is not in the snapshot: git add it"),
            (("--snapshot=all", "true"), "'all' is not 'tracked' or 'untracked'"),
            (("--snapshot-max=1G", "true"), "option '--snapshot-max' needs '--snapshot'"),
            (("--snapshot", "--sbatch", "chdir=/tmp", "true"), "omit one of them"),
            (("--strict", "--snapshot", "sh", "new.sh"), "'new.sh' is not in the snapshot"),
            (("--strict", "--snapshot", "sh", "-x=new.sh"), "'new.sh' is not in the snapshot"),
            (("--strict", "--snapshot", "sh", "./.git/"), "'./.git/' is not in the snapshot"),
            (("--strict", "--snapshot", "sh", os.path.join(os.path.realpath(repo), "train.sh")),
             "names the original file, not its copy in the snapshot")]:
        _, err = submit(repo, *args, code=2)
        assert words in err, (args, err)
    _, err = submit(TOP.name, "--snapshot", "true", code=2)
    assert "not a git repository" in err, err
    _, err = submit(repo, "--snapshot", "/bin/true", code=2, PATH="/nonexistent")
    assert "needs git" in err, err
    assert set(os.listdir(os.path.join(TOP.name, "runs"))) == before
    for args in (("--snapshot=untracked", "./new.sh", "./", "-x=./big"),
                 ("--snapshot", "--snapshot-max=4M", "./train.sh")):
        got, err = submit(repo, *args)
        assert not err and "big" in tree(got), err
    # Without Slurm the run folder goes, and the snapshot with it.
    run(PLSUBMIT, "--runs=own", "--snapshot", "./train.sh", cwd=repo, code=1, PATH=git_only())
    assert os.listdir(os.path.join(repo, "own")) == []


def git_only():
    """PATH with git alone: there is no sbatch."""
    folder = os.path.join(TOP.name, "only")
    os.mkdir(folder)
    os.symlink(shutil.which("git"), os.path.join(folder, "git"))
    return folder


def no_run_folder(err, why):
    text = f"plsubmit: cannot create run folder '{re.escape(TOP.name)}/runs/[^/']+': {re.escape(why)}\n"
    assert re.fullmatch(text, err), err


def test_disk_is_full():
    """A network file system reports it when a file is closed: no job begins with half of its files."""
    library = os.environ.get("FAKE_STALE")
    if not library:  # a sanitizer's runtime must be loaded first
        print("# skipped: nothing can be preloaded")
        return
    repo = repository("full")
    write(repo, "train.sh", text="#!/bin/sh\n", mode=0o755)
    git(repo, "add", "-A")
    git(repo, "commit", "-qm", "1")
    folders = set(os.listdir(os.path.join(TOP.name, "runs")))
    _, err = submit(repo, "--snapshot", "./train.sh", code=2, LD_PRELOAD=library, FAKE_STALE="/",
                    FAKE_STALE_LATE="1", FAKE_STALE_DIR="/snapshot/")
    no_run_folder(err, "cannot copy 'train.sh' to the snapshot: Stale file handle")
    assert set(os.listdir(os.path.join(TOP.name, "runs"))) == folders


def test_no_links():
    """A file system without links is no refusal of a folder that is not the user's own: the exit code."""
    library = os.environ.get("FAKE_STALE")
    if not library:
        print("# skipped: nothing can be preloaded")
        return
    repo = repository("no-links")
    write(repo, "train.sh", text="#!/bin/sh\n", mode=0o755)
    os.symlink("train.sh", os.path.join(repo, "a-link"))
    git(repo, "add", "-A")
    git(repo, "commit", "-qm", "1")
    _, err = submit(repo, "--snapshot", "./train.sh", code=2, LD_PRELOAD=library, FAKE_STALE="/",
                    FAKE_STALE_LATE="1", FAKE_STALE_DIR="/snapshot")
    no_run_folder(err, "cannot copy 'a-link' to the snapshot: Operation not supported")


def test_runs_there():
    """What is changed after the submission does not reach the trial; a folder and its set-up are the snapshot's."""
    repo = repository("there")
    write(repo, "sub", "train.sh", text="#!/bin/sh\necho first $(cat ../data) $SETUP; pwd\n", mode=0o755)
    write(repo, "data", text="1")
    git(repo, "add", "-A")
    out, _ = run(PLSUBMIT, "--local", "--snapshot", "--no-submit", "--parsable", "--setup",
                 'export SETUP="$(cat ../data) $PLUME_SUBMIT_DIR"', "./train.sh", cwd=repo + "/sub")
    sweep, folder, _ = out.strip().split(";")
    write(repo, "sub", "train.sh", text="#!/bin/sh\necho second\n", mode=0o755)
    write(repo, "data", text="2")
    run(PLSUBMIT, "--resume", sweep, "--wait", cwd="/")
    with open(os.path.join(folder, "trial-0000", "attempt-0", "rank-0.out"), encoding="utf-8") as f:
        assert f.read() == f"first 1 1 {repo}/sub\n{folder}/snapshot/sub\n"
    assert not glob.glob(repo + "/sub/runs/.*")


def main():
    random.seed(SEED)
    write(CONFIG, text="[user]\nname = n\nemail = a@b\n[protocol \"file\"]\nallow = always\n[init]\ndefaultBranch = m\n"
                       "[advice]\naddEmbeddedRepo = false\n")
    os.mkdir(os.path.join(TOP.name, "runs"))
    tests = [f for name, f in globals().items() if name.startswith("test_")]
    print(f"1..{len(tests)}\n# PLUME_TEST_SEED={SEED}", flush=True)
    failed = 0
    for number, test in enumerate(tests, 1):
        try:
            test()
            print(f"ok {number} {test.__name__}", flush=True)
        except Exception as e:  # pylint: disable=broad-except
            failed += 1
            print(f"not ok {number} {test.__name__}\n# {e!r}", flush=True)
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
