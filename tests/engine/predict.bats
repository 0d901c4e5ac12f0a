#!/usr/bin/env bats
# SPDX-License-Identifier: MIT
# pltrain --validate, --test and --predict: the same numbers as in training, for any number of ranks.
# BUILD is the build folder, BROKEN the folder of the broken modules.

bats_require_minimum_version 1.5.0

setup_file() {
    PATH=$BUILD:$PATH
    unset RANK WORLD_SIZE PLUME_SOCKET
    cd "$BATS_FILE_TMPDIR"
    pltrain --epochs 2 --checkpoint-dir c --save-last mlp >trained
    pltrain --epochs 1 --checkpoint-dir n --save-last cnn --batchnorm 1 >trained-cnn
}

setup() {
    PATH=$BUILD:$PATH
    unset RANK WORLD_SIZE PLUME_SOCKET
    cd "$BATS_TEST_TMPDIR"
    W=$BATS_FILE_TMPDIR/c/last.ckpt
}

# says STATUS WORDS ARGS...: pltrain exits with STATUS and one line on stderr that has the words.
says() {
    local status=$1 words=$2
    shift 2
    run "-$status" --separate-stderr pltrain "$@"
    [ "${#stderr_lines[@]}" -eq 1 ] || { echo "$stderr"; false; }
    [[ $stderr == "pltrain: "*"$words"* ]] || { echo "$stderr"; false; }
}

# accuracy FILE: of predictions, by the labels of the test; also checks the file's format.
accuracy() {
    python3 - "$1" "$BUILD" <<'PY'
import ast, json, struct, sys
def npy(path):
    with open(path, "rb") as f:
        assert f.read(8) == b"\x93NUMPY\x01\x00"
        header = ast.literal_eval(f.read(struct.unpack("<H", f.read(2))[0]).decode())
        assert f.tell() % 64 == 0 and not header["fortran_order"], header
        data = f.read()
    kind = {"<f4": "f", "<f8": "d", "|u1": "B", "|i1": "b", "<i4": "i", "<i8": "q"}[header["descr"]]
    count = 1
    for n in header["shape"]:
        count *= n
    assert len(data) == count * struct.calcsize("<" + kind)
    return header["shape"], struct.unpack(f"<{count}{kind}", data)
def tensors(path):
    with open(path, "rb") as f:
        header = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
        data = f.read()
    assert list(header) == ["output"] and header["output"]["dtype"] == "F32", header
    shape = header["output"]["shape"]
    assert header["output"]["data_offsets"] == [0, len(data)] == [0, 4 * shape[0] * shape[1]]
    return tuple(shape), struct.unpack(f"<{shape[0] * shape[1]}f", data)
def lines(path):
    rows = [json.loads(line) for line in open(path)]
    assert [r["index"] for r in rows] == list(range(len(rows)))
    return (len(rows), len(rows[0]["output"])), [v for r in rows for v in r["output"]]
path = sys.argv[1]
shape, values = {"npy": npy, "ors": tensors, "onl": lines}[path[-3:]](path)
(n,), labels = npy(sys.argv[2] + "/data/digits/test-labels.npy")
assert shape == (n, 10), shape
rows = [values[10 * i:10 * i + 10] for i in range(n)]
print("%.4f" % (sum(r.index(max(r)) == l for r, l in zip(rows, labels)) / n))
PY
}

@test "a test afterwards gives the numbers of the run, on any ranks" {
    want=$(grep ^test_ "$BATS_FILE_TMPDIR/trained")
    for how in "" "--processes 2" "--processes 3 --processes-per-node 2" "--strategy dp --devices 2" \
        "--strategy horovod --processes 3"; do
        # shellcheck disable=SC2086
        run -0 --separate-stderr pltrain $how --test --weights "$W" mlp
        [ "$output" = "$want" ] || { echo "$how: $output"; false; }
        [ -z "$stderr" ]
    done
    [ "$(pltrain --test --weights "$BATS_FILE_TMPDIR/n/last.ckpt" cnn --batchnorm 1)" = \
        "$(grep ^test_ "$BATS_FILE_TMPDIR/trained-cnn")" ]
}

