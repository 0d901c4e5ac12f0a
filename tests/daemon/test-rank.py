#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""One node: starters, programs, their output and their ends."""
import base64
import contextlib
import errno
import json
import os
import select
import shutil
import signal
import socket
import stat
import subprocess

import harness
from harness import LIMIT, Rank, equal, running, wait_for


def world_of(rank):
    message = rank.expect("world")
    return dict(e.split("=", 1) for e in message["env"]), \
        dict(e.split("=", 1) for e in message["defaults"])


def start_rank(step, daemon, rank=0, local_rank=0, **more):
    """A rank that has got its world and runs."""
    r = step.keep(daemon.rank("starter", rank, local_rank=local_rank, **more))
    r.expect("world")
    r.send(type="spawned", pid=os.getpid())
    return r


def test_ready_names_private_socket(step):
    d = step.start()
    equal(stat.S_IMODE(os.stat(d.socket).st_mode), 0o600)
    equal(stat.S_IMODE(os.stat(os.path.dirname(d.socket)).st_mode), 0o700)
    # A key of our own was not needed: the step made none.
    equal(os.listdir(step.path("home")).count("key"), 1)


def test_world_environment(step):
    step.tasks_per_node = 2
    step.env.update(SLURM_CPUS_PER_TASK="3", PLUME_NCCL_DEBUG="info", PLUME_NCCL_IFNAME="eth0")
    d = step.start()
    for local, rank in ((1, 0), (0, 1)):
        env, defaults = world_of(step.keep(d.rank("starter", rank, local_rank=local,
                                                 capture=local == 1)))
        port = int(env.pop("MASTER_PORT"))
        equal(env.pop("PLUME_RUN_DIR"), os.path.dirname(step.trial()))
        equal(env, {
            "RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(local),
            "LOCAL_WORLD_SIZE": "2", "NODE_RANK": "0", "GROUP_RANK": "0",
            "MASTER_ADDR": "127.0.0.1", "PLUME_SOCKET": d.socket, "PLUME_NODE_ADDR": "127.0.0.1",
            "PLUME_TRIAL": "0", "PLUME_ATTEMPT": "0", "PLUME_RUNTIME": "plrun",
            "NCCL_DEBUG": "INFO", "NCCL_SOCKET_IFNAME": "eth0"})
        equal(defaults.pop("OMP_NUM_THREADS"), "3")
        equal(defaults.pop("PYTHONFAULTHANDLER"), "1")
        equal(defaults.pop("COLUMNS", None), "400" if local == 1 else None)
        host, jax_port = defaults.pop("JAX_COORDINATOR_ADDRESS").rsplit(":", 1)
        equal(host, "127.0.0.1")
        ras_host, ras_port = defaults.pop("NCCL_RAS_ADDR").rsplit(":", 1)
        equal((ras_host, defaults), ("localhost", {}))  # NCCL authenticates nobody there
    assert len({port, int(jax_port), int(ras_port)}) == 3
    # Nobody gets the ports by chance, rank 0's program does by SO_REUSEADDR.
    for held in (port, int(jax_port)):
        with socket.socket() as stranger:
            try:
                stranger.bind(("", held))
                raise AssertionError("the port was not held")
            except OSError as e:
                equal(e.errno, errno.EADDRINUSE)
        with socket.socket() as program:
            program.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            program.bind(("", held))
            program.listen(1)


def test_ports_from_the_range(step):
    """JAX's port is from the range, too, unless no port of the range is free."""
    low = step.free_port()
    for high in (min(low + 20, 65535), low):
        step.job = str(int(step.job) + 1)
        d = step.start(PLUME_MASTER_PORT_RANGE=f"{low}-{high}")
        env, defaults = world_of(step.keep(d.rank("starter", 0)))
        if high == low:  # taken: MASTER_PORT is another, and so is JAX's
            assert "taking another" in d.said()
        else:
            jax_port = int(defaults["JAX_COORDINATOR_ADDRESS"].rsplit(":", 1)[1])
            assert low < int(env["MASTER_PORT"]) < jax_port <= high, (low, env, defaults)


