"""The checks of `check_provider`: starting, stopping, and telling."""

import asyncio
import gc
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from urllib.parse import quote, urlsplit

from envtorch.errors import (
    ConfigurationError,
    PortTaken,
)
from envtorch.providers.provider_base import ContainerProvider, Phase, RuntimeProvider
from envtorch.testing.provider import (
    Probe,
    ProviderCheck,
    ProviderSubject,
    Skipped,
    answers,
    collector,
    expect,
)
from envtorch.testing.provider_failure_checks import FAILURE_CHECKS
from envtorch.testing.provider_owner_checks import OWNER_CHECKS

__all__ = ["PROVIDER_CHECKS"]

_checks: list[ProviderCheck] = []
promise = collector(_checks)


# Starting.


@promise("start gives an http address with a host and a port, and nothing after it")
def start_gives_an_address(subject: ProviderSubject) -> None:
    with subject.provider() as provider:
        url = subject.start(provider)
        parts = urlsplit(url)
        assert parts.scheme in ("http", "https"), url
        assert url == f"{parts.scheme}://{parts.hostname}:{parts.port}"


@promise("the address is one that a client can connect to, not a wildcard")
def address_is_no_wildcard(subject: ProviderSubject) -> None:
    with subject.provider() as provider:
        assert urlsplit(subject.start(provider)).hostname not in ("0.0.0.0", "::"), provider.base_url  # noqa: S104


@promise("wait_for_ready returns when the server is healthy")
def ready_means_healthy(subject: ProviderSubject) -> None:
    with subject.serving() as probe:
        assert probe.get("/health").status_code == 200


@promise("base_url is the address that start gave, and None before and after")
def base_url_is_told(subject: ProviderSubject) -> None:
    with subject.provider() as provider:
        told = [provider.base_url]
        url = subject.start(provider)
        told.append(provider.base_url)
        provider.close()
        told.append(provider.base_url)
        assert told == [None, url, None], told


@promise("an environment variable reaches the server")
def variables_reach_the_server(subject: ProviderSubject) -> None:
    with subject.serving(env_vars={"PROBE_VALUE": "seven"}) as probe:
        assert probe.get("/environ/PROBE_VALUE").text == "seven"


@promise("the values of environment variables arrive unchanged, whatever is in them")
def odd_values_arrive(subject: ProviderSubject) -> None:
    odd = {
        "PROBE_EMPTY": "",
        "PROBE_SPACES": "  a  b ",
        "PROBE_EQUALS": "a=b=c",
        "PROBE_QUOTES": 'it\'s "quoted" $HOME `id` $(id)',
        "PROBE_LINES": "one\ntwo",
        "PROBE_UNICODE": "žluťoučký kůň",
    }
    with subject.serving(env_vars=odd) as probe:
        seen = {name: probe.get(f"/environ/{quote(name)}").text for name in odd}
        assert seen == odd, seen


@promise("a name that cannot be an environment variable is refused")
def impossible_names_are_refused(subject: ProviderSubject) -> None:
    with (
        subject.provider() as provider,
        expect(ConfigurationError, because="a variable's name cannot hold '='"),
    ):
        subject.start(provider, env_vars={"A=B": "c"})


@promise("an option that nobody knows is refused by name, and nothing is started")
def unknown_options_are_refused(subject: ProviderSubject) -> None:
    with subject.provider() as provider:
        with expect(ConfigurationError, because="there is no option 'memroy_limitt'") as expected:
            subject.start(provider, memroy_limitt="1g")
        assert "memroy_limitt" in str(expected.error), expected.error
        assert provider.status().phase is Phase.ABSENT


@promise("a port that was asked for is the one that is used")
def chosen_port_is_used(subject: ProviderSubject) -> None:
    _needs_a_choice_of_port(subject)
    for _ in range(5):  # between finding a free port and using it, another program may take it
        port = _free_port()
        with suppress(PortTaken), subject.serving(port=port) as probe:
            assert urlsplit(probe.url).port == port, probe.url
            return
    raise Skipped("every free port was taken by somebody else at once")


