/* SPDX-License-Identifier: MIT */
#include "common/base/program.h"
#include "common/base/fs.h"
#include "common/base/parse.h"
#include "launcher/plsubmit/spec.h"

#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static bool is_options_file(const char *name)
{
    const char *dot = strrchr(name, '.');

    return dot && (!strcmp(dot, ".yaml") || !strcmp(dot, ".yml") || !strcmp(dot, ".json")) &&
           access(name, R_OK) == 0;
}

static bool ends_in(const char *name, const char *ending)
{
    const char *dot = strrchr(name, '.');

    return dot && strcmp(dot, ending) == 0;
}

/* True for a file with the name of a module's entry, as plume/module.h has it: some other shared
 * objects can be started, as ld.so can. */
static bool is_module(const char *path)
{
    static const char entry[] = "plume_module_entry";
    _cleanup_close_ int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    struct stat st;
    bool found;
    void *data;

    if (fd < 0 || fstat(fd, &st) < 0 || !S_ISREG(st.st_mode) || st.st_size <= 0)
        return false;
    data = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (data == MAP_FAILED)
        return false;
    found = memmem(data, (size_t)st.st_size, entry, sizeof(entry));
    munmap(data, (size_t)st.st_size);
    return found;
}

/* Of a name that is not in PATH: a word of a shell, or one that other programs have for a
 * sub-command, a whole command line in quotes, or a part of an axis that a blank has cut off. */
static char *named_otherwise(const char *name)
{
    static const char *const views[] = {"status", "list", "ls", "ps", "show", "sweep", "why"};
    static const struct {
        const char *word, *instead;
    } others[] = {
        {"module", "write --load MODULE"},
        {"cd", "write --setup 'cd FOLDER'"},
        {"source", "write --setup 'source FILE'"},
        {"export", "write --env NAME=VALUE"},
        {"ulimit", "write --setup 'ulimit OPTIONS'"},
        {"run", "write the program itself"},
        {"submit", "write the program itself"},
    };
    _cleanup_free_ char *option = pl_strf("--%s", name);
    const char *equals = strchr(name, '=');
    double number;

    for (size_t i = 0; i < PL_COUNT(views); i++)
        if (strcmp(name, views[i]) == 0)
            return pl_strf("program '%s' is not in PATH: plstat shows sweeps and jobs", name);
    for (size_t i = 0; i < PL_COUNT(others); i++)
        if (strcmp(name, others[i].word) == 0)
            return pl_strf("program '%s' is not in PATH: %s", name, others[i].instead);
    if (option && (strcmp(name, "help") == 0 || pl_options_find(&pl_spec_command, option)))
        return pl_strf("program '%s' is not in PATH: the option is --%s", name, name);
    if (strchr(name, ' '))
        return pl_strf("program '%s' is not in PATH: write its words without quotes around all of "
                       "them",
                       name);
    if (equals && pl_name_valid(name, (size_t)(equals - name)))
        return pl_strf("program '%s' is not in PATH: write --grid %s for an axis, --env %s for a "
                       "variable",
                       name, name, name);
    if (strchr(name, ',') || pl_parse_double(name, &number, NULL) == 0)
        return pl_strf("program '%s' is not in PATH: values of an axis are one word, with commas "
                       "and without blanks: --grid NAME=V1,V2",
                       name);
    return pl_strf("program '%s' is not in PATH", name);
}

/* The reason why the program cannot be used, and what to do. */
static char *reason(const char *name)
{
    struct stat st;

    if (is_options_file(name))
        return pl_strf("'%s' is not a program: for a file of options write --job-file %s", name,
                       name);
    if (ends_in(name, ".so") && access(name, F_OK) == 0)
        return pl_strf("'%s' is a shared object, not a program: to train this module write pltrain "
                       "%s%s",
                       name, strchr(name, '/') ? "" : "./", name);
    if (!strchr(name, '/')) {
        if (stat(name, &st) == 0)
            return pl_strf("program '%s' is not in PATH: write ./%s for the file in this folder",
                           name, name);
        return named_otherwise(name);
    }
    if (stat(name, &st) < 0)
        return pl_strf("program '%s' cannot be found: %s", name, strerror(errno));
    if (!S_ISREG(st.st_mode))
        return pl_strf("program '%s' is not a file", name);
    if (ends_in(name, ".c"))
        return pl_strf("'%s' is a C source, not a program: compile the module as plume-module(7) "
                       "shows, and write pltrain and the file that the compiler made",
                       name);
    return pl_strf("program '%s' is not executable: chmod +x it, or name its interpreter", name);
}

int pl_spec_find_program(
    const char *name, bool lenient, char **ret, char **ret_warning, struct pl_error *err)
{
    _cleanup_free_ char *found = NULL, *why = NULL;
    int r = 0;

    if (!*name)
        return pl_error_set(err, -ENOENT, "the program's name is empty");
    if (strchr(name, '/')) {
        found =
            pl_program_is(name) && !(ends_in(name, ".so") && is_module(name)) ? strdup(name) : NULL;
    } else {
        r = pl_program_search(name, &found);
        if (r < 0)
            return pl_error_set(err, r, "out of memory");
    }
    *ret_warning = NULL;
    if (!found) {
        why = reason(name);
        if (!why)
            return pl_error_set(err, -ENOMEM, "out of memory");
        if (!lenient)
            return pl_error_set(err, -ENOENT, "%s", why);
        found = strdup(name);
        if (!found)
            return pl_error_set(err, -ENOMEM, "out of memory");
        *ret_warning = PL_TAKE(why);
    }
    *ret = PL_TAKE(found);
    return 0;
}
