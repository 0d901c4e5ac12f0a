#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""PLUME_SAVE_COMMAND: when a rank's command to save runs, and what its program gets. plrun --tasks starts the ranks, as
srun does. Argument: the build folder."""
import os
import re
import signal
import subprocess
import sys
import tempfile
import time

BUILD = os.path.abspath(sys.argv[1])
LIMIT_S = 100
# argv[1]: what the program does at SIGTERM. It writes what it is told, and its pid last.
PROGRAM = r"""
import os, signal, sys
def told(*_):
    with open("told", "a") as f:
        f.write("TERM after " + ",".join(sorted(n for n in os.listdir() if n.startswith("saved"))) + "\n")
    if sys.argv[1] == "leave":
        os._exit(0)
if sys.argv[1] == "exit":
    sys.exit(7)
if sys.argv[1] == "fail" and os.environ["RANK"] == "1":
    while not os.path.exists("pid-0"):
        pass
    sys.exit(3)
if sys.argv[1] != "die":
    signal.signal(signal.SIGTERM, told)
new = "new-" + os.environ["RANK"]
with open(new, "w") as f:
    f.write(f"{os.getpid()} {os.environ.get('PLUME_SAVE_COMMAND')}")
os.rename(new, "pid-" + os.environ["RANK"])
while True:
    signal.pause()
"""


def await_file(path):
    """Its text, once it is there."""
    limit = time.monotonic() + LIMIT_S
    while not os.path.exists(path):
        assert time.monotonic() < limit, f"no {path}"
        time.sleep(0.01)
    with open(path, encoding="utf-8") as f:
        return f.read()


def parent(pid):
    with open(f"/proc/{pid}/stat", encoding="utf-8") as f:
        return int(f.read().rpartition(")")[2].split()[1])


class Step:
    """A step of Plume's own in a folder of its own."""

    def __init__(self, top, command, does, ranks=1, program=None, **env):
        self.folder = tempfile.mkdtemp(dir=top)
        with open(f"{self.folder}/prog.py", "w", encoding="utf-8") as f:
            f.write(PROGRAM)
        self.process = subprocess.Popen(
            [f"{BUILD}/plrun", f"--tasks={ranks}", "--", f"{BUILD}/plrun", "--",
             *(program or [sys.executable, "prog.py", does])],
            cwd=self.folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={"PATH": "/usr/bin:/bin", "HOME": top, "PLUME_HOME": top, "PLUME_RUNTIME_DIR": f"{top}/r",
                 "SLURM_JOB_ID": "8", "PLUME_SAVE_COMMAND": command, **{k: v for k, v in os.environ.items() if k.endswith("SAN_OPTIONS")}, **env})

    def started(self):
        pid, command = await_file(f"{self.folder}/pid-0").split()
        assert command == "None", command  # a step of the program's own is not saved by it
        self.program = int(pid)
        self.starter = parent(parent(self.program))

    def path(self, name):
        return f"{self.folder}/{name}"

    def ended(self):
        """Exit code, the lines on stderr of plrun about the command."""
        out, err = self.process.communicate(timeout=LIMIT_S)
        return self.process.returncode, [line for line in (out + err).splitlines() if "save command" in line]

    def told(self):
        return open(self.path("told"), encoding="utf-8").read() if os.path.exists(self.path("told")) else ""


def equal(a, b):
    assert a == b, f"{a!r} is not {b!r}"


SAVES = "echo \"$1 $RANK $PLUME_SAVE_PID\" >saved.new; mv saved.new saved-$1"


def test_usr1_saves_and_the_program_runs_on(top):
    step = Step(top, SAVES, "die")
    step.started()
    os.kill(step.starter, signal.SIGUSR1)
    equal(await_file(step.path("saved-USR1")), f"USR1 0 {step.program}\n")
    os.kill(step.program, 0)
    os.unlink(step.path("saved-USR1"))
    limit = time.monotonic() + LIMIT_S
    while not os.path.exists(step.path("saved-USR2")):  # as long as the first command runs, it counts for all signals
        assert time.monotonic() < limit
        os.kill(step.starter, signal.SIGUSR2)
        time.sleep(0.05)
    os.kill(step.starter, signal.SIGTERM)  # soon after one that has succeeded: not again
    equal(step.ended(), (128 + signal.SIGTERM, []))
    assert not os.path.exists(step.path("saved-TERM"))


