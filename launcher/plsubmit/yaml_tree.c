/* SPDX-License-Identifier: MIT */
#include "launcher/plsubmit/yaml_tree.h"
#include "common/base/utf8.h"
#include "launcher/plsubmit/json_pairs.h"

#include <string.h>
#include <yaml.h>

struct reader {
    yaml_parser_t parser;
    const char *path, *text;
    size_t len;
    struct pl_error *err;
};

static struct pl_yaml_place place_of(yaml_mark_t mark)
{
    return (struct pl_yaml_place){(unsigned)mark.line + 1, (unsigned)mark.column + 1};
}

/* The place of a byte. */
static struct pl_yaml_place place_at(const char *text, size_t offset)
{
    struct pl_yaml_place place = {1, 1};

    for (size_t i = 0; i < offset; i++) {
        if (text[i] == '\n')
            place = (struct pl_yaml_place){place.line + 1, 1};
        else if (((unsigned char)text[i] & 0xc0) != 0x80)
            place.column++;
    }
    return place;
}

static void finish_event(yaml_event_t *event)
{
    yaml_event_delete(event);
}

/* A cause of libyaml's words that people meet, in ours. */
static const char *hint(const char *problem)
{
    static const struct {
        const char *problem, *hint;
    } hints[] = {
        {"found character that cannot start any token",
         ": indent with blanks, not tabs, and quote a text that begins with @, ` or %"},
        {"mapping values are not allowed in this context", ": quote a text that has ': ' in it"},
        {"did not find expected node content",
         ": an item is empty; write \"\" for the empty value"},
        {"found invalid Unicode character escape code",
         ": write the character itself; only JSON has pairs of escapes"},
        {"did not find expected alphabetic or numeric character",
         ": quote a text that begins with * or &"},
    };

    for (size_t i = 0; problem && i < PL_COUNT(hints); i++)
        if (strcmp(problem, hints[i].problem) == 0)
            return hints[i].hint;
    return "";
}

static int parser_error(const struct reader *r)
{
    const yaml_parser_t *p = &r->parser;
    const char *problem = p->problem ? p->problem : "this is not YAML";

    if (p->error == YAML_MEMORY_ERROR)
        return pl_error_nomem(r->err);
    if (p->error == YAML_READER_ERROR)
        return pl_yaml_error(r->path, place_at(r->text, PL_MIN(p->problem_offset, r->len)), r->err,
                             "%s", problem);
    return pl_yaml_error(r->path, place_of(p->problem_mark), r->err, "%s%s", problem,
                         hint(p->problem));
}

static int next(struct reader *r, yaml_event_t *ret)
{
    yaml_event_t event;

    if (!yaml_parser_parse(&r->parser, &event))
        return parser_error(r);
    *ret = event;
    return 0;
}

/* Rejects what would need YAML's data model. */
static int check_event(const struct reader *r, const yaml_event_t *event)
{
    const yaml_char_t *anchor = NULL, *tag = NULL;

    if (event->type == YAML_ALIAS_EVENT)
        return pl_yaml_error(r->path, place_of(event->start_mark), r->err,
                             "'*%.100s' is an alias, which is not read: write the value itself, or "
                             "quote a text that begins with *",
                             (const char *)event->data.alias.anchor);
    if (event->type == YAML_SCALAR_EVENT) {
        anchor = event->data.scalar.anchor;
        tag = event->data.scalar.tag;
    } else if (event->type == YAML_SEQUENCE_START_EVENT) {
        anchor = event->data.sequence_start.anchor;
        tag = event->data.sequence_start.tag;
    } else if (event->type == YAML_MAPPING_START_EVENT) {
        anchor = event->data.mapping_start.anchor;
        tag = event->data.mapping_start.tag;
    }
    if (anchor)
        return pl_yaml_error(r->path, place_of(event->start_mark), r->err,
                             "'&%.100s' is an anchor, which is not read: omit it, or quote a text "
                             "that begins with &",
                             (const char *)anchor);
    if (tag)
        return pl_yaml_error(r->path, place_of(event->start_mark), r->err,
                             "'%.100s' is a tag, which is not read: omit it, or quote a text that "
                             "begins with !",
                             (const char *)tag);
    return 0;
}

