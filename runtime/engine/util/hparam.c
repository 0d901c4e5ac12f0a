/* SPDX-License-Identifier: MIT */
#include "runtime/engine/util/hparam.h"
#include "common/base/buf.h"
#include "common/base/near.h"
#include "common/base/parse.h"

#include <math.h>
#include <string.h>

static const struct plume_hparam builtin[] = {
    {"lr", "0.01", 0, 1e6, 0, "learning rate"},
    {"momentum", "0", 0, 1, 0, "momentum of the gradient descent"},
    {"weight_decay", "0", 0, 1e6, 0, "weight decay (L2)"},
    {"batch_size", "32", 1, 1 << 20, 1, "samples a rank and step"},
    {"epochs", "1", 0, 1e9, 1, "passes over the training data"},
};

static struct pl_hparam *find(const struct pl_hparams *hparams, const char *name, size_t len)
{
    for (size_t i = 0; i < hparams->n; i++)
        if (strlen(hparams->list[i].name) == len && strncmp(hparams->list[i].name, name, len) == 0)
            return &hparams->list[i];
    return NULL;
}

const struct pl_hparam *pl_hparams_find(const struct pl_hparams *hparams, const char *name)
{
    return find(hparams, name, strlen(name));
}

double pl_hparams_value(const struct pl_hparams *hparams, const char *name)
{
    const struct pl_hparam *h = pl_hparams_find(hparams, name);

    return h ? h->value : NAN;
}

static int set_value(struct pl_hparam *h, const char *text, struct pl_error *err)
{
    double value;
    int r = pl_parse_double(text, &value, err);

    if (r < 0)
        return pl_error_wrap(err, r, "hyper-parameter '%s'", h->name);
    if (h->integer && value != floor(value))
        return pl_error_set(err, -EINVAL, "hyper-parameter '%s' is '%s' but must be a whole number",
                            h->name, text);
    if (value < h->min || value > h->max)
        return pl_error_set(err, -ERANGE, "hyper-parameter '%s' is '%s' but must be in [%g, %g]",
                            h->name, text, h->min, h->max);
    h->value = value;
    return 0;
}

static int give_value(struct pl_hparam *h, const char *text, struct pl_error *err)
{
    int r = set_value(h, text, err);

    h->given |= r == 0;
    return r;
}

static int add(struct pl_hparams *h, const struct plume_hparam *entry, struct pl_error *err)
{
    struct pl_hparam *to = find(h, entry->name, strlen(entry->name));
    struct pl_hparam *list;

    if (!pl_name_valid(entry->name, strlen(entry->name)) || !entry->value ||
        !(entry->min <= entry->max))
        return pl_error_set(err, -EINVAL, "the module's hyper-parameter '%s' is ill-formed",
                            entry->name);
    if (!to) {
        list = reallocarray(h->list, h->n + 1, sizeof(*list));
        if (!list)
            return pl_error_nomem(err);
        h->list = list;
        to = &list[h->n++];
        *to = (struct pl_hparam){.name = entry->name};
    }
    to->min = entry->min;
    to->max = entry->max;
    to->integer = entry->integer;
    if (entry->help)
        to->help = entry->help;
    return set_value(to, entry->value, err);
}

int pl_hparams_init(struct pl_hparams *ret, const struct plume_hparam *table, struct pl_error *err)
{
    struct pl_hparams h = {0};
    int r = 0;

    for (size_t i = 0; i < PL_COUNT(builtin) && r == 0; i++)
        r = add(&h, &builtin[i], err);
    for (; table && table->name && r == 0; table++)
        r = add(&h, table, err);
    if (r < 0) {
        pl_hparams_finish(&h);
        return r;
    }
    *ret = h;
    return 0;
}

void pl_hparams_finish(struct pl_hparams *hparams)
{
    free(hparams->list);
    *hparams = (struct pl_hparams){0};
}

int pl_hparams_set(struct pl_hparams *hparams, const char *assignment, struct pl_error *err)
{
    size_t len = strcspn(assignment, "=");
    struct pl_hparam *h = find(hparams, assignment, len);
    _cleanup_(pl_buf_finish) struct pl_buf known = {0};
    _cleanup_free_ char *name = NULL;
    struct pl_near near = {0};

    if (!assignment[len])
        return pl_error_set(err, -EINVAL, "hyper-parameter '%s' has no value: NAME=VALUE",
                            assignment);
    if (h)
        return give_value(h, assignment + len + 1, err);
    near.word = name = strndup(assignment, PL_MIN(len, (size_t)100));
    if (!name)
        return pl_error_nomem(err);
    for (size_t i = 0; i < hparams->n; i++)
        pl_near_offer(&near, hparams->list[i].name);
    if (near.best && near.distance == 0) /* '-' for '_' */
        return give_value(find(hparams, near.best, strlen(near.best)), assignment + len + 1, err);
    if (near.best)
        return pl_error_set(err, -ENOENT, "unknown hyper-parameter '%s': did you mean %s?", name,
                            near.best);
    for (size_t i = 0; i < hparams->n; i++)
        if (pl_buf_addf(&known, "%s%s", i ? ", " : "", hparams->list[i].name) < 0)
            return pl_error_nomem(err);
    return pl_error_set(err, -ENOENT, "unknown hyper-parameter '%s': this module has %s", name,
                        pl_buf_str(&known));
}

void pl_hparams_print(const struct pl_hparams *hparams, FILE *out)
{
    for (size_t i = 0; i < hparams->n; i++)
        fprintf(out, "%-16s %-10g %s\n", hparams->list[i].name, hparams->list[i].value,
                hparams->list[i].help ? hparams->list[i].help : "");
}
