"""The tab that plays: reset, act, look, fork."""

import json
from dataclasses import dataclass
from typing import Any

import gradio as gr

from envtorch.errors import EnvTorchError
from envtorch.protocol.calls import Call
from envtorch.web.cards import error_card, history, nothing_yet, result_card, transcript
from envtorch.web.charts import lines
from envtorch.web.episodes import EpisodeEntry, folded
from envtorch.web.played_environment import PlayedEnvironment, reset_options
from envtorch.web.schema import fields_of
from envtorch.web.snippet import same_in_python
from envtorch.web.theme import QUIET
from envtorch.web.visits import Visit, Visits
from envtorch.web.widgets import Form

__all__ = ["PlayTab", "reward_chart"]


def reward_chart(entries: list[EpisodeEntry]) -> str:
    """The reward of each step, and what they come to."""
    steps = [entry for entry in entries if entry.call == "step" and entry.error is None]
    if steps and all(entry.reward is None for entry in steps):
        return nothing_yet("Reward: this environment gave none.")
    rewards = [entry.reward or 0.0 for entry in entries if entry.call == "step"]
    totals = [sum(rewards[: index + 1]) for index in range(len(rewards))]
    return lines([("reward", rewards), ("total", totals)], label="Reward", x_label="step", first_x=1)


@dataclass(frozen=True)
class _Screen:
    """The components that show where a visit stands, in the order their values are returned."""

    branches: gr.Radio
    drawing: gr.HTML
    legal: gr.Radio
    offered: gr.State
    result: gr.HTML
    terminal: gr.HTML
    chart: gr.HTML
    past: gr.HTML
    raw: gr.JSON
    state: gr.JSON
    python: gr.Code

    @property
    def components(self) -> list[Any]:
        return list(vars(self).values())


