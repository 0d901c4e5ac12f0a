# SPDX-License-Identifier: MIT
"""Faults of what is around a step: nodes, networks, disks, clocks, limits, and Slurm's other orders."""
import contextlib
import glob
import json
import os
import pathlib
import shutil
import signal
import socket
import struct
import subprocess
import threading
import time

from chaos_case import (COME_S, GRACE_S, LEFT_S, PLACE, PLAIN_UID, SILENCE_S, SOURCE, STAY, Wrong, fault,
                        has, load, need, sockets, wait_for)

BUILD = pathlib.Path(os.environ.get("PLUME_BUILD", SOURCE / "build"))


def ranks_of(c, node):
    return range(node * c.per_node, (node + 1) * c.per_node)


# ---- nodes ----

def stepd_of(there, c, node):
    """The pid of slurmstepd: the parent of the node's tasks."""
    pid = there[ranks_of(c, node)[0]][1]  # plrun, or slurmstepd itself
    if c.way == "plugin":
        return pid
    with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as f:
        return int(f.read().rsplit(")", 1)[1].split()[1])


def scancel_when_decided(c):
    """Slurm itself takes minutes to miss what it started, and srun waits for it."""
    wait_for("the result", GRACE_S + SILENCE_S + c.late_s + 10, lambda: c.load("result.json"))
    wait_for("the ranks' end", LEFT_S, lambda: not c.left())
    subprocess.run(["scancel", "-Q", c.job], check=False, timeout=30)
    c.strike(10)


@fault(nodes=2)
def node_dies(c):
    """All processes of the step on a node, at once, in any order."""
    node = c.random.randrange(1, c.nodes)
    c.plan_all("stand\n" + STAY)
    c.start()
    there = c.ranks_there()
    pids = [c.daemon_of(there, node), stepd_of(there, c, node)]
    for rank in ranks_of(c, node):
        pids += there[rank][:1] + (there[rank][1:2] if c.way == "plrun" else ())
    c.random.shuffle(pids)
    c.pause()
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    scancel_when_decided(c)
    c.slurm_killed_all()  # its socket
    c.must_fail(None, kind={"runtime", "signal"}, rank=ranks_of(c, node), node=there[ranks_of(c, node)[0]][2])


@fault(nodes=2)
def stepd_killed(c):
    """slurmstepd alone: the ranks of its node are no ghosts."""
    node = c.random.randrange(1, c.nodes)
    c.plan_all("stand\n" + STAY)
    c.start()
    there = c.ranks_there()
    c.pause()
    os.kill(stepd_of(there, c, node), signal.SIGKILL)
    scancel_when_decided(c)
    c.must_fail(None, kind="runtime", rank=ranks_of(c, node), node=there[ranks_of(c, node)[0]][2])


def start_time(pid):
    with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as f:
        return f.read().rsplit(")", 1)[1].split()[19]


def restart_slurmd(node, meanwhile):
    """kill -9, and the same command again, on the same host."""
    old = PLACE.pid_of(node)
    argv = pathlib.Path(f"/proc/{old}/cmdline").read_bytes().split(b"\0")[:-1]
    env = dict(e.split(b"=", 1) for e in pathlib.Path(f"/proc/{old}/environ").read_bytes().split(b"\0") if e)
    host = [os.open(f"/proc/{old}/ns/{name}", os.O_RDONLY) for name in ("net", "uts", "mnt")]
    os.kill(old, signal.SIGKILL)
    meanwhile()
    if "hosts" in PLACE.has:
        argv = ["nsenter", *(f"--{name}=/proc/self/fd/{fd}" for name, fd in zip(("net", "uts", "mount"), host)),
                "--", *argv]
    with open(PLACE.folder / f"log/{node}.log", "ab") as log:
        new = subprocess.Popen(argv, cwd="/", env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                               start_new_session=True, pass_fds=host)
    threading.Thread(target=new.wait, daemon=True).start()
    for fd in host:
        os.close(fd)
    with PLACE.lock:
        path = PLACE.folder / "pids"
        lines = [f"{node} {new.pid} {start_time(new.pid)}" if line.split()[0] == node else line
                 for line in path.read_text().splitlines()]
        new_path = path.with_name("pids.new")  # others read it meanwhile
        new_path.write_text("\n".join(lines) + "\n")
        new_path.rename(path)


