"""Who plays a recording again: on a server, by the wire it was recorded on, or in this process."""

from collections.abc import Mapping
from typing import Any

import httpx

from envtorch.client.blocking.links import Link, LocalLink, open_link
from envtorch.client.client_options import ClientOptions, Wire
from envtorch.client.local_environment import make_host
from envtorch.env import EnvironmentSource, EnvSpec
from envtorch.errors import BY_CODE, EnvTorchError, Unsupported, from_wire
from envtorch.protocol.codec import Codec
from envtorch.protocol.encoding import encode_value
from envtorch.protocol.jsonrpc import Code
from envtorch.protocol.wire import Answer, Ask
from envtorch.recording import Comparison, Player, Recording, Replay, Way, replay
from envtorch.recording.format import plain
from envtorch.server.sessions.environment_factory import Factory

__all__ = ["HttpPlayer", "LinkPlayer", "check_replay", "player_on"]

OF_THE_ENVIRONMENT = ("VALIDATION_ERROR", "EXECUTION_ERROR", "TIMED_OUT", "OUT_OF_RESOURCES", "UNSUPPORTED")
"""Errors that are what came of a call. Any other is about the server, and ends the replay."""


def check_replay(
    recording: Recording | str, environment: EnvironmentSource | str, *, comparison: Comparison | None = None
) -> Replay:
    """Play a recording again, on a server (its URL) or on an environment in this process.

    For a test of an environment's author: `assert check_replay("episodes.jsonl", MyEnvironment).ok`.
    """
    opened = recording if isinstance(recording, Recording) else Recording.open(recording)
    if isinstance(environment, str) and environment.startswith(("http://", "https://")):
        url = environment
        return replay(opened, lambda way: player_on(url, way), comparison=comparison)
    factory = Factory.of(environment)
    spec: EnvSpec[Any, Any, Any] = EnvSpec.of(factory.environment_class or factory.make, name=factory.name)
    codec = Codec(spec)
    return replay(
        opened,
        lambda _: LinkPlayer(LocalLink(make_host(factory.make, None, codec))),
        comparison=comparison,
    )


def player_on(url: str, way: Way, *, token: str | None = None, timeout_s: float = 60.0) -> Player:
    """A new session on a server, to be played in the way it was recorded."""
    if way.over_http:
        return HttpPlayer(url, token=token, timeout_s=timeout_s)
    wire: Wire = "msgpack" if way.wire == "msgpack" else "openenv" if way.wire == "openenv" else "json"
    options = ClientOptions.of(url, wire=wire, token=token, message_timeout_s=timeout_s, wait_s=10.0)
    return LinkPlayer(open_link(options))


class LinkPlayer:
    """Plays over a client's link: a socket, or an environment in this process."""

    def __init__(self, link: Link) -> None:
        self._link = link

    def reset(self, options: Mapping[str, Any]) -> dict[str, Any]:
        data = encode_value(dict(options), self._link.format)
        return _observed(self._link.exchange(Ask("reset", data), timeout_s=None))

    def step(self, action: Any, options: Mapping[str, Any]) -> dict[str, Any]:
        data = encode_value(action, self._link.format)
        return _observed(self._link.exchange(Ask("step", data), timeout_s=options.get("timeout_s")))

    def call_tool(self, name: str, arguments: Mapping[str, Any], form: str) -> dict[str, Any]:
        if form != "value" or isinstance(self._link, LocalLink):
            raise Unsupported(f"the call of tool {name!r} can only be replayed on a server: give its URL")
        request = _rpc("tools/call", {"name": name, "arguments": dict(arguments)})
        answer = self._link.exchange(Ask("mcp", encode_value(request)), timeout_s=None)
        return _answered(answer.expect("mcp"))

    def fork(self) -> "LinkPlayer":
        (copy,) = self._link.fork(1, timeout_s=None)
        return LinkPlayer(copy)

    def close(self) -> None:
        self._link.close()


class HttpPlayer:
    """Plays over HTTP: for sessions in which an agent called tools through MCP."""

    def __init__(self, url: str, *, token: str | None = None, timeout_s: float = 60.0) -> None:
        bearer = {"Authorization": f"Bearer {token}"} if token else {}
        self._http = httpx.Client(base_url=url, timeout=timeout_s, headers=bearer)

    def reset(self, options: Mapping[str, Any]) -> dict[str, Any]:
        return self._told(self._http.post("/reset", content=encode_value(dict(options)), headers=_JSON))

    def step(self, action: Any, options: Mapping[str, Any]) -> dict[str, Any]:
        body = {"action": action, **options}
        return self._told(self._http.post("/step", content=encode_value(body), headers=_JSON))

    def call_tool(self, name: str, arguments: Mapping[str, Any], form: str) -> dict[str, Any]:
        session = self._http.cookies.get("EnvTorch-Session")
        if session is None:  # an episode of tool calls alone, with no reset before them
            self.reset({})
            session = self._http.cookies["EnvTorch-Session"]
        request = _rpc("tools/call", {"name": name, "arguments": dict(arguments)})
        response = self._http.post(
            "/mcp", content=encode_value(request), headers={**_JSON, "Mcp-Session-Id": session}
        )
        return _answered(response.raise_for_status().json())

    def fork(self) -> "HttpPlayer":
        raise Unsupported("HTTP has no word for a fork")

    def close(self) -> None:
        self._http.post("/close")
        self._http.close()

    def _told(self, response: httpx.Response) -> dict[str, Any]:
        body = response.json()
        if response.is_success:
            return {name: value for name, value in body.items() if name != "metadata" or value is not None}
        if isinstance(body.get("detail"), list):
            return _outcome(from_wire("VALIDATION_ERROR", "Invalid message"))
        return _outcome(from_wire(body.get("code"), str(body.get("detail"))))


_JSON = {"Content-Type": "application/json"}


def _observed(answer: Answer) -> dict[str, Any]:
    if answer.type == "error":
        return _outcome(answer.error())
    told: dict[str, Any] = plain(answer.expect("observation"))
    return told


def _outcome(error: EnvTorchError) -> dict[str, Any]:
    if error.code not in OF_THE_ENVIRONMENT or error.code not in BY_CODE:
        raise error
    return {"error": {"code": error.code, "message": error.message}}


def _rpc(method: str, params: dict[str, Any]) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}


def _answered(response: Mapping[str, Any]) -> dict[str, Any]:
    error = response.get("error")
    if error is None:
        return {"observation": response.get("result"), "reward": None, "done": False}
    if error.get("code") == int(Code.SERVER_ERROR):
        raise from_wire(None, str(error.get("message")))
    return {"error": {"code": "EXECUTION_ERROR", "message": str(error.get("message"))}}
