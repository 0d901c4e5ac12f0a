#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Ranks that outlive a signal to the step, and the few questions to Slurm that it may cost."""
import contextlib
import fcntl
import os
import pty
import resource
import select
import shutil
import signal
import subprocess
import sys
import termios

import harness
from harness import another_step, equal, record, running, wait_for

PLRUN = os.path.join(os.path.dirname(harness.PLRUND), "plrun")


def slurm_says(step, first, then=None):
    """scontrol counts its runs: `first` answers the first of them, `then` the others."""
    step.scontrol(f"echo $$ >>{step.path('run-0', 'asks')}\n"
                  f"case $(wc -l <{step.path('run-0', 'asks')}) in 1) {first} ;; *) {then or first} ;; esac")


def asks(step):
    """The pids of all scontrol so far."""
    if not os.path.exists(step.path("run-0", "asks")):
        return []
    with open(step.path("run-0", "asks"), encoding="ascii") as f:
        return f.read().split()


def has_heard(step):
    """Waits until the hub has Slurm's answer: it has reaped scontrol, and has gone on from there."""
    pid = wait_for("scontrol", lambda: asks(step))[0]
    wait_for("the end of scontrol", lambda: not os.path.exists(f"/proc/{pid}"))
    client = step.hub()
    for _ in range(2):
        client.send(type="snapshot")
        client.expect("snapshot")


def signalled(ranks, number=signal.SIGTERM):
    for r in ranks:
        r.send(type="signalled", signal=int(number))


def ended(step, d, ranks, codes=None):
    """The step ends: the trial's state, the kind of its cause, and if that is inferred."""
    equal([r.expect("verdict")["code"] for r in ranks], codes or [0] * len(ranks))
    for r in ranks:
        r.out.read_all(), r.err.read_all()
    equal(d.wait(), 0)
    result = step.result()
    cause = result.get("cause") or {}
    return result["state"], cause.get("kind"), cause.get("inferred", False)


def good_end(step, number=signal.SIGTERM):
    """All ranks get a signal, go on, and exit 0 after Slurm has answered."""
    d, ranks = running(step)
    signalled(ranks, number)
    has_heard(step)
    for r in ranks:
        r.exited(0)
    return ended(step, d, ranks)


def good_end_before_answer(step, answer):
    """All ranks get a signal and exit 0, all nodes say goodbye, and only then Slurm answers."""
    fifo = step.path("fifo")
    os.mkfifo(fifo)
    slurm_says(step, f"read -r line <{fifo}; echo \"$line\"")
    d, ranks = running(step)
    signalled(ranks)
    for r in ranks:
        r.exited(0)
        r.out.read_all(), r.err.read_all()
    with open(fifo, "w", encoding="utf-8") as f:  # opens once scontrol reads
        client = step.hub()
        client.send(type="snapshot")
        equal(client.expect("snapshot")["state"]["state"], "running")
        f.write(answer[6:-1] + "\n")
    for r in ranks:
        equal(r.expect("verdict")["code"], 0)
    equal(d.wait(), 0)
    equal(len(asks(step)), 1)
    cause = step.result().get("cause") or {}
    return step.result()["state"], cause.get("kind"), cause.get("inferred", False)


def test_survived_and_done(step):
    """A step that goes on after SIGTERM and exits 0 is done. One more question at its end is all, and one a second
    after the answer, if it lasts so long: two ranks report what may be two signals."""
    slurm_says(step, record())
    equal(good_end(step), ("done", None, False))
    assert len(asks(step)) <= 3, asks(step)
    equal([r.get("role") for r in step.load("status.json")["state"]["ranks"]], [None, None])
    equal([e for e in step.lines("events.jsonl") if e["type"] in ("cause", "teardown")], [])


def test_survived_and_cancelled_later(step):
    """scancel after a signal that the ranks have outlived: the result is there before Slurm's SIGKILL."""
    slurm_says(step, record(), record(state="COMPLETING"))
    d, ranks = running(step)
    signalled(ranks)
    has_heard(step)
    wait_for("the result", lambda: signalled(ranks) or os.path.exists(step.trial("result.json")))
    equal(len(asks(step)), 2)
    equal(step.result()["state"], "cancelled")
    for r in ranks:
        r.exited(signal_number=9)
    equal(ended(step, d, ranks, [137, 137]), ("cancelled", "cancelled", True))


