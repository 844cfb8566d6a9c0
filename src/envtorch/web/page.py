"""The page: its tabs put together, and put at `/web` of an application."""

import asyncio
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import gradio as gr
from fastapi import FastAPI

from envtorch.errors import ConfigurationError
from envtorch.settings import ServerMode
from envtorch.web.comparison_tab import CompareTab
from envtorch.web.manager import WebManager
from envtorch.web.operations import Operations
from envtorch.web.play import PlayTab
from envtorch.web.played_environment import PlayedEnvironment, readme_body
from envtorch.web.recordings import RecordingTab
from envtorch.web.routes import WebRoutes
from envtorch.web.theme import CSS_FILE, HEAD, QUIET, THEME
from envtorch.web.visits import Visits

__all__ = ["PageOptions", "build_page", "mount"]

PATH = "/web"

_CLOSED = "This server is in **production mode**: agents use its tools over MCP, and nobody runs episodes."


@dataclass(frozen=True, slots=True)
class PageOptions:
    """What an author may say about the page, in OpenEnv's words."""

    gradio_builder: Callable[..., Any] | None = None
    """`(web_manager, action_fields, metadata, is_chat_env, title, quick_start_md) -> gr.Blocks`."""
    custom_tab_name: str = "Custom"
    custom_tab_primary: bool = False
    show_default_tab: bool = True
    title_override: str | None = None


def build_page(
    subject: PlayedEnvironment,
    visits: Visits,
    *,
    title: str,
    recordings: Callable[[], Path | None] = lambda: None,
) -> gr.Blocks:
    """The page that every environment has. `recordings` says where those are that may be listed."""
    operations = Operations(subject.sessions)
    blocks = gr.Blocks(title=title, analytics_enabled=False)
    with blocks:
        gr.HTML(_header(subject))
        with gr.Tabs():
            with gr.Tab("Play", id="play"):
                play = PlayTab(subject, visits) if subject.mode is ServerMode.SIMULATION else None
                if play is None:
                    gr.Markdown(_CLOSED)
            with gr.Tab("Compare", id="compare") as comparing:
                compare = CompareTab(visits)
            with gr.Tab("Recording", id="recording") as recorded:
                recording = RecordingTab(subject, recordings)
            with gr.Tab("Operations", id="operations") as operating:
                _operations_tab(operations, operating)
            with gr.Tab("About", id="about"):
                readme = subject.metadata.readme_content
                gr.Markdown(readme_body(readme) if readme else "This environment has no README.")
        compare.on_select(comparing)
        recording.on_select(recorded)
        if play is not None:
            play.on_load(blocks)
    return blocks


def _operations_tab(operations: Operations, tab: gr.Tab) -> None:
    """Numbers that move while the tab is before somebody's eyes."""
    shown = gr.HTML(elem_id="et-operations")
    timer = gr.Timer(1.0, active=False)

    async def look() -> str:
        return operations.html()

    async def begin() -> tuple[str, Any]:
        return operations.html(), gr.Timer(active=True)

    timer.tick(look, None, shown, **QUIET, show_progress="hidden")
    tab.select(begin, None, [shown, timer], **QUIET, show_progress="hidden")


def _header(subject: PlayedEnvironment) -> str:
    title = subject.name.removesuffix("_env").replace("_", " ")
    badges = [f"{subject.sessions.capacity} sessions", subject.mode.value]
    shown = "".join(f'<span class="et-badge">{escape(badge)}</span>' for badge in badges)
    return (
        f'<div class="et-header"><h1>{escape(title)}</h1>{shown}'
        f"<p>{_with_code(subject.metadata.description)}</p></div>"
    )


def _with_code(text: str) -> str:
    """A docstring's first paragraph: what stands between backticks is code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))


def mount(
    app: FastAPI, server: Any, mode: ServerMode, options: PageOptions, *, title: str | None = None
) -> None:
    """Put the page of `server` at `/web` of `app`, with OpenEnv's routes beside it."""
    manager = WebManager(
        PlayedEnvironment(server.sessions, server.codec, mode), Visits(server.sessions, mode)
    )
    WebRoutes(manager).register(app)

    def recordings() -> Path | None:
        """They hold everybody's episodes: they are shown to those who have shown a token."""
        recorder = server.sessions.recorder
        return recorder.directory if recorder is not None and server.is_locked else None

    def build() -> None:
        blocks = _arranged(
            manager, options, options.title_override or title or manager.metadata.name, recordings
        )
        blocks.queue(default_concurrency_limit=None)
        looks: dict[str, Any] = {"theme": THEME, "css_paths": CSS_FILE, "head": HEAD, "footer_links": []}
        gr.mount_gradio_app(app, blocks, path=PATH, ssr_mode=False, show_error=True, **looks)

    _with_a_loop(build)


def _with_a_loop(build: Callable[[], None]) -> None:
    """Build where an event loop runs: where none does, Gradio makes loops and leaves them open."""

    async def built() -> None:
        build()

    with ThreadPoolExecutor(max_workers=1) as thread:
        thread.submit(asyncio.run, built()).result()


Recordings = Callable[[], Path | None]


def _arranged(manager: WebManager, options: PageOptions, title: str, recordings: Recordings) -> gr.Blocks:
    """The whole page. Whoever closes its tab ends their sessions."""
    blocks = _chosen(manager, options, title, recordings)

    async def leave(request: gr.Request) -> None:
        await manager.visits.leave(request.session_hash)

    with blocks:
        blocks.unload(leave)
    return blocks


def _chosen(manager: WebManager, options: PageOptions, title: str, recordings: Recordings) -> gr.Blocks:
    """The page alone, the author's page alone, or both as tabs."""
    own = None if options.gradio_builder is None else _own_page(manager, options.gradio_builder, title)
    if own is not None and not options.show_default_tab:
        own.title = title
        return own
    page = build_page(manager.subject, manager.visits, title=title, recordings=recordings)
    if own is None:
        return page
    tabs = [(page, "Playground"), (own, options.custom_tab_name)]
    if options.custom_tab_primary:
        tabs.reverse()
    return gr.TabbedInterface([tab for tab, _ in tabs], tab_names=[name for _, name in tabs], title=title)


def _own_page(manager: WebManager, build: Callable[..., Any], title: str) -> gr.Blocks:
    """The author's page, which is given what OpenEnv would give it."""
    own = build(
        manager,
        manager.action_fields,
        manager.metadata,
        manager.is_chat_env,
        title,
        manager.quick_start_markdown,
    )
    if not isinstance(own, gr.Blocks):
        raise ConfigurationError(f"gradio_builder must return a gr.Blocks, and returned {type(own).__name__}")
    return own
