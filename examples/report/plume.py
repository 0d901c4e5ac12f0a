# SPDX-License-Identifier: MIT
"""Plume for Python programs: one file without dependencies. Copy it next to your program, or
`pip install` the folder that has it. It needs Python 3.7.

    import plume

    hp = plume.params(lr=0.1, layers=2)         # the trial's values, with the types of these
    for step in range(start, 1000):
        with plume.alone():                     # optional: tells slow ranks by this time
            loss = forward(next(batches))
        plume.report(step, loss=loss.item())    # plstat shows it; the sweep is ranked by it
        if step % 100 == 0:
            with plume.pause("checkpoint"):     # no step for a while, and no hang either
                save(step)
        if plume.should_stop():                 # Slurm has sent a signal: save and leave
            save(step)
            break
    else:
        plume.finished()                        # a requeue does not start the trial again

Afterwards, wherever plstat runs:

    for trial in plume.sweep("lr-x3k2ab")["trials"]:
        print(trial["params"], trial["state"], trial.get("metrics"))

or, while the sweep runs, each trial as it ends:

    for trial in plume.sweep("lr-x3k2ab").as_completed():
        print(trial["params"], trial["state"], trial.get("metrics"))

plume.sweep("lr-x3k2ab").history(3) has the metrics of trial 3 over its steps.

Outside Plume each function does what it can: report() does nothing and returns False, params()
returns the defaults, attempt() is 0. None of them delays training. The protocol is plume-protocol(7).
"""

import contextlib
import faulthandler
import json
import math
import os
import re
import select
import signal
import socket
import subprocess
import threading
import time
import warnings

__all__ = ["report", "pause", "alone", "should_stop", "attempt", "params", "finished", "rank", "world_size",
           "sweep", "Sweep"]
__version__ = "0.1.0"

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*\Z")
_socket = None  # with the process that connected it: a child must not share it
_owner = None
_lock = threading.RLock()  # a signal's handler may report, too
_cut = False  # a part of a line is sent
_signal = None  # the signal that came
_told = False  # that the program stops for it
_watching = False


def rank():
    """The number of this process among those of the trial."""
    return int(os.environ.get("RANK", "0"))