def test_bad_nccl_level_refused(step):
    d = step.launch(PLUME_NCCL_DEBUG="bogus")
    equal(d.control.expect("failed")["text"],
          "PLUME_NCCL_DEBUG: 'bogus' is not a level of NCCL_DEBUG: use VERSION, WARN, INFO, ABORT or "
          "TRACE")
    d.wait()


def test_trace_shows_messages_and_no_secret(step):
    d = step.start(PLUME_TRACE=step.path("trace"))
    r = start_rank(step, d)
    r.send(type="fact", key="param_hash", value="hunter2")
    r.exited(0)
    d.wait()
    path = step.path(f"trace.{d.process.pid}")
    equal(stat.S_IMODE(os.stat(path).st_mode), 0o600)
    with open(path) as f:
        text = f.read()
    events = [json.loads(line) for line in text.splitlines()]
    seen = {(e["event"], e["name"], e.get("peer")) for e in events}
    for event in (("receive", "hello", "rank"), ("send", "world", "rank"),
                  ("receive", "fact", "rank"), ("receive", "exited", "rank"),
                  ("send", "join", "own")):
        assert event in seen, (event, seen)
    assert all(a["t"] <= b["t"] for a, b in zip(events, events[1:]))
    equal({e["program"] for e in events}, {"plrund"})
    for secret in (harness.KEY.hex(), "hunter2", "nonce"):
        assert secret not in text, secret


def test_no_process_and_no_message_shows_the_secret(step):
    """Neither arguments and environments of the daemon and of what it has started, nor what ranks are given."""
    d = step.start()
    r = step.keep(d.rank("starter", 0))
    shown = [json.dumps(r.expect("world")).encode()]
    pids = [d.process.pid]
    for pid in pids:  # grows
        with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as f:
            pids += map(int, f.read().split())
        for name in ("cmdline", "environ"):
            with contextlib.suppress(PermissionError), open(f"/proc/{pid}/{name}", "rb") as f:
                shown.append(f.read())
    assert len(pids) > 1 and len(shown) > len(pids), pids
    for text in shown:
        for secret in (harness.KEY.hex().encode(), harness.KEY[1:], base64.b64encode(harness.KEY)):
            assert secret not in text, text
    r.send(type="spawned", pid=os.getpid())
    r.exited(0)
    d.wait()


def test_output_copied_and_kept(step):
    d = step.start()
    r = start_rank(step, d, capture=True)
    data = bytes(range(256)) * 2000 + b"no newline at the end"
    r.err.write(b"to stderr\n")
    pid = os.fork()
    if pid == 0:
        r.out.write(data)
        os._exit(0)
    r.out.end()
    got = b""
    while len(got) < len(data):
        assert select.select([r.out.out], [], [], LIMIT)[0]
        got += os.read(r.out.out, 65536)
    os.waitpid(pid, 0)
    r.exited(0)
    equal(r.expect("verdict")["code"], 0)
    equal(got, data)
    equal(r.out.read_all(), b"")
    equal(r.err.read_all(), b"to stderr\n")
    with open(step.trial("attempt-0", "rank-0.out"), "rb") as f:
        equal(f.read(), data)
    with open(step.trial("attempt-0", "rank-0.err"), "rb") as f:
        equal(f.read(), b"to stderr\n")
    r.close()
    step.things.remove(r)
    equal(d.wait(), 0)


def drained(r):
    """What came out where Slurm would read, after the rank's end."""
    r.out.end(), r.err.end()
    return r.out.read_all(), r.err.read_all()


