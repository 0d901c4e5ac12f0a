#!/usr/bin/env bats
# SPDX-License-Identifier: MIT
# pltrain: its output, its exit codes, and its messages about wrong modules.
# BUILD is the build folder, BROKEN the folder of the broken modules.

bats_require_minimum_version 1.5.0

setup() {
    PATH=$BUILD:$PATH
    unset RANK WORLD_SIZE PLUME_SOCKET
    export PLUME_HOME=$BATS_TEST_TMPDIR/home
    cd "$BATS_TEST_TMPDIR"
}

# says STATUS WORDS ARGS...: pltrain exits with STATUS and one line on stderr that has the words.
says() {
    local status=$1 words=$2
    shift 2
    run "-$status" --separate-stderr pltrain "$@"
    [ "${#stderr_lines[@]}" -eq 1 ] || { echo "$stderr"; false; }
    [[ $stderr == "pltrain: "*"$words"* ]] || { echo "$stderr"; false; }
}

@test "mlp reads digits" {
    run -0 --separate-stderr pltrain --processes 12 mlp
    [ -z "$stderr" ]
    acc=$(sed -n 's/^test_acc //p' <<<"$output")
    awk -v acc="$acc" 'BEGIN { exit !(acc > 0.93) }' || { echo "test_acc $acc"; false; }
    [ "$(grep -c '^rank .* of 12: param hash [0-9a-f]\{16\}$' <<<"$output")" -eq 12 ]
    [ "$(sed -n 's/^rank .*param hash //p' <<<"$output" | sort -u | wc -l)" -eq 1 ]
    [ "$(grep -c '^epoch ' <<<"$output")" -eq 12 ]
}

@test "a trace has each collective" {
    local trace=$BATS_TEST_TMPDIR/trace
    PLUME_TRACE=$trace pltrain --processes 2 --max-steps 3 mlp
    [ "$(cat "$trace".* | grep -c '"event":"fork","name":"rank"')" -eq 2 ]
    [ "$(grep -l '"event":"collective","name":"allreduce","peer":"shm"' "$trace".* | wc -l)" -eq 2 ]
    # Ranks call the same collectives in the same order.
    grep -l collective "$trace".* | while read -r file; do
        grep -o '"event":"collective".*' "$file" | cksum
    done >"$trace-sums"
    [ "$(sort -u "$trace-sums" | wc -l)" -eq 1 ]
}

@test "a run can be repeated bit for bit, and the seed matters" {
    first=$(pltrain --epochs 2 --seed 3 mlp | grep hash)
    [ "$first" = "$(pltrain --epochs 2 --seed 3 mlp | grep hash)" ]
    [ "$first" != "$(pltrain --epochs 2 --seed 4 mlp | grep hash)" ]
    first=$(pltrain --processes 5 --processes-per-node 2 --epochs 2 mlp | grep hash | sort)
    [ "$first" = "$(pltrain --processes 5 --processes-per-node 2 --epochs 2 mlp | grep hash | sort)" ]
}

# bits ARGS...: prints the hash of the parameters after a few steps of cnn; all ranks must agree.
bits() {
    pltrain "$@" --max-steps 8 --limit-val-batches 1 cnn --dropout 0.2 | grep -o 'hash .*' | sort -u
}

@test "neither threads nor batches made ahead change a bit" {
    for how in "" "--precision bf16" "--processes 3 --processes-per-node 2" "--strategy dp --devices 2" \
        "--strategy ddp2 --num-nodes 2 --devices 2" "--strategy horovod --processes 3"; do
        # shellcheck disable=SC2086
        first=$(OMP_NUM_THREADS=1 bits $how)
        [ "$(wc -l <<<"$first")" -eq 1 ]
        for threads in 1 2 3; do
            for workers in 0 1; do
                # shellcheck disable=SC2086
                [ "$(OMP_NUM_THREADS=$threads bits $how --num-workers $workers)" = "$first" ] ||
                    { echo "$how: $threads threads, $workers workers"; false; }
            done
        done
    done
}

@test "deterministic: nor does where the ranks are, and how they meet" {
    first=$(bits --processes 5 --comm shm)
    [ "$(bits --processes 5 --comm tcp)" != "$first" ] # there is something to it
    for how in "--comm shm" "--comm tcp" "--processes-per-node 2" "--processes-per-node 4" \
        "--processes-per-node 1"; do
        # shellcheck disable=SC2086
        [ "$(bits --deterministic --processes 5 $how)" = "$first" ] || { echo "$how"; false; }
    done
    [ "$(bits --deterministic --processes 5 --strategy horovod --comm tcp)" = \
        "$(bits --deterministic --processes 5 --strategy horovod)" ]
    [ "$(bits --deterministic)" = "$(bits)" ]
    says 2 "disagree: choose '--max-steps'" --deterministic --max-time 1:00 mlp
}

@test "options" {
    run -0 --separate-stderr pltrain --max-steps 5 --hparam hidden=3 --hparam batch_size=100 mlp
    [[ ${lines[0]} =~ ^"model: 235 parameters (needs 0.0 MB of "[0-9.]+" "[MG]"B per rank)"$ ]]
    [[ ${lines[1]} == "epoch 1/12 step 5 "* ]]
    run -0 --separate-stderr pltrain --epochs 0 mlp
    [[ ${lines[0]} == test_loss* ]]
    run -0 pltrain --list-hparams mlp
    grep -q '^hidden  *64 ' <<<"$output"
    grep -q '^lr ' <<<"$output"
}

@test "epochs that end before --max-steps are warned about, unless they are given" {
    run -0 --separate-stderr pltrain --max-steps 30 --limit-train-batches 2 mlp
    [[ $stderr == "pltrain: warning: the run ended after 24 of the 30 steps of --max-steps: epochs is 12, by default; give --epochs" ]] || { echo "$stderr"; false; }
    for more in "--max-steps 24" "--max-steps 30 --epochs 12" "--max-steps 30 --early-stop val_loss --min-delta 99" "--max-steps 30 --fast-dev-run"; do
        # shellcheck disable=SC2086 # two words and more
        run -0 --separate-stderr pltrain --limit-train-batches 2 $more mlp
        [ -z "$stderr" ] || { echo "$more: $stderr"; false; }
    done
}

