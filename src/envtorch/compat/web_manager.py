"""OpenEnv's web manager and page builder, for code that makes its own. It needs Gradio."""

from typing import Any

import gradio as gr

from envtorch.compat.web_interface import get_gradio_display_title
from envtorch.server import HTTPEnvServer
from envtorch.settings import ServerMode
from envtorch.types import EnvironmentMetadata
from envtorch.web.manager import ActionLog, EpisodeState, WebManager
from envtorch.web.page import build_page
from envtorch.web.played_environment import PlayedEnvironment
from envtorch.web.quick_start import quick_start as get_quick_start_markdown
from envtorch.web.theme import CSS_FILE
from envtorch.web.theme import THEME as OPENENV_GRADIO_THEME
from envtorch.web.visits import Visits

__all__ = [
    "OPENENV_GRADIO_CSS",
    "OPENENV_GRADIO_THEME",
    "ActionLog",
    "EpisodeState",
    "WebInterfaceManager",
    "build_gradio_app",
    "get_quick_start_markdown",
    "gr",
]

OPENENV_GRADIO_CSS = CSS_FILE.read_text()


class WebInterfaceManager(WebManager):
    """A manager on sessions of its own: `WebInterfaceManager(MyEnvironment, MyAction, MyObservation)`."""

    def __init__(
        self,
        env: Any,
        action_cls: type,
        observation_cls: type,
        metadata: EnvironmentMetadata | None = None,
    ) -> None:
        name = metadata.name if metadata else None
        server = HTTPEnvServer(env, action_cls, observation_cls, env_name=name)
        subject = PlayedEnvironment(server.sessions, server.codec)
        super().__init__(subject, Visits(server.sessions, ServerMode.SIMULATION))
        self._given_metadata = metadata

    @property
    def metadata(self) -> EnvironmentMetadata:
        return self._given_metadata or super().metadata


def build_gradio_app(
    web_manager: WebManager,
    action_fields: list[dict[str, Any]],
    metadata: EnvironmentMetadata | None,
    is_chat_env: bool,
    title: str = "OpenEnv Environment",
    quick_start_md: str | None = None,
) -> gr.Blocks:
    """The default page for a manager. The form comes from the action's schema; the other arguments are
    taken as OpenEnv's builders pass them."""
    return build_page(
        web_manager.subject, web_manager.visits, title=get_gradio_display_title(metadata, title)
    )
