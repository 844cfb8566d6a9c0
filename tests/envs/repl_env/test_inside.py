"""What runs inside, run outside: it is ordinary code."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from envtorch.envs.repl_env.inside import AgentNames, safe_json_dumps, short_repr

leaves = st.none() | st.integers() | st.floats() | st.text(max_size=9) | st.binary(max_size=9)
values: st.SearchStrategy[Any] = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=2).map(tuple)
        | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=12,
)


@settings(max_examples=60)
@given(values, st.integers(1, 200))
def test_a_short_repr_is_how_the_repr_begins(value: Any, times: int) -> None:
    for shown in (value, [value] * times, {"k": (value,) * times}, str(value) * times, set(range(times))):
        whole = repr(shown)
        assert short_repr(shown) == (whole if len(whole) <= 500 else whole[:500] + "...")


class Endless(list[Any]):
    def __repr__(self) -> str:
        raise ValueError("no")


def test_what_cannot_be_shown_says_so() -> None:
    assert short_repr(Endless()) == "<Endless: repr failed with ValueError>"
    loop: list[Any] = []
    loop.append(loop)
    assert len(short_repr(loop)) <= 503


def test_json_of_anything() -> None:
    assert safe_json_dumps({"a": {1}}) == '{"a": "{1}"}'


def agent_names(**names: Any) -> tuple[AgentNames, dict[str, Any], list[dict[str, Any]]]:
    told: list[dict[str, Any]] = []
    found = AgentNames(names, told.append, lambda *_, **__: ["child"], True)
    found.open(["llm_query"])
    found.look()
    told.clear()
    return found, names, told


def test_the_first_declaration_counts() -> None:
    made, names, told = agent_names(x=5)
    names["FINAL"]("one")
    names["FINAL"]("two")
    made.look()
    made.look()
    assert [report["final"] for report in told] == ["one", None]


def test_a_missing_variable_is_explained_and_declares_nothing() -> None:
    made, names, told = agent_names(x=5)
    assert "no variable 'y'" in names["FINAL_VAR"]("y")
    assert "no variable 'FINAL'" in names["FINAL_VAR"]("FINAL")
    assert "'x': 'int'" in names["SHOW_VARS"]()
    made.look("y")
    assert told[-1]["final"] is None
    made.look("x")
    assert told[-1]["final"] == "5"


def test_only_new_names_are_shown() -> None:
    made, names, told = agent_names(x=5)
    names.update(y=[1], _z=2)
    made.look()
    assert told[-1]["fresh"] == {"y": "[1]"}
    assert told[-1]["variables"] == ["answer", "x", "y"]