@test "options have the names of PyTorch Lightning's examples, too" {
    log() { PLUME_LOG=debug pltrain "$@" --epochs 0 mlp 2>&1 | sed -n 's/.*rank \([0-9 of]*\), strategy \([^,]*\), precision \([^,]*\),.*/\1 \2 \3/p' | sort; }
    [ "$(log --num-processes 2 --batch-size 512)" = $'0 of 2 ddp 32\n1 of 2 ddp 32' ]
    [ "$(log --distributed_backend ddp2 --devices '[0, 1]' --nb_gpu_nodes 2)" = $'0 of 2 ddp2 32\n1 of 2 ddp2 32' ]
    [ "$(log --distributed-backend None --use-amp=True)" = "0 of 1 single 16" ]
    [ "$(log --use_amp --devices [1])" = "0 of 1 single 16" ]
    [ "$(log --use-amp=False)" = "0 of 1 single 32" ]
    run -0 --separate-stderr pltrain mlp --max_epochs 1 --lr=0.5 --batch_size 512 --max-steps 1
    run -0 --separate-stderr pltrain --lr 0.5 --batch-size 512 --list-hparams mlp --weight-decay 0.25
    grep -q '^lr  *0.5 ' <<<"$output" && grep -q '^batch_size  *512 ' <<<"$output" && grep -q '^weight_decay  *0.25 ' <<<"$output"
    says 2 "neither True nor False" --use-amp=O2 mlp
    says 2 "unknown hyper-parameter 'layers': this module has lr" mlp --layers 8
    # Under Slurm, which hands out GPUs, a list of them is warned about, once per node.
    run --separate-stderr env SLURM_JOB_ID=7 pltrain --gpus 0, mlp
    [[ $stderr == *"--gpus has no use under Slurm"*"write --gpus 1"* ]]
    # With a launcher, --num-processes is what it has started.
    RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=2 NODE_RANK=0 says 1 "PLUME_SOCKET is not set" --num-processes 2 mlp
    RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=2 NODE_RANK=0 says 2 "2 on this node (RANK is set" --num-processes 3 mlp
}

@test "usage errors are status 2" {
    says 2 "no module given"
    says 2 "more than one module" mlp mlp
    says 2 "unknown option '--frob'" --frob mlp
    says 2 "unknown option '--save-topk': did you mean --save-top-k?" mlp --save-topk 3
    says 2 "unknown option '--summry': did you mean --summary?" mlp --summry --max-steps 1
    says 2 "unknown hyper-parameter 'epoch': did you mean epochs?" mlp --epoch 1
    says 2 "'--hidden' is not an option, and a hyper-parameter needs a value" mlp --hidden
    says 2 "unknown option '--fp16': write --precision 16" mlp --fp16
    says 2 "unknown option '-v': see pltrain --help" mlp -v
    says 2 "unknown hyper-parameter 'layers': this module has lr, momentum" --hparam layers=3 mlp
    says 2 "'lr'" --hparam lr=fast mlp
    says 2 "must be in [1, 65536]" --hparam hidden=0 mlp
    says 2 "whole number" --hparam batch_size=1.5 mlp
    says 2 "has no value" --hparam lr mlp
    says 2 "--processes" --processes 0 mlp
    says 2 "needs '--processes'" --processes-per-node 2 mlp
    RANK=0 WORLD_SIZE=1 says 2 "RANK is set" --processes 2 mlp
    says 2 "is none of 32, 64, 16, bf16" --precision 8 mlp
    says 2 "is none of auto, shm, tcp, mpi, nccl" --comm ucx mlp
}

@test "strategies and devices start the ranks that they need" {
    strategy() { PLUME_LOG=debug pltrain --max-steps 1 "$@" mlp 2>&1 | sed -n 's/.*strategy \([^,]*\), prec.*/\1/p'; }
    [ "$(strategy)" = single ]
    [ "$(strategy --devices 2)" = $'ddp\nddp' ]
    [ "$(strategy --devices 0,1 --num-nodes 2 | wc -l)" -eq 4 ]
    [ "$(strategy --strategy horovod --processes 2)" = $'horovod\nhorovod' ]
    [ "$(strategy --num-nodes 2)" = $'ddp\nddp' ]
    run -1 --separate-stderr pltrain --strategy dp --num-nodes 2 mlp
    [[ $stderr == *"choose ddp2 (dp inside a node, ddp across)"* ]]
    says 2 "'--devices 2' and '--processes 3' disagree" --devices 2 --processes 3 mlp
    says 2 "device 1 is given twice" --devices 1,1 mlp
    says 2 "options '--gpus' and '--devices' name different devices: leave one out" --gpus 0,1 --devices 2 mlp
    # Of each option the last value counts, wherever the others stand.
    says 2 "options '--devices' and '--gpus' name different devices: leave one out" --devices 2 --gpus 2 --gpus 1 mlp
    [ "$(strategy --devices 2 --gpus 1 --gpus 2 --accelerator cpu)" = $'ddp\nddp' ]
    run -1 --separate-stderr pltrain --strategy horovod --processes 2 --sync-batchnorm mlp
    [[ $stderr == *"--sync-batchnorm cannot wait for: choose ddp"* ]]
    says 2 "is none of auto, single, dp, ddp, ddp2, horovod, sharded" --strategy magic mlp
    RANK=0 WORLD_SIZE=1 says 2 "2 devices are asked for, but 1 ranks are on this node, and each rank has one device" \
        --devices 2 mlp
    # One device per rank: --devices 1 is that of each.
    RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=2 NODE_RANK=0 \
        says 1 "PLUME_SOCKET is not set" --devices 1 mlp
    RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=2 NODE_RANK=0 \
        says 2 "1 devices are asked for, but 2 ranks are on this node" --devices 3, mlp
}

