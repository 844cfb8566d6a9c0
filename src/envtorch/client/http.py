"""The HTTP client: for code written against the first API, and for where only HTTP gets through."""

import time
import weakref
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Generic, Self

import httpx

from envtorch.client.client_options import Owner, require_headers, require_owner
from envtorch.client.guard import ProcessGuard, UseGuard
from envtorch.client.launch import Starter, plan, plan_hub
from envtorch.client.translation import Translation, encode_options
from envtorch.errors import (
    ClientClosed,
    ConfigurationError,
    ConnectFailed,
    EnvTorchError,
    InvalidAction,
    ProtocolError,
    SessionElsewhere,
    SessionLost,
    TimedOut,
    from_wire,
)
from envtorch.protocol.arguments import is_duration, shown, timeout_of
from envtorch.protocol.encoding import encode_value
from envtorch.protocol.formats import JSON
from envtorch.shown_urls import shown_url
from envtorch.types import ActT, ObsT, StateT, StepResult

__all__ = ["HTTPEnvClient"]

ANSWER_MARGIN_S = 5.0
"""How much longer than the server's deadline to wait for its reply that the deadline passed."""

MISROUTED_S = 1.0
"""How long to wait before a request is sent again that reached another replica than its session's."""

CLOSING_S = 2.0
"""How long to try to tell the server that the session is over."""


