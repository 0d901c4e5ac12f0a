#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""examples/report/plume.py, in processes of its own, with a real daemon and without one."""
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading
import types

import harness
from harness import LIMIT, Lines, another_step, equal

FOLDER = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", "..", "examples", "report"))


def program(text, wait=True, **env):
    """Runs a program that imports plume; what it prints."""
    process = subprocess.Popen([sys.executable, "-c", "import plume\n" + text], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True,
                               env={"PATH": "/usr/bin:/bin", "PYTHONPATH": FOLDER, "PYTHONDONTWRITEBYTECODE": "1",
                                    **env})
    if not wait:
        return process
    out, err = process.communicate(timeout=LIMIT)
    if process.returncode:
        raise AssertionError(err)
    return out


def failed(text, **env):
    process = program(text, wait=False, **env)
    err = process.communicate(timeout=LIMIT)[1]
    equal(process.returncode, 1)
    return err.splitlines()[-1]


def test_a_rank_reports(step):
    d = step.start()
    r = step.keep(d.rank("starter", 0))
    r.expect("world")
    r.send(type="spawned", pid=os.getpid())
    out = program("""
import math
print(plume.report(7, loss=0.5, lr=1), plume.report(8, {"val/acc top": math.inf, "x": math.nan}, loss=0.25))
print(plume.finished(), plume.rank(), plume.world_size(), plume.attempt())
""", PLUME_SOCKET=d.socket, RANK="0", WORLD_SIZE="1", PLUME_ATTEMPT="3")
    equal(out, "True True\nTrue 0 1 3\n")
    r.exited(0)
    r.expect("verdict")
    equal(d.wait(), 0)
    result = step.result()
    equal((result["step"], result["finished"], result["metrics"]),
          (8, True, {"loss": 0.25, "lr": 1, "val_acc_top": "inf", "x": "nan"}))


def test_a_child_process_has_a_connection_of_its_own(step):
    d = step.start()
    r = step.keep(d.rank("starter", 0))
    r.expect("world")
    program("""
import os
plume.report(1, a=1)
if os.fork() == 0:
    os._exit(0 if plume.report(2, b=2) and plume._owner == os.getpid() else 1)
assert os.wait()[1] == 0 and plume.report(3, c=3)
""", PLUME_SOCKET=d.socket, RANK="0")
    r.exited(0)
    r.expect("verdict")
    equal(d.wait(), 0)
    equal(step.result()["metrics"], {"a": 1, "b": 2, "c": 3})


def test_outside_plume(step):
    equal(program("""
print(plume.report(1, loss=1), plume.finished(), plume.attempt(), plume.rank(), plume.world_size())
print(plume.params(lr=0.1), plume.params(), plume.should_stop())
"""), "False False 0 0 1\n{'lr': 0.1} {} False\n")
    # A daemon that has gone.
    equal(program("print(plume.report(1, loss=1))", PLUME_SOCKET=step.path("none"), RANK="0"), "False\n")
    for text, word in (("{'1x': 1}", "not the name of a metric"), ("{f'{i:m>250}': i for i in range(256)}", "64 KiB")):
        if word not in failed(f"plume.report(1, {text})"):
            raise AssertionError(word)
    for number in ("-1", "1 << 63"):
        if "is not a step" not in failed(f"plume.report({number}, loss=1)"):
            raise AssertionError(number)


def test_metrics_are_dropped_and_never_cut(step):
    """The daemon reads nothing until the program has dropped something; then each line is whole."""
    path = step.path("slow")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen()
        p = program("""
sent = 0
while plume.report(sent, value=sent):
    sent += 1
print(sent, flush=True)
input()
print(plume.finished(), plume.report(10**6, value=1))
""".replace("input()", "import sys; sys.stdin.readline()"), wait=False, PLUME_SOCKET=path, RANK="5")
        lines = Lines(step.keep(server.accept()[0]))
        sent = int(p.stdout.readline())
        hello = lines.receive()
        equal((hello["type"], hello["role"], hello["rank"]), ("hello", "program", 5))
        for i in range(sent):
            equal(lines.receive(), {"type": "metrics", "step": i, "metrics": {"value": i}})
        p.stdin.write("\n")
        p.stdin.flush()
        equal(lines.receive(), {"type": "fact", "key": "finished", "value": "true"})
        equal(lines.receive()["step"], 10**6)
        equal(p.communicate(timeout=LIMIT)[0], "True True\n")


