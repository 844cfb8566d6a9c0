"""Where a turn of the policy ends, in chat templates of every kind."""

from typing import Any

import pytest

from envtorch.errors import ConfigurationError
from envtorch.rollout import ChatMessage, TransformersTemplate

SPECIAL = ["<eos>", "<bos>", "<start>", "<end>", "<sep>"]
OPENING = "{% if loop.first %}<bos>{% endif %}<start>{{ m.role }}\n{{ m.content }}"
GENERATION = "{% if add_generation_prompt %}<start>assistant\n{% endif %}"


def template_with(user_end: str, turn_end: str) -> str:
    """A template that writes these after messages of the user and turns of the assistant."""
    end = f"{{{{ {turn_end!r} if m.role == 'assistant' else {user_end!r} }}}}"
    return f"{{% for m in messages %}}{OPENING}{end}{{% endfor %}}{GENERATION}"


LIKE_GEMMA = template_with("<end>\n", "<end>\n")
TWO_ENDS = template_with("<end>\n", "<end>\n<sep>")
NO_END = template_with("", "")
IN_WORDS = template_with("\n", "\n")
END_OF_USER_ONLY = template_with("<eos>\n", "\n")
CONVERSATION: list[ChatMessage] = [
    {"role": "user", "content": "begin"},
    {"role": "assistant", "content": "one"},
    {"role": "user", "content": "lower"},
    {"role": "assistant", "content": "zero"},
    {"role": "user", "content": "right"},
]


def tokenizer_with(template: str) -> Any:
    transformers = pytest.importorskip("transformers")
    tokenizers = pytest.importorskip("tokenizers")
    vocabulary = {token: id for id, token in enumerate([*SPECIAL, *map(chr, range(128))])}
    model = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="?"))
    model.pre_tokenizer = tokenizers.pre_tokenizers.Split("", "isolated")
    model.decoder = tokenizers.decoders.Fuse()
    model.add_special_tokens(SPECIAL)
    made = transformers.PreTrainedTokenizerFast(tokenizer_object=model, eos_token="<eos>")
    made.chat_template = template
    return made


def played(tokenizer: Any, template: TransformersTemplate, end: str) -> list[int]:
    """A conversation put together turn by turn; the policy ends its turns like this."""
    ids = list(template.begin(CONVERSATION[:1], ()))
    for said, heard in ((CONVERSATION[1], CONVERSATION[2]), (CONVERSATION[3], CONVERSATION[4])):
        spoken = tokenizer.encode(said["content"] + end, add_special_tokens=False)
        ids += [*spoken, *template.between(spoken, [heard])]
    return ids


def whole(tokenizer: Any) -> list[int]:
    ids: list[int] = tokenizer.apply_chat_template(
        CONVERSATION, tokenize=True, add_generation_prompt=True, return_dict=False
    )
    return ids


@pytest.mark.parametrize(
    ("template", "end"), [(LIKE_GEMMA, "<end>"), (LIKE_GEMMA, ""), (TWO_ENDS, "<end>"), (NO_END, "")]
)
def test_a_turn_ends_as_the_template_ends_it_and_not_as_a_text_does(template: str, end: str) -> None:
    tokenizer = tokenizer_with(template)
    assert played(tokenizer, TransformersTemplate(tokenizer), end) == whole(tokenizer)


def test_what_a_policy_says_beyond_the_templates_end_stays_and_the_turn_is_ended() -> None:
    tokenizer = tokenizer_with(LIKE_GEMMA)
    said = tokenizer.encode("one<eos>", add_special_tokens=False)
    after = TransformersTemplate(tokenizer).between(said, CONVERSATION[2:3])
    assert (
        tokenizer.decode(after, skip_special_tokens=False)
        == "<end>\n<start>user\nlower<end>\n<start>assistant\n"
    )


@pytest.mark.parametrize("template", [IN_WORDS, END_OF_USER_ONLY])
def test_an_end_that_cannot_be_known_is_asked_for(template: str) -> None:
    tokenizer = tokenizer_with(template)
    with pytest.raises(ConfigurationError, match="end_of_turn="):
        TransformersTemplate(tokenizer)
    (line,) = tokenizer.encode("\n", add_special_tokens=False)
    assert played(tokenizer, TransformersTemplate(tokenizer, end_of_turn=line), "\n") == whole(tokenizer)


def test_an_end_that_the_template_never_writes_is_refused() -> None:
    tokenizer = tokenizer_with(LIKE_GEMMA)
    with pytest.raises(ConfigurationError, match="does not write the token 4"):
        TransformersTemplate(tokenizer, end_of_turn=4)
