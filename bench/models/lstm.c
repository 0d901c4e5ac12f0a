/* SPDX-License-Identifier: MIT */
/* The bundled example, with the sizes of engine_models.py. */
#define TIMED_INPUT PLUME_I32
#include "bench/models/timed.h"

const struct plume_module *example_entry(void);
#define plume_module_entry example_entry
#include "examples/lstm/lstm.c"
#undef plume_module_entry

const struct plume_module *plume_module_entry(void)
{
    return timed_entry(example_entry());
}
