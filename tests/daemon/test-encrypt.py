#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Encrypted sessions with the hub. The client's side is written here a second time, on libsodium's
functions by ctypes, and a proxy between real daemons looks at what is on the wire."""
import base64
import ctypes
import ctypes.util
import hashlib
import json
import os
import socket
import threading

import harness
from harness import LIMIT, Hub, equal, wait_for

sodium = ctypes.CDLL(ctypes.util.find_library("sodium") or "libsodium.so.23")
assert sodium.sodium_init() >= 0
NAME = "crypto_secretstream_xchacha20poly1305_"
HEADER, EXTRA = (getattr(sodium, NAME + f)() for f in ("headerbytes", "abytes"))
STATE = getattr(sodium, NAME + "statebytes")()
assert (HEADER, EXTRA) == (24, 17)


class Stream:
    """One direction."""

    def __init__(self, key, direction, header=None):
        self.state = ctypes.create_string_buffer(STATE)
        key = hashlib.blake2b(b"plume stream 1\0" + direction, digest_size=32, key=key).digest()
        if header is None:
            own = ctypes.create_string_buffer(HEADER)
            equal(getattr(sodium, NAME + "init_push")(self.state, own, key), 0)
            self.header = own.raw
        else:
            equal(getattr(sodium, NAME + "init_pull")(self.state, header, key), 0)

    def seal(self, body):
        out = ctypes.create_string_buffer(len(body) + EXTRA)
        getattr(sodium, NAME + "push")(self.state, out, None, body, ctypes.c_ulonglong(len(body)),
                                       None, ctypes.c_ulonglong(0), ctypes.c_ubyte(0))
        return base64.b64encode(out.raw).rstrip(b"=") + b"\n"

    def open(self, line):
        sealed = base64.b64decode(line + b"=" * (-len(line) % 4), validate=True)
        out = ctypes.create_string_buffer(max(1, len(sealed) - EXTRA))
        equal(getattr(sodium, NAME + "pull")(self.state, out, None, None, sealed,
                                             ctypes.c_ulonglong(len(sealed)), None,
                                             ctypes.c_ulonglong(0)), 0)
        return out.raw[:len(sealed) - EXTRA]


class SealedHub(Hub):
    out = inward = None

    def greet(self, **more):
        out = Stream(self.key, b"C")
        self.send(type="hello", proto="plume", major=1, minor=1, role=self.role, nonce=self.nonce,
                  stream=out.header.hex(), **more)
        welcome = self.receive()
        equal(sorted(welcome), ["stream", "type"])
        self.inward = Stream(self.key, b"S", bytes.fromhex(welcome["stream"]))
        self.out = out
        return self

    def frame(self, **message):
        if not self.out:
            return super().frame(**message)
        return self.out.seal(json.dumps(message).encode())

    def receive(self):
        if not self.inward:
            return super().receive()
        return json.loads(self.inward.open(self.line()))


class Proxy(threading.Thread):
    """A port that leads to the hub's, and keeps what went through."""

    def __init__(self, step, port):
        super().__init__(daemon=True)
        self.port, self.seen, self.conns = port, [b"", b""], []
        self.listener = step.keep(socket.create_server(("127.0.0.1", 0)))
        self.address = f"127.0.0.1:{self.listener.getsockname()[1]}"
        self.start()

    def run(self):
        while True:
            try:
                client = self.listener.accept()[0]
            except OSError:
                return
            try:  # the hub may not listen yet: the node tries again
                hub = socket.create_connection(("127.0.0.1", self.port), LIMIT)
            except OSError:
                client.close()
                continue
            hub.settimeout(None)
            for ends in ((client, hub, 0), (hub, client, 1)):
                threading.Thread(target=self.pump, args=ends, daemon=True).start()

    def pump(self, source, to, side):
        try:
            while data := source.recv(65536):
                self.seen[side] += data
                to.sendall(data)
        except OSError:
            pass
        for sock in (source, to):
            try:
                sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass


def running(step, **env):
    step.port = step.use_hub_port()
    d = step.start(**env)
    rank = step.keep(d.rank("starter", 0))
    rank.expect("world")
    rank.send(type="spawned", pid=os.getpid())
    return rank


def sealed(step, **more):
    return step.keep(SealedHub(step, step.port, **more)).greet()


