# SPDX-License-Identifier: MIT
"""The PyTorch side of ./dev bench shards: GPT-6L in FSDP, two ranks of one thread.

Prints a JSON row: megabytes that the larger rank took beyond those of the import, steps per second.
A block is a unit, as in the tutorials; weights are f32, the optimizer is AdamW.
"""

import json
import os
import resource
import subprocess
import sys
import tempfile
import time

RANKS, STEPS, BATCH = 2, 3, 4  # as shards.py


def peak_mb():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def work(rank, store):
    try:
        import torch
        from torch.distributed.fsdp import fully_shard
    except ImportError as e:
        print(f"shards_peer: {e}", file=sys.stderr)
        return 77
    from engine_models import torch_models
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method="file://" + store, rank=rank,
                                         world_size=RANKS)
    before = peak_mb()
    make_net, make_batches = torch_models()
    net = make_net("gpt6")
    mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (RANKS,))
    for block in net.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(net, mesh=mesh)
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-4, weight_decay=0.1)
    batches = make_batches("gpt6", 2, BATCH)

    def step(i):
        x, y = batches[i % 2]
        optimizer.zero_grad(set_to_none=True)
        logits = net(x)
        torch.nn.functional.cross_entropy(logits.view(-1, logits.shape[-1]), y.view(-1)).backward()
        optimizer.step()

    step(0)
    start = time.perf_counter()
    for i in range(STEPS):
        step(i)
    rate = STEPS / (time.perf_counter() - start)
    most = torch.tensor(peak_mb() - before)
    torch.distributed.all_reduce(most, torch.distributed.ReduceOp.MAX)
    if rank == 0:
        print(json.dumps({"peer_name": f"PyTorch {torch.__version__}, FSDP",
                          "mb": float(most), "rate": rate}), flush=True)
    torch.distributed.destroy_process_group()
    return 0


def main():
    if "--rank" in sys.argv:
        return work(int(sys.argv[sys.argv.index("--rank") + 1]), sys.argv[-1])
    env = dict(os.environ, CUDA_VISIBLE_DEVICES="", OMP_NUM_THREADS="1", MKL_NUM_THREADS="1")
    with tempfile.TemporaryDirectory(prefix="plume-peer-") as folder:
        ranks = [subprocess.Popen([sys.executable, os.path.abspath(__file__), "--rank", str(r),
                                   os.path.join(folder, "store")], env=env) for r in range(RANKS)]
        return max(abs(p.wait()) for p in ranks)


if __name__ == "__main__":
    sys.exit(main())
