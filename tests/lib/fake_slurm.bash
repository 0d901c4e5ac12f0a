# SPDX-License-Identifier: MIT
# shellcheck shell=bash
# Stand-ins for Slurm's commands, for golden command lines: source it in an empty folder.
#
# sbatch submits nothing: it appends its arguments to the file `sbatch-calls` and prints the job
# numbers 1000, 1001, ... in order. The variable CANNOT_START is the answer to --test-only. The other
# commands append their arguments to NAME-calls and print the file NAME-says.

set -o pipefail
mkdir fakes
cat >fakes/sbatch <<'TXT'
#!/bin/bash
if [[ " $* " == *' --test-only '* ]]; then
    [[ -z ${CANNOT_START:-} ]] && exit 0
    echo "allocation failure: $CANNOT_START" >&2
    exit 1
fi
echo "$*" >>sbatch-calls
echo $((999 + $(wc -l <sbatch-calls)))
TXT
for name in squeue scancel scontrol sinfo; do
    printf '#!/bin/bash\necho "$*" >>%s-calls\ncat %s-says 2>/dev/null || true\n' "$name" "$name" \
        >"fakes/$name"
done
chmod +x fakes/*
PATH=$PWD/fakes:$PATH
: >slurm.conf
export SLURM_CONF=$PWD/slurm.conf

# ids: replaces the ids of sweeps, which differ per run.
ids() {
    sed -E 's/\b(train|true|sh)-[a-z2-7]{6}\b/\1-ID/g'
}

# ended STATE...: the trials 0, 1, ... of $RUN, which array $JOB claimed, have these results.
ended() {
    local trial=0 folder state
    for state; do
        printf -v folder '%s/trial-%04d' "$RUN" "$trial"
        mkdir -p "$folder/attempt-0"
        printf '{"schema":"plume-result/1","trial":%d,"state":"%s","attempt":0,"exit_code":1}\n' \
            "$trial" "$state" >"$folder/result.json"
        printf '{"array":"%d","task":%d,"job":"1","restart":0,"host":"n1","time":1}\n' \
            "$JOB" "$trial" >"$folder/attempt-0/claim"
        trial=$((trial + 1))
    done
}
