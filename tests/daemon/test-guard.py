#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""One node: starters, owners and lifelines that go away or are stopped; who may report an end."""
import contextlib
import ctypes
import os
import select
import signal
import socket
import subprocess

import harness
from harness import LIMIT, equal, wait_for
from started import leave_well, start_rank


def test_guard_killed(step):
    """A plrun that goes without a word was killed, and its rank with it."""
    step.tasks_per_node = 2
    d = step.start()
    a, b = start_rank(step, d, 0, 0), start_rank(step, d, 1, 1)
    a.close()
    step.things.remove(a)
    b.expect("signal")
    b.exited(0)
    equal(b.expect("verdict")["code"], 137)  # slurmstepd may be gone, too, and nobody tells plrun's own
    equal(d.wait(), 0)
    cause = step.result()["cause"]
    equal((cause["kind"], cause["process"], cause["rank"], cause["node"], cause["confidence"]),
          ("runtime", "plrun", 0, "n0", "seen"))


def test_guard_killed_leaves_nothing(step):
    """What its rank had started goes with it; what belongs to another rank stays."""
    step.tasks_per_node = 2
    d = step.start()
    a, b = start_rank(step, d, 0, 0), start_rank(step, d, 1, 1)
    of_a, of_b = (subprocess.Popen(["tail", "-f", "/dev/null"], start_new_session=True,
                                   env=step.environment(0, SLURM_PROCID=str(rank)))
                  for rank in (0, 1))
    try:
        a.close()
        step.things.remove(a)
        equal(of_a.wait(LIMIT), -signal.SIGKILL)
        b.expect("signal")
        b.exited(0)
        equal(d.wait(), 0)
        equal(of_b.poll(), None)
    finally:
        of_a.kill()
        of_b.kill()
        of_a.wait()
        of_b.wait()


