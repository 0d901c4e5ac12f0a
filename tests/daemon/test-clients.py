#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The hub's TCP side: snapshots, watchers, and those who must not get in."""
import json
import os
import socket
import struct
import time

import harness
from harness import LIMIT, Closed, Hub, at_once, equal, wait_for


def running(step, ranks=1):
    """A one-node step that runs, with the hub's port known."""
    step.tasks_per_node = ranks
    step.port = step.use_hub_port()
    d = step.start()
    step.ranks = []
    for i in range(ranks):
        r = step.keep(d.rank("starter", i, local_rank=i))
        step.ranks.append(r)
    for r in step.ranks:
        r.expect("world")
        r.send(type="spawned", pid=os.getpid())
    return d


def test_snapshot_asked(step):
    running(step, 2)
    c = step.hub(step.port)
    for _ in range(3):
        c.send(type="snapshot")
        s = c.expect("snapshot")
    equal(len(s["epoch"]), 16)
    doc = s["state"]
    equal((doc["job"], doc["step"], doc["world_size"], doc["state"]), (step.job, "0", 2, "running"))
    equal([r["rank"] for r in doc["ranks"]], [0, 1])
    c.send(type="dance")
    equal(c.expect("error")["text"], "unknown type")
    c.send(type="snapshot")
    c.expect("snapshot")


def test_watch_deltas_make_the_snapshot(step):
    """seq has no gap, and events on top of a snapshot make each later one."""
    d = running(step, 4)
    watcher, asker = step.hub(step.port), step.hub(step.port)
    watcher.send(type="watch")
    first = watcher.expect("snapshot")
    programs = [step.keep(d.rank("program", i)) for i in range(4)]
    for n in range(50):
        for i, p in enumerate(programs):
            p.send(type="fact", key=f"k{n % 7}", value=f"{i}-{n}")
            p.send(type="metrics", step=n, metrics={f"m{n % 5}": n / 8, "s": "inf"})
    for i, p in enumerate(programs):
        p.send(type="exchange", name="sync", value="")
    for p in programs:
        p.expect("exchanged")
    step.ranks[2].exited(1)
    for i in (0, 1, 3):
        step.ranks[i].expect("signal")
    doc, seq = first["state"], first["seq"]
    asked = False
    while doc.get("cause") is None or not asked:
        message = watcher.receive()
        equal(message["type"], "event")
        event = message["event"]
        seq += 1
        equal(event["seq"], seq)
        doc = harness.replay([event], doc)
        if doc.get("cause") and not asked:
            asker.send(type="snapshot")
            snapshot = asker.expect("snapshot")
            equal(snapshot["epoch"], first["epoch"])
            while seq < snapshot["seq"]:
                event = watcher.receive()["event"]
                seq += 1
                equal(event["seq"], seq)
                doc = harness.replay([event], doc)
            equal(doc, snapshot["state"])
            asked = True
    for i in (0, 1, 3):
        step.ranks[i].exited(signal_number=15)
    for r in step.ranks:
        r.expect("verdict")
    equal(d.wait(), 0)
    # And the two files make the last document, read one behind the other.
    final = harness.replay(step.lines("events.jsonl") + step.lines("metrics.jsonl"))
    equal(step.load("status.json")["state"], final)
    rows = sorted(step.lines("events.jsonl") + step.lines("metrics.jsonl"), key=lambda e: e["seq"])
    equal([e["seq"] for e in rows], list(range(1, len(rows) + 1)))


