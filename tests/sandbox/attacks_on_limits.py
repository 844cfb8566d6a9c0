"""Attacks on limits: disk, processes, threads, memory, time, output, and ending in every way.

Each entry: group, name, snippet, outcomes (none: it must print DENIED and never ESCAPED).
"""

from envtorch.sandbox import Outcome

DISK = (Outcome.OUT_OF_DISK,)
PROCESSES = (Outcome.OUT_OF_PROCESSES,)
MEMORY = (Outcome.OUT_OF_MEMORY,)
TIME = (Outcome.TIMED_OUT,)
ENDED = (Outcome.CRASHED,)

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
