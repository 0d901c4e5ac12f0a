/* SPDX-License-Identifier: MIT */
#include "runtime/plrund/daemon/confine.h"
#include "common/base/env.h"
#include "common/base/fs.h"

#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>

/* A sanitizer's runtime runs programs and traces its own process. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED true
#define SANITIZED_BUILD
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED true
#define SANITIZED_BUILD
#endif
#endif
#ifndef SANITIZED
#define SANITIZED false
#endif

/* ---- landlock(7): the kernel's headers have it from 5.13 on, newer rights later ---- */

#ifndef SYS_landlock_create_ruleset
#define SYS_landlock_create_ruleset 444
#define SYS_landlock_add_rule 445
#define SYS_landlock_restrict_self 446
#endif
#define LANDLOCK_VERSION 1u
#define LANDLOCK_PATH_BENEATH 1

enum {
    FS_EXECUTE = 1 << 0,
    FS_WRITE_FILE = 1 << 1,
    FS_REMOVE_DIR = 1 << 4,
    FS_REMOVE_FILE = 1 << 5,
    FS_MAKE_CHAR = 1 << 6,
    FS_MAKE_DIR = 1 << 7,
    FS_MAKE_REG = 1 << 8,
    FS_MAKE_SOCK = 1 << 9,
    FS_MAKE_FIFO = 1 << 10,
    FS_MAKE_BLOCK = 1 << 11,
    FS_MAKE_SYM = 1 << 12,
    FS_REFER = 1 << 13,    /* version 2 */
    FS_TRUNCATE = 1 << 14, /* version 3 */

    FS_OF_FILE = FS_EXECUTE | FS_WRITE_FILE | FS_TRUNCATE,
    FS_CHANGE = FS_WRITE_FILE | FS_REMOVE_DIR | FS_REMOVE_FILE | FS_MAKE_DIR | FS_MAKE_REG |
                FS_MAKE_SOCK | FS_REFER | FS_TRUNCATE,
};

struct ruleset_attr {
    uint64_t handled_access_fs;
};

struct path_beneath_attr {
    uint64_t allowed_access;
    int32_t parent_fd;
} __attribute__((packed));

static int add_rule(int rules, int fd, uint64_t rights)
{
    struct path_beneath_attr rule = {rights, fd};

    return syscall(SYS_landlock_add_rule, rules, LANDLOCK_PATH_BENEATH, &rule, 0) < 0 ? -errno : 0;
}

static int allow_path(int rules, const char *path, uint64_t rights, struct pl_error *err)
{
    _cleanup_close_ int fd = open(path, O_PATH | O_CLOEXEC);
    int r = fd < 0 ? -errno : add_rule(rules, fd, rights);

    return r < 0 ? pl_error_errno(err, r, "'%s'", path) : 0;
}

/* The path of an ELF file's interpreter, which execve(2) opens for execution, too. "" where it has
 * none that we understand. */
static void read_interpreter(int fd, char *ret, size_t size)
{
    ElfW(Ehdr) header;
    ElfW(Phdr) segment;

    *ret = '\0';
    if (pread(fd, &header, sizeof(header), 0) != sizeof(header) ||
        memcmp(header.e_ident, ELFMAG, SELFMAG) != 0)
        return;
    for (unsigned i = 0; i < header.e_phnum; i++) {
        ssize_t n;

        if (pread(fd, &segment, sizeof(segment),
                  (off_t)(header.e_phoff + (uint64_t)i * header.e_phentsize)) != sizeof(segment))
            return;
        if (segment.p_type != PT_INTERP || segment.p_filesz == 0 || segment.p_filesz > size)
            continue;
        n = pread(fd, ret, segment.p_filesz, (off_t)segment.p_offset);
        ret[n > 0 ? (size_t)n - 1 : 0] = '\0';
        return;
    }
}

static bool is_script(const char *path)
{
    _cleanup_close_ int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    char magic[2];

    return fd >= 0 && pread(fd, magic, 2, 0) == 2 && memcmp(magic, "#!", 2) == 0;
}

static bool may_run_all(const struct pl_confine *what)
{
    for (unsigned i = 0; i < PL_CONFINE_MAX; i++)
        if (what->programs[i] && is_script(what->programs[i]))
            return true;
    return SANITIZED;
}

