#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Several nodes: finding the hub, launch limits, lost nodes and hubs, who is told what."""
import contextlib
import hashlib
import os
import signal
import socket
import struct
import subprocess
import threading
import time

import harness
from harness import KEY, LIMIT, equal, wait_for


def two_nodes(step, walk=False, env=({}, {})):
    """Two daemons with a rank each, running."""
    step.nodes = 2
    if not walk:
        step.use_hub_port()
    daemons = [step.start(i, **env[i]) for i in range(2)]
    ranks = [step.keep(d.rank("starter", i)) for i, d in enumerate(daemons)]
    for r in ranks:
        r.world = dict(e.split("=", 1) for e in r.expect("world")["env"])
        r.send(type="spawned", pid=os.getpid())
    return daemons, ranks


def walk_ports(step, low, high, attempt=0):
    """The ports at which this step's hub may listen (runtime/node/net.h)."""
    text = f"plume walk {step.job} 0 {attempt}".encode()
    words = struct.unpack("<8I", hashlib.blake2b(text, digest_size=32, key=KEY).digest())
    size, ports = high - low + 1, []
    for word in words:
        port = low + word % size
        while len(ports) < size and port in ports:
            port = low + (port + 1 - low) % size
        ports.append(port)
    return ports


def is_free(port):
    with socket.socket(socket.AF_INET6) as sock, contextlib.suppress(OSError):
        sock.bind(("::", port))
        return True
    return False


class Stranger:
    """Something else that listens: silent, or with an answer of its own."""

    def __init__(self, port, answer=None):
        self.answer = answer
        self.conns = []
        self.sock = socket.socket(socket.AF_INET6)
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.sock.bind(("::", port))
        self.sock.listen(64)
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        try:
            while True:
                conn = self.sock.accept()[0]
                self.conns.append(conn)
                if self.answer is not None:
                    conn.sendall(self.answer)
        except OSError:
            pass

    def close(self):
        self.sock.shutdown(socket.SHUT_RDWR)
        self.sock.close()
        for conn in self.conns:
            conn.close()


def end(ranks, *codes):
    for r, code in zip(ranks, codes):
        r.exited(code)
    return [r.expect("verdict")["code"] for r in ranks]


def test_join_by_plume_hub(step):
    daemons, ranks = two_nodes(step)
    for i, r in enumerate(ranks):
        equal((r.world["RANK"], r.world["WORLD_SIZE"], r.world["NODE_RANK"]), (str(i), "2", str(i)))
        equal((r.world["MASTER_ADDR"], r.world["LOCAL_RANK"]), ("127.0.0.1", "0"))
    equal(ranks[0].world["MASTER_PORT"], ranks[1].world["MASTER_PORT"])
    equal(end(ranks, 0, 0), [0, 0])
    equal([d.wait() for d in daemons], [0, 0])
    equal(step.result()["state"], "done")
    status = step.load("status.json")["state"]
    equal([r["node"] for r in status["ranks"]], ["n0", "n1"])
    equal(status, harness.replay(step.lines("events.jsonl")))


def test_join_by_walk(step):
    step.env["PLUME_HUB_PORTS"] = "21000-21999"
    _, ranks = two_nodes(step, walk=True)
    assert step.load("status.json")["hub"]["port"] in walk_ports(step, 21000, 21999)
    equal(end(ranks, 0, 0), [0, 0])


def test_join_by_walk_between_strangers(step):
    """Silent, chatty, and wrong in every way: none of them stops a launch."""
    step.env["PLUME_HUB_PORTS"] = "22000-22999"
    ports = list(dict.fromkeys(walk_ports(step, 22000, 22999)))
    while len(ports) < 7 or not all(map(is_free, ports[:7])):  # hubs of other tests are about
        step.job = str(int(step.job) + 1)
        ports = list(dict.fromkeys(walk_ports(step, 22000, 22999)))
    job = step.job.encode()
    banner = (b'{"proto":"plume","major":1,"minor":0,"role":"hub","job":"' + job
              + b'","step":"0","attempt":0,"nonce":"00112233445566778899aabbccddeeff"}\n')
    answers = [None, b"SSH-2.0-OpenSSH_9.2\r\n", b"\0" * 10000, banner,
               banner.replace(job, b"4712"), banner + b"0" * 64 + b' {"type":"welcome"}\n']
    for port, answer in zip(ports, answers):
        step.keep(Stranger(port, answer))
    _, ranks = two_nodes(step, walk=True)
    equal(step.load("status.json")["hub"]["port"], ports[6])
    equal(end(ranks, 0, 0), [0, 0])