@test "--clip-by needs --clip" {
    says 2 "option '--clip-by' needs '--clip VALUE'" --clip-by value mlp
    says 2 "option '--clip-by' needs '--clip VALUE'" --clip-by norm mlp
    says 2 "'max' is none of norm, value" --clip 1 --clip-by max mlp
    says 2 "--clip: " --clip -1 --clip-by value mlp
    # 0 is off on purpose, as in a grid.
    run -0 --separate-stderr pltrain --max-steps 1 --clip 0 --clip-by value mlp
    [ -z "$stderr" ]
}

@test "the batch of a step is said, and may be given" {
    step() { pltrain --fast-dev-run "$@" mlp | sed -n 's/^batch: //p'; }
    [ -z "$(step)" ]
    [ "$(step --strategy dp --devices 2)" = \
        "8 samples per step (dp: 1 rank x 8 samples, split among 2 devices)" ]
    [ "$(step --processes 2)" = "16 samples per step (ddp: 2 ranks x 8 samples)" ]
    [ "$(step --processes 2 --global-batch 96 --accumulate 3)" = \
        "96 samples per step (ddp: 2 ranks x 16 samples x 3 batches)" ]
    [ "$(step --strategy ddp2 --num-nodes 2 --devices 2 --global-batch 64)" = \
        "64 samples per step (ddp2: 2 ranks x 32 samples, split among 2 devices)" ]
    [ "$(step --processes 2 --global-batch 64 --average-every 4 --hparam batch-size=32)" = \
        "64 samples per step (ddp: 2 ranks x 32 samples; averages every 4 steps)" ]
    says 1 "a multiple of 2 can, such as 10" --global-batch 9 --accumulate 2 mlp
    says 1 "but batch_size is 8" --global-batch 9 --hparam batch_size=8 mlp
    says 1 "must be in [1, 65536]" --global-batch 65537 mlp
    says 1 "needs the same '--accumulate' in all epochs" --global-batch 16 --accumulate 1,2:2 mlp
    says 2 "--global-batch" --global-batch 0 mlp
    # The same samples make the same steps, whoever computes them: a sum in another order.
    loss() { pltrain --global-batch 64 --max-steps 10 "$@" mlp | sed -n 's/^test_loss //p'; }
    one=$(loss)
    [ -n "$one" ] && [ "$(loss --processes 2)" = "$one" ] && [ "$(loss --accumulate 4)" = "$one" ]
}

@test "limits are numbers or shares" {
    run -0 --separate-stderr pltrain --limit-train-batches 0.5 --epochs 1 mlp
    [[ ${lines[1]} == "epoch 1/1 step 78 "* ]]
    [ "$(pltrain --limit-train-batches 0 --epochs 2 mlp | grep -c "^epoch [12]/2 step 0 val_loss")" -eq 2 ]
    run -0 --separate-stderr pltrain --limit-train-batches 5 --accumulate 2 --epochs 1 mlp
    [ "${lines[1]}" = "batch: 16 samples per step (single: 1 rank x 8 samples x 2 batches)" ]
    [[ ${lines[2]} == "epoch 1/1 step 3 "* ]]
    run -0 --separate-stderr pltrain --limit-train-batches 6 --accumulate 1,2:2,4:6 --epochs 5 mlp
    [ "$(sed -n 's/^epoch .* step \([0-9]*\) .*/\1/p' <<<"$output" | tr '\n' ' ')" = "6 9 12 13 14 " ]
    says 2 "'2' in '1,2' is not EPOCH:N, such as 5:4" --accumulate 1,2 mlp
    says 2 "N of '2:': '' is not a whole number" --accumulate 1,2: mlp
    says 2 "EPOCH of '0:3': 0 is too small" --accumulate 1,0:3 mlp
    says 2 "its epochs must ascend" --accumulate 1,3:2,3:4 mlp
    says 2 "--accumulate" --accumulate 2:4 mlp
    run -0 --separate-stderr pltrain --fast-dev-run=3 mlp
    [[ ${lines[1]} == "epoch 1/1 step 3 "* ]]
    run -0 --separate-stderr pltrain --val-check-interval 0.5 --epochs 1 mlp
    [ "$(grep -c val_acc <<<"$output")" -eq 2 ] # 78, 156, and not at the end: 157
    says 2 "neither a whole number of batches nor a share" --limit-train-batches 1.5 mlp
    run -0 --separate-stderr pltrain --limit-val-batches 0 --limit-test-batches 0 --epochs 1 mlp
    [[ $output != *val_* && $output != *test_* && $output != *nan* ]]
    says 1 "'val_loss' is watched, but option '--limit-val-batches 0'" --early-stop val_loss --limit-val-batches 0 mlp
    says 1 "a share of 0.001 of the 157 batches of the training is less than one" --limit-train-batches 0.001 mlp
    says 1 "of the validation is less than one" --limit-val-batches 0.001 mlp
    run -0 --separate-stderr pltrain --early-stop val_loss --early-stop-mode max --epochs 50 mlp
    [ "$(grep -c '^epoch' <<<"$output")" -lt 10 ]
}

@test "a validation in the midst of accumulation waits for the step, whose gradients no checkpoint has" {
    local -a args=(--epochs 2 --limit-train-batches 12 --limit-val-batches 1 --limit-test-batches 1 --val-check-interval 3 --accumulate 2)
    pltrain "${args[@]}" --checkpoint-dir d --save-top-k -1 mlp >whole
    [ "$(cd d && LC_ALL=C printf '%s ' *)" = "$(printf '%s ' epoch=0-step={2,3,5}.ckpt epoch=1-step={11,6,8,9}.ckpt epoch=2-step=12.ckpt)" ] || { ls d; false; }
    for step in 2 5; do
        pltrain "${args[@]}" --resume "d/epoch=0-step=$step.ckpt" mlp >rest
        [ "$(grep hash rest)" = "$(grep hash whole)" ] || { cat rest; false; }
    done
}

