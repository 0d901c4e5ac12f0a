#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Ranks that make no progress: real processes that sleep, wait, compute or are stopped, and who is named.
PLUME_HANG_LIMIT is short here."""
import ctypes
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time

import harness
from harness import equal, replay, wait_for

LEAST = 1.2 * harness.SLOW  # seconds; steps reach the hub once a second


sleep = ["sleep", "3600"]
wait_for_peer = ["cat"]  # from a pipe that nobody writes to
compute = ["sh", "-c", "while :; do :; done"]


class Job:
    """A step of one node whose ranks are real processes, each with a program's connection."""

    def __init__(self, step, *actions, **env):
        step.tasks_per_node = len(actions)
        with open(step.path("bin", "gdb"), "w", encoding="utf-8") as f:
            f.write('#!/bin/sh\nfor pid; do :; done\necho "#0 the stack of $pid"\n')
        os.chmod(step.path("bin", "gdb"), 0o755)
        env = {"PLUME_HANG_LIMIT": str(LEAST), "PLUME_KILL_GRACE": "1", **env}
        self.step = step
        self.daemon = step.start(**env)
        self.tasks = [step.keep(Process(step, a)) for a in actions]
        self.starters, self.programs = [], []
        for i, task in enumerate(self.tasks):
            if "PLUME_PLUGIN" in env:
                s = step.keep(self.daemon.rank("starter", i, local_rank=i, guarded=False, pid=task.pid))
                s.expect("world")
            else:
                s = step.keep(self.daemon.rank("starter", i, local_rank=i, capture=True))
                s.expect("world")
                s.send(type="spawned", pid=task.pid)
            self.starters.append(s)
        for i in range(len(actions)):
            self.programs.append(step.keep(self.daemon.rank("program", i)))

    def steps(self, ranks, first, last):
        for n in range(first, last + 1):
            for rank in ranks:
                self.programs[rank].send(type="metrics", step=n, metrics={})

    def events(self, kind=None, **fields):
        found = [e for e in self.step.lines("events.jsonl") if not kind or e["type"] == kind]
        return [e for e in found if all(e.get(k) == v for k, v in fields.items())]

    def expect(self, kind, **fields):
        return wait_for(f"{kind} {fields}", lambda: self.events(kind, **fields))[0]

    def none_for(self, seconds):
        """Nothing is suspected while this time passes."""
        over = time.monotonic() + seconds
        wait_for("time to pass", lambda: time.monotonic() > over, seconds + 10)
        equal([e for e in self.events("stall") if e["state"] == "suspected"], [])

    def end(self, codes=None):
        """All ranks end; the log must replay to the state."""
        for i, s in enumerate(self.starters):
            self.tasks[i].close()
            s.exited((codes or {}).get(i, 0))
        equal([s.expect("verdict")["code"] for s in self.starters],
              [(codes or {}).get(i, 0) for i in range(len(self.starters))])
        equal(self.daemon.wait(), 0)
        self.check_log()

    def check_log(self):
        events = self.step.lines("events.jsonl")
        equal(replay(events + self.step.lines("metrics.jsonl")), self.step.load("status.json")["state"])


