# SPDX-License-Identifier: MIT
"""Report steps and metrics to plstat from a Python program; copy this file next to yours.

    import plume_report
    plume_report.metrics(step, loss=loss.item(), lr=lr)

Outside Plume it does nothing. It never delays training: if the daemon is slow, it drops metrics.
The protocol is plume-protocol(7).
"""

import json
import math
import os
import socket

_socket = None


def _connect():
    global _socket
    path, rank = os.environ.get("PLUME_SOCKET"), os.environ.get("RANK")
    if not path or rank is None:
        return None
    if _socket is None:
        s = socket.socket(socket.AF_UNIX)
        s.settimeout(2)
        s.connect(path)
        hello = {"type": "hello", "proto": "plume", "major": 1, "minor": 0}
        s.sendall(json.dumps({**hello, "role": "program", "rank": int(rank)}).encode() + b"\n")
        _socket = s
    return _socket


def _number(value):
    value = float(value)
    return value if math.isfinite(value) else str(value)  # "nan", "inf", "-inf"


def metrics(step, **values):
    """Report the metrics of a step. Returns False if they were dropped."""
    global _socket
    line = {"type": "metrics", "step": int(step)}
    line["metrics"] = {name: _number(value) for name, value in values.items()}
    data = json.dumps(line).encode() + b"\n"
    try:
        s = _connect()
        if s is None:
            return False
        sent = s.send(data, socket.MSG_DONTWAIT)
        if sent < len(data):  # complete a line of which a part was sent
            s.sendall(data[sent:])
        return True
    except BlockingIOError:
        return False
    except OSError:
        _socket = None
        return False
