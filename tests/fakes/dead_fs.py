#!/usr/bin/python3
# SPDX-License-Identifier: MIT
"""Mounts a file system at argv[1] whose server never answers, says "ready", and takes it down when
stdin ends: what looks at a path in it waits until it is killed. With argv[2] "pages" the server answers
until somebody reads argv[1]/0 to 9: what touches such a file's memory waits, and SIGKILL does not end it.
Exit code 77 where that is not possible here."""
import ctypes
import os
import struct
import sys
import threading

MNT_FORCE, MNT_DETACH = 1, 2
LOOKUP, GETATTR, OPEN, READ, INIT = 1, 3, 14, 15, 26  # linux/fuse.h
ROOT, FIRST = 1, 2  # numbers of nodes
FOLDER = os.fsencode(sys.argv[1])
LIBC = ctypes.CDLL(None, use_errno=True)


def attributes(node):
    mode = 0o40755 if node == ROOT else 0o100644
    return struct.pack("<6Q10I", node, 65536, 128, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)


def answer(fd):
    while True:
        try:
            request = os.read(fd, 1 << 20)
        except OSError:  # it has been taken down
            return
        _, code, unique, node = struct.unpack_from("<IIQQ", request)
        if code == READ:
            continue
        body, error = b"", 0
        if code == INIT:
            body = struct.pack("<4I2H2I2H8I", 7, 31, 65536, 0, 16, 12, 65536, 1, 0, 0, *[0] * 8)
        elif code == LOOKUP and request[40:].rstrip(b"\0").isdigit():
            node = FIRST + int(request[40:].rstrip(b"\0")) % 10
            body = struct.pack("<4Q2I", node, 0, 3600, 3600, 0, 0) + attributes(node)
        elif code == GETATTR:
            body = struct.pack("<Q2I", 3600, 0, 0) + attributes(node)
        elif code == OPEN:
            body = struct.pack("<Q2I", 0, 0, 0)
        else:
            error = -2 if code == LOOKUP else -38  # ENOENT, ENOSYS
        try:
            os.write(fd, struct.pack("<IiQ", 16 + len(body), error, unique) + body)
        except OSError:  # nobody waits for this any more
            pass


try:
    FD = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
except OSError:
    sys.exit(77)
OPTIONS = f"fd={FD},rootmode=40000,user_id=0,group_id=0,allow_other".encode()
if LIBC.mount(b"dead", FOLDER, b"fuse", 6, OPTIONS) < 0:
    sys.exit(77)
try:
    if "pages" in sys.argv[2:]:
        threading.Thread(target=answer, args=(FD,), daemon=True).start()
    print("ready", flush=True)
    sys.stdin.read()
finally:
    LIBC.umount2(FOLDER, MNT_FORCE | MNT_DETACH)  # whoever waits gets an error
    os.close(FD)
