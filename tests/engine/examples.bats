#!/usr/bin/env bats
# SPDX-License-Identifier: MIT
# The example modules: build them as a user does, and check that they learn.
# BUILD is the build folder, SRC the source's.

bats_require_minimum_version 1.5.0

setup() {
    PATH=$BUILD:$PATH
    unset RANK WORLD_SIZE PLUME_SOCKET
    cd "$BATS_TEST_TMPDIR"
}

@test "an example builds with what is installed, out of the tree" {
    meson install -C "$BUILD" --no-rebuild --tags devel --destdir "$BATS_TEST_TMPDIR/root" --quiet
    pc=$(find "$BATS_TEST_TMPDIR/root" -name plume-module.pc)
    export PKG_CONFIG_PATH=${pc%/*} PKG_CONFIG_SYSROOT_DIR=$BATS_TEST_TMPDIR/root
    for source in "$SRC"/examples/*/*.c; do
        name=${source##*/}
        cp "$source" "$BATS_TEST_TMPDIR"
        # shellcheck disable=SC2046 # words
        (cd "$BATS_TEST_TMPDIR" &&
            cc -Wall -Wextra -Werror -shared -fPIC $(pkg-config --cflags plume-module) \
                -o "${name%.c}.so" "$name")
        run -0 pltrain --epochs 0 --list-hparams "$BATS_TEST_TMPDIR/${name%.c}.so"
    done
    run -0 pltrain --max-steps 3 "$BATS_TEST_TMPDIR/mlp.so"
}

@test "the snippets of doc/from-lightning.md are a module" {
    sed -n '/^```c$/,/^```$/{/^```/!p;}' "$SRC/doc/from-lightning.md" >net.c
    cc -std=c11 -Wall -Wextra -Werror -shared -fPIC -I "$SRC/include" -o net.so net.c
    run -0 --separate-stderr pltrain --epochs 6 --checkpoint-dir c --save-last ./net.so
    [ -z "$stderr" ] || { echo "$stderr"; false; }
    acc=$(sed -n 's/^test_acc //p' <<<"$output")
    awk -v acc="$acc" 'BEGIN { exit !(acc > 0.9) }' || { echo "test_acc $acc"; false; }
    run -0 --separate-stderr pltrain --epochs 7 --checkpoint-dir c --resume last ./net.so
    [[ $output == *"resuming from 'c/last.ckpt': epoch 7, "* ]]
    run -0 pltrain --predict --weights c/last.ckpt --out p.jsonl --hparam hidden=64 ./net.so
    [ "$(wc -l <p.jsonl)" -eq 185 ] || { wc -l p.jsonl; false; }
}

@test "the GAN of doc/from-lightning.md makes its steps itself" {
    sed -n '/^```c gan$/,/^```$/{/^```/!p;}' "$SRC/doc/from-lightning.md" >gan.c
    cc -std=c11 -Wall -Wextra -Werror -shared -fPIC -I "$SRC/include" -o gan.so gan.c
    for how in "" "--processes 2"; do
        # shellcheck disable=SC2086 # words
        run -0 --separate-stderr pltrain $how --epochs 2 --log-every 1 --log-dir "l$how" ./gan.so --batch-size 32
        [ -z "$stderr" ] || { echo "$stderr"; false; }
        # d learns first; g makes steps in many batches, but not in all.
        python3 - "l$how/metrics.csv" <<'PY'
import csv, sys
rows = list(csv.DictReader(open(sys.argv[1])))
d = [float(r["loss_1"]) for r in rows if r["loss_1"]]
g = [float(r["loss"]) for r in rows if r["loss"]]
assert len(d) >= 40 and len(d) // 2 < len(g) <= len(d), (len(d), len(g))
assert min(d) < 0.6 and all(x < 20 for x in g + d), (d, g)
PY
    done
}

@test "cnn reads digits" {
    run -0 --separate-stderr pltrain cnn --epochs 4 --dropout 0.1
    acc=$(sed -n 's/^test_acc //p' <<<"$output")
    awk -v acc="$acc" 'BEGIN { exit !(acc > 0.95) }' || { echo "test_acc $acc"; false; }
}

@test "cnn reads digits by batch norm, of a rank's or of all batches" {
    for how in "" "--processes 2 --batch_size 16" "--processes 2 --batch_size 16 --sync-batchnorm"; do
        # shellcheck disable=SC2086
        run -0 --separate-stderr pltrain cnn --epochs 3 --batchnorm 1 $how
        acc=$(sed -n 's/^test_acc //p' <<<"$output")
        awk -v acc="$acc" 'BEGIN { exit !(acc > 0.95) }' || { echo "$how: test_acc $acc"; false; }
    done
    # Two ranks of 16 that share statistics are one of 32, but for the order of sums.
    first_step() { pltrain cnn --batchnorm 1 --limit-val-batches 1 --max-steps 1 "$@"; }
    loss() { sed -n 's/^epoch 1.* loss \([0-9.]*\) .*/\1/p'; }
    whole=$(first_step | loss)
    [ "$(first_step --processes 2 --batch_size 16 --sync-batchnorm | loss)" = "$whole" ]
    [ "$(first_step --processes 2 --batch_size 16 | loss)" != "$whole" ]
}

@test "gpt learns characters" {
    run -0 --separate-stderr pltrain gpt --layers 1 --width 32 --context 32 --lr 0.01 --max-steps 400
    loss=$(sed -n 's/^test_loss //p' <<<"$output")
    # 4.6 nats are all of its hundred characters alike, 3.1 their frequencies.
    awk -v loss="$loss" 'BEGIN { exit !(loss < 2.7) }' || { echo "test_loss $loss"; false; }
}

# first_loss ARGS...: prints the loss of the first epoch of contrastive.
first_loss() {
    pltrain "$@" | sed -n 's/^epoch 1\/.* loss \([0-9.]*\) val_loss.*/\1/p'
}

@test "contrastive: the pool of ddp2 is a node's batch, that of ddp a rank's" {
    one=$(first_loss --strategy single contrastive --epochs 1)
    dp=$(first_loss --strategy dp --devices 2 contrastive --epochs 1)
    ddp2=$(first_loss --num-nodes 2 --devices 2 --strategy ddp2 contrastive --epochs 1)
    ddp=$(first_loss --num-nodes 2 --processes 2 --strategy ddp contrastive --epochs 1 \
        --batch_size 64)
    # dp is single by the sums' order; half of a pool is ln 2 = 0.69 less at the start.
    awk -v one="$one" -v dp="$dp" -v ddp2="$ddp2" -v ddp="$ddp" 'BEGIN {
        exit !(one - dp < 0.001 && dp - one < 0.001 && ddp2 - ddp > 0.6 && ddp2 - ddp < 0.8)
    }' || { echo "single $one dp $dp ddp2 $ddp2 ddp $ddp"; false; }
}

@test "a summary has parameters, shapes, operations and memory, and changes nothing" {
    run -0 --separate-stderr pltrain --summary --epochs 1 --optimizer adam --ema 0.9 mlp
    [ -z "$stderr" ]
    grep -q '^parameter w1  *f32\[64, 64\]  *4096$' <<<"$output"
    grep -q '^4 parameters of 4810 numbers, 0 buffers of 0$' <<<"$output"
    # 2 x 8 x 64 x 64 and some for the bias and the activation
    grep -q '^linear  *f32\[8, 64\]  *1  *0\.06[5-9] ' <<<"$output"
    grep -q '^a step: 0\.07[0-9] Mflop forward, 0\.0[89][0-9] backward$' <<<"$output"
    # 4 bytes of 4810 numbers are 0.018 MiB; each parameter begins at a multiple of 64 bytes
    grep -qE '^MiB of this rank: parameters (0\.0[12][0-9]), gradients \1, optimizers 0\.03[0-9], average \1, buffers 0\.000, step ' <<<"$output"
    [ "$(grep '^rank 0 of 1' <<<"$output")" = \
        "$(pltrain --epochs 1 --optimizer adam --ema 0.9 mlp | grep '^rank 0 of 1')" ]
    run -0 --separate-stderr pltrain --summary --fast-dev-run cnn --batchnorm 1
    grep -q '^buffer  *[a-z0-9_.]*mean  *f32\[' <<<"$output"
    run -0 --separate-stderr pltrain --summary --fast-dev-run --strategy dp --devices 2 mlp
    grep -q 'backward, on the first device$' <<<"$output"
    # The layer is done on the table (decision 0026): the embedding that it takes in the module does not run.
    for how in "" "--strategy pipeline --processes 2"; do
        # shellcheck disable=SC2086 # words
        run -0 --separate-stderr pltrain --summary $how --max-steps 1 --limit-val-batches 0 --limit-test-batches 0 \
            lstm --batch_size 16 --vocabulary 128
        grep '^embedding ' <<<"$output" >lookups
        [ "$(grep -cE '^embedding  *f32\[[0-9]+, 32, 512\]  *1 ' lookups)/$(wc -l <lookups)" = 1/1 ] || { echo "$output"; false; }
    done
}

# step_mib ARGS...: the plan's memory of a step.
step_mib() {
    pltrain --summary --epochs 0 "$@" | sed -n 's/^MiB of this rank: .* step \([0-9.]*\) .*/\1/p'
}

@test "16 bits halve what each layer keeps from forward to backward" {
    # shellcheck disable=SC2207 # words
    f32=($(step_mib gpt --layers 2) $(step_mib gpt --layers 6))
    for how in "O1 0.6" "O2 0.6" "O3 0.54"; do
        read -r level most <<<"$how"
        # shellcheck disable=SC2207 # words
        low=($(step_mib --precision bf16 --amp-level "$level" gpt --layers 2)
            $(step_mib --precision bf16 --amp-level "$level" gpt --layers 6))
        # Norms keep statistics in f32, and O1 and O2 the sums of residuals. The f32 copies of one op
        # at a time do not grow with the layers.
        awk -v a="${f32[0]}" -v b="${f32[1]}" -v c="${low[0]}" -v d="${low[1]}" -v most="$most" '
            BEGIN { exit !(a > 5 && (d - c) / (b - a) < most && (d - c) / (b - a) > 0.49) }' ||
            { echo "$level: ${low[*]} MiB of ${f32[*]}"; false; }
    done
}

# peak ARGS...: the most memory that a training step has had.
peak() {
    PLUME_PROFILE=1 pltrain --max-steps 1 --limit-val-batches 0 --limit-test-batches 0 "$@" 2>&1 >/dev/null |
        sed -n 's/^peak_bytes \([0-9]*\).*/\1/p'
}

@test "the peak of a step in 16 bits on the CPU, beside that of f32" {
    # At these batches activations are most of it. The limits are what it takes, by which it must not grow. Ops
    # have f32 copies of their tensors while they run; O1 keeps sums and activations after a batch norm in f32.
    while read -r o1 o2 o3 model; do
        # shellcheck disable=SC2086 # words
        whole=$(peak $model)
        for how in "O1 $o1" "O2 $o2" "O3 $o3"; do
            read -r level most <<<"$how"
            # shellcheck disable=SC2086
            half=$(peak --precision bf16 --amp-level "$level" $model)
            awk -v a="$whole" -v b="$half" -v most="$most" 'BEGIN { exit !(a > 1e7 && b > 0.4 * a && b < most * a) }' ||
                { echo "$model, $level: $half bytes of $whole"; false; }
        done
    done <<'LIMITS'
0.69 0.68 0.63 gpt --layers 6 --batch_size 64
0.67 0.67 0.67 mlp --batch_size 1250 --hidden 2048
0.74 0.74 0.74 cnn --batch_size 1024
0.66 0.65 0.65 cnn --batch_size 1024 --batchnorm 1
0.86 0.70 0.70 resnet --width 16 --batch_size 256
LIMITS
}

@test "a summary has the ops of each optimizer's own loss, and only what runs" {
    cat >two.c <<'C'
#include <plume/module.h>
struct net { plume_tensor *a, *b; };
static const struct plume_hparam hparams[] = {{"batch_size", "8", 1, 64, 1, NULL}, {0}};
static int configure(struct plume_context *pl)
{
    struct net *net = pl->state;
    net->a = plume_param(pl, "a", PLUME_INIT_HE, 2, (size_t[]){64, 256});
    net->b = plume_param(pl, "b", PLUME_INIT_HE, 2, (size_t[]){64, 256});
    return 0;
}
static int data(struct plume_context *pl, enum plume_stage stage, struct plume_data *ret)
{
    struct plume_source source = {
        .format = PLUME_FORMAT_SYNTHETIC, .samples = 16, .rank = 1, .shape = {256}};
    ret->n_fields = stage == PLUME_TRAIN;
    ret->field[0].array = plume_open(pl, &source);
    ret->field[0].dtype = PLUME_F32;
    return 0;
}
/* Squares of the data have no backward. */
static int step(struct plume_context *pl, const struct plume_batch *batch, plume_tensor **ret_loss)
{
    struct net *net = pl->state;
    plume_tensor *x = plume_mul(pl, batch->field[0], batch->field[0]);
    plume_tensor *y =
        plume_linear(pl, x, pl->optimizer ? net->b : net->a, NULL, PLUME_IDENTITY);
    *ret_loss = plume_sum(pl, pl->optimizer ? plume_exp(pl, y) : y, 0, 2);
    return 0;
}
static int optimizers(struct plume_context *pl, struct plume_optimizer *ret)
{
    ret->prefixes = "a";
    plume_add_optimizer(pl)->prefixes = "b";
    return 0;
}
static const struct plume_module module = {.struct_size = sizeof(module),
                                           .abi = PLUME_MODULE_ABI,
                                           .name = "two",
                                           .hparams = hparams,
                                           .state_size = sizeof(struct net),
                                           .configure = configure,
                                           .data = data,
                                           .training_step = step,
                                           .configure_optimizers = optimizers,
                                           .step_per_optimizer = 1};
const struct plume_module *plume_module_entry(void)
{
    return &module;
}
C
    cc -std=c11 -shared -fPIC -I "$SRC/include" -o two.so two.c
    run -0 --separate-stderr pltrain --summary --max-steps 1 ./two.so
    [ "$(grep -c '^optimizer [01]:$' <<<"$output")" = 2 ]
    grep -q '^map  ' <<<"$output" # exp, of the second one only
    # The step is the sum of the columns, but for rounding: 4 products of 2 x 8 x 64 x 256.
    awk '/^[a-z_0-9]+  .* f32\[/ && !/^parameter/ { f += $(NF - 1); b += $NF }
        /^a step:/ { n++; df = f - $3; db = b - $6; total = $3 + $6 }
        END { exit !(n == 1 && df * df < 0.0001 && db * db < 0.0001 && total > 1.04 && total < 1.1) }' \
        <<<"$output" || { echo "$output"; false; }
}

# names FILE: of the tensors of a safetensors file.
names() {
    python3 -c 'import json, struct, sys
with open(sys.argv[1], "rb") as f:
    head = json.loads(f.read(*struct.unpack("<Q", f.read(8))))
print(*sorted(set(head) - {"__metadata__"}))' "$1"
}

@test "checkpoints have the average that was validated; those of weights only have nothing else" {
    run -0 --separate-stderr pltrain --epochs 1 --ema 0.9 --checkpoint-dir c --save-last --save-weights-only mlp
    val=$(grep -o 'val_loss [0-9.]*' <<<"$output")
    [ "$(names c/last.ckpt)" = "b1 b2 w1 w2" ] || { names c/last.ckpt; false; }
    run -0 --separate-stderr pltrain --weights c/last.ckpt --validate mlp
    grep -q "^$val\$" <<<"$output" || { echo "$val: $output"; false; }
    run -1 --separate-stderr pltrain --weights c/last.ckpt --no-ema --validate mlp
    [[ $stderr == *"'c/last.ckpt': it has the average of the parameters in their place"*"leave --no-ema out" ]]
    run -1 --separate-stderr pltrain --epochs 2 --ema 0.9 --resume c/last.ckpt mlp
    [[ $stderr == *"weights only"* ]]
    # Shards are averaged and saved by their ranks.
    pltrain --max-steps 3 --ema 0.9 --checkpoint-dir s --processes 2 --save-last --save-weights-only mlp >/dev/null
    pltrain --max-steps 3 --ema 0.9 --checkpoint-dir t --processes 2 --save-last --save-weights-only \
        --strategy sharded --shard param mlp >/dev/null
    cmp s/last.ckpt t/last.ckpt
    # Whole ones have both; and a run that ends or begins an average says so.
    run -0 --separate-stderr pltrain --epochs 1 --ema 0.9 --checkpoint-dir d --save-last mlp
    run -0 --separate-stderr pltrain --weights d/last.ckpt --validate mlp
    grep -q "^$val\$" <<<"$output"
    run -0 --separate-stderr pltrain --weights d/last.ckpt --no-ema --validate mlp
    run ! grep -q "^$val\$" <<<"$output"
    run -0 --separate-stderr pltrain --epochs 2 --ema 0.9 --resume d/last.ckpt --processes 2 mlp
    [ -z "$stderr" ]
    run -0 --separate-stderr pltrain --epochs 2 --resume d/last.ckpt --checkpoint-dir e --save-last --processes 2 mlp
    [ "$(grep -c "has a moving average .*: this run drops it" <<<"$stderr")" = 1 ]
    run -0 --separate-stderr pltrain --epochs 3 --ema 0.9 --resume e/last.ckpt mlp
    [[ $stderr == *"has no moving average of the parameters: --ema starts anew" ]]
}

@test "a resumed run tells what of its optimizers ends, and refuses other groups" {
    run -0 --separate-stderr pltrain --max-steps 3 --checkpoint-dir c --save-last mlp
    run -0 --separate-stderr pltrain --max-steps 6 --resume c/last.ckpt mlp
    [ -z "$stderr" ]
    run -0 --separate-stderr pltrain --max-steps 6 --resume c/last.ckpt --processes 2 mlp --momentum 0
    [ "$(grep -c "has optimizer state that this run's optimizers do not have: this run drops 'optimizer_states/0/momentum_buffer/.*' and more" <<<"$stderr")" = 1 ]
    sed -e 's/^static const struct plume_module/static int configure_optimizers(struct plume_context *pl, struct plume_optimizer *ret)\n{\n    plume_add_group(pl, ret, PATTERN)->lr = 0.01;\n    return 0;\n}\n&/' \
        -e 's/^    \.configure = .*/&\n    .configure_optimizers = configure_optimizers,/' "$SRC/examples/mlp/mlp.c" >groups.c
    for name in 1 2; do
        cc -std=c11 -shared -fPIC -I "$SRC/include" -DPATTERN="\"*$name\"" -o "g$name.so" groups.c
    done
    run -0 --separate-stderr pltrain --max-steps 3 --checkpoint-dir d --save-last ./g1.so
    run -0 --separate-stderr pltrain --max-steps 6 --resume d/last.ckpt ./g1.so
    [ -z "$stderr" ]
    run -1 --separate-stderr pltrain --max-steps 6 --resume d/last.ckpt ./g2.so
    [[ $stderr == *"group 0 of the checkpoint's optimizer is '*1', the module's is '*2': give the module the same groups"* ]]
}

# The fixture is the state dict of torch.nn.Sequential(Linear(64, 2), ReLU(), Linear(2, 10)).
@test "parameters may have the names that torch.nn.Sequential gives them" {
    sed -e 's/"w1"/"0.weight"/; s/"b1"/"0.bias"/; s/"w2"/"2.weight"/; s/"b2"/"2.bias"/' \
        -e 's/^static const struct plume_module/static int configure_optimizers(struct plume_context *pl, struct plume_optimizer *ret)\n{\n    plume_add_group(pl, ret, "0.*")->lr = 0.01;\n    return 0;\n}\n&/' \
        -e 's/^    \.configure = .*/&\n    .configure_optimizers = configure_optimizers,/' "$SRC/examples/mlp/mlp.c" >seq.c
    cc -std=c11 -shared -fPIC -I "$SRC/include" -o seq.so seq.c
    run -0 --separate-stderr pltrain --epochs 0 --weights "$SRC/tests/fixtures/weights/sequential.safetensors" \
        --weights-strict --checkpoint-dir c --save-last ./seq.so --hidden 2
    [ -z "$stderr" ]
    [ "$(names c/last.ckpt | sed 's/ plume.*//')" = "0.bias 0.weight 2.bias 2.weight" ]
    python3 - "$SRC/tests/fixtures/weights/sequential.safetensors" c/last.ckpt <<'PY'
import json, struct, sys
def tensors(path):
    with open(path, "rb") as f:
        data = f.read()
    n = struct.unpack("<Q", data[:8])[0]
    head = json.loads(data[8:8 + n])
    return {name: (t["shape"], data[8 + n + t["data_offsets"][0]:8 + n + t["data_offsets"][1]])
            for name, t in head.items() if name[0] in "02"}
theirs, ours = map(tensors, sys.argv[1:])
assert len(theirs) == 4 and theirs == ours
PY
    # State of optimizers, the average and shards have the same names in a checkpoint.
    local -a run=(--optimizer adam --ema 0.9 --processes 2 --limit-val-batches 1 --limit-test-batches 1)
    whole=$(pltrain "${run[@]}" --max-steps 6 ./seq.so | grep hash | sort)
    pltrain "${run[@]}" --max-steps 3 --strategy sharded --shard param --checkpoint-dir d --save-last ./seq.so
    [ "$(pltrain "${run[@]}" --max-steps 6 --resume d/last.ckpt ./seq.so | grep hash | sort)" = "$whole" ]
    # Maps write them.
    pltrain --max-steps 3 --checkpoint-dir e --save-last mlp
    run -0 --separate-stderr pltrain --epochs 0 --weights e/last.ckpt --weights-strict \
        --weights-map '^(.)1$=0.\1' --weights-map '^(.)2$=2.\1' \
        --weights-map '[.]w$=.weight' --weights-map '[.]b$=.bias' ./seq.so
    [ -z "$stderr" ]
    for bad in __metadata__:"is no tensor: choose another name" plume.a:"does not begin with 'plume.'" \
        .w:"wanted are letters, digits and _.-, first a letter, a digit or _"; do
        sed "s/\"0.weight\"/\"${bad%%:*}\"/" seq.c >bad.c
        cc -std=c11 -shared -fPIC -I "$SRC/include" -o bad.so bad.c
        run -1 --separate-stderr pltrain ./bad.so
        [[ $stderr == *"${bad#*:}"* ]] || { echo "$stderr"; false; }
        [ "${bad%%:*}" != __metadata__ ] || [[ $stderr != *plume.* ]]
    done
}

@test "a profile in a file has each op and phase, one inside another" {
    for how in "--processes 2" "--strategy dp --devices 2"; do
        begin=${EPOCHREALTIME/./}
        # shellcheck disable=SC2086
        run -0 --separate-stderr pltrain --profile=t.json --epochs 2 --max-steps 100 $how mlp
        [ -z "$stderr" ]
        python3 - t.json $((${EPOCHREALTIME/./} - begin)) <<'PY'
import json, sys
trace, wall = json.load(open(sys.argv[1])), float(sys.argv[2])
events = [e for e in trace["traceEvents"] if e["ph"] == "X"]
assert trace["otherData"] == {"left_out": 0}
for tid in {e["tid"] for e in events}:
    open_ones = []
    for e in sorted((e for e in events if e["tid"] == tid), key=lambda e: (e["ts"], -e["dur"])):
        end = e["ts"] + e["dur"]
        while open_ones and open_ones[-1] <= e["ts"] + 0.002:
            open_ones.pop()
        assert e["dur"] >= 0 and (not open_ones or end <= open_ones[-1] + 0.002), e
        open_ones.append(end)
def of(name, kind=None):
    return [e["dur"] for e in events if e["name"] == name and kind in (None, e["cat"])]
total = sum(of("build") + of("run"))
assert len(of("run")) == 1 and wall / 100 < total <= wall, (total, wall)
assert 1 <= len(of("epoch")) <= 2 and sum(of("epoch")) <= of("run")[0]
assert len(of("batch")) == len(of("optimizer")) == 100
assert sum(of("forward", "step") + of("backward", "step") + of("optimizer")) <= sum(of("batch"))
assert of("linear", "forward") and of("linear", "backward") and of("test")
assert all("output" in e["args"] for e in events if e["cat"] in ("forward", "backward"))
PY
    done
    run -1 --separate-stderr pltrain --profile=none/t.json mlp
    [[ $stderr == *"cannot write the profile 'none/t.json': No such file or directory" ]]
}

@test "a profile tells where the time goes" {
    run -0 --separate-stderr pltrain --profile --max-steps 5 mlp
    grep -q '^linear  *f32  *f32\[8, 64\]  *1 ' <<<"$stderr"
    grep -q '^rest .*%$' <<<"$stderr"
    grep -q ' ms a step, 5 steps$' <<<"$stderr"
    [[ $stderr != *library* ]]
    run -0 --separate-stderr env PLUME_PROFILE=1 pltrain --max-steps 5 mlp
    grep -q ' ms a step, 5 steps$' <<<"$stderr"
    run -0 --separate-stderr pltrain --max-steps 5 mlp
    [ -z "$stderr" ]
}

# The digits' last batch has 5 rows. Its ops run once in 157 steps.
@test "a profile has the ops of all batches, also if the last one is shorter" {
    run -0 --separate-stderr pltrain --profile --epochs 1 --limit-val-batches 0 --limit-test-batches 0 mlp
    grep -q '^linear  *f32  *f32\[8, 64\]  *0\.99 ' <<<"$stderr"
    grep -q '^linear  *f32  *f32\[5, 64\]  *<0\.01 ' <<<"$stderr"
    grep -q ' ms a step, 157 steps$' <<<"$stderr"
    # The full batches took more than the short one, and an op no more than its FLOPs allow.
    python3 - "$stderr" <<'PY'
import re, sys
rows = {}
for line in sys.argv[1].splitlines():
    m = re.match(r"linear +f32 +(f32\S+ \S+) +\S+ +(\S+) +(\S+) +(\S+)% +(\S+)", line)
    if m:
        rows[m[1]] = float(m[2]) + float(m[3]), float(m[5])
full, short = rows["f32[8, 64]"], rows["f32[5, 64]"]
assert full[0] > 20 * short[0], rows
assert short[1] < 10 * full[1], rows
PY
    # Each step of --accumulate calls its ops as often as it has batches.
    run -0 --separate-stderr pltrain --profile --max-steps 3 --accumulate 4 mlp
    grep -q '^linear  *f32  *f32\[8, 64\]  *4 ' <<<"$stderr"
}

# A constant that is added to all keys changes no softmax: the true gradient of a key's bias is zero.
# In f32 it is noise of rounding, about as large as Adam's eps, and Adam makes steps of it. PyTorch's
# key biases drift in the same way, to other values. No output depends on them.
@test "gpt: rounding moves nothing but the biases of keys, which change no output" {
    for bits in 32 64; do
        pltrain --precision "$bits" --optimizer adamw --max-steps 20 --checkpoint-dir "c$bits" \
            --save-last --hparam layers=2 --hparam width=32 --hparam batch_size=4 gpt >"out$bits"
    done
    python3 - <<'PY'
import json, re, struct
def load(path, kind):
    with open(path, "rb") as f:
        header = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
        data = f.read()
    values = {}
    for name, t in header.items():
        if name != "__metadata__" and not name.startswith("plume."):
            raw = data[slice(*t["data_offsets"])]
            values[name] = struct.unpack(f"<{len(raw) // struct.calcsize(kind)}{kind}", raw)
    return values
a, b = load("c32/last.ckpt", "f"), load("c64/last.ckpt", "d")
far, keys = 0, 0
for name in a:
    for i, (x, y) in enumerate(zip(a[name], b[name])):
        if name.endswith(".qkv.b") and len(a[name]) // 3 <= i < 2 * len(a[name]) // 3:
            keys = max(keys, abs(x - y))
        else:
            far = max(far, abs(x - y))
print(f"keys' biases {keys:.2g}, the rest {far:.2g}")
assert far < 1e-5, far
assert keys > 1e-4, keys
loss = [float(re.search(r"test_loss (\S+)", open(f"out{bits}").read())[1]) for bits in (32, 64)]
assert abs(loss[0] - loss[1]) <= 1e-4, loss
PY
}
