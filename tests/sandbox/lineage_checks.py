"""Closes sandboxes whose code hops from process to process; prints how many processes were left behind.

    python -m tests.sandbox.lineage_checks [--container] [--landlock-abi N] [--rounds N]

A process that forks and ends at once is gone before anybody who has found it can kill it.
"""

import argparse
import os
import secrets

from envtorch.sandbox import Policy, Sandbox

from .attack_runner import survivors

HOP = """
import ctypes, os
ctypes.CDLL(None).prctl(15, {mark!r}.encode(), 0, 0, 0)
for _ in range(3):
    if os.fork() == 0:
        os.setsid()
        while True:
            try: child = os.fork()
            except OSError: continue
            if child: os._exit(0)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--container", action="store_true")
    parser.add_argument("--landlock-abi", type=int)
    parser.add_argument("--rounds", type=int, default=100)
    options = parser.parse_args()
    policy = Policy(namespaces=not options.container, landlock_abi=options.landlock_abi, processes=32)
    mark = f"hop-{secrets.token_hex(4)}"
    hopped = left = 0
    grade = ""
    for _ in range(options.rounds):
        with Sandbox(policy) as sandbox:
            grade = sandbox.report().grade
            sandbox.run(HOP.format(mark=mark))
            hopped += bool(survivors(mark))
        left += len(survivors(mark))
    print(f"user {os.getuid()}, {grade} grade: hopped in {hopped} of {options.rounds}, left {left}")


if __name__ == "__main__":
    main()
