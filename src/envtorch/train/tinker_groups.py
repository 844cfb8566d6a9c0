"""Groups for tinker-cookbook: one reset, and a fork for each further member.

    builder = SessionGroupBuilder(MyEnv, "http://127.0.0.1:8000", {"seed": 7}, size=8, template=template)
    group = await do_group_rollout(builder, policy)

A member that the infrastructure loses raises, and the cookbook's `RolloutStrategy` decides what becomes of
its group: `RetryOnFailure` plays it again, `FailFast` gives the group up. It never has a reward.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from envtorch.extras import missing_extra
from envtorch.rollout import ChatFormat, ChatTemplate, Completion, Ending, OpenEpisode, Task
from envtorch.rollout.beginnings import close_quietly
from envtorch.train.client_classes import GivenClient, client_class

try:
    import tinker
    from tinker_cookbook.rl.types import ActionExtra, Env, EnvGroupBuilder, StepResult, StopReason
except ImportError as error:
    raise missing_extra("tinker", "this adapter needs the tinker-cookbook package") from error

__all__ = ["SessionGroupBuilder", "TinkerEnv"]

STOP_REASONS = {
    Ending.DONE: StopReason.COMPLETED,
    Ending.MAX_TURNS: StopReason.MAX_TURNS,
    Ending.POLICY: StopReason.PARSE_ERROR,
}


class TinkerEnv(Env):
    """One episode. Observations are the conversation's token ids, as `template` writes them."""

    def __init__(self, episode: OpenEpisode, stop: Sequence[int] | Sequence[str]) -> None:
        self._episode = episode
        self._stop: Any = list(stop)

    async def initial_observation(self) -> tuple[Any, Any]:
        return self._seen(), self._stop

    async def step(self, action: list[int], *, extra: ActionExtra | None = None) -> StepResult:
        await self._episode.act(Completion(ids=action))
        self._episode.raise_unless_scored()
        over = self._episode.over
        return StepResult(
            reward=self._episode.turn_reward or 0.0,
            episode_done=over is not None,
            next_observation=self._seen(),
            next_stop_condition=self._stop,
            metrics={f"stop/{STOP_REASONS[over.ending].value}": 1.0} if over is not None else {},
            logs={"blame": str(over.blame)} if over is not None and over.blame is not None else {},
        )

    async def close(self) -> None:
        """End the session."""
        await self._episode.close()

    def _seen(self) -> Any:
        return tinker.ModelInput.from_ints(list(self._episode.prompt.ids or ()))


class SessionGroupBuilder(EnvGroupBuilder):
    """Makes the environments of one group. It can be pickled; live sessions stay behind."""

    def __init__(
        self,
        client: GivenClient,
        base_url: str,
        task: Task | Mapping[str, Any] | int,
        *,
        size: int,
        template: ChatTemplate,
        format: ChatFormat | None = None,
        stop: Sequence[int] | Sequence[str] = (),
        tags: Sequence[str] = (),
        **options: Any,
    ) -> None:
        """`template` makes token ids of messages, such as `TransformersTemplate(tokenizer)`; `stop` ends a
        completion; `options` are those of `OpenEpisode.begin_group`."""
        self._client = client
        self._base_url = base_url
        self._task = Task.of(task)
        self._stop: Sequence[int] | Sequence[str] = stop
        self._tags = list(tags)
        self._options = {"size": size, "template": template, "format": format, **options}
        self._made: list[TinkerEnv] = []

    async def make_envs(self) -> Sequence[Env]:
        client = client_class(self._client)
        episodes = await OpenEpisode.begin_group(client, self._base_url, self._task, **self._options)
        made = [TinkerEnv(episode, self._stop) for episode in episodes]
        self._made += made
        return made

    async def cleanup(self) -> None:
        made, self._made = self._made, []
        await close_quietly(*made)

    def logging_tags(self) -> list[str]:
        return self._tags

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_made": []}
