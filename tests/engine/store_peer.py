#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""store_peer.py PLTRAIN MODULE KEY-FILE: those who meet a run of two ranks at the module's own
rendezvous (comm_store.h, written here a second time): an impostor of before, one without the key,
one that is the rank indeed, and one that poses as rank 0."""
import hashlib
import hmac
import os
import socket
import struct
import subprocess
import sys

PLTRAIN, MODULE, KEY_FILE = sys.argv[1:]
LIMIT = 60
BYTES = 512
MAGIC = 0x504C4D32
with open(KEY_FILE, "rb") as f:
    KEY = hmac.new(f.read(), b"plume engine store 1\0", hashlib.sha256).digest()


def start(rank, port, size=2):
    env = dict(os.environ, WORLD_SIZE=str(size), LOCAL_RANK="0", LOCAL_WORLD_SIZE="1", PLACE=str(port),
               RANK=str(rank), NODE_RANK=str(rank), PLUME_KEY_FILE=KEY_FILE)
    return subprocess.Popen([PLTRAIN, "--epochs", "1", MODULE], env=env, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True)


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def connect(port, process):
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port), LIMIT)
        except ConnectionRefusedError:
            assert process.poll() is None, process.communicate()


def receive(sock, n):
    data = b""
    while len(data) < n:
        more = sock.recv(n - len(data))
        if not more:
            break
        data += more
    return data


def text(rank, port=1):
    line = f"plume-1 node={rank} pid={os.getpid()} fd=-1 addr=127.0.0.1 port={port} key=-"
    return line.encode().ljust(BYTES, b"\0")


def claim(sock, rank, key, flip=None):
    """What a rank sends; the nonces."""
    magic, nonce = struct.unpack("=I16s", receive(sock, 20))
    assert magic == MAGIC, hex(magic)
    own = os.urandom(16)
    body = struct.pack("=4I16s", MAGIC, rank, 2, BYTES, own) + text(rank)
    proof = hmac.new(key, b"C" + nonce + body, hashlib.sha256).digest()
    if flip is not None:
        body = body[:flip] + bytes([body[flip] ^ 1]) + body[flip + 1:]
    sock.sendall(body + proof)
    return nonce, own


def closed(sock):
    try:
        return receive(sock, 1) == b""
    except ConnectionError:
        return True


def impostors():
    port = free_port()
    first = start(0, port)
    # Version 1: the rank was enough.
    old = connect(port, first)
    old.sendall(struct.pack("=4I", 0x504C4D31, 1, 2, BYTES) + text(1))
    got = receive(old, 20 + 2 * BYTES) if not closed_soon(old) else b""
    assert b"key=" not in got, "rank 0 gave its texts to whoever claimed a rank"
    for key, flip in ((bytes(32), None), (KEY, 4), (KEY, 17), (KEY, 40), (KEY[:31] + b"\0", None)):
        sock = connect(port, first)
        claim(sock, 1, key, flip)
        assert closed(sock), (key, flip)
    # A proof that was heard, again.
    sock = connect(port, first)
    receive(sock, 20)
    own = os.urandom(16)
    body = struct.pack("=4I16s", MAGIC, 1, 2, BYTES, own) + text(1)
    sock.sendall(body + hmac.new(KEY, b"C" + bytes(16) + body, hashlib.sha256).digest())
    assert closed(sock)
    # The rank itself.
    sock = connect(port, first)
    nonce, own = claim(sock, 1, KEY)
    block, proof = receive(sock, 2 * BYTES), receive(sock, 32)
    want = hmac.new(KEY, b"S" + nonce + own + struct.pack("=I", 1) + block, hashlib.sha256).digest()
    assert proof == want
    assert block[BYTES:] == text(1)
    assert block.count(b"key=-\0") == 2, block  # no key is in the texts
    first.kill()
    err = first.communicate()[1]
    said = [line for line in err.splitlines() if "claims to be rank 1" in line]
    assert 1 <= len(said) <= 5 and "127.0.0.1" in said[0], err


def closed_soon(sock):
    """The challenge came, and then the end, or nothing more."""
    receive(sock, 20)
    sock.settimeout(0.2)
    try:
        return sock.recv(1) == b""
    except (ConnectionError, TimeoutError):
        return True


def false_rank_0():
    for honest in (False, True):
        listener = socket.create_server(("127.0.0.1", 0))
        listener.settimeout(LIMIT)
        rank = start(1, listener.getsockname()[1])
        sock = listener.accept()[0]
        sock.settimeout(LIMIT)
        nonce = os.urandom(16)
        sock.sendall(struct.pack("=I16s", MAGIC, nonce))
        body = receive(sock, 32 + BYTES)
        proof = receive(sock, 32)
        assert proof == hmac.new(KEY, b"C" + nonce + body, hashlib.sha256).digest()
        block = text(0) + body[32:]
        key = KEY if honest else bytes(32)
        sock.sendall(block + hmac.new(key, b"S" + nonce + body[16:32] + struct.pack("=I", 1) + block,
                                      hashlib.sha256).digest())
        err = rank.communicate(timeout=LIMIT)[1]
        assert rank.returncode == 1
        # With the key it goes on, to a port at which nobody listens.
        assert ("it is not rank 0 (see PLUME_KEY_FILE)" in err) == (not honest), err
    listener = socket.create_server(("127.0.0.1", 0))
    rank = start(1, listener.getsockname()[1])
    listener.accept()[0].sendall(b"SSH-2.0-OpenSSH_9.2\r\n" * 2)
    err = rank.communicate(timeout=LIMIT)[1]
    assert rank.returncode == 1 and "another program, or rank 0 of another version, listens at" in err, err


impostors()
false_rank_0()