@fault(alone=True, needs=("own",))
def slurmd_restarts(c):
    """slurmd is killed and comes again: steps do not depend on it."""
    rank, code = c.pick(), c.random.choice((0, 6))
    c.plan_all("stand; reached go; exit 0\n")
    c.plan(rank, f"stand; reached go; exit {code}\n")
    c.start()
    there = c.ranks_there()
    early = c.random.random() < 0.5

    def meanwhile():
        if early:
            c.let("go")
        c.pause()
    restart_slurmd(there[rank][2], meanwhile)
    c.let("go")
    if code:
        c.must_fail(code, kind="exit", rank=rank, exit=code)
    else:
        c.must_be_done()


@fault(alone=True, needs=("own", "root"))
def node_drained(c):
    """By an operator or a health check, while the step runs: it ends as it would otherwise."""
    rank, code = c.pick(), c.random.choice((0, 15))
    c.plan_all("stand; reached go; exit 0\n")
    c.plan(rank, f"stand; reached go; exit {code}\n")
    c.start()
    node = c.ranks_there()[c.pick()][2]

    def set_state(*words):
        subprocess.run(["scontrol", "update", f"NodeName={node}", *words], check=True, timeout=30)
    set_state("State=DRAIN", "Reason=chaos")
    c.undo.callback(set_state, "State=RESUME")
    c.pause()
    c.let("go")
    if code:
        c.must_fail(code, kind="exit", rank=rank, exit=code)
    else:
        c.must_be_done()


# ---- networks of hosts that are apart ----

def in_net_of(node, *argv):
    subprocess.run(["nsenter", "-t", str(PLACE.pid_of(node)), "-n", *argv], check=True, timeout=30,
                   stdout=subprocess.DEVNULL)


def cable(node, state):
    bridge = (PLACE.folder / "bridge").read_text().strip()
    index = int(PLACE.address(node).rsplit(".", 1)[1]) - 10
    subprocess.run(["ip", "link", "set", f"{bridge}-{index}", state], check=True, timeout=30)


def deaf(undo, node, to):
    """No packet from this node reaches the other one any more, until undo; both reach Slurm."""
    route = ["ip", "route", "add", "blackhole", PLACE.address(to)]
    in_net_of(node, *route)
    undo.callback(in_net_of, node, *route[:2], "del", *route[3:])


def must_lose_node(c, nodes):
    """nodes: one of these by name; where the host is silent, the node has failed."""
    c.must_fail(None, state="node-failed", kind="node", node=nodes, confidence="inferred")


@fault(nodes=2, alone=True, needs=("own", "hosts"))
def cable_pulled(c):
    """A node that Slurm does not reach either. Its ranks are ended by its own daemon."""
    node = c.random.randrange(c.nodes)
    c.plan_all("stand\n" + STAY)
    c.start()
    there = c.ranks_there()
    names = {t[2] for t in there}
    cut = there[ranks_of(c, node)[0]][2]
    c.pause()
    begun = time.monotonic()
    cable(cut, "down")
    plug = c.undo.enter_context(contextlib.ExitStack())
    plug.callback(cable, cut, "up")
    limit = SILENCE_S + GRACE_S + c.late_s
    wait_for("the result", limit, lambda: c.load("result.json"))
    wait_for("the end of all ranks, on both sides", limit - (time.monotonic() - begun),
             lambda: not any(os.path.exists(f"/proc/{t[0]}") for t in there))
    plug.close()
    c.strike(30)  # Slurm talks to it again
    must_lose_node(c, names - {there[0][2]} if node == 0 else {cut})


