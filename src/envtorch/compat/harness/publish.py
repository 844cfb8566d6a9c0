"""Collected rollouts, published as a dataset."""

import json
from pathlib import Path

from envtorch.compat.harness.collect import RolloutSerializer
from envtorch.extras import missing_extra

__all__ = ["README_FILENAME", "build_dataset_readme", "push_to_hf_hub"]

README_FILENAME = "README.md"


def build_dataset_readme(output_dir: str | Path) -> str:
    """The dataset's page: how to load it, what made it, what its columns are."""
    serializer = RolloutSerializer(output_dir)
    episodes = list(serializer.episodes())
    made_by = {}
    if serializer.metadata_path.is_file():
        made_by = json.loads(serializer.metadata_path.read_text(encoding="utf-8"))
    columns = sorted({name for episode in episodes for name in episode})
    return "\n".join(
        [
            "---",
            "configs:",
            "- config_name: default",
            "  data_files:",
            "  - split: train",
            '    path: "results.jsonl"',
            "---",
            "",
            "# OpenEnv rollouts",
            "",
            f"**Episodes:** {len(episodes)}",
            "",
            "## How they were made",
            "",
            *(f"- `{name}`: `{value}`" for name, value in made_by.items()),
            "",
            "## Schema",
            "",
            *(f"- `{name}`" for name in columns),
            "",
        ]
    )


def push_to_hf_hub(
    output_dir: str | Path,
    repo_id: str,
    *,
    private: bool = False,
    commit_message: str | None = None,
    token: str | None = None,
) -> str:
    """Upload a directory of rollouts; gives the dataset's address."""
    serializer = RolloutSerializer(output_dir)
    if not serializer.results_path.is_file():
        raise FileNotFoundError(f"{serializer.results_path}: nothing was collected here")
    try:
        import huggingface_hub
    except ImportError as missing:
        raise missing_extra("hub", "publishing needs the huggingface-hub package") from missing
    (serializer.output_dir / README_FILENAME).write_text(build_dataset_readme(output_dir), encoding="utf-8")
    count = sum(1 for _ in serializer.episodes())
    api = huggingface_hub.HfApi(token=token)
    api.create_repo(repo_id=repo_id, repo_type="dataset", private=private, exist_ok=True)
    api.upload_folder(
        repo_id=repo_id,
        repo_type="dataset",
        folder_path=str(serializer.output_dir),
        commit_message=commit_message or f"{count} episodes",
    )
    return f"https://huggingface.co/datasets/{repo_id}"