def test_large_snapshots_are_shared(step):
    """Clients of a large run may get the same text for a moment: values of metrics may be that old, all
    else is not, and a watcher's snapshot and events have no gap."""
    d = running(step)
    p = step.keep(d.rank("program", 0))
    clients = [step.hub(step.port) for _ in range(4)]

    def seqs():
        for c in clients:
            c.send(type="snapshot")
        got = [c.expect("snapshot") for c in clients]
        return [m["seq"] for m in got], [m["state"]["ranks"][0] for m in got]

    for i in range(20):
        p.send(type="fact", key=f"k{i}", value="x" * 8000)
    for n in range(5):
        seqs()  # the text is there, and young
        p.send(type="fact", key="n", value=str(n))
        p.send(type="exchange", name=f"sync{n}", value="")
        p.expect("exchanged")
        equal([r["facts"]["n"] for r in seqs()[1]], [str(n)] * 4)
    p.send(type="metrics", step=7, metrics={"loss": 7})
    wait_for("the metric", lambda: all(r.get("step") == 7 for r in seqs()[1]))
    # A text from before some metrics is nothing for a watcher: events follow on it.
    watcher = step.hub(step.port)
    watcher.send(type="watch")
    watcher.expect("snapshot")
    old = max(seqs()[0])
    p.send(type="metrics", step=8, metrics={"loss": 8})
    while watcher.expect("event")["event"].get("step") != 8:
        pass
    late = step.hub(step.port)
    late.send(type="watch")
    message = late.expect("snapshot")
    assert message["seq"] > old, (message["seq"], old)
    equal(message["state"]["ranks"][0]["step"], 8)
    p.send(type="fact", key="n", value="last")
    equal(late.expect("event")["event"]["seq"], message["seq"] + 1)


def test_watcher_slow_gets_snapshot(step):
    """Who does not read gets no deltas any more, but a snapshot once he reads again."""
    d = running(step)
    slow = step.keep(slow_client(step))
    slow.send(type="watch")
    first = slow.expect("snapshot")
    p = step.keep(d.rank("program", 0))
    quick = step.hub(step.port)
    quick.send(type="watch")
    quick.expect("snapshot")
    begin = time.monotonic()
    last = flood(p, quick)
    seq, snapshots = first["seq"], 0
    end = time.monotonic() + LIMIT
    while not snapshots:
        assert time.monotonic() < end
        try:
            message = slow.receive()
        except Closed:
            assert time.monotonic() - begin > 10  # a busy host: the hub waits no longer
            return
        if message["type"] == "snapshot":
            assert message["seq"] >= seq
            equal(message["state"]["ranks"][0]["facts"]["k"][-5:], last)
            snapshots += 1
        else:
            seq += 1
            equal(message["event"]["seq"], seq)
    p.send(type="fact", key="k", value="again")
    while True:
        message = slow.receive()
        if message["type"] == "event" and message["event"].get("value") == "again":
            break


