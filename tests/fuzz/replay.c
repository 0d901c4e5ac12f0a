/* SPDX-License-Identifier: MIT */
/* Runs a fuzz target over every file of a corpus folder: what a fuzzer found once is tried for
 * ever, with any compiler. Usage: fuzz-NAME FOLDER. */
#include "tests/fuzz/fuzz.h"

#include <dirent.h>
#include <stdio.h>

static int replay_file(const char *path)
{
    uint8_t *data = NULL;
    size_t len = 0;
    FILE *in = fopen(path, "rbe");

    if (!in)
        return -1;
    for (size_t got = 1; got > 0; len += got) {
        uint8_t *more = realloc(data, len + 4096);

        if (!more) {
            free(data);
            fclose(in);
            return -1;
        }
        data = more;
        got = fread(data + len, 1, 4096, in);
    }
    fclose(in);
    LLVMFuzzerTestOneInput(data, len);
    free(data);
    return 0;
}

int main(int argc, char **argv)
{
    char path[4096];
    unsigned n = 0;
    struct dirent *entry;
    DIR *dir = argc == 2 ? opendir(argv[1]) : NULL;

    if (!dir) {
        fprintf(stderr, "usage: fuzz-NAME FOLDER\n");
        return 2;
    }
    while ((entry = readdir(dir))) {
        if (entry->d_name[0] == '.')
            continue;
        snprintf(path, sizeof(path), "%s/%s", argv[1], entry->d_name);
        fprintf(stderr, "%s\n", entry->d_name); /* the last one named is the one that broke */
        if (replay_file(path) < 0) {
            perror(path);
            return 1;
        }
        n++;
    }
    closedir(dir);
    fprintf(stderr, "%u inputs\n", n);
    return n ? 0 : 1;
}