def asks_again(step, d, rank):
    """The hub asks a second time, by itself: the result is there before Slurm's SIGKILL."""
    wait_for("the result", lambda: os.path.exists(step.trial("result.json")))
    equal(len(asks(step)), 2)
    rank.exited(signal_number=9)
    equal(ended(step, d, [rank], [137]), ("cancelled", "cancelled", True))


def test_survived_and_cancelled_at_once(step):
    """scancel right after Slurm has said that the job runs."""
    slurm_says(step, record(), record(state="COMPLETING"))
    d, ranks = running(step, 1)
    signalled(ranks)
    has_heard(step)
    signalled(ranks)
    asks_again(step, d, ranks[0])


def test_survived_and_cancelled_before_answer(step):
    """scancel while Slurm is still to answer what it was asked at the signal before."""
    fifo = step.path("fifo")
    os.mkfifo(fifo)
    slurm_says(step, f"read -r line <{fifo}; echo \"$line\"", record(state="COMPLETING"))
    d, ranks = running(step, 1)
    signalled(ranks)
    with open(fifo, "w", encoding="utf-8") as f:  # opens once scontrol reads
        signalled(ranks)
        client = step.hub()
        for _ in range(2):
            client.send(type="snapshot")
            client.expect("snapshot")
        f.write(record()[6:-1] + "\n")
    asks_again(step, d, ranks[0])


def test_survived_sigint_and_done(step):
    slurm_says(step, record())
    equal(good_end(step, signal.SIGINT), ("done", None, False))
    assert len(asks(step)) <= 3, asks(step)


def test_survived_done_before_answer(step):
    """The question that the signal led to is under way when all is over: there is no second one."""
    equal(good_end_before_answer(step, record()), ("done", None, False))


def test_survived_one_rank_signalled(step):
    """kill(1) of one rank's guard."""
    slurm_says(step, record())
    d, ranks = running(step, 3)
    signalled(ranks[1:2])
    has_heard(step)
    for r in ranks:
        r.exited(0)
    equal(ended(step, d, ranks), ("done", None, False))
    assert len(asks(step)) <= 2, asks(step)


def test_cancelled_before_the_ranks_start(step):
    """A real plrun that gets SIGTERM while it waits for other nodes says so: nobody has killed it."""
    slurm_says(step, record(state="COMPLETING"))
    step.nodes = step.tasks_per_node = 2
    step.use_hub_port()
    d = step.start(0)
    env = step.environment(0, SLURM_PROCID="1", SLURM_LOCALID="1", PLUME_TRACE=step.path("trace"))
    with open(step.path("said"), "wb") as said, subprocess.Popen(
            [PLRUN, "--", "sleep", "1000"], env=env, stdin=subprocess.DEVNULL, stdout=said,
            stderr=said) as plrun:
        wait_for("its hello", lambda: any(
            '"hello"' in open(step.path(f), encoding="utf-8").read().replace("\\", "")
            for f in os.listdir(step.dir) if f.startswith("trace")))
        plrun.terminate()
        equal(plrun.wait(harness.LIMIT), 128 + signal.SIGTERM)
    wait_for("the result", lambda: os.path.exists(step.trial("result.json")))
    d.kill()  # as Slurm does now
    result = step.result()
    equal((result["state"], result["cause"]["kind"]), ("cancelled", "cancelled"))


def plrun(step, program, *before, **more):
    """Runs `plrun -- bash -c program` to its end: its exit code, and what came out."""
    got = subprocess.run(
        [*before, more.pop("tool", PLRUN), "--", "bash", "-c", program],
        env=step.environment(0, SLURM_PROCID="0", SLURM_LOCALID="0"), stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=harness.LIMIT, check=False, **more)
    return got.returncode, got.stdout.decode()


def test_cancelled_as_the_daemon_starts(step):
    """A plrun that gets a signal before it has a daemon tells the daemon, too, and who sent it."""
    for number, state, kill in ((signal.SIGTERM, "cancelled", "kill"), (signal.SIGINT, "cancelled", "kill"),
                                (signal.SIGHUP, "failed", "kill"), (signal.SIGTERM, "failed", "/bin/kill")):
        with another_step() as own:
            slurm_says(own, record())
            shutil.copy(PLRUN, own.path("bin", "plrun"))
            with open(own.path("bin", "plrund"), "w", encoding="utf-8") as f:
                f.write(f"#!/bin/sh\n{kill} -{int(number)} $PPID\nexec {os.path.abspath(harness.PLRUND)} \"$@\"\n")
            os.chmod(own.path("bin", "plrund"), 0o755)
            code, said = plrun(own, "sleep 1000", tool=own.path("bin", "plrun"))
            equal((code, own.result()["state"], own.result()["exit_code"]),
                  (128 + number, state, 128 + number))