@test "a validation prints lines, or an object" {
    val=$(tail -n 1 <<<"$(grep ^epoch "$BATS_FILE_TMPDIR/trained")" | grep -o 'val_[a-z]* [0-9.]*')
    [ "$(pltrain --validate --weights "$W" mlp)" = "$val" ]
    for how in "--processes 2" "--strategy pipeline --processes 2" "--strategy dp --devices 2"; do
        # shellcheck disable=SC2086
        pltrain $how --validate --json --weights "$W" mlp >json
        python3 -c 'import json, sys
d = json.load(open("json"))
print("\n".join("%s %.4f" % p for p in d.items()))' | diff - <(echo "$val")
    done
}

@test "predictions have the test's order and accuracy, the same bytes on any ranks" {
    acc=$(sed -n 's/^test_acc //p' "$BATS_FILE_TMPDIR/trained")
    for how in "" "--processes 2" "--processes 3 --processes-per-node 2" "--processes 7" \
        "--strategy dp --devices 2" "--strategy ddp2 --num-nodes 2 --devices 2" \
        "--strategy horovod --processes 3"; do
        # shellcheck disable=SC2086
        run -0 --separate-stderr pltrain $how --predict --weights "$W" --out p.npy mlp
        [ -z "$stderr" ]
        [ "$output" = "wrote 359 rows to 'p.npy'" ]
        [ "$(accuracy p.npy)" = "$acc" ]
        mv p.npy "p.$((++n)).npy"
    done
    [ "$(cksum p.*.npy | cut -d' ' -f1 | sort -u | wc -l)" -eq 1 ]
    for file in p.safetensors p.jsonl; do
        pltrain --predict --weights "$W" --out $file mlp
        [ "$(accuracy $file)" = "$acc" ]
    done
    # The decimals read back as the very numbers of the other files, which end in the same bytes.
    python3 - p.1.npy p.safetensors p.jsonl <<'PY'
import json, struct, sys
npy, tensors = (open(path, "rb").read() for path in sys.argv[1:3])
lines = [json.loads(line)["output"] for line in open(sys.argv[3])]
data = struct.pack(f"<{10 * len(lines)}f", *(v for row in lines for v in row))
assert npy.endswith(data) and tensors.endswith(data)
PY
    pltrain --precision 64 --predict --weights "$W" --out p.npy mlp
    [ "$(accuracy p.npy)" = "$acc" ]
    pltrain --predict --weights "$BATS_FILE_TMPDIR/n/last.ckpt" --out n.npy cnn --batchnorm 1
    [ "$(accuracy n.npy)" = "$(sed -n 's/^test_acc //p' "$BATS_FILE_TMPDIR/trained-cnn")" ]
}

@test "in 16 bits, and in batches of another size" {
    for how in "--precision bf16" "--precision bf16 --amp-level O3 --processes 2" "--precision 16"; do
        # shellcheck disable=SC2086
        pltrain $how --predict --weights "$W" --out p.npy mlp
        accuracy p.npy | awk -v want="$(sed -n 's/^test_acc //p' "$BATS_FILE_TMPDIR/trained")" \
            '{ exit !($1 > want - 0.02 && $1 < want + 0.02) }'
    done
    pltrain --processes 2 --limit-test-batches 2 --predict --weights "$W" --out p.jsonl mlp --batch-size 5
    [ "$(wc -l <p.jsonl)" -eq 20 ]
    [ "$(tail -n 1 p.jsonl | cut -c 1-12)" = '{"index":19,' ]
    # One rank has no batch at all.
    pltrain --processes 2 --limit-test-batches 1 --predict --weights "$W" --out q.jsonl mlp --batch-size 1000
    [ "$(wc -l <q.jsonl)" -eq 359 ]
}

# losses FILE: of odd.so's predictions in FILE, by PyTorch's definitions.
losses() {
    python3 - "$1" <<'PY'
import json, math, sys
rows = [json.loads(line)["output"] for line in open(sys.argv[1])]
total = 0
for index, z in enumerate(rows):
    top = max(z)
    whole = top + math.log(sum(math.exp(v - top) for v in z))
    for c, v in enumerate(z):
        hot = c == index % 3
        share, smooth = 0.7 * hot + 0.1, 0.8 * hot + 0.2 / 3
        total += share * (math.log(share) - (v - whole)) + smooth * (whole - v)
        total += (math.log1p(math.exp(-abs(v))) + max(v, 0) - v * hot) / 3
print(total / len(rows))
PY
}