static int read_scalar(const struct reader *r, const yaml_event_t *event, char **ret)
{
    const char *value = (const char *)event->data.scalar.value;

    if (strlen(value) != event->data.scalar.length)
        return pl_yaml_error(r->path, place_of(event->start_mark), r->err,
                             "a text must not have a NUL in it");
    *ret = strdup(value);
    return *ret ? 0 : pl_error_nomem(r->err);
}

static int read_node(struct reader *r, yaml_event_t *event, unsigned depth, struct pl_yaml *ret);

/* Appends an item with the node that `event` begins; owns key from now on. */
static int add_item(struct reader *r,
                    struct pl_yaml *parent,
                    char *key,
                    struct pl_yaml_place key_place,
                    yaml_event_t *event,
                    unsigned depth)
{
    struct pl_yaml *item;

    /* Grown to the next power of two. */
    if ((parent->n_items & (parent->n_items - 1)) == 0) {
        item = realloc(parent->items, PL_MAX(parent->n_items * 2, (size_t)1) * sizeof(*item));
        if (!item) {
            free(key);
            return pl_error_nomem(r->err);
        }
        parent->items = item;
    }
    item = &parent->items[parent->n_items++];
    *item = (struct pl_yaml){.key = key, .key_place = key_place};
    return read_node(r, event, depth, item);
}

/* -EINVAL: in braces a comma has ended "range(1,3,3)", whose last words look like keys. */
static int check_closed(const struct reader *r, const struct pl_yaml *map)
{
    for (size_t i = 0; i < map->n_items; i++) {
        const struct pl_yaml *item = &map->items[i];

        if (item->kind == PL_YAML_SCALAR && item->plain && strchr(item->text, '(') &&
            !strchr(item->text, ')'))
            return pl_yaml_error(r->path, item->place, r->err,
                                 "%.100s: '%.200s' has no ')': within {} a comma ends it: write "
                                 "'NAME: VALUE' in a line of its own",
                                 item->key, item->text);
    }
    return 0;
}

static int check_key(const struct reader *r,
                     const struct pl_yaml *map,
                     const char *key,
                     struct pl_yaml_place place)
{
    if (map->n_items == PL_YAML_KEYS_MAX)
        return pl_yaml_error(r->path, place, r->err, "a mapping has more than %d keys",
                             PL_YAML_KEYS_MAX);
    for (size_t i = 0; i < map->n_items; i++)
        if (strcmp(map->items[i].key, key) == 0)
            return check_closed(r, map) < 0
                       ? -EINVAL
                       : pl_yaml_error(r->path, place, r->err,
                                       "'%.100s' is given twice, first in line %u", key,
                                       map->items[i].key_place.line);
    return 0;
}

static int read_map(struct reader *r, unsigned depth, struct pl_yaml *ret)
{
    for (;;) {
        _cleanup_(finish_event) yaml_event_t key_event = {0}, event = {0};
        _cleanup_free_ char *key = NULL;
        struct pl_yaml_place place;
        int e = next(r, &key_event);

        if (e < 0 || key_event.type == YAML_MAPPING_END_EVENT)
            return e;
        place = place_of(key_event.start_mark);
        e = check_event(r, &key_event);
        if (e == 0 && key_event.type != YAML_SCALAR_EVENT)
            e = pl_yaml_error(r->path, place, r->err, "a key is a word");
        if (e == 0)
            e = read_scalar(r, &key_event, &key);
        if (e == 0)
            e = check_key(r, ret, key, place);
        if (e == 0)
            e = next(r, &event);
        if (e == 0)
            e = add_item(r, ret, PL_TAKE(key), place, &event, depth);
        if (e < 0)
            return e;
    }
}

