/* SPDX-License-Identifier: MIT */
#include "launcher/plsubmit/job_file.h"
#include "common/base/fs.h"
#include "common/base/near.h"
#include "launcher/plsubmit/range.h"
#include "launcher/plsubmit/spec_private.h"
#include "launcher/plsubmit/yaml_tree.h"

#include <string.h>

struct file {
    const char *path;
    struct pl_spec *spec;
    struct pl_error *err;
};

static const char command_key[] = "command";

/* "FILE:LINE:COLUMN: KEY: " in front of an error. */
static int wrap(const struct file *f, struct pl_yaml_place place, const char *key, int r)
{
    if (r == -ENOMEM)
        return pl_error_nomem(f->err);
    return pl_error_wrap(f->err, r, "%.300s:%u:%u: %.100s", f->path, place.line, place.column, key);
}

static bool is_word(const struct pl_yaml *node, const char *word)
{
    return node->kind == PL_YAML_SCALAR && node->plain && strcmp(node->text, word) == 0;
}

/* Returns the text of a scalar, or NULL and sets err if the node has no value. */
static const char *text_of(const struct file *f, const struct pl_yaml *node, const char *key)
{
    if (node->kind != PL_YAML_SCALAR)
        pl_yaml_error(f->path, node->place, f->err, "%.100s: one value is needed, not a %s", key,
                      node->kind == PL_YAML_LIST ? "list"
                                                 : "mapping: quote a text that has ': ' in it");
    else if (is_word(node, "") || is_word(node, "~") || is_word(node, "null"))
        pl_yaml_error(f->path, node->place, f->err,
                      "%.100s: there is no value: omit it, or write \"%s\"", key, node->text);
    else
        return node->text;
    return NULL;
}

static int
set(const struct file *f, const struct pl_option *o, struct pl_yaml_place place, const char *value)
{
    int r = o->target.set(f->spec, o, value, f->err);

    return r < 0 ? wrap(f, place, o->name, r) : 0;
}

/* true or false; -EINVAL. */
static int read_flag(const struct file *f, const struct pl_option *o, const struct pl_yaml *node)
{
    if (is_word(node, "false"))
        return pl_strv_append(&f->spec->declined[f->spec->source], o->name) < 0
                   ? pl_error_nomem(f->err)
                   : 0;
    if (!is_word(node, "true"))
        return pl_yaml_error(f->path, node->place, f->err, "%s: write true or false", o->name);
    return set(f, o, node->place, NULL);
}

/* -EINVAL: in braces or brackets a comma has ended range(...), or what --sample draws from. */
static int check_closed(const struct file *f,
                        const struct pl_option *o,
                        const struct pl_yaml *node,
                        const char *key)
{
    bool sample = o->target.key == PL_SPEC_SAMPLE;

    if (node->kind != PL_YAML_SCALAR || !node->plain || strchr(node->text, ')') ||
        !(sample ? strchr(node->text, '(') != NULL : pl_range_begins(node->text)))
        return 0;
    return pl_yaml_error(f->path, node->place, f->err,
                         "%.100s: '%.200s' has no ')': within {} or [] a comma ends it: write "
                         "'NAME: VALUE' in a line of its own",
                         key, node->text);
}

/* ---- lists ---- */

/* "KEY=VALUE" of an item of a mapping. "KEY" alone if `flags` and the value is true. */
static int
read_pair(const struct file *f, const struct pl_option *o, const struct pl_yaml *node, bool flags)
{
    const char *value = flags && is_word(node, "true") ? "" : text_of(f, node, node->key);
    _cleanup_free_ char *text = NULL;

    if (!value || (o->target.key == PL_SPEC_SAMPLE && check_closed(f, o, node, node->key) < 0))
        return -EINVAL;
    if (strchr(node->key, '='))
        return pl_yaml_error(f->path, node->key_place, f->err, "%s: '%.100s' has a =", o->name,
                             node->key);
    text = pl_strf("%s%s%s", node->key, *value || !flags ? "=" : "", value);
    return text ? set(f, o, node->key_place, text) : pl_error_nomem(f->err);
}

