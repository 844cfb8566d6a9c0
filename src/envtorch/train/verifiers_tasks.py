"""A taskset for verifiers: any client, any format, episodes as typed as everywhere else.

    # my_taskset.py: verifiers finds a taskset by the name of a module at the top level
    from envtorch.train.verifiers_tasks import VerifiersEnv, VerifiersTaskset

    __all__ = ["VerifiersEnv", "VerifiersTaskset"]

    # eval.toml
    [env.taskset]
    id = "my_taskset"
    client = "envtorch.envs.coding_env:CodingEnv"
    base_url = "http://127.0.0.1:8000"
    resets = [{ seed = 1 }, { seed = 2 }]

verifiers' own `openenv` taskset runs unchanged, too, on the names of `envtorch.compat.openenv`. This one uses
the client's classes: actions are read by its format (JSON, a block of code), and an episode that the
infrastructure loses, or whose environment raises, is an error of verifiers, which retries it, and never a
reward.
"""

from collections.abc import Iterator
from typing import Any

from pydantic import Field

from envtorch.extras import missing_extra
from envtorch.rollout import Completion, OpenEpisode
from envtorch.rollout import Task as EpisodeTask
from envtorch.train.client_classes import client_class

try:
    import verifiers.v1 as vf
except ImportError as error:
    raise missing_extra("verifiers", "this taskset needs the verifiers package") from error

__all__ = ["VerifiersEnv", "VerifiersTaskset"]


class VerifiersData(vf.TaskData):
    """One episode: where it is played, and how it is reset."""

    client: str
    base_url: str
    reset: dict[str, Any]
    instruction: str
    max_turns: int


def _one_reset() -> list[dict[str, Any]]:
    return [{}]


class VerifiersConfig(vf.TasksetConfig):
    """The taskset's settings."""

    client: str = ""
    """The client class, as `"module:Class"`."""
    base_url: str = ""
    """The server's address."""
    resets: list[dict[str, Any]] = Field(default_factory=_one_reset)
    """One task for each set of options of `reset`."""
    instruction: str = ""
    """What the model is told first, if the environment's first observation does not say it."""
    max_turns: int = Field(20, ge=1)


class VerifiersTask(vf.Task[VerifiersData]):
    """One episode."""


class VerifiersEnvConfig(vf.EnvConfig):
    """The agent that plays."""

    player: vf.AgentConfig = vf.AgentConfig()


class VerifiersEnv(vf.Env[VerifiersEnvConfig]):
    """Plays an episode with one agent: its replies are the policy's turns."""

    async def run(self, task: Any, agents: Any) -> None:
        data: VerifiersData = task.data
        asked = EpisodeTask(data.reset, prompt=data.instruction)
        client = client_class(data.client)
        begun = await OpenEpisode.begin(client, data.base_url, asked, max_turns=data.max_turns)
        async with begun as episode, agents.player.interaction(task) as interaction:
            heard = list(episode.messages)
            while episode.over is None:
                segment = await interaction.turn(heard)
                if segment.terminated:
                    break
                heard = list(await episode.act(Completion(segment.last_reply)))
        episode.raise_unless_scored()
        trajectory = episode.trajectory()
        interaction.trace.record_reward("reward", trajectory.reward)
        interaction.trace.record_metric("turns", len(trajectory.turns))


class VerifiersTaskset(vf.Taskset[VerifiersTask, VerifiersConfig]):
    """A task for each set of reset options."""

    def load(self) -> Iterator[VerifiersTask]:
        config = self.config
        if not config.client or not config.base_url:
            raise ValueError("the taskset needs `client` and `base_url`")
        for place, reset in enumerate(config.resets):
            data = VerifiersData(
                name=f"{config.client}#{place}",
                prompt=None,
                client=config.client,
                base_url=config.base_url,
                reset=reset,
                instruction=config.instruction,
                max_turns=config.max_turns,
            )
            yield VerifiersTask(data, config.task)
