"""The web page of a server, at `/web`: play an environment, compare forks, watch operations.

It is made with Gradio (extra `web`), which is loaded when a page is mounted and not before.
"""

from typing import Any

from envtorch.extras import missing_extra
from envtorch.settings import silence_gradio

__all__ = ["mount"]


def mount(app: Any, server: Any, mode: Any, *, title: str | None = None, **options: Any) -> None:
    """Put the page of `server` at `/web` of its application; `options` are those of `PageOptions`."""
    silence_gradio()
    try:
        import gradio  # noqa: F401
    except ImportError as error:
        raise missing_extra("web", "the web page needs Gradio") from error
    from envtorch.web.page import PageOptions
    from envtorch.web.page import mount as mount_page

    mount_page(app, server, mode, PageOptions(**options), title=title)
