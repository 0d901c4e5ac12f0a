#!/usr/bin/env bats
# SPDX-License-Identifier: MIT
# Training on an XLA device: by a fake plume-pjrt.so (tests/fakes/fake_pjrt.c), and by a real plugin,
# whose numbers must be the CPU's. BUILD is the build folder, FAKE_PJRT the fake's, FAKE that of modules and
# plugins of these tests, TURNS a module with two optimizers that take turns, PJRT_PLUGIN the plugin ("":
# there is none).

bats_require_minimum_version 1.5.0

setup() {
    PATH=$BUILD:$PATH
    unset RANK WORLD_SIZE PLUME_SOCKET
    cd "$BATS_TEST_TMPDIR" || return
    unset PLUME_PLUGIN_DIR PLUME_HOME XLA_FLAGS
    [ -z "${PLUME_TEST_XLA_FLAGS:-}" ] || export XLA_FLAGS=$PLUME_TEST_XLA_FLAGS
    export HOME=$PWD/home # programs are kept there
    mkdir home
}

fake() {
    PLUME_PLUGIN_DIR=$FAKE_PJRT FAKE_PJRT_LOG=$PWD/programs pltrain --pjrt-plugin "$@"
}

# says STATUS WORDS ARGS...: on the fake, pltrain exits with STATUS and one line that has the words.
says() {
    local status=$1 words=$2
    shift 2
    run "-$status" --separate-stderr env PLUME_PLUGIN_DIR="$FAKE_PJRT" pltrain "$@"
    [ "${#stderr_lines[@]}" -eq 1 ] || { echo "$stderr"; false; }
    [[ $stderr == "pltrain: "*"$words"* ]] || { echo "$stderr"; false; }
}

needs_plugin() {
    [ -n "$PJRT_PLUGIN" ] || skip "no PJRT plugin (./dev deps pjrt), or a build with a sanitizer"
}

# alike A B [LIMIT]: the folders' metrics.csv have the same rows and columns, and numbers that differ by
# less than LIMIT.
alike() {
    python3 - "$1"/metrics.csv "$2"/metrics.csv "${3:-2e-5}" <<'PY'
import csv, sys
a, b = (list(csv.DictReader(open(name))) for name in sys.argv[1:3])
assert len(a) == len(b) and len(a) >= 4 and a[0].keys() == b[0].keys(), (len(a), len(b))
for x, y in zip(a, b):
    for key in x:
        assert (x[key] == "") == (y[key] == ""), (x, y)
        u, v = float(x[key] or 0), float(y[key] or 0)
        assert abs(u - v) <= float(sys.argv[3]) * max(1, abs(v)) or u != u and v != v, (key, x, y)
PY
}

# as_cpu ARGS...: each loss, each logged value, and the columns of metrics.csv are the CPU's, but for
# LIMIT.
as_cpu() {
    local -a run=(--log-every 1 --num-sanity-val-steps 0 --limit-val-batches 1 --limit-test-batches 1)
    rm -rf xla cpu
    pltrain --pjrt-plugin "$PJRT_PLUGIN" "${run[@]}" --log-dir xla "$@" >xla.out
    pltrain "${run[@]}" --log-dir cpu "$@" >cpu.out
    alike "$(dirname "$(find xla -name metrics.csv)")" "$(dirname "$(find cpu -name metrics.csv)")" "${LIMIT:-2e-5}" ||
        { echo "$*"; false; }
}

# as_ranks N ARGS...: N devices train as N ranks of ddp do on the CPU: their losses, and what is logged
# over all of them; the loss of each epoch is told to 4 digits.
as_ranks() {
    local n=$1
    local -a run=(--log-every 1 --num-sanity-val-steps 0 --limit-test-batches 2)
    shift
    rm -rf xla cpu
    pltrain --pjrt-plugin "$PJRT_PLUGIN" --tpu-cores "$n" "${run[@]}" --log-dir xla "$@" >xla.out
    pltrain --processes "$n" "${run[@]}" --log-dir cpu "$@" >cpu.out
    alike "$(dirname "$(find xla -name metrics.csv)")" "$(dirname "$(find cpu -name metrics.csv)")" "${LIMIT:-2e-5}" ||
        { echo "$*"; false; }
    diff <(sed -n 's/ ([0-9]* samples.*//; /^epoch/p' xla.out) <(sed -n 's/ ([0-9]* samples.*//; /^epoch/p' cpu.out)
}

