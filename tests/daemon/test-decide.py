#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""From failures to one cause: echoes, ends from outside, what Slurm says of them."""
import os
import signal
import time

import harness
from harness import at_once, equal, quick, record, running, wait_for

def end_by_signal(step, said, number=signal.SIGTERM, code=0):
    """All ranks get a signal from outside and end; the trial's state and cause. The hub hears of all ends before it
    decides, also where this process has to wait for a processor: where Slurm is silent, it would end the rest."""
    step.scontrol(said)
    d, ranks = running(step)
    for r in ranks:
        r.send(type="signalled", signal=int(number))
    with at_once(d):
        for r in ranks:
            if code is None:
                r.exited(signal_number=int(number))
            else:
                r.exited(code)
    codes = [r.expect("verdict")["code"] for r in ranks]
    for r in ranks:
        r.out.read_all(), r.err.read_all()
    equal(d.wait(), 0)
    result = step.result()
    cause = result.get("cause") or {}
    return result["state"], cause.get("kind"), cause.get("inferred", False), codes


def test_outside_preempted(step):
    said = record(state="COMPLETING", preempt="2026-01-01T00:00:00")
    equal(end_by_signal(step, said, code=None), ("preempted", "preempted", False, [143, 143]))


def test_outside_preempted_saved(step):
    """Ranks that save and leave with 0 were preempted all the same."""
    equal(end_by_signal(step, record(restarts=1)), ("preempted", "preempted", False, [0, 0]))


def test_outside_timeout(step):
    said = record(ran="01:00:03", limit="01:00:00")
    equal(end_by_signal(step, said, code=None), ("timed-out", "timeout", False, [143, 143]))


def test_outside_cancelled(step):
    equal(end_by_signal(step, record(state="CANCELLED"), code=143),
          ("cancelled", "cancelled", False, [143, 143]))


def test_outside_slurm_silent(step):
    equal(end_by_signal(step, "exit 1", code=None), ("cancelled", "cancelled", True, [143, 143]))


def test_outside_slurm_answers_late(step):
    """All nodes have said goodbye before Slurm has answered."""
    fifo = step.path("fifo")
    os.mkfifo(fifo)
    step.scontrol(f"read -r line <{fifo}; echo \"$line\"")
    d, ranks = running(step)
    for r in ranks:
        r.send(type="signalled", signal=15)
        r.exited(signal_number=15)
        r.out.read_all(), r.err.read_all()
    with open(fifo, "w", encoding="utf-8") as f:  # opens once scontrol reads
        client = step.hub()
        client.send(type="snapshot")
        equal(client.expect("snapshot")["state"]["state"], "running")
        f.write(record(ran="01:00:03", limit="01:00:00")[6:-1] + "\n")
    for r in ranks:
        equal(r.expect("verdict")["code"], 143)
    equal(d.wait(), 0)
    equal(step.result()["state"], "timed-out")


def test_outside_slurm_hangs(step):
    """scontrol that never answers costs five seconds, not the step."""
    step.scontrol("exec sleep 1000")
    d, ranks = running(step)
    for r in ranks:
        r.send(type="signalled", signal=15)
        r.exited(signal_number=15)
    for r in ranks:
        equal(r.expect("verdict")["code"], 143)
    equal(d.wait(), 0)
    equal(step.result()["cause"],
          {"kind": "cancelled", "confidence": "inferred", "inferred": True})


def test_signal_survived(step):
    """A SIGTERM that ranks outlive for long, and then a failure of their own."""
    step.scontrol(record())
    d, ranks = running(step)
    ranks[0].send(type="signalled", signal=15)
    ranks[1].err.write(b"out of luck\n")
    ranks[1].exited(9)
    ranks[0].expect("signal")
    ranks[0].exited(signal_number=15)
    for r in ranks:
        r.expect("verdict")
    equal(d.wait(), 0)
    assert step.result()["state"] in ("cancelled", "failed")