@test "a resumed run is the uninterrupted one" {
    pltrain --epochs 4 --val-check-interval 0.5 mlp >whole
    whole=$(grep hash whole)
    pltrain --epochs 2 --checkpoint-dir c --save-last --log-dir l mlp
    [ "$(pltrain --epochs 4 --checkpoint-dir c --resume last mlp | grep hash)" = "$whole" ]
    head -1 l/metrics.csv | grep -q '^step,loss,epoch,val_loss,val_acc,test_loss,test_acc$'
    ls l/events.out.tfevents.*
    # An epoch that the last step cut short goes on where it stopped.
    pltrain --max-steps 400 --epochs 4 --checkpoint-dir e --save-last mlp
    pltrain --epochs 4 --checkpoint-dir e --resume last mlp >rest
    [ "$(grep hash rest)" = "$whole" ]
    loss=$(grep -o '^epoch 3/4 step 471 loss [0-9.]*' whole) # of the whole epoch
    grep "^$loss " rest || { cat rest; false; }
    # From the middle of an epoch, on other ranks.
    pltrain --max-steps 400 --val-check-interval 78 --epochs 3 --checkpoint-dir d --save-top-k -1 mlp
    [ -e d/epoch=2-step=392.ckpt ]
    pltrain --epochs 4 --resume d/epoch=2-step=392.ckpt mlp >rest
    [ "$(grep hash rest)" = "$whole" ]
    grep "^$loss " rest || { cat rest; false; }
    pltrain --processes 2 --hparam batch_size=4 --epochs 4 --resume d/epoch=2-step=392.ckpt mlp
    run -0 --separate-stderr pltrain --epochs 4 --resume d/epoch=2-step=392.ckpt mlp --lr 0.01
    [ "$(grep hash <<<"$output")" = "$whole" ]
    [[ $stderr == "pltrain: warning: the run goes on with the learning rate 0.1 of 'd/epoch=2-step=392.ckpt', not with 0.01: "* ]]
    says 1 "cannot resume from 'd/none.ckpt'" --resume d/none.ckpt mlp
    says 2 "option '--save-last' needs '--checkpoint-dir DIR'" --save-last mlp
    says 2 "option '--resume last' needs '--checkpoint-dir DIR'" --resume last mlp
    says 2 "option '--save-top-k' needs '--checkpoint-dir DIR'" --save-top-k 3 mlp
    says 2 "option '--monitor-mode max' needs '--monitor NAME'" --checkpoint-dir c --monitor-mode max mlp
    for option in "--patience 5" "--min-delta 0.1" "--early-stop-mode max"; do
        # shellcheck disable=SC2086 # two words
        says 2 "option '${option% [0-9]*}' needs '--early-stop NAME'" $option mlp
    done
    says 1 "chosen by 'val_f1', which nothing logs" --checkpoint-dir c --monitor val_f1 mlp
}

@test "a watched value that no epoch of a run will have: it warns before the first one" {
    local -a args=(--epochs 2 --limit-train-batches 2 --limit-val-batches 1 --limit-test-batches 1)
    local why="but no epoch of this run has a validation: epochs is 2, and option '--check-val-every-n-epoch' 3"
    run -0 --separate-stderr pltrain "${args[@]}" --check-val-every-n-epoch 3 --early-stop val_loss mlp
    [ "$stderr" = "pltrain: warning: early stopping watches 'val_loss', $why" ] || { echo "$stderr"; false; }
    run -0 --separate-stderr pltrain "${args[@]}" --check-val-every-n-epoch 3 --checkpoint-dir d --monitor val_loss mlp
    [ "$stderr" = "pltrain: warning: checkpoints are chosen by 'val_loss', $why" ] || { echo "$stderr"; false; }
    for args2 in "--check-val-every-n-epoch 2 --early-stop val_loss" "--check-val-every-n-epoch 3 --early-stop train_loss"; do
        # shellcheck disable=SC2086 # words
        run -0 --separate-stderr pltrain "${args[@]}" $args2 mlp
        [ -z "$stderr" ] || { echo "$stderr"; false; }
    done
}

@test "early stopping has ended a run also for its checkpoint, unless it may wait longer now" {
    local -a args=(--epochs 9 --limit-train-batches 12 --limit-val-batches 1 --limit-test-batches 1)
    local -a stop=(--early-stop val_loss --early-stop-mode max --patience 2)
    for interval in 5 1.0; do
        args+=(--val-check-interval "$interval")
        pltrain "${args[@]}" "${stop[@]}" --checkpoint-dir d$interval --save-last mlp >whole
        run -0 --separate-stderr pltrain "${args[@]}" "${stop[@]}" --resume d$interval/last.ckpt mlp
        [ "$(grep hash <<<"$output")" = "$(grep hash whole)" ] || { echo "$output"; cat whole; false; }
        [[ $stderr == *"early stopping has ended this run before its checkpoint was saved"* ]]
        [[ $output != *$'\n'epoch* && $output != epoch* ]]
        run -0 --separate-stderr pltrain "${args[@]}" "${stop[@]}" --patience 4 --resume d$interval/last.ckpt mlp
        [ -z "$stderr" ]
        [ "$(grep -c '^epoch' <<<"$output")" -ge 2 ]
        # Without the option it goes on, too.
        run -0 --separate-stderr pltrain "${args[@]}" --resume d$interval/last.ckpt mlp
        grep -q '^epoch 9/9' <<<"$output"
    done
    # A value that is no number ends it at once, and waits for no patience.
    args=(--epochs 4 --limit-train-batches 1 --limit-val-batches 1 --hparam lr=1e6 --early-stop val_loss)
    args+=(--checkpoint-dir nan --save-last vae)
    run -0 pltrain "${args[@]}"
    [[ $output == *' val_loss '*(-)@(nan|inf)' '* ]]
    run -0 pltrain --resume nan/last.ckpt "${args[@]}"
    [[ $output == *"early stopping has ended this run"* && $output != *$'\n'epoch* ]]
}