def test_suspended_as_the_daemon_starts(step):
    """Slurm does that by SIGTSTP and SIGCONT: they end nothing, and why the daemon has not started is said."""
    for name in "TSTP", "CONT", "WINCH":
        with another_step() as own:
            shutil.copy(PLRUN, own.path("bin", "plrun"))
            with open(own.path("bin", "plrund"), "w", encoding="utf-8") as f:
                f.write(f"#!/bin/sh\n[ $1 = --unable ] || kill -{name} $PPID\nexit 1\n")
            os.chmod(own.path("bin", "plrund"), 0o755)
            code, said = plrun(own, "true", tool=own.path("bin", "plrun"))
            equal((name, code), (name, 1))
            assert "node daemon" in said, said


def test_daemon_gone_before_the_verdict(step):
    """A rank that ended well, but of which nobody knows: its plrun does not report success."""
    program = "trap 'exit 0' TERM; kill -KILL $(cat daemon); while :; do sleep 0.05; done"
    shutil.copy(PLRUN, step.path("bin", "plrun"))
    with open(step.path("bin", "plrund"), "w", encoding="utf-8") as f:
        f.write(f"#!/bin/sh\necho $$ >daemon\nexec {os.path.abspath(harness.PLRUND)} \"$@\"\n")
    os.chmod(step.path("bin", "plrund"), 0o755)
    code, said = plrun(step, program, tool=step.path("bin", "plrun"), cwd=step.dir)
    equal(code, 1)
    assert "the node daemon is gone" in said, said


def state_of_two(step, program):
    """The state of a step whose rank 0 runs the program, and ends with an error that looks like an echo, while
    rank 1 goes on: the hub waits two seconds for what may come from it, and for Slurm's answer as long. Of a
    node that has left it waits a tenth of a second."""
    came = step.path("came")
    both = (f"[ $RANK = 0 ] || {{ echo >{came}; exec sleep 1000; }}; until [ -e {came} ]; do :; done; "
            f"{program}; echo Broken pipe >&2; exit 9")
    with subprocess.Popen([PLRUN, "--tasks", "2", "--", PLRUN, "--", "bash", "-c", both],
                          env=step.environment(0), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                          stderr=subprocess.DEVNULL, start_new_session=True) as tasks:
        try:
            wait_for("the result", lambda: os.path.exists(step.trial("result.json")))
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(tasks.pid, signal.SIGTERM)  # Slurm ends rank 1, too, where it ends the job
        try:
            tasks.wait(harness.LIMIT)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(tasks.pid, signal.SIGKILL)
    return step.result()["state"]


def test_failed_just_before_scancel(step):
    """A rank without a handler of SIGTERM cannot have exited because of it; others may have."""
    # plrun looks at the rank before it passes the signal on. A shell that forks blocks SIGTERM.
    looked = "trap got=1 WINCH; kill -WINCH $PPID; until [ \"$got\" ]; do :; done"
    for program, state in ((looked, "failed"), (f"trap : TERM; {looked}", "cancelled"),
                           (f"trap '' TERM; {looked}", "cancelled"),
                           (f"trap : TERM; {looked}; trap - TERM", "cancelled")):  # as Python does at its end
        with another_step() as own:
            slurm_says(own, record(state="COMPLETING"))
            equal((program, state_of_two(own, program)), (program, state))


def test_good_end_just_before_the_signal(step):
    """Slurm signals the program before its plrun: one that handles SIGTERM may have left because of it."""
    for program, state, n in (("trap 'exit 0' TERM; kill $$", "cancelled", 1), ("trap '' TERM", "cancelled", 1),
                              ("trap 'exit 0' USR1", "cancelled", 1), ("trap 'exit 0' INT", "done", 0)):
        with another_step() as own:
            slurm_says(own, record(state="COMPLETING"))
            code, said = plrun(own, program)
            equal((program, code, own.result()["state"], len(asks(own))), (program, 0, state, n))


def test_preempted_by_the_users_signal(step):
    """PreemptParameters=send_user_signal: a rank that saves at SIGUSR1 gets no SIGTERM."""
    looked = "trap got=1 WINCH; kill -WINCH $PPID; until [ \"$got\" ]; do :; done"
    slurm_says(step, record(preempt="2026-11-26T10:00:00"))
    equal(state_of_two(step, f"trap : USR1; {looked}"), "preempted")


