# SPDX-License-Identifier: MIT
"""Starts real plrund processes with the environment of a Slurm step, without Slurm, and plays all
who speak with them: the owner, starters, programs, other daemons, clients, and strangers. The
protocol is written here a second time (plume-protocol(7)), with Python's own HMAC and BLAKE2b, so
that both sides cannot be wrong in the same way.

A test file ends in `harness.main(globals())`; its functions test_*(step) run in order, each with a
Step of its own, and the result goes to stdout as TAP.

PLUND_WRAP (words) stands before each plrund, for example a valgrind with its options;
PLUND_SLOW multiplies all limits.
"""
import contextlib
import hashlib
import hmac
import json
import os
import random
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback

PLRUND = os.path.join(os.environ.get("PLUME_BUILD", "build"), "plrund")
WRAP = os.environ.get("PLUND_WRAP", "").split()
SLOW = float(os.environ.get("PLUND_SLOW", "1"))
LIMIT = 20 * SLOW  # seconds for anything that has to happen
KEY = bytes(range(32))


class Closed(Exception):
    """The other side closed the connection."""


def wait_for(what, check, limit=None):
    """Polls a file's state; messages are waited for with poll(2) instead."""
    end = time.monotonic() + (limit or LIMIT)
    while time.monotonic() < end:
        value = check()
        if value:
            return value
        time.sleep(0.01)
    raise AssertionError(f"{what}: not within {limit or LIMIT} s")


def equal(got, want):
    if got != want:
        raise AssertionError(f"got {got!r}, want {want!r}")


class Lines:
    """Messages, one JSON object a line, over a stream socket, with a limit on each wait."""

    def __init__(self, sock):
        self.sock = sock
        self.data = b""
        self.sock.settimeout(LIMIT)

    def line(self):
        while b"\n" not in self.data:
            try:
                more = self.sock.recv(65536)
            except ConnectionError:
                more = b""
            if not more:
                raise Closed(f"closed behind {self.data!r}")
            self.data += more
        line, self.data = self.data.split(b"\n", 1)
        return line

    def receive(self):
        return json.loads(self.line())

    def expect(self, kind, **fields):
        """The next message of this type; others are skipped."""
        while True:
            message = self.receive()
            if message.get("type") == kind and all(message.get(k) == v for k, v in fields.items()):
                return message

    def send_raw(self, data):
        self.sock.sendall(data)

    def send(self, **message):
        self.send_raw(json.dumps(message).encode() + b"\n")

    def expect_closed(self):
        with contextlib.suppress(Closed):
            while True:
                self.line()

    def close(self):
        self.sock.close()


class Pipe:
    """An output stream of a rank: what it writes, and what comes out where Slurm would read."""

    def __init__(self):
        self.read_end, self.write_end = os.pipe()
        self.out, self.real = os.pipe()

    def write(self, data):
        while data:
            data = data[os.write(self.write_end, data):]

    def end(self):
        if self.write_end >= 0:
            os.close(self.write_end)
            self.write_end = -1

    def read_all(self):
        """What went through, up to its end."""
        data = b""
        while True:
            if not select.select([self.out], [], [], LIMIT)[0]:
                raise AssertionError(f"the stream did not end; so far {data[-200:]!r}")
            more = os.read(self.out, 65536)
            if not more:
                return data
            data += more

    def close(self):
        self.end()
        os.close(self.out)


