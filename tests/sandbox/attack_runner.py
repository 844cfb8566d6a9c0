"""Runs the attack suite in this process and prints one JSON line for each attack.

    python -m tests.sandbox.attack_runner [--container] [--part K/N]

The tests start it as other users and at other grades; a neighbour sandbox is asked after every attack.
"""

import argparse
import contextlib
import dataclasses
import json
import os
import secrets
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator

from envtorch.sandbox import Policy, Sandbox

from .attacks import Attack, Target, attacks

MEGABYTE = 1024 * 1024
TIMEOUT_S = 2.0


def policy(*, container: bool) -> Policy:
    """Small limits, so that the attacks on them are quick."""
    return Policy(
        memory_bytes=256 * MEGABYTE,
        disk_bytes=16 * MEGABYTE,
        processes=32,
        grace_s=0.3,
        namespaces=not container,
    )


@contextlib.contextmanager
def besieged(limits: Policy) -> Iterator[tuple[Target, Sandbox]]:
    """A target that is worth attacking, and a neighbour that must not notice."""
    folder = tempfile.mkdtemp()
    os.chmod(folder, 0o755)  # the secret is protected by the sandbox, not by the mode of its folder
    token = secrets.token_hex(4)
    target = Target(
        os.getpid(),
        f"{folder}/secret.txt",
        0,
        f"{folder}/socket",
        f"envtorch-{token}",
        mark=f"left-{token}",
    )
    os.environ["OWNER_SECRET"] = target.secret
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, folder)
        with open(target.secret_file, "w", encoding="utf-8") as file:
            file.write(target.secret)
        os.chmod(target.secret_file, 0o666)
        port = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        for name in (target.socket_path, f"\0{target.abstract_name}"):
            listener = stack.enter_context(socket.socket(socket.AF_UNIX))
            listener.bind(name)
            listener.listen()
        os.chmod(target.socket_path, 0o777)
        neighbour = stack.enter_context(Sandbox(limits))
        neighbour.run("kept = 'undisturbed'")
        neighbour.write_file("neighbour.txt", target.secret)
        home = json.loads(neighbour.run("import os; os.path.dirname(os.getcwd())").value_json or "''")
        yield dataclasses.replace(target, port=port.getsockname()[1], neighbour_home=home), neighbour


def survivors(mark: str) -> list[int]:
    """The processes that call themselves `mark`."""
    found = []
    for entry in os.scandir("/proc"):
        with contextlib.suppress(OSError), open(f"/proc/{entry.name}/stat", "rb") as file:
            name, _, rest = file.read().partition(b"(")[2].rpartition(b")")
            if name == mark.encode() and rest.split()[0] not in (b"Z", b"X"):
                found.append(int(entry.name))
    return found


def is_unharmed(target: Target, *, within_s: float = 0.0) -> bool:
    """Whether the owner's secret is still as it was, nothing lies beside it, and no process has stayed.

    A server that has not yet closed the session may be given time for it.
    """
    end = time.monotonic() + within_s
    while survivors(target.mark):
        if time.monotonic() >= end:
            return False
        time.sleep(0.05)
    with open(target.secret_file, encoding="utf-8") as file:
        return file.read() == target.secret and not os.path.exists(f"{target.secret_file}.pwned")


def carry_out(attack: Attack, limits: Policy, target: Target, neighbour: Sandbox) -> dict[str, object]:
    """One attack on a fresh sandbox, and how it went."""
    began = time.monotonic()
    with Sandbox(limits) as sandbox:
        seen = sandbox.run(attack.code, timeout_s=TIMEOUT_S)
    undisturbed = neighbour.run("kept").value == "'undisturbed'"
    return {
        "name": attack.name,
        "group": attack.group,
        "contained": attack.contained(seen) and undisturbed and is_unharmed(target),
        "outcome": seen.outcome.value,
        "stdout": seen.stdout[-300:],
        "why": seen.exception.traceback[-300:] if seen.exception else "",
        "seconds": round(time.monotonic() - began, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--container", action="store_true")
    parser.add_argument("--part", default="0/1")
    options = parser.parse_args()
    part, parts = map(int, options.part.split("/"))
    limits = policy(container=options.container)
    with besieged(limits) as (target, neighbour):
        found = neighbour.report()
        print(json.dumps({"grade": found.grade, "user": os.getuid()}), flush=True)
        for attack in attacks(target)[part::parts]:
            print(json.dumps(carry_out(attack, limits, target, neighbour)), flush=True)


if __name__ == "__main__":
    main()