def test_what_is_dropped_is_told(step):
    """The hub keeps 256 metrics of a rank, with names of 256 bytes."""
    d = step.start()
    r = step.keep(d.rank("starter", 0))
    r.expect("world")
    r.send(type="spawned", pid=os.getpid())
    out = program("""
import warnings
def report(*args, **values):
    with warnings.catch_warnings(record=True) as got:
        warnings.simplefilter("always")
        try:
            return plume.report(*args, **values), [str(w.message) for w in got]
        except ValueError as e:
            return e
print(report(1, {"x" * 257: 1}))
print(report(1, {"y" * 256: 1}))
print(report(2, {"val/a": 1, "val_a": 2}))
print(report(2, {"loss": 1}, loss=2))
print(report(3, {f"m{i}": i for i in range(253)}))
print(report(4, last=1, m0=7))
for wrong in (0.5, 1.0, True, "7", float("nan"), -1):
    print(report(wrong))
""", PLUME_SOCKET=d.socket, RANK="0")
    first, *lines = out.splitlines()
    equal(first, f"plume: {'x' * 40!r}... is too long for a metric: 256 characters at most")
    two = "plume: two metrics of a report have the name {!r}: the second one counts"
    equal(lines, [str(x) for x in (
        (True, []), (True, [two.format("val_a")]), (True, [two.format("loss")]), (True, []),
        (False, ["plume: 'last' is dropped: a rank has at most 256 metrics"]),
        "plume: 0.5 is not a step: a step is a whole number from 0", (True, []), (True, []), (True, []),
        "cannot convert float NaN to integer", "plume: -1 is not a step: a step is a whole number from 0")])
    r.exited(0)
    r.expect("verdict")
    equal(d.wait(), 0)
    metrics = step.result()["metrics"]
    equal((len(metrics), metrics["y" * 256], metrics["val_a"], metrics["loss"], metrics["m0"], metrics["m252"]),
          (256, 1, 2, 2, 7, 252))


def test_a_pause_in_a_pause(step):
    """The outer one goes on. A name that is no text of Unicode does not end the connection."""
    path = step.path("pauses")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen()
        p = program("""
with plume.pause("outer"):
    with plume.pause("in\\udc80ner"):
        pass
    with plume.pause("third"):
        pass
other = plume.pause("of a thread")
with plume.pause("main"):
    other.__enter__()
other.__exit__(None, None, None)
""", wait=False, PLUME_SOCKET=path, RANK="0")
        lines = Lines(step.keep(server.accept()[0]))
        equal(p.communicate(timeout=LIMIT), ("", ""))
        equal(lines.receive()["type"], "hello")
        equal([lines.receive()["phase"] for _ in range(10)],
              ["outer", "in?ner", "outer", "third", "outer", "", "main", "of a thread", "of a thread", ""])


def test_a_signal_while_a_report_is_sent(step):
    """The handler's report must not wait for the one that it interrupts, nor that of a child for a thread."""
    path = step.path("signal")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen()
        p = program("""
import os, signal, threading
said = []
signal.signal(signal.SIGUSR1, lambda *_: said.append(plume.report(2, b=2)))
class Socket:
    signals = [signal.SIGUSR1]
    def __getattr__(self, name):
        return getattr(real, name)
    def send(self, data):
        if self.signals:
            os.kill(os.getpid(), self.signals.pop())
        return real.send(data) if cut is None else real.send(data[:cut])
    def sendall(self, data):
        os.kill(os.getpid(), signal.SIGUSR1)
        real.sendall(data)
cut = None
plume.report(0, a=0)
real, plume._socket = plume._socket, Socket()
print(plume.report(1, a=1), said)
cut = 5
print(plume.report(3, a=3), said)
plume._socket = real
held, done = threading.Event(), threading.Event()
def hold():
    with plume._lock:
        held.set()
        done.wait()
threading.Thread(target=hold).start()
held.wait()
if os.fork() == 0:
    os._exit(0 if plume.report(4, c=4) else 1)
print(os.wait()[1])
done.set()
""", wait=False, PLUME_SOCKET=path, RANK="0", PYTHONWARNINGS="ignore")
        lines = Lines(step.keep(server.accept()[0]))
        equal(p.communicate(timeout=LIMIT), ("True [True]\nTrue [True, False]\n0\n", ""))
        equal([lines.receive().get("step") for _ in range(5)], [None, 0, 2, 1, 3])


