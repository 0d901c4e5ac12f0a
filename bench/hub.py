#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Memory and CPU time of the node daemons while 96 ranks report ten times per second."""

import os
import subprocess
import time

from plbench import Bench, median

NODES, PER_NODE, RATE, SECONDS = 12, 8, 10, 20
TICK = os.sysconf("SC_CLK_TCK")


def daemons(job_env):
    """{node id: pid} of the plrund processes of this cluster."""
    found = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/comm") as f:
                if f.read().strip() != "plrund":
                    continue
            # plrund is not dumpable, so only root can read its environment: read its parent's.
            with open(f"/proc/{pid}/stat") as f:
                parent = f.read().rsplit(")", 1)[1].split()[1]
            env = b""
            for p in (pid, parent):
                try:
                    with open(f"/proc/{p}/environ", "rb") as f:
                        env = f.read()
                except OSError:
                    continue
                if job_env in env:
                    break
        except OSError:
            continue
        if job_env not in env:
            continue
        for entry in env.split(b"\0"):
            if entry.startswith(b"SLURM_NODEID="):
                found[int(entry.split(b"=")[1])] = int(pid)
    return found


def cpu_s(pid):
    """CPU time in nanoseconds from the scheduler: clock ticks are too coarse."""
    with open(f"/proc/{pid}/schedstat") as f:
        return int(f.read().split()[0]) / 1e9


def memory_mib(pid):
    with open(f"/proc/{pid}/status") as f:
        fields = dict(line.split(":", 1) for line in f if ":" in line)
    return int(fields["VmRSS"].split()[0]) / 1024


def wait_all(job_env):
    end = time.monotonic() + 30
    while time.monotonic() < end:
        found = daemons(job_env)
        if len(found) == NODES:
            return found
        time.sleep(0.2)
    raise SystemExit(f"hub: {len(found)} of {NODES} daemons came up")


def main():
    with Bench("hub", nodes=NODES) as b:
        mark = "SLURM_CONF=" + b.env["SLURM_CONF"]
        step = subprocess.Popen(
            ["srun", f"-N{NODES}", f"--ntasks-per-node={PER_NODE}", "plrun", "--",
             "bench-reporter", str(RATE), str(SECONDS + 8)],
            env={**b.env, "PATH": os.path.join(b.env["PLUME_BUILD"], "bench") + ":" +
                 b.env["PATH"]}, cwd=b.dir, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            text=True)
        found = wait_all(mark.encode())
        time.sleep(3)
        before = {n: (cpu_s(p), memory_mib(p)) for n, p in found.items()}
        start = time.monotonic()
        time.sleep(SECONDS)
        after = {n: (cpu_s(p), memory_mib(p)) for n, p in found.items()}
        took = time.monotonic() - start
        out, _ = step.communicate(timeout=60)
        if step.returncode != 0:
            raise SystemExit(f"hub: the step ended with {step.returncode}")
        share = {n: 100 * (after[n][0] - before[n][0]) / took for n in found}
        others = [n for n in found if n != 0]
        dropped = sum(int(line.split()[1]) for line in out.splitlines()
                      if line.startswith("dropped "))
        b.row("daemon of a node: 8 ranks x 10/s", [share[n] for n in others],
              unit="% of a core", below=2)
        b.row("daemon of node 0 (hub of 96 ranks)", [share[0]], unit="% of a core")
        b.row("memory of a node's daemon", [after[n][1] for n in others], unit="MiB RSS", below=16)
        b.row("memory of the hub's", [after[0][1]], unit="MiB RSS", below=32)
        growth = after[0][1] - before[0][1]
        b.row(f"growth of the hub's in {SECONDS} s", [growth], unit="MiB", below=1)
        b.note(f"{NODES * PER_NODE} ranks, {RATE} lines of 3 metrics a second each; {dropped} lines "
               f"dropped; median of the {len(others)} other daemons.")
        b.finish()


if __name__ == "__main__":
    main()