@test "each program gets what its text says, once per shape, and the state comes back" {
    # The last batch is shorter. The fake changes no parameter.
    local -a run=(--limit-val-batches 1 --limit-test-batches 1 --num-sanity-val-steps 0 --epochs 2)
    fake x "${run[@]}" --checkpoint-dir c --save-last mlp --batch_size 500 >out
    hash=$(grep -o 'hash .*' out)
    pltrain --epochs 0 mlp | grep -q "$hash"
    # Four parameters and their momentum in place, two fields, seed and step, numbers; the values come
    # beside them. A last batch of another size, and validation.
    sort programs | uniq -c | tr -s ' ' >counts
    grep -qx ' [0-9]* program: 12 arguments, 8 in place, 9 results' counts
    grep -qx ' [0-9]* program: 7 arguments, 0 in place, 1 results' counts
    [ "$(wc -l <programs)" -le 5 ] # two epochs
    # The host has the state: a checkpoint of it resumes on the CPU, and there again.
    pltrain --max-steps 0 --resume c/last.ckpt mlp --batch_size 500 | grep -q "$hash"
    fake x "${run[@]}" --epochs 3 --resume c/last.ckpt mlp --batch_size 500 | grep -q "$hash"
}

@test "sums of gradients wait on the device for the step" {
    fake x --accumulate 3 --max-steps 4 --optimizer adam --clip 0.1 mlp >out
    # First: sums out. Second: sums in and out, in place. Third: sums in, and the update.
    grep -qx 'program: 15 arguments, 12 in place, 17 results' programs
    grep -qx 'program: 19 arguments, 16 in place, 17 results' programs
    grep -qx 'program: 20 arguments, 12 in place, 13 results' programs
    fake x --max-steps 3 cnn --batchnorm 1 --dropout 0.1 >out # buffers, in place
    grep -qx 'program: 32 arguments, 28 in place, 29 results' programs
    fake x --max-steps 3 --optimizer rmsprop --clip 1 --clip-by value mlp >out
}

@test "what fails says so in one line" {
    says 1 'the PJRT plugin has no device on this machine' --pjrt-plugin no-device mlp
    says 1 'compiling: UNIMPLEMENTED: all of it' --pjrt-plugin no-compiler mlp
    says 1 'running a step: INTERNAL: no' --pjrt-plugin no-runs mlp
    says 1 "cannot write 'no/such'" --pjrt-plugin x --dump-stablehlo no/such mlp
    says 2 "needs '--accelerator tpu'" --dump-stablehlo x mlp
    says 2 'choose gpu or tpu' --gpus 1 --pjrt-plugin x mlp
    says 2 'choose gpu or tpu' --pjrt-plugin x --accelerator gpu mlp
    says 2 'choose cpu or tpu' --pjrt-plugin x --accelerator cpu mlp
    says 2 'choose cpu or tpu' --accelerator cpu --pjrt-plugin x mlp
    says 2 'has all devices of a node in one process' --accelerator tpu --processes 2 mlp
    says 2 'choose cpu or tpu' --tpu-cores 2 --accelerator cpu mlp
    says 2 'cores count from 1' --tpu-cores '[0]' mlp
    says 2 'a number of cores, or one core as [K]' --tpu-cores auto mlp
    says 2 'leave out --tpu-cores' --tpu-cores 2 --compare-devices mlp
    says 2 "options '--tpu-cores' and '--devices' name different devices: leave one out" --tpu-cores 2 --devices 3 mlp
    says 2 "options '--devices' and '--tpu-cores' name different devices: leave one out" --devices 3 --tpu-cores '[3]' mlp
    # All four names.
    says 2 "options '--gpus' and '--num-tpu-cores' name different devices" --devices auto --gpus 3 --tpu-cores 3 --num-tpu-cores 2 mlp
    says 1 'the fake has 4 devices' --pjrt-plugin x --tpu-cores 2 --tpu-cores 5 mlp # the last one counts
    says 1 'another strategy than ddp' --pjrt-plugin x --num-nodes 2 --strategy horovod mlp
    SOMETIMES_BY_RANK=1 says 1 'the training steps of ranks 0 and 1 differ' --pjrt-plugin x --num-nodes 2 "$FAKE/sometimes.so"
    says 1 'the fake has 4 devices' --pjrt-plugin x --tpu-cores 5 mlp
    says 1 'the fake has 4 devices' --pjrt-plugin x --tpu-cores '[5]' mlp
    says 1 'another strategy than ddp' --pjrt-plugin x --tpu-cores 2 --strategy dp mlp
    says 1 'another strategy than ddp' --pjrt-plugin x --tpu-cores 2 --strategy horovod mlp
    says 1 'does not take this yet: --average-every' --pjrt-plugin x --tpu-cores 2 --average-every 2 mlp
    SOMETIMES_BY_CALLS=1 says 1 'the training steps of replicas 0 and 1 differ' --pjrt-plugin x --tpu-cores 2 "$FAKE/sometimes.so"
    for words in '--ema' '--summary' '--profile' '--deterministic'; do
        option=$words
        [ "$words" != --ema ] || option=--ema=0.9
        says 1 "does not take this yet: $words" --pjrt-plugin x "$option" mlp
    done
    PLUME_PROFILE=1 says 1 'does not take this yet: $PLUME_PROFILE' --pjrt-plugin x mlp
    says 1 'a precision other than 32 and bf16' --pjrt-plugin x --precision 64 mlp
    says 1 'a precision other than 32 and bf16' --pjrt-plugin x --precision 16 mlp
    says 1 '--amp-level O2 or O3' --pjrt-plugin x --precision bf16 --amp-level O2 mlp
    says 1 'optimizers take turns' --pjrt-plugin x "$TURNS"
    says 1 'gradients do not leave an XLA device' --pjrt-plugin x "$FAKE/gradient.so"
    mkdir empty
    run -1 --separate-stderr env PLUME_PLUGIN_DIR="$PWD/empty" PATH="$PATH" pltrain --accelerator tpu mlp
    [[ $stderr == *'PJRT'* || $stderr == *'plume-pjrt.so is not installed'* || $stderr == *libtpu.so* ]]
}

