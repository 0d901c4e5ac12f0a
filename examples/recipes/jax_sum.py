#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""JAX over several processes: the coordinator's address is in JAX_COORDINATOR_ADDRESS."""
import os

import jax
import plume

jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.distributed.initialize(
    os.environ["JAX_COORDINATOR_ADDRESS"], num_processes=plume.world_size(), process_id=plume.rank(),
    local_device_ids=None)
value = jax.numpy.ones(jax.local_device_count()) * (plume.rank() + 1)
total = jax.pmap(lambda v: jax.lax.psum(v, "i"), axis_name="i")(value)
plume.report(0, total=float(total[0]))
print(f"process {jax.process_index()} of {jax.process_count()}: {jax.device_count()} devices, sum {float(total[0]):g}")
