"""Children: forks of their parent that have its variables, one budget for all, and nothing left behind."""

import asyncio
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from envtorch.envs.repl_env import AsyncREPLEnv, Budget, REPLEnv, REPLEnvironment, ScriptedModel
from envtorch.envs.repl_env.events import Asked, Began, Ended, Event, Forked, Ran
from envtorch.envs.repl_env.language_models import Completion, ModelFailed, Request
from envtorch.sandbox import report
from envtorch.settings import REPLSettings
from tests.sandbox.elsewhere import NOBODY, run_module

from .places import SMALL

Script = Callable[[Request], str]


@pytest.fixture(autouse=True)
def forkable(sandboxes: None) -> None:
    if report().grade != "host":
        pytest.skip("a sandbox at container grade cannot be forked")


def block(code: str) -> str:
    return f"Let me see.\n```repl\n{code}\n```"


def environment(script: Script, events: list[Event] | None = None, **options: Any) -> REPLEnvironment:
    seen = events.append if events is not None else lambda event: None
    options = {"policy": SMALL, "settings": REPLSettings(), **options}
    return REPLEnvironment(model=ScriptedModel(script), observer=seen, **options)


@contextmanager
def playing(script: Script, events: list[Event] | None = None, **options: Any) -> Iterator[REPLEnv]:
    with REPLEnv.local(lambda: environment(script, events, **options)) as env:
        env.reset(context="the whole context", task_prompt="root task")
        yield env


def shown(env: REPLEnv, code: str) -> str:
    result = env.execute(code).observation.result
    assert result.success, result.stderr
    return result.stdout.strip()


def test_a_child_has_its_parents_variables_and_its_own_context() -> None:
    child = block("FINAL([x, context, type(maker).__name__, sorted(open('f.txt').read())])")
    events: list[Event] = []
    with playing(lambda request: child, events) as env:
        shown(env, "x = {1: 'one'}; maker = (i for i in range(3)); open('f.txt', 'w').write('ba')")
        assert (
            shown(env, "rlm_query('q')") == "\"[{1: 'one'}, 'the whole context', 'generator', ['a', 'b']]\""
        )
        assert (
            shown(env, "rlm_query('q', context=x)") == "\"[{1: 'one'}, {1: 'one'}, 'generator', ['a', 'b']]\""
        )
        assert shown(env, "context, next(maker)") == '["the whole context", 0]'
    kinds = [type(event) for event in events]
    assert kinds.count(Forked) == kinds.count(Began) == kinds.count(Ended) == 2
    assert [e.how for e in events if isinstance(e, Forked)] == ["fork", "fork"]
    assert [e.node for e in events if isinstance(e, Began)] == ["0.1", "0.2"]


def test_what_a_child_does_stays_with_it() -> None:
    child = block(
        "x.append('child'); y = 1; open('f.txt', 'a').write('!'); answer['content'] = 'c'; FINAL(x)"
    )
    with playing(lambda request: child) as env:
        shown(env, "x = ['parent']; open('f.txt', 'w').write('kept')")
        assert shown(env, "rlm_query('q')") == "\"['parent', 'child']\""
        assert shown(env, "x, 'y' in globals(), open('f.txt').read(), answer['content']") == (
            '[["parent"], false, "kept", ""]'
        )


def test_many_children_answer_in_order_with_objects_as_contexts() -> None:
    def script(request: Request) -> str:
        return block("FINAL(context())")

    with playing(script) as env:
        code = "things = [lambda i=i: i * i for i in range(5)]\nrlm_query_batched(['q'] * 5, things)"
        assert shown(env, code) == '["0", "1", "4", "9", "16"]'
        assert "2 prompts and 1 contexts" in str(
            env.execute("rlm_query_batched(['a', 'b'], [1])").observation.result.exception
        )


