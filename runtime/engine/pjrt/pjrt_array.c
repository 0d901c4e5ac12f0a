/* SPDX-License-Identifier: MIT */
#include "runtime/engine/pjrt/pjrt_private.h"

struct pl_pjrt_array {
    PJRT_Buffer *buffer[1]; /* by device: as many as the client has */
};

static struct pl_pjrt_array *new_array(const struct pl_pjrt *p)
{
    return calloc(1, sizeof(struct pl_pjrt_array) + p->n * sizeof(PJRT_Buffer *));
}

void pl_pjrt_array_free(struct pl_pjrt *p, struct pl_pjrt_array *array)
{
    for (size_t i = 0; array && i < p->n; i++) {
        PJRT_Buffer_Destroy_Args destroy = {.struct_size = PJRT_Buffer_Destroy_Args_STRUCT_SIZE,
                                            .buffer = array->buffer[i]};

        if (array->buffer[i])
            pl_pjrt_fail(p->api, p->api->PJRT_Buffer_Destroy(&destroy), "end of an array", NULL);
    }
    free(array);
}

int pl_pjrt_upload(struct pl_pjrt *p,
                   enum pl_pjrt_type type,
                   size_t rank,
                   const size_t *shape,
                   const void *const *data,
                   struct pl_pjrt_array **ret,
                   struct pl_error *err)
{
    static const PJRT_Buffer_Type types[] = {[PL_PJRT_F32] = PJRT_Buffer_Type_F32,
                                             [PL_PJRT_I32] = PJRT_Buffer_Type_S32,
                                             [PL_PJRT_U32] = PJRT_Buffer_Type_U32};
    struct pl_pjrt_array *array = new_array(p);
    int64_t dims[PL_PJRT_RANK_MAX];
    int r = array ? 0 : pl_error_nomem(err);

    for (size_t i = 0; i < rank; i++)
        dims[i] = (int64_t)shape[i];
    for (size_t i = 0; i < p->n && r == 0; i++) {
        PJRT_Client_BufferFromHostBuffer_Args from = {
            .struct_size = PJRT_Client_BufferFromHostBuffer_Args_STRUCT_SIZE,
            .client = p->client,
            .data = data[i],
            .type = types[type],
            .dims = dims,
            .num_dims = rank,
            .host_buffer_semantics = PJRT_HostBufferSemantics_kImmutableOnlyDuringCall,
            .device = p->devices[i],
        };

        r = pl_pjrt_fail(p->api, p->api->PJRT_Client_BufferFromHostBuffer(&from),
                         "copy to the device", err);
        array->buffer[i] = r == 0 ? from.buffer : NULL;
        if (r == 0)
            r = pl_pjrt_await(p->api, from.done_with_host_buffer, "copy to the device", err);
    }
    if (r < 0)
        pl_pjrt_array_free(p, array);
    else
        *ret = array;
    return r;
}

/* The host gets row-major order. Without a layout it would get the device's, which is another one
 * on some devices. */
int pl_pjrt_download(struct pl_pjrt *p,
                     const struct pl_pjrt_array *array,
                     size_t device,
                     void *to,
                     size_t bytes,
                     struct pl_error *err)
{
    int64_t order[PL_PJRT_RANK_MAX];
    PJRT_Buffer_Dimensions_Args shape = {.struct_size = PJRT_Buffer_Dimensions_Args_STRUCT_SIZE,
                                         .buffer = array->buffer[device]};
    PJRT_Buffer_MemoryLayout layout = {
        .struct_size = PJRT_Buffer_MemoryLayout_STRUCT_SIZE,
        .type = PJRT_Buffer_MemoryLayout_Type_Tiled,
        .tiled = {.struct_size = PJRT_Buffer_MemoryLayout_Tiled_STRUCT_SIZE,
                  .minor_to_major = order}};
    PJRT_Buffer_ToHostBuffer_Args copy = {.struct_size = PJRT_Buffer_ToHostBuffer_Args_STRUCT_SIZE,
                                          .src = array->buffer[device],
                                          .host_layout = &layout,
                                          .dst = to,
                                          .dst_size = bytes};
    int r =
        pl_pjrt_fail(p->api, p->api->PJRT_Buffer_Dimensions(&shape), "copy from the device", err);