def world_size():
    """The number of processes of the trial."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def attempt():
    """0 for the first attempt of a trial, 1 after its first requeue or retry, and so on."""
    return int(os.environ.get("PLUME_ATTEMPT", "0"))


# ---- parameters ----

_TRUE, _FALSE = ("1", "true", "yes", "on"), ("0", "false", "no", "off", "")


def _convert(name, text, default):
    if isinstance(default, (list, tuple, set, dict)):
        raise TypeError(f"plume: the default of {name} is a {type(default).__name__}: make it a text, and split that")
    if not isinstance(default, (bool, int, float, str)) and hasattr(default, "item"):
        default = default.item()  # a number of numpy's
    if isinstance(default, bool):
        if text.lower() in _TRUE + _FALSE:
            return text.lower() in _TRUE
        raise ValueError(f"plume: {name} = {text!r} is not true or false")
    if isinstance(default, (int, float)):
        whole = isinstance(default, int)
        try:
            if whole and re.match(r"[+-]?[0-9]+\Z", text):
                return int(text)
            value = float(text)
            if whole and value.is_integer() and abs(value) < 1 << 53:  # above, a float is rounded
                return int(value)
            if not whole and (math.isfinite(value) or not re.search("[0-9]", text)):  # 1e400 is no number
                return value
        except (ValueError, OverflowError):
            pass
        raise ValueError(f"plume: {name} = {text!r} is not a {'whole ' if whole else ''}number")
    return text


def params(**defaults):
    """The trial's hyper-parameters by name. Without defaults all of them, as the texts that they are.
    With defaults only these, each with its default's type (bool, int, float or str): a value that is
    not of this type, and a parameter of the sweep without a default, are a ValueError."""
    given = json.loads(os.environ.get("PLUME_PARAMS") or "{}")
    if not defaults:
        return given
    by_name = {re.sub("[.-]", "_", name): name for name in given}
    unknown = [by_name[name] for name in by_name if name not in defaults]
    if unknown:
        raise ValueError(f"plume: the sweep has the parameter {unknown[0]!r}, which params() does not name")
    return {name: _convert(name, given[by_name[name]], default) if name in by_name else default
            for name, default in defaults.items()}


# ---- reports ----

def _let_stacks_be_taken():
    """Once a hang is suspected, the node daemon sends SIGURG, which the system ignores where no handler
    is, and reads the Python stack from this nameless file."""
    try:
        if hasattr(os, "memfd_create") and signal.getsignal(signal.SIGURG) == signal.SIG_DFL:
            faulthandler.register(signal.SIGURG, file=os.memfd_create("plume-stack"), all_threads=True)
    except (OSError, RuntimeError, ValueError):
        pass  # the daemon takes the native stack


def _connect():
    global _socket, _owner
    path = os.environ.get("PLUME_SOCKET")
    if not path or "RANK" not in os.environ:
        return None
    if _socket is None or _owner != os.getpid():
        s = socket.socket(socket.AF_UNIX)
        try:
            s.settimeout(2)
            s.connect(path)
            hello = {"type": "hello", "proto": "plume", "major": 1, "minor": 0, "role": "program",
                     "rank": rank()}
            s.sendall(json.dumps(hello).encode() + b"\n")
            s.setblocking(False)  # with a time limit, send() waits even if MSG_DONTWAIT is given
        except OSError:
            s.close()
            raise
        if _owner is None:
            _let_stacks_be_taken()
        _socket, _owner = s, os.getpid()
    return _socket


def _forked():
    global _lock, _cut
    _lock, _cut = threading.RLock(), False  # another thread of the parent may have held it


os.register_at_fork(after_in_child=_forked)


def _drop():
    global _socket
    if _socket is not None:
        _socket.close()
    _socket = None


def _send(line, wait):
    """Sends a line. wait: up to two seconds, instead of dropping it if the daemon is slow."""
    global _cut
    data = json.dumps(line).encode() + b"\n"
    if len(data) > 65536:
        raise ValueError("plume: a report has at most 64 KiB: report fewer metrics at once")
    with _lock:
        if _cut:  # we are in a signal's handler
            return False
        try:
            s = _connect()
            if s is None:
                return False
            if wait:
                select.select([], [s], [], 2)
            sent = s.send(data)
            if sent < len(data):  # complete a line of which a part was sent
                _cut = True
                s.settimeout(2)
                s.sendall(data[sent:])
                s.setblocking(False)
            return True
        except BlockingIOError:
            return False
        except OSError:
            _drop()  # the next report connects again
            return False
        finally:
            _cut = False


def _number(name, value):
    if not _NAME.match(name):
        raise ValueError(f"plume: {name!r} is not the name of a metric: letters, digits and _.- only")
    if len(name) > _NAME_MAX:
        raise ValueError(f"plume: {name[:40]!r}... is too long for a metric: {_NAME_MAX} characters at most")
    value = float(value)  # a tensor of one element, too
    return value if math.isfinite(value) else str(value)  # "nan", "inf", "-inf"


def report(step=None, metrics=None, **values):
    """Reports metrics of a step: report(100, loss=0.3), or report(100, {"val/loss": 0.3}); '/' and
    blanks in a name become '_'. Returns False if they were dropped. A rank has 256 metrics at most: it is
    warned of others, and of two with one name."""
    line = {"type": "metrics", "metrics": {}}
    if step is not None:
        line["step"] = int(step)
        if not 0 <= line["step"] < 1 << 63 or (not isinstance(step, str) and line["step"] != step):
            raise ValueError(f"plume: {step} is not a step: a step is a whole number from 0")
        line.update(_own_time(line["step"]))
    dropped = False
    named = [(re.sub("[/ ]", "_", name), value) for name, value in (metrics or {}).items()]
    for name, value in [*named, *values.items()]:
        number = _number(name, value)
        if name in line["metrics"]:
            warnings.warn(f"plume: two metrics of a report have the name {name!r}: the second one counts", stacklevel=2)
        if name not in _names and len(_names) >= _NAMES_MAX:
            warnings.warn(f"plume: {name!r} is dropped: a rank has at most {_NAMES_MAX} metrics", stacklevel=2)
            dropped = True
            continue
        _names.add(name)
        line["metrics"][name] = number
    return _send(line, wait=False) and not dropped


_names = set()
_NAMES_MAX, _NAME_MAX = 256, 256  # the daemons' limits
_alone_s, _alone_step = 0.0, None  # since the report of this step


def _own_time(step):
    global _alone_s, _alone_step
    seconds, before = _alone_s, _alone_step
    _alone_s, _alone_step = 0.0, step
    if seconds <= 0 or before is None or step <= before:  # of how many steps is not known
        return {}
    return {"own_us": int(seconds * 1e6 / (step - before))}


@contextlib.contextmanager
def alone():
    """Times what this rank does by itself in a step: data and the forward pass, but nothing that waits for
    other ranks. A rank that takes longer for it than the others is shown as slow. For all ranks, or none."""
    global _alone_s
    start = time.perf_counter()
    try:
        yield
    finally:
        _alone_s += time.perf_counter() - start


_phases = []  # that have begun


@contextlib.contextmanager
def pause(name):
    """Names what delays the next step: a checkpoint, validation. Meanwhile no hang is suspected, unless
    it takes 30 times as long as a step may, and at least five minutes."""
    phase = [str(name)[:64].encode("utf-8", "replace").decode()]
    _phases.append(phase)
    _send({"type": "metrics", "phase": phase[0]}, wait=True)
    try:
        yield
    finally:  # a pause around this one goes on
        _phases[:] = [other for other in _phases if other is not phase]
        _send({"type": "metrics", "phase": _phases[-1][0] if _phases else ""}, wait=True)


def finished():
    """Says that the trial is complete: a requeue by Slurm does not start it again. Returns False if
    nobody was told. The exit code still decides between done and failed."""
    return _send({"type": "fact", "key": "finished", "value": "true"}, wait=True)


# ---- the end ----

def _on_signal(number, frame):
    global _signal
    _signal = number


def should_stop():
    """True after Slurm has sent SIGTERM (preempted, cancelled, time limit), SIGUSR1 or SIGUSR2 (sbatch
    --signal): save a checkpoint and leave soon. The trial then counts as stopped and not as done, also
    with exit code 0, unless it calls finished(): --requeue-on starts it again. Call it once before
    training, in the main thread: that catches the signals; a handler that the program has set for one
    of them stays."""
    global _watching, _told
    if not _watching:
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError("plume: call should_stop() first in the main thread, which gets signals")
        for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
            if signal.getsignal(number) == signal.SIG_DFL:
                signal.signal(number, _on_signal)
        _watching = True
    if _signal is not None and not _told:
        _told = True
        _send({"type": "fact", "key": "stopped", "value": signal.Signals(_signal).name[3:]}, wait=True)
    return _signal is not None


# ---- afterwards ----

_LOOK_S = 1  # between looks for results
_ASK_S = 10  # between questions to plstat if no file changes: a trial may end without a result
_SETTLE_S = 3  # the same while a trial has failed just now, which Slurm may start again
_PATIENCE_S = 60  # plstat may fail for so long
_LAST_S = 2  # the last look, when the time is over


def _results(folder, numbers):
    """{trial: what changes with its result.json}. A client of NFS asks its server when a folder is opened."""
    marks, there = {}, set(os.listdir(folder))
    for number in numbers:
        name = f"trial-{number:04d}"
        if name in there:
            try:
                os.close(os.open(os.path.join(folder, name), os.O_RDONLY | os.O_DIRECTORY))
                st = os.stat(os.path.join(folder, name, "result.json"))
                marks[number] = (st.st_ino, st.st_mtime_ns, st.st_size)
            except OSError:
                pass
    return marks


class Sweep(dict):
    """A sweep, as sweep() returns it."""

    def as_completed(self, timeout=None):
        """Yields each trial once, as it ends, in the form of ["trials"]: first those that have ended, whatever
        their state is. A trial that starts again, by --requeue-on or by Slurm, is yielded after its last attempt,
        and one of a retry that was submitted before this call after that. Raises TimeoutError if trials are left
        `timeout` seconds after this call: it looks once more then, for up to two seconds; the first look has no
        limit. It looks at the run folder once a second; plstat is asked if a result has come, and else every ten
        seconds for trials that end without one. A warning tells if their end cannot be seen, as on a host of
        another cluster."""
        return self._ended(None if timeout is None else time.monotonic() + timeout)

    def _ended(self, limit):
        left = {trial["trial"] for trial in self["trials"]}
        asked, earliest, latest, failed, told = None, 0, 0, None, False
        while left:
            begin, ended = time.monotonic(), []
            last = limit is not None and begin >= limit  # the caller's loop may have taken long
            try:
                marks = _results(self["folder"], left)
                if last or begin >= latest or (marks != asked and begin >= earliest):
                    rest = None if limit is None or asked is None else _LAST_S if last else limit - begin
                    answer = _ask(self["folder"], rest)
                    now = [t for t in answer["trials"]
                           if t["trial"] in left and t["state"] not in ("waiting", "running")]
                    ended = [t for t in now if not t.get("may_start_again")]
                    asked, failed = marks, None
                    earliest = begin + 10 * (time.monotonic() - begin)  # of many trials
                    latest = max(begin + (_ASK_S if ended == now else _SETTLE_S), earliest)
                    if answer["partial"] and not told and len(ended) < len(left):
                        told = True
                        warnings.warn("plume: a trial that ends without a result may not be seen to end: "
                                      + "; ".join(answer["notes"][:3]), stacklevel=2)
            except (OSError, LookupError, RuntimeError, subprocess.TimeoutExpired):  # a file system that is away
                failed = failed or begin
                if begin - failed > _PATIENCE_S:
                    raise
            for trial in ended:
                left.remove(trial["trial"])
                asked.pop(trial["trial"], None)
                yield trial
            if left and last:
                raise TimeoutError(f"plume: {len(left)} of {len(self['trials'])} trials have not ended")
            now = time.monotonic()
            if left and not ended:
                pause = min(max(_LOOK_S, 10 * (now - begin)), _ASK_S)
                time.sleep(pause if limit is None else max(min(pause, limit - now), 0))


    def history(self, trial, rank=0):
        """The metrics that a rank of a trial has reported, in order, over all its attempts: a list of dicts with
        "attempt", "time" (seconds since 1970), "step" (absent if none was given) and "metrics", whose values are
        floats. A rank has at most one record per second, with the last value of each metric in it, and of a long
        run a sample: see metrics.jsonl in plume-run(5). For curves: pandas.json_normalize(plume.sweep("lr-x3k2ab").history(3))"""
        if not any(t["trial"] == trial for t in self["trials"]):
            raise LookupError(f"plume: the sweep has no trial {trial!r}")
        folder, rows = os.path.join(self["folder"], f"trial-{trial:04d}"), []
        names = os.listdir(folder) if os.path.isdir(folder) else []
        for attempt in sorted(int(name[8:]) for name in names if re.match(r"attempt-[0-9]+\Z", name)):
            path = os.path.join(folder, f"attempt-{attempt}", "metrics.jsonl")
            if os.path.exists(path):
                with open(path, "rb") as file:
                    rows += [{"attempt": attempt, **row} for row in (_row(line, rank) for line in file) if row]
        return rows


def _row(line, rank):
    """A record of metrics.jsonl for history(); {} if it is another one's, or is being written."""
    try:
        record = json.loads(line.decode("utf-8"))
    except ValueError:
        return {}
    if not line.endswith(b"\n") or record.get("type") != "metrics" or record.get("rank") != rank \
            or not record.get("metrics"):
        return {}
    step = {"step": record["step"]} if "step" in record else {}
    return {"time": record["t"], **step, "metrics": {name: float(value) for name, value in record["metrics"].items()}}


def _ask(name, limit_s):
    done = subprocess.run(["plstat", "sweep", "--json", "--", str(name) if isinstance(name, int) else name],
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=limit_s)
    if done.returncode not in (0, 4):
        text = done.stderr.decode("utf-8", "replace").strip()
        raise (LookupError if done.returncode == 3 else RuntimeError)(text or f"plstat ended with {done.returncode}")
    try:
        return Sweep(json.loads(done.stdout.decode("utf-8")))
    except ValueError:  # the program ignores SIGCHLD, and so does not get exit codes
        raise RuntimeError(done.stderr.decode("utf-8", "replace").strip() or "plstat reports nothing") from None


def sweep(name="last"):
    """A sweep and its trials, as `plstat sweep --json` shows them; plstat(1) names the keys. Values of
    params are strings. Trials may still wait or run. Where Slurm or a hub did not answer, "partial" is
    True and "notes" tells why. The result is a dict, and has as_completed() and history(). Raises LookupError
    if there is no such sweep, and RuntimeError if plstat fails."""
    return _ask(name, None)
