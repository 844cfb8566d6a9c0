"""Files and commands go past the interpreter: they work whatever the agent has done to it."""

import errno
import os
import subprocess
import sys

import pytest

from envtorch.errors import OutOfResources
from envtorch.sandbox import Outcome, Sandbox


def test_files_go_in_and_come_out(sandbox: Sandbox) -> None:
    data = bytes(range(256)) * 4096
    sandbox.write_file("deep/er/file.bin", data)
    assert sandbox.read_file("deep/er/file.bin") == data
    listed = {entry.path: (entry.kind, entry.size) for entry in sandbox.list_files()}
    assert listed["deep/er/file.bin"] == ("file", len(data))
    assert listed["deep"][0] == "folder"
    assert sandbox.run("len(open('deep/er/file.bin', 'rb').read())").json() == len(data)


def test_a_list_has_the_levels_and_entries_that_are_wanted(sandbox: Sandbox) -> None:
    for name in ("a/b/c", "a/d", "e"):
        sandbox.write_file(name, b"")

    def listed(**options: int) -> list[str]:
        return [entry.path for entry in sandbox.list_files(".", **options)]

    assert listed() == ["a", "a/b", "a/b/c", "a/d", "e"]
    assert listed(depth=1) == ["a", "e"]
    assert listed(depth=2) == ["a", "a/b", "a/d", "e"]
    assert listed(depth=2, limit=3) == ["a", "a/b", "a/d"]


def test_names_that_are_too_long_for_one_list_are_refused(sandbox: Sandbox) -> None:
    sandbox.run("import os\nfor _ in range(14): os.mkdir('\\1' * 250); os.chdir('\\1' * 250)")
    with pytest.raises(OSError, match="list the folders in it"):
        sandbox.list_files(limit=14)
    assert len(sandbox.list_files(limit=1)) == 1


def test_missing_and_wrong_files_are_the_usual_errors(sandbox: Sandbox) -> None:
    with pytest.raises(FileNotFoundError):
        sandbox.read_file("absent")
    with pytest.raises(OSError, match="not a regular file"):
        sandbox.read_file(".")
    with pytest.raises(OSError, match=r"Permission|Read-only"):
        sandbox.write_file("/etc/x", b"")


def test_a_file_that_is_too_large_is_refused_whole(sandbox: Sandbox) -> None:
    sandbox.write_file("big", b"x" * 1000)
    with pytest.raises(OverflowError):
        sandbox.read_file("big", limit=999)
    assert len(sandbox.read_file("big", limit=1000)) == 1000


def test_a_fifo_in_place_of_a_file_blocks_nobody(sandbox: Sandbox) -> None:
    sandbox.run("import os; os.mkfifo('pipe')")
    with pytest.raises(OSError, match="not a regular file"):
        sandbox.read_file("pipe")


def test_writing_more_than_the_disk_holds_is_out_of_resources(sandbox: Sandbox) -> None:
    with pytest.raises(OutOfResources):
        sandbox.write_file("big", b"x" * (sandbox.policy.disk_bytes + 1))


def test_a_link_out_of_the_workspace_leads_nowhere(sandbox: Sandbox) -> None:
    sandbox.run("import os; os.symlink('/etc/shadow', 'link')")
    with pytest.raises(OSError, match="link"):
        sandbox.read_file("link")


def test_a_command_has_input_output_and_a_status(sandbox: Sandbox) -> None:
    done = sandbox.exec(["sh", "-c", "cat; echo $WORD >&2; exit 3"], stdin=b"in", environment={"WORD": "err"})
    assert (done.stdout, done.stderr, done.exit_status) == (b"in", b"err\n", 3)
    assert done.outcome is Outcome.ERROR


def test_a_command_that_does_not_exist_is_status_127(sandbox: Sandbox) -> None:
    assert sandbox.exec(["no-such-program"]).exit_status == 127