def test_stopped_plrun_goes_on(step):
    """Somebody has stopped it, and its rank has ended: the step would last up to its time limit."""
    code, said = plrun(step, "kill -STOP $PPID; exit 3")
    equal((code, step.result()["state"], step.result()["cause"]["exit"]), (3, "failed", 3))
    assert "plrun of rank 0 is stopped, and the rank has ended: plrun goes on" in said, said


def test_plrun_stopped_before_it_names_its_rank(step):
    """The daemon then knows of a child that has ended, and no more."""
    d = step.start()
    guard = os.fork()
    if guard == 0:
        with contextlib.suppress(Exception):
            r = d.rank("starter", 0)
            r.expect("world")
            if os.fork() == 0:
                os._exit(3)
            os.kill(os.getpid(), signal.SIGSTOP)
            r.exited(3)
            r.expect("verdict")
        os._exit(0)
    try:
        d.wait()
        equal((step.result()["state"], step.result()["cause"]["exit"]), ("failed", 3))
        assert "plrun of rank 0 is stopped, and the rank has ended: plrun goes on" in d.said(), d.said()
    finally:
        os.kill(guard, signal.SIGKILL)
        os.waitpid(guard, 0)


def test_signal_as_the_rank_is_made(step):
    """Slurm signals every process, and there is no rank yet: its plrun passes the signal on."""
    library, flag = os.environ.get("FAKE_PENDING"), step.path("looks")
    if not library:
        print("# skipped: nothing can be preloaded")
        return
    env = step.environment(0, SLURM_PROCID="0", SLURM_LOCALID="0", LD_PRELOAD=library, FAKE_PENDING=flag)
    stepd = os.fork()
    if stepd == 0:
        code = 99
        with contextlib.suppress(Exception):
            with open("/proc/self/comm", "w", encoding="ascii") as f:
                f.write("slurmstepd")
            with subprocess.Popen([PLRUN, "--", "sleep", "10"], env=env, stdin=subprocess.DEVNULL) as process:
                wait_for("its look", lambda: os.path.exists(flag))
                process.send_signal(signal.SIGHUP)
                code = process.wait(harness.LIMIT)
        os._exit(code)
    equal(os.WEXITSTATUS(os.waitpid(stepd, 0)[1]), 128 + signal.SIGHUP)


def test_a_rank_signals_its_group(step):
    """As a script does that has `kill 0` in a trap of EXIT: its plrun gets the signal, too, and nobody has cancelled it."""
    for number, program in ((signal.SIGTERM, "trap 'kill 0' EXIT; exit 3"), (signal.SIGINT, "kill -INT 0; sleep 60"),
                            (signal.SIGTERM, "trap 'kill 0; /bin/kill 0' EXIT; exit 3"),
                            (signal.SIGTERM, "trap 'kill 0' EXIT; sleep 30 & exit 3")):
        with another_step() as own:
            slurm_says(own, record())
            code, _ = plrun(own, program, process_group=0)
            cause = own.result()["cause"]
            equal((own.result()["state"], cause["kind"], cause.get("signal"), code),
                  ("failed", "signal", int(number), 128 + number))


def test_who_has_signalled_a_plrun(step):
    """A signal of a rank's process is no order. Nor is one of a process that is gone: slurmstepd cancels steps, and
    lives until the step has ended. The numbers of another PID namespace tell nothing."""
    gone = subprocess.Popen(["true"])
    gone.wait()
    inside = step.keep(harness.Task(signal.SIG_DFL))
    for sender, pid, state in ((gone.pid, None, "failed"), (inside.pid, None, "failed"), (os.getppid(), None, "cancelled"),
                               (gone.pid, 7, "cancelled")):
        with another_step() as own:
            slurm_says(own, record())
            own.tasks_per_node = 2
            d = own.start()
            ranks = [own.keep(d.rank("starter", i, local_rank=i, pid=pid)) for i in range(2)]
            for r in ranks:
                r.expect("world")
                r.send(type="spawned", pid=os.getpid())
                r.send(type="signalled", signal=15, sender=sender)
            for r in ranks:
                r.exited(signal_number=15)
            for r in ranks:
                r.expect("verdict")
            equal((d.wait(), own.result()["state"]), (0, state))


