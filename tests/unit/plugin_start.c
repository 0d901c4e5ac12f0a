/* SPDX-License-Identifier: MIT */
/* Does the plugin's work as root, alone in a process, for test-root-trace.py and allocations.py:
 * its words of plugstack.conf and the values of its options, the environment of a daemon from a
 * hostile job's, the daemon's start as another user, a task's start and end, and the daemon's end.
 * plugin_start PLRUND RUNTIME_DIR UID */
#include "spank_plugin/conf.h"
#include "spank_plugin/daemon_env.h"
#include "spank_plugin/node_daemon.h"
#include "spank_plugin/values.h"

#include <stdio.h>
#include <stdlib.h>

/* A list of metrics, in which the second replaces the first. */
static int read_values(struct pl_error *err)
{
    char *copy = NULL, *list = NULL;
    int r = pl_values_copy("20000-20099", &copy, err);

    if (r == 0 && (r = pl_values_metric_add(&list, "loss=a=(.)\nacc=b=(.)")) < 0)
        pl_error_set(err, r, "out of memory");
    if (r == 0 && (r = pl_values_metric_add(&list, "loss=c=(.)")) < 0)
        pl_error_set(err, r, "out of memory");
    free(copy);
    free(list);
    return r;
}

/* Sets the daemon's path and Slurm's command; the caller frees both. */
static int read_conf(const char *plrund, char **path, char **scontrol, struct pl_error *err)
{
    char word[4096], *words[] = {word}, *namespace = NULL;
    struct pl_spank_conf conf = {0};
    int r;

    snprintf(word, sizeof(word), "plrund=%s", plrund);
    r = pl_conf_parse(&conf, 1, words, err);
    conf.namespace = "/run/%j/.ns";
    if (r == 0 && (r = pl_conf_namespace(&conf, 1, "n1", &namespace)) < 0)
        pl_error_set(err, r, "out of memory");
    free(namespace);
    if (r < 0)
        return r;
    *path = pl_conf_plrund(&conf);
    conf.scontrol = "/bin/true";
    *scontrol = pl_conf_scontrol(&conf);
    return *path && *scontrol ? 0 : pl_error_set(err, -ENOMEM, "out of memory");
}

int main(int argc, char **argv)
{
    uid_t uid = argc == 4 ? (uid_t)strtoul(argv[3], NULL, 10) : 0;
    gid_t gid = uid;
    struct pl_daemon_user user = {.runtime_dir = argv[2],
                                  .uid = uid,
                                  .gid = gid,
                                  .groups = &gid,
                                  .n_groups = 1,
                                  .umask = 022};
    struct pl_daemon_facts facts = {
        .job_id = 1, .nnodes = 1, .ntasks = 1, .local_ntasks = 1, .scontrol = ""};
    struct pl_node_daemon daemon = PL_NODE_DAEMON_INIT;
    struct pl_error err = {0};
    char **env, *plrund = NULL, *scontrol = NULL;

    if (argc != 4 || uid == 0)
        return 2;
    if (read_values(&err) < 0 || read_conf(argv[1], &plrund, &scontrol, &err) < 0 ||
        pl_daemon_env(&facts, environ, &env, &err) < 0 ||
        pl_node_daemon_start(&daemon, plrund, env, &user, 20000, &err) < 0) {
        fprintf(stderr, "%s\n", pl_error_text(&err));
        return 1;
    }
    pl_node_daemon_spawned(&daemon, 0, getpid());
    pl_node_daemon_exited(&daemon, 0, 0);
    return pl_node_daemon_stop(&daemon, 20000) < 0;
}