@fault(nodes=2, alone=True, needs=("own", "hosts"))
def parted(c):
    """The hub and a node do not hear each other, in one direction or in both; Slurm hears both."""
    node = c.random.randrange(1, c.nodes)
    way = c.random.choice(("to", "from", "both"))
    c.plan_all("stand\n" + STAY)
    c.start()
    there = c.ranks_there()
    hub, other = there[0][2], there[ranks_of(c, node)[0]][2]
    c.pause()
    c.strike(SILENCE_S)
    if way != "from":
        deaf(c.undo, other, hub)
    if way != "to":
        deaf(c.undo, hub, other)
    must_lose_node(c, {other})


@fault(nodes=2, alone=True, needs=("own", "hosts"))
def parted_for_a_while(c):
    """Again and again, for less than the silence that is borne: no fault."""
    node = c.random.randrange(1, c.nodes)
    c.plan_all("stand; reached go; exit 0\n")
    c.start()
    there = c.ranks_there()
    hub, other = there[0][2], there[ranks_of(c, node)[0]][2]
    cuts = c.undo.enter_context(contextlib.ExitStack())
    for i in range(3):
        deaf(cuts, *c.random.choice(((hub, other), (other, hub))))
        c.pause(0.8)
        if i == 2 and c.random.random() < 0.5:
            c.let("go")
        cuts.close()
        time.sleep(2)  # TCP waits twice as long after each loss, and is heard again by then
    c.let("go")
    c.must_be_done()
    need(not [e for e in c.events() if e.get("state") == "lost"], "a node was lost for a while")


@fault(nodes=2, alone=True, needs=("own", "hosts"))
def narrow_link(c):
    """A node's link drops packets for want of room, and what arrives is late."""
    node = c.random.randrange(c.nodes)
    rank, code = c.pick(), c.random.choice((0, 8))
    c.plan_all("stand; reached go; seq 2000; exit 0\n")
    c.plan(rank, f"stand; reached go; seq 2000; exit {code}\n")
    c.start()
    there = c.ranks_there()
    name = there[ranks_of(c, node)[0]][2]
    rate = c.random.choice(("128kbit", "256kbit", "1mbit"))
    in_net_of(name, "tc", "qdisc", "add", "dev", "eth0", "root", "tbf", "rate", rate, "burst", "3000",
              "limit", "6000")
    c.undo.callback(in_net_of, name, "tc", "qdisc", "del", "dev", "eth0", "root")
    c.let("go")
    c.took = None
    c.late_s += 10
    if code:
        c.must_fail(code, kind="exit", rank=rank, exit=code)
    else:
        c.must_be_done()


# ---- a relay between the hub and the other nodes, anywhere ----

class Relay:
    """What nodes say to the hub and hear of it goes through here, in the way of .mode."""

    def __init__(self, c):
        self.c, self.mode, self.open = c, "pass", []
        self.listener = socket.create_server(("0.0.0.0", 0))
        self.port = self.listener.getsockname()[1]
        c.undo.callback(self.close)
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        with contextlib.suppress(OSError):
            while True:
                node, _ = self.listener.accept()
                try:
                    name = (self.c.folder / "hubnode").read_text().strip()
                    host = PLACE.address(name) if "hosts" in PLACE.has else "127.0.0.1"
                    hub = socket.create_connection((host, self.c.hub_port), 2)
                    hub.settimeout(None)
                except OSError:
                    node.close()
                    continue
                for s in (node, hub):
                    s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self.open.append((node, hub))
                for pair in ((node, hub), (hub, node)):
                    threading.Thread(target=self.pump, args=pair, daemon=True).start()

    def pump(self, source, to):
        try:
            while data := source.recv(65536):
                if self.mode == "late":
                    time.sleep(0.5)
                elif self.mode == "bits":
                    data = data[:-2] + bytes([data[-2] ^ 1]) + data[-1:] if len(data) > 1 else data
                while self.mode == "hole":
                    time.sleep(0.05)
                if self.mode == "pieces":
                    for i in range(0, len(data), 7):
                        to.sendall(data[i:i + 7])
                    continue
                to.sendall(data)
        except OSError:
            pass
        finally:
            for s in (source, to):
                with contextlib.suppress(OSError):
                    s.shutdown(socket.SHUT_RDWR)

    def tear(self, how):
        """All connections end: "reset", or in the middle of a line."""
        for pair in self.open:
            for s in pair:
                with contextlib.suppress(OSError):
                    if how == "reset":
                        s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    else:
                        s.sendall(b"0123456789abcdef")
                    s.shutdown(socket.SHUT_RDWR)
                    s.close()

    def close(self):
        self.mode = "pass"
        self.listener.close()
        self.tear("reset")


