"""What honest code does every day works behind the walls."""

import pytest

from envtorch.sandbox import Outcome, Sandbox

EVERYDAY = {
    "threads": "import threading\nout = []\nt = threading.Thread(target=out.append, args=(1,)); t.start(); t.join()\nout[0]",
    "subprocess": "import subprocess, sys\nint(subprocess.run([sys.executable, '-c', 'print(1)'], capture_output=True).stdout)",
    "shell": "import os\nos.system('echo hi | grep -q hi') + 1",
    "multiprocessing": (
        "import multiprocessing\ncontext = multiprocessing.get_context('fork')\n"
        "queue = context.SimpleQueue()\np = context.Process(target=queue.put, args=(1,)); p.start()\n"
        "got = queue.get(); p.join(); got"
    ),
    "thread pool": "from concurrent.futures import ThreadPoolExecutor as P\nwith P(2) as p: x = list(p.map(abs, [-1]))\nx[0]",
    "asyncio": "import asyncio\nasync def f():\n    await asyncio.sleep(0.001)\n    return 1\nasyncio.run(f())",
    "asyncio subprocess": (
        "import asyncio\nasync def f():\n    p = await asyncio.create_subprocess_exec('true')\n"
        "    return 1 + await p.wait()\nasyncio.run(f())"
    ),
    "temporary files": "import tempfile\nwith tempfile.TemporaryDirectory() as d: open(d + '/f', 'w').close()\n1",
    "sqlite": "import sqlite3\nc = sqlite3.connect('x.db')\nc.execute('create table t (a)')\nc.commit()\n1",
    "copying": "import shutil\nopen('a', 'w').close()\nshutil.copy('a', 'b'); shutil.move('b', 'c')\n1",
    "archives": "import tarfile\nopen('a', 'w').close()\nt = tarfile.open('t.tgz', 'w:gz'); t.add('a'); t.close()\n1",
    "hashing": "import hashlib, ssl, uuid, secrets\nlen(hashlib.sha256(secrets.token_bytes(4)).digest()) - 31",
    "dates": "import datetime, zoneinfo\ndatetime.datetime.now().year > 2000 and 1",
    "shared memory": "from multiprocessing import shared_memory as m\ns = m.SharedMemory(create=True, size=99)\ns.unlink()\n1",
    "memory maps": "import mmap\nf = open('f', 'w+b'); f.write(b'x' * 9); f.flush()\nlen(mmap.mmap(f.fileno(), 0)) - 8",
    "timers and signals": "import signal\nsignal.signal(14, lambda *a: None)\nsignal.setitimer(0, 0.01)\nsignal.pause()\n1",
    "pickling": "import pickle\nclass A: x = 1\npickle.loads(pickle.dumps(A())).x",
    "processor count": "import os\nmin(1, len(os.sched_getaffinity(0)))",
    "compiled extensions": "import ctypes, decimal, lzma, bz2, zlib\n1",
    "source of functions": "import inspect\ndef f(): return 1\nlen(inspect.getsource(f).splitlines())",
}


@pytest.mark.parametrize("name", EVERYDAY)
def test_it_works(sandbox: Sandbox, name: str) -> None:
    result = sandbox.run(EVERYDAY[name])
    assert result.outcome is Outcome.OK, (result.exception, result.stderr)
    assert result.value in ("1", "True")


def test_numpy_can_be_preloaded_and_used() -> None:
    pytest.importorskip("numpy", reason="numpy is not installed")
    from envtorch.sandbox import Policy

    with Sandbox(Policy(preload=("numpy",), memory_bytes=1024 * 2**20)) as sandbox:
        code = "import numpy as np\na = np.arange(10**6, dtype=float).reshape(1000, 1000)\nfloat((a @ a).trace() > 0)"
        assert sandbox.run(code).json() == 1.0
        if sandbox.report().protects("fork"):
            with sandbox.fork()[0] as fork:
                assert fork.run("a[0, 0] = 5; float(a[0, 0])").json() == 5.0
        assert sandbox.run("float(a[0, 0])").json() == 0.0