/* A,B of a list of axes that change together. */
static int read_zip(const struct file *f, const struct pl_option *o, const struct pl_yaml *node)
{
    _cleanup_(pl_buf_finish) struct pl_buf text = {0};
    int r = 0;

    for (size_t i = 0; i < node->n_items && r == 0; i++) {
        const char *axis = text_of(f, &node->items[i], o->name);

        if (!axis)
            return -EINVAL;
        r = pl_buf_addf(&text, "%s%s", i ? "," : "", axis);
    }
    return r < 0 ? pl_error_nomem(f->err) : set(f, o, node->place, pl_buf_str(&text));
}

static int
read_list_item(const struct file *f, const struct pl_option *o, const struct pl_yaml *node)
{
    const char *text;

    if (node->kind == PL_YAML_LIST && o->target.key == PL_SPEC_ZIP)
        return read_zip(f, o, node);
    text = text_of(f, node, o->name);
    return text ? set(f, o, node->place, text) : -EINVAL;
}

static int read_list(const struct file *f, const struct pl_option *o, const struct pl_yaml *node)
{
    enum pl_spec_list list = (enum pl_spec_list)o->target.key;
    bool flags = list == PL_SPEC_SBATCH || list == PL_SPEC_SRUN;
    bool pairs = flags || list == PL_SPEC_SBATCH_COMMENT || list == PL_SPEC_ENV ||
                 list == PL_SPEC_METRIC || list == PL_SPEC_SAMPLE || list == PL_SPEC_HPARAM;
    int r = 0;

    if (node->kind == PL_YAML_SCALAR)
        return read_list_item(f, o, node);
    if (node->kind == PL_YAML_MAP && !pairs)
        return pl_yaml_error(f->path, node->place, f->err, "%s: write a list: [A, B, ...]",
                             o->name);
    for (size_t i = 0; i < node->n_items && r == 0; i++)
        r = node->kind == PL_YAML_MAP ? read_pair(f, o, &node->items[i], flags)
                                      : read_list_item(f, o, &node->items[i]);
    return r;
}

/* ---- axes ---- */

/* Appends a value as --grid takes it, in quotes so that it stands for itself. */
static int add_quoted(struct pl_buf *out, const char *value)
{
    int r = pl_buf_addc(out, '"');

    for (; *value && r == 0; value++)
        r = *value == '"' ? pl_buf_adds(out, "\"\"") : pl_buf_addc(out, *value);
    return r == 0 ? pl_buf_addc(out, '"') : r;
}

static int read_axis(const struct file *f, const struct pl_option *o, const struct pl_yaml *axis)
{
    _cleanup_(pl_buf_finish) struct pl_buf text = {0};
    const struct pl_yaml *items = axis->kind == PL_YAML_LIST ? axis->items : axis;
    size_t n = axis->kind == PL_YAML_LIST ? axis->n_items : 1;
    int r = pl_buf_addf(&text, "%s=", axis->key);

    if (n == 0)
        return pl_yaml_error(f->path, axis->place, f->err, "%s: the list is empty", axis->key);
    for (size_t i = 0; i < n && r == 0; i++) {
        const char *value = text_of(f, &items[i], axis->key);

        if (!value || check_closed(f, o, &items[i], axis->key) < 0)
            return -EINVAL;
        if (items != axis || !items[i].plain) {
            r = i ? pl_buf_addc(&text, ',') : 0;
            if (r == 0)
                r = add_quoted(&text, value);
            continue;
        }
        if (strchr(value, ',') && !pl_range_is(value))
            return pl_yaml_error(f->path, items[i].place, f->err,
                                 "%s: write a list, [A, B], or in quotes the one value \"%.200s\"",
                                 axis->key, value);
        r = pl_range_is(value) ? pl_buf_adds(&text, value) : add_quoted(&text, value);
    }
    return r < 0 ? pl_error_nomem(f->err) : set(f, o, axis->key_place, pl_buf_str(&text));
}

