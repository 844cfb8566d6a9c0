"""Attacks on what is outside: files, environment, processes, other sandboxes, the network.

Each entry: group, name, snippet, outcomes (none: it must print DENIED and never ESCAPED).
"""

from envtorch.sandbox import Outcome

SNIPPETS: list[tuple[str, str, str, tuple[Outcome, ...]]] = [
    # ---- host files and environment ----
    ("host files", "read a file of the owner's", "attempt(lambda: open('@SECRET_FILE@').read())", ()),
    ("host files", "read the shadow file", "attempt(lambda: open('/etc/shadow').read())", ()),
    (
        "host files",
        "read the real list of users",
        """
def find():
    text = open('/etc/passwd').read()
    if 'root:' not in text: raise PermissionError('a private list')
    return text
attempt(find)""",
        (),
    ),
    ("host files", "list the home of root", "attempt(lambda: os.listdir('/root/.ssh'))", ()),
    (
        "host files",
        "list the system's processes' working folders",
        "attempt(lambda: os.listdir('/proc/@PID@/cwd'))",
        (),
    ),
    (
        "host files",
        "climb out with dots",
        "attempt(lambda: open('../' * 40 + '@SECRET_FILE@'.lstrip('/')).read())",
        (),
    ),
    (
        "host files",
        "follow a link out of the workspace",
        "os.symlink('@SECRET_FILE@', 'link')\nattempt(lambda: open('link').read())",
        (),
    ),
    (
        "host files",
        "hard link a file of the owner's",
        "attempt(lambda: os.link('@SECRET_FILE@', 'hard'))",
        (),
    ),
    (
        "host files",
        "open a file by handle",
        "attempt(lambda: syscall(304, -100, ctypes.create_string_buffer(64), 0))",
        (),
    ),
    (
        "host environment",
        "read the owner's environment in ours",
        """
def find():
    found = [value for value in os.environ.values() if 'secret' in value.lower()]
    if not found: raise KeyError('nothing of the owner')
    return found
attempt(find)""",
        (),
    ),
    (
        "host environment",
        "read the environment of the first process",
        """
def find():
    text = open('/proc/1/environ').read()
    if 'SECRET' not in text.upper(): raise PermissionError('nothing of the owner')
    return text
attempt(find)""",
        (),
    ),
    (
        "host environment",
        "read the owner's environment",
        "attempt(lambda: open('/proc/@PID@/environ').read())",
        (),
    ),
    (
        "host environment",
        "find the strings of the exec on the stack",
        """
def find():
    from ctypes import c_char_p, POINTER
    environ = POINTER(c_char_p).in_dll(libc, 'environ')
    found, i = [], 0
    while environ[i]:
        found.append(environ[i]); i += 1
    if not any(b'SECRET' in item for item in found): raise KeyError('clean')
    return found
attempt(find)""",
        (),
    ),
    # ---- /proc memory and descriptors ----
    ("proc", "read the owner's memory", "attempt(lambda: open('/proc/@PID@/mem', 'rb').read(1))", ()),
    ("proc", "read the owner's memory map", "attempt(lambda: open('/proc/@PID@/maps').read())", ()),
    ("proc", "list the owner's descriptors", "attempt(lambda: os.listdir('/proc/@PID@/fd'))", ()),
    ("proc", "write the memory of the init", "attempt(lambda: open('/proc/1/mem', 'r+b').read(1))", ()),
    ("proc", "list the descriptors of the init", "attempt(lambda: os.listdir('/proc/1/fd'))", ()),
    ("proc", "walk through the root of the init", "attempt(lambda: os.listdir('/proc/1/root/etc'))", ()),
    ("proc", "read kernel memory", "attempt(lambda: open('/proc/kcore', 'rb').read(1))", ()),
    (
        "proc",
        "change a kernel setting",
        "attempt(lambda: open('/proc/sys/kernel/core_pattern', 'w').write('|/x'))",
        (),
    ),
    ("proc", "press the magic key", "attempt(lambda: open('/proc/sysrq-trigger', 'w').write('b'))", ()),
    (
        "proc",
        "lower our own badness",
        "attempt(lambda: open('/proc/self/oom_score_adj', 'w').write('-1000'))",
        (),
    ),
    # ---- signals and ptrace ----
    ("signals", "signal the owner", "attempt(lambda: os.kill(@PID@, 0))", ()),
    ("signals", "kill the owner", "attempt(lambda: os.kill(@PID@, 9))", ()),
    (
        "signals",
        "signal the process group",
        "import signal\nsignal.signal(15, lambda *a: None)\nos.kill(0, 15)\nprint('DENIED to all but ourselves')",
        (),
    ),
    (
        "signals",
        "signal every process",
        "try: os.kill(-1, 0)\nexcept OSError as error: print('DENIED', error)\nelse: print('DENIED to all but ours')",
        (),
    ),
    (
        "signals",
        "kill the init",
        """
import subprocess
parent = os.getppid()
try: os.kill(parent, 9)
except OSError as error: print('DENIED', error)
else: print('DENIED', 'still here' if os.getppid() == parent else 'ESCAPED')""",
        (),
    ),
    ("signals", "trace the owner", "attempt(lambda: syscall(101, 16, @PID@, 0, 0))", ()),
    ("signals", "trace ourselves", "attempt(lambda: syscall(101, 0, 0, 0, 0))", ()),
    (
        "signals",
        "read memory across processes",
        """
class iovec(ctypes.Structure): _fields_ = [('base', ctypes.c_void_p), ('size', ctypes.c_size_t)]
here = ctypes.create_string_buffer(8)
local = iovec(ctypes.addressof(here), 8)
attempt(lambda: syscall(310, os.getppid(), ctypes.byref(local), 1, ctypes.byref(local), 1, 0))""",
        (),
    ),
    ("signals", "hold a process by descriptor", "attempt(lambda: syscall(434, os.getppid(), 0))", ()),
    # ---- other sessions ----
    (
        "neighbours",
        "read a neighbour's file",
        "attempt(lambda: open('@NEIGHBOUR@/workspace/neighbour.txt').read())",
        (),
    ),
    (
        "neighbours",
        "find a neighbour's processes",
        """
def find():
    others = [p for p in os.listdir('/proc') if p.isdigit() and int(p) not in (1, os.getpid())]
    if not others: raise LookupError('nobody here')
    return others
attempt(find)""",
        (),
    ),
    (
        "neighbours",
        "change the mode of a neighbour's folder",
        "attempt(lambda: os.chmod('@NEIGHBOUR@/workspace/neighbour.txt', 0o777))",
        (),
    ),
    (
        "neighbours",
        "share memory with a neighbour",
        "attempt(lambda: syscall(29, 0x1234, 4096, 0o1666))",
        (),
    ),
    # ---- network ----
    (
        "network",
        "connect by TCP",
        "import socket\nattempt(lambda: socket.create_connection(('127.0.0.1', @PORT@), 2))",
        (),
    ),
    (
        "network",
        "send by UDP",
        "import socket\nattempt(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', 9)))",
        (),
    ),
    (
        "network",
        "open a raw socket",
        "import socket\nattempt(lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1))",
        (),
    ),
    (
        "network",
        "open a packet socket",
        "import socket\nattempt(lambda: socket.socket(socket.AF_PACKET, 3))",
        (),
    ),
    (
        "network",
        "open a netlink socket",
        "import socket\nattempt(lambda: socket.socket(socket.AF_NETLINK, 3, 0))",
        (),
    ),
    ("network", "open a vsock", "import socket\nattempt(lambda: socket.socket(40, socket.SOCK_STREAM))", ()),
    (
        "network",
        "connect by IPv6",
        "import socket\nattempt(lambda: socket.create_connection(('::1', @PORT@), 2))",
        (),
    ),
    (
        "network",
        "connect to a unix socket",
        "import socket\ns = None\nattempt(lambda: socket.socket(socket.AF_UNIX).connect('@SOCKET@'))",
        (),
    ),
    (
        "network",
        "connect to an abstract socket",
        "import socket\nattempt(lambda: socket.socket(socket.AF_UNIX).connect('\\0@ABSTRACT@'))",
        (),
    ),
    (
        "network",
        "point a datagram pair elsewhere",
        """
import socket
def find():
    a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    a.connect('@SOCKET@')
attempt(find)""",
        (),
    ),
    (
        "network",
        "resolve a name",
        "import socket\nattempt(lambda: socket.getaddrinfo('example.com', 80))",
        (),
    ),
    (
        "network",
        "listen",
        "import socket\nattempt(lambda: socket.create_server(('127.0.0.1', 0)))",
        (),
    ),
    (
        "network",
        "fetch with a program",
        """
import subprocess
done = subprocess.run([sys.executable, '-I', '-c',
    'import socket; socket.create_connection(("127.0.0.1", @PORT@), 2); print("ESCAPED")'], capture_output=True, text=True)
print(done.stdout, 'DENIED' if done.returncode else '')""",
        (),
    ),
    (
        "network",
        "call socket directly",
        "attempt(lambda: syscall(41, 2, 1, 0))",
        (),
    ),
    (
        "network",
        "make a socket by io_uring",
        "attempt(lambda: syscall(425, 8, ctypes.create_string_buffer(120)))",
        (),
    ),
]
