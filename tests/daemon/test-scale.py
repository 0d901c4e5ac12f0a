#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""A step of 256 ranks on 32 nodes: no event is lost, also while clients are slow or hostile, and the
one rank that fails is the cause. bench/scale.py measures up to 10,000 ranks."""
import json
import os
import socket

import harness
from fake_nodes import Fleet, Watcher
from harness import equal

NODES, PER_NODE, STEPS = 32, 8, 6
WORLD = NODES * PER_NODE


def metrics_of(rank, step):
    return {"loss": rank + 1 / step, "rate": rank * 1000.0 + step}


def line_of(event):
    return event["rank"], event["step"], event["metrics"]


def expected():
    """Node 0's plrund samples its own ranks by the clock: of them only the last values are known."""
    return [(rank, step, metrics_of(rank, step))
            for rank in range(PER_NODE, WORLD) for step in range(1, STEPS + 1)]


def same(got, want):
    """As equal(), for long lists."""
    if got != want:
        lost = [x for x in want if x not in got][:3]
        raise AssertionError(f"{len(got)} of {len(want)}; not there: {lost}, but {[x for x in got if x not in want][:3]}")


def check_files(step, seen):
    """Each event has one line, in order, and the watcher has had each exactly once."""
    events, metrics = step.lines("events.jsonl"), step.lines("metrics.jsonl")
    for log in events, metrics:
        numbers = [e["seq"] for e in log]
        same(numbers, sorted(numbers))
    numbers = sorted(e["seq"] for e in events + metrics)
    same(numbers, list(range(1, len(numbers) + 1)))
    lines = sorted(line_of(e) for e in metrics if e["rank"] >= PER_NODE)
    same(lines, expected())
    mine = [e for e in seen if e["type"] == "metrics" and e["rank"] >= PER_NODE]
    same(sorted(map(line_of, mine)), expected())
    numbers = [e["seq"] for e in seen]
    same(numbers, list(range(numbers[0], numbers[0] + len(numbers))))
    doc = harness.replay(events + metrics)
    state = step.load("status.json")["state"]
    same(doc["ranks"], state["ranks"])
    equal((doc["nodes"], doc["state"]), (state["nodes"], state["state"]))
    equal(len(doc["ranks"]), WORLD)
    for rank, state in enumerate(doc["ranks"]):
        equal((state["rank"], state["step"], state["metrics"]), (rank, STEPS, metrics_of(rank, STEPS)))


def watched(step):
    fleet = Fleet(step, NODES, PER_NODE)
    seen = []
    watcher = fleet.add(Watcher(fleet, seen.append))
    fleet.until("a snapshot", lambda: watcher.snapshots)
    return fleet, seen


def until_seen(fleet, seen, kind, **fields):
    fleet.until(f"an event {kind} {fields}", lambda: any(
        e["type"] == kind and all(e.get(k) == v for k, v in fields.items()) for e in seen))


def finish(fleet, seen):
    fleet.end()
    until_seen(fleet, seen, "state", state="done")
    equal(fleet.daemon.wait(), 0)
    equal((fleet.step.result()["state"], fleet.step.result()["world_size"]), ("done", WORLD))


def test_no_event_is_lost(step):
    fleet, seen = watched(step)
    for i in range(1, STEPS + 1):
        fleet.report(i, metrics_of)
    finish(fleet, seen)
    check_files(step, seen)


def test_slow_and_hostile_clients_cost_no_event(step):
    """Watchers that read nothing, strangers that send anything, and clients that ask again and again."""
    fleet, seen = watched(step)
    for _ in range(10):
        deaf = fleet.add(Watcher(fleet, seen.append))
        fleet.until("a snapshot", lambda d=deaf: d.snapshots)
        fleet.selector.unregister(deaf.sock)
    strangers = []
    for i in range(40):
        sock = step.keep(socket.create_connection(("127.0.0.1", fleet.port)))
        sock.sendall(os.urandom(200) + b"\n" if i % 2 else b"{" * 200)
        strangers.append(sock)
    asking = fleet.add(Watcher(fleet, seen.append, ask="snapshot"))
    fleet.until("a snapshot", lambda: asking.snapshots)
    for i in range(1, STEPS + 1):
        for _ in range(4):
            asking.send(type="snapshot")
        fleet.report(i, metrics_of)
    fleet.until("all answers", lambda: asking.snapshots == 1 + 4 * STEPS)
    finish(fleet, seen)
    check_files(step, seen)


def test_one_of_many_fails(step):
    """The others end as collateral, though each says so at the same moment."""
    fleet, seen = watched(step)
    failed = WORLD - 3
    fleet.nodes[-1].exited(failed, 3 << 8, text="cannot go on")
    until_seen(fleet, seen, "cause")
    for rank in fleet.own:
        rank.expect("signal", signal=15)
        rank.exited(signal_number=15)
    fleet.until("the end", lambda: all(n.ended for n in fleet.nodes))
    equal(fleet.daemon.wait(), 0)
    result = step.result()
    cause = result["cause"]
    equal((result["state"], result["exit_code"], "others" in result), ("failed", 3, False))
    equal((cause["kind"], cause["rank"], cause["node"], cause["text"]),
          ("exit", failed, f"n{NODES - 1}", "cannot go on"))
    states = [r["state"] for r in step.load("status.json")["state"]["ranks"]]
    equal((states.count("killed"), states[failed]), (WORLD - 1, "failed"))