static int read_list(struct reader *r, unsigned depth, struct pl_yaml *ret)
{
    for (;;) {
        _cleanup_(finish_event) yaml_event_t event = {0};
        int e = next(r, &event);

        if (e < 0 || event.type == YAML_SEQUENCE_END_EVENT)
            return e;
        e = add_item(r, ret, NULL, (struct pl_yaml_place){0}, &event, depth);
        if (e < 0)
            return e;
    }
}

/* Reads the node that begins with `event`, below a node of this depth. */
static int read_node(struct reader *r, yaml_event_t *event, unsigned depth, struct pl_yaml *ret)
{
    int e = check_event(r, event);

    if (e < 0)
        return e;
    ret->place = place_of(event->start_mark);
    if (event->type == YAML_SCALAR_EVENT) {
        ret->kind = PL_YAML_SCALAR;
        ret->plain = event->data.scalar.style == YAML_PLAIN_SCALAR_STYLE;
        return read_scalar(r, event, &ret->text);
    }
    if (depth == PL_YAML_DEPTH_MAX)
        return pl_yaml_error(r->path, ret->place, r->err, "lists are nested too deep");
    ret->kind = event->type == YAML_MAPPING_START_EVENT ? PL_YAML_MAP : PL_YAML_LIST;
    return ret->kind == PL_YAML_MAP ? read_map(r, depth + 1, ret) : read_list(r, depth + 1, ret);
}

/* Reads the events of a stream with at most one document. */
static int read_stream(struct reader *r, struct pl_yaml *ret)
{
    bool found = false;

    for (;;) {
        _cleanup_(finish_event) yaml_event_t event = {0};
        int e = next(r, &event);

        if (e < 0 || event.type == YAML_STREAM_END_EVENT)
            return e;
        if (event.type == YAML_STREAM_START_EVENT || event.type == YAML_DOCUMENT_START_EVENT ||
            event.type == YAML_DOCUMENT_END_EVENT)
            continue;
        if (found)
            return pl_yaml_error(r->path, place_of(event.start_mark), r->err,
                                 "a second document begins: write one");
        found = true;
        e = read_node(r, &event, 0, ret);
        if (e < 0)
            return e;
    }
}

int pl_yaml_parse(
    const char *path, const char *text, size_t len, struct pl_yaml *ret, struct pl_error *err)
{
    _cleanup_(pl_yaml_finish) struct pl_yaml root = {.kind = PL_YAML_MAP, .place = {1, 1}};
    _cleanup_(pl_buf_finish) struct pl_buf joined = {0};
    struct reader r = {.path = path, .err = err};
    uint32_t c;
    int e;

    for (size_t i = 0; i < len; i += (size_t)e) {
        e = pl_utf8_decode(text + i, len - i, &c);
        if (e < 0)
            return pl_yaml_error(path, place_at(text, i), err, "this is not valid UTF-8");
    }
    if (pl_json_pairs(text, len, &joined) < 0)
        return pl_error_nomem(err);
    r.text = joined.len ? pl_buf_str(&joined) : text;
    r.len = joined.len ? joined.len : len;
    if (!yaml_parser_initialize(&r.parser))
        return pl_error_nomem(err);
    yaml_parser_set_encoding(&r.parser, YAML_UTF8_ENCODING);
    yaml_parser_set_input_string(&r.parser, (const unsigned char *)r.text, r.len);
    e = read_stream(&r, &root);
    yaml_parser_delete(&r.parser);
    if (e < 0)
        return e;
    if (root.kind == PL_YAML_SCALAR && root.plain && !*root.text) { /* comments only */
        free(PL_TAKE(root.text));
        root.kind = PL_YAML_MAP;
    }
    *ret = root;
    root = (struct pl_yaml){0};
    return 0;
}