def test_nohup(step):
    """SIGHUP stays ignored in plrun and in its program."""
    def ignore():
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    equal(plrun(step, "kill -HUP $PPID $$; echo lives", preexec_fn=ignore), (0, "lives\n"))
    with another_step() as own:
        program = "kill -HUP $PPID $$ $(ps -o ppid= $PPID); echo lives"
        equal(plrun(own, program, PLRUN, "--tasks", "1", "--", preexec_fn=ignore), (0, "lives\n"))


# Of scancel -s: those that end a process which does not expect them. Slurm may send them to every process.
RARE = ("ALRM", "ABRT", "XCPU", "VTALRM", "PROF", "IO", "PWR")


def test_rare_signals_end_no_daemon(step):
    """Neither plrund nor what it has started: they must report how the ranks end."""
    d, ranks = running(step)
    pids = [d.process.pid, *children_of(d.process.pid)]
    assert len(pids) > 2, pids
    for name in RARE:
        for pid in pids:
            os.kill(pid, getattr(signal, f"SIG{name}"))
    for r in ranks:
        r.send(type="exited", status=0)
    equal(ended(step, d, ranks)[0], "done")


def test_rare_signals_reach_the_rank(step):
    """Where Slurm signals the tasks alone, plrun passes them on."""
    for name in RARE:
        with another_step() as own:
            code, said = plrun(own, f"trap 'exit 5' {name}; kill -{name} $PPID; while :; do sleep 0.05; done")
            equal((name, code, own.result()["cause"]["kind"]), (name, 5, "exit"))
    with another_step() as own:
        code, said = plrun(own, "kill -ABRT $PPID; while :; do sleep 0.05; done", preexec_fn=no_core)
        equal((code, own.result()["cause"]["signal_name"]), (128 + signal.SIGABRT, "SIGABRT"))


def test_plrun_outlives_that_its_output_is_full(step):
    """It warns of a variable, and the job's output is as large as a file may be."""
    limit = 1 << 20
    with open(step.path("output"), "ab") as f:
        f.truncate(limit)
        got = subprocess.run([PLRUN, "--", "true"], stdin=subprocess.DEVNULL, stdout=f, stderr=f, timeout=harness.LIMIT,
                             env=step.environment(0, SLURM_PROCID="0", SLURM_LOCALID="0", PLUME_TYPO="1"), check=False,
                             preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY)))
    equal((got.returncode, step.result()["state"]), (0, "done"))


def no_core():
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def children_of(pid):
    with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as f:
        return [int(word) for word in f.read().split()]


def test_interrupted_in_a_terminal(_step):
    """Ctrl-C reaches plrun and its rank, which is in its process group: plrun does not pass it on."""
    for more in ({}, {"PLUME_SAVE_COMMAND": ":"}):
        with another_step() as own:
            interrupt_in_a_terminal(own, more)


def interrupt_in_a_terminal(step, more):
    program = step.path("counts.py")
    with open(program, "w", encoding="ascii") as f:
        f.write("import signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])\n"
                "open('up', 'w').close()\nsignal.sigwait([signal.SIGINT])\n"
                "open('twice' if signal.sigtimedwait([signal.SIGINT], 1) else 'once', 'w').close()\n")
    slurm_says(step, record())
    master, slave = pty.openpty()
    with subprocess.Popen([PLRUN, "--tasks", "1", "--", PLRUN, "--", sys.executable, program], stdin=slave,
                          stdout=slave, stderr=slave, start_new_session=True, cwd=step.dir,
                          env=step.environment(0, **more),
                          preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0)) as tasks:
        try:
            wait_for("the rank", lambda: os.path.exists(step.path("up")))
            os.write(master, b"\x03")
            tasks.wait(harness.LIMIT)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(tasks.pid, signal.SIGKILL)
            os.close(master), os.close(slave)
    assert os.path.exists(step.path("once"))


def test_terminal_goes_away(step):
    """The kernel sends SIGHUP to the session's leader alone, here plrun: its rank gets it from there."""
    program = step.path("hangs-up.py")
    with open(program, "w", encoding="ascii") as f:
        f.write("import signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGHUP])\n"
                "open('up', 'w').close()\n"
                f"signal.sigtimedwait([signal.SIGHUP], {harness.LIMIT}) and open('hung-up', 'w').close()\n")
    slurm_says(step, record())
    master, slave = pty.openpty()
    with subprocess.Popen([PLRUN, "--", sys.executable, program], stdin=slave, stdout=subprocess.DEVNULL,
                          stderr=subprocess.DEVNULL, start_new_session=True, cwd=step.dir,
                          env=step.environment(0, SLURM_PROCID="0", SLURM_LOCALID="0"), preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0)) as leader:
        try:
            os.close(slave)
            wait_for("the rank", lambda: os.path.exists(step.path("up")))
            os.close(master)
            wait_for("SIGHUP in the rank", lambda: os.path.exists(step.path("hung-up")))
            leader.wait(harness.LIMIT)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(leader.pid, signal.SIGKILL)


