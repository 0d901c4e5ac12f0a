#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""A run folder that is full, or is lost. RLIMIT_FSIZE stands for the full disk: no file grows past
the limit, a write across it is short, and bytes below it can be overwritten."""
import os
import re
import resource
import shutil
import threading
import time

import fake_nodes
import harness
from harness import equal, running, wait_for

LIMIT_BYTES = 16384


def set_disk(d, limit):
    """The files of this daemon can grow to so many bytes."""
    resource.prlimit(d.process.pid, resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))


def fill(program, name="k"):
    """Facts, more than the limit in total; the hub has them all when this returns."""
    for i in range(20):
        program.send(type="fact", key=f"{name}{i}", value="x" * 1500)
    program.send(type="exchange", name=name, value="")
    program.expect("exchanged")


def full(step, ranks=1):
    """A step whose disk is full."""
    d, starters = running(step, ranks)
    programs = [step.keep(d.rank("program", i)) for i in range(ranks)]
    set_disk(d, LIMIT_BYTES)
    for p in programs[1:]:
        p.send(type="exchange", name="k", value="")
    fill(programs[0])
    return d, starters, programs


def end(d, starters, code=0):
    for r in starters:
        r.exited(code)
        equal(r.expect("verdict")["code"], code)
        r.out.read_all(), r.err.read_all()
    equal(d.wait(), 0)


def no_temporary_files(step):
    names = set(os.listdir(step.trial()))
    equal(names - {"attempt-0", "result.json", "status.json"}, set())


def test_full_and_done(step):
    """Nothing is wrong with the job: it is done, the hub answers, and what is lost is said."""
    d, starters, programs = full(step)
    client = step.hub()
    client.send(type="snapshot")
    equal(len(client.expect("snapshot")["state"]["ranks"][0]["facts"]), 20)
    programs[0].send(type="metrics", step=7, metrics={"loss": 0.5})
    end(d, starters)
    result = step.result()
    equal((result["state"], result["exit_code"], result.get("cause")), ("done", 0, None))
    equal(result["metrics"], {"loss": 0.5})
    events = step.lines("events.jsonl")  # no line is torn
    equal([e["seq"] for e in events], list(range(1, len(events) + 1)))
    lost = result["unwritten"]
    equal(lost["events"] + len(events), lost["seq"] - len(step.lines("metrics.jsonl")))
    assert "too large" in lost["error"], lost
    assert "events.jsonl" in d.said(), d.said()
    no_temporary_files(step)


def test_full_and_failed(step):
    """The cause reaches the result, too, and the step's own stderr."""
    d, starters, _ = full(step, 2)
    starters[1].err.write(b"Traceback\nValueError: nine\n")
    starters[1].exited(9)
    starters[0].expect("signal")
    starters[0].exited(signal_number=15)
    equal([r.expect("verdict")["code"] for r in starters], [0, 9])
    for r in starters:
        r.out.read_all(), r.err.read_all()
    equal(d.wait(), 0)
    result = step.result()
    cause = result["cause"]
    equal((result["state"], result["exit_code"]), ("failed", 9))
    equal((cause["rank"], cause["exit"], cause["text"]), (1, 9, "Traceback\nValueError: nine"))


def test_stale_and_failed(step):
    """The folder's server has forgotten it: the verdict, the hub's answers and plrund's own words need
    no file."""
    library = os.environ.get("FAKE_STALE")
    if not library:  # a sanitizer's runtime must be loaded first
        print("# skipped: nothing can be preloaded")
        return
    flag = step.path("stale")
    d, starters = running(step, 2, LD_PRELOAD=library, FAKE_STALE=flag,
                          FAKE_STALE_DIR=step.path("home", "steps"))
    client = step.hub()
    os.close(os.open(flag, os.O_CREAT | os.O_WRONLY))
    starters[1].err.write(b"ValueError: nine\n")
    starters[1].exited(9)
    starters[0].expect("signal")
    client.send(type="snapshot")
    equal(client.expect("snapshot")["state"]["cause"]["exit"], 9)
    starters[0].exited(signal_number=15)
    equal([r.expect("verdict")["code"] for r in starters], [0, 9])
    for r in starters:
        r.out.read_all(), r.err.read_all()
    equal(d.wait(), 0)
    said = d.said()
    assert "Stale file handle" in said, said
    equal(said.count(":   ValueError: nine\n"), 1)
    assert not os.path.exists(step.trial("result.json")) or not step.result()["state"] == "done"