def test_signal_after_a_failure(step):
    """A rank fails by itself, and then the rest gets a signal: that is no reason for the failure."""
    step.scontrol(record())
    d, ranks = running(step)
    ranks[1].exited(9)
    ranks[1].send(type="signalled", signal=15)
    ranks[0].expect("signal")
    ranks[0].exited(signal_number=15)
    equal([r.expect("verdict")["code"] for r in ranks], [0, 9])
    equal(d.wait(), 0)
    cause = step.result()["cause"]
    equal((cause["kind"], cause["rank"], cause["confidence"]), ("exit", 1, "seen"))


@quick
def test_exit_code_before_its_signal(step):
    """Slurm signals the program first: it saves and exits with 1 before plrun has seen the signal."""
    step.scontrol(record(state="COMPLETING"))
    d, ranks = running(step)
    with at_once(d):
        for r in ranks:
            r.exited(1)
            r.send(type="signalled", signal=15)
    for r in ranks:
        equal(r.expect("verdict")["code"], 1)
    equal(d.wait(), 0)
    result = step.result()
    equal((result["state"], result["cause"], result["exit_code"]),
          ("cancelled", {"kind": "cancelled", "confidence": "inferred", "inferred": True}, 1))


@quick
def test_exit_code_without_its_signal(step):
    """Nobody has seen the signal, and Slurm says that it ends the job: by its limit, or at all."""
    step.scontrol(record(state="COMPLETING", ran="01:00:03", limit="01:00:00"))
    d, ranks = running(step, 1)
    ranks[0].err.write(b"Connection reset by peer\n")  # an echo waits longer than Slurm's answer takes
    ranks[0].exited(1)
    equal(ranks[0].expect("verdict")["code"], 1)
    equal(d.wait(), 0)
    equal((step.result()["state"], step.result()["cause"]["confidence"]), ("timed-out", "asked"))


def good_end(step, said, term_default):
    """Slurm signals a program first: it saves and exits with 0 before plrun has seen the signal. The state, the
    kind of the cause, if that is inferred, and the number of questions."""
    step.scontrol(f"echo >>{step.path('run-0', 'asks')}; {said}")
    d, ranks = running(step)
    ranks[0].exited(0, **term_default)
    ranks[1].exited(0)
    for r in ranks:
        equal(r.expect("verdict")["code"], 0)
        r.out.read_all(), r.err.read_all()
    equal(d.wait(), 0)
    result = step.result()
    cause = result.get("cause") or {}
    n_asks = os.path.getsize(step.path("run-0", "asks")) if os.path.exists(step.path("run-0", "asks")) else 0
    return result["state"], cause.get("kind"), cause.get("inferred", False), result["exit_code"], n_asks


def test_good_end_before_its_signal(step):
    """A program that handles SIGTERM may have obeyed: only Slurm knows. Others cannot have."""
    ended, preempted = record(state="COMPLETING"), record(preempt="2026-01-01T00:00:00")
    requeued = record(state="COMPLETING", restarts=1)
    past = record(state="COMPLETING", ran="01:00:03")
    handles, default, unknown = {"term_default": 0}, {"term_default": 1}, {}
    for said, how, want in ((ended, handles, ("cancelled", "cancelled", True, 1, 1)),
                            (preempted, handles, ("preempted", "preempted", False, 1, 1)),
                            (requeued, handles, ("preempted", "preempted", False, 1, 1)),
                            (past, handles, ("timed-out", "timeout", False, 1, 1)),
                            (record(), handles, ("done", None, False, 0, 1)),
                            (record(ran="01:00:03"), handles, ("done", None, False, 0, 1)),
                            ("exit 1", handles, ("done", None, False, 0, 4)),
                            (ended, default, ("done", None, False, 0, 0)),
                            (ended, unknown, ("done", None, False, 0, 0))):
        with harness.another_step() as own:
            equal((said, how, good_end(own, said, how)), (said, how, want))


def test_good_end_and_slurm_hangs(step):
    """A controller that does not answer costs such a program five seconds, and no good end."""
    begin = time.monotonic()
    equal(good_end(step, "exec sleep 1000", {"term_default": 0}), ("done", None, False, 0, 1))
    took = time.monotonic() - begin
    assert took < 9 * harness.SLOW, took


