/* SPDX-License-Identifier: MIT */
#include "runtime/engine/cuda/alloc/staging.h"

#include <cuda_runtime_api.h>
#include <string.h>

/* A piece of a chunk during a copy. */
struct piece {
    struct pl_cuda_chunk *chunk;
    char *at;
    size_t bytes;
};

void pl_cuda_staging_init(struct pl_cuda_staging *staging,
                          struct CUstream_st *stream,
                          size_t chunk_bytes,
                          struct pl_cuda_status *status)
{
    *staging =
        (struct pl_cuda_staging){.stream = stream, .status = status, .chunk_bytes = chunk_bytes};
}

void pl_cuda_staging_finish(struct pl_cuda_staging *staging)
{
    for (size_t i = 0; i < PL_COUNT(staging->chunks); i++) {
        struct pl_cuda_chunk *c = &staging->chunks[i];

        if (c->event) {
            pl_cuda_check(staging->status, "cudaEventSynchronize", cudaEventSynchronize(c->event));
            cudaEventDestroy(c->event);
        }
        if (c->memory)
            cudaFreeHost(c->memory);
        *c = (struct pl_cuda_chunk){0};
    }
}

/* An empty chunk, whose last copy is complete. False if pinned memory is not available. */
static bool renew(struct pl_cuda_staging *s, struct pl_cuda_chunk *c)
{
    if (!c->event && cudaEventCreateWithFlags(&c->event, cudaEventDisableTiming) != cudaSuccess) {
        (void)cudaGetLastError();
        c->event = NULL;
        return false;
    }
    if (!c->memory) {
        void *memory = NULL;

        if (cudaHostAlloc(&memory, s->chunk_bytes, cudaHostAllocPortable) != cudaSuccess) {
            (void)cudaGetLastError();
            return false;
        }
        c->memory = memory;
    } else {
        pl_cuda_check(s->status, "cudaEventSynchronize", cudaEventSynchronize(c->event));
    }
    c->used = 0;
    return true;
}

/* The next piece, of at most `bytes`. False if pinned memory is not available. */
static bool take(struct pl_cuda_staging *s, size_t bytes, struct piece *ret)
{
    struct pl_cuda_chunk *c = &s->chunks[s->at];

    if (!c->memory || c->used == s->chunk_bytes) {
        unsigned next = c->memory ? (s->at + 1) % PL_CUDA_STAGING_CHUNKS : s->at;

        c = &s->chunks[next];
        if (!renew(s, c))
            return false;
        s->at = next;
    }
    *ret = (struct piece){
        .chunk = c, .at = c->memory + c->used, .bytes = PL_MIN(bytes, s->chunk_bytes - c->used)};
    c->used = PL_MIN(s->chunk_bytes, (c->used + ret->bytes + 63) / 64 * 64);
    return true;
}

static int copy(struct pl_cuda_staging *s, void *to, const void *from, size_t bytes, int kind)
{
    return pl_cuda_check(s->status, "cudaMemcpyAsync",
                         cudaMemcpyAsync(to, from, bytes, (enum cudaMemcpyKind)kind, s->stream));
}

static int mark(struct pl_cuda_staging *s, struct pl_cuda_chunk *c)
{
    return pl_cuda_check(s->status, "cudaEventRecord", cudaEventRecord(c->event, s->stream));
}

static int
copy_unpinned(struct pl_cuda_staging *s, void *to, const void *from, size_t bytes, int kind)
{
    int r = copy(s, to, from, bytes, kind);

    return r < 0 ? r
                 : pl_cuda_check(s->status, "cudaStreamSynchronize",
                                 cudaStreamSynchronize(s->stream));
}

void pl_cuda_staging_upload(struct pl_cuda_staging *staging,
                            void *to,
                            const void *from,
                            size_t bytes)
{
    for (size_t done = 0; done < bytes;) {
        struct piece p;

        if (!take(staging, bytes - done, &p)) {
            copy_unpinned(staging, (char *)to + done, (const char *)from + done, bytes - done,
                          cudaMemcpyHostToDevice);
            return;
        }
        memcpy(p.at, (const char *)from + done, p.bytes);
        copy(staging, (char *)to + done, p.at, p.bytes, cudaMemcpyHostToDevice);
        mark(staging, p.chunk);
        done += p.bytes;
    }
}

int pl_cuda_staging_download(struct pl_cuda_staging *staging,
                             void *to,
                             const void *from,
                             size_t bytes)
{
    /* One less than the chunks, so that none is reused before it is copied out. */
    struct piece way[PL_CUDA_STAGING_CHUNKS - 1];
    size_t asked = 0, first = 0, n = 0;
    bool pinned = true;
    int r = 0;

    for (size_t done = 0; r == 0 && done < bytes;) {
        while (r == 0 && pinned && asked < bytes && n < PL_COUNT(way)) {
            struct piece *p = &way[(first + n) % PL_COUNT(way)];

            pinned = take(staging, bytes - asked, p);
            if (!pinned)
                break;
            r = copy(staging, p->at, (const char *)from + asked, p->bytes, cudaMemcpyDeviceToHost);
            if (r == 0)
                r = mark(staging, p->chunk);
            asked += p->bytes;
            n++;
        }
        if (r == 0 && n) {
            struct piece *p = &way[first];

            r = pl_cuda_check(staging->status, "cudaEventSynchronize",
                              cudaEventSynchronize(p->chunk->event));
            if (r == 0)
                memcpy((char *)to + done, p->at, p->bytes);
            done += p->bytes;
            first = (first + 1) % PL_COUNT(way);
            n--;
        } else if (r == 0) {
            r = copy_unpinned(staging, (char *)to + done, (const char *)from + done, bytes - done,
                              cudaMemcpyDeviceToHost);
            done = bytes;
        }
    }
    return r;
}
