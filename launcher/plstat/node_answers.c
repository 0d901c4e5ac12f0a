/* SPDX-License-Identifier: MIT */
#include "launcher/plstat/node_answers.h"
#include "common/base/buf.h"
#include "common/proto/json.h"

#include <stdlib.h>
#include <string.h>

#define DOCUMENT_MAX_BYTES ((size_t)16 * 1024 * 1024)

struct answer {
    unsigned long task;
    bool whole;
    struct pl_buf text;
};

struct answers {
    struct answer *list;
    size_t n;
};

static void finish(struct answers *a)
{
    for (size_t i = 0; i < a->n; i++)
        pl_buf_finish(&a->list[i].text);
    free(a->list);
}

static struct answer *of_task(struct answers *a, unsigned long task)
{
    struct answer *list;

    for (size_t i = 0; i < a->n; i++)
        if (a->list[i].task == task)
            return &a->list[i];
    list = realloc(a->list, (a->n + 1) * sizeof(*list));
    if (!list)
        return NULL;
    a->list = list;
    list[a->n] = (struct answer){.task = task};
    return &list[a->n++];
}

/* An object may end with this piece, which does not begin a line of its own where the one before
 * was full. */
static int add_piece(struct answer *answer, const char *piece, size_t len, json_t *list)
{
    json_t *o = NULL;
    int r;

    if (answer->whole || (answer->text.len == 0 && *piece != '{'))
        return 0;
    r = pl_buf_add(&answer->text, piece, len);
    if (r < 0 || len == 0 || piece[len - 1] != '}' ||
        pl_json_parse(pl_buf_str(&answer->text), answer->text.len, DOCUMENT_MAX_BYTES, &o, NULL) <
            0)
        return r;
    answer->whole = true;
    pl_buf_finish(&answer->text);
    return json_array_append_new(list, o) < 0 ? -ENOMEM : 0;
}

int pl_node_answers(const char *text, json_t *list)
{
    struct answers a = {0};
    int r = 0;

    while (r == 0 && *text) {
        size_t len = strcspn(text, "\n");
        char *label;
        unsigned long task = strtoul(text, &label, 10);

        if (label > text && label < text + len && strncmp(label, ": ", 2) == 0) {
            struct answer *answer = of_task(&a, task);

            label += 2;
            r = answer ? add_piece(answer, label, (size_t)(text + len - label), list) : -ENOMEM;
        }
        text += len + (text[len] == '\n');
    }
    finish(&a);
    return r;
}
