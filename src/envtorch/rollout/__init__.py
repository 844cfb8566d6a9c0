"""Rollouts: a policy and an environment in, trajectories out. Knows no trainer and no torch."""

from envtorch.rollout.blame import NotAnAction
from envtorch.rollout.blocking_rollouts import BlockingRollouts
from envtorch.rollout.chat_formats import ChatFormat, CodeFormat, JSONFormat, ToolFormat, default_format
from envtorch.rollout.chat_templates import ChatTemplate, TransformersTemplate
from envtorch.rollout.completions import Completion, Prompt, RolloutPolicy
from envtorch.rollout.endpoint_policy import OpenAIPolicy
from envtorch.rollout.open_episodes import OpenEpisode
from envtorch.rollout.rollout_summary import RolloutSummary
from envtorch.rollout.rollout_trees import RolloutTree, TreeNode
from envtorch.rollout.rollouts import Rollouts
from envtorch.rollout.trajectories import (
    ChatMessage,
    Ending,
    Task,
    Tokens,
    Trajectory,
    TrajectoryGroup,
    TurnRecord,
)
from envtorch.rollout.trajectory_files import TrajectoryFile
from envtorch.rollout.transcripts import Transcript

__all__ = [
    "BlockingRollouts",
    "ChatFormat",
    "ChatMessage",
    "ChatTemplate",
    "CodeFormat",
    "Completion",
    "Ending",
    "JSONFormat",
    "NotAnAction",
    "OpenAIPolicy",
    "OpenEpisode",
    "Prompt",
    "RolloutPolicy",
    "RolloutSummary",
    "RolloutTree",
    "Rollouts",
    "Task",
    "Tokens",
    "ToolFormat",
    "Trajectory",
    "TrajectoryFile",
    "TrajectoryGroup",
    "Transcript",
    "TransformersTemplate",
    "TreeNode",
    "TurnRecord",
    "default_format",
]
