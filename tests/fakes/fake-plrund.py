#!/usr/bin/python3
# SPDX-License-Identifier: MIT
"""A plrund without a hub, for tests of the SPANK plugin: speaks the control and the rank side of
plume-protocol(7), and copies the ranks' output as the real one does.

PLUME_FAKE says how it behaves:
  ok (default)  answers every rank with a world of its own making
  silent        never says that it is ready            die     ends at once
  failed        says that it failed                    refuse  refuses every rank
  mute          never answers a rank                   stay    does not end at goodbye
  vanish        ends at the first rank's hello         garbage says nonsense
PLUME_FAKE_LOG is a file prefix; PREFIX.NODE gets a line for all it is told, and its own state.
"""
import array
import json
import os
import selectors
import signal
import socket
import sys
import tempfile

MODE = os.environ.get("PLUME_FAKE", "ok")
CONTROL = socket.socket(fileno=int(sys.argv[2]))
SELECTOR = selectors.DefaultSelector()
OPEN = {"ranks": 0, "pipes": 0, "control": True}


def log(**record):
    prefix = os.environ.get("PLUME_FAKE_LOG")
    if prefix:
        with open(f"{prefix}.{os.environ['PLUME_NODE_ID']}", "a", encoding="utf-8") as f:
            f.write(json.dumps(record) + "\n")


def say(sock, **record):
    sock.sendall((json.dumps(record) + "\n").encode())


def status_field(name):
    with open("/proc/self/status", encoding="utf-8") as f:
        return next(line.split(":", 1)[1].strip() for line in f if line.startswith(name + ":"))


def describe():
    with open("/proc/self/oom_score_adj", encoding="utf-8") as f:
        oom = f.read().strip()
    fds = sorted(int(fd) for fd in os.listdir("/proc/self/fd"))
    log(type="self", argv=sys.argv[1:], pid=os.getpid(), sid=os.getsid(0), cwd=os.getcwd(),
        uids=os.getresuid(), gids=os.getresgid(), groups=os.getgroups(), fds=fds, oom=oom,
        blocked=status_field("SigBlk"), ignored=status_field("SigIgn"),
        umask=status_field("Umask"), env=dict(os.environ))


def world(hello):
    env = os.environ
    rank = hello["rank"]
    return {
        "type": "world",
        "env": [
            f"RANK={rank}", f"WORLD_SIZE={env['PLUME_NTASKS']}",
            f"LOCAL_RANK={hello['local_rank']}", f"LOCAL_WORLD_SIZE={env['PLUME_LOCAL_NTASKS']}",
            f"NODE_RANK={env['PLUME_NODE_ID']}", "MASTER_ADDR=127.0.0.1", "MASTER_PORT=29999",
            "PLUME_RUNTIME=plugin",
        ],
        "defaults": ["OMP_NUM_THREADS=7", "FAKE_DEFAULT=quoted \"value\"\n"],
    }


def copy_output(source, target):
    """Blocking writes: all a test double needs."""
    data = os.read(source, 65536)
    while data:
        n = os.write(target, data)
        data = data[n:]
        if not data:
            return
    SELECTOR.unregister(source)
    os.close(source)
    os.close(target)
    OPEN["pipes"] -= 1


def on_rank(conn, state):
    data, control, _, _ = conn.recvmsg(65536, socket.CMSG_SPACE(16))
    for _, _, fds in control:
        numbers = array.array("i")
        numbers.frombytes(fds[:len(fds) // 4 * 4])
        state["fds"].extend(numbers)
    if not data:
        SELECTOR.unregister(conn)
        conn.close()
        OPEN["ranks"] -= 1
        return
    state["data"] += data
    while b"\n" in state["data"]:
        line, state["data"] = state["data"].split(b"\n", 1)
        message = json.loads(line)
        log(fds=len(state["fds"]), **message)
        if message["type"] != "hello":
            continue
        if MODE == "vanish":
            os._exit(0)
        for i in range(0, len(state["fds"]), 2):
            OPEN["pipes"] += 1
            SELECTOR.register(state["fds"][i], selectors.EVENT_READ,
                              lambda s=state["fds"][i], t=state["fds"][i + 1]: copy_output(s, t))
        state["fds"] = []
        if MODE == "refuse":
            say(conn, type="refused", text="the world is not\x1b[31m complete")
        elif MODE != "mute":
            say(conn, **world(message))


def on_accept(server):
    conn, _ = server.accept()
    OPEN["ranks"] += 1
    state = {"data": b"", "fds": []}
    SELECTOR.register(conn, selectors.EVENT_READ, lambda: on_rank(conn, state))


def on_control(state):
    data = CONTROL.recv(65536)
    if not data:
        log(type="goodbye")
        SELECTOR.unregister(CONTROL)
        OPEN["control"] = False
        return
    state["data"] += data
    while b"\n" in state["data"]:
        line, state["data"] = state["data"].split(b"\n", 1)
        log(**json.loads(line))


def main():
    describe()
    if MODE == "die":
        return
    if MODE == "silent":
        signal.pause()
    if MODE == "garbage":
        CONTROL.sendall(b"hello, world\n")
        signal.pause()
    if MODE == "failed":
        say(CONTROL, type="failed", text="no key: set PLUME_KEY_FILE")
        return
    with tempfile.TemporaryDirectory(prefix="plume-fake-", dir="/tmp") as folder:
        path = os.path.join(folder, "s")
        server = socket.socket(socket.AF_UNIX)
        server.bind(path)
        server.listen(512)
        SELECTOR.register(server, selectors.EVENT_READ, lambda: on_accept(server))
        state = {"data": b""}
        SELECTOR.register(CONTROL, selectors.EVENT_READ, lambda: on_control(state))
        say(CONTROL, type="ready", pid=os.getpid(), socket=path)
        while OPEN["control"] or OPEN["pipes"]:
            for key, _ in SELECTOR.select():
                key.data()
    if MODE == "stay":
        signal.pause()


main()
