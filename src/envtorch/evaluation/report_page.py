"""A report as one HTML page: plots, the worst cases, and every trajectory to click through.

What models and environments wrote is untrusted: it is escaped, the page has no scripts, and its content
security policy forbids scripts and everything from elsewhere.
"""

import json
from collections.abc import Sequence
from html import escape
from importlib import resources

from envtorch.evaluation.eval_report import EvalReport, TaskResult
from envtorch.evaluation.report_charts import endings_chart, pass_chart, rates_chart
from envtorch.rollout import ChatMessage, Trajectory

__all__ = ["report_page"]

MOST_TASKS = 300
"""How many tasks have their trajectories on the page; the worst are always among them."""
LONGEST_TEXT = 20_000
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


def report_page(report: EvalReport) -> str:
    """The page, whole: it needs no other file."""
    style = (resources.files("envtorch.evaluation") / "report.css").read_text()
    title = f"{report.settings.get('model', 'policy')} on {report.settings.get('target', 'environment')}"
    shown = _shown(report)
    body = [
        f"<h1>{escape(title)}</h1>",
        f'<p class="dim">{len(report.tasks)} tasks, {report.settings.get("samples", "?")} samples each</p>',
        *_notes(report, shown),
        _cards(report),
        f'<div class="plots">{_plots(report)}</div>',
        "<h2>Worst cases</h2>",
        _worst(report.worst),
        "<h2>Tasks</h2>",
        *(_task(place, result) for place, result in enumerate(report.tasks) if result.task.id in shown),
        "<h2>Settings</h2>",
        _settings(report),
    ]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{escape(POLICY)}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{style}</style></head>"
        f"<body><main>{''.join(body)}</main></body></html>\n"
    )


def _shown(report: EvalReport) -> set[str]:
    worst = [result.task.id for result in report.worst]
    return set([*worst, *(result.task.id for result in report.tasks)][: MOST_TASKS + len(worst)])


def _notes(report: EvalReport, shown: set[str]) -> list[str]:
    notes = []
    if report.lacks_rewards:
        notes.append("No reward was given, so nothing can pass. Give a scorer with --score.")
    unscored = report.summary.count - report.summary.scored
    if unscored:
        lost_to = "the infrastructure, or to the environment's own errors"
        if report.failed_endpoint is not None:
            lost_to = f"{lost_to}, or to the model's endpoint ({report.failed_endpoint.message})"
        notes.append(f"{unscored} samples were lost to {lost_to}. They are not counted in pass@k.")
    if len(shown) < len(report.tasks):
        counts = f"{len(shown)} of {len(report.tasks)}"
        notes.append(f"The page shows {counts} tasks; trajectories.jsonl has all of them.")
    return [f'<p class="note">{escape(note)}</p>' for note in notes]


def _cards(report: EvalReport) -> str:
    summary = report.summary
    cards = [
        (f"pass@{k}", f"{estimate.value:.1%}", f"{estimate.low:.1%} to {estimate.high:.1%}")
        for k, estimate in report.pass_at.items()
    ]
    if report.reward_mean is not None:
        deviation = summary.reward_deviation or 0.0
        cards.append(("mean reward", f"{report.reward_mean:.3f}", f"deviation {deviation:.3f}"))
    cards.append(("turns", f"{summary.turns_mean:.1f}", "a sample, on average"))
    if summary.tokens_said:
        cards.append(("tokens", f"{summary.tokens_said:,}", f"said; {summary.tokens_read:,} read"))
    if report.cost is not None:
        cards.append(("cost", f"{report.cost:.2f}", "by the prices given"))
    policy = f"policy p50 {summary.policy_p50_s:.2f} s, p99 {summary.policy_p99_s:.2f} s"
    step = f"step p50 {summary.step_p50_s:.3f} s, p99 {summary.step_p99_s:.3f} s"
    cards.append(("time", f"{report.seconds:.0f} s", f"{policy}; {step}"))
    drawn = [
        f'<div class="card"><span>{escape(name)}</span><b>{escape(value)}</b>'
        f"<span>{escape(more)}</span></div>"
        for name, value, more in cards
    ]
    return f'<div class="cards">{"".join(drawn)}</div>'


def _plots(report: EvalReport) -> str:
    rates = [result.rate for result in report.tasks if result.rate is not None]
    return pass_chart(report.pass_at) + rates_chart(rates) + endings_chart(report.endings)


def _worst(worst: Sequence[TaskResult]) -> str:
    if not worst:
        return '<p class="dim">Every sample of every task passed.</p>'
    rows = []
    for result in worst:
        reward = "no reward" if result.mean_reward is None else f"mean reward {result.mean_reward:.3f}"
        rows.append(
            f'<tr><td><a href="#{_anchor(result)}">{escape(result.task.id)}</a></td>'
            f'<td class="{_grade(result)}">{result.passed} of {result.scored}</td><td>{reward}</td></tr>'
        )
    return f"<table>{''.join(rows)}</table>"


def _anchor(result: TaskResult) -> str:
    """An address inside the task's details, so that a browser opens them; of letters and digits only."""
    return "task-" + result.task.id.encode().hex()


def _grade(result: TaskResult) -> str:
    if result.rate is None or result.passed == 0:
        return "fail"
    return "pass" if result.passed == result.scored else "some"


def _task(place: int, result: TaskResult) -> str:
    samples = "".join(_sample(result, sample) for sample in result.samples)
    reward = "" if result.mean_reward is None else f"reward {result.mean_reward:.3f}"
    return (
        f'<details class="task"><summary><span class="name">{escape(result.task.id)}</span>'
        f'<span class="figure">{reward}</span>'
        f'<span class="figure {_grade(result)}">{result.passed} of {result.scored} passed</span></summary>'
        f'<div id="{_anchor(result)}">{samples}</div></details>'
    )


def _sample(result: TaskResult, sample: Trajectory) -> str:
    reward = sample.reward
    grade = "fail" if reward is None or reward < result.passes_at else "pass"
    told = "no reward" if reward is None else f"reward {reward:.3f}"
    blame = (
        f'<p class="note">{escape(str(sample.blame)[:LONGEST_TEXT])}</p>' if sample.blame is not None else ""
    )
    return (
        f'<details><summary><span class="name">sample {sample.member}</span>'
        f'<span class="figure">{escape(sample.cause)}</span>'
        f'<span class="figure">{len(sample.turns)} turns</span>'
        f'<span class="figure {grade}">{told}</span></summary>'
        f"{''.join(map(_message, sample.messages))}{blame}</details>"
    )


def _message(message: ChatMessage) -> str:
    role = message.get("role", "")
    kind = role if role in ("assistant", "tool", "system", "user") else "other"
    content = message.get("content") or ""
    text = content if isinstance(content, str) else json.dumps(content, indent=2)
    calls = [json.dumps(call.get("function", call), indent=2) for call in message.get("tool_calls") or ()]
    whole = "\n".join([*([text] if text else ()), *calls])
    cut = f"\n… {len(whole) - LONGEST_TEXT} more letters" if len(whole) > LONGEST_TEXT else ""
    return (
        f'<div class="message {kind}"><span class="role">{escape(str(role))}</span>'
        f"<pre>{escape(whole[:LONGEST_TEXT] + cut)}</pre></div>"
    )


def _settings(report: EvalReport) -> str:
    rows = [
        f"<tr><td class='dim'>{escape(name)}</td><td>{escape(str(value))}</td></tr>"
        for name, value in report.settings.items()
        if value is not None
    ]
    return f"<table>{''.join(rows)}</table>"
