/* SPDX-License-Identifier: MIT */
/* The job script of hostile values, one a line of the input: a shell reads each value back byte for
 * byte, and no value becomes a line of its own. */
#include "launcher/plsubmit/script.h"
#include "tests/fuzz/fuzz.h"

#include <stdio.h>

/* Reads quoted words as bash does, with "'\''" and the like; false if anything is unquoted. */
static bool unquote(const char *p, char *to)
{
    while (*p) {
        if (*p == '\\' && p[1] == '\'') {
            *to++ = '\'';
            p += 2;
        } else if (*p == '\'') {
            for (p++; *p && *p != '\''; p++)
                *to++ = *p;
            if (*p++ != '\'')
                return false;
        } else {
            return false;
        }
    }
    *to = '\0';
    return true;
}

static void quote(const char *s)
{
    char *back = malloc(strlen(s) + 1);
    struct pl_buf b = {0};
    int r = pl_script_quote(&b, s);

    FUZZ_CHECK(back);
    FUZZ_CHECK((r < 0) == (strchr(s, '\n') != NULL));
    if (r == 0)
        FUZZ_CHECK(unquote(pl_buf_str(&b), back) && strcmp(back, s) == 0);
    pl_buf_finish(&b);
    free(back);
}

static size_t count_lines(const struct pl_buf *b)
{
    size_t n = 0;

    for (size_t i = 0; i < b->len; i++)
        n += b->data[i] == '\n';
    return n;
}

static struct pl_script script_of(char **words, size_t n)
{
    static const char *lists[4][2];
    const char *word[8];

    for (size_t i = 0; i < 8; i++)
        word[i] = i < n ? words[i] : "x";
    for (size_t i = 0; i < 4; i++) {
        lists[i][0] = word[4 + i];
        lists[i][1] = NULL;
    }
    return (struct pl_script){.sweep = word[0],
                              .run_dir = word[1],
                              .bin_dir = word[2],
                              .array = "0-1",
                              .program = word[3],
                              .sbatch_args = lists[0],
                              .modules = lists[1],
                              .env_files = lists[2],
                              .srun = lists[3]};
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = fuzz_string(data, size), *words[8] = {NULL}, *save = NULL;
    struct pl_script script, tame;
    struct pl_buf out = {0}, tame_out = {0};
    struct pl_error err = {0};
    size_t n = 0;

    quote(text);
    for (char *w = strtok_r(text, "\n", &save); w && n < 8; w = strtok_r(NULL, "\n", &save)) {
        quote(w);
        words[n++] = w;
    }
    tame = script_of(words, 0);
    FUZZ_CHECK(pl_script_render(&tame, &tame_out, &err) == 0);
    script = script_of(words, n);
    if (pl_script_render(&script, &out, &err) < 0)
        FUZZ_CHECK(err.text[0]);
    else /* an sbatch option that no #SBATCH line can hold has none */
        FUZZ_CHECK(count_lines(&out) <= count_lines(&tame_out) + 1);
    pl_buf_finish(&out);
    pl_buf_finish(&tame_out);
    free(text);
    return 0;
}
