#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""One node: the daemon's socket, what comes over it, and what stops a start."""
import json
import os
import select
import shutil
import socket
import subprocess

import harness
from harness import LIMIT, Rank, equal, wait_for
from started import start_rank


def test_hello_refused_then_closed(step):
    step.tasks_per_node = 2
    d = step.start()
    good = {"type": "hello", "proto": "plume", "major": 1, "role": "starter", "rank": 0,
            "local_rank": 0, "guarded": True}
    deep = "[" * 32 + "]" * 32
    bad = [
        b"\n", b"{}\n", b"nonsense\n", b"[]\n", b"\x00\n", b"\xff\xfe\n", b"GET / HTTP/1.0\n",
        b'{"type":"hello"}\n', b'{"type":"metrics","metrics":{}}\n',
        b'{"type":"hello","type":"hello"}\n', f'{{"type":"hello","x":{deep}}}\n'.encode(),
        b'{"a":' * 10000 + b"\n", b'{"type":"hello","proto":"pl\\u0000ume"}\n',
    ]
    for change in ({"major": 2}, {"major": "1"}, {"proto": "plum"}, {"role": None}, {"rank": -1},
                   {"rank": 2}, {"rank": "0"}, {"rank": 1 << 32}, {"rank": 0.0}, {"type": "hi"},
                   {"role": "program"}, {"local_rank": -1}, {"local_rank": 2},
                   {"local_rank": 1 << 32}):
        bad.append(json.dumps({**good, **change}).encode() + b"\n")
    for line in bad:
        r = Rank(d.socket)
        r.send_raw(line)
        equal((line, r.receive()["type"]), (line, "error"))
        r.expect_closed()
        r.close()
    # After all that the daemon serves as if nothing had been.
    for i in range(2):
        start_rank(step, d, i, i).exited(0)
    equal(d.wait(), 0)
    equal(step.result()["state"], "done")


def test_line_limit(step):
    d = step.start()
    r = start_rank(step, d)
    p = step.keep(d.rank("program", 0))
    fact = b'{"type":"fact","key":"a","value":"v","pad":"' + b"x" * 60000 + b'"}\n'
    p.send_raw(fact)
    big = step.keep(d.rank("program", 0))
    with_error = step.keep(d.rank("program", 0))
    # Cut off before its end is known; a reset is fine where it still was sending.
    try:
        big.send_raw(b"x" * 70000)
    except OSError:
        pass
    big.expect_closed()
    with_error.send_raw(b'{"type":"fact","key":"b","value":"' + b"x" * 65502 + b'"}\n')
    with_error.expect_closed()
    p.send(type="exchange", name="sync", value="")
    p.expect("exchanged")
    client = step.hub()
    client.send(type="snapshot")
    facts = client.expect("snapshot")["state"]["ranks"][0]["facts"]
    equal(facts, {"a": "v"})
    assert os.path.getsize(step.trial("attempt-0", "events.jsonl")) < 10000  # unknown keys stay out
    r.exited(0)


def test_bytes_one_at_a_time(step):
    d = step.start()
    r = step.keep(Rank(d.socket))
    for byte in json.dumps({"type": "hello", "proto": "plume", "major": 1, "role": "starter",
                            "rank": 0, "local_rank": 0, "guarded": True}).encode() + b"\n":
        r.send_raw(bytes([byte]))
    r.expect("world")
    text = (b'{"type":"spawned","pid":%d}\n{"type":"later"}\n' % os.getpid()
            + b'{"type":"exited","status":1024,"at_ns":1}\n')
    r.send_raw(text)  # all in one
    equal(r.expect("verdict")["code"], 4)


def test_hello_limit(step):
    d = step.start()
    silent, half = step.keep(Rank(d.socket)), step.keep(Rank(d.socket))
    half.send_raw(b'{"type":')
    silent.expect_closed()
    half.expect_closed()
    start_rank(step, d).exited(0)


def test_hello_rank_twice(step):
    d = step.start()
    first = start_rank(step, d)
    second = step.keep(d.rank("starter", 0, capture=True))
    equal(second.receive()["type"], "error")
    second.expect_closed()
    first.exited(0)
    equal(first.expect("verdict")["code"], 0)
    equal(d.wait(), 0)
    equal(step.result()["state"], "done")


