"""The checks: each looks at one promise, and says what is broken and what to do."""

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from pydantic import BaseModel

from envtorch.errors import EnvTorchError
from envtorch.protocol.encoding import encode_value
from envtorch.testing.declaration import unrelated, wrong_type_parameters
from envtorch.testing.player import read_field
from envtorch.testing.report import Finding, NotRun, Severity
from envtorch.testing.subject import Subject

__all__ = ["contract", "determinism", "episodes", "rewards", "serialisability", "values"]

Check = Callable[[Subject], Iterator[Finding]]


def contract(subject: Subject) -> Iterator[Finding]:
    """`reset`, `step`, `state`, `get_metadata` and `close` give what they should."""

    def broken(message: str, advice: str) -> Finding:
        return Finding("contract", message, advice)

    declared = subject.codec.spec.observation
    declares_model = isinstance(declared, type) and issubclass(declared, BaseModel)
    with subject.player() as player:
        wrong = list(wrong_type_parameters(type(player.environment)))
        if wrong:
            yield from wrong
            return
        first = player.reset(subject.reset_options())
        kinds = [("reset", first)]
        kinds += [("step", player.step(subject.codec.decode_action(a))) for a in subject.actions[:1]]
        for method, observation in kinds:
            if not _can_be_sent(observation):
                given = "nothing" if observation is None else f"a {type(observation).__name__}"
                yield broken(
                    f"{method} gives {given}, where an observation was expected",
                    f"return a {declared.__name__}; reward and done are fields of it",
                )
                continue
            if isinstance(observation, Mapping) and declares_model:
                yield Finding(
                    "contract",
                    f"{method} gives a {type(observation).__name__}, which a server sends without comparing "
                    f"it with {declared.__name__}",
                    f"return a {declared.__name__}, so that a wrong field is found where it is made",
                    Severity.WARNING,
                )
            elif unrelated(type(observation), declared):
                yield broken(
                    f"{method} gives a {type(observation).__name__}, and observations are declared as "
                    f"{declared.__name__}: clients read them as that",
                    f"return a {declared.__name__}, or declare {type(observation).__name__}",
                )
            done = read_field(observation, "done", False)
            if not isinstance(done, bool):
                yield broken(f"{method} gives done={done!r}", "make `done` a bool: it ends episodes")
        metadata = player.environment.get_metadata()
        if not metadata.name or not metadata.description:
            yield broken(
                "get_metadata gives no name or no description", "give both; they are shown to people"
            )
    yield from _closes(subject)


def _can_be_sent(observation: Any) -> bool:
    """Whether a server takes it for an observation: a model, a mapping or a dataclass."""
    return isinstance(observation, BaseModel | Mapping) or dataclasses.is_dataclass(observation)


def _closes(subject: Subject) -> Iterator[Finding]:
    player = None
    try:
        with subject.player() as player:
            player.reset(subject.reset_options())
    except Exception as error:  # an author's code
        if player is None:
            raise
        yield Finding(
            "contract", f"close raises {error!r}", "let close free what there is, and raise nothing"
        )


def episodes(subject: Subject) -> Iterator[Finding]:
    """A second `reset` begins a second episode: counters at zero, its own id."""

    def broken(message: str, advice: str, severity: Severity = Severity.ERROR) -> Finding:
        return Finding("episodes", message, advice, severity)

    with subject.player() as player:
        player.reset(subject.reset_options(episode_id="first"))
        for action in subject.actions:
            if read_field(player.step(subject.codec.decode_action(action)), "done", False):
                break
        stepped = player.state()
        count = read_field(stepped, "step_count")
        if count == 0:
            yield broken(
                "state.step_count is 0 after steps were taken",
                "add one in `step`; trainers read it to cut episodes off",
                Severity.WARNING,
            )
        takes_id = player.binding.reset.takes("episode_id")
        if takes_id and read_field(stepped, "episode_id") != "first":
            yield broken(
                "reset was given episode_id='first', and the state says "
                f"{read_field(stepped, 'episode_id')!r}",
                "keep the id that the caller gives, so that logs on both sides can be matched",
                Severity.WARNING,
            )
        player.reset(subject.reset_options(episode_id="second"))
        if read_field(player.state(), "step_count") not in (0, None):
            yield broken(
                f"after a second reset state.step_count is {read_field(player.state(), 'step_count')}, "
                "and not 0",
                "make `reset` start from nothing: build a new state object in it",
            )


