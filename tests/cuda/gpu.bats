#!/usr/bin/env bats
# SPDX-License-Identifier: MIT
# pltrain on an emulated GPU: see gpu.bash.

bats_require_minimum_version 1.5.0
load gpu

@test "the examples train on a GPU as on the CPU" {
    same 1e-5 "${SHORT[@]}" --clip 0.1 mlp
    same 1e-5 "${SHORT[@]}" contrastive
    same 1e-5 "${SHORT[@]}" cnn --batch_size 8 --batchnorm 1 --dropout 0.2
    same 1e-5 "${SHORT[@]}" "${GPT[@]}"
    # The test's results, too.
    [ "$(grep test_ cpu.out | cut -c1-16)" = "$(grep test_ gpu.out | cut -c1-16)" ]
}

# step_mib ARGS...: the plan's memory of a step.
step_mib() {
    pltrain --gpus 1 --summary --epochs 0 --limit-test-batches 1 "$@" --batch_size 8 | sed -n 's/^MiB of this rank: .* step \([0-9.]*\) .*/\1/p'
}

@test "16 bits halve what a layer keeps on a GPU" {
    for how in "O1 0.63" "O3 0.56"; do
        read -r level most <<<"$how"
        # tests/engine/examples.bats has the same of the CPU, and why it is not one half; with this
        # batch the 16-bit copies of weights count more.
        awk -v a="$(step_mib gpt --layers 1)" -v b="$(step_mib gpt --layers 3)" -v most="$most" \
            -v c="$(step_mib --precision bf16 --amp-level "$level" gpt --layers 1)" \
            -v d="$(step_mib --precision bf16 --amp-level "$level" gpt --layers 3)" '
            BEGIN { exit !(b - a > 0.5 && (d - c) / (b - a) < most && (d - c) / (b - a) > 0.49) }'
    done
}

# peak ARGS...: the most memory that a training step has had.
peak() {
    PLUME_PROFILE=1 pltrain --gpus 1 --max-steps 1 --limit-val-batches 0 --limit-test-batches 0 "$@" 2>&1 >/dev/null |
        sed -n 's/^peak_bytes \([0-9]*\).*/\1/p'
}

@test "the peak of a step in 16 bits on a GPU, beside that of f32" {
    # The limits are what it takes, by which it must not grow; tests/engine/examples.bats has those of the CPU.
    # With these batches, which are small, weights and their 16-bit copies count more.
    while read -r o1 o3 model; do
        # shellcheck disable=SC2086 # words
        f32=$(peak $model)
        for how in "O1 $o1" "O3 $o3"; do
            read -r level most <<<"$how"
            # shellcheck disable=SC2086
            low=$(peak --precision bf16 --amp-level "$level" $model)
            awk -v a="$f32" -v b="$low" -v most="$most" 'BEGIN { exit !(a > 1e6 && b > 0.4 * a && b < most * a) }' ||
                { echo "$model, $level: $low bytes of $f32"; false; }
        done
    done <<'LIMITS'
0.67 0.62 gpt --batch_size 16
0.78 0.84 cnn --batch_size 64
0.70 0.74 cnn --batch_size 64 --batchnorm 1
0.86 0.95 resnet --width 8 --batch_size 32
LIMITS
}

@test "the plan has what rounding to 16 bits takes at O3" {
    # What is left out are statistics of gradients and the step's number, of less than 1 KiB.
    for how in "--precision 32" "--precision bf16" "--precision bf16 --amp-level O2" \
        "--precision bf16 --amp-level O3" "--precision 16 --amp-level O3"; do
        # shellcheck disable=SC2086 # words
        PLUME_PROFILE=1 pltrain --gpus 1 --max-steps 1 --limit-val-batches 0 --limit-test-batches 0 $how \
            cnn --batch_size 16 2>err >/dev/null
        read -r peak planned < <(sed -n 's/^peak_bytes \([0-9]*\), planned \([0-9]*\)$/\1 \2/p' err)
        ((planned > 500000 && peak < planned + 1024 && planned < peak + 1024)) ||
            { echo "$how: $peak bytes, planned $planned"; false; }
    done
}