def test_fds_unwanted_are_closed(step):
    d = step.start()
    r = start_rank(step, d)
    read_end, write_end = os.pipe()
    for _ in range(20):  # with any message, more than asked for, again and again
        socket.send_fds(r.sock, [b'{"type":"later"}\n'], [write_end] * 5)
    os.close(write_end)
    r.send(type="exited", status=0, at_ns=1)
    r.expect("verdict")
    equal(d.wait(), 0)
    assert select.select([read_end], [], [], LIMIT)[0]
    equal(os.read(read_end, 1), b"")
    os.close(read_end)


def test_socket_stale(step):
    d = step.start()
    path = d.socket
    d.kill()
    assert os.path.exists(path)
    again = step.start()
    equal(again.socket, path)
    start_rank(step, again).exited(0)
    equal(again.wait(), 0)


def test_sockets_swept(step):
    """The sockets of killed daemons are removed, and nothing else."""
    folder = step.path("run-0")
    os.makedirs(folder, 0o700, exist_ok=True)
    kind = subprocess.run(["stat", "-f", "-c", "%T", folder], capture_output=True, text=True, check=True).stdout
    if kind.strip() not in ("ext2/ext3", "tmpfs", "xfs", "btrfs", "overlayfs", "ramfs"):
        return  # nodes may share such a one
    old, here = os.stat(folder).st_mtime - 3600, os.getcwd()
    kept = []
    for name in ("1.0.0.0", "2.7.1.3", "local-9.0.0.0", "3.0.0.0", "4.0.0.0", "5.0.0.0", "6.0.0", "a.0.0.0", "7.0.0.0x",
                 "8..0.0", ".9.0.0.0", "locals-9.0.0.0"):
        s = step.keep(socket.socket(socket.AF_UNIX))
        os.chdir(folder)  # a path of a socket is short
        try:
            s.bind(name)
            if name == "3.0.0.0":
                os.remove(name)
                with open(name, "w", encoding="ascii"):
                    pass  # a file
            if name == "4.0.0.0":
                s.listen()
            os.utime(name, (old, old) if name != "5.0.0.0" else None)  # a young one
        finally:
            os.chdir(here)
        if name not in ("1.0.0.0", "2.7.1.3", "local-9.0.0.0"):
            kept.append(name)
    d = step.start()
    equal(set(os.listdir(folder)), {*kept, os.path.basename(d.socket)})
    start_rank(step, d).exited(0)
    equal(d.wait(), 0)
    equal(set(os.listdir(folder)), set(kept))


def test_socket_in_use(step):
    first = step.start()
    second = step.launch()
    message = second.control.receive()
    equal(message["type"], "failed")
    assert first.socket in message["text"], message
    assert second.wait() != 0
    start_rank(step, first).exited(0)  # it kept its socket
    equal(first.wait(), 0)


def test_socket_other_user(step):
    if os.geteuid() != 0:
        return  # only root can be two users; ./dev test runs as root in CI
    d = step.start()
    equal([os.stat(p).st_mode & 0o777 for p in (d.socket, os.path.dirname(d.socket))], [0o600, 0o700])
    os.chmod(step.dir, 0o711)
    os.chmod(os.path.dirname(d.socket), 0o711)  # what guards it otherwise
    os.chmod(d.socket, 0o666)
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.setresgid(65534, 65534, 65534)
        os.setresuid(65534, 65534, 65534)
        got = b"error"
        try:
            with Rank(d.socket).sock as s:
                s.sendall(b'{"type":"hello"}\n')
                got = s.recv(100)
        except ConnectionError:
            got = b""
        os.write(write_end, b"[" + got + b"]")
        os._exit(0)
    os.waitpid(pid, 0)
    equal(os.read(read_end, 200), b"[]")
    os.chmod(os.path.dirname(d.socket), 0o700)
    start_rank(step, d).exited(0)