def test_output_of_a_trial(step):
    """Slurm's file gets rank 0, and the last lines of the rank that failed first; files have all."""
    d, ranks = running(step, 4, PLUME_OUTPUT_RANKS="0")
    for i, r in enumerate(ranks):
        r.out.write(b"out %d\n" % i)
        r.err.write(b"err %d\n" % i)
    ranks[2].exited(7)
    for i in (0, 1, 3):
        ranks[i].expect("signal")
        ranks[i].exited(signal_number=15)
    for i, r in enumerate(ranks):
        r.expect("verdict")
        text = b"[plrund: rank 2 failed first; the last lines of its rank-2.err:]\nerr 2\n" if i == 2 else b""
        equal(drained(r), (b"out 0\n", b"err 0\n") if i == 0 else (b"", text))
        for end in ("out", "err"):
            with open(step.trial("attempt-0", f"rank-{i}.{end}"), "rb") as f:
                equal(f.read(), b"%s %d\n" % (end.encode(), i))
    equal(d.wait(), 0)
    equal(step.result()["cause"]["text"], "err 2")


def test_output_of_a_trial_stdout(step):
    """A program that writes its error to stdout; without any output nothing is said."""
    d, ranks = running(step, 2, PLUME_OUTPUT_RANKS="0")
    ranks[1].out.write(b"Error: three\n")
    ranks[1].exited(3)
    ranks[0].expect("signal")
    ranks[0].exited(signal_number=15)
    equal(drained(ranks[1]),
          (b"", b"[plrund: rank 1 failed first; the last lines of its rank-1.out:]\nError: three\n"))
    equal(drained(ranks[0]), (b"", b""))
    equal(d.wait(), 0)


def test_output_ranks(step):
    for value, shown in (("all", {0, 1, 2, 3}), ("1,3", {1, 3})):
        d, ranks = running(step, 4, PLUME_OUTPUT_RANKS=value)
        for i, r in enumerate(ranks):
            r.out.write(b"out %d\n" % i)
        for i, r in enumerate(ranks):
            r.exited(0)
            equal(r.expect("verdict")["code"], 0)
            equal(drained(r), (b"out %d\n" % i if i in shown else b"", b""))
        equal(d.wait(), 0)
    d = step.launch(PLUME_OUTPUT_RANKS="first")
    equal(d.control.expect("failed")["text"],
          "PLUME_OUTPUT_RANKS: 'first' is neither 'all' nor a list of ranks like 0,4-7")
    d.wait()


def test_end_good(step):
    d = step.start()
    r = start_rank(step, d)
    r.exited(0)
    equal(r.expect("verdict")["code"], 0)
    equal(d.wait(), 0)
    assert not os.path.exists(d.socket)
    result = step.result()
    equal((result["state"], result["exit_code"], result["world_size"]), ("done", 0, 1))
    assert "cause" not in result
    status = step.load("status.json")
    assert "hub" not in status  # nobody should try to reach it
    equal(status["state"], harness.replay(step.lines("events.jsonl")))
    equal(status["state"]["state"], "done")


def test_end_failed_code_and_tail(step):
    d = step.start()
    r = start_rank(step, d, capture=True)
    lines = b"".join(b"line %d\n" % i for i in range(50))
    r.err.write(lines + b"bad \xff\xc3 bytes\nlast words\n\n")
    r.exited(3)
    equal(r.expect("verdict")["code"], 3)
    r.err.read_all()
    equal(d.wait(), 0)
    result = step.result()
    equal((result["state"], result["exit_code"]), ("failed", 3))
    cause = result["cause"]
    equal((cause["kind"], cause["rank"], cause["node"], cause["exit"]), ("exit", 0, "n0", 3))
    text = cause["text"].splitlines()
    equal(len(text), 20)
    equal(text[-2:], ["bad \ufffd\ufffd bytes", "last words"])
    equal(text[0], "line 32")


def test_end_failed_signal(step):
    d = step.start()
    r = start_rank(step, d)
    r.exited(signal_number=11)
    equal(r.expect("verdict")["code"], 139)
    equal(d.wait(), 0)
    cause = step.result()["cause"]
    equal((cause["kind"], cause["signal"], cause["signal_name"]), ("signal", 11, "SIGSEGV"))


