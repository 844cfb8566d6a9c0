"""`check_provider`: whether a provider keeps the contract of `envtorch.providers.provider_base`.

    from envtorch.testing import PROBE_COMMAND, ProviderSubject, check_provider

    subject = ProviderSubject(
        make=MyProvider, image="python:3.11-slim", options={"command": PROBE_COMMAND}
    )
    assert not [result for result in check_provider(subject) if result.failed]

or, in pytest, one test for each check:

    @pytest.mark.parametrize("check", PROVIDER_CHECKS, ids=str)
    def test_keeps_the_contract(check): check.run(subject)

The server that is started is the probe (`envtorch.testing.probe_server`).
"""

import inspect
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import httpx

from envtorch.env import load_object
from envtorch.providers.provider_base import ContainerProvider, RuntimeProvider
from envtorch.testing import probe_server

__all__ = [
    "PROBE_APP",
    "PROBE_COMMAND",
    "CheckResult",
    "Probe",
    "ProviderCheck",
    "ProviderSubject",
    "Skipped",
    "check_provider",
    "collector",
    "expect",
]

PROBE_COMMAND = ("python3", "-c", inspect.getsource(probe_server))
"""Runs the probe on port 8000 wherever there is a Python, with nothing installed."""

PROBE_APP = "envtorch.testing.probe_server:app"
"""The probe as an ASGI application, for providers that serve applications."""

AnyProvider = ContainerProvider | RuntimeProvider


class Skipped(Exception):
    """This check does not apply to the provider; the message says why."""


@dataclass(frozen=True, slots=True)
class Probe:
    """A probe that was started, by the provider that did it."""

    provider: AnyProvider
    url: str

    def get(self, path: str) -> httpx.Response:
        return httpx.get(f"{self.url}{path}", trust_env=False, timeout=30.0)

    def answers(self) -> bool:
        return answers(self.url)


def answers(url: str) -> bool:
    """Whether anything at all answers there."""
    try:
        httpx.get(f"{url}/health", trust_env=False, timeout=5.0)
    except httpx.HTTPError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class ProviderSubject:
    """A provider, and how to start the probe with it."""

    make: Callable[[], AnyProvider]
    """A fresh provider each time."""

    image: str | None = None
    """What `start_container` is given; None for a `RuntimeProvider`, which was told when it was made."""

    options: Mapping[str, Any] = field(default_factory=dict)
    missing_image: str | None = None
    """An image that is not there and cannot be fetched."""

    importable: str | None = None
    """Where this subject can be found by another process, as `"module:name"`: for the checks that kill
    the owner."""

    chooses_port: bool = True
    """Whether the caller may say which port of this machine the server has."""

    ready_timeout_s: float = 60.0

    end_timeout_s: float = 60.0
    """How long what was told to end may take to. A cluster's node may notice only when it looks again."""

    def start(
        self,
        provider: AnyProvider,
        *,
        port: int | None = None,
        env_vars: Mapping[str, str] | None = None,
        image: str | None = None,
        **options: Any,
    ) -> str:
        """Start the probe, without waiting for it."""
        options = {**self.options, **options}
        if isinstance(provider, ContainerProvider):
            chosen = image or self.image
            assert chosen is not None, "a ContainerProvider needs an image that runs the probe"
            return provider.start_container(chosen, port=port, env_vars=env_vars, **options)
        return provider.start(port=port, env_vars=env_vars, **options)

    def wait(self, provider: AnyProvider, url: str, timeout_s: float | None = None) -> None:
        timeout = self.ready_timeout_s if timeout_s is None else timeout_s
        if isinstance(provider, ContainerProvider):
            provider.wait_for_ready(url, timeout_s=timeout)
        else:
            provider.wait_for_ready(timeout_s=timeout)

    def eventually(self, condition: Callable[[], bool], what: str) -> None:
        """Wait for what another process brings about; it is a failure if it never does."""
        deadline = time.monotonic() + max(self.ready_timeout_s, self.end_timeout_s)
        while not condition():
            assert time.monotonic() < deadline, f"never happened: {what}"
            time.sleep(0.02)

    @contextmanager
    def provider(self) -> Iterator[AnyProvider]:
        """A fresh provider that is stopped in any case, whatever a check finds."""
        provider = self.make()
        try:
            yield provider
        finally:
            provider.close()

    @contextmanager
    def serving(self, **how: Any) -> Iterator[Probe]:
        """A probe that is ready."""
        with self.provider() as provider:
            url = self.start(provider, **how)
            self.wait(provider, url)
            yield Probe(provider, url)

    @classmethod
    def load(cls, importable: str) -> "ProviderSubject":
        found = load_object(importable)
        subject = found() if callable(found) else found
        assert isinstance(subject, ProviderSubject), f"{importable} is no ProviderSubject"
        return subject


@dataclass(frozen=True, slots=True)
class ProviderCheck:
    """One promise, and how to see whether it is kept."""

    name: str
    promise: str
    body: Callable[[ProviderSubject], None]

    def run(self, subject: ProviderSubject) -> None:
        """Raises `AssertionError` when the promise is broken, `Skipped` when it does not apply."""
        self.body(subject)

    def __str__(self) -> str:
        return self.name


Body = Callable[[ProviderSubject], None]


def collector(checks: list[ProviderCheck]) -> Callable[[str], Callable[[Body], Body]]:
    """A decorator that adds a check to `checks`, with the promise that it states."""

    def promise(text: str) -> Callable[[Body], Body]:
        def add(body: Body) -> Body:
            checks.append(ProviderCheck(body.__name__, text, body))
            return body

        return add

    return promise


@dataclass(frozen=True, slots=True)
class CheckResult:
    """What one check found."""

    check: ProviderCheck
    failure: str | None = None
    skipped: str | None = None

    @property
    def failed(self) -> bool:
        return self.failure is not None

    def __str__(self) -> str:
        if self.failure is not None:
            return f"FAILED  {self.check.name}: {self.failure}"
        return f"skipped {self.check.name}: {self.skipped}" if self.skipped else f"ok      {self.check.name}"


def check_provider(
    subject: ProviderSubject, checks: Iterable[ProviderCheck] | None = None
) -> list[CheckResult]:
    """Run every check on `subject`; the failed ones tell, in a sentence, which promise is broken."""
    if checks is None:
        checks = load_object("envtorch.testing.provider_checks:PROVIDER_CHECKS")
    return [_result(check, subject) for check in checks]


def _result(check: ProviderCheck, subject: ProviderSubject) -> CheckResult:
    try:
        check.run(subject)
    except Skipped as skipped:
        return CheckResult(check, skipped=str(skipped))
    except Exception as error:  # the provider is foreign: what it raises is the finding
        return CheckResult(check, failure=f"{check.promise}: {type(error).__name__}: {error}")
    return CheckResult(check)


class expect:  # noqa: N801 - used like a function
    """Fail unless the block raises `kind`; the error is then in `error`."""

    def __init__(self, kind: type[BaseException], *, because: str) -> None:
        self._kind = kind
        self._because = because
        self.error: Any = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        if error is None:
            raise AssertionError(f"no {self._kind.__name__} was raised, although {self._because}")
        self.error = error
        return isinstance(error, self._kind)
