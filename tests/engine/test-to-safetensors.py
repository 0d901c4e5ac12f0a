#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""examples/weights/to_safetensors.py: what torch.save() wrote (tests/golden/saved.py) comes out with the same
bytes, and pltrain reads it. Files that are none get one line of text. Arguments: the build folder, the source."""
import json
import os
import struct
import subprocess
import sys
import tempfile
import zipfile

BUILD, SRC = (os.path.abspath(a) for a in sys.argv[1:3])
CONVERT = os.path.join(SRC, "examples", "weights", "to_safetensors.py")
SAVED = os.path.join(SRC, "tests", "fixtures", "weights", "saved.pt")
TOP = tempfile.TemporaryDirectory(prefix="plume-convert-")


def at(name):
    return os.path.join(TOP.name, name)


def convert(*args, code=0):
    done = subprocess.run([sys.executable, CONVERT, *args], capture_output=True, text=True, timeout=60, check=False,
                          cwd=TOP.name)
    assert done.returncode == code, (args, done)
    return done.stdout.strip() if code == 0 else done.stderr.strip()


def read(path):
    with open(path, "rb") as f:
        head = json.loads(f.read(*struct.unpack("<Q", f.read(8))))
        data = f.read()
    head.pop("__metadata__")
    assert sorted(x for t in head.values() for x in t["data_offsets"])[-1] == len(data)
    return {k: [t["dtype"], t["shape"], data[slice(*t["data_offsets"])].hex()] for k, t in head.items()}


def same_tensors():
    text = convert(SAVED, at("out.safetensors"), "state_dict")
    with open(SAVED.replace(".pt", ".json"), encoding="utf-8") as f:
        want = json.load(f)
    got = read(at("out.safetensors"))
    assert got == want, {k for k in {*got, *want} if got.get(k) != want.get(k)}
    assert text == f"{len(want)} tensors, left out: _extra_state, complex", text


def pltrain_reads_it():
    subprocess.run([os.path.join(BUILD, "pltrain"), "--weights", at("out.safetensors"), "--epochs", "0",
                    "--checkpoint-dir", at("c"), "--save-weights-only", "mlp", "--hidden", "3"], check=True,
                   timeout=60, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    files = os.listdir(at("c"))
    assert len(files) == 1, files
    got, want = read(os.path.join(at("c"), files[0])), read(at("out.safetensors"))
    for name in ("w1", "b1", "b2"):
        assert got[name] == want[name], name
    doubles = struct.unpack("<30d", bytes.fromhex(want["w2"][2]))
    assert got["w2"][2] == struct.pack("<30f", *doubles).hex()


def copy(name, **changed):
    """The file with other members; None: without one."""
    with zipfile.ZipFile(SAVED) as old, zipfile.ZipFile(at(name), "w") as new:
        root = old.namelist()[0].split("/")[0]
        changed = {f"{root}/{k.replace('__', '/')}": v for k, v in changed.items()}
        for member in old.namelist():
            data = changed.get(member.replace(".pkl", ""), old.read(member))
            if data is not None:
                new.writestr(member, data)
    return at(name)


def refusals():
    for text, *args in (
            ("Usage:", SAVED),
            ("has no tensors at its top, but: epoch, state_dict, hyper_parameters (give a KEY)", SAVED, at("x")),
            ("has no 'model', but: epoch, state_dict, hyper_parameters", SAVED, at("x"), "model"),
            ("has no state dict: save model.state_dict(), not the model", SAVED, at("x"), "hyper_parameters"),
            ("cannot read", at("none.pt"), at("x")),
            ("is no archive: PyTorch before 1.6 wrote it", CONVERT, at("x")),
            ("has no data.pkl", copy("a.pt", data=None), at("x")),
            ("big-endian", copy("b.pt", byteorder=b"big"), at("x")),
            ("is damaged: ", copy("c.pt", data=b"\x80\x02}q"), at("x")),
            # os.system("touch ran"), which is an empty object here
            ("has no state dict", copy("d.pt", data=b"cos\nsystem\n(S'touch ran'\ntR."), at("x")),
            ("is damaged: 'number' is larger than its storage", shortened("e.pt"), at("x"), "state_dict")):
        got = convert(*args, code=1)
        assert text in got and ("Usage" in text or len(got.splitlines()) == 1), (args, got)
        assert not os.path.exists(at("x")) and not os.path.exists(at("x.tmp"))
    assert not os.path.exists(at("ran"))


def shortened(name):
    """Without the bytes of the tensor 'number', whose storage has 4."""
    with zipfile.ZipFile(SAVED) as old, zipfile.ZipFile(at(name), "w") as new:
        for member in old.namelist():
            data = old.read(member)
            new.writestr(member, b"" if data == struct.pack("<f", 2.5) else data)
    return at(name)


same_tensors()
pltrain_reads_it()
refusals()
