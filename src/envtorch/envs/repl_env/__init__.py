"""The REPL environment for recursive language models: code that asks models, agents that have children."""

from typing import TYPE_CHECKING, Any

from envtorch.env import load_object
from envtorch.envs.repl_env.client import AsyncREPLEnv, REPLEnv
from envtorch.envs.repl_env.models import CodeBlockResult, REPLAction, REPLObservation, REPLState

if TYPE_CHECKING:
    from envtorch.envs.repl_env.budgets import Budget
    from envtorch.envs.repl_env.environment import REPLEnvironment
    from envtorch.envs.repl_env.language_models import OpenAICompatible, ScriptedModel
    from envtorch.envs.repl_env.runner import RLMRunner

__all__ = [
    "AsyncREPLEnv",
    "Budget",
    "CodeBlockResult",
    "OpenAICompatible",
    "REPLAction",
    "REPLEnv",
    "REPLEnvironment",
    "REPLObservation",
    "REPLState",
    "RLMRunner",
    "ScriptedModel",
]

_LATER = {  # what a client does without, and what needs the sandbox or an HTTP library
    "Budget": "budgets",
    "OpenAICompatible": "language_models",
    "REPLEnvironment": "environment",
    "RLMRunner": "runner",
    "ScriptedModel": "language_models",
}


def __getattr__(name: str) -> Any:
    if name in _LATER:
        return load_object(f"{__name__}.{_LATER[name]}:{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
