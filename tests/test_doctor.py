"""`envtorch doctor`: run as a person runs it, and looked at where things are missing."""

import io
import json
import subprocess
import sys
from importlib.metadata import metadata
from typing import Any

from rich.console import Console

from envtorch.cli.examination import ADVICE, EXTRAS, PROTECTS, DoctorFinding, Examination, examine, show
from envtorch.errors import EnvironmentFailed
from envtorch.sandbox import PROTECTIONS, Policy
from envtorch.sandbox.protections import Report, judge
from tests.support import PATIENCE_S

ENVTORCH = [sys.executable, "-m", "envtorch.cli"]


def table(found: Examination) -> str:
    console = Console(width=200, record=True, file=io.StringIO())
    show(found, console)
    return console.export_text()


def test_it_prints_a_table_and_its_exit_code_says_whether_sandboxes_start() -> None:
    done = subprocess.run([*ENVTORCH, "doctor"], capture_output=True, text=True, timeout=PATIENCE_S)
    told = subprocess.run([*ENVTORCH, "doctor", "--json"], capture_output=True, text=True, timeout=PATIENCE_S)
    found: dict[str, Any] = json.loads(told.stdout)
    assert done.returncode == told.returncode == (0 if found["healthy"] else 1)
    assert "what was found" in done.stdout
    names = {finding["name"] for finding in found["findings"]}
    assert names >= {"containers", *EXTRAS}
    if found["healthy"]:
        assert names >= PROTECTIONS
        assert found["grade"] in ("host", "container")
        assert f"{found['grade']} grade" in done.stdout
    assert all(bool(finding["next_step"]) is not finding["ok"] for finding in found["findings"])


def test_every_extra_and_every_protection_is_known_to_it() -> None:
    assert set(EXTRAS) == set(metadata("envtorch").get_all("Provides-Extra") or ())
    assert set(ADVICE) == set(PROTECTS) == PROTECTIONS


def test_what_is_missing_comes_with_the_next_step() -> None:
    bare = {"seccomp": "on", "landlock": "unavailable: an old kernel", "rlimits": "on"}

    def weak(policy: Policy) -> Report:
        return judge(bare, namespaces=False)

    found = examine(weak)
    by_name = {finding.name: finding for finding in found.findings}
    assert not found.healthy  # the default policy asks for a protected file system
    assert by_name["network"] == DoctorFinding("sandbox", "network", True, PROTECTS["network"])
    assert "an old kernel" in by_name["filesystem"].detail
    assert "Landlock" in by_name["filesystem"].next_step
    assert "No sandbox can start here" in table(found)


def test_a_machine_without_sandboxes_is_told_why() -> None:
    def none(policy: Policy) -> Report:
        raise EnvironmentFailed("the kernel sandbox needs Linux")

    found = examine(none)
    assert (found.healthy, found.grade) == (False, "none")
    assert found.findings[0].detail == "the kernel sandbox needs Linux"


def test_square_brackets_are_printed_and_not_taken_for_colours() -> None:
    missing = DoctorFinding("extra", "otel", False, "not installed", "pip install 'envtorch[otel]'")
    assert "envtorch[otel]" in table(Examination(True, "host", {"seccomp": "on"}, (missing,)))
