#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Connections to the hub from those who do not have the key: many, silent, wrong, and curious."""
import json
import os
import select
import socket
import subprocess
import time

import harness
from harness import LIMIT, Closed, Hub, equal, wait_for


def running(step, **env):
    step.port = step.use_hub_port()
    step.daemon = step.start(**env)
    rank = step.keep(step.daemon.rank("starter", 0))
    rank.expect("world")
    rank.send(type="spawned", pid=os.getpid())
    return rank


def stranger(step, source="127.0.0.1"):
    """A connection from this address; "::1" stands for another host, as 127.x.x.x is one for the hub."""
    sock = socket.socket(socket.AF_INET6 if ":" in source else socket.AF_INET)
    sock.settimeout(LIMIT)
    sock.bind((source, 0))
    sock.connect(("::1" if ":" in source else "127.0.0.1", step.port))
    return step.keep(sock)


def received(sock):
    try:
        return sock.recv(65536)
    except ConnectionError:
        return b""


def cut_off(sock):
    """Waits until the hub has closed it."""
    sock.settimeout(LIMIT)
    while received(sock):
        pass


def asks(step):
    """A client with the key gets its answer; a slow one tries again, as nodes do."""
    return wait_for("an answer", lambda: try_snapshot(step, step.port))


def test_strangers_fill_nothing(step):
    """More silent connections than the hub has places: its owner gets in, again and again."""
    running(step)
    before = asks(step)
    crowd = [stranger(step) for _ in range(400)]
    for _ in range(5):
        asks(step)
        crowd += [stranger(step) for _ in range(50)]
    cut_off(crowd[0])  # the oldest made room
    before.send(type="snapshot")  # who has greeted stays
    before.expect("snapshot")


def test_strangers_of_one_address_leave_room_for_others(step):
    """The crowd makes room, not the one that comes from elsewhere and is slow. A user of the node may use all
    of 127.x.x.x, and is one crowd all the same."""
    running(step)
    for _ in range(8):  # on a machine under load its two seconds may pass
        slow = Hub(step, step.port, sock=stranger(step, "::1"))
        crowd = [stranger(step, f"127.0.{n // 200}.{n % 200 + 3}") for n in range(300)]
        for sock in crowd[:100]:
            cut_off(sock)
        slow.send(type="hello", proto="plume", major=1, minor=0, role="client", nonce=slow.nonce)
        try:
            equal(slow.receive(), {"type": "welcome"})
            return
        except (Closed, ConnectionError):
            pass
    raise AssertionError("the crowd displaced another address's connection")


def test_deadline_is_short_under_pressure(step):
    """One of a crowd has a quarter of a second; a lone silent connection has two."""
    running(step)
    lone = stranger(step)
    start = time.monotonic()
    cut_off(lone)
    assert time.monotonic() - start > 1.9
    for _ in range(8):  # a machine under load may be late, but not each time
        crowd = [stranger(step, ("127.0.0.3", "::1")[n % 2]) for n in range(100)]
        start = time.monotonic()
        while len(crowd) > 20 and time.monotonic() - start < 1.9:  # a few of each may stay
            for sock in select.select(crowd, [], [], 0.1)[0]:
                if not received(sock):
                    crowd.remove(sock)
        if len(crowd) <= 20:
            return
        for sock in crowd:
            cut_off(sock)
    raise AssertionError("a crowd has as much time as a lone stranger")


def test_clients_fill_no_place_of_a_node(step):
    """The owner's own clients, too many of them: the node still joins."""
    step.nodes = 2
    port = step.use_hub_port()
    d = step.start(0)
    step.keep(d.rank("starter", 0))
    clients, refused = [], 0
    for _ in range(270):
        try:
            c = step.hub(port)
            c.send(type="snapshot")
            c.expect("snapshot")
            clients.append(c)
        except (Closed, ConnectionError):
            refused += 1
    equal((len(clients), refused), (256, 14))
    node = step.hub(port, role="daemon")
    node.send(type="join", node_id=1, node="n1", local_ntasks=1)
    node.expect("world")
    clients.pop().close()
    wait_for("a place", lambda: try_snapshot(step, port))


def try_snapshot(step, port):
    try:
        c = step.hub(port)
        c.send(type="snapshot")
        c.expect("snapshot")
        return c
    except (Closed, ConnectionError):
        return None


def test_warnings_are_few(step):
    """Each hello with a wrong key is answered; the log names some, and later how many there were."""
    running(step)
    for _ in range(300):
        c = Hub(step, step.port, secret=bytes(32))
        c.send(type="hello", proto="plume", major=1, minor=0, role="client", nonce=c.nonce)
        equal(json.loads(c.line()), {"error": "key"})
        c.expect_closed()
        c.close()
    said = [line for line in step.daemon.said().splitlines() if "refused a peer" in line]
    assert 1 <= len(said) <= 5, said