def slow_client(step):
    """A greeted client whose socket takes little."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.settimeout(LIMIT)
    sock.connect(("127.0.0.1", step.port))
    return Hub(step, step.port, sock=sock).greet()


def flood(program, quick):
    """Facts of a size that no socket buffer holds, and few more: a watcher that does not read has ten seconds
    from then on. Returns when the hub has sent the last, and what that ends with."""
    with open("/proc/sys/net/ipv4/tcp_wmem", encoding="ascii") as f:
        room = int(f.read().split()[2]) + 512 * 1024  # the hub's own limit is 256 KiB
    n = room // 80000 * 10 + 20
    for i in range(n):
        program.send(type="fact", key="k", value="x" * 8000 + f"{i:05}")
        if i % 10 == 9:
            while quick.expect("event")["event"].get("value", "")[-5:] != f"{i:05}":
                pass
    return f"{n - 1:05}"


def test_state_stays_small(step):
    """Programs cannot fill the hub with names, nor with long values."""
    d = running(step)
    p = step.keep(d.rank("program", 0))
    c = step.hub(step.port)

    def metrics():
        c.send(type="snapshot")
        return len(c.expect("snapshot")["state"]["ranks"][0].get("metrics", {}))

    for i in range(400):
        p.send(type="fact", key=f"k{i}", value="v")
        p.send(type="metrics", metrics={f"m{i}": i})
        if i == 199:  # the rest comes to the hub in another message
            wait_for("the first metrics", lambda: metrics() == 200)
    p.send(type="metrics", metrics={"x" * 300: 1})
    p.send(type="fact", key="k1", value="x" * 9000)
    p.send(type="fact", key="k2", value="again")
    p.send(type="fact", key="k" * 300, value="v")
    p.send(type="exchange", name="sync", value="")
    p.expect("exchanged")
    step.ranks[0].exited(0)
    step.ranks[0].expect("verdict")
    equal(d.wait(), 0)
    rank = step.load("status.json")["state"]["ranks"][0]
    equal((len(rank["facts"]), len(rank["metrics"])), (256, 256))
    equal((rank["facts"]["k1"], rank["facts"]["k2"]), ("v", "again"))


def test_snapshot_too_large(step):
    """A state that no message holds: the answer says so, and names what does."""
    d = running(step)
    p = step.keep(d.rank("program", 0))
    for i in range(200):
        p.send(type="fact", key=f"k{i}", value="x" * 8000)
    p.send(type="exchange", name="sync", value="")
    p.expect("exchanged")
    c = step.hub(step.port)
    c.send(type="snapshot")
    assert "status.json" in c.expect("error")["text"]


def test_watcher_dead_is_cut_off(step):
    d = running(step)
    slow = step.keep(slow_client(step))
    slow.send(type="watch")
    slow.expect("snapshot")
    p = step.keep(d.rank("program", 0))
    quick = step.hub(step.port)
    quick.send(type="watch")
    quick.expect("snapshot")
    flood(p, quick)
    # Ten seconds later it is closed: what was in flight comes, then the end.
    wait_for("the hub to give up", lambda: peer_count(step.port) < 2, 3 * LIMIT)
    try:
        while True:
            slow.receive()
    except Closed:
        pass
    quick.send(type="snapshot")
    quick.expect("snapshot")


def peer_count(port):
    """Established connections at the hub's end, of this host's table."""
    n = 0
    for name in ("tcp", "tcp6"):
        with open(f"/proc/net/{name}", encoding="ascii") as f:
            for line in list(f)[1:]:
                words = line.split()
                n += words[1].endswith(f":{port:04X}") and words[3] == "01"
    return n


def test_session_wrong_key(step):
    running(step)
    c = step.keep(Hub(step, step.port, secret=bytes(32)))
    c.send(type="hello", proto="plume", major=1, minor=0, role="client", nonce=c.nonce)
    equal(json.loads(c.line()), {"error": "key"})
    c.expect_closed()


def test_session_other_run(step):
    """The right key of this user, but for another job, step or attempt."""
    running(step)
    for ids in ({"job": "1"}, {"step": "1"}, {"attempt": 1}):
        c = step.keep(Hub(step, step.port, ids=ids))
        c.send(type="hello", proto="plume", major=1, minor=0, role="client", nonce=c.nonce)
        equal(json.loads(c.line()), {"error": "key"})
        c.expect_closed()


def test_session_frames_tampered(step):
    running(step)

    def session():
        return step.keep(Hub(step, step.port)).greet()

    def refused(c, data):
        c.send_raw(data)
        c.expect_closed()

    c = session()
    frame = c.frame(type="snapshot")
    c.send_raw(frame)
    c.expect("snapshot")
    refused(c, frame)  # replayed
    c = session()
    first, second = c.frame(type="snapshot"), c.frame(type="snapshot", n=1)
    refused(c, second + first)  # swapped
    c = session()
    refused(c, c.frame(type="snapshot")[:-2] + b"\n")  # cut
    c = session()
    refused(c, c.frame(type="snapshot")[:-1] + b" \n")  # extended
    c = session()
    frame = bytearray(c.frame(type="snapshot"))
    frame[70] ^= 1
    refused(c, bytes(frame))
    c, other = session(), session()
    refused(c, other.frame(type="snapshot"))  # of another session
    c = session()
    c.send(type="snapshot")
    body = json.dumps(c.expect("snapshot")).encode()
    refused(c, c.digits(b"S", c.received - 1, body) + b" " + body + b"\n")  # reflected
    c = session()
    refused(c, b"x" * (1024 * 1024 + 10))
    c = session()
    body = b'{"type":"snapshot","type":"watch"}'
    refused(c, c.digits(b"C", c.sent, body) + b" " + body + b"\n")
    c = session()
    body = b'{"a":' * 33 + b"1" + b"}" * 33
    refused(c, c.digits(b"C", c.sent, body) + b" " + body + b"\n")
    step.hub(step.port).send(type="snapshot")


def test_session_hello_malformed(step):
    running(step)
    for change in ({"major": 2}, {"proto": "x"}, {"nonce": None}, {"nonce": "00"},
                   {"nonce": "zz" * 16}, {"nonce": "00" * 17}):
        c = step.keep(Hub(step, step.port))
        c.send(**{"type": "hello", "proto": "plume", "major": 1, "minor": 0, "role": "client",
                  "nonce": c.nonce, **change})
        c.expect_closed()
    for data in (b"\n", b"GET / HTTP/1.1\r\n\r\n", b"\0" * 100 + b"\n", b"x" * 5000, b"0" * 64 + b" {}\n",
                 b"0" * 64 + b" []\n"):
        c = step.keep(Hub(step, step.port))
        c.send_raw(data)
        c.expect_closed()
    step.hub(step.port).send(type="snapshot")


def test_session_greeting_limit(step):
    running(step)
    silent = [step.keep(Hub(step, step.port)) for _ in range(20)]
    silent[0].send_raw(b"0" * 64)
    for c in silent:
        c.expect_closed()
    idle = step.hub(step.port)  # but who has greeted may be silent as long as he likes
    idle.send(type="snapshot")
    idle.expect("snapshot")


def test_session_bytes_one_at_a_time(step):
    running(step)
    c = step.keep(Hub(step, step.port))
    c.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    data = c.frame(type="hello", proto="plume", major=1, minor=0, role="client", nonce=c.nonce)
    for i in range(len(data)):
        c.send_raw(data[i:i + 1])
    equal(c.receive(), {"type": "welcome"})
    c.send_raw(c.frame(type="snapshot") + c.frame(type="snapshot"))  # two in one
    c.expect("snapshot")
    c.expect("snapshot")


def test_join_that_makes_no_sense(step):
    running(step)
    for node in (0, 1, -1, "0", None, 1 << 40):
        c = step.keep(Hub(step, step.port, role="daemon")).greet()
        c.send(type="join", node_id=node, node="evil", local_ntasks=1)
        c.expect("refused")
        c.send(type="exited", rank=0, status=11, at_ns=1)  # it speaks for nobody
        equal(c.expect("error")["text"], "unknown type")
    client = step.hub(step.port)
    client.send(type="join", node_id=0)
    client.expect("refused")
    client.send(type="snapshot")
    equal(client.expect("snapshot")["state"]["ranks"][0]["state"], "running")
    step.ranks[0].exited(0)
    equal(step.ranks[0].expect("verdict")["code"], 0)


def test_node_talks_nonsense(step):
    """A node's daemon that is out of its mind, but has the key."""
    step.nodes = 2
    port = step.use_hub_port()
    d = step.start(0)
    r = step.keep(d.rank("starter", 0))
    c = step.hub(port, role="daemon")
    c.send(type="join", node_id=1, node="n1", local_ntasks=1)
    c.expect("world")
    r.expect("world")
    for kind in ("started", "exited", "metrics", "fact", "exchange", "signalled", "pong", "bogus",
                 "hello", "join", "snapshot", "watch"):
        c.send(type=kind)
        c.send(type=kind, rank=-1, status="x", at_ns=None, items=7, key=1, value={}, signal="x")
        c.send(type=kind, rank=99, pid=1, status=0, at_ns=0, t=1 << 62, mine=-(1 << 62))
        c.send(type=kind, rank=2**31, items=[1, {}, {"rank": 9}, None])
    c.send(type="metrics", items=[{"rank": 1, "metrics": [1], "step": "x"}])
    c.send(type="metrics", items=[{"rank": 1, "metrics": {"a": {"b": [1]}}, "step": 3}])
    c.send_raw(c.frame() + c.frame(x=1))
    c.send(type="started", rank=1, pid=77)
    c.send(type="exited", rank=1, status=0, at_ns=1)
    c.send(type="bye")
    c.expect("bye_ok")
    r.send(type="spawned", pid=os.getpid())
    r.exited(0)
    equal(r.expect("verdict")["code"], 0)
    equal(d.wait(), 0)
    equal(step.result()["state"], "done")