@test "weights alone are for another start" {
    args=(--optimizer adamw --hparam lr=0.003)
    pltrain "${args[@]}" --epochs 2 --checkpoint-dir c --save-last --save-weights-only mlp
    pltrain "${args[@]}" --epochs 2 --checkpoint-dir d --save-last mlp
    [ $(($(stat -c %s d/last.ckpt) - $(stat -c %s c/last.ckpt))) -gt $((2 * 4 * 64 * 74)) ] # two slots
    says 1 "has weights only: give it to --weights" "${args[@]}" --checkpoint-dir c --resume last mlp
    says 2 "option '--save-weights-only' needs '--checkpoint-dir DIR'" --save-weights-only mlp
    says 1 "cannot take weights from 'c/none.ckpt'" --weights c/none.ckpt mlp
    # Without a further epoch the test result is that of the run; the start values differ.
    whole=$(pltrain "${args[@]}" --epochs 2 mlp | grep -E '^test|hash')
    [ "$(pltrain --epochs 0 --weights c/last.ckpt mlp | grep -E '^test|hash')" = "$whole" ]
    [ "$(pltrain --epochs 0 --weights d/last.ckpt mlp | grep -E '^test|hash')" = "$whole" ]
    # The start values are a checkpoint, too.
    whole=$(pltrain --epochs 0 --checkpoint-dir e --monitor val_acc --seed 3 mlp)
    [ "$(pltrain --epochs 0 --weights e/epoch=0-step=0.ckpt --weights-strict mlp)" = "$whole" ]
    run -0 --separate-stderr pltrain --epochs 0 --weights c/last.ckpt --weights-map '^b([12])$=c\1' mlp
    [[ $stderr == *"2 of 4 parameters and buffers are set; not found: b1, b2; not used: b1, b2" ]]
    says 1 "not used: b2 (--weights-strict)" --weights c/last.ckpt --weights-strict --weights-map b2=c mlp
    says 2 "option '--weights-strict' needs '--weights FILE'" --weights-strict mlp
    says 1 "'$BATS_TEST_TMPDIR' is a directory" --weights "$BATS_TEST_TMPDIR" mlp
    says 2 "not a regular expression" --weights c/last.ckpt --weights-map '(=' mlp
    run -0 pltrain "${args[@]}" --epochs 1 --processes 2 --weights c/last.ckpt mlp
    [[ $output == *"epoch 1/1 step 79 "* ]]
    [ "$(grep -o 'hash .*' <<<"$output" | sort -u | wc -l)" -eq 1 ]
}

@test "batches made ahead are the same batches" {
    pltrain --num-workers 0 --epochs 2 mlp | grep hash >without
    pltrain --num-workers 1 --epochs 2 mlp | grep hash | cmp - without
    says 2 "must be" --num-workers 2 mlp
}

@test "so is one in 16 bits, loss scale and all" {
    args=(--precision 16 --optimizer adamw --hparam lr=0.003)
    whole=$(pltrain "${args[@]}" --epochs 3 mlp | grep hash)
    pltrain "${args[@]}" --epochs 1 --checkpoint-dir c --save-last mlp
    grep -aq '"plume.amp_scaling_state":"{.*growth_tracker[^,]*:157,' c/last.ckpt
    [ "$(pltrain "${args[@]}" --epochs 3 --checkpoint-dir c --resume last mlp | grep hash)" = "$whole" ]
}

@test "a signal becomes a checkpoint, from which the next run goes on" {
    mkfifo out
    pltrain --processes 2 --epochs 1000000 --checkpoint-dir c mlp >out 2>err &
    pid=$!
    exec 4<out
    while read -r line <&4 && [[ $line != "epoch 1/"* ]]; do :; done
    kill -TERM $pid
    wait $pid && status=0 || status=$?
    exec 4<&-
    [ $status -eq 130 ]
    step=$(sed -n "s|.*interrupted at step \([0-9]*\): saved 'c/hpc_ckpt_1.ckpt'.*|\1|p" err | head -1)
    [ -n "$step" ] || { cat err; false; }
    epochs=$((step / 79 + 2)) # of 79 steps
    rest=$(pltrain --processes 2 --epochs $epochs --checkpoint-dir c mlp)
    # A signal in the last step of an epoch leaves the epoch's end to the next run.
    [[ $rest =~ ^"resuming from 'c/hpc_ckpt_1.ckpt': epoch "($((step / 79 + 1))|$(((step + 78) / 79)))", step $step" ]]
    [ "$(grep -o 'hash .*' <<<"$rest" | sort -u)" = \
        "$(pltrain --processes 2 --epochs $epochs mlp | grep -o 'hash .*' | sort -u)" ]
}

@test "SIGUSR1 has the job requeued, and what scontrol says is told" {
    mkdir bin
    printf '#!/bin/sh\necho "$*" >asked\necho "slurm_requeue error: no such job" >&2\nexit 1\n' >bin/scontrol
    chmod +x bin/scontrol
    mkfifo out
    for ranks in 1 2; do # with 2 the starter passes the signal on
        PATH=$PWD/bin:$PATH SLURM_JOB_ID=77 SLURM_ARRAY_JOB_ID=70 SLURM_ARRAY_TASK_ID=3 \
            pltrain --processes $ranks --epochs 1000000 --checkpoint-dir c mlp >out 2>err &
        pid=$!
        exec 4<out
        while read -r line <&4 && [[ $line != "epoch 1/"* ]]; do :; done
        kill -USR1 $pid
        wait $pid && status=0 || status=$?
        exec 4<&-
        [ $status -eq 130 ] || { cat err; false; }
        [ "$(cat asked)" = "requeue 70_3" ]
        grep -q "'scontrol requeue 70_3' failed: slurm_requeue error: no such job$" err || { cat err; false; }
        grep -q "saved 'c/hpc_ckpt_1.ckpt'" err
        rm -r c asked
    done
}