static int allow_program(int rules, const char *path)
{
    _cleanup_close_ int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    char interpreter[256];
    int r;

    if (fd < 0)
        return 0;
    r = add_rule(rules, fd, FS_EXECUTE);
    read_interpreter(fd, interpreter, sizeof(interpreter));
    if (r == 0 && *interpreter)
        r = allow_path(rules, interpreter, FS_EXECUTE, NULL);
    return r;
}

static int restrict_files(const struct pl_confine *what, struct pl_error *err)
{
    long version = syscall(SYS_landlock_create_ruleset, NULL, 0, LANDLOCK_VERSION);
    uint64_t change = FS_CHANGE, handled;
    struct ruleset_attr attr;
    _cleanup_close_ int rules = -EBADF;
    int r = 0;

    if (version < 1)
        return pl_error_set(err, -EOPNOTSUPP, "this kernel has no landlock, or has it off");
    if (version < 2)
        change &= ~(uint64_t)FS_REFER; /* which is then denied everywhere */
    if (version < 3)
        change &= ~(uint64_t)FS_TRUNCATE;
    handled = change | FS_MAKE_CHAR | FS_MAKE_FIFO | FS_MAKE_BLOCK | FS_MAKE_SYM;
    if (!may_run_all(what))
        handled |= FS_EXECUTE;
    attr = (struct ruleset_attr){handled};
    rules = (int)syscall(SYS_landlock_create_ruleset, &attr, sizeof(attr), 0);
    if (rules < 0)
        return pl_error_errno(err, errno, "cannot make rules");
    for (unsigned i = 0; i < PL_CONFINE_MAX && r == 0; i++)
        if (what->folders[i])
            r = allow_path(rules, what->folders[i], change, err);
    if (r == 0 && what->file)
        r = allow_path(rules, what->file, FS_WRITE_FILE, err);
    if (r == 0) /* for the children's descriptors 0, 1 and 2 */
        r = allow_path(rules, "/dev/null", FS_WRITE_FILE, err);
    if (r < 0)
        return r;
    for (unsigned i = 0; i < PL_CONFINE_MAX && r == 0 && (handled & FS_EXECUTE); i++)
        if (what->programs[i] && (r = allow_program(rules, what->programs[i])) < 0)
            return pl_error_errno(err, r, "'%s'", what->programs[i]);
    if (syscall(SYS_landlock_restrict_self, rules, 0) < 0)
        return pl_error_errno(err, errno, "the kernel refuses the rules");
    return 0;
}

/* ---- seccomp(2) ---- */

#if defined(__x86_64__)
#define ARCHITECTURE AUDIT_ARCH_X86_64
#elif defined(__aarch64__)
#define ARCHITECTURE AUDIT_ARCH_AARCH64
#endif

#ifdef ARCHITECTURE

#define LOAD(field)                                                                                \
    BPF_STMT(BPF_LD | BPF_W | BPF_ABS, (unsigned)offsetof(struct seccomp_data, field))
#define RETURN(value) BPF_STMT(BPF_RET | BPF_K, (value))
#define FAIL(code) RETURN(SECCOMP_RET_ERRNO | (code))
/* Skips n statements unless what was loaded equals k. */
#define UNLESS(k, n) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (k), 0, (n))
#define UNLESS_AT_LEAST(k, n) BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, (k), 0, (n))
#define DENY(name) UNLESS(SYS_##name, 1), FAIL(EPERM)
#define ABSENT(name) UNLESS(SYS_##name, 1), FAIL(ENOSYS)

#ifndef SYS_clone3
#define SYS_clone3 435
#endif
#ifndef SYS_pidfd_getfd
#define SYS_pidfd_getfd 438
#endif
#ifndef SYS_fchmodat2
#define SYS_fchmodat2 452
#endif

/* CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET */
#define NAMESPACES 0x7e020000

/* A list of what is denied, and not of what is allowed: libraries of a later release (libc, libuv,
 * Slurm's) may use any ordinary call. */
