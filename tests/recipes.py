#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Each recipe of doc/recipes.md with the real package, on a private cluster: `./dev soak recipes [NAME...]`.
PLUME_RECIPES_PYTHON is a Python that has the packages; a recipe without its package is skipped. TAP."""
import glob
import json
import os
import re
import subprocess
import sys
import tempfile
import time

SRC = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PYTHON = os.environ.get("PLUME_RECIPES_PYTHON", sys.executable)
EXAMPLES = os.path.join(SRC, "examples")
LIMIT_S = 600
# The virtual nodes have one host's name: Open MPI would mix up their shared memory (doc/slurm-notes.md).
MPI = {"SLURM_PMIX_FENCE": "ring", "OMPI_MCA_btl": "tcp,self", "OMPI_MCA_btl_tcp_if_include": "lo"}


class Sweep:
    """A finished sweep."""

    def __init__(self, env, cwd, args):
        done = subprocess.run(["plsubmit", "--parsable", "--wait", *args], env=env, cwd=cwd, capture_output=True,
                              text=True, timeout=LIMIT_S)
        self.dir = done.stdout.split(";")[1] if ";" in done.stdout else None
        if done.returncode:
            errors = [read(f)[-2000:] for f in glob.glob(f"{self.dir}/trial-*/attempt-*/rank-0.err")]
            raise AssertionError(f"plsubmit: {done.returncode} {done.stderr}\n" + "\n".join(errors))

    def output(self, attempt=0):
        """The last line of each rank of each trial, sorted."""
        files = glob.glob(f"{self.dir}/trial-*/attempt-{attempt}/rank-*.out")
        return sorted(line for f in files for line in read(f).splitlines() if not line.startswith(("{", "[Gloo]", "'")))

    def metrics(self, trial=0):
        """The last reported values of rank 0."""
        return read_json(f"{self.dir}/trial-{trial:04d}/result.json")["metrics"]


def read(path):
    with open(path, errors="replace") as f:
        return f.read()


def read_json(path):
    return json.loads(read(path))


def same(a, b):
    assert a == b, f"{a}\n  wanted {b}"


def alike(lines, pattern, n):
    assert len(lines) == n and all(re.fullmatch(pattern, line) for line in lines), f"{lines}\n  wanted {n} x {pattern}"


def pytorch(run):
    s = run("-N", "2", "--num-processes", "2", "--objective", "min:loss", PYTHON, f"{EXAMPLES}/report/train_torch.py")
    alike(s.output(), r"rank \d: steps 0 to 199, loss \S+", 4)


def torchrun(run):
    s = run("-N", "2", "--num-processes", "2", "--launch", "torchrun", PYTHON, f"{EXAMPLES}/report/train_torch.py")
    alike(s.output(), r"rank \d: steps 0 to 199, loss \S+", 4)


def lightning(run):
    """SIGUSR1 in its first attempt: Lightning saves and requeues, and the second goes on."""
    def signalled(sweep_dir, job):
        wait(lambda: glob.glob(f"{sweep_dir}/trial-0000/attempt-0/metrics.jsonl") and
             '"loss"' in read(f"{sweep_dir}/trial-0000/attempt-0/metrics.jsonl"))
        subprocess.run(["scancel", "--signal=USR1", job], env=run.env, check=True)

    s = run("-N", "2", "--num-processes", "1", "--grid", "steps=120", "--objective", "min:loss", PYTHON,
            f"{EXAMPLES}/recipes/lightning_requeue.py", during=signalled)
    alike(s.output(attempt=1), r"attempt 1: rank \d of 2, step 120", 2)
    assert glob.glob(f"{s.dir}/trial-0000/hpc_ckpt_*.ckpt"), "no checkpoint"
    result = read_json(f"{s.dir}/trial-0000/result.json")
    same((result["state"], result["attempts"], result["finished"]), ("done", 2, True))
    steps = [json.loads(line).get("step", -1) for line in read(f"{s.dir}/trial-0000/attempt-1/metrics.jsonl").splitlines()]
    assert min(step for step in steps if step >= 0) > 0, "the second attempt began anew"


def accelerate(run):
    s = run("-N", "2", "--num-processes", "2", "--grid", "lr=0.05,0.1", "--objective", "min:loss", PYTHON,
            f"{EXAMPLES}/recipes/accelerate_train.py")
    alike(s.output(), r"rank \d of 4: loss \S+", 8)


def huggingface(run):
    s = run("-N", "2", "--num-processes", "1", "--grid", "lr=0.05", "--objective", "min:loss", PYTHON,
            f"{EXAMPLES}/recipes/huggingface_train.py")
    alike(s.output(), r"rank \d of 2: step 60", 2)
    assert "learning_rate" in json.dumps(s.metrics()), s.metrics()


def jax(run):
    s = run("-N", "2", PYTHON, f"{EXAMPLES}/recipes/jax_sum.py")
    same(s.output(), [f"process {i} of 2: 2 devices, sum 3" for i in range(2)])


def mpi4py(run):
    s = run("-N", "2", "--num-processes", "2", "--launch", "mpi", PYTHON, f"{EXAMPLES}/recipes/mpi_sum.py", env=MPI)
    same(s.output(), [f"rank {i} of 4: sum 10, rank {i} of the trial" for i in range(4)])


def hydra(run):
    s = run("--grid", "optimizer.lr=0.01,0.1", "--grid", "model.layers=1,2", PYTHON, f"{EXAMPLES}/recipes/hydra_app.py",
            "optimizer.lr={optimizer.lr}", "model.layers={model.layers}")
    same(s.output(), ["lr 0.01, layers 1, loss 1.000000", "lr 0.01, layers 2, loss 2.000000",
                      "lr 0.1, layers 1, loss 1.008100", "lr 0.1, layers 2, loss 2.008100"])


def optuna(run):
    s = run("--repeat", "4", "--max-parallel", "2", "--objective", "min:loss", PYTHON,
            f"{EXAMPLES}/recipes/optuna_study.py", "--seed", "{seed}")
    alike(s.output(), r"Optuna's trial \d: x \S+, lr \S+, loss \S+", 4)
    same(len({line.split(":")[0] for line in s.output()}), 4)


# The function and the module that it needs.
RECIPES = {pytorch: "torch", torchrun: "torch", lightning: "lightning", accelerate: "accelerate",
           huggingface: "transformers", jax: "jax", mpi4py: "mpi4py", hydra: "hydra", optuna: "optuna"}


def wait(condition):
    limit = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < limit, "nothing happens"
        time.sleep(0.1)


class Runner:
    def __init__(self, env, cwd):
        self.env, self.cwd = env, cwd

    def __call__(self, *args, env=None, during=None):
        env = {**self.env, **(env or {})}
        if not during:
            return Sweep(env, self.cwd, args)
        out = subprocess.run(["plsubmit", "--parsable", *args], env=env, cwd=self.cwd, capture_output=True, text=True,
                             check=True).stdout.strip().split(";")
        during(out[1], out[2])
        wait(lambda: not subprocess.run(["squeue", "-h", "-j", out[2]], env=env, capture_output=True).stdout)
        sweep = Sweep.__new__(Sweep)
        sweep.dir = out[1]
        return sweep


class Cluster:
    """A Slurm of its own with two nodes."""

    def __enter__(self):
        self.env = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM_", "SBATCH_", "PLUME_"))}
        self.name = f"recipes-{os.getpid()}"
        self.dev("up", "2", "--quiet")
        self.env["SLURM_CONF"] = re.search(r"^export SLURM_CONF=(.*)$", self.dev("env"), re.M)[1].strip("'")
        return self

    def __exit__(self, *_):
        self.dev("down")

    def dev(self, what, *args):
        return subprocess.run([f"{SRC}/dev", "cluster", what, *args, "--name", self.name], env=self.env, check=True,
                              stdout=subprocess.PIPE, text=True).stdout


def has(module):
    return subprocess.run([PYTHON, "-c", f"import importlib.util as u, sys; sys.exit(u.find_spec('{module}') is None)"],
                          check=False).returncode == 0


def main():
    wanted = {f.__name__: f for f in RECIPES}
    names = sys.argv[1:] or list(wanted)
    for name in names:
        if name not in wanted:
            sys.exit(f"no recipe '{name}': there are {', '.join(wanted)}")
    failed = 0
    print(f"1..{len(names)}")
    with tempfile.TemporaryDirectory(prefix="plume-recipes-") as work, Cluster() as cluster:
        env = dict(cluster.env, HOME=work, PYTHONPATH=f"{EXAMPLES}/report", PYTHONDONTWRITEBYTECODE="1",
                   PATH=f"{SRC}/build:{os.environ['PATH']}")
        for number, name in enumerate(names, 1):
            if not has(RECIPES[wanted[name]]):
                print(f"ok {number} {name} # SKIP {PYTHON} has no {RECIPES[wanted[name]]}", flush=True)
                continue
            try:
                wanted[name](Runner(env, work))
                print(f"ok {number} {name}", flush=True)
            except (AssertionError, OSError, KeyError, ValueError, subprocess.SubprocessError) as e:
                failed += 1
                print("\n".join(f"# {line}" for line in str(e).splitlines()) + f"\nnot ok {number} {name}", flush=True)
    sys.exit(failed > 0)


main()