def test_lost_later(step):
    """The file system took all, and reports at the end that it has lost some: the result says so."""
    library = os.environ.get("FAKE_STALE")
    if not library:
        print("# skipped: nothing can be preloaded")
        return
    flag = step.path("stale")
    d, starters = running(step, 1, LD_PRELOAD=library, FAKE_STALE=flag, FAKE_STALE_LATE="1",
                          FAKE_STALE_DIR=step.trial("attempt-0"))
    os.close(os.open(flag, os.O_CREAT | os.O_WRONLY))
    end(d, starters)
    result = step.result()
    equal(result["state"], "done")
    lost = result["unwritten"]
    equal((lost["events"], lost["metrics"], lost["error"]), (0, 0, "Stale file handle"))
    assert "may lack output: Stale file handle" in d.said(), d.said()


def test_slow_sync(step):
    """The disk takes long to store the log: the result does not wait for that, as others wait for it."""
    library = os.environ.get("FAKE_STALE")
    if not library:
        print("# skipped: nothing can be preloaded")
        return
    flag = step.path("stale")
    d, starters = running(step, 1, LD_PRELOAD=library, FAKE_STALE=flag, FAKE_STALE_SLOW="1",
                          FAKE_STALE_DIR=step.trial("attempt-0"))
    os.close(os.open(flag, os.O_CREAT | os.O_WRONLY))
    starters[0].exited(0)
    wait_for("the result", lambda: os.path.exists(step.trial("result.json")))
    equal(step.result()["state"], "done")
    assert d.process.poll() is None, d.said()
    os.unlink(flag)
    equal(starters[0].expect("verdict")["code"], 0)
    starters[0].out.read_all(), starters[0].err.read_all()
    equal(d.wait(), 0)
    assert "unwritten" not in step.result(), step.result()


def lost_bytes(kept, total):
    """Bytes that a rank's file says it lacks: with what it has, all."""
    note = rb"\n\[plrund: ([0-9]+) bytes could not be written\]\n"
    lost = sum(map(int, re.findall(note, kept)))
    equal(lost + len(re.sub(note, b"", kept)), total)
    return lost


def block(step, ranks, folder, **env):
    """A step, and the file without which its folder answers again; None if nothing can be preloaded."""
    library = os.environ.get("FAKE_STALE")
    if not library:
        print("# skipped: nothing can be preloaded")
        return None
    flag = step.path("blocked")
    d, starters = running(step, ranks, LD_PRELOAD=library, FAKE_STALE=flag, FAKE_STALE_BLOCKS="1",
                          FAKE_STALE_DIR=folder, PLUME_SILENCE="4", **env)
    return d, starters, flag


def answers(client):
    client.send(type="snapshot")
    return client.expect("snapshot")["state"]


def test_blocked_and_done(step):
    """The run folder's file system does not answer for longer than the silence that is borne: the hub
    does, nobody is ended, and once the file system is back the log is complete."""
    blocked = block(step, 2, step.trial())
    if not blocked:
        return
    d, starters, flag = blocked
    programs = [step.keep(d.rank("program", i)) for i in range(2)]
    client = step.hub()
    os.close(os.open(flag, os.O_CREAT | os.O_WRONLY))
    begin = time.monotonic()
    programs[0].send(type="fact", key="k", value="v")
    programs[0].send(type="metrics", step=7, metrics={"loss": 0.5})
    starters[1].out.write(b"said in time\n")
    wait_for("the fact", lambda: answers(client)["ranks"][0].get("facts") == {"k": "v"}, 3)
    wait_for("the message", lambda: "does not answer" in d.said())
    wait_for("the silence", lambda: time.monotonic() - begin > 6)
    equal([r["state"] for r in answers(client)["ranks"]], ["running"] * 2)
    assert d.process.poll() is None, d.said()
    os.unlink(flag)
    wait_for("its end", lambda: "answers again" in d.said())
    end(d, starters)
    result = step.result()
    equal((result["state"], result["metrics"], result.get("unwritten")), ("done", {"loss": 0.5}, None))
    rows = step.lines("events.jsonl") + step.lines("metrics.jsonl")
    equal(sorted(e["seq"] for e in rows), list(range(1, len(rows) + 1)))
    equal(d.said().count("does not answer"), 1)
    with open(step.trial("attempt-0", "rank-1.out"), "rb") as f:
        equal(f.read(), b"said in time\n")