def stopped_as_it_starts(step, n):
    """A plrun --tasks that is stopped before it has made all of its n tasks, each a line in the file `ran`."""
    for _ in range(20):
        tasks = subprocess.Popen([PLRUN, "--tasks", str(n), "--", "sh", "-c", "echo >>ran; exec sleep 1000"],
                                 env=step.environment(0), cwd=step.dir, stdin=subprocess.DEVNULL, start_new_session=True)
        children = f"/proc/{tasks.pid}/task/{tasks.pid}/children"
        wait_for("a task", lambda: open(children, encoding="ascii").read())
        tasks.send_signal(signal.SIGSTOP)
        wait_for("its stop", lambda: status_of(tasks.pid, "State") == "T")
        with open(children, encoding="ascii") as f:
            if len(f.read().split()) < n:
                return tasks
        os.killpg(tasks.pid, signal.SIGKILL)
        tasks.wait()
    raise AssertionError("it makes its tasks too fast")


def test_signal_before_all_tasks_exist(step):
    """Those that exist die of it: the others would wait for them up to PLUME_LAUNCH_TIMEOUT."""
    for number in signal.SIGTERM, signal.SIGINT, signal.SIGUSR1:
        tasks = stopped_as_it_starts(step, 500)
        try:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(step.path("ran"))
            os.killpg(tasks.pid, number)
            os.killpg(tasks.pid, signal.SIGCONT)
            equal(tasks.wait(harness.LIMIT), 128 + number)
            assert not os.path.exists(step.path("ran"))
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(tasks.pid, signal.SIGKILL)
            tasks.wait()


def test_task_killed_before_all_tasks_exist(step):
    """As by the kernel, for want of memory: the others would wait for it as long."""
    tasks = stopped_as_it_starts(step, 500)
    try:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(step.path("ran"))
        with open(f"/proc/{tasks.pid}/task/{tasks.pid}/children", encoding="ascii") as f:
            os.kill(int(f.read().split()[0]), signal.SIGKILL)
        tasks.send_signal(signal.SIGCONT)
        equal(tasks.wait(harness.LIMIT), 128 + signal.SIGKILL)
        assert not os.path.exists(step.path("ran"))
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(tasks.pid, signal.SIGKILL)
        tasks.wait()


def status_of(pid, name):
    with open(f"/proc/{pid}/status", encoding="ascii") as f:
        return next(line.split()[1] for line in f if line.startswith(name + ":"))


def is_helper(pid, daemon):
    """Whether the process is the daemon's helper or prober."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as f:
            words = f.read().split(b"\0")
        return {b"--helper", b"--prober"} & set(words) and status_of(pid, "PPid") == str(daemon.process.pid)
    except OSError:
        return False


def test_daemon_and_scontrol_are_confined(step):
    """A scontrol that is bad, as a daemon in a stranger's hand, writes to the socket's folder only."""
    for mode, filtered in ("require", "2"), ("off", "0"):
        with another_step() as own:
            inside, outside = own.path("run-0", "asks"), own.path("outside")
            own.scontrol(f"echo x >{outside}; echo $$ >>{inside}; {record()}")
            try:
                d, ranks = running(own, PLUME_CONFINE=mode)
            except AssertionError as e:
                if "no landlock" in str(e):
                    continue  # this kernel
                raise
            equal(status_of(d.process.pid, "Seccomp"), filtered)
            if mode == "require":
                equal(status_of(d.process.pid, "NoNewPrivs"), "1")
            signalled(ranks)
            has_heard(own)
            equal(os.path.exists(outside), mode == "off")
            for r in ranks:
                r.exited(signal_number=15)


def test_stopped_helpers_end_with_the_daemon(step):
    """Nothing stays on a node because a user has stopped it."""
    d, _ = running(step, PLUME_CONFINE="auto")
    helpers = [int(pid) for pid in os.listdir("/proc") if pid.isdigit() and is_helper(pid, d)]
    equal(len(helpers), 2)
    fds = [os.pidfd_open(pid) for pid in helpers]
    for pid in helpers:
        # It has asked the kernel for a signal at the daemon's end, and waits for work.
        harness.wait_for("a helper waits", lambda pid=pid: status_of(pid, "State") == "S")
        os.kill(pid, signal.SIGSTOP)
    try:
        d.process.kill()
        for fd in fds:
            readable, _, _ = select.select([fd], [], [], harness.LIMIT)
            assert readable, "the helper or the prober is still there"
    finally:
        for pid, fd in zip(helpers, fds):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            os.close(fd)


def test_stopped_helpers_do_not_keep_the_step(step):
    """Under the plugin the daemon waits for its helper's answer before the step ends: for 10 s at most."""
    step.env["PLUME_PLUGIN"] = "1"
    d = step.start(PLUME_CONFINE="auto")
    with subprocess.Popen(["sleep", "infinity"]) as task:
        r = d.rank("starter", 0, guarded=False, pid=task.pid)
        r.expect("world")
        r.close()
        d.control.send(type="spawned", rank=0, pid=task.pid)
        helpers = [int(pid) for pid in os.listdir("/proc") if pid.isdigit() and is_helper(pid, d)]
        equal(len(helpers), 2)
        for pid in helpers:
            os.kill(pid, signal.SIGSTOP)
        task.kill()
    d.control.send(type="exited", rank=0, status=0, at_ns=1)
    equal(d.wait(), 0)
    equal(step.result()["state"], "done")
    assert "does not end the orphans" not in d.said(), d.said()


