"""Token ids, mask and log-probabilities: aligned, and exactly what the policy said."""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envtorch.rollout import (
    ChatMessage,
    Completion,
    Ending,
    Prompt,
    Rollouts,
    Task,
    Tokens,
    Trajectory,
    TrajectoryGroup,
    TurnRecord,
)
from tests.rollout.dials import LETTERS, DialEnv, Player, dials, lose, scattered
from tests.support import Running

QUICK = {"wait_s": 60.0, "reconnect_s": 1.0}


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with dials() as running:
        yield running


def turns_of(tokens: Tokens) -> Iterator[tuple[int, int]]:
    """Where each turn of the policy begins and ends: template tokens stand between any two."""
    place = 0
    while place < len(tokens):
        end = place
        while end < len(tokens) and tokens.mask[end] == 1:
            end += 1
        if end > place:
            yield place, end
        place = max(end, place + 1)


def check(trajectory: Trajectory, player: Player) -> None:
    """Every turn is what the policy said to exactly the tokens before it; nothing else is masked in."""
    tokens = trajectory.tokens
    assert len(tokens.ids) == len(tokens.mask) == len(tokens.logprobs) == len(tokens.versions)
    turns = list(turns_of(tokens))
    assert len(turns) == len(trajectory.turns)
    for begin, end in turns:
        said = player.said[tokens.ids[:begin]]
        assert tokens.ids[begin:end] == tuple(said.ids)
        assert tokens.logprobs[begin:end] == tuple(said.logprobs or ())
        assert set(tokens.versions[begin:end]) <= player.versions[tokens.ids[:begin]]
    assert all(later >= earlier for earlier, later in pairwise(v for v in tokens.versions if v))
    outside = [tokens.logprobs[place] for place in range(len(tokens)) if tokens.mask[place] == 0]
    assert set(outside) <= {0.0}
    spoken = [message["content"] for message in trajectory.messages if message["role"] == "assistant"]
    assert spoken == [LETTERS.text(tokens.ids[begin:end]) for begin, end in turns]


@settings(max_examples=25)
@given(data=st.data())
def test_tokens_stay_aligned_for_any_interleaving_of_turns_forks_losses_and_parks(
    server: Running, data: st.DataObject
) -> None:
    losses = data.draw(st.dictionaries(st.integers(1, 12), st.integers(0, 20), max_size=4), label="losses")
    parks = data.draw(st.sets(st.integers(1, 12), max_size=3), label="parks")
    size = data.draw(st.integers(1, 4), label="size")
    tasks = data.draw(st.lists(st.integers(0, 50), min_size=1, max_size=3, unique=True), label="seeds")
    options: dict[str, Any] = {
        "share": data.draw(st.sampled_from(["fork", "reset", None]), label="share"),
        "concurrency": data.draw(st.integers(1, 16), label="concurrency"),
        "batch_size": data.draw(st.integers(1, 8), label="batch size"),
        "policy_calls": data.draw(st.integers(1, 3), label="calls"),
        "max_turns": data.draw(st.integers(1, 6), label="turns"),
        "attempts": data.draw(st.integers(1, 3), label="attempts"),
    }

    async def play() -> tuple[list[Trajectory], Player]:
        updates: list[asyncio.Task[None]] = []

        async def update() -> None:
            await rollouts.park()
            if len(updates) > 1:
                await lose(server, len(updates))  # sessions are lost while nothing runs, too
            rollouts.resume(rollouts.version + 1)

        async def before(call: int) -> None:
            if call in losses:
                await lose(server, losses[call])
            if call in parks:
                updates.append(asyncio.create_task(update()))

        player = Player(scattered, before, lambda: rollouts.version)
        rollouts = Rollouts(DialEnv, server.url, player, template=LETTERS, client_options=QUICK, **options)
        async with rollouts:
            played = [t async for group in rollouts.groups(tasks, size=size) for t in group]
            await asyncio.gather(*updates)
        return played, player

    trajectories, player = asyncio.run(play())
    assert len(trajectories) == size * len(tasks)
    for trajectory in trajectories:
        check(trajectory, player)
        assert (trajectory.reward is None) == (trajectory.ending is Ending.LOST)
        assert len(trajectory.lost) < options["attempts"]


def test_tokens_that_are_not_aligned_cannot_be_made() -> None:
    with pytest.raises(ValueError, match="2 ids, 1 mask, 2 logprobs, 2 versions"):
        Tokens((1, 2), (0,), (0.0, 0.0), (0, 0))


def test_the_prompt_is_what_stands_before_the_policys_first_token() -> None:
    tokens = Tokens().given([1, 2, 3]).said([4, 5], [-0.5, -0.25]).given([6])
    assert tokens.prompt_length == 3
    assert tokens.mask == (0, 0, 0, 1, 1, 0)
    assert tokens.logprobs == (0.0, 0.0, 0.0, -0.5, -0.25, 0.0)
    assert Tokens().given([1, 2]).prompt_length == 2


def test_nothing_stands_behind_the_policys_last_token_of_trimmed_tokens() -> None:
    tokens = Tokens().given([1]).said([2], [-0.5], 3).given([4]).said([5, 6], None, 7).given([8, 9])
    assert tokens.trimmed() == Tokens().given([1]).said([2], [-0.5], 3).given([4]).said([5, 6], None, 7)
    assert tokens.oldest_version == 3
    assert Tokens().given([1, 2]).trimmed() == Tokens()
    assert Tokens().given([1, 2]).oldest_version == 0


def test_log_probabilities_that_the_policy_did_not_tell_are_none_and_not_zero() -> None:
    told = Tokens().given([1]).said([2, 3], [-0.5, 0.0])
    assert told.has_logprobs
    untold = told.given([4]).said([5], None)
    assert untold.logprobs == (0.0, -0.5, 0.0, 0.0, None)
    assert not untold.has_logprobs
    assert Tokens().given([1]).has_logprobs


