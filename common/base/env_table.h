/* SPDX-License-Identifier: MIT */
/* Every environment variable that Plume reads or sets, once. A lint compares this table with the
 * sources and with the sections ENVIRONMENT of the man pages.
 *
 * X(name, type, default, users, help)
 * default  text; NULL = none
 * users    the tools that read it; RANK = plrun sets it for each rank or each trial */
#ifndef PL_COMMON_BASE_ENV_TABLE_H
#define PL_COMMON_BASE_ENV_TABLE_H

#include "common/base/time_limits.h"

#define PL_ENV_STRING_(x) #x
#define PL_ENV_STRING(x) PL_ENV_STRING_(x)

/* clang-format off */
#define PL_ENV_TABLE(X)                                                                            \
    /* Plume's own: for users */                                                                   \
    X(PLUME_RUNS, PATH, "runs", PLSUBMIT | PLSTAT, "folder of run folders")                                 \
    X(PLUME_HOME, PATH, "~/.plume", PLSUBMIT | PLSTAT | PLRUN | PLRUND | PLTRAIN, "folder of Plume's index and key") \
    X(PLUME_SITE_FILE, PATH, "/etc/plume/plsubmit.yaml", PLSUBMIT, "file with the site's options of plsubmit; empty: none") \
    X(PLUME_KEY_FILE, PATH, NULL, PLSTAT | PLRUN | PLRUND | PLTRAIN, "file of the secret that a step's nodes share") \
    X(PLUME_LOG, TEXT, "warn", PLSUBMIT | PLSTAT | PLRUN | PLRUND | PLTRAIN, "LEVEL[:SUBSYSTEM,...] of messages") \
    X(PLUME_LOG_FORMAT, TEXT, NULL, PLSUBMIT | PLSTAT | PLRUN | PLRUND | PLTRAIN, "json: one object per message") \
    X(PLUME_TRACE, PATH, NULL, PLSUBMIT | PLSTAT | PLRUN | PLRUND | PLTRAIN, "FILE: each process writes its messages, forks and collectives to FILE.PID") \
    X(PLUME_RUNTIME_DIR, PATH, "/tmp/plume-UID", PLRUN | PLRUND | PLUGIN, "folder of sockets, mode 0700") \
    X(PLUME_METRIC, LIST, NULL, PLRUN | PLRUND | PLUGIN, "NAME=REGEX lines: metrics in the ranks' output") \
    X(PLUME_NCCL_DEBUG, TEXT, NULL, PLRUN | PLRUND | PLUGIN, "NCCL_DEBUG of the ranks")            \
    X(PLUME_NCCL_IFNAME, TEXT, NULL, PLRUN | PLRUND, "NCCL_SOCKET_IFNAME of the ranks")            \
    X(PLUME_MASTER_PORT_RANGE, TEXT, NULL, PLRUN | PLRUND | PLUGIN, "LOW-HIGH: range of MASTER_PORT") \
    X(PLUME_KILL_GRACE, SECONDS, PL_ENV_STRING(PL_KILL_GRACE_S), PLRUN | PLRUND, "seconds from SIGTERM to SIGKILL") \
    X(PLUME_SAVE_COMMAND, TEXT, NULL, PLRUN | PLRUND, "shell text that saves the program's state, run at Slurm's signals") \
    X(PLUME_SAVE_GRACE, SECONDS, PL_ENV_STRING(PL_SAVE_GRACE_S), PLRUN | PLRUND, "seconds for PLUME_SAVE_COMMAND") \
    X(PLUME_LAUNCH_TIMEOUT, SECONDS, PL_ENV_STRING(PL_LAUNCH_TIMEOUT_S), PLRUN | PLRUND, "seconds until all nodes are up") \
    X(PLUME_SILENCE, SECONDS, PL_ENV_STRING(PL_SILENCE_S), PLRUN | PLRUND, "seconds without a message before a node daemon counts as lost") \
    X(PLUME_ON_HANG, TEXT, NULL, PLRUN | PLRUND | PLUGIN, "warn, kill or requeue, once ranks make no progress") \
    X(PLUME_HANG_LIMIT, SECONDS, PL_ENV_STRING(PL_HANG_LIMIT_S), PLRUN | PLRUND, "least seconds without a step before a hang is suspected; 0: never") \
    X(PLUME_LEAVE_LIMIT, SECONDS, PL_ENV_STRING(PL_LEAVE_LIMIT_S), PLRUN | PLRUND, "seconds from the end of a node's last rank to the end of its daemon") \
    X(PLUME_DISK_LIMIT, SECONDS, PL_ENV_STRING(PL_DISK_LIMIT_S), PLRUN | PLRUND, "seconds for which a step's end waits for a file system that does not answer") \
    X(PLUME_OUTPUT_RANKS, TEXT, NULL, PLRUN | PLRUND, "ranks whose output Slurm's file gets: all, or a list; unset: of a trial rank 0, else all") \
    X(PLUME_METRICS_MAX, SIZE, NULL, PLRUN | PLRUND, "limit of an attempt's metrics.jsonl, which is thinned")  \
    X(PLUME_METRICS_TRIAL_MAX, SIZE, NULL, PLRUN | PLRUND, "limit of the metrics.jsonl of all of a trial's attempts") \
    X(PLUME_HUB, TEXT, NULL, PLRUN | PLRUND, "HOST:PORT of the hub")                               \
    X(PLUME_HUB_PORTS, TEXT, "20000-29999", PLRUN | PLRUND, "range of ports of a hub without PLUME_HUB") \
    X(PLUME_HUB_BIND, TEXT, NULL, PLRUN | PLRUND, "interface or address at which the hub listens; unset: on all") \
    X(PLUME_ENCRYPT, TEXT, "auto", PLSTAT | PLRUN | PLRUND, "off, or require, for the traffic between daemons") \
    X(PLUME_CGROUP_ROOT, PATH, "/sys/fs/cgroup", PLRUND | PLTRAIN, "mount point of control groups") \
    X(PLUME_SCONTROL, PATH, NULL, PLRUND, "absolute path of scontrol; empty: run none")            \
    X(PLUME_CONFINE, TEXT, "auto", PLRUND, "off, or require, for the confinement of the daemon")    \
    X(PLUME_NVML, PATH, NULL, PLRUND, "library that replaces libnvidia-ml.so.1")                   \
    X(PLUME_PLUGIN_DIR, PATH, NULL, PLTRAIN, "folder of plume-mpi.so and plume-cuda.so")           \
    X(PLUME_CUDA_LIBS, LIST, NULL, PLTRAIN, "folders where NVIDIA's libraries are looked for first") \
    X(PLUME_MODULE_PATH, LIST, NULL, PLTRAIN, "folders of modules")                                \
    X(PLUME_DATA_DIR, PATH, NULL, PLTRAIN, "folder of data files")                                 \
    X(PLUME_GPU_MEMORY_LIMIT, SIZE, NULL, PLTRAIN, "limit of a rank's memory on each GPU")         \
    X(PLUME_GPUS_MEASURED, TEXT, NULL, PLTRAIN, "in builds with tests: GPUs of this name count as measured") \
    X(PLUME_GPU_TEST_MS, NUMBER, NULL, PLTRAIN, "in builds with tests: limit of pltrain --test-gpus for auto") \
    X(PLUME_TCP_PORTS, TEXT, NULL, PLTRAIN, "LOW-HIGH: range of the engine's TCP ports")           \
    X(PLUME_PROFILE, FLAG, NULL, PLTRAIN, "rank 0 prints the time of a step by op")                \
    /* Plume's own: between its parts */                                                           \
    X(PLUME_RUN_DIR, PATH, NULL, PLRUN | PLRUND | RANK, "the run folder")                          \
    X(PLUME_TRIAL, NUMBER, NULL, PLRUN | PLRUND | RANK, "number of the trial")                     \
    X(PLUME_ATTEMPT, NUMBER, NULL, PLRUN | PLRUND | PLTRAIN | RANK, "number of the trial's attempt") \
    X(PLUME_TRIAL_DIR, PATH, NULL, PLTRAIN | RANK, "the trial's folder, the same for each attempt")          \
    X(PLUME_REASON, TEXT, NULL, RANK, "why the attempt starts: first, retry, preempt, timeout, node-fail, hang or error") \
    X(PLUME_REQUEUE_ON, TEXT, NULL, PLTRAIN | RANK, "causes after which Plume starts the trial again, from the job script") \
    X(PLUME_RETRY, NUMBER, "0", PLRUN, "number of the retry that submitted the job, from the job script") \
    X(PLUME_SETUP_SIGNAL, TEXT, NULL, PLRUN, "signal that came during the set-up, empty: none, from the job script") \
    X(PLUME_SWEEP, TEXT, NULL, PLRUN | RANK, "name of the sweep that has ended, for plsubmit --on-end")    \
    X(PLUME_SWEEP_TRIALS, NUMBER, NULL, PLRUN | RANK, "its trials")                                         \
    X(PLUME_SWEEP_DONE, NUMBER, NULL, PLRUN | RANK, "its trials that are done or pruned")                   \
    X(PLUME_SWEEP_FAILED, NUMBER, NULL, PLRUN | RANK, "its trials that failed")                             \
    X(PLUME_PROGRAM, PATH, NULL, PLRUN, "file of the trial's program")                             \
    X(PLUME_SOCKET, PATH, NULL, PLRUN | PLSTAT | PLTRAIN | RANK, "socket of the node's daemon")    \
    X(PLUME_NODE_ADDR, TEXT, "127.0.0.1", PLTRAIN | RANK, "this node's address for other nodes")   \
    X(PLUME_RUNTIME, TEXT, NULL, PLRUN | PLSTAT | PLTRAIN | RANK, "plrun or plugin")                        \
    X(PLUME_SAVE_PID, NUMBER, NULL, PLRUN | RANK, "process of the rank's program, for PLUME_SAVE_COMMAND") \
    X(PLUME_PARAMS, TEXT, NULL, RANK, "the trial's parameters, a JSON object")                     \
    X(PLUME_LAUNCH, TEXT, NULL, PLRUN, "torchrun: a rank starts the processes of its node")        \
    X(PLUME_CONTAINER, TEXT, NULL, PLRUN, "image of the container in which the program runs")      \
    X(PLUME_CONTAINER_RUNTIME, PATH, NULL, PLRUN, "apptainer or singularity, where PATH has neither")  \
    X(PLUME_CONTAINER_OPTIONS, LIST, NULL, PLRUN, "lines: options of apptainer exec")              \
    X(PLUME_CONTAINER_ENV, LIST, NULL, PLRUN, "names of variables that win over the image's own")  \
    X(PLUME_BIN, PATH, NULL, DEVELOPER, "folder of the tools, in a job script")                    \
    X(PLUME_RANK, NUMBER, NULL, DEVELOPER, "reserved: never passed to the daemon")                 \
    X(PLUME_JOB_ID, NUMBER, NULL, PLRUND, "the job, from the plugin")                              \
    X(PLUME_STEP_ID, NUMBER, NULL, PLRUND, "the step, from the plugin")                            \
    X(PLUME_RESTART, NUMBER, "0", PLRUND, "restarts of the job, from the plugin")                  \
    X(PLUME_NODE_ID, NUMBER, NULL, PLRUND, "number of the node in the step, from the plugin")      \
    X(PLUME_NNODES, NUMBER, NULL, PLRUND, "nodes of the step, from the plugin")                    \
    X(PLUME_NTASKS, NUMBER, NULL, PLRUND, "ranks of the step, from the plugin")                    \
    X(PLUME_LOCAL_NTASKS, NUMBER, NULL, PLRUND, "ranks of the node, from the plugin")              \
    X(PLUME_NODELIST, TEXT, NULL, PLRUND, "the step's nodes, from the plugin")                     \
    X(PLUME_PLUGIN, FLAG, NULL, PLRUND, "the plugin started the daemon")                           \
    /* of ./dev and the tests */                                                                   \
    X(PLUME_BUILD, PATH, NULL, DEVELOPER, "build folder")                                          \
    X(PLUME_SRC, PATH, NULL, DEVELOPER, "source folder")                                           \
    X(PLUME_CLUSTER, PATH, NULL, DEVELOPER, "folder of the virtual cluster")                       \
    X(PLUME_SITE_CONF, PATH, NULL, DEVELOPER, "in place of /etc/plume/plume.conf, in builds with tests") \
    X(PLUME_TORCH_PYTHON, PATH, NULL, DEVELOPER, "Python with PyTorch, for the golden numbers")    \
    X(PLUME_RECIPES_PYTHON, PATH, NULL, DEVELOPER, "Python with the packages of doc/recipes.md")    \
    /* the ranks' */                                                                               \
    X(RANK, NUMBER, NULL, PLTRAIN | RANK, "number of the rank in the step")                        \
    X(WORLD_SIZE, NUMBER, NULL, PLTRAIN | RANK, "ranks of the step")                               \
    X(LOCAL_RANK, NUMBER, NULL, PLTRAIN | RANK, "number of the rank on its node")                  \
    X(LOCAL_WORLD_SIZE, NUMBER, NULL, PLTRAIN | RANK, "ranks of the node")                         \
    X(NODE_RANK, NUMBER, NULL, PLTRAIN | RANK, "number of the node in the step")                   \
    X(GROUP_RANK, NUMBER, NULL, RANK, "the same as NODE_RANK")                                     \
    X(MASTER_ADDR, TEXT, NULL, PLRUN | PLTRAIN | RANK, "address of rank 0")                        \
    X(MASTER_PORT, NUMBER, NULL, PLTRAIN | RANK, "port of rank 0")                                 \
    X(PET_NNODES, NUMBER, NULL, RANK, "for torchrun: the same as WORLD_SIZE")                      \
    X(PET_NODE_RANK, NUMBER, NULL, RANK, "for torchrun: the same as RANK")                         \
    X(PET_MASTER_ADDR, TEXT, NULL, RANK, "for torchrun: the same as MASTER_ADDR")                  \
    X(PET_MASTER_PORT, NUMBER, NULL, RANK, "for torchrun: the same as MASTER_PORT")                \
    X(NCCL_RAS_ADDR, TEXT, NULL, RANK, "NCCL's diagnostics, an address per job")                   \
    X(NCCL_RAS_ENABLE, FLAG, NULL, RANK, "0: no such diagnostics; nccl_ras of plume.conf(5)")       \
    X(GLOO_SOCKET_IFNAME, TEXT, NULL, RANK, "network interface of gloo")                           \
    X(TP_SOCKET_IFNAME, TEXT, NULL, RANK, "network interface of TensorPipe")                       \
    X(JAX_COORDINATOR_ADDRESS, TEXT, NULL, RANK, "address of JAX's coordinator, in rank 0")        \
    X(OMP_NUM_THREADS, NUMBER, NULL, PLTRAIN | RANK, "threads of a rank")                          \
    X(PYTHONFAULTHANDLER, FLAG, "1", RANK, "Python prints its stack on a crash")                   \
    X(CUDA_VISIBLE_DEVICES, LIST, NULL, PLRUND | PLTRAIN, "GPUs of the rank; set by Slurm")        \
    X(OMPI_COMM_WORLD_SIZE, NUMBER, NULL, PLTRAIN, "set by Open MPI's mpirun")                     \
    X(PMIX_RANK, NUMBER, NULL, PLTRAIN, "set by a launcher with PMIx")                             \
    /* the system's */                                                                             \
    X(HOME, PATH, NULL, PLSUBMIT | PLSTAT | PLRUN | PLRUND | PLTRAIN, "home folder, for ~/.plume and ~/.local") \
    X(CUDA_HOME, PATH, NULL, PLTRAIN, "folder of CUDA, for its libraries")                         \
    X(VIRTUAL_ENV, PATH, NULL, PLTRAIN, "folder of a Python, for NVIDIA's libraries")              \
    X(CONDA_PREFIX, PATH, NULL, PLTRAIN, "the same")                                               \
    X(XLA_FLAGS, TEXT, NULL, PLTRAIN, "options of XLA's compiler; others need a new program")       \
    X(LIBTPU_INIT_ARGS, TEXT, NULL, PLTRAIN, "options of the TPU's compiler")                      \
    X(PATH, LIST, NULL, PLSUBMIT | PLRUN | PLRUND, "folders of programs")                                   \
    X(XDG_RUNTIME_DIR, PATH, NULL, PLRUN | PLRUND, "where /tmp/plume-UID is another user's")        \
    X(TERM, TEXT, NULL, PLSTAT | PLTRAIN, "dumb: no colour, no progress bar")                      \
    X(COLUMNS, NUMBER, "80", PLSTAT | RANK, "width of the output")                                 \
    X(NO_COLOR, FLAG, NULL, PLSTAT, "no colour")                                                   \
    /* Slurm's */                                                                                  \
    X(SLURM_CONF, PATH, NULL, PLSUBMIT | PLSTAT | PLUGIN, "Slurm's configuration")                 \
    X(SLURM_CLUSTERS, LIST, NULL, PLSUBMIT | PLSTAT, "clusters that Slurm's commands ask")             \
    X(SLURMD_NODENAME, TEXT, NULL, PLSTAT | PLRUN | PLRUND | PLUGIN, "name of the node")                    \
    X(SLURM_JOB_ID, NUMBER, NULL, PLSTAT | PLRUN | PLRUND | PLTRAIN, "the job")                    \
    X(SLURM_JOB_UID, NUMBER, NULL, PLSTAT, "in an epilog, the user of the job")                    \
    X(SLURM_JOB_SLUID, TEXT, NULL, PLSTAT, "in an epilog, the run of the job")                     \
    X(SLURM_JOBID, NUMBER, NULL, PLRUN | PLRUND, "the job, in old releases")                       \
    X(SLURM_JOB_NAME, TEXT, NULL, PLRUN | PLRUND, "name of the job")                               \
    X(SLURM_JOB_NODELIST, TEXT, NULL, PLRUN | PLRUND, "nodes of the job")                          \
    X(SLURM_ARRAY_JOB_ID, NUMBER, NULL, PLRUN | PLRUND | PLTRAIN, "the job array")                 \
    X(SLURM_ARRAY_TASK_ID, NUMBER, NULL, PLRUN | PLRUND | PLTRAIN, "task of the job array")        \
    X(SLURM_RESTART_COUNT, NUMBER, "0", PLRUN | PLRUND, "restarts of the job")                     \
    X(SLURM_STEP_ID, NUMBER, NULL, PLRUN | PLRUND | PLTRAIN, "the step")                           \
    X(SLURM_STEPID, NUMBER, NULL, PLRUN | PLRUND, "the step, in old releases")                     \
    X(SLURM_NODEID, NUMBER, NULL, PLRUN | PLRUND, "number of the node")                            \
    X(SLURM_NNODES, NUMBER, NULL, PLRUN | PLRUND, "nodes of the job")                              \
    X(SLURM_NTASKS, NUMBER, NULL, PLRUN | PLRUND, "tasks of the job")                              \
    X(SLURM_PROCID, NUMBER, NULL, PLRUN | PLTRAIN, "number of the task")                                     \
    X(SLURM_LOCALID, NUMBER, NULL, PLRUN, "number of the task on its node")                        \
    X(SLURM_STEP_NUM_NODES, NUMBER, NULL, PLRUN | PLRUND, "nodes of the step")                     \
    X(SLURM_STEP_NUM_TASKS, NUMBER, NULL, PLRUN | PLRUND | PLTRAIN, "tasks of the step")           \
    X(SLURM_STEP_NODELIST, TEXT, NULL, PLRUN | PLRUND | PLSTAT, "nodes of the step")                        \
    X(SLURM_STEP_TASKS_PER_NODE, TEXT, NULL, PLRUN | PLRUND, "tasks of each node of the step")     \
    X(SLURM_TASKS_PER_NODE, TEXT, NULL, PLRUN | PLRUND, "tasks of each node of the job")           \
    X(SLURM_LAUNCH_NODE_IPADDR, TEXT, NULL, PLRUN | PLRUND, "address of srun")                     \
    X(SLURM_CPUS_PER_TASK, NUMBER, NULL, PLRUN | PLRUND, "CPUs of each task")                      \
    X(SLURM_CPUS_ON_NODE, NUMBER, NULL, PLRUN | PLRUND, "CPUs of the node")                        \
    X(SLURM_STEP_GPUS, LIST, NULL, PLRUND, "GPUs of the step on the node")                         \
    X(SLURM_JOB_GPUS, LIST, NULL, PLRUND, "GPUs of the job on the node")                           \
    X(SLURM_GPUS_ON_NODE, NUMBER, NULL, PLRUND, "number of GPUs on the node")
/* clang-format on */

#endif
