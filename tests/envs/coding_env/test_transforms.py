"""The transforms, with the figures that OpenEnv's coding environment has."""

import pytest

from envtorch.envs.coding_env.models import CodeObservation
from envtorch.envs.coding_env.transforms import CodeQuality, CodeSafety, safe_coding_transform

LONG = "x = 1  # " + "a" * 100


def seen(code: str, reward: float | None = None) -> CodeObservation:
    return CodeObservation(reward=reward, metadata={"last_code": code})


@pytest.mark.parametrize(
    "code",
    [
        "import os",
        "import   subprocess",
        "eval('1')",
        "exec('1')",
        "__import__('sys')",
        "open('f')",
        "x=1;import os",
    ],
)
def test_dangerous_code_is_penalised_and_the_reason_told(code: str) -> None:
    given = seen(code, reward=5.0)
    told = CodeSafety()(given)
    assert told.reward == -1.0
    assert told.metadata["safety_violation"]
    assert (given.reward, given.metadata) == (5.0, {"last_code": code})  # the given one is left as it was


def test_harmless_code_has_no_penalty() -> None:
    assert CodeSafety()(seen("import math")).reward == 0.0
    assert CodeSafety()(seen("import math", reward=5.0)).reward == 5.0
    assert "safety_violation" not in CodeSafety()(seen("import math")).metadata


@pytest.mark.parametrize(
    ("code", "reward"),
    [
        ("x = 1", 0.1),
        ("x" * 100, 0.1),
        ("x" * 100 + "\n\n", 0.1),
        ("x" * 101, 0.0),
        (LONG, 0.0),
        ("def (", -0.1),
        (LONG + "\n(", -0.2),
        ("x = '\0'", -0.1),
    ],
)
def test_short_code_is_better_and_broken_code_worse(code: str, reward: float) -> None:
    assert CodeQuality()(seen(code)).reward == pytest.approx(reward)


def test_together_they_add_up() -> None:
    both = safe_coding_transform()
    assert both(seen("x = 1")).reward == pytest.approx(0.1)
    assert both(seen("import os")).reward == pytest.approx(-0.9)
    assert both(seen("import os (")).reward == pytest.approx(-1.1)


def test_an_observation_of_no_code_stays_as_it_is() -> None:
    first = CodeObservation(reward=0.0)
    assert safe_coding_transform()(first) is first
