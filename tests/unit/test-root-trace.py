#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The system calls that the plugin makes while it is root, by strace: test-root-trace.py PLUGIN_START.

Every call is of a list, every path of a list, and no word of a hostile job's environment is in one of
them: root follows nothing of a user's, removes and renames nothing, connects to nothing, and runs no
program. What is on no list fails the test."""
import collections
import os
import re
import shutil
import subprocess
import sys
import tempfile

USER = 65534
EVIL = "/evil-canary"

# Of the C library and of a process's life; no path and no address in them.
PLAIN = set("""
    arch_prctl brk clock_gettime clone clone3 close close_range dup2 dup3 exit exit_group fcntl fork fstat
    futex getegid geteuid getgid getpid getppid getrandom gettid getuid lseek madvise mmap mprotect munmap
    pidfd_open pidfd_send_signal pipe2 poll ppoll prctl prlimit64 read pread64 recvfrom recvmsg
    rseq rt_sigaction rt_sigprocmask rt_sigreturn sendmsg sendto set_robust_list set_tid_address setgroups
    setresgid setresuid setsid setsockopt shutdown socketpair umask vfork wait4 waitid write""".split())


def allowed_path(call, path, runtime):
    """The path that root may name in this call."""
    if call in ("open", "openat"):
        return path in ("/dev/null", "/proc/self/oom_score_adj", "/proc/self/fd", "/proc/self/cgroup", runtime) or \
            re.fullmatch(r"/proc/\d+/stat", path)
    if call in ("mkdirat", "fchownat"):
        return path == str(USER)
    return call in ("newfstatat", "statx") and path == ""


def calls(log):
    """(pid, name, the rest of the line), with the halves of interrupted calls put together."""
    halves = {}
    for line in log:
        match = re.match(r"(\d+) +(.*)", line)
        pid, text = int(match.group(1)), match.group(2)
        if text.endswith("<unfinished ...>"):
            halves[pid] = text[: -len("<unfinished ...>")]
            continue
        resumed = re.match(r"<\.\.\. \w+ resumed>(.*)", text)
        if resumed:
            text = halves.pop(pid) + resumed.group(1)
        match = re.match(r"(\w+)\((.*)", text)
        if match:
            yield pid, match.group(1), match.group(2)


def look(log, runtime):
    """What is wrong, how often each call was made as root, and how many processes dropped root."""
    wrong, seen = [], collections.Counter()
    dropped, started = set(), False
    for pid, name, rest in calls(log):
        started = started or name == "socketpair"  # before: the loader of this test's program
        if pid in dropped or not started:
            continue
        if name == "setresuid" and rest.startswith(f"{USER}, {USER}, {USER}"):
            dropped.add(pid)
            continue
        seen[name] += 1
        paths = re.findall(r'"((?:[^"\\]|\\.)*)"', rest)
        if EVIL in rest:
            wrong.append(f"root's {name}({rest} holds a word of the job")
        if name in PLAIN:
            continue
        if not paths or not all(allowed_path(name, p, runtime) for p in paths):
            wrong.append(f"root calls {name}({rest}")
    return wrong, seen, len(dropped)


def main():
    if os.geteuid() != 0 or not shutil.which("strace"):
        print("needs root and strace")
        return 77
    with tempfile.TemporaryDirectory(prefix="plume-trace-", dir="/tmp") as top:
        runtime, log = os.path.join(top, "run"), os.path.join(top, "log")
        os.chmod(top, 0o755)
        os.mkdir(runtime, 0o755)
        daemon = os.path.join(top, "plrund")
        with open(daemon, "w", encoding="ascii") as f:
            f.write("#!/bin/sh\necho '{\"type\":\"ready\",\"pid\":1,\"socket\":\"/usr\"}' >&3\nexec cat <&3\n")
        os.chmod(daemon, 0o755)
        # No LD_*: they would show what the loader of this test does.
        env = {"PATH": f"{EVIL}/bin:/usr/bin:/bin", "BASH_ENV": EVIL, "ENV": EVIL, "HOME": EVIL,
               "TMPDIR": EVIL, "PLUME_SCONTROL": EVIL, "PLUME_RUNTIME_DIR": EVIL, "PLUME_RUN_DIR": EVIL,
               "PLUME_HUB": f"{EVIL}:1", "PLUME_TRACE": EVIL, "SLURM_CONF": EVIL,
               "SLURM_JOB_NAME": f"$({EVIL})"}
        trace = subprocess.run(
            ["strace", "-f", "-s", "4096", "-o", log, sys.argv[1], daemon, runtime, str(USER)],
            env=env, stdin=subprocess.DEVNULL, capture_output=True, timeout=60, check=False)
        if trace.returncode != 0 and b"ptrace" in trace.stderr.lower():
            print("strace cannot trace here")
            return 77
        with open(log, encoding="utf-8", errors="replace") as f:
            wrong, seen, dropped = look(f, runtime)
        made = os.path.join(runtime, str(USER))
        owner = os.stat(made).st_uid if os.path.exists(made) else None
    print(dict(sorted(seen.items())))
    for line in wrong:
        print(line)
    # That something was seen: the daemon's child and the one that opens its socket have dropped root.
    complete = trace.returncode == 0 and dropped == 2 and seen["mkdirat"] == seen["fchownat"] == 1 \
        and owner == USER
    if not complete:
        print(f"not a whole start: exit {trace.returncode}, {dropped} dropped root, {trace.stderr!r}")
    return 0 if complete and not wrong else 1


sys.exit(main())