@test "in all precisions" {
    for how in "--precision 64" "--precision bf16" "--precision bf16 --amp-level O3" \
        "--precision 16" "--precision 16 --amp-level O2"; do
        # shellcheck disable=SC2086
        same 3e-3 "${SHORT[@]}" $how "${GPT[@]}"
    done
    for how in "--precision bf16" "--precision 16" "--precision bf16 --amp-level O3"; do
        # shellcheck disable=SC2086
        same 3e-3 "${SHORT[@]}" $how mlp
        # The CPU rounds the gradients of a layer's weights to bf16, the GPU does not.
        # shellcheck disable=SC2086
        same 6e-3 "${SHORT[@]}" $how cnn --batch_size 8 --batchnorm 1 --dropout 0.2
    done
}

@test "what is in 16 bits runs by the kernels of its type on a GPU" {
    # in_16_bits ARGS...: ops of each plan, and how many of them.
    in_16_bits() {
        PLUME_LOG=debug:tape pltrain "${SHORT[@]}" "$@" 2>&1 |
            sed -n 's/.* \([0-9]*\) ops, \([0-9]*\) of them in 16 bits.*/\1 \2/p' | sort -u
    }
    in_16_bits --precision bf16 "${GPT[@]}" >cpu
    in_16_bits --gpus 1 "${GPT[@]}" >f32
    in_16_bits --gpus 1 --precision bf16 "${GPT[@]}" >autocast
    in_16_bits --gpus 1 --precision 16 --amp-level O3 "${GPT[@]}" >pure
    [ "$(cut -d ' ' -f 2 cpu f32 | sort -u)" = 0 ]
    # The five products, attention and the loss; in evaluation also the counts.
    [ "$(cut -d ' ' -f 2 autocast | tr '\n' ' ')" = "7 8 " ]
    # All that are there without casts.
    cmp <(cut -d ' ' -f 2 pure) <(cut -d ' ' -f 1 f32)
}

@test "a loss that is no number ends a run before it is made use of" {
    for how in "" "--processes 2" "--strategy dp --devices 2"; do
        # shellcheck disable=SC2086
        run -1 pltrain --accelerator gpu $how --checkpoint-dir saved --save-last \
            "$BUILD/tests/engine/broken_nan.so"
        [[ $output =~ "the loss is not a number at step 1 of epoch 1" ]]
        [ -z "$(ls saved 2>/dev/null)" ]
    done
}

@test "how a device calculates is told it" {
    named() { PLUME_LOG=debug pltrain "${SHORT[@]}" "$@" mlp 2>&1 | grep -o 'device emulated:0[^,;]*' | sort -u; }
    [ "$(named --gpus 1)" = "device emulated:0" ]
    [ "$(named --gpus 1 --tf32)" = "device emulated:0 (tf32)" ]
    [ "$(named --gpus 1 --deterministic)" = "device emulated:0 (deterministic)" ]
    [ "$(named --strategy dp --gpus 2 --tf32)" = "device emulated:0 (tf32)" ]
    says 2 "option '--tf32' needs '--accelerator gpu'" --tf32 mlp
}

@test "as several ranks that share one GPU, and as one process with parts" {
    for how in "--processes 2" "--processes 2 --strategy horovod" "--strategy dp --devices 2" \
        "--num-nodes 2 --strategy ddp2 --devices 2"; do
        rm -rf cpu cpu.log gpu gpu.log
        # shellcheck disable=SC2086
        trained cpu "${SHORT[@]}" $how contrastive
        # shellcheck disable=SC2086
        trained gpu "${SHORT[@]}" $how --accelerator gpu contrastive
        alike 1e-5 cpu gpu || { echo "$how"; false; }
    done
}