static int read_grid(const struct file *f, const struct pl_option *o, const struct pl_yaml *node)
{
    int r = 0;

    if (node->kind != PL_YAML_MAP)
        return pl_yaml_error(f->path, node->place, f->err,
                             "grid: write each axis in a line below: '  NAME: [V1, V2, ...]'");
    for (size_t i = 0; i < node->n_items && r == 0; i++)
        r = read_axis(f, o, &node->items[i]);
    return r;
}

/* ---- the program ---- */

struct splitter {
    struct pl_buf word;
    bool in_word;
    char quote; /* 0 outside of quotes */
};

static void splitter_finish(struct splitter *s)
{
    pl_buf_finish(&s->word);
}

/* True if a shell would not take the character as it is. */
static bool is_special(const struct splitter *s, const char *p)
{
    if (s->quote)
        return s->quote == '"' && strchr("$`\\", *p);
    if (*p == '\n')
        return p[strspn(p, " \t\n")] != '\0';
    return strchr("|&;<>()$`\\*?[", *p) || (!s->in_word && (*p == '#' || *p == '~'));
}

static int end_word(struct splitter *s, char ***words)
{
    _cleanup_free_ char *word = s->in_word ? pl_buf_take(&s->word) : NULL;

    if (!s->in_word)
        return 0;
    s->in_word = false;
    return word ? pl_strv_append(words, word) : -ENOMEM;
}

static int split_char(struct splitter *s, char c, char ***words)
{
    if (s->quote ? c == s->quote : c == '\'' || c == '"') {
        s->quote = s->quote ? 0 : c;
        s->in_word = true;
        return 0;
    }
    if (!s->quote && (c == ' ' || c == '\t' || c == '\n'))
        return end_word(s, words);
    s->in_word = true;
    return pl_buf_addc(&s->word, c);
}

/* Splits a command at blanks, with quotes as in a shell. Refuses what only a shell understands. */
static int split_command(const struct file *f, const struct pl_yaml *node)
{
    _cleanup_(splitter_finish) struct splitter s = {0};
    int r = 0;

    for (const char *p = node->text; *p && r == 0; p++) {
        if (is_special(&s, p))
            return pl_yaml_error(f->path, node->place, f->err,
                                 "command: no shell reads it, and '%s' means something to one: "
                                 "write the words as a list, or [bash, -c, ...]",
                                 *p == '\n' ? "\\n" : (char[]){*p, '\0'});
        r = split_char(&s, *p, &f->spec->command);
    }
    if (s.quote)
        return pl_yaml_error(f->path, node->place, f->err, "command: the closing %c is missing",
                             s.quote);
    if (r == 0)
        r = end_word(&s, &f->spec->command);
    return r < 0 ? pl_error_nomem(f->err) : 0;
}

static int read_command(const struct file *f, const struct pl_yaml *node)
{
    int r = 0;

    if (node->kind == PL_YAML_MAP)
        return pl_yaml_error(f->path, node->place, f->err,
                             "command: write a text or a list of words");
    if (node->kind == PL_YAML_SCALAR)
        r = text_of(f, node, command_key) ? split_command(f, node) : -EINVAL;
    for (size_t i = 0; i < node->n_items && r == 0; i++) {
        const char *word = text_of(f, &node->items[i], command_key);

        if (!word)
            return -EINVAL;
        r = pl_strv_append(&f->spec->command, word) < 0 ? pl_error_nomem(f->err) : 0;
    }
    if (r < 0)
        return r;
    if (!f->spec->command || !*f->spec->command[0])
        return pl_yaml_error(f->path, node->place, f->err, "command: there is no program");
    return 0;
}

/* ---- keys ---- */

