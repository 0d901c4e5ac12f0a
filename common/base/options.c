/* SPDX-License-Identifier: MIT */
#include "common/base/options.h"
#include "common/base/near.h"

#include <string.h>
#include <sys/auxv.h>

#ifndef PL_VERSION
#define PL_VERSION "0.0.0"
#endif

#define HELP_WIDTH 80
#define HELP_COLUMN 28

const char *pl_version(void)
{
    return PL_VERSION;
}

/* Writes text from column `at` on, broken at blanks, continued at HELP_COLUMN or `indent`. */
static void wrap(FILE *out, const char *text, size_t at, size_t indent)
{
    while (*text) {
        size_t word = strcspn(text, " \n");

        if (at > indent && at + 1 + word > HELP_WIDTH) {
            fprintf(out, "\n%*s", (int)indent, "");
            at = indent;
        } else if (at > indent) {
            fputc(' ', out);
            at++;
        }
        fprintf(out, "%.*s", (int)word, text);
        at += word;
        text += word;
        if (*text == '\n') {
            fprintf(out, "\n%*s", (int)indent, "");
            at = indent;
            text++;
        }
        while (*text == ' ')
            text++;
    }
    fputc('\n', out);
}

static bool optional_argument(const struct pl_option *o)
{
    /* "[SEC]", and not "[TYPE:]N". */
    return o->arg && o->arg[0] == '[' && o->arg[strlen(o->arg) - 1] == ']';
}

static void help_option(const struct pl_option *o, FILE *out)
{
    char left[80];
    int n;

    n = snprintf(left, sizeof(left), "  %c%c%s--%s%s%s", o->short_name ? '-' : ' ',
                 o->short_name ? o->short_name : ' ', o->short_name ? ", " : "  ", o->name,
                 !o->arg                ? ""
                 : optional_argument(o) ? "[="
                                        : " ",
                 !o->arg                ? ""
                 : optional_argument(o) ? o->arg + 1
                                        : o->arg);
    fputs(left, out);
    if (n >= HELP_COLUMN)
        fputc('\n', out);
    fprintf(out, "%*s", n >= HELP_COLUMN ? HELP_COLUMN : HELP_COLUMN - n, "");
    wrap(out, o->help, HELP_COLUMN, HELP_COLUMN);
}

int pl_options_help(const struct pl_command *command, FILE *out)
{
    static const struct pl_option builtin[] = {
        {"help", 'h', NULL, NULL, "show this text and exit", {0}},
        {"version", 'V', NULL, NULL, "show the version and exit", {0}},
    };
    const char *line = command->synopsis, *end;

    for (int first = 1; line; first = 0, line = end ? end + 1 : NULL) {
        end = strchr(line, '\n');
        fprintf(out, "%s %s %.*s\n", first ? "Usage:" : "   or:", command->name,
                end ? (int)(end - line) : (int)strlen(line), line);
    }
    fputc('\n', out);
    wrap(out, command->summary, 0, 0);
    for (const struct pl_option *o = command->options; o && o->name; o++) {
        if (o->group)
            fprintf(out, "\n%s:\n", o->group);
        if (o->help)
            help_option(o, out);
    }
    fprintf(out, "\n%s:\n", command->options && command->options->name ? "Other" : "Options");
    for (size_t i = 0; i < PL_COUNT(builtin); i++)
        help_option(&builtin[i], out);
    if (command->footer) {
        fputc('\n', out);
        wrap(out, command->footer, 0, 0);
    }
    return fflush(out) != 0 || ferror(out) ? -EIO : 0;
}

static bool takes_no_value(pl_option_f set)
{
    return set == pl_option_set_true || set == pl_option_set_false;
}

static bool takes_a_value(pl_option_f set)
{
    return set == pl_option_set_string || set == pl_option_set_int || set == pl_option_set_int64 ||
           set == pl_option_set_real || set == pl_option_set_choice;
}

int pl_options_check(const struct pl_command *command, struct pl_error *err)
{
    for (const struct pl_option *o = command->options; o && o->name; o++) {
        pl_option_f set = o->target.set;

        if (!set)
            return pl_error_set(err, -ENOTSUP, "defect: option '--%s' has no target", o->name);
        if (o->arg ? takes_no_value(set) : takes_a_value(set))
            return pl_error_set(err, -ENOTSUP, "defect: option '--%s' has %s argument", o->name,
                                o->arg ? "a superfluous" : "no");
        if (takes_a_value(set) && optional_argument(o))
            return pl_error_set(err, -ENOTSUP, "defect: option '--%s' must not be without a value",
                                o->name);
        for (const struct pl_option *p = command->options; p != o; p++)
            if (strcmp(p->name, o->name) == 0 || (p->short_name && p->short_name == o->short_name))
                return pl_error_set(err, -ENOTSUP, "defect: option '--%s' is defined twice",
                                    o->name);
    }
    return 0;
}

