/* SPDX-License-Identifier: MIT */
#include "runtime/engine/train/parts_private.h"

#define ALIGN(bytes) (((bytes) + PL_DEVICE_ALIGN - 1) / PL_DEVICE_ALIGN * PL_DEVICE_ALIGN)

static bool elsewhere(const struct pl_parts *parts, const struct pl_part *part)
{
    return part->tape.dev != parts->root.dev;
}

static size_t bytes_of(const plume_tensor *t)
{
    return t->count * pl_dtype_size(t->dtype);
}

/* A block that only grows. */
static int reserve(struct pl_device *dev,
                   struct pl_block *block,
                   size_t bytes,
                   const char *what,
                   struct pl_error *err)
{
    int r;

    if (bytes <= block->bytes)
        return 0;
    pl_device_free(dev, block->memory);
    *block = (struct pl_block){0};
    r = pl_device_alloc(dev, bytes, what, (void **)&block->memory, err);
    if (r == 0)
        block->bytes = bytes;
    return r;
}

/* ---- outputs ---- */

/* The stand-in's memory is that of a whole tensor, of which other outputs may be views as well:
 * their gradients add up there, as they would in the tensor's own. */
static size_t stand_in_for(struct pl_gathered *g, size_t output, plume_tensor *root)
{
    plume_tensor *leaf = &g->leaf[output];

    for (size_t i = 0; i < output; i++)
        if (g->from[i] == root)
            return i;
    g->from[output] = root;
    *leaf = *root;
    leaf->data = leaf->grad = NULL; /* until they have memory */
    leaf->tape = NULL;
    return output;
}

static bool part_stands_in(struct pl_part *part, unsigned index, struct plume_outputs *outputs)
{
    struct pl_gathered *g = &part->gathered;
    bool changed = g->n != outputs->n;

    g->n = outputs->n;
    for (size_t o = 0; o < outputs->n; o++) {
        plume_tensor *given = outputs->list[o].part[index];
        size_t leaf;

        changed |= g->given[o] != given;
        g->given[o] = given;
        g->from[o] = NULL;
        /* Parameters and buffers are the root's, too. */
        if (!given || pl_tensor_root(given)->number)
            continue;
        leaf = stand_in_for(g, o, pl_tensor_root(given));
        g->view[o] = *given;
        g->view[o].base = &g->leaf[leaf];
        g->view[o].tape = NULL;
        outputs->list[o].part[index] = given->base ? &g->view[o] : &g->leaf[leaf];
    }
    return changed;
}

bool pl_dp_make_leaves(struct pl_parts *parts, struct plume_outputs *outputs)
{
    bool changed = false;

    for (unsigned i = 0; i < parts->n; i++)
        if (elsewhere(parts, &parts->list[i]))
            changed |= part_stands_in(&parts->list[i], i, outputs);
    return changed;
}

plume_tensor *pl_dp_output(const struct pl_parts *parts,
                           const struct plume_outputs *outputs,
                           size_t output,
                           unsigned part)
{
    const struct pl_part *p = &parts->list[part];

    return elsewhere(parts, p) ? p->gathered.given[output] : outputs->list[output].part[part];
}

/* Those that want one have a gradient where the part's own has one, by the plan. */
static int place_stand_ins(struct pl_parts *parts, struct pl_part *part, struct pl_error *err)
{
    struct pl_gathered *g = &part->gathered;
    size_t bytes = 0, at = 0;
    int r;

    for (size_t o = 0; o < g->n; o++)
        if (g->from[o])
            bytes += ALIGN(bytes_of(g->from[o])) * (g->from[o]->grad ? 2 : 1);
    r = reserve(parts->root.dev, &g->block, bytes, "outputs of parts", err);
    for (size_t o = 0; o < g->n && r == 0; o++) {
        const plume_tensor *from = g->from[o];

        if (!from)
            continue;
        g->leaf[o].data = g->block.memory + at;
        at += ALIGN(bytes_of(from));
        g->leaf[o].grad = from->grad ? g->block.memory + at : NULL;
        at += from->grad ? ALIGN(bytes_of(from)) : 0;
    }
    return r;
}

void pl_parts_gather(struct pl_parts *parts)
{
    for (unsigned i = 0; i < parts->n; i++) {
        const struct pl_part *part = &parts->list[i];
        const struct pl_gathered *g = &part->gathered;

        for (size_t o = 0; elsewhere(parts, part) && o < g->n; o++)
            if (g->from[o])
                pl_device_copy_from(parts->root.dev, g->leaf[o].data, part->tape.dev,
                                    g->from[o]->data, bytes_of(g->from[o]));
    }
}

void pl_dp_scatter_grads(struct pl_parts *parts)
{
    for (unsigned i = 0; i < parts->n; i++) {
        const struct pl_part *part = &parts->list[i];
        const struct pl_gathered *g = &part->gathered;

        for (size_t o = 0; elsewhere(parts, part) && o < g->n; o++)
            if (g->from[o] && g->leaf[o].grad)
                pl_device_copy_from(part->tape.dev, g->from[o]->grad, parts->root.dev,
                                    g->leaf[o].grad, bytes_of(g->from[o]));
    }
}

/* ---- the batch ---- */

static int scatter(struct pl_parts *parts, struct pl_part *part, struct pl_error *err)
{
    size_t bytes = 0, at = 0;
    int r;

    for (size_t f = 0; f < part->batch.n_fields; f++)
        bytes += ALIGN(bytes_of(&part->fields[f]) + 1);
    r = reserve(part->tape.dev, &part->fields_block, bytes, "batches", err);
    for (size_t f = 0; f < part->batch.n_fields && r == 0; f++) {
        plume_tensor *t = &part->fields[f];

        t->data = part->fields_block.memory + at;
        at += ALIGN(bytes_of(t) + 1); /* empty ones have an address of this device, too */
        pl_device_copy_from(part->tape.dev, t->data, parts->root.dev, part->slices[f], bytes_of(t));
    }
    return r;
}

int pl_dp_scatter(struct pl_parts *parts, struct pl_error *err)
{
    int r = pl_replicas_refresh(parts->replicas, parts->n, err);

    for (unsigned i = 0; i < parts->n && r == 0; i++) {
        struct pl_part *part = &parts->list[i];

        if (!elsewhere(parts, part))
            continue;
        part->tape.copies = parts->replicas->list[i].copies;
        r = scatter(parts, part, err);
        if (r == 0)
            r = place_stand_ins(parts, part, err);
    }
    return r;
}

/* ---- gradients ---- */

int pl_parts_add_from(struct pl_parts *parts,
                      const struct pl_part *part,
                      struct pl_params *params,
                      struct pl_error *err)
{
    size_t size = pl_real_size(params->real), most = PL_MIN(params->count, PL_PARTS_ROOM);
    int r = reserve(params->dev, &parts->room, most * size, "gradients", err);

    for (size_t at = 0, n; at < params->count && r == 0; at += n) {
        char *to = (char *)params->grads + at * size;

        n = PL_MIN(params->count - at, most);
        pl_device_copy_from(params->dev, parts->room.memory, part->tape.dev,
                            (const char *)part->grads + at * size, n * size);
        parts->root.kernels->add(
            &(struct pl_add_args){.n = n, .scale = 1, .a = to, .b = parts->room.memory, .dst = to});
    }
    return r;
}

void pl_dp_release(struct pl_parts *parts, struct pl_part *part)
{
    pl_device_free(parts->root.dev, part->gathered.block.memory);
    pl_device_free(part->tape.dev, part->fields_block.memory);
}
