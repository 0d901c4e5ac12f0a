#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Several nodes: finding the hub, launch limits, who is told what."""
import contextlib
import hashlib
import os
import re
import signal
import socket
import struct
import subprocess
import threading
import time

import harness
from harness import KEY, LIMIT, equal, wait_for
from started import two_nodes


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
    assert "(missing: n1)" in r0.expect("refused")["text"]
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


def test_no_daemon_and_no_session(step):
    """A variable of all nodes is wrong, and nobody can be told so: no node waits for another."""
    step.nodes = 2
    step.use_hub_port()
    step.env["PLUME_ENCRYPT"] = "yes"
    processes = [unable(step, node, "PLUME_ENCRYPT is 'yes'") for node in (1, 0)]
    equal([p.wait(LIMIT) for p in processes], [1, 1])
    equal(processes[0].stderr.read(), "")
    cause = step.result()["cause"]
    equal((cause["kind"], cause["node"], cause["text"]), ("launch", "n0", "PLUME_ENCRYPT is 'yes'"))


def is_soon(waited_s):
    """The hub waits 3 s for nodes that may have got the signal, too, and 15 s for others."""
    if waited_s >= 10:
        raise AssertionError(f"the hub has waited {waited_s} s")


def test_signal_before_all_nodes_have_come(step):
    """The step ends soon, and not with the limit for the launch: the other nodes got the signal, too."""
    begin = time.monotonic()
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
    is_soon(time.monotonic() - begin)
    result = step.result()
    equal((result["state"], result["cause"]["kind"]), ("cancelled", "cancelled"))


def plugin_ended_alone(step, said, number):
    """Under the plugin nobody but the tasks gets a signal: that of node 0 ends by it, and node 1 never comes. The
    trial's state, and for how long the hub has waited for node 1."""
    step.nodes = 2
    step.use_hub_port()
    step.scontrol(said)
    d = step.start(0, PLUME_PLUGIN="1")
    task = step.keep(harness.Task(signal.SIG_DFL))
    r = step.keep(d.rank("starter", 0, guarded=False, pid=task.pid, capture=True))
    task.close()
    r.out.end(), r.err.end()
    d.control.send(type="exited", rank=0, status=int(number))
    wait_for("the log", lambda: os.path.exists(step.trial("attempt-0", "events.jsonl")))
    wait_for("the cause", lambda: [e for e in step.lines("events.jsonl") if e["type"] == "cause"])
    begin = time.monotonic()
    d.control.close()
    d.wait(2 * LIMIT)
    return step.result()["state"], time.monotonic() - begin


def test_plugin_job_cancelled_before_all_nodes_have_come(step):
    state, waited_s = plugin_ended_alone(step, harness.record(state="CANCELLED"), signal.SIGTERM)
    equal(state, "cancelled")
    is_soon(waited_s)


def test_plugin_step_cancelled_before_all_nodes_have_come(step):
    """Of a job that runs on, Slurm tells nothing about its step."""
    equal(plugin_ended_alone(step, harness.record(), signal.SIGKILL)[0], "failed")


def test_plugin_job_preempted_before_all_nodes_have_come(step):
    """It runs for its partition's GraceTime: node 1 may need as long as ever, and still gets its refusal."""
    state, waited_s = plugin_ended_alone(step, harness.record(preempt="2026-11-26T09:00:00"), signal.SIGTERM)
    equal(state, "preempted")
    if waited_s < 10:
        raise AssertionError(f"the hub has waited {waited_s} s")


def test_launch_limit_names_missing(step):
    step.nodes = 3
    step.use_hub_port()
    step.env["PLUME_LAUNCH_TIMEOUT"] = str(harness.SLOW)
    daemons = [step.start(0), step.start(2)]
    for d, rank in zip(daemons, (0, 2)):
        text = step.keep(d.rank("starter", rank)).expect("refused")["text"]
        assert "(missing: n1)" in text, text
    for thing in step.things:
        thing.close()
    step.things = []
    for d in daemons:
        d.wait()
    result = step.result()
    equal((result["state"], result["cause"]["kind"]), ("failed", "launch"))
    words, question = result["cause"]["text"].split("\n")
    equal((result["cause"]["node"], words.split(": ")[1]), ("n1", "n1"))
    assert re.match(r"Are they up, and may they connect to port [0-9]+ of n0 ", question), question


def test_launch_limit_without_names(step):
    """A list of nodes that is not the step's names nobody wrongly."""
    step.nodes = 3
    step.use_hub_port()
    step.env["PLUME_LAUNCH_TIMEOUT"] = str(harness.SLOW)
    d = step.start(0, SLURM_STEP_NODELIST="n[0-1]")
    r = step.keep(d.rank("starter", 0))
    assert "(missing: node 1 of 0-2, node 2 of 0-2)" in r.expect("refused")["text"]
    r.close()
    step.things = []
    d.wait()
    assert "node" not in step.result()["cause"]


def reason_without_hub(step, **env):
    """What the second node says that finds no first node."""
    step.nodes = 2
    step.use_hub_port()
    step.env["PLUME_LAUNCH_TIMEOUT"] = str(harness.SLOW)
    d = step.start(1, **env)
    r = step.keep(d.rank("starter", 1))
    text = r.expect("refused")["text"]
    r.close()
    step.things.remove(r)
    d.wait()
    assert "n1 found no hub" in text, text
    return text


def test_launch_limit_without_hub(step):
    step.scontrol('[ "$1" = show ] && echo head7 || exit 1')
    text = reason_without_hub(step)
    assert "head7" in text, text


def test_launch_limit_without_scontrol(step):
    """Of a wrong scontrol= in plugstack.conf no other message tells."""
    text = reason_without_hub(step, PLUME_SCONTROL="/nonexistent")
    assert "scontrol did not tell" in text, text


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


harness.main(globals(), at_once=4)
