#!/usr/bin/python3
# SPDX-License-Identifier: MIT
"""strangers.py LOW-HIGH: listens on each port of a range that has nobody yet, and is no hub.

By turns a stranger is silent, closes at once, talks nonsense, greets as a web server, says half a
banner, floods, or says the banner of a hub ($STRANGER_BANNER) without its secret. Prints "ready" and the ports, and
stays until its stdin ends. What strangers were sent goes to strangers.log: walkers say nothing before
a valid banner."""
import os
import selectors
import socket
import sys

BANNER = os.environ.get("STRANGER_BANNER", "").encode()
TALK = [
    None,
    b"",
    b"\x00\xff\x01garbage\r\n\n{}\n",
    b"HTTP/1.0 400 Bad Request\r\nServer: stranger\r\n\r\n",
    b'{"type":"banner","proto":"plu',
    b"x" * 3000000,
    BANNER,
]


def main():
    low, high = map(int, sys.argv[1].split("-"))
    selector = selectors.DefaultSelector()
    log = open("strangers.log", "ab", buffering=0)
    ports = []
    for port in range(low, high + 1):
        s = socket.socket(socket.AF_INET6)
        s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            s.bind(("::", port))
            s.listen(64)
        except OSError:
            continue
        s.setblocking(False)
        ports.append(port)
        selector.register(s, selectors.EVENT_READ, ("listen", len(ports)))
    selector.register(sys.stdin, selectors.EVENT_READ, ("end", 0))
    print("ready", *ports, flush=True)
    while True:
        for key, _ in selector.select():
            kind, number = key.data
            if kind == "end":
                return
            if kind == "listen":
                conn, _ = key.fileobj.accept()
                conn.setblocking(False)
                talk = TALK[number % len(TALK)]
                try:
                    if talk:
                        conn.send(talk)
                except OSError:
                    pass
                if talk == b"":
                    conn.close()
                else:
                    selector.register(conn, selectors.EVENT_READ, ("said", number))
                continue
            try:
                data = key.fileobj.recv(65536)
            except OSError:
                data = b""
            if data and TALK[number % len(TALK)] != TALK[-1]:
                log.write(data + b"\n")
            if not data:
                selector.unregister(key.fileobj)
                key.fileobj.close()


main()