class Process:
    """A process that does one thing until it is ended."""

    more_env = {}

    def __init__(self, step, words):
        env = {"PATH": "/usr/bin:/bin", "SLURM_JOB_ID": step.job, "SLURM_STEP_ID": "0", **self.more_env}
        self.process = subprocess.Popen(words, env=env, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
        self.pid = self.process.pid

    def close(self):
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()


def test_rank_behind_is_named(step):
    """A rank reports fewer steps than the others; it goes on later, and the limit grows."""
    job = Job(step, wait_for_peer, wait_for_peer, wait_for_peer)
    job.steps([0, 1, 2], 1, 8)
    job.steps([0, 2], 9, 9)
    event = job.expect("stall", state="suspected")
    equal((event["ranks"], event["all"], event["node"], event["step"], event["confidence"]),
          ([1], False, "n0", 8, "seen"))
    job.expect("rank", rank=1, stack="hang-rank-1.txt")
    with open(step.trial("attempt-0", "hang-rank-1.txt"), encoding="utf-8") as f:
        text = f.read()
    equal([f"== process {job.tasks[1].pid}: " in text, f"#0 the stack of {job.tasks[1].pid}\n" in text],
          [True, True])
    equal(os.path.exists(step.trial("attempt-0", "hang-rank-0.txt")), False)
    job.steps([1], 9, 9)
    equal(job.expect("stall", state="over")["ranks"], [1])
    job.end()
    equal(step.result()["state"], "done")


RAS_SAYS = b"""OK
Warnings
========

#0-0 MISMATCH
  Communicator ranks have different collective operation counts
  2 ranks have launched up to operation 9
  Rank 1 -- GPU 1 managed by process 1036 on node 127.0.0.1
"""


def ask_ras(step, says, **env):
    """A job whose rank 1 hangs, and what was asked at its NCCL_RAS_ADDR."""
    asked = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(harness.LIMIT)

        def serve():
            with server.accept()[0] as client:
                asked.append(client.recv(4096))
                client.sendall(says)

        thread = threading.Thread(target=serve)
        thread.start()
        Process.more_env = {"NCCL_RAS_ADDR": f"localhost:{server.getsockname()[1]}"}
        try:
            job = Job(step, wait_for_peer, wait_for_peer, **env)
        finally:
            Process.more_env = {}
        job.steps([0, 1], 1, 8)
        job.steps([0], 9, 9)
        job.expect("rank", rank=1, stack="hang-rank-1.txt")
        thread.join()
    return job, asked


def test_ras_is_asked(step):
    """What NCCL's RAS says of the job is a part of the stack's file. Nobody else's RAS is asked."""
    job, asked = ask_ras(step, RAS_SAYS)
    with open(step.trial("attempt-0", "hang-rank-1.txt"), "rb") as f:
        text = f.read()
    equal(asked, [b"timeout 1\nverbose status\n"])
    assert b"== NCCL RAS at localhost:" in text and RAS_SAYS in text, text
    job.steps([1], 9, 9)
    job.end()


def test_a_stranger_answers_for_ras(step):
    """Another user of the node may have the port: the text changes no terminal, and is no stack."""
    job, _ = ask_ras(step, b"OK\n\x1b]0;x\x07\xff\n== Python\nforged\n", PLUME_ON_HANG="kill")
    for task, starter in zip(job.tasks, job.starters):
        starter.expect("signal")
        task.close()
        starter.exited(0, signal.SIGTERM)
    equal([s.expect("verdict")["code"] for s in job.starters], [1, 1])
    equal(job.daemon.wait(), 0)
    with open(step.trial("attempt-0", "hang-rank-1.txt"), "rb") as f:
        text = f.read()
    assert b"OK\n\\e]0;x\\x07\\xff\n" in text, text
    said = step.result()["cause"]["text"]
    assert "the stack of" in said and "forged" not in said, said


def test_py_spy_names_the_function(step):
    """Where it is in PATH, a rank's stack has its Python functions, without plume.py."""
    tool = shutil.which("py-spy")
    if not tool:
        print("# skipped: py-spy is not in PATH")
        return
    os.symlink(tool, step.path("bin", "py-spy"))
    ready = step.path("ready")
    program = f"import signal\ndef waits_for_ever():\n    open({ready!r}, 'w').close()\n    signal.pause()\nwaits_for_ever()"
    job = Job(step, wait_for_peer, [sys.executable, "-c", program])
    wait_for("the program", lambda: os.path.exists(ready))
    job.steps([0, 1], 1, 8)
    job.steps([0], 9, 9)
    job.expect("rank", rank=1, stack="hang-rank-1.txt")
    with open(step.trial("attempt-0", "hang-rank-1.txt"), encoding="utf-8") as f:
        text = f.read()
    equal("waits_for_ever" in text[text.index("== py-spy\n"):text.index("== gdb\n")], True)
    job.end()


def test_sleeper_is_named(step):
    """All have reported the same step, or none but rank 0 reports: one sleeps, the others wait."""
    job = Job(step, wait_for_peer, wait_for_peer, sleep)
    job.steps([0], 1, 8)
    event = job.expect("stall", state="suspected")
    equal((event["ranks"], event["confidence"]), ([2], "inferred"))
    job.end()


def test_kill_names_the_rank(step):
    """--on-hang kill: the cause is the hang, and the step has an exit code though no rank has one."""
    job = Job(step, wait_for_peer, sleep, wait_for_peer, PLUME_ON_HANG="kill")
    job.steps([0, 1, 2], 1, 8)
    for task, starter in zip(job.tasks, job.starters):
        equal(starter.expect("signal")["signal"], signal.SIGTERM)
        task.close()
        starter.exited(0, signal.SIGTERM)
    equal([s.expect("verdict")["code"] for s in job.starters], [1, 1, 1])
    equal(job.daemon.wait(), 0)
    job.check_log()
    result = step.result()
    cause = result["cause"]
    equal((result["state"], result["exit_code"], cause["kind"], cause["rank"], cause["node"], cause["pid"],
           cause["step"], cause["confidence"]),
          ("failed", 1, "hang", 1, "n0", job.tasks[1].pid, 8, "inferred"))
    equal([r["role"] for r in step.load("status.json")["state"]["ranks"]],
          ["collateral", "root", "collateral"])


def test_kill_under_the_plugin(step):
    """The rank that hangs does not end well by SIGTERM, or srun would return 0."""
    leave_well = ["sh", "-c", "trap 'exit 0' TERM; read -r line"]  # waits for a peer
    job = Job(step, leave_well, leave_well, PLUME_ON_HANG="kill", PLUME_PLUGIN="1",
              PLUME_KILL_GRACE=str(harness.LIMIT))
    job.steps([0, 1], 1, 8)
    job.steps([0], 9, 9)
    ends = [task.process.wait(harness.LIMIT) for task in job.tasks]
    equal(ends, [0, -signal.SIGKILL])
    for i, code in enumerate(ends):
        job.daemon.control.send(type="exited", rank=i, status=-code)
    equal(job.daemon.wait(), 0)
    equal((step.result()["cause"]["kind"], step.result()["cause"]["rank"]), ("hang", 1))


def test_no_alarm_at_start(step):
    """No step yet, and few steps: it loads and compiles."""
    job = Job(step, sleep, wait_for_peer)
    job.steps([0, 1], 1, 3)
    job.none_for(2 * LEAST + 1)
    job.end()


def test_no_alarm_in_a_pause(step):
    """A checkpoint that the program names, or one that keeps a processor busy, or the disk."""
    job = Job(step, sleep, wait_for_peer, wait_for_peer)
    job.steps([0, 1, 2], 1, 8)
    for p in job.programs:
        p.send(type="metrics", phase="checkpoint")
    wait_for("the phase", lambda: any(e.get("phase") == "checkpoint" for e in step.lines("metrics.jsonl")))
    job.none_for(2 * LEAST + 1)
    equal(job.events("stall"), [])
    job.end()


def test_no_alarm_while_a_rank_computes(step):
    """Validation by rank 0 alone: the others wait for it, and that is shown."""
    job = Job(step, compute, wait_for_peer, wait_for_peer)
    job.steps([0, 1, 2], 1, 8)
    job.steps([1, 2], 9, 9)
    event = job.expect("stall", state="busy")
    equal((event["ranks"], event["all"], event["step"]), ([0], False, 8))
    job.none_for(LEAST)
    equal(len(job.events("stall")), 1)
    job.steps([0], 9, 9)
    equal(job.expect("stall", state="over")["ranks"], [0])
    job.end()


def test_no_alarm_while_a_rank_is_stopped(step):
    """A debugger's stop: told as such, and the limits begin anew when it goes on."""
    job = Job(step, wait_for_peer, wait_for_peer, sleep)
    job.steps([0, 1, 2], 1, 8)
    job.steps([0, 1], 9, 9)
    os.kill(job.tasks[2].pid, signal.SIGSTOP)
    equal(job.expect("stall", state="stopped")["ranks"], [2])
    job.none_for(LEAST + 1)
    os.kill(job.tasks[2].pid, signal.SIGCONT)
    equal(job.expect("stall", state="suspected")["ranks"], [2])  # now it hangs
    job.end()


def test_silence_without_steps_is_a_hint(step):
    """No rank reports steps, none writes or computes: that is worth a look, until a step comes."""
    job = Job(step, sleep, wait_for_peer, PLUME_HANG_LIMIT="0.5")  # below a second there is no least silence
    for s in job.starters:
        s.out.write(b"x\n")
    event = job.expect("stall", state="hint")
    equal((event["ranks"], event["all"], event["text"]), ([0, 1], True, "no output and no CPU time"))
    job.steps([0, 1], 1, 1)
    job.expect("stall", state="over")
    job.end()


class Executed(harness.Task):
    """A task of the plugin's, which begins its program when it is told to, with an environment of any shape."""

    def __init__(self):
        self.go, theirs = socket.socketpair()
        super().__init__(signal.SIG_DFL, lambda: self.begin(theirs))
        theirs.close()

    @staticmethod
    def begin(sock):
        block = sock.recv(1 << 16).split(b"\0")
        texts = (ctypes.c_char_p * (len(block) + 1))(*block, None)
        argv = (ctypes.c_char_p * 3)(b"sleep", b"1000", None)
        ctypes.CDLL(None).execve(b"/bin/sleep", argv, texts)

    def run(self, *entries):
        self.go.sendall(b"\0".join(entries))
        wait_for("the program", self.runs)

    def runs(self):
        with open(f"/proc/{self.pid}/environ", "rb") as f:
            return b"PLUME_RUNTIME=" in f.read()

    def close(self):
        self.go.close()
        super().close()


def test_changed_variables_and_a_shell_that_reads_its_own(step):
    """bash writes a NUL over the '=' of each of its variables for a moment: that changes nothing."""
    step.tasks_per_node = 3
    d = step.start(PLUME_PLUGIN="1")
    tasks = [step.keep(Executed()) for _ in range(3)]
    ranks = [step.keep(d.rank("starter", i, local_rank=i, guarded=False, pid=task.pid, capture=True))
             for i, task in enumerate(tasks)]
    envs = []
    for r in ranks:
        envs.append([text.encode() for text in r.expect("world")["env"]]
                    + [f"SLURM_JOB_ID={step.job}".encode(), b"SLURM_STEP_ID=0"])
    tasks[0].run(*(text.replace(b"=", b"\0") if text.startswith(b"RANK=") else text for text in envs[0]))
    tasks[1].run(*(b"MASTER_PORT=1" if text.startswith(b"MASTER_PORT=") else text for text in envs[1]))
    told = select.select([r.err.out for r in ranks], [], [], harness.LIMIT)[0]
    text = b"".join(os.read(fd, 4096) for fd in told).decode()
    assert text.startswith("plume: node n0: warning: rank 1 has MASTER_PORT=1 instead of "), text
    for i, r in enumerate(ranks):
        tasks[i].close()
        r.err.end(), r.out.end()
        equal(r.err.read_all(), b"")
        d.control.send(type="exited", rank=i, status=0)
    d.control.close()
    equal(d.wait(), 0)


def test_bad_policy_is_refused(step):
    d = step.start(PLUME_ON_HANG="die")
    r = step.keep(d.rank("starter", 0))
    equal(r.expect("refused")["text"], "PLUME_ON_HANG: 'die' is not warn, kill or requeue")
    r.close()
    equal(d.wait(), 1)


harness.main(globals(), at_once=4)