def test_a_child_works_in_turns_and_is_shown_what_it_did() -> None:
    turns: list[Any] = []

    def script(request: Request) -> str:
        turns.append([message["content"] for message in request.messages])
        return [
            block("total = 6 * 7\nprint('total is', total)\n1 / 0"),
            "I have to think.",
            block("print('one')") + "\n" + block("print('two')"),
            "I am done.\nFINAL_VAR(total)",
        ][len(turns) - 1]

    with playing(script) as env:
        assert shown(env, "rlm_query('the task')") == '"42"'
    assert "the task" in turns[0][-1]
    assert "total is 42" in turns[1][-1]
    assert "ZeroDivisionError" in turns[1][-1]
    assert "Nothing was run" in turns[2][-1]
    assert "one" in turns[3][-1]
    assert "two" in turns[3][-1]


def test_a_child_out_of_turns_is_asked_for_what_it_has() -> None:
    def script(request: Request) -> str:
        return (
            "FINAL(a guess)" if "no turns left" in request.messages[-1]["content"] else block("print('hm')")
        )

    events: list[Event] = []
    with playing(script, events, budget=Budget(child_iterations=3)) as env:
        assert shown(env, "rlm_query('q')") == '"a guess"'
    assert sum(isinstance(event, Ran) for event in events) == 4
    assert [e.reason for e in events if isinstance(e, Ended)] == ["out of turns"]


def test_generations_are_limited_and_the_last_asks_a_model() -> None:
    def script(request: Request) -> str:
        if len(request.messages) == 1:
            return f"plain answer to {request.messages[0]['content']}"
        return block(f"FINAL(rlm_query('from {request.node}', context='ctx'))")

    events: list[Event] = []
    with playing(script, events, budget=Budget(depth=2)) as env:
        assert shown(env, "rlm_query('top')") == '"plain answer to from 0.1.1"'
    assert [e.node for e in events if isinstance(e, Began)] == ["0.1", "0.1.1"]


def test_children_are_limited_over_the_whole_tree() -> None:
    with playing(lambda request: block("FINAL(1)"), budget=Budget(children=3)) as env:
        assert shown(env, "rlm_query_batched(['q'] * 2)") == '["1", "1"]'
        assert "2 child agents are asked for, and the budget has 1 left" in shown(
            env, "rlm_query_batched(['q'] * 2)"
        )
        assert shown(env, "rlm_query('q')") == '"1"'
        assert "0 left" in shown(env, "rlm_query('q')")
        usage = env.execute("1").observation.metadata["usage"]
    assert (usage["children"], usage["calls"]) == (3, 3)


def test_calls_are_shared_by_parent_and_children() -> None:
    child = block("a = llm_query('from the child'); FINAL(a)")

    def script(request: Request) -> str:
        return child if len(request.messages) > 1 else "said"

    with playing(script, budget=Budget(calls=3)) as env:
        assert shown(env, "llm_query('1')") == '"said"'
        assert shown(env, "rlm_query('q')") == '"said"'
        assert "3 calls of language models are spent" in shown(env, "rlm_query('q')")


@pytest.mark.parametrize(
    "call", ["llm_query_batched({})", "_repl_recurse({}, None)", "_repl_recurse(['q'], {})"]
)
def test_a_text_in_place_of_a_list_is_refused_and_not_taken_for_its_characters(call: str) -> None:
    asked: list[Event] = []
    with playing(lambda request: "an answer", asked) as env:
        result = env.execute(call.format("'x' * 4_000_000")).observation.result
        assert "must be a list of texts, and not str" in result.stderr
        assert shown(env, "llm_query_batched(['q', 'r'])") == '["an answer", "an answer"]'
    assert sum(isinstance(event, Asked) for event in asked) == 2


def test_a_child_that_fails_is_an_answer_and_its_siblings_go_on() -> None:
    def script(request: Request) -> str:
        task = request.messages[1]["content"]
        if "die" in task:
            return block("import os; os._exit(9)")
        if "model" in task:
            raise ModelFailed("the model is gone")
        return block("FINAL('well')")

    with playing(script) as env:
        answers = shown(env, "kept = 1\nrlm_query_batched(['die', 'fine', 'model', 'fine too'])")
        assert answers == '["Error: over", "well", "Error: the model is gone", "well"]'
        assert shown(env, "kept") == "1"