static const struct pl_option *find(const char *key)
{
    for (const struct pl_option *o = pl_spec_command.options; o->name; o++)
        if (strcmp(o->name, key) == 0 && o->help)
            return o;
    return NULL;
}

/* The key that is nearly this one; NULL: none. */
static const char *nearest(const char *key)
{
    struct pl_near near = {.word = key};

    for (const struct pl_option *o = pl_spec_command.options; o->name; o++)
        if (o->help)
            pl_near_offer(&near, o->name);
    pl_near_offer(&near, command_key);
    return near.best;
}

/* True for options of ours with a name that many programs have, too. */
static bool is_common(const char *key)
{
    return strcmp(key, "name") == 0 || strcmp(key, "seed") == 0;
}

/* True if no key of the file is ours, as in a file of hyper-parameters (test-tube's json_config).
 * but_common: besides "name" and "seed", where another key is not even nearly ours. */
static bool is_foreign(const struct pl_yaml *root, bool but_common)
{
    bool any = false, common = false, near = false;

    for (size_t i = 0; i < root->n_items; i++) {
        const char *key = root->items[i].key;
        bool ours = find(key) || strcmp(key, command_key) == 0;

        if (ours && !(but_common && is_common(key)))
            return false;
        common |= ours;
        any |= !ours;
        near |= !ours && nearest(key);
    }
    return any && !(common && near);
}

static int unknown_key(const struct file *f, const struct pl_yaml *root, const struct pl_yaml *node)
{
    _cleanup_free_ char *word = pl_strf("--%s", node->key);
    int r;

    if (!word)
        return pl_error_nomem(f->err);
    if (is_foreign(root, false) && (root->n_items > 1 || node->kind != PL_YAML_SCALAR))
        return pl_yaml_error(f->path, node->key_place, f->err,
                             "unknown key '%.100s', and no key of this file is an option: if they "
                             "are hyper-parameters, put them below 'grid:', indented",
                             node->key);
    r = pl_spec_command.explain(word, f->err);
    if (r < 0)
        return wrap(f, node->key_place, node->key, r);
    if (nearest(node->key))
        return pl_yaml_error(f->path, node->key_place, f->err,
                             "unknown key '%.100s': did you mean %s?", node->key,
                             nearest(node->key));
    return pl_yaml_error(f->path, node->key_place, f->err,
                         "unknown key '%.100s': keys are the long options of plsubmit, and "
                         "'command'; a hyper-parameter stands below 'grid:'",
                         node->key);
}

/* A file of defaults has nothing that belongs to one sweep. */
static bool is_of_sweep(const struct pl_option *o)
{
    static const char *const names[] = {"grid",    "where",   "zip",    "sample",    "random",
                                        "seed",    "trials",  "repeat", "name",      "objective",
                                        "literal", "comment", "after",  "dependency"};

    for (size_t i = 0; i < PL_COUNT(names); i++)
        if (!o || strcmp(o->name, names[i]) == 0)
            return true;
    return false;
}

/* A JSON file of hyper-parameters, such as test-tube's json_config reads: each is an axis of one
 * value. A file in YAML stays an error, since its keys may be misspelt options. */
static bool is_hparams(const struct file *f, const struct pl_yaml *root)
{
    const char *dot = strrchr(f->path, '.');

    return f->spec->source == PL_ORIGIN_JOB_FILE && dot && strcmp(dot, ".json") == 0 &&
           is_foreign(root, true);
}