class Rank(Lines):
    """A starter's or a program's connection to its daemon."""

    def __init__(self, path):
        sock = socket.socket(socket.AF_UNIX)
        sock.settimeout(LIMIT)
        sock.connect(path)
        super().__init__(sock)
        self.out = self.err = None

    def hello(self, role, rank, local_rank=0, guarded=True, capture=False, pid=None, **more):
        """capture: with pipes of our own, or with these descriptors."""
        message = {"type": "hello", "proto": "plume", "major": 1, "minor": 0, "role": role,
                   "rank": rank, "local_rank": local_rank, "pid": pid or os.getpid(),
                   "guarded": guarded, **more}
        data = json.dumps(message).encode() + b"\n"
        if not capture:
            self.send_raw(data)
            return self
        if isinstance(capture, list):
            socket.send_fds(self.sock, [data], capture)
            return self
        self.out, self.err = Pipe(), Pipe()
        fds = [self.out.read_end, self.out.real, self.err.read_end, self.err.real]
        socket.send_fds(self.sock, [data], fds)
        for fd in fds:
            os.close(fd)
        return self

    def exited(self, code=0, signal_number=0, **more):
        for stream in (self.out, self.err):
            if stream:
                stream.end()
        self.send(type="exited", status=code << 8 | signal_number, at_ns=time.monotonic_ns(), **more)

    def close(self):
        super().close()
        for stream in (self.out, self.err):
            if stream:
                stream.close()


class Hub(Lines):
    """The client's side of the authenticated session, as plstat or another daemon has it."""

    def __init__(self, step, port, role="client", secret=KEY, sock=None, ids=None):
        self.secret, self.role = secret, role
        self.ids = {"job": step.job, "step": "0", "attempt": step.attempt, **(ids or {})}
        self.sent = self.received = 0
        super().__init__(sock or socket.create_connection(("127.0.0.1", port), LIMIT))
        self.banner = json.loads(self.line())
        self.nonce = os.urandom(16).hex()
        self.derive()

    def derive(self):
        text = b"plume session 1\0"
        for part in (self.ids["job"], self.ids["step"], str(self.ids["attempt"])):
            text += part.encode() + b"\0"
        text += bytes.fromhex(self.banner["nonce"]) + bytes.fromhex(self.nonce)
        self.key = hashlib.blake2b(text, digest_size=32, key=self.secret).digest()

    def digits(self, direction, counter, body):
        head = direction + counter.to_bytes(8, "big")
        return hmac.new(self.key, head + body, hashlib.sha256).hexdigest().encode()

    def frame(self, **message):
        body = json.dumps(message).encode()
        frame = self.digits(b"C", self.sent, body) + b" " + body + b"\n"
        self.sent += 1
        return frame

    def send(self, **message):
        self.send_raw(self.frame(**message))

    def receive(self):
        digits, body = self.line().split(b" ", 1)
        equal(digits, self.digits(b"S", self.received, body))
        self.received += 1
        return json.loads(body)

    def greet(self, **more):
        self.send(**{"type": "hello", "proto": "plume", "major": 1, "minor": 0,
                     "role": self.role, "nonce": self.nonce, **more})
        equal(self.receive(), {"type": "welcome"})
        return self


class Task:
    """A process that runs as a task of the plugin's does, and stays."""

    def __init__(self, action, act=signal.pause):
        before = signal.signal(signal.SIGTERM, action)
        self.pid = os.fork()
        while self.pid == 0:
            act()
        signal.signal(signal.SIGTERM, before)
        self.status = None

    def ended(self):
        if self.status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.status = status if pid else None
        return self.status is not None

    def wait(self):
        wait_for(f"the end of process {self.pid}", self.ended)
        return self.status

    def close(self):
        if self.status is None:
            os.kill(self.pid, signal.SIGKILL)
            self.wait()


class Daemon:
    """A plrund process, and the control socket of its owner."""

    def __init__(self, step, node, env, wrap=(), stderr=None):
        ours, theirs = socket.socketpair()
        self.stderr = tempfile.TemporaryFile(dir=step.dir)
        self.control = Lines(ours)
        with theirs:
            self.process = subprocess.Popen(
                [*wrap, *WRAP, PLRUND, "--control-fd", str(theirs.fileno())], env=env,
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=stderr or self.stderr,
                pass_fds=[theirs.fileno()], start_new_session=True)
        self.node = node
        self.socket = None
        self.rc = None

    def ready(self):
        message = self.control.receive()
        if message["type"] != "ready":
            raise AssertionError(message)
        self.socket = message["socket"]
        return self

    def rank(self, role, rank, **more):
        return Rank(self.socket).hello(role, rank, **more)

    def wait(self, limit=None):
        """The daemon ends by itself; its exit code."""
        if self.rc is None:
            self.rc = self.process.wait(limit or LIMIT)
        return self.rc

    def kill(self):
        if self.rc is None:
            self.process.kill()
            self.rc = self.process.wait()

    def said(self):
        self.stderr.seek(0)
        return self.stderr.read().decode(errors="replace")