@test "16 bits learn as well, under every strategy" {
    for how in "bf16 O1" "16 O1" "bf16 O2" "16 O2" "bf16 O3"; do
        read -r bits level <<<"$how"
        for strategy in single "dp --devices 2" "ddp --devices 2" "ddp2 --devices 2 --num-nodes 2" \
            "horovod --devices 2"; do
            # shellcheck disable=SC2086
            run -0 --separate-stderr pltrain --epochs 4 --precision "$bits" --amp-level "$level" \
                --hparam lr=0.02 --strategy $strategy mlp
            acc=$(sed -n 's/^test_acc //p' <<<"$output")
            awk -v acc="$acc" 'BEGIN { exit !(acc > 0.85) }' ||
                { echo "$how $strategy: test_acc $acc"; false; }
        done
    done
    a=$(pltrain --epochs 2 mlp | grep hash)
    [ "$a" = "$(pltrain --epochs 2 --precision bf16 --amp-level O0 mlp | grep hash)" ]
    [ "$a" != "$(pltrain --epochs 2 --precision bf16 mlp | grep hash)" ]
    [ "$a" != "$(pltrain --epochs 2 --precision 64 mlp | grep hash)" ]
}

@test "a module that is not there is status 3" {
    says 3 "no module 'unet' in " unet
    says 3 "no module at './mlp.so'" ./mlp.so
}

@test "a module that is wrong is told so" {
    says 3 "made for module interface 2, this pltrain has 1" "$BROKEN/broken_abi.so"
    says 3 "has no symbol plume_module_entry" "$BROKEN/broken_entry.so"
    says 3 "plume_module_entry() returned NULL" "$BROKEN/broken_table.so"
    says 3 "lacks the hook configure" "$BROKEN/broken_hooks.so"
    says 1 "hook configure: the weather is bad" "$BROKEN/broken_hook.so"
    says 1 "linear: shapes do not fit" "$BROKEN/broken_shape.so"
    says 1 "asks for hyper-parameter 'learning_rate'" "$BROKEN/broken_optimizer.so"
    says 1 "hook training_step gave no loss" "$BROKEN/broken_loss.so"
    says 1 "data field 0 has no array" "$BROKEN/broken_data.so"
    echo "not a shared object" >"$BATS_TEST_TMPDIR/text.so"
    says 3 "text.so' is not a shared object: compile the module as plume-module(7) shows" \
        "$BATS_TEST_TMPDIR/text.so"
}

@test "a module that crashes is named, and takes the others along" {
    export ASAN_OPTIONS=${ASAN_OPTIONS-}:handle_segv=0 # a sanitizer would exit instead
    run -139 --separate-stderr pltrain "$BROKEN/broken_crash.so"
    [[ $stderr == "pltrain: crashed with module '$BROKEN/broken_crash.so' in its hook training_step (SIGSEGV)"* ]]
    run -139 --separate-stderr pltrain --processes 3 "$BROKEN/broken_crash.so"
    grep -q "in its hook training_step (SIGSEGV)" <<<"$stderr"
    [ "$(grep -c 'lost rank 2: ' <<<"$stderr")" -ge 1 ] || { echo "$stderr"; false; }
}

# odd HOW STATUS WORDS ARGS...: the module does HOW; some line on stderr has the words.
odd() {
    local how=$1 status=$2 words=$3
    shift 3
    ODD=$how run "-$status" --separate-stderr timeout 60 pltrain --epochs 1 "$@" "$BROKEN/odd.so"
    grep -qF "$words" <<<"$stderr" || { echo "$how: $stderr"; false; }
}

@test "a module that is odd is told so" {
    export ASAN_OPTIONS=${ASAN_OPTIONS-}:handle_segv=0:handle_abort=0
    pltrain --epochs 1 "$BROKEN/odd.so"
    for workers in 0 1; do
        odd crash-in-fill 139 "in its hook fill (SIGSEGV)" --num-workers $workers
        odd abort-in-fill 134 "in its hook fill (SIGABRT)" --num-workers $workers
        odd exit-in-fill 1 "called exit in its hook fill" --num-workers $workers
    done
    odd exit 1 "module '$BROKEN/odd.so' called exit in its hook on_train_epoch_start"
    odd exit 1 "called exit in its hook on_train_epoch_start" --processes 2
    odd killed 137 "rank 1 was killed (signal 9), as the kernel does for want of memory" --processes 2
    odd returns-7 1 "hook on_train_epoch_start returned 7: hooks return 0 or a negative errno"
    odd fill-returns-7 1 "the module's data source returned 7 at sample 20"
    odd label 1 "label 3 of row 20 is not in [0, 2], the classes of cross_entropy" --overfit-batches 2
    odd validation-label 1 "val_loss: label -1 of row 20 is not in [0, 2], the classes of cross_entropy"
    odd long-name 1 "parameter names have at most 200 bytes, not 299"
}

@test "ranks meet where the module says" {
    PLACE=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
    export PLACE
    for i in 0 1 2; do # in this order: rank 0 listens last
        rank=$((2 - i))
        RANK=$rank WORLD_SIZE=3 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 NODE_RANK=$rank \
            pltrain --epochs 1 "$BROKEN/broken_place.so" >"$BATS_TEST_TMPDIR/$rank" &
    done
    wait
    [ "$(cat "$BATS_TEST_TMPDIR"/[012] | grep -o 'hash .*' | sort | uniq -c | awk '{ print $1 }')" = 3 ]
    [ -f "$PLUME_HOME/key" ] # by which they knew each other
    # With daemons they need no file.
    rm "$PLUME_HOME/key"
    run -0 pltrain --processes 3 --processes-per-node 1 --epochs 1 "$BROKEN/broken_place.so"
    [ "$(grep -c 'param hash' <<<"$output")" = 3 ]
    [ ! -e "$PLUME_HOME/key" ]
}