def test_clients_keep_their_descriptors(step):
    """With no descriptor left and no stranger to cut off, those who have greeted stay."""
    step.port = step.use_hub_port()
    step.daemon = step.launch(wrap=["sh", "-c", 'ulimit -n 48; exec "$0" "$@"']).ready()
    step.keep(step.daemon.rank("starter", 0)).expect("world")
    clients, late = [], []
    first = asks(step)
    while len(clients) < 60:
        sock = step.keep(socket.create_connection(("127.0.0.1", step.port), LIMIT))
        if not select.select([sock], [], [], 0.5)[0]:
            late.append(sock)
            break
        clients.append(Hub(step, step.port, sock=sock).greet())
    assert 10 < len(clients) < 48, len(clients)
    for c in [first, *clients]:
        c.send(type="snapshot")
        c.expect("snapshot")
    first.close()
    Hub(step, step.port, sock=late[0]).greet()  # it has waited for a descriptor


def test_bind_to_one_address(step):
    step.port = step.use_hub_port()
    step.env["PLUME_HUB_BIND"] = "127.0.0.2"
    d = step.start()
    step.keep(d.rank("starter", 0)).expect("world")
    sock = step.keep(socket.create_connection(("127.0.0.2", step.port), LIMIT))
    Hub(step, step.port, sock=sock).greet()
    for elsewhere in ("127.0.0.1", "127.0.0.3"):
        try:
            socket.create_connection((elsewhere, step.port), LIMIT)
            raise AssertionError(f"the hub listens at {elsewhere}, too")
        except ConnectionRefusedError:
            pass
    equal(step.load("status.json")["hub"]["host"], "127.0.0.2")


def test_bind_to_an_interface(step):
    step.port = step.use_hub_port()
    step.env["PLUME_HUB_BIND"] = "lo"
    d = step.start()
    step.keep(d.rank("starter", 0)).expect("world")
    asks(step)
    equal(step.load("status.json")["hub"]["host"], "127.0.0.1")


def test_bind_to_all(step):
    """No other node, and no plstat, can connect to 0.0.0.0: such an address is never published."""
    plrun = os.path.join(os.path.dirname(harness.PLRUND), "plrun")
    for given in ("0.0.0.0", "::"):
        step.env["PLUME_HUB_BIND"] = given
        with subprocess.Popen([plrun, "--reserve-hub"], env=step.environment(0),
                              stdout=subprocess.PIPE) as reserve:
            address = reserve.stdout.readline().decode()
            reserve.stdout.close()
            equal(reserve.wait(LIMIT), 0)
        assert address.startswith("127.0.0.1:"), address
    step.port = step.use_hub_port()
    d = step.start()
    step.keep(d.rank("starter", 0)).expect("world")
    asks(step)
    assert step.load("status.json")["hub"]["host"] not in ("0.0.0.0", "::")


def test_bind_to_nothing(step):
    """An interface or an address that the node does not have: a launch error that names it."""
    for given in ("nosuch0", "192.0.2.1", "fe80::", "127.0.0.2:4", "x" * 300, "224.0.0.1",
                  "255.255.255.255", "ff02::1"):
        step.env["PLUME_HUB_BIND"] = given
        d = step.start()
        r = d.rank("starter", 0)
        text = r.expect("refused")["text"]
        r.close()
        assert given[:200] in text, text
        equal(d.wait(), 1)


def test_bind_to_nothing_is_told_to_all_nodes(step):
    """At once, by the hub of the node that has no such address: they do not search for it until their limit."""
    step.nodes = 2
    step.use_hub_port()
    for given in ("nosuch0", "192.0.2.1"):
        step.env["PLUME_HUB_BIND"] = given
        daemons = [step.start(i) for i in (1, 0)]
        for i, d in zip((1, 0), daemons):
            r = d.rank("starter", i)
            text = r.expect("refused")["text"]
            r.close()
            assert "node n0 cannot serve the step: PLUME_HUB_BIND: " in text and given in text, text
        equal([d.wait() for d in daemons], [1, 1])
        cause = step.result()["cause"]
        equal((cause["kind"], cause["node"]), ("launch", "n0"))
        assert given in cause["text"], cause
        step.job = str(int(step.job) + 1)


def test_no_free_port_is_told_to_all_nodes(step):
    """At once, at a port outside of the range; whether the other programs listen or not."""
    step.nodes = 2
    for backlog in (8, None):
        with socket.socket() as taken:
            taken.bind(("", 0))
            if backlog:
                taken.listen(backlog)
            step.env["PLUME_HUB_PORTS"] = str(taken.getsockname()[1])
            daemons = [step.start(i) for i in (1, 0)]
            for i, d in zip((1, 0), daemons):
                r = d.rank("starter", i)
                text = r.expect("refused")["text"]
                r.close()
                assert "node n0 cannot serve the step: none of the hub's 8 ports is free" in text, text
            equal([d.wait() for d in daemons], [1, 1])
        cause = step.result()["cause"]
        equal((cause["kind"], cause["node"]), ("launch", "n0"))
        step.job = str(int(step.job) + 1)


if __name__ == "__main__":
    harness.main(globals())