def test_all_fail_at_once(step):
    """Echoes of one failure, from every node: the earliest is the cause, and none is left out."""
    fleet, seen = watched(step)
    first = fleet.nodes[7].ranks[2]
    fleet.nodes[7].exited(first, 11)
    for rank in fleet.own:  # these are processes: on a slow machine the hub ends them before they end
        rank.exited(code=1)
    for node in fleet.nodes:
        for rank in sorted(node.running):
            node.exited(rank, 1 << 8, text="connection reset by peer")
    until_seen(fleet, seen, "cause")
    fleet.until("the end", lambda: all(n.ended for n in fleet.nodes))
    equal(fleet.daemon.wait(), 0)
    result = step.result()
    equal((result["cause"]["kind"], result["cause"]["rank"]), ("signal", first))
    ranks = step.load("status.json")["state"]["ranks"]
    equal([r["state"] for r in ranks], ["failed"] * WORLD)
    equal([r["rank"] for r in ranks if r.get("role") == "root"], [first])


def thinned_step(step, limit):
    """Reports until the file has been thinned several times; all that was reported, by rank."""
    step.env["PLUME_METRICS_MAX"] = f"{limit // 1024}K"
    fleet = Fleet(step, 4, 4)
    seen, newest = set(), [0]

    def note(event):
        seen.add((event.get("rank"), event.get("step")))
        if event["type"] == "metrics":
            newest[0] = event["seq"]

    watcher = fleet.add(Watcher(fleet, note))
    fleet.until("a snapshot", lambda: watcher.snapshots)
    path = step.trial("attempt-0", "metrics.jsonl")

    def in_file():
        """The hub writes by a thread, which thins, too."""
        with open(path, "rb") as f:
            lines = f.read().split(b"\n")
        return not newest[0] or (len(lines) > 1 and json.loads(lines[-2])["seq"] >= newest[0])

    sent, shrunk, before = {}, 0, 0

    def values(rank, number):
        sent.setdefault(rank, []).append((number, (number * 7919 + rank) % 10007))
        return {"v": sent[rank][-1][1], **({f"once{number}": 1} if number % 400 == 1 else {})}

    for number in range(1, 4000):
        fleet.report(number, values)
        fleet.until("the records", lambda n=number: all((r, n) in seen for r in range(4, 16)))
        fleet.until("the file", in_file)
        size = os.path.getsize(path)
        shrunk += size < before
        before = size
        if shrunk == 6:
            break
        # A record that comes while the file is being thinned finds no room if it has grown to the limit.
        fleet.until("room", lambda: os.path.getsize(path) <= limit * 7 // 8)
    equal(shrunk, 6)
    return fleet, sent


def test_metrics_are_thinned(step):
    """The file stays below its limit. The state, each rank's first, last, lowest and highest value are
    in it, and a sample of the rest from all of the time."""
    limit = 128 * 1024
    fleet, sent = thinned_step(step, limit)
    fleet.end()
    equal(fleet.daemon.wait(), 0)
    assert os.path.getsize(step.trial("attempt-0", "metrics.jsonl")) <= limit
    events, metrics = step.lines("events.jsonl"), step.lines("metrics.jsonl")
    state = step.load("status.json")["state"]
    same(harness.replay(events + metrics)["ranks"], state["ranks"])
    left_out = step.result().get("left_out", {"metrics": 0})
    equal(left_out["metrics"], 0)
    numbers = [e["seq"] for e in metrics]
    equal(numbers, sorted(set(numbers)))
    for rank in range(4, 16):
        mine = {e["step"]: e["metrics"]["v"] for e in metrics if e["rank"] == rank}
        everything = dict(sent[rank])
        equal({k: everything[k] for k in mine}, mine)
        values, steps = everything.values(), sorted(mine)
        equal((min(mine.values()), max(mine.values())), (min(values), max(values)))
        equal((steps[0], steps[-1]), (1, max(everything)))
        equal(state["ranks"][rank]["metrics"]["once1"], 1)
    equal(step.result()["thinned"] + len(metrics) + len(events), max(e["seq"] for e in events))
    equal(set(os.listdir(step.trial("attempt-0"))), {"events.jsonl", "metrics.jsonl"})


def test_a_limit_of_metrics_that_is_no_size(step):
    step.env["PLUME_METRICS_MAX"] = "many"
    rank = step.keep(step.start().rank("starter", 0))
    text = rank.expect("refused")["text"]
    assert "PLUME_METRICS_MAX" in text and "many" in text, text
    rank.close()


harness.main(globals())
