"""Rollouts: a policy and an environment in, trajectories out. Knows no trainer and no torch."""

from envtorch.rollout.actor_policy import ActorPolicy
from envtorch.rollout.blame import NotAnAction
from envtorch.rollout.blocking_rollouts import BlockingRollouts
from envtorch.rollout.chat_formats import (
    ChatFormat,
    CodeFormat,
    CutCompletion,
    JSONFormat,
    ToolFormat,
    default_format,
    format_of_schema,
)
from envtorch.rollout.chat_templates import ChatTemplate, TransformersTemplate
from envtorch.rollout.completions import Completion, Prompt, RolloutPolicy, TokenUsage
from envtorch.rollout.endpoint_policy import OpenAIPolicy
from envtorch.rollout.group_scoring import Candidate, GroupScorer, score_by, score_each
from envtorch.rollout.open_episodes import OpenEpisode
from envtorch.rollout.rollout_progress import with_progress
from envtorch.rollout.rollout_summary import RolloutSummary
from envtorch.rollout.rollout_trees import RolloutTree, TreeNode
from envtorch.rollout.rollouts import Rollouts
from envtorch.rollout.session_places import RolloutServers
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
    "ActorPolicy",
    "BlockingRollouts",
    "Candidate",
    "ChatFormat",
    "ChatMessage",
    "ChatTemplate",
    "CodeFormat",
    "Completion",
    "CutCompletion",
    "Ending",
    "GroupScorer",
    "JSONFormat",
    "NotAnAction",
    "OpenAIPolicy",
    "OpenEpisode",
    "Prompt",
    "RolloutPolicy",
    "RolloutServers",
    "RolloutSummary",
    "RolloutTree",
    "Rollouts",
    "Task",
    "TokenUsage",
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
    "format_of_schema",
    "score_by",
    "score_each",
    "with_progress",
]
