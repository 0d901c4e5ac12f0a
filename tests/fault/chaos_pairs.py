# SPDX-License-Identifier: MIT
"""Two things at once: a rank's failure beside what happens to the runtime, or to another rank."""
import contextlib
import glob
import os
import signal
import subprocess
import time

from chaos_case import STAY, children, fault, has, need


@fault(ranks=2)
def two_fail(c):
    """A second rank fails some time after the first has been reaped: the first is the cause, on whichever node."""
    rank, code = c.pick(), c.random.randint(1, 125)
    other = c.pick(rank)
    c.plan_all("stand\n" + STAY)
    c.plan(rank, f"echo $$ >.pid; stand; everybody; mv .pid pid; exit {code}\n")
    c.plan(other, "stand; reached pid; while kill -0 $(<pid) 2>/dev/null; do sleep 0.01; done\n"
                  f"sleep {c.random.choice((0.05, 0.1, 0.3))}; exit {code % 125 + 1}\n")
    c.start()
    c.must_fail(None, kind="exit", rank=rank, exit=code)


@fault()
def fails_while_a_daemon_pauses(c):
    """A daemon is stopped for less than the silence that is borne, and a rank fails meanwhile."""
    node, rank, code = c.random.randrange(c.nodes), c.pick(), c.random.randint(1, 125)
    c.plan_all("stand\n" + STAY)
    c.plan(rank, f"stand; reached go; exit {code}\n")
    c.start()
    pid = c.daemon_of(c.ranks_there(), node)
    os.kill(pid, signal.SIGSTOP)
    c.let("go")
    time.sleep(c.random.uniform(0.1, 1.5))
    with contextlib.suppress(ProcessLookupError):  # the plugin lets it go on itself
        os.kill(pid, signal.SIGCONT)
    c.strike()
    c.must_fail(code, kind="exit", rank=rank, exit=code)


@fault()
def helpers_end(c):
    """One of a daemon's helpers is killed, or stopped; then a rank fails or none does: as without it."""
    node, rank, code = c.random.randrange(c.nodes), c.pick(), c.random.choice((0, 14))
    c.plan_all("stand; reached go; exit 0\n")
    c.plan(rank, f"stand; reached go; exit {code}\n")
    c.start()
    pid = c.daemon_of(c.ranks_there(), node)
    found = list(children(pid))
    need(len(found) >= 2, f"children of the daemon: {found}")
    os.kill(c.random.choice(found)[0], c.random.choice((signal.SIGKILL, signal.SIGSTOP)))
    c.pause()
    c.let("go")
    if code:
        c.must_fail(code, kind="exit", rank=rank, exit=code)
    else:
        c.must_be_done()


@fault(nodes=2)
def fails_as_a_daemon_dies(c):
    """A rank fails and another node's daemon is killed at about the same time: one of both is the cause."""
    node, code = c.random.randrange(1, c.nodes), c.random.randint(1, 125)
    rank = c.random.randrange(c.per_node)
    c.plan_all("stand\n" + STAY)
    c.plan(rank, f"stand; reached go; exit {code}\n")
    c.start()
    there = c.ranks_there()
    pid = c.daemon_of(there, node)
    first = c.random.random() < 0.5
    if first:
        c.let("go")
    c.pause(0.1)
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    c.let("go")
    c.end()
    need(c.code != 0, "exit code 0")
    c.files_hold(None)
    result = c.load("result.json")
    has(result, "state", "failed")
    cause = result["cause"]
    if cause["kind"] == "exit":
        need((cause["rank"], cause["exit"]) == (rank, code), f"cause {cause}")
    else:
        need(cause["kind"] == "runtime" and cause["node"] == there[node * c.per_node][2], f"cause {cause}")
    c.no_socket()


