#!/usr/bin/env bats
# SPDX-License-Identifier: MIT
# Training on each kind of data source, with files made here. SOURCES is the module.

bats_require_minimum_version 1.5.0
load ../lib/cluster

# write FILE EXPRESSION: writes the bytes of a Python expression; some(n) are pseudo-random bytes.
write() {
    python3 -c "import random
some = random.Random(7).randbytes
open('$1', 'wb').write($2)"
}

setup() {
    PATH=$BUILD:$PATH
    unset RANK WORLD_SIZE PLUME_SOCKET
    export PLUME_DATA_DIR=$BATS_TEST_TMPDIR
    cd "$BATS_TEST_TMPDIR" || exit
}

# trains SOURCE STEP [LR]: trains without the loader's thread, then with it and from a checkpoint
# after STEP steps, inside epoch 1: the numbers must be the same, and the loss must fall. Then with
# 3 ranks.
trains() {
    local args=(--hparam source="$1" --hparam lr="${3:-0.05}" --epochs 6 "$SOURCES") first last
    pltrain --num-workers 0 --val-check-interval 0.5 "${args[@]}" >whole
    pltrain --num-workers 1 --val-check-interval 0.5 --max-steps $(($2 + 1)) --checkpoint-dir c \
        --save-top-k -1 "${args[@]}" >/dev/null
    pltrain --num-workers 1 --val-check-interval 0.5 --resume c/epoch=1-step="$2".ckpt \
        "${args[@]}" >resumed
    diff <(grep hash whole) <(grep hash resumed)
    first=$(sed -n 's/^epoch 1.* loss \([0-9.]*\).*/\1/p' whole)
    last=$(sed -n 's/^epoch 6.* loss \([0-9.]*\).*/\1/p' whole)
    awk -v a="$first" -v b="$last" 'BEGIN { exit !(b < a) }' || { cat whole; false; }
    pltrain --processes 3 "${args[@]}" >three
    [ "$(sed -n 's/^rank .*hash //p' three | sort -u | wc -l)" -eq 1 ]
}

@test "IDX" {
    write images-idx3-ubyte "bytes([0, 0, 8, 3, 0, 0, 0, 40, 0, 0, 0, 3, 0, 0, 0, 2]) + some(240)"
    write labels-idx1-ubyte "bytes([0, 0, 8, 1, 0, 0, 0, 40]) + bytes(c % 10 for c in some(40))"
    trains 0 7
    truncate -s -1 labels-idx1-ubyte
    run -1 --separate-stderr pltrain "$SOURCES"
    [[ $stderr == *"hook data: while reading '$PWD/labels-idx1-ubyte': the IDX file has 39 bytes"* ]]
}

@test "CIFAR-10" {
    write batch_1.bin "b''.join(bytes([label]) + some(3072) for label in range(8))"
    cp batch_1.bin batch_2.bin
    trains 1 3 0.0003
}

@test "tokens" {
    write tokens.bin "b''.join(bytes([i % 10, 0]) for i in range(1200))"
    trains 2 21
}

@test "texts" {
    mkdir texts
    for i in {1..60}; do echo "the quick brown fox jumps over the lazy dog"; done >texts/a
    cp texts/a texts/b.md
    ln -s a texts/link
    trains 3 93
}

@test "CSV" {
    { echo x,y,label,note
      for i in {0..39}; do echo "$((i % 7)).5, $((i % 3)), \"$((i % 3))\", \"a, note\""; done; } >table.csv
    trains 4 7
    sed -i '17s/.*/1,2/' table.csv
    run -1 --separate-stderr pltrain "$SOURCES" --source 4
    [[ $stderr == *"while reading '$PWD/table.csv': line 17 has 2 columns, not 4" ]]
}

@test "made-up samples" {
    trains 5 7
}

@test "the module's own samples" {
    trains 6 7
    for workers in 0 1; do
        run -1 --separate-stderr pltrain --num-workers $workers "$SOURCES" --source 6 --bad 13
        [[ $stderr == *"the module's data source failed at sample 13"* ]]
    done
}

@test "the real texts of this machine" {
    [ -d /usr/share/common-licenses ] || skip "no /usr/share/common-licenses"
    ln -s /usr/share/common-licenses texts
    run -0 pltrain --max-steps 50 "$SOURCES" --source 3
}

@test "a file that is made shorter while it is in use is named, and not the module" {
    write tokens.bin "b''.join(bytes([i % 10, 0]) for i in range(100000))"
    pltrain --epochs 100000 "$SOURCES" --source 2 >out 2>err &
    wait_for 60 grep -q 'epoch 1/' out
    truncate -s 4096 tokens.bin
    rc=0
    wait $! || rc=$?
    [ "$rc" -eq 135 ] # SIGBUS
    [ "$(<err)" = "pltrain: cannot read '$PWD/tokens.bin': its file system failed, or the file was made shorter (SIGBUS)" ] || { cat err; false; }
}

# What a process sends has its own number where a fault has an address, which may look like one in a file.
@test "a SIGBUS that somebody sends is not taken for a file that cannot be read" {
    write tokens.bin "b''.join(bytes([i % 10, 0]) for i in range(100000))"
    pltrain --epochs 100000 "$SOURCES" --source 2 >out 2>err &
    wait_for 60 grep -q 'epoch 1/' out
    python3 - $! <<'EOF'
import ctypes, os, struct, sys
with open(f"/proc/{sys.argv[1]}/maps") as maps:
    address = next(int(line.split("-")[0], 16) for line in maps if line.rstrip().endswith("tokens.bin"))
info = ctypes.create_string_buffer(struct.pack("iiiiQ", 7, 0, -1, 0, address), 128)  # by sigqueue(3)
number = {"x86_64": 129, "aarch64": 138}[os.uname().machine]  # rt_sigqueueinfo(2)
sys.exit(ctypes.CDLL(None).syscall(number, int(sys.argv[1]), 7, info))
EOF
    rc=0
    wait $! || rc=$?
    [ "$rc" -eq 135 ]
    [[ $(<err) == "pltrain: crashed with module '$SOURCES'"*"(SIGBUS)" ]] || { cat err; false; }
}
