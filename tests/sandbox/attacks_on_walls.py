"""Attacks on the walls themselves: mounts, namespaces, filters, descriptors, and the protocol.

Each entry: group, name, snippet, outcomes (none: it must print DENIED and never ESCAPED).
"""

from envtorch.sandbox import Outcome

_OWN_SOCKET = """
import socket, stat, json, struct
def own_socket():
    for number in range(3, 64):
        try:
            if stat.S_ISSOCK(os.fstat(number).st_mode): return number
        except OSError: pass
    raise LookupError('no socket')
def speak(data): os.write(own_socket(), data)
def raw(data, kind=1, mine=True):
    import gc
    gc.unfreeze()
    me = [o for o in gc.get_objects() if type(o).__name__ == 'Interpreter'][0]._current.encode()
    return struct.pack('>IB16s', len(data), kind, me if mine else b'0' * 16) + data
def frame(message, kind=1, mine=True): return raw(json.dumps(message).encode(), kind, mine)
"""
ENDED = (Outcome.CRASHED, Outcome.TIMED_OUT)
LIVES = (Outcome.OK, Outcome.ERROR, *ENDED)

SNIPPETS: list[tuple[str, str, str, tuple[Outcome, ...]]] = [
    # ---- writes outside the workspace ----
    (
        "writes",
        "write into the interpreter",
        "import json\nattempt(lambda: open(json.__file__, 'a').write('#'))",
        (),
    ),
    ("writes", "write into /usr", "attempt(lambda: open('/usr/bin/python-x', 'w'))", ()),
    ("writes", "write into /etc", "attempt(lambda: open('/etc/ld.so.preload', 'w').write('x'))", ()),
    ("writes", "write into the root", "attempt(lambda: open('/escaped', 'w'))", ()),
    (
        "writes",
        "write into the guest's own code",
        "from guest import guest_wire as wire\nattempt(lambda: open(wire.__file__, 'a'))",
        (),
    ),
    ("writes", "remove the interpreter", "attempt(lambda: os.unlink(os.path.realpath(sys.executable)))", ()),
    (
        "writes",
        "make a device",
        "import stat\nattempt(lambda: os.mknod('disk', 0o600 | stat.S_IFBLK, os.makedev(8, 0)))",
        (),
    ),
    (
        "writes",
        "become root by a set-user-id program",
        """
import shutil, subprocess
found = [shutil.which(name) for name in ('su', 'mount', 'passwd') if shutil.which(name)]
out = subprocess.run([*found[:1], '-c', 'id'], capture_output=True, text=True, stdin=subprocess.DEVNULL) if found else None
print('ESCAPED' if out and 'uid=0' in out.stdout else 'DENIED', found)""",
        (),
    ),
    # ---- direct system calls, mounts and namespaces ----
    ("namespaces", "mount a tmpfs", "attempt(lambda: syscall(165, b'tmpfs', b'/tmp', b'tmpfs', 0, 0))", ()),
    ("namespaces", "mount by the new calls", "attempt(lambda: syscall(430, b'tmpfs', 0))", ()),
    ("namespaces", "unmount /proc", "attempt(lambda: syscall(166, b'/proc', 2))", ()),
    ("namespaces", "make a user namespace", "attempt(lambda: syscall(272, 0x10000000))", ()),
    (
        "namespaces",
        "clone into a user namespace",
        "attempt(lambda: syscall(56, 0x10000000 | 17, 0, 0, 0, 0))",
        (),
    ),
    (
        "namespaces",
        "clone3 into a user namespace",
        "import struct\nattempt(lambda: syscall(435, struct.pack('8Q', 0x10000000, 0, 0, 0, 17, 0, 0, 0), 64))",
        (),
    ),
    (
        "namespaces",
        "enter the namespaces of the init",
        "attempt(lambda: syscall(308, os.open('/proc/1/ns/mnt', os.O_RDONLY), 0))",
        (),
    ),
    (
        "namespaces",
        "enter our own namespaces",
        "attempt(lambda: syscall(308, os.open('/proc/self/ns/user', os.O_RDONLY), 0))",
        (),
    ),
    ("namespaces", "change the root", "attempt(lambda: os.chroot('.'))", ()),
    ("namespaces", "pivot the root", "attempt(lambda: syscall(155, b'.', b'.'))", ()),
    ("namespaces", "become root", "attempt(lambda: os.setuid(0))", ()),
    ("namespaces", "load a kernel module", "attempt(lambda: syscall(313, 0, b'', 0))", ()),
    (
        "namespaces",
        "load a BPF program",
        "attempt(lambda: syscall(321, 0, ctypes.create_string_buffer(72), 72))",
        (),
    ),
    ("namespaces", "handle page faults", "attempt(lambda: syscall(323, 1))", ()),
    (
        "namespaces",
        "count performance events",
        "attempt(lambda: syscall(298, ctypes.create_string_buffer(120), 0, -1, -1, 0))",
        (),
    ),
    ("namespaces", "use the kernel's keys", "attempt(lambda: syscall(250, 0, -3, 1))", ()),
    ("namespaces", "reboot", "attempt(lambda: syscall(169, 0xfee1dead, 672274793, 0x1234567, 0))", ()),
    (
        "namespaces",
        "call by the 32 bit door",
        """
import mmap
pid = os.fork()
if pid == 0:
    code = mmap.mmap(-1, 4096, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, 7)
    code.write(b'\\xb8\\x14\\x00\\x00\\x00\\xcd\\x80\\xc3')  # mov eax, 20 (getpid); int 0x80; ret
    address = ctypes.addressof(ctypes.c_char.from_buffer(code))
    got = ctypes.CFUNCTYPE(ctypes.c_int)(address)()
    os._exit(42 if got == os.getpid() else 0)
status = os.waitpid(pid, 0)[1]
print('ESCAPED' if os.WIFEXITED(status) and os.WEXITSTATUS(status) == 42 else 'DENIED', status)""",
        (),
    ),
    # ---- descriptors ----
    (
        "descriptors",
        "use what was inherited",
        """
def find():
    found = []
    for number in range(3, 256):
        try: link = os.readlink(f'/proc/self/fd/{number}')
        except OSError: continue
        if not link.startswith(('/home/', 'socket:', '/proc/', '/tmp/envtorch')) and 'envtorch' not in link: found.append(link)
    if not found: raise LookupError('nothing but our own')
    return found
attempt(find)""",
        (),
    ),
    (
        "descriptors",
        "smuggle a descriptor to the owner",
        _OWN_SOCKET
        + """
s = socket.socket(fileno=os.dup(own_socket()))
try: socket.send_fds(s, [frame({'call': 1, 'name': 'x', 'args': [], 'kwargs': {}}, 2, False)], [0, 1, 2])
except OSError as error: print('DENIED', error)
else: print('DENIED: nobody takes it')""",
        (),
    ),
    ("descriptors", "steal a descriptor of the init", "attempt(lambda: syscall(438, 0, 0, 0))", ()),
    (
        "descriptors",
        "talk to another end through our own socket's address",
        _OWN_SOCKET + "attempt(lambda: socket.socket(fileno=os.dup(own_socket())).connect('@SOCKET@'))",
        (),
    ),
    # ---- undoing seccomp and Landlock ----
    (
        "undo",
        "load an allowing filter",
        "attempt(lambda: syscall(317, 1, 0, ctypes.create_string_buffer(16)))",
        (),
    ),
    ("undo", "switch seccomp off", "attempt(lambda: [syscall(157, 22, 0, 0, 0, 0)])", ()),
    ("undo", "unset no_new_privs", "attempt(lambda: syscall(157, 38, 0, 0, 0, 0))", ()),
    (
        "undo",
        "take capabilities back",
        "import struct\nattempt(lambda: syscall(126, struct.pack('Ii', 0x20080522, 0), b'\\xff' * 24))",
        (),
    ),
    (
        "undo",
        "raise a hard limit",
        "import resource\nattempt(lambda: resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY,) * 2))",
        (),
    ),
    (
        "undo",
        "make a wider Landlock ruleset",
        "attempt(lambda: syscall(444, ctypes.create_string_buffer(8), 8, 0))",
        (),
    ),
    # ---- forged protocol messages ----
    (
        "protocol",
        "forge a result for this run",
        _OWN_SOCKET + "speak(frame({'outcome': 'ok'}, 1, False))\nprint('DENIED')",
        LIVES,
    ),
    ("protocol", "announce a huge frame", _OWN_SOCKET + "speak(b'\\xff\\xff\\xff\\xff' + b'x' * 100)", ENDED),
    ("protocol", "send noise", _OWN_SOCKET + "speak(os.urandom(65536))", ENDED),
    (
        "protocol",
        "send half a frame and wait",
        _OWN_SOCKET + "speak(b'\\x00\\x00\\xff')\nimport time; time.sleep(60)",
        ENDED,
    ),
    (
        "protocol",
        "send deeply nested JSON",
        _OWN_SOCKET + "for kind in (1, 2, 3): speak(raw(b'[' * 100000, kind))",
        ENDED,
    ),
    (
        "protocol",
        "send a message of another type",
        _OWN_SOCKET + "speak(frame({}, 6))",
        LIVES,
    ),
    (
        "protocol",
        "call a function that was never exposed",
        """
from guest import interpreter
import gc
gc.unfreeze()
me = [o for o in gc.get_objects() if type(o).__name__ == 'Interpreter'][0]
attempt(lambda: me._call('__import__', ('os',), {}))""",
        (),
    ),
    (
        "protocol",
        "call with hostile names",
        """
import gc
gc.unfreeze()
me = [o for o in gc.get_objects() if type(o).__name__ == 'Interpreter'][0]
attempt(lambda: me._call('__class__.__init__.__globals__', ({'$ref': 'x'},), {'__proto__': 1}))""",
        (),
    ),
    (
        "protocol",
        "flood with stale answers",
        _OWN_SOCKET
        + """
one = frame({'error': None}, 4, False)
for _ in range(20000): speak(one)
print('DENIED')""",
        LIVES,
    ),
    ("protocol", "close the socket", _OWN_SOCKET + "os.close(own_socket())", ENDED),
    # ---- pickles, patches, traces ----
    (
        "python",
        "answer with a pickle that runs code",
        """
class Bomb:
    def __reduce__(self): return (os.system, ('touch @SECRET_FILE@.pwned',))
    def __repr__(self): return 'DENIED'
print('DENIED')
Bomb()""",
        (),
    ),
    (
        "python",
        "answer with a value whose repr raises",
        "class Bad:\n    def __repr__(self): raise SystemExit('x')\nprint('DENIED')\nBad()",
        LIVES,
    ),
    (
        "python",
        "patch everything reachable",
        """
import builtins, json, gc
print('DENIED')
for name in ('len', 'dict', 'isinstance', 'print', 'repr', 'open', 'getattr'): setattr(builtins, name, None)
json.dumps = lambda *a, **k: '{"type": "result", "outcome": "ok"}'""",
        LIVES,
    ),
    ("python", "patch os.getpid", "os.getpid = lambda: 1\nprint('DENIED')", LIVES),
    (
        "python",
        "trace the guest",
        "def trace(*a): raise SystemExit\nprint('DENIED')\nsys.settrace(trace)\nsys._getframe(1).f_trace = trace",
        LIVES,
    ),
    (
        "python",
        "walk the garbage collector for secrets",
        """
import gc
def find():
    found = [o for o in gc.get_objects() if isinstance(o, dict) and any('SECRET' in str(k).upper() for k in list(o)[:50])]
    found = [o for o in found if any('owner-' in str(v) for v in list(o.values())[:50])]
    if not found: raise LookupError('nothing of the owner')
    return found
attempt(find)""",
        (),
    ),
    (
        "python",
        "hook imports",
        """
class Hook:
    def find_spec(self, name, path=None, target=None): raise SystemExit(name)
sys.meta_path.insert(0, Hook())
print('DENIED')""",
        LIVES,
    ),
    ("python", "remove every module", "print('DENIED')\nsys.modules.clear()", LIVES),
    (
        "python",
        "find the owner's modules",
        """
def find():
    found = [name for name in sys.modules if name.startswith('envtorch')]
    if not found: raise LookupError('none is here')
    return found
attempt(find)""",
        (),
    ),
]
