"""Sessions as environments of Gymnasium: one, or many on one socket.

    import gymnasium
    import envtorch.train.gymnasium_envs  # registers envtorch/Session-v0

    env = gymnasium.make("envtorch/Session-v0", client=MyEnv, base_url="http://127.0.0.1:8000")
    envs = gymnasium.make_vec("envtorch/Session-v0", 64, "vector_entry_point", client=MyEnv, base_url=...)

Spaces come from the client's action and observation classes (`envtorch.train.spaces`). A failure is raised as
what it is, `SessionLost` or `EnvironmentFailed`, say: it never becomes a reward.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from envtorch.client import VectorEnv
from envtorch.errors import ConfigurationError, EnvironmentFailed, EnvTorchError
from envtorch.extras import missing_extra
from envtorch.rollout.finite_rewards import reward_in
from envtorch.train.client_classes import GivenClient, client_class
from envtorch.train.spaces import ValueSpace
from envtorch.types import StepResult

try:
    import gymnasium
    import numpy
    from gymnasium.utils import seeding
    from gymnasium.vector import AutoresetMode
    from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, iterate
except ImportError as error:
    raise missing_extra("gymnasium", "the Gymnasium adapter needs the gymnasium package") from error

__all__ = ["GymnasiumEnv", "GymnasiumVectorEnv", "SessionSpaces"]

Options = Mapping[str, Any]
Infos = dict[str, Any]

LARGEST_SEED = 2**31 - 1


class SessionSpaces:
    """The spaces of a client's classes."""

    def __init__(
        self,
        client: GivenClient,
        *,
        observation_fields: Sequence[str] | None = None,
        action_fields: Sequence[str] | None = None,
        spaces: Mapping[str, Any] | None = None,
    ) -> None:
        """`client` is a class, or `"module:Class"`. `spaces` has the space of a field by its name, where the
        schema says too little."""
        self.client = client_class(client)
        spec = self.client.spec()
        given = dict(spaces or {})
        fields = set(getattr(spec.action, "model_fields", getattr(spec.action, "__dataclass_fields__", ())))
        of_action = {name: space for name, space in given.items() if name in fields}
        of_observation = {name: space for name, space in given.items() if name not in fields}
        self.action = ValueSpace(spec.action, only=action_fields, given=of_action)
        self.observation = ValueSpace(spec.observation, only=observation_fields, given=of_observation)


class GymnasiumEnv(gymnasium.Env[Any, Any]):
    """One session as a `gymnasium.Env`.

    The seed of the first `reset` decides all later ones: each is given a seed of its own, drawn from
    `np_random`. A reward that the environment does not give is 0.0; a call that fails raises.
    """

    metadata: dict[str, Any] = {"render_modes": []}

    def __init__(
        self,
        client: GivenClient,
        base_url: str,
        *,
        reset_options: Options | None = None,
        step_timeout_s: float | None = None,
        client_options: Options | None = None,
        render_mode: None = None,
        **spaces: Any,
    ) -> None:
        """`reset_options` are given to every `reset`, beside those of its `options`; `spaces` are the
        arguments of `SessionSpaces`."""
        self._spaces = SessionSpaces(client, **spaces)
        self._session = self._spaces.client(base_url, **(client_options or {}))
        self._reset_options = dict(reset_options or {})
        self._step_timeout_s = step_timeout_s
        self.action_space = self._spaces.action.space
        self.observation_space = self._spaces.observation.space

    def reset(self, *, seed: int | None = None, options: Options | None = None) -> tuple[Any, Infos]:
        super().reset(seed=seed)
        chosen = _drawn(self.np_random) if seed is None else seed
        result = self._session.reset(**{"seed": chosen, **self._reset_options, **(options or {})})
        return self._spaces.observation.element(result.observation), _info(result)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, Infos]:
        result = self._session.step(self._spaces.action.value(action), timeout_s=self._step_timeout_s)
        seen = self._spaces.observation.element(result.observation)
        return (
            seen,
            reward_in(result) or 0.0,
            bool(result.terminated),
            bool(result.truncated),
            _info(result),
        )

    def close(self) -> None:
        self._session.close()


