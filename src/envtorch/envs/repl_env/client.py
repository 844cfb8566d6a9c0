"""The clients of the REPL environment, blocking and async. Without an address they need no server."""

from collections.abc import Callable, Mapping
from typing import Any, Self, TypedDict, Unpack

from envtorch.client import AsyncEnvClient, EnvClient
from envtorch.client.client_options import GivenOptions, Owner
from envtorch.client.launch import Starter, launch_async, plan, plan_hub
from envtorch.client.local_environment import host_maker
from envtorch.env import EnvironmentSource, load_object
from envtorch.envs.repl_env.models import REPLAction, REPLObservation, REPLState
from envtorch.errors import ConfigurationError
from envtorch.types import StepResult

__all__ = ["AsyncREPLEnv", "REPLEnv"]

LOCAL = "local://"
ENVIRONMENT = "envtorch.envs.repl_env.environment:REPLEnvironment"

QueryFunction = Callable[[str], Any]
BatchFunction = Callable[[list[str]], Any]
Result = StepResult[REPLObservation]


class GivenRules(TypedDict, total=False):
    """The rules of an episode that a client may set; `episode.Rules` has what holds otherwise."""

    max_output_length: int
    context_preview_length: int
    reward_on_success: float
    reward_on_iteration: float
    reward_on_failure: float
    reward_on_error: float


class REPLOptions(GivenOptions, GivenRules, total=False):
    """Everything a client takes beside its address and its functions."""


class REPLReset(TypedDict, total=False):
    """What `reset` takes."""

    context: str
    task_prompt: str
    max_iterations: int | None
    seed: int | None
    episode_id: str | None
    hf_token: str | None
    llm_model: str | None


class REPLEnv(EnvClient[REPLAction, REPLObservation, REPLState], environment=ENVIRONMENT):
    """A session with the REPL environment: at `base_url`, or in this process when there is none.

        with REPLEnv(llm_query_fn=ask_my_model) as env:
            env.reset(context=book, task_prompt="Who did it?")
            env.execute("print(len(context))")
            env.submit_final_answer("the gardener")

    `llm_query_fn` and `llm_batch_fn` are what `llm_query` and `llm_query_batched` call. Functions cannot
    travel: with an address the server's own model is asked, with the token that `reset` is given. The rules
    (`reward_on_success`, `max_output_length`, ...) hold here and there. `REPLEnv.aio(...)` is the async twin.
    """

    aio: "type[AsyncREPLEnv]"  # type: ignore[assignment]  # twins that have this client's own methods

    def __init__(
        self,
        base_url: str | None = None,
        *,
        llm_query_fn: QueryFunction | None = None,
        llm_batch_fn: BatchFunction | None = None,
        provider: Owner | None = None,
        **options: Unpack[REPLOptions],
    ) -> None:
        self._rules, connection = _sorted(options)
        super().__init__(base_url or LOCAL, provider=provider, **connection)
        source = _source(base_url, llm_query_fn, llm_batch_fn)
        if source is not None:
            self._make_host = host_maker(source, ENVIRONMENT, self._codec_of_class())

    @classmethod
    def local(cls, environment: EnvironmentSource | None = None) -> Self:
        """A client of an environment in this process: a class, a factory, an instance, or a path."""
        client = cls()
        client._make_host = host_maker(environment, ENVIRONMENT, cls._codec_of_class())
        return client

    @classmethod
    def from_docker_image(cls, image: str, provider: Starter | str | None = None, **options: Any) -> Self:
        """Start a server from `image` and connect to it; `close` stops it again."""
        rules, rest = _sorted(options)
        client = super().from_docker_image(image, provider, **rest)
        client._rules = rules
        return client

    @classmethod
    def from_hub(
        cls, repo_id: str, *, use_docker: bool = True, provider: Starter | str | None = None, **options: Any
    ) -> Self:
        """Start a Hugging Face Space on this machine: its image in a container, or its sources with uv."""
        rules, rest = _sorted(options)
        client = super().from_hub(repo_id, use_docker=use_docker, provider=provider, **rest)
        client._rules = rules
        return client

    def reset(  # type: ignore[override]  # it takes what this environment takes, and says so
        self, *, timeout_s: float | None = None, **options: Unpack[REPLReset]
    ) -> Result:
        """Begin an episode. `hf_token` and `llm_model` hold for this one only, and are kept nowhere."""
        return super().reset(timeout_s=timeout_s, **_with_rules(options, self._rules))

    def execute(self, code: str, *, timeout_s: float | None = None) -> Result:
        """Run code: one step."""
        return self.step(REPLAction(code=code), timeout_s=timeout_s)

    def submit_final_answer(self, answer: str, *, timeout_s: float | None = None) -> Result:
        """End the episode with an answer."""
        return self.step(REPLAction(is_final=True, final_answer=answer), timeout_s=timeout_s)

    def get_variable(self, name: str, *, timeout_s: float | None = None) -> Result:
        """Print the `repr` of a variable: one step."""
        return self.execute(_printing(name), timeout_s=timeout_s)

    def list_variables(self, *, timeout_s: float | None = None) -> list[str]:
        """The names the agent can use."""
        return self.state(timeout_s=timeout_s).namespace_keys


