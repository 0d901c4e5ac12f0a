#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Converts a state dict that torch.save() wrote into a safetensors file for `pltrain --weights`.

Usage: to_safetensors.py IN.pt OUT.safetensors [KEY]

KEY is the place of the state dict in IN, such as state_dict in a checkpoint of Lightning. Needs
neither PyTorch nor the package safetensors. The file cannot run code: it is read without any class
or function of others, and what is no tensor becomes an empty object."""
import collections
import functools
import json
import os
import pickle
import struct
import sys
import zipfile

# PyTorch's names of types, those of safetensors, and bytes.
TYPES = {
    "DoubleStorage": ("F64", 8), "FloatStorage": ("F32", 4), "HalfStorage": ("F16", 2),
    "BFloat16Storage": ("BF16", 2), "LongStorage": ("I64", 8), "IntStorage": ("I32", 4),
    "ShortStorage": ("I16", 2), "CharStorage": ("I8", 1), "ByteStorage": ("U8", 1),
    "BoolStorage": ("BOOL", 1), "uint16": ("U16", 2), "uint32": ("U32", 4), "uint64": ("U64", 8),
    "float8_e4m3fn": ("F8_E4M3", 1), "float8_e5m2": ("F8_E5M2", 1),
}
ITEMS = {1: "B", 2: "H", 4: "I", 8: "Q"}


class Tensor:
    """A view of a storage: `key` of the archive, and numbers in elements."""

    def __init__(self, key, kind, offset, shape, stride):
        self.key, self.kind, self.offset = key, kind, offset
        self.shape, self.stride = tuple(shape), tuple(stride)
        self.type, self.item = TYPES.get(kind, (None, 1))

    def count(self):
        return functools.reduce(lambda a, b: a * b, self.shape, 1)


class Other:
    """In place of any object that is none of the above; everything can be done to it."""

    def __new__(cls, *_args, **_named):
        return object.__new__(cls)

    def __init__(self, *_args, **_named):
        pass

    def __setstate__(self, state):
        pass

    def __setitem__(self, key, value):
        pass

    def append(self, value):
        pass

    def extend(self, values):
        pass


def rebuild_tensor(storage, offset, shape, stride, _grad, _hooks, *more):
    kind, key = storage
    if more and isinstance(more[0], Name):  # of the third version, which names the type
        kind = more[0].name
    return Tensor(key, kind, offset, shape, stride)


def rebuild_parameter(data, *_more):
    return data


class Name:
    """A type of PyTorch's: of a storage, or of a tensor's elements."""

    def __init__(self, name):
        self.name = name


KNOWN = {
    ("collections", "OrderedDict"): collections.OrderedDict,
    ("torch._utils", "_rebuild_tensor_v2"): rebuild_tensor,
    ("torch._utils", "_rebuild_tensor_v3"): rebuild_tensor,
    ("torch._utils", "_rebuild_parameter"): rebuild_parameter,
    ("torch._utils", "_rebuild_parameter_with_state"): rebuild_parameter,
    ("torch", "Size"): tuple,
}


class Reader(pickle.Unpickler):
    def find_class(self, module, name):
        if (module, name) in KNOWN:
            return KNOWN[module, name]
        if module == "torch" and (name in TYPES or name.endswith("Storage")):
            return Name(name)
        return type("Other", (Other,), {})

    def persistent_load(self, pid):
        kind, storage, key = pid[:3]
        if kind != "storage":
            raise pickle.UnpicklingError(f"it has a '{kind}' outside of the file")
        return getattr(storage, "name", "UntypedStorage"), key


def bytes_of(tensor, elements):
    """The elements of the view in order; `elements`: of the whole storage."""

    def walk(offset, shape, stride):
        if not shape:
            return elements[offset:offset + 1].tobytes()
        n, step = shape[0], stride[0]
        if len(shape) > 1:
            return b"".join(walk(offset + i * step, shape[1:], stride[1:]) for i in range(n))
        if step == 0:
            return elements[offset:offset + 1].tobytes() * n
        return elements[offset:offset + (n - 1) * step + 1:step].tobytes()

    dense, size = [], 1
    for n in reversed(tensor.shape):
        dense.insert(0, size)
        size *= n
    if size == 0:
        return b""
    if all(n == 1 or a == b for n, a, b in zip(tensor.shape, tensor.stride, dense)):
        return elements[tensor.offset:tensor.offset + size].tobytes()
    return walk(tensor.offset, tensor.shape, tensor.stride)


class Archive:
    def __init__(self, path):
        try:
            self.zip = zipfile.ZipFile(path)
        except OSError as e:
            sys.exit(f"cannot read {path}: {e.strerror}")
        except zipfile.BadZipFile:
            sys.exit(f"{path} is no archive: PyTorch before 1.6 wrote it, or it is no file of torch.save(); "
                     "save it again with a newer PyTorch")
        names = [n for n in self.zip.namelist() if n.endswith("/data.pkl")]
        if len(names) != 1:
            sys.exit(f"{path} is no file of torch.save(): it has no data.pkl (TorchScript's and others' "
                     "archives are not read)")
        self.root = names[0][:-len("data.pkl")]
        if self.root + "byteorder" in self.zip.namelist() and self.zip.read(self.root + "byteorder") != b"little":
            sys.exit(f"{path} has big-endian numbers: save it on a little-endian machine")
        self.last = (None, None)

    def load(self):
        with self.zip.open(self.root + "data.pkl") as f:
            return Reader(f).load()

    def values(self, tensor):
        if self.last[0] != tensor.key:
            self.last = (tensor.key, self.zip.read(f"{self.root}data/{tensor.key}"))
        whole = memoryview(self.last[1])
        whole = whole[:len(whole) // tensor.item * tensor.item]
        return bytes_of(tensor, whole.cast(ITEMS[tensor.item]))


def write(archive, tensors, path):
    names = sorted(tensors, key=lambda k: (-tensors[k].item, k))
    head, at = {"__metadata__": {"format": "pt"}}, 0
    for name in names:
        t = tensors[name]
        size = t.count() * t.item
        head[name] = {"dtype": t.type, "shape": list(t.shape), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    try:
        with open(path + ".tmp", "wb") as f:
            f.write(struct.pack("<Q", len(text)) + text)
            for name in names:
                data = archive.values(tensors[name])
                if len(data) != tensors[name].count() * tensors[name].item:
                    raise ValueError(f"'{name}' is larger than its storage")
                f.write(data)
        os.replace(path + ".tmp", path)
    finally:
        if os.path.exists(path + ".tmp"):
            os.unlink(path + ".tmp")


def convert():
    archive = Archive(sys.argv[1])
    state = archive.load()
    if len(sys.argv) == 4:
        if not isinstance(state, dict) or sys.argv[3] not in state:
            has = ", ".join(map(str, state)) if isinstance(state, dict) else "no names"
            sys.exit(f"{sys.argv[1]} has no '{sys.argv[3]}', but: {has}")
        state = state[sys.argv[3]]
    if not isinstance(state, dict):
        sys.exit(f"{sys.argv[1]} has no state dict: save model.state_dict(), not the model")
    tensors = {k: v for k, v in state.items() if isinstance(k, str) and isinstance(v, Tensor) and v.type}
    left = [str(k) for k in state if k not in tensors]
    if not tensors:
        sys.exit(f"{sys.argv[1]} has no tensors at its top, but: {', '.join(left)} (give a KEY)")
    write(archive, tensors, sys.argv[2])
    print(f"{len(tensors)} tensors" + (f", left out: {', '.join(left)}" if left else ""))


def main():
    if len(sys.argv) not in (3, 4):
        sys.exit(__doc__)
    try:
        convert()
    except (pickle.UnpicklingError, zipfile.BadZipFile, AttributeError, EOFError, IndexError, KeyError, TypeError,
            ValueError) as e:
        sys.exit(f"{sys.argv[1]} is damaged: {e}")
    except OSError as e:
        sys.exit(f"cannot write {sys.argv[2]}: {e.strerror}")


if __name__ == "__main__":
    main()
