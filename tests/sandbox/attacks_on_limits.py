"""Attacks on limits: disk, processes, threads, memory, time, output, and ending in every way.

Each entry: group, name, snippet, outcomes (none: it must print DENIED and never ESCAPED).
"""

from envtorch.sandbox import Outcome

DISK = (Outcome.OUT_OF_DISK,)
PROCESSES = (Outcome.OUT_OF_PROCESSES,)
MEMORY = (Outcome.OUT_OF_MEMORY,)
TIME = (Outcome.TIMED_OUT,)
ENDED = (Outcome.CRASHED,)
_LIVING_CHILDREN = """
import time
children, (reader, writer) = [], os.pipe()
def start(function):
    try: child = os.fork()
    except OSError: return False
    if child == 0:
        try:
            kept = function()
            os.write(writer, os.getpid().to_bytes(4, 'little'))
            time.sleep(30)
        finally: os._exit(0)
    children.append(child)
    return True
def holding():
    # How many have all that they asked for, have had it for half a second, and are alive. Where limits are
    # kept by measurement, what was taken a moment ago may not have been seen yet. Whoever has ended is reaped.
    os.set_blocking(reader, False)
    full, end = {}, time.monotonic() + 1.2
    while time.monotonic() < end:
        try: told = os.read(reader, 65536)
        except BlockingIOError: told = b''
        for i in range(0, len(told), 4): full[int.from_bytes(told[i:i + 4], 'little')] = time.monotonic()
        time.sleep(0.02)
    kept = [child for child in children if child in full and end - full[child] > 0.5]
    return len([child for child in kept if not os.waitpid(child, os.WNOHANG)[0]])
"""
_FULL = (Outcome.OK, *PROCESSES, *MEMORY, Outcome.TIMED_OUT, Outcome.CRASHED)

