"""The page's theme, style sheet and keys. Nothing is loaded from another server."""

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
).set(  # text that can be read: at least 4.5 to 1 against what is behind it
    body_text_color_subdued="*neutral_600",
    body_text_color_subdued_dark="*neutral_400",
    block_info_text_color="*neutral_600",
    block_label_text_color="*neutral_600",
    color_accent="*primary_700",
    button_primary_background_fill="*primary_700",
    button_primary_background_fill_hover="*primary_800",
    button_primary_background_fill_dark="*primary_700",
    button_primary_background_fill_hover_dark="*primary_800",
)

_RUN_BY_KEYS = """
<script>
document.addEventListener("keydown", function (event) {
  if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey)) return;
  const button = document.getElementById("et-step");
  if (button === null || button.offsetParent === null) return;
  event.preventDefault();
  event.stopPropagation();
  setTimeout(function () { button.click(); }, 50);  // after the editor has told its newest text
}, true);
</script>
"""
"""Ctrl+Enter, or Command+Enter, does what the Run or Step button does."""

HEAD = '<meta name="viewport" content="width=device-width, initial-scale=1">' + _RUN_BY_KEYS

CSS_FILE = Path(__file__).with_name("page.css")

QUIET: Final[dict[str, Any]] = {"queue": False, "api_visibility": "private"}
"""For every event of the page: answered at once, by the server's own loop, and no part of an API."""