# kept LEVEL PLUGIN: a run; its warnings and what is said of programs go to `said`.
kept() {
    rm -f programs
    PLUME_LOG=$1 fake "$2" --max-steps 2 --limit-val-batches 1 --limit-test-batches 0 --num-sanity-val-steps 0 mlp >out 2>said
    touch programs
}

@test "compiled programs are kept for the next run" {
    kept debug:train bytes
    [ "$(wc -l <programs)" -eq 2 ]
    [ "$(grep -c 'compiled a program' said)" -eq 2 ]
    [ "$(stat -c %a home/.plume/programs home/.plume/programs/* | tr '\n' ' ')" = "700 600 600 " ]
    hash=$(grep -o 'hash .*' out)
    kept debug:train bytes
    [ ! -s programs ]
    [ "$(grep -c 'loaded a program' said)" -eq 2 ]
    run -1 grep 'compiled a program' said
    grep -q "$hash" out
    # XLA's compiler is told otherwise: other programs.
    XLA_FLAGS=--xla_other kept debug:train bytes
    [ "$(wc -l <programs)" -eq 2 ]
    LIBTPU_INIT_ARGS=--xla_other kept debug:train bytes
    [ "$(wc -l <programs)" -eq 2 ]
    kept debug:train bytes
    [ ! -s programs ]
    # Without them all are compiled. (Other devices are another program: the fake's identity is one.)
    PLUME_LOG=debug:train fake bytes --no-program-cache --max-steps 1 --limit-val-batches 0 --limit-test-batches 0 mlp 2>&1 |
        grep -q 'compiled a program'
}

