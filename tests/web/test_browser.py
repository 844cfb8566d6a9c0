"""The page as a person sees it: a real server, a real browser."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gradio as gr
import pytest

from envtorch import EnvClient
from envtorch.envs.coding_env.environment import CodingEnvironment
from envtorch.server import create_app
from envtorch.tools import CallToolAction, CallToolObservation
from tests.envs.coding_env.conftest import why_no_sandbox
from tests.support import PATIENCE_S, Running, eventually, running
from tests.web.conftest import Arrive, Visitor
from tests.web.environments import Listener, ToolBench, Walker

pytestmark = [
    pytest.mark.browser,
    pytest.mark.filterwarnings("ignore:'future.no_silent_downcasting'"),  # Gradio's queue, for own pages
]


@pytest.fixture(scope="module", autouse=True)
def page_is_on() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ENABLE_WEB_INTERFACE", "true")
        yield


@pytest.fixture(scope="module")
def walk(page_is_on: None) -> Iterator[Running]:
    with running(create_app(Walker, env_name="walk_env", max_concurrent_envs=16)) as server:
        yield server


def choose(visitor: Visitor, field: str, choice: str) -> None:
    visitor.tab.locator(f".et-field-{field} label", has_text=choice).last.click()


def test_an_episode_is_reset_and_stepped_by_its_form(walk: Running, arrive: Arrive) -> None:
    with arrive() as visitor:
        visitor.open(walk.url)
        visitor.unfold("Reset options")
        visitor.tab.locator(".et-field-seed input").fill("7")
        visitor.press("Reset")
        visitor.steps_taken(0)
        assert "walk-7" not in visitor.text("#et-result")
        choose(visitor, "direction", "right")
        visitor.press("Step")
        visitor.steps_taken(1)
        assert "position" in visitor.text("#et-result")
        assert "4" in visitor.text("#et-history del")
        assert "5" in visitor.text("#et-history ins")
        visitor.tab.locator(".et-field-by input").fill("3")
        visitor.press("Step")
        visitor.steps_taken(2)
        visitor.sees("#et-result", "The episode is over")
        visitor.sees("#walk", "🏠")
        visitor.unfold("The same in Python")
        visitor.sees("#et-python", "env.reset(seed=7)")
        visitor.sees("#et-python", "'by': 3")


def test_legal_actions_are_buttons(walk: Running, arrive: Arrive) -> None:
    with arrive() as visitor:
        visitor.open(walk.url)
        visitor.press("Reset")
        visitor.tab.locator(".et-actions label", has_text="right").click()
        visitor.steps_taken(1)
        visitor.tab.locator(".et-actions label", has_text="right").click()
        visitor.steps_taken(2)
        assert visitor.count("#et-reward circle") == 4
        visitor.photograph("play")


def test_a_mistake_is_explained_to_the_person(walk: Running, arrive: Arrive) -> None:
    with arrive() as visitor:
        visitor.open(walk.url)
        visitor.press("Reset")
        choose(visitor, "direction", "left")
        visitor.tab.locator(".et-field-by input").fill("9")
        visitor.press("Step")
        visitor.sees("#et-result [role=alert]", "less than or equal to 3")
        assert visitor.count("#et-history details") == 1
        visitor.photograph("mistake")
        visitor.tab.locator(".et-field-by input").fill("2")
        visitor.press("Step")
        visitor.steps_taken(1)


def test_a_fork_is_played_and_compared(walk: Running, arrive: Arrive) -> None:
    with arrive() as visitor:
        visitor.open(walk.url)
        visitor.press("Reset")
        choose(visitor, "direction", "right")
        visitor.press("Step")
        visitor.steps_taken(1)
        visitor.press("Fork")
        visitor.sees("#et-branches label", "fork 1 of main")
        visitor.press("Step")
        visitor.steps_taken(2)
        visitor.tab.locator("#et-branches label", has_text="main").first.click()
        visitor.steps_taken(1)
        choose(visitor, "direction", "left")
        visitor.press("Step")
        visitor.steps_taken(2)
        visitor.go_to("Compare")
        visitor.sees("b", "They share 2 calls, then part")
        assert "4" in visitor.text("#et-compare-left .et-card td")
        assert "6" in visitor.text("#et-compare-right .et-card td")
        visitor.photograph("compare")


def test_two_visitors_have_an_episode_each(walk: Running, arrive: Arrive) -> None:
    eventually(lambda: walk.sessions.active == 0, "earlier visitors are gone", timeout_s=PATIENCE_S)
    with arrive() as one, arrive() as other:
        for visitor in (one, other):
            visitor.open(walk.url)
            visitor.press("Reset")
            visitor.steps_taken(0)
        assert walk.sessions.active == 2
        choose(one, "direction", "right")
        one.press("Step")
        one.steps_taken(1)
        choose(other, "direction", "left")
        other.press("Step")
        other.steps_taken(1)
        one.press("Step")
        one.steps_taken(2)
        assert "6" in one.text("#et-result td")
        assert "3" in other.text("#et-result td")
    eventually(lambda: walk.sessions.active == 0, "both sessions ended with their tabs", timeout_s=PATIENCE_S)


def test_operations_move_under_load(walk: Running, arrive: Arrive) -> None:
    stop = threading.Event()

    def load() -> None:
        with EnvClient(walk.url) as env:
            env.reset()
            (copy,) = env.fork(1)
            with copy:
                while not stop.is_set():
                    for _ in range(20):
                        copy.step({"direction": "left"})
                        copy.step({"direction": "right"})
                    stop.wait(0.05)

    player = threading.Thread(target=load)
    player.start()
    try:
        with arrive() as visitor:
            visitor.open(walk.url)
            visitor.go_to("Operations")
            visitor.sees("#et-operations .et-figures", "steps / s")
            figure = "document.querySelector('#et-operations .et-figures div:nth-child(3) b')"
            visitor.tab.wait_for_function(f"parseFloat({figure}.innerText) > 5", timeout=20_000)
            visitor.tab.wait_for_function(
                "document.querySelectorAll('#et-operations circle').length >= 6", timeout=20_000
            )
            visitor.sees("#et-operations .et-tree ul ul", "steps")
            widths = "cards => cards.filter(card => card.scrollWidth > card.clientWidth).length"
            too_wide = visitor.tab.locator(".et-figures div").evaluate_all(widths)
            assert too_wide == 0, "a figure is wider than its card"
            visitor.photograph("operations")
    finally:
        stop.set()
        player.join()


def test_tools_have_forms_of_their_own(page_is_on: None, arrive: Arrive) -> None:
    app = create_app(
        ToolBench, CallToolAction, CallToolObservation, env_name="tool_bench", max_concurrent_envs=4
    )
    with running(app) as server, arrive() as visitor:
        visitor.open(server.url)
        visitor.sees("button", "Call add")
        visitor.tab.locator(".et-field-a input").fill("41")
        visitor.press("Call add")
        visitor.steps_taken(1)
        visitor.sees("#et-result", "42")
        visitor.tab.locator("#et-tool input").click()
        visitor.tab.get_by_role("option", name="shout").click()
        visitor.tab.locator(".et-field-text textarea").fill("hello")
        visitor.press("Call shout")
        visitor.sees("#et-result", "HELLO")


def test_every_kind_of_field_can_be_filled_in(page_is_on: None, arrive: Arrive) -> None:
    app = create_app(Listener, env_name="listener", max_concurrent_envs=4)
    with running(app) as server, arrive() as visitor:
        visitor.open(server.url)
        visitor.tab.locator(".et-field-title textarea, .et-field-title input").first.fill("A parcel")
        visitor.tab.locator(".et-field-message textarea").fill("Please ring")
        choose(visitor, "size", "large")
        visitor.tab.locator(".et-field-count input").fill("2")
        visitor.tab.locator(".et-field-home-street textarea, .et-field-home-street input").first.fill("Elm")
        visitor.tab.locator(".et-field-home-number input").fill("7")
        visitor.unfold("More options")
        secret = visitor.tab.locator(".et-field-api_key input")
        assert secret.get_attribute("type") == "password"
        secret.fill("do-not-show")
        visitor.tab.locator(".et-field-urgent input").check()
        visitor.press("Step")
        visitor.steps_taken(1)
        heard = visitor.text("#et-result")
        for told in ('"title": "A parcel"', '"size": "large"', '"street": "Elm"', '"urgent": true'):
            assert told in heard
        assert "do-not-show" not in visitor.tab.locator("body").inner_text()
        visitor.photograph("form")


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_code_is_run_in_an_editor_with_a_terminal(page_is_on: None, arrive: Arrive, dark: bool) -> None:
    if why := why_no_sandbox():
        pytest.skip(why)
    app = create_app(CodingEnvironment, env_name="coding_env", max_concurrent_envs=4)
    with running(app) as server, arrive(dark=dark) as visitor:
        visitor.open(server.url)
        editor = visitor.tab.locator(".et-field-code .cm-content")
        for code, printed in (("x = 40\nprint('hi')", "hi"), ("x + 2", "42"), ("1 / 0", "ZeroDivisionError")):
            editor.click()
            editor.press("Control+a")
            editor.press_sequentially(code)
            editor.press("Control+Enter")
            visitor.sees(".et-terminal", printed)
        visitor.steps_taken(3)
        lines = visitor.tab.locator(".et-field-code .cm-line").count()
        assert lines == 1, "the keys put no line into the code"
        assert "last_code" not in visitor.text("#et-history")
        visitor.unfold("The same in Python")
        visitor.sees("#et-python", "from envtorch.envs.coding_env import CodeAction, CodingEnv")
        visitor.unfold("The same in Python")
        assert visitor.unreadable_text() == []
        visitor.photograph("code-dark" if dark else "code")


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_a_phone_is_wide_enough(walk: Running, arrive: Arrive, dark: bool) -> None:
    with arrive(phone=True, dark=dark) as visitor:
        visitor.open(walk.url)
        visitor.press("Reset")
        visitor.tab.locator(".et-actions label", has_text="right").click()
        visitor.steps_taken(1)
        wide = visitor.tab.evaluate("document.documentElement.scrollWidth - window.innerWidth")
        assert wide <= 0, f"the page is {wide} pixels wider than the screen"
        is_dark = visitor.tab.evaluate("document.body.classList.contains('dark')")
        assert is_dark is dark
        assert visitor.unreadable_text() == []
        assert visitor.clipped_labels() == []
        visitor.photograph("phone-dark" if dark else "phone")


def test_an_authors_own_page_plays_for_each_visitor(page_is_on: None, arrive: Arrive) -> None:
    def builder(
        manager: Any, fields: Any, metadata: Any, is_chat: bool, title: str, quick_start: str
    ) -> gr.Blocks:
        async def begin() -> str:
            told = await manager.reset_environment({"start": 1})
            return f"begun at {told['observation']['position']}"

        async def go() -> str:
            told = await manager.step_environment({"direction": "right"})
            return f"at {told['observation']['position']} after {manager.get_state()['step_count']} steps"

        def look() -> str:
            return f"state says {manager.get_state()['step_count']}, {type(manager.env).__name__}"

        with gr.Blocks(title=title) as blocks:
            gr.Markdown(f"A panel for {metadata.name}")
            shown = gr.Textbox(label="Shown", elem_id="shown")
            gr.Button("Begin").click(begin, None, shown)
            gr.Button("Go").click(go, None, shown)
            gr.Button("Look").click(look, None, shown)
        built: gr.Blocks = blocks
        return built

    app = create_app(
        Walker,
        env_name="walk_env",
        max_concurrent_envs=4,
        gradio_builder=builder,
        custom_tab_name="Panel",
        custom_tab_primary=True,
        title_override="Walk with a panel",
    )
    with running(app) as server, arrive() as one, arrive() as other:
        for visitor in (one, other):
            visitor.tab.goto(f"{server.url}/web/")
            visitor.sees("p", "A panel for walk_env")
            assert visitor.tab.title() == "Walk with a panel"
            visitor.press("Begin")
            visitor.shows("begun at 1")
        one.press("Go")
        one.shows("at 2 after 1 steps")
        one.press("Go")
        one.shows("at 3 after 2 steps")
        other.press("Go")
        other.shows("at 2 after 1 steps")
        one.press("Look")
        one.shows("state says 2, Walker")
        assert server.sessions.active == 2
        one.photograph("own-page")
        one.go_to("Playground")
        one.press("Step")
        one.sees("#et-result [role=alert]")


def test_a_person_shows_the_token_once(page_is_on: None, arrive: Arrive) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ENVTORCH_TOKEN", "a-long-enough-token")
        app = create_app(Walker, env_name="walk_env", max_concurrent_envs=4)
    with running(app) as server, arrive() as visitor:
        visitor.tab.goto(f"{server.url}/")
        visitor.photograph("token")
        visitor.tab.get_by_label("Token").fill("a guess")
        visitor.press("Enter")
        visitor.sees("[role=alert]", "does not take this token")
        visitor.tab.get_by_label("Token").fill("a-long-enough-token")
        visitor.press("Enter")
        visitor.sees("button", "Reset")
        visitor.press("Reset")
        visitor.steps_taken(0)
        assert visitor.tab.evaluate("fetch('/reset', {method: 'POST'}).then(answer => answer.status)") == 401


@pytest.mark.parametrize("workers", [1, 2])
def test_the_command_line_serves_the_page(arrive: Arrive, workers: int) -> None:
    command = [sys.executable, "-m", "envtorch.cli", "serve", "echo_env", "--web", "--port", "0"]
    server = subprocess.Popen([*command, "--workers", str(workers)], stderr=subprocess.PIPE, text=True)
    try:
        assert server.stderr is not None
        told = next(line for line in server.stderr if "http://" in line)
        assert "the page at /web" in told
        with arrive() as visitor:
            visitor.open(next(word for word in told.split() if word.startswith("http://")))
            visitor.press("Reset")
            visitor.steps_taken(0)
            visitor.tab.locator(".et-field-message textarea").fill("Hello from a browser")
            visitor.press("Step")
            visitor.steps_taken(1)
            visitor.press("Fork")
            visitor.sees("#et-branches label", "fork 1 of main")
            visitor.go_to("About")
            visitor.sees("h1", "Echo")
    finally:
        server.terminate()
        assert server.wait(timeout=PATIENCE_S) == 0
        assert server.stderr is not None
        server.stderr.close()


def test_a_recording_is_opened_and_stepped_through(page_is_on: None, arrive: Arrive, tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ENVTORCH_TOKEN", "a-long-enough-token")
        app = create_app(Walker, env_name="walk_env", max_concurrent_envs=4, record=tmp_path)
    with running(app) as server, arrive() as visitor:
        with EnvClient(server.url, token="a-long-enough-token") as env:
            for seed in (1, 2):
                env.reset(seed=seed)
                for _ in range(4):
                    env.step({"direction": "right"})
        visitor.tab.goto(f"{server.url}/")
        visitor.tab.get_by_label("Token").fill("a-long-enough-token")
        visitor.press("Enter")
        visitor.go_to("Recording")
        (path,) = tmp_path.glob("*.jsonl")
        eventually(lambda: path.read_text().count('"kind":"step"') == 8, "the recording is on disk")
        visitor.tab.locator("#et-listed input").click()
        visitor.tab.get_by_role("option", name=path.name).click()
        visitor.sees("#et-recorded .et-pill", "step 0")
        for step in range(1, 5):
            visitor.press("On ▶")
            visitor.sees("#et-recorded .et-pill", f"step {step}")
        visitor.sees("#et-recorded", "The episode is over")
        visitor.press("◀ Back")
        visitor.sees("#et-recorded .et-pill", "step 3")
        visitor.tab.locator("#et-episode input").click()
        visitor.tab.get_by_role("option", name="seed 2").click()
        visitor.sees("#et-recorded .et-pill", "step 0")
        visitor.press("On ▶")
        visitor.sees("#et-recorded .et-pill", "step 1")
        visitor.photograph("recording")


def test_a_file_that_is_no_recording_is_refused_in_a_sentence(
    walk: Running, arrive: Arrive, tmp_path: Path
) -> None:
    file = tmp_path / "notes.jsonl"
    file.write_text('{"hello": "world"}\n')
    with arrive() as visitor:
        visitor.open(walk.url)
        visitor.go_to("Recording")
        assert visitor.tab.locator("#et-listed").is_visible() is False
        visitor.tab.locator("input[type=file]").first.set_input_files(file)
        visitor.sees("[role=alert]", "This cannot be opened")


def test_the_labels_of_large_numbers_are_not_clipped(page_is_on: None, arrive: Arrive) -> None:
    class Costly(Walker):
        """Rewards with many digits."""

        def step(self, action: Any) -> Any:
            return super().step(action).model_copy(update={"reward": -123456.789})

    app = create_app(Costly, env_name="walk_env", max_concurrent_envs=4)
    with running(app) as server, arrive() as visitor:
        visitor.open(server.url)
        visitor.press("Reset")
        visitor.tab.locator(".et-actions label", has_text="right").click()
        visitor.steps_taken(1)
        visitor.sees("#et-reward text", "-1.23e+05")
        assert visitor.clipped_labels() == []
