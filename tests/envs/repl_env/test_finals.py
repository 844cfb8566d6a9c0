"""When text is a final answer, and when it only talks about one."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envtorch.envs.repl_env.finals import Final, find_final
from tests.support import cpu_s


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("FINAL(42)", "42"),
        ("FINAL()", ""),
        ("  \tFINAL( spaced )  ", "spaced"),
        ("FINAL(f(x) + g(y))", "f(x) + g(y)"),
        ("FINAL(((())))", "((()))"),
        ("FINAL(one\ntwo (2)\nthree)", "one\ntwo (2)\nthree"),
        ("before\nFINAL(x)\nafter", "x"),
        ("FINAL(first)\nFINAL(second)", "first"),
        ("FINAL_VAR(v)\nFINAL(text)", "text"),
        ("FINAL(it's)", "it's"),
        ('FINAL("quoted")', '"quoted"'),
        ("FINAL(FINAL(x))", "FINAL(x)"),
        ("an unclosed ( before\nFINAL(x)", "x"),
        (") a stray one\nFINAL(x)", "x"),
        ("FINAL(not closed\nFINAL(x)", "x"),
        ("FINAL(a), or so\nFINAL(b)", "b"),
        ("FINAL(crlf)\r\n", "crlf"),
    ],
)
def test_an_answer(text: str, answer: str) -> None:
    assert find_final(text) == Final(answer)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "FINAL",
        "FINAL (x)",
        "final(x)",
        "FINALLY(x)",
        "NOT_FINAL(x)",
        "use FINAL(x) when you are done",
        "the answer: FINAL(x)",
        "FINAL(x) is what I would say",
        "FINAL(x).",
        '"FINAL(x)"',
        "'FINAL_VAR(x)'",
        "FINAL(x",
        "FINAL(smile :))",
        "# FINAL(x)",
        "FINAL_VAR()",
        "FINAL_VAR(a b)",
        "FINAL_VAR(x.y)",
        "FINAL_VAR(f(x))",
        "FINAL_VAR(1x)",
        "FINAL_VAR('x\")",
        "FINAL_VARS(x)",
    ],
)
def test_no_answer(text: str) -> None:
    assert find_final(text) is None


@pytest.mark.parametrize("text", ["FINAL_VAR(best)", "FINAL_VAR('best')", 'x\n FINAL_VAR( "best" ) \ny'])
def test_the_name_of_a_variable(text: str) -> None:
    assert find_final(text) == Final("best", is_variable=True)


balanced = st.recursive(
    st.text(alphabet="abc '\"\n,", max_size=8),
    lambda inner: st.lists(inner, max_size=3).map(lambda parts: "".join(f"({part})" for part in parts)),
)


@given(balanced, st.text(alphabet="ab )\n", max_size=20))
def test_whatever_is_balanced_comes_back(inside: str, before: str) -> None:
    assert find_final(f"{before}\nFINAL({inside})\n") == Final(inside.strip())


@given(st.text(alphabet="FINAL_VAR()x \n", max_size=200))
def test_no_text_breaks_it(text: str) -> None:
    found = find_final(text)
    assert found is None or found.value in text


HOSTILE = {
    "white space": lambda size: "FINAL_VAR(\n" * (size // 24) + ")" * (size // 24) + " " * (size // 2) + "\n",
    "nested": lambda size: "FINAL_VAR(\n" * (size // 13) + ")\n" * (size // 13),
    "words": lambda size: "FINAL_VAR(" + "x " * (size // 4) + "\n)" * (size // 4),
    "spaces inside": lambda size: ("FINAL_VAR(" + " " * 90 + "\n") * (size // 102) + ")\n" * (size // 102),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_the_time_for_a_hostile_text_grows_with_its_length(kind: str) -> None:
    short, long = (HOSTILE[kind](size) for size in (1 << 16, 1 << 19))
    assert cpu_s(lambda: find_final(long)) < 3 * 8 * cpu_s(lambda: find_final(short))


def test_a_hostile_text_takes_no_longer_than_a_harmless_one() -> None:
    def seconds(text: str) -> float:
        began = time.perf_counter()
        find_final(text)
        return time.perf_counter() - began

    lines = 100_000
    harmless = min(seconds("FINAL(x) no\n" * lines) for _ in range(3))
    assert seconds("FINAL(xx no\n" * lines) < 20 * harmless + 0.5
