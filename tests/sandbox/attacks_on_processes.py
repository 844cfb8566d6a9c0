"""Attacks on other processes: on what they may use, by signals, and by staying when the sandbox has gone.

Each entry: group, name, snippet, outcomes (none: it must print DENIED and never ESCAPED). Processes that are
meant to stay call themselves @MARK@; whoever runs the attack looks for that name when the sandbox is closed.
"""

from envtorch.sandbox import Outcome

_LIMITS = "import resource\n"
_LEFT = (Outcome.OK, Outcome.ERROR, Outcome.TIMED_OUT, Outcome.OUT_OF_PROCESSES, Outcome.OUT_OF_MEMORY)
_NAME = """
def take_name(): libc.prctl(15, b'@MARK@', 0, 0, 0)
def hop():
    while True:
        try: child = os.fork()
        except OSError: continue
        if child: os._exit(0)
"""

SNIPPETS: list[tuple[str, str, str, tuple[Outcome, ...]]] = [
    # ---- what another process may use ----
    (
        "other processes",
        "end the owner by its limit on time",
        _LIMITS + "attempt(lambda: resource.prlimit(@PID@, resource.RLIMIT_CPU, (1, 1)))",
        (),
    ),
    (
        "other processes",
        "end the init by its limit on time",
        _LIMITS + "attempt(lambda: resource.prlimit(os.getppid(), resource.RLIMIT_CPU, (1, 1)))",
        (),
    ),
    (
        "other processes",
        "leave the init without descriptors",
        _LIMITS + "attempt(lambda: resource.prlimit(os.getppid(), resource.RLIMIT_NOFILE, (3, 3)))",
        (),
    ),
    (
        "other processes",
        "lower a limit of every process there may be",
        _LIMITS
        + """
def find():
    found = []
    for process in range(1, 70000):
        if process == os.getpid(): continue
        try: resource.prlimit(process, resource.RLIMIT_CORE, (0, 0))
        except OSError: continue
        found.append(process)
    if not found: raise LookupError('none')
    return found
attempt(find)""",
        (),
    ),
    (
        "other processes",
        "lower a limit past the lower half of the register",
        """
import struct
new = ctypes.create_string_buffer(struct.pack('QQ', 0, 0))
attempt(lambda: syscall(302, ctypes.c_long(1 << 32 | @PID@), 4, new, None))""",
        (),
    ),
    ("other processes", "bind the owner to a core", "attempt(lambda: os.sched_setaffinity(@PID@, [0]))", ()),
    (
        "other processes",
        "bind the init to a core",
        "attempt(lambda: os.sched_setaffinity(os.getppid(), [0]))",
        (),
    ),
    (
        "other processes",
        "lower the owner's priority",
        "attempt(lambda: os.setpriority(os.PRIO_PROCESS, @PID@, 19))",
        (),
    ),
    (
        "other processes",
        "lower the init's priority",
        "attempt(lambda: os.setpriority(os.PRIO_PROCESS, os.getppid(), 19))",
        (),
    ),
    (
        "other processes",
        "lower the priority of all of the user's",
        "attempt(lambda: os.setpriority(os.PRIO_USER, 0, 19))",
        (),
    ),
    (
        "other processes",
        "lower the priority of the owner's group",
        "attempt(lambda: os.setpriority(os.PRIO_PGRP, @PID@, 19))",
        (),
    ),
    (
        "other processes",
        "make the owner wait for its disk",
        "attempt(lambda: syscall(251, 1, @PID@, 3 << 13))",
        (),
    ),
    (
        "other processes",
        "make the init idle",
        "import struct\nattempt(lambda: syscall(144, os.getppid(), 5, struct.pack('i', 0)))",
        (),
    ),
    (
        "other processes",
        "make the owner idle by attributes",
        "import struct\nattempt(lambda: syscall(314, @PID@, struct.pack('IIQiIQQQ', 48, 5, 0, 0, 0, 0, 0, 0), 0))",
        (),
    ),
    (
        "other processes",
        "write memory across processes",
        """
class iovec(ctypes.Structure): _fields_ = [('base', ctypes.c_void_p), ('size', ctypes.c_size_t)]
here = ctypes.create_string_buffer(8)
local = iovec(ctypes.addressof(here), 8)
attempt(lambda: syscall(311, os.getppid(), ctypes.byref(local), 1, ctypes.byref(local), 1, 0))""",
        (),
    ),
    (
        "other processes",
        "move the init's pages",
        "attempt(lambda: syscall(279, os.getppid(), 0, None, None, None, 0))",
        (),
    ),
    (
        "other processes",
        "migrate the init's pages",
        "attempt(lambda: syscall(256, os.getppid(), 1, b'\\1' * 8, b'\\1' * 8))",
        (),
    ),
    (
        "other processes",
        "compare with the init",
        "attempt(lambda: syscall(312, os.getpid(), os.getppid(), 1, 0, 0))",
        (),
    ),
    (
        "other processes",
        "find the init's locks",
        """
head, size = ctypes.c_void_p(), ctypes.c_size_t()
attempt(lambda: syscall(274, os.getppid(), ctypes.byref(head), ctypes.byref(size)))""",
        (),
    ),
    ("other processes", "seize the init", "attempt(lambda: syscall(101, 0x4206, os.getppid(), 0, 0))", ()),
    (
        "other processes",
        "make the init the first to die for memory",
        "attempt(lambda: open(f'/proc/{os.getppid()}/oom_score_adj', 'w').write('1000'))",
        (),
    ),
    # ---- signals by other ways than kill ----
    ("signals", "signal a thread of the owner's", "attempt(lambda: syscall(234, @PID@, @PID@, 0))", ()),
    ("signals", "signal the owner by its thread alone", "attempt(lambda: syscall(200, @PID@, 0))", ()),
    (
        "signals",
        "queue a signal for the owner",
        "info = ctypes.create_string_buffer(b'\\0' * 8 + b'\\xff\\xff\\xff\\xff', 128)\nattempt(lambda: syscall(129, @PID@, 0, info))",
        (),
    ),
    (
        "signals",
        "signal the owner by its folder in /proc",
        "attempt(lambda: syscall(424, os.open('/proc/@PID@', os.O_RDONLY | os.O_DIRECTORY), 0, None, 0))",
        (),
    ),
    (
        "signals",
        "signal the owner's process group",
        # -1 would name every process; the group of a container's first process has no name.
        "attempt(lambda: os.kill(-@PID@ if @PID@ > 1 else -2**31 + 1, 0))",
        (),
    ),
    ("signals", "join the owner's process group", "attempt(lambda: os.setpgid(0, @PID@))", ()),
    (
        "signals",
        "have the kernel signal the owner",
        """
import fcntl, signal
r, w = os.pipe()
try:
    fcntl.fcntl(r, fcntl.F_SETOWN, @PID@)
    fcntl.fcntl(r, 10, signal.SIGKILL)
    fcntl.fcntl(r, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)
    for _ in range(100): os.write(w, b'x')
except OSError as error: print(error)
print('DENIED: the owner lives, or nobody hears of this')""",
        (),
    ),
    (
        "signals",
        "have the kernel signal the init",
        """
import fcntl, signal, time
r, w = os.pipe()
init = os.getppid()
try:
    fcntl.fcntl(r, fcntl.F_SETOWN, init)
    fcntl.fcntl(r, 10, signal.SIGKILL)
    fcntl.fcntl(r, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)
    for _ in range(100): os.write(w, b'x')
except OSError as error: print(error)
time.sleep(0.1)
print('DENIED' if os.getppid() == init else 'ESCAPED')""",
        (),
    ),
    # ---- staying when the sandbox has gone ----
    (
        "staying",
        "hop from process to process",
        _NAME
        + "take_name()\nfor _ in range(4):\n    if os.fork() == 0:\n        os.setsid()\n        hop()\n",
        _LEFT,
    ),
    (
        "staying",
        "hop on after a timeout",
        _NAME
        + "take_name()\nif os.fork() == 0:\n    os.setsid()\n    hop()\nimport time\nlibc.prctl(15, b'python', 0, 0, 0)\ntime.sleep(60)",
        (Outcome.TIMED_OUT,),
    ),
    (
        "staying",
        "hop from a thread",
        _NAME
        + """
import threading
take_name()
def start():
    while True:
        try: child = os.fork()
        except OSError: continue
        if child == 0:
            os.setsid()
            if os.fork(): os._exit(0)
            hop()
        os.waitpid(child, 0)
threading.Thread(target=start, daemon=True).start()
import time
time.sleep(0.5)""",
        _LEFT,
    ),
    (
        "staying",
        "ignore every signal and stop",
        _NAME
        + """
import signal
take_name()
for _ in range(4):
    if os.fork() == 0:
        os.setsid()
        signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))
        if os.fork() == 0: os.kill(0, signal.SIGSTOP)
        while True: signal.pause()
""",
        _LEFT,
    ),
    (
        "staying",
        "hop as another program",
        """
import subprocess
code = "import ctypes, os; ctypes.CDLL(None).prctl(15, b'@MARK@', 0, 0, 0)\\nwhile True:\\n    if os.fork(): os._exit(0)"
subprocess.Popen([sys.executable, '-I', '-S', '-c', code], start_new_session=True)
import time
time.sleep(0.3)""",
        _LEFT,
    ),
    (
        "staying",
        "undo being ended with the parent",
        _NAME
        + "take_name()\nif os.fork() == 0:\n    libc.prctl(1, 0, 0, 0, 0)\n    libc.prctl(36, 1, 0, 0, 0)\n    import time\n    while True: time.sleep(1)",
        _LEFT,
    ),
]