def test_a_rank_tells_its_own_time_of_a_step(step):
    """The mean of the steps since the report before; not with the first one, nor after a step back."""
    path = step.path("own")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen()
        p = program("""
import time
now = 0
time.perf_counter = lambda: now
def compute(seconds):
    global now
    with plume.alone():
        now += seconds
compute(5)
now += 100
plume.report(10)
compute(1)
compute(2)
plume.report(12)
plume.report(13)
compute(1)
plume.report(13)
compute(4)
plume.report(14)
try:
    with plume.alone():
        now += 0.5
        raise KeyError
except KeyError:
    plume.report(15)
""", wait=False, PLUME_SOCKET=path, RANK="0")
        lines = Lines(step.keep(server.accept()[0]))
        equal(p.communicate(timeout=LIMIT), ("", ""))
        equal(lines.receive()["type"], "hello")
        equal([lines.receive().get("own_us") for _ in range(6)], [None, 1500000, None, None, 4000000, 500000])


def test_a_daemon_that_closes_is_asked_again(step):
    path = step.path("closing")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen()
        p = program("""
import sys
print(plume.report(1, a=1), flush=True)
sys.stdin.readline()
first = [plume.report(2, a=2), plume.report(3, a=3)]
print(True in first)
""", wait=False, PLUME_SOCKET=path, RANK="0")
        server.accept()[0].close()
        p.stdout.readline()
        got = []

        def again():
            lines = Lines(step.keep(server.accept()[0]))
            got.extend([lines.receive()["type"], lines.receive()["type"]])
        server.settimeout(LIMIT)
        thread = threading.Thread(target=again)
        thread.start()
        equal(p.communicate(timeout=LIMIT)[0], "True\n")
        thread.join()
        equal(got, ["hello", "metrics"])


def test_params(step):
    given = json.dumps({"lr": "1e-3", "n-layers": "1e2", "flag": "false", "name": "007"})
    equal(program("print(plume.params(lr=1.0, n_layers=2, flag=True, name='x', other=3), plume.params()['name'])",
                  PLUME_PARAMS=given),
          "{'lr': 0.001, 'n_layers': 100, 'flag': False, 'name': '007', 'other': 3} 007\n")
    for text, word in (("lr=1", "'lr' which"), ("lr=1.0, n_layers=2, flag=True, name=5.5", None),
                       ("lr=1, n_layers=2, flag=True, name=''", "is not a whole number"),
                       ("lr=True, n_layers=2, flag=True, name=''", "is not true or false")):
        p = program(f"try:\n  print(plume.params({text}))\nexcept ValueError as e:\n  print('error', e)",
                    PLUME_PARAMS=given)
        if word and "which" in word:
            equal(p, "error plume: the sweep has the parameter 'n-layers', which params() does not name\n")
        elif word and word not in p or not word and "'name': 7.0" not in p:
            raise AssertionError(p)
    for default, word in (("[1]", "list"), ("(1, 2)", "tuple"), ("{}", "dict")):
        equal(failed(f"plume.params(flag={default}, lr='', n_layers='', name='')", PLUME_PARAMS=given),
              f"TypeError: plume: the default of flag is a {word}: make it a text, and split that")
    equal(program("""
class Scalar:
    def __init__(self, value): self.value = value
    def item(self): return self.value
print(plume.params(flag=Scalar(True), lr=Scalar(0.5), n_layers=Scalar(2), name=None))""", PLUME_PARAMS=given),
          "{'flag': False, 'lr': 0.001, 'n_layers': 100, 'name': '007'}\n")
    equal(program("print(plume.params(big=1))", PLUME_PARAMS='{"big": "12345678901234567891"}'),
          "{'big': 12345678901234567891}\n")
    for default, text, word in ((1, "9007199254740993.0", "is not a whole number"), (1, "1e23", "is not a whole number"),
                                (1.0, "-1e400", "is not a number"), (1.0, "-inf", None), (1, "9007199254740991.0", None)):
        p = program(f"try:\n  print(plume.params(n={default}))\nexcept ValueError as e:\n  print('error', e)",
                    PLUME_PARAMS=json.dumps({"n": text}))
        if p != f"error plume: n = {text!r} {word}\n" and (word or p.startswith("error")):
            raise AssertionError(p)


