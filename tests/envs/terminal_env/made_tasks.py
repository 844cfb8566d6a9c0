"""Small tasks, written for one test."""

from pathlib import Path


def make_task(folder: Path, test: str, **files: str) -> Path:
    """A task whose `tests/test.sh` is `test`; `files` are further ones, by their path."""
    texts = {
        "task.toml": 'schema_version = "1.4"\n',
        "instruction.md": "Do it.\n",
        "environment/Dockerfile": "FROM debian:12\nWORKDIR /app\n",
        "tests/test.sh": test,
        **files,
    }
    for place, text in texts.items():
        (folder / place).parent.mkdir(parents=True, exist_ok=True)
        (folder / place).write_text(text)
    return folder