@test "a rank takes the GPU of its number, or that of the list" {
    export PLUME_EMULATED_GPUS=3 PLUME_LOG=debug
    taken() { pltrain "${SHORT[@]}" "$@" mlp 2>&1 | grep -o 'device emulated:[0-9]' | sort | cut -c17- | tr '\n' ' '; }
    [ "$(taken --gpus 3)" = "0 1 2 " ]
    [ "$(taken --gpus 2,1)" = "1 2 " ]
    [ "$(taken --gpus '0, 2')" = "0 2 " ]
    [ "$(taken --gpus 2,)" = "2 " ]
    [ "$(taken --accelerator gpu)" = "0 " ]
    # Those of a process' parts.
    [ "$(taken --strategy dp --gpus 3)" = "0 1 2 " ]
    [ "$(taken --strategy dp --accelerator gpu --devices 2)" = "0 1 " ]
    [ "$(taken --strategy dp --gpus 2,0)" = "0 2 " ]
    [ "$(taken --strategy dp --gpus 2,)" = "2 " ]
    [ "$(taken --strategy ddp2 --num-nodes 2 --gpus 2)" = "0 0 1 1 " ]
    # Slurm gave each rank one of its own.
    PLUME_EMULATED_GPUS=1
    [ "$(SLURM_JOB_ID=1 taken --gpus 2)" = "0 0 " ]
    # Parts share the only one, unless others are named.
    [ "$(taken --strategy dp --gpus 2)" = "0 0 " ]
    # Ranks share one unless so many were asked for.
    [ "$(taken --accelerator gpu --processes 2)" = "0 0 " ]
}

@test "what was begun on a GPU goes on there bit for bit, and on the CPU" {
    local -a run=("${GPT[@]}" --limit-val-batches 1 --limit-test-batches 1)
    pltrain --gpus 1 --max-steps 6 "${run[@]}" | grep hash >whole
    pltrain --gpus 1 --max-steps 3 --checkpoint-dir a --save-last "${run[@]}" >/dev/null
    pltrain --gpus 1 --max-steps 6 --resume a/last.ckpt "${run[@]}" | grep hash >parts
    cmp whole parts
    trained whole --gpus 1 --log-every 1 --max-steps 6 "${run[@]}"
    trained rest --log-every 1 --max-steps 6 --resume a/last.ckpt "${run[@]}"
    tail -n 3 whole >end
    alike 1e-5 end rest
    # The same with parts on two.
    export PLUME_EMULATED_GPUS=2
    local -a dp=(--strategy dp --gpus 2)
    pltrain "${dp[@]}" --max-steps 6 "${run[@]}" | grep hash >whole
    pltrain "${dp[@]}" --max-steps 3 --checkpoint-dir b --save-last "${run[@]}" >/dev/null
    pltrain "${dp[@]}" --max-steps 6 --resume b/last.ckpt "${run[@]}" | grep hash >parts
    cmp whole parts
}

@test "no GPU, too few, too little memory: one line says so" {
    PLUME_EMULATED_GPUS=0 says 1 "cannot use GPUs: none is emulated" --gpus 1 mlp
    PLUME_EMULATED_GPUS=2 says 1 "GPU 5 is asked for (by the rank with local rank 0), but 2 are visible" \
        --gpus 5, mlp
    says 1 "GPU 3 is asked for (by the rank with local rank 0), but 1 are visible" --gpus 3, mlp
    run -1 pltrain --gpus 2 mlp
    [[ $output == *"GPU 1 is asked for (by the rank with local rank 1), but 1 are visible"* ]]
    says 2 "x" --gpus x mlp
    PLUME_EMULATED_GPUS=2 says 1 "GPU 2 is asked for (by part 2 of the batches), but 2 are visible" \
        --strategy dp --gpus 3 mlp
    says 1 "GPU 1 is asked for (by part 1 of the batches), but 1 are visible" --strategy dp --gpus 0,1 mlp
    PLUME_EMULATED_GPUS=2 PLUME_EMULATED_MEMORY=1000000,20000 \
        says 1 "out of memory on emulated:1" --strategy dp --gpus 2 mlp
    # Also then nothing is left on any of them (device.c).
    PLUME_EMULATED_GPUS=2 says 1 "the loss is" --strategy dp --gpus 2 "$PLUME_PLUGIN_DIR/scattered.so" --lr 1e6
    PLUME_EMULATED_MEMORY=20000 says 1 "out of memory on emulated:0" --gpus 1 mlp
    says 2 "device 1 is given twice" --gpus 1,1 mlp
    cp "$BUILD/pltrain" .
    PATH=$PWD:$PATH
    PLUME_PLUGIN_DIR=/nowhere PLUME_MODULE_PATH=$BUILD/modules \
        says 1 "cannot use GPUs: plume-cuda.so is not installed" --gpus 1 mlp
}
