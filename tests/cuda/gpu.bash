# SPDX-License-Identifier: MIT
# shellcheck shell=bash
# For gpu*.bats: pltrain on GPUs, as far as that can be told without one. PLUME_PLUGIN_DIR has a
# plume-cuda.so whose GPUs are emulated (device.c, nccl.c), and modules for it. BUILD is the build folder.


setup() {
    PATH=$BUILD:$PATH
    unset RANK WORLD_SIZE PLUME_SOCKET SLURM_JOB_ID
    cd "$BATS_TEST_TMPDIR" || return
}

# losses FILE: STEP LOSS of each step, from metrics.csv.
losses() {
    python3 - "$1" <<'PY'
import csv, sys
for row in csv.DictReader(open(sys.argv[1])):
    if row.get("loss"):
        print(row["step"], row["loss"])
PY
}

# alike TOLERANCE A B: the same steps, and losses that are so far apart at most.
alike() {
    paste -d ' ' "$2" "$3" | awk -v most="$1" '
        $1 != $3 || NF != 4 { print "not the same steps: " $0; bad = 1 }
        ($2 - $4) ^ 2 > most ^ 2 { print "off: " $0; bad = 1 }
        END { exit bad || NR < 3 }'
}

# trained WHERE ARGS...: losses of each step into WHERE.
trained() {
    local where=$1
    shift
    pltrain --log-dir "$where.log" --log-every 1 "$@" >"$where.out"
    losses "$where.log/metrics.csv" >"$where"
}

# same TOLERANCE ARGS...: on the CPU and on a GPU.
same() {
    local tolerance=$1
    shift
    rm -rf cpu cpu.log gpu gpu.log
    trained cpu "$@"
    trained gpu --gpus 1 "$@"
    alike "$tolerance" cpu gpu || { echo "$*"; false; }
}

# split TOLERANCE K ARGS...: in K parts on the CPU, on one GPU, and on K, which gives one GPU's bits.
split() {
    local tolerance=$1 k=$2 ends='hash|test_'
    shift 2
    rm -rf cpu cpu.log gpu gpu.log gpus gpus.log
    trained cpu --devices "$k" "$@"
    trained gpu --gpus "$k" "$@"
    PLUME_EMULATED_GPUS=$k trained gpus --gpus "$k" "$@"
    alike "$tolerance" cpu gpus || { echo "$k $*"; false; }
    cmp gpu.log/metrics.csv gpus.log/metrics.csv || { echo "$k $*"; false; }
    [ "$(grep -E "$ends" gpu.out | sort)" = "$(grep -E "$ends" gpus.out | sort)" ] ||
        { echo "$k $*"; false; }
}

# replayed N ARGS...: with graphs and without them the same bits, and N captures.
replayed() {
    local n=$1
    shift
    rm -rf on on.* off off.*
    PLUME_LOG=debug:tape trained on "$@" 2>on.err
    trained off --no-cuda-graphs "$@"
    cmp on off || { echo "$*"; false; }
    cmp <(grep hash on.out | sort) <(grep hash off.out | sort) || { echo "$*"; false; }
    grep -q hash on.out
    [ "$(grep -c 'captured ops' on.err)" -eq "$n" ] || { echo "$*"; cat on.err; false; }
}

# says STATUS WORDS ARGS...: pltrain ends so, with one line on stderr that has the words.
# shellcheck disable=SC2154 # bats' run sets them
says() {
    local status=$1 words=$2
    shift 2
    run "-$status" --separate-stderr pltrain "$@"
    [ "${#stderr_lines[@]}" -eq 1 ] || { echo "$stderr"; false; }
    [[ $stderr == "pltrain: "*"$words"* ]] || { echo "$stderr"; false; }
}

# shellcheck disable=SC2034 # used by tests
readonly SHORT=(--max-steps 6 --limit-val-batches 2 --limit-test-batches 2)
# shellcheck disable=SC2034
readonly GPT=(gpt --batch_size 2 --context 24 --layers 1 --heads 2 --width 32)
