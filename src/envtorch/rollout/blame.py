"""Who is to blame for an error: the policy, the environment, or the infrastructure."""

from collections.abc import Mapping

from envtorch.errors import (
    EnvironmentFailed,
    EnvTorchError,
    InvalidAction,
    MessageTooLarge,
    OutOfResources,
    TimedOut,
)
from envtorch.pool.outcomes import INFRASTRUCTURE, is_infrastructure
from envtorch.rollout.trajectories import Ending

__all__ = ["Faults", "NotAnAction", "ending_of"]

Faults = Mapping[type[EnvTorchError], Ending]
"""Endings by error, for what a caller sees differently."""


class NotAnAction(ValueError):
    """A completion that is not an action of this environment."""


_STEP: Faults = {
    **dict.fromkeys(INFRASTRUCTURE, Ending.LOST),
    TimedOut: Ending.POLICY,
    OutOfResources: Ending.POLICY,
    InvalidAction: Ending.POLICY,
    MessageTooLarge: Ending.POLICY,
    EnvironmentFailed: Ending.ENVIRONMENT,
}
_BEGINNING: Faults = {**_STEP, TimedOut: Ending.LOST, OutOfResources: Ending.LOST}
"""Before the policy has acted, a limit that was exceeded is not its doing."""


def ending_of(error: EnvTorchError, faults: Faults, *, has_acted: bool) -> Ending | None:
    """How a rollout ends with this error; None for one that is the caller's, such as a wrong option."""
    if isinstance(error, InvalidAction) and "wrong_argument" in error.details:
        return None  # such as a timeout that is no number: no policy has chosen it
    if is_infrastructure(error) and not isinstance(error, tuple(faults)):
        return Ending.LOST  # such as a call that timed out because its server is stopped
    table = {**(_STEP if has_acted else _BEGINNING), **faults}
    found = next((table[kind] for kind in type(error).__mro__ if kind in table), None)
    if found is Ending.POLICY and not has_acted:
        return None
    return found
