#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What an attempt does with files that earlier attempts of its trial have left."""
import json
import os
import time

import harness
from harness import equal, running, wait_for

RANKS, STEPS = 3, 1000
LIMIT = 192 * 1024  # of all attempts
SHARE = LIMIT // 2 // 3


def write(path, text, age_s):
    with open(path, "w", encoding="utf-8") as f:
        f.write(text)
    os.utime(path, (time.time() - age_s,) * 2)


def records(attempt):
    """One a second and rank, whose lowest and highest values are somewhere in the middle."""
    return [{"type": "metrics", "t": 1e9 + step, "seq": RANKS * step + rank + 1, "rank": rank, "step": step,
             "metrics": {"v": ((step + attempt) * 7919 + rank) % 10007}}
            for step in range(STEPS) for rank in range(RANKS)]


def lines(path):
    with open(path, encoding="utf-8") as f:
        return [json.loads(line) for line in f]


def end(d, starters):
    for r in starters:
        r.exited(0)
        equal(r.expect("verdict")["code"], 0)
        r.out.read_all(), r.err.read_all()
    equal(d.wait(), 0)


def again(step, attempt, **env):
    """The trial's next attempt."""
    step.attempt = 1  # the job's
    return running(step, 1, PLUME_RUN_DIR=step.path("home", "steps", f"{step.job}.0"), PLUME_TRIAL="0",
                   PLUME_ATTEMPT=str(attempt), **env)


def fourth(step, ages, **env):
    """The fourth attempt of a trial; the metrics of the earlier ones are so old, in seconds. Returns when it
    has looked at them: a temporary file in the trial's folder goes last."""
    end(*running(step, 1))
    stale = step.trial("status.json.0123456789abcdef")
    write(stale, "{", 3600)
    for attempt, age_s in enumerate(ages):
        os.makedirs(step.trial(f"attempt-{attempt}"), exist_ok=True)
        write(step.trial(f"attempt-{attempt}", "metrics.jsonl"),
              "".join(json.dumps(r) + "\n" for r in records(attempt)), age_s)
    started = again(step, 3, **env)
    wait_for("the earlier attempts to be looked at", lambda: not os.path.exists(stale))
    return started


def check_thinned(step, attempt):
    """Small enough, nothing invented, and of each rank the first, last, lowest and highest value."""
    path = step.trial(f"attempt-{attempt}", "metrics.jsonl")
    left, all_records = lines(path), records(attempt)
    assert os.path.getsize(path) <= SHARE
    equal([r for r in left if r not in all_records], [])
    equal([r["seq"] for r in left], sorted({r["seq"] for r in left}))
    for rank in range(RANKS):
        def edges(some):
            mine = [r["metrics"]["v"] for r in some if r["rank"] == rank]
            return mine[0], mine[-1], min(mine), max(mine)
        equal(edges(left), edges(all_records))
    assert len(left) > 100  # a sample of the rest


def test_attempts_share_a_limit_of_metrics(step):
    d, starters = fourth(step, [3600, 3600, 0], PLUME_METRICS_TRIAL_MAX=f"{LIMIT // 1024}K")
    check_thinned(step, 0)
    check_thinned(step, 1)
    equal(lines(step.trial("attempt-2", "metrics.jsonl")), records(2))  # its hub may still write
    end(d, starters)
    equal(step.result()["state"], "done")


def test_metrics_below_the_limit_stay(step):
    """The default leaves room for four attempts."""
    d, starters = fourth(step, [3600, 3600, 3600])
    end(d, starters)
    for attempt in range(3):
        equal(lines(step.trial(f"attempt-{attempt}", "metrics.jsonl")), records(attempt))


def test_temporary_files_of_killed_writers_are_removed(step):
    end(*running(step, 1))
    gone = ["requeues.json.0123456789abcdef", "attempt-0/metrics.jsonl.00000000ffffffff",
            "attempt-0/hang-rank-12.txt.00000000ffffffff", "status.json.0123456789abcdef"]
    for name in gone:
        write(step.trial(name), "{", 3600)
    stay = ["result.json.0123456789abcdef", "notes.0123456789abcdeg", "notes.txt", "a.0123456789abcde",
            # the program's own, by a hash and by microseconds
            "model.0123456789abcdef", "ckpt.1764115200123456", "my-status.json.0123456789abcdef",
            "hang-rank-0.0123456789abcdef", ".0123456789abcdef"]
    write(step.trial(stay[0]), "{", 0)  # somebody writes it
    for name in stay[1:]:
        write(step.trial(name), "mine", 3600)
    os.mkdir(step.trial("folder.0123456789abcdef"))
    os.symlink("notes.txt", step.trial("link.0123456789abcdef"))
    d, starters = again(step, 1)
    wait_for("them to be removed", lambda: not os.path.exists(step.trial("status.json.0123456789abcdef")))
    end(d, starters)
    equal([name for name in gone if os.path.exists(step.trial(name))], [])
    equal(set(os.listdir(step.trial())), {"attempt-0", "attempt-1", "status.json", "result.json", *stay,
                                          "folder.0123456789abcdef", "link.0123456789abcdef"})


def test_a_limit_that_is_no_size(step):
    rank = step.keep(step.start(PLUME_METRICS_TRIAL_MAX="much").rank("starter", 0))
    text = rank.expect("refused")["text"]
    assert "PLUME_METRICS_TRIAL_MAX" in text and "much" in text, text
    rank.close()


harness.main(globals(), at_once=4)
