/* SPDX-License-Identifier: MIT */
/* --write-job: a spec as a job file. */
#include "common/base/fs.h"
#include "common/base/utf8.h"
#include "launcher/plsubmit/job_file.h"
#include "launcher/plsubmit/spec_private.h"

#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>

static const char plain_chars[] =
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._/+-=";

/* True if any YAML reader takes the word for itself, or for the number that it is. */
static bool is_plain(const char *text)
{
    static const char *const words[] = {"null", "true", "false", "yes", "no",
                                        "on",   "off",  "y",     "n"};

    if (!*text || text[strspn(text, plain_chars)] || strchr("-=+.", text[0]))
        return false;
    for (size_t i = 0; i < PL_COUNT(words); i++)
        if (strcasecmp(text, words[i]) == 0)
            return false;
    return true;
}

/* Appends one character in double quotes (YAML 1.1, 5.6). */
static int add_char(struct pl_buf *out, const char *bytes, size_t len, uint32_t c)
{
    if (c == '"' || c == '\\')
        return pl_buf_addf(out, "\\%c", (int)c);
    if (c == '\n')
        return pl_buf_adds(out, "\\n");
    if (c < 0x20 || (c >= 0x7f && c < 0xa0))
        return pl_buf_addf(out, "\\x%02x", (unsigned)c);
    if (c == 0x2028 || c == 0x2029 || c == 0xfeff || c == 0xfffe || c == 0xffff)
        return pl_buf_addf(out, "\\u%04x", (unsigned)c);
    return pl_buf_add(out, bytes, len);
}

static int add_text(struct pl_buf *out, const char *text)
{
    size_t len = strlen(text);
    int r;

    if (is_plain(text))
        return pl_buf_adds(out, text);
    r = pl_buf_addc(out, '"');
    for (size_t i = 0; i < len && r == 0;) {
        uint32_t c;
        int n = pl_utf8_decode(text + i, len - i, &c);

        if (n < 0)
            return n;
        r = add_char(out, text + i, (size_t)n, c);
        i += (size_t)n;
    }
    return r == 0 ? pl_buf_addc(out, '"') : r;
}

static int add_items(struct pl_buf *out, char *const *items, size_t n)
{
    int r = pl_buf_addc(out, '[');

    for (size_t i = 0; i < n && r == 0; i++) {
        r = pl_buf_adds(out, i ? ", " : "");
        if (r == 0)
            r = add_text(out, items[i]);
    }
    return r == 0 ? pl_buf_adds(out, "]\n") : r;
}

/* True if --write-job is to write what has this origin. */
static bool is_own(enum pl_origin origin)
{
    return origin == PL_ORIGIN_COMMAND_LINE || origin == PL_ORIGIN_JOB_FILE;
}

static int add_item(struct pl_buf *out, const char *item)
{
    int r = pl_buf_adds(out, "  - ");

    if (r == 0)
        r = add_text(out, item);
    return r == 0 ? pl_buf_addc(out, '\n') : r;
}

/* True if the value came by --sbatch, and only there: open-mode is no option of plsubmit's own, and
 * sbatch knows more forms of values. */
static bool is_sbatchs(const struct pl_option *o, const char *value)
{
    return !o->arg || (o->target.check && o->target.check(value, NULL) < 0);
}

/* Appends such values as items of --sbatch. */
static int add_sbatchs(struct pl_buf *out, const struct pl_spec *spec, bool titled)
{
    int r = 0;

    for (int key = PL_SPEC_NAME; key <= PL_SPEC_SBATCH_LAST && r == 0; key++) {
        const struct pl_option *o = pl_spec_option((enum pl_spec_key)key);
        const struct pl_spec_value *value = &spec->values[key];
        _cleanup_free_ char *item = NULL;

        if (!is_own(value->origin) || !value->text || !is_sbatchs(o, value->text))
            continue;
        item = pl_strf("%s=%s", o->name, value->text);
        r = !item ? -ENOMEM : titled ? 0 : pl_buf_adds(out, "sbatch:\n");
        titled = true;
        if (r == 0)
            r = add_item(out, item);
    }
    return r;
}

