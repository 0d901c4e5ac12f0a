# SPDX-License-Identifier: MIT
"""The models of the engine's benchmarks: sizes, FLOPs, made-up data, and PyTorch's version of each.

Plume's versions are in examples/ and bench/models/; both sides have the same layers and optimizers.
"""

import array
import importlib.util
import math
import os
from collections import namedtuple

Gpt = namedtuple("Gpt", "layers heads width context vocabulary batch")
GPT = {
    "gpt4": Gpt(4, 4, 128, 128, 65, 16),
    "gpt6": Gpt(6, 6, 384, 256, 65, 8),
    # 124M; the vocabulary of 50257 is padded to a multiple of 64, as is usual on GPUs.
    "gpt2": Gpt(12, 12, 768, 1024, 50304, 16),
    "gpt2-medium": Gpt(24, 16, 1024, 1024, 50304, 16),  # 350M
    "gpt-tiny": Gpt(1, 2, 32, 24, 300, 2),
}
Lstm = namedtuple("Lstm", "layers width hidden context vocabulary batch")
LSTM = Lstm(1, 128, 256, 64, 65, 32)
Resnet = namedtuple("Resnet", "depth size batch")  # size: to which images of 8 x 8 are enlarged
RESNET = {
    "resnet": Resnet(18, 32, 32),
    "resnet224": Resnet(18, 224, 128),
    "resnet50": Resnet(50, 224, 128),
}
BATCH = {"mlp": 512, "cnn": 128, "lstm": LSTM.batch,
         **{name: net.batch for name, net in RESNET.items()},
         **{name: gpt.batch for name, gpt in GPT.items()}}
ADAM = ("lstm",)  # as AdamW for GPT; the others have SGD with momentum


