/* SPDX-License-Identifier: MIT */
#include "launcher/slurm/slurm_conf.h"
#include "common/base/env.h"
#include "common/base/fs.h"
#include "common/base/parse.h"

#include <ctype.h>
#include <string.h>

#define CONF_MAX ((size_t)16 << 20)
#define INCLUDE_DEPTH 8
#define BLANKS " \t\r\v\f"

/* The slurm.conf that libslurm reads. NULL: none that we can read. */
static const char *find_conf(void)
{
    static const char *const places[] = {PL_SLURM_CONF, "/etc/slurm/slurm.conf",
                                         "/etc/slurm-llnl/slurm.conf", "/usr/local/etc/slurm.conf",
                                         "/run/slurm/conf/slurm.conf"};
    const char *given = pl_env(PL_ENV_SLURM_CONF);

    if (given && *given)
        return access(given, R_OK) == 0 ? given : NULL;
    for (size_t i = 0; i < PL_COUNT(places); i++)
        if (access(places[i], R_OK) == 0)
            return places[i];
    return NULL;
}

bool pl_slurm_conf_readable(void)
{
    return find_conf();
}

/* ---- ClusterName ---- */

/* Returns the next line of *text without its comment, joined with the lines that continue it. NULL:
 * no more. */
static char *take_line(char **text)
{
    char *line = *text, *out = line;
    bool more = *line;

    if (!more)
        return NULL;
    while (more) {
        char *p = *text;
        size_t len = strcspn(p, "\n"), n = strcspn(p, "#\n");

        while (n > 0 && isspace((unsigned char)p[n - 1]))
            n--;
        *text = p + len + (p[len] == '\n');
        more = n > 0 && p[n - 1] == '\\';
        memmove(out, p, n);
        out += n - more;
        more &= **text != '\0';
    }
    *out = '\0';
    return line;
}

/* Takes "KEY = VALUE" from *p and ends the value there. False: no more. */
static bool take_pair(char **p, const char **ret_key, size_t *ret_len, const char **ret_value)
{
    char *s = *p + strspn(*p, BLANKS);
    bool quoted;

    *ret_key = s;
    while (isalnum((unsigned char)*s) || *s == '_' || *s == '.')
        s++;
    *ret_len = (size_t)(s - *ret_key);
    s += strspn(s, BLANKS);
    s += *s && strchr("+-*/", *s);
    if (*ret_len == 0 || *s != '=')
        return false;
    s += 1 + strspn(s + 1, BLANKS);
    quoted = *s == '"' && strchr(s + 1, '"');
    s += quoted;
    *ret_value = s;
    s += strcspn(s, quoted ? "\"" : BLANKS);
    *p = s + (*s != '\0');
    *s = '\0';
    return true;
}

/* Returns the path in a line "Include FILE"; NULL: another line, or out of memory.
 * conf  slurm.conf; FILE is relative to its folder */
static char *included(char *line, const char *conf)
{
    static const char key[] = "Include";
    const char *slash = strrchr(conf, '/');
    char *file = line + strlen(key);

    if (strncasecmp(line, key, strlen(key)) != 0 || !isspace((unsigned char)*file))
        return NULL;
    file += strspn(file, BLANKS);
    file[strcspn(file, BLANKS)] = '\0';
    if (*file == '/' || !slash)
        return strdup(file);
    return pl_strf("%.*s/%s", (int)(slash - conf), conf, file);
}

/* Reads a file as libslurm does: the last ClusterName wins.
 * name  the one before, which is freed; NULL: none */
static void read_cluster(const char *conf, const char *path, unsigned depth, char **name)
{
    static const char key[] = "ClusterName";
    _cleanup_free_ char *text = NULL;
    char *rest, *line;

    if (depth > INCLUDE_DEPTH || pl_file_read(path, CONF_MAX, &text, NULL, NULL) < 0)
        return;
    rest = text;
    while ((line = take_line(&rest))) {
        _cleanup_free_ char *file = included(line, conf);
        const char *k, *value;
        size_t len;

        if (file)
            read_cluster(conf, file, depth + 1, name);
        while (!file && take_pair(&line, &k, &len, &value)) {
            if (len != strlen(key) || strncasecmp(k, key, len) != 0 || !*value)
                continue;
            free(*name);
            *name = strdup(value);
        }
    }
}

char *pl_slurm_conf_cluster(void)
{
    const char *path = find_conf();
    char *name = NULL;

    if (path)
        read_cluster(path, path, 0, &name);
    for (char *c = name; c && *c; c++) /* as Slurm does */
        *c = (char)tolower((unsigned char)*c);
    return name;
}

/* The decimal number at s; 0: none. */
static unsigned number_at(const char *s)
{
    char digits[12];
    size_t len = strspn(s, "0123456789");
    int64_t n = 0;

    if (len < sizeof(digits)) {
        memcpy(digits, s, len);
        digits[len] = '\0';
        pl_parse_int(digits, 0, UINT32_MAX, &n, NULL);
    }
    return (unsigned)n;
}

unsigned pl_slurm_max_array_tasks(const char *params)
{
    static const char key[] = "max_array_tasks=";

    for (const char *p = params; p && *p; p += *p == ',') {
        if (strncmp(p, key, strlen(key)) == 0)
            return number_at(p + strlen(key));
        p += strcspn(p, ",");
    }
    return 0;
}

/* Finds the value in a line "KEY   = VALUE". */
static const char *find_line(const char *text, const char *key)
{
    size_t len = strlen(key);

    for (const char *line = text; line; line = strchr(line, '\n'), line += line ? 1 : 0) {
        const char *p = line + len;

        if (strncmp(line, key, len) != 0)
            continue;
        p += strspn(p, " ");
        if (*p == '=')
            return p + 1 + strspn(p + 1, " ");
    }
    return NULL;
}

int pl_slurm_limits_parse(const char *text, struct pl_slurm_limits *ret)
{
    const char *size = find_line(text, "MaxArraySize");
    const char *params = find_line(text, "SchedulerParameters");
    _cleanup_free_ char *line = params ? strndup(params, strcspn(params, "\n")) : NULL;

    if (!size || number_at(size) == 0)
        return -EINVAL;
    *ret = (struct pl_slurm_limits){number_at(size), pl_slurm_max_array_tasks(line)};
    return 0;
}