def test_exit_code_past_the_limit(step):
    """Slurm looks at limits now and then: a job that runs on has not ended its rank."""
    step.scontrol(record(ran="01:00:03", limit="01:00:00"))
    d, ranks = running(step, 1)
    ranks[0].exited(3)
    ranks[0].send(type="signalled", signal=15)
    equal(ranks[0].expect("verdict")["code"], 3)
    equal(d.wait(), 0)
    equal((step.result()["state"], step.result()["cause"]["kind"]), ("failed", "exit"))


@quick
def test_exit_code_in_grace_of_preemption(step):
    """A partition's GraceTime: the job runs on until its ranks have saved and left."""
    step.scontrol(record(preempt="2026-01-01T00:00:00"))
    d, ranks = running(step, 1)
    ranks[0].err.write(b"Connection reset by peer\n")  # an echo waits longer than Slurm's answer takes
    ranks[0].exited(9)
    equal(ranks[0].expect("verdict")["code"], 9)
    equal(d.wait(), 0)
    equal((step.result()["state"], step.result()["cause"]["confidence"]), ("preempted", "asked"))


def test_exit_code_and_slurm_hangs(step):
    """Nobody waits for scontrol then; test_outside_slurm_hangs does, for its limit."""
    step.scontrol("exec sleep 1000")
    d, ranks = running(step)
    begin = time.monotonic()
    ranks[0].exited(3)
    ranks[1].expect("signal")
    took = time.monotonic() - begin
    assert took < 4, took
    ranks[1].exited(signal_number=15)
    equal([r.expect("verdict")["code"] for r in ranks], [3, 0])
    equal(d.wait(), 0)
    equal(step.result()["cause"]["kind"], "exit")


def test_all_killed(step):
    """SIGKILL of all ranks and no word of Slurm's: nobody knows who sent it."""
    step.scontrol(record())
    d, ranks = running(step)
    for r in ranks:
        r.exited(signal_number=9)
    for r in ranks:
        r.expect("verdict")
    equal(d.wait(), 0)
    result = step.result()
    equal((result["state"], result["cause"]["kind"], result["cause"]["signal"]),
          ("failed", "signal", 9))


def plugin_running(step, said):
    """Two tasks under the plugin, running, and their daemon."""
    step.scontrol(said)
    step.tasks_per_node = 2
    d = step.start(PLUME_PLUGIN="1")
    tasks = [step.keep(harness.Task(signal.SIG_DFL)) for _ in range(2)]
    ranks = [step.keep(d.rank("starter", i, local_rank=i, guarded=False, pid=task.pid, capture=True))
             for i, task in enumerate(tasks)]
    for r in ranks:
        r.expect("world")
    return d, tasks, ranks


def plugin_exited(d, number, task, rank, status):
    task.close()
    rank.out.end(), rank.err.end()
    d.control.send(type="exited", rank=number, status=status)


def plugin_all(step, said, number):
    """Under the plugin: all ranks end by a signal; the state and cause of the trial. The hub hears of all before it
    asks Slurm, also where this process has to wait for a processor."""
    d, tasks, ranks = plugin_running(step, said)
    with at_once(d):
        for i in range(2):
            plugin_exited(d, i, tasks[i], ranks[i], number)
    d.control.close()
    equal(d.wait(), 0)
    result = step.result()
    cause = result.get("cause") or {}
    return result["state"], cause.get("kind"), cause.get("confidence")


def test_plugin_all_terminated(step):
    """slurmstepd signals the tasks only: that all of them ended by it is all there is to see."""
    equal(plugin_all(step, record(), signal.SIGTERM), ("cancelled", "cancelled", "inferred"))


def test_plugin_all_saved(step):
    """They left with 0: only Slurm knows that it had told them to."""
    equal(plugin_all(step, record(preempt="2026-01-01T00:00:00"), 0), ("preempted", "preempted", "asked"))


