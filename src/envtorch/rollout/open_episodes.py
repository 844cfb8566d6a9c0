"""An episode whose turns the caller takes: for trainers that ask their model by themselves."""

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from envtorch.client import EnvClient
from envtorch.errors import EnvTorchError
from envtorch.rollout.beginnings import Beginning, RolloutClient, Sharing, SharingCosts, close_quietly
from envtorch.rollout.blame import Faults
from envtorch.rollout.chat_formats import ChatFormat, default_format
from envtorch.rollout.chat_templates import ChatTemplate
from envtorch.rollout.completions import Completion, Prompt
from envtorch.rollout.play_options import (
    refuse_no_client,
    refuse_no_count,
    refuse_no_faults,
    refuse_no_timeout,
)
from envtorch.rollout.session_places import AddressPlaces
from envtorch.rollout.trajectories import ChatMessage, Ending, Task, Trajectory
from envtorch.rollout.transcripts import Transcript
from envtorch.rollout.turn_taking import Over, take_steps
from envtorch.types import StepResult

__all__ = ["OpenEpisode"]

Client = type[EnvClient[Any, Any, Any]]


class OpenEpisode:
    """One session and the conversation about it.

        async with await OpenEpisode.begin(MyEnv, "http://127.0.0.1:8000", {"seed": 7}) as episode:
            while episode.over is None:
                await episode.act(await my_model(episode.prompt))
        episode.trajectory().reward

    `Rollouts` is the same with a policy that is called for you, in batches, and with lost episodes played
    again. Here a lost episode is over: its ending is `LOST`, and `raise_unless_scored` raises why.
    """

    def __init__(
        self,
        client: RolloutClient,
        transcript: Transcript,
        *,
        max_turns: int = 20,
        step_timeout_s: float | None = None,
        faults: Faults | None = None,
    ) -> None:
        """Raises `ConfigurationError` for an option that cannot be."""
        _refuse_wrong_options(max_turns=max_turns, step_timeout_s=step_timeout_s, faults=faults)
        self._client = client
        self._transcript = transcript
        self._max_turns = max_turns
        self._step_timeout_s = step_timeout_s
        self._faults = faults or {}
        self.over: Over | None = None
        """Why the episode is over; None while it goes on."""

    @classmethod
    async def begin(
        cls, client: Client, base_url: str, task: Task | Mapping[str, Any] | int, **options: Any
    ) -> Self:
        """Open a session and reset it; `options` are those of `begin_group`."""
        return (await cls.begin_group(client, base_url, task, size=1, **options))[0]

    @classmethod
    async def begin_group(
        cls,
        client: Client,
        base_url: str,
        task: Task | Mapping[str, Any] | int,
        *,
        size: int,
        format: ChatFormat | None = None,
        template: ChatTemplate | None = None,
        share: Sharing | None = None,
        reset_timeout_s: float | None = None,
        client_options: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> list[Self]:
        """Episodes with the same beginning: one reset and its forks, or resets where it cannot be copied.

        `options` are those of the constructor. Raises what the reset raises.
        """
        refuse_no_client(client)
        refuse_no_count("size", size)
        refuse_no_timeout("reset_timeout_s", reset_timeout_s)
        _refuse_wrong_options(**options)
        task = Task.of(task)
        chosen = format if format is not None else default_format(client)

        async def transcribe(session: RolloutClient, result: StepResult[Any]) -> Transcript:
            await chosen.prepare(session)
            return Transcript.begin(task, chosen, template, result)

        places = AddressPlaces([base_url], client, {"wait_s": 60.0, **(client_options or {})})
        beginning = Beginning(
            task,
            places,
            transcribe,
            SharingCosts(share),
            number=0,
            size=size,
            room=size + 1,
            timeout_s=reset_timeout_s,
        )
        lost_at: list[str] = []
        sessions: list[RolloutClient] = []
        try:
            sessions += await beginning.open(lost_at)
            while len(sessions) < size:
                sessions.append(await beginning.copy(lost_at))
        except BaseException:
            await close_quietly(*sessions, beginning)
            raise
        await beginning.close()
        return [cls(session, beginning.transcript, **options) for session in sessions]

    @property
    def prompt(self) -> Prompt:
        """What the policy is to complete next."""
        return self._transcript.prompt

    @property
    def messages(self) -> Sequence[ChatMessage]:
        """The conversation so far."""
        return tuple(self._transcript.messages)

    @property
    def turn_reward(self) -> float | None:
        """The reward of the last turn; None when there was none."""
        return self._transcript.turns[-1].reward if self._transcript.turns else None

    async def act(self, completion: Completion) -> Sequence[ChatMessage]:
        """Take the policy's turn. The messages that answer it; none when the episode is over."""
        if self.over is not None:
            raise ValueError(f"the episode is over: {self.over.ending}")
        talk = self._transcript
        before = len(talk.messages)
        self.over = await take_steps(
            self._client, talk, completion, faults=self._faults, step_timeout_s=self._step_timeout_s
        )
        if self.over is None and len(talk.turns) >= self._max_turns:
            self.over = Over(Ending.MAX_TURNS)
        return tuple(talk.messages[before + 1 :])

    async def fork(self, n: int = 1) -> list[Self]:
        """Copies of the episode as it is now, each on a session of its own. Close each of them."""
        made = []
        for session in await self._client.fork(n):
            copy = type(self)(
                session,
                self._transcript.copy(),
                max_turns=self._max_turns,
                step_timeout_s=self._step_timeout_s,
                faults=self._faults,
            )
            copy.over = self.over
            made.append(copy)
        return made

    def trajectory(self, member: int = 0) -> Trajectory:
        """The episode so far. One that goes on has the ending `MAX_TURNS`."""
        over = self.over or Over(Ending.MAX_TURNS)
        return self._transcript.end(over.ending, member, (), over.blame)

    def raise_unless_scored(self) -> None:
        """Raise why the episode has no reward, if it has none."""
        if self.over is not None and not self.over.ending.is_scored:
            raise self.over.blame or EnvTorchError(f"the episode is over: {self.over.ending}")

    async def close(self) -> None:
        """End the session."""
        await close_quietly(self._client)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()


def _refuse_wrong_options(
    *, max_turns: int = 20, step_timeout_s: float | None = None, faults: Faults | None = None
) -> None:
    refuse_no_count("max_turns", max_turns)
    refuse_no_timeout("step_timeout_s", step_timeout_s)
    refuse_no_faults({} if faults is None else faults)