@harness.quick
def test_clock_of_the_hub(step):
    """A node that reads the hub's own clock needs no estimate, which a busy machine spoils."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as f:
        clock = f.read().strip()
    try:
        with open("/proc/self/timens_offsets", encoding="ascii") as f:
            clock += ":" + ":".join(next(x for x in f if x.startswith("monotonic")).split()[1:])
    except FileNotFoundError:
        clock += ":0:0"
    step.nodes = 2
    port = step.use_hub_port()
    d = step.start(0)
    r = step.keep(d.rank("starter", 0))
    c = step.hub(port, role="daemon")
    c.send(type="join", node_id=1, node="n1", local_ntasks=1, clock=clock)
    sent = c.expect("ping")["t"]
    c.send(type="pong", t=sent, mine=sent + 10_000_000_000)  # taken at its word: 10 s apart
    c.expect("world")
    r.expect("world")
    r.send(type="spawned", pid=os.getpid())
    c.send(type="started", rank=1, pid=77)
    early, late = time.monotonic_ns(), time.monotonic_ns() + 50_000_000
    with at_once(d):
        c.send(type="exited", rank=1, status=9 << 8, at_ns=late)
        r.send(type="exited", status=7 << 8, at_ns=early)
        c.send(type="bye")
    equal(r.expect("verdict")["code"], 7)
    equal(d.wait(), 0)
    equal(step.result()["cause"]["rank"], 0)


def test_wall_clock_is_set(step):
    """An hour ahead, while a rank runs: the attempt's times go on from its start. One of status.json is as it is set."""
    library = os.environ.get("FAKE_CLOCK")
    if not library:  # a sanitizer's runtime must be loaded first
        print("# skipped: nothing can be preloaded")
        return
    clock = step.path("clock")
    with open(clock, "wb") as f:
        f.write(struct.pack("q", 0))
    began = time.monotonic()
    d, (r,) = harness.running(step, 1, LD_PRELOAD=library, FAKE_CLOCK=clock)
    with open(clock, "r+b") as f:
        f.write(struct.pack("q", 3600 * 10**9))
    r.exited(0)
    equal(r.expect("verdict")["code"], 0)
    r.out.read_all(), r.err.read_all()
    equal(d.wait(), 0)
    took = time.monotonic() - began
    result, status, events = step.result(), step.load("status.json"), step.lines("events.jsonl")
    times = [e["t"] for e in events] + [e["ended"] for e in events if "ended" in e] + [result["time"], status["time"]]
    if not all(0 <= t - result["started"] <= took for t in times) or "ended" not in status["state"]:
        raise AssertionError(f"{took} s after {result['started']}: {times}, {status}")
    if not 3599 < status["written"] - status["time"] < 3601:
        raise AssertionError(f"{status}")