def test_join_node_first(step):
    """The hub comes last, and what was said before it came is not lost."""
    step.nodes = 2
    step.use_hub_port()
    late = step.start(1)
    r1 = step.keep(late.rank("starter", 1))
    first = step.start(0)
    r0 = step.keep(first.rank("starter", 0))
    for r in (r0, r1):
        r.expect("world")
        r.send(type="spawned", pid=os.getpid())
    equal(end([r0, r1], 0, 0), [0, 0])


class SlowRelay:
    """Each piece of what goes through arrives so much later."""

    def __init__(self, port, late_s):
        self.port, self.late_s = port, late_s
        self.listener = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        with contextlib.suppress(OSError):
            while True:
                node = self.listener.accept()[0]
                hub = socket.create_connection(("127.0.0.1", self.port))
                for pair in ((node, hub), (hub, node)):
                    threading.Thread(target=self.pump, args=pair, daemon=True).start()

    def pump(self, source, to):
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                time.sleep(self.late_s)
                to.sendall(data)
            to.shutdown(socket.SHUT_WR)

    def close(self):
        self.listener.close()


def test_join_over_a_slow_network(step):
    """The banner takes longer than a node waits for it at first."""
    step.nodes = 2
    port = step.use_hub_port()
    first = step.start(0)
    wait_for("the hub", lambda: os.path.exists(step.trial("status.json")))
    relay = step.keep(SlowRelay(port, 0.26))
    second = step.start(1, PLUME_HUB=f"127.0.0.1:{relay.listener.getsockname()[1]}",
                        PLUME_LAUNCH_TIMEOUT=str(8 * harness.SLOW))
    ranks = [step.keep(d.rank("starter", i)) for i, d in enumerate((first, second))]
    for r in ranks:
        equal(r.receive()["type"], "world")
        r.send(type="spawned", pid=os.getpid())
    equal(end(ranks, 0, 0), [0, 0])


def test_join_while_old_hub_lingers(step):
    """A requeued job has the same job and step; only the attempt tells them apart."""
    step.env["PLUME_HUB_PORTS"] = "23000-23007"  # few enough to meet
    step.nodes = 2
    old = step.start(0)
    wait_for("the old hub", lambda: os.path.exists(step.trial("status.json")))
    step.attempt = 1
    step.env["PLUME_RUNTIME_DIR"] = step.path("again")
    os.mkdir(step.path("again"), 0o700)
    new = step.start(0)
    node = step.start(1)
    for d, rank in ((new, 0), (node, 1)):
        r = step.keep(d.rank("starter", rank))
        r.expect("world")
        r.exited(0)
        r.expect("verdict")
    equal([new.wait(), node.wait()], [0, 0])
    old.control.close()
    r = old.process.poll()
    equal(r, None)  # it still waits for its own node
    old.kill()


def test_join_without_free_port(step):
    port = next(p for p in range(24000, 25000) if is_free(p))
    step.env["PLUME_HUB_PORTS"] = f"{port}-{port}"
    step.keep(Stranger(port))
    step.tasks_per_node = 2
    d = step.start()
    wait_for("its own word", lambda: "PLUME_HUB_PORTS" in d.said())
    for i in range(2):  # they come when it has failed already
        r = step.keep(d.rank("starter", i, local_rank=i))
        assert "PLUME_HUB_PORTS" in r.expect("refused")["text"]
        r.close()
        step.things.remove(r)
    d.wait()