def free_port():
    with socket.socket() as s:
        s.bind(("", 0))
        return s.getsockname()[1]


def relayed(c):
    """The step's nodes find the relay where srun is, and take it for their hub."""
    c.hub_port = free_port()
    relay = Relay(c)
    (c.folder / "enter").write_text(f"""#!/bin/bash
if [ "$SLURM_NODEID" = 0 ]; then
    [ "$SLURM_LOCALID" != 0 ] || {{ echo "$SLURMD_NODENAME" >.hub; mv .hub hubnode; }}
    export PLUME_HUB_PORTS={c.hub_port}-{c.hub_port}
else
    export PLUME_HUB_PORTS={relay.port}-{relay.port}
fi
exec "$@"
""", encoding="utf-8")
    (c.folder / "enter").chmod(0o755)
    c.wrap = ["./enter"]
    return relay


@fault(ways=("plrun",), nodes=2)
def relay_is_slow(c):
    """Half a second each way, or lines in pieces, from the first byte or later: no state changes but a rank's own."""
    rank, code = c.pick(), c.random.choice((0, 11))
    c.plan_all("stand; reached go; exit 0\n")
    c.plan(rank, f"stand; reached go; exit {code}\n")
    relay = relayed(c)
    mode, early = c.random.choice(("late", "pieces")), c.random.random() < 0.5
    if early:
        relay.mode = mode
    c.start()
    c.ranks_there()
    relay.mode = mode
    c.pause()
    c.let("go")
    c.late_s += 5
    if code:
        c.must_fail(code, kind="exit", rank=rank, exit=code)
    else:
        c.must_be_done()
    need(relay.open, "nobody came by the relay")
    need(not [e for e in c.events() if e.get("state") == "lost"], "something was lost")


@fault(ways=("plrun",), nodes=2)
def relay_breaks(c):
    """Connections that are reset, end in a line, deliver other bits, or none: each node is lost, once."""
    c.plan_all("stand\n" + STAY)
    relay = relayed(c)
    how = c.random.choice(("reset", "middle", "bits", "hole"))
    c.start()
    there = c.ranks_there()
    c.pause()
    c.strike(SILENCE_S + 1)
    if how in ("reset", "middle"):
        relay.tear(how)
    else:
        relay.mode = how
    others = {t[2] for t in there} - {there[0][2]}
    c.must_fail(None, state={"failed", "node-failed"}, kind={"runtime", "node"}, node=others,
                rank=range(c.per_node, c.world), confidence="inferred")


# ---- disks ----

def on_a_disk(c):
    """The run folders lie on a small file system."""
    disk = PLACE.disks.get(timeout=300)

    def give_back():
        for path in disk.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        PLACE.disks.put(disk)
    c.undo.callback(give_back)
    c.home = disk / "plume"
    c.home.mkdir(mode=0o700)
    os.chown(c.home, PLAIN_UID, PLAIN_UID)
    return disk


def fill(disk, spare):
    """All but so many bytes, or all files that it may have."""
    fd = os.open(disk / "filler", os.O_WRONLY | os.O_CREAT, 0o600)
    with contextlib.suppress(OSError):
        while True:
            os.write(fd, bytes(4096))
    os.close(fd)
    with contextlib.suppress(OSError):
        os.truncate(disk / "filler", max(0, os.path.getsize(disk / "filler") - spare))


def fill_files(disk):
    (disk / "many").mkdir(exist_ok=True)
    with contextlib.suppress(OSError):
        for i in range(10**6):
            (disk / f"many/{i}").touch()


def whole_lines(c):
    for path in c.home.glob("steps/*/trial-0000/attempt-0/*.jsonl"):
        data = path.read_bytes()
        need(not data or data.endswith(b"\n"), f"{path.name} ends in half a line")
        for line in data.splitlines():
            load_line(path, line)


