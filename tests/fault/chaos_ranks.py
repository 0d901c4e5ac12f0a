# SPDX-License-Identifier: MIT
"""Faults of ranks, of Plume's own processes, and orders of Slurm's."""
import contextlib
import glob
import os
import pathlib
import shutil
import signal
import subprocess
import time

from chaos_case import COME_S, PLACE, SILENCE_S, STAY, fault, need, wait_for


@fault()
def none(c):
    c.plan_all("stand; everybody; exit 0\n")
    c.start()
    c.must_be_done()


@fault()
def exits(c):
    """One rank exits with a code, at any moment after its start; the others stay."""
    rank, code = c.pick(), c.random.randint(1, 125)
    c.plan_all("stand\n" + STAY)
    c.plan(rank, f"stand\n{c.random.choice(('', 'everybody'))}\nsleep {c.random.choice((0, 0, 0.1, 0.5))}\n"
                 f"echo reason >&2; exit {code}\n")
    c.start()
    c.must_fail(code, kind="exit", rank=rank, exit=code, text="reason")


@fault()
def signal_kills(c):
    """One rank ends by a signal that it, or somebody else, sends it."""
    rank = c.pick()
    number = c.random.choice((signal.SIGSEGV, signal.SIGABRT, signal.SIGKILL, signal.SIGBUS, signal.SIGFPE))
    c.plan_all("ulimit -c 0; stand\n" + STAY)
    c.start()
    there = c.ranks_there()
    c.pause()
    os.kill(there[rank][0], number)
    c.must_fail(128 + number, kind="signal", rank=rank, signal=int(number))


@fault()
def group_killed(c):
    """A rank kills its process group: Slurm starts the tasks of a node in one, and plrun stays in it."""
    rank = c.pick()
    c.plan_all("stand\n" + STAY)
    c.plan(rank, "stand; everybody; kill -KILL 0\n")
    c.start()
    there = c.ranks_there()
    killed = {r for r, place in enumerate(there) if place[2] == there[rank][2]}
    if c.way == "plrun":
        c.must_fail(137, kind="runtime", process="plrun", rank=killed, signal=9)
    else:
        c.must_fail(137, kind="signal", rank=killed, signal=9)


@fault(ranks=2)
def cascade(c):
    """The others complain as NCCL does, before the rank that failed has ended."""
    rank, code = c.pick(), c.random.randint(1, 125)
    c.plan_all("stand; reached gone; echo 'NCCL WARN: ncclRemoteError: Connection closed by remote peer' >&2; "
               "exit 1\n")
    c.plan(rank, f"stand; everybody; : >gone; sleep {c.random.choice((0, 0.02, 0.1, 0.3))}\n"
                 f"echo 'ValueError: bad data' >&2; exit {code}\n")
    c.start()
    c.must_fail(code, kind="exit", rank=rank, text="ValueError: bad data")


@fault(ranks=2)
def leaves_early(c):
    """A rank that has done its part is no fault."""
    rank = c.pick()
    c.plan_all("stand; everybody; sleep 0.5; exit 0\n")
    c.plan(rank, "stand; exit 0\n")
    c.start()
    c.must_be_done()


@fault(ranks=2)
def stubborn(c):
    """The other ranks take no SIGTERM: SIGKILL after the grace."""
    rank, code = c.pick(), c.random.randint(1, 125)
    c.plan_all("trap '' TERM; stand; while :; do sleep 1; done\n")
    c.plan(rank, f"stand; everybody; exit {code}\n")
    c.start()
    c.must_fail(code, kind="exit", rank=rank, exit=code)


@fault(ranks=2)
def saves(c):
    """The other ranks save and exit 0 when they get SIGTERM."""
    rank, code = c.pick(), c.random.randint(1, 125)
    c.plan_all("trap 'echo saved; exit 0' TERM; stand; while :; do sleep 0.1; done\n")
    c.plan(rank, f"stand; everybody; exit {code}\n")
    c.start()
    c.must_fail(code, kind="exit", rank=rank, exit=code)


