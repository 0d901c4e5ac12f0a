#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""GPUs, with a library in place of the driver's (tests/fakes/fake_nvml.c): what the daemon's watch says
reaches the state, and an error of a GPU stands beside the failure that it led to."""
import contextlib
import json
import os
import signal
import subprocess

import harness
from harness import equal, wait_for

GIB = 1 << 30


class Driver:
    """The file that the fake library reads; nothing is waited for when it changes."""

    def __init__(self, step, n=2, **more):
        self.path = os.path.join(step.path("driver"), "state.json")
        os.mkdir(step.path("driver"))
        self.state = {"gpus": [{
            "uuid": f"GPU-{i}", "name": "Fake 100", "util": 90 + i, "mem_util": 40,
            "power_mw": 312500, "power_limit_mw": 400000, "clock": 1980, "clock_max": 1980,
            "mem_used": 30 * GIB, "mem_total": 80 * GIB, "temp": 60 + i, "throttle": 0,
            "ecc": [0, 0], "processes": []} for i in range(n)], "events": [], **more}
        self.write()
        step.env.update(PLUME_NVML=os.environ["FAKE_NVML"], PLUME_FAKE_NVML=self.path,
                        SLURM_STEP_GPUS="0-1", SLURM_GPUS_ON_NODE="2")

    def write(self):
        with open(self.path + ".new", "w", encoding="utf-8") as f:
            json.dump(self.state, f)
        os.rename(self.path + ".new", self.path)

    def gpu(self, number, **values):
        self.state["gpus"][number].update(values)
        self.write()

    def event(self, **event):
        self.state["events"].append(event)
        self.write()


def running(step, pids, **env):
    step.tasks_per_node = len(pids)
    d = step.start(**env)
    ranks = [step.keep(d.rank("starter", i, local_rank=i, capture=True)) for i in range(len(pids))]
    for r, pid in zip(ranks, pids):
        r.expect("world")
        r.send(type="spawned", pid=pid)
    return d, ranks


def watch(step):
    client = step.hub()
    client.send(type="watch")
    return client, client.expect("snapshot")["state"]


def until(client, doc, check):
    """Events are applied until the document is as wanted."""
    while not check(doc):
        doc = harness.replay([client.expect("event")["event"]], doc)
    return doc


def gpus_of(doc):
    return doc["nodes"][0].get("gpus", [])


def seen(client, doc, driver, check=gpus_of):
    """A sample that was taken when all ranks ran, so that it names them."""
    doc = until(client, doc, lambda doc: all(r["state"] == "running" for r in doc["ranks"]))
    driver.write()
    return until(client, doc, check)


def ranks_on_1(doc):
    return gpus_of(doc) and "ranks" in gpus_of(doc)[1]


def program(step):
    """A rank's process, and a child of it, which works on the GPU."""
    p = subprocess.Popen(["sh", "-c", "sleep 1000 & echo $!; wait"], stdout=subprocess.PIPE)
    return p, int(p.stdout.readline())


def end(step, d, ranks, codes):
    for r, code in zip(ranks, codes):
        r.exited(code) if code >= 0 else r.exited(signal_number=-code)
    for r in ranks:
        r.expect("verdict")
        r.out.read_all(), r.err.read_all()
    equal(d.wait(), 0)
    state = step.load("status.json")["state"]
    events = step.lines("events.jsonl") + step.lines("metrics.jsonl")
    equal(state, harness.replay(events))
    return state


def test_what_they_do(step):
    driver = Driver(step)
    p, child = program(step)
    driver.state["gpus"][0]["processes"] = [{"pid": child, "mem": 20 * GIB, "util": 70},
                                            {"pid": p.pid, "mem": GIB, "util": 5},
                                            {"pid": 1, "mem": 9 * GIB}]
    driver.gpu(1, processes=[{"pid": os.getpid(), "util": 91}])
    d, ranks = running(step, [p.pid, os.getpid()])
    client, doc = watch(step)
    doc = seen(client, doc, driver, ranks_on_1)
    equal(gpus_of(doc)[0], {
        "gpu": 0, "uuid": "GPU-0", "name": "Fake 100", "util": 90, "mem_util": 40,
        "power_w": 312.5, "power_limit_w": 400.0, "clock_mhz": 1980, "clock_max_mhz": 1980,
        "mem_used": 30 * GIB, "mem_total": 80 * GIB, "temp_c": 60, "ecc_corrected": 0,
        "ecc_uncorrected": 0, "ranks": [{"rank": 0, "mem": 21 * GIB, "util": 75}]})
    equal(gpus_of(doc)[1]["ranks"], [{"rank": 1, "util": 91}])
    driver.gpu(1, clock=690, throttle=0x48, ecc=[3, 1], util=17)
    doc = until(client, doc, lambda doc: gpus_of(doc)[1]["util"] == 17)
    gpu = gpus_of(doc)[1]
    equal((gpu["clock_mhz"], gpu["throttle"], gpu["ecc_corrected"], gpu["ecc_uncorrected"]),
          (690, ["hw-thermal"], 3, 1))
    assert gpu["throttled_s"] < harness.LIMIT
    driver.gpu(1, throttle=1, util=18)
    doc = until(client, doc, lambda doc: gpus_of(doc)[1]["util"] == 18)
    assert "throttle" not in gpus_of(doc)[1] and "throttled_s" not in gpus_of(doc)[1]
    end(step, d, ranks, [0, 0])
    os.kill(child, signal.SIGKILL)
    p.wait()


