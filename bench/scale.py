#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What the hub costs with 8 to 10,000 ranks: one process plays the nodes and their ranks
(tests/daemon/fake_nodes.py). Processor time and bytes are those of node 0's plrund, in which the hub is;
they do not depend on other work of the machine, as the times do. Fails if an event is lost."""

import os
import subprocess
import sys
import time

from plbench import BUILD, SRC, Bench

os.environ["PLUME_BUILD"] = BUILD
sys.path.insert(0, os.path.join(SRC, "tests", "daemon"))
import fake_nodes  # noqa: E402
import harness  # noqa: E402

SECONDS = int(os.environ.get("PLUME_BENCH_SECONDS", "15"))
STEPS = 10  # per second, of node 0's ranks, whose daemon is real; others' daemons report once a second
WORLDS = ((2, 4), (12, 8), (128, 8), (1250, 8))
CLIENTS, PERIOD_S = 200, 2
WATCHED_STEPS = 200_000


def metrics(rank, step):
    return {"loss": 1 / step + rank * 1e-6, "lr": 0.001, "tokens_per_s": 1234.5 + rank}


def seconds_of_work(fleet, first, each=lambda second: None):
    """So many seconds of reports; share of a core in percent, and bytes that came in per second."""
    cpu, bytes_in = fleet.cpu_s(), sum(n.bytes_out for n in fleet.nodes)
    start = time.monotonic()
    for second in range(first, first + SECONDS):
        for node in fleet.nodes:
            node.report(second, metrics)
            fleet.pump(0)
        each(second)
        for i in range(STEPS):
            for rank, sock in enumerate(fleet.own):
                sock.send(type="metrics", step=second * STEPS + i, metrics=metrics(rank, second))
            due = start + second - first + (i + 1) / STEPS
            while time.monotonic() < due:
                fleet.pump(max(0, due - time.monotonic()))
    took = time.monotonic() - start
    return (100 * (fleet.cpu_s() - cpu) / SECONDS,
            (sum(n.bytes_out for n in fleet.nodes) - bytes_in) / took / 1024)


def fail_one(b, name, fleet):
    """Times from a node's word of a failure to its event and to its cause, as a watcher gets them."""
    events = []
    watcher = None
    while not watcher or watcher.closed:  # on a busy machine a greeting may take more than its two seconds
        watcher = fleet.add(fake_nodes.Watcher(fleet, lambda e: events.append((time.monotonic_ns(), e))))
        fleet.until("a watcher", lambda w=watcher: w.received > 1 or w.closed)
    node = fleet.nodes[-1]
    start = time.monotonic_ns()
    node.exited(node.ranks[-1], 3 << 8, text="cannot go on")
    fleet.until("the cause", lambda: any(e["type"] == "cause" for _, e in events))
    first = {}
    for at, event in events:
        first.setdefault(event["type"], (at - start) / 1e6)
    b.row(f"{name}: failure to event", [first["rank"]], unit="ms", below=10)
    b.row(f"{name}: failure to cause", [first["cause"]], unit="ms", below=150)
    for rank in fleet.own:
        rank.exited(signal_number=15)
    fleet.until("the end", lambda: all(n.ended for n in fleet.nodes))
    fleet.daemon.wait()
    return node.ranks[-1]


def check(step, fleet, seconds, failed):
    """Each report has its line, each rank its end, and the cause is the rank that failed."""
    lines = [(e["rank"], e["step"]) for e in step.lines("metrics.jsonl")]
    own = step.tasks_per_node
    want = {(rank, s) for node in fleet.nodes for rank in node.ranks for s in range(1, seconds + 1)}
    got = {line for line in lines if line[0] >= own}
    ranks = step.load("status.json")["state"]["ranks"]
    bad = [r["rank"] for r in ranks if r["state"] != ("failed" if r["rank"] == failed else "killed")]
    cause = step.result()["cause"]["rank"]
    if got != want or len(lines) - len(got) < own or bad or cause != failed:
        raise SystemExit(f"scale: {len(want - got)} events lost, cause {cause}, not {failed}; {bad[:9]}")


def ask_all(clients):
    def each(second):
        if second % PERIOD_S == 0:
            for c in clients:
                c.send(type="snapshot")
    return each


def one_world(b, nodes, per_node):
    world, step = nodes * per_node, harness.Step()
    name, failed = f"{world:,} ranks", True
    try:
        start = time.monotonic()
        fleet = fake_nodes.Fleet(step, nodes, per_node)
        b.row(f"{name}: all have the world", [time.monotonic() - start])
        b.row(f"{name}: the same, processor time", [fleet.cpu_s()])
        share, bytes_in = seconds_of_work(fleet, 1)
        goal = {"below": 10} if world == 1024 else {}
        b.row(f"{name}: processor time", [share], unit="% of a core", **goal)
        b.row(f"{name}: bytes from nodes", [bytes_in], unit="KiB/s")
        b.row(f"{name}: memory", [fleet.memory_mib()], unit="MiB RSS")
        seconds = SECONDS
        if world == 1024:
            clients = []
            for _ in range(CLIENTS):  # not all at once: places for greetings are limited
                client = fleet.add(fake_nodes.Watcher(fleet, lambda e: None, ask="snapshot"))
                fleet.until("a greeting", lambda c=client: c.open)
                clients.append(client)
            fleet.until("all clients", lambda: all(c.snapshots for c in clients))
            share, _ = seconds_of_work(fleet, SECONDS + 1, ask_all(clients))
            asked = 1 + sum((s + SECONDS + 1) % PERIOD_S == 0 for s in range(SECONDS))
            fleet.until("the answers", lambda: all(c.snapshots == asked or c.closed for c in clients))
            b.row(f"{name}, {CLIENTS} clients ask every {PERIOD_S} s: processor time", [share],
                  unit="% of a core")
            b.row(f"{name}, {CLIENTS} clients: memory", [fleet.memory_mib()], unit="MiB RSS")
            seconds = 2 * SECONDS
        rank = fail_one(b, name, fleet)
        check(step, fleet, seconds, rank)
        failed = False
    finally:
        step.finish(failed)


def watching(b):
    """What a rank of pltrain does in a step for those who look for hangs and slow ranks."""
    step, failed = harness.Step(), True
    try:
        d, (starter,) = harness.running(step, 1)
        program = [os.path.join(BUILD, "bench", "bench-watching"), str(WATCHED_STEPS)]
        us = [float(subprocess.run(program, env={"PLUME_SOCKET": d.socket}, stdout=subprocess.PIPE, check=True,
                                   text=True).stdout.split()[1]) / 1000 for _ in range(5)]
        b.row("a watched rank: processor time per step", us, unit="us", below=10)
        b.note(f"Watching takes 0.1 % of a step of {sorted(us)[2]:.1f} ms, and less of longer ones: 8 hooks, 4 "
               "collectives, and a report every ten steps.")
        starter.exited(0)
        starter.expect("verdict")
        d.wait()
        failed = False
    finally:
        step.finish(failed)


def main():
    with Bench("scale") as b:
        watching(b)
        for nodes, per_node in WORLDS:
            one_world(b, nodes, per_node)
        b.note(f"{SECONDS} s of reports, 3 metrics a rank; 8 ranks a node (the first row: 4). No event "
               "was lost. A decision waits 100 ms for an earlier failure from another node.")
        b.finish()


if __name__ == "__main__":
    main()
