# SPDX-License-Identifier: MIT
"""What the PyTorch twins of the examples share: options, weights, data and random numbers as pltrain
reads and draws them, and the loop. A twin trains on the first batches of its data in their order, as
pltrain does with --overfit-batches, and prints the loss of each step:

    examples/vae/vae.py --init w.safetensors            # weights that PyTorch made at random
    examples/vae/vae.py --weights w.safetensors         # 20 losses
    pltrain --weights w.safetensors --overfit-batches 5 --max-steps 20 --log-every 1 \\
        --log-dir l --precision 64 vae --batch_size 8   # the same in l/metrics.csv

Needs PyTorch and numpy. The data are the digits of a build (--data build/data), or a text."""
import argparse
import ast
import json
import os
import struct
import sys

import numpy
import torch

HERE = os.path.dirname(os.path.abspath(__file__))
DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16,
          "BF16": torch.bfloat16, "I64": torch.int64}


def arguments(**numbers):
    """The options of every twin, and the module's hyper-parameters with their defaults."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--weights", metavar="FILE", help="safetensors file to start from")
    parser.add_argument("--init", metavar="FILE", help="write random weights in 16 bits, and end")
    parser.add_argument("--seed", type=int, default=0, help="of the weights and the noise")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--batches", type=int, default=5, help="pltrain's --overfit-batches")
    parser.add_argument("--f32", action="store_true", help="not in 64 bits")
    parser.add_argument("--data", default=os.path.join(HERE, "..", "build", "data"))
    parser.add_argument("--text", default=os.environ.get("EXAMPLE_TEXT"), metavar="FILE")
    for name, value in {"batch_size": 8, **numbers}.items():
        parser.add_argument("--" + name, type=type(value), default=value)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    torch.set_default_dtype(torch.float32 if args.f32 else torch.float64)
    return args


def read_weights(path):
    with open(path, "rb") as f:
        header = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
        data = f.read()
    return {name: torch.frombuffer(bytearray(data[slice(*t["data_offsets"])]),
                                   dtype=DTYPES[t["dtype"]]).reshape(t["shape"])
            for name, t in header.items()
            if name != "__metadata__" and not name.startswith("plume.")}


def write_weights(path, state):
    header, data = {"__metadata__": {"format": "pt"}}, b""
    for name, t in state.items():
        t = t.detach().half() if t.is_floating_point() else t
        raw = t.contiguous().numpy().tobytes()
        dtype = next(k for k, v in DTYPES.items() if v == t.dtype)
        header[name] = {"dtype": dtype, "shape": list(t.shape),
                        "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data)


def digits(args, kind):
    """Digits of the training data: kind is images, from 0 to 1, or labels."""
    with open(os.path.join(args.data, "digits", f"train-{kind}.npy"), "rb") as f:
        f.read(8)
        header = ast.literal_eval(f.read(struct.unpack("<H", f.read(2))[0]).decode())
        array = numpy.frombuffer(f.read(), header["descr"]).reshape(header["shape"])
    array = torch.from_numpy(array[:args.batches * args.batch_size].astype("f8" if kind == "images"
                                                                           else "i8"))
    return (array / 16).to(torch.get_default_dtype()) if kind == "images" else array


def characters(args, first=0):
    """Windows of the text from character `first` on, as numbers of its distinct bytes: [sample,
    context + 1]."""
    with open(args.text or sys.exit("which text? --text FILE"), "rb") as f:
        text = f.read()
    place = {byte: i for i, byte in enumerate(sorted(set(text)))}
    n = args.batches * args.batch_size
    starts = range(first, first + n * args.context, args.context)
    return torch.tensor([[place[byte] for byte in text[i:i + args.context + 1]] for i in starts])


def splitmix(x):
    """The next state, and its number (Steele, Lea and Flood 2014)."""
    mask = (1 << 64) - 1
    x = z = (x + 0x9E3779B97F4A7C15) & mask
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
    return x, z ^ (z >> 31)


def noise_key(seed):
    """The key of rank 0's random ops: the first number of xoshiro256**, which splitmix seeds."""
    _, z = splitmix(seed)
    x = z ^ 0x64726F70
    x, _ = splitmix(x)
    _, s1 = splitmix(x)
    mask = (1 << 64) - 1
    s1 = s1 * 5 & mask
    return ((s1 << 7 | s1 >> 57) & mask) * 9 & mask


def philox(key, low, high):
    """Four numbers of 32 bits from a key and a counter (Salmon et al. 2011)."""
    mask = (1 << 32) - 1
    k0, k1 = key & mask, key >> 32
    c = [low & mask, low >> 32, high & mask, high >> 32]
    for _ in range(10):
        a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(b >> 32) ^ c[1] ^ k0, b & mask, (a >> 32) ^ c[3] ^ k1, a & mask]
        k0, k1 = (k0 + 0x9E3779B9) & mask, (k1 + 0xBB67AE85) & mask
    return c


def normal(seed, step, shape):
    """plume_normal() of mean 0 and deviation 1, the first random op of a step."""
    key, values = noise_key(seed), []
    for i in range((numpy.prod(shape) + 3) // 4):
        n = philox(key, (1 << 63) + int(i), step)
        for k in range(4):
            length = numpy.sqrt(-2 * numpy.log((n[k & 2] + 1) * 2.0 ** -32))
            angle = 6.283185307179586 * (n[k | 1] * 2.0 ** -32)
            values.append(length * (numpy.sin(angle) if k & 1 else numpy.cos(angle)))
    return torch.tensor(values[:numpy.prod(shape)], dtype=torch.get_default_dtype()).reshape(shape)


def run(args, net, optimizer, loss):
    """Trains by loss(batch number, step), and prints the losses."""
    if args.init:
        write_weights(args.init, net.state_dict())
        return
    if args.weights:
        state = {k: v.to(torch.get_default_dtype()) if v.is_floating_point() else v
                 for k, v in read_weights(args.weights).items()}
        net.load_state_dict(state)
    net.train()
    for step in range(args.steps):
        optimizer.zero_grad()
        value = loss(step % args.batches, step)
        value.backward()
        optimizer.step()
        print(repr(value.item()), flush=True)


def rows(args, batch):
    return slice(batch * args.batch_size, (batch + 1) * args.batch_size)
