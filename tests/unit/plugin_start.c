/* SPDX-License-Identifier: MIT */
/* Does the plugin's work as root, alone in a process, for test-root-trace.py: the environment of a
 * daemon from a hostile job's, the daemon's start as another user, a task's start and end, and the
 * daemon's end. plugin_start PLRUND RUNTIME_DIR UID */
#include "spank_plugin/daemon_env.h"
#include "spank_plugin/node_daemon.h"

#include <stdio.h>
#include <stdlib.h>

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
    char **env;

    if (argc != 4 || uid == 0)
        return 2;
    if (pl_daemon_env(&facts, environ, &env, &err) < 0 ||
        pl_node_daemon_start(&daemon, argv[1], env, &user, 20000, &err) < 0) {
        fprintf(stderr, "%s\n", pl_error_text(&err));
        return 1;
    }
    pl_node_daemon_spawned(&daemon, 0, getpid());
    pl_node_daemon_exited(&daemon, 0, 0);
    return pl_node_daemon_stop(&daemon, 20000) < 0;
}