def test_plugin_all_done(step):
    equal(plugin_all(step, record(), 0), ("done", None, None))


def test_plugin_all_saved_and_cancelled(step):
    """Slurm ends the job though srun does not know yet that all ranks have ended."""
    equal(plugin_all(step, record(state="COMPLETING"), 0), ("cancelled", "cancelled", "inferred"))


def test_plugin_all_done_and_slurm_late(step):
    """slurmstepd has not waited for so long, and the job completes as its ranks have ended."""
    equal(plugin_all(step, f"sleep 1.7; {record(state='COMPLETING')}", 0), ("done", None, None))


def test_plugin_all_killed(step):
    """SIGKILL from somewhere, and the job runs on."""
    equal(plugin_all(step, record(), signal.SIGKILL), ("failed", "signal", "seen"))


def test_plugin_all_outlived_sigterm(step):
    """Slurm's SIGKILL after KillWait: it ends the job, and nobody but the ranks got its SIGTERM."""
    equal(plugin_all(step, record(state="COMPLETING"), signal.SIGKILL),
          ("cancelled", "cancelled", "inferred"))


def test_plugin_all_killed_and_slurm_late(step):
    equal(plugin_all(step, f"sleep 1.7; {record(state='COMPLETING')}", signal.SIGKILL),
          ("failed", "signal", "seen"))


def played_killed(step, both):
    """Two nodes under the plugin, of which one sends no goodbye: the kernel has killed its rank for memory, and it has
    no processor. Slurm is slow; the trial's state, and the kind and confidence of its cause."""
    step.scontrol(f"sleep 1.7; {record(state='COMPLETING')}")
    step.nodes = 2
    port = step.use_hub_port()
    d = step.start(0, PLUME_PLUGIN="1")
    task = step.keep(harness.Task(signal.SIG_DFL))
    rank = step.keep(d.rank("starter", 0, guarded=False, pid=task.pid, capture=True))
    node = step.hub(port, role="daemon")
    node.send(type="join", node_id=1, node="n1", local_ntasks=1)
    node.expect("world")
    rank.expect("world")
    node.send(type="started", rank=1, pid=77)
    with at_once(d):
        node.send(type="exited", rank=1, status=9, at_ns=1)
        if both:
            plugin_exited(d, 0, task, rank, signal.SIGKILL)
    node.expect("decided")
    node.send(type="bye")
    if not both:
        plugin_exited(d, 0, task, rank, signal.SIGTERM)
    d.control.close()
    equal(d.wait(), 0)
    cause = step.result()["cause"]
    return step.result()["state"], cause["kind"], cause["confidence"]


def test_plugin_killed_and_no_goodbye(step):
    """slurmstepd has not waited for so long: the job completes as its ranks have ended."""
    equal(played_killed(step, True), ("failed", "signal", "seen"))


def test_plugin_killed_and_one_runs(step):
    """The job cannot complete by itself while a rank runs, however late Slurm says so."""
    equal(played_killed(step, False), ("cancelled", "cancelled", "inferred"))


def test_plugin_all_aborted(step):
    equal(plugin_all(step, record(state="COMPLETING"), signal.SIGABRT),
          ("failed", "signal", "seen"))


def test_plugin_all_exited(step):
    equal(plugin_all(step, record(), 1 << 8), ("failed", "exit", "seen"))


@quick
def test_plugin_all_exited_and_cancelled(step):
    """An exit code at Slurm's SIGTERM, of which nobody but the ranks knows."""
    d, tasks, ranks = plugin_running(step, record(state="COMPLETING"))
    ranks[0].err.write(b"Connection reset by peer\n")  # an echo waits longer than Slurm's answer takes
    plugin_exited(d, 0, tasks[0], ranks[0], 9 << 8)
    # At once: Slurm may end us before all ranks have ended.
    wait_for("the result", lambda: os.path.exists(step.trial("result.json")))
    equal((step.result()["state"], step.result()["cause"]["confidence"]), ("cancelled", "inferred"))
    plugin_exited(d, 1, tasks[1], ranks[1], 9 << 8)
    d.control.close()
    equal(d.wait(), 0)
    equal((step.result()["state"], step.result()["exit_code"]), ("cancelled", 9))


