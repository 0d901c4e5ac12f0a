# SPDX-License-Identifier: MIT
"""Hundreds of a step's nodes, with their ranks, in one process: each node is a connection that speaks
with the hub as a node's plrund does (plume-protocol(7)). Node 0 is a real plrund, with the hub in it,
whose ranks are played over its socket.

A daemon reports its ranks' progress once a second, in one message, whatever the ranks' own rate is: so
does a node here, in report().
"""
import contextlib
import glob
import hashlib
import hmac
import json
import os
import resource
import selectors
import socket
import time

import harness
from harness import KEY, LIMIT


def raise_file_limit():
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def clock_id():
    """Of this host's clock, as plrund names it: the hub need not estimate the difference."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as f:
        boot = f.read().strip()
    with open("/proc/self/timens_offsets", encoding="ascii") as f:
        offsets = dict(line.split(maxsplit=1) for line in f)
    return f"{boot}:{':'.join(offsets['monotonic'].split())}"


class Peer:
    """A session with the hub, over a socket that never blocks."""

    def __init__(self, step, port, role):
        self.step, self.role = step, role
        self.data, self.out = b"", b""
        self.sent = self.received = self.bytes_in = self.bytes_out = 0
        self.key = None
        self.open = self.closed = False
        self.sock = socket.socket()
        self.sock.setblocking(False)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # as a daemon does
        self.sock.connect_ex(("127.0.0.1", port))

    def digits(self, direction, counter, body):
        head = direction + counter.to_bytes(8, "big")
        return hmac.digest(self.key, head + body, "sha256").hex().encode()

    def send(self, **message):
        body = json.dumps(message, separators=(",", ":")).encode()
        self.out += self.digits(b"C", self.sent, body) + b" " + body + b"\n"
        self.sent += 1
        self.flush()

    def flush(self):
        try:
            while self.out:
                n = self.sock.send(self.out)
                self.bytes_out += n
                self.out = self.out[n:]
        except BlockingIOError:
            pass
        except OSError:
            self.closed = True

    def greet(self, banner):
        nonce = os.urandom(16).hex()
        text = b"plume session 1\0"
        for part in (self.step.job, "0", str(self.step.attempt)):
            text += part.encode() + b"\0"
        text += bytes.fromhex(banner["nonce"]) + bytes.fromhex(nonce)
        self.key = hashlib.blake2b(text, digest_size=32, key=KEY).digest()
        self.send(type="hello", proto="plume", major=1, minor=0, role=self.role, nonce=nonce)

    def on_readable(self):
        """The messages that have come whole."""
        try:
            more = self.sock.recv(1 << 20)
        except BlockingIOError:
            return
        except OSError:
            more = b""
        if not more:
            self.closed = True
            return
        self.bytes_in += len(more)
        *lines, self.data = (self.data + more).split(b"\n")
        for line in lines:
            if not self.key:
                self.greet(json.loads(line))
                continue
            digits, body = line.split(b" ", 1)
            if digits != self.digits(b"S", self.received, body):
                raise AssertionError(f"a frame with wrong digits: {line[:200]!r}")
            self.received += 1
            message = json.loads(body)
            if not self.open:
                harness.equal(message, {"type": "welcome"})
                self.open = True
            self.on_message(message)

    def on_message(self, message):
        pass

    def close(self):
        self.sock.close()


class Node(Peer):
    """A node's daemon, whose ranks do what on_message() says."""

    def __init__(self, fleet, node_id):
        super().__init__(fleet.step, fleet.port, "daemon")
        self.fleet, self.id = fleet, node_id
        per_node = fleet.step.tasks_per_node
        self.ranks = range(node_id * per_node, (node_id + 1) * per_node)
        self.running = set()
        self.world = None
        self.bye = self.ended = False

    def on_message(self, message):
        kind = message["type"]
        if kind == "welcome":
            self.send(type="join", node_id=self.id, node=f"n{self.id}", local_ntasks=len(self.ranks),
                      clock=self.fleet.clock)
        elif kind == "world":
            self.world = message
            for rank in self.ranks:
                self.send(type="started", rank=rank, pid=100000 + rank)
            self.running = set(self.ranks)
        elif kind == "ping":
            self.send(type="pong", t=message["t"], mine=time.monotonic_ns())
        elif kind == "end_ranks":
            self.fleet.told_to_end = self.fleet.told_to_end or time.monotonic_ns()
            for rank in sorted(self.running):
                self.exited(rank, 15, killed=True)
        elif kind == "bye_ok":
            self.ended = True

    def exited(self, rank, status, killed=False, text=""):
        self.running.discard(rank)
        self.send(type="exited", rank=rank, status=status, at_ns=time.monotonic_ns(), killed=killed,
                  text=text)
        if not self.running and not self.bye:
            self.bye = True
            self.send(type="bye")

    def report(self, step, metrics):
        if self.running:
            self.send(type="metrics", items=[{"rank": rank, "step": step, "metrics": metrics(rank, step)}
                                             for rank in self.ranks if rank in self.running])


