"""Sessions on a writable root as an ordinary user. Run by `test_workspace_elsewhere`, as that user."""

import os
import sys
import tempfile
from pathlib import Path

from envtorch.errors import ConfigurationError
from envtorch.sandbox import Policy, Workspace
from tests.sandbox.roots import make_small_root

DENIED = ("no writable root can be made here", "user namespace")


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        root = make_small_root(Path(folder))
        policy = Policy(root=str(root), disk_bytes=16 << 20, open_files=256, timeout_s=20)
        try:
            workspace = Workspace(policy)
        except ConfigurationError as error:
            print(f"refused: {error}")
            return 3
        with workspace:
            answer = workspace.run(
                "id -u; cat /etc/motd; echo changed > /etc/motd; mkdir /new; cat /etc/motd; ls /"
            )
            print(answer.output)
            assert answer.output.startswith("0\na small root\nchanged\n"), answer
            assert workspace.run("chown 1000 /etc/motd").exit_code != 0  # one id is mapped, and no other
            assert workspace.run("mount -t tmpfs none /tmp").exit_code != 0
            (copy,) = workspace.fork()
            with copy:
                assert copy.run("cat /etc/motd; ls -d /new").output == "changed\n/new\n"
            process = workspace._channel.process()
            status = Path(f"/proc/{process}/status").read_text()
            assert int(status.partition("\nUid:")[2].split()[0]) == os.getuid()
        assert (root / "etc/motd").read_text() == "a small root\n"
        try:
            Workspace(Policy(root="host", open_files=256))
        except ConfigurationError as error:
            assert "unpack an image" in str(error), error
        else:
            raise AssertionError("an ordinary user got the machine's own root")
    return 0


if __name__ == "__main__":
    sys.exit(main())