def test_sealed_snapshots(step):
    running(step)
    c = sealed(step)
    for _ in range(3):
        c.send(type="snapshot")
        equal(c.expect("snapshot")["state"]["job"], step.job)
    c.send(type="dance")
    equal(c.expect("error")["text"], "unknown type")
    c.send_raw(b"".join(c.frame(type="snapshot") for _ in range(20)))
    for _ in range(20):
        c.expect("snapshot")


def test_sealed_lines_tampered(step):
    running(step)

    def refused(c, data):
        c.send_raw(data)
        c.expect_closed()

    c = sealed(step)
    line = c.frame(type="snapshot")
    c.send_raw(line)
    c.expect("snapshot")
    refused(c, line)  # replayed
    c = sealed(step)
    first, second = c.frame(type="snapshot"), c.frame(type="snapshot")
    refused(c, second + first)  # swapped
    c, other = sealed(step), sealed(step)
    refused(c, other.frame(type="snapshot"))  # of another session
    c = sealed(step)
    refused(c, Hub.frame(c, type="snapshot"))  # signed only
    for data in (b"{}\n", b"\n", b"AAAA\n", b"!" * 40 + b"\n"):
        refused(sealed(step), data)
    sealed(step).send(type="snapshot")


def test_sealed_hello_nonsense(step):
    running(step)
    for stream in ("", "00", "zz" * 24, "00" * 25):
        c = step.keep(Hub(step, step.port))
        c.send(type="hello", proto="plume", major=1, minor=1, role="client", nonce=c.nonce,
               stream=stream)
        c.expect_closed()
    step.hub(step.port).send(type="snapshot")  # without a stream: signed, as before 1.1


def two_nodes(step, ours="auto", theirs="auto"):
    """Node 1 through a proxy; its rank, and what was seen."""
    step.nodes = 2
    port = step.use_hub_port()
    proxy = Proxy(step, port)
    hub = step.start(0, PLUME_ENCRYPT=ours)
    # Its walk finds nothing: the proxy alone leads to the hub.
    node = step.start(1, PLUME_ENCRYPT=theirs, PLUME_HUB=proxy.address,
                      PLUME_HUB_PORTS="1-1", SLURM_LAUNCH_NODE_IPADDR=None)
    ranks = [step.keep(d.rank("starter", i)) for i, d in enumerate((hub, node))]
    return ranks, proxy


def finish(step, ranks):
    for r in ranks:
        r.expect("world")
        r.send(type="spawned", pid=os.getpid())
    for r in ranks:
        r.exited(0)
    for r in ranks:
        equal(r.expect("verdict")["code"], 0)
    wait_for("the result", lambda: os.path.exists(step.trial("result.json")))


def test_wire_of_daemons_is_sealed(step):
    ranks, proxy = two_nodes(step)
    finish(step, ranks)
    for seen in proxy.seen:
        for word in (b"attempt_dir", b'"started"', b'"bye"', step.dir.encode(), b"node_id"):
            assert word not in seen, (word, seen[:2000])
    assert b'"stream"' in proxy.seen[0] and b'"stream"' in proxy.seen[1]


def test_wire_of_daemons_signed_only(step):
    """Either side may switch encryption off."""
    for ours, theirs in (("off", "auto"), ("auto", "off")):
        step.job = str(int(step.job) + 1)
        ranks, proxy = two_nodes(step, ours, theirs)
        finish(step, ranks)
        assert b"attempt_dir" in proxy.seen[1] and b'"started"' in proxy.seen[0]
        for r in ranks:
            r.close()
        step.things = [t for t in step.things if t not in ranks]
        for d in step.daemons:
            equal(d.wait(), 0)


def required_by_one_side(step, ours, theirs):
    """The node's rank learns at once why."""
    ranks, proxy = two_nodes(step, ours, theirs)
    text = ranks[1].expect("refused")["text"]
    assert "PLUME_ENCRYPT" in text, text
    assert b"attempt_dir" not in proxy.seen[1]
    step.daemons[0].kill()  # it waits for its node


def test_required_by_the_hub(step):
    required_by_one_side(step, "require", "off")


def test_required_by_the_node(step):
    required_by_one_side(step, "off", "require")


def test_bad_value_is_named(step):
    d = step.launch(PLUME_ENCRYPT="yes")
    message = d.control.receive()
    equal(message["type"], "failed")
    assert "PLUME_ENCRYPT" in message["text"], message
    d.wait()


if __name__ == "__main__":
    harness.main(globals())
