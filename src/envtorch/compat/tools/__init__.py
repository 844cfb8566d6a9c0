"""`openenv.core.tools`: Python behind a kernel boundary, and a client of a git server."""

from envtorch.compat.tools.git import GitServerClient, RepoInfo
from envtorch.compat.tools.python import PyExecutor

__all__ = ["GitServerClient", "PyExecutor", "RepoInfo"]