def test_blocked_and_failed(step):
    """The verdict and the end of the others need no file; the step's end waits for them."""
    blocked = block(step, 2, step.trial())
    if not blocked:
        return
    d, starters, flag = blocked
    os.close(os.open(flag, os.O_CREAT | os.O_WRONLY))
    starters[1].err.write(b"ValueError: nine\n")
    starters[1].exited(9)
    starters[0].expect("signal")
    starters[0].exited(signal_number=15)
    equal([r.expect("verdict")["code"] for r in starters], [0, 9])
    wait_for("the message", lambda: "does not answer" in d.said())
    assert d.process.poll() is None, d.said()
    os.unlink(flag)
    for r in starters:
        r.out.read_all(), r.err.read_all()
    equal(d.wait(), 0)
    result = step.result()
    equal((result["state"], result["exit_code"], result.get("unwritten")), ("failed", 9, None))
    equal(result["cause"]["text"], "ValueError: nine")


def test_blocked_at_the_end(step):
    """The end does not wait for ever: it says what is not written, and the verdict."""
    blocked = block(step, 2, step.trial(), PLUME_DISK_LIMIT="2")
    if not blocked:
        return
    d, starters, flag = blocked
    os.close(os.open(flag, os.O_CREAT | os.O_WRONLY))
    starters[0].out.write(b"0123456789")
    starters[1].err.write(b"ValueError: nine\n")
    starters[1].exited(9)
    starters[0].expect("signal")
    starters[0].exited(signal_number=15)
    equal([r.expect("verdict")["code"] for r in starters], [0, 9])
    for r in starters:
        r.out.read_all(), r.err.read_all()
    equal(d.wait(), 0)
    said = d.said()
    for part in ("result.json and up to", "rank 1 on n0, exit code 9", ":   ValueError: nine\n",
                 "27 bytes of the output"):
        assert part in said, said
    assert not os.path.exists(step.trial("result.json")), said


def test_blocked_metrics(step):
    """More metrics than wait in memory: the result says how many are lost, and why."""
    library = os.environ.get("FAKE_STALE")
    if not library:
        print("# skipped: nothing can be preloaded")
        return
    flag = step.path("blocked")
    step.env.update(LD_PRELOAD=library, FAKE_STALE=flag, FAKE_STALE_BLOCKS="1",
                    FAKE_STALE_DIR=step.trial("attempt-0", "metrics.jsonl"))
    fleet, seen = fake_nodes.Fleet(step, 2, 1), set()
    watcher = fleet.add(fake_nodes.Watcher(fleet, lambda e: seen.add(e.get("step"))))
    fleet.until("a snapshot", lambda: watcher.snapshots)
    os.close(os.open(flag, os.O_CREAT | os.O_WRONLY))
    for number in range(1, 90):
        fleet.report(number, lambda rank, n: {f"{i:0250}": n for i in range(250)})
        fleet.until("the record", lambda n=number: n in seen)
    os.unlink(flag)
    fleet.end()
    equal(fleet.daemon.wait(), 0)
    lost, rows = step.result()["unwritten"], step.lines("events.jsonl") + step.lines("metrics.jsonl")
    equal((lost["events"], lost["metrics"] + len(rows)), (0, lost["seq"]))
    assert lost["metrics"] > 1, lost
    equal(lost["error"], "the file system did not answer")


def test_blocked_output(step):
    """A rank that writes more than is kept in memory goes on, and its file says where it lacks output;
    Slurm's stream has all of it."""
    blocked = block(step, 1, step.trial("attempt-0", "rank-0.out"))
    if not blocked:
        return
    d, starters, flag = blocked
    path = step.trial("attempt-0", "rank-0.out")
    wait_for("the file", lambda: os.path.exists(path))
    os.close(os.open(flag, os.O_CREAT | os.O_WRONLY))
    line = b"0123456789abcde\n"
    text, size = b"", len(line) << 17
    writer = threading.Thread(target=starters[0].out.write, args=(line * (1 << 17),))
    writer.start()
    while len(text) < size:
        text += os.read(starters[0].out.out, 65536)
    writer.join()
    assert "it will lack some" in d.said(), d.said()
    os.unlink(flag)
    starters[0].out.write(b"the end\n")
    end(d, starters)
    with open(path, "rb") as f:
        kept = f.read()
    assert lost_bytes(kept, size + len(b"the end\n")) > len(line), kept[-200:]
    equal(step.result()["state"], "done")


def test_full_for_a_time(step):
    """Once there is room again, the log is complete."""
    d, starters, programs = full(step)
    set_disk(d, resource.RLIM_INFINITY)
    fill(programs[0], "later")
    end(d, starters)
    result = step.result()
    equal((result["state"], result.get("unwritten")), ("done", None))
    rows = step.lines("events.jsonl") + step.lines("metrics.jsonl")
    equal(sorted(e["seq"] for e in rows), list(range(1, len(rows) + 1)))
    equal(step.load("status.json")["state"], harness.replay(rows))