def test_verdict_names_first_cause(step):
    step.tasks_per_node = 3
    d = step.start()
    ranks = [start_rank(step, d, i, i) for i in range(3)]
    ranks[1].exited(3)
    for i in (0, 2):
        equal(ranks[i].expect("signal")["signal"], signal.SIGTERM)
    ranks[0].exited(signal_number=15)
    ranks[2].exited(7)  # caught the signal and left with a code of its own
    equal([ranks[i].expect("verdict")["code"] for i in range(3)], [0, 3, 0])
    equal(d.wait(), 0)
    result = step.result()
    equal((result["exit_code"], result["cause"]["rank"]), (3, 1))
    equal([r["state"] for r in step.load("status.json")["state"]["ranks"]],
          ["killed", "failed", "killed"])


def test_end_killed_after_grace(step):
    step.tasks_per_node = 2
    step.env["PLUME_KILL_GRACE"] = "0.1"
    d = step.start()
    a, b = start_rank(step, d, 0, 0), start_rank(step, d, 1, 1)
    a.exited(1)
    equal(b.expect("signal")["signal"], signal.SIGTERM)
    equal(b.expect("signal")["signal"], signal.SIGKILL)
    b.exited(signal_number=9)
    equal(b.expect("verdict")["code"], 0)
    equal(a.expect("verdict")["code"], 1)


def test_end_late_rank_is_refused(step):
    """A rank that comes when another has failed is not started any more."""
    step.tasks_per_node = 2
    d = step.start()
    a = start_rank(step, d, 0, 0)
    a.exited(5)
    equal(a.expect("verdict")["code"], 5)
    b = step.keep(d.rank("starter", 1, local_rank=1))
    assert "another rank failed" in b.expect("refused")["text"]
    b.close()
    step.things.remove(b)
    equal(d.wait(), 0)
    equal(step.result()["cause"]["rank"], 0)


def test_exchange_all_ranks(step):
    step.tasks_per_node = 3
    d = step.start()
    starters = [start_rank(step, d, i, i) for i in range(3)]
    programs = [step.keep(d.rank("program", i)) for i in range(3)]
    for name in ("addr", "addr", "q\"\u00e9"):
        for i in (2, 0, 1):
            programs[i].send(type="exchange", name=name, value=f"v{i}\n")
        for p in programs:
            equal(p.expect("exchanged"), {"type": "exchanged", "name": name,
                                          "values": ["v0\n", "v1\n", "v2\n"]})
    for s in starters:
        s.exited(0)


def test_exchange_nonsense_is_not_forwarded(step):
    step.tasks_per_node = 2
    d = step.start()
    for i in range(2):
        start_rank(step, d, i, i)
    a, b = (step.keep(d.rank("program", i)) for i in range(2))
    a.send(type="exchange", name="x" * 1025, value="v")
    a.send(type="exchange", name="x", value=7)
    a.send(type="exchange", value="v")
    a.send(type="exchange", name="x", value="v" * 1025)
    for _ in range(2):
        equal(a.expect("error")["text"], "an exchange's name or value is too long")
    # Said to be another's, it is rank 0's all the same. Each rank gives one good value of a
    # name: which of two would be taken depends on when the other rank's comes.
    a.send(type="exchange", name="x", value="a", rank=1)
    b.send(type="exchange", name="x", value="b")
    equal(b.expect("exchanged")["values"], ["a", "b"])