def load_line(path, line):
    try:
        json.loads(line)
    except ValueError:
        raise Wrong(f"{path.name}: a torn line: {line[:80]}") from None


@fault(needs=("disks",))
def disk_fills(c):
    """While the ranks run; for good or for a time. The verdict is what it would be otherwise."""
    rank, code = c.pick(), c.random.choice((0, 0, 21))
    disk = on_a_disk(c)
    talk = ("for i in {1..300}; do echo \"line $i of the output, and some more of it\"; "
            "echo \"loss=$i\" >&2; done\n")
    c.plan_all("stand; reached go\n" + talk + "exit 0\n")
    c.plan(rank, "stand; reached go\n" + talk + f"echo its reason >&2; exit {code}\n")
    c.start()
    c.ranks_there()
    wait_for("result.json", COME_S, lambda: glob.glob(f"{c.home}/steps/*/trial-0000/attempt-0/events.jsonl"))
    if c.random.random() < 0.3:
        fill_files(disk)
    else:
        fill(disk, c.random.choice((0, 0, 5000, 20000)))
    c.pause(2)
    if c.random.random() < 0.3:  # room again
        (disk / "filler").unlink(missing_ok=True)
    c.let("go")
    c.end()
    need(c.way == "plugin" or c.code == code, f"exit code {c.code}, not {code}")
    need((c.code == 0) == (code == 0), f"exit code {c.code}")
    result = c.load("result.json")
    need(result, "no result.json")
    has(result, "state", "failed" if code else "done")
    if code:
        has(result["cause"], "rank", rank)
        has(result["cause"], "exit", code)
    whole_lines(c)
    c.no_temporary_file()
    c.no_socket()
    c.in_time()


@fault(needs=("disks",))
def disk_is_full(c):
    """Before the step begins, all of it or nearly: it starts or it does not, and says so."""
    disk = on_a_disk(c)
    c.plan_all("stand; : >did.$RANK; exit 0\n")
    fill(disk, c.random.choice((0, 4096, 8192, 16384, 65536, 200000)))
    c.start()
    c.end()
    did = len(glob.glob(f"{c.folder}/did.*"))
    result = c.load("result.json")
    if result and result.get("state") == "done":
        need(c.code == 0, f"exit code {c.code}, but done")
    need(c.code != 0 or did == c.world, f"exit code 0, and {did} of {c.world} ranks ran")
    need(c.code == 0 or c.err().strip(), "not a word on stderr")
    whole_lines(c)
    need(not sockets_of(c), f"sockets: {sockets_of(c)}")


def sockets_of(c):
    return sockets([c.job]) if c.job else []


@fault(needs=("root",))
def folder_read_only(c):
    """The run folder takes no new file, then a rank fails or none does."""
    rank, code = c.pick(), c.random.choice((0, 7))
    c.plan_all("stand; reached go; exit 0\n")
    c.plan(rank, f"stand; reached go; exit {code}\n")
    c.start()
    c.ranks_there()
    trial = wait_for("the run folder", COME_S, c.trial)
    wait_for("status.json", COME_S, lambda: c.load("status.json"))
    for path in (trial, trial / "attempt-0"):
        path.chmod(0o500)
    c.let("go")
    c.end()
    need(c.way == "plugin" or c.code == code, f"exit code {c.code}, not {code}")
    need((c.code == 0) == (code == 0), f"exit code {c.code}")
    if c.way == "plrun":
        need("result.json" in c.err(), f"stderr: {c.err()}")
        need(not code or f"rank {rank} on" in c.err() and f"exit code {code}" in c.err(), f"stderr: {c.err()}")
    whole_lines(c)
    c.no_socket()
    c.in_time()


# ---- clocks ----

