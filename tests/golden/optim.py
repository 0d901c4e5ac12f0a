#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Records what PyTorch's optimizers, schedulers, GradScaler and DistributedSampler do, as three C
headers. Run by hand for each of optim, schedules and schedules_random:
optim.py NAME | clang-format > NAME.h"""

import math
import random
import sys
import warnings

import torch
from torch.optim import lr_scheduler as S
from torch.utils.data.distributed import DistributedSampler

warnings.filterwarnings("ignore")


def numbers(name, values, ctype="double"):
    if ctype == "double":
        words = [repr(float(v)) for v in values]
    elif ctype == "float":
        words = [float(v).hex() + "f" for v in values]
    else:
        words = [str(v) for v in values]
    print(f"static const {ctype} {name}[] = {{")
    line = "   "
    for word in words:
        if len(line) + len(word) + 2 > 98:
            print(line)
            line = "   "
        line += " " + word + ","
    print(line + "\n};\n")


def rates(make, steps, values=None):
    w = torch.nn.Parameter(torch.zeros(1))
    opt = torch.optim.SGD([w], lr=0.1)
    sched = make(opt)
    out = [opt.param_groups[0]["lr"]]
    for t in range(steps):
        opt.step()
        if values is None:
            sched.step()
        else:
            sched.step(values[t])
        out.append(opt.param_groups[0]["lr"])
    return out


def warm(opt, other, start=1 / 3, total=5):
    first = S.LinearLR(opt, start_factor=start, total_iters=total)
    return S.SequentialLR(opt, [first, other(opt)], milestones=[total])


PLATEAU = [1.0, 0.9, 0.89995, 0.95, 0.9, 0.91, 0.8, 0.8, 0.8, 0.8, 0.8, 0.79, 0.9, 0.9, 0.9, 0.9,
           0.9, 0.9, 0.9, 0.7, 0.7, 0.7, 0.7, 0.7, 0.7, 0.7, 0.7, 0.7, 0.7, 0.7]


def schedules():
    numbers("golden_step", rates(lambda o: S.StepLR(o, 3, gamma=0.5), 20))
    numbers("golden_multi_step", rates(lambda o: S.MultiStepLR(o, [2, 5, 11], gamma=0.1), 20))
    numbers("golden_cosine", rates(lambda o: S.CosineAnnealingLR(o, 10, eta_min=0.001), 25))
    numbers("golden_warm_constant",
            rates(lambda o: S.LinearLR(o, start_factor=1 / 3, total_iters=5), 10))
    numbers("golden_warm_cosine",
            rates(lambda o: warm(o, lambda q: S.CosineAnnealingLR(q, 8, eta_min=0.002), 0.01), 13))
    numbers("golden_warm_step", rates(lambda o: warm(o, lambda q: S.StepLR(q, 2, gamma=0.3)), 15))
    numbers("golden_plateau_values", PLATEAU)
    n = len(PLATEAU)
    numbers("golden_plateau_min", rates(
        lambda o: S.ReduceLROnPlateau(o, factor=0.5, patience=2), n, PLATEAU))
    numbers("golden_plateau_max_abs", rates(
        lambda o: S.ReduceLROnPlateau(o, mode="max", factor=0.1, patience=1, threshold=0.05,
                                      threshold_mode="abs", cooldown=3, min_lr=0.0005),
        n, PLATEAU))
    numbers("golden_plateau_min_abs_0", rates(
        lambda o: S.ReduceLROnPlateau(o, factor=0.5, patience=0, threshold=0,
                                      threshold_mode="abs"), n, PLATEAU))


def one_cycle(opt, t_max, **numbers):
    return S.OneCycleLR(opt, 0.1, total_steps=t_max, cycle_momentum=False, **numbers)


def more_schedules():
    numbers("golden_exponential", rates(lambda o: S.ExponentialLR(o, 0.9), 30))
    numbers("golden_polynomial", rates(lambda o: S.PolynomialLR(o, 12, power=2.5), 20))
    numbers("golden_restarts",
            rates(lambda o: S.CosineAnnealingWarmRestarts(o, 4, 3, eta_min=0.002), 60))
    numbers("golden_one_cycle", rates(lambda o: one_cycle(o, 25), 25))
    numbers("golden_one_cycle_linear",
            rates(lambda o: one_cycle(o, 17, pct_start=0.4, anneal_strategy="linear",
                                      div_factor=10.0, final_div_factor=100.0), 17))
    numbers("golden_one_cycle_three",
            rates(lambda o: one_cycle(o, 40, pct_start=0.25, three_phase=True), 40))
    numbers("golden_one_cycle_late", rates(lambda o: one_cycle(o, 9, pct_start=0.0), 9))
    w = torch.nn.Parameter(torch.zeros(1))
    opt = torch.optim.SGD([w], lr=0.1, momentum=0.5)
    sched = S.OneCycleLR(opt, 0.1, total_steps=20, base_momentum=0.6)
    out = [opt.param_groups[0]["momentum"]]
    for _ in range(19):
        opt.step()
        sched.step()
        out.append(opt.param_groups[0]["momentum"])
    numbers("golden_one_cycle_momentum", out)


def random_schedules():
    """Random settings, each with the rates at three steps: kind, base, warm-up and its start, the
    numbers of the kind; step and rate three times."""
    rng = random.Random(14)
    rows = []
    while len(rows) < 200:
        kind = rng.choice((5, 6, 7, 8))
        base = float(f"{10 ** rng.uniform(-5, 0.5):.3g}")
        warmup, start = rng.choice((0, 0, rng.randint(1, 9))), round(rng.uniform(0.01, 1), 3)
        t_max, eta_min = rng.randint(2, 90), rng.choice((0, float(f"{base * rng.random():.3g}")))
        gamma, power = round(rng.uniform(0.8, 1.01), 4), round(rng.uniform(0.3, 4), 2)
        t_mult = rng.randint(1, 3)
        pct, div = round(rng.uniform(0, 0.49), 3), round(rng.uniform(1, 50), 2)
        final, linear, three = round(10 ** rng.uniform(0, 5), 1), *rng.choices((0, 1), k=2)
        length = t_max if kind == 8 else rng.randint(t_max, 4 * t_max)
        if kind == 8 and abs(pct * t_max - 1) < 1e-6:
            continue

        def make(opt):
            inner = {5: lambda: S.ExponentialLR(opt, gamma),
                     6: lambda: S.PolynomialLR(opt, t_max, power),
                     7: lambda: S.CosineAnnealingWarmRestarts(opt, t_max, t_mult, eta_min),
                     8: lambda: S.OneCycleLR(opt, base, total_steps=t_max, pct_start=pct,
                                             anneal_strategy="linear" if linear else "cos",
                                             div_factor=div, final_div_factor=final,
                                             three_phase=bool(three), cycle_momentum=False)}[kind]
            if not warmup or kind == 8:
                return inner()
            first = S.LinearLR(opt, start_factor=start, total_iters=warmup)
            return S.SequentialLR(opt, [first, inner()], milestones=[warmup])

        if kind == 8:
            warmup = 0
        try:
            got = rates_of(make, base, warmup + length)
        except ZeroDivisionError:  # a phase of no length
            continue
        steps = sorted(rng.sample(range(len(got)), 3)) if len(got) > 3 else [0, 1, 2]
        row = [kind, base, warmup, start, t_max, eta_min, gamma, power, t_mult, pct or -1, div,
               final, linear, three]
        for step in steps:
            row += [step, got[step]]
        rows.append(row)
    print("/* clang-format off */\nstatic const double golden_random_schedules[] = {")
    for row in rows:
        words = [f"{number!r}," for number in row]
        print("    " + " ".join(words[:14]) + "\n       " + " ".join(words[14:]))
    print("};\n/* clang-format on */\n")


def rates_of(make, base, steps):
    w = torch.nn.Parameter(torch.zeros(1))
    opt = torch.optim.SGD([w], lr=base)
    sched = make(opt)
    out = [opt.param_groups[0]["lr"]]
    for _ in range(steps):
        opt.step()
        sched.step()
        out.append(opt.param_groups[0]["lr"])
    return out


def groups():
    """Three parameters in three groups of AdamW, clipped by one norm, with a schedule."""
    torch.manual_seed(11)
    names = ("a.weight", "a.bias", "norm.weight")
    w = [torch.nn.Parameter(torch.randn(13, dtype=torch.float64)) for _ in names]
    numbers("golden_groups_start", torch.cat(w).tolist())
    opt = torch.optim.AdamW([{"params": [w[0]]}, {"params": [w[1]], "weight_decay": 0.0},
                             {"params": [w[2]], "lr": 0.002, "weight_decay": 0.3}],
                            lr=0.01, weight_decay=0.1, foreach=False)
    sched = S.CosineAnnealingLR(opt, 7, eta_min=0.0005)
    grads = torch.randn(12, 39, dtype=torch.float64)
    numbers("golden_groups_grads", grads.flatten().tolist())
    for g in grads:
        for p, mine in zip(w, g.split(13)):
            p.grad = mine.clone()
        torch.nn.utils.clip_grad_norm_(w, 3.0)
        opt.step()
        sched.step()
    numbers("golden_groups", torch.cat(w).tolist())


def scaler():
    overflows = [0] * 40
    for i in (0, 1, 7, 20, 21, 33):
        overflows[i] = 1
    made, scales = [], []
    w = torch.nn.Parameter(torch.ones(3))
    opt = torch.optim.SGD([w], lr=0.0)
    amp = torch.amp.GradScaler("cpu", growth_interval=4)
    scales.append(amp.get_scale())
    for bad in overflows:
        before = w.detach().clone()
        opt.param_groups[0]["lr"] = 1.0
        opt.zero_grad()
        amp.scale(w.sum() * (math.inf if bad else 1e-3)).backward()
        amp.step(opt)
        amp.update()
        made.append(int(not torch.equal(before, w.detach())))
        scales.append(amp.get_scale())
    numbers("golden_scaler_overflows", overflows, "int")
    numbers("golden_scaler_made", made, "int")
    numbers("golden_scaler_scales", scales)
    amp = torch.amp.GradScaler("cpu")
    changes = [amp.get_scale(), amp.get_growth_factor(), amp.get_backoff_factor(),
               amp.get_growth_interval()]
    numbers("golden_scaler_defaults", changes)


def samplers():
    cases, out = [], []
    for n, world, drop in ((10, 4, 0), (10, 4, 1), (2, 7, 0), (12, 4, 0), (12, 4, 1), (1, 3, 0),
                           (9, 2, 1), (9, 2, 0), (17, 5, 1), (3, 10, 0)):
        for rank in range(world):
            s = DistributedSampler(range(n), world, rank, shuffle=False, drop_last=bool(drop))
            got = list(s)
            cases += [n, world, drop, rank, len(got)]
            out += got
    numbers("golden_sampler_cases", cases, "int")
    numbers("golden_sampler_indices", out, "int")


def optimizers():
    torch.manual_seed(7)
    n, steps = 13, 12
    start = torch.randn(n)
    grads = torch.randn(steps, n)
    numbers("golden_optim_start", start.tolist(), "float")
    numbers("golden_optim_grads", grads.flatten().tolist(), "float")
    makers = {
        "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
        "sgd_momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01),
        "sgd_nesterov": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.8, weight_decay=0.02,
                                                  nesterov=True),
        "adam": lambda p: torch.optim.Adam(p, lr=0.01, foreach=False, weight_decay=0.1),
        "adam_betas": lambda p: torch.optim.Adam(p, lr=0.02, betas=(0.4, 0.7), eps=1e-3,
                                                 foreach=False),
        "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1, foreach=False),
        "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01, foreach=False),
        "rmsprop_momentum": lambda p: torch.optim.RMSprop(p, lr=0.02, alpha=0.4, eps=1e-3,
                                                          momentum=0.8, weight_decay=0.1,
                                                          foreach=False),
        "rmsprop_centered": lambda p: torch.optim.RMSprop(p, lr=0.01, alpha=0.9, eps=1e-2,
                                                          centered=True, foreach=False),
        "rmsprop_all": lambda p: torch.optim.RMSprop(p, lr=0.01, alpha=0.9, eps=1e-2, momentum=0.5,
                                                     centered=True, weight_decay=0.1,
                                                     foreach=False),
        "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1, foreach=False),
        "adagrad_decay": lambda p: torch.optim.Adagrad(p, lr=0.2, lr_decay=0.1, weight_decay=0.05,
                                                       eps=1e-3, foreach=False),
    }
    for name, make in makers.items():
        for dtype, ctype in ((torch.float32, "float"), (torch.float64, "double")):
            w = torch.nn.Parameter(start.to(dtype).clone())
            opt = make([w])
            for g in grads:
                w.grad = g.to(dtype).clone()
                opt.step()
            numbers(f"golden_{name}_{ctype}", w.detach().tolist(), ctype)
    w = torch.nn.Parameter(torch.zeros(n))
    norms, factors = [], []
    for g in grads:
        w.grad = g.clone()
        norms.append(float(torch.nn.utils.clip_grad_norm_([w], 3.0)))
        factors.append(float(w.grad[0]))
    numbers("golden_clip_norms", norms)
    numbers("golden_clip_first", factors)


HEADERS = {
    "optim": (groups, scaler, samplers, optimizers),
    "schedules": (schedules, more_schedules),
    "schedules_random": (random_schedules,),
}


def main():
    name = sys.argv[1]
    guard = f"PL_TESTS_GOLDEN_{name.upper()}_H"
    print("/* SPDX-License-Identifier: MIT */")
    print(f"/* Made by optim.py with PyTorch {torch.__version__}; do not edit. */")
    print(f"#ifndef {guard}\n#define {guard}\n")
    for part in HEADERS[name]:
        part()
    print("#endif")


main()
