#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes the seeds of the targets that main() names into tests/fuzz/corpus, as s-NAME files; the
same at each run. Inputs that a fuzzer found lie beside them under other names and are not touched.
Usage: tests/fuzz/make-corpus.py"""
import hashlib
import hmac
import json
import os
import re

TOP = os.path.join(os.path.dirname(os.path.abspath(__file__)), "corpus")
DEEP = '{"a":' + "[" * 31 + "]" * 31 + "}"
TOO_DEEP = '{"a":' + "[" * 32 + "]" * 32 + "}"

# Values that parsers get wrong, each under the key that targets look for.
VALUES = {
    "string": '"x"', "empty": '""', "escapes": r'"\"\\\/\b\f\n\r\t"', "unicode": r'"\u00e9\u20ac"',
    "pair": r'"\ud83d\ude00"', "lone-high": r'"\ud83d"', "lone-low": r'"\ude00"',
    "half-pair": r'"\ud83d\u0041"', "nul": r'"\u0000"', "utf8": '"é😀"', "del": '"\x7f"',
    "tab": '"\t"', "bad-escape": r'"\x"', "short-escape": r'"\u12"', "open": '"abc',
    "zero": "0", "minus-zero": "-0", "leading-zero": "01", "plus": "+1", "point": "1.",
    "no-digit": ".5", "real": "-1.5e+3", "huge": "1e999", "tiny": "1e-400", "exp": "1e",
    "max": "9223372036854775807", "min": "-9223372036854775808", "over": "9223372036854775808",
    "digits": "1" * 40, "true": "true", "false": "false", "null": "null", "word": "tru",
    "nan": "NaN", "array": '[1,"a,]",[2],{"b":[]},null]', "comma": "[1,]", "mixed": "[1}",
    "object": '{"a":{"a":1}}', "blanks": " [ 1 , 2 ] ", "colon": '{"a" 1}', "none": "",
}


def documents():
    for name, value in VALUES.items():
        yield name, '{"a":' + value + "}"
    yield "twice", '{"a":1,"a":2}'
    yield "escaped-key", r'{"\u0061":1}'
    yield "second-key", '{"b":{"a":0},"a":"found"}'
    yield "two", '{"a":1}{"a":2}'
    yield "rest", '{"a":1} x'
    yield "no-object", "[1]"
    yield "empty-object", "{}"
    yield "brace", "{"
    yield "deep", DEEP
    yield "too-deep", TOO_DEEP
    yield "type", '{"type":"hello","a":"' + "y" * 200 + '"}'


HELLO = {"type": "hello", "proto": "plume", "major": 1, "minor": 0, "role": "starter", "rank": 0,
         "local_rank": 0, "pid": 7, "guarded": True}
BANNER = {"proto": "plume", "major": 1, "minor": 0, "role": "hub", "job": "1", "step": "0",
          "attempt": 0, "nonce": "11" * 16}
EVENTS = [
    {"type": "attempt", "job": "1", "step": "0", "world_size": 4, "state": "waiting"},
    {"type": "node", "node_id": 1, "node": "n1", "addr": "127.0.0.1", "state": "joined"},
    {"type": "rank", "rank": 3, "node": "n1", "pid": 9, "state": "running"},
    {"type": "metrics", "rank": 3, "step": 7, "metrics": {"loss": 0.25, "acc": "nan"}},
    {"type": "fact", "rank": 0, "key": "param_hash", "value": "abc"},
    {"type": "rank", "rank": 3, "state": "failed", "signal": 11, "signal_name": "SIGSEGV"},
    {"type": "cause", "cause": {"kind": "signal", "rank": 3}, "others": [{"rank": 1}]},
    {"type": "state", "state": "failed", "ended": 12.5},
]


def line(o):
    return json.dumps(o, separators=(",", ":")) + "\n"


def changed(o, key):
    """One message with one key wrong, in many ways."""
    for name, value in (("gone", None), ("negative", -1), ("text", "1"), ("real", 0.5),
                        ("big", 1 << 62), ("list", []), ("object", {"a": 1}), ("true", True)):
        yield name, {k: value if k == key else v for k, v in o.items()
                     if k != key or value is not None}


def rank_lines():
    history = "".join(map(line, EVENTS))
    yield "history", history
    yield "history-cut", history[:-10]
    yield "history-backwards", "".join(map(line, reversed(EVENTS)))
    yield "history-twice", history * 2
    yield "blank-lines", "\n\n" + history.replace("\n", "\n\n")
    for event in EVENTS:
        yield event["type"] + "-alone-" + str(EVENTS.index(event)), line(event)
    for index, key in ((0, "world_size"), (1, "node_id"), (2, "rank"), (3, "metrics"), (4, "value")):
        for name, event in changed(EVENTS[index], key):
            yield f"{event['type']}-{key}-{name}", line(EVENTS[0]) + line(event)
    for key in ("ranks", "nodes", "metrics", "facts", "type", "seq"):
        for kind in ("attempt", "state", "rank"):
            o = {"type": kind, "rank": 0, key: "gone"}
            yield f"bones-{kind}-{key}", line(EVENTS[0]) + line(o) + history
    for message in (HELLO, {"type": "spawned", "pid": 7}, {"type": "exited", "status": 9},
                    {"type": "exchange", "name": "n", "value": "v"}, {"type": "signalled", "signal": 15}):
        yield "rank-says-" + message["type"], line(message)
    yield "deep", DEEP + "\n"
    yield "too-deep", TOO_DEEP + "\n"
    yield "twice", '{"type":"rank","type":"state"}\n'


class Session:
    """Frames as the target's peer would sign them; nonces differ, so they test the parser only."""

    def __init__(self):
        text = b"plume session 1\x001\x000\x000\x00" + bytes.fromhex("11" * 16 + "22" * 16)
        self.key = hashlib.blake2b(text, digest_size=32, key=bytes([1, 2, 3]) + bytes(29)).digest()
        self.counter = 0

    def frame(self, body, direction="C"):
        head = direction.encode() + self.counter.to_bytes(8, "big")
        self.counter += 1
        return hmac.new(self.key, head + body.encode(), hashlib.sha256).hexdigest() + " " + body + "\n"