def test_start_refused_with_reason(step):
    def reason(**env):
        d = step.launch(**env)
        message = d.control.receive()
        equal(message["type"], "failed")
        assert d.wait() != 0
        return message["text"]

    os.chmod(step.path("home", "key"), 0o644)
    assert "chmod 600" in reason()
    os.chmod(step.path("home", "key"), 0o600)
    assert "PLUME_KEY_FILE" in reason(PLUME_KEY_FILE="/nonexistent/key")
    assert "SLURM" in reason(SLURM_JOB_ID=None)
    assert "node 5" in reason(SLURM_NODEID="5")
    assert "contradict each other" in reason(SLURM_STEP_NUM_TASKS="0")
    assert "metric" in reason(PLUME_METRIC="loss=(")
    assert "/nonexistent" in reason(PLUME_RUN_DIR="/nonexistent")
    os.chmod(step.path("run-0"), 0o755)
    assert "chmod 700" in reason()


def start_plrun(step, folder, local_rank):
    """A real plrun of this node, from this folder."""
    env = step.environment(0, SLURM_PROCID=str(local_rank), SLURM_LOCALID=str(local_rank))
    return subprocess.Popen([os.path.join(folder, "plrun"), "--", "true"], env=env, text=True,
                            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def test_no_daemon(step):
    """The plrun of local rank 0 cannot start the daemon: the node's other ranks are told why at once,
    whether they wait already or come later."""
    step.tasks_per_node = 3
    os.mkdir(step.path("tools"))
    shutil.copy(os.path.join(os.path.dirname(harness.PLRUND), "plrun"), step.path("tools"))
    for script, why in (("exit 1", "did not start"), ("kill -9 $$", "did not start"),
                        ("printf '{\"type\":\"ready\",\"pid\":1,\"socket\":\"x\"}\\n' >&3",
                         "the node daemon has ended")):
        with open(step.path("tools", "plrund"), "w", encoding="ascii") as f:
            f.write(f"#!/bin/sh\n[ \"$1\" != --unable ] || exit 1\n{script}\n")
        os.chmod(step.path("tools", "plrund"), 0o755)
        early = start_plrun(step, step.path("tools"), 1)
        first = start_plrun(step, step.path("tools"), 0)
        late = start_plrun(step, step.path("tools"), 2)
        for p in (first, early, late):
            said = p.communicate(timeout=harness.LIMIT)[1]
            equal((p.returncode, why in said), (1, True))
        equal(os.listdir(step.path("run-0")), [])


def test_run_folder_refused_reaches_ranks(step):
    """What fails behind `ready` must be told to the ranks, which come later."""
    with open(step.path("home", "steps"), "w", encoding="utf-8"):
        pass  # a file where the folder should be
    step.tasks_per_node = 2
    d = step.start()
    wait_for("its own word", lambda: "steps" in d.said())
    for i in range(2):
        r = step.keep(d.rank("starter", i, local_rank=i))
        assert "steps" in r.expect("refused")["text"]
        r.close()
        step.things.remove(r)
    d.wait()


def test_names_from_outside(step):
    """Slurm allows any byte in a job's name."""
    env = step.environment(0)
    env = {k.encode(): v.encode() for k, v in env.items()}
    env[b"SLURM_JOB_NAME"] = b"a\xff\x1b[31m\n\"/../x"
    d = harness.Daemon(step, 0, env)
    step.daemons.append(d)
    d.ready()
    r = start_rank(step, d)
    r.exited(0)
    equal(r.expect("verdict")["code"], 0)
    equal(d.wait(), 0)
    equal(step.result()["state"], "done")


def test_run_folder_not_utf8(step):
    """Its path cannot travel in JSON: said at once, instead of ranks that wait for ever."""
    home = os.fsencode(step.dir) + b"/h\xff"
    os.mkdir(home, 0o700)
    env = {k.encode(): v.encode() for k, v in step.environment(0).items()}
    d = harness.Daemon(step, 0, {**env, b"PLUME_HOME": home})
    step.daemons.append(d)
    d.ready()
    assert "not UTF-8" in step.keep(d.rank("starter", 0)).expect("refused")["text"]


harness.main(globals(), at_once=4)
