"""The transforms, with the figures that OpenEnv's coding environment has."""

import asyncio
import builtins

import pytest

from envtorch.envs.coding_env.environment import CodingEnvironment
from envtorch.envs.coding_env.models import CodeAction, CodeObservation
from envtorch.envs.coding_env.transforms import CodeQuality, CodeSafety, safe_coding_transform

LONG = "x = 1  # " + "a" * 100


def seen(code: str, reward: float | None = None, *, parsed: bool = True) -> CodeObservation:
    facts = {"last_code": code} if parsed else {"last_code": code, "last_code_parsed": False}
    return CodeObservation(reward=reward, metadata=facts)


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
    ("code", "parsed", "reward"),
    [
        ("x = 1", True, 0.1),
        ("x" * 100, True, 0.1),
        ("x" * 100 + "\n\n", True, 0.1),
        ("x" * 101, True, 0.0),
        (LONG, True, 0.0),
        ("def (", False, -0.1),
        (LONG + "\n(", False, -0.2),
    ],
)
def test_short_code_is_better_and_broken_code_worse(code: str, parsed: bool, reward: float) -> None:
    assert CodeQuality()(seen(code, parsed=parsed)).reward == pytest.approx(reward)


BROKEN = ["def (", LONG + "\n(", "x = '\0'", "(" * 500 + ")" * 500, '"' + "x" * 2_000_000]


def test_the_sandbox_says_whether_code_is_python_and_nothing_is_compiled_here(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*args: object, **options: object) -> None:
        raise AssertionError("code was compiled outside the sandbox")

    async def rewards(codes: list[str]) -> list[float | None]:
        environment = CodingEnvironment(transform=CodeQuality(concise_bonus=0.0))
        await environment.reset()
        try:
            with monkeypatch.context() as patch:
                patch.setattr(builtins, "compile", refuse)
                return [(await environment.step(CodeAction(code=code))).reward for code in codes]
        finally:
            await environment.close()

    found = asyncio.run(rewards(["x = 1", "1 / 0", "return 1", *BROKEN]))
    assert found == [0.0, 0.0, 0.0] + [-0.2] * len(BROKEN)


def test_together_they_add_up() -> None:
    both = safe_coding_transform()
    assert both(seen("x = 1")).reward == pytest.approx(0.1)
    assert both(seen("import os")).reward == pytest.approx(-0.9)
    assert both(seen("import os (", parsed=False)).reward == pytest.approx(-1.1)


def test_an_observation_of_no_code_stays_as_it_is() -> None:
    first = CodeObservation(reward=0.0)
    assert safe_coding_transform()(first) is first
