"""`envtorch check URL`: what can be checked of a running server from outside."""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import httpx

from envtorch.client.blocking.client import GenericEnvClient
from envtorch.client.http import HTTPEnvClient
from envtorch.errors import ConnectFailed, EnvTorchError, InvalidAction, Unsupported
from envtorch.recording.compare import Comparison
from envtorch.settings import Settings
from envtorch.shown_urls import shown_url
from envtorch.testing.report import Finding, NotRun, Report, Severity
from envtorch.testing.sampling import sample

__all__ = ["check_server"]

STEPS = 5


class ServerCheck:
    """One server under examination."""

    def __init__(
        self, url: str, actions: Sequence[Mapping[str, Any]] | None, seed: int, timeout_s: float
    ) -> None:
        self.url = url
        self.seed = seed
        self.timeout_s = timeout_s
        self.token = Settings.from_environ().token
        self.schema: dict[str, Any] = {}
        self._actions = actions
        self.can_reset = True
        self.can_step = True

    def require_reset(self) -> None:
        """Raise `NotRun` where no episode could be begun."""
        if not self.can_reset:
            raise NotRun("no episode could be begun")

    def require_step(self) -> None:
        """Raise `NotRun` where no step succeeded."""
        self.require_reset()
        if not self.can_step:
            raise NotRun("no step succeeded")

    @property
    def actions(self) -> Sequence[Mapping[str, Any]]:
        if self._actions is None:
            rng = random.Random(self.seed)  # noqa: S311, examples need no secrecy
            self._actions = [sample(self.schema.get("action", {}), rng) or {} for _ in range(STEPS)]
        return self._actions

    @contextmanager
    def session(self) -> Iterator[GenericEnvClient]:
        with GenericEnvClient(
            self.url, token=self.token, wait_s=10.0, message_timeout_s=self.timeout_s
        ) as client:
            yield client

    def get(self, path: str) -> httpx.Response:
        headers = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        try:
            return httpx.get(self.url.rstrip("/") + path, headers=headers, timeout=30)
        except httpx.TransportError as error:
            raise ConnectFailed(f"there is no server at {shown_url(self.url)}: {error}") from error

    def played(self) -> list[dict[str, Any]]:
        """What an episode with the seed comes to, call by call."""
        with self.session() as client:
            results = [_reset(client, self.seed)]
            for action in self.actions:
                results.append(_outcome(lambda a=action: client.step(dict(a))))  # type: ignore[misc]
                if results[-1].get("done"):
                    break
        return results


def check_server(
    url: str, *, actions: Sequence[Mapping[str, Any]] | None, seed: int, timeout_s: float
) -> Report:
    """Play on a server from outside, through its own doors, and report what is not right."""
    subject = ServerCheck(url, actions, seed, timeout_s)
    checks: tuple[Callable[[ServerCheck], Iterator[Finding]], ...] = (
        health,
        schema,
        episodes,
        determinism,
        invalid_actions,
        http,
        fork,
    )
    findings: list[Finding] = []
    not_run: dict[str, str] = {}
    for check in checks:
        try:
            findings += check(subject)
        except NotRun as reason:
            not_run[check.__name__] = str(reason)
    ran = tuple(check.__name__ for check in checks if check.__name__ not in not_run)
    return Report(shown_url(url), ran, tuple(findings), not_run)


def health(subject: ServerCheck) -> Iterator[Finding]:
    response = subject.get("/health")
    if response.status_code != 200:
        yield Finding(
            "health", f"/health answers {response.status_code}: {response.text[:200]}", "mend that first"
        )


def schema(subject: ServerCheck) -> Iterator[Finding]:
    response = subject.get("/schema")
    if response.status_code == 200:
        subject.schema = response.json()
    if not subject.schema.get("action"):
        yield Finding("schema", "/schema does not describe the action", "serve it with create_app")


def episodes(subject: ServerCheck) -> Iterator[Finding]:
    results = subject.played()
    failed = [result["error"] for result in results if "error" in result]
    if "error" in results[0]:
        subject.can_reset = False
        yield Finding("episodes", f"reset failed: {results[0]['error']}", "see the server's log")
    elif failed and len(failed) == len(results) - 1:
        subject.can_step = False
        advice = "if the actions that were made up are not valid, give --actions with some that are"
        yield Finding("episodes", f"every step failed: {failed[0]}", advice, Severity.WARNING)


def determinism(subject: ServerCheck) -> Iterator[Finding]:
    subject.require_step()
    then, now = subject.played(), subject.played()
    differences = list(Comparison().differences(then, now))
    if differences:
        shown = "; ".join(" ".join(difference.lines()) for difference in differences[:3])
        advice = "draw every number from a generator that reset(seed=...) seeds"
        yield Finding("determinism", f"the same seed gave two episodes: {shown}", advice, Severity.WARNING)


def invalid_actions(subject: ServerCheck) -> Iterator[Finding]:
    subject.require_reset()
    with subject.session() as client:
        _reset(client, subject.seed)
        try:
            client.step({"no_such_field_of_an_action": 1})
        except InvalidAction:
            pass
        except EnvTorchError as error:
            yield Finding("invalid_actions", f"a wrong action gives {error!r}", "let the model refuse it")
        if "error" in _reset(client, subject.seed):
            yield Finding(
                "invalid_actions", "after a wrong action the session is gone", "raise no SystemExit"
            )


def http(subject: ServerCheck) -> Iterator[Finding]:
    headers = {"Authorization": f"Bearer {subject.token}"} if subject.token else {}
    client = HTTPEnvClient[Any, Any, Any](subject.url, default_headers=headers)
    try:
        client.reset(seed=subject.seed)
        client.state()
    except EnvTorchError as error:
        yield Finding(
            "http", f"an episode over HTTP failed: {error}", "see the server's log", Severity.WARNING
        )
    finally:
        client.close()


def fork(subject: ServerCheck) -> Iterator[Finding]:
    subject.require_reset()
    with subject.session() as client:
        _reset(client, subject.seed)
        try:
            (copy,) = client.fork(1)
        except Unsupported as error:
            yield Finding("fork", str(error), "define fork() on the environment", Severity.WARNING)
        except EnvTorchError as error:
            yield Finding("fork", str(error), "serve with room for two sessions", Severity.WARNING)
        else:
            copy.close()


def _reset(client: GenericEnvClient, seed: int) -> dict[str, Any]:
    """An episode with the seed; without it where the environment takes none."""
    began = _outcome(lambda: client.reset(seed=seed))
    return _outcome(client.reset) if began.get("code") == "VALIDATION_ERROR" else began


def _outcome(call: Callable[[], Any]) -> dict[str, Any]:
    try:
        result = call()
    except (InvalidAction, EnvTorchError) as error:
        return {"error": str(error), "code": error.code}
    return {"observation": result.observation, "reward": result.reward, "done": result.done}