def stop_at(step, d, name, outside):
    """A program that stops at a signal; its plrun gets this one from outside, or none; its rank ends with 0."""
    r = step.keep(d.rank("starter", 0))
    r.expect("world")
    r.send(type="spawned", pid=os.getpid())
    if outside:
        r.send(type="signalled", signal=int(getattr(signal, f"SIG{outside}")))
    equal(program("""
import os, signal
plume.should_stop()
os.kill(os.getpid(), signal.SIG{NAME})
print(plume.should_stop(), plume._told, plume.should_stop())
""".replace("{NAME}", name), PLUME_SOCKET=d.socket, RANK="0"), "True True True\n")
    r.exited(0)
    equal(r.expect("verdict")["code"], 0)
    equal(d.wait(), 0)


def test_who_stops_says_so(step):
    """Once, when should_stop() has said so. Of a step outside any sweep Slurm has the exit code."""
    stop_at(step, step.start(), "USR2", "USR2")
    result = step.result()
    equal((result["state"], result["stopped"], "finished" in result), ("done", "USR2", False))


def new_trial(step):
    """The folder of a trial that has not begun."""
    plsubmit = os.path.join(os.path.dirname(harness.PLRUND), "plsubmit")
    made = subprocess.run([plsubmit, "--no-submit", "--parsable", "--runs", step.path("runs"), "true"],
                          env=step.environment(0), timeout=LIMIT, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          check=True)
    return os.path.join(made.stdout.split(";")[1].strip(), "trial-0000")


def stopped(step, trial, name, outside):
    """The trial's result."""
    os.makedirs(os.path.join(trial, "attempt-0"))
    step.scontrol(harness.record())
    d = step.start(PLUME_RUN_DIR=os.path.dirname(trial), PLUME_TRIAL="0", PLUME_ATTEMPT="0")
    stop_at(step, d, name, outside)
    with open(os.path.join(trial, "result.json"), encoding="utf-8") as f:
        result = json.load(f)
    shutil.rmtree(trial)
    return result


def test_a_trial_that_stops_is_not_done(step):
    """Nor for a moment: plsubmit --wait reads the first result, and a full disk takes no other."""
    trial = new_trial(step)
    for name, code in (("USR2", 140), ("TERM", 143)):
        with another_step() as own:
            result = stopped(own, trial, name, name)
        equal((result["state"], result["stopped"], result["exit_code"]), ("cancelled", name, code))
        equal(result["cause"], {"kind": "cancelled", "text": f"the program stopped at SIG{name}", "confidence": "inferred",
                                "inferred": True})


def test_a_sigterm_from_inside_stops_no_trial(step):
    """torchrun sends it to the workers that are left, before it starts all of them again; a program to its helper.
    Nor where the step has got another signal."""
    trial = new_trial(step)
    for outside in (None, "INT"):
        with another_step() as own:
            result = stopped(own, trial, "TERM", outside)
        equal((result["state"], result["exit_code"], "stopped" in result, "cause" in result), ("done", 0, False, False))


