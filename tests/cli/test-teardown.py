#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""plsubmit --teardown: the job script runs here, with the real plrun and a stand-in for srun. Argument: the build
folder."""
import json
import os
import subprocess
import sys
import tempfile

BUILD = os.path.abspath(sys.argv[1])
COMMANDS = ["echo \"1: $1 $PLUME_TRIAL $FROM_SETUP it's\" >>told", "echo lost; exit 9", "cat >>told",
            "kill -TERM $$", "echo '4: '\"last\" >>told; unset PLUME_BIN"]


def run(top, code, setup):
    """One job; its result, what the commands wrote, and its output."""
    env = {"PATH": f"{top}/fakes:{BUILD}:/usr/bin:/bin", "HOME": top, "PLUME_HOME": top, "LC_ALL": "C.UTF-8",
           **{k: v for k, v in os.environ.items() if k.endswith("SAN_OPTIONS")}}
    options = [w for command in COMMANDS for w in ("--teardown", command)]
    made = subprocess.run(["plsubmit", "--no-submit", "--parsable", "--setup", setup, *options, "--grid", "a=1,2", "true"],
                          cwd=top, env=env, capture_output=True, text=True, timeout=60, check=False)
    if made.returncode:
        raise AssertionError(made.stderr)
    folder = made.stdout.split(";")[1].strip()
    told = os.path.join(top, "told")
    if os.path.exists(told):
        os.unlink(told)
    job = subprocess.run(["bash", f"{folder}/job.sh", "0"], cwd=top, stdin=subprocess.DEVNULL, capture_output=True,
                         text=True, timeout=60, check=False,
                         env={**env, "SLURM_JOB_ID": "8", "SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "1",
                              "CODE": str(code)})
    with open(f"{folder}/trial-0001/result.json") as f:
        result = json.load(f)
    with open(told) as f:
        return result, f.read(), job


def main():
    ended = "1: 3 1 x it's\n4: last\n"
    cases = [(3, "export FROM_SETUP=x", ended, "failed"), (0, "exit 5", "1: 5 1  it's\n4: last\n", "failed"),
             (3, "trap 'echo mine $? >>told' EXIT; export FROM_SETUP=x", "mine 3\n" + ended, "failed"),
             (3, "trap 'exit 9' EXIT; trap '(exit 8)' EXIT; export FROM_SETUP=x", ended, "failed"),
             (3, "export FROM_SETUP=x; trap - EXIT", ended, "failed"),
             (0, "trap 'echo mine >>told; plume_end' EXIT; ! true", "mine\n1: 1 1  it's\n4: last\n", "failed")]
    print(f"1..{len(cases) + 1}")
    with tempfile.TemporaryDirectory(prefix="plume-teardown-") as top:
        os.mkdir(f"{top}/fakes")
        for name, text in {"srun": "exit \"$CODE\"", "scontrol": "exit 1", "squeue": "exit 1"}.items():
            with open(f"{top}/fakes/{name}", "w") as f:
                f.write(f"#!/bin/sh\n{text}\n")
            os.chmod(f.name, 0o755)
        for number, (code, setup, want, state) in enumerate(cases, 1):
            result, told, job = run(top, code, setup)
            said = [line for line in job.stderr.splitlines() if "tear-down" in line]
            ok = told == want and result["exit_code"] == job.returncode == int(want.split("1: ")[1][0]) and result["state"] == state and \
                said == ["exit code 9 of the tear-down: echo lost; exit 9",
                         "exit code 143 of the tear-down: kill -TERM $$"]
            if not ok:
                print(f"# {told!r} {result} {job}")
            print(f"{'ok' if ok else 'not ok'} {number} after {setup}")
            if not ok:
                sys.exit(1)
        bad = subprocess.run([f"{BUILD}/plsubmit", "--teardown", "echo 'a", "--dry-run", "sh"], cwd=top, timeout=60,
                             capture_output=True, text=True, check=False)
        ok = bad.returncode == 2 and "--teardown 'echo 'a': bash: " in bad.stderr
        print(f"# {bad}" if not ok else "", f"{'ok' if ok else 'not ok'} {len(cases) + 1} a quote without an end", sep="\n")
        sys.exit(not ok)


main()