static bool same_name(const struct pl_command *command, const char *name, const char *s, size_t len)
{
    if (strlen(name) != len)
        return false;
    for (size_t i = 0; i < len; i++)
        if (name[i] != s[i] && !(command->underscores && name[i] == '-' && s[i] == '_'))
            return false;
    return true;
}

static const struct pl_option *
find_long(const struct pl_command *command, const char *s, size_t len)
{
    for (const struct pl_option *o = command->options; o && o->name; o++)
        if (same_name(command, o->name, s, len))
            return o;
    return NULL;
}

static const struct pl_option *find_short(const struct pl_option *table, char c)
{
    for (const struct pl_option *o = table; o && o->name; o++)
        if (o->short_name && o->short_name == c)
            return o;
    return NULL;
}

const struct pl_option *pl_options_find(const struct pl_command *command, const char *word)
{
    if (word[0] != '-' || !word[1])
        return NULL;
    if (word[1] != '-')
        return find_short(command->options, word[1]);
    return find_long(command, word + 2, strcspn(word, "=") - 2);
}

static int builtin(const struct pl_command *command, const char *word, bool *ret_done)
{
    if (strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0) {
        pl_options_help(command, stdout);
    } else if (strcmp(word, "--version") == 0 || strcmp(word, "-V") == 0) {
        printf("%s (Plume) %s\n", command->name, pl_version());
        fflush(stdout);
    } else {
        return 0;
    }
    *ret_done = true;
    return 1;
}

/* Names the option of `word`, whose name ends at len, and the known one that is most alike. */
static int
unknown(const struct pl_command *command, const char *word, size_t len, struct pl_error *err)
{
    _cleanup_free_ char *name = word[1] == '-' ? strndup(word + 2, len - 2) : NULL;
    struct pl_near near = {.word = name ? name : ""};
    _cleanup_free_ char *whole = strndup(word, word[1] == '-' ? len : 2);
    int r = command->explain && whole ? command->explain(whole, err) : 0;

    if (r < 0)
        return r;
    for (const struct pl_option *o = command->options; o && o->name; o++)
        if (o->help)
            pl_near_offer(&near, o->name);
    if (near.best)
        return pl_error_set(err, -EINVAL, "unknown option '--%.100s': did you mean --%s?", name,
                            near.best);
    return pl_error_set(err, -EINVAL, "unknown option '%.*s': see %s --help",
                        word[1] == '-' ? (int)len : 2, word, command->name);
}

/* True for "--NAME" or "--NAME=VALUE" of the command: after an option that needs a value this value
 * was forgotten. A word with a blank is free text, as in --comment '--time=3 variant'. */
static bool is_option(const struct pl_command *command, const char *word)
{
    return strcmp(word, "--help") == 0 || strcmp(word, "--version") == 0 ||
           (strncmp(word, "--", 2) == 0 && !word[strcspn(word, " \t\n")] &&
            pl_options_find(command, word));
}

int pl_options_parse(const struct pl_command *command,
                     int argc,
                     char **argv,
                     void *ctx,
                     int *ret_rest,
                     bool *ret_done,
                     struct pl_error *err)
{
    int i, r = pl_options_check(command, err);

    if (r < 0)
        return r;
    if (getauxval(AT_SECURE)) /* nothing here was written to be trusted by its caller's enemy */
        return pl_error_set(err, -EPERM,
                            "%s has the rights of another user (set-user-ID, set-group-ID or file "
                            "capabilities): remove them from the file, it needs none",
                            command->name);
    *ret_done = false;
    for (i = 1; i < argc; i++) {
        const char *word = argv[i], *value = NULL;
        const struct pl_option *o;
        size_t len;

        if (word[0] != '-' || word[1] == '\0')
            break;
        if (strcmp(word, "--") == 0) {
            i++;
            break;
        }
        len = strcspn(word, "=");
        o = pl_options_find(command, word);
        if (!o) {
            if (builtin(command, word, ret_done)) {
                *ret_rest = i;
                return 0;
            }
            return unknown(command, word, len, err);
        }
        if (word[1] == '-' && word[len] == '=')
            value = word + len + 1;
        else if (word[1] != '-' && word[2])
            value = word + 2;
        if (value && !o->arg)
            return pl_error_set(err, -EINVAL, "option '--%s' takes no value", o->name);
        if (!value && o->arg && !optional_argument(o)) {
            if (++i == argc)
                return pl_error_set(err, -EINVAL, "option '--%s' needs a value: --%s %s", o->name,
                                    o->name, o->arg);
            value = argv[i];
            if (is_option(command, value))
                return pl_error_set(err, -EINVAL,
                                    "option '--%s' needs a value, and '%.100s' is an option: write "
                                    "--%s=%.100s if it is meant",
                                    o->name, value, o->name, value);
        }
        r = o->target.set(ctx, o, value, err);
        if ((r == -EINVAL || r == -ERANGE) && value && command->explain_value)
            command->explain_value(o->name, value, err);
        if (r < 0)
            return pl_error_wrap(err, r, "--%s", o->name);
    }
    *ret_rest = i;
    return 0;
}
