#!/usr/bin/env bats
# SPDX-License-Identifier: MIT
# The examples against their twins in PyTorch: from weights that PyTorch made at random, 20 losses
# that tests/golden/twins.py recorded, and the characters that gpt writes. All in f64.
# BUILD is the build folder, SRC the source's.

bats_require_minimum_version 1.5.0

setup() {
    PATH=$BUILD:$PATH
    unset RANK WORLD_SIZE PLUME_SOCKET
    cd "$BATS_TEST_TMPDIR"
    TWINS=$SRC/tests/fixtures/twins
    export EXAMPLE_TEXT=$TWINS/text.txt
}

# field NAME KEY: a value of the recorded twin; the model's numbers as options.
field() {
    python3 - "$TWINS/twins.json" "$@" <<'PY'
import json, sys
value = json.load(open(sys.argv[1]))[sys.argv[2]][sys.argv[3]]
print(" ".join(f"--{k} {v}" for k, v in value.items()) if isinstance(value, dict) else value)
PY
}

# trains NAME WARNING MAPS...: from the twin's weights; its losses. resnet50 is resnet with other numbers.
trains() {
    local name=$1 warning=$2
    shift 2
    # shellcheck disable=SC2046 # words
    run -0 --separate-stderr pltrain --weights "$TWINS/$name.safetensors" "$@" --precision 64 \
        --epochs 99 --overfit-batches "$(field "$name" batches)" --max-steps 20 --log-every 1 --log-dir "$name" \
        "${name%%[0-9]*}" --batch_size "$(field "$name" batch_size)" $(field "$name" numbers)
    # shellcheck disable=SC2053 # a pattern
    [[ $stderr == $warning ]] || { echo "$stderr"; false; }
    python3 - "$TWINS/twins.json" "$name" <<'PY'
import csv, json, sys
golden = json.load(open(sys.argv[1]))[sys.argv[2]]["losses"]
ours = [float(r["loss"]) for r in csv.DictReader(open(sys.argv[2] + "/metrics.csv")) if r["loss"]]
assert len(golden) == len(ours) == 20, (golden, ours)
assert golden[0] != golden[5] != golden[19]
# Sums of at most some thousand terms in f64; 20 steps enlarge what rounding leaves.
worst = max(abs(a - b) / abs(a) for a, b in zip(golden, ours))
print(f"{sys.argv[2]}: losses differ by {worst:.2g}")
assert worst < 1e-9, list(zip(golden, ours))
PY
}

@test "vae, contrastive and lstm train as their twins do" {
    trains vae "" --weights-strict
    trains contrastive "" --weights-strict
    trains lstm "" --weights-strict
}

@test "resnet reads torchvision's names, and trains as its twin does" {
    trains resnet "" --weights-strict
    trains resnet50 "" --weights-strict
    python3 -c '
import sys
names = open(sys.argv[1], "rb").read(9000)
assert b"layer2.0.downsample.1.num_batches_tracked" in names' "$TWINS/resnet.safetensors"
    run -1 --separate-stderr pltrain --max-steps 1 resnet --depth 20
    [[ $stderr == *"depth is 18, 34, 50, 101 or 152"* ]]
}

@test "gpt reads GPT-2's names by gpt2.map, trains as its twin does, and writes the same characters" {
    mapfile -t maps < <(xargs -a "$SRC/examples/gpt/gpt2.map" -n 1)
    # The head is the embedding, and in the file under both names.
    trains gpt "pltrain: warning: *: 28 of 28 parameters and buffers are set; not used: lm_head.weight" \
        "${maps[@]}"
    # With a cache of keys and values; the twin computes each character from all before it.
    for how in "" "--processes 2" "--strategy dp --devices 2"; do
        # shellcheck disable=SC2046,SC2086 # words
        run -0 pltrain --predict --out p.jsonl --weights "$TWINS/gpt.safetensors" "${maps[@]}" \
            --precision 64 $how gpt --write "$(field gpt write)" --batch_size 2 $(field gpt numbers)
        python3 - "$TWINS/twins.json" p.jsonl <<'PY'
import json, sys
golden = json.load(open(sys.argv[1]))["gpt"]["written"]
ours = [json.loads(line)["output"] for line in open(sys.argv[2])]
assert ours == golden and len({tuple(x[4:]) for x in golden}) > 1, (ours, golden)
PY
    done
    # shellcheck disable=SC2046 # words
    run -1 --separate-stderr pltrain --predict --out p.jsonl --weights "$TWINS/gpt.safetensors" \
        "${maps[@]}" gpt $(field gpt numbers) --write 16
    [[ $stderr == *"--write is the context or more: there is nothing to continue"* ]]
}