def test_term_saves_before_the_program_gets_it(top):
    step = Step(top, f"[ ! -e told ]; {SAVES}", "leave")
    step.started()
    os.kill(step.starter, signal.SIGTERM)
    equal(step.ended(), (0, []))
    equal(step.told(), "TERM after saved-TERM\n")


def test_a_failed_command_is_told_and_runs_again(top):
    step = Step(top, f"{SAVES}; [ $1 = TERM ] || exit 9", "leave")
    step.started()
    os.kill(step.starter, signal.SIGUSR1)
    await_file(step.path("saved-USR1"))
    os.kill(step.starter, signal.SIGTERM)  # it may still run: then it is not started again
    code, lines = step.ended()
    equal(code, 0)
    assert lines and all(line.startswith("plrun: exit code 9 of the save command: echo ") for line in lines), lines
    assert step.told().startswith("TERM after saved-"), step.told()


def test_the_grace_ends_the_command(top):
    step = Step(top, "echo >saved-now; tail -f /dev/null; true", "leave", PLUME_SAVE_GRACE="0.2")
    step.started()
    os.kill(step.starter, signal.SIGTERM)
    code, lines = step.ended()
    equal(code, 0)
    equal(len(lines), 2)
    assert re.fullmatch(r"plrun: the save command has not ended after 0.2 s and is ended: echo .*", lines[0]), lines
    assert lines[1].startswith("plrun: signal 15 ended the save command: echo "), lines
    equal(step.told(), "TERM after saved-now\n")


def test_a_program_that_ignores_term_is_saved_and_killed(top):
    step = Step(top, SAVES, "stay", PLUME_KILL_GRACE=str(LIMIT_S))
    step.started()
    os.kill(step.starter, signal.SIGTERM)
    equal(await_file(step.path("saved-TERM")), f"TERM 0 {step.program}\n")
    await_file(step.path("told"))
    os.kill(parent(step.program), signal.SIGKILL)  # the program goes with the process that saves it
    equal(step.ended(), (128 + signal.SIGKILL, []))
    assert not os.path.exists(f"/proc/{step.program}")


def test_a_saved_program_that_ignores_term_is_killed(top):
    step = Step(top, SAVES, "stay", PLUME_KILL_GRACE="0.2")
    step.started()
    os.kill(step.starter, signal.SIGTERM)
    code, lines = step.ended()
    equal(code, 128 + signal.SIGKILL)
    equal(lines, ["plrun: the program has not ended 0.2 s after SIGTERM, which came after the save command, and is killed"])
    equal(step.told(), "TERM after saved-TERM\n")
    assert not os.path.exists(f"/proc/{step.program}")


def test_another_rank_failed_does_not_save(top):
    step = Step(top, SAVES, "fail", ranks=2, PLUME_KILL_GRACE="0.5")
    equal(step.ended(), (3, []))
    equal(step.told(), "TERM after \n")


def test_a_rank_saves_on_after_another_has_left(top):
    # Rank 0 saves for four times the grace: nothing happens that a test could wait for.
    slow = "[ $RANK = 1 ] || { echo >waits-$1; sleep 4; touch saved-slowly; }"
    step = Step(top, slow, "die", ranks=2, PLUME_KILL_GRACE="1")
    step.started()
    await_file(step.path("pid-1"))
    os.kill(step.starter, signal.SIGTERM)
    await_file(step.path("waits-TERM"))
    with open(step.path("pid-1"), encoding="utf-8") as f:
        os.kill(parent(parent(int(f.read().split()[0]))), signal.SIGTERM)
    equal(step.ended(), (128 + signal.SIGTERM, []))
    assert os.path.exists(step.path("saved-slowly"))


def test_exit_codes(top):
    equal(Step(top, "true", "exit").ended(), (7, []))
    step = Step(top, "true", "", program=["./nothing"])
    equal(step.process.communicate(timeout=LIMIT_S)[1], "plrun: cannot run './nothing': No such file or directory\n")
    equal(step.process.returncode, 127)
    equal(Step(top, "true", "", program=["sh", "-c", "kill -QUIT $$"]).ended(), (128 + signal.SIGQUIT, []))


def main():
    tests = [(name, f) for name, f in globals().items() if name.startswith("test_") and name.find(*sys.argv[2:] or [""]) >= 0]
    print(f"1..{len(tests)}")
    for number, (name, f) in enumerate(tests, 1):
        with tempfile.TemporaryDirectory(prefix="plume-save-") as top:
            f(top)
        print(f"ok {number} {name[5:].replace('_', ' ')}", flush=True)


main()