SNIPPETS: list[tuple[str, str, str, tuple[Outcome, ...]]] = [
    # ---- disk ----
    (
        "disk",
        "fill the disk with one file",
        "f = open('big', 'wb')\nwhile True: f.write(b'x' * 2**20)",
        DISK,
    ),
    (
        "disk",
        "allocate a huge file",
        "fd = os.open('big', os.O_CREAT | os.O_RDWR)\nos.posix_fallocate(fd, 0, 2**40)",
        DISK,
    ),
    ("disk", "truncate to a huge size", "open('big', 'wb').truncate(2**40)", DISK),
    ("disk", "hide memory in a memfd", "attempt(lambda: os.memfd_create('x'))", ()),
    # ---- processes and threads ----
    ("processes", "fork bomb", "while True: os.fork()", (*PROCESSES, *TIME)),
    (
        "processes",
        "fork bomb in a shell",
        "import subprocess\nsubprocess.run(['sh', '-c', 'b() { b | b & }; b; wait'], timeout=3, check=False)",
        (Outcome.OK, Outcome.ERROR, *PROCESSES, *TIME),
    ),
    (
        "processes",
        "thread bomb",
        "import threading, time\nwhile True: threading.Thread(target=time.sleep, args=(60,), daemon=True).start()",
        (*PROCESSES, *MEMORY),
    ),
    (
        "processes",
        "leave a daemon behind",
        """
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        import time
        while True: time.sleep(1)
    os._exit(0)
os.wait()
print('DENIED: it ends with us')""",
        (),
    ),
    (
        "processes",
        "leave a child that answers for us",
        "pid = os.fork()\nif pid: os.waitpid(pid, 0); print('DENIED')",
        (),
    ),
    # ---- memory ----
    ("memory", "allocate at once", "x = bytearray(2**36)", MEMORY),
    ("memory", "allocate bit by bit", "x = []\nwhile True: x.append(bytearray(2**22))", MEMORY),
    (
        "memory",
        "allocate in many processes",
        """
import time
for _ in range(24):
    if os.fork() == 0:
        try: x = b'x' * (60 * 2**20)
        except MemoryError: pass
        time.sleep(30)
        os._exit(0)
time.sleep(30)""",
        # The limit on processes may be met first: at container grade others of the same user count, too.
        (*MEMORY, *TIME, Outcome.CRASHED, Outcome.OUT_OF_PROCESSES),
    ),
    ("memory", "a huge integer", "x = 1 << (2**36)", MEMORY),
    (
        "memory",
        "use shared memory",
        "import mmap\nx = mmap.mmap(-1, 2**32)\nfor i in range(0, 2**32, 4096): x[i] = 1",
        (*MEMORY, Outcome.CRASHED),
    ),
    (
        "memory",
        "hold the limit many times over",
        _LIVING_CHILDREN
        + """
while len(children) < 20 and start(lambda: b'x' * (100 * 2**20)): pass
print('ESCAPED' if holding() > 3 else 'DENIED')""",
        _FULL,
    ),
    (
        "memory",
        "hold shared memory many times over",
        _LIVING_CHILDREN
        + """
import mmap
def hold():
    x = mmap.mmap(-1, 100 * 2**20)
    for i in range(0, len(x), 4096): x[i] = 1
    return x
while len(children) < 20 and start(hold): pass
print('ESCAPED' if holding() > 3 else 'DENIED')""",
        _FULL,
    ),
    (
        "memory",
        "hold the kernel's memory in sockets",
        _LIVING_CHILDREN
        + """
import socket
def hold():
    pairs = [socket.socketpair() for _ in range(100)]
    for pair in pairs:
        for end in pair:
            end.setblocking(False)
            try:
                while True: end.send(b'x' * 65536)
            except OSError: pass
    return pairs
while len(children) < 20 and start(hold): pass
print('ESCAPED' if holding() > 5 else 'DENIED')""",
        _FULL,
    ),
    # ---- stores that the kernel keeps for all processes of a user ----
    (
        "shared stores",
        "send descriptors into nowhere",
        """
import socket
def find():
    sent = 0
    pairs = [socket.socketpair() for _ in range(50)]
    for near, far in pairs:
        near.setblocking(False)
        try:
            while True:
                socket.send_fds(near, [b'x'], [0] * 100)
                sent += 100
        except BlockingIOError: pass
        except OSError:
            if not sent: raise
    return sent
attempt(find)""",
        (),
    ),
    ("shared stores", "send many messages at once", "attempt(lambda: syscall(307, 0, None, 0, 0))", ()),
    ("shared stores", "watch files", "attempt(lambda: syscall(294, 0))", ()),
    ("shared stores", "watch files in the old way", "attempt(lambda: syscall(253))", ()),
    (
        "shared stores",
        "make timers without end",
        """
import struct
def find():
    timer, event = ctypes.c_int(), ctypes.create_string_buffer(struct.pack('qii', 0, 0, 1), 64)
    made = 0
    while made < 5000 and libc.syscall(222, 1, event, ctypes.byref(timer)) == 0: made += 1
    if made <= 256: raise OSError(f'{made} timers')
    return made
attempt(find)""",
        (),
    ),
    (
        "shared stores",
        "queue signals without end",
        """
import signal, struct
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGRTMIN])
info = ctypes.create_string_buffer(struct.pack('iii', signal.SIGRTMIN, 0, -1), 128)
def find():
    queued = 0
    while queued < 5000 and libc.syscall(129, os.getpid(), signal.SIGRTMIN, info) == 0: queued += 1
    if queued <= 256: raise OSError(f'{queued} signals')
    return queued
attempt(find)""",
        (),
    ),
    (
        "processes",
        "start more processes than the limit",
        _LIVING_CHILDREN
        + """
while len(children) < 300 and start(lambda: None): pass
print('ESCAPED' if holding() > 36 else 'DENIED')""",
        _FULL,
    ),
    (
        "undo",
        "raise the limit on processes",
        "import resource\nattempt(lambda: resource.setrlimit(resource.RLIMIT_NPROC, (500, 500)))",
        (),
    ),
    (
        "undo",
        "forge the mark of another sandbox",
        "import resource\nattempt(lambda: resource.setrlimit(12, (7, 7)))",
        (),
    ),
    # ---- time ----
    ("time", "spin", "while True: pass", TIME),
    ("time", "sleep", "import time\ntime.sleep(3600)", TIME),
    (
        "time",
        "catch the interrupt",
        "while True:\n    try:\n        while True: pass\n    except BaseException: pass",
        TIME,
    ),
    (
        "time",
        "ignore the interrupt",
        "import signal\nsignal.signal(2, signal.SIG_IGN)\nwhile True: pass",
        TIME,
    ),
    (
        "time",
        "block every signal",
        "import signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))\nwhile True: pass",
        TIME,
    ),
    (
        "time",
        "spin in C",
        "import itertools, collections\ncollections.deque(itertools.repeat(0), maxlen=0)",
        TIME,
    ),
    ("time", "stop ourselves", "import signal\nos.kill(os.getpid(), signal.SIGSTOP)", (*TIME, Outcome.OK)),
    ("time", "read what never comes", "sys.stdin = open(0)\nr, w = os.pipe()\nos.read(r, 1)", TIME),
    # ---- output ----
    ("output", "flood stdout", "for _ in range(3000): print('x' * 1000)", (Outcome.OUTPUT_TRUNCATED,)),
    ("output", "flood for ever", "while True: print('x' * 1000)", TIME),
    (
        "output",
        "flood from a child",
        "import subprocess\nsubprocess.run(['sh', '-c', 'yes | head -c 50000000'], stderr=subprocess.DEVNULL)",
        (Outcome.OUTPUT_TRUNCATED, Outcome.OK),
    ),
    ("output", "one huge value", "'x' * (20 * 2**20)", (Outcome.OK,)),
    (
        "output",
        "close the output",
        "os.close(1); os.close(2); sys.stdout.close()",
        (Outcome.OK, Outcome.ERROR, Outcome.CRASHED),
    ),
    ("output", "bytes that are no text", "os.write(1, bytes(range(256)))\nprint('DENIED')", (Outcome.OK,)),
    # ---- ends ----
    ("ends", "exit at once", "os._exit(3)", ENDED),
    ("ends", "exit with success", "os._exit(0)", ENDED),
    ("ends", "crash in C", "ctypes.string_at(0)", ENDED),
    ("ends", "abort", "os.abort()", ENDED),
    ("ends", "kill ourselves", "os.kill(os.getpid(), 9)", (Outcome.CRASHED, Outcome.OK)),
    ("ends", "become another program", "os.execv('/bin/true', ['true'])", ENDED),
    (
        "ends",
        "overflow the C stack",
        "sys.setrecursionlimit(10**9)\ndef f(): return f()\nf()",
        (*ENDED, *MEMORY, *TIME, Outcome.ERROR),
    ),
    ("ends", "leave by sys.exit", "print('DENIED')\nsys.exit(7)", (Outcome.ERROR,)),
    ("ends", "corrupt the heap", "ctypes.memset(id(int), 0, 4096)", ENDED),
]