@contextlib.contextmanager
def stopped(d):
    """What comes meanwhile, comes at once."""
    os.kill(d.process.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(d.process.pid, signal.SIGCONT)


def end_with_stopped_guard(step, rank=os.getppid):
    """Rank 0, of the pid that rank() returns, has a plrun that is stopped; rank 1 fails. The daemon, which has ended
    plrun and itself, and that pid."""
    step.tasks_per_node = 2
    d = step.start()
    told, tells = os.pipe()
    guard = os.fork()
    if guard == 0:
        with contextlib.suppress(BaseException):
            r = d.rank("starter", 0)
            r.expect("world")
            pid = rank()
            os.write(tells, f"{pid}\n".encode())
            r.send(type="spawned", pid=pid)
            while True:  # it may be woken as its rank has ended
                os.kill(os.getpid(), signal.SIGSTOP)
        os._exit(1)
    try:
        os.waitpid(guard, os.WUNTRACED)
        b = start_rank(step, d, 1, 1)
        b.exited(3)
        wait_for("the end of the stopped starter", lambda: os.waitid(
            os.P_PID, guard, os.WEXITED | os.WNOHANG | os.WNOWAIT))
        equal(b.expect("verdict")["code"], 3)
        equal(d.wait(), 0)
    finally:
        os.kill(guard, signal.SIGKILL)
        status = os.waitpid(guard, 0)[1]
    equal(status, signal.SIGKILL)
    return d, int(os.read(told, 32))


def test_guard_stopped(step):
    """A plrun that is stopped cannot end its rank: after the grace the daemon ends plrun."""
    d, _ = end_with_stopped_guard(step)
    cause = step.result()["cause"]
    equal((cause["kind"], cause["rank"], cause["exit"]), ("exit", 1, 3))
    equal([r["state"] for r in step.load("status.json")["state"]["ranks"]], ["killed", "failed"])
    assert "SIGKILL does not end" not in d.said(), d.said()  # nobody has sent it to that rank


def state_of(pid):
    with open(f"/proc/{pid}/stat", encoding="ascii") as f:
        return f.read().rpartition(") ")[2][0]


def waits_in_the_kernel():
    """The pid of a child in state D that SIGKILL ends, as it ends one that waits for a file server."""
    clone = {"x86_64": 56, "aarch64": 220}[os.uname().machine]
    pid = os.fork()
    if pid == 0:
        # CLONE_VFORK: it waits in the kernel until its child, which has its own memory, has ended.
        if ctypes.CDLL(None).syscall(clone, 0x4000 | signal.SIGCHLD, 0, 0, 0, 0) == 0:
            ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
            while True:
                signal.pause()
        os._exit(0)
    wait_for("state D", lambda: state_of(pid) == "D")
    return pid


def test_guard_stopped_and_rank_in_the_kernel(step):
    """A rank in state D gets SIGKILL before it is called unkillable."""
    d, pid = end_with_stopped_guard(step, waits_in_the_kernel)
    assert "SIGKILL does not end" not in d.said(), d.said()
    equal([e["value"] for e in step.lines("events.jsonl") if e.get("key") == "unkillable"], [])
    wait_for("the rank's end", lambda: not os.path.exists(f"/proc/{pid}"))


def test_guard_stopped_and_daemon_killed(step):
    """Nobody else ends its rank, and the step would last up to its time limit: the daemon's helper lets plrun go on."""
    d = step.start(PLUME_CONFINE="auto")
    guard = os.fork()
    if guard == 0:
        with contextlib.suppress(BaseException):
            d.rank("starter", 0).expect("world")
            os.kill(os.getpid(), signal.SIGSTOP)
            os._exit(7)
        os._exit(1)
    try:
        os.waitpid(guard, os.WUNTRACED)
        d.kill()
        wait_for("plrun goes on", lambda: os.waitid(os.P_PID, guard, os.WEXITED | os.WNOHANG | os.WNOWAIT))
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(guard, signal.SIGKILL)
        status = os.waitpid(guard, 0)[1]
    equal(os.waitstatus_to_exitcode(status), 7)


def test_owner_gone(step):
    step.tasks_per_node = 2
    d = step.start()
    a, b = start_rank(step, d, 0, 0), start_rank(step, d, 1, 1)
    d.control.close()
    for r in (a, b):
        equal(r.expect("signal")["signal"], signal.SIGTERM)
        r.exited(signal_number=15)
        r.expect("verdict")
    equal(d.wait(), 0)


def killed_with_owner(step, d, *guards):
    """The plruns of a node are killed by one signal, and the first is that of rank 0, which the daemon belongs to."""
    with stopped(d):
        d.control.close()
        for r in guards:
            r.close()
            step.things.remove(r)
    equal(d.wait(), 0)
    cause = step.result()["cause"]
    equal((cause["kind"], cause.get("process"), cause["confidence"]), ("runtime", "plrun", "seen"))
    return cause["rank"]


def test_all_guards_killed(step):
    """A rank that kills its process group, for instance: Slurm starts the tasks of a node in one."""
    step.tasks_per_node = 2
    d = step.start()
    a, b = start_rank(step, d, 0, 0), start_rank(step, d, 1, 1)
    assert killed_with_owner(step, d, a, b) in (0, 1)


def test_all_guards_killed_before_one_came(step):
    """It is no launch error: rank 1 had begun."""
    step.tasks_per_node = 2
    d = step.start()
    equal(killed_with_owner(step, d, start_rank(step, d, 1, 1)), 1)


def test_guard_killed_in_the_grace(step):
    """The same, where the end of one plrun comes late: the daemon has ordered SIGTERM, and no SIGKILL."""
    step.tasks_per_node = 2
    d = step.start(PLUME_KILL_GRACE=str(LIMIT))
    r = start_rank(step, d, 1, 1)
    d.control.close()
    r.expect("signal")
    r.close()
    step.things.remove(r)
    equal(d.wait(), 0)
    equal((step.result()["cause"]["kind"], step.result()["cause"]["rank"]), ("runtime", 1))


def test_owner_gone_before_ranks(step):
    d = step.start()
    d.control.close()
    equal(d.wait(), 0)
    assert not os.path.exists(d.socket)


def test_owner_talks_nonsense(step):
    d = step.start()
    d.control.send_raw(b"\n{}\n[]\n" + b'{"rank":' * 100 + b"\n" + b"x" * 5000 + b"\n")
    d.control.send(type="exited", rank=7, status=0)
    d.control.send(type="exited", rank=-1, status=0)
    d.control.send(type="spawned", rank=1 << 32, pid=1)
    r = start_rank(step, d)
    r.exited(0)
    equal(r.expect("verdict")["code"], 0)
    equal(d.wait(), 0)
    equal(step.result()["state"], "done")


def test_plugin_ranks_without_guard(step):
    """As the SPANK plugin does it: task_init says hello and goes, slurmstepd reports the rest."""
    step.tasks_per_node = 2
    step.env.update(PLUME_PLUGIN="1", PLUME_KILL_GRACE="0.1")
    d = step.start()
    children = []
    for i in range(2):
        child = os.fork()
        if child == 0:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            while True:
                signal.pause()
        children.append(child)
        r = d.rank("starter", i, local_rank=i, guarded=False, pid=child)
        r.expect("world")
        r.close()
        d.control.send(type="spawned", rank=i, pid=child)
    os.kill(children[1], signal.SIGKILL)
    equal(os.waitpid(children[1], 0)[1], signal.SIGKILL)
    d.control.send(type="exited", rank=1, status=11, at_ns=1)
    equal(os.waitpid(children[0], 0)[1], signal.SIGKILL)  # the daemon's doing, behind the grace
    d.control.send(type="exited", rank=0, status=9, at_ns=2)
    equal(d.wait(), 0)
    result = step.result()
    equal((result["cause"]["rank"], result["cause"]["signal"]), (1, 11))
    equal(step.load("status.json")["state"]["ranks"][0]["state"], "killed")


def test_plugin_task_ends_before_its_signal(step):
    """slurmstepd reports the ends one after the other: nobody has ended the second task."""
    step.tasks_per_node = 2
    step.env.update(PLUME_PLUGIN="1")
    d = step.start()
    tasks = [step.keep(harness.Task(leave_badly)) for _ in range(2)]
    for i, task in enumerate(tasks):
        r = d.rank("starter", i, local_rank=i, guarded=False, pid=task.pid)
        r.expect("world")
        r.close()
        os.kill(task.pid, signal.SIGTERM)
        os.waitid(os.P_PID, task.pid, os.WEXITED | os.WNOWAIT)  # not reaped
    d.control.send(type="exited", rank=0, status=3 << 8, at_ns=1)
    wait_for("the teardown", lambda: [e for e in step.lines("events.jsonl") if e["type"] == "teardown"])
    d.control.send(type="exited", rank=1, status=3 << 8, at_ns=2)
    equal(d.wait(), 0)
    rank = step.load("status.json")["state"]["ranks"][1]
    equal((rank["state"], rank["role"], rank["exit"]), ("failed", "cascade", 3))


def leave_badly(*_):
    os._exit(3)


def start_tasks(step, second=signal.SIG_DFL, **env):
    """Two tasks under the plugin's daemon; the first ignores SIGTERM."""
    step.tasks_per_node = 2
    step.env.update({"PLUME_PLUGIN": "1", "PLUME_KILL_GRACE": "0.1", **env})
    d = step.start()
    tasks = []
    for i, action in enumerate((signal.SIG_IGN, second)):
        tasks.append(step.keep(harness.Task(action)))
        r = d.rank("starter", i, local_rank=i, guarded=False, pid=tasks[i].pid)
        r.expect("world")
        r.close()
    return d, tasks


def child_of(d, name):
    """The pid of the daemon's child of this name; None: it has none now."""
    with open(f"/proc/{d.process.pid}/task/{d.process.pid}/children", encoding="ascii") as f:
        pids = f.read().split()
    for pid in pids:
        with contextlib.suppress(OSError), open(f"/proc/{pid}/comm", encoding="ascii") as f:
            if f.read() == f"{name}\n":
                return int(pid)
    return None


def lifeline_of(d):
    """The pid of the daemon's lifeline; None: it has none now."""
    return child_of(d, "plume-lifeline")


def test_lifeline_ends_tasks_of_a_killed_daemon(step):
    d, tasks = start_tasks(step)
    pid = wait_for("lifeline", lambda: lifeline_of(d))
    d.kill()
    equal([t.wait() for t in tasks], [signal.SIGKILL, signal.SIGTERM])
    wait_for("the lifeline's end", lambda: not os.path.exists(f"/proc/{pid}"))
    equal(os.path.exists(d.socket), False)


def test_lifeline_ends_tasks_of_a_stopped_daemon(step):
    d, tasks = start_tasks(step, PLUME_SILENCE=str(harness.SLOW))
    wait_for("lifeline", lambda: lifeline_of(d))
    d.process.send_signal(signal.SIGSTOP)
    equal([t.wait() for t in tasks], [signal.SIGKILL, signal.SIGTERM])
    # It would hold the streams of srun, and so the step, for ever.
    equal(d.wait(), -signal.SIGKILL)
    wait_for("the end of its socket", lambda: not os.path.exists(d.socket))


def test_lifeline_has_given_up_the_daemon(step):
    """One that goes on later reports no end of a rank as the rank's own."""
    d, tasks = start_tasks(step, leave_well, PLUME_SILENCE=str(harness.SLOW), PLUME_KILL_GRACE=str(LIMIT))
    d.process.send_signal(signal.SIGSTOP)
    equal(tasks[1].wait(), signal.SIGKILL)  # the other one ignores SIGTERM, and has the grace
    d.control.send(type="exited", rank=1, status=9)
    d.process.send_signal(signal.SIGCONT)
    equal(d.wait(), -signal.SIGKILL)


def test_lifeline_ends_a_stopped_daemon_without_tasks(step):
    """Its tasks have ended, and it holds the streams of srun: the step ends after the silence, too."""
    d, tasks = start_tasks(step, PLUME_SILENCE=str(harness.SLOW))
    wait_for("lifeline", lambda: lifeline_of(d))
    d.process.send_signal(signal.SIGSTOP)
    for task in tasks:
        task.close()
    equal(d.wait(), -signal.SIGKILL)
    wait_for("the end of its socket", lambda: not os.path.exists(d.socket))


def test_lifeline_is_replaced(step):
    d, tasks = start_tasks(step)
    first = wait_for("lifeline", lambda: lifeline_of(d))
    os.kill(first, signal.SIGKILL)
    wait_for("another lifeline", lambda: lifeline_of(d) not in (None, first))
    d.kill()
    equal([t.wait() for t in tasks], [signal.SIGKILL, signal.SIGTERM])


def test_lifeline_ends_with_the_daemon(step):
    d, tasks = start_tasks(step)
    pid = wait_for("lifeline", lambda: lifeline_of(d))
    for i, task in enumerate(tasks):
        task.close()
        d.control.send(type="exited", rank=i, status=0)
    equal(d.wait(), 0)
    equal(step.result()["state"], "done")
    wait_for("the lifeline's end", lambda: not os.path.exists(f"/proc/{pid}"))


def test_stopped_lifeline_ends_with_the_daemon(step):
    """Nothing stays on a node because a user has stopped it."""
    d, tasks = start_tasks(step)
    pid = wait_for("lifeline", lambda: lifeline_of(d))
    os.kill(pid, signal.SIGSTOP)
    try:
        for i, task in enumerate(tasks):
            task.close()
            d.control.send(type="exited", rank=i, status=0)
        equal(d.wait(), 0)
        wait_for("the lifeline's end", lambda: not os.path.exists(f"/proc/{pid}"))
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def marked(step, program, **options):
    """A process with the variables of rank 0 of the step, in a session of its own."""
    env = {**os.environ, "SLURM_JOB_ID": step.job, "SLURM_STEP_ID": "0", "SLURM_NODEID": "0", "SLURM_PROCID": "0"}
    return subprocess.Popen(program, env=env, start_new_session=True, **options)


# It catches SIGTERM, says so, and ends when it may. By its name its save command runs.
SAVER = """
import os, signal, sys
open("/proc/self/comm", "w").write("plume-saves")
def save(*_):
    os.write(1, b"saves\\n")
    sys.stdin.readline()
    os._exit(7)
signal.signal(signal.SIGTERM, save)
os.write(1, b"ready\\n")
while True:
    signal.pause()
"""


def line_of(process):
    """The next line of its output, or b"" if it does not come within the limit."""
    return process.stdout.readline() if select.select([process.stdout], [], [], LIMIT)[0] else b""


def start_saver(step, confine="auto"):
    """A daemon with a helper under the plugin, its one task, which saves, and an orphan of that."""
    step.env.update(PLUME_PLUGIN="1", PLUME_KILL_GRACE=str(LIMIT))
    d = step.start(PLUME_CONFINE=confine)
    task = step.keep(Kept(marked(step, ["python3", "-c", SAVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE)))
    equal(line_of(task.process), b"ready\n")
    orphan = step.keep(Kept(marked(step, ["sleep", "infinity"])))
    r = d.rank("starter", 0, guarded=False, pid=task.process.pid)
    r.expect("world")
    r.close()
    pid = wait_for("lifeline", lambda: lifeline_of(d))
    return d, task.process, orphan.process, pid


class Kept:
    """A process that ends with the test."""

    def __init__(self, process):
        self.process = process

    def close(self):
        self.process.kill()
        self.process.wait()


def end_orphans_of_a_killed_daemon(step, confine):
    d, task, orphan, _ = start_saver(step, confine)
    d.kill()
    equal(line_of(task), b"saves\n")
    equal(orphan.poll(), None)
    task.stdin.write(b"\n")
    task.stdin.flush()
    equal(task.wait(LIMIT), 7)
    equal(orphan.wait(LIMIT), -signal.SIGKILL)


def test_orphans_of_a_killed_daemon(step):
    """What a rank has left is ended after the rank, which has its grace, also if nobody asks for it."""
    end_orphans_of_a_killed_daemon(step, "auto")


def test_orphans_of_a_killed_daemon_without_limits(step):
    end_orphans_of_a_killed_daemon(step, "off")


def test_stopped_helper_of_a_killed_daemon(step):
    d, task, orphan, _ = start_saver(step)
    helper = child_of(d, "plume-helper")
    os.kill(helper, signal.SIGSTOP)
    d.kill()
    task.stdin.close()
    equal(task.wait(LIMIT), 7)
    equal(orphan.wait(LIMIT), -signal.SIGKILL)
    wait_for("the helper's end", lambda: not os.path.exists(f"/proc/{helper}"))


def test_stopped_lifeline_of_a_killed_daemon(step):
    d, task, orphan, pid = start_saver(step)
    os.kill(pid, signal.SIGSTOP)
    d.kill()
    equal(line_of(task), b"saves\n")
    task.stdin.close()
    equal(task.wait(LIMIT), 7)
    equal(orphan.wait(LIMIT), -signal.SIGKILL)


def test_plugin_exit_before_hello(step):
    """slurmstepd may speak of a task before the task does."""
    step.env["PLUME_PLUGIN"] = "1"
    d = step.start()
    d.control.send(type="exited", rank=0, status=0, at_ns=1)
    r = d.rank("starter", 0, guarded=False)
    r.close()
    equal(d.wait(), 0)


def starter_elsewhere(d, rank, local_rank, guarded=True):
    """A process of its own says a starter's hello once it gets a byte, and then the type of the
    answer; it stays until the pipe is closed. Its pid and the pipe."""
    ours, theirs = socket.socketpair()
    child = os.fork()
    if child == 0:
        try:
            ours.close()
            theirs.recv(1)
            r = d.rank("starter", rank, local_rank=local_rank, guarded=guarded)
            theirs.send(r.receive()["type"].encode())
            theirs.recv(1)
        finally:
            os._exit(0)
    theirs.close()
    ours.settimeout(LIMIT)
    return child, ours


def test_program_reports_no_ends(step):
    """Starts, ends and signals are the starter's to report, by its own connection."""
    step.tasks_per_node = 2
    step.scontrol("echo asked >>" + step.path("asks"))
    d = step.start()
    starters = [start_rank(step, d, i, i) for i in range(2)]
    for rank in (0, 1):
        for _ in range(2):
            p = step.keep(d.rank("program", rank))
            p.send(type="exited", status=9, at_ns=1)
            p.send(type="spawned", pid=os.getpid())
            p.send(type="signalled", signal=15)
            for _ in range(3):
                assert "starter" in p.expect("error")["text"]
            p.send(type="fact", key="k", value="v")  # it goes on with what is its own
    client = step.hub()
    client.send(type="snapshot")
    equal([r["state"] for r in client.expect("snapshot")["state"]["ranks"]], ["running"] * 2)
    for s in starters:
        s.exited(0)
        equal(s.expect("verdict")["code"], 0)
    equal(d.wait(), 0)
    equal(step.result()["state"], "done")
    assert not os.path.exists(step.path("asks"))
    equal(d.said().count("refused"), 4)  # once per connection


def test_program_is_no_starter(step):
    """What a rank has started cannot pose as the starter of a rank that has not come yet."""
    step.tasks_per_node = 2
    d = step.start()
    first = start_rank(step, d)
    child, pipe = starter_elsewhere(d, 1, 1)
    pipe.send(b"x")
    equal(pipe.recv(16), b"error")
    pipe.close()
    os.waitpid(child, 0)
    assert "rank 1" in d.said(), d.said()
    for r in (first, start_rank(step, d, 1, 1)):
        r.exited(0)
        equal(r.expect("verdict")["code"], 0)
    equal(d.wait(), 0)
    equal(step.result()["state"], "done")


def test_plugin_starter_is_the_task(step):
    """slurmstepd has named the task's process: no other one is the rank's starter, and none that
    speaks on the socket reports its end."""
    step.env["PLUME_PLUGIN"] = "1"
    d = step.start()
    child, pipe = starter_elsewhere(d, 0, 0, guarded=False)
    d.control.send(type="spawned", rank=0, pid=child)
    other = step.keep(d.rank("starter", 0, guarded=False))
    equal(other.receive()["type"], "error")
    other.expect_closed()
    pipe.send(b"x")
    equal(pipe.recv(16), b"world")
    p = step.keep(d.rank("program", 0))
    p.send(type="exited", status=9, at_ns=1)
    assert "starter" in p.expect("error")["text"]
    pipe.close()
    os.waitpid(child, 0)
    d.control.send(type="exited", rank=0, status=0, at_ns=1)
    equal(d.wait(), 0)
    equal(step.result()["state"], "done")


harness.main(globals(), at_once=4)