class PlayTab:
    """Builds the tab inside the Blocks that is open, and answers its events."""

    def __init__(self, subject: PlayedEnvironment, visits: Visits) -> None:
        self._subject = subject
        self._visits = visits
        self._build()

    # Building.

    def _build(self) -> None:
        with gr.Row(equal_height=False):
            with gr.Column(scale=3, min_width=320):
                branches = gr.Radio(
                    ["main"], value="main", label="Branch", visible=False, elem_id="et-branches"
                )
                self._reset_form = self._build_reset()
                drawing = gr.HTML(visible=False)
                legal = gr.Radio([], label="Legal actions", visible=False, elem_classes="et-actions")
                terminal = gr.HTML(visible=self._subject.code_field is not None)
                acting = gr.Column()
                result = gr.HTML(result_card(()), elem_id="et-result")
            with gr.Column(scale=2, min_width=300):
                chart = gr.HTML(reward_chart([]), elem_id="et-reward")
                past = gr.HTML(history(()), elem_id="et-history")
                with gr.Accordion("Raw JSON", open=False):
                    raw = gr.JSON(show_label=False)
                with gr.Accordion("State", open=False):
                    state = gr.JSON(show_label=False)
                with gr.Accordion("The same in Python", open=False):
                    python = gr.Code(
                        language="python", interactive=False, show_label=False, elem_id="et-python"
                    )
        offered = gr.State([])
        self.screen = _Screen(
            branches, drawing, legal, offered, result, terminal, chart, past, raw, state, python
        )
        with acting:
            self._build_tools() if self._subject.uses_tools else self._build_action()
        self._listen()

    def _build_reset(self) -> Form:
        with gr.Row(elem_classes="et-topline"):
            self._reset_button = gr.Button(
                "Reset", variant="secondary", elem_id="et-reset", size="md", min_width=90
            )
            self._fork_button = gr.Button(
                "Fork", variant="secondary", elem_id="et-fork", size="md", min_width=90
            )
        with gr.Accordion("Reset options", open=False, elem_id="et-reset-options"):
            return Form(self._subject.reset_fields)

    def _build_action(self) -> None:
        form = Form(self._subject.action_fields)
        label = "Run" if self._subject.code_field else "Step"
        button = gr.Button(label, variant="primary", elem_id="et-step")
        gr.HTML(f'<p class="et-keys">Ctrl+Enter: {label}</p>')

        async def step(request: gr.Request, *values: Any) -> list[Any]:
            return await self._act(request, lambda: form.values(values))

        self._on_step(button, form, step)

    def _build_tools(self) -> None:
        self._tools = gr.State([])
        self._tool = gr.Dropdown([], label="Tool", elem_id="et-tool")

        @gr.render(  # type: ignore[untyped-decorator]
            inputs=[self._tool, self._tools], triggers=[self._tool.change, self._tools.change], queue=False
        )
        def arguments(name: str | None, tools: list[dict[str, Any]]) -> None:
            tool = next((tool for tool in tools if tool["name"] == name), None)
            if tool is None:
                gr.HTML(nothing_yet("This environment has no tools."))
                return
            gr.Markdown(tool["description"])
            form = Form(fields_of(tool["inputSchema"], skip=frozenset()))
            button = gr.Button(f"Call {tool['name']}", variant="primary", elem_id="et-step")

            async def call(request: gr.Request, *values: Any) -> list[Any]:
                return await self._act(request, lambda: _tool_call(tool["name"], form.values(values)))

            self._on_step(button, form, call)

    def _on_step(self, button: gr.Button, form: Form, step: Any) -> None:
        presses = [button.click, *(i.submit for i in form.inputs if isinstance(i, gr.Textbox))]
        gr.on(presses, step, form.inputs, self.screen.components, **QUIET)

    def _listen(self) -> None:
        shown = self.screen.components
        self._reset_button.click(self._reset, self._reset_form.inputs, shown, **QUIET)
        self._fork_button.click(self._fork, None, shown, **QUIET)
        self.screen.branches.input(self._switch, self.screen.branches, shown, **QUIET)
        legal = [self.screen.legal, self.screen.offered]
        self.screen.legal.input(self._take_offered, legal, shown, **QUIET)

    def on_load(self, blocks: gr.Blocks) -> None:
        """What happens when a browser opens the page."""
        blocks.load(self._open, None, self.screen.components, **QUIET)
        if self._subject.uses_tools:
            blocks.load(self._list_tools, None, [self._tool, self._tools], **QUIET)

    # Events.

    async def _open(self, request: gr.Request) -> list[Any]:
        return await self._show(request)

    async def _reset(self, request: gr.Request, *values: Any) -> list[Any]:
        try:
            options = reset_options(self._reset_form.values(values))
            await self._visit(request).reset(options)
        except EnvTorchError as error:
            return await self._show(request, error)
        return await self._show(request)

    async def _act(self, request: gr.Request, action: Any) -> list[Any]:
        try:
            await self._visit(request).step(action())
        except EnvTorchError as error:
            return await self._show(request, error)
        return await self._show(request)

    async def _take_offered(
        self, request: gr.Request, chosen: str, offered: list[dict[str, Any]]
    ) -> list[Any]:
        return await self._act(request, lambda: offered[int(chosen)])

    async def _fork(self, request: gr.Request) -> list[Any]:
        try:
            await self._visit(request).fork()
        except EnvTorchError as error:
            return await self._show(request, error)
        return await self._show(request)

    async def _switch(self, request: gr.Request, name: str) -> list[Any]:
        self._visit(request).current = name
        return await self._show(request)

    async def _list_tools(self) -> tuple[Any, list[dict[str, Any]]]:
        try:
            told = await self._subject.sessions.ask(Call("list_tools"))
        except EnvTorchError as error:
            gr.Warning(f"The tools could not be listed: {error}")
            return gr.update(choices=[]), []
        tools = json.loads(told)
        names = [tool["name"] for tool in tools]
        return gr.update(choices=names, value=names[0] if names else None), tools

    # Showing.

    def _visit(self, request: gr.Request) -> Visit:
        return self._visits.of(request.session_hash)

    async def _show(self, request: gr.Request, error: EnvTorchError | None = None) -> list[Any]:
        visit = self._visit(request)
        entries = visit.entries
        drawing, actions = await self._drawn(visit)
        code = self._subject.code_field
        names = list(visit.branches) or ["main"]
        latest = entries[-1] if entries else None
        return [
            gr.update(choices=names, value=visit.current, visible=len(names) > 1),
            gr.update(value=drawing or "", visible=bool(drawing)),
            gr.update(
                choices=[(label, str(i)) for i, (label, _) in enumerate(actions)],
                value=None,
                visible=bool(actions),
            ),
            [action for _, action in actions],
            error_card(error) if error else result_card(entries),
            transcript(entries, code.name) if code else "",
            reward_chart(entries),
            history(entries),
            folded(latest.payload) if latest else None,
            folded(visit.branch.state) if visit.branch else None,
            same_in_python(entries, _address(request), self._subject.client),
        ]

    async def _drawn(self, visit: Visit) -> tuple[str | None, list[tuple[str, dict[str, Any]]]]:
        """What the environment draws, and the actions it offers."""
        branch = visit.branch
        if branch is None or not branch.entries or branch.entries[-1].error is not None:
            return None, []
        latest = branch.entries[-1]
        seen = {**latest.observation, "reward": latest.reward, "done": latest.done}
        drawing = await branch.ask("render_web", seen)
        offered = [] if latest.done else await branch.ask("web_actions", seen)
        return drawing, [(str(label), dict(action)) for label, action in offered or []]


def _tool_call(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    return {"type": "call_tool", "tool_name": name, "arguments": arguments}


def _address(request: gr.Request) -> str:
    """Where the visitor's browser found this server."""
    headers = request.headers
    scheme = headers.get("x-forwarded-proto") or (request.request.url.scheme if request.request else "http")
    return f"{scheme}://{headers.get('host', '127.0.0.1:8000')}"