# Processes in sessions of their own, which take no signal but SIGKILL.
LEAVE = "for i in 1 2 3; do setsid bash -c 'trap \"\" TERM HUP; while :; do sleep 1; done' & done\n"


@fault()
def grandchildren(c):
    """A rank that leaves processes in sessions of their own, and fails or not."""
    rank, code = c.pick(), c.random.choice((0, 0, 7))
    c.plan_all(LEAVE + "stand; everybody; exit 0\n")
    c.plan(rank, LEAVE + f"stand; everybody; exit {code}\n")
    c.start()
    if code:
        c.must_fail(code, kind="exit", rank=rank, exit=code)
    else:
        c.must_be_done()


@fault()
def much_output(c):
    """Output by the megabyte from all ranks, then a rank fails: its last line is there."""
    rank = c.pick()
    c.plan_all("stand; seq 100000; everybody\n" + STAY)
    c.plan(rank, "stand; seq 100000; seq 100000 >&2; everybody; echo the last line >&2; exit 9\n")
    c.start()
    c.must_fail(9, kind="exit", rank=rank, exit=9)
    text = c.load("result.json")["cause"]["text"]
    need(text.endswith("the last line"), f"text {text!r}")
    lines = (c.trial() / f"attempt-0/rank-{rank}.out").read_text().split()
    need(lines == [str(i) for i in range(1, 100001)], f"{len(lines)} lines of output")


@fault()
def metrics(c):
    """Reports by the thousand, garbage among them, are no fault."""
    c.plan_all("""stand; everybody
python3 - <<'PY'
import json, os, random, socket
for turn in range(3):
    s = socket.socket(socket.AF_UNIX)
    s.connect(os.environ["PLUME_SOCKET"])
    def say(**o):
        s.sendall(json.dumps(o).encode() + b"\\n")
    say(type="hello", proto="plume", major=1, minor=0, role="program", rank=int(os.environ["RANK"]),
        local_rank=int(os.environ["LOCAL_RANK"]))
    try:
        for i in range(2000):
            say(type="metrics", step=i, metrics={"loss": 1 / (i + 1)})
        say(type="exited", status=9, at_ns=1)
        s.sendall(bytes(random.randrange(256) for _ in range(2000)) + b"\\n")
    except OSError:
        pass
    s.close()
PY
exit 0
""")
    c.start()
    c.must_be_done()
    need(c.load("result.json")["metrics"].get("loss") is not None, "no metric")


@fault()
def ranks_pause(c):
    """All ranks are stopped, as by a debugger or a file system that hangs, and go on: no fault."""
    c.plan_all("stand; reached go; exit 0\n")
    c.start()
    there = c.ranks_there()
    for pid, _, _ in there:
        os.kill(pid, signal.SIGSTOP)
    time.sleep(c.random.choice((0.1, 1, SILENCE_S + 2)))
    for pid, _, _ in there:
        os.kill(pid, signal.SIGCONT)
    c.let("go")
    c.must_be_done()


@fault(ways=("plrun",))
def guard_killed(c):
    rank = c.pick()
    c.plan_all(c.random.choice(("", LEAVE)) + "stand\n" + STAY)
    c.start()
    there = c.ranks_there()
    c.pause()
    os.kill(there[rank][1], signal.SIGKILL)
    c.must_fail(137, kind="runtime", process="plrun", rank=rank, node=there[rank][2])


@fault(ways=("plrun",), ranks=2)
def guard_stopped(c):
    """A plrun that is stopped cannot end its rank; another rank fails."""
    rank = c.pick()
    other = c.pick(rank)
    c.plan_all("stand\n" + STAY)
    c.plan(other, "stand; reached go; exit 5\n")
    c.start()
    there = c.ranks_there()
    os.kill(there[rank][1], signal.SIGSTOP)
    c.let("go")
    c.end()
    need(c.code != 0, "exit code 0")
    c.files_hold(None)
    cause = c.load("result.json")["cause"]
    need((cause["kind"], cause["rank"], cause["exit"]) == ("exit", other, 5), f"cause {cause}")