def test_descriptors_run_out(step):
    """Connections that cannot be accepted neither stop the daemon nor make it spin."""
    step.port = step.use_hub_port()
    d = step.launch(wrap=["sh", "-c", 'ulimit -n 64; exec "$0" "$@"']).ready()
    r = step.keep(d.rank("starter", 0))
    r.expect("world")
    guests = []
    for _ in range(80):
        s = socket.create_connection(("127.0.0.1", step.port), LIMIT)
        guests.append(s)
        s = socket.socket(socket.AF_UNIX)
        s.setblocking(False)
        try:
            s.connect(d.socket)
        except BlockingIOError:
            pass
        guests.append(s)
    before, start = cpu_s(d), time.monotonic()
    r.send(type="spawned", pid=os.getpid())
    p = []
    for i in range(3):  # a second each, as metrics are sent once a second
        r.send(type="metrics", step=i, metrics={"i": i})
        wait_for("metrics", lambda: os.path.getsize(step.trial("attempt-0", "metrics.jsonl")) > len(p))
        p = "x" * os.path.getsize(step.trial("attempt-0", "metrics.jsonl"))
    used, passed = cpu_s(d) - before, time.monotonic() - start
    assert used < 0.3 * harness.SLOW, f"{used} s of CPU in {passed} s"
    for s in guests:
        s.close()
    step.hub(step.port).send(type="snapshot")
    r.exited(0)
    equal(r.expect("verdict")["code"], 0)


def cpu_s(daemon):
    with open(f"/proc/{daemon.process.pid}/stat", encoding="ascii") as f:
        words = f.read().rsplit(") ", 1)[1].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


harness.main(globals(), at_once=4)
