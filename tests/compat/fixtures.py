"""Stands in for what two environments of a corpus would fetch: a tokenizer, and a power grid's data.

    python tests/compat/fixtures.py CHECKOUTS

To be run by the Python that serves the corpus. What needs a package that is not installed is left out.
"""

import importlib.util
import shutil
import sys
from pathlib import Path

TEMPLATE = "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"


def main(checkouts: Path) -> None:
    fixtures = checkouts / "_fixtures"
    (fixtures / "workspace").mkdir(parents=True, exist_ok=True)
    if importlib.util.find_spec("transformers") is not None:
        make_tokenizer(fixtures / "tok")
    if importlib.util.find_spec("grid2op") is not None:
        copy_grids(fixtures / "grid2op_home" / "data_grid2op")


def make_tokenizer(place: Path) -> None:
    """One token for each byte."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    model = models.BPE(vocab={letter: number for number, letter in enumerate(alphabet)}, merges=[])
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, chat_template=TEMPLATE)
    fast.save_pretrained(str(place))


def copy_grids(place: Path) -> None:
    """The grids that come with the package itself."""
    spec = importlib.util.find_spec("grid2op")
    assert spec is not None
    assert spec.origin is not None
    shutil.copytree(Path(spec.origin).parent / "data", place, dirs_exist_ok=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