# It saves at SIGTERM, and leaves well: the step's code must not.
POLITE = "trap 'exit 0' TERM; stand; while :; do sleep 0.1; done\n"


def stay(c):
    """All ranks stay, and do one or the other at SIGTERM."""
    c.plan_all(c.random.choice(("stand\n" + STAY, POLITE)))


@fault(nodes=2)
def daemon_killed(c):
    node = c.random.randrange(1, c.nodes)
    ranks = range(node * c.per_node, (node + 1) * c.per_node)
    stay(c)
    c.start()
    there = c.ranks_there()
    pid = c.daemon_of(there, node)
    c.pause()
    os.kill(pid, signal.SIGKILL)
    c.end()
    need(c.code != 0, "exit code 0")
    c.files_hold(None)
    cause = c.load("result.json")["cause"]
    need(cause["kind"] == "runtime" and cause["process"] == "plrund" and cause["rank"] in ranks
         and cause["node"] == there[ranks[0]][2], f"cause {cause}")
    c.no_socket()


@fault(nodes=2)
def daemon_stopped(c):
    """For longer than the silence that is borne."""
    node = c.random.randrange(1, c.nodes)
    ranks = range(node * c.per_node, (node + 1) * c.per_node)
    stay(c)
    c.start()
    there = c.ranks_there()
    os.kill(c.daemon_of(there, node), signal.SIGSTOP)
    c.end()
    need(c.code != 0, "exit code 0")
    c.files_hold(None)
    cause = c.load("result.json")["cause"]
    need(cause["kind"] == "runtime" and cause["rank"] in ranks, f"cause {cause}")


@fault()
def daemon_pauses(c):
    """Stopped for less than the silence that is borne, the hub's too: no fault."""
    node = c.random.randrange(c.nodes)
    c.plan_all("stand; reached go; exit 0\n")
    c.start()
    pid = c.daemon_of(c.ranks_there(), node)
    os.kill(pid, signal.SIGSTOP)
    time.sleep(c.random.uniform(0.1, 1.5))
    if c.random.random() < 0.5:
        c.let("go")  # ranks end meanwhile
    os.kill(pid, signal.SIGCONT)
    c.let("go")
    c.must_be_done()


@fault()
def hub_killed(c):
    stay(c)
    c.start()
    pid = c.daemon_of(c.ranks_there(), 0)
    c.pause()
    os.kill(pid, signal.SIGKILL)
    c.must_lose_hub()
    cause = c.told()  # by the log: status.json is older, and may still have no rank that runs
    need(cause.get("kind") in ("runtime", "node", "signal") and "rank" not in cause, f"plstat tells {cause}")


@fault()
def suspended(c):
    """The whole job, by Slurm, while it runs or before all ranks stand."""
    c.plan_all("stand; reached go; exit 0\n")
    c.start()
    if c.random.random() < 0.5:
        c.ranks_there()
    else:
        wait_for("the first rank", COME_S, lambda: glob.glob(f"{c.folder}/at.*"))
    job = pathlib.Path(glob.glob(f"{c.folder}/at.*")[0]).read_text().split()[3]
    subprocess.run(["scontrol", "suspend", job], check=True, timeout=30)
    time.sleep(c.random.choice((0.2, 1, SILENCE_S + 2)))
    subprocess.run(["scontrol", "resume", job], check=True, timeout=30)
    c.let("go")
    c.ranks_there()
    c.must_be_done()


def signal_step(c):
    """scancel also fails where a rank has ended by the signal before its answer came."""
    subprocess.run(["scancel", "-Q", "-s", "TERM", f"{c.job}.0"], check=False, timeout=30)


@fault()
def step_signalled_and_survives(c):
    """SIGTERM to the step by scancel -s: all ranks go on and exit 0."""
    c.plan_all("trap ': >got.$RANK' TERM; stand; until [ -e go ]; do sleep 0.05; done; exit 0\n")
    c.start()
    c.ranks_there()
    c.pause()
    signal_step(c)
    wait_for("the signal", 30, lambda: len(glob.glob(f"{c.folder}/got.*")) == c.world)
    c.let("go")
    c.must_be_done()