def test_should_stop(step):
    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
        p = program("""
import signal, sys
print(plume.should_stop(), flush=True)
while not plume.should_stop():
    signal.pause()
print("saved", flush=True)
sys.stdin.read()
""", wait=False)
        equal(p.stdout.readline(), "False\n")
        p.send_signal(number)
        # The signal may come before pause(): a second one is harmless until Python ends.
        while not select.select([p.stdout], [], [], 0.2)[0]:
            p.send_signal(number)
        equal((p.communicate(timeout=LIMIT)[0], p.returncode), ("saved\n", 0))
    # The program's own handler stays.
    equal(program("""
import os, signal
signal.signal(signal.SIGUSR1, lambda *_: print("own"))
plume.should_stop()
os.kill(os.getpid(), signal.SIGUSR1)
print(plume.should_stop())
os.kill(os.getpid(), signal.SIGUSR2)
print(plume.should_stop())
"""), "own\nFalse\nTrue\n")
    if "in the main thread" not in program("""
import threading
def other():
    try:
        plume.should_stop()
    except RuntimeError as e:
        print(e)
t = threading.Thread(target=other)
t.start()
t.join()
"""):
        raise AssertionError


def fake_package(step, name, **content):
    """Modules as far as the callbacks touch them; ./dev soak tries the real ones where they are."""
    parts = name.split(".")
    for i in range(1, len(parts) + 1):
        sys.modules.setdefault(".".join(parts[:i]), types.ModuleType(parts[i - 1]))
    vars(sys.modules[name]).update(content)


def test_sweep(step):
    runs = step.path("runs")
    shutil.copytree(os.path.join(FOLDER, "..", "..", "tests", "fixtures", "runs"), runs)
    env = {"PATH": os.path.dirname(os.path.abspath(harness.PLRUND)) + ":/usr/bin:/bin", "SLURM_CONF": "/nonexistent"}
    out = program(f"""
sweep = plume.sweep({runs + "/mixed"!r})
print(sweep["state"], sweep["counts"], sweep["best"])
for trial in sweep["trials"]:
    print(trial["trial"], trial["params"], trial["state"], trial.get("metrics", {{}}).get("acc"))
""", **env)
    lines = out.splitlines()
    equal(lines[0], "failed {'done': 2, 'failed': 1, 'cancelled': 1} {'trial': 1, 'objective': 0.9312}")
    equal(lines[1], "0 {'lr': '1e-3', 'layers': '32'} done 0.9012")
    equal(len(lines), 5)
    # What is not known for want of Slurm is no error, and said.
    equal(program(f"print(plume.sweep({runs + '/waiting'!r})['partial'])", **env), "True\n")
    equal(failed("plume.sweep('-none')", **env),
          "LookupError: plstat: no sweep, job or run folder has the name '-none': plstat --all lists them")
    broken = step.path("broken")
    os.mkdir(broken)
    with open(os.path.join(broken, "sweep.json"), "w", encoding="utf-8") as f:
        f.write("{")
    if not failed(f"plume.sweep({broken!r})", **env).startswith("RuntimeError: plstat: "):
        raise AssertionError("a broken sweep")
    if "has no job '99'" not in failed("plume.sweep(99)", **env):
        raise AssertionError("a number")
    # Who ignores SIGCHLD gets no exit codes.
    equal(failed("import signal\nsignal.signal(signal.SIGCHLD, signal.SIG_IGN)\nplume.sweep('none')", **env),
          "RuntimeError: plstat: no sweep, job or run folder has the name 'none': plstat --all lists them")
    if "FileNotFoundError" not in failed("plume.sweep('a')", PATH=step.path("none")):
        raise AssertionError("no plstat")


