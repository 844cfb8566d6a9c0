"""The checks of `check_provider` that see how a provider fails: soon, in a sentence, with the log's tail."""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

from envtorch.errors import ConfigurationError, ImageUnavailable, NotReady, ProviderFailed, ServerExited
from envtorch.providers.provider_base import Phase
from envtorch.providers.ready import probe
from envtorch.testing.provider import (
    ProviderCheck,
    ProviderSubject,
    Skipped,
    answers,
    collector,
    expect,
)

__all__ = ["FAILURE_CHECKS"]

_checks: list[ProviderCheck] = []
promise = collector(_checks)


@promise("a server that ends at once is a ServerExited with its code and its last lines")
def exit_at_once_is_told(subject: ProviderSubject) -> None:
    with subject.provider() as provider:
        with expect(ServerExited, because="the server ended with code 3") as expected:
            subject.wait(provider, subject.start(provider, env_vars={"PROBE_EXIT": "3"}))
        assert "probe: err" in expected.error.logs, f"the log tail is missing: {expected.error}"
        assert expected.error.details.get("exit_code") == 3, expected.error.details
        provider.close()
        assert provider.status().phase is Phase.ABSENT


@promise("a server that is never healthy is a NotReady at the deadline, with its reason and last lines")
def never_healthy_is_told(subject: ProviderSubject) -> None:
    with subject.provider() as provider:
        url = subject.start(provider, env_vars={"PROBE_UNHEALTHY": "1"})
        # Else a slow start, or a slow way to it, would be mistaken for the reason.
        subject.eventually(lambda: "probe: err" in provider.logs(), "the server starts")
        subject.eventually(lambda: "503" in (probe(url) or ""), "the server answers")
        with expect(NotReady, because="/health answered 503 all the time") as expected:
            subject.wait(provider, url, timeout_s=4.0)
        assert TimeoutError in type(expected.error).__mro__
        assert "probe: err" in expected.error.logs, f"the log tail is missing: {expected.error}"
        assert "503" in expected.error.message, expected.error
        assert "\n" not in expected.error.message, "more than one sentence"


@promise("waiting for a server that was never started is refused")
def waiting_for_nothing_is_refused(subject: ProviderSubject) -> None:
    with (
        subject.provider() as provider,
        expect(ConfigurationError, because="there is nothing to wait for"),
    ):
        subject.wait(provider, "http://127.0.0.1:9")


@promise("stopping from another thread ends a wait, long before its deadline")
def stop_ends_a_wait(subject: ProviderSubject) -> None:
    with subject.provider() as provider, ThreadPoolExecutor(1) as threads:
        url = subject.start(provider, env_vars={"PROBE_UNHEALTHY": "1"})
        waiting = threads.submit(subject.wait, provider, url, 600.0)
        threading.Event().wait(0.2)
        provider.stop_container()
        with expect(ProviderFailed, because="the server was stopped while it was waited for"):
            waiting.result(timeout=60.0)


@promise("an image that is not there is an ImageUnavailable that names it")
def missing_image_is_told(subject: ProviderSubject) -> None:
    missing = subject.missing_image
    if missing is None:
        raise Skipped("this provider has no images that could be missing")
    with subject.provider() as provider:
        with expect(ImageUnavailable, because=f"there is no image {missing}") as expected:
            subject.wait(provider, subject.start(provider, image=missing))
        assert missing in expected.error.message, expected.error
        provider.close()
        assert provider.status().phase is Phase.ABSENT


@promise("after a failed start the provider can be used again")
def failure_is_not_final(subject: ProviderSubject) -> None:
    with subject.provider() as provider, ExitStack() as last:
        with expect(ServerExited, because="the server ended at once"):
            subject.wait(provider, subject.start(provider, env_vars={"PROBE_EXIT": "1"}))
        last.callback(provider.close)
        provider.close()
        url = subject.start(provider)
        subject.wait(provider, url)
        assert answers(url)


FAILURE_CHECKS = tuple(_checks)
