"""Transforms to build others from."""

from collections.abc import Sequence
from typing import Generic

from envtorch.env import Transform
from envtorch.types import ObsT

__all__ = ["CompositeTransform", "NullTransform"]


class CompositeTransform(Transform[ObsT], Generic[ObsT]):
    """Several transforms, one after the other."""

    def __init__(self, transforms: Sequence[Transform[ObsT]]) -> None:
        self.transforms = list(transforms)

    def __call__(self, observation: ObsT) -> ObsT:
        for transform in self.transforms:
            observation = transform(observation)
        return observation


class NullTransform(Transform[ObsT], Generic[ObsT]):
    """Leaves every observation as it is."""

    def __call__(self, observation: ObsT) -> ObsT:
        return observation