static int restrict_calls(void)
{
    struct sock_filter filter[] = {
        LOAD(arch),
        UNLESS(ARCHITECTURE, 1),
        BPF_JUMP(BPF_JMP | BPF_JA, 1, 0, 0),
        FAIL(EPERM), /* a call by the tables of another architecture */
        LOAD(nr),
#ifdef __x86_64__
        UNLESS_AT_LEAST(0x40000000, 1), /* x32 */
        FAIL(EPERM),
#endif
        /* into other processes */
        DENY(process_vm_readv),
        DENY(process_vm_writev),
#ifndef SANITIZED_BUILD
        DENY(ptrace),
#endif
        DENY(kcmp),
        DENY(pidfd_getfd),
        DENY(perf_event_open),
        /* what other programs share, without a file */
        DENY(shmget),
        DENY(shmat),
        DENY(semget),
        DENY(msgget),
        DENY(mq_open),
        /* a file without a path: no rule of landlock sees it */
        DENY(memfd_create),
        DENY(execveat),
        DENY(open_by_handle_at),
        DENY(name_to_handle_at),
    /* who may use a file: landlock has no right for that */
#ifdef SYS_chmod
        DENY(chmod),
        DENY(chown),
        DENY(lchown),
#endif
        DENY(fchmod),
        DENY(fchmodat),
        DENY(fchmodat2),
        DENY(fchown),
        DENY(fchownat),
        DENY(setxattr),
        DENY(lsetxattr),
        DENY(fsetxattr),
        DENY(removexattr),
        DENY(lremovexattr),
        DENY(fremovexattr),
        /* the machine, and namespaces, in which a user has more rights */
        DENY(mount),
        DENY(umount2),
        DENY(pivot_root),
        DENY(chroot),
        DENY(unshare),
        DENY(setns),
        ABSENT(clone3), /* its flags are in memory; libc then takes clone(2) */
        UNLESS(SYS_clone, 4),
        LOAD(args[0]),
        BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, NAMESPACES, 0, 1),
        FAIL(EPERM),
        LOAD(nr),
        DENY(swapon),
        DENY(swapoff),
        DENY(reboot),
        DENY(quotactl),
        DENY(acct),
        DENY(init_module),
        DENY(finit_module),
        DENY(delete_module),
        DENY(kexec_load),
        /* parts of the kernel in which flaws were found again and again */
        DENY(bpf),
        DENY(userfaultfd),
        DENY(add_key),
        DENY(request_key),
        DENY(keyctl),
        /* As of an older kernel: no further ring. libuv 1.45 and later has made one for
         * epoll_ctl(2) before, and ends the program where it cannot enter that. */
        ABSENT(io_uring_setup),
        ABSENT(io_uring_register),
        /* sockets: UNIX, IPv4, IPv6, and netlink for the list of addresses */
        UNLESS(SYS_socket, 6),
        LOAD(args[0]),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, AF_UNIX, 3, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, AF_INET, 2, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, AF_INET6, 1, 0),
        UNLESS(AF_NETLINK, 1),
        RETURN(SECCOMP_RET_ALLOW),
        LOAD(nr),
        UNLESS(SYS_socket, 1),
        FAIL(EAFNOSUPPORT),
        RETURN(SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {PL_COUNT(filter), filter};

    return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0) < 0 ? -errno : 0;
}

#else

static int restrict_calls(void)
{
    return 0;
}

#endif

int pl_confine_apply(const struct pl_confine *what, struct pl_error *err)
{
    int r, calls;

    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
        return pl_error_errno(err, errno, "no_new_privs");
    r = restrict_files(what, err);
    calls = restrict_calls();
    if (r == 0 && calls < 0 && calls != -EINVAL) /* EINVAL: a kernel without filters */
        r = pl_error_errno(err, calls, "the kernel refuses the filter of system calls");
    return r;
}

int pl_confine_read(bool *ret_off, bool *ret_require, struct pl_error *err)
{
    const char *given = pl_env_text(PL_ENV_PLUME_CONFINE);

    *ret_off = given && strcmp(given, "off") == 0;
    *ret_require = given && strcmp(given, "require") == 0;
    if (given && !*ret_off && !*ret_require && strcmp(given, "auto") != 0)
        return pl_error_set(err, -EINVAL, "PLUME_CONFINE is '%s': use auto, off or require", given);
    return 0;
}

char *pl_confine_find(const char *program)
{
    const char *path = pl_env(PL_ENV_PATH);
    struct stat st;

    if (strchr(program, '/'))
        return realpath(program, NULL);
    for (; path && *path; path += strcspn(path, ":"), path += *path == ':') {
        int len = (int)strcspn(path, ":");
        _cleanup_free_ char *file = pl_strf("%.*s/%s", len ? len : 1, len ? path : ".", program);

        if (file && stat(file, &st) == 0 && S_ISREG(st.st_mode) && access(file, X_OK) == 0)
            return realpath(file, NULL);
    }
    return NULL;
}