def test_history(step):
    runs = step.path("runs")
    shutil.copytree(os.path.join(FOLDER, "..", "..", "tests", "fixtures", "runs"), runs)
    env = {"PATH": os.path.dirname(os.path.abspath(harness.PLRUND)) + ":/usr/bin:/bin", "SLURM_CONF": "/nonexistent"}
    trial = runs + "/done/trial-0000"
    for attempt, lines in ((10, ('{"type":"metrics","rank":0,"metrics":{"loss":"nan"},"seq":1,"t":3.5}',
                                 '{"type":"gpus","node":0,"seq":2,"t":4}', '{"type":"metrics","rank":0,"phase":"x","t":4}',
                                 '{"type":"metrics","rank":0,"step":7,"metrics":{"loss":"-inf","a.b":1},"t":5}')),
                           (2, ('{"type":"metrics","rank":1,"step":3,"metrics":{"loss":2},"t":2}',))):
        os.mkdir(f"{trial}/attempt-{attempt}")
        with open(f"{trial}/attempt-{attempt}/metrics.jsonl", "w", encoding="utf-8") as f:
            f.write("\n".join(lines) + '\n{"type":"metrics","rank":0,"step":8,"metr')
    os.mkdir(trial + "/attempt-3")
    equal(program(f"""
sweep = plume.sweep({runs + "/done"!r})
for row in sweep.history(0) + sweep.history(0, rank=1) + sweep.history(0, 9):
    print(row)
print(plume.sweep({runs + "/waiting"!r}).history(1))
""", **env).splitlines(), [
        "{'attempt': 0, 'time': 1700000040.5, 'step': 500, 'metrics': {'acc': 0.88, 'loss': 0.2}}",
        "{'attempt': 10, 'time': 3.5, 'metrics': {'loss': nan}}",
        "{'attempt': 10, 'time': 5, 'step': 7, 'metrics': {'loss': -inf, 'a.b': 1.0}}",
        "{'attempt': 0, 'time': 1700000040.5, 'step': 500, 'metrics': {'acc': 0.88, 'loss': 0.21}}",
        "{'attempt': 2, 'time': 2, 'step': 3, 'metrics': {'loss': 2.0}}", "[]"])
    equal(failed(f"plume.sweep({runs + '/done'!r}).history(2)", **env), "LookupError: plume: the sweep has no trial 2")


def test_as_completed(step):
    runs = step.path("runs")
    shutil.copytree(os.path.join(FOLDER, "..", "..", "tests", "fixtures", "runs"), runs)
    env = {"PATH": os.path.dirname(os.path.abspath(harness.PLRUND)) + ":/usr/bin:/bin", "SLURM_CONF": "/nonexistent"}
    # All have ended: in the order of their numbers, and without a wait.
    equal(program(f"""
print([(t["trial"], t["state"]) for t in plume.sweep({runs + "/mixed"!r}).as_completed(timeout=0)])
""", **env), "[(0, 'done'), (1, 'done'), (2, 'failed'), (3, 'cancelled')]\n")
    # One ends while it is awaited, after another that had ended; plstat is asked when its result appears.
    equal(program(f"""
import os, threading
path = {runs + "/done/trial-0000/result.json"!r}
os.rename(path, path + ".new")
asked = []
run = plume.subprocess.run
plume.subprocess.run = lambda *args, **more: asked.append(args) or run(*args, **more)
sweep = plume.sweep({runs + "/done"!r})
completed = sweep.as_completed(timeout=60)
print(next(completed)["trial"])
threading.Timer(2, os.rename, (path + ".new", path)).start()
print([(t["trial"], t["state"]) for t in completed], len(asked))
print(sorted(sweep) == sorted(plume.json.loads(plume.json.dumps(sweep))))
""", **env), "1\n[(0, 'done')] 3\nTrue\n")
    # One that is left: what has ended is there, and then the time is over.
    equal(failed(f"""
import os, time
os.unlink({runs + "/done/trial-0001/result.json"!r})
start = time.monotonic()
try:
    for trial in plume.sweep({runs + "/done"!r}).as_completed(1.5):
        print(trial["trial"])
finally:
    print(1.4 < time.monotonic() - start < 20)
""", **env), "TimeoutError: plume: 1 of 2 trials have not ended")