@quick
def test_plugin_all_exited_preempted(step):
    said = record(state="COMPLETING", preempt="2026-01-01T00:00:00")
    equal(plugin_all(step, said, 1 << 8), ("preempted", "preempted", "asked"))


def test_killed_alone_is_its_own_cause(step):
    """SIGKILL from somewhere, and Slurm knows of nothing."""
    step.scontrol(record())
    d, ranks = running(step)
    ranks[0].exited(signal_number=9)
    ranks[1].expect("signal")
    ranks[1].exited(signal_number=15)
    equal([r.expect("verdict")["code"] for r in ranks], [137, 0])
    equal(d.wait(), 0)
    cause = step.result()["cause"]
    equal((cause["kind"], cause["rank"], cause["signal_name"]), ("signal", 0, "SIGKILL"))


def test_echo_waits_for_its_cause(step):
    """An NCCL error comes first, the crash that made it later: the crash is named."""
    d, ranks = running(step, 3)
    ranks[0].err.write(b"ncclRemoteError: NCCL error: remote process exited\n")
    ranks[0].exited(1)
    client = step.hub()
    client.send(type="watch")
    doc = client.expect("snapshot")["state"]
    while doc["ranks"][0]["state"] != "failed":
        event = client.expect("event")["event"]
        if event["type"] == "rank" and event.get("state") == "failed":
            break
    ranks[2].err.write(b"assertion failed\n")
    ranks[2].exited(signal_number=6)
    ranks[1].expect("signal")
    ranks[1].exited(signal_number=15)
    equal([r.expect("verdict")["code"] for r in ranks], [0, 0, 134])
    for r in ranks:
        r.out.read_all(), r.err.read_all()
    equal(d.wait(), 0)
    result = step.result()
    equal((result["cause"]["rank"], result["cause"]["text"]), (2, "assertion failed"))
    equal([o["rank"] for o in result["others"]], [0])
    ranks = step.load("status.json")["state"]["ranks"]
    equal([r.get("role") for r in ranks], ["cascade", "collateral", "root"])


def test_echo_alone_is_the_cause(step):
    d, ranks = running(step)
    ranks[1].err.write(b"Connection reset by peer\n")
    ranks[1].exited(1)
    ranks[0].expect("signal")
    ranks[0].exited(signal_number=15)
    equal([r.expect("verdict")["code"] for r in ranks], [0, 1])
    for r in ranks:
        r.out.read_all(), r.err.read_all()
    equal(d.wait(), 0)


def test_early_end_explains_echoes(step):
    """A rank leaves with 0, the others lose their connections to it: it is named, as inferred, and
    the step's exit code stays that of the first failure."""
    d, ranks = running(step, 3)
    ranks[2].exited(0)
    equal(ranks[2].expect("verdict")["code"], 0)
    ranks[0].err.write(b"DistNetworkError: failed to recv, got 0 bytes\n")
    ranks[0].exited(1)
    ranks[1].expect("signal")
    ranks[1].exited(signal_number=15)
    equal([r.expect("verdict")["code"] for r in ranks[:2]], [1, 0])
    for r in ranks:
        r.out.read_all(), r.err.read_all()
    equal(d.wait(), 0)
    result = step.result()
    early = result["cause"]["early"]
    assert early.pop("before_s") > 0, early
    equal(early, {"rank": 2, "node": "n0", "exit": 0, "inferred": True})
    equal((result["cause"]["rank"], result["exit_code"], result["state"]), (0, 1, "failed"))


def test_early_end_is_no_cause_of_a_crash(step):
    """A failure with a message of its own has its own cause."""
    d, ranks = running(step, 2)
    ranks[1].exited(0)
    equal(ranks[1].expect("verdict")["code"], 0)
    ranks[0].err.write(b"ValueError: bad\n")
    ranks[0].exited(1)
    equal(ranks[0].expect("verdict")["code"], 1)
    for r in ranks:
        r.out.read_all(), r.err.read_all()
    equal(d.wait(), 0)
    assert "early" not in step.result()["cause"]