def test_the_last_minute(step):
    """Means are there once twelve samples are, and then of the last twelve."""
    driver = Driver(step, n=1)
    d, ranks = running(step, [os.getpid()])
    client, doc = watch(step)
    doc = seen(client, doc, driver)
    for i in range(15):
        driver.gpu(0, util=i, mem_used=(20 - i) * GIB)
        doc = until(client, doc, lambda doc, i=i: gpus_of(doc)[0]["util"] == i)
    end(step, d, ranks, [0])
    samples = [e["gpus"][0] for e in step.lines("metrics.jsonl") if e["type"] == "gpus"]
    assert len(samples) >= 16
    for i, sample in enumerate(samples):
        last = samples[i - 11:i + 1] if i >= 11 else None
        equal(sample.get("util_mean"), last and int(sum(s["util"] for s in last) / 12 + 0.5))
        equal(sample.get("mem_most"), last and max(s["mem_used"] for s in last))


def test_xid_beside_the_failure(step):
    """The rank whose GPU broke down is the cause, though it says what victims say and ends last."""
    driver = Driver(step)
    driver.gpu(1, processes=[{"pid": os.getpid()}])
    d, ranks = running(step, [1 << 21, os.getpid()])
    client, doc = watch(step)
    doc = seen(client, doc, driver, ranks_on_1)
    driver.event(gpu=1, xid=79)
    doc = until(client, doc, lambda doc: "gpu_events" in doc["nodes"][0])
    error = doc["nodes"][0]["gpu_events"][0]
    assert error.pop("t") > 0
    equal(error, {"gpu": 1, "uuid": "GPU-1", "event": "xid", "xid": 79,
                  "text": "GPU has fallen off the bus", "ranks": [1]})
    for r in ranks:
        r.err.write(b"ncclUnhandledCudaError: NCCL error in reducer\n")
    state = end(step, d, ranks, [1, 1])
    cause = step.result()["cause"]
    equal((cause["rank"], cause["kind"], cause["exit"]), (1, "exit", 1))
    before = cause["gpu"].pop("before_s")
    assert 0 < before < harness.LIMIT
    equal(cause["gpu"], {"gpu": 1, "event": "xid", "xid": 79,
                         "text": "GPU has fallen off the bus"})
    equal([r.get("role") for r in state["ranks"]], ["cascade", "root"])


def test_error_of_nobody_known(step):
    """Processes may have other numbers than ranks (a container): then it may be any rank's."""
    driver = Driver(step)
    d, ranks = running(step, [os.getpid()])
    client, doc = watch(step)
    doc = seen(client, doc, driver)
    driver.event(gpu=0)
    driver.event(gpu=0, xid=9999)
    doc = until(client, doc, lambda doc: len(doc["nodes"][0].get("gpu_events", [])) == 2)
    end(step, d, ranks, [3])
    error = step.result()["cause"]["gpu"]
    equal((error["event"], error["text"]), ("ecc", "double bit ECC error"))
    assert "text" not in doc["nodes"][0]["gpu_events"][1]


def test_other_ranks_gpu_is_no_cause(step):
    driver = Driver(step)
    driver.gpu(1, processes=[{"pid": os.getpid()}])
    d, ranks = running(step, [1 << 21, os.getpid()])
    client, doc = watch(step)
    doc = seen(client, doc, driver, ranks_on_1)
    driver.event(gpu=1, xid=63)
    until(client, doc, lambda doc: "gpu_events" in doc["nodes"][0])
    end(step, d, ranks, [3, 0])
    cause = step.result()["cause"]
    equal((cause["rank"], "gpu" in cause), (0, False))


def test_only_the_steps_own(step):
    """Four are there, Slurm gave two and shuts nothing away."""
    driver = Driver(step, n=4, events_supported=False)
    step.env.update(SLURM_STEP_GPUS="1,3")
    d, ranks = running(step, [os.getpid()])
    client, doc = watch(step)
    doc = seen(client, doc, driver)
    equal([g["gpu"] for g in gpus_of(doc)], [1, 3])
    end(step, d, ranks, [0])


def children(pid):
    """All but the helper and the prober, which each daemon has."""
    with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as f:
        return [child for child in f.read().split() if not {"--helper", "--prober"} & set(command(child))]


def command(pid):
    with contextlib.suppress(OSError), open(f"/proc/{pid}/cmdline", encoding="utf-8") as f:
        return f.read().split("\0")
    return []


def test_no_gpu_no_watch(step):
    """A step without GPUs starts nothing, whatever the machine has."""
    Driver(step)
    for name in ("SLURM_STEP_GPUS", "SLURM_GPUS_ON_NODE"):
        del step.env[name]
    d, ranks = running(step, [os.getpid()])
    equal(children(d.process.pid), [])
    state = end(step, d, ranks, [0])
    assert "gpus" not in state["nodes"][0]


def test_driver_does_not_answer(step):
    """No word about it: the step runs as without."""
    Driver(step, init=9)
    d, ranks = running(step, [os.getpid()])
    wait_for("the watch's end", lambda: not children(d.process.pid))
    state = end(step, d, ranks, [0])
    assert "gpus" not in state["nodes"][0]
    equal(d.said(), "")


harness.main(globals())
