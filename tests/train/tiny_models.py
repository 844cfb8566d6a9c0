"""A language model and a tokenizer made on the spot: a few words, two layers, no hub."""

from collections.abc import Sequence
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

__all__ = ["TEMPLATE", "make_model", "make_tokenizer", "make_tool_tokenizer"]

TEMPLATE = (
    "{% for message in messages %}{{ message['role'] + ' ' + message['content'] }}"
    "{% if message['role'] == 'assistant' %}{{ ' <end>' }}{% endif %}{{ ' ' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant' }}{% endif %}"
)


def make_tokenizer(words: Sequence[str]) -> Any:
    """One token for each word. `<end>` ends a turn."""
    vocabulary = {
        word: id for id, word in enumerate(("<pad>", "<end>", "system", "user", "assistant", *words))
    }
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        eos_token="<end>",
        padding_side="left",
        chat_template=TEMPLATE,
    )


def make_tool_tokenizer(calls: Sequence[str], template: str) -> Any:
    """Bytes, and one token for each of these tool calls, with a chat template that knows tools."""
    special = ["<pad>", "<|im_start|>", "<|im_end|>", "<think>", "</think>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    vocabulary = {word: id for id, word in enumerate([*special, *sorted(alphabet)])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(special)
    # Not special: what is decoded without special tokens still has them.
    tokenizer.add_tokens([AddedToken(call, special=False, normalized=False) for call in calls])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<|im_end|>", chat_template=template
    )


def make_model(tokenizer: Any, *, width: int = 64, layers: int = 2, seed: int = 0) -> Any:
    """A model with random weights, the same for the same seed."""
    torch.manual_seed(seed)
    return Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=len(tokenizer),
            hidden_size=width,
            intermediate_size=2 * width,
            num_hidden_layers=layers,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=2048,
            pad_token_id=tokenizer.pad_token_id,
            eos_token_id=tokenizer.eos_token_id,
            bos_token_id=None,
            tie_word_embeddings=False,
        )
    )