def protocol():
    s = Session()
    hello = json.dumps({"type": "hello", "proto": "plume", "major": 1, "role": "client", "nonce": "22" * 16})
    yield "banner", line(BANNER)
    yield "banner-hello", line(BANNER) + s.frame(hello)
    yield "banner-welcome", line(BANNER) + s.frame('{"type":"welcome"}', "S")
    yield "banner-crlf", line(BANNER).replace("\n", "\r\n")
    yield "banner-half", line(BANNER)[:60]
    yield "banner-later", line({**BANNER, "minor": 9, "more": [1, {"a": None}]})
    for key in BANNER:
        for name, o in changed(BANNER, key):
            if name in ("gone", "text", "big"):
                yield f"banner-{key}-{name}", line(o)
    for key in ("proto", "major", "nonce"):
        for name, o in changed(json.loads(hello), key):
            yield f"hello-{key}-{name}", Session().frame(json.dumps(o))
    yield "refusal", line(BANNER) + '{"error":"key"}\n'
    yield "ssh", "SSH-2.0-OpenSSH_9.2\r\n"
    yield "http", "GET / HTTP/1.1\r\nHost: x\r\n\r\n"
    yield "zeros", "0" * 64 + " {}\n"
    yield "digits-upper", "A" * 64 + " {}\n"
    yield "digits-short", "0" * 63 + " {}\n"
    yield "digits-no-blank", "0" * 64 + "{}\n"
    yield "digits-odd", "0" * 63 + "g {}\n"
    yield "long", "x" * 4200
    yield "newlines", "\n" * 20
    yield "nuls", "\0" * 20 + "\n"
    for name in ("twice", "deep", "too-deep", "no-object", "rest"):
        yield "body-" + name, dict(documents())[name] + "\n"
    yield "bodies", "".join(map(line, EVENTS))


def safetensors(header, data=b"", length=None):
    text = header.encode() if isinstance(header, str) else json.dumps(header).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


