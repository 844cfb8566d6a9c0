"""HTML of an episode: the result of a call, the history with its diffs, a terminal, an error.

Everything an environment or an agent wrote is escaped here.
"""

import json
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from envtorch.errors import EnvTorchError, InvalidAction
from envtorch.web.diffs import Change, changes, line_diff
from envtorch.web.episodes import EpisodeEntry, folded, total_reward

__all__ = ["error_card", "history", "nothing_yet", "result_card", "transcript"]

_MOST_ENTRIES = 50
_LONGEST = 4000

_NEXT = {
    "CAPACITY_REACHED": "Every session this server may hold is taken. Close another tab, wait for one "
    "to end, or serve with a larger max_concurrent_envs.",
    "SESSION_ERROR": "Press Reset to begin another episode.",
    "UNSUPPORTED": "Everything else goes on working.",
    "EXECUTION_ERROR": "The environment's own code raised this. The session goes on, and the log has more.",
    "NOT_ALLOWED": "Serve in simulation mode to play here.",
    "DRAINING": "The server is shutting down.",
}


def nothing_yet(sentence: str) -> str:
    """What stands where there is nothing to show."""
    return f'<p class="et-quiet">{escape(sentence)}</p>'


def result_card(entries: Sequence[EpisodeEntry]) -> str:
    """The newest answer: reward, done, and the observation field by field."""
    if not entries:
        return nothing_yet("Press Reset to begin an episode.")
    entry = entries[-1]
    if entry.error is not None:
        return f'<div class="et-card et-bad"><h4>The step failed</h4><p>{escape(entry.error)}</p></div>'
    steps = sum(e.call == "step" for e in entries)
    pills = [
        _pill("step", str(steps)),
        _pill("reward", "none" if entry.reward is None else f"{entry.reward:.4g}"),
        _pill("total", f"{total_reward(entries):.4g}"),
        _pill("done", "yes" if entry.done else "no", "et-yes" if entry.done else ""),
    ]
    if entry.seconds is not None:
        pills.append(_pill("took", f"{entry.seconds * 1000:.3g} ms"))
    rows = "".join(
        f"<tr><th>{escape(str(name))}</th><td>{_shown(value)}</td></tr>"
        for name, value in sorted(entry.observation.items(), key=lambda item: item[0] == "metadata")
        if value or name != "metadata"
    )
    ended = '<p class="et-ended">The episode is over. Reset begins another.</p>' if entry.done else ""
    return (
        f'<div class="et-card"><div class="et-pills">{"".join(pills)}</div>{ended}<table>{rows}</table></div>'
    )


def _pill(name: str, value: str, style: str = "") -> str:
    return f'<span class="et-pill {style}"><i>{escape(name)}</i> {escape(value)}</span>'


def _shown(value: Any) -> str:
    """A value in a table cell."""
    if isinstance(value, str):
        if value.startswith("data:image/"):
            return f'<img src="{escape(value)}" alt="an image the environment sent">'
        return f"<pre>{escape(_cut(value))}</pre>" if value else '<span class="et-quiet">empty</span>'
    if isinstance(value, Mapping | list):
        return f"<pre>{escape(_cut(json.dumps(folded(value), indent=1, ensure_ascii=False)))}</pre>"
    return f"<code>{escape(json.dumps(value))}</code>"


def _cut(text: str) -> str:
    left = len(text) - _LONGEST
    return text if left <= 0 else f"{text[:_LONGEST]}\n… and {left} more characters"


def error_card(error: EnvTorchError, title: str | None = None) -> str:
    """A failure, told to a person: what happened, where, and what to do next."""
    if isinstance(error, InvalidAction):
        title, told = title or "This does not fit", _complaints(error)
    else:
        title = title or (error.code or type(error).__name__).replace("_", " ").capitalize()
        told = f"<p>{escape(error.message)}</p>"
    hint = _NEXT.get(error.code or "")
    after = f'<p class="et-quiet">{escape(hint)}</p>' if hint else ""
    return f'<div class="et-card et-bad" role="alert"><h4>{escape(title)}</h4>{told}{after}</div>'


def _complaints(error: InvalidAction) -> str:
    if not error.errors:
        return f"<p>{escape(error.message)}</p>"
    rows = "".join(
        f"<li><b>{escape('.'.join(map(str, told.get('loc', ()))) or 'the action')}</b>: "
        f"{escape(str(told.get('msg', '')))}</li>"
        for told in error.errors
    )
    return (
        f"<ul>{rows}</ul><p class='et-quiet'>Nothing was sent to the episode. Correct it and try again.</p>"
    )


