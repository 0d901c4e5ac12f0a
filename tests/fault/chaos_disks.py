# SPDX-License-Identifier: MIT
"""Faults of a run folder's file system: it does not answer, or its folder changes under the step. The
oracle: nobody is ended or lost for that, and the verdict is what it is without the fault."""
import contextlib
import glob
import os
import signal
import subprocess
import time

from chaos_case import BOTH, COME_S, PLACE, PLAIN_UID, SILENCE_S, fault, has, load, need, wait_for
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


def replaced_by_link(c, trial, strange):
    """Somebody puts a link to another folder of the same user in the place of the trial's folder."""
    trial.rename(c.folder / "away")
    trial.symlink_to(strange)
    return lambda: (trial.unlink(), (c.folder / "away").rename(trial))


def attempt_replaced_by_link(c, trial, strange):
    attempt = trial / "attempt-0"
    attempt.rename(c.folder / "away")
    attempt.symlink_to(strange)
    return lambda: (attempt.unlink(), (c.folder / "away").rename(attempt))


def made_anew(c, trial, strange):
    """The trial's folder is away, and another, empty one has its name."""
    trial.rename(c.folder / "away")
    for path in (trial, trial / "attempt-0"):
        path.mkdir(0o755)
        os.chown(path, PLAIN_UID, PLAIN_UID)
    return lambda: (trial.rename(c.folder / "other"), (c.folder / "away").rename(trial))


def forbidden(c, trial, strange):
    trial.parent.chmod(0)
    return lambda: trial.parent.chmod(0o755)


def others_may_write(c, trial, strange):
    trial.chmod(0o777)
    return lambda: trial.chmod(0o755)


def file_in_place(c, trial, strange):
    """status.json and result.json are folders."""
    (trial / "status.json").unlink(missing_ok=True)
    for name in ("status.json", "result.json"):
        with contextlib.suppress(FileExistsError):  # the hub may be faster
            (trial / name).mkdir()
            (trial / name / "full").touch()

    def undo():
        for name in ("status.json", "result.json"):
            if (trial / name).is_dir():
                (trial / name / "full").unlink()
                (trial / name).rmdir()
    return undo


@fault(ways=BOTH, needs=("root",))
def folder_changes(c):
    """The run folder changes under the step, for good or for a time. The exit code is that of the ranks, a
    result that is there is right, and nothing is written elsewhere."""
    rank, code = c.pick(), c.random.choice((0, 0, 23))
    change = c.random.choice((replaced_by_link, attempt_replaced_by_link, made_anew, forbidden, others_may_write,
                              file_in_place))
    back = c.random.random() < 0.5
    c.plan_all("stand; reached go; seq 1 200; reached leave; echo the end >&2; exit 0\n")
    c.plan(rank, f"stand; reached go; seq 1 200; reached leave; echo its reason >&2; exit {code}\n")
    c.start()
    c.ranks_there()
    wait_for("the log", COME_S, lambda: c.load("status.json") and c.load("status.json")["state"]["state"] == "running")
    trial, strange = c.trial(), c.folder / "strange"
    strange.mkdir(0o755)
    os.chown(strange, PLAIN_UID, PLAIN_UID)
    os.chown(c.folder, PLAIN_UID, PLAIN_UID)
    c.pause(2)
    undo = change(c, trial, strange)
    c.let("go")
    c.pause(3)
    if back:
        undo()
    c.pause(1)
    c.let("leave")
    c.end()
    what = f"{change.__name__}, {'for a time' if back else 'for good'}"
    if not back:
        undo()
    need(c.way == "plugin" or c.code == code, f"{what}: exit code {c.code}, not {code}: {c.err()}")
    need((c.code == 0) == (code == 0), f"{what}: exit code {c.code}: {c.err()}")
    need(not list(strange.iterdir()), f"{what}: written elsewhere: {list(strange.iterdir())}")
    result = c.load("result.json") or load(c.folder / "other/result.json")
    need(result or not back, f"{what}: no result: {c.err()}")
    need(result or "this attempt is" in c.err(), f"{what}: no word: {c.err()}")
    if result:
        has(result, "state", "failed" if code else "done")
        need(not code or (result["cause"]["rank"], result["cause"]["exit"]) == (rank, code), f"{what}: {result}")
    if result and back:
        need("unwritten" not in result, f"{what}: {result}")
    whole_lines(c)
    c.no_socket()
    c.in_time()


@fault(ways=BOTH, needs=("freezers",))
def disk_blocks_and(c):
    """Another fault while the disk does not answer: the step ends in time, whatever its verdict, and nothing of
    it is left once the disk answers."""
    disk = on_a_freezer(c)
    c.env["PLUME_DISK_LIMIT"] = "3"
    c.plan_all("stand; exec tail -f /dev/null\n")
    c.start()
    there = c.ranks_there()
    wait_for("the log", COME_S, lambda: c.load("status.json") and c.load("status.json")["state"]["state"] == "running")
    freeze(disk)
    c.pause(3)
    second = c.random.choice(("rank", "daemon", "hub", "cancel", "interrupt"))
    rank = c.pick()
    if second == "rank":
        os.kill(there[rank][0], signal.SIGKILL)
    elif second == "daemon":
        os.kill(c.daemon_of(there, c.nodes - 1), signal.SIGKILL)
    elif second == "hub":
        os.kill(c.daemon_of(there, 0), signal.SIGKILL)
    elif second == "cancel":
        subprocess.run(["scancel", c.job], check=True, timeout=60)
    else:
        c.srun.send_signal(signal.SIGINT)
        c.pause(0.3)
        c.srun.send_signal(signal.SIGINT)
    c.pause(10)
    thaw(disk)
    if second in ("cancel", "interrupt"):
        c.slurm_killed_all()
    c.end()
    # of what SIGKILL does not end srun says that it has waited long enough, and ends with 0
    need(c.code != 0 or second in ("cancel", "interrupt") and "Timed out waiting" in c.err(), f"{second}: exit code 0")
    result = c.load("result.json")
    need(not result or result["state"] != "done", f"{second}: {result}")
    if result and second == "rank":
        has(result["cause"], "rank", rank)
        has(result["cause"], "signal", 9)
    whole_lines(c)


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
