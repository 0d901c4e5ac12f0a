/* SPDX-License-Identifier: MIT */
/* Input of the plugin: its words in plugstack.conf, one a line, and the values of its options,
 * each of which may be the whole text. slurmstepd runs part of this as root. */
#include "spank_plugin/conf.h"
#include "spank_plugin/values.h"
#include "tests/fuzz/fuzz.h"

#include <stdbool.h>

static void plugstack(const char *text)
{
    struct pl_spank_conf conf = {0};
    struct pl_error err = {0};
    char *copy = strdup(text), *argv[16], *save = NULL;
    int argc = 0;

    FUZZ_CHECK(copy);
    for (char *word = strtok_r(copy, "\n", &save); word && argc < 16;
         word = strtok_r(NULL, "\n", &save))
        argv[argc++] = word;
    if (pl_conf_parse(&conf, argc, argv, &err) < 0) {
        FUZZ_CHECK(err.text[0]);
    } else {
        FUZZ_CHECK(!conf.plrund || conf.plrund[0] == '/');
        FUZZ_CHECK(!conf.runtime_dir || conf.runtime_dir[0] == '/');
        FUZZ_CHECK(!conf.scontrol || conf.scontrol[0] == '/');
        FUZZ_CHECK(!conf.namespace || conf.namespace[0] == '/');
    }
    free(copy);
}

static void values(const char *text)
{
    char *slot = NULL, *list = NULL, *once;
    struct pl_error err = {0};
    char *copy = strdup(text);

    FUZZ_CHECK(copy);
    pl_values_make_printable(copy);
    for (const char *p = copy; *p; p++)
        FUZZ_CHECK((unsigned char)*p >= 0x20 && *p != 0x7f);
    free(copy);
    FUZZ_CHECK((pl_values_copy(text, &slot, &err) == 0) == (slot != NULL));
    FUZZ_CHECK(!slot || strcmp(slot, text) == 0);
    free(slot);
    pl_values_master_port(text, &err);
    if (pl_values_metric(text, &err) == 0 && pl_values_metric_add(&list, text) == 0) {
        once = strdup(list);
        FUZZ_CHECK(once && pl_values_metric_add(&list, text) == 0);
        FUZZ_CHECK(strcmp(once, list) == 0); /* adding twice changes nothing */
        free(once);
    }
    free(list);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = fuzz_string(data, size);

    plugstack(text);
    values(text);
    free(text);
    return 0;
}