@test "strangers at the meeting place hold nobody up" {
    # 300 that say nothing, 20 that say nonsense, and one that claims rank 1 and stops, before rank 1 comes.
    timeout 100 python3 - "$BUILD/pltrain" "$BROKEN/broken_place.so" <<'PY'
import os, socket, struct, subprocess, sys
probe = socket.socket()
probe.bind(("127.0.0.1", 0))
port = probe.getsockname()[1]
probe.close()
env = dict(os.environ, WORLD_SIZE="2", LOCAL_RANK="0", LOCAL_WORLD_SIZE="1", PLACE=str(port))
def start(rank):
    return subprocess.Popen([sys.argv[1], "--epochs", "1", sys.argv[2]], stdout=subprocess.PIPE, text=True,
                            env={**env, "RANK": str(rank), "NODE_RANK": str(rank)})
first = start(0)
strangers = []
while len(strangers) < 321:
    s = socket.socket()
    try:
        s.connect(("127.0.0.1", port))
    except ConnectionRefusedError:
        assert first.poll() is None
        continue
    strangers.append(s)
for i, s in enumerate(strangers[300:320]):
    s.sendall(struct.pack("<4I", 0x504c4d31, i, i % 3, 1 << 31)[:i])
strangers[320].sendall(struct.pack("<4I", 0x504c4d31, 1, 2, 99999))
second = start(1)
for rank in (first, second):
    out = rank.communicate(timeout=30)[0]
    assert rank.returncode == 0 and "param hash" in out, out
PY
}

@test "whoever claims a rank at the meeting place proves it, and so does rank 0" {
    (umask 077 && head -c 32 /dev/urandom >key)
    timeout 100 python3 "$PLUME_SRC/tests/engine/store_peer.py" "$BUILD/pltrain" "$BROKEN/broken_place.so" "$PWD/key"
}

@test "a loss that is no number ends all ranks, and the reason is told once, with its rank" {
    says 1 "the loss is not a number at step 1 of epoch 1" "$BROKEN/broken_nan.so"
    for per_node in 1 2 3; do
        run -1 --separate-stderr pltrain --processes 3 --processes-per-node $per_node \
            "$BROKEN/broken_nan.so"
        [ "${#stderr_lines[@]}" -eq 2 ]
        grep -qx 'pltrain: the loss is not a number at step 1 .*' <<<"$stderr"
        [ "$(grep -c 'rank 2 gave up: the loss is not a number at step 1' <<<"$stderr")" -eq 1 ]
    done
}

# all_say WORDS ARGS...: 3 ranks fail, and say it in one line on stderr, which begins with WORDS.
all_say() {
    local words=$1
    shift
    run -1 --separate-stderr pltrain --processes 3 "$@"
    [ "$(grep -c "^pltrain: $words" <<<"$stderr")" -eq 1 ] || { echo "$stderr"; false; }
    [ "${#stderr_lines[@]}" -eq 1 ]
}

@test "ranks that are not alike end the run" {
    for comm in shm tcp; do
        all_say "rank 1 declares parameter 'bias' f32\[11\] where rank 0 declares .* f32\[10\]: " \
            --comm $comm "$BROKEN/broken_ranks.so"
        all_say "rank 1 ended with other parameters than rank 0, from 'w' on: hash " \
            --comm $comm --epochs 1 "$BROKEN/broken_apart.so"
        [ "$(grep -c '^rank .*param hash ' <<<"$output")" -eq 3 ]
    done
    pltrain "$BROKEN/broken_ranks.so"
    pltrain --epochs 1 "$BROKEN/broken_apart.so"
}

@test "a signal is seen in the step and in the validation in which it comes" {
    for ranks in 1 2; do
        odd signal-in-step 130 "interrupted at step 1001: saved 'a$ranks/hpc_ckpt_1.ckpt'" \
            --processes $ranks --epochs 100000 --checkpoint-dir a$ranks
        # One rank has not had the signal. The next run validates.
        odd signal-in-validation 130 "interrupted at step " --processes $ranks \
            --num-sanity-val-steps 0 --checkpoint-dir b$ranks
        [[ $output != *val_loss* ]]
        # It has no loss of the epoch, which therefore neither stops it early nor is a number.
        run -0 pltrain --processes $ranks --epochs 3 --early-stop train_loss --patience 9 --checkpoint-dir b$ranks \
            "$BROKEN/odd.so"
        [[ $output == *"resuming from 'b$ranks/hpc_ckpt_1.ckpt': epoch 1, "*val_loss*"epoch 3/3 "* ]]
        [[ $output != *nan* ]]
    done
}

@test "ranks that never meet end soon" {
    odd die-early 137 "rank 1 ended with signal 9 before all ranks had met" --processes 3
}

# named HOW: err names the hook, and if there are other ranks, the rank that they wait for.
named() {
    grep -q "$hook" err && { [ -z "$1" ] || grep -q "$missing" err; }
}

@test "a hook that hangs is named, and a second interrupt ends the run at once" {
    for how in "" "--processes 3" "--processes 3 --processes-per-node 1"; do
        : >err # the shell empties it only some time after & has returned
        # shellcheck disable=SC2086
        ODD=hang pltrain $how --collective-timeout 0.1 --checkpoint-dir c "$BROKEN/odd.so" >out 2>err &
        pid=$!
        last=$(($(sed -n 's/^--processes \([0-9]\).*/\1/p' <<<"$how") - 1)) # rank, from 1 rank
        [ -n "$how" ] || last=0
        hook="rank $last: hook on_train_epoch_start has not returned for"
        missing="has waited .* for rank .* in a collective"
        for _ in {1..300}; do named "$how" && break; sleep 0.1; done
        named "$how" || { cat out err; kill -KILL $pid; false; }
        for _ in {1..100}; do kill -INT $pid 2>/dev/null || break; sleep 0.1; done
        wait $pid && status=0 || status=$?
        [ $status -eq 130 ]
        grep -q "interrupted twice" err || { cat err; false; }
    done
}

@test "an interrupt ends all ranks and leaves nothing" {
    export PLUME_RUNTIME_DIR=$BATS_TEST_TMPDIR/run
    mkfifo "$BATS_TEST_TMPDIR/out"
    pltrain --processes 3 --epochs 1000000 mlp >"$BATS_TEST_TMPDIR/out" &
    pid=$!
    while read -r line && [[ $line != "epoch 1/"* ]]; do :; done <"$BATS_TEST_TMPDIR/out" # until it trains
    kill -TERM $pid
    wait $pid && status=0 || status=$?
    [ $status -eq 130 ]
    [ -z "$(ls -A "$PLUME_RUNTIME_DIR")" ]
}

