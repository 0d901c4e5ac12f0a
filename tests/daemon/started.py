# SPDX-License-Identifier: MIT
"""Steps that have begun: ranks and nodes that run."""
import os


def start_rank(step, daemon, rank=0, local_rank=0, **more):
    """A rank that has got its world and runs."""
    r = step.keep(daemon.rank("starter", rank, local_rank=local_rank, **more))
    r.expect("world")
    r.send(type="spawned", pid=os.getpid())
    return r


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


def until_running(step):
    """Waits until the hub knows of all ranks that they run."""
    client = step.hub()
    client.send(type="watch")
    doc = client.expect("snapshot")["state"]
    while not all(r["state"] == "running" for r in doc["ranks"]):
        client.expect("event")
        client.send(type="snapshot")
        doc = client.expect("snapshot")["state"]


def leave_well(*_):
    """What a task does at SIGTERM that saves, and is content."""
    os._exit(0)