@test "losses of a validation, of a test and of predictions have no loss scale" {
    export ODD=losses
    pltrain --precision 16 --epochs 2 --checkpoint-dir d --save-last "$BROKEN/odd.so"
    pltrain --predict --weights d/last.ckpt --out p.jsonl "$BROKEN/odd.so"
    want=$(losses p.jsonl)
    for how in "" "--precision 16" "--precision 16 --amp-level O2 --processes 2" "--precision bf16" "--precision 64"; do
        # shellcheck disable=SC2086 # words
        for what in validate test; do
            got=$(pltrain $how --$what --json --weights d/last.ckpt "$BROKEN/odd.so" | sed 's/.*loss"://; s/}//')
            awk -v got="$got" -v want="$want" 'BEGIN { exit !(got > want * 0.995 && got < want * 1.005) }' ||
                { echo "$how --$what: $got, not $want"; false; }
        done
    done
}

@test "no two samples of a prediction draw the same numbers" {
    pltrain --epochs 0 --checkpoint-dir d "$BROKEN/odd.so"
    for how in "" "--processes 2" "--strategy dp --devices 2"; do
        # shellcheck disable=SC2086
        ODD=random-predictions pltrain $how --predict --weights d/epoch=0-step=0.ckpt --out p.jsonl \
            --batch-size 8 "$BROKEN/odd.so"
        [ "$(cut -d'"' -f4- p.jsonl | sort -u | wc -l)" -eq 64 ] || { echo "$how"; cat p.jsonl; false; }
    done
}

@test "a prediction has all samples, though the data drop an incomplete last batch" {
    export ODD=drop-last
    pltrain --epochs 1 --checkpoint-dir d --save-last "$BROKEN/odd.so" --batch-size 5
    for how in "" "--processes 5" "--strategy horovod --processes 4" "--strategy dp --devices 2" \
        "--strategy ddp2 --num-nodes 2 --devices 2" "--strategy sharded --processes 3" \
        "--strategy pipeline --processes 2"; do
        # shellcheck disable=SC2086 # words
        pltrain $how --predict --weights d/last.ckpt --out p.jsonl "$BROKEN/odd.so" --batch-size 5
        [ "$(wc -l <p.jsonl)" -eq 23 ] || { echo "$how: $(wc -l <p.jsonl)"; false; }
        # Row i is that of sample i: outputs are i + 1 times those of sample 0.
        python3 - p.jsonl <<'PY' || { echo "$how"; cat p.jsonl; false; }
import json, sys
rows = [json.loads(line) for line in open(sys.argv[1])]
for i, row in enumerate(rows):
    assert row["index"] == i
    for a, b in zip(row["output"], rows[0]["output"]):
        assert abs(a - (i + 1) * b) <= 1e-5 * abs(a), (i, row)
PY
    done
    # Fewer than a batch: --test has none, a prediction has them.
    pltrain --predict --weights d/last.ckpt --out p.jsonl "$BROKEN/odd.so" --batch-size 40
    [ "$(wc -l <p.jsonl)" -eq 23 ]
}

@test "in batches of one sample, which could not train a batch norm" {
    local net=(resnet --width 4 --size 8 --batch_size) weights=(--weights d/last.ckpt)
    pltrain --max-steps 1 --checkpoint-dir d --save-last "${net[@]}" 6
    says 1 "a channel needs more than one value" --max-steps 1 "${net[@]}" 1
    says 1 "a channel needs more than one value" --max-steps 1 --sync-batchnorm "${net[@]}" 1 # of one rank
    pltrain --max-steps 1 --sync-batchnorm --processes 2 "${net[@]}" 1
    pltrain --test --json "${weights[@]}" "${net[@]}" 5 >expected
    for how in "" "--processes 2" "--strategy sharded --processes 2" "--strategy pipeline --processes 2"; do
        # shellcheck disable=SC2086 # words
        pltrain $how --test --json "${weights[@]}" "${net[@]}" 1 >got
        python3 - expected got <<'PY' || { echo "$how"; cat expected got; false; }
import json, sys
a, b = (json.load(open(f)) for f in sys.argv[1:])
assert a["test_acc"] == b["test_acc"] and abs(a["test_loss"] - b["test_loss"]) < 1e-4 * a["test_loss"]
PY
        # shellcheck disable=SC2086 # words
        pltrain $how --predict --out p.jsonl "${weights[@]}" "${net[@]}" 1
        [ "$(wc -l <p.jsonl)" -eq 359 ] || { echo "$how: $(wc -l <p.jsonl)"; false; }
    done
}

@test "what cannot be done is refused, and leaves nothing" {
    mkdir empty # bats has files of its own beside it
    cd empty
    says 2 "needs '--weights FILE'" --test mlp
    says 2 "one of --validate, --test and --predict" --test --validate --weights "$W" mlp
    says 2 "omit '--resume'" --test --resume "$W" mlp
    says 2 "omit '--checkpoint-dir'" --test --weights "$W" --checkpoint-dir d mlp
    says 2 "needs '--out FILE'" --predict --weights "$W" mlp
    says 2 "'--out' needs '--predict'" --out p.npy mlp
    says 2 "'--json' needs" --json mlp
    says 2 "must end in .npy, .safetensors or .jsonl" --predict --weights "$W" --out p.csv mlp
    says 2 "must end in" --predict --weights "$W" --out .npy mlp
    odd=$BATS_FILE_TMPDIR/odd
    pltrain --epochs 0 --checkpoint-dir "$odd" "$BROKEN/odd.so"
    says 1 "has no predict_step" --predict --weights "$odd/epoch=0-step=0.ckpt" --out p.npy "$BROKEN/odd.so"
    says 1 "cannot write 'no/p.npy'" --predict --weights "$W" --out no/p.npy mlp
    says 1 "'--limit-test-batches 0' leaves no" --predict --limit-test-batches 0 --weights "$W" --out p.npy mlp
    says 1 "of the test is less than one" --predict --limit-test-batches 0.001 --weights "$W" --out p.npy mlp
    says 1 "only training starts with a part" --test --weights "$W" --weights-map b2=c mlp
    [ -z "$(ls -A)" ]
}

@test "an output of a step that no hook takes is warned about, once" {
    pltrain --epochs 0 --checkpoint-dir d "$BROKEN/odd.so"
    for how in "" "--processes 2"; do
        # shellcheck disable=SC2086 # two words
        ODD=output run -0 --separate-stderr pltrain $how --epochs 2 "$BROKEN/odd.so"
        [[ $stderr == "pltrain: warning: nothing takes output 'mine' of training_step: the module has no training_step_end" ]] ||
            { echo "$how: $stderr"; false; }
    done
    # A step whose outputs are taken, and one whose result is what is written.
    ODD=output-read run -0 --separate-stderr pltrain --epochs 1 "$BROKEN/odd.so"
    [ -z "$stderr" ]
    ODD=output-predicted run -0 --separate-stderr pltrain --predict --weights d/epoch=0-step=0.ckpt --out p.npy "$BROKEN/odd.so"
    [ -z "$stderr" ]
}

@test "who does not train has memory neither for gradients nor for the optimizers' state" {
    pltrain --epochs 0 --checkpoint-dir big mlp --hidden 8000 # 600,010 parameters: 2.3 MiB
    for how in "" "--processes 2" "--strategy dp --devices 2"; do
        read -ra words <<<"$how"
        PLUME_LOG=debug:train run -0 --separate-stderr pltrain --test "${words[@]}" --summary --optimizer adam \
            --weights big/epoch=0-step=0.ckpt mlp --hidden 8000
        [[ $output == *"MiB of this rank: parameters 2.289, gradients 0.000, optimizers 0.000,"* ]] || {
            echo "$how: $output"
            false
        }
        [[ $stderr =~ "at most "([0-9]+).[0-9]" MiB of cpu" ]] || { echo "$how: $stderr"; false; }
        ((BASH_REMATCH[1] < 4)) || { echo "$how: $stderr"; false; }
    done
}