def tensor(dtype, shape, begin, end, **more):
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end], **more}


def checkpoints():
    """Those of release 0.1, whose writer is gone, lie beside them."""
    sum_ = {"plume.xxh64": "0" * 16}
    w = tensor("F32", [2], 0, 8)
    data = bytes(range(8))
    front = '{"__metadata__":{"plume.xxh64":"' + "0" * 16 + '","plume.epoch":"%s"}}'
    yield "st-good", safetensors('{"__metadata__":{"plume.xxh64":"' + "0" * 16 + '"},"w":' + json.dumps(w) + "}", data)
    yield "st-state", safetensors(front % "3")
    yield "st-state-no-json", safetensors(front % '1},\\"a\\":{')
    yield "st-state-open", safetensors(front % "[")
    yield "st-foreign", safetensors({"w": w, "__metadata__": {"format": "pt"}}, data)
    yield "st-foreign-plume", safetensors({"__metadata__": {"a": "b", **sum_, "plume.x": "1"}})
    for name, entry in (
            ("f64", tensor("F64", [1], 0, 8)), ("f16", tensor("F16", [4], 0, 8)),
            ("bf16-odd", tensor("BF16", [1], 1, 3)), ("matrix", tensor("F16", [2, 2], 0, 8)),
            ("empty-matrix", tensor("F16", [0, 2], 0, 0)), ("i64", tensor("I64", [1], 0, 8)),
            ("f8", tensor("F8_E4M3", [8], 0, 8)), ("rank", tensor("U8", [1] * 9, 0, 8)),
            ("shape-huge", tensor("U8", [1 << 62, 8], 0, 8)), ("shape-negative", tensor("U8", [-8], 0, 8)),
            ("shape-text", tensor("U8", ["8"], 0, 8)), ("short", tensor("F32", [3], 0, 8)),
            ("past-end", tensor("U8", [9], 0, 9)), ("backwards", tensor("U8", [8], 8, 0)),
            ("huge", tensor("U8", [8], (1 << 63) - 9, (1 << 63) - 1)), ("three", tensor("U8", [8], 0, 8)
                                                                       | {"data_offsets": [0, 4, 8]}),
            ("no-offsets", {"dtype": "F32", "shape": [2]}), ("no-object", [1]), ("text", "F32")):
        yield "st-" + name, safetensors({"w": entry}, data)
    yield "st-twice", safetensors('{"w":%s,"w":%s}' % ((json.dumps(w),) * 2), data)
    yield "st-metadata-twice", safetensors('{"__metadata__":{},"__metadata__":{}}')
    yield "st-metadata-number", safetensors({"__metadata__": {"a": 1}})
    yield "st-metadata-list", safetensors({"__metadata__": []})
    yield "st-blanks", safetensors('{}        ')
    yield "st-nul", safetensors('{}\0')
    yield "st-open", safetensors('{"w":')
    yield "st-list", safetensors("[]")
    yield "st-longer", safetensors("{}", b"x")
    yield "st-length", safetensors("{}", length=9)
    yield "st-length-huge", safetensors("{}", length=(1 << 64) - 1)
    yield "st-zip", b"PK\3\4" + bytes(20)


def addresses():
    for i, text in enumerate(("n01:4711", "[::1]:20000", "[fe80::1%lo]:1", "10.0.0.1:65535", "10.0.0.1:65536",
                              ":1", "a:", "[]:1", "20000-29999", "1-1", "0-5", "5-1", "lo", "127.0.0.1",
                              "x" * 300 + ":1", "a b:2", "-1", "1-")):
        yield str(i), text


def scontrol():
    record = ("JobId=12 JobName=a b=c JobState={} Reason=None Restarts={} RunTime=00:01:00 TimeLimit={} "
              "PreemptTime={} Comment=JobState=RUNNING\n")
    yield "running", record.format("RUNNING", 0, "01:00:00", "None")
    yield "preempted", record.format("PREEMPTED", 1, "UNLIMITED", "2026-01-01T00:00:00")
    yield "timeout", record.format("TIMEOUT", "x", "1-00:00:00", "None")
    yield "two", record.format("CANCELLED", 0, "1", "None") * 2
    yield "node", "NodeName=n1 Arch=x86_64 NodeAddr=10.0.0.1 NodeHostName=n1\n"
    yield "cut", "JobState"
    yield "no-value", "JobState= Restarts= PreemptTime=\n"
    yield "blanks", " \n \n="


