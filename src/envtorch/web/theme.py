"""How the page looks and answers: a theme without fonts from elsewhere, our style sheet, events."""

from pathlib import Path
from typing import Any, Final

import gradio as gr

__all__ = ["CSS_FILE", "HEAD", "QUIET", "THEME"]

_SANS = ["system-ui", "-apple-system", "Segoe UI", "Roboto", "sans-serif"]
_MONO = ["ui-monospace", "SFMono-Regular", "Menlo", "DejaVu Sans Mono", "monospace"]

THEME = gr.themes.Default(
    primary_hue=gr.themes.colors.orange,
    secondary_hue=gr.themes.colors.slate,
    neutral_hue=gr.themes.colors.slate,
    radius_size=gr.themes.sizes.radius_md,
    font=_SANS,
    font_mono=_MONO,
)

HEAD = '<meta name="viewport" content="width=device-width, initial-scale=1">'

CSS_FILE = Path(__file__).with_name("page.css")

QUIET: Final[dict[str, Any]] = {"queue": False, "api_visibility": "private"}
"""For every event of the page: answered at once, by the server's own loop, and no part of an API."""