class HTTPEnvClient(Translation[ActT, ObsT, StateT], Generic[ActT, ObsT, StateT]):
    """One session over plain HTTP, blocking. The server's session cookie keeps the episode.

    As with `EnvClient`, a subclass may define `_step_payload`, `_parse_result` and `_parse_state`.
    """

    def __init__(
        self,
        base_url: str,
        request_timeout_s: float = 15.0,
        default_headers: Mapping[str, str] | None = None,
        provider: Owner | None = None,
    ) -> None:
        if not isinstance(base_url, str):
            raise ConfigurationError(f"base_url is the server's address, a text, not {shown(base_url)}")
        if not is_duration(request_timeout_s) or not request_timeout_s > 0:
            raise ConfigurationError(
                f"request_timeout_s is a number of seconds above 0, not {shown(request_timeout_s)}"
            )
        self.base_url = base_url.rstrip("/")
        self._timeout_s = float(request_timeout_s)
        require_headers(default_headers)
        require_owner(provider)
        self._provider = provider
        self._headers = {"Content-Type": "application/json", **(default_headers or {})}
        self._guard = UseGuard("client")
        self._is_closed = False
        self._http = self._new_client()
        self._finalizer = weakref.finalize(self, _give_back, self._http, self._guard)

    def _new_client(self) -> httpx.Client:
        url = httpx.URL(self.base_url)
        auth = (url.username, url.password) if url.userinfo else None
        # Apart from the password: httpx logs the URL of every request.
        return httpx.Client(
            base_url=url.copy_with(userinfo=b""), auth=auth, headers=self._headers, timeout=self._timeout_s
        )

    @classmethod
    def from_docker_image(cls, image: str, provider: Starter | str | None = None, **options: Any) -> Self:
        """Start a server from `image` and make a client of it; `close` stops it again."""
        server = plan(image, provider, options).run()
        return cls(server.base_url, provider=server.owner, **server.client_options)

    @classmethod
    def from_hub(
        cls, repo_id: str, *, use_docker: bool = True, provider: Starter | str | None = None, **options: Any
    ) -> Self:
        """Start a Hugging Face Space on this machine: its image in a container, or its sources with uv."""
        server = plan_hub(repo_id, use_docker, provider, options).run()
        return cls(server.base_url, provider=server.owner, **server.client_options)

    def reset(
        self,
        *,
        seed: int | None = None,
        episode_id: str | None = None,
        headers: Mapping[str, str] | None = None,
        **options: Any,
    ) -> StepResult[ObsT]:
        """Begin an episode: `seed`, `episode_id`, and whatever the environment's `reset` takes."""
        if self._is_closed:
            self._http, self._is_closed = self._new_client(), False
            self._finalizer = weakref.finalize(self, _give_back, self._http, self._guard)
        named = {"seed": seed, "episode_id": episode_id}
        body = {**{name: value for name, value in named.items() if value is not None}, **options}
        return self.parse_result(self._send("POST", "/reset", encode_options(body, JSON), headers))

    def step(
        self,
        action: ActT,
        *,
        timeout_s: float | None = None,
        request_id: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> StepResult[ObsT]:
        """Take one action. The server keeps `timeout_s`; a repeated `request_id` is answered, not run."""
        server_s = timeout_of(timeout_s)
        if request_id is not None and not isinstance(request_id, str):
            raise InvalidAction(f"request_id is a text, not {shown(request_id)}")
        limit = None if server_s is None else server_s + ANSWER_MARGIN_S
        named = {"timeout_s": server_s, "request_id": request_id}
        extras = b"".join(
            b',"%b":%b' % (name.encode(), encode_value(value))
            for name, value in named.items()
            if value is not None
        )
        body = b'{"action":%b%b}' % (self.encode_action(action), extras)
        return self.parse_result(self._send("POST", "/step", body, headers, timeout_s=limit))

    def state(self, *, headers: Mapping[str, str] | None = None) -> StateT:
        """Where the episode stands."""
        return self.parse_state(self._send("GET", "/state", None, headers))

    def close(self) -> None:
        """End the session, and stop the server if it was started for this client."""
        if not self._guard.is_at_home:
            return
        self._is_closed = True
        try:
            self._finalizer()
        finally:
            if self._provider is not None:
                self._provider.stop_container()

    def _send(
        self,
        method: str,
        path: str,
        body: bytes | None,
        headers: Mapping[str, str] | None,
        *,
        timeout_s: float | None = None,
    ) -> dict[str, Any]:
        require_headers(headers)
        if self._is_closed:
            raise ClientClosed("the client was closed; reset() opens a new session")
        left_s = self._timeout_s if timeout_s is None else timeout_s
        deadline = time.monotonic() + left_s
        while True:
            try:
                with self._guard:
                    response = self._http.request(method, path, content=body, headers=headers, timeout=left_s)
            except httpx.TimeoutException as error:
                raise TimedOut(f"{method} {path} was not answered in time: {error!r}") from error
            except httpx.RequestError as error:
                raise ConnectFailed(f"{method} {shown_url(self.base_url)}{path} failed: {error}") from error
            if response.is_success:
                return _payload_of(response)
            refused = _error_in(response)
            if not isinstance(refused, SessionElsewhere):
                raise refused
            left_s = deadline - time.monotonic() - MISROUTED_S
            if left_s <= 0:
                raise SessionLost(f"the session was not found in time: {refused.message}") from refused
            time.sleep(MISROUTED_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _give_back(http: httpx.Client, home: ProcessGuard) -> None:
    """End the session of a client that is closed, dropped or left open at exit."""
    if not home.is_at_home:
        return
    try:
        if http.cookies:  # else there is no session
            http.post("/close", timeout=CLOSING_S)
    except httpx.HTTPError:
        pass  # there is nobody left to tell
    finally:
        http.close()


def _payload_of(response: httpx.Response) -> dict[str, Any]:
    """What a response holds. Raises `ProtocolError` for one that no environment server sent."""
    try:
        payload = response.json()
    except ValueError:
        payload = None
    if not isinstance(payload, dict):
        raise ProtocolError(
            f"the answer is no JSON object: {response.text[:200]!r}. Check the address: something else "
            "than an environment server, such as a proxy, answers there"
        )
    return payload


def _error_in(response: httpx.Response) -> EnvTorchError:
    """The error that a response reports; an unknown one keeps its status and text."""
    try:
        body = response.json()
    except ValueError:
        body = None
    detail = body.get("detail") if isinstance(body, dict) else None
    if isinstance(detail, list):
        return InvalidAction("Invalid message", errors=detail)
    code = body.get("code") if isinstance(body, dict) else None
    return from_wire(code, str(detail or f"HTTP {response.status_code}: {response.text[:500]}"))