class AsyncREPLEnv(AsyncEnvClient[REPLAction, REPLObservation, REPLState]):
    """`REPLEnv`, awaited. `REPLEnv.aio` is another name for it."""

    def __init__(
        self,
        base_url: str | None = None,
        *,
        llm_query_fn: QueryFunction | None = None,
        llm_batch_fn: BatchFunction | None = None,
        provider: Owner | None = None,
        **options: Unpack[REPLOptions],
    ) -> None:
        twin = REPLEnv(base_url, **options)  # it is never connected: it only translates
        super().__init__(twin._options, twin, provider=provider)
        self._rules = twin._rules
        source = _source(base_url, llm_query_fn, llm_batch_fn)
        if source is not None:
            self._make_host = host_maker(source, ENVIRONMENT, REPLEnv._codec_of_class())

    @classmethod
    def local(cls, environment: EnvironmentSource | None = None) -> Self:
        """A client of an environment in this process: a class, a factory, an instance, or a path."""
        client = cls()
        client._make_host = host_maker(environment, ENVIRONMENT, REPLEnv._codec_of_class())
        return client

    @classmethod
    async def from_docker_image(
        cls, image: str, provider: Starter | str | None = None, **options: Any
    ) -> Self:
        """Start a server from `image` and make a client of it; `close` stops it again."""
        rules, rest = _sorted(options)
        server = await launch_async(lambda: plan(image, provider, rest))
        return cls(server.base_url, provider=server.owner, **rules, **server.client_options)

    @classmethod
    async def from_hub(
        cls, repo_id: str, *, use_docker: bool = True, provider: Starter | str | None = None, **options: Any
    ) -> Self:
        """Start a Hugging Face Space on this machine: its image in a container, or its sources with uv."""
        rules, rest = _sorted(options)
        server = await launch_async(lambda: plan_hub(repo_id, use_docker, provider, rest))
        return cls(server.base_url, provider=server.owner, **rules, **server.client_options)

    async def reset(  # type: ignore[override]  # it takes what this environment takes, and says so
        self, *, timeout_s: float | None = None, **options: Unpack[REPLReset]
    ) -> Result:
        """Begin an episode. `hf_token` and `llm_model` hold for this one only, and are kept nowhere."""
        return await super().reset(timeout_s=timeout_s, **_with_rules(options, self._rules))

    async def execute(self, code: str, *, timeout_s: float | None = None) -> Result:
        """Run code: one step."""
        return await self.step(REPLAction(code=code), timeout_s=timeout_s)

    async def submit_final_answer(self, answer: str, *, timeout_s: float | None = None) -> Result:
        """End the episode with an answer."""
        return await self.step(REPLAction(is_final=True, final_answer=answer), timeout_s=timeout_s)

    async def get_variable(self, name: str, *, timeout_s: float | None = None) -> Result:
        """Print the `repr` of a variable: one step."""
        return await self.execute(_printing(name), timeout_s=timeout_s)

    async def list_variables(self, *, timeout_s: float | None = None) -> list[str]:
        """The names the agent can use."""
        return (await self.state(timeout_s=timeout_s)).namespace_keys


REPLEnv.aio = AsyncREPLEnv


def _sorted(options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The rules among the options, and what is left for the connection."""
    known = GivenRules.__annotations__
    rules = {name: value for name, value in options.items() if name in known}
    return rules, {name: value for name, value in options.items() if name not in known}


def _source(
    base_url: str | None, query: QueryFunction | None, batch: BatchFunction | None
) -> EnvironmentSource | None:
    """The environment to run in this process; None when it runs elsewhere."""
    if base_url is None:
        return lambda: load_object(ENVIRONMENT)(llm_query_fn=query, llm_batch_fn=batch)
    if query is not None or batch is not None:
        raise ConfigurationError(
            "llm_query_fn and llm_batch_fn are for an environment in this process: a server asks its own "
            "model, with the hf_token and llm_model that reset is given"
        )
    return None


def _with_rules(given: Mapping[str, Any], rules: Mapping[str, Any]) -> dict[str, Any]:
    options = {name: value for name, value in given.items() if value not in (None, "")}
    return {**options, "rules": dict(rules)} if rules else options


def _printing(name: str) -> str:
    if not name.isidentifier():
        raise ValueError(f"{name!r} is not the name of a variable")
    return f"print(repr({name}))"