def resnet_layers(net):
    """Multiply-adds per image of each layer of examples/resnet: 2 or, from 50 layers on, 3
    convolutions a block, and one of 1 x 1 beside it where the number of channels changes."""
    blocks = {18: (2, 2, 2, 2), 50: (3, 4, 6, 3)}[net.depth]
    layers, side, channels = [(net.size // 2) ** 2 * 64 * 3 * 49], net.size // 4, 64
    for stage, n in enumerate(blocks):
        wide = 64 << stage
        for i in range(n):
            out, before = wide, side
            side //= 2 if stage and not i else 1
            if net.depth < 50:
                layers += [side ** 2 * channels * wide * 9, side ** 2 * wide * wide * 9]
            else:
                out = 4 * wide
                layers += [before ** 2 * channels * wide, side ** 2 * wide * wide * 9,
                           side ** 2 * wide * out]
            if channels != out:
                layers += [side ** 2 * channels * out]
            channels = out
    return layers + [channels * 10]


def flops_of(model, batch=None):
    """FLOPs of a step: 2 per multiply-add of a matrix product; backward is twice forward, without
    the gradient of the input. Causal attention needs half of the T x T products, and only that half
    counts: 6 N + 6 L T C per token for a GPT with N weights in products (others count 12 L T C)."""
    batch = batch or BATCH[model]
    if model in GPT:
        gpt = GPT[model]
        token = (gpt.layers * (12 * gpt.width ** 2 + gpt.context * gpt.width)
                 + gpt.vocabulary * gpt.width)
        return 3 * 2 * batch * gpt.context * token
    if model == "lstm":
        token = 4 * LSTM.hidden * (LSTM.width + LSTM.hidden) + LSTM.hidden * LSTM.vocabulary
        return 3 * 2 * batch * LSTM.context * token
    if model == "mlp":
        layers = [784 * 1024, 1024 * 1024, 1024 * 10]
    elif model in RESNET:
        layers = resnet_layers(RESNET[model])
    else:
        layers = [26 * 26 * 32 * 9, 24 * 24 * 64 * 32 * 9, 9216 * 128, 128 * 10]
    return 2 * batch * (3 * sum(layers) - layers[0])


def module_args(build, model, batch=None):
    """pltrain's arguments: the module, which reports the times of steps (bench/models/timed.h), and
    its hyper-parameters."""
    batch = batch or BATCH[model]
    kind = "gpt" if model in GPT else "resnet" if model in RESNET else model
    args = [os.path.join(build, "bench", f"bench-{kind}.so"), "--batch_size", str(batch),
            "--epochs", "1000000"]
    if model in GPT:
        for name in ("layers", "heads", "width", "context", "vocabulary"):
            args += [f"--{name}", str(getattr(GPT[model], name))]
        args += ["--lr", "0.0003"]
    if model == "cnn":
        args += ["--size", "28", "--lr", "0.01"]
    if model in RESNET:
        net = RESNET[model]
        args += ["--depth", str(net.depth), "--size", str(net.size), "--lr", "0.001"]
    if model == "lstm":
        for name in ("layers", "width", "hidden", "context", "vocabulary"):
            args += [f"--{name}", str(getattr(LSTM, name))]
    return args


def write_npy(path, shape, values, descr="|u1"):
    """Writes NumPy's format 1.0."""
    head = "{'descr': '%s', 'fortran_order': False, 'shape': (%s,), }" % (
        descr, ", ".join(map(str, shape)))
    head += " " * (64 - (len(head) + 11) % 64) + "\n"
    with open(path, "wb") as f:
        f.write(b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head.encode() + values)


def make_tokens(folder, gpt, rows):
    """Writes x.npy, and y.npy with the token after each token."""
    wide = gpt.vocabulary > 256
    n = rows * (gpt.context + 1)
    tokens = array.array("H" if wide else "B", os.urandom(n * (2 if wide else 1)))
    tokens = array.array(tokens.typecode, (t % gpt.vocabulary for t in tokens))
    lines = [tokens[i:i + gpt.context + 1] for i in range(0, n, gpt.context + 1)]
    for name, part in (("x", slice(None, -1)), ("y", slice(1, None))):
        write_npy(f"{folder}/{name}.npy", (rows, gpt.context),
                  b"".join(line[part].tobytes() for line in lines), "<u2" if wide else "|u1")


SHAPES = {"mlp": (784,), "cnn": (1, 28, 28), **{name: (1, 8, 8) for name in RESNET}}


def make_data(folder, model, rows):
    os.makedirs(folder, exist_ok=True)
    if model in GPT or model == "lstm":
        make_tokens(folder, GPT.get(model, LSTM), rows)
        return
    shape = SHAPES[model]
    write_npy(folder + "/x.npy", (rows, *shape), os.urandom(rows * math.prod(shape)))
    write_npy(folder + "/y.npy", (rows,), bytes(b % 10 for b in os.urandom(rows)))


def torch_models():
    """Returns make_net(name) and make_batches(name, number, batch size) with PyTorch. Only
    processes that train import torch; the one that starts ranks does not."""
    import torch
    from torch import nn
    import torch.nn.functional as F

    class Attention(nn.Module):
        def __init__(self, heads, width):
            super().__init__()
            self.heads = heads
            self.qkv = nn.Linear(width, 3 * width)
            self.out = nn.Linear(width, width)

        def forward(self, x):
            b, t, c = x.shape
            q, k, v = (u.view(b, t, self.heads, c // self.heads).transpose(1, 2)
                       for u in self.qkv(x).split(c, dim=2))
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            return self.out(y.transpose(1, 2).reshape(b, t, c))

    class Block(nn.Module):
        def __init__(self, heads, width):
            super().__init__()
            self.ln1, self.ln2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.attention = Attention(heads, width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x):
            x = x + self.attention(self.ln1(x))
            return x + self.down(F.gelu(self.up(self.ln2(x)), approximate="tanh"))

    class GptNet(nn.Module):
        def __init__(self, gpt):
            super().__init__()
            self.token = nn.Embedding(gpt.vocabulary, gpt.width)
            self.place = nn.Embedding(gpt.context, gpt.width)
            self.blocks = nn.Sequential(*(Block(gpt.heads, gpt.width) for _ in range(gpt.layers)))
            self.ln = nn.LayerNorm(gpt.width)
            for p in (self.token, self.place):
                nn.init.normal_(p.weight, std=0.02)

        def forward(self, x):
            h = self.token(x) + self.place.weight[:x.shape[1]]
            return F.linear(self.ln(self.blocks(h)), self.token.weight)

    class LstmNet(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(LSTM.vocabulary, LSTM.width)
            self.lstm = nn.LSTM(LSTM.width, LSTM.hidden, LSTM.layers, batch_first=True)
            self.out = nn.Linear(LSTM.hidden, LSTM.vocabulary)

        def forward(self, x):
            return self.out(self.lstm(self.embedding(x))[0])

    class Enlarged(nn.Module):
        """The example's ResNet (examples/resnet/resnet.py), on images as the module gets them."""

        def __init__(self, net):
            super().__init__()
            self.size = net.size
            path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "examples",
                                "resnet", "resnet.py")
            spec = importlib.util.spec_from_file_location("resnet", path)
            example = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(example)
            self.net = example.ResNet(64, 10, net.depth)

        def forward(self, x):
            return self.net(F.interpolate(x, self.size).expand(-1, 3, -1, -1))

    def make_net(name):
        if name == "lstm":
            return LstmNet()
        if name in RESNET:
            return Enlarged(RESNET[name])
        if name == "mlp":
            return nn.Sequential(nn.Linear(784, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(),
                                 nn.Linear(1024, 10))
        if name == "cnn":
            return nn.Sequential(nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(),
                                 nn.MaxPool2d(2), nn.Flatten(), nn.Linear(64 * 12 * 12, 128),
                                 nn.ReLU(), nn.Linear(128, 10))
        return GptNet(GPT[name])

    def make_batches(name, n, batch):
        if name in GPT or name == "lstm":
            text = GPT.get(name, LSTM)
            x = torch.randint(text.vocabulary, (n, batch, text.context + 1))
            return [(a[:, :-1].contiguous(), a[:, 1:].contiguous()) for a in x]
        return list(zip(torch.rand(n, batch, *SHAPES[name]), torch.randint(10, (n, batch))))

    return make_net, make_batches
