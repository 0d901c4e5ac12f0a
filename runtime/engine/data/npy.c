/* SPDX-License-Identifier: MIT */
#include "runtime/engine/data/npy.h"
#include "runtime/engine/device/tensor.h"

#include <string.h>

/* The header is a Python dict literal with three keys; its text is [p, end). */
struct scan {
    const char *p, *end;
};

static void blanks(struct scan *s)
{
    while (s->p < s->end && (*s->p == ' ' || *s->p == '\n' || *s->p == '\t'))
        s->p++;
}

static bool take(struct scan *s, char c)
{
    blanks(s);
    if (s->p == s->end || *s->p != c)
        return false;
    s->p++;
    return true;
}

static bool word(struct scan *s, const char *w)
{
    size_t len = strlen(w);

    blanks(s);
    if ((size_t)(s->end - s->p) < len || memcmp(s->p, w, len) != 0)
        return false;
    s->p += len;
    return true;
}

/* Copies 'text' or "text" into buf. */
static bool string(struct scan *s, char *buf, size_t size)
{
    char quote;
    size_t n = 0;

    blanks(s);
    if (s->p == s->end || (*s->p != '\'' && *s->p != '"'))
        return false;
    quote = *s->p++;
    while (s->p < s->end && *s->p != quote && n + 1 < size)
        buf[n++] = *s->p++;
    buf[n] = '\0';
    return s->p < s->end && *s->p++ == quote;
}

static bool number(struct scan *s, size_t *ret)
{
    size_t value = 0;
    const char *start;

    blanks(s);
    start = s->p;
    for (; s->p < s->end && *s->p >= '0' && *s->p <= '9'; s->p++)
        if (__builtin_mul_overflow(value, (size_t)10, &value) ||
            __builtin_add_overflow(value, (size_t)(*s->p - '0'), &value))
            return false;
    *ret = value;
    return s->p > start;
}

struct header {
    struct plume_array array;
    size_t bytes; /* per element in the file */
};

static int parse_shape(struct scan *s, struct plume_array *a, struct pl_error *err)
{
    if (!take(s, '('))
        return -EINVAL;
    while (!take(s, ')')) {
        if (a->rank == PLUME_RANK_MAX)
            return pl_error_set(err, -ENOTSUP,
                                "arrays of more than %d dimensions are not supported",
                                PLUME_RANK_MAX);
        if (!number(s, &a->shape[a->rank]))
            return -EINVAL;
        a->rank++;
        if (!take(s, ',')) {
            if (!take(s, ')'))
                return -EINVAL;
            break;
        }
    }
    return pl_shape_count(a->rank, a->shape, &a->count);
}

static int parse_descr(const char *descr, struct header *h, struct pl_error *err)
{
    static const struct {
        const char *name;
        size_t bytes;
        enum plume_dtype dtype;
    } types[] = {
        {"|u1", 1, PLUME_U8},  {"<u1", 1, PLUME_U8},  {"|b1", 1, PLUME_U8},  {"<u2", 2, PLUME_U16},
        {"<i4", 4, PLUME_I32}, {"<i8", 8, PLUME_I32}, {"<f4", 4, PLUME_F32}, {"<f8", 8, PLUME_F64},
    };

    for (size_t i = 0; i < PL_COUNT(types); i++) {
        if (strcmp(descr, types[i].name) == 0) {
            h->array.dtype = types[i].dtype;
            h->bytes = types[i].bytes;
            return 0;
        }
    }
    return pl_error_set(err, -ENOTSUP,
                        "arrays of type '%s' are not supported: save it as uint8, int32, int64, "
                        "float32 or float64 (little-endian)",
                        descr);
}