@promise("a port that is taken is a PortTaken, and nothing is left behind")
def taken_port_is_told(subject: ProviderSubject) -> None:
    _needs_a_choice_of_port(subject)
    with socket.create_server(("127.0.0.1", 0)) as holder, subject.provider() as provider:
        port = holder.getsockname()[1]
        with expect(PortTaken, because="another program listens on the port") as expected:
            subject.start(provider, port=port)
        assert str(port) in str(expected.error), expected.error
        assert provider.status().phase is Phase.ABSENT


@promise("a number that is no port is refused")
def impossible_port_is_refused(subject: ProviderSubject) -> None:
    with subject.provider() as provider:
        for port in (0, -1, 70000):
            with expect(ConfigurationError, because=f"{port} is no port"):
                subject.start(provider, port=port)
        assert provider.status().phase is Phase.ABSENT


@promise("a second start is refused, and the first server goes on")
def second_start_is_refused(subject: ProviderSubject) -> None:
    with subject.serving() as probe:
        with expect(ConfigurationError, because="the provider already runs a server"):
            subject.start(probe.provider)
        assert probe.get("/health").status_code == 200


@promise("two providers run two servers at the same time, each for itself")
def two_providers_are_independent(subject: ProviderSubject) -> None:
    with subject.serving(env_vars={"PROBE_NAME": "one"}) as one:
        with subject.serving(env_vars={"PROBE_NAME": "two"}) as two:
            assert one.url != two.url
            assert [p.get("/environ/PROBE_NAME").text for p in (one, two)] == ["one", "two"]
        assert one.get("/health").status_code == 200, "stopping the second server stopped the first"


@promise("many connections at once are served")
def many_connections_are_served(subject: ProviderSubject) -> None:
    with subject.serving() as probe, ThreadPoolExecutor(16) as threads:
        codes = list(threads.map(lambda _: probe.get("/health").status_code, range(32)))
        assert codes == [200] * 32, codes


@promise("a large answer arrives whole")
def large_answers_arrive(subject: ProviderSubject) -> None:
    with subject.serving() as probe:
        assert len(probe.get("/bytes/5000000").content) == 5_000_000


# Stopping.


@promise("after stop nothing answers at the address")
def stop_ends_the_server(subject: ProviderSubject) -> None:
    with subject.serving() as probe:
        probe.provider.stop_container()
        assert not probe.answers()


@promise("stopping twice, or before any start, does nothing")
def stop_is_idempotent(subject: ProviderSubject) -> None:
    with subject.provider() as provider:
        provider.stop_container()
        subject.start(provider)
        provider.stop_container()
        provider.stop_container()
        provider.close()
        assert provider.status().phase is Phase.ABSENT


@promise("a provider that was stopped can start again")
def provider_can_start_again(subject: ProviderSubject) -> None:
    with subject.provider() as provider:
        for value in ("first", "second"):
            url = subject.start(provider, env_vars={"PROBE_VALUE": value})
            subject.wait(provider, url)
            assert Probe(provider, url).get("/environ/PROBE_VALUE").text == value
            provider.close()


@promise("a server that does not heed the request to end is ended all the same")
def stubborn_server_is_ended(subject: ProviderSubject) -> None:
    with subject.serving(env_vars={"PROBE_STUBBORN": "1"}) as probe:
        probe.provider.close()
        assert not probe.answers()


@promise("leaving a with block stops the server")
def with_block_stops(subject: ProviderSubject) -> None:
    provider = subject.make()
    if not isinstance(provider, ContainerProvider):
        with provider:
            url = provider.base_url or ""
            assert answers(url)
    else:
        with provider:
            url = subject.start(provider)
            subject.wait(provider, url)
    assert not answers(url)
    assert provider.status().phase is Phase.ABSENT


