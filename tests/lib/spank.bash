# SPDX-License-Identifier: MIT
# shellcheck shell=bash
# Helpers for tests of the SPANK plugin; after `load ../lib/cluster`.

# use_plugin [ARGUMENT...]: loads the plugin of this build with these plugstack.conf arguments.
use_plugin() {
    printf 'optional %s/build/spank_plume.so %s\n' "$PLUME_SRC" "$*" >"$CLUSTER_DIR/plugstack.conf"
}

# use_fake: with a daemon that needs no hub; see fake-plrund.py. $PLUME_FAKE tells how it behaves.
use_fake() {
    use_plugin "plrund=$PLUME_SRC/tests/fakes/fake-plrund.py"
    export PLUME_FAKE_LOG=$WORK/fake
    unset PLUME_FAKE
}