static int add_list(struct pl_buf *out, const struct pl_spec *spec, const struct pl_option *o)
{
    enum pl_spec_list list = (enum pl_spec_list)o->target.key;
    char *const *items = spec->lists[list];
    size_t first = 0, n = 0;
    int r;

    while (items && items[n])
        n++;
    while (first < n && !is_own(pl_spec_item_origin(spec, list, first)))
        first++;
    r = first < n ? pl_buf_addf(out, "%s:\n", o->name) : 0;
    for (size_t i = first; i < n && r == 0; i++)
        r = add_item(out, items[i]);
    return r == 0 && list == PL_SPEC_SBATCH ? add_sbatchs(out, spec, first < n) : r;
}

static int add_grid(struct pl_buf *out, const struct pl_grid *grid)
{
    int r = grid->n_axes ? pl_buf_adds(out, "grid:\n") : 0;

    for (size_t i = 0; i < grid->n_axes && r == 0; i++) {
        r = pl_buf_adds(out, "  ");
        if (r == 0)
            r = add_text(out, grid->axes[i].name);
        if (r == 0)
            r = pl_buf_adds(out, ": ");
        if (r == 0)
            r = add_items(out, grid->axes[i].values, grid->axes[i].n_values);
    }
    return r;
}

static int add_value(struct pl_buf *out, const char *name, const char *value)
{
    int r = pl_buf_addf(out, "%s: ", name);

    if (r == 0)
        r = add_text(out, value);
    return r == 0 ? pl_buf_addc(out, '\n') : r;
}

static int
add_flag(struct pl_buf *out, const struct pl_spec *spec, const struct pl_option *o, bool set)
{
    if (!set && !pl_spec_names(spec->declined[PL_ORIGIN_JOB_FILE], o->name))
        return 0;
    return pl_buf_addf(out, "%s: %s\n", o->name, set ? "true" : "false");
}

static int add_option(struct pl_buf *out, const struct pl_spec *spec, const struct pl_option *o)
{
    const struct pl_spec_value *value = &spec->values[o->target.key];

    switch (pl_spec_option_form(o)) {
    case PL_SPEC_FORM_VALUE:
        return is_own(value->origin) && value->text && !is_sbatchs(o, value->text)
                   ? add_value(out, o->name, value->text)
                   : 0;
    case PL_SPEC_FORM_REMOVE:
        return add_flag(out, spec, o, is_own(value->origin) && !value->text);
    case PL_SPEC_FORM_LIST:
        return add_list(out, spec, o);
    case PL_SPEC_FORM_GRID:
        return add_grid(out, &spec->grid);
    case PL_SPEC_FORM_FLAG:
        return add_flag(out, spec, o,
                        *(const bool *)((const char *)spec + o->target.at) &&
                            !pl_spec_names(spec->flags_of_defaults, o->name));
    case PL_SPEC_FORM_COMMAND_LINE:
        break;
    }
    return 0;
}

int pl_job_file_format(const struct pl_spec *spec,
                       char *const *words,
                       struct pl_buf *out,
                       struct pl_error *err)
{
    size_t n = 0;
    int r = pl_buf_adds(out, "# plsubmit --job-file FILE; see plsubmit(1), JOB FILES\n");

    for (const struct pl_option *o = pl_spec_command.options; o->name && r == 0; o++)
        r = add_option(out, spec, o);
    while (words && words[n])
        n++;
    if (n && r == 0)
        r = pl_buf_adds(out, "command: ");
    if (n && r == 0)
        r = add_items(out, words, n);
    if (r == -EILSEQ)
        return pl_error_set(err, -EINVAL, "--write-job: an argument is not valid UTF-8");
    return r < 0 ? pl_error_nomem(err) : 0;
}

int pl_job_file_write(const struct pl_spec *spec, const struct pl_buf *text, struct pl_error *err)
{
    const char *path = spec->write_job;
    bool has_secrets = spec->lists[PL_SPEC_ENV];
    _cleanup_close_ int fd = -EBADF;
    int r;

    if (strcmp(path, "-") == 0)
        return pl_write_all(STDOUT_FILENO, text->data, text->len) < 0
                   ? pl_error_errno(err, errno, "cannot write to stdout")
                   : 0;
    fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, has_secrets ? 0600 : 0666);
    if (fd < 0 && errno == EEXIST)
        return pl_error_set(err, -EEXIST, "'%s' exists: remove it, or choose another name", path);
    if (fd < 0)
        return pl_error_errno(err, errno, "cannot create '%s'", path);
    r = pl_write_all(fd, text->data, text->len);
    if (r == 0)
        r = pl_fd_sync(fd);
    if (r == 0)
        return 0;
    unlink(path);
    return pl_error_errno(err, r, "cannot write '%s'", path);
}