static int parse_header(struct scan *s, struct header *h, struct pl_error *err)
{
    char key[32], descr[32];
    bool have_descr = false, have_order = false, have_shape = false;
    int r;

    if (!take(s, '{'))
        return -EINVAL;
    while (!take(s, '}')) {
        if (!string(s, key, sizeof(key)) || !take(s, ':'))
            return -EINVAL;
        if (strcmp(key, "descr") == 0 && !have_descr) {
            if (!string(s, descr, sizeof(descr))) /* a list: a structured array */
                return pl_error_set(err, -ENOTSUP, "structured arrays are not supported");
            r = parse_descr(descr, h, err);
            have_descr = true;
        } else if (strcmp(key, "fortran_order") == 0 && !have_order) {
            if (word(s, "True"))
                return pl_error_set(err, -ENOTSUP,
                                    "the array is in Fortran order: save "
                                    "numpy.ascontiguousarray() of it");
            r = word(s, "False") ? 0 : -EINVAL;
            have_order = true;
        } else if (strcmp(key, "shape") == 0 && !have_shape) {
            r = parse_shape(s, &h->array, err);
            have_shape = true;
        } else {
            return -EINVAL;
        }
        if (r < 0)
            return r;
        if (!take(s, ',')) {
            if (!take(s, '}'))
                return -EINVAL;
            break;
        }
    }
    blanks(s); /* anything else: the header's length is wrong, and so is where the data begin */
    return s->p == s->end && have_descr && have_order && have_shape ? 0 : -EINVAL;
}

/* NumPy's default integers have 64 bits; ours have 32. */
static int narrow(const unsigned char *from, struct plume_array *a, struct pl_error *err)
{
    int32_t *to = calloc(PL_MAX(a->count, (size_t)1), sizeof(*to));

    if (!to)
        return pl_error_set(err, -ENOMEM, "out of memory for %zu numbers", a->count);
    a->own = to;
    a->data = to;
    for (size_t i = 0; i < a->count; i++) {
        int64_t value;

        memcpy(&value, from + i * sizeof(value), sizeof(value));
        if (value < INT32_MIN || value > INT32_MAX) {
            free(to);
            return pl_error_set(err, -ERANGE,
                                "%lld does not fit into 32 bits: save real numbers as float64",
                                (long long)value);
        }
        to[i] = (int32_t)value;
    }
    return 0;
}

int pl_npy_parse(const void *bytes, size_t len, struct plume_array *ret, struct pl_error *err)
{
    const unsigned char *b = bytes;
    struct header h = {0};
    struct plume_array a;
    size_t header, start, need;
    struct scan s;
    int r;

    if (len < 10 || memcmp(b, "\x93NUMPY", 6) != 0)
        return pl_error_set(err, -EINVAL, "not a .npy file");
    if (b[6] < 1 || b[6] > 3)
        return pl_error_set(err, -ENOTSUP, ".npy format version %d is not supported", b[6]);
    start = b[6] == 1 ? 10 : 12;
    if (len < start)
        return pl_error_set(err, -EINVAL, "the .npy header is truncated");
    header = (size_t)b[8] | (size_t)b[9] << 8;
    if (b[6] > 1)
        header |= (size_t)b[10] << 16 | (size_t)b[11] << 24;
    if (len - start < header)
        return pl_error_set(err, -EINVAL, "the .npy header is truncated");
    s = (struct scan){(const char *)b + start, (const char *)b + start + header};
    if (err)
        *err = (struct pl_error){0};
    r = parse_header(&s, &h, err);
    if (r < 0)
        return err && err->code ? r : pl_error_set(err, r, "the .npy header is malformed");
    a = h.array;
    need = a.count * h.bytes;
    if (len - start - header < need)
        return pl_error_set(err, -EINVAL, "the .npy file is truncated: %zu bytes of data, not %zu",
                            len - start - header, need);
    a.data = b + start + header;
    r = h.bytes > pl_dtype_size(a.dtype) ? narrow(b + start + header, &a, err) : 0;
    if (r < 0)
        return r;
    a.stride = a.rank && a.shape[0] ? a.count / a.shape[0] * pl_dtype_size(a.dtype) : 0;
    *ret = a;
    return 0;
}