class Step:
    """A job step: its folder, its environment and its daemons."""

    def __init__(self):
        self.dir = tempfile.mkdtemp(prefix="plume-daemon-", dir="/tmp")
        os.mkdir(self.path("bin"))
        os.mkdir(self.path("home"), 0o700)
        self.write_key(KEY)
        self.job = str(random.randrange(10**6, 2**31))  # hubs of other tests are strangers then
        self.attempt = 0
        self.nodes = self.tasks_per_node = 1
        self.env = {"PLUME_KILL_GRACE": str(2 * SLOW)}
        self.daemons, self.things = [], []
        self.scontrol("exit 1")

    def path(self, *names):
        return os.path.join(self.dir, *names)

    def write_key(self, key, name="key"):
        with open(os.open(self.path("home", name), os.O_WRONLY | os.O_CREAT, 0o600), "wb") as f:
            f.write(key)

    def scontrol(self, script):
        """What `scontrol` does in this step, as shell text."""
        path = self.path("bin", "scontrol")
        with open(path, "w", encoding="utf-8") as f:
            f.write(f"#!/bin/sh\n{script}\n")
        os.chmod(path, 0o755)

    def environment(self, node, **more):
        runtime = self.path(f"run-{node}")
        os.makedirs(runtime, 0o700, exist_ok=True)
        ranks = self.nodes * self.tasks_per_node
        keep = ("ASAN_OPTIONS", "UBSAN_OPTIONS", "TSAN_OPTIONS", "LSAN_OPTIONS", "LC_ALL")
        env = {k: os.environ[k] for k in keep if k in os.environ}
        env.update({
            "PATH": f"{self.path('bin')}:/usr/bin:/bin", "HOME": self.dir,
            "PLUME_HOME": self.path("home"), "PLUME_RUNTIME_DIR": runtime,
            "SLURM_JOB_ID": self.job, "SLURM_STEP_ID": "0", "SLURM_NODEID": str(node),
            "SLURM_STEP_NUM_NODES": str(self.nodes), "SLURM_STEP_NUM_TASKS": str(ranks),
            "SLURM_STEP_TASKS_PER_NODE": f"{self.tasks_per_node}(x{self.nodes})",
            "SLURM_STEP_NODELIST": f"n[0-{self.nodes - 1}]", "SLURMD_NODENAME": f"n{node}",
            "SLURM_JOB_NAME": "test", "SLURM_LAUNCH_NODE_IPADDR": "127.0.0.1",
        })
        if self.attempt:
            env["SLURM_RESTART_COUNT"] = str(self.attempt)
        env.update(self.env)
        env.update(more)
        return {k: v for k, v in env.items() if v is not None}

    def launch(self, node=0, wrap=(), stderr=None, **env):
        daemon = Daemon(self, node, self.environment(node, **env), wrap, stderr)
        self.daemons.append(daemon)
        return daemon

    def start(self, node=0, **env):
        return self.launch(node, **env).ready()

    def keep(self, thing):
        """Closed when the test ends."""
        self.things.append(thing)
        return thing

    def free_port(self):
        """A TCP port that the kernel gives to nobody else while the test runs."""
        sock = self.keep(socket.socket())
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.bind(("", 0))
        return sock.getsockname()[1]

    def use_hub_port(self):
        port = self.free_port()
        self.env["PLUME_HUB"] = f"127.0.0.1:{port}"
        return port

    def trial(self, *names):
        """A file of the trial that a step outside any sweep makes."""
        return self.path("home", "steps", f"{self.job}.0", "trial-0000", *names)

    def lines(self, *names):
        with open(self.trial("attempt-0", *names), encoding="utf-8") as f:
            return [json.loads(line) for line in f]

    def load(self, name):
        with open(self.trial(name), encoding="utf-8") as f:
            return json.load(f)

    def result(self):
        return self.load("result.json")

    def hub(self, port=None, **more):
        """A greeted client."""
        wait_for("status.json", lambda: os.path.exists(self.trial("status.json")))
        if port is None:
            port = self.load("status.json")["hub"]["port"]
        return self.keep(Hub(self, port, **more)).greet()

    def finish(self, failed):
        for thing in self.things:
            thing.close()
        for d in self.daemons:
            if d.rc is None and not failed:
                d.control.close()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    d.wait()
            late = d.rc is None
            d.kill()
            said = d.said()
            for line in said.splitlines() if failed or late else ():
                print(f"# plrund {d.node}: {line}")
            for word in ("Sanitizer", "ERROR SUMMARY"):
                if word in said and "ERROR SUMMARY: 0 errors" not in said:
                    raise AssertionError(f"plrund {d.node}: {said}")
            if late and not failed:
                raise AssertionError(f"plrund {d.node} did not end when its owner was gone")
            if d.rc == 99:  # what PLUND_WRAP's checker is to say
                raise AssertionError(f"plrund {d.node}: {said}")
            if d.rc < 0 and d.rc != -signal.SIGKILL:
                raise AssertionError(f"plrund {d.node} died of signal {-d.rc}")
            d.control.close()
        shutil.rmtree(self.dir)


