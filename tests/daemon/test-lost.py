#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Several nodes: lost nodes, daemons and hubs, and ranks that never come."""
import os
import signal
import socket
import struct
import time

import harness
from harness import LIMIT, equal, wait_for
from started import leave_well, two_nodes, until_running


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
    """Its verdict was given before: plrun of the first node hears that the step has failed."""
    d, r = rank_0_alone(step)
    r.exited(0)
    equal(r.expect("verdict")["code"], 0)
    equal(d.control.expect("verdict")["code"], 1)
    d.control.expect_closed()
    equal(d.wait(), 0)
    equal((step.result()["cause"]["kind"], step.result()["cause"]["rank"]), ("launch", 1))


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
