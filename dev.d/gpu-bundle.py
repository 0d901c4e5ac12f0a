#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Packs the engine, its kernels, tests and benchmarks into a folder that gcc and nvcc alone build:
gpu-bundle.py SOURCE BUILD TARGET. What belongs to it and how it is compiled comes from the build
folder (meson's list of tests, ninja's commands), so that nothing is listed twice."""
import json
import os
import re
import shlex
import shutil
import subprocess
import sys

# What tests and benchmarks may be built of; others need packages that such a machine has not.
FOLDERS = ("common/base", "common/proto/rank", "include", "kernels", "runtime/engine",
           "runtime/pltrain", "examples", "modules", "bench",
           "tests/kernels", "tests/unit", "tests/engine", "tests/cuda", "tests/fakes",
           "tests/graphs", "tests/lib", "tests/gpu", "tests/golden", "tests/fixtures", "data")
FOREIGN = re.compile(r"-l?(jansson|uv|sodium|slurm|mpi|sz|python)\b|lib(jansson|uv|sodium|slurm|mpi)")
SKIPPED_SUITES = {"cli", "daemon", "cluster", "fault", "fuzz", "lint"}
TOOLS = {"cc", "gcc", "c++", "g++", "gcc-ar", "ar", "nvcc", "rm"}


def run(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


class Bundle:
    def __init__(self, source, build, target):
        self.source, self.build, self.target = map(os.path.realpath, (source, build, target))
        self.commands = {}  # text: number
        self.numbers = {}  # ninja's command: number
        self.why_not = {}  # ninja's command: why it cannot be packed, or None
        self.order = []
        self.folders = {"."}
        self.left_out = []
        self.needs = {}
        with open(os.path.join(build, "meson-info", "intro-targets.json"), encoding="utf-8") as f:
            self.targets = {t["id"]: t for t in json.load(f)}

    def portable(self, text):
        """With the paths and compilers of the machine that builds it."""
        up = os.path.relpath(self.source, self.build)
        text = text.replace(os.path.join(self.build, up), "$TOP")
        if up != "..":  # before the rest: its end may be the source's whole path
            text = re.sub(rf"(?:(?<=-I)|(?<![\w./])){re.escape(up)}(?=/|\s|$)", "..", text)
        text = text.replace(self.build, "$TOP/build").replace(self.source, "$TOP")
        text = re.sub(r"\S*/libcmocka\.(so|a)|-lcmocka", "", text)
        # wherever they were found here: ./check looks for them there
        text = re.sub(r"\S*/lib(cudart|cublasLt|cublas|cudnn\w*|nccl)\.so[.0-9]*", r"-l\1", text)
        text = re.sub(r"/usr/local/cuda[-0-9.]*(?=/)(?!/bin/nvcc)", "$CUDA", text)
        text = re.sub(r"-M(Q|F) \S+|-MD\b|-fdiagnostics-color=\S+", "", text)
        text = re.sub(r"-fmacro-prefix-map=\S+", "", text)
        # another g++ may warn of what ours does not
        text = re.sub(r"-Werror all-warnings|-Werror\b(?!=)", "", text)
        # single quotes would keep $TOP from its value
        return re.sub(r"'[^']*'", self.requote, text)

    @staticmethod
    def requote(match):
        inside = match[0][1:-1]
        return '"' + inside.replace('"', '\\"') + '"' if re.search(r"\$(TOP|CUDA)", inside) else match[0]

    def kind(self, command):
        """compile, archive or link; None for what this machine must have done."""
        words = shlex.split(command.split("&&")[-1])
        if os.path.basename(words[0]) not in TOOLS:
            return None
        if "ar" in os.path.basename(words[0]).split("-"):
            return "archive"
        return "compile" if "-c" in words else "link"

    def add_command(self, command):
        if command not in self.numbers:
            self.numbers[command] = self.find_number(command)
        return self.numbers[command]

    def find_number(self, command):
        kind = self.kind(command)
        output = re.search(r"(?:^|\s)-o (\S+)", command) or re.search(r"csrDT? (\S+)", command)
        self.folders.add(os.path.dirname(output[1]) or ".")
        text = self.portable(command).replace("csrDT", "csrD")
        text = re.sub(r"^(cc|gcc)(?= )", '"$CC" -I$TOP/tests/gpu' if kind == "compile" else '"$CC"', text)
        text = re.sub(r"^\S*nvcc(?= )", '"$NVCC"', text)
        text = re.sub(r"\bgcc-ar\b", "ar", text)
        if text not in self.commands:
            self.commands[text] = len(self.order)
            self.order.append((kind, text))
        return self.commands[text]

    def outputs(self, target_id):
        return [os.path.relpath(f, self.build) for f in self.targets[target_id]["filename"]]

    def need(self, target_id):
        """Numbers of the commands behind a target; an error text where it cannot be packed."""
        if target_id not in self.needs:
            self.needs[target_id] = self.find_need(target_id)
        return self.needs[target_id]

    def find_need(self, target_id):
        files = self.outputs(target_id)
        if self.targets[target_id]["type"] == "custom":
            run("ninja", "-C", self.build, *files)
            for name in files:  # data: it travels as it is
                to = os.path.join(self.target, "build", name)
                os.makedirs(os.path.dirname(to), exist_ok=True)
                shutil.copy(os.path.join(self.build, name), to)
            return set()
        lines = run("ninja", "-C", self.build, "-t", "commands", *files).splitlines()
        lines = [re.sub(r"^(?:\S*\benv 'CCACHE_[^']*' )?\S*\bccache (?=\S)", "", x) for x in lines if not x.startswith("ninja: ")]
        for line in lines:
            if line not in self.why_not:  # targets share most of their commands
                self.why_not[line] = self.find_why_not(line)
            if self.why_not[line]:
                return self.why_not[line]
        return {self.add_command(line) for line in lines}

    def find_why_not(self, line):
        found = FOREIGN.search(line)
        if found:
            return f"needs {found[1] or found[2]}"
        if not self.kind(line):
            return f"is made by {shlex.split(line)[0]}"
        for source in re.findall(r"-c (\S+)(?: |$)", line):
            path = os.path.relpath(os.path.join(self.build, source), self.source)
            if not path.startswith(tuple(f + "/" for f in FOLDERS)):
                return f"is made of {path}"
        return None

    def group(self, suites, numbers):
        """What a test wants of its machine: a GPU, CUDA's headers (it has fakes of the rest) or no more
        than a CPU."""
        texts = [self.order[i][1] for i in numbers]
        if "gpu" in suites or any('"$NVCC"' in t for t in texts):
            return "gpu"
        return "headers" if any("$CUDA/include" in t for t in texts) else "cpu"

    def words(self, command):
        """A test's command as the bundle has it, None where it is a program from elsewhere. There is
        a python3 on machines with a card, as check wants it for their wheels, too."""
        program, *args = command
        exe = os.path.relpath(program, self.build)
        if not exe.startswith(".."):
            words = [f"$TOP/build/{exe}"]
        elif re.fullmatch(r"python3?(\.\d+)?", os.path.basename(program)):
            words = ["python3"]
        else:
            return None
        return words + [re.sub(r"'[^']*'", self.requote, shlex.quote(self.portable(a)))
                        for a in args]

    def add_tests(self, what, kind):
        rows = []
        with open(os.path.join(self.build, "meson-info", what), encoding="utf-8") as f:
            entries = json.load(f)
        for test in entries:
            suites = {s.split(":")[-1] for s in test["suite"]}
            words = self.words(test["cmd"])
            if suites & SKIPPED_SUITES or words is None:
                continue
            numbers, why = set(), None
            for dependency in test["depends"]:
                need = self.need(dependency)
                if isinstance(need, str):
                    why = need
                else:
                    numbers |= need
            if why:
                self.left_out.append(f"{test['name']}: {why}")
                continue
            env = " ".join(f'{k}="{self.portable(v)}' +
                           (':$LD_LIBRARY_PATH"' if k == "LD_LIBRARY_PATH" else '"')
                           for k, v in test["env"].items()) or "LC_ALL=C"
            rows.append([kind, test["name"], self.group(suites, numbers),
                         str(int(test["timeout"] or 60)), env,
                         " ".join(map(str, sorted(numbers))), " ".join(words)])
        return rows

    def copy_sources(self):
        files = run("git", "-C", self.source, "ls-files", "--cached", "--others",
                    "--exclude-standard", *FOLDERS, "LICENSE").splitlines()
        for name in files:
            path = os.path.join(self.source, name)
            if os.path.isfile(path) and not os.path.islink(path):
                to = os.path.join(self.target, name)
                os.makedirs(os.path.dirname(to), exist_ok=True)
                shutil.copy(path, to)
        shutil.copy(os.path.join(self.source, "tests/gpu/check.sh"),
                    os.path.join(self.target, "check"))

    def find_includes(self):
        """What the packed programs include and the bundle lacks, as 'FILE includes NAME'."""
        todo = [os.path.normpath(os.path.join("build", s)) for _, text in self.order
                for s in re.findall(r"-c (?:\$TOP/build/)?(\S+)(?: |$)", text)]
        seen, missing = set(), []
        while todo:
            name = todo.pop().replace("build/$TOP/", "")
            path = os.path.join(self.target, name)
            if name in seen or not os.path.isfile(path):
                continue
            seen.add(name)
            with open(path, encoding="utf-8") as f:
                wanted = re.findall(r'^\s*#\s*include "([^"]+)"', f.read(), re.M)
            for include in wanted:
                places = [include, os.path.join("include", include),
                          os.path.join("tests/gpu", include),
                          os.path.join(os.path.dirname(name), include)]
                found = [p for p in places if os.path.isfile(os.path.join(self.target, p))]
                todo += found[:1]
                if not found:
                    missing.append(f"{name} includes {include}")
        return sorted(missing)

    def write(self):
        os.makedirs(os.path.join(self.target, "build"))
        rows = self.add_tests("intro-tests.json", "test") + \
            self.add_tests("intro-benchmarks.json", "bench")
        self.copy_sources()
        with open(os.path.join(self.target, "tests.tsv"), "w", encoding="utf-8") as f:
            f.writelines("\t".join(row) + "\n" for row in rows)
        with open(os.path.join(self.target, "commands.tsv"), "w", encoding="utf-8") as f:
            # nvcc takes longest, so it begins
            for number, (kind, text) in sorted(enumerate(self.order),
                                               key=lambda c: '"$NVCC"' not in c[1][1]):
                f.write(f"{kind}\t{number}\t{text}\n")
        with open(os.path.join(self.target, "folders"), "w", encoding="utf-8") as f:
            f.writelines(name + "\n" for name in sorted(self.folders))
        return rows


def main():
    source, build, target = sys.argv[1:]
    if os.path.exists(target):
        sys.exit(f"gpu-bundle: '{target}' is there already")
    bundle = Bundle(source, build, target)
    rows = bundle.write()
    size = sum(os.path.getsize(os.path.join(d, f)) for d, _, fs in os.walk(target) for f in fs)
    for line in bundle.left_out:
        print(f"left out: {line}")
    missing = bundle.find_includes()
    if missing:
        sys.exit(f"gpu-bundle: not packed, add its folder to FOLDERS: {missing[0]}")
    n = sum(row[2] == "gpu" for row in rows)
    print(f"{target}: {n} tests and benchmarks for GPUs, {len(rows) - n} for CPUs, "
          f"{size / 2**20:.1f} MiB; run {target}/check")
    if n == 0:
        sys.exit(f"gpu-bundle: nothing for GPUs: there was no CUDA when it was configured")
    if size > 60 * 2**20:
        sys.exit("gpu-bundle: larger than 60 MiB")


main()
