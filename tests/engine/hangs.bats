#!/usr/bin/env bats
# SPDX-License-Identifier: MIT
# Ranks of the engine that hang, compute alone or are slow, in real steps. ODD_SO is tests/engine/odd.c;
# a rank goes on once there is a file 'go'.

load ../lib/cluster
load ../lib/runtime

setup_file() {
    cluster_up 4
}

teardown_file() {
    cluster_down
}

setup() {
    work_dir
    export PLUME_KILL_GRACE=2
}

teardown() {
    touch "$WORK/go"
    scancel_all
    all_well
}

# odd NAME HOW WAY STEPS: four ranks on two nodes train the module, and report each step.
odd() {
    ODD=$2 ranks "$1" "$3" -N2 -n4 -- pltrain --log-every 1 --num-sanity-val-steps 0 --limit-val-batches 0 \
        --epochs 100000 --max-steps "$4" --hparam batch_size=4 "$ODD_SO"
}

# events NAME EXPRESSION: of Python, over e, the list of the events of its only attempt.
events() {
    python3 -c 'import json, sys
print(eval(sys.argv[2], {}, {"e": [json.loads(line) for line in open(sys.argv[1])]}))' \
        "$(trial "$1")/attempt-0/events.jsonl" "$2"
}

# told NAME EXPRESSION: it is true by now.
told() {
    [[ $(events "$@" 2>/dev/null) == True ]]
}

@test "a rank that does not enter a collective is named, with its hook and stack, and ended" {
    export PLUME_HANG_LIMIT=1.5 PLUME_ON_HANG=kill
    for way in plrun plugin; do
        odd "$way" hang-in-step "$way" 100 &
    done
    wait
    rc_is plrun 1
    checked plrun
    NO_CODE=1 checked plugin
    for way in plrun plugin; do
        [ "$(result "$way" 'd["state"], d["cause"]["kind"], d["cause"]["rank"], d["cause"]["confidence"]')" = \
            "('failed', 'hang', 3, 'seen')" ]
        [[ $(result "$way" 'd["cause"]["text"]') == 'no step for '*'in hook on_train_batch_start, after all'* ]]
        [ "$(state "$way" 's["ranks"][3]["role"] + " " + s["ranks"][3]["stack"]')" = 'root hang-rank-3.txt' ]
    done
}

@test "a rank that computes alone in a hook is no hang: the others wait, and it is shown as busy" {
    export PLUME_HANG_LIMIT=1.5 PLUME_ON_HANG=kill
    odd busy compute plrun 40 &
    wait_for 60 told busy 'any(x["type"] == "stall" for x in e)'
    PLUME_HOME=$WORK/busy.home as_user plstat show last >shown
    touch go
    wait
    rc_is busy 0
    checked busy
    [ "$(events busy '[(x["state"], x["ranks"]) for x in e if x["type"] == "stall"]')" = \
        "[('busy', [3]), ('over', [3])]" ]
    grep -q '^rank 3 (n[0-9]*) is busy, the others wait: no step for [0-9]* s, in hook' shown
    [[ $(events busy '[x["doing"] for x in e if x["type"] == "stall"][0]') == 'in hook on_train_batch_start, after all'* ]]
}

@test "a slow rank is scored by its own time, and nobody ends it" {
    export PLUME_HANG_LIMIT=1
    odd slow slow plrun 600 &
    wait_for 60 told slow 'any(x.get("slow", 0) >= 1.43 for x in e)'
    touch go
    wait
    rc_is slow 0
    checked slow
    [ "$(events slow 'sorted({x["rank"] for x in e if x.get("slow", 0) >= 1.43})')" = '[3]' ]
}