def test_confinement_bad_value(step):
    d = step.launch(PLUME_CONFINE="strict")
    equal(d.control.receive(), {"type": "failed",
                                "text": "PLUME_CONFINE is 'strict': use auto, off or require"})
    equal(d.wait(), 1)


def test_site_decides(step):
    """plume.conf wins over the environment; a file that others may write ends the daemon."""
    conf = step.path("plume.conf")
    with open(conf, "w", encoding="ascii") as f:
        f.write("confine = off\nnccl_ras = off\n")
    os.chmod(conf, 0o644)
    d, ranks = running(step, PLUME_CONFINE="require", PLUME_SITE_CONF=conf)
    equal(status_of(d.process.pid, "Seccomp"), "0")
    for r in ranks:
        assert "NCCL_RAS_ENABLE=0" in r.world["env"], r.world
        r.exited()
    equal(d.wait(), 0)
    os.chmod(conf, 0o666)
    d = step.launch(PLUME_SITE_CONF=conf)
    assert d.wait() != 0 and "nobody else may write to it" in d.said()
    assert "nobody else may write to it" in d.control.receive()["text"]  # the plugin shows it


def test_code_of_a_cancelled_step(step):
    """srun reports the highest code of all ranks, and the result has the same."""
    for statuses in (15, 15), (3 << 8, 15), (3 << 8, 3 << 8), (2, 2), (0, 4 << 8):
        with another_step() as own:
            slurm_says(own, record())
            d, ranks = running(own)
            signalled(ranks, 2 if statuses[0] == 2 else 15)
            for r, status in zip(ranks, statuses):
                r.out.end(), r.err.end()
                r.exited(status >> 8, status & 127)
            codes = [s >> 8 or (s and 128 + s) for s in statuses]
            equal(ended(own, d, ranks, codes)[0], "cancelled")
            equal(own.result()["exit_code"], max(codes))


def test_survived_on_two_nodes(step):
    slurm_says(step, record())
    step.nodes = 2
    step.use_hub_port()
    daemons = [step.start(0), step.start(1)]
    ranks = [step.keep(d.rank("starter", i, capture=True)) for i, d in enumerate(daemons)]
    for r in ranks:
        r.expect("world")
        r.send(type="spawned", pid=os.getpid())
    signalled(ranks)
    has_heard(step)
    for r in ranks:
        r.exited(0)
    equal(ended(step, daemons[0], ranks), ("done", None, False))
    equal(daemons[1].wait(), 0)
    assert len(asks(step)) <= 2, asks(step)


def test_program_says_signalled(step):
    """The line of a program holds nothing up, and costs no question to Slurm."""
    slurm_says(step, record())
    d, ranks = running(step)
    program = step.keep(d.rank("program", 1))
    for _ in range(500):
        program.send(type="signalled", signal=15)
        program.expect("error")
    for r in ranks:
        r.exited(0)
    equal(ended(step, d, ranks), ("done", None, False))
    equal(asks(step), [])