static int read_hparams(const struct file *f, const struct pl_yaml *root)
{
    const struct pl_option *o = find("grid");
    bool common = false;
    int r = 0;

    for (size_t i = 0; i < root->n_items && r == 0; i++) {
        struct pl_yaml item = root->items[i]; /* borrowed */
        const char *value;
        char python[6];

        common |= is_common(item.key);
        if (item.kind != PL_YAML_SCALAR)
            return pl_yaml_error(f->path, item.place, f->err,
                                 "%.100s: a hyper-parameter has one value; several are an axis "
                                 "below 'grid'",
                                 item.key);
        value = text_of(f, &item, item.key);
        if (!value)
            return -EINVAL;
        if (is_word(&item, "true") || is_word(&item, "false")) { /* as Python writes them */
            snprintf(python, sizeof(python), "%s", value[0] == 't' ? "True" : "False");
            item.text = python;
        }
        r = read_axis(f, o, &item);
    }
    if (r == 0 && pl_spec_warn(f->spec,
                               "'%s' has no option of plsubmit%s: its %zu keys are "
                               "hyper-parameters with one value each",
                               f->path, common ? " but 'name' or 'seed'" : "", root->n_items) < 0)
        r = pl_error_nomem(f->err);
    return r;
}

static int read_item(const struct file *f, const struct pl_yaml *root, const struct pl_yaml *node)
{
    const struct pl_option *o = find(node->key);
    const char *text;

    if (!o && strcmp(node->key, command_key) != 0)
        return unknown_key(f, root, node);
    if (f->spec->source != PL_ORIGIN_JOB_FILE && is_of_sweep(o))
        return pl_yaml_error(
            f->path, node->key_place, f->err,
            "'%s' belongs to one sweep: write it on the command line or into a job "
            "file",
            node->key);
    if (!o)
        return read_command(f, node);
    switch (pl_spec_option_form(o)) {
    case PL_SPEC_FORM_VALUE:
        if (o->arg && o->arg[0] == '[' && strchr(o->arg, ']')[1] == '\0' && is_word(node, "true"))
            return set(f, o, node->place, NULL); /* --local of --local[=J] */
        text = text_of(f, node, o->name);
        return text ? set(f, o, node->place, text) : -EINVAL;
    case PL_SPEC_FORM_LIST:
        return read_list(f, o, node);
    case PL_SPEC_FORM_GRID:
        return read_grid(f, o, node);
    case PL_SPEC_FORM_FLAG:
    case PL_SPEC_FORM_REMOVE:
        return read_flag(f, o, node);
    case PL_SPEC_FORM_COMMAND_LINE:
        break;
    }
    return pl_yaml_error(f->path, node->key_place, f->err, "'%s' belongs on the command line: --%s",
                         node->key, node->key);
}

int pl_job_file_parse(const char *path,
                      const char *text,
                      size_t len,
                      enum pl_origin origin,
                      struct pl_spec *ret,
                      struct pl_error *err)
{
    _cleanup_(pl_spec_finish) struct pl_spec spec = {.source = origin};
    _cleanup_(pl_yaml_finish) struct pl_yaml root = {0};
    struct file f = {.path = path, .spec = &spec, .err = err};
    int r = pl_yaml_parse(path, text, len, &root, err);

    if (r < 0)
        return r;
    if (root.kind != PL_YAML_MAP)
        return pl_yaml_error(path, root.place, err, "write 'KEY: VALUE' in each line");
    if (is_hparams(&f, &root))
        r = read_hparams(&f, &root);
    else
        for (size_t i = 0; i < root.n_items && r == 0; i++)
            r = read_item(&f, &root, &root.items[i]);
    if (r < 0)
        return r;
    for (size_t list = 0; list < PL_SPEC_N_LISTS; list++)
        while (spec.lists[list] && spec.lists[list][spec.n_of_file[list][origin]])
            spec.n_of_file[list][origin]++;
    *ret = spec;
    spec = (struct pl_spec){0};
    return 0;
}

int pl_job_file_read(const char *path,
                     enum pl_origin origin,
                     struct pl_spec *ret,
                     struct pl_error *err)
{
    _cleanup_free_ char *text = NULL;
    size_t len = 0;
    int r = pl_file_read(path, PL_YAML_BYTES_MAX, &text, &len, err);

    return r < 0 ? r : pl_job_file_parse(path, text, len, origin, ret, err);
}
