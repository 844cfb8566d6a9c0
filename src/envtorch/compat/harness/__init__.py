"""OpenEnv's harness: sessions with tools, and the loops that let a model use them."""

from envtorch.compat.harness.adapters import (
    CLIHarnessAdapter,
    HarnessAdapter,
    MCPHarnessAdapter,
    SessionMCPBridge,
)
from envtorch.compat.harness.program import HarnessProcess
from envtorch.compat.harness.rollout import build_harness_rollout_func
from envtorch.compat.harness.sessions import (
    LoopOwningSession,
    ResourceSession,
    ResourceSessionFactory,
    StepEnvSessionAdapter,
    TrainableSession,
)
from envtorch.compat.harness.training import TrainingTrace, TrainingTurn
from envtorch.compat.harness.turns import (
    AgenticHarnessAdapter,
    HarnessClientMessage,
    HarnessConfig,
    HarnessError,
    HarnessEvent,
    HarnessEventType,
    HarnessNotRunningError,
    HarnessProtocolError,
    HarnessResponse,
    HarnessStartupError,
    HarnessTransport,
    HarnessTurnTimeoutError,
    events_to_metadata,
)
from envtorch.compat.harness.values import (
    HarnessRolloutResult,
    HarnessRunLimits,
    Message,
    ModelStep,
    ModelStepResult,
    RolloutEvent,
    ToolResult,
    ToolTraceEntry,
    TraceEntry,
    VerifyResult,
)
from envtorch.tools import RESERVED_TOOL_NAMES

__all__ = [
    "RESERVED_TOOL_NAMES",
    "AgenticHarnessAdapter",
    "CLIHarnessAdapter",
    "HarnessAdapter",
    "HarnessClientMessage",
    "HarnessConfig",
    "HarnessError",
    "HarnessEvent",
    "HarnessEventType",
    "HarnessNotRunningError",
    "HarnessProcess",
    "HarnessProtocolError",
    "HarnessResponse",
    "HarnessRolloutResult",
    "HarnessRunLimits",
    "HarnessStartupError",
    "HarnessTransport",
    "HarnessTurnTimeoutError",
    "LoopOwningSession",
    "MCPHarnessAdapter",
    "Message",
    "ModelStep",
    "ModelStepResult",
    "ResourceSession",
    "ResourceSessionFactory",
    "RolloutEvent",
    "SessionMCPBridge",
    "StepEnvSessionAdapter",
    "ToolResult",
    "ToolTraceEntry",
    "TraceEntry",
    "TrainableSession",
    "TrainingTrace",
    "TrainingTurn",
    "VerifyResult",
    "build_harness_rollout_func",
    "events_to_metadata",
]