@test "a kept program that is of no use is compiled again, and replaced" {
    kept warn bytes
    files=(home/.plume/programs/*)
    truncate -s -1 "${files[0]}"
    cp "${files[0]}" "${files[1]}" # of another program
    kept warn bytes
    [ "$(wc -l <programs)" -eq 2 ]
    [ "$(grep -c 'a stored program cannot be used, and is compiled again: .* is damaged' said)" -eq 2 ]
    kept warn bytes
    [ ! -s programs ] && [ ! -s said ]
    kept warn other-bytes # a plugin that does not take them
    [ "$(grep -c 'a stored program cannot be used, and is compiled again: the fake takes none' said)" -eq 2 ]
    # A plugin that gives none out, or nothing to tell it by; a folder that others can read.
    rm -r home/.plume/programs
    kept info x
    [ "$(grep -c 'programs are not kept for the next run: the fake gives none out' said)" -eq 1 ]
    kept info no-identity
    run -1 grep 'kept' said
    chmod 755 home/.plume/programs
    kept info bytes
    [ "$(wc -l <programs)" -eq 2 ]
    [ "$(grep -c 'programs are not kept for the next run' said)" -eq 1 ]
}

@test "a kept program computes what the compiled one does" {
    needs_plugin
    local -a opts=(--pjrt-plugin "$PJRT_PLUGIN" --max-steps 3 --num-sanity-val-steps 0 --limit-val-batches 1 --limit-test-batches 1)
    for cores in 1 2; do
        PLUME_LOG=debug:train pltrain --tpu-cores $cores "${opts[@]}" mlp >a 2>said
        grep -q 'compiled a program' said
        run -1 grep 'loaded a program' said
        PLUME_LOG=debug:train pltrain --tpu-cores $cores "${opts[@]}" mlp >b 2>said
        grep -q 'loaded a program' said
        run -1 grep 'compiled a program' said
        diff <(sed 's/ (.*//' a) <(sed 's/ (.*//' b)
    done
}

@test "several devices run one program, each with its batch" {
    local -a run=(--max-steps 3 --limit-val-batches 1 --limit-test-batches 1 --num-sanity-val-steps 0)
    fake x --tpu-cores 4 "${run[@]}" mlp >out
    [ "$(grep -c . programs)" -eq 2 ] # training and validation
    grep -q '^batch: [0-9]* samples per step (ddp: 4 replicas x ' out
    # One core by its number, and the names of the other texts.
    fake x --tpu-cores '[4]' "${run[@]}" mlp >out
    fake x --num_tpu_cores=2 --dump-stablehlo text "${run[@]}" cnn --batchnorm 1 >out
    grep -q 'mhlo.num_replicas = 2' text
    sums=$(grep -c 'stablehlo.all_reduce' text)
    fake x --tpu-cores 2 --dump-stablehlo text --sync-batchnorm "${run[@]}" cnn --batchnorm 1 >out
    [ "$(grep -c 'stablehlo.all_reduce' text)" -gt "$sums" ]
    fake x --tpu-cores 4 --global-batch 100 --list-hparams mlp | grep -q '^batch_size  *25 ' ||
        fake x --tpu-cores 4 --global-batch 100 "${run[@]}" mlp | grep -q '4 replicas x 25 samples'
}

@test "several hosts run one program on the devices of all, and others on their own" {
    local -a run=(--max-steps 3 --limit-val-batches 1 --limit-test-batches 1 --num-sanity-val-steps 0)
    fake x --num-nodes 3 --tpu-cores 2 --dump-stablehlo text "${run[@]}" mlp >out
    grep -q '^batch: [0-9]* samples per step (ddp: 6 replicas x ' out
    [ "$(grep -c 'mhlo.num_replicas = 6' text)" -eq 1 ] # training
    [ "$(grep -c 'mhlo.num_replicas = 2' text)" -eq 1 ] # validation
    [ "$(grep -c '^program' programs)" -eq 6 ]          # both on each host
    [ "$(sed -n 's/.*param hash //p' out | sort -u | wc -l)" -eq 1 ]
    # One fails, and the others, which wait for it, say why.
    run -1 --separate-stderr env PLUME_PLUGIN_DIR="$FAKE_PJRT" pltrain --pjrt-plugin no-second-host --num-nodes 3 mlp
    [ -n "$stderr" ]
    ! grep -vF 'the XLA device of the second host: is in use' <<<"$stderr" || { echo "$stderr"; false; }
}

# as_hosts N M ARGS...: N hosts with M devices each train as N x M ranks of ddp do on the CPU.
as_hosts() {
    local n=$1 m=$2
    local -a run=(--log-every 1 --num-sanity-val-steps 0 --limit-test-batches 2)
    shift 2
    rm -rf xla cpu
    HOSTS_DEVICES=$m pltrain --pjrt-plugin "$FAKE/hosts.so" --num-nodes "$n" --tpu-cores "$m" "${run[@]}" --log-dir xla "$@" >xla.out
    pltrain --processes $((n * m)) "${run[@]}" --log-dir cpu "$@" >cpu.out
    alike "$(dirname "$(find xla -name metrics.csv)")" "$(dirname "$(find cpu -name metrics.csv)")" "${LIMIT:-2e-5}" ||
        { echo "$*"; false; }
    diff <(sed -n 's/ ([0-9]* samples.*//; /^epoch/p' xla.out) <(sed -n 's/ ([0-9]* samples.*//; /^epoch/p' cpu.out)
    [ "$(sed -n 's/.*param hash //p' xla.out | sort -u | wc -l)" -eq 1 ]
}

@test "several hosts train as ranks do: the plugin is told of them, or knows them in another order" {
    needs_plugin
    as_hosts 2 2 --max-steps 4 --limit-val-batches 2 --clip 0.1 --optimizer adamw "$FAKE/averages.so"
    HOSTS_KNOWN=1 as_hosts 3 1 --max-steps 4 --limit-val-batches 2 --sync-batchnorm "$FAKE/averages.so"
}

@test "several hosts: a checkpoint goes on in one, and a host that is alone is told" {
    needs_plugin
    local -a run=(--optimizer adam --num-sanity-val-steps 0 --limit-val-batches 1 --limit-test-batches 1)
    export HOSTS_DEVICES=1
    pltrain --pjrt-plugin "$FAKE/hosts.so" --num-nodes 2 "${run[@]}" --max-steps 3 --checkpoint-dir c --save-last mlp >/dev/null
    pltrain --pjrt-plugin "$FAKE/hosts.so" --num-nodes 2 "${run[@]}" --max-steps 5 --resume c/last.ckpt --log-every 1 --log-dir a mlp >/dev/null
    pltrain --processes 2 "${run[@]}" --max-steps 5 --log-every 1 --log-dir b mlp >/dev/null
    sed -i '2,4d' "$(find b -name metrics.csv)" # steps 1 to 3
    alike "$(dirname "$(find a -name metrics.csv)")" "$(dirname "$(find b -name metrics.csv)")" 2e-5
    HOSTS_KNOWN=1 HOSTS_ALONE=1 run -1 --separate-stderr pltrain --pjrt-plugin "$FAKE/hosts.so" --num-nodes 2 mlp
    [[ $stderr == *"the PJRT plugin sees the devices of 1 host, and there are 2 ranks"* ]] || { echo "$stderr"; false; }
}

@test "several devices train as ranks do: mlp, on 4, whose batches are uneven at the end" {
    needs_plugin
    as_ranks 4 --max-steps 20 --optimizer sgd --clip 0.5 mlp --batch_size 30
    as_ranks 4 --epochs 1 --accumulate 3 --optimizer adamw mlp --batch_size 77
}

@test "several devices train as ranks do: cnn with batch norm and dropout, on 4" {
    needs_plugin
    # Of seed 0 a pooled window has two largest numbers within rounding, and only one gets the gradient.
    as_ranks 4 --seed 1 --max-steps 20 --limit-val-batches 2 cnn --batchnorm 1 --dropout 0.3 --batch_size 4
    as_ranks 4 --max-steps 3 --limit-val-batches 2 --sync-batchnorm cnn --batchnorm 1 --batch_size 4
}

@test "several devices train as ranks do: gpt and vae, on 8 and 2" {
    needs_plugin
    as_ranks 8 --max-steps 3 --limit-val-batches 2 gpt --batch_size 2 --context 8 --layers 1 --heads 2 --width 16 --dropout 0.1
    as_ranks 2 --max-steps 3 --limit-val-batches 2 vae --batch_size 4
}

@test "several devices train as ranks do: contrastive and lstm, on 8 and 4" {
    needs_plugin
    as_ranks 8 --max-steps 3 --limit-val-batches 2 contrastive --batch_size 4
    as_ranks 4 --max-steps 3 --limit-val-batches 1 lstm --batch_size 4 --context 4 --hidden 8 --width 4
}

@test "a plugin that is none, is old or does not start says so in one line, before training" {
    [ -e "$FAKE/broken_plugin.so" ] || skip "a build without PJRT's header (./dev deps pjrt)"
    # fails WORDS BROKEN PLUGIN: exit status 1, and one line with the words.
    fails() {
        run -1 --separate-stderr env BROKEN="$2" pltrain --pjrt-plugin "$3" mlp
        [ "${#stderr_lines[@]}" -eq 1 ] && [ -z "$output" ] || { echo "$stderr$output"; false; }
        [[ $stderr == "pltrain: "*"$1"* ]] || { echo "$stderr"; false; }
    }
    fails "no PJRT plugin './none.so'" "" ./none.so
    echo text >text.so
    fails "cannot load the PJRT plugin './text.so': " "" ./text.so
    fails "it has no GetPjrtApi()" "" "$FAKE/sometimes.so"
    fails "its GetPjrtApi() returns nothing" nothing "$FAKE/broken_plugin.so"
    fails "has interface 1." major "$FAKE/broken_plugin.so"
    fails "has interface 0.3, and 0.40 or a later 0 is needed" minor "$FAKE/broken_plugin.so"
    fails "is needed" short "$FAKE/broken_plugin.so"
    fails "start of the plugin: FAILED_PRECONDITION: the driver is too old" start "$FAKE/broken_plugin.so"
    fails "start of the device: UNAVAILABLE: the device is in use by process 1" "" "$FAKE/broken_plugin.so"
}

@test "losses of 20 steps are the CPU's: mlp, with a short last batch" {
    needs_plugin
    as_cpu --epochs 2 --optimizer sgd --clip 0.5 mlp --batch_size 100
    as_cpu --max-steps 20 --accumulate 2 --optimizer adamw --clip 0.05 --clip-by value mlp --lr 0.01
}

@test "losses of 20 steps are the CPU's: cnn with batch norm and dropout" {
    needs_plugin
    as_cpu --max-steps 20 cnn --batchnorm 1 --dropout 0.3 --batch_size 4
}

@test "losses of 20 steps are the CPU's: gpt with dropout" {
    needs_plugin
    as_cpu --max-steps 20 gpt --batch_size 2 --context 8 --layers 1 --heads 2 --width 16 --dropout 0.1
}

@test "losses of 20 steps are the CPU's: vae, contrastive" {
    needs_plugin
    as_cpu --max-steps 20 vae --batch_size 4 # random numbers of a normal distribution
    as_cpu --max-steps 20 contrastive --batch_size 4
}

@test "losses of 20 steps are the CPU's: lstm, resnet" {
    needs_plugin
    local -a only=(--max-steps 20 --limit-val-batches 0 --limit-test-batches 0)
    as_cpu "${only[@]}" lstm --batch_size 4 --context 6 --hidden 8 --width 4
    # Larger steps of smaller batches tell roundings apart: those of the CPU from f64 as well.
    as_cpu "${only[@]}" resnet --width 4 --batch_size 16 --lr 1e-5
}

@test "losses of 20 steps in bf16 are the CPU's" {
    needs_plugin
    # Where products are of f32 numbers, the order of sums shows in bf16's last bit.
    LIMIT=3e-3 as_cpu --max-steps 20 --precision bf16 gpt --batch_size 2 --context 8 --layers 1 --heads 2 --width 16
    as_cpu --max-steps 20 --precision bf16 mlp # rounded at the same places: the same numbers
    pltrain --max-steps 20 --log-every 1 --num-sanity-val-steps 0 --limit-val-batches 1 --limit-test-batches 1 \
        --log-dir f32 mlp >/dev/null
    run -1 alike "$(dirname "$(find xla -name metrics.csv)")" "$(dirname "$(find f32 -name metrics.csv)")"
}

@test "a module that counts its calls counts the same on all ranks" {
    for strategy in ddp sharded; do
        pltrain --processes 3 --strategy $strategy --max-steps 1 "$FAKE/sometimes.so" >out
        [ "$(grep -c '^rank [012]: [0-9]* calls$' out)" -eq 3 ]
        [ "$(sed -n 's/^rank .: //p' out | sort -u | wc -l)" -eq 1 ]
    done
}

@test "a module that counts its calls counts the same on all ranks, though the plan of the step does not fit" {
    export OMP_NUM_THREADS=1 # threads have stacks
    (ulimit -v 900000 && pltrain --processes 3 --max-steps 1 "$FAKE/sometimes.so" >out 2>&1) ||
        skip "a sanitizer's shadow memory has no limit"
    plain=$(sed -n 's/^rank 0: //p' out)
    free=$(sed -n 's/^model: .* MB of \([0-9]*\)[0-9.]* MB per rank)$/\1/p' out) # of the limit
    for strategy in ddp sharded; do
        (ulimit -v $((900000 - (free + 1) * 1000000 / 1024)) &&
            pltrain --processes 3 --strategy $strategy --max-steps 1 "$FAKE/sometimes.so" >out 2>err)
        grep -q 'warning: rank 0 needs .* MB of .* MB: ' err
        [ "$(sed -n 's/^rank .: //p' out | sort -u | wc -l)" -eq 1 ]
        [ "$(grep -c '^rank [012]: [0-9]* calls$' out)" -eq 3 ]
        [ "$(sed -n 's/^rank 0: //p' out)" != "$plain" ] # other choices were planned, too
    done
}

@test "a parameter misses steps, and hooks read it, as on the CPU" {
    needs_plugin
    as_cpu --max-steps 9 --optimizer adam "$FAKE/sometimes.so"
    diff <(grep bias xla.out) <(grep bias cpu.out)
    as_cpu --max-steps 5 --optimizer adam --accumulate 2 "$FAKE/sometimes.so"
    diff <(grep bias xla.out) <(grep bias cpu.out)
}

@test "a run goes on where it was, there and on the CPU" {
    needs_plugin
    local -a run=(--optimizer adam --num-sanity-val-steps 0 --limit-val-batches 1 --limit-test-batches 1)
    pltrain --pjrt-plugin "$PJRT_PLUGIN" "${run[@]}" --max-steps 4 --checkpoint-dir c --save-last mlp >/dev/null
    for device in "" "--pjrt-plugin=$PJRT_PLUGIN"; do
        rm -rf a b
        pltrain ${device:+"$device"} "${run[@]}" --max-steps 9 --log-every 1 --log-dir a --resume c/last.ckpt mlp >/dev/null
        pltrain "${run[@]}" --max-steps 9 --log-every 1 --log-dir b mlp >/dev/null
        sed -i '2,5d' "$(find b -name metrics.csv)" # steps 1 to 4
        alike "$(dirname "$(find a -name metrics.csv)")" "$(dirname "$(find b -name metrics.csv)")"
    done
}

@test "a run on several devices goes on there, on one, and as ranks on the CPU" {
    needs_plugin
    # Adam would take steps by what rounding leaves of biases' gradients, which are 0 before batch norm.
    local -a run=(--optimizer sgd --num-sanity-val-steps 0 --limit-val-batches 1 --limit-test-batches 1)
    local -a model=(cnn --batchnorm 1 --dropout 0.2 --batch_size 4)
    pltrain --pjrt-plugin "$PJRT_PLUGIN" --tpu-cores 4 "${run[@]}" --max-steps 4 --checkpoint-dir c --save-last "${model[@]}" >/dev/null
    pltrain --processes 4 "${run[@]}" --max-steps 8 --log-every 1 --log-dir whole "${model[@]}" >/dev/null
    sed -i '2,5d' "$(find whole -name metrics.csv)" # steps 1 to 4
    for how in --tpu-cores=4 --processes=4; do
        rm -rf part
        [[ $how == --processes* ]] || how="$how --pjrt-plugin $PJRT_PLUGIN"
        # shellcheck disable=SC2086 # words
        pltrain $how "${run[@]}" --max-steps 8 --log-every 1 --log-dir part --resume c/last.ckpt "${model[@]}" >/dev/null
        alike "$(dirname "$(find part -name metrics.csv)")" "$(dirname "$(find whole -name metrics.csv)")"
    done
    pltrain --pjrt-plugin "$PJRT_PLUGIN" "${run[@]}" --max-steps 5 --resume c/last.ckpt "${model[@]}" | grep -q ' step 5 '
    # Validation alone: the sum over all samples, whatever the number of devices.
    pltrain --pjrt-plugin "$PJRT_PLUGIN" --tpu-cores 3 --validate --weights c/last.ckpt cnn --batchnorm 1 --batch_size 32 >a
    pltrain --validate --weights c/last.ckpt cnn --batchnorm 1 --batch_size 32 >b
    diff a b
}

@test "the text of each program can be kept" {
    needs_plugin
    pltrain --pjrt-plugin "$PJRT_PLUGIN" --dump-stablehlo text --fast-dev-run mlp >/dev/null
    [ "$(grep -c '^module' text)" -ge 2 ]
    grep -q 'stablehlo.dot_general' text
}

@test "parameters come back row by row, however the device stores them" {
    needs_plugin
    local -a run=(--max-steps 2 --num-sanity-val-steps 0 --limit-val-batches 0 --limit-test-batches 0 mlp)
    hash=$(pltrain --pjrt-plugin "$PJRT_PLUGIN" "${run[@]}" | grep -o 'hash .*')
    pltrain --pjrt-plugin "$FAKE/columns.so" "${run[@]}" >out
    grep -q "$hash" out
}