@quick
def test_earliest_by_clock(step):
    """The order of arrival is not the order of failure."""
    d, ranks = running(step, 3)
    late, early = time.monotonic_ns(), time.monotonic_ns() - 50_000_000
    with at_once(d):
        for i, at in ((0, late), (2, early)):
            for stream in (ranks[i].out, ranks[i].err):
                stream.end()
            ranks[i].send(type="exited", status=(i + 1) << 8, at_ns=at)
    ranks[1].expect("signal")
    ranks[1].exited(0)
    equal([r.expect("verdict")["code"] for r in ranks], [0, 0, 3])
    equal(d.wait(), 0)
    equal(step.result()["cause"]["rank"], 2)


def test_oom_killed(step):
    """The kernel's count of the cgroup goes up: it was memory."""
    with open("/proc/self/cgroup", encoding="ascii") as f:
        lines = f.read().splitlines()
    group = next((x for x in lines if x.startswith("0::")), None)
    if group:
        path = step.path("cg" + group[3:].replace("..", "up"), "memory.events")
    else:
        group = next((x for x in lines if ":memory:" in x), None)
        assert group, "no memory cgroup"
        path = step.path("cg", "memory" + group.rsplit(":", 1)[1], "memory.oom_control")
    os.makedirs(os.path.dirname(path), exist_ok=True)

    def count(n):
        with open(path, "w", encoding="ascii") as f:
            f.write(f"low 0\noom_kill {n}\nmax 3\n")

    count(4)
    step.scontrol(record())
    d, ranks = running(step, PLUME_CGROUP_ROOT=step.path("cg"))
    count(5)
    ranks[0].exited(signal_number=9)
    ranks[1].expect("signal")
    ranks[1].exited(signal_number=15)
    equal([r.expect("verdict")["code"] for r in ranks], [137, 0])
    equal(d.wait(), 0)
    equal((step.result()["cause"]["kind"], step.result()["cause"]["rank"]), ("oom", 0))


def test_rank_never_started(step):
    """Its starter got the world and went without starting anything, with success."""
    d, ranks = running(step)
    ranks[0].exited(0)
    ranks[1].exited(0)
    equal([r.expect("verdict")["code"] for r in ranks], [0, 0])
    equal(d.wait(), 0)
    equal(step.result()["state"], "done")


def test_output_stuck(step):
    """Slurm's end of a stream is not read: the step ends all the same, the file has it all."""
    d, ranks = running(step, 1, PLUME_LEAVE_LIMIT=str(harness.SLOW))
    r = ranks[0]
    r.out.write(b"x" * 60000)
    wait_for("the file", lambda: os.path.exists(step.trial("attempt-0", "rank-0.out")) and
             os.path.getsize(step.trial("attempt-0", "rank-0.out")) == 60000)
    r.out.write(b"y" * 60000)
    r.out.write(b"z" * 60000)
    r.exited(0)
    equal(r.expect("verdict")["code"], 0)
    equal(d.wait(), 0)
    equal(os.path.getsize(step.trial("attempt-0", "rank-0.out")), 180000)


def test_output_held_by_orphan(step):
    """A process that a rank left behind holds its stdout and writes on: the rank's end is seen."""
    d, ranks = running(step, 1, PLUME_LEAVE_LIMIT=str(harness.SLOW))
    r = ranks[0]
    orphan = os.fork()
    if orphan == 0:
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        while True:
            os.write(r.out.write_end, b"chatter " * 1000)
    reader = os.fork()
    if reader == 0:
        while os.read(r.out.out, 65536):
            pass
        os._exit(0)
    r.send(type="exited", status=0, at_ns=time.monotonic_ns())
    equal(r.expect("verdict")["code"], 0)
    equal(d.wait(), 0)
    for pid in (orphan, reader):
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


harness.main(globals(), at_once=4)