@contextlib.contextmanager
def another_step():
    """A step of its own for one case of several."""
    step = Step()
    failed = True
    try:
        yield step
        failed = False
    finally:
        step.finish(failed)


RECORD = "JobId=1 JobName=x JobState={state} Restarts={restarts} RunTime={ran} TimeLimit={limit} " \
         "PreemptTime={preempt}"


def record(state="RUNNING", restarts=0, ran="00:01:00", limit="01:00:00", preempt="None"):
    """What scontrol is to say, as shell text."""
    return "echo '" + RECORD.format(**locals()) + "'"


def running(step, ranks=2, **env):
    """A daemon with so many ranks, all started."""
    step.tasks_per_node = ranks
    d = step.start(**env)
    started = [step.keep(d.rank("starter", i, local_rank=i, capture=True)) for i in range(ranks)]
    for r in started:
        r.world = r.expect("world")
        r.send(type="spawned", pid=os.getpid())
    return d, started


@contextlib.contextmanager
def at_once(d):
    """What is sent meanwhile reaches the daemon together: its limits of 100 ms are none for a busy host's sender."""
    d.process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        d.process.send_signal(signal.SIGCONT)


def replay(events, doc=None):
    """run_state.h's document from its events, written down a second time."""
    doc = doc or {"nodes": [], "ranks": []}

    def values(event, *skip):
        return {k: v for k, v in event.items() if k not in ("type", "t", "seq", *skip)}

    for event in events:
        kind = event["type"]
        if kind == "attempt":
            doc.update(values(event))
            for i in range(len(doc["ranks"]), event["world_size"]):
                doc["ranks"].append({"rank": i, "state": "starting"})
        elif kind == "node":
            while len(doc["nodes"]) <= event["node_id"]:
                doc["nodes"].append({})
            doc["nodes"][event["node_id"]].update(values(event, "node_id"))
        elif kind == "gpus":
            doc["nodes"][event["node_id"]]["gpus"] = event["gpus"]
        elif kind == "gpu":
            errors = doc["nodes"][event["node_id"]].setdefault("gpu_events", [])
            errors.append({**values(event, "node_id", "node"), "t": event["t"]})
            del errors[:-16]
        elif kind == "rank":
            doc["ranks"][event["rank"]].update(values(event))
        elif kind == "metrics":
            rank = doc["ranks"][event["rank"]]
            rank.setdefault("metrics", {}).update(event["metrics"])
            rank.update({k: event[k] for k in ("step", "phase") if k in event})
        elif kind == "stall":
            doc["stall"] = {**values(event), "since": event["t"]}
        elif kind == "fact":
            doc["ranks"][event["rank"]].setdefault("facts", {})[event["key"]] = event["value"]
        elif kind in ("cause", "state", "objective"):
            doc.update(values(event))
    return doc


