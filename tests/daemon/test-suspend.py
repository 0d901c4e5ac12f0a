#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Processes that are suspended and go on (scontrol suspend, gang scheduling, a debugger): the time in
between counts for no limit."""
import contextlib
import os
import signal
import socket
import time

import harness
from harness import equal, wait_for


def pass_by(seconds):
    """Time that a test is about passes."""
    over = time.monotonic() + seconds
    wait_for("time to pass", lambda: time.monotonic() > over, seconds + 10)


def stopped(process):
    with open(f"/proc/{process.pid}/stat", encoding="ascii", errors="replace") as f:
        return f.read().rsplit(")", 1)[1].split()[0] == "T"


def stop(daemon):
    os.kill(daemon.process.pid, signal.SIGSTOP)
    wait_for("the stop", lambda: stopped(daemon.process))


def go_on(daemon):
    os.kill(daemon.process.pid, signal.SIGCONT)


def serve(rank):
    answer = rank.receive()
    equal((answer["type"], answer.get("text")), ("world", None))  # not refused
    rank.send(type="spawned", pid=os.getpid())
    rank.exited(0)
    equal(rank.expect("verdict")["code"], 0)


def test_suspended_at_the_launch(step):
    """Between the daemon's start and its hub's: it waits for room on stderr to complain."""
    reader, writer = os.pipe()
    with open(reader, "rb", buffering=0) as pipe:
        os.set_blocking(writer, False)
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(writer, bytes(4096))
        os.set_blocking(writer, True)
        d = step.launch(stderr=writer, PLUME_TRACE="/nonexistent/trace", PLUME_LAUNCH_TIMEOUT="1")
        os.close(writer)
        pass_by(1.3)
        pipe.read(65536)
        d.ready()
        serve(step.keep(d.rank("starter", 0)))
        equal(d.wait(), 0)
    equal(step.result()["state"], "done")


def test_suspended_while_the_hub_waits(step):
    """A hub that is suspended while a node is missing."""
    step.nodes = 2
    step.use_hub_port()
    first = step.start(0, PLUME_LAUNCH_TIMEOUT="2")
    r0 = step.keep(first.rank("starter", 0))
    wait_for("status.json", lambda: os.path.exists(step.trial("status.json")))
    stop(first)
    pass_by(2.2)
    second = step.start(1)
    r1 = step.keep(second.rank("starter", 1))
    go_on(first)
    for r in (r0, r1):
        serve(r)
    equal([first.wait(), second.wait()], [0, 0])


def test_suspended_while_it_searches(step):
    """A daemon that has not found its hub yet."""
    step.nodes = 2
    port = step.use_hub_port()
    with socket.create_server(("127.0.0.1", port), reuse_port=True) as listener:
        listener.settimeout(harness.LIMIT)
        second = step.start(1, PLUME_LAUNCH_TIMEOUT="2")
        listener.accept()[0].close()  # it has begun to search
        stop(second)
    r1 = step.keep(second.rank("starter", 1))
    pass_by(2.2)
    first = step.start(0)
    r0 = step.keep(first.rank("starter", 0))
    wait_for("status.json", lambda: os.path.exists(step.trial("status.json")))
    go_on(second)
    for r in (r1, r0):
        serve(r)
    equal([first.wait(), second.wait()], [0, 0])


def test_suspended_in_the_grace(step):
    """The ranks get the whole grace after the suspension."""
    step.tasks_per_node = 2
    d = step.start(PLUME_KILL_GRACE="2")
    ranks = [step.keep(d.rank("starter", i, local_rank=i)) for i in range(2)]
    for r in ranks:
        r.expect("world")
        r.send(type="spawned", pid=os.getpid())
    ranks[0].exited(3)
    equal(ranks[1].expect("signal")["signal"], signal.SIGTERM)
    stop(d)
    pass_by(2.2)
    go_on(d)
    # Nothing comes before it is suspended no more for a while; a rank that ends by itself is not killed.
    ranks[1].sock.settimeout(0.5)
    try:
        got = ranks[1].expect("signal")
        raise AssertionError(got)
    except TimeoutError:
        ranks[1].sock.settimeout(harness.LIMIT)
    ranks[1].exited(0, 15)
    equal([r.expect("verdict")["code"] for r in ranks], [3, 0])
    equal(d.wait(), 0)


harness.main(globals())
