/* SPDX-License-Identifier: MIT */
#include "runtime/engine/train/dp.h"

#define ALIGN(bytes) (((bytes) + PL_DEVICE_ALIGN - 1) / PL_DEVICE_ALIGN * PL_DEVICE_ALIGN)

static bool elsewhere(const struct pl_parts *parts, const struct pl_part *part)
{
    return part->tape.dev != parts->root->tape.dev;
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

/* A leaf has the memory of a whole tensor. Other outputs may be views of that tensor too: their
 * gradients add up in the leaf, as they would in the tensor itself. */
static size_t leaf_for(struct pl_dp_leaves *g, size_t output, plume_tensor *root)
{
    plume_tensor *leaf = &g->leaf[output];

    for (size_t i = 0; i < output; i++)
        if (g->source[i] == root)
            return i;
    g->source[output] = root;
    *leaf = *root;
    leaf->data = leaf->grad = NULL; /* place_leaves() sets them */
    leaf->tape = NULL;
    return output;
}

static bool make_part_leaves(struct pl_part *part, unsigned index, struct plume_outputs *outputs)
{
    struct pl_dp_leaves *g = &part->leaves;
    bool changed = g->n != outputs->n;

    g->n = outputs->n;
    for (size_t o = 0; o < outputs->n; o++) {
        plume_tensor *given = outputs->list[o].part[index];
        size_t leaf;

        changed |= g->given[o] != given;
        g->given[o] = given;
        g->source[o] = NULL;
        /* The root has the parameters and buffers themselves. */
        if (!given || pl_tensor_root(given)->number)
            continue;
        leaf = leaf_for(g, o, pl_tensor_root(given));
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
            changed |= make_part_leaves(&parts->list[i], i, outputs);
    return changed;
}

plume_tensor *pl_dp_output(const struct pl_parts *parts,
                           const struct plume_outputs *outputs,
                           size_t output,
                           unsigned part)
{
    const struct pl_part *p = &parts->list[part];

    return elsewhere(parts, p) ? p->leaves.given[output] : outputs->list[output].part[part];
}

/* A leaf has a gradient if the plan of the part's tape has one for its source. */
static int place_leaves(struct pl_parts *parts, struct pl_part *part, struct pl_error *err)
{
    struct pl_dp_leaves *g = &part->leaves;
    size_t bytes = 0, at = 0;
    int r;

    for (size_t o = 0; o < g->n; o++)
        if (g->source[o])
            bytes += ALIGN(bytes_of(g->source[o])) * (g->source[o]->grad ? 2 : 1);
    r = reserve(parts->root->tape.dev, &g->block, bytes, "outputs of parts", err);
    for (size_t o = 0; o < g->n && r == 0; o++) {
        const plume_tensor *source = g->source[o];

        if (!source)
            continue;
        g->leaf[o].data = g->block.memory + at;
        at += ALIGN(bytes_of(source));
        g->leaf[o].grad = source->grad ? g->block.memory + at : NULL;
        at += source->grad ? ALIGN(bytes_of(source)) : 0;
    }
    return r;
}

void pl_dp_gather(struct pl_parts *parts)
{
    for (unsigned i = 0; i < parts->n; i++) {
        const struct pl_part *part = &parts->list[i];
        const struct pl_dp_leaves *g = &part->leaves;

        for (size_t o = 0; elsewhere(parts, part) && o < g->n; o++)
            if (g->source[o])
                pl_device_copy_from(parts->root->tape.dev, g->leaf[o].data, part->tape.dev,
                                    g->source[o]->data, bytes_of(g->source[o]));
    }
}

void pl_dp_scatter_grads(struct pl_parts *parts)
{
    for (unsigned i = 0; i < parts->n; i++) {
        const struct pl_part *part = &parts->list[i];
        const struct pl_dp_leaves *g = &part->leaves;

        for (size_t o = 0; elsewhere(parts, part) && o < g->n; o++)
            if (g->source[o] && g->leaf[o].grad)
                pl_device_copy_from(part->tape.dev, g->source[o]->grad, parts->root->tape.dev,
                                    g->leaf[o].grad, bytes_of(g->source[o]));
    }
}

/* ---- the batch ---- */

static int scatter_batch(struct pl_parts *parts, struct pl_part *part, struct pl_error *err)
{
    size_t bytes = 0, at = 0;
    int r;

    for (size_t f = 0; f < part->batch.n_fields; f++)
        bytes += ALIGN(bytes_of(&part->fields[f]) + 1);
    r = reserve(part->tape.dev, &part->fields_block, bytes, "batches", err);
    for (size_t f = 0; f < part->batch.n_fields && r == 0; f++) {
        plume_tensor *t = &part->fields[f];

        t->data = part->fields_block.memory + at;
        at += ALIGN(bytes_of(t) + 1); /* an empty field too has an address on this device */
        pl_device_copy_from(part->tape.dev, t->data, parts->root->tape.dev, part->slices[f],
                            bytes_of(t));
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
        r = scatter_batch(parts, part, err);
        if (r == 0)
            r = place_leaves(parts, part, err);
    }
    return r;
}

/* ---- gradients ---- */

int pl_dp_add_grads(struct pl_parts *parts,
                    const struct pl_part *part,
                    struct pl_params *params,
                    struct pl_error *err)
{
    size_t size = pl_real_size(params->real), most = PL_MIN(params->count, PL_DP_STAGING);
    int r = reserve(params->dev, &parts->staging, most * size, "gradients", err);

    for (size_t at = 0, n; at < params->count && r == 0; at += n) {
        char *to = (char *)params->grads + at * size;

        n = PL_MIN(params->count - at, most);
        pl_device_copy_from(params->dev, parts->staging.memory, part->tape.dev,
                            (const char *)part->grads + at * size, n * size);
        parts->root->tape.kernels->add(&(struct pl_add_args){
            .n = n, .scale = 1, .a = to, .b = parts->staging.memory, .dst = to});
    }
    return r;
}

void pl_dp_release(struct pl_parts *parts, struct pl_part *part)
{
    pl_device_free(parts->root->tape.dev, part->leaves.block.memory);
    pl_device_free(part->tape.dev, part->fields_block.memory);
}