def plugin():
    yield "conf", "plrund=/usr/libexec/plrund\nruntime_dir=/run/plume\nscontrol=/usr/bin/scontrol"
    yield "conf-relative", "plrund=plrund"
    yield "conf-word", "nonsense\n=\nplrund="
    yield "port", "29500"
    yield "ports", "29500-29600"
    yield "ports-bad", "0-99999999999"
    yield "metric", "loss=loss: ([0-9.]+)"
    yield "metrics", "loss=a(b)\nacc=c(d)\nloss=e(f)"
    yield "nested", "a=" + "(" * 500 + "x" + ")" * 500
    yield "repeated", "a=((((x{9}){9}){9}){9})"
    yield "bytes", b"a=\x1b]0;x\x07\xff\xe2\x80\xae(.)"


def run_folders():
    sweep = {"schema": "plume-run/1", "sweep": "s-1", "name": "s", "created": 1, "trials": 2,
             "argv": ["x", "--lr={lr}"], "axes": ["lr"], "metrics": [], "sbatch": [], "options": {},
             "submissions": [{"job": "12", "first_trial": 0, "n_trials": 2}]}
    trials = '{"trial":0,"params":{"lr":"1"}}\n{"trial":1,"params":{"lr":"2"}}\n'
    yield "good", json.dumps(sweep) + "\n" + trials
    for key in sweep:
        for name, value in (("number", 7), ("list", [1]), ("text", "x"), ("null", None), ("object", {"a": 1})):
            yield f"{key}-{name}", json.dumps({**sweep, key: value}) + "\n" + trials
    yield "no-trials", json.dumps(sweep) + "\n"
    yield "trials-cut", json.dumps(sweep) + "\n" + trials[:40]
    yield "index", '{"sweep":"s-1","folder":"/tmp/x","trials":2}\n' * 2
    yield "index-cut", '{"sweep":"s-1","folder":"/tmp'


def messages():
    """Those that test-messages.c has recorded."""
    with open(os.path.join(TOP, "../../unit/test-messages.c"), encoding="utf-8") as f:
        text = f.read().split("recorded[] = {")[1].split("\n};")[0]
    lines = []
    for entry in text.split("{PL_MSG_")[1:]:
        parts = re.findall(r'"((?:[^"\\]|\\.)*)"', entry)
        lines.append(json.loads('"' + "".join(parts) + '"'))
    for i, row in enumerate(lines):
        yield f"recorded-{i}", row
    yield "all", "\n".join(lines)
    yield "events", "\n".join(json.dumps(e) for e in EVENTS)


def scripts():
    quotes = "'" * 3
    for i, text in enumerate(("s-1", "$(id)\n`id`\n;rm\n'\n'\\''\n\\\n--comment=a b\n\"",
                              "a\r\n#SBATCH --uid=0", "--nodes=2\n--job-name=x y\n-x",
                              quotes + "\n''\n\\'", "\x1b]0;x\x07", "{lr}\n@RUN@")):
        yield str(i), text


def main():
    for target, seeds in (("minijson", documents()), ("rank-line", rank_lines()),
                          ("protocol", protocol()), ("checkpoint", checkpoints()),
                          ("address", addresses()), ("scontrol", scontrol()), ("plugin", plugin()),
                          ("run-folder", run_folders()), ("messages", messages()), ("script", scripts())):
        folder = os.path.join(TOP, target)
        os.makedirs(folder, exist_ok=True)
        for name in os.listdir(folder):
            if name.startswith("s-st-" if target == "checkpoint" else "s-"):
                os.unlink(os.path.join(folder, name))
        for name, text in seeds:
            with open(os.path.join(folder, "s-" + name), "wb") as f:
                f.write(text.encode() if isinstance(text, str) else text)


main()