def scored(*rewards: float | None) -> TrajectoryGroup:
    task = Task({"seed": 1})
    members = [
        Trajectory(task, place, Ending.LOST)
        if reward is None
        else Trajectory(task, place, Ending.DONE, turns=(TurnRecord(reward, 0.0, 0.0),))
        for place, reward in enumerate(rewards)
    ]
    return TrajectoryGroup(task, tuple(members))


def test_a_lost_member_has_no_advantage_and_is_not_in_the_mean() -> None:
    assert scored(1.0, None, 0.0, 0.5).advantages(scale=False) == (0.5, None, -0.5, 0.0)
    assert scored(None, None).advantages() == (None, None)
    assert scored(0.25, 0.25).advantages() == (0.0, 0.0)
    first, lost, second = scored(1.0, None, 0.0).advantages()
    assert lost is None
    assert first == pytest.approx(1.0, abs=1e-3)
    assert second == pytest.approx(-1.0, abs=1e-3)


def test_a_response_that_is_cut_has_the_reward_of_the_turns_that_are_left() -> None:
    tokens = Tokens().given([1, 2]).said([3, 4], None).given([5]).said([6], None)
    turns = (TurnRecord(0.25, 0.0, 0.0, 2, 2), TurnRecord(0.5, 0.0, 0.0, 5, 1))
    played = Trajectory(Task({"seed": 1}), 0, Ending.DONE, tokens=tokens, turns=turns)
    assert [played.reward_within(count) for count in range(6)] == [0.0, 0.0, 0.25, 0.25, 0.75, 0.75]
    assert replace(played, score=1.0).reward_within(1) == 1.0
    assert replace(played, ending=Ending.LOST).reward_within(9) is None


@pytest.mark.parametrize(
    ("completion", "wrong"),
    [
        (Completion("7"), "no token ids"),
        (Completion(ids=[55, 0], logprobs=[-1.0]), "1 log-probabilities for 2 tokens"),
    ],
)
def test_a_policy_whose_tokens_do_not_fit_is_told_so(
    server: Running, completion: Completion, wrong: str
) -> None:
    async def policy(prompts: Sequence[Prompt]) -> list[Completion]:
        return [completion for _ in prompts]

    async def play() -> None:
        async with Rollouts(DialEnv, server.url, policy, template=LETTERS) as rollouts:
            await rollouts.run(1)

    with pytest.raises(ValueError, match=wrong):
        asyncio.run(play())


# Chat templates of `transformers`, with a tokenizer that is made here.

PLAIN = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
FORGETFUL = (
    "{% for m in messages %}<|{{ m.role }}|>"
    "{% if m.role != 'assistant' or loop.last %}{{ m.content }}{% endif %}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def tokenizer_with(template: str) -> Any:
    transformers = pytest.importorskip("transformers")
    tokenizers = pytest.importorskip("tokenizers")
    letters = [chr(code) for code in range(32, 127)] + ["\n"]
    special = ["<|end|>", "<|system|>", "<|user|>", "<|assistant|>", "<|tool|>", "?"]
    vocabulary = {token: id for id, token in enumerate([*special, *letters])}
    model = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="?"))
    model.pre_tokenizer = tokenizers.pre_tokenizers.Split("", "isolated")
    model.decoder = tokenizers.decoders.Fuse()
    model.add_special_tokens(special[:5])
    made = transformers.PreTrainedTokenizerFast(tokenizer_object=model, eos_token="<|end|>")
    made.chat_template = template
    return made


CONVERSATION: list[ChatMessage] = [
    {"role": "system", "content": "play"},
    {"role": "user", "content": "begin"},
    {"role": "assistant", "content": "one"},
    {"role": "user", "content": "lower"},
    {"role": "assistant", "content": "zero"},
    {"role": "user", "content": "right"},
]


def test_tokens_put_together_turn_by_turn_are_those_of_the_whole_conversation() -> None:
    from envtorch.rollout import TransformersTemplate

    tokenizer = tokenizer_with(PLAIN)
    template = TransformersTemplate(tokenizer)
    ids = list(template.begin(CONVERSATION[:2], ()))
    for said, heard in ((CONVERSATION[2], CONVERSATION[3]), (CONVERSATION[4], CONVERSATION[5])):
        spoken = [*tokenizer.encode(said["content"], add_special_tokens=False), tokenizer.eos_token_id]
        assert template.text(spoken) == said["content"]
        ids += [*spoken, *template.between(spoken, [heard])]
    whole = tokenizer.apply_chat_template(
        CONVERSATION, tokenize=True, add_generation_prompt=True, return_dict=False
    )
    assert ids == whole


def test_a_completion_that_was_cut_off_is_ended_by_the_template_not_by_the_policy() -> None:
    from envtorch.rollout import TransformersTemplate

    tokenizer = tokenizer_with(PLAIN)
    template = TransformersTemplate(tokenizer)
    cut = tokenizer.encode("on", add_special_tokens=False)
    ended = [*cut, tokenizer.eos_token_id]
    heard = [CONVERSATION[3]]
    assert list(template.between(cut, heard)) == [tokenizer.eos_token_id, *template.between(ended, heard)]


def test_a_template_that_rewrites_earlier_turns_is_refused() -> None:
    from envtorch.errors import ConfigurationError
    from envtorch.rollout import TransformersTemplate

    template = TransformersTemplate(tokenizer_with(FORGETFUL))
    with pytest.raises(ConfigurationError, match="changes earlier messages"):
        template.between([1], [CONVERSATION[3]])