def test_survived_past_the_limit(step):
    """The time limit is over, but Slurm lets the job run on: nobody has ended these ranks."""
    slurm_says(step, record(), record(ran="01:00:03", limit="01:00:00"))
    equal(good_end(step), ("done", None, False))
    assert len(asks(step)) <= 2, asks(step)


def test_survived_signal_past_the_limit(step):
    """The same, with a signal after the limit."""
    slurm_says(step, record(ran="01:00:03", limit="01:00:00"))
    equal(good_end(step), ("done", None, False))
    assert len(asks(step)) <= 2, asks(step)


def test_survived_past_the_limit_before_answer(step):
    said = record(ran="01:00:03", limit="01:00:00")
    equal(good_end_before_answer(step, said), ("done", None, False))


def test_survived_slurm_silent(step):
    """Without an answer a good end is a good end."""
    slurm_says(step, "exit 1")
    equal(good_end(step), ("done", None, False))
    assert len(asks(step)) <= 8, asks(step)  # four tries for each of two questions


def test_survived_slurm_hangs(step):
    slurm_says(step, "exec sleep 1000")
    d, ranks = running(step)
    signalled(ranks)
    wait_for("scontrol", lambda: asks(step))
    for r in ranks:
        r.exited(0)
    equal(ended(step, d, ranks), ("done", None, False))
    equal(len(asks(step)), 1)


def test_survived_then_job_completes(step):
    """A later signal was meant: the job does not complete by itself while plrun waits for the hub."""
    slurm_says(step, record(), record(state="COMPLETING"))
    equal(good_end(step), ("cancelled", "cancelled", True))


def test_survived_then_preempted(step):
    """A later signal was meant: the ranks saved and left, and Slurm runs the trial again."""
    slurm_says(step, record(), record(state="COMPLETING", restarts=1))
    equal(good_end(step), ("preempted", "preempted", False))


def test_survived_then_out_of_time(step):
    """Slurm itself ended the job by its limit after a first signal had been only a signal."""
    slurm_says(step, record(), record(state="COMPLETING", ran="01:00:03", limit="01:00:00"))
    equal(good_end(step), ("timed-out", "timeout", False))


def test_left_with_0_as_slurm_ends_the_job(step):
    """Slurm had begun to end the job when it sent the signal: what was saved is not the end of it."""
    for name, said, want in (
            ("preempted", record(preempt="2026-01-01T00:00:00"), ("preempted", "preempted", False)),
            ("limit", record(state="COMPLETING", ran="01:00:03"), ("timed-out", "timeout", False)),
            ("word", record(state="TIMEOUT"), ("timed-out", "timeout", False)),
            ("scancel", record(state="CANCELLED"), ("cancelled", "cancelled", False)),
            ("ending", record(state="COMPLETING"), ("cancelled", "cancelled", True))):
        with another_step() as one:
            slurm_says(one, said)
            equal((name, *good_end(one)), (name, *want))
        with another_step() as one:
            equal((name, *good_end_before_answer(one, said)), (name, *want))


def end_after_signal(step, said, how):
    """After the signal and Slurm's answer the ranks end as `how` says: arguments of exited()."""
    slurm_says(step, said)
    d, ranks = running(step, len(how))
    signalled(ranks)
    has_heard(step)
    for r, (code, number) in zip(ranks, how):
        r.exited(code, number)
    got = ended(step, d, ranks, [128 + number if number else code for code, number in how])
    assert len(asks(step)) <= 2, asks(step)
    return got


def test_survived_by_some(step):
    """One rank exits 0, the signal kills the other: Slurm's word decides, or else the signal."""
    for said, want in ((record(), ("cancelled", "cancelled", False)),
                       (record(ran="01:00:03"), ("timed-out", "timeout", False)),
                       (record(preempt="2026-01-01T00:00:00"), ("preempted", "preempted", False))):
        for how in ([(0, 0), (0, 15)], [(0, 15), (0, 0)]):
            with another_step() as one:
                equal(end_after_signal(one, said, how), want)


def test_survived_then_failed(step):
    """Ranks that exit with an error after the signal: Slurm's word decides, or else they count as
    ended by whoever sent it."""
    for said, code, want in ((record(), 130, ("cancelled", "cancelled", False)),
                             (record(), 9, ("cancelled", "cancelled", True)),
                             (record(ran="01:00:03"), 130, ("timed-out", "timeout", False))):
        with another_step() as one:
            equal(end_after_signal(one, said, [(code, 0), (code, 0)]), want)


harness.main(globals())
