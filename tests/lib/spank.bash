# SPDX-License-Identifier: MIT
# shellcheck shell=bash
# Helpers for tests of the SPANK plugin; after `load ../lib/cluster`.

# use_plugin [ARGUMENT...]: loads the plugin of this build with these plugstack.conf arguments.
use_plugin() {
    printf 'optional %s/build/spank_plume.so %s\n' "$PLUME_SRC" "$*" >"$CLUSTER_DIR/plugstack.conf"
}

# use_fake: with a daemon that needs no hub; see fake-plrund.py. $PLUME_FAKE tells how it behaves.
use_fake() {
    use_plugin "plrund=$PLUME_SRC/tests/lib/fake-plrund.py"
    export PLUME_FAKE_LOG=$WORK/fake
    unset PLUME_FAKE
}

no_slurmstepd() {
    local pid
    for pid in $(pgrep -f '^slurmstepd: \['); do
        ! grep -qsF "SLURM_CONF=$SLURM_CONF" "/proc/$pid/environ" || return 1
    done
}

all_nodes_idle() {
    [[ $(timeout 20 sinfo -h -p main -o %t | sort -u) == idle ]]
}

# all_well: nodes undrained, nothing left.
all_well() {
    wait_for 20 all_nodes_idle
    wait_for 10 no_slurmstepd
    wait_for 10 no_left_overs
}