def history(entries: Sequence[EpisodeEntry]) -> str:
    """Every call, newest first, each with what it changed."""
    if not entries:
        return nothing_yet("No calls yet.")
    rows = []
    numbers = _step_numbers(entries)
    for index in range(len(entries) - 1, max(-1, len(entries) - 1 - _MOST_ENTRIES), -1):
        before = entries[index - 1].observation if index else {}
        is_open = index == len(entries) - 1
        rows.append(_row(entries[index], before, numbers[index], is_open))
    older = len(entries) - _MOST_ENTRIES
    rest = nothing_yet(f"and {older} older calls") if older > 0 else ""
    return f'<div class="et-history">{"".join(rows)}{rest}</div>'


def _step_numbers(entries: Sequence[EpisodeEntry]) -> list[str]:
    numbers, steps = [], 0
    for entry in entries:
        steps += entry.call == "step"
        numbers.append(str(steps) if entry.call == "step" else "R")
    return numbers


def _row(entry: EpisodeEntry, before: Mapping[str, Any], number: str, is_open: bool) -> str:
    summary = escape(_brief(entry.sent)) or '<span class="et-quiet">no options</span>'
    if entry.error is not None:
        mark, body = '<b class="et-minus">failed</b>', f"<pre>{escape(_cut(entry.error))}</pre>"
    else:
        mark = f"<b>{entry.reward:.3g}</b>" if entry.reward is not None else ""
        compared = changes(_comparable(before), _comparable(entry.observation))
        found = [change for change in compared if _is_news(change, entry)]
        body = "".join(map(_change, found)) or nothing_yet("The observation is what it was.")
    opened = " open" if is_open else ""
    return (
        f"<details{opened}><summary><span class='et-number'>{number}</span> <code>{entry.call}</code> "
        f"<span class='et-brief'>{summary}</span> {mark}</summary>{body}</details>"
    )


def _is_news(change: Change, entry: EpisodeEntry) -> bool:
    """Whether a change is more than the action itself, repeated in the observation's metadata."""
    return not (change.path.startswith("metadata.") and change.after in entry.sent.values())


def _comparable(observation: Mapping[str, Any]) -> Mapping[str, Any]:
    found: Mapping[str, Any] = folded(observation)
    return found


def _brief(sent: Mapping[str, Any]) -> str:
    text = ", ".join(
        f"{name}={json.dumps(folded(value), ensure_ascii=False)}" for name, value in sent.items()
    )
    return text if len(text) <= 90 else f"{text[:89]}…"


def _change(change: Change) -> str:
    before, after = change.before, change.after
    if isinstance(before, str) and isinstance(after, str) and ("\n" in before or "\n" in after):
        return f"<div class='et-change'><b>{escape(change.path)}</b>{_lines(before, after)}</div>"
    parts = []
    if change.nature != "added":
        parts.append(f"<del>{escape(_value(before))}</del>")
    if change.nature != "removed":
        parts.append(f"<ins>{escape(_value(after))}</ins>")
    return f"<div class='et-change'><b>{escape(change.path)}</b> {' '.join(parts)}</div>"


def _lines(before: str, after: str) -> str:
    styles = {"+": "ins", "-": "del", " ": "span"}
    drawn = "".join(
        f"<{styles[mark]}>{escape(f'{mark} {line}')}\n</{styles[mark]}>"
        for mark, line in line_diff(_cut(before), _cut(after))
    )
    return f"<pre>{drawn}</pre>"


def _value(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 300 else f"{text[:299]}…"


def transcript(entries: Sequence[EpisodeEntry], field: str) -> str:
    """The episode as a terminal would show it: code after a prompt, then what it printed."""
    parts = [_exchange(entry, field) for entry in entries[-_MOST_ENTRIES:] if entry.call == "step"]
    shown = "".join(parts) or '<span class="et-dim"># what you run, and what it prints, appears here</span>'
    return f'<pre class="et-terminal" tabindex="0" aria-label="The program\'s output">{shown}</pre>'


def _exchange(entry: EpisodeEntry, field: str) -> str:
    code = str(entry.sent.get(field, "")).rstrip().splitlines() or [""]
    prompts = [">>> ", *["... "] * (len(code) - 1)]
    asked = "".join(f"<b>{prompt}</b>{escape(line)}\n" for prompt, line in zip(prompts, code, strict=True))
    if entry.error is not None:
        return f'{asked}<span class="et-err">{escape(_cut(entry.error))}\n</span>'
    told: Mapping[str, Any] = entry.observation
    inner = told.get("result")
    if isinstance(inner, Mapping) and "stdout" in inner:
        told = inner
    out = "".join(_output(told.get(name), style) for name, style in _STREAMS)
    return f"{asked}{out}"


_STREAMS = (("stdout", "et-out"), ("output", "et-out"), ("value", "et-value"), ("stderr", "et-err"))


def _output(text: Any, style: str) -> str:
    if not isinstance(text, str) or not text:
        return ""
    return f'<span class="{style}">{escape(_cut(text.rstrip()))}\n</span>'