@fault(ways=("plrun",), nodes=2)
def daemon_killed_and_ranks_save(c):
    """All ranks have the whole grace to save, those of the daemon that is gone, too."""
    node, grace_s = c.random.randrange(c.nodes), 12
    c.env["PLUME_KILL_GRACE"] = str(grace_s)
    c.plan_all("trap 'sleep 6; : >saved.$RANK; exit 0' TERM; stand; while :; do sleep 0.1; done\n")
    c.start()
    pid = c.daemon_of(c.ranks_there(), node)
    c.strike(grace_s)
    os.kill(pid, signal.SIGKILL)
    c.end()
    need(c.code != 0, "exit code 0")
    saved = len(glob.glob(f"{c.folder}/saved.*"))
    need(saved == c.world, f"{saved} of {c.world} ranks have saved")
    result = c.load("result.json")
    need(result or node == 0, "no result")
    if result:
        has(result["cause"], "kind", "runtime")
    c.no_socket()
    c.in_time()


@fault(ways=("plrun",))
def daemon_killed_and_guard_stopped(c):
    """A plrun that somebody has stopped cannot see that its daemon is gone: the daemon's helper lets it go on."""
    rank = c.pick()
    c.plan_all("stand\n" + STAY)
    c.start()
    there = c.ranks_there()
    os.kill(there[rank][1], signal.SIGSTOP)
    c.pause()
    c.strike()
    os.kill(c.daemon_of(there, rank // c.per_node), signal.SIGKILL)
    c.end()
    need(c.code != 0, "exit code 0")
    cause = c.told()
    need(cause.get("kind") in ("runtime", "node"), f"plstat tells {cause}")
    c.in_time()


@fault(ranks=2)
def hub_killed_in_the_grace(c):
    """A rank has failed, others take no SIGTERM, and the hub is killed before their grace is over."""
    rank, code = c.pick(), c.random.randint(1, 125)
    c.plan_all("trap '' TERM; stand; while :; do sleep 1; done\n")
    c.plan(rank, f"stand; reached go; exit {code}\n")
    c.start()
    pid = c.daemon_of(c.ranks_there(), 0)
    c.let("go")
    c.pause(1.5)
    c.strike()
    os.kill(pid, signal.SIGKILL)
    c.must_lose_hub()
    if [e for e in c.events() if e["type"] == "cause"]:
        cause = c.told()
        need((cause.get("rank"), cause.get("exit")) == (rank, code), f"plstat tells {cause}")


@fault()
def killed_while_suspended(c):
    """A rank is killed while Slurm has suspended the job."""
    rank = c.pick()
    c.plan_all("stand\n" + STAY)
    c.start()
    there = c.ranks_there()
    subprocess.run(["scontrol", "suspend", c.job], check=True, timeout=30)
    c.pause()
    os.kill(there[rank][0], signal.SIGKILL)
    c.pause()
    subprocess.run(["scontrol", "resume", c.job], check=False, timeout=30, stderr=subprocess.DEVNULL)  # or it is over
    c.strike()
    c.must_fail(137, kind="signal", rank=rank, signal=9)


@fault()
def fails_and_is_cancelled(c):
    """A rank fails, and scancel of the job comes at about the same time."""
    rank, code = c.pick(), c.random.randint(1, 125)
    c.plan_all("stand\n" + STAY)
    c.plan(rank, f"stand; reached go; exit {code}\n")
    c.start()
    c.ranks_there()
    c.let("go")
    c.pause(0.3)
    c.strike()
    subprocess.run(["scancel", "-Q", c.job], check=False, timeout=30)
    c.end()
    need(c.code != 0, "exit code 0")
    result = c.load("result.json")
    need(result, "no result")
    has(result, "state", {"failed", "cancelled"})
    if result["state"] == "failed":
        has(result["cause"], "kind", "exit")
        has(result["cause"], "rank", rank)
        has(result["cause"], "exit", code)
    c.files_hold(None)


@fault(ways=("plrun",), ranks=2)
def late_starters(c):
    """Some ranks' plrun begins late, and one that is early has failed by then."""
    rank, code = c.pick(), c.random.randint(1, 125)
    (c.folder / "enter").write_text(
        f"#!/bin/bash\n[ $SLURM_PROCID = {rank} ] || sleep {c.random.choice((0.1, 0.5, 2))}\nexec \"$@\"\n",
        encoding="utf-8")
    (c.folder / "enter").chmod(0o755)
    c.wrap = ["./enter"]
    c.plan_all("stand\n" + STAY)
    c.plan(rank, f"stand; exit {code}\n")
    c.start()
    c.must_fail(code, kind="exit", rank=rank, exit=code)