@test "data that is not there is named" {
    mkdir "$BATS_TEST_TMPDIR/bin"
    cp "$BUILD/pltrain" "$BATS_TEST_TMPDIR/bin"
    run -1 --separate-stderr "$BATS_TEST_TMPDIR/bin/pltrain" "$BUILD/modules/mlp.so"
    [[ $stderr == *"digits/train-images.npy"* ]]
    PLUME_DATA_DIR=$BUILD/data "$BATS_TEST_TMPDIR/bin/pltrain" --epochs 0 "$BUILD/modules/mlp.so"
}

@test "ranks without a launcher are told what to do" {
    RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=2 NODE_RANK=0 \
        says 1 "PLUME_SOCKET is not set" mlp
    RANK=0 says 1 "WORLD_SIZE" mlp
    RANK=2 WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 NODE_RANK=0 says 1 "are not consistent" mlp
    RANK=x WORLD_SIZE=2 says 1 "RANK" mlp
}

@test "a run whose results stdout does not take has failed" {
    local -a run=(--epochs 40 --limit-train-batches 1 --limit-val-batches 1 --limit-test-batches 1)
    for how in "--version" "--list-hparams mlp" "${run[*]} mlp" "${run[*]} --processes 2 mlp"; do
        read -ra words <<<"$how"
        run -1 bash -c '"$@" 2>&1 >/dev/full' _ pltrain "${words[@]}"
        [ "$output" = "pltrain: cannot write to stdout: lines are missing" ] || { echo "$how: $output"; false; }
    done
    run -1 bash -c 'ulimit -f 1; "$@" 2>&1 >results' _ pltrain "${run[@]}" mlp
    [ "$output" = "pltrain: cannot write to stdout: lines are missing" ]
    # Nobody is there to read them.
    run -0 --separate-stderr bash -c '"$@" >&-' _ pltrain "${run[@]}" mlp
    [ -z "$stderr" ]
    run -0 --separate-stderr bash -o pipefail -c '"$@" | true' _ pltrain "${run[@]}" mlp
    [ -z "$stderr" ]
}

@test "an event file that cannot take the end of the run is told" {
    local -a run=(--max-steps 1 --limit-val-batches 1 --limit-test-batches 1)
    pltrain "${run[@]}" --log-dir whole mlp >/dev/null
    size=$(cat whole/events.* | wc -c)
    run -0 --separate-stderr prlimit --fsize=$((size - 1)) pltrain "${run[@]}" --log-dir cut mlp
    [[ $stderr == "pltrain: warning: the event files may lack the run's end: "*": File too large" ]]
}

@test "a checkpoint that becomes too large is one line, and the one before stays" {
    local -a run=(--limit-train-batches 1 --limit-val-batches 1 --limit-test-batches 1 --checkpoint-dir c --save-last --epochs 2)
    local -a mlp=(mlp --batch_size 8 --hidden 8000)
    pltrain "${run[@]}" --max-steps 1 "${mlp[@]}" >/dev/null
    find c -type f -exec sha256sum {} + | sort >before
    for how in "" "--strategy sharded --processes 2"; do
        read -ra words <<<"$how"
        # KiB: less than the file, and more than the memory that ranks share.
        (ulimit -f 4000 && run -1 --separate-stderr pltrain "${run[@]}" --resume c/last.ckpt "${words[@]}" "${mlp[@]}" &&
            [ "$(grep -c "^pltrain: cannot write checkpoint 'c/epoch=2-step=2.ckpt': File too large$" <<<"$stderr")" -eq 1 ])
        find c -type f -exec sha256sum {} + | sort | diff before -
    done
}

# A stand-in for the mounted groups: the top's limit counts for every group.
@test "a control group's limit of memory is a limit of the plan, and ends a run that cannot fit" {
    mkdir -p groups/memory
    export PLUME_CGROUP_ROOT=$PWD/groups
    local -a run=(--max-steps 1 --limit-val-batches 1 --limit-test-batches 1 mlp --hidden 8000) # 600,010 parameters
    limit() { echo "$1" | tee groups/memory.max >groups/memory/memory.limit_in_bytes; }
    limit 40000000
    run -0 --separate-stderr pltrain "${run[@]}"
    [[ $output =~ "model: 600010 parameters (needs "[0-9.]*" MB of 40.0 MB per rank)" ]]
    run -0 --separate-stderr pltrain --processes 2 "${run[@]}"
    [[ $output == *" of 20.0 MB per rank)"* ]]
    limit 8000000
    run -1 --separate-stderr pltrain --processes 2 "${run[@]}"
    [[ $stderr =~ "600010 parameters, their gradients and the optimizers' state do not fit in the memory of rank "[01]" (--strategy sharded --shard param shares them among ranks, --strategy pipeline the layers): they need more than 4.8 MB; the control group's limit leaves a rank 4.0 MB" ]]
    run -0 --separate-stderr pltrain --processes 2 --strategy sharded --shard param "${run[@]}"
    run -1 --separate-stderr pltrain --strategy pipeline --stages 2 mlp --hidden 60000
    [[ $stderr =~ "no cut of the step's ops into 2 stages fits the devices' memory" ]]
}

@test "a row of metrics.csv without its end is removed, and told" {
    local -a run=(--max-steps 2 --log-every 1 --limit-val-batches 1 --limit-test-batches 0 --log-dir l --seed 3 mlp)
    pltrain "${run[@]}"
    cp l/metrics.csv whole
    truncate -s -1 l/metrics.csv
    run -0 --separate-stderr pltrain "${run[@]}"
    [ "$stderr" = "pltrain: warning: 'l/metrics.csv' ended inside a row, which is removed: $(tail -1 whole)" ]
    head -n -1 whole | cmp -n "$(head -n -1 whole | wc -c)" - l/metrics.csv
}