def test_facts_are_limited(step):
    """A program that reports without end fills neither the log nor the room of others: each value's
    last state and all ends are in it, and what is missing is counted."""
    d, starters = running(step, 2)
    programs = [step.keep(d.rank("program", i)) for i in range(2)]
    for i in range(400):
        programs[0].send(type="fact", key=f"k{i % 10}", value=f"{i:04}" + "x" * 7996)
    programs[1].send(type="fact", key="param_hash", value="abc")
    for p in programs:
        p.send(type="exchange", name="sync", value="")
    for p in programs:
        p.expect("exchanged")
    end(d, starters)
    result = step.result()
    events = step.lines("events.jsonl")
    facts = [e for e in events if e["type"] == "fact" and e["rank"] == 0]
    assert len(str(facts)) < 1.5 * 2**20, len(str(facts))
    equal(result["left_out"], {"facts": 400 - len(facts), "metrics": 0})
    equal((result["state"], result.get("unwritten")), ("done", None))
    state = harness.replay(events)
    ranks = state["ranks"]
    equal([r["state"] for r in ranks], ["done", "done"])
    equal({k: v[:4] for k, v in ranks[0]["facts"].items()}, {f"k{i}": f"039{i}" for i in range(10)})
    equal(ranks[0]["facts_left_out"], 400 - len(facts))
    equal((ranks[1]["facts"], "facts_left_out" in ranks[1]), ({"param_hash": "abc"}, False))
    equal(step.load("status.json")["state"], state)


def test_facts_of_all_ranks_are_limited(step):
    """No rank reaches its own limit by much, all of them pass the total; late facts of quiet ranks
    still have their last values in the log."""
    d, starters = running(step, 20)
    programs = [step.keep(d.rank("program", i)) for i in range(20)]
    for p in programs:
        for i in range(140):
            p.send(type="fact", key=f"k{i % 10}", value="x" * 8000)
        p.send(type="fact", key="param_hash", value="abc")
        p.send(type="exchange", name="sync", value="")
    for p in programs:
        p.expect("exchanged")
    end(d, starters)
    events = step.lines("events.jsonl")
    written = sum(e["type"] == "fact" for e in events)
    equal(step.result()["left_out"], {"facts": 20 * 141 - written, "metrics": 0})
    assert len(str(events)) < 18.5 * 2**20, len(str(events))
    state = harness.replay(events)
    equal({(r["state"], r["facts"]["param_hash"]) for r in state["ranks"]}, {("done", "abc")})
    equal(step.load("status.json")["state"], state)


def test_facts_left_out_are_said_at_once(step):
    """A hub that is killed has told that facts are missing."""
    d, _ = running(step, 1)
    program = step.keep(d.rank("program", 0))
    for i in range(200):
        program.send(type="fact", key="k", value="x" * 8000)
    program.send(type="exchange", name="sync", value="")
    program.expect("exchanged")
    d.kill()
    said = [e["facts_left_out"] for e in step.lines("events.jsonl") if "facts_left_out" in e]
    equal(said, [1, 2, 4, 8, 16, 32, 64])


def test_first_in_the_log(step):
    """What a program has said before an answer is in the log before the answer, though each write takes a
    while; but for the times that a busy host does not let the writer run in the time that the hub waits."""
    library = os.environ.get("FAKE_STALE")
    env = {"LD_PRELOAD": library, "FAKE_STALE": step.dir, "FAKE_STALE_DIR": step.trial(),
           "FAKE_STALE_LAGS": "1"} if library else {}
    d, starters = running(step, 1, **env)
    program, late = step.keep(d.rank("program", 0)), 0
    for i in range(100):
        program.send(type="fact", key=f"k{i % 10}", value=str(i))
        program.send(type="exchange", name=f"e{i}", value="")
        program.expect("exchanged")
        late += sum(e["type"] == "fact" for e in step.lines("events.jsonl")) <= i
    end(d, starters)
    assert late < 50, late


def test_output_is_there_with_the_result(step):
    """Who waits for the result finds all output in the ranks' files, though each write takes a while."""
    library = os.environ.get("FAKE_STALE")
    env = {"LD_PRELOAD": library, "FAKE_STALE": step.dir, "FAKE_STALE_DIR": step.trial("attempt-0", "rank-"),
           "FAKE_STALE_LAGS": "1"} if library else {}
    d, starters = running(step, 8, **env)
    text = b"0123456789abcde\n" * 8192
    for r in starters:
        r.out.write(text)
    begin = time.monotonic()
    for r in starters:
        r.exited()
    wait_for("the result", lambda: os.path.exists(step.trial("result.json")))
    busy = time.monotonic() - begin > 0.5  # the daemon has waited for so long
    sizes = [os.path.getsize(step.trial("attempt-0", f"rank-{i}.out")) for i in range(8)]
    for r in starters:
        equal(r.expect("verdict")["code"], 0)
        equal(r.out.read_all(), text)
    equal(d.wait(), 0)
    if not busy:
        equal(sizes, [len(text)] * 8)


