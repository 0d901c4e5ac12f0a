#!/usr/bin/python3
# SPDX-License-Identifier: MIT
"""Mounts a file system at argv[1] whose server never answers, says "ready", and takes it down when
stdin ends: what looks at a path in it waits until it is killed. Exit code 77 where that is not
possible here."""
import ctypes
import os
import sys

MNT_FORCE, MNT_DETACH = 1, 2
FOLDER = os.fsencode(sys.argv[1])
LIBC = ctypes.CDLL(None, use_errno=True)

try:
    FD = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
except OSError:
    sys.exit(77)
OPTIONS = f"fd={FD},rootmode=40000,user_id=0,group_id=0,allow_other".encode()
if LIBC.mount(b"dead", FOLDER, b"fuse", 6, OPTIONS) < 0:
    sys.exit(77)
try:
    print("ready", flush=True)
    sys.stdin.read()
finally:
    os.close(FD)  # whoever waits gets an error
    LIBC.umount2(FOLDER, MNT_FORCE | MNT_DETACH)