def serialisability(subject: Subject) -> Iterator[Finding]:
    """Everything that travels can travel, and comes back as what it was."""
    advice = "keep plain values, arrays, dataclasses and pydantic models in it; convert the rest"
    with subject.player() as player:
        results = [("reset", player.reset(subject.reset_options()))]
        for action in subject.actions:
            results.append(("step", player.step(subject.codec.decode_action(action))))
        for method, observation in results:
            try:
                told = player.told(observation, method)
            except EnvTorchError as error:
                yield Finding("serialisability", f"the observation of {method}: {error}", advice)
                return
            if b"NaN" in told or _has_lost_numbers(observation):
                yield Finding(
                    "serialisability",
                    f"the observation of {method} holds NaN or infinity; in JSON a client gets null",
                    "replace them before they leave the environment",
                    Severity.WARNING,
                )
                return
        try:
            encode_value(player.state())
        except EnvTorchError as error:
            yield Finding("serialisability", f"the state: {error}", advice)


def _has_lost_numbers(observation: Any) -> bool:
    if isinstance(observation, BaseModel):
        fields: Mapping[str, Any] = observation.model_dump()
    else:
        fields = observation if isinstance(observation, Mapping) else vars(observation)
    return any(
        isinstance(value, float) and not math.isfinite(value)
        for name, value in fields.items()
        if name != "reward"
    )


def rewards(subject: Subject) -> Iterator[Finding]:
    """Rewards are finite numbers, in the range that was promised."""
    low, high = subject.reward_range or (-math.inf, math.inf)
    with subject.player() as player:
        observations = [player.reset(subject.reset_options())]
        observations += [player.step(subject.codec.decode_action(a)) for a in subject.actions]
    for number, observation in enumerate(observations):
        reward = read_field(observation, "reward")
        if reward is None:
            continue
        try:
            value = float(reward)
        except (TypeError, ValueError):
            yield Finding("rewards", f"step {number} has reward {reward!r}", "give a number, or None")
            return
        if not math.isfinite(value):
            yield Finding(
                "rewards",
                f"step {number} has reward {value}",
                "one such number spoils a whole batch: find the division or logarithm it comes from",
            )
            return
        if not low <= value <= high:
            yield Finding(
                "rewards",
                f"step {number} has reward {value:g}, outside of {low:g} to {high:g}",
                "clip it, scale it, or promise another range",
            )
            return


def determinism(subject: Subject) -> Iterator[Finding]:
    """The same seed and the same actions give the same episode: on a fresh object, and on a used one."""
    if subject.codec.spec.deterministic is False:
        raise NotRun("the environment says that it is not deterministic (DETERMINISTIC = False)")
    with subject.player() as player:
        if not player.binding.reset.takes("seed"):
            yield Finding(
                "determinism",
                "reset takes no seed",
                "take `seed` and draw all randomness from a generator made with it",
                Severity.WARNING,
            )
        first = player.episode(subject.reset_options(), subject.actions)
        again = player.episode(subject.reset_options(), subject.actions)
    with subject.player() as player:
        fresh = player.episode(subject.reset_options(), subject.actions)
    if first != fresh:
        yield Finding(
            "determinism",
            f"two fresh environments with the same seed and actions differ {_where(first, fresh)}",
            "make a `random.Random(seed)` (or numpy generator) in reset, and use nothing else",
        )
    elif first != again:
        yield Finding(
            "determinism",
            f"a second episode with the same seed differs from the first {_where(first, again)}",
            "something survives reset: build it anew there",
        )


def _where(one: list[bytes], other: list[bytes]) -> str:
    pairs = enumerate(zip(one, other, strict=False))
    at = next((number for number, (a, b) in pairs if a != b), min(len(one), len(other)))
    return "at reset" if at == 0 else f"at step {at}" if at < len(one) - 1 else "in the state"


def values(subject: Subject) -> Iterator[Finding]:
    """What was given stays as it was given: observations do not change afterwards, actions not at all."""
    with subject.player() as player:
        kept = [("reset", player.reset(subject.reset_options()))]
        told = [player.told(kept[0][1], "reset")]
        for given in subject.actions:
            action = subject.codec.decode_action(given)
            before = encode_value(action)
            kept.append(("step", player.step(action)))
            told.append(player.told(kept[-1][1], "step"))
            if encode_value(action) != before:
                yield Finding("values", "step changes the action it is given", "copy what you want to change")
                return
        if [player.told(observation, method) for method, observation in kept] != told:
            yield Finding(
                "values",
                "an observation changed after it was returned, because it shares a list or dictionary "
                "with the environment",
                "copy mutable fields when you make an observation: `words=list(self._words)`",
            )
