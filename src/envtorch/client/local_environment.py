"""An environment in the client's own process, behind the same codec and the same rules as a served one."""

from collections.abc import Callable
from typing import Any

from envtorch.env import Environment, EnvironmentSource, load_object
from envtorch.errors import ClientClosed, ConfigurationError, EnvTorchError
from envtorch.protocol.arguments import shown
from envtorch.protocol.codec import Codec
from envtorch.protocol.flow import Flow
from envtorch.protocol.host import EnvironmentHost
from envtorch.protocol.messages import Close, Mcp, decode
from envtorch.protocol.tool_requests import answer_tools
from envtorch.protocol.wire import Answer, Ask, error_reply

__all__ = ["answer_locally", "host_maker", "make_host"]


def answer_locally(host: EnvironmentHost, ask: Ask, timeout_s: float | None) -> Flow[Answer]:
    """The reply that a server would give. Yields what the environment returns, which may have to be
    awaited."""
    try:
        request = decode(ask.frame())
        assert not isinstance(request, Close)
        if isinstance(request, Mcp):
            reply = yield from answer_tools(host, request)
        else:
            reply = yield from host.reply(request, strict=True, timeout_s=timeout_s)
    except EnvTorchError as error:
        reply = error_reply(error)
    return Answer.read(reply.frame())


def host_maker(
    source: EnvironmentSource | None, default: str | None, codec: Codec[Any, Any, Any]
) -> Callable[[], EnvironmentHost]:
    """Makes the environment that `local()` was asked for, as often as it is opened; an instance only once."""
    found = _found(source, default)
    was_made = False

    def make() -> EnvironmentHost:
        nonlocal was_made
        if was_made and isinstance(found, Environment):
            raise ClientClosed("the environment was closed with its client: pass a class to reset() anew")
        was_made = True
        return make_host(found, None, codec)

    return make


def make_host(
    source: EnvironmentSource | None, default: str | None, codec: Codec[Any, Any, Any]
) -> EnvironmentHost:
    """The environment that `local()` was asked for, ready to be called."""
    found = _found(source, default)
    made = found if isinstance(found, Environment) or not callable(found) else found()
    if not all(callable(getattr(made, name, None)) for name in ("reset", "step")):
        raise ConfigurationError(
            f"local() takes an environment: a class, a factory, an instance or a path, not {shown(found)}"
        )
    return EnvironmentHost(made, codec)


def _found(source: EnvironmentSource | None, default: str | None) -> Any:
    found = source if source is not None else default
    if found is None:
        raise ConfigurationError(
            "say which environment to run: MyEnv.local(MyEnvironment), or declare the client as "
            "`class MyEnv(EnvClient[...], environment='package.module:MyEnvironment')`"
        )
    return load_object(found) if isinstance(found, str) else found