def test_join_with_other_key(step):
    step.nodes = 2
    step.use_hub_port()
    step.env["PLUME_LAUNCH_TIMEOUT"] = str(2 * harness.SLOW)
    step.write_key(bytes(32), "other")
    d = step.start(1, PLUME_KEY_FILE=step.path("home", "other"))
    hub = step.start(0)
    r = step.keep(d.rank("starter", 1))
    assert "PLUME_KEY_FILE" in r.expect("refused")["text"]
    r0 = step.keep(hub.rank("starter", 0))
    assert "missing, by index: 1" in r0.expect("refused")["text"]
    assert "refused a peer" not in hub.said()  # the node knew by the banner, and said nothing


def test_join_twice(step):
    """A second daemon for a node that is there already changes nothing for the first."""
    daemons, ranks = two_nodes(step)
    os.mkdir(step.path("twice"), 0o700)
    again = step.start(1, PLUME_RUNTIME_DIR=step.path("twice"))
    r = step.keep(again.rank("starter", 1))
    assert "joined already" in r.expect("refused")["text"]
    equal(end(ranks, 0, 0), [0, 0])
    equal([d.wait() for d in daemons], [0, 0])


def unable(step, node, text):
    """What plrun of a node without a daemon becomes."""
    process = subprocess.Popen([harness.PLRUND, "--unable", text], env=step.environment(node),
                               stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    step.keep(process.stderr)
    return process


def test_node_without_a_daemon(step):
    """Another node cannot serve the step: it ends at once, and the cause has the node and the reason."""
    step.nodes = 3
    step.use_hub_port()
    daemons = [step.start(0), step.start(1)]
    ranks = [step.keep(d.rank("starter", i)) for i, d in enumerate(daemons)]
    process = unable(step, 2, "cannot fork")
    for r in ranks:
        equal(r.expect("refused")["text"], "node n2 cannot serve the step: cannot fork")
        r.close()
    equal(process.wait(LIMIT), 1)
    for d in daemons:
        d.wait()
    result = step.result()
    cause = result["cause"]
    equal((result["state"], result["exit_code"]), ("failed", 1))
    equal((cause["kind"], cause["node"], cause["text"]), ("launch", "n2", "cannot fork"))
    assert "node n2 cannot serve the step: cannot fork" in daemons[0].said()


def test_first_node_without_a_daemon(step):
    """Whoever looks for the hub is told at once: before it is known, and after."""
    step.nodes = 3
    step.use_hub_port()
    early = step.start(1)
    r1 = step.keep(early.rank("starter", 1))
    process = unable(step, 0, "cannot fork")
    equal(r1.expect("refused")["text"], "node n0 cannot serve the step: cannot fork")
    r1.close()
    late = step.start(2)
    r2 = step.keep(late.rank("starter", 2))
    equal(r2.expect("refused")["text"], "node n0 cannot serve the step: cannot fork")
    r2.close()
    equal(process.wait(LIMIT), 1)
    early.wait(), late.wait()
    cause = step.result()["cause"]
    equal((cause["kind"], cause["node"], cause["text"]), ("launch", "n0", "cannot fork"))


def test_signal_before_all_nodes_have_come(step):
    """The step ends soon, and not with the limit for the launch: the other nodes got the signal, too."""
    step.nodes = 2
    step.use_hub_port()
    step.scontrol(harness.record())
    d = step.start(0)
    r = step.keep(d.rank("starter", 0))
    r.send(type="signalled", signal=15)
    r.exited(signal_number=15)
    r.expect("verdict")
    r.close()
    d.wait()
    result = step.result()
    equal((result["state"], result["cause"]["kind"]), ("cancelled", "cancelled"))


def test_launch_limit_names_missing(step):
    step.nodes = 3
    step.use_hub_port()
    step.env["PLUME_LAUNCH_TIMEOUT"] = str(harness.SLOW)
    daemons = [step.start(0), step.start(2)]
    for d, rank in zip(daemons, (0, 2)):
        text = step.keep(d.rank("starter", rank)).expect("refused")["text"]
        assert "missing, by index: 1)" in text, text
    for thing in step.things:
        thing.close()
    step.things = []
    for d in daemons:
        d.wait()
    result = step.result()
    equal((result["state"], result["cause"]["kind"]), ("failed", "launch"))
    assert "by index): 1" in result["cause"]["text"]


def test_launch_limit_without_hub(step):
    step.nodes = 2
    step.use_hub_port()
    step.env["PLUME_LAUNCH_TIMEOUT"] = str(harness.SLOW)
    step.scontrol('[ "$1" = show ] && echo head7 || exit 1')
    d = step.start(1)
    r = step.keep(d.rank("starter", 1))
    text = r.expect("refused")["text"]
    assert "n1 found no hub" in text and "head7" in text, text
    r.close()
    step.things.remove(r)
    d.wait()


def test_launch_address_from_slurm(step):
    """Neither PLUME_HUB nor srun's address help: the first node's NodeAddr does."""
    step.nodes = 2
    step.env.update(PLUME_HUB_PORTS="25000-25999", SLURM_LAUNCH_NODE_IPADDR=None)
    step.scontrol('case "$*" in *hostnames*) echo no-such-host.invalid;;'
                  ' *) echo "NodeName=n0 Arch=x NodeAddr=127.0.0.1 NodeHostName=n0";; esac')
    daemons = [step.start(0), step.start(1)]
    ranks = [step.keep(d.rank("starter", i)) for i, d in enumerate(daemons)]
    for r in ranks:
        r.expect("world")
    equal(end(ranks, 0, 0), [0, 0])


def test_end_of_other_node_first(step):
    _, ranks = two_nodes(step)
    ranks[1].exited(3)
    equal(ranks[0].expect("signal")["signal"], signal.SIGTERM)
    ranks[0].exited(143)
    equal([r.expect("verdict")["code"] for r in ranks], [0, 3])


def test_end_of_first_node_long_before(step):
    """The hub's own ranks are done; those of other nodes run on as long as they like."""
    step.env["PLUME_LEAVE_LIMIT"] = "0.2"
    daemons, ranks = two_nodes(step)
    ranks[0].exited(0)
    equal(ranks[0].expect("verdict")["code"], 0)
    ranks[0].close()
    step.things.remove(ranks[0])
    client = step.hub()
    client.send(type="watch")
    client.expect("snapshot")
    p = step.keep(daemons[1].rank("program", 1))
    for i in range(4):  # each takes up to a second: metrics are collected
        p.send(type="metrics", step=i, metrics={"i": i})
        while client.expect("event")["event"].get("step") != i:
            pass
    ranks[1].exited(0)
    equal(ranks[1].expect("verdict")["code"], 0)
    equal([d.wait() for d in daemons], [0, 0])
    equal(step.result()["state"], "done")


def test_hub_lost(step):
    step.env["PLUME_KILL_GRACE"] = "0.2"
    daemons, ranks = two_nodes(step)
    daemons[0].kill()
    equal(ranks[1].expect("signal")["signal"], signal.SIGTERM)
    equal(ranks[1].expect("signal")["signal"], signal.SIGKILL)
    ranks[1].exited(signal_number=9)
    equal(ranks[1].expect("verdict")["code"], 1)  # nobody else may give the step a bad one
    daemons[1].wait()
    assert "lost the hub" in daemons[1].said()


def test_hub_lost_before_its_decision(step):
    """A node whose ranks have ended has said goodbye, and still waits for its exit code."""
    step.env["PLUME_LEAVE_LIMIT"] = str(LIMIT)
    step.scontrol("exec sleep 60")
    daemons, ranks = two_nodes(step)
    ranks[1].exited(signal_number=15)  # Slurm's word is waited for
    wait_for("the failure", lambda: [e for e in step.lines("events.jsonl") if e.get("signal") == 15])
    step.hub().send(type="snapshot")  # the hub has read the goodbye, too
    daemons[0].kill()
    equal(ranks[1].expect("verdict")["code"], 143)
    ranks[1].close()
    step.things.remove(ranks[1])
    daemons[1].wait()
    assert "lost the hub" in daemons[1].said()


def played_node(step):
    """A hub with a rank, and a second node that the test plays, with another."""
    step.nodes = 2
    port = step.use_hub_port()
    d = step.start(0)
    r0 = step.keep(d.rank("starter", 0))
    node = step.hub(port, role="daemon")
    node.send(type="join", node_id=1, node="n1", local_ntasks=1)
    node.expect("world")
    r0.expect("world")
    r0.send(type="spawned", pid=os.getpid())
    node.send(type="started", rank=1, pid=1)
    wait_for("rank 1", lambda: [e for e in step.lines("events.jsonl") if e.get("pid") == 1])
    return d, r0, node


def must_lose_played_node(step, d, r0, kind):
    r0.expect("signal")
    r0.exited(signal_number=15)
    equal(r0.expect("verdict")["code"], 1)  # rank 1 can give none
    equal(d.wait(), 0)
    cause = step.result()["cause"]
    equal((cause["kind"], cause["rank"], cause["node"]), (kind, 1, "n1"))


def test_node_resets_its_connection(step):
    """The kernel of a daemon that is killed with unread messages resets the connection: its host is up."""
    d, r0, node = played_node(step)
    node.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    node.close()
    must_lose_played_node(step, d, r0, "runtime")


def test_node_gone_after_its_bye(step):
    """Its rank has failed, and nobody is left there to give Slurm the rank's code."""
    os.mkfifo(step.path("answer"))
    step.scontrol(f"cat {step.path('answer')}")
    d, r0, node = played_node(step)
    node.send(type="exited", rank=1, status=15, at_ns=1)  # Slurm's word is waited for
    node.send(type="bye")
    node.close()
    wait_for("the failure", lambda: [e for e in step.lines("events.jsonl") if e.get("signal") == 15])
    client = step.hub()  # whom the hub answers once it has seen the end of the node
    client.send(type="snapshot")
    client.expect("snapshot")
    with open(step.path("answer"), "w", encoding="ascii"):
        pass
    r0.expect("signal")
    r0.exited(signal_number=15)
    equal(r0.expect("verdict")["code"], 143)
    equal(d.wait(), 0)


def test_node_does_not_hear_the_hub(step):
    """It is heard, closes the connection, and nobody has killed its daemon."""
    d, r0, node = played_node(step)
    node.send(type="hub_silent")
    node.close()
    must_lose_played_node(step, d, r0, "node")


def test_hub_lost_before_world(step):
    step.nodes = 3
    step.use_hub_port()
    d1, hub = step.start(1), step.start(0)
    r = step.keep(d1.rank("starter", 1))
    client = step.hub()
    client.send(type="watch")
    doc = client.expect("snapshot")["state"]
    while len(doc["nodes"]) < 2 or doc["nodes"][1].get("state") != "joined":
        event = client.expect("event")["event"]
        if event["type"] == "node" and event["node_id"] == 1:
            break
    hub.kill()
    assert "lost the hub" in r.expect("refused")["text"]


def test_releases_of_the_nodes(step):
    """The names of libraries' files say which NCCL and MPI a node has."""
    for release in "2.18.3", "2.20.5":
        os.mkdir(step.path(release))
        for link, name in (("libnccl.so.2", f"libnccl.so.{release}"), ("libmpi.so.40", "libmpi.so.40.30.4")):
            with open(step.path(release, name), "w", encoding="utf-8"):
                os.symlink(name, step.path(release, link))
    daemons, ranks = two_nodes(step, env=[{"LD_LIBRARY_PATH": step.path(r)} for r in ("2.18.3", "2.20.5")])
    joined = sorted((e["node_id"], e["nccl"], e["mpi"]) for e in step.lines("events.jsonl") if e.get("state") == "joined")
    equal(joined, [(0, "2.18.3", "libmpi.so.40.30.4"), (1, "2.20.5", "libmpi.so.40.30.4")])
    for r in ranks:
        r.exited(0)
        equal(r.expect("verdict")["code"], 0)
    equal([d.wait() for d in daemons], [0, 0])


def until_running(step):
    """Waits until the hub knows of all ranks that they run."""
    client = step.hub()
    client.send(type="watch")
    doc = client.expect("snapshot")["state"]
    while not all(r["state"] == "running" for r in doc["ranks"]):
        client.expect("event")
        client.send(type="snapshot")
        doc = client.expect("snapshot")["state"]


def test_node_lost_before_its_ranks(step):
    """Its ranks have got the world, and the hub has not heard of any: the others are ended."""
    step.nodes = 2
    step.use_hub_port()
    daemons = [step.start(0), step.start(1)]
    ranks = [step.keep(d.rank("starter", i)) for i, d in enumerate(daemons)]
    for r in ranks:
        r.expect("world")
    ranks[0].send(type="spawned", pid=os.getpid())
    daemons[1].kill()
    ranks[0].expect("signal")
    ranks[0].exited(signal_number=15)
    equal(ranks[0].expect("verdict")["code"], 1)
    equal(daemons[0].wait(), 0)
    cause = step.result()["cause"]
    equal((cause["kind"], cause["node"], cause.get("rank")), ("runtime", "n1", None))


def test_node_lost(step):
    daemons, ranks = two_nodes(step)
    until_running(step)
    daemons[1].kill()
    equal(ranks[0].expect("signal")["signal"], signal.SIGTERM)
    ranks[0].exited(signal_number=15)
    equal(ranks[0].expect("verdict")["code"], 1)  # rank 1 can give none
    equal(daemons[0].wait(), 0)
    result = step.result()
    equal(result["exit_code"], 1)
    cause = result["cause"]
    equal((result["state"], cause["kind"], cause["rank"], cause["node"], cause["process"]),
          ("failed", "runtime", 1, "n1", "plrund"))
    equal(cause["confidence"], "inferred")
    equal(step.load("status.json")["state"]["ranks"][1]["state"], "lost")


def test_node_stopped(step):
    """A daemon that is silent on a host that answers: the daemon is stopped, the node has not failed."""
    step.env["PLUME_SILENCE"] = str(3 * harness.SLOW)
    daemons, ranks = two_nodes(step)
    until_running(step)
    daemons[1].process.send_signal(signal.SIGSTOP)
    ranks[0].expect("signal")
    ranks[0].exited(0)  # it saves, and leaves well
    equal(ranks[0].expect("verdict")["code"], 1)
    equal(daemons[0].wait(), 0)
    cause = step.result()["cause"]
    equal((cause["kind"], cause["node"], cause["process"]), ("runtime", "n1", "plrund"))
    daemons[1].kill()


def leave_well(*_):
    """What a task does at SIGTERM that saves, and is content."""
    os._exit(0)


def plugin_nodes(step):
    """Two nodes under the plugin, of two tasks each that save at SIGTERM; the first of them."""
    step.nodes = step.tasks_per_node = 2
    step.env.update(PLUME_PLUGIN="1", PLUME_KILL_GRACE=str(LIMIT))
    step.use_hub_port()
    daemons = [step.start(i) for i in range(2)]
    tasks = [step.keep(harness.Task(leave_well)) for _ in range(4)]
    for rank, task in enumerate(tasks):
        step.keep(daemons[rank // 2].rank("starter", rank, local_rank=rank % 2, guarded=False, pid=task.pid))
    until_running(step)
    return daemons, tasks


def test_plugin_node_lost(step):
    """srun sees how the ranks end, and no more: one of each node does not end well."""
    daemons, tasks = plugin_nodes(step)
    daemons[1].kill()
    equal(sorted(t.wait() for t in tasks[2:]), [0, signal.SIGKILL])  # by its lifeline
    equal(sorted(t.wait() for t in tasks[:2]), [0, signal.SIGKILL])
    for rank, task in enumerate(tasks[:2]):
        daemons[0].control.send(type="exited", rank=rank, status=task.status)
    equal(daemons[0].wait(), 0)
    equal(step.result()["cause"]["kind"], "runtime")


def test_plugin_hub_lost(step):
    daemons, tasks = plugin_nodes(step)
    daemons[0].kill()
    for node in (tasks[:2], tasks[2:]):
        equal(sorted(t.wait() for t in node), [0, signal.SIGKILL])


def test_node_lost_before_world(step):
    """Nobody runs yet, but the others need not wait for the launch limit."""
    step.nodes = 3
    step.use_hub_port()
    step.env["PLUME_LAUNCH_TIMEOUT"] = str(3 * harness.SLOW)
    hub, node = step.start(0), step.start(1)
    client = step.hub()
    client.send(type="watch")
    doc = client.expect("snapshot")["state"]
    if len(doc["nodes"]) < 2:
        while client.expect("event")["event"].get("node_id") != 1:
            pass
    node.kill()
    r = step.keep(hub.rank("starter", 0))
    text = r.expect("refused")["text"]
    assert "1" in text and "2" in text, text


def test_many_nodes(step):
    step.nodes = 12
    step.use_hub_port()
    daemons = [step.start(i) for i in range(12)]
    ranks = [step.keep(d.rank("starter", i)) for i, d in enumerate(daemons)]
    for r in ranks:
        r.expect("world")
        r.send(type="spawned", pid=os.getpid())
    programs = [step.keep(d.rank("program", i)) for i, d in enumerate(daemons)]
    for i, p in enumerate(programs):
        p.send(type="exchange", name="a", value=str(i))
    for p in programs:
        equal(p.expect("exchanged")["values"], [str(i) for i in range(12)])
    ranks[7].exited(9)
    for i, r in enumerate(ranks):
        if i != 7:
            r.expect("signal")
            r.exited(signal_number=15)
    equal([r.expect("verdict")["code"] for r in ranks], [9 if i == 7 else 0 for i in range(12)])
    equal([d.wait() for d in daemons], [0] * 12)
    equal(step.result()["cause"]["rank"], 7)


def rank_0_alone(step, **env):
    """A step of one node and two ranks, of which rank 1 never comes: its plrun was killed on its way."""
    step.tasks_per_node = 2
    step.env.update({"PLUME_LAUNCH_TIMEOUT": str(harness.SLOW), "PLUME_KILL_GRACE": "0.2",
                     "PLUME_LEAVE_LIMIT": "0.2", **env})
    d = step.start()
    r = step.keep(d.rank("starter", 0))
    r.expect("world")
    r.send(type="spawned", pid=os.getpid())
    return d, r


def test_rank_never_comes(step):
    """Nobody tells of it, and the others may wait for it for ever."""
    d, r = rank_0_alone(step)
    equal(r.expect("signal")["signal"], signal.SIGTERM)
    r.exited(0)  # it saves
    equal(r.expect("verdict")["code"], 1)
    equal(d.wait(), 0)
    result = step.result()
    equal((result["state"], result["exit_code"]), ("failed", 1))
    equal((result["cause"]["kind"], result["cause"]["rank"], result["cause"]["confidence"]), ("launch", 1, "seen"))
    equal([rank["state"] for rank in step.load("status.json")["state"]["ranks"]], ["done", "lost"])


def rank_0_ends(step, code):
    """The step ends with it, though the other has not come: the kind of its cause, and the rank."""
    d, r = rank_0_alone(step)
    r.exited(code)
    equal(r.expect("verdict")["code"], code)
    equal(d.wait(), 0)
    return step.result()["cause"]["kind"], step.result()["cause"]["rank"]


def test_rank_never_comes_and_another_ends_well(step):
    equal(rank_0_ends(step, 0), ("launch", 1))


def test_rank_never_comes_and_another_fails(step):
    equal(rank_0_ends(step, 3), ("exit", 0))


def test_rank_comes_late_and_is_refused(step):
    """One that is only slow is told why it does not start."""
    d, r = rank_0_alone(step, PLUME_KILL_GRACE=str(LIMIT), PLUME_LAUNCH_TIMEOUT="120")
    r.exited(3)
    r.expect("verdict")
    late = step.keep(d.rank("starter", 1, local_rank=1))
    assert "failed first" in late.expect("refused")["text"]
    late.close()
    step.things.remove(late)
    equal(d.wait(), 0)


def test_rank_never_comes_and_another_is_being_judged(step):
    """Slurm's word about a failure is waited for when the time for ranks to come is over."""
    step.scontrol("exec sleep 60")
    d, r = rank_0_alone(step)
    r.exited(signal_number=15)
    equal(r.expect("verdict")["code"], 143)
    equal(d.wait(), 0)
    equal((step.result()["cause"]["kind"], step.result()["cause"]["rank"]), ("signal", 0))


def test_rank_never_comes_and_another_saves(step):
    """It has the time that Slurm gives to a job that is preempted: more than the hub gives nodes to leave."""
    step.scontrol(harness.record(preempt="2026-01-01T00:00:00"))
    d, r = rank_0_alone(step)
    r.send(type="signalled", signal=15)
    wait_for("the cause", lambda: [e for e in step.lines("events.jsonl") if e["type"] == "cause"])
    time.sleep(11 + 2 * harness.SLOW)  # longer than the hub gives nodes to leave
    r.exited(0)
    equal(r.expect("verdict")["code"], 0)
    d.control.close()  # Slurm ends the job
    equal(d.wait(), 0)
    equal(step.result()["state"], "preempted")
    equal([rank["state"] for rank in step.load("status.json")["state"]["ranks"]], ["done", "lost"])


def test_rank_never_comes_and_another_ends_slowly(step):
    """Its daemon stays for it, though it takes longer than those who are late have."""
    step.nodes, step.tasks_per_node = 2, 2
    step.use_hub_port()
    step.env.update({"PLUME_KILL_GRACE": "0.1", "PLUME_LEAVE_LIMIT": "0.1"})
    daemons = [step.start(i) for i in range(2)]
    ranks = [step.keep(daemons[n].rank("starter", rank, local_rank=rank % 2)) for n, rank in ((0, 0), (0, 1), (1, 2))]
    for r in ranks:
        r.expect("world")
        r.send(type="spawned", pid=os.getpid())
    ranks[0].exited(3)
    for r in ranks[1:]:
        while r.expect("signal")["signal"] != signal.SIGKILL:
            pass
    time.sleep(1)  # longer than those who are late have
    for r in ranks[1:]:
        r.exited(signal_number=9)
    equal([r.expect("verdict")["code"] for r in ranks], [3, 0, 0])
    equal([d.wait() for d in daemons], [0, 0])
    equal([rank["state"] for rank in step.load("status.json")["state"]["ranks"]],
          ["failed", "killed", "killed", "lost"])


def test_tasks_come_late(step):
    """Other plugins may work for minutes before the tasks begin, which the nodes' daemons do not wait for."""
    step.tasks_per_node = 2
    step.env.update({"PLUME_PLUGIN": "1", "PLUME_LAUNCH_TIMEOUT": str(harness.SLOW), "PLUME_KILL_GRACE": "0.1"})
    d = step.start()
    step.hub()
    time.sleep(2 * harness.SLOW)  # longer than the limit of a launch
    for i in range(2):
        task = step.keep(harness.Task(signal.SIG_DFL))
        r = step.keep(d.rank("starter", i, local_rank=i, guarded=False, pid=task.pid))
        r.expect("world")
        d.control.send(type="exited", rank=i, status=0)
    equal(d.wait(), 0)
    equal(step.result()["state"], "done")


def test_task_never_comes(step):
    """The others do not wait for it for ever."""
    step.tasks_per_node = 2
    step.env.update({"PLUME_PLUGIN": "1", "PLUME_LAUNCH_TIMEOUT": str(harness.SLOW), "PLUME_KILL_GRACE": "0.1"})
    d = step.start()
    task = step.keep(harness.Task(signal.SIG_DFL))
    step.keep(d.rank("starter", 0, guarded=False, pid=task.pid)).expect("world")
    equal(task.wait(), signal.SIGTERM)
    d.control.send(type="exited", rank=0, status=15)
    d.control.close()
    equal(d.wait(), 0)
    equal((step.result()["cause"]["kind"], step.result()["cause"]["rank"]), ("launch", 1))


harness.main(globals(), at_once=4)
