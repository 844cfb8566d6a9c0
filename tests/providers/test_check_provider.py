"""The conformance suite has teeth: each careless provider is found out, by name."""

import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import pytest

from envtorch.extras import install_command
from envtorch.providers.process import ProcessProvider
from envtorch.providers.provider_base import Status
from envtorch.settings import inherited_environment
from envtorch.testing import PROBE_APP, PROVIDER_CHECKS, ProviderSubject, check_provider
from tests.support import eventually


class DropsOptions(ProcessProvider):
    """Accepts any option and does nothing with it."""

    def start_container(
        self,
        image: str,
        port: int | None = None,
        env_vars: Mapping[str, str] | None = None,
        **options: Any,
    ) -> str:
        return super().start_container(image, port, env_vars)


class IgnoresThePort(ProcessProvider):
    """Chooses a port by itself, whatever was asked for."""

    def start_container(self, image: str, port: int | None = None, *args: Any, **options: Any) -> str:
        return super().start_container(image, None, *args, **options)


class LosesItsLog(ProcessProvider):
    """Tells nothing of what its server wrote."""

    def logs(self, tail: int = 100) -> str:
        return ""


class NeverLooks(ProcessProvider):
    """Believes that its server lives as long as nobody stopped it."""

    def status(self) -> Status:
        found = super().status()
        return found if found.is_alive or self._server is None else Status(type(found.phase).RUNNING)


class StopsOnlyOnce(ProcessProvider):
    """Has no idea what to do when there is nothing to stop."""

    def stop_container(self) -> None:
        if self._server is None:
            raise RuntimeError("nothing to stop")
        super().stop_container()


def test_a_provider_that_never_looks_is_found_out() -> None:
    check = next(check for check in PROVIDER_CHECKS if check.name == "end_is_noticed")

    class Hasty(ProviderSubject):
        """Waits a second for what this provider does not notice in any time."""

        def eventually(self, condition: Callable[[], bool], what: str) -> None:
            with suppress(AssertionError):
                eventually(condition, what, timeout_s=1.0)
            assert condition(), f"never happened: {what}"

    subject = Hasty(make=NeverLooks, image=PROBE_APP)
    (result,) = check_provider(subject, [check])
    assert "never happened: the end is noticed" in (result.failure or "")


def failed(make: Callable[[], ProcessProvider], *names: str) -> set[str]:
    subject = ProviderSubject(make=make, image=PROBE_APP)
    checks = [check for check in PROVIDER_CHECKS if check.name in names]
    assert len(checks) == len(names)
    return {result.check.name for result in check_provider(subject, checks) if result.failed}


@pytest.mark.parametrize(
    ("make", "caught_by", "not_by"),
    [
        (DropsOptions, "unknown_options_are_refused", "variables_reach_the_server"),
        (IgnoresThePort, "chosen_port_is_used", "variables_reach_the_server"),
        (LosesItsLog, "exit_at_once_is_told", "chosen_port_is_used"),
        (StopsOnlyOnce, "stop_is_idempotent", "unknown_options_are_refused"),
    ],
)
def test_a_careless_provider_is_found_out(
    make: Callable[[], ProcessProvider], caught_by: str, not_by: str
) -> None:
    found = failed(make, caught_by, not_by)
    if make is StopsOnlyOnce:  # it cannot even be cleaned up after, so nothing passes
        assert caught_by in found
    else:
        assert found == {caught_by}


def test_a_result_is_a_sentence() -> None:
    check = next(check for check in PROVIDER_CHECKS if check.name == "unknown_options_are_refused")
    (result,) = check_provider(ProviderSubject(make=DropsOptions, image=PROBE_APP), [check])
    assert str(result).startswith(
        "FAILED  unknown_options_are_refused: an option that nobody knows is refused"
    )
    skipped = next(check for check in PROVIDER_CHECKS if check.name == "killed_when_ready")
    (result,) = check_provider(ProviderSubject(make=ProcessProvider, image=PROBE_APP), [skipped])
    assert str(result).startswith("skipped killed_when_ready: the subject is not importable")


@pytest.mark.parametrize(("module", "extra"), [("docker", "docker"), ("kubernetes", "kubernetes")])
def test_a_missing_extra_is_named_in_one_sentence(module: str, extra: str) -> None:
    script = (
        "import sys\n"
        f"sys.modules[{module!r}] = None\n"
        "from envtorch.errors import MissingExtra\n"
        "from envtorch.providers import make_provider\n"
        "try:\n"
        f"    make_provider({module!r})\n"
        "except MissingExtra as error:\n"
        "    print(error)\n"
    )
    said = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env=inherited_environment()
    )
    assert install_command(extra) in said.stdout, said.stderr
    assert said.stdout.count("\n") == 1