def test_a_command_is_killed_with_its_children_at_its_deadline(sandbox: Sandbox) -> None:
    done = sandbox.exec(["sh", "-c", "sleep 1000 & sleep 1000"], timeout_s=0.3)
    assert done.outcome is Outcome.TIMED_OUT
    left = sandbox.exec(["sh", "-c", "cat /proc/[0-9]*/comm"]).stdout.split()
    assert b"sleep" not in left


def test_a_commands_flood_is_cut(sandbox: Sandbox) -> None:
    done = sandbox.exec(["sh", "-c", "yes | head -c 5000000"])
    assert done.outcome is Outcome.OUTPUT_TRUNCATED
    assert len(done.stdout) == sandbox.policy.output_bytes


def test_input_that_nobody_reads_does_not_hang(sandbox: Sandbox) -> None:
    assert sandbox.exec(["true"], stdin=b"x" * 5_000_000).ok


def test_commands_work_while_the_interpreter_is_dead(sandbox: Sandbox) -> None:
    sandbox.run("import os; os._exit(1)")
    assert sandbox.exec(["echo", "still here"]).stdout == b"still here\n"


@pytest.mark.parametrize("command", [[], ["a\0b"], [1]])
def test_what_is_no_command_is_refused(sandbox: Sandbox, command: list[str]) -> None:
    with pytest.raises(ValueError, match="command"):
        sandbox.exec(command)


def test_lines_are_found_and_whether_those_are_all(sandbox: Sandbox) -> None:
    sandbox.write_file("a.py", "x = 1\ny = 2\n")
    sandbox.write_file("d/b.txt", "y is here\n")
    found, complete = sandbox.search("^y")
    assert sorted((one.path, one.line, one.text) for one in found) == [
        ("./a.py", 2, "y = 2"),
        ("./d/b.txt", 1, "y is here"),
    ]
    assert complete
    assert [one.path for one in sandbox.search("y", glob="*.py")[0]] == ["./a.py"]
    assert sandbox.search(".", limit=1)[1] is False
    with pytest.raises(OSError, match="no regular expression"):
        sandbox.search("(")


@pytest.mark.parametrize(
    "told",
    [
        "head -c 100000 /dev/zero | tr '\\0' '['",
        """echo '{"errno": 1e999, "message": ""}'""",
        f"""echo '{{"errno": {10**100}, "message": ""}}'""",
        "true",
    ],
    ids=["deep", "infinite", "large", "nothing"],
)
def test_a_program_may_leave_with_the_status_of_a_failed_operation(sandbox: Sandbox, told: str) -> None:
    done = sandbox.exec(["sh", "-c", f"({told}) >&2; exit 97"])
    assert (done.outcome, done.exit_status) == (Outcome.ERROR, 97)


def test_a_request_that_is_too_long_is_refused_and_leaves_no_descriptor_open(sandbox: Sandbox) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for size in [70_000, 300_000] * 20:
        with pytest.raises(OSError, match="shorten") as refused:
            sandbox.exec(["true", "x" * size])
        assert refused.value.errno == errno.E2BIG
        with pytest.raises(OSError, match="shorten"):
            sandbox.read_file("x" * size)
    assert len(os.listdir("/proc/self/fd")) < before + 40
    assert sandbox.exec(["true", "x" * 60_000]).ok, "the sandbox lives on"


PIPES = """
import os
from envtorch.sandbox.workspace_operations import open_pipes
opened = []
while True:
    try:
        opened.append(os.open("/dev/null", os.O_RDONLY))
    except OSError:
        break
for descriptor in opened[-3:]:
    os.close(descriptor)
try:
    open_pipes()
except OSError:
    for _ in range(3):
        os.open("/dev/null", os.O_RDONLY)
    print("all are closed")
"""


def test_pipes_that_cannot_all_be_opened_are_closed() -> None:
    limited = ["/bin/sh", "-c", 'ulimit -n 64; exec "$0" -c "$1"', sys.executable, PIPES]
    done = subprocess.run(limited, capture_output=True, text=True, check=True)
    assert done.stdout == "all are closed\n"