@fault(ways=("plrun",))
def clocks_jump(c):
    """Each node's wall clock is wrong, and one jumps while the ranks run: no verdict depends on it."""
    library = BUILD / "tests/fakes/libfake-clock.so"
    need(library.exists(), f"no {library}")
    clocks = []
    for node in range(c.nodes):
        path = c.folder / f"clock.{node}"
        path.write_bytes(struct.pack("q", int(c.random.uniform(-90, 90) * 1e9)))
        clocks.append(path)
    rank, code = c.pick(), c.random.choice((0, 12))
    c.plan_all("unset LD_PRELOAD; stand; reached go; exit 0\n")
    c.plan(rank, f"unset LD_PRELOAD; stand; reached go; exit {code}\n")
    c.wrap = ["env", f"LD_PRELOAD={library}", f"FAKE_CLOCK={c.folder}/clock.%n"]
    began = time.monotonic()
    c.start()
    c.ranks_there()
    for _ in range(2):
        with open(c.random.choice(clocks), "r+b") as f:
            f.write(struct.pack("q", int(c.random.choice((-3600, 3600, -86400 * 365, 86400 * 365)) * 1e9)))
        c.pause(1)
    c.strike()
    c.let("go")
    if code:
        c.must_fail(code, kind="exit", rank=rank, exit=code)
    else:
        c.must_be_done()
    result = c.load("result.json")
    took = result["time"] - result["started"]
    need(0 <= took <= time.monotonic() - began, f"the result has {took} s from start to end")
    status = c.load("status.json")
    need(0 <= status["time"] - result["started"] <= took + 60 and status["written"], f"status.json: {status}")
    times = [e["t"] for e in c.events() if "t" in e]
    need(times == sorted(times), f"times of events go back: {times}")


# ---- limits ----

def threads_of_user():
    n = 0
    for entry in glob.glob("/proc/[0-9]*"):
        with contextlib.suppress(OSError):
            if os.stat(entry).st_uid == PLAIN_UID:
                n += len(os.listdir(f"{entry}/task"))
    return n


@fault(ways=("plrun",), needs=("root",))
def few_processes(c):
    """fork() fails sooner or later, on all nodes."""
    limit = threads_of_user() + c.random.randint(1, 12 * c.nodes)
    c.plan_all("exec 3>did.$RANK; exit 0\n")
    c.wrap = ["prlimit", f"--nproc={limit}:{limit}"]
    c.env["PLUME_LAUNCH_TIMEOUT"] = "10"
    c.start()
    wait_for("srun's end", COME_S, lambda: c.srun.poll() is not None)
    c.must_agree(len(glob.glob(f"{c.folder}/did.*")) == c.world)


@fault(ways=("plrun",))
def few_files(c):
    """open() fails sooner or later, on all nodes."""
    limit = c.random.randint(4, 40)
    c.plan_all("exec 3>did.$RANK; exit 0\n")
    c.wrap = ["prlimit", f"--nofile={limit}:{limit}"]
    c.env["PLUME_LAUNCH_TIMEOUT"] = "10"
    c.start()
    wait_for("srun's end", COME_S, lambda: c.srun.poll() is not None)
    c.must_agree(len(glob.glob(f"{c.folder}/did.*")) == c.world)


# ---- Slurm's other orders ----

class Batch:
    """The step is in a batch job, so that Slurm can start it again."""

    def __init__(self, c, *options):
        self.c = c
        (c.folder / "job").write_text(
            "#!/bin/bash\n"
            f"srun -Q {' '.join(c.size())} {' '.join(c.what())} 2>>err\n"
            "echo $? >code.${SLURM_RESTART_COUNT:-0}\n", encoding="utf-8")
        argv = c.as_user(["sbatch", "--parsable", "--requeue", "--exclusive", "-J", c.folder.name, *c.size(), *c.where(),
                          "-o", f"{c.folder}/out", "--open-mode=append", *options, f"{c.folder}/job"])
        said = subprocess.run(argv, cwd=c.folder, env=c.environment(), check=True, timeout=60,
                              capture_output=True, text=True)
        c.job = self.job = said.stdout.strip().split(";")[0]

    def attempt(self, n):
        return self.c.home / f"steps/{self.job}.0{f'~{n}' if n else ''}/trial-0000"

    def wait(self):
        def gone():
            said = subprocess.run(["squeue", "-h", "-j", self.job, "-o", "%T"], capture_output=True, text=True,
                                  check=False, timeout=30)
            return not said.stdout.strip()
        wait_for("the job's end", 120, gone)

    def ranks_there(self, n):
        wait_for("the ranks", COME_S + 60, lambda: len(glob.glob(f"{self.c.folder}/ran.{n}.*")) == self.c.world)