class GymnasiumVectorEnv(gymnasium.vector.VectorEnv[Any, Any, Any]):
    """Many sessions on one socket as a `gymnasium.vector.VectorEnv`, with autoreset in the next step.

    Given the same seed and actions, it plays what as many `GymnasiumEnv` in a `SyncVectorEnv` play.

    failures: "raise" raises the error of a session that failed; `reset` begins anew. "truncate" ends its
        episode instead:
        `truncations` is True, its reward is NaN, `infos["error"]` has the error (`infos["_error"]` is the
        mask), and its next step opens another session. Leave such an episode out of what you train on.
    """

    def __init__(
        self,
        num_envs: int,
        client: GivenClient,
        base_url: str,
        *,
        reset_options: Options | None = None,
        step_timeout_s: float | None = None,
        failures: Literal["raise", "truncate"] = "raise",
        client_options: Options | None = None,
        render_mode: None = None,
        **spaces: Any,
    ) -> None:
        if failures not in ("raise", "truncate"):
            raise ConfigurationError(f"failures is 'raise' or 'truncate', not {failures!r}")
        self.metadata = {"render_modes": [], "autoreset_mode": AutoresetMode.NEXT_STEP}
        self._spaces = SessionSpaces(client, **spaces)
        self._reset_options = dict(reset_options or {})
        self._step_timeout_s = step_timeout_s
        self._raises = failures == "raise"
        self.num_envs = num_envs
        self.single_action_space = self._spaces.action.space
        self.single_observation_space = self._spaces.observation.space
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self._random = [seeding.np_random(None)[0] for _ in range(num_envs)]
        self._seen = list(
            iterate(self.observation_space, create_empty_array(self.observation_space, num_envs))
        )
        self._over: set[int] = set()
        self._sessions: VectorEnv[Any, Any, Any] = self._spaces.client.vector(
            base_url, num_envs, **(client_options or {})
        )

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: Options | None = None
    ) -> tuple[Any, Infos]:
        seeds = [seed + place for place in range(self.num_envs)] if isinstance(seed, int) else seed
        for place, one in enumerate(seeds or ()):
            if one is not None:
                self._random[place] = seeding.np_random(one)[0]
        chosen = [
            _drawn(r) if seeds is None or seeds[p] is None else seeds[p] for p, r in enumerate(self._random)
        ]
        self._over.clear()
        given = {place: self._options(one, options) for place, one in enumerate(chosen)}
        outcomes = self._sessions.reset(given)
        *_, infos = self._collect(outcomes, is_reset=True)
        return self._stacked(), infos

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, Infos]:
        values = [self._spaces.action.value(one) for one in iterate(self.action_space, actions)]
        over = {place: self._options(_drawn(self._random[place])) for place in sorted(self._over)}
        playing = {place: value for place, value in enumerate(values) if place not in over}
        self._over.clear()
        if playing:
            self._sessions.send(playing, timeout_s=self._step_timeout_s)
        outcomes = dict(self._sessions.reset(over)) if over else {}
        if playing:
            outcomes |= self._sessions.receive(at_least=len(playing))
        rewards, terminations, truncations, infos = self._collect(outcomes)
        return self._stacked(), rewards, terminations, truncations, infos

    def close_extras(self, **kwargs: Any) -> None:
        self._sessions.close()

    def _options(self, seed: int | None, options: Options | None = None) -> dict[str, Any]:
        return {"seed": seed, **self._reset_options, **(options or {})}

    def _collect(
        self, outcomes: Mapping[int, StepResult[Any] | EnvTorchError], *, is_reset: bool = False
    ) -> tuple[Any, Any, Any, Infos]:
        """Outcomes as arrays; what was seen is kept for each session."""
        rewards = numpy.zeros(self.num_envs)
        terminations, truncations = (numpy.zeros(self.num_envs, dtype=bool) for _ in range(2))
        infos: Infos = {}
        for place, answered in sorted(outcomes.items()):
            outcome = _with_finite_reward(answered)
            if isinstance(outcome, EnvTorchError):
                if self._raises or is_reset:
                    outcome.add_note(f"in session {place} of {self.num_envs}")
                    raise outcome
                rewards[place], truncations[place] = numpy.nan, True
                infos = self._add_info(infos, {"error": outcome}, place)
                self._over.add(place)
                continue
            self._seen[place] = self._spaces.observation.element(outcome.observation)
            rewards[place] = outcome.reward or 0.0
            terminations[place], truncations[place] = outcome.terminated, outcome.truncated
            infos = self._add_info(infos, _info(outcome), place)
            if outcome.done:
                self._over.add(place)
        return rewards, terminations, truncations, infos

    def _stacked(self) -> Any:
        empty = create_empty_array(self.single_observation_space, self.num_envs)
        return concatenate(self.single_observation_space, self._seen, empty)


def _drawn(random: Any) -> int:
    return int(random.integers(LARGEST_SEED))


def _with_finite_reward(outcome: StepResult[Any] | EnvTorchError) -> StepResult[Any] | EnvTorchError:
    """The outcome; the error of one whose reward is no finite number."""
    try:
        if not isinstance(outcome, EnvTorchError):
            reward_in(outcome)
    except EnvironmentFailed as error:
        return error
    return outcome


def _info(result: StepResult[Any]) -> Infos:
    return dict(result.metadata or {})


gymnasium.register("envtorch/Session-v0", entry_point=GymnasiumEnv, vector_entry_point=GymnasiumVectorEnv)