class Watcher(Peer):
    """A client that wants every event, as `plstat watch` does; on_event(event) gets them."""

    def __init__(self, fleet, on_event, ask="watch"):
        super().__init__(fleet.step, fleet.port, "client")
        self.on_event, self.ask = on_event, ask
        self.snapshots = 0

    def on_message(self, message):
        kind = message["type"]
        if kind == "welcome":
            self.send(type=self.ask)
        elif kind == "snapshot":
            self.snapshots += 1
        elif kind == "event":
            self.on_event(message["event"])


class Fleet:
    """A step of so many nodes: step.daemons[0] is node 0's plrund, with the hub."""

    def __init__(self, step, nodes, per_node, **env):
        raise_file_limit()
        self.step = step
        step.nodes, step.tasks_per_node = nodes, per_node
        self.port = step.use_hub_port()
        self.selector = selectors.DefaultSelector()
        self.told_to_end = None
        self.clock = clock_id()
        self.nodes = []
        self.started_ns = time.monotonic_ns()
        self.daemon = step.start(**env)
        self.own = [step.keep(self.daemon.rank("starter", i, local_rank=i)) for i in range(per_node)]
        harness.wait_for("the hub", lambda: os.path.exists(step.trial("status.json")))
        for i in range(1, nodes):
            self.nodes.append(self.add(Node(self, i)))
            self.pump(0)
        self.until("the world", lambda: all(n.world for n in self.nodes))
        for rank in self.own:
            rank.expect("world")
            rank.send(type="spawned", pid=os.getpid())

    def add(self, peer):
        self.step.keep(peer)
        self.selector.register(peer.sock, selectors.EVENT_READ, peer)
        return peer

    def pump(self, timeout):
        """Handles what has come, and waits for so many seconds at most if nothing has."""
        for peer in [key.data for key, _ in self.selector.select(timeout)]:
            peer.on_readable()
            if peer.closed:
                self.selector.unregister(peer.sock)
            if peer.closed and not peer.open and peer in self.nodes:  # the hub is pressed: try again
                self.nodes[peer.id - 1] = self.add(Node(self, peer.id))
        for node in self.nodes:
            if node.out:
                node.flush()

    def until(self, what, check, limit=None):
        end = time.monotonic() + (limit or 3 * LIMIT)
        while not check():
            if time.monotonic() > end:
                raise AssertionError(f"{what}: not within {limit or 3 * LIMIT} s")
            self.pump(0.05)

    def report(self, step, metrics):
        """One second's progress of every rank."""
        for node in self.nodes:
            node.report(step, metrics)
            self.pump(0)
        for i, rank in enumerate(self.own):
            rank.send(type="metrics", step=step, metrics=metrics(i, step))

    def end(self):
        """Every rank ends well; node 0's are the last."""
        for node in self.nodes:
            for rank in sorted(node.running):
                node.exited(rank, 0)
            self.pump(0)
        for rank in self.own:
            rank.exited(0)
        self.until("the end", lambda: all(n.ended for n in self.nodes))

    def cpu_s(self):
        """Processor time of all threads of node 0's plrund, from the scheduler: ticks are too coarse."""
        total = 0
        for path in glob.glob(f"/proc/{self.daemon.process.pid}/task/*/schedstat"):
            with contextlib.suppress(OSError), open(path, encoding="ascii") as f:  # a thread may end
                total += int(f.read().split()[0])
        return total / 1e9

    def memory_mib(self, field="VmRSS"):
        with open(f"/proc/{self.daemon.process.pid}/status", encoding="ascii") as f:
            fields = dict(line.split(":", 1) for line in f if ":" in line)
        return int(fields[field].split()[0]) / 1024