def test_as_completed_when_the_time_is_over(step):
    runs = step.path("runs")
    shutil.copytree(os.path.join(FOLDER, "..", "..", "tests", "fixtures", "runs"), runs)
    plstat = os.path.join(os.path.dirname(os.path.abspath(harness.PLRUND)), "plstat")
    os.mkdir(step.path("before"))
    with open(step.path("before/plstat"), "w", encoding="utf-8") as f:
        f.write(f"#!/bin/bash\n[[ ! -e {step.path('hangs')} ]] || exec sleep 60\nexec {plstat} \"$@\"\n")
    os.chmod(step.path("before/plstat"), 0o755)
    env = {"PATH": step.path("before") + ":/usr/bin:/bin", "SLURM_CONF": "/nonexistent"}
    begin = f"""
import os, time, warnings
warnings.simplefilter("ignore")
path = {runs + "/done/trial-0000/result.json"!r}
os.rename(path, path + ".new")
sweep = plume.sweep({runs + "/done"!r})
"""
    # What ended while the loop's body ran has ended.
    equal(program(begin + """
for trial in sweep.as_completed(timeout=0.5):
    print(trial["trial"])
    if trial["trial"] == 1:
        time.sleep(0.6)
        os.rename(path + ".new", path)
""", **env), "1\n0\n")
    # plstat does not answer any more: the time is over, all the same.
    out = program(begin + f"""
completed = sweep.as_completed(timeout=2)
start = time.monotonic()
print(next(completed)["trial"])
open({step.path("hangs")!r}, "w").close()
os.rename(path + ".new", path)
try:
    next(completed)
except TimeoutError as e:
    print(e, 2 <= time.monotonic() - start < 30)
""", **env)
    equal(out, "1\nplume: 1 of 2 trials have not ended True\n")
    os.unlink(step.path("hangs"))
    # Without Slurm nobody sees that a trial has ended without a result: it is told, once.
    equal(program(f"""
import warnings
with warnings.catch_warnings(record=True) as got:
    warnings.simplefilter("always")
    try:
        list(plume.sweep({runs + "/waiting"!r}).as_completed(timeout=0))
    except TimeoutError as e:
        print(e)
print(len(got), got[0].message)
""", **env), "plume: 2 of 2 trials have not ended\n1 plume: a trial that ends without a result may not be seen to end: "
          "cannot ask Slurm: cannot read SLURM_CONF '/nonexistent'\n")


def test_callbacks(step):
    fake_package(step, "lightning.pytorch.callbacks", Callback=object)
    fake_package(step, "lightning.pytorch.loggers.logger", Logger=object)
    fake_package(step, "transformers", TrainerCallback=object)
    sys.path.insert(0, FOLDER)
    sys.dont_write_bytecode = True
    import plume  # pylint: disable=import-error,import-outside-toplevel
    import plume_huggingface  # pylint: disable=import-error,import-outside-toplevel
    import plume_lightning  # pylint: disable=import-error,import-outside-toplevel
    reports, name = [], types.SimpleNamespace
    plume.report = lambda step=None, metrics=None: reports.append((step, metrics))
    plume.finished = lambda: reports.append("finished")
    plume_lightning.PlumeLogger().log_metrics({"loss": 1.0, "epoch": 0}, 5)
    hf = plume_huggingface.PlumeCallback()
    hf.on_log(None, name(is_world_process_zero=True, global_step=6), None, {"loss": 0.5, "note": "text"})
    hf.on_log(None, name(is_world_process_zero=False, global_step=6), None, {"loss": 0.5})
    hf.on_train_end(None, name(global_step=3, max_steps=9), None)
    hf.on_train_end(None, name(global_step=9, max_steps=9), None)
    equal(reports, [(5, {"loss": 1.0, "epoch": 0}), (6, {"loss": 0.5}), "finished"])
    for stop in (False, True):
        plume.should_stop = lambda stop=stop: stop
        control = name(should_save=False, should_training_stop=False)
        hf.on_step_end(None, None, control)
        equal((control.should_save, control.should_training_stop), (stop, stop))
        trainer = name(should_stop=False, strategy=name(reduce_boolean_decision=lambda b, all: b))
        plume_lightning.PlumeStop().on_train_batch_end(trainer, None)
        equal(trainer.should_stop, stop)


harness.main(globals())
