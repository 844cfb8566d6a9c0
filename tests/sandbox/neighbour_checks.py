"""One sandbox takes all it can of what the kernel counts for a user; the next one must not notice.

    python -m tests.sandbox.neighbour_checks [--container] [--landlock-abi N]

Prints what it got, and `ok` at the end.
"""

import argparse

from envtorch.sandbox import Policy, Sandbox

GREED = """
import ctypes, os, signal, socket, struct, time
libc = ctypes.CDLL(None, use_errno=True)
def count(function, most=3000):
    for made in range(most):
        try:
            if function() is False: return made
        except OSError: return made
    return most
pairs, pipes, timer = [], [], ctypes.c_int()
event = ctypes.create_string_buffer(struct.pack('qii', 0, 0, 1), 64)
info = ctypes.create_string_buffer(struct.pack('iii', signal.SIGRTMIN, 0, -1), 128)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGRTMIN])
def send():
    if len(pairs) < 50:
        pairs.append(socket.socketpair())
        pairs[-1][0].setblocking(False)
    socket.send_fds(pairs[-1][0], [b'x'], [0] * 100)
def fork():
    if os.fork() == 0:
        time.sleep(1000)
        os._exit(0)
got = {
    'in flight': 100 * count(send),
    'inotify': count(lambda: libc.inotify_init() >= 0, 200),
    'timers': count(lambda: libc.syscall(222, 1, event, ctypes.byref(timer)) == 0),
    'signals': count(lambda: libc.syscall(129, os.getpid(), signal.SIGRTMIN, info) == 0),
    'processes': count(fork, 400),
    'pipes': count(lambda: pipes.append(os.pipe())),
}
got
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--container", action="store_true")
    parser.add_argument("--landlock-abi", type=int)
    options = parser.parse_args()
    policy = Policy(
        namespaces=not options.container, landlock_abi=options.landlock_abi, processes=32, timeout_s=60
    )
    with Sandbox(policy) as greedy:
        taken = greedy.run(GREED).json()
        print(taken)
        assert taken["in flight"] == taken["inotify"] == 0
        assert max(taken["timers"], taken["signals"]) <= 256
        assert 0 < taken["processes"] <= policy.processes + 4 or options.container, taken
        with Sandbox(policy) as neighbour:
            assert neighbour.run("import subprocess; subprocess.run(['true']).returncode").json() == 0
            assert neighbour.exec(["sh", "-c", "echo $((20 + 22))"]).stdout == b"42\n"
            neighbour.write_file("a", b"b")
            assert neighbour.read_file("a") == b"b"
            if neighbour.report().protects("fork"):
                (fork,) = neighbour.fork(1)
                with fork:
                    assert fork.run("open('a').read()").json() == "b"
        assert greedy.alive
    print("ok")


if __name__ == "__main__":
    main()
