"""Sending files to the Hugging Face hub."""

from envtorch.cli.space import SpaceFiles
from envtorch.errors import ConnectFailed, EnvTorchError, Unauthorized
from envtorch.extras import missing_extra

try:
    from huggingface_hub import CommitOperationAdd, HfApi
    from huggingface_hub.errors import HfHubHTTPError
except ImportError as error:
    raise missing_extra("hub", "push needs the huggingface-hub package") from error

__all__ = ["upload"]

LOG_IN = "run `hf auth login`, or set HF_TOKEN, with a token that may write"


def upload(space: str, files: SpaceFiles, *, private: bool, endpoint: str | None = None) -> str:
    """Make the Space if there is none, and put the files there in one commit; its address.

    The token is found by huggingface_hub itself, and appears in no message of ours.
    """
    api = HfApi(endpoint=endpoint)
    if api.token is None and not _has_token():
        raise Unauthorized("there is no token for the hub", next_step=LOG_IN)
    try:
        api.create_repo(space, repo_type="space", space_sdk="docker", private=private, exist_ok=True)
        additions = [CommitOperationAdd(name, content) for name, content in sorted(files.items())]
        api.create_commit(
            space, additions, commit_message="Serve the environment with EnvTorch", repo_type="space"
        )
    except HfHubHTTPError as error:
        status = error.response.status_code if error.response is not None else None
        if status in (401, 403):
            raise Unauthorized(
                f"the hub does not let this token write to {space}", next_step=LOG_IN
            ) from None
        raise EnvTorchError(f"the hub refused {space}: HTTP {status}") from None
    except OSError as error:
        raise ConnectFailed(f"the hub cannot be reached: {type(error).__name__}") from None
    return f"https://huggingface.co/spaces/{space}"


def _has_token() -> bool:
    from huggingface_hub import get_token

    return get_token() is not None