def test_a_hung_child_is_stopped_by_the_steps_deadline() -> None:
    with playing(lambda request: block("kept = 1\nwhile True: pass")) as env:
        said = env.execute("a = rlm_query('q')\nprint(a)", timeout_s=3.0).observation.result
        assert "Error" in said.stdout
        assert shown(env, "'kept' in globals()") == "false"


def test_without_inheritance_a_child_begins_with_nothing_but_its_context() -> None:
    child = block("FINAL(['x' in globals(), globals().get('context')])")
    events: list[Event] = []
    with playing(lambda request: child, events) as env:
        shown(env, "x = 1")
        assert shown(env, "rlm_query('q', context='é' * 3, inherit=False)") == "\"[False, 'ééé']\""
        assert shown(env, "rlm_query('q', context={'a': 1}, inherit=False)") == '"[False, \\"{\'a\': 1}\\"]"'
        assert shown(env, "rlm_query('q', inherit=False)") == '"[False, None]"'
        assert "can be inherited, and not be sent" in str(
            env.execute("rlm_query('q', 'x' * 5_000_000, inherit=False)").observation.result.exception
        )
    assert {e.how for e in events if isinstance(e, Forked)} == {"fresh"}


def test_where_nothing_can_be_forked_children_are_fresh() -> None:
    done = run_module("tests.envs.repl_env.container_checks", user=NOBODY)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["\"[False, 'sent']\"", "fresh"]


def test_a_step_that_is_cancelled_takes_its_children_with_it() -> None:
    class Stuck:
        def __init__(self) -> None:
            self.asked = asyncio.Event()
            self.waiting = 0

        async def complete(self, request: Request) -> Completion:
            self.waiting += 1
            if self.waiting == 3:
                self.asked.set()
            try:
                await asyncio.Event().wait()
            finally:
                self.waiting -= 1
            raise AssertionError("unreachable")

        async def close(self) -> None:
            pass

    async def main() -> None:
        model = Stuck()
        events: list[Event] = []
        make = lambda: REPLEnvironment(model=model, policy=SMALL, observer=events.append)  # noqa: E731
        async with AsyncREPLEnv.local(make) as env:
            await env.reset()
            await env.execute("kept = 1")
            step = asyncio.ensure_future(env.execute("rlm_query_batched(['q'] * 3)"))
            await model.asked.wait()
            step.cancel()
            with pytest.raises(asyncio.CancelledError):
                await step
            assert model.waiting == 0
            assert (await env.execute("kept")).observation.result.stdout == "1"

    asyncio.run(main())


def test_a_forked_session_goes_its_own_way() -> None:
    with playing(lambda request: "said") as env:
        shown(env, "x = [1]; llm_query('q')")
        (copy,) = env.fork()
        with copy:
            assert shown(copy, "x.append(2); x") == "[1, 2]"
            assert shown(copy, "llm_query('again')") == '"said"'
            assert copy.state().iteration == env.state().iteration + 2
        assert shown(env, "x") == "[1]"
        assert env.execute("1").observation.metadata["usage"]["calls"] == 1


def test_every_question_is_an_event_with_who_asked() -> None:
    def script(request: Request) -> str:
        return block("FINAL(llm_query('inner'))") if len(request.messages) > 1 else "said"

    events: list[Event] = []
    with playing(script, events) as env:
        shown(env, "rlm_query('q')")
    asked = [(e.node, e.number, e.turn, e.answer) for e in events if isinstance(e, Asked)]
    assert [(node, number, turn) for node, number, turn, _ in asked] == [("0.1", 1, True), ("0.1", 2, False)]
    assert re.search("inner", str(events))