def started_again(c, order, *options):
    polite = c.random.random() < 0.5
    c.plan_all(("trap 'exit 0' TERM; " if polite else "") +
               ": >ran.${SLURM_RESTART_COUNT:-0}.$RANK\n"
               "[ -z \"$SLURM_RESTART_COUNT\" ] || exit 0\n" +
               ("while :; do sleep 0.05; done\n" if polite else STAY))
    b = Batch(c, *options)
    b.ranks_there(0)
    c.pause()
    order(b)
    # Not behind all other cases, which have a better partition.
    subprocess.run(["scontrol", "update", f"JobId={b.job}", "Partition=main"], check=False, timeout=30,
                   stderr=subprocess.DEVNULL)
    try:
        b.ranks_there(1)
    except Wrong:
        if "credential revoked" not in c.err():
            raise
        return  # Slurm's own: the second attempt's step came too early for it
    b.wait()
    first, second = load(b.attempt(0) / "result.json"), load(b.attempt(1) / "result.json")
    need(first and second, f"results {first}, {second}; {os.listdir(c.home / 'steps')}")
    has(first, "state", "preempted")
    has(first["cause"], "kind", "preempted")
    has(second, "state", "done")
    c.files_hold(0, b.attempt(1))
    c.files_hold(None, b.attempt(0))
    code = (c.folder / "code.1").read_text().strip()
    need(code == "0", f"the second attempt's code is {code}")
    wait_for("no process left", LEFT_S, lambda: not c.left())
    c.no_socket()


@fault()
def requeued(c):
    """scontrol requeue: the first attempt is preempted, the second is done."""
    started_again(c, lambda b: subprocess.run(["scontrol", "requeue", b.job], check=True, timeout=30))


@fault(alone=True, needs=("own",))
def preempted(c):
    """A more urgent job wants the nodes, which all others would get before, too."""
    def urgent(b):
        nodes = subprocess.run(["squeue", "-h", "-j", b.job, "-o", "%N"], capture_output=True, text=True,
                               check=True, timeout=30).stdout.strip()
        subprocess.run(["srun", "-Q", "-p", "urgent", "-w", nodes, "--exclusive", "true"], check=True, timeout=90,
                       stdin=subprocess.DEVNULL)
    started_again(c, urgent, "-p", "scavenge")


def slurm_kills_all(c):
    """Slurm kills all of the step at once, the daemons too. A result, if there is one, does not claim
    that it was done, or who it was."""
    c.end()
    need(c.code != 0, "exit code 0")
    result = c.load("result.json")
    if result:
        has(result, "state", {"cancelled", "failed"})
        has(result["cause"], "kind", {"cancelled", "signal", "runtime"})
    c.slurm_killed_all()


@fault()
def step_cancelled(c):
    """scancel of the step."""
    c.plan_all("stand\n" + STAY)
    c.start()
    c.ranks_there()
    c.pause()
    c.strike()
    subprocess.run(["scancel", f"{c.job}.0"], check=True, timeout=30)
    slurm_kills_all(c)
    c.in_time()


@fault()
def interrupted(c):
    """Ctrl-C twice on srun."""
    c.quiet = []
    c.plan_all("stand\n" + STAY)
    c.start()
    c.ranks_there()
    c.pause()
    c.strike(1)
    os.kill(c.srun.pid, signal.SIGINT)
    wait_for("srun's word", 20, lambda: "interrupt" in c.err())
    os.kill(c.srun.pid, signal.SIGINT)
    slurm_kills_all(c)


@fault()
def srun_killed(c):
    """kill -9 of srun: Slurm ends the job."""
    c.plan_all("stand\n" + STAY)
    c.start()
    c.ranks_there()
    c.pause()
    c.strike(LEFT_S)
    os.kill(c.srun.pid, signal.SIGKILL)
    slurm_kills_all(c)