def test_metrics_coalesced(step):
    d = step.start()
    r = start_rank(step, d)
    p = step.keep(d.rank("program", 0))
    for i in range(5000):
        p.send(type="metrics", step=i, metrics={"loss": i / 2, "bad name": 1, "s": "text",
                                                "n": "nan", "o": {"x": 1}})
    client = step.hub()
    client.send(type="watch")
    doc = client.expect("snapshot")["state"]
    while doc["ranks"][0].get("step") != 4999:
        event = client.expect("event")["event"]
        if event["type"] == "metrics":
            equal(sorted(event["metrics"]), ["loss", "n"])
            doc["ranks"][0]["step"] = event["step"]
    # The file is written once a second, after clients have been told.
    wait_for("the last row", lambda: step.lines("metrics.jsonl")[-1:] and
             step.lines("metrics.jsonl")[-1]["step"] == 4999)
    rows = step.lines("metrics.jsonl")
    assert len(rows) < 100, len(rows)
    equal(rows[-1]["metrics"], {"loss": 2499.5, "n": "nan"})
    r.exited(0)
    r.expect("verdict")
    equal(d.wait(), 0)
    result = step.result()
    equal((result["step"], result["metrics"]), (4999, {"loss": 2499.5, "n": "nan"}))


def test_metrics_found_in_output(step):
    step.env["PLUME_METRIC"] = "loss=loss ([0-9.e+-]+|nan)\nstep=^step ([-+0-9.e]+)"
    d = step.start()
    r = start_rank(step, d, capture=True)
    r.out.write(b"step 1 loss 0.5\nloss none\nstep 12 lo")
    r.out.write(b"ss 0.25\r\nloss nan at the end without newline")
    r.exited(0)
    r.expect("verdict")
    equal(d.wait(), 0)
    result = step.result()
    equal((result["step"], result["metrics"]), (12, {"loss": "nan"}))


def test_what_is_no_step_takes_none_away(step):
    step.env["PLUME_METRIC"] = "loss=loss ([0-9]+)\nstep=^step ([-+0-9.e]+)"
    d = step.start()
    r = start_rank(step, d, capture=True)
    p = step.keep(d.rank("program", 0))
    r.out.write(b"step 12 loss 1\nstep 1e300\nstep -4 loss 2")
    p.send(type="metrics", step=-3, metrics={"acc": 1})
    p.send(type="exchange", name="sync", value="")
    p.expect("exchanged")
    r.exited(0)
    r.expect("verdict")
    equal(d.wait(), 0)
    result = step.result()
    equal((result["step"], result["metrics"]), (12, {"loss": 2, "acc": 1}))


def test_facts_and_objective(step):
    step.tasks_per_node = 2
    d = step.start()
    starters = [start_rank(step, d, i, i) for i in range(2)]
    for i in range(2):
        p = step.keep(d.rank("program", i))
        p.send(type="fact", key="param_hash", value="abc")
        p.send(type="fact", key="objective", value="max:acc")
        p.send(type="fact", key=7, value="abc")
        p.send(type="metrics", step=9, metrics={"acc": 0.75 + i})
        p.send(type="exchange", name="sync", value="")
        p.expect("exchanged") if i else None
    for s in starters:
        s.exited(0)
        s.expect("verdict")
    equal(d.wait(), 0)
    result = step.result()
    equal((result["objective"], result["objective_name"], result["params_equal"]),
          (0.75, "acc", True))


def test_reports_of_a_busy_moment(step):
    """What a program reported before its end counts, however much the daemon had to do: on a
    connection with more than it reads at once, and on one that it has not accepted."""
    d, ranks = running(step, 1)
    p = step.keep(d.rank("program", 0))
    p.send(type="fact", key="first", value="1")
    client = step.hub()
    client.send(type="snapshot")
    while "facts" not in client.expect("snapshot")["state"]["ranks"][0]:
        client.send(type="snapshot")
    os.kill(d.process.pid, signal.SIGSTOP)
    line = json.dumps({"type": "fact", "key": "some", "value": "x" * 4000}).encode() + b"\n"
    p.send_raw(line * 12)
    p.send(type="fact", key="last", value="2")
    p.close()
    short = step.keep(d.rank("program", 0))
    short.send(type="fact", key="short", value="3")
    short.send(type="metrics", step=7, metrics={"loss": 0.5})
    short.close()
    ranks[0].exited(0)
    os.kill(d.process.pid, signal.SIGCONT)
    equal(ranks[0].expect("verdict")["code"], 0)
    equal(d.wait(), 0)
    facts = {e["key"]: e["value"] for e in step.lines("events.jsonl") if e["type"] == "fact"}
    equal([facts.get(k) for k in ("first", "last", "short")], ["1", "2", "3"])
    equal((step.result()["step"], step.result()["metrics"]), (7, {"loss": 0.5}))