def quick(test):
    """A test of limits of 100 ms. If it fails where nobody runs for a good part of that, it shows nothing:
    it runs again, and is left out at last."""
    test.quick = True
    return test


def watch_host(stop, stalls):
    """Appends how much longer than it should a wait of 5 ms takes."""
    while not stop.is_set():
        begin = time.monotonic()
        stop.wait(0.005)
        stalls.append(time.monotonic() - begin - 0.005)


def why_failed(test):
    """None if the test passes; and the longest that this process had to wait for a processor, if the test is quick."""
    step, why = Step(), None
    stop, stalls = threading.Event(), [0]
    watcher = threading.Thread(target=watch_host, args=(stop, stalls))
    if hasattr(test, "quick"):
        watcher.start()
    try:
        test(step)
    except Exception:  # pylint: disable=broad-except
        why = traceback.format_exc()
    try:
        step.finish(failed=why is not None)
    except Exception:  # pylint: disable=broad-except
        why = (why or "") + traceback.format_exc()
    stop.set()
    if hasattr(test, "quick"):
        watcher.join()
    return why, max(stalls)


def run_case(name, test, number):
    """True if the test passes, or if the host is too slow for it."""
    for _ in range(5):
        why, stall = why_failed(test)
        if not why or stall < 0.03:
            break
    for line in (why or "").splitlines():
        print(f"# {line}")
    if why and stall >= 0.03:
        print(f"ok {number} {name} # SKIP nobody runs here for {stall:.3f} s, and the limit is 0.1 s", flush=True)
        return True
    print(f"{'not ok' if why else 'ok'} {number} {name}", flush=True)
    return why is None


def fork_case(name, test, number):
    """Runs a test in a process of its own. Returns its pid and the file of what it says."""
    said = tempfile.TemporaryFile("w+")
    pid = os.fork()
    if pid == 0:
        random.seed()
        os.dup2(said.fileno(), sys.stdout.fileno())
        ok = False
        try:
            ok = run_case(name, test, number)
        finally:
            os._exit(not ok)
    return pid, said


def run_together(tests, at_once):
    """So many at a time; what they say is printed in their order. Returns how many fail."""
    waiting, running, ended = list(enumerate(tests, 1)), {}, {}
    bad = shown = 0
    while waiting or running:
        if waiting and len(running) < at_once:
            number, test = waiting.pop(0)
            pid, said = fork_case(*test, number)
            running[pid] = number, said
            continue
        pid, status = os.wait()
        if pid not in running:
            continue
        number, ended[number] = running.pop(pid)
        bad += status != 0
        while shown + 1 in ended:
            shown += 1
            with ended.pop(shown) as said:
                said.seek(0)
                print(said.read(), end="", flush=True)
    return bad


def main(names, at_once=1):
    """at_once: so many tests run side by side, for files whose tests wait most of the time."""
    only = sys.argv[1:]
    tests = [(n, f) for n, f in names.items() if n.startswith("test_") and (not only or n in only)]
    bad = 0
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup has it ignored, and what is started keeps that
    print(f"1..{len(tests)}", flush=True)
    if at_once == 1:
        for i, (name, test) in enumerate(tests, 1):
            bad += not run_case(name, test, i)
    else:
        bad = run_together(tests, at_once)
    sys.exit(bad > 0)
