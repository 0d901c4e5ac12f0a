# SPDX-License-Identifier: MIT
"""Faults of a run folder's file system: it does not answer, or its folder changes under the step. The
oracle: nobody is ended or lost for that, and the verdict is what it is without the fault."""
import contextlib
import glob
import os
import subprocess
import time

from chaos_case import BOTH, COME_S, PLACE, PLAIN_UID, SILENCE_S, fault, has, need, wait_for
from chaos_world import sockets_of, whole_lines


def on_a_freezer(c):
    """The run folders lie on a file system that can be frozen: each write to it waits."""
    disk = PLACE.freezers.get(timeout=300)

    def give_back():
        thaw(disk)
        subprocess.run(["rm", "-rf", str(disk / "plume")], check=False)
        PLACE.freezers.put(disk)

    c.undo.callback(give_back)
    c.home = disk / "plume"
    c.home.mkdir(mode=0o700)
    os.chown(c.home, PLAIN_UID, PLAIN_UID)
    return disk


def freeze(disk):
    subprocess.run(["fsfreeze", "-f", str(disk)], check=True, timeout=60)


def thaw(disk):
    subprocess.run(["fsfreeze", "-u", str(disk)], check=False, stderr=subprocess.DEVNULL, timeout=60)


def started(c, disk, rank, code, size):
    """All ranks run, of which one will fail; each says more than waits in memory if size is large."""
    talk = f"yes 'a line of the output' | head -c {size}; echo loss=1; echo the end >&2\n"
    c.plan_all(f"stand; reached go\n{talk}reached leave; exit 0\n")
    c.plan(rank, f"stand; reached go\n{talk}reached leave; echo its reason >&2; exit {code}\n")
    c.start()
    c.ranks_there()
    wait_for("the log", COME_S, lambda: c.load("status.json") and c.load("status.json")["state"]["state"] == "running")


def stay(c, seconds):
    """Nobody is ended meanwhile: all ranks stand, and the log tells of no end."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        need(c.srun.poll() is None, f"srun ended with {c.srun.returncode} while the disk did not answer")
        for path in glob.glob(f"{c.folder}/at.*"):
            with open(path, encoding="utf-8") as f:
                pid = f.read().split()[0]
            need(os.path.exists(f"/proc/{pid}"), f"rank {path} was ended while the disk did not answer")
        time.sleep(0.1)


def verdict(c, rank, code):
    need(c.way == "plugin" or c.code == code, f"exit code {c.code}, not {code}: {c.err()}")
    need((c.code == 0) == (code == 0), f"exit code {c.code}: {c.err()}")
    result = wait_for("result.json", COME_S, lambda: c.load("result.json"))
    has(result, "state", "failed" if code else "done")
    if code:
        has(result["cause"], "kind", "exit")
        has(result["cause"], "rank", rank)
        has(result["cause"], "exit", code)
        has(result["cause"], "text", {"the end\nits reason", "its reason"})


def outputs(c, size):
    """Each rank's file has all of its output, or says how much it lacks."""
    for path in glob.glob(f"{c.trial()}/attempt-0/rank-*.out"):
        with open(path, "rb") as f:
            text = f.read()
        kept, lost = b"", 0
        for part in text.split(b"\n[plrund: "):
            number, _, rest = part.partition(b" bytes could not be written]\n")
            if kept or lost:
                lost += int(number)
            kept += rest if kept or lost else part
        need(len(kept) + lost >= size, f"{path} has {len(kept)} bytes and says that it lacks {lost}, of {size}")


@fault(ways=BOTH, needs=("freezers",))
def disk_blocks(c):
    """For less or longer than the silence that is borne, before the ranks' end or over it."""
    rank, code = c.pick(), c.random.choice((0, 0, 23))
    size = c.random.choice((100, 100000, 700000))
    over_the_end = c.random.random() < 0.6
    seconds = c.random.choice((0.3, 2, SILENCE_S + 3, SILENCE_S + 6))
    disk = on_a_freezer(c)
    started(c, disk, rank, code, size)
    c.pause(2)
    if c.random.random() < 0.3:
        c.let("go")
        c.pause(0.3)
    freeze(disk)
    c.let("go")
    if over_the_end:
        stay(c, c.random.uniform(0, seconds))
        c.let("leave")
        time.sleep(seconds)  # the fault lasts so long
        thaw(disk)
    else:
        stay(c, seconds)
        thaw(disk)
        c.pause(1)
        c.let("leave")
    c.end()
    verdict(c, rank, code)
    c.files_hold(c.code)
    outputs(c, size)
    need("unwritten" not in c.load("result.json"), c.load("result.json"))
    c.no_socket()


@fault(ways=("plrun",), needs=("freezers",))
def disk_blocks_for_good(c):
    """The end is bounded, and the step's stderr says the verdict and what is not written."""
    rank, code = c.pick(), c.random.choice((0, 23))
    c.env["PLUME_DISK_LIMIT"] = "3"
    disk = on_a_freezer(c)
    started(c, disk, rank, code, 1000)
    freeze(disk)
    c.pause(1)
    c.let("go")
    c.let("leave")
    wait_for("the verdict", 30, lambda: "does not answer: result.json" in c.err())
    time.sleep(2)  # what is frozen so cannot even be killed, so the step's end waits for it
    thaw(disk)
    c.code = c.srun.wait(60)
    need(c.code == code, f"exit code {c.code}, not {code}: {c.err()}")
    c.find_job()
    c.nothing_left()
    said = c.err()
    need(f"this attempt is {'failed' if code else 'done'}" in said, said)
    need(not code or f"rank {rank} on" in said and "its reason" in said, said)
    result = c.load("result.json")
    need(not result or result["state"] == ("failed" if code else "done"), result)
    whole_lines(c)
    need(not sockets_of(c), f"sockets: {sockets_of(c)}")


@contextlib.contextmanager
def freezers(work, n):
    """File systems for on_a_freezer(); made before the cluster, whose nodes have mounts of their own."""
    made = []
    try:
        for i in range(n if os.geteuid() == 0 and "CLUSTER_DIR" not in os.environ else 0):
            path, image = work / f"freezer.{i}", work / f"freezer.{i}.img"
            path.mkdir()
            with open(image, "wb") as f:
                f.truncate(24 << 20)
            if any(subprocess.run(argv, check=False, stderr=subprocess.DEVNULL).returncode for argv in (
                    ["mkfs.ext4", "-q", "-O", "^has_journal", str(image)],
                    ["mount", "-o", "loop", str(image), str(path)])):
                break
            made.append(path)
            PLACE.freezers.put(path)
        if made:
            PLACE.has |= {"freezers"}
        yield
    finally:
        for path in made:
            thaw(path)
            subprocess.run(["umount", "-l", str(path)], check=False)
