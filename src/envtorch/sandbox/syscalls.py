"""Which system calls a sandbox may make, by name. libseccomp knows the numbers for each architecture."""

__all__ = [
    "ALLOWED",
    "CHANGES_OF_FILES",
    "FILE_DESCRIPTOR_PASSING",
    "REFUSED",
    "SIGNALS_BY_ID",
    "TIMERS",
    "WORKSPACE",
]


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split())


ALLOWED = _names("""
read write readv writev pread64 pwrite64 preadv pwritev preadv2 pwritev2 open openat openat2 close
close_range creat stat fstat lstat newfstatat statx statfs fstatfs access faccessat faccessat2 lseek
poll ppoll select pselect6 epoll_create epoll_create1 epoll_ctl epoll_wait epoll_pwait epoll_pwait2
eventfd eventfd2 signalfd signalfd4 timerfd_create timerfd_settime timerfd_gettime mmap
mprotect munmap mremap brk madvise msync mincore
mlock munlock mlock2 mlockall munlockall membarrier rt_sigaction rt_sigprocmask rt_sigreturn
rt_sigpending rt_sigtimedwait rt_sigqueueinfo rt_tgsigqueueinfo rt_sigsuspend sigaltstack kill tkill
tgkill pidfd_send_signal pause alarm getitimer setitimer pipe pipe2 dup dup2 dup3 fcntl flock fsync fdatasync
sync_file_range syncfs sync fallocate truncate ftruncate fadvise64 getdents getdents64 getcwd chdir
fchdir rename renameat renameat2 mkdir mkdirat rmdir link linkat unlink unlinkat symlink symlinkat
readlink readlinkat umask mknod mknodat splice tee sendfile copy_file_range getxattr lgetxattr
fgetxattr listxattr llistxattr flistxattr sendto recvfrom sendmsg recvmsg sendmmsg recvmmsg shutdown
getsockname getpeername getsockopt setsockopt fork vfork execve execveat exit exit_group wait4
waitid set_tid_address set_robust_list get_robust_list rseq futex futex_waitv futex_wake futex_wait
futex_requeue sched_yield sched_getaffinity sched_setaffinity sched_getparam sched_getscheduler
sched_get_priority_max sched_get_priority_min sched_rr_get_interval sched_getattr getpriority
setpriority nanosleep clock_nanosleep clock_gettime clock_getres gettimeofday time times getcpu
getpid getppid gettid getuid geteuid getgid getegid getresuid getresgid getgroups getpgrp getpgid
setpgid getsid setsid setuid setgid setreuid setregid setresuid setresgid setfsuid setfsgid
setgroups capget capset getrlimit setrlimit prlimit64 getrusage sysinfo uname getrandom arch_prctl
restart_syscall ioctl prctl landlock_restrict_self cachestat map_shadow_stack mseal
riscv_flush_icache
""")

CHANGES_OF_FILES = _names("""
chmod fchmod fchmodat fchmodat2 chown fchown lchown fchownat utime utimes futimesat utimensat
setxattr lsetxattr fsetxattr removexattr lremovexattr fremovexattr
""")
"""Landlock does not confine these. Without a private root they would reach every file of the same user."""

REFUSED = _names("""
mount umount2 pivot_root chroot mount_setattr move_mount open_tree fsopen fsconfig fsmount fspick
swapon swapoff unshare ptrace process_vm_readv process_vm_writev process_madvise kcmp pidfd_getfd pidfd_open
perf_event_open bpf userfaultfd io_uring_setup io_uring_enter io_uring_register keyctl add_key
request_key init_module finit_module delete_module kexec_load kexec_file_load reboot syslog acct
quotactl quotactl_fd name_to_handle_at open_by_handle_at fanotify_init fanotify_mark nfsservctl
lookup_dcookie iopl ioperm modify_ldt vm86 vm86old uselib ustat sysfs _sysctl settimeofday
clock_settime adjtimex clock_adjtime sethostname setdomainname vhangup seccomp
landlock_create_ruleset landlock_add_rule socket connect bind listen accept accept4 socketcall
memfd_create memfd_secret vmsplice migrate_pages move_pages mbind set_mempolicy get_mempolicy
set_mempolicy_home_node sched_setattr sched_setscheduler sched_setparam ioprio_set shmget shmat
shmdt shmctl semget semop semctl semtimedop msgget msgsnd msgrcv msgctl mq_open mq_unlink
inotify_init inotify_init1 inotify_add_watch inotify_rm_watch process_mrelease
""")
"""What escapes are made of, and what takes from a store that the kernel keeps for all processes of a user:
one sandbox could use up the inotify instances of every other one."""

TIMERS = _names("timer_create timer_settime timer_gettime timer_getoverrun timer_delete")
"""POSIX timers are counted for each user of each user namespace. Without a user namespace of its own one
sandbox could use up those of its neighbours; there these calls do not exist, and programs use `setitimer`."""

FILE_DESCRIPTOR_PASSING = _names("sendmsg sendmmsg")
"""Descriptors in flight are counted for each user and across user namespaces, so one sandbox could keep
every other one from starting. A filter cannot see whether a message carries descriptors."""

SIGNALS_BY_ID = _names("tkill tgkill rt_sigqueueinfo rt_tgsigqueueinfo pidfd_send_signal")
"""Ways to signal a process or thread that is named by its id or a descriptor, besides `kill`."""

WORKSPACE = _names("""
socket socketpair connect bind listen accept accept4 shmget shmat shmdt shmctl semget semop semctl semtimedop
msgget msgsnd msgrcv msgctl mq_open mq_unlink mq_timedsend mq_timedreceive mq_notify mq_getsetattr mbind
get_mempolicy set_mempolicy memfd_create chroot pidfd_open sched_setscheduler sched_setparam sched_setattr
ioprio_set ioprio_get readahead
""")
"""What package managers, servers and databases need besides, on a writable root: there the network, ipc and
process namespaces are the wall, and these calls reach nothing beyond them. Asynchronous I/O (`io_setup`) is
not among them: its slots are counted for the whole machine, and databases do without it."""