@fault(ranks=2)
def step_signalled(c):
    """SIGTERM to the step by scancel -s, and the ranks end by it. Slurm lets the job run on."""
    c.plan_all("stand\n" + STAY)
    c.start()
    c.ranks_there()
    c.pause()
    signal_step(c)
    c.must_fail(None, state="cancelled", kind="cancelled")


@fault(ways=("plugin",))
def stopped_as_its_tasks_end(c):
    """A rank has stopped a daemon, and all ranks of that node leave well: nobody has failed."""
    node = c.random.randrange(c.nodes)
    c.plan_all("stand; reached go; exit 0\n")
    c.start()
    os.kill(c.daemon_of(c.ranks_there(), node), signal.SIGSTOP)
    c.let("go")
    c.must_be_done()


@fault()
def cancelled(c):
    """scancel of the job: a result, if the daemons got to it, says so; nothing is left in any case."""
    obey = c.random.choice(("", "trap 'exit 0' TERM", "trap 'exit 9' TERM"))
    c.plan_all(f"{obey}\nstand\ntail -f /dev/null &\nwait $!\nwait\n" if obey else "stand\n" + STAY)
    c.start()
    c.ranks_there()
    c.pause()
    subprocess.run(["scancel", c.job], check=True, timeout=30)
    c.end()
    need(c.code != 0 or "exit 0" in obey, "exit code 0")
    result = c.load("result.json")
    if result and obey:
        need(result["state"] == "cancelled", result)
    elif result:
        need(result["state"] in ("cancelled", "failed"), result)
        need(result["state"] == "cancelled" or result["cause"]["kind"] == "signal", result)


@fault(ways=("plrun",))
def folder_removed(c):
    """The run folder goes while the ranks run, then one fails: exit code and stderr still say it."""
    rank = c.pick()
    c.plan_all("stand\n" + STAY)
    c.plan(rank, "stand; reached go; exit 7\n")
    c.start()
    c.ranks_there()
    shutil.rmtree(f"{c.folder}/plume", ignore_errors=True)
    c.let("go")
    c.end()
    need(c.code == 7, f"exit code {c.code}, not 7")
    need(f"rank {rank} on" in c.err() and "exit code 7" in c.err(), f"stderr: {c.err()}")


@fault()
def strangers_at_the_hub(c):
    """Garbage, silence and half greetings at the hub's port are no fault."""
    c.plan_all("stand; reached go; exit 0\n")
    c.start()
    c.ranks_there()
    hub = wait_for("status.json", 20, lambda: (c.load("status.json") or {}).get("hub"))
    open_ones = []
    import socket  # pylint: disable=import-outside-toplevel
    for i in range(40):
        with contextlib.suppress(OSError):
            s = socket.create_connection((hub["host"], hub["port"]), 5)
            open_ones.append(s)
            if i % 3 == 0:
                s.sendall(c.random.randbytes(c.random.randrange(1, 5000)))
            elif i % 3 == 1:
                s.sendall(b'{"type":"hello","proto":"plume","major":1,')
    c.let("go")
    c.must_be_done()
    for s in open_ones:
        s.close()


@fault()
def controller_stops(c):
    """slurmctld is stopped for a while: the ranks, and their verdict, do not depend on it."""
    pid = PLACE.pid_of("slurmctld")
    rank = c.pick()
    c.plan_all("stand\n" + STAY)
    c.plan(rank, "stand; reached go; exit 4\n")
    c.start()
    c.ranks_there()
    os.kill(pid, signal.SIGSTOP)
    try:
        c.let("go")
        time.sleep(c.random.uniform(0.2, 2))
    finally:
        os.kill(pid, signal.SIGCONT)
    c.must_fail(4, kind="exit", rank=rank, exit=4)
