#!/usr/bin/python3
# SPDX-License-Identifier: MIT
"""check-run.py TRIAL-FOLDER[=CODE]...: do the files of a trial's last attempt hold together?

Replays events.jsonl and metrics.jsonl by the rules of common/run/run_state.h (written anew here, so that
one mistake is not made twice) and compares with status.json and result.json. CODE is what srun gave.
"""
import json
import pathlib
import sys

OVER = {"done", "failed", "killed", "lost"}
NEXT = {"starting": {"running"} | OVER, "running": OVER}
ONE_RANK = {"exit", "signal", "oom", "node", "runtime", "hang"}
STATES = {"timeout": "timed-out", "preempted": "preempted", "cancelled": "cancelled",
          "node": "node-failed"}
PROBLEMS = []


def need(ok, text):
    if not ok:
        PROBLEMS.append(text)


def lines(path):
    with open(path, encoding="utf-8") as f:
        return [json.loads(line) for line in f]


def keys(event, *skip):
    return {k: v for k, v in event.items() if k not in ("type", "t", "seq") + skip}


def apply_rank(rank, event):
    after = event.get("state")
    if after and after != rank["state"]:
        need(after in NEXT.get(rank["state"], set()),
             f"rank {rank['rank']}: {rank['state']} -> {after}")
    rank.update(keys(event))


def replay(events):
    s = {"nodes": [], "ranks": []}
    for e in events:
        kind = e["type"]
        if kind == "attempt":
            s.update(keys(e))
            s["ranks"] = [{"rank": i, "state": "starting"} for i in range(e["world_size"])]
        elif kind == "node":
            while len(s["nodes"]) <= e["node_id"]:
                s["nodes"].append({})
            s["nodes"][e["node_id"]].update(keys(e, "node_id"))
        elif kind == "rank":
            apply_rank(s["ranks"][e["rank"]], e)
        elif kind == "metrics":
            rank = s["ranks"][e["rank"]]
            rank.setdefault("metrics", {}).update(e.get("metrics", {}))
            rank.update({k: e[k] for k in ("step", "phase") if k in e})
        elif kind == "stall":
            s["stall"] = {**keys(e), "since": e["t"]}
        elif kind == "fact":
            s["ranks"][e["rank"]].setdefault("facts", {})[e["key"]] = e["value"]
        elif kind in ("cause", "state", "objective"):
            s.update(keys(e))
    return s


def check(trial, code):
    attempt = max(trial.glob("attempt-*"), key=lambda p: int(p.name.split("-")[1]))
    events = lines(attempt / "events.jsonl")
    metrics = lines(attempt / "metrics.jsonl")
    result = json.loads((trial / "result.json").read_text())
    status = json.loads((trial / "status.json").read_text())
    seqs = sorted(e["seq"] for e in events + metrics)
    need(seqs == list(range(1, len(seqs) + 1)), "seq has gaps")
    for log in events, metrics:
        need([e["seq"] for e in log] == sorted(e["seq"] for e in log), "seq goes backwards")
    state = replay(events + metrics)
    need(state == status["state"], f"replay is not status.json:\n{state}\n{status['state']}")
    need("hub" not in status, "status.json still names a hub")
    last = [e["state"] for e in events if e["type"] == "state"]
    need(last and last[-1] == result["state"], f"last state {last[-1:]}, result {result['state']}")
    need(events[-1]["type"] == "state", f"the last event is of type {events[-1]['type']}")

    cause = result.get("cause")
    need(cause == state.get("cause"), "the result's cause is not the log's")
    need((cause is None) == (result["state"] == "done"), f"{result['state']}, cause {cause}")
    need(all(r["state"] in OVER for r in state["ranks"]), "a rank has no end")
    if cause is None:
        need({r["state"] for r in state["ranks"]} == {"done"}, "done, but not all ranks are")
        want = 0
    else:
        need(result["state"] == STATES.get(cause["kind"], "failed"),
             f"kind {cause['kind']} gives {result['state']}")
        want = cause.get("exit", 128 + cause["signal"] if "signal" in cause else 1)
        if cause["kind"] in ("cancelled", "timeout", "preempted"):
            codes = {r.get("exit", 128 + r.get("signal", -127)) for r in state["ranks"]} - {0}
            want = result["exit_code"]  # of a rank that ended by it, or of the signal
            need(want in codes | {1, 130, 143}, f"exit code {want}, and the ranks' are {codes}")
        roots = [r["rank"] for r in state["ranks"] if r.get("role") == "root"]
        need(roots == ([cause["rank"]] if cause["kind"] in ONE_RANK and "rank" in cause else []),
             f"kind {cause['kind']}, rank {cause.get('rank')}, but roots {roots}")
    need(result["exit_code"] == want, f"exit code {result['exit_code']}, not {want}")
    need(code is None or code == want, f"srun gave {code}, not {want}")


def main():
    bad = 0
    for arg in sys.argv[1:]:
        name, _, code = arg.partition("=")
        PROBLEMS.clear()
        try:
            check(pathlib.Path(name), int(code) if code else None)
        except (OSError, ValueError, KeyError) as e:
            PROBLEMS.append(f"{type(e).__name__}: {e}")
        for text in PROBLEMS:
            print(f"{name}: {text}", file=sys.stderr)
        bad += bool(PROBLEMS)
    sys.exit(bad > 0)


main()