@promise("an exception in a with block stops the server, and goes on")
def exception_stops(subject: ProviderSubject) -> None:
    provider = subject.make()
    with expect(KeyError, because="the block raised one") as expected, provider:
        raise KeyError(provider.base_url or subject.start(provider))
    assert provider.status().phase is Phase.ABSENT
    assert not answers(expected.error.args[0])


@promise("leaving an async with block stops the server, without blocking the loop")
def async_block_stops(subject: ProviderSubject) -> None:
    async def use() -> str:
        async with subject.make() as provider:
            url = await _begin(subject, provider)
            await asyncio.to_thread(subject.wait, provider, url)
            return url

    assert not answers(asyncio.run(use()))


@promise("a task that is cancelled inside an async with block still stops the server")
def cancelled_task_stops(subject: ProviderSubject) -> None:
    urls: list[str] = []

    async def use(started: asyncio.Event) -> None:
        async with subject.make() as provider:
            urls.append(await _begin(subject, provider))
            started.set()
            await asyncio.Event().wait()

    async def cancel() -> None:
        started = asyncio.Event()
        task = asyncio.create_task(use(started))
        await started.wait()
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()

    asyncio.run(cancel())
    assert not answers(urls[0])


@promise("a provider that nobody holds any more stops its server")
def forgotten_provider_stops(subject: ProviderSubject) -> None:
    provider = subject.make()
    url = subject.start(provider)
    subject.wait(provider, url)
    del provider
    gc.collect()
    assert not answers(url)


# Telling.


@promise("status tells absent before the start, running while it runs, absent after stop")
def status_follows_the_server(subject: ProviderSubject) -> None:
    with subject.provider() as provider:
        phases = [provider.status().phase]
        subject.wait(provider, subject.start(provider))
        phases.append(provider.status().phase)
        provider.close()
        phases.append(provider.status().phase)
        assert phases == [Phase.ABSENT, Phase.RUNNING, Phase.ABSENT], phases


@promise("a server that ends by itself is told as exited, with its code")
def end_is_noticed(subject: ProviderSubject) -> None:
    with subject.serving() as probe:
        with suppress(Exception):  # the server ends in the middle of its answer
            probe.get("/exit/7")
        subject.eventually(lambda: not probe.provider.status().is_alive, "the end is noticed")
        status = probe.provider.status()
        assert (status.phase, status.exit_code) == (Phase.EXITED, 7), status


@promise("logs hold what the server wrote to standard output and to standard error")
def logs_hold_both_streams(subject: ProviderSubject) -> None:
    with subject.serving() as probe:
        subject.eventually(lambda: "probe: out" in probe.provider.logs(), "standard output is in the logs")
        subject.eventually(lambda: "probe: err" in probe.provider.logs(), "standard error is in the logs")


@promise("logs(tail=1) gives one line, and tail=0 is refused")
def logs_heed_the_tail(subject: ProviderSubject) -> None:
    with subject.serving() as probe:
        subject.eventually(lambda: len(probe.provider.logs().splitlines()) > 1, "both lines are in the logs")
        assert len(probe.provider.logs(tail=1).splitlines()) == 1
        with expect(ConfigurationError, because="no lines is no request"):
            probe.provider.logs(tail=0)


@promise("logs are empty before the start, and still there after stop")
def logs_outlive_the_server(subject: ProviderSubject) -> None:
    with subject.provider() as provider:
        assert provider.logs() == ""
        subject.wait(provider, subject.start(provider))
        provider.close()
        assert "probe: out" in provider.logs()


def _needs_a_choice_of_port(subject: ProviderSubject) -> None:
    if not subject.chooses_port:
        raise Skipped("this provider's servers have no port of this machine")


async def _begin(subject: ProviderSubject, provider: ContainerProvider | RuntimeProvider) -> str:
    """Entering a runtime provider has started it already."""
    running = provider.base_url
    return running if running is not None else await asyncio.to_thread(subject.start, provider)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


PROVIDER_CHECKS: tuple[ProviderCheck, ...] = (*_checks, *FAILURE_CHECKS, *OWNER_CHECKS)
"""Every check, in the order in which they are run."""