def test_full_output_file(step):
    """A rank's file says where output is missing; Slurm's stream gets all of it."""
    d, starters, _ = full(step)
    line = b"0123456789abcde\n"
    starters[0].out.write(line * 2048)
    text = b""
    while len(text) < len(line) * 2048:
        text += os.read(starters[0].out.out, 65536)
    wait_for("the message", lambda: "cannot write 'rank-0.out': " in d.said())
    set_disk(d, resource.RLIM_INFINITY)
    starters[0].out.write(b"the end\n")
    end(d, starters)
    with open(step.trial("attempt-0", "rank-0.out"), "rb") as f:
        kept = f.read()
    equal(kept[:LIMIT_BYTES], line * (LIMIT_BYTES // 16))
    assert kept.endswith(b"the end\n"), kept[-200:]
    assert lost_bytes(kept, len(line) * 2048 + len(b"the end\n")) >= len(line), kept[-200:]


def test_full_slurm_file(step):
    """srun -o FILE on a disk that is full, as the run folder's is: the message tells what Slurm's file lacks."""
    d = step.start()
    pipe = step.keep(harness.Pipe())
    with open(step.path("slurm.out"), "ab") as f, open(os.devnull, "wb") as err:
        os.set_inheritable(f.fileno(), True)
        ends = os.pipe()
        starter = step.keep(d.rank("starter", 0, capture=[pipe.read_end, f.fileno(), ends[0], err.fileno()]))
    for fd in (pipe.read_end, pipe.real, *ends):
        os.close(fd)
    starter.expect("world")
    starter.send(type="spawned", pid=os.getpid())
    set_disk(d, LIMIT_BYTES)
    line = b"0123456789abcde\n"
    pipe.write(line * 2048)
    wait_for("the message", lambda: "Slurm's file of rank 0's stdout lacks output: File too large" in d.said())
    wait_for("the other", lambda: "cannot write 'rank-0.out': " in d.said())
    set_disk(d, resource.RLIM_INFINITY)
    pipe.write(b"the end\n")
    pipe.end()
    starter.exited(0)
    equal(starter.expect("verdict")["code"], 0)
    equal(d.wait(), 0)
    with open(step.path("slurm.out"), "rb") as f:
        kept = f.read()
    equal(kept[:LIMIT_BYTES], line * (LIMIT_BYTES // 16))
    assert kept.endswith(b"the end\n"), kept[-200:]
    lacks = lost_bytes(kept, len(line) * 2048 + len(b"the end\n"))
    assert f"Slurm's file of rank 0's stdout lacks {lacks} bytes: File too large" in d.said(), (lacks, d.said())
    assert "which Slurm's output has" not in d.said(), d.said()
    equal(next(e["value"] for e in step.lines("events.jsonl") if e.get("key") == "slurm_file_cut"),
          "Slurm's file of rank 0's stdout lacks output: File too large")


def remove_folder(step, last):
    """At once, as status.json is replaced again and again, and after the last file of the ranks was
    made, which makes the folder, too."""
    path = step.trial("attempt-0", f"rank-{last}.err")
    wait_for(path, lambda: os.path.exists(path))
    folder = os.path.dirname(step.trial())
    os.rename(folder, step.path("away"))
    shutil.rmtree(step.path("away"))


def test_folder_removed(step):
    """The step's stderr names the rank, and the exit code is its own."""
    d, starters = running(step, 2)
    remove_folder(step, 1)
    starters[1].err.write(b"ValueError: nine\n")
    starters[1].exited(9)
    starters[0].expect("signal")
    starters[0].exited(signal_number=15)
    equal([r.expect("verdict")["code"] for r in starters], [0, 9])
    for r in starters:
        r.out.read_all(), r.err.read_all()
    equal(d.wait(), 0)
    said = d.said()
    for part in ("result.json", "rank 1 on n0", "exit code 9", "ValueError: nine"):
        assert part in said, (part, said)


def test_folder_removed_and_done(step):
    d, starters = running(step, 1)
    remove_folder(step, 0)
    end(d, starters)
    assert "this attempt is done" in d.said(), d.said()


harness.main(globals())