    if (r < 0)
        return r;
    for (size_t i = 0; i < shape.num_dims; i++)
        order[i] = (int64_t)(shape.num_dims - 1 - i);
    layout.tiled.minor_to_major_size = shape.num_dims;
    r = pl_pjrt_fail(p->api, p->api->PJRT_Buffer_ToHostBuffer(&copy), "copy from the device", err);
    return r < 0 ? r : pl_pjrt_await(p->api, copy.event, "copy from the device", err);
}

/* ---- running ---- */

/* Tables of buffers [device][array], for a call. */
struct tables {
    PJRT_Buffer **in, **out;
    PJRT_Buffer *const **in_rows;
    PJRT_Buffer ***out_rows;
};

static void tables_free(struct tables *t)
{
    free(t->in);
    free(t->out);
    free(t->in_rows);
    free(t->out_rows);
}

static int tables_fill(const struct pl_pjrt *p,
                       struct pl_pjrt_array *const *in,
                       size_t n_in,
                       size_t n_out,
                       struct tables *ret,
                       struct pl_error *err)
{
    *ret = (struct tables){.in = calloc(p->n * n_in + 1, sizeof(*ret->in)),
                           .out = calloc(p->n * n_out + 1, sizeof(*ret->out)),
                           .in_rows = calloc(p->n, sizeof(*ret->in_rows)),
                           .out_rows = calloc(p->n, sizeof(*ret->out_rows))};
    if (!ret->in || !ret->out || !ret->in_rows || !ret->out_rows)
        return pl_error_nomem(err);
    for (size_t d = 0; d < p->n; d++) {
        ret->in_rows[d] = &ret->in[d * n_in];
        ret->out_rows[d] = &ret->out[d * n_out];
        for (size_t i = 0; i < n_in; i++)
            ret->in[d * n_in + i] = in[i]->buffer[d];
    }
    return 0;
}

/* The results as arrays; frees those that there is no memory for. */
static int take_results(
    struct pl_pjrt *p, struct tables *t, size_t n, struct pl_pjrt_array **ret, struct pl_error *err)
{
    bool full = false;

    for (size_t i = 0; i < n; i++) {
        struct pl_pjrt_array *array = ret[i] = new_array(p);

        for (size_t d = 0; d < p->n; d++) {
            PJRT_Buffer_Destroy_Args destroy = {.struct_size = PJRT_Buffer_Destroy_Args_STRUCT_SIZE,
                                                .buffer = t->out[d * n + i]};

            if (array)
                array->buffer[d] = t->out[d * n + i];
            else
                pl_pjrt_fail(p->api, p->api->PJRT_Buffer_Destroy(&destroy), "end of an array",
                             NULL);
        }
        full = full || !array;
    }
    for (size_t i = 0; full && i < n; i++) {
        pl_pjrt_array_free(p, ret[i]);
        ret[i] = NULL;
    }
    return full ? pl_error_nomem(err) : 0;
}

int pl_pjrt_run(struct pl_pjrt *p,
                const struct pl_pjrt_program *program,
                struct pl_pjrt_array *const *in,
                size_t n_in,
                struct pl_pjrt_array **ret,
                struct pl_error *err)
{
    PJRT_ExecuteOptions options = {.struct_size = PJRT_ExecuteOptions_STRUCT_SIZE};
    struct tables t;
    int r = tables_fill(p, in, n_in, program->outputs, &t, err);

    if (r == 0) {
        PJRT_LoadedExecutable_Execute_Args execute = {
            .struct_size = PJRT_LoadedExecutable_Execute_Args_STRUCT_SIZE,
            .executable = program->executable,
            .options = &options,
            .argument_lists = t.in_rows,
            .num_devices = p->n,
            .num_args = n_in,
            .output_lists = t.out_rows,
        };

        r = pl_pjrt_fail(p->api, p->api->PJRT_LoadedExecutable_Execute(&execute), "running a step",
                         err);
    }
    if (r == 0)
        r = take_results(p, &t, program->outputs, ret, err);
    tables_free(&t);
    return r;
}
