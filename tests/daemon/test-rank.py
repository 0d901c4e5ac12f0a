#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""One node: ranks, their world, their output, their reports and their ends."""
import base64
import contextlib
import errno
import json
import os
import select
import signal
import socket
import stat
import subprocess
import tempfile

import harness
from harness import LIMIT, equal, running, wait_for
from started import start_rank


def world_of(rank):
    message = rank.expect("world")
    return dict(e.split("=", 1) for e in message["env"]), \
        dict(e.split("=", 1) for e in message["defaults"])


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


def test_output_that_cannot_be_watched(step):
    """The rank does not run, and the cause has the reason: there is no file of its output."""
    d = step.start()
    r = step.keep(harness.Rank(d.socket))
    with tempfile.TemporaryFile() as f:  # epoll refuses it, as it refuses a pipe for want of memory
        r.hello("starter", 0, capture=[f.fileno()] * 4)
    assert "cannot watch the output" in r.expect("refused")["text"]
    r.close()
    step.things.remove(r)
    equal(d.wait(), 0)
    cause = step.result()["cause"]
    equal((cause["kind"], cause["exit"], cause.get("text", "")[:23]), ("exit", 1, "cannot watch the output"))


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


harness.main(globals(), at_once=4)
