"""The policy refuses what it does not understand."""

import dataclasses

import pytest

from envtorch.errors import ConfigurationError
from envtorch.sandbox import Policy


def test_defaults_are_a_valid_policy_that_requires_walls() -> None:
    assert Policy().require == {"network", "filesystem", "processes"}


def test_a_policy_is_frozen_and_can_be_a_key() -> None:
    policy = Policy(preload=("json",))
    with pytest.raises(dataclasses.FrozenInstanceError):
        policy.processes = 3  # type: ignore[misc]
    assert {policy: 1}[Policy(preload=("json",))] == 1


def test_lists_become_values() -> None:
    policy = Policy(preload=["json"], require=["network"])  # type: ignore[arg-type]
    assert policy.preload == ("json",)
    assert policy.require == frozenset({"network"})


@pytest.mark.parametrize(
    "options",
    [
        {"memory_bytes": 0},
        {"memory_bytes": "1G"},
        {"processes": 1.5},
        {"processes": True},
        {"timeout_s": 0},
        {"timeout_s": float("nan")},
        {"timeout_s": float("inf")},
        {"grace_s": -1},
        {"preload": "json"},
        {"preload": [1]},
        {"readable": ["relative/path"]},
        {"require": {"luck"}},
        {"memroy_bytes": 1},
    ],
)
def test_nonsense_is_refused(options: dict[str, object]) -> None:
    with pytest.raises(ConfigurationError):
        Policy.from_mapping(options)


def test_an_unknown_option_is_named_together_with_the_known_ones() -> None:
    with pytest.raises(ConfigurationError, match=r"no memroy_bytes; it has: .*memory_bytes"):
        Policy.from_mapping({"memroy_bytes": 1})