def test_best_value_of_the_objective(step):
    """min:loss@best: values of one second count, too, and not only the last one."""
    plsubmit = os.path.join(os.path.dirname(harness.PLRUND), "plsubmit")
    made = subprocess.run([plsubmit, "--no-submit", "--parsable", "--runs", step.path("runs"), "--objective", "min:loss@best",
                           "--metric", "loss=loss ([-0-9.a-z]+)", "--metric", "step=at ([0-9]+)", "true"],
                          env=step.environment(0), timeout=LIMIT, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          check=False)
    equal((made.returncode, made.stderr), (0, ""))
    folder = made.stdout.split(";")[1].strip()
    os.makedirs(os.path.join(folder, "trial-0000", "attempt-0"))
    d = step.start(PLUME_RUN_DIR=folder, PLUME_TRIAL="0", PLUME_ATTEMPT="0")
    r = start_rank(step, d, capture=True)
    p = step.keep(d.rank("program", 0))
    for number, value in enumerate([0.5, "nan", 0.25, 0.25, 0.75, "-inf"]):
        p.send(type="metrics", step=number, metrics={"loss": value, "acc": 1})
    p.send(type="exchange", name="sync", value="")
    p.expect("exchanged")
    r.out.write(b"at 7 loss 0.125\nat 8 loss 0.5\nloss inf\n")
    r.exited(0)
    r.expect("verdict")
    equal(d.wait(), 0)
    with open(os.path.join(folder, "trial-0000", "result.json"), encoding="utf-8") as f:
        result = json.load(f)
    equal(result["metrics"], {"loss": "inf", "acc": 1, "loss.best": 0.125, "loss.best_step": 7})
    equal((result["objective"], result["objective_name"], result["objective_direction"]), (0.125, "loss.best", "min"))


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


def test_guard_stopped(step):
    """A plrun that is stopped cannot end its rank: after the grace the daemon ends plrun."""
    step.tasks_per_node = 2
    d = step.start()
    pid = os.fork()
    if pid == 0:
        with contextlib.suppress(BaseException):
            start_rank(step, d, 0, 0)
            os.kill(os.getpid(), signal.SIGSTOP)
        os._exit(1)
    try:
        os.waitpid(pid, os.WUNTRACED)
        b = start_rank(step, d, 1, 1)
        b.exited(3)
        wait_for("the end of the stopped starter", lambda: os.waitid(
            os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT))
        equal(b.expect("verdict")["code"], 3)
        equal(d.wait(), 0)
    finally:
        os.kill(pid, signal.SIGKILL)
        status = os.waitpid(pid, 0)[1]
    equal(status, signal.SIGKILL)
    cause = step.result()["cause"]
    equal((cause["kind"], cause["rank"], cause["exit"]), ("exit", 1, 3))
    equal([r["state"] for r in step.load("status.json")["state"]["ranks"]], ["killed", "failed"])


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


def leave_well(*_):
    os._exit(0)


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


def lifeline_of(d):
    """The pid of the daemon's lifeline; None: it has none now."""
    with open(f"/proc/{d.process.pid}/task/{d.process.pid}/children", encoding="ascii") as f:
        pids = f.read().split()
    for pid in pids:
        with contextlib.suppress(OSError), open(f"/proc/{pid}/comm", encoding="ascii") as f:
            if f.read() == "plume-lifeline\n":
                return int(pid)
    return None


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
